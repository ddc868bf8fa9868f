import asyncio
import json

import pytest
from msgspec.structs import replace
from support.specs import assertion, case, check_context, subject, tools

from geval_cli.assertions import patterns
from geval_cli.assertions.registry import check_assertion, judge_assertion
from geval_cli.errors import CheckTimeoutError
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.specs.dialect import PROMPTFOO_RULES

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
}


def judged(output: JsonValue, schema: object = None, kind: str = "is-json") -> AssertionResult:
    return asyncio.run(judge_assertion(assertion(kind, value=schema), subject(output), tools()))


@pytest.mark.parametrize("output", ['{"a": 1}', "[]", '"text"', "null", " 3 ", {"already": "data"}])
def test_json_passes(output: JsonValue) -> None:
    assert judged(output).status is Status.PASSED


@pytest.mark.parametrize(
    "output", ["", "{", "{'a': 1}", "NaN", "[1,]", 'Here: {"a": 1}', "```json\n{}\n```", "[" * 100_000]
)
def test_what_is_not_wholly_json_fails(output: str) -> None:
    result = judged(output)
    assert result.status is Status.FAILED
    assert (result.reason or "").startswith("the output is not JSON: ")


def test_every_violation_is_listed_with_its_path() -> None:
    result = judged('{"name": 3, "age": -1}', PERSON)
    assert result.detail["errors"] == [
        "$.age: -1 is less than the minimum of 0",
        "$.name: 3 is not of type 'string'",
    ]
    assert (result.status, result.score) == (Status.FAILED, 0.0)


def test_a_valid_value_passes_and_not_turns_it_round() -> None:
    assert judged('{"name": "a", "age": 1}', PERSON).status is Status.PASSED
    assert judged('{"name": "a", "age": 1}', PERSON, "not-is-json").status is Status.FAILED


def test_a_schema_may_be_json_text_and_may_be_boolean() -> None:
    assert judged("{}", json.dumps(PERSON)).status is Status.FAILED
    assert judged("{}", False).status is Status.FAILED


def test_formats_are_checked() -> None:
    assert judged('"not a date"', {"type": "string", "format": "date"}).status is Status.FAILED
    assert judged('"2026-01-31"', {"type": "string", "format": "date"}).status is Status.PASSED


def test_references_inside_the_schema_are_followed() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}
    assert judged("[1]", schema).status is Status.PASSED
    assert judged('["1"]', schema).status is Status.FAILED


def test_a_huge_value_does_not_make_a_huge_reason() -> None:
    assert len(judged(json.dumps("x" * 1_000_000), {"type": "integer"}).reason or "") < 1_000


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"type": "strng"},
            "broken JSON Schema: 'strng' is not valid under any of the given schemas (at $.type)",
        ),
        (
            {"$ref": "https://example.com/s.json"},
            "the schema refers to `https://example.com/s.json`, which is not fetched",
        ),
        ("{broken", "the `value` of is-json is not a JSON Schema: Expecting property name"),
        ("[1]", "the `value` of is-json is not a JSON Schema: it must be an object or a boolean"),
    ],
)
def test_a_schema_that_cannot_work_is_a_problem_before_anything_is_sent(schema: object, message: str) -> None:
    [problem] = check_assertion(assertion("is-json", value=schema), check_context())
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    ("schema", "output"),
    [
        ({"pattern": "(a|aa)+$"}, json.dumps("a" * 60 + "!")),
        ({"patternProperties": {"(a|aa)+$": {"type": "integer"}}}, json.dumps({"a" * 60 + "!": 1})),
    ],
)
def test_a_pattern_in_a_schema_that_explodes_is_an_error_and_not_a_verdict(
    schema: object, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "REGEX_TIMEOUT_S", 0.1)  # how long it is in earnest, test_text.py knows
    with pytest.raises(CheckTimeoutError, match=r"took more than 0\.1 s"):
        judged(output, schema)


def test_patterns_in_a_schema_decide() -> None:
    assert judged('"abc"', {"pattern": "^a"}).status is Status.PASSED
    assert judged('"abc"', {"pattern": "^b"}).detail["errors"] == ["$: 'abc' does not match '^b'"]
    keyed = {"patternProperties": {"^n_": {"type": "integer"}}}
    assert judged('{"n_a": 1, "x": "y"}', keyed).status is Status.PASSED
    assert judged('{"n_a": "1"}', keyed).detail["errors"] == ["$.n_a: '1' is not of type 'integer'"]


@pytest.mark.parametrize(
    ("output", "schema", "passes"),
    [
        ("[1, 2]", None, False),
        ("plain {a: 1} text", None, True),
        ("{'k': 'n'}", {"required": ["k"]}, True),
        ("{'k': 'n'}", '{"required": ["{{ key }}"]}', True),
        ("{'other': 'n'}", '{"required": ["{{ key }}"]}', False),
    ],
)
def test_promptfoo_finds_objects_only_and_renders_schemas(output: str, schema: object, passes: bool) -> None:
    spec = assertion("contains-json", value=schema)
    seen = subject(output, case(vars={"key": "k"}))
    result = asyncio.run(
        judge_assertion(spec, seen, replace(tools(), templates=NunjucksTemplates(PROMPTFOO_RULES)))
    )
    assert result.status is (Status.PASSED if passes else Status.FAILED)
