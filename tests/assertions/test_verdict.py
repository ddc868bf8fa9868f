import pytest
from msgspec.structs import replace
from support.specs import assertion_result

from geval_cli.assertions.base import Outcome, negated, verdict_of
from geval_cli.metrics import named_scores, with_members
from geval_cli.records import Status

PASSED, FAILED, ERROR = Status.PASSED, Status.FAILED, Status.ERROR


def test_an_assertion_without_weight_decides_nothing_but_its_metric_is_kept() -> None:
    members = [assertion_result(PASSED, 1.0), assertion_result(FAILED, 0.2, weight=0.0, metric="info")]
    verdict = verdict_of(members, None)
    assert (verdict.status, verdict.score) == (PASSED, 1.0)
    assert named_scores(members) == {"info": 0.2}


def test_only_assertions_without_weight_pass_without_a_score() -> None:
    verdict = verdict_of([assertion_result(FAILED, 0.0, weight=0.0)], None)
    assert (verdict.status, verdict.score) == (PASSED, None)


def test_one_without_weight_that_cannot_be_judged_is_still_an_error() -> None:
    members = [assertion_result(PASSED, 1.0), assertion_result(ERROR, weight=0.0)]
    assert verdict_of(members, None).status is ERROR
    assert verdict_of(members, 0.0).status is ERROR


def test_an_error_within_a_set_that_fails_leaves_no_score() -> None:
    members = [assertion_result(ERROR), assertion_result(FAILED, 0.0)]
    inner = verdict_of(members, None)
    assert (inner.status, inner.score) == (FAILED, None)
    turned = negated(Outcome(inner.status, inner.score, "r", assertions=tuple(members)))
    assert (turned.status, turned.score) == (PASSED, None)
    for status in (FAILED, PASSED):
        group = assertion_result(status, assertions=tuple(members))
        found = [verdict_of([group, assertion_result(PASSED, 1.0)], limit) for limit in (None, 0.0, 0.5)]
        assert [(one.status, one.score) for one in found] == [(status, None), (ERROR, None), (ERROR, None)]
        free = verdict_of([replace(group, weight=0.0), assertion_result(PASSED, 1.0)], 0.5)
        assert (free.status, free.score) == (PASSED, 1.0)


def test_a_threshold_of_zero_lets_everything_pass() -> None:
    assert verdict_of([assertion_result(FAILED, 0.0)], 0.0).status is PASSED


def test_a_metric_of_several_assertions_is_their_weighted_mean_within_the_case() -> None:
    members = [
        assertion_result(PASSED, 1.0, weight=3.0, metric="m"),
        assertion_result(FAILED, 0.0, weight=1.0, metric="m"),
    ]
    assert named_scores(members) == {"m": 0.75}


def test_members_of_a_set_count_with_the_weight_of_the_set_too() -> None:
    inner = (
        assertion_result(PASSED, 1.0, weight=3.0, metric="inner"),
        assertion_result(FAILED, 0.0, weight=1.0, metric="inner"),
    )
    group = assertion_result(FAILED, 0.75, weight=2.0, metric="outer", assertions=inner)
    assert [weight for _, weight in with_members([group])] == [2.0, 6.0, 2.0]
    alone = assertion_result(FAILED, 0.0, metric="inner")
    assert named_scores([group, alone]) == {"outer": 0.75, "inner": pytest.approx(6 / 9)}


@pytest.mark.parametrize(
    ("outer", "inner", "scores"),
    [
        ("m", ("m",), {"m": 0.4}),
        ("m", ("m", "n"), {"m": 0.4, "n": 0.9}),
        (None, ("m",), {"m": 0.9}),
        (None, ("m", "m"), {"m": 0.9}),
    ],
)
def test_a_metric_that_an_assertion_and_its_parts_share_counts_once(
    outer: str | None, inner: tuple[str, ...], scores: dict[str, float]
) -> None:
    parts = tuple(assertion_result(Status.NOT_EVALUATED, 0.9, metric=name) for name in inner)
    whole = assertion_result(PASSED, 0.4, metric=outer, assertions=parts)
    assert named_scores([whole]) == pytest.approx(scores)
    nested = assertion_result(
        PASSED, 0.4, metric=outer, assertions=(assertion_result(PASSED, assertions=parts),)
    )
    assert named_scores([nested]) == pytest.approx(scores)
    beside = assertion_result(PASSED, 0.2, metric=outer)
    if outer is not None:
        assert named_scores([whole, beside])["m"] == pytest.approx(0.3)


def test_parts_count_where_the_whole_has_no_score() -> None:
    parts = (assertion_result(PASSED, 0.9, metric="m"),)
    assert named_scores([assertion_result(ERROR, metric="m", assertions=parts)]) == {"m": 0.9}


def test_another_threshold_changes_no_word_of_a_reason() -> None:
    found = Outcome.graded(0.75, "3 of 4 are found; the threshold is 0.5", 0.5).against(0.8)
    assert (found.status, found.threshold, found.reason) == (
        FAILED,
        0.8,
        "3 of 4 are found; the threshold is 0.5",
    )
