import pytest
from support.graded import graded, graded_tools
from support.verdicts import problems

from geval_cli.errors import JudgeParseError, ProviderUnavailableError, UnjudgeableError
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import ProviderSpec, TestOptionsSpec
from geval_cli.specs.promptfoo import JudgesSpec

SCORES = '{"toxic": 0.25, "harmless": 0.75}'
OWN = ProviderSpec(id="huggingface:text-classification:acme/toxicity")


def classified(kind: str = "classifier", reply: str | Exception = SCORES, **keys: object) -> AssertionResult:
    return graded(kind, graded_tools(reply), provider=OWN, **keys)


@pytest.mark.parametrize(
    ("keys", "score", "status"),
    [
        ({"value": "harmless", "threshold": 0.7}, 0.75, Status.PASSED),
        ({"value": "harmless"}, 0.75, Status.FAILED),
        ({"value": "toxic", "threshold": 0.5}, 0.25, Status.FAILED),
        ({"threshold": 0.75}, 0.75, Status.PASSED),
    ],
)
def test_the_score_of_the_class_decides(keys: dict[str, object], score: float, status: Status) -> None:
    result = classified(**keys)
    assert (result.status, result.score) == (status, score)


@pytest.mark.parametrize("kind", ["classifier", "not-classifier"])
def test_a_class_that_the_model_does_not_score_is_an_error(kind: str) -> None:
    with pytest.raises(UnjudgeableError, match='the model did not score the class "unknown"') as caught:
        classified(kind, value="unknown", threshold=0.5)
    assert caught.value.hint == 'write one of its classes in `value`: "toxic", "harmless"'


def test_without_a_threshold_it_must_be_certain() -> None:
    result = classified(reply='{"harmless": 1.0}', value="harmless")
    assert (result.status, result.threshold, result.threshold_is_default) == (Status.PASSED, 1, True)
    assert result.detail["scores"] == {"harmless": 1.0}


def test_negated_the_class_must_not_be_reached() -> None:
    result = classified("not-classifier", value="toxic", threshold=0.5)
    assert (result.status, result.score) == (Status.PASSED, 0.75)


def test_the_class_is_a_template_and_the_reason_names_them_all() -> None:
    result = graded(
        "classifier", graded_tools(SCORES), provider=OWN, value="{{ c }}", test={"vars": {"c": "toxic"}}
    )
    assert result.score == 0.25
    assert "harmless 0.75, toxic 0.25" in result.reason


@pytest.mark.parametrize("reply", ["{}", "[]", "toxic", '{"toxic": "high"}', '{"toxic": NaN}', '{"a": true}'])
def test_what_is_no_classification_is_an_error(reply: str) -> None:
    with pytest.raises(JudgeParseError):
        classified(reply=reply, value="toxic")


def test_a_model_that_breaks_is_an_error_negated_too() -> None:
    broken = ProviderUnavailableError("loading", provider_id="m")
    for kind in ("classifier", "not-classifier"):
        with pytest.raises(ProviderUnavailableError):
            classified(kind, broken, value="toxic")


def test_somebody_must_be_named() -> None:
    [problem] = problems("classifier", value="toxic")
    assert "huggingface:text-classification" in problem.hint
    assert problems("classifier", value="toxic", provider=OWN) == []
    with pytest.raises(UnjudgeableError):
        graded("classifier", graded_tools(SCORES), value="toxic")


@pytest.mark.parametrize(
    ("keys", "options", "asked"),
    [
        ({"provider": ProviderSpec(id="python:classify.py")}, OWN, "python:classify.py"),
        ({}, OWN, OWN.id),
        ({}, JudgesSpec(id="t", by_kind={"classification": OWN}), OWN.id),
    ],
)
def test_the_nearest_classifier_is_asked_and_one_s_own_may_be_any(
    keys: dict[str, ProviderSpec], options: ProviderSpec, asked: str
) -> None:
    seen: list[str] = []
    test = {"options": TestOptionsSpec(provider=options)}
    graded("classifier", graded_tools(SCORES, asked=seen), test=test, **keys)
    assert seen == [asked]
