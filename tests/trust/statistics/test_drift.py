"""Whether a judge moved: the same outputs rated twice. scipy is the oracle of the correlation."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.extras.trust.statistics.drift import (
    DriftVerdict,
    RatedTwice,
    drift_of,
    least_for_steady,
    looks_at,
    spearman,
)

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "geval_gpt4_samples.jsonl"


@pytest.mark.skipif(not SAMPLES.is_file(), reason="the samples are not on this machine")
def test_golden_of_ten_samples_against_ten_more() -> None:
    pairs = []
    for line in SAMPLES.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        ratings = [float(re.findall(r"\d", text)[0]) / 4 for text in row["responses"]]
        pairs.append(RatedTwice(row["doc_id"], sum(ratings[:10]) / 10, sum(ratings[10:]) / 10))
    found = drift_of(pairs)
    assert found is not None
    assert (found.shift, found.se) == pytest.approx((0.0075, 0.010897), abs=1e-6)
    assert found.interval == pytest.approx((-0.080598, 0.095482), abs=1e-6)
    assert (found.n, found.clusters, found.verdict) == (20, 20, DriftVerdict.UNCLEAR)


@pytest.mark.parametrize(
    ("count", "shift", "verdict"),
    [
        (33, 0.0, DriftVerdict.UNCLEAR),
        (34, 0.0, DriftVerdict.STEADY),
        (100, 0.0, DriftVerdict.STEADY),
        (100, -0.25, DriftVerdict.MOVED),
        (100, 0.06, DriftVerdict.UNCLEAR),
        (3, -0.9, DriftVerdict.UNCLEAR),
        (10, -0.9, DriftVerdict.MOVED),
        (1, 0.5, DriftVerdict.UNCLEAR),
    ],
)
def test_verdicts(count: int, shift: float, verdict: DriftVerdict) -> None:
    found = drift_of([RatedTwice(str(n), 0.5 - shift / 2, 0.5 + shift / 2) for n in range(count)])
    assert found is not None
    assert (found.verdict, found.rank) == (verdict, None)
    assert found.shift == pytest.approx(shift)
    assert least_for_steady() == 34


@pytest.mark.parametrize("margin", [1e-9, 1e-5, 0.01, 0.05, 0.2, 0.5, 0.99])
def test_the_number_of_tests_that_can_show_a_steady_judge_is_the_smallest(margin: float) -> None:
    least = least_for_steady(margin)
    if least > 1000:
        assert 1.6 / margin < least < 1.7 / margin
        return
    same = [RatedTwice(str(number), 0.5, 0.5) for number in range(least)]
    found, fewer = drift_of(same, margin), drift_of(same[1:], margin)
    assert found is not None
    assert fewer is not None
    assert found.verdict is DriftVerdict.STEADY
    assert fewer.verdict is DriftVerdict.UNCLEAR


def test_outputs_of_one_test_are_one_observation_of_the_judge() -> None:
    alone = drift_of([RatedTwice(str(n), 0.5, 0.5 + n % 2 / 10) for n in range(40)])
    repeated = drift_of([RatedTwice(str(n), 0.5, 0.5 + n % 2 / 10) for n in range(40) for _ in range(5)])
    assert alone is not None
    assert repeated is not None
    assert repeated.interval == pytest.approx(alone.interval)
    assert (repeated.n, repeated.clusters) == (200, 40)


def test_flips_are_counted_in_both_directions() -> None:
    marks = [(True, False), (True, False), (False, True), (True, True), (None, None)]
    found = drift_of([RatedTwice(str(n), 0.5, 0.4, *mark) for n, mark in enumerate(marks)])
    assert found is not None
    assert (found.newly_failed, found.newly_passed, found.judged) == (2, 1, 4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_rank_correlation_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    from scipy.stats import spearmanr

    first, second = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    found = spearman(first, second)
    if found is None:
        assert len(set(first)) == 1 or len(set(second)) == 1
    else:
        assert found == pytest.approx(spearmanr(first, second).statistic)


def test_looks_add_up_and_one_alarm_stays() -> None:
    assert looks_at([]) is None
    calm, moved = looks_at([0.01, -0.01] * 100), looks_at([-0.3] * 60)
    assert calm is not None
    assert moved is not None
    assert (calm.count, calm.moved, moved.moved) == (200, False, True)
    assert calm.interval[0] < 0 < calm.interval[1]
    assert -0.3 < moved.interval[1] < -0.05
    later = looks_at([*[-0.3] * 60, *[0.0] * 200])
    assert later is not None
    assert later.moved
