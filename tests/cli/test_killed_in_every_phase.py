"""A run that is stopped or killed at a random request, whatever it does then, ends like one that nobody disturbed."""

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.counting_server import CountedRequest, CountingServer
from support.kill_trial import AT_ONCE, KillableRun, comparable

from geval_cli.runs.evaluate import JOBS_PER_REQUEST

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")

TESTS = 8
PRICE = {"input": 1_000, "output": 10_000}
COST = 100 * 1e-3 + 10 * 1e-2
"""What each answer of the server costs, in dollars."""


def model(name: str) -> dict[str, Any]:
    return {"id": f"openai:{name}", "config": {"price": PRICE, "max_retries": 0}}


GEVAL = {"type": "g-eval", "criteria": "It is good.", "threshold": 0.5}
RUBRIC = {"type": "llm-rubric", "value": "It is good."}
TURNS = [{"user": "Hello."}, {"user": "Tell me more."}, {"user": "Thank you."}]
PHASES: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    "judging": ({"assert": [GEVAL, {"type": "g-eval", "dimension": "fluency"}, RUBRIC]}, ()),
    "repeats": ({"assert": [GEVAL]}, ("--repeat", "3")),
    "no cache": ({"assert": [GEVAL]}, ("--no-cache",)),
    "samples": ({"assert": [{**GEVAL, "scoring": "samples", "samples": 3}]}, ()),
    "a jury": ({"assert": [{**GEVAL, "provider": [*map(model, ("judge", "judge-b", "judge-c"))]}]}, ()),
    "a jury, one fails": ({"assert": [{**GEVAL, "provider": [*map(model, ("judge", "fails", "judge-c"))]}]}, ()),
    "a jury, one refuses": (
        {"assert": [{**GEVAL, "provider": [*map(model, ("judge", "refuses", "judge-c"))]}]},
        (),
    ),
    "turns": ({"assert": [{**GEVAL, "over": "answers"}], "turns": TURNS}, ()),
    "a simulated user": (
        {"assert": [GEVAL], "turns": {"simulate": {"user": model("user"), "max_turns": 3, "goal": "{{ number }}"}}},
        (),
    ),
    "comparisons": (
        {"assert": [{"type": "pairwise", "criteria": "Better.", "against": "all"}, RUBRIC], "prompts": 2},
        (),
    ),
    "workers": ({"assert": [GEVAL]}, ("--workers", "2")),
}  # fmt: skip


def counted(body: Any) -> CountedRequest:
    """Return a request with an answer that depends on it alone; two judges do not rate."""
    text = "\n".join(f"{message['role']}: {message.get('content')}" for message in body["messages"])
    name = hashlib.sha256(f"{body['model']} {text}".encode()).hexdigest()[:12]
    number = int(name, 16)
    if '"winner"' in text:
        answer = json.dumps({"reason": name, "winner": str(1 + number % 2)})
    elif '"steps"' in text:
        answer = json.dumps({"steps": ["Read it.", f"Rate it ({name})."]})
    elif '"score"' in text and body["model"] == "refuses":
        answer = f"I cannot evaluate this ({name})."
    elif '"pass"' in text:
        answer = json.dumps({"reason": name, "pass": number % 2 == 0, "score": (number + 1) % 2})
    elif '"score"' in text:
        answer = json.dumps({"reason": name, "score": 1 + number % 5})
    else:
        answer = f"answer {name}"
    return CountedRequest(
        name, answer, status=400 if body["model"] == "fails" and "steps" not in text else 200
    )


def suite(folder: Path, server: CountingServer, phase: str) -> KillableRun:
    folder.mkdir()
    changes, options = PHASES[phase]
    prompts = ["Write about {{ number }}.", "Tell of {{ number }}."]
    turns = changes.get("turns")
    document = {
        "prompts": [{"system": "Be kind."}] if turns else prompts[: changes.get("prompts", 1)],
        "providers": [model("m")],
        "defaultTest": {
            "options": {"provider": model("judge"), "scoring": "single"},
            "assert": changes["assert"],
            **({"turns": turns} if turns else {}),
        },
        "tests": "file://tests.jsonl",
    }
    run = KillableRun(folder, server, TESTS, options=options)
    (folder / "config.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return run


def usage_of(document: Any) -> dict[str, float]:
    """Return the tokens and the cost of a run, over all roles."""
    found = document["summary"]["usage"].values()
    return {name: sum(part[name] for part in found) for name in ("input_tokens", "output_tokens", "cost_usd")}


@pytest.mark.parametrize(
    "signals", [("SIGKILL", "SIGKILL"), ("SIGINT", "SIGTERM")], ids=["killed", "stopped"]
)
@pytest.mark.parametrize("phase", PHASES)
def test_it_ends_like_a_run_that_was_not_disturbed(
    tmp_path: Path, phase: str, signals: tuple[str, ...]
) -> None:
    chance = random.Random(f"{phase} {signals}")
    with CountingServer(read=counted) as server:
        whole = suite(tmp_path / "whole", server, phase)
        whole.start().communicate(timeout=120)
        needed = len(server.requests)
        run = suite(tmp_path / "disturbed", server, phase)
        for name in signals:
            first = len(server.requests)
            after = chance.randint(1, max(1, needed // 3))
            if name == "SIGKILL":  # otherwise the run could end before a slow machine kills it
                server.answer_at_most(first + after + AT_ONCE)
            process = run.start(*(["--resume"] if run.has_run() else []))
            while process.poll() is None and not server.wait_for_requests(first + after, timeout_s=0.2):
                pass
            time.sleep(chance.random() * 0.03)
            if process.poll() is None:
                os.kill(process.pid, getattr(signal, name))
            process.communicate(timeout=60)
            server.answer_at_most(None)
            if process.returncode in {0, 1, 3}:  # it was done before the signal came
                break
        last = run.start(*(["--resume-from", "latest"] if run.has_run() else []))
        last.communicate(timeout=120)
        sent = len(server.requests) - needed
    first_end, end = whole.document, run.document
    assert [comparable(item) for item in end["results"]] == [
        comparable(item) for item in first_end["results"]
    ]
    assert len(run.rows("geval.db", "SELECT id FROM runs")) == 1
    for figures in ("passed", "failed", "errored"):
        assert end["summary"][figures] == first_end["summary"][figures]
    # What failed, or could not be read even after a retry, is requested again for the cases that were not done.
    again = {"a jury, one fails": 2, "a jury, one refuses": 3}.get(phase, 1)
    usage, undisturbed = usage_of(end), usage_of(first_end)
    assert undisturbed["cost_usd"] == pytest.approx(undisturbed["input_tokens"] / 100 * COST)
    lost = len(signals) * AT_ONCE * JOBS_PER_REQUEST
    if "SIGKILL" in signals:  # what was on the wire is lost, and what had come and was being committed
        assert needed <= sent <= needed + lost * again
    elif again > 1:
        assert needed <= sent <= needed + lost * (again - 1)
    else:
        assert (sent, usage) == (needed, pytest.approx(undisturbed))
