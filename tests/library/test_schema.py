import asyncio
from typing import Any

import pytest

from geval_cli import SchemaEvaluation, SchemaResult, UsageError

ORDER = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize("schema", [ORDER, '{"type": "object", "required": ["city"]}'])
def test_an_output_that_fits(schema: Any) -> None:
    assert SchemaEvaluation(schema).evaluate('{"city": "Rome"}').score == 1


def test_an_output_that_does_not_fit_says_every_error_with_its_path() -> None:
    found = SchemaEvaluation({**ORDER, "required": ["city", "day"]}).evaluate({"city": 3})

    assert (found.status, found.score) == ("failed", 0)
    assert "day" in found.reason
    assert "city" in found.reason


def test_parsing() -> None:
    fenced = 'Here:\n```json\n{"city": "Rome"}\n```'

    assert SchemaEvaluation(ORDER).evaluate(fenced).status == "failed"
    assert SchemaEvaluation(ORDER, parsing="tolerant").evaluate(fenced).status == "passed"


@pytest.mark.parametrize("schema", [{}, "", " {} "])
def test_an_empty_schema_evaluates_nothing(schema: Any) -> None:
    assert SchemaEvaluation(schema).evaluate("anything").status == "not_evaluated"


@pytest.mark.parametrize("schema", [{"type": "objekt"}, "{", {"$ref": "https://example.com/s.json"}])
def test_a_broken_schema_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(UsageError):
        SchemaEvaluation(schema)


def test_within_an_event_loop_too() -> None:
    async def both() -> tuple[SchemaResult, SchemaResult]:
        evaluation = SchemaEvaluation(ORDER)
        return evaluation.evaluate('{"city": "Rome"}'), await evaluation.aevaluate('{"city": "Rome"}')

    one, other = asyncio.run(both())
    assert one == other
    assert one.status == "passed"


def test_an_output_may_be_numbers_of_numpy_and_nothing_that_is_no_data() -> None:
    numpy = pytest.importorskip("numpy")
    whole = SchemaEvaluation({"type": "array", "items": {"type": "integer"}})
    assert whole.evaluate([numpy.int64(3)]).status == "passed"
    assert whole.evaluate(numpy.array([0.5])).status == "failed"
    with pytest.raises(UsageError, match="an object of the class object is not allowed here"):
        whole.evaluate([1, object()])
