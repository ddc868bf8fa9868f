"""What the config alone shows is told before anything is sent: gates on nothing, shares, suites that check nothing."""

import json
from pathlib import Path

import pytest

from geval_cli.assertions.geval_metric import metric_name
from geval_cli.cli.arguments import parse_share
from geval_cli.errors import ConfigError, Problem, Severity, UsageError
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest

SUITE = """\
prompts: ["{{word}}"]
providers: [echo]
tests:
  - vars: {word: hello}
    metadata: {area: billing, lang: [de, en]}
    assert:
      - {type: contains, value: hell, metric: tone}
      - type: assert-set
        assert: [{type: contains, value: h, metric: "{{word}}s"}]
"""


def prepared(folder: Path, text: str, **request: object) -> PreparedRun:
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    return prepare(RunRequest(path, {}, **request))  # type: ignore[arg-type]


def problems_of(folder: Path, text: str, **request: object) -> tuple[Problem, ...]:
    try:
        return prepared(folder, text, **request).warnings
    except ConfigError as error:
        return error.problems


def test_a_margin_of_a_metric_that_the_config_lacks_is_a_problem(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{SUITE}margin: {{tone: 0.1, pass_rate: 0.1, score: 0.1, ton: 0.1}}\n")
    assert (found.message, found.hint) == (
        "no assertion has the metric `ton` of the margin",
        "did you mean `tone`?",
    )
    assert found.location is not None
    assert (found.location.line, found.location.column) == (10, 49)


@pytest.mark.parametrize(
    ("written", "found", "column"),
    [
        ("2", "the number 2", 9),
        ("0", "the number 0", 9),
        ("true", "true", 9),
        ("[0.1]", "a list with 1 entry", 9),
        ("{tone: 0.1, score: 1}", "the number 1", 28),
        ("{tone: wide, score: 0.1}", 'the text "wide"', 16),
    ],
)
def test_a_margin_that_is_none_is_told_at_its_place(
    tmp_path: Path, written: str, found: str, column: int
) -> None:
    (problem,) = problems_of(tmp_path, f"{SUITE}margin: {written}\n")
    assert problem.message == f"a margin must be a number between 0 and 1, found {found}"
    assert problem.location is not None
    assert (problem.location.line, problem.location.column) == (10, column)


def test_a_gate_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    found = problems_of(tmp_path, f"{SUITE}gates: [speed >= 1, ton.mean >= 0.3, pas_rate >= 0.5]\n")
    assert [(problem.message, problem.hint) for problem in found[1:]] == [
        ("no assertion has the metric `ton` of the gate `ton.mean >= 0.3`", "did you mean `tone`?"),
        ("unknown figure `pas_rate`", "did you mean `pass_rate`?"),
    ]
    assert (found[0].message, found[0].hint[:7]) == ("unknown figure `speed`", "for the")


@pytest.mark.parametrize(
    ("formulas", "message", "hint"),
    [
        (
            ["ton / __count"],
            "no assertion has the metric `ton` of the derived metric `d0`",
            "did you mean `tone`?",
        ),
        (
            ["tone + d1", "tone"],
            "no assertion has the metric `d1` of the derived metric `d0`",
            "a formula can use derived metrics above it: move `d1` up",
        ),
        (
            ["is - kind"],
            "no assertion has the metric `is` of the derived metric `d0`",
            "a hyphen is a minus sign here: name the metric `is_kind`",
        ),
    ],
)
def test_a_formula_with_a_metric_that_the_config_lacks_is_a_problem(
    tmp_path: Path, formulas: list[str], message: str, hint: str
) -> None:
    named = SUITE.replace(
        "value: hell,", "value: hell, metric: is-kind}\n      - {type: contains, value: hell,"
    )
    derived = [{"name": f"d{index}", "value": formula} for index, formula in enumerate(formulas)]
    found = problems_of(tmp_path, f"{named}derivedMetrics: {json.dumps(derived)}\n")
    assert (found[0].message, found[0].hint) == (message, hint)
    assert found[0].location is not None
    assert found[0].location.line == named.count("\n") + 1


def test_a_formula_may_name_metrics_of_members_earlier_formulas_and_what_code_names(tmp_path: Path) -> None:
    formulas = '[{name: a, value: "(tone + hellos) / __count"}, {name: b, value: "round(a, 2)"}]'
    assert problems_of(tmp_path, f"{SUITE}derivedMetrics: {formulas}\n") == ()
    coded = SUITE.replace("value: hell,", "value: hell}\n      - {type: python, value: 'True',")
    assert problems_of(tmp_path, f'{coded}derivedMetrics: [{{name: a, value: "from_code * 2"}}]\n') == ()


def test_two_formulas_of_one_name_are_a_problem_at_the_second(tmp_path: Path) -> None:
    config = f"{SUITE}derivedMetrics:\n  - {{name: a, value: tone * 2}}\n  - {{name: a, value: tone * 3}}\n"
    [found] = problems_of(tmp_path, config)
    assert (found.message, found.hint) == (
        "two derived metrics are called `a`",
        "give them different names",
    )
    assert found.location is not None
    assert found.location.line == config.count("\n")


def test_a_gate_between_runs_on_what_rivals_decide_is_a_problem(tmp_path: Path) -> None:
    """A share of pairs won says how an output does against the others of its run, which are others in another run."""
    (tmp_path / "judge.yaml").write_text("- {default: '{}'}", encoding="utf-8")
    pairwise = "{type: pairwise, criteria: the clearer one, provider: 'scripted:judge.yaml', metric: clear"
    config = (
        "providers: [{id: echo, label: a}, {id: echo, label: b}]\nprompts: ['{{ x }}']\n"
        "tests: [{vars: {x: 1}, expected_output: one, assert: [%s}]}]\n"
        "gates: ['clear.delta >= 0 vs baseline']\n"
    )
    (found,) = problems_of(tmp_path, config % pairwise, baseline="latest")
    assert (
        "compares the outputs of one run with each other and cannot be compared between runs" in found.message
    )
    assert found.location is not None
    # Held against an expected output, each output stands for itself.
    assert problems_of(tmp_path, config % f"{pairwise}, against: expected_output", baseline="latest") == ()


@pytest.mark.parametrize(
    ("gate", "message", "hint"),
    [
        ("ton.mean >= 0.5", "no assertion has the metric `ton`", "did you mean `tone`?"),
        ("mean(tone) >= 0.5", "unknown figure `mean(tone)`", "did you mean `tone.mean`?"),
        (
            "f1.mean >= 0.5",
            "no assertion has the metric `f1`",
            "use a metric of an assertion: a derived metric can have no gate and no margin",
        ),
        ("style.errors <= 1", "no assertion has the metric `style`", "use one of: hellos, tone"),
        ("pass_rate[aera=billing] >= 0.5", "no test has the metadata", "did you mean `area`?"),
        ("pass_rate[area=biling] >= 0.5", "no test has the metadata", "did you mean `billing`?"),
        ("errors[area=billing, lang=fr] <= 0", "no test has the metadata", ""),
    ],
)
def test_a_gate_on_what_the_config_lacks_is_a_problem(
    tmp_path: Path, gate: str, message: str, hint: str
) -> None:
    derived = "derivedMetrics: [{name: f1, value: 2 * tone}]\n"
    (found,) = problems_of(tmp_path, f"{SUITE}gates: ['{gate}']\n{derived}")

    assert (found.severity, found.hint) == (Severity.ERROR, hint)
    assert found.message.startswith(message)
    assert found.location is not None
    assert (found.location.line, found.location.column) == (10, 9)


@pytest.mark.parametrize(
    ("gate", "is_mistaken"),
    [
        ("latency.mean >= 0.8", True),
        ("latency.mean <= 1", True),
        ("latency.mean <= 800", False),
        ("latency.p95 <= 900", False),
        ("latency.pass_rate >= 0.5", False),
    ],
)
def test_a_metric_called_latency_is_not_taken_for_that_of_the_run(
    tmp_path: Path, gate: str, is_mistaken: bool
) -> None:
    text = f"{SUITE.replace('metric: tone', 'metric: latency')}gates: ['{gate}']\n"
    found = [problem.message for problem in problems_of(tmp_path, text) if "milliseconds" in problem.message]
    assert len(found) == is_mistaken


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("errors <= 1", "`gates` must be a list", "put `- ` before each gate"),
        ("{errors: 1}", "unknown key `errors` in gates", ""),
        ("[{errors: 1}]", "a gate must be text", "write"),
    ],
)
def test_gates_that_are_no_list_of_texts_are_refused(
    tmp_path: Path, written: str, message: str, hint: str
) -> None:
    (found,) = problems_of(tmp_path, f"{SUITE}gates: {written}\n")
    assert found.message.startswith(message)
    assert found.hint.startswith(hint)


def test_a_gate_on_a_metric_that_nothing_has_names_those_that_there_are(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{SUITE}gates: ['style.mean >= 0']\n")
    assert found.hint == "use one of: hellos, tone"
    bare = SUITE.replace(", metric: tone", "").replace(', metric: "{{word}}s"', "")
    (found,) = problems_of(tmp_path, f"{bare}gates: ['style.mean >= 0']\n")
    assert found.hint == "add `metric: style` to an assertion"


@pytest.mark.parametrize(
    "gate",
    [
        "tone.mean >= 0.5",
        "hellos.mean >= 0.5",
        "tone.mean[area=billing, lang=de] >= 0.5",
        "errors[lang=en] <= 0",
    ],
)
def test_a_gate_on_what_there_is_is_sound(tmp_path: Path, gate: str) -> None:
    assert problems_of(tmp_path, f"{SUITE}gates: ['{gate}']\n") == ()


def test_code_may_bring_metrics_of_its_own(tmp_path: Path) -> None:
    text = SUITE.replace("type: contains, value: hell,", "type: python, value: 'True',")
    assert problems_of(tmp_path, f"{text}gates: ['other.mean >= 0.5']\n") == ()


def test_what_a_filter_leaves_out_may_have_the_metric(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{SUITE}gates: ['ton.mean >= 0']\n", filter_first=1)
    assert found.severity is Severity.WARNING


def test_a_suite_that_checks_nothing_says_so(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, "prompts: [hello]\nproviders: [echo]\ntests: [{}]\n")

    assert (found.severity, "nothing will be evaluated" in found.message) == (Severity.WARNING, True)
    assert "assert" in found.hint


def test_missing_tests_are_called_so(tmp_path: Path) -> None:
    text = (
        "prompts: ['Say {{word}}']\nproviders: [echo]\ndefaultTest: {assert: [{type: contains, value: x}]}\n"
    )
    (found,) = problems_of(tmp_path, text)

    assert (
        found.message == "the config has no `tests`, but the prompt `Say {{word}}` needs the variable `word`"
    )
    assert found.hint == "add `tests:` with `vars: {word: ...}`"


@pytest.mark.parametrize(
    ("text", "share"), [("0.9", 0.9), ("90%", 0.9), ("99.5 %", 0.995), ("1", 1), ("0", 0)]
)
def test_shares_are_read_in_both_forms(text: str, share: float) -> None:
    assert parse_share("--fail-under", text) == share


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("90", "write 0.9 or 90%"),
        ("0.9%", "write 0.9 or 90%"),
        ("1.5", "for example 0.9, or 90%"),
        ("110%", "for example 0.9, or 90%"),
        ("-0.1", "for example 0.9, or 90%"),
        ("nan", "for example 0.9, or 90%"),
        ("most", "for example 0.9, or 90%"),
    ],
)
def test_what_is_no_share_is_answered_with_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_share("--fail-under", text)
    assert caught.value.hint == hint
    assert f"not `{text}`" in caught.value.message


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("threshold: '70%'", "write 0.7"),
        ("threshold: 70", "scores run from 0 to 1: write 0.7 for 70 %"),
        ("threshold: 7", "scores run from 0 to 1; if you meant the rating scale: 7 of 10 is 0.7"),
        ("threshold: '0.7'", "remove the quotes"),
    ],
)
@pytest.mark.parametrize("where", ["test", "assertion"])
def test_thresholds_in_per_cent_are_answered_with_the_share(
    tmp_path: Path, written: str, hint: str, where: str
) -> None:
    own, of_test = (f", {written}", "") if where == "assertion" else ("", f"{written}, ")
    assertion = f"{{type: llm-rubric, value: polite, provider: echo{own}}}"
    text = f"tests: [{{{of_test}output: hi, assert: [{assertion}]}}]\n"
    (found,) = problems_of(tmp_path, text)

    assert found.hint == hint


@pytest.mark.parametrize(
    ("threshold", "hint"),
    [("'70%'", "write 0.7"), ("70", "scores run from 0 to 1: write 0.7 for 70 %"), ("0.7", None)],
)
def test_the_threshold_of_a_g_eval_in_per_cent(tmp_path: Path, threshold: str, hint: str | None) -> None:
    assertion = f"{{type: g-eval, criteria: Polite., provider: echo, threshold: {threshold}}}"
    found = problems_of(tmp_path, f"tests: [{{output: hi, assert: [{assertion}]}}]\n")

    assert [item.hint for item in found if item.severity is Severity.ERROR] == (
        [] if hint is None else [hint]
    )


def test_gates_in_whole_numbers_are_answered_with_per_cent(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{SUITE}gates: ['passed >= 90']\n")
    assert found.hint == "write 0.9 or 90%"


NAMELESS = """\
prompts: ["{{word}}"]
providers: [echo]
tests:
  - vars: {word: hello}
    assert:
      - {type: g-eval, criteria: "{{word}} is answered", provider: echo}
      - {type: not-g-eval, value: The answer is rude, provider: echo}
      - {type: g-eval, evaluation_steps: [Compare it.], provider: echo}
      - {type: g-eval, dimension: fluency, provider: echo}
      - {type: assert-set, assert: [{type: g-eval, criteria: Polite, provider: echo}]}
"""


@pytest.mark.parametrize(
    "metric", ["word-is-answered", "not-the-answer-is-rude", "compare-it", "fluency", "polite"]
)
def test_a_gate_may_name_the_default_metric_of_a_g_eval(tmp_path: Path, metric: str) -> None:
    assert problems_of(tmp_path, f"{NAMELESS}gates: ['{metric}.mean >= 0.5']\n") == ()


def test_a_misspelt_default_metric_is_answered_with_the_right_one(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, f"{NAMELESS}gates: ['polit.mean >= 0.5']\n")
    assert found.hint == "did you mean `polite`?"


@pytest.mark.parametrize(
    ("criteria", "messages"),
    [("Answers politely", []), ("", ["no assertion has the metric `answers-politely`"])],
)
def test_the_evaluation_mode_of_a_prompt_has_a_metric_if_it_has_criteria(
    tmp_path: Path, criteria: str, messages: list[str]
) -> None:
    prompt = f"{{raw: '{{{{word}}}}', evaluation_mode: llm, evaluation_criteria: '{criteria}'}}"
    text = f"prompts: [{prompt}]\nproviders: [echo]\ntests: [{{vars: {{word: hello}}, options: {{provider: echo}}}}]\n"
    found = problems_of(tmp_path, f"{text}gates: ['answers-politely.mean >= 0.5']\n")
    assert [
        item.message.partition(" of the gate")[0] for item in found if "metric" in item.message
    ] == messages


def test_the_default_metrics_of_promptfoo_configs_stay_as_they_are(tmp_path: Path) -> None:
    text = "prompts: ['{{word}}']\nproviders: [echo]\ndialect: promptfoo\ntests:\n  - vars: {word: hello}\n"
    text += "    assert: [{type: g-eval, value: Polite, provider: echo}]\n"
    config = prepared(tmp_path, text)
    (spec,) = next(iter(config.suite.tests)).assertions
    assert metric_name(spec, next(iter(config.suite.tests)), config.templates) is None
