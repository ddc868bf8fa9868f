import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.numbers import (
    format_bytes,
    format_clock,
    format_comparison,
    format_cost,
    format_count,
    format_difference,
    format_duration,
    format_p,
    format_percentage,
    format_score,
    format_score_beside,
    format_share_beside,
    format_share_interval,
    format_time,
    plural,
)

unit = st.floats(0, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (-0.0, "0.00"),
        (0.0687, "+0.07"),
        (-0.1125, "-0.11"),
        (-0.004, "-0.004"),
        (0.0012, "+0.001"),
        (0.9 - 0.525, "+0.38"),
        (1e-9, "+0.000000001"),
        (-1e-12, "0.00"),
    ],
)
def test_a_difference_never_looks_like_none(value: float, text: str) -> None:
    assert format_difference(value) == text


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (1.0, "1.000"),
        (0.365, "0.365"),
        (0.0312, "0.031"),
        (0.05, "0.050"),
        (0.0503, "0.0503"),
        (0.0499996, "0.0499996"),
        (0.001, "0.001"),
        (0.00099, "<0.001"),
        (0.0, "<0.001"),
    ],
)
def test_a_small_p_value_is_no_0(p: float, text: str) -> None:
    assert format_p(p) == text


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (0, "0.00"),
        (1, "1.00"),
        (0.874, "0.87"),
        (0.996, "0.996"),
        (0.99996, "0.99996"),
        (0.0004, "0.0004"),
        (1 - 1e-12, "1.00"),
        (-0.0, "0.00"),
    ],
)
def test_score(score: float, text: str) -> None:
    assert format_score(score) == text


@given(unit)
def test_only_a_full_score_looks_full_and_only_none_looks_empty(score: float) -> None:
    text = format_score(score)

    assert (float(text) == 1) == (round(score, 9) == 1)
    assert (float(text) == 0) == (round(score, 9) == 0)


@pytest.mark.parametrize(
    ("score", "threshold", "text"),
    [
        (0.4, 0.5, "0.40 < 0.50"),
        (0.5, 0.5, "0.50 ≥ 0.50"),
        (0.999, 1.0, "0.999 < 1.00"),
        (0.6996, 0.7, "0.6996 < 0.70"),
        (0.701, 0.7, "0.70 ≥ 0.70"),
        (0.87, 0.855, "0.87 ≥ 0.855"),
        (1 / 3, 1 / 3, "0.3333 ≥ 0.3333"),
        (0.7 - 1e-12, 0.7, "0.70 ≥ 0.70"),
    ],
)
def test_comparison(score: float, threshold: float, text: str) -> None:
    assert format_comparison(score, threshold) == text


@given(unit, unit)
def test_a_comparison_is_true_as_printed(score: float, threshold: float) -> None:
    left, sign, right = format_comparison(score, threshold).split()

    assert sign == ("<" if round(score, 9) < round(threshold, 9) else "≥")
    assert (float(left) < float(right)) == (sign == "<")


@given(unit, st.floats(-1e-6, 1e-6))
def test_a_near_miss_is_true_as_printed(threshold: float, difference: float) -> None:
    left, sign, right = format_comparison(threshold + difference, threshold).split()

    assert (float(left) < float(right)) == (sign == "<")


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 3, "0 %"),
        (3, 3, "100 %"),
        (1, 2, "50 %"),
        (1, 3, "33 %"),
        (9_999, 10_000, ">99.9 %"),
        (1, 100_000, "<0.1 %"),
        (4, 1_000, "0.4 %"),
        (0, 0, "n/a"),
    ],
)
def test_percentage(part: int, whole: int, text: str) -> None:
    assert format_percentage(part, whole) == text


@given(st.integers(1, 10**7).flatmap(lambda whole: st.tuples(st.integers(0, whole), st.just(whole))))
def test_all_and_none_are_said_only_when_true(counts: tuple[int, int]) -> None:
    part, whole = counts
    text = format_percentage(part, whole)

    assert (text == "100 %") == (part == whole)
    assert (text == "0 %") == (part == 0)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1k"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (999_950, "1M"),
        (1_234_567, "1.2M"),
        (2_500_000_000, "2.5G"),
    ],
)
def test_count(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (350.4, "350 ms"),
        (999.6, "1.0 s"),
        (4_230, "4.2 s"),
        (59_960, "1 min"),
        (65_000, "1 min 5 s"),
        (7_380_000, "2 h 3 min"),
        (7_201_000, "2 h"),
        (100_000_000, "1 d 3 h"),
    ],
)
def test_duration(duration_ms: float, text: str) -> None:
    assert format_duration(duration_ms) == text


def test_clock_counts_whole_seconds() -> None:
    assert format_clock(7.4) == "7 s"


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (0, "$0.00"),
        (1.234, "$1.23"),
        (1.3583, "$1.36"),
        (1234.5, "$1,234.50"),
        (0.9999, "$1.00"),
        (0.193023, "$0.19"),
        (0.5, "$0.50"),
        (0.01, "$0.010"),
        (0.0123, "$0.012"),
        (0.0999, "$0.10"),
        (-0.0123, "-$0.012"),
        (0.0099, "$0.0099"),
        (0.000123, "$0.00012"),
        (1e-9, "<$0.000001"),
    ],
)
def test_cost(cost: float, text: str) -> None:
    assert format_cost(cost) == text


@pytest.mark.parametrize(
    ("share", "other", "text"),
    [
        (0.76, 0.8, "76 %"),
        (0.799, 0.8, "79.9 %"),
        (0.8, 0.8, "80 %"),
        (0.796, 0.796, "79.6 %"),
        (1.0, 0.999, "100 %"),
        (0.999, 0.9, "99.9 %"),
    ],
)
def test_a_share_beside_a_limit_is_on_its_side(share: float, other: float, text: str) -> None:
    assert format_share_beside(share, other) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0.641, 0.812), "64 to 81 %"),
        ((0.003, 0.997), "0 to 100 %"),
        ((0.0, 0.004), "0 to 0.4 %"),
    ],
)
def test_an_interval_of_shares_is_never_only_all_or_none(bounds: tuple[float, float], text: str) -> None:
    assert format_share_interval(bounds) == text


@pytest.mark.parametrize(
    "when", ["2026-11-23T19:50:31.123+00:00", "2026-11-23T21:50:31+02:00", 1_795_463_431.5]
)
def test_a_time_is_a_local_one_to_the_minute(when: str | float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert format_time(when) == "2026-11-24 04:50"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("size", "text"), [(999, "999 B"), (1_500, "1.5 kB"), (98_300_000, "98.3 MB")])
def test_size(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_plural() -> None:
    assert [plural(1, "case"), plural(2, "case"), plural(1_000, "entry", "entries")] == [
        "1 case",
        "2 cases",
        "1,000 entries",
    ]


@pytest.mark.parametrize(
    ("score", "other", "text"),
    [
        (0.976852, 0.8, "0.98"),
        (0.7999, 0.8, "0.7999"),
        (0.8, 0.8, "0.80"),
        (0.666666, 0.666667, "0.666666"),
        (0.5, 0.50001, "0.50000"),
    ],
)
def test_a_score_beside_a_threshold_is_on_its_side(score: float, other: float, text: str) -> None:
    assert format_score_beside(score, other) == text


ASSERTIONS = Path(__file__).parents[2] / "geval_cli" / "assertions"


@pytest.mark.parametrize("module", sorted(ASSERTIONS.rglob("*.py")), ids=lambda path: path.stem)
def test_reasons_round_scores_with_the_one_function(module: Path) -> None:
    assert not re.search(
        r"\{[a-z_.]*(score|similarity|cost)[a-z_.]*:\.\d", module.read_text(encoding="utf-8")
    )
