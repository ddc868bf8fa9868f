import asyncio

import pytest
from msgspec.structs import replace
from support.specs import assertion, case, check_context, subject, tools

from geval_cli.assertions import patterns
from geval_cli.assertions.registry import check_assertion, judge_assertion
from geval_cli.errors import CheckTimeoutError, Severity
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.specs.dialect import PROMPTFOO_RULES


@pytest.mark.parametrize(
    ("value", "output", "passes"),
    [
        ("strasse", "Straße", False),
        ("STRAß", "Straße", True),
        ("σας", "ΣΑΣ", True),
        ("istanbul", "İstanbul", False),
        ("caf\u00e9", "cafe\u0301", False),
    ],
)
def test_promptfoos_configs_compare_small_letters(value: str, output: str, passes: bool) -> None:
    seen = replace(subject(output), rules=PROMPTFOO_RULES)
    ruled = replace(tools(), templates=NunjucksTemplates(rules=PROMPTFOO_RULES))
    for kind in ("icontains", "icontains-any", "icontains-all"):
        result = asyncio.run(judge_assertion(assertion(kind, value=value), seen, ruled))
        assert result.status is (Status.PASSED if passes else Status.FAILED)


def judged(kind: str, value: object, output: JsonValue, **variables: JsonValue) -> AssertionResult:
    seen = subject(output, case(vars=variables))
    return asyncio.run(judge_assertion(assertion(kind, value=value), seen, tools()))


SAME_TEXTS = [
    *(("", one, other) for one in ("caf\u00e9", "cafe\u0301") for other in ("caf\u00e9", "cafe\u0301")),
    ("", "\u212bngstr\u00f6m", "A\u030angstro\u0308m"),
    ("", "\uac00", "\u1100\u1161"),
    ("i", "CAFE\u0301", "caf\u00e9"),
    *(
        ("i", one, other)
        for one in ("istanbul", "ISTANBUL", "\u0130stanbul")
        for other in ("i\u0307stanbul", "\u0130STANBUL")
    ),
]


@pytest.mark.parametrize(("case_", "value", "output"), SAME_TEXTS)
def test_a_text_is_found_however_its_accents_are_encoded(case_: str, value: str, output: str) -> None:
    kinds = [f"{case_}contains{rest}" for rest in ("", "-any", "-all")]
    for kind in kinds if case_ else [*kinds, "starts-with", "ends-with"]:
        assert judged(kind, value, output).status is Status.PASSED, kind
        assert judged(f"not-{kind}", value, output).status is Status.FAILED, kind


@pytest.mark.parametrize(
    ("kind", "value", "output", "nearly"),
    [
        ("equals", "a\nb", "a\r\nb", "it is"),
        ("equals", "a", "a\n", "it is"),
        ("equals", "caf\u00e9", "cafe\u0301", "it is"),
        ("not-contains", "10 km", "about 10\u00a0km", "it does"),
        ("starts-with", "a", " a", "it does"),
        ("ends-with", ".", "So.\n", "it does"),
        ("equals", "a b", "ab", ""),
        ("equals", "a", "b", ""),
        ("contains", "a", "b", ""),
        ("regex", "^a", " a", ""),
    ],
)
def test_the_reason_tells_of_a_difference_that_cannot_be_seen(
    kind: str, value: str, output: str, nearly: str
) -> None:
    result = judged(kind, value, output)
    assert result.status is (Status.PASSED if kind.startswith("not-") else Status.FAILED)
    said = f"; apart from white space and the encoding of accents, {nearly}"
    assert (result.reason or "").endswith(said if nearly else '"')


@pytest.mark.parametrize(
    ("kind", "value", "output", "passes"),
    [
        ("contains", "Paris", "It is Paris.", True),
        ("contains", "paris", "It is Paris.", False),
        ("icontains", "PARIS", "It is Paris.", True),
        ("icontains", "straße", "STRASSE", True),
        ("equals", "a", "a", True),
        ("equals", "a", "a ", False),
        ("starts-with", "It", "It is", True),
        ("ends-with", "is", "It is", True),
        ("regex", r"^\d{3}$", "123", True),
        ("regex", r"^\d{3}$", "1234", False),
        ("contains", 42, "the answer is 42", True),
        ("equals", True, "true", True),
        ("contains", "", "anything", True),
        ("contains", '"a": 1', {"a": 1}, True),
        ("not-contains", "Paris", "It is Rome.", True),
        ("not-contains", "Rome", "It is Rome.", False),
        ("not-regex", r"\d", "none", True),
        ("icontains-any", ["STRASSE"], "straße", True),
    ],
)
def test_verdicts(kind: str, value: object, output: JsonValue, passes: bool) -> None:
    result = judged(kind, value, output)
    assert result.status is (Status.PASSED if passes else Status.FAILED)
    assert result.score == float(passes)


def test_the_expected_text_is_a_template_and_the_output_is_not() -> None:
    assert judged("equals", "{{ city }}", "Paris", city="Paris").status is Status.PASSED
    assert judged("equals", "{{ city }}", "{{ city }}", city="Paris").status is Status.FAILED


def test_the_reason_says_what_was_expected_and_is_of_bounded_length() -> None:
    assert judged("contains", "Paris", "Rome").reason == 'the output does not contain "Paris"'
    assert len(judged("contains", "x" * 10_000, "Rome").reason or "") < 200


def test_an_undefined_variable_in_the_expected_text_is_a_problem() -> None:
    problems = check_assertion(
        assertion("contains", value="{{ cty }}"), check_context(case(vars={"city": "x"}))
    )
    assert [problem.hint for problem in problems] == ["did you mean `city`?"]


def test_a_broken_regular_expression_is_a_problem() -> None:
    [problem] = check_assertion(assertion("regex", value="(unclosed"), check_context())
    assert problem.message.startswith("broken regular expression: missing )")


def test_a_pattern_that_explodes_is_an_error_and_not_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "REGEX_TIMEOUT_S", 0.2)
    with pytest.raises(CheckTimeoutError, match=r"took more than 0\.2 s"):
        judged("regex", "(a|aa)+$", "a" * 60 + "!")


@pytest.mark.parametrize("kind", ["regex", "not-regex"])
def test_a_pattern_that_javascript_does_not_know_fails_by_promptfoos_rules(kind: str) -> None:
    spec, templates = assertion(kind, value="(?i)a"), NunjucksTemplates(PROMPTFOO_RULES)
    result = asyncio.run(judge_assertion(spec, subject("A"), replace(tools(), templates=templates)))
    assert (result.status, result.score) == (Status.FAILED, 0)
    (problem,) = check_assertion(spec, replace(check_context(), templates=templates))
    assert problem.severity is Severity.WARNING
    assert "(?i:...)" in problem.hint


@pytest.mark.parametrize(
    ("kind", "held", "hint"),
    [
        ("contains", ["a"], "use `contains-any` or `contains-all`"),
        ("not-icontains", ["a", 1], "use `not-icontains-any` or `not-icontains-all`"),
        ("starts-with", ["a"], "name one of its texts"),
        ("contains", {"a": "b"}, None),
        ("contains", "a", ""),
        ("not-contains", 4, ""),
    ],
)
def test_a_list_in_the_place_of_a_text_is_warned_of(kind: str, held: JsonValue, hint: str | None) -> None:
    context = check_context(case(vars={"held": held, "name": "x"}))
    found = check_assertion(assertion(kind, value="{{ held }}"), context)
    assert [problem.severity for problem in found] == ([] if hint == "" else [Severity.WARNING])
    assert all("written as JSON" in problem.message and (hint or "") in problem.hint for problem in found)
    assert not check_assertion(assertion(kind, value="{{ name }}"), context)
