import pytest
from support.specs import assertion_result

from geval_cli.assertions.verdict import verdict_of
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
