import pytest
from support.specs import case
from support.verdicts import judged, problems

from geval_cli.assertions.base import Subject
from geval_cli.records import Choice, ModelResponse, Status


def answered(reason: str | None) -> Subject:
    return Subject(case(), "Sorry.", "p", response=ModelResponse((Choice("Sorry.", reason),)))


@pytest.mark.parametrize("reason", ["content_filter", "refusal", "guardrail_intervened", "SAFETY"])
def test_what_a_filter_stopped_fails_and_says_so(reason: str) -> None:
    result = judged("guardrails", "Sorry.", seen=answered(reason))
    assert (result.status, result.score) == (Status.FAILED, 0)
    assert reason in result.reason
    assert "Sorry." in result.reason
    assert judged("not-guardrails", "Sorry.", seen=answered(reason)).status is Status.PASSED


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", None])
def test_any_other_end_passes(reason: str | None) -> None:
    result = judged("guardrails", "Sorry.", seen=answered(reason))
    assert (result.status, result.score) == (Status.PASSED, 1)
    assert judged("not-guardrails", "Sorry.", seen=answered(reason)).status is Status.FAILED


def test_an_output_that_nobody_was_asked_for_was_stopped_by_nobody() -> None:
    assert judged("guardrails", "x").status is Status.PASSED
    assert problems("guardrails") == []
