import pytest
from support.specs import case
from support.verdicts import judged, problems

from geval_cli.assertions.base import Subject
from geval_cli.records import Choice, ModelResponse, Status


def answered(reason: str | None) -> Subject:
    return Subject(case(vars={"r": "STOP"}), "x", "p", response=ModelResponse((Choice("x", reason),)))


@pytest.mark.parametrize(
    ("kind", "value", "found", "status"),
    [
        ("finish-reason", "stop", "stop", Status.PASSED),
        ("finish-reason", "{{r}}", "stop", Status.PASSED),
        ("finish-reason", "stop", "LENGTH", Status.FAILED),
        ("finish-reason", "stop", None, Status.FAILED),
        ("not-finish-reason", "length", "stop", Status.PASSED),
    ],
)
def test_verdicts(kind: str, value: str, found: str | None, status: Status) -> None:
    assert judged(kind, "x", seen=answered(found), value=value).status is status


def test_the_reason_names_both() -> None:
    assert judged("finish-reason", "x", seen=answered("length"), value="stop").reason == (
        'the model stopped because of "length", not "stop"'
    )


def test_an_undefined_name_is_a_problem() -> None:
    assert problems("finish-reason", value="{{x}}")[0].message.startswith("undefined variable `x`")
