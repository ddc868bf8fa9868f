"""geval's rows compared with promptfoo's, for the configs and recorded results that may be next to the project.

The recorded results came from a deterministic model, whose rule is read from its own file if that exists.
"""

import ast
import asyncio
import base64
import hashlib
import json
import math
import os
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from support.loopback import LoopbackServer, Reply

from geval_cli.engine.plan import Plan
from geval_cli.engine.prompt import render_prompt, seen_by_templates
from geval_cli.engine.runner import StopSignal
from geval_cli.errors import ConfigError, Severity
from geval_cli.records import to_json
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare, templates_for
from geval_cli.runs.requests import RunRequest
from geval_cli.specs.dialect import Dialect
from geval_cli.store.state import State
from geval_cli.suite.load import open_suite

ROOT = Path(__file__).parents[3] / "shared" / "compat"
MODES = ("generous", "harsh")
_BY_THE_CLOCK = {"latency", "cost"}
_TOLERANCE = 1e-6
_ON_PURPOSE = "fails there, error here"
_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(frozen=True, slots=True)
class Recorded:
    """promptfoo's recorded results for one config."""

    config: str
    mode: str
    rows: tuple[Mapping[str, Any], ...]

    @property
    def path(self) -> Path:
        return ROOT / "configs" / self.config

    @property
    def asserted(self) -> int:
        """Return the number of recorded assertion verdicts, except those that depend on the clock."""
        return sum(item["type"] not in _BY_THE_CLOCK for row in self.rows for item in row["asserts"])


@dataclass(frozen=True, slots=True)
class Compared:
    """The number of equal rows of a config, and the reason for each other one; `refused` says why there are none.

    `differing_asserts` does the same for the verdicts of single assertions, in equal rows and in others.
    """

    recorded: Recorded
    equal: int
    differing: tuple[str, ...] = ()
    differing_asserts: tuple[str, ...] = ()
    refused: str = ""


@dataclass(slots=True)
class Table:
    """Totals over configs."""

    equal: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    equal_asserts: Counter[str] = field(default_factory=Counter)
    total_asserts: Counter[str] = field(default_factory=Counter)
    assert_reasons: Counter[str] = field(default_factory=Counter)

    def add(self, compared: Compared) -> None:
        mode, count = compared.recorded.mode, len(compared.recorded.rows)
        self.equal[mode] += compared.equal
        self.total[mode] += count
        if compared.refused:
            self.reasons[f"refused: {compared.refused}"] += count
        self.reasons.update(compared.differing)
        asserted = compared.recorded.asserted
        self.total_asserts[mode] += asserted
        if compared.refused:
            self.assert_reasons[f"refused: {compared.refused}"] += asserted
        else:
            self.equal_asserts[mode] += asserted - len(compared.differing_asserts)
            self.assert_reasons.update(compared.differing_asserts)

    @property
    def errors_on_purpose(self) -> int:
        """Return the number of assertions that could not be judged: errors in geval, failures in promptfoo."""
        return sum(count for reason, count in self.assert_reasons.items() if reason.endswith(_ON_PURPOSE))

    def lines(self) -> Iterator[str]:
        for mode in self.total:
            share = self.equal[mode] / self.total[mode]
            yield f"{mode}: {self.equal[mode]} of {self.total[mode]} rows equal ({share:.1%})"
        yield from _counted(self.reasons)
        for mode, asserted in self.total_asserts.items():
            share = self.equal_asserts[mode] / max(asserted, 1)
            yield f"{mode}: {self.equal_asserts[mode]} of {asserted} assertions equal ({share:.1%})"
        if self.errors_on_purpose:
            yield f"{self.errors_on_purpose} of the others are errors on purpose, where promptfoo fails them"
        yield from _counted(self.assert_reasons)


def _counted(reasons: Counter[str]) -> Iterator[str]:
    yield from (f"{count:5}  {reason}" for reason, count in reasons.most_common() if count)


def recorded_configs(mode: str) -> list[Recorded]:
    """Return everything that was recorded in one mode; empty if there is nothing next to the project."""
    found = []
    for path in sorted((ROOT / "expected" / mode).glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found.append(Recorded(content["config"], mode, tuple(content["rows"])))
    return found


def reference_model(mode: str) -> LoopbackServer:
    """Return the model behind the recorded results."""
    return LoopbackServer(respond=lambda body, headers: answer_of(body, mode))


def answer_of(body: Any, mode: str) -> Reply:
    """Return the answer of the model behind the recorded results to a request."""
    rules = _model_rules(mode)
    if "input" not in body:
        return Reply(body=_completion(body, rules))
    answer = _embeddings if "embedding" in str(body["model"]) else _response
    return Reply(body=answer(body, rules))


@cache
def _model_rules(mode: str) -> Mapping[str, Any]:
    source = ast.parse((ROOT / "oracle_llm.py").read_text(encoding="utf-8"))
    wanted = [node for node in source.body if isinstance(node, ast.FunctionDef)]
    rules: dict[str, Any] = {
        "json": json,
        "hashlib": hashlib,
        "re": re,
        "math": math,
        "GOOD": mode == "generous",
    }
    exec(compile(ast.Module(wanted, []), "reference model", "exec"), rules)
    return rules


def compare(recorded: Recorded, server: LoopbackServer, state: State) -> Compared:
    """Run a config and compare its rows with the recorded ones."""
    environ = {
        **os.environ,
        "OPENAI_API_KEY": "sk-test",
        "ANTHROPIC_API_KEY": "sk-test",
        "OPENAI_BASE_URL": server.base_url,
        "ANTHROPIC_BASE_URL": server.url,
    }
    request = RunRequest(recorded.path, environ, reads_cache=False, dialect=Dialect.PROMPTFOO)
    try:
        prepared = prepare(request)
    except ConfigError as error:
        errors = [problem for problem in error.problems if problem.severity is Severity.ERROR]
        return Compared(recorded, 0, refused=errors[0].message)
    run = run_evaluation(prepared, state, listen=lambda event: None, stop=StopSignal())
    report = asyncio.run(run)
    ours: dict[str, list[Any]] = defaultdict(list)
    for result in report.results():
        row = to_json(result)
        ours[_key(row["provider"]["label"] or row["provider"]["id"], row["prompt"]["rendered"])].append(row)
    differing, asserts = [], []
    for wanted in recorded.rows:
        reason, row = _take(wanted, ours[_key(wanted["provider"], wanted["prompt"])])
        differing += [reason] if reason else []
        asserts += _differing_asserts(wanted, row)
    return Compared(recorded, len(recorded.rows) - len(differing), tuple(differing), tuple(asserts))


def rendered_prompts(recorded: Recorded) -> Counter[tuple[str, str]]:
    """Return every (provider, prompt) of a config as geval renders it, without sending anything."""
    suite = open_suite(recorded.path, env=os.environ, dialect=Dialect.PROMPTFOO).suite
    templates = templates_for(suite)
    found: Counter[tuple[str, str]] = Counter()
    for queue in Plan(suite).queues:
        try:
            for job in queue:
                test = seen_by_templates(job.test, templates)
                found[job.provider.title, render_prompt(job.prompt, test, templates).text] += 1
        except ConfigError:
            continue
    return found


def _key(provider: str, prompt: str) -> str:
    return json.dumps([provider, prompt], ensure_ascii=False)


def _take(wanted: Mapping[str, Any], candidates: list[Any]) -> tuple[str, Any]:
    """Return why no candidate equals `wanted`, and the nearest row; "" and an equal row if there is one.

    The equal row is removed from `candidates`.
    """
    reason, nearest = "no row with this provider and prompt", None
    for row in candidates:
        found = _difference(wanted, row)
        if not found:
            candidates.remove(row)
            return "", row
        if nearest is None or len(_differing_asserts(wanted, row)) < len(_differing_asserts(wanted, nearest)):
            reason, nearest = found, row
    return reason, nearest


def _differing_asserts(wanted: Mapping[str, Any], row: Any) -> list[str]:
    """Return, for each recorded verdict that `row` lacks at its position, what is there instead."""
    ours = [] if row is None else list(_flat(row["assertions"]))
    reasons = []
    for index, item in enumerate(wanted["asserts"]):
        if item["type"] in _BY_THE_CLOCK:
            continue
        found = ours[index] if index < len(ours) else None
        told = f"{item['type'] or 'assert-set'}: {'passes' if item['pass'] else 'fails'} there"
        if found is None:
            reasons.append(f"{told}, not asked here")
        elif (found["status"] == "passed") != bool(item["pass"]) or found["status"] == "error":
            reasons.append(f"{told}, {found['status']} here")
        elif found["score"] is None or abs(found["score"] - item["score"]) > _TOLERANCE:
            reasons.append(f"{told}, with another score")
    return reasons


def _flat(assertions: list[Any]) -> Iterator[Any]:
    """Yield the verdicts in promptfoo's order: each one, then the members of a set or the parts that code returned."""
    for item in assertions:
        if item["type"] != "named-score":
            yield item
            yield from _flat(item["assertions"])


def _difference(wanted: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if wanted["error"]:
        return "" if row["status"] == "error" else f"{row['status']} where promptfoo has an error"
    if (row["status"] in {"passed", "not_evaluated"}) != bool(wanted["success"]):
        why = (row["error"] or {}).get("message") or _first_error(row)
        return f"{row['status']}, promptfoo {'passes' if wanted['success'] else 'fails'}" + (
            f": {why}" if why else ""
        )
    if row["output"] != wanted["output"] and str(row["output"]) != str(wanted["output"]):
        return "another output"
    timed = any(item["type"] in _BY_THE_CLOCK for item in wanted["asserts"])
    if not timed and row["score"] is not None and abs(row["score"] - wanted["score"]) > _TOLERANCE:
        return "another score"
    return ""


def _first_error(row: Mapping[str, Any]) -> str:
    return next((item["error"]["message"] for item in row["assertions"] if item["error"]), "")


def _completion(body: Any, rules: Mapping[str, Any]) -> Any:
    text_of, reply = rules["text_of"], rules["reply"]
    texts = [text_of(message.get("content")) for message in body["messages"]]
    if str(body["model"]).startswith("claude"):
        system = [text_of(body["system"])] if body.get("system") else []
        answer = reply("\n".join([*system, *texts]))
        usage = {"input_tokens": 10, "output_tokens": 5}
        content = [{"type": "text", "text": answer}]
        return {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": content,
                "stop_reason": "end_turn", "usage": usage}  # fmt: skip
    message = {"role": "assistant", "content": reply("\n".join(texts))}
    choices = [
        {"index": index, "message": message, "finish_reason": "stop", "logprobs": None}
        for index in range(body.get("n") or 1)
    ]
    return {
        "id": "x",
        "object": "chat.completion",
        "model": body["model"],
        "usage": _USAGE,
        "choices": choices,
    }


def _response(body: Any, rules: Mapping[str, Any]) -> Any:
    given = body["input"]
    text = (
        given
        if isinstance(given, str)
        else "\n".join(rules["text_of"](item.get("content")) for item in given)
    )
    content = [{"type": "output_text", "text": rules["reply"](text), "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {"id": "r", "object": "response", "status": "completed", "model": body["model"], "output": [message],
            "usage": usage}  # fmt: skip


def _embeddings(body: Any, rules: Mapping[str, Any]) -> Any:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vectors = [rules["embed"](text) for text in texts]
    is_encoded = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector) if is_encoded else vector}
        for index, vector in enumerate(vectors)
    ]
    return {
        "object": "list",
        "model": body["model"],
        "data": data,
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


def _encoded(vector: list[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()
