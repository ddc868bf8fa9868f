import pytest
from msgspec.structs import replace
from support.specs import case
from support.verdicts import judged, problems

from geval_cli.assertions.base import Subject
from geval_cli.errors import Severity, UnjudgeableError
from geval_cli.providers.wire.finish_reasons import VOCABULARIES, Vocabulary
from geval_cli.records import Choice, ModelResponse, Status
from geval_cli.specs.dialect import PROMPTFOO_RULES


def answered(reason: str | None) -> Subject:
    return Subject(case(vars={"r": "STOP"}), "x", "p", response=ModelResponse((Choice("x", reason),)))


@pytest.mark.parametrize(
    ("kind", "value", "found", "status"),
    [
        ("finish-reason", "stop", "stop", Status.PASSED),
        ("finish-reason", "{{r}}", "stop", Status.PASSED),
        ("finish-reason", "stop", "LENGTH", Status.FAILED),
        ("not-finish-reason", "length", "stop", Status.PASSED),
    ],
)
def test_verdicts(kind: str, value: str, found: str | None, status: Status) -> None:
    assert judged(kind, "x", seen=answered(found), value=value).status is status


@pytest.mark.parametrize("kind", ["finish-reason", "not-finish-reason"])
def test_an_end_that_is_not_known_is_an_error(kind: str) -> None:
    with pytest.raises(UnjudgeableError, match="the provider gave no finish reason"):
        judged(kind, "x", seen=answered(None), value="length")
    with pytest.raises(UnjudgeableError, match="the test brings its own output"):
        judged(kind, "x", value="length")
    told = judged("finish-reason", "x", seen=replace(answered(None), rules=PROMPTFOO_RULES), value="stop")
    assert told.status is Status.FAILED


def test_the_reason_names_both() -> None:
    assert judged("finish-reason", "x", seen=answered("length"), value="stop").reason == (
        'the model stopped because of "length", not "stop"'
    )


def test_an_undefined_name_is_a_problem() -> None:
    assert problems("finish-reason", value="{{x}}")[0].message.startswith("undefined variable `x`")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("stopp", "did you mean `stop`?"),
        ("lenght", "did you mean `length`?"),
        ("tool-cals", "did you mean `tool_calls`?"),
        ("max_token", "did you mean `max_tokens`?"),
        ("{{misspelt}}", "did you mean `content_filter`?"),
        ("enough", "use `stop`, `length`, `tool_calls` or `content_filter`"),
    ],
)
@pytest.mark.parametrize("kind", ["finish-reason", "not-finish-reason"])
def test_a_word_that_no_answer_ends_with_is_warned_of(kind: str, value: str, hint: str) -> None:
    (problem,) = problems(kind, value=value, vars={"misspelt": "content_fliter"})
    assert (problem.severity, problem.hint) == (Severity.WARNING, hint)
    assert problem.message.endswith("is not a finish reason that geval knows")


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda words: words.vendor)
def test_what_vendors_call_it_brings_no_warning(vocabulary: Vocabulary) -> None:
    for reason in (*vocabulary.reasons, *map(str.upper, vocabulary.reasons), "maxTokens", "{{r}}"):
        assert not problems("finish-reason", value=reason, vars={"r": " STOP "}), reason
