import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from geval_cli.engine.aggregate import check_formulas, derive, derive_by_column, names_in_formula
from geval_cli.records import (
    CaseResult,
    MetricSummary,
    ProviderRef,
    RenderedPrompt,
    RunSummary,
    Status,
    run_summary_from_json,
    to_json,
)
from geval_cli.suite.gates import DerivedMetric

SUMMARY = RunSummary(
    total=4,
    metrics={
        "APE": MetricSummary(0.5, 4, 0),
        "x": MetricSummary(2.0, 3, 1),
        "none": MetricSummary(None, 0, 4),
    },
)

PASSED = CaseResult(
    id="0.0.0",
    test_index=0,
    repeat_index=0,
    column=0,
    description=None,
    prompt=RenderedPrompt("p", "p", "x"),
    provider=ProviderRef("echo", "echo"),
    vars={},
    output="x",
    status=Status.PASSED,
    score=1.0,
    usage={},
)


def value_of(formula: str) -> float | None:
    return derive([DerivedMetric(name="m", value=formula)], SUMMARY)["m"]


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("APE / __count", 0.5),
        ("APE + x", 8.0),
        ("(APE + 1) * -2", -6.0),
        ("+x - -APE", 8.0),
        ("x ^ 2", 36.0),
        ("x % 4", 2.0),
        ("2 * APE * x / (APE + x)", 3.0),
        ("sqrt(max(APE, x, 9))", 3.0),
        ("round(x / 4)", 2.0),
        ("round(APE + 0.5)", 3.0),
        ("round(-APE - 0.5)", -3.0),
        ("round(2.675, 2)", 2.68),
        ("round(x / 9, 2)", 0.67),
        ("round(x, 0.5)", None),
        ("round(1.5, 15)", 1.5),
        ("round(1.5, 16)", None),
        ("round(15, -1)", None),
        ("max(x)", 6.0),
        ("min(x, APE, -1, 9)", -1.0),
        ("log(8, 2)", 3.0),
        ("APE / 0", None),
        ("none + 1", None),
        ("unheard_of", None),
        ("log(0)", None),
        ("10 ^ 10 ^ 10", None),
        ("pow(x, 2)", 36.0),
        ("pow(-1, 1001)", -1.0),
        ("(-1) ^ 1001", -1.0),
        ("pow(10, 1000)", None),
        ("(-8) ^ 0.5", None),
    ],
)
def test_values(formula: str, value: float | None) -> None:
    assert value_of(formula) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("name", "fewest", "most", "value"),
    [
        ("abs", 1, 1, 8.0),
        ("ceil", 1, 1, 8.0),
        ("exp", 1, 1, 2980.957987),
        ("floor", 1, 1, 8.0),
        ("log", 1, 2, 2.079441542),
        ("log10", 1, 1, 0.903089987),
        ("log2", 1, 1, 3.0),
        ("max", 1, 9, 8.0),
        ("min", 1, 9, 8.0),
        ("pow", 2, 2, 64.0),
        ("round", 1, 2, 8.0),
        ("sqrt", 1, 1, 2.828427125),
    ],
)
def test_each_function_takes_as_many_arguments_as_it_needs(
    name: str, fewest: int, most: int, value: float
) -> None:
    for count in range(5):
        formula = f"{name}({', '.join(['8', '2', '3', '4'][:count])})"
        problems = list(check_formulas([DerivedMetric(name="m", value=formula)]))
        assert (problems == []) is (fewest <= count <= most), formula
        if count == fewest:
            assert value_of(formula) == pytest.approx(value)


@pytest.mark.parametrize("name", ["pass", "class", "is", "in", "not", "lambda", "sûreté", "Klasse_2"])
def test_a_metric_may_have_any_word_for_its_name(name: str) -> None:
    summary = RunSummary(total=4, metrics={name: MetricSummary(0.5, 4, 0)})
    metric = DerivedMetric(name="m", value=f"2*{name}/(__count+{name})")
    assert list(check_formulas([metric])) == []
    assert derive([metric], summary)["m"] == pytest.approx(4 / 6)
    assert names_in_formula(metric.value) == {name, "__count"}
    assert names_in_formula(f"{name} +") == set()


def test_a_later_metric_may_use_an_earlier_one() -> None:
    metrics = [
        DerivedMetric(name="mean", value="APE / __count"),
        DerivedMetric(name="twice", value="mean * 2"),
    ]
    assert derive(metrics, SUMMARY) == {"mean": 0.5, "twice": 1.0}


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os')",
        "APE.real",
        "[1]",
        "'a' * 9",
        "lambda: 1",
        "1 if x else 2",
        "x[0]",
        "1 +",
        "",
        "min(*x)",
        "True",
        "True + x",
        "x + True",
        "-True",
        "f(1)",
        "sqrt(1, 2)",
        "max()",
        "pow(2)",
        "round(1, 2, 3)",
    ],
)
def test_what_is_no_arithmetic_is_a_problem_and_never_computed(formula: str) -> None:
    [problem] = check_formulas([DerivedMetric(name="m", value=formula)])
    assert "derived metric `m`" in problem.message
    assert value_of(formula) is None


@given(st.text(alphabet="x1+-*/^%() .", max_size=20))
def test_any_formula_is_a_problem_or_has_a_value_or_none(formula: str) -> None:
    value = value_of(formula)
    assert value is None or isinstance(value, float)
    list(check_formulas([DerivedMetric(name="m", value=formula)]))


def test_each_column_has_sums_of_its_own() -> None:
    def result(column: int, **scores: float) -> CaseResult:
        return replace(PASSED, column=column, named_scores=scores)

    metrics = [DerivedMetric(name="mean", value="a / __count"), DerivedMetric(name="twice", value="mean * 2")]
    results = [result(0, a=1.0), result(0, a=0.0, b=1.0), result(1), result(3, a=0.5)]
    assert derive_by_column(metrics, results, columns=4) == {
        "mean": (0.5, None, None, 0.5),
        "twice": (1.0, None, None, 1.0),
    }
    assert derive_by_column([], results, columns=4) == {}


def test_the_values_of_columns_survive_being_stored() -> None:
    summary = RunSummary(derived={"m": 1.0}, derived_by_column={"m": (None, 0.5)})
    assert run_summary_from_json(json.loads(json.dumps(to_json(summary)))) == summary


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("1" + " + 1" * 499 + "   ", ""),
        ("1" + " + 1" * 499 + "    ", "it is longer than 2,000 characters"),
        ("1 +", "invalid syntax"),
        ("median(x)", "unknown function `median`; use one of abs, ceil, "),
        ("x if y else 1", "`x if y else 1` is not arithmetic"),
        ("abs(x, 2)", "`abs` takes one argument, not 2"),
        ("pow(x)", "`pow` takes two arguments, not 1"),
        ("round()", "`round` takes one argument or two, not 0"),
        ("max()", "`max` takes at least one argument, not 0"),
    ],
)
def test_a_formula_that_cannot_be_computed_is_told_with_what_is_wrong(formula: str, why: str) -> None:
    found = [problem.message for problem in check_formulas([DerivedMetric(name="m", value=formula)])]
    said = f"the formula of the derived metric `m` cannot be computed: {why}"
    assert [message.startswith(said) for message in found] == ([True] if why else [])
