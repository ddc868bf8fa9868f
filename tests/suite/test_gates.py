from pathlib import Path
from typing import Any

import pytest

from geval_cli.errors import Problem
from geval_cli.extras.trust.calibrated import FileCalibrations
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED
from geval_cli.source.env import EnvValues
from geval_cli.source.files import SourceFiles
from geval_cli.source.source_map import SourcePath
from geval_cli.suite.gates import Comparison, Gate, Statistic, corrected, parse_gate, read_gates
from geval_cli.suite.validation import LoadContext


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("coherence.mean >= 0.7", Gate("coherence.mean >= 0.7", Statistic.MEAN, ">=", 0.7, "coherence")),
        ("  errors<=1%  ", Gate("errors<=1%", Statistic.ERRORS, "<=", 0.01, is_share=True)),
        (
            "pass_rate[area=billing, lang='de'] >= .9",
            Gate(
                "pass_rate[area=billing, lang='de'] >= .9",
                Statistic.PASS_RATE,
                ">=",
                0.9,
                None,
                (("area", "billing"), ("lang", "de")),
            ),
        ),
        ("score.mean > 0.5", Gate("score.mean > 0.5", Statistic.MEAN, ">", 0.5)),
        ("latency.p95 < 2000", Gate("latency.p95 < 2000", Statistic.LATENCY_P95, "<", 2000)),
        (
            "tone of voice.pass_rate >= 80 %",
            Gate(
                "tone of voice.pass_rate >= 80 %",
                Statistic.PASS_RATE,
                ">=",
                0.8,
                "tone of voice",
                is_share=True,
            ),
        ),
        (
            "fluency.delta >= -0.02 vs baseline",
            Gate("fluency.delta >= -0.02 vs baseline", Statistic.DELTA, ">=", -0.02, "fluency"),
        ),
        (
            "pass_rate.delta[area=billing] > -2% vs  baseline proven",
            Gate(
                "pass_rate.delta[area=billing] > -2% vs  baseline proven",
                Statistic.PASS_RATE_DELTA,
                ">",
                -0.02,
                None,
                (("area", "billing"),),
                is_share=True,
                is_proven=True,
            ),
        ),
        (
            "score.delta >= +0.01 vs baseline",
            Gate("score.delta >= +0.01 vs baseline", Statistic.DELTA, ">=", 0.01),
        ),
        (
            "tone equivalent  within 0.05 vs baseline",
            Gate(
                "tone equivalent  within 0.05 vs baseline",
                Statistic.DELTA,
                "<=",
                0.05,
                "tone",
                is_equivalence=True,
            ),
        ),
        (
            "pass_rate[area=billing] equivalent within 5% vs baseline",
            Gate(
                "pass_rate[area=billing] equivalent within 5% vs baseline",
                Statistic.PASS_RATE_DELTA,
                "<=",
                0.05,
                None,
                (("area", "billing"),),
                is_share=True,
                is_equivalence=True,
            ),
        ),
        ("tone [0-5].mean >= 0.7", Gate("tone [0-5].mean >= 0.7", Statistic.MEAN, ">=", 0.7, "tone [0-5]")),
        ("v1.2.mean >= 0", Gate("v1.2.mean >= 0", Statistic.MEAN, ">=", 0, "v1.2")),
    ],
)
def test_gates_that_can_be_read(text: str, expected: Gate) -> None:
    assert parse_gate(text, SourcePath.nowhere()) == expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "this is not a gate: ``", "coherence.mean >= 0.7"),
        ("coherence >= 0.7", "unknown figure `coherence`", "write `coherence.mean`"),
        ("pass_rat >= 0.7", "unknown figure `pass_rat`", "did you mean `pass_rate`?"),
        ("coherence.median >= 0.7", "unknown figure `coherence.median`", "coherence.mean`?"),
        ("coherence.mean => 0.7", "this is not a gate", "coherence.mean >= 0.7"),
        ("coherence.mean = 0.7", "this is not a gate", "coherence.mean >= 0.7"),
        ("coherence.mean >= high", "this is not a gate", "coherence.mean >= 0.7"),
        ("coherence.mean >= 7", "a limit above 1 (or 100%)", "coherence.mean >= 0.7"),
        ("pass_rate >= 101%", "a limit above 1 (or 100%)", "coherence.mean >= 0.7"),
        ("pass_rate >= 0.9%", "a limit below 1 %", "write 0.9 or 90%"),
        ("passed[area=billing] > 0.95 %", "a limit below 1 %", "write 0.95 or 95%"),
        ("coherence.mean >= 0.7%", "a limit below 1 %", "write 0.7 or 70%"),
        ("errors <= 150%", "a limit above 1 (or 100%)", "coherence.mean >= 0.7"),
        ("failures <= 101 %", "a limit above 1 (or 100%)", "coherence.mean >= 0.7"),
        ("cost <= 5%", "a percentage limit on a figure that is not a share", "coherence.mean >= 0.7"),
        ("cost <= 500%", "a percentage limit on a figure that is not a share", "coherence.mean >= 0.7"),
        ("pass_rate[billing] >= 0.9", "broken tags", "[area=billing]"),
        ("pass_rate[] >= 0.9", "broken tags", "[area=billing]"),
        (".mean >= 0.5", "unknown figure `.mean`", "METRIC.mean"),
        ("'' .mean >= 0.5", "unknown figure `'' .mean`", "METRIC.mean"),
        ("coherence.mean >= -0.7", "this is not a gate", "coherence.mean >= 0.7"),
        ("fluency.delta >= -0.02", "does not say what it compares with", "vs baseline"),
        ("fluency.delta >= -0.02 vs", "this is not a gate", "coherence.mean >= 0.7"),
        ("fluency.delta >= -0.02 vs main", "this is not a gate", "coherence.mean >= 0.7"),
        ("fluency.delta >= -0.02 proven", "this is not a gate", "coherence.mean >= 0.7"),
        (
            "fluency.mean >= 0.7 vs baseline",
            ("only `delta` can be compared with the baseline"),
            "fluency.delta",
        ),
        ("fluency.delta >= -2 vs baseline", "a limit below -1 (or -100%)", "coherence.mean >= 0.7"),
        ("fluency.delta >= 2 vs baseline", "a limit above 1 (or 100%)", "coherence.mean >= 0.7"),
        (".delta >= 0 vs baseline", "unknown figure `.delta`", "METRIC.delta"),
        ("tone equivalent within 0 vs baseline", "the margin is not between 0 and 1", "within 0.05"),
        ("tone equivalent within 100% vs baseline", "the margin is not between 0 and 1", "within 0.05"),
        ("tone equivalent within -0.1 vs baseline", "this is not a gate", "within 0.05 vs baseline"),
        ("tone equivalent within 0.05", "this is not a gate", "within 0.05 vs baseline"),
        ("tone equivalent within 0.05 vs baseline proven", "this is not a gate", "within 0.05 vs baseline"),
        ("'' equivalent within 0.05 vs baseline", "names no metric", "within 0.05 vs baseline"),
        ("tone[x] equivalent within 0.05 vs baseline", "broken tags", "[area=billing]"),
        ("errors <= 1e3", "this is not a gate", "errors <= 1%"),
    ],
)
def test_gates_that_cannot_be_read(text: str, message: str, hint: str) -> None:
    problem = parse_gate(text, SourcePath.nowhere())

    assert isinstance(problem, Problem)
    assert message in problem.message
    assert hint in problem.hint


def test_gates_that_break_on_a_shown_drop_share_the_chance_of_a_false_alarm() -> None:
    texts = [
        "a.delta >= 0 vs baseline",
        "b.delta >= 0 vs baseline",
        "b.delta >= 0 vs baseline",
        "b.delta >= 0 vs baseline proven",
        "a equivalent within 0.05 vs baseline",
        "a.mean >= 0.5",
    ]
    gates = [parse_gate(text, SourcePath.nowhere()) for text in texts]
    families = [gate.family for gate in corrected([gate for gate in gates if isinstance(gate, Gate)])]
    assert families == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("comparison", "value", "limit", "holds"),
    [
        (">", 0.5000000003, 0.5, False),
        (">", 0.500000002, 0.5, True),
        ("<", 0.5, 0.5000000003, False),
        ("<", 0.5, 0.500000002, True),
        (">=", 0.5, 0.5000000003, True),
        (">=", 0.5, 0.500000002, False),
        ("<=", 0.5000000003, 0.5, True),
        ("<=", 0.500000002, 0.5, False),
    ],
)
def test_a_gate_compares_to_nine_decimals(
    comparison: Comparison, value: float, limit: float, holds: bool
) -> None:
    gate = Gate("", Statistic.PASS_RATE, comparison, limit)
    assert gate.holds(value) is holds


@pytest.mark.parametrize(
    ("comparison", "worst_and_best"),
    [(">=", (0.2, 0.9)), (">", (0.2, 0.9)), ("<=", (0.9, 0.2)), ("<", (0.9, 0.2))],
)
def test_an_interval_is_worst_at_the_end_that_breaks_the_gate(
    comparison: Comparison, worst_and_best: tuple[float, float]
) -> None:
    gate = Gate("", Statistic.PASS_RATE, comparison, 0.5)
    assert gate.worst_and_best(0.2, 0.9) == worst_and_best
    worst, best = worst_and_best
    assert (gate.holds(worst), gate.holds(best)) == (False, True)


@pytest.mark.parametrize("statistic", Statistic)
def test_what_a_gate_needs_is_told_by_its_figure(statistic: Statistic) -> None:
    is_of_two_runs, needs_labels = "delta" in statistic.value, statistic.value.startswith("true_")
    forms: list[dict[str, Any]] = [{}, {"is_proven": True}, {"is_equivalence": True}]
    for form in forms:
        gate = Gate("", statistic, ">=", 0, **form)
        assert gate.needs_baseline is is_of_two_runs
        assert gate.needs_labels is needs_labels
        assert gate.passes_until_disproved is (is_of_two_runs and not form)


@pytest.mark.parametrize(
    ("is_share", "difference", "said"),
    [
        (True, -0.0478, "-4.8 pts"),
        (True, 0.5, "+50.0 pts"),
        (False, -0.0478, "-0.048"),
        (False, 0.5, "+0.500"),
    ],
)
def test_a_difference_is_said_in_the_form_of_the_limit(is_share: bool, difference: float, said: str) -> None:
    assert Gate("", Statistic.DELTA, ">=", 0.1, is_share=is_share).said(difference) == said


NOT_CALIBRATED = "there is no calibration, so the gate `borderline <= 20%` cannot be checked"


@pytest.mark.parametrize(
    ("calibrations", "problems"),
    [
        (None, [NOT_CALIBRATED]),
        (FileCalibrations({}), [NOT_CALIBRATED]),
        (FileCalibrations({}, is_broken=True), []),
        (FileCalibrations({"tone": None}), []),  # type: ignore[dict-item]
    ],
    ids=["none", "empty", "broken", "some"],
)
def test_a_gate_on_borderline_outputs_needs_a_calibration(
    calibrations: FileCalibrations | None, problems: list[str]
) -> None:
    found, said = read(["borderline <= 20%", "pass_rate >= 0.5"], calibrations)
    assert said == problems
    assert found == (["pass_rate >= 0.5"] if problems else ["borderline <= 20%", "pass_rate >= 0.5"])


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        (
            ["pass_rate >= 0.5", "no gate", 0.7, {"pass_rate": 0.5}],
            ["this is not a gate", *["a gate must be text"] * 2],
        ),
        ("pass_rate >= 0.5", ["`gates` must be a list, found "]),
        (0.5, ["`gates` must be a list, found "]),
        ({"conditions": "pass_rate >= 0.5"}, ["conditions"]),
        ({"correction": "bonferroni"}, []),
    ],
)
def test_each_gate_that_cannot_be_read_is_a_problem_of_its_own(value: JsonValue, problems: list[str]) -> None:
    _, said = read(value)
    assert len(said) == len(problems)
    assert all(part in message for part, message in zip(problems, said, strict=True))


@pytest.mark.parametrize(("correction", "families"), [("bonferroni", [2, 2, 1]), ("none", [1, 1, 1])])
def test_gates_on_differences_share_the_chance_of_a_false_alarm_unless_told_otherwise(
    correction: str, families: list[int]
) -> None:
    texts: list[JsonValue] = ["a.delta >= 0 vs baseline", "b.delta >= 0 vs baseline", "a.mean >= 0.5"]
    reading = LoadContext(SourceFiles(Path(), TRUSTED), EnvValues({}))
    gates = read_gates({"conditions": texts, "correction": correction}, SourcePath.nowhere(), reading)
    assert [gate.family for gate in gates] == families
    assert reading.problems == []


def read(value: JsonValue, calibrations: FileCalibrations | None = None) -> tuple[list[str], list[str]]:
    """The gates that are read of the config's `gates`, and what is said of the others."""
    reading = LoadContext(SourceFiles(Path(), TRUSTED), EnvValues({}), calibrations=calibrations)
    gates = read_gates(value, SourcePath.nowhere(), reading)
    return [gate.text for gate in gates], [problem.message for problem in reading.problems]
