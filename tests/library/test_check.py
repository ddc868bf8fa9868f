"""`check`: assertions of every kind on one output, and the cache of metrics."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import is_steps_request
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli import (
    ApiError,
    CheckResult,
    GEval,
    GevalError,
    JudgeError,
    Suite,
    TestCase,
    UsageError,
    acheck,
    check,
    run,
)
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import UnjudgeableError
from geval_cli.library.check import _session


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, and connections of its own: each test has another server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    yield tmp_path
    _session.close()


@pytest.mark.parametrize(
    ("output", "assertion", "given", "expected"),
    [
        ("a b", {"type": "contains", "value": "b"}, {}, (True, 1.0)),
        ("a b", {"type": "not-contains", "value": "b"}, {}, (False, 0.0)),
        ("Rome", {"type": "equals", "value": "{{ city }}"}, {"vars": {"city": "Rome"}}, (True, 1.0)),
        ("file://x", {"type": "equals", "value": "file://x.txt"}, {}, (False, 0.0)),
        ({"a": 1}, {"type": "is-json", "value": {"required": ["b"]}}, {}, (False, 0.0)),
        ("3 words here", {"type": "word-count", "value": {"max": 3}}, {}, (True, 1.0)),
        ("x", {"type": "python", "value": "len(output) / 2", "threshold": 0.4}, {}, (True, 0.5)),
        ("x", {"type": "javascript", "value": "output === 'x'"}, {}, (True, 1.0)),
        ("a", {"type": "assert-set", "assert": [{"type": "contains", "value": "b"}]}, {}, (False, 0.0)),
        ("a", {"type": "g-eval", "criteria": "It is new: check."}, {"input": "q"}, (True, 0.9)),
        ("a", GEval("Tone", "It is new: metric.", threshold=0.95), {"grader": "openai:m"}, (False, 0.9)),
        ("a", {"type": "g-eval", "dimension": "coherence"}, {"input": "q"}, (True, 0.75)),
        ("a", {"type": "is-json", "value": {}}, {}, (False, 0.0)),
    ],
)
def test_an_assertion_of_a_config_judges_one_output(
    output: Any,
    assertion: Any,
    given: dict[str, Any],
    expected: tuple[bool, float],
    server: LoopbackServer,
    own_folder: Path,
) -> None:
    (own_folder / "x.txt").write_text("in the file", encoding="utf-8")
    result = check(output, assertion, **given)
    assert (result.success, result.score) == expected
    assert asyncio.run(acheck(output, assertion, **given)).score == result.score
    assert result.reason

    async def inside() -> CheckResult:
        return check(output, assertion, **given)

    assert asyncio.run(inside()).success == expected[0]


@pytest.mark.parametrize("kind", ASSERTION_TYPES)
def test_every_type_refuses_an_unknown_key_as_a_config_does(kind: str) -> None:
    with pytest.raises(UsageError, match="unknown key `nonsense`"):
        check("x", {"type": kind, "nonsense": 1})


@pytest.mark.parametrize(
    ("assertion", "given", "expected"),
    [
        ({"type": "contain", "value": "x"}, {}, "did you mean `contains`?"),
        ({"value": "x"}, {}, "an assertion needs `type`"),
        ("contains", {}, "write `type: contains`"),
        (None, {}, "an assertion must be a mapping, found nothing"),
        (len, {}, "a function is not allowed here"),
        (
            {"type": "select-best", "value": "best"},
            {},
            "select-best compares outputs, but test 1 has only one",
        ),
        ({"type": "max-score"}, {}, "max-score"),
        ({"type": "equals", "value": "{{ city }}"}, {}, "city"),
        ({"type": "contains", "value": "x"}, {"inputs": "q"}, "`check` takes no `inputs`"),
        *(
            ({"type": "g-eval", "criteria": "c"}, {name: value}, f"`{name}` must be ")
            for name, values in {
                "samples": (0, -1, 1001, 10**9, 2.5, "5", True),
                "grader": (5, True, b"openai:x", ("openai", "x"), {"id": "openai:x"}, len),
            }.items()
            for value in values
        ),
        ({"type": "g-eval", "criteria": "c", "provider": "opnai:x"}, {}, "unknown provider `opnai:x`"),
        ({"type": "g-eval", "criteria": "c", "provider": "mistral:x"}, {}, "MISTRAL_API_KEY"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_asked(
    assertion: Any, given: dict[str, Any], expected: str, server: LoopbackServer
) -> None:
    with pytest.raises(UsageError) as caught:
        check("x", assertion, **given)
    assert expected in str(caught.value) + " ".join(getattr(caught.value, "__notes__", []))
    assert server.requests == []


@pytest.mark.parametrize("output", [None, float("nan")])
def test_an_output_that_is_missing_passes_nothing(output: Any) -> None:
    with pytest.raises(UsageError, match=f"the output is {output}"):
        check(output, {"type": "not-contains", "value": "x"})
    assert check("null", {"type": "is-json"}).success


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(status=400, body={"error": {"message": "out of order"}}), ApiError),
        (chat_reply("I would rather not."), JudgeError),
    ],
)
def test_a_judge_that_breaks_raises_and_gives_no_score(reply: Reply, error: type[GevalError]) -> None:
    with LoopbackServer(respond=lambda body, headers: reply) as server:
        config = {"base_url": server.base_url, "max_retries": 0}
        judge = {"id": "openai:m", "config": config}
        steps = {"type": "g-eval", "evaluation_steps": ["Read."], "provider": judge}
        with pytest.raises(error):
            check("x", steps, input=error.__name__)
        with pytest.raises(UnjudgeableError):
            check("x", {"type": "assert-set", "assert": [steps]}, input=error.__name__)


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [
        ({}, 3),
        ({"scoring": "samples"}, 3),
        ({"scoring": "samples", "samples": 4}, 4),
        ({"scoring": "single"}, None),
    ],
)
def test_the_number_of_samples_is_that_of_the_call_where_the_metric_names_none(
    arguments: dict[str, Any], samples: int | None, server: LoopbackServer
) -> None:
    metric = GEval("Tone", evaluation_steps=["Read."], **arguments)
    assert check("a", metric, samples=3).metadata.get("requested") == samples
    result = run(Suite(tests=[{"output": "a"}], assertions=[metric]), samples=3)
    assert result.results[0].assertions[0].detail.get("requested") == samples


def test_an_error_says_what_was_paid_for_it(server: LoopbackServer) -> None:
    server.add(*[chat_reply("I would rather not.")] * 2)
    judge = {"id": "openai:m", "config": {"price": {"input": 100_000, "output": 100_000}}}
    with pytest.raises(JudgeError) as caught:
        check("x", {"type": "g-eval", "evaluation_steps": ["Read."], "provider": judge})
    assert caught.value.usage is not None
    assert caught.value.usage["cost_usd"] == len(server.requests) == 2


def test_what_an_output_does_not_come_with_is_an_error() -> None:
    with pytest.raises(GevalError):
        check("x", {"type": "latency", "threshold": 100})


PROGRAM = """\
from geval_cli import GEval, TestCase
result = GEval("Tone", "It is kind.", cache={cache}).evaluate(TestCase("q", "a"))
print(result.score, result.metadata["usage"]["cached_requests"])
"""


def test_a_metric_with_the_cache_of_the_state_folder_pays_once(
    server: LoopbackServer, own_folder: Path
) -> None:
    metric = GEval("Tone", "It is kind.", cache=True)
    assert metric.evaluate(TestCase("q", "a")).metadata["usage"]["cached_requests"] == 0
    asked = len(server.requests)
    assert [is_steps_request(item.json) for item in server.requests].count(True) == 1
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(cache=True)], capture_output=True, text=True, check=True
    )
    assert finished.stdout.split() == ["0.9", "2"]
    assert len(server.requests) == asked
    assert (own_folder / ".geval" / "cache.db").is_file()
    GEval("Tone", "It is kind.").evaluate(TestCase("q", "a"))
    assert len(server.requests) == 2 * asked
