"""What a config or an output could keep the machine busy with, for hours or with gigabytes, ends soon and says so."""

import json
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import regex
from support.verdicts import judged

from geval_cli.assertions import json_output, patterns
from geval_cli.assertions.json_output import schema_errors, schema_problems
from geval_cli.assertions.patterns import MAX_LENGTH, compiled, is_found, within
from geval_cli.errors import CheckTimeoutError, UnjudgeableError
from geval_cli.extras import text_metrics as string_metrics
from geval_cli.source.source_map import SourcePath


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_output, string_metrics):
        monkeypatch.setattr(module, "CHECK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(patterns, "REGEX_TIMEOUT_S", 0.3)


def doubling(word: str, depth: int = 30, *, leaf: object = True, key: str = "$defs") -> dict[str, Any]:
    """A schema of 2 KB in which each part has the next one twice."""
    parts = {str(n): {word: [{"$ref": f"#/{key}/{n + 1}"}] * 2} for n in range(depth)}
    return {key: {**parts, str(depth): leaf}, "$ref": f"#/{key}/0"}


def is_calm() -> bool:
    """Whether no thread computes any more; a pattern may still, until a limit of its own."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(
            "patterns.py" in text for frame in sys._current_frames().values() for text in _files(frame)
        ):
            return True
        time.sleep(0.05)
    return False


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


MIXED = [{"a": n} if n % 2 else n for n in range(4_000)]
"""A list that cannot be sorted, so that each item is compared with each."""

SCHEMAS: dict[str, tuple[Any, Any]] = {
    "allOf": (doubling("allOf"), 1),
    "anyOf": (doubling("anyOf", leaf=False), 1),
    "oneOf": (doubling("oneOf"), 1),
    "draft 7": ({**doubling("allOf", key="definitions"), "$schema": "http://json-schema.org/draft-07/schema#"}, 1),
    "unevaluatedProperties": ({**doubling("allOf"), "unevaluatedProperties": False}, {"a": 1}),
    "unevaluatedItems": ({**doubling("allOf"), "unevaluatedItems": False}, [1]),
    "uniqueItems": ({"uniqueItems": True}, MIXED * 4),
    "enum": ({"items": {"enum": list(range(20_000))}}, ["x"] * 5_000),
    "contains": ({"items": {"contains": {"const": 1}}}, [[0] * 2_000] * 500),
    "pattern": ({"pattern": "(a|aa)+$"}, "a" * 60 + "!"),
    "patterns of names beside unevaluatedProperties": (
        {"patternProperties": {"(a|aa)+$": {}}, "unevaluatedProperties": False},
        {"a" * 60 + "!": 1},
    ),
    "2019-09": (
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "patternProperties": {"(a|aa)+$": {}},
            "unevaluatedProperties": False,
        },
        {"a" * 60 + "!": 1},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_never_ends_is_stopped(name: str) -> None:
    schema, value = SCHEMAS[name]
    began = time.process_time()
    with pytest.raises(CheckTimeoutError) as caught:
        schema_errors(value, schema)
    assert caught.value.hint
    assert time.process_time() - began < 20
    assert is_calm()


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("kind", ["is-json", "contains-json"])
def test_it_is_an_error_of_the_assertion_and_no_verdict(kind: str) -> None:
    with pytest.raises(CheckTimeoutError, match=r"took more than 0\.1 s"):
        judged(kind, "1" if kind == "is-json" else "[1]", value=doubling("allOf"))


@pytest.mark.usefixtures("short_limits")
def test_it_is_found_before_a_run() -> None:
    (problem,) = schema_problems(doubling("allOf"), "the `value`", SourcePath.nowhere())
    assert "too large or too deep" in problem.message


def test_of_many_errors_a_thousand_are_told() -> None:
    assert len(schema_errors(list(range(3_000)), {"items": {"type": "string"}})) == 1_000


PATTERNS = {
    "groups": "(((a{1000}){1000}){1000})",
    "one": "a{1000000}",
    "a class": "[a-z]{1000000}",
    "at least": "((a{1000}){1000,}){1000}",
    "between": "((a{1000}){1000,1001}){2}",
    "repeated twice": "(?:a{300}){300}{300}",
    "possessive": "((a{1000}+){1000}+){1000}",
    "leading zeros": "((a{0001000}){0000001000}){1000}",
    "thousands of digits": "a{" + "9" * 5_000 + "}",
    "a bracket in a class": "[]({]{1000}((a{1000}){1000})",
    "an open class": r"[\[]({1000})(a{1000}){1000}",
    "blanks between": "(?x)( ( a {1000} ) {1000} ) {1000}",
    "a comment between": "(?:a{1000}){1000}(?#x){1000}",
    "flags of a group": "(?x: (a{1000}) # c\n {1000})",
    "long": "x" * (MAX_LENGTH + 1),
    "deep": "(" * 20_000 + ")" * 20_000,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_that_would_take_gigabytes_is_refused(name: str) -> None:
    began = time.process_time()
    with pytest.raises(regex.error):
        compiled(PATTERNS[name])
    assert time.process_time() - began < 10
    with pytest.raises(UnjudgeableError):
        is_found(PATTERNS[name], "a")
    assert schema_problems({"pattern": PATTERNS[name]}, "the `value`", SourcePath.nowhere())


@pytest.mark.parametrize(
    "pattern",
    [r"(\w+\s+){500,}", r"\d{3}-\d{4}", r"[A-F0-9]{64}", r"(?:\d{1,3}\.){3}\d{1,3}", r"\p{L}{3}", "a{,3}", r".{10000}"],
)  # fmt: skip
def test_usual_patterns_are_taken(pattern: str) -> None:
    compiled(pattern)


@pytest.mark.usefixtures("short_limits")
def test_a_pattern_that_needs_gigabytes_on_a_text_is_an_error() -> None:
    with pytest.raises(CheckTimeoutError):
        is_found("(?:(a)|(b)|(ab))*[cd]$", "ab" * 5_000_000)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("kind", ["rouge-n", "bleu", "gleu", "meteor"])
def test_a_metric_of_a_huge_output_is_stopped(kind: str) -> None:
    words = " ".join(f"word{n % 5_000}" for n in range(100_000))
    with pytest.raises(CheckTimeoutError, match=kind):
        judged(kind, words, value=words)


def test_an_edit_distance_of_huge_texts_is_refused() -> None:
    with pytest.raises(CheckTimeoutError, match="takes too long"):
        judged("levenshtein", "a" * 1_000_000, value="b" * 1_000_000)


class TestWithin:
    def test_it_returns_and_raises_what_the_work_does(self) -> None:
        assert within(5, "it", json.loads, "[1]") == [1]
        with pytest.raises(json.JSONDecodeError):
            within(5, "it", json.loads, "[")

    def test_work_that_catches_everything_is_stopped_too(self) -> None:
        def stubborn() -> None:
            for _ in range(3):
                try:
                    while True:
                        pass
                except BaseException:  # noqa: BLE001 - as a library may
                    continue

        with pytest.raises(CheckTimeoutError, match=r"it took more than 0\.1 s"):
            within(0.1, "it", stubborn)
        assert is_calm()

    def test_a_thread_that_begins_after_its_time_does_not_work(self) -> None:
        def endless() -> None:
            while True:
                pass

        for _ in range(30):
            with pytest.raises(CheckTimeoutError):
                within(0, "it", endless)
        assert is_calm()

    def test_the_limit_is_of_seconds(self) -> None:
        assert 1 <= patterns.CHECK_TIMEOUT_S <= 60
