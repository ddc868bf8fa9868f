"""Decisions about a mean with a look after every observation. The oracle is the definition, computed anew each time."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.extras.trust.statistics.sequential import SequentialMean

RATINGS = Path(__file__).parents[3] / "shared" / "data" / "summeval_gpt4_rts.jsonl"
GOLDENS = {
    ("coherence", "M8"): (0.324663, -10.508075, None, ""),
    ("consistency", "M22"): (5.196005, -32.675654, 32, "above"),
    ("fluency", "M11"): (-21.078005, 15.092189, 7, "below"),
    ("relevance", "M20"): (-10.455302, 2.200388, 55, "below"),
    ("consistency", "M11"): (-6.829288, 0.347121, None, ""),
}


def decision_of(sequence: SequentialMean) -> str:
    return "above" if sequence.is_above else "below" if sequence.is_below else ""


@pytest.mark.skipif(not RATINGS.is_file(), reason="the ratings are not on this machine")
@pytest.mark.parametrize("which", GOLDENS, ids=" ".join)
def test_golden_capital_and_stops(which: tuple[str, str]) -> None:
    rows = map(json.loads, RATINGS.read_text(encoding="utf-8").splitlines())
    scores = [row["score_audited"] for row in rows if (row["dimension"], row["system_id"]) == which]
    above, below, stop, decision = GOLDENS[which]
    sequence, stopped = SequentialMean(0.05, 0.8), None
    for score in filter(None, scores):
        sequence.add(float(score >= 4))
        if sequence.n == 50:
            assert sequence.log_capitals == pytest.approx((above, below), abs=1e-6)
        if stopped is None and decision_of(sequence):
            stopped = sequence.n, decision_of(sequence)
    assert stopped == (None if stop is None else (stop, decision))


def capital(values: list[float], limit: float, alpha: float, sign: int) -> float:
    """The money of one side, as the paper defines it."""
    money = 1.0
    for t in range(1, len(values) + 1):
        means = [(0.5 + sum(values[:i])) / (i + 1) for i in range(t)]
        variances = 0.25 + sum((values[i - 1] - means[i]) ** 2 for i in range(1, t))
        stake = math.sqrt(2 * math.log(2 / alpha) / (variances / t * t * math.log(1 + t)))
        most = 0.5 / (limit if sign > 0 else 1 - limit)
        money *= 1 + sign * min(stake, most) * (values[t - 1] - limit)
    return money


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=25),
    st.sampled_from([0.2, 0.5, 0.8]),
    st.sampled_from([0.05, 0.01]),
)
def test_the_capital_is_that_of_the_definition_and_the_interval_what_it_does_not_rule_out(
    values: list[float], limit: float, alpha: float
) -> None:
    sequence = SequentialMean(alpha, limit)
    sequence.add_all(values)
    assert sequence.log_capitals == pytest.approx(
        [math.log(capital(values, limit, alpha, sign) / 2) for sign in (1, -1)], abs=1e-6
    )
    interval = sequence.interval()
    assert interval is not None
    # Of the means that were not used, too, all inside may be true, and all outside are ruled out.
    for mean in (0.1, 0.3, 0.6, 0.9):
        most = max(capital(values, mean, alpha, sign) for sign in (1, -1)) / 2
        assert (interval[0] - 1e-9 <= mean <= interval[1] + 1e-9) is (most < 1 / alpha)


def test_what_is_not_known_counts_against_either_decision() -> None:
    known, doubtful = SequentialMean(0.05, 0.5), SequentialMean(0.05, 0.5)
    for _ in range(10):
        known.add(1.0)
        doubtful.add(1.0)
        doubtful.add(0.0, 1.0)
    assert known.is_above
    assert decision_of(doubtful) == ""
    assert doubtful.mean == 0.75
    low, high = doubtful.interval() or (0.0, 0.0)
    assert low < 0.5
    assert high == 1.0


def test_a_test_with_fewer_cases_counts_for_less() -> None:
    whole, half = SequentialMean(0.05, 0.5), SequentialMean(0.05, 0.5)
    for _ in range(12):
        whole.add(1.0)
        half.add(1.0, weight=0.5)
    assert half.log_capitals[0] < whole.log_capitals[0]
    half.add(0.0)
    assert half.mean == pytest.approx(6 / 7)


def test_a_single_value_inside_disproves_a_mean_at_the_end_of_the_scale() -> None:
    every, none = SequentialMean(0.05, 1.0), SequentialMean(0.05, 0.0)
    every.add_all([1.0] * 50)
    none.add_all([0.0] * 50)
    assert decision_of(every) == decision_of(none) == ""
    every.add(0.5)
    none.add(0.5)
    assert every.is_below
    assert none.is_above
