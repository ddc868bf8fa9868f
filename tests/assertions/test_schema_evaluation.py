import asyncio
from typing import Any

import pytest
from support.specs import check_context, subject, tools

from geval_cli.assertions.json_output import SchemaEvaluationAssertion
from geval_cli.assertions.registry import check_assertion, judge_assertion
from geval_cli.records import AssertionResult, JsonValue, Status

ORDER = {
    "type": "object",
    "required": ["item", "quantity"],
    "properties": {"quantity": {"type": "integer", "minimum": 1}},
}
ORDER_TEXT = '{"item": "tea", "quantity": 2}'


def judged(output: JsonValue, schema: Any = None, parsing: str = "strict") -> AssertionResult:
    spec = SchemaEvaluationAssertion.model_validate(
        {"type": "evaluation-schema", "value": schema, "parsing": parsing}
    )
    assert check_assertion(spec, check_context()) == []
    return asyncio.run(judge_assertion(spec, subject(output), tools()))


@pytest.mark.parametrize("schema", [ORDER, '{"required": ["item"]}', True])
def test_a_valid_output_is_correct_with_score_1(schema: Any) -> None:
    result = judged(ORDER_TEXT, schema)
    assert (result.status, result.score) == (Status.PASSED, 1.0)


def test_an_invalid_output_is_incorrect_with_score_0_and_every_error_with_its_path() -> None:
    result = judged('{"quantity": 0}', ORDER)
    assert (result.status, result.score) == (Status.FAILED, 0.0)
    assert result.detail["errors"] == [
        "$: 'item' is a required property",
        "$.quantity: 0 is less than the minimum of 1",
    ]
    assert all(error in (result.reason or "") for error in result.detail["errors"])


def test_the_result_holds_every_error_and_the_reason_the_first_twenty() -> None:
    result = judged(str([0] * 30), {"items": {"minimum": 1}})
    assert len(result.detail["errors"]) == 30
    assert (result.reason or "").count("is less than") == 20
    assert (result.reason or "").endswith("; and 10 more")


def test_an_output_that_is_no_json_is_incorrect() -> None:
    result = judged("Two boxes of tea.", ORDER)
    assert (result.status, result.score) == (Status.FAILED, 0.0)
    assert (result.reason or "").startswith("the output is not JSON: Expecting value")


@pytest.mark.parametrize("schema", [None, "", "  \n", {}, "{}", " { } "])
def test_without_a_schema_nothing_is_evaluated_whatever_the_output(schema: Any) -> None:
    result = judged("no JSON at all", schema)
    assert (result.status, result.score, result.detail) == (Status.NOT_EVALUATED, None, {})
    assert result.reason == "the test has no `evaluation_schema`"


def test_true_asks_only_for_json() -> None:
    assert judged("[]", True).status is Status.PASSED
    assert judged("oh", True).status is Status.FAILED


@pytest.mark.parametrize(
    ("output", "found_in"),
    [
        (ORDER_TEXT, "whole output"),
        (f"```json\n{ORDER_TEXT}\n```", "code fence"),
        (f"Here it is: {ORDER_TEXT}. Bye!", "larger text"),
    ],
)
def test_tolerant_parsing_takes_fences_and_prose_around_the_json(output: str, found_in: str) -> None:
    result = judged(output, ORDER, "tolerant")
    assert (result.status, result.detail) == (
        Status.PASSED,
        {"parsing": "tolerant", "found_in": found_in},
    )


def test_tolerant_parsing_forgives_nothing_within_the_json() -> None:
    assert judged("```json\n{'item': 'tea', 'quantity': 2}\n```", ORDER, "tolerant").status is Status.FAILED


def test_strict_parsing_refuses_a_fence_and_says_what_would_read_it() -> None:
    result = judged(f"```json\n{ORDER_TEXT}\n```", ORDER)
    assert result.status is Status.FAILED
    assert "there is JSON in it, in a code fence; `evaluation_parsing: tolerant` reads that" in (
        result.reason or ""
    )


def test_data_from_a_provider_is_validated_as_it_is() -> None:
    assert judged({"item": "tea", "quantity": 2}, ORDER).status is Status.PASSED


def test_a_broken_schema_is_a_problem_before_anything_is_sent() -> None:
    spec = SchemaEvaluationAssertion(type="evaluation-schema", value={"type": "strng"})
    [problem] = check_assertion(spec, check_context())
    assert problem.message.startswith("broken JSON Schema: 'strng'")
