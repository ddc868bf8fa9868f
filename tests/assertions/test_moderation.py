import json
from contextlib import nullcontext

import pytest
from support.graded import graded, graded_tools
from support.verdicts import problems

from geval_cli.assertions.judges import DEFAULT_MODERATION
from geval_cli.errors import JudgeParseError, ProviderUnavailableError, Severity, UnjudgeableError
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import ProviderSpec, TestOptionsSpec
from geval_cli.specs.promptfoo import JudgesSpec

FLAGGED = '{"violence": 0.9, "hate": 0.4}'


def moderated(reply: str | Exception, kind: str = "moderation", **keys: object) -> AssertionResult:
    return graded(kind, graded_tools(reply), **keys)


@pytest.mark.parametrize(
    ("reply", "keys", "status"),
    [
        ("{}", {}, Status.PASSED),
        (FLAGGED, {}, Status.FAILED),
        (FLAGGED, {"value": ["hate"]}, Status.FAILED),
        (FLAGGED, {"value": ["sexual", "self-harm"]}, Status.PASSED),
        (FLAGGED, {"threshold": 0.95}, Status.PASSED),
        (FLAGGED, {"threshold": 0.5}, Status.FAILED),
        ('{"violence": null}', {"threshold": 0.5}, Status.FAILED),
    ],
)
def test_what_is_flagged_fails_if_it_counts(reply: str, keys: dict[str, object], status: Status) -> None:
    result = moderated(reply, **keys)
    assert (result.status, result.score) == (status, float(status is Status.PASSED))
    opposite = moderated(reply, "not-moderation", **keys)
    assert {result.status, opposite.status} == {Status.PASSED, Status.FAILED}


def test_the_reason_names_the_categories_and_the_detail_how_sure_it_is() -> None:
    result = moderated(FLAGGED)
    assert '"violence", "hate"' in result.reason
    assert result.detail["flagged"] == {"violence": 0.9, "hate": 0.4}
    assert "do not count" in moderated(FLAGGED, value=["sexual"]).reason


@pytest.mark.parametrize("kind", ["moderation", "not-moderation"])
@pytest.mark.parametrize(
    ("value", "flagged", "is_judged"),
    [
        (["hate"], {}, True),
        (["hate", "violence"], {"violence": 0.9}, True),
        (["hate_speech"], {}, False),
        (["hate_speech"], {"violence": 0.9}, False),
        (["hate", "hate_speech"], {}, False),
        (["violence", "hate_speech"], {"violence": 0.9}, True),
    ],
)
def test_a_category_that_the_moderator_does_not_have_passes_nothing(
    kind: str, value: list[str], flagged: dict[str, float], is_judged: bool
) -> None:
    reply = json.dumps({"flagged": flagged, "categories": ["hate", "violence"]})
    expected = nullcontext() if is_judged else pytest.raises(UnjudgeableError, match="no category")
    with expected:
        moderated(reply, kind, value=value)


def test_nothing_said_is_nothing_to_moderate_and_asks_nobody() -> None:
    asked: list[str] = []
    result = graded("moderation", graded_tools("{}", asked=asked), output="  ")
    assert (result.status, asked) == (Status.PASSED, [])


@pytest.mark.parametrize("reply", ["[]", "safe", "", "3"])
def test_what_is_no_verdict_is_an_error(reply: str) -> None:
    with pytest.raises(JudgeParseError):
        moderated(reply)


def test_a_moderator_that_breaks_is_an_error_negated_too() -> None:
    broken = ProviderUnavailableError("down", provider_id="m")
    for kind in ("moderation", "not-moderation"):
        with pytest.raises(ProviderUnavailableError):
            moderated(broken, kind)


OWN = ProviderSpec(id="openai:moderation:own")


@pytest.mark.parametrize(
    ("keys", "options", "asked"),
    [
        ({}, None, DEFAULT_MODERATION.id),
        ({"provider": OWN}, None, OWN.id),
        ({}, OWN, OWN.id),
        ({}, ProviderSpec(id="openai:gpt-5"), DEFAULT_MODERATION.id),
        ({}, JudgesSpec(id="t", by_kind={"text": ProviderSpec(id="t"), "moderation": OWN}), OWN.id),
    ],
)
def test_the_nearest_moderator_is_asked(
    keys: dict[str, ProviderSpec], options: ProviderSpec | None, asked: str
) -> None:
    seen: list[str] = []
    test = {} if options is None else {"options": TestOptionsSpec(provider=options)}
    graded("moderation", graded_tools("{}", asked=seen), test=test, **keys)
    assert seen == [asked]


def test_a_category_that_openai_does_not_have_is_pointed_out() -> None:
    [problem] = problems("moderation", value=["hate", "violense"])
    assert (problem.severity, problem.hint) == (Severity.WARNING, "did you mean `violence`?")
    elsewhere = ProviderSpec(id="mistral:moderation:m")
    assert problems("moderation", value=["selfharm"], provider=elsewhere) == []
