"""`geval drift`, and anchors in a config: which of three it was, by judges on a server of this machine."""

import hashlib
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, start_geval
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Product

TESTS = 60
JUDGE_TEXT = '"score"'


class Judges:
    """A model, and judges that rate what it says: `strict` rates all of it two points lower.

    Attributes:
        version: what the judges call themselves; `fingerprint` is of their servers.
        asked: the ratings that each judge was asked for; `prompts` are all that was asked of anyone.
        slow_after: the number of ratings after which each takes half a second; None if none does.
    """

    def __init__(self) -> None:
        self.version, self.fingerprint = "2026-11-01", "fp_first"
        self.asked: list[str] = []
        self.prompts: list[str] = []
        self.slow_after: int | None = None

    def respond(self, body: Any, headers: Mapping[str, str]) -> Reply:
        del headers
        text = body["messages"][-1]["content"]
        self.prompts.append(text)
        if not body["model"].startswith("judge"):
            return chat_reply(f"{'good' if 'well' in text else 'plain'} answer to {text}")
        if JUDGE_TEXT not in text:
            return self._named(body, chat_reply('{"steps": ["Read it.", "Rate it."]}'))
        self.asked.append(body["model"])
        delay_s = 0.0 if self.slow_after is None or len(self.asked) <= self.slow_after else 0.5
        # Another wording of the same question is no other output.
        found = re.findall(r"(good|plain) answer to \D*(\d+)", text)
        noise = hashlib.sha256(found[-1][1].encode()).digest()[0] % 3
        score = 5 + noise + (2 if found[-1][0] == "good" else 0) - (2 if "strict" in body["model"] else 0)
        rating = json.dumps({"reason": "as it is", "score": score})
        return self._named(body, chat_reply(rating, delay_s=delay_s))

    def _named(self, body: Any, reply: Reply) -> Reply:
        named = {"model": f"{body['model']}-{self.version}", "system_fingerprint": self.fingerprint}
        return replace(reply, body={**reply.body, **named})


def config(*, judge: str = "judge", prompt: str = "question {{ n }}", **keys: Any) -> dict[str, Any]:
    check = {
        "type": "g-eval",
        "metric": "helpful",
        "criteria": "It helps.",
        "scoring": "single",
        "threshold": 0.6,
    }
    return {
        "prompts": [{"id": "ask", "label": "ask", "raw": prompt}],
        "providers": [{"id": "openai:m", "config": {"max_retries": 0}}],
        "defaultTest": {"options": {"provider": f"openai:{judge}"}, "assert": [check]},
        "tests": [{"vars": {"n": number}} for number in range(TESTS)],
        **keys,
    }


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def said(text: str) -> str:
    return " ".join(text.split())


def test_which_of_three_it_was(product: Product) -> None:
    """A judge that is exchanged between two runs is named as the cause, and an exchanged prompt is not."""
    judges = Judges()
    with LoopbackServer(respond=judges.respond) as server:
        product.run(config(), server)
        saved = product.command(
            server, "drift", "--save", "anchors.jsonl", "--items", "50", writes_results=False
        )
        assert "50 outputs of 50 tests" in saved.stdout
        with_anchors = {"anchors": "anchors.jsonl"}
        before = len(judges.asked)
        runs = {
            name: product.run(config(**with_anchors, **changes), server).results["run"]
            for name, changes in {
                "first": {},
                "same": {},
                "prompt": {"prompt": "question {{ n }}, answer it well"},
                "judge": {"judge": "judge-strict"},
                "both": {"judge": "judge-strict", "prompt": "question {{ n }}, answer it well"},
            }.items()
        }
        # The cache has everything of the second run but its anchors.
        assert judges.asked.count("judge") == before + 3 * 50 + TESTS
        found = {}
        for name, run in runs.items():
            done = product.command(server, "compare", runs["first"]["id"], run["id"], writes_results=False)
            told = product.command(
                server, "compare", runs["first"]["id"], run["id"], "--json", writes_results=False
            )
            found[name] = json.loads(told.stdout)["drift"], said(done.stdout)
    assert {name: drift["finding"] for name, (drift, _) in found.items()} == {
        "first": "no drift",
        "same": "no drift",
        "prompt": "the outputs moved",
        "judge": "the judge moved",
        "both": "the judge moved",
    }
    for drift, shown in found.values():
        assert drift["text"] in shown
    assert "so the outputs changed" in found["prompt"][1]
    text = found["judge"][0]["text"]
    assert "(then openai:judge (judge-2026-11-01 fp_first), now openai:judge-strict (" in text
    assert "the same 50 outputs score 0.20 lower (90 % interval of the shift -0.2" in text
    assert [run["anchors"]["metrics"][0]["drift"]["n"] for run in runs.values()] == [50] * 5
    # Looks by another judge are a history of their own: its shift says nothing about this one.
    looks = {name: run["anchors"]["metrics"][0]["looks"] for name, run in runs.items()}
    assert {name: found and (found["count"], round(found["mean"], 9)) for name, found in looks.items()} == {
        "first": None,
        "same": (2, 0.0),
        "prompt": (3, 0.0),
        "judge": None,
        "both": (2, -0.2),
    }
    warnings = {name: " ".join(run["warnings"]) for name, run in runs.items()}
    assert "anchors, helpful: the judge has moved: the same 50 outputs score 0.20 lower" in warnings["judge"]
    assert "anchors" not in warnings["prompt"]


def test_anchors_are_in_the_plan_and_the_budget_and_verdicts_keep_versions_in_the_cache(
    product: Product,
) -> None:
    judges = Judges()
    with LoopbackServer(respond=judges.respond) as server:
        product.run(config(), server)
        product.command(server, "drift", "--save", "a.jsonl", "--items", "40", writes_results=False)
        anchored = config(anchors="a.jsonl")
        plan = product.run(anchored, server, "--plan")
        assert plan.results["anchors"]["ratings"] == 40
        assert "40 more ratings before the run, none from the cache" in said(plan.stdout)
        asked = len(judges.asked)
        offline = product.run(anchored, server, "--offline")
        assert "the anchors were not judged: --offline sends nothing" in said(offline.stdout)
        assert (offline.results["run"]["anchors"], len(judges.asked)) == (None, asked)
        cut = product.run(anchored, server, "--max-requests", "9")
        assert cut.results["run"]["anchors"]["stopped"].startswith("the budget of 9 requests is used up")
        assert len(server.requests) == 2 * TESTS + 1 + 9
        run_id = cut.results["run"]["id"]
        resumed = product.run(anchored, server, "--resume-from", run_id).results["run"]
        assert (resumed["id"], resumed["anchors"]["stopped"]) == (run_id, "")
        assert resumed["anchors"]["metrics"][0]["drift"]["n"] == 40
    # All ratings of these runs came from the cache, with the names that their answers gave themselves then.
    named = [{"model": "judge-2026-11-01", "fingerprint": "fp_first"}]
    (kept,) = {json.dumps(case["assertions"][0]["detail"]["judge_models"]) for case in offline.cases}
    assert json.loads(kept) == named


def test_the_command_judges_past_the_cache_and_names_versions_and_flips(product: Product) -> None:
    judges = Judges()
    with LoopbackServer(respond=judges.respond) as server:

        def drift(*words: str, **how: Any) -> Any:
            return product.command(server, "drift", *words, **{"writes_results": False, **how})

        product.run(config(), server)
        assert drift("--save", "anchors.jsonl", "--items", "40").code == 0
        asked = len(judges.asked)
        assert "40 ratings of 40 anchors, none from the cache" in drift("anchors.jsonl", "--plan").stdout
        for margin in ("0", "1"):  # a margin that nothing can stay within, or that nothing can leave
            refused = drift("anchors.jsonl", "--margin", margin)
            assert (refused.code, "--margin must be more than 0 and less" in refused.stderr) == (2, True)
        assert len(judges.asked) == asked
        steady = drift("anchors.jsonl")
        assert (steady.code, len(judges.asked)) == (0, asked + 40)
        assert "helpful: steady: the same 40 outputs score as before" in said(steady.stdout)
        # The same name in the config, and another model behind it.
        judges.version, judges.fingerprint = "2026-12-24", "fp_second"
        renamed = drift("anchors.jsonl", "--json")
        (metric,) = json.loads(renamed.stdout)["metrics"]
        assert metric["judges_then"] == ["openai:judge (judge-2026-11-01 fp_first)"]
        assert metric["judges_now"] == ["openai:judge (judge-2026-12-24 fp_second)"]
        assert metric["looks"]["count"] == 2
        moved = drift(
            "anchors.jsonl", "--grader", "openai:judge-strict", "-o", "drift.html", "-o", "drift.md"
        )
        assert moved.code == 1
        text = said(moved.stdout)
        assert "helpful: the judge has moved: the same 40 outputs score 0.20 lower" in text
        assert re.search(r"\d+ verdicts of 40 flipped \(\d+ to fail, 0 to pass\)", text)
        assert "however often" not in text  # the looks before were by another judge
        assert "the judge has moved" in (product.folder / "drift.md").read_text(encoding="utf-8")
        again = drift("anchors.jsonl")
        assert again.code == 0
        assert "over 3 looks, however often: mean shift 0.00 (" in said(again.stdout)
        cut = drift("anchors.jsonl", "--max-requests", "10")
        assert cut.code == 3
        assert "stopped early" in said(cut.stdout)


@pytest.mark.parametrize(("threshold", "flips"), [(0.9, 0), (0.1, 0), (0.6, None)])
def test_verdicts_of_not_assertions_flip_where_their_positive_form_does(
    product: Product, threshold: float, flips: int | None
) -> None:
    written = config()
    written["defaultTest"]["assert"][0] |= {"type": "not-g-eval", "threshold": threshold}
    with LoopbackServer(respond=Judges().respond) as server:
        before = product.run(written, server).cases
        after = product.command(server, "judge", "latest", "--grader", "openai:judge-strict").cases
        passed = [(old["status"], new["status"]) for old, new in zip(before, after, strict=True)]
        product.command(server, "drift", "--save", "a.jsonl", "--run", "latest~1", writes_results=False)
        words = ("drift", "a.jsonl", "--grader", "openai:judge-strict", "--json")
        (metric,) = json.loads(product.command(server, *words, writes_results=False).stdout)["metrics"]
    assert metric["drift"]["newly_failed"] == passed.count(("passed", "failed"))
    assert metric["drift"]["newly_passed"] == passed.count(("failed", "passed"))
    assert flips in (None, metric["drift"]["newly_failed"] + metric["drift"]["newly_passed"])
    assert metric["threshold"] is None


def test_tests_that_are_gone_are_judged_by_the_assertion_that_all_share(product: Product) -> None:
    judges = Judges()
    few = config()
    few["tests"] = [{"vars": {"n": 1000 + number}} for number in range(3)]
    other = config()
    other["defaultTest"]["assert"][0]["metric"] = "brief"
    with LoopbackServer(respond=judges.respond) as server:
        product.run(config(), server)
        product.command(server, "drift", "--save", "a.jsonl", "--items", "36", writes_results=False)
        product.write(few)
        kept = product.command(server, "drift", "a.jsonl", "config.yaml", writes_results=False)
        product.write(other)
        lost = product.command(server, "drift", "a.jsonl", "config.yaml", writes_results=False)
    assert "helpful: steady: the same 36 outputs" in said(kept.stdout)
    assert (lost.code, "36 ratings without an assertion in today's config" in said(lost.stdout)) == (3, True)


def test_a_metric_that_is_gone_is_never_steady(product: Product) -> None:
    both, one = config(), config()
    checks = both["defaultTest"]["assert"]
    checks.append({**checks[0], "metric": "brief", "criteria": "It is brief."})
    with LoopbackServer(respond=Judges().respond) as server:
        product.run(both, server)
        product.command(server, "drift", "--save", "a.jsonl", "--items", "36", writes_results=False)
        whole = product.command(server, "drift", "a.jsonl", "config.yaml", "--json", writes_results=False)
        product.write(one)
        part = product.command(server, "drift", "a.jsonl", "config.yaml", "--json", writes_results=False)
        shown = product.command(server, "drift", "a.jsonl", "config.yaml", writes_results=False)
    assert (whole.code, json.loads(whole.stdout)["verdict"]) == (0, "steady")
    assert (part.code, json.loads(part.stdout)["verdict"]) == (3, "unclear")
    assert "36 ratings without an assertion in today's config, all of brief." in said(shown.stdout)


def kept_ratings(home: Path) -> int:
    """Return the number of ratings in the cache since the last check of anchors began."""
    rows = map(json.loads, (home / "drift.jsonl").read_text(encoding="utf-8").splitlines())
    began = [row["began_s"] for row in rows if "began_s" in row][-1]
    with closing(sqlite3.connect(home / "cache.db")) as cache:
        statement = "SELECT answer FROM choices WHERE created_at >= ?"
        return sum("as it is" in answer for (answer,) in cache.execute(statement, [began]))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
@pytest.mark.parametrize("way", ["run", "drift"])
@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT", "SIGTERM", "budget"])
def test_no_rating_of_an_anchor_is_paid_for_twice_after_an_interruption(
    product: Product, way: str, end: str
) -> None:
    """Whatever ends a check of anchors, the next one requests only what is missing, and the one after that all."""
    judges = Judges()
    home = product.folder / "state"
    with LoopbackServer(respond=judges.respond) as server:

        def go(*options: str) -> "subprocess.Popen[bytes]":
            words = ["run", "config.yaml", "-j", "4"] if way == "run" else ["drift", "a.jsonl"]
            env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-anchors")
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            return start_geval(*words, "--home", str(home), *options, cwd=product.folder, env=env, **quiet)

        product.run(config(), server)
        product.command(server, "drift", "--save", "a.jsonl", "--items", "40", writes_results=False)
        product.write(config(anchors="a.jsonl") if way == "run" else config())
        judges.asked.clear()
        if end == "budget":
            go("--max-requests", "20").wait(timeout=60)
        else:
            judges.slow_after = 15
            before = len(server.requests)
            process = go()
            server.wait_for_requests(before + 1 + 16)  # the steps, and one more than are answered at once
            while not kept_ratings(home):
                time.sleep(0.01)
            process.send_signal(getattr(signal, end))
            process.wait(timeout=60)
            judges.slow_after = None
        kept, first = kept_ratings(home), len(judges.asked)
        assert 0 < kept <= first < 40
        go(*(["--resume-from", "latest"] if way == "run" else [])).wait(timeout=60)
        assert len(judges.asked) == first + 40 - kept
        go().wait(timeout=60)
        assert len(judges.asked) == first + 40 - kept + 40
    looks = [json.loads(line) for line in (home / "drift.jsonl").read_text(encoding="utf-8").splitlines()]
    counts = [look["metrics"][0]["looks"] for look in looks if "metrics" in look and not look["stopped"]]
    assert [found and found["count"] for found in counts] == [None, 2]


@pytest.mark.parametrize(
    ("between", "is_resumed"),
    [
        ((), True),
        (("drift", "a.jsonl", "--grader", "openai:judge-strict"), True),
        (("drift", "a.jsonl", "other.yaml"), False),
        (("drift", "a.jsonl"), False),
    ],
    ids=["nothing", "another judge", "the same in another config", "the same"],
)
def test_a_check_is_resumed_by_the_same_judges_whatever_others_did_meanwhile(
    product: Product, between: tuple[str, ...], is_resumed: bool
) -> None:
    judges = Judges()
    with LoopbackServer(respond=judges.respond) as server:
        product.run(config(), server)
        shutil.copy(product.folder / "config.yaml", product.folder / "other.yaml")
        product.command(server, "drift", "--save", "a.jsonl", "--items", "40", writes_results=False)
        looks = product.folder / "state" / "drift.jsonl"
        looks.write_text('{"digest": "cut by a full di', encoding="utf-8")
        stopped = product.command(server, "drift", "a.jsonl", "--max-requests", "20", writes_results=False)
        assert stopped.code == 3
        if between:
            assert "none from the cache" in product.command(server, *between).stderr or not is_resumed
        judges.asked.clear()
        last = product.command(server, "drift", "a.jsonl", writes_results=False)
    assert ("resuming the check that did not finish" in last.stderr) is is_resumed
    # One of the 20 requests was for the steps.
    assert judges.asked.count("judge") == (40 - 19 if is_resumed else 40)


def test_a_check_beside_another_one_takes_none_of_its_ratings(product: Product) -> None:
    """Two looks that share ratings would count as evidence twice."""
    judges = Judges()
    home = product.folder / "state"
    with LoopbackServer(respond=judges.respond) as server:
        product.run(config(), server)
        product.command(server, "drift", "--save", "a.jsonl", "--items", "40", writes_results=False)
        judges.asked.clear()
        judges.slow_after = 20
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-anchors")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        words = ("drift", "a.jsonl", "-j", "4", "--home", str(home))
        first = start_geval(*words, cwd=product.folder, env=env, **quiet)
        while not (home / "drift.jsonl").exists() or not kept_ratings(home):
            time.sleep(0.01)
        judges.slow_after = None
        second = product.command(server, "drift", "a.jsonl", writes_results=False)
        assert first.wait(timeout=60) == 0
        assert "none from the cache" in second.stderr
        assert len(judges.asked) == 2 * 40
        third = product.command(server, "drift", "a.jsonl", writes_results=False)
    assert "none from the cache" in third.stderr
    assert "over 3 looks" in said(third.stdout)


TEXTS = ("scenario", "expected_outcome", "role", "expected_output", "context", "retrieval_context")


def a_conversation(number: int) -> dict[str, Any]:
    answer = f"good answer to {number}"
    return {
        "turns": [{"role": "user", "content": f"tea {number}?"}, {"role": "assistant", "content": answer}]
    }


def steps_of_an_agent(number: int) -> dict[str, Any]:
    found = [{"name": "search", "args": {"number": number}, "output": f"found {number}"}]
    return {"input": "look", "output": f"plain answer to {number}", "trace": found}


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        (lambda number: {"input": f"question {number // 2}"}, ["input", "actual_output", *TEXTS]),
        (a_conversation, ["turns", *TEXTS]),
        (steps_of_an_agent, ["input", "actual_output", "trace", *TEXTS]),
    ],
    ids=["an answer", "a conversation", "an agent"],
)
def test_an_anchor_is_judged_by_the_words_of_its_run_whether_its_test_is_gone_or_not(
    product: Product, own: Callable[[int], dict[str, Any]], shown: list[str]
) -> None:
    """Whatever a test brings for the judge: an anchor without it would be rated otherwise, and seem to be drift."""
    judges = Judges()
    whole = config(prompt="{{ input }}")
    whole["defaultTest"]["assert"][0]["evaluation_params"] = shown
    whole["tests"] = [{**own(number), **{name: f"{name} {number}" for name in TEXTS}} for number in range(36)]
    if "output" in own(0):
        del whole["prompts"], whole["providers"]
    few = {**whole, "tests": [{**own(99), **{name: f"another {name}" for name in TEXTS}}]}
    with LoopbackServer(respond=judges.respond) as server:
        product.run(whole, server)
        asked = {text for text in judges.prompts if JUDGE_TEXT in text}
        product.command(server, "drift", "--save", "a.jsonl", "--items", "36", writes_results=False)
        for now in (few, whole):
            judges.prompts.clear()
            product.write(now)
            product.command(server, "drift", "a.jsonl", "config.yaml", writes_results=False)
            again = [text for text in judges.prompts if JUDGE_TEXT in text]
            assert len(again) == len(asked) == 36
            assert {*again} == asked
    assert all(f"scenario {number}" in " ".join(asked) for number in range(36))


@pytest.mark.parametrize(("count", "is_warned"), [(33, True), (34, False)])
def test_fewer_than_34_can_never_be_steady_and_saving_says_so(
    product: Product, count: int, is_warned: bool
) -> None:
    with LoopbackServer(respond=Judges().respond) as server:
        product.run(config(), server)
        words = ("drift", "--save", "a.jsonl", "--items", str(count))
        saved = product.command(server, *words, writes_results=False)
        again = product.command(server, *words, writes_results=False)
        found = product.command(server, "drift", "a.jsonl", writes_results=False)
    assert (f"{count} tests can never show that a judge is steady within 0.05" in saved.stderr) is is_warned
    assert (again.code, "--save does not overwrite" in again.stderr) == (2, True)
    assert ("helpful: unclear" in found.stdout) is is_warned
    assert ("33 tests cannot show that a judge is steady" in said(found.stdout)) is is_warned


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ('{"anchor_version": 2, "ratings": {}, "case": {}}\n', "its `anchor_version` is not 1"),
        (
            '{"anchor_version": 1, "ratings": {"a": {"score": 7}}, "case": {}}\n',
            "a score must be between 0 and 1, found 7",
        ),
        (
            '{"anchor_version": 1, "ratings": {"a": {"score": 1}}, "case": {"id": 3}}\n',
            "this is not a CaseResult",
        ),
        ('{"anchor_version": 1, "ratings": {}, "case": {}}\n', "it has no ratings"),
        ("{nonsense\n", "a.jsonl:1"),
    ],
)
def test_broken_anchors_are_told_with_their_line_before_anything_is_sent(
    product: Product, text: str, message: str
) -> None:
    (product.folder / "a.jsonl").write_text(text, encoding="utf-8")
    with LoopbackServer(respond=Judges().respond) as server:
        for done in (
            product.run(config(anchors="a.jsonl"), server),
            product.command(server, "drift", "a.jsonl", "config.yaml", writes_results=False),
        ):
            assert done.code == 2
            assert message in said(done.stderr)
            assert "a.jsonl" in done.stderr
            assert "label" not in done.stderr
    assert not server.requests


def test_anchors_that_are_not_there_and_a_command_without_any(product: Product) -> None:
    with LoopbackServer() as server:
        missing = product.run(config(anchors="none.jsonl"), server)
        nothing = product.command(server, "drift", writes_results=False)
    assert (missing.code, nothing.code) == (2, 2)
    assert "there is no file" in missing.stderr
    assert "no anchors file given" in nothing.stderr
