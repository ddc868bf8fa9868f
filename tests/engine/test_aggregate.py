import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.specs import assertion_result

from geval_cli.assertions.base import verdict_of, weighted_score
from geval_cli.engine.aggregate import Notices, Tally, with_clustered_intervals
from geval_cli.events import CaseStarted, ModelCalled, Noticed
from geval_cli.metrics import named_scores
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ErrorInfo,
    MetricSummary,
    ProviderRef,
    RenderedPrompt,
    Role,
    Status,
    Usage,
)

PASSED, FAILED, ERROR, NOT_EVALUATED = Status.PASSED, Status.FAILED, Status.ERROR, Status.NOT_EVALUATED


def results(*pairs: tuple[Status, float | None]) -> list[AssertionResult]:
    return [assertion_result(status, score) for status, score in pairs]


@pytest.mark.parametrize(
    ("assertions", "threshold", "status", "score"),
    [
        ([(PASSED, 1.0), (PASSED, 0.5)], None, PASSED, 0.75),
        ([(PASSED, 1.0), (FAILED, 0.0)], None, FAILED, 0.5),
        ([(PASSED, 1.0), (ERROR, None)], None, ERROR, None),
        ([(FAILED, 0.0), (ERROR, None)], None, FAILED, None),
        ([(PASSED, 1.0), (NOT_EVALUATED, None)], None, PASSED, 1.0),
        ([(NOT_EVALUATED, None)], None, NOT_EVALUATED, None),
        ([], None, NOT_EVALUATED, None),
        ([(PASSED, 1.0), (FAILED, 0.0)], 0.5, PASSED, 0.5),
        ([(PASSED, 1.0), (FAILED, 0.0)], 0.51, FAILED, 0.5),
        ([(PASSED, 1.0), (ERROR, None)], 0.1, ERROR, None),
        ([(FAILED, 0.0), (ERROR, None)], 0.9, ERROR, None),
        ([(NOT_EVALUATED, None)], 0.5, NOT_EVALUATED, None),
        ([(PASSED, 0.1), (PASSED, 0.2)], 0.15, PASSED, 0.15),
    ],
)
def test_status_and_score_of_a_case(
    assertions: list[tuple[Status, float | None]],
    threshold: float | None,
    status: Status,
    score: float | None,
) -> None:
    verdict = verdict_of(results(*assertions), threshold)
    assert verdict.status is status
    assert verdict.score == (None if score is None else pytest.approx(score))


def test_float_dust_does_not_decide() -> None:
    assert verdict_of(results((PASSED, 0.1 + 0.2)), 0.3).status is PASSED
    assert verdict_of(results((PASSED, 0.3)), 0.1 + 0.2).status is PASSED


def test_weights_count_and_unscored_assertions_leave_them() -> None:
    heavy = assertion_result(PASSED, 1.0, weight=3.0)
    light = assertion_result(FAILED, 0.0, weight=1.0)
    unscored = assertion_result(NOT_EVALUATED, None, weight=100.0)
    assert weighted_score([heavy, light, unscored]) == 0.75
    assert weighted_score([assertion_result(PASSED, 1.0, weight=0.0)]) is None


@given(st.lists(st.floats(0, 1), min_size=1), st.lists(st.floats(0.01, 10), min_size=1))
def test_the_weighted_score_lies_between_the_lowest_and_the_highest(
    scores: list[float], weights: list[float]
) -> None:
    members = [
        assertion_result(PASSED, score, weight=weight) for score, weight in zip(scores, weights, strict=False)
    ]
    used = [member.score for member in members if member.score is not None]
    mean = weighted_score(members)
    assert mean is not None
    assert min(used) - 1e-9 <= mean <= max(used) + 1e-9


def test_named_scores_are_means_per_metric() -> None:
    members = [
        assertion_result(PASSED, 1.0, metric="a"),
        assertion_result(FAILED, 0.0, metric="a"),
        assertion_result(ERROR, None, metric="b"),
        assertion_result(PASSED, 1.0),
    ]
    assert named_scores(members) == {"a": 0.5}


def case_result(status: Status, assertions: tuple[AssertionResult, ...] = (), **usage: Usage) -> CaseResult:
    return CaseResult(
        id="0.0.0",
        test_index=0,
        repeat_index=0,
        column=0,
        description=None,
        prompt=RenderedPrompt("p", "p", ""),
        provider=ProviderRef("echo", "echo"),
        vars={},
        output="",
        status=status,
        score=None,
        named_scores=named_scores(assertions),
        usage={Role(role): value for role, value in usage.items()},
        assertions=assertions,
    )


def test_a_run_counts_statuses_and_the_pass_rate_leaves_errors_out() -> None:
    tally = Tally()
    for status in (PASSED, PASSED, PASSED, FAILED, ERROR, NOT_EVALUATED):
        tally.add(case_result(status))
    summary = tally.summary()
    counts = (summary.total, summary.passed, summary.failed, summary.errored, summary.not_evaluated)
    assert counts == (6, 3, 1, 1, 1)
    assert (summary.pass_rate, summary.pass_rate_at_least) == (0.75, 0.6)


def test_nothing_judged_has_no_pass_rate() -> None:
    tally = Tally()
    tally.add(case_result(ERROR))
    assert (tally.summary().pass_rate, tally.summary().pass_rate_at_least) == (None, None)


def test_metrics_show_their_n_and_their_errors() -> None:
    tally = Tally()
    tally.add(case_result(PASSED, (assertion_result(PASSED, 0.8, metric="m"),)))
    tally.add(case_result(ERROR, (assertion_result(ERROR, None, metric="m"),)))
    tally.add(case_result(ERROR, (assertion_result(ERROR, None, metric="never scored"),)))
    assert tally.summary().metrics == {
        "m": MetricSummary(mean=0.8, n=1, errored=1),
        "never scored": MetricSummary(mean=None, n=0, errored=1),
    }


def test_usage_is_summed_by_role_and_an_unknown_price_stays_unknown() -> None:
    tally = Tally()
    tally.add(case_result(PASSED, generation=Usage(1, 10, 5, 0, 0.5), judge=Usage(2, 7, 3, 1, None)))
    tally.add(case_result(PASSED, generation=Usage(1, 1, 1, 0, 0.25), judge=Usage(1, 1, 1, 0, 0.1)))
    usage = tally.summary().usage
    assert usage[Role.GENERATION] == Usage(2, 11, 6, 0, 0.75)
    assert usage[Role.JUDGE] == Usage(3, 8, 4, 1, None)


def scored(test: int, score: float, *, repeat: int = 0, column: int = 0) -> CaseResult:
    status = PASSED if score >= 0.5 else FAILED
    result = case_result(status, (assertion_result(status, score, metric="m"),))
    return replace(result, test_index=test, repeat_index=repeat, column=column)


@pytest.mark.parametrize("changed", ["repeat", "column"])
def test_repeats_and_columns_are_no_further_tests(changed: str) -> None:
    scores = (0.2, 0.9, 0.6, 0.7)
    once, again = Tally(), Tally()
    single = [scored(test, score) for test, score in enumerate(scores)]
    several = [
        scored(test, score, **{changed: number}) for test, score in enumerate(scores) for number in range(3)
    ]
    for tally, results in ((once, single), (again, several)):
        for result in results:
            tally.add(result)

    assert (once.has_clusters, again.has_clusters) == (False, True)
    assert again.summary().metrics["m"].interval is None  # until the results can be gone through test by test
    found = with_clustered_intervals(again.summary(), several)
    assert found.metrics["m"].interval == pytest.approx(once.summary().metrics["m"].interval)
    assert found.metrics["m"].n == 12
    assert found.pass_interval == pytest.approx(once.summary().pass_interval)


def test_half_of_the_judged_cases_is_a_pass_rate_of_exactly_one_half() -> None:
    tally = Tally()
    for status in (PASSED, FAILED, ERROR):
        tally.add(case_result(status))
    assert tally.summary().pass_rate == 0.5


@pytest.mark.parametrize(
    ("of_case", "of_members", "bugs"),
    [
        ("InternalError", ("InternalError", "InternalError"), 1),
        ("InternalError", (None, None), 1),
        (None, ("InternalError", None), 1),
        (None, ("JudgeError", "InternalError"), 1),
        ("JudgeError", ("JudgeError", "JudgeError"), 0),
        ("JudgeError", (None, None), 0),
        (None, (), 0),
    ],
)
def test_results_that_a_bug_spoilt_are_counted_once(
    of_case: str | None, of_members: tuple[str | None, ...], bugs: int
) -> None:
    def error(kind: str | None) -> ErrorInfo | None:
        return None if kind is None else ErrorInfo(kind, "oops")

    tally = Tally()
    members = tuple(replace(assertion_result(ERROR, None), error=error(kind)) for kind in of_members)
    tally.add(replace(case_result(ERROR, members), error=error(of_case)))
    tally.add(case_result(PASSED))
    assert tally.bugs == bugs


@pytest.mark.parametrize("changed", ["repeat", "column"])
def test_one_case_beyond_the_first_of_its_test_makes_intervals_go_by_test(changed: str) -> None:
    tally = Tally()
    tally.add(scored(0, 0.5))
    assert not tally.has_clusters
    tally.add(scored(0, 0.5, **{changed: 1}))
    assert tally.has_clusters
    tally.add(scored(1, 0.5))
    assert tally.has_clusters


def test_errors_are_counted_for_each_metric_by_itself() -> None:
    tally = Tally()
    members = (
        assertion_result(ERROR, None, metric="broken"),
        assertion_result(ERROR, None, metric="broken"),
        assertion_result(ERROR, None),
        assertion_result(PASSED, 1.0, metric="fine"),
    )
    tally.add(replace(case_result(ERROR, members), named_scores={"fine": 1.0}))

    metrics = tally.summary().metrics
    assert {name: (metric.mean, metric.n, metric.errored) for name, metric in metrics.items()} == {
        "broken": (None, 0, 2),
        "fine": (1.0, 1, 0),
    }


CACHED, ASKED, HALF = (
    Usage(1, 1, 1, cached_requests=1),
    Usage(1, 1, 1),
    Usage(2, 1, 1, cached_requests=1),
)
TEMPERATURE = (
    "m does not accept `temperature` here: ratings and samples use the model's default instead of 0 and 1, "
    "so another run may rate differently"
)


@pytest.mark.parametrize(
    ("calls", "texts"),
    [
        ([(("seed",), CACHED)], ["m does not accept `seed`; its cached answers were generated without"]),
        ([(("seed",), CACHED)] * 2, ["m does not accept `seed`; its cached answers were generated without"]),
        (
            [(("seed", "logprobs"), CACHED)],
            ["m does not accept `seed`, `logprobs`; its cached answers were generated without"],
        ),
        # What is asked for now, the gateway tells.
        ([(("seed",), ASKED)], []),
        ([(("seed",), HALF)], []),
        ([(("seed",), Usage())], []),
        ([(("seed",), ASKED), (("seed",), CACHED)], []),
        ([((), CACHED)], []),
        ([(("temperature",), ASKED)], [TEMPERATURE]),
        ([(("temperature",), CACHED)] * 2, [TEMPERATURE]),
        (
            [(("temperature", "seed"), CACHED)],
            [TEMPERATURE, "m does not accept `seed`; its cached answers were generated without"],
        ),
    ],
)
def test_what_a_server_does_not_accept_is_said_once(
    calls: list[tuple[tuple[str, ...], Usage]], texts: list[str]
) -> None:
    notices = Notices()
    notices.add(CaseStarted("0.0.0", 0.0))
    for dropped, usage in calls:
        notices.add(ModelCalled(Role.JUDGE, "m", usage, dropped=dropped))
    assert list(notices.texts) == texts


def test_each_of_two_models_has_its_own_notice_and_equal_ones_are_said_once() -> None:
    notices = Notices()
    for name in ("m", "n", "m"):
        notices.add(ModelCalled(Role.JUDGE, name, CACHED, dropped=("seed",)))
        notices.add(Noticed("a word"))
    assert [text.partition(" ")[0] for text in notices.texts] == ["m", "a", "n"]


def test_a_hundred_notices_are_kept() -> None:
    notices = Notices()
    for number in range(102):
        notices.say(f"{number}")
    assert notices.texts == tuple(str(number) for number in range(100))
