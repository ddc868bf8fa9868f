import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_run import make_case, make_judged
from support.specs import TEMPLATES, case

from geval_cli.assertions.base import MergedTest
from geval_cli.assertions.match import TextAssertion
from geval_cli.engine.gates import GateSubjects, errors_are_gated, judge_gates, passed_gate
from geval_cli.records import AssertionResult, CaseResult, ErrorInfo, GateResult, Role, Status, Usage
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.promptfoo import PromptfooTestOptions
from geval_cli.statistics.intervals import Quantiles
from geval_cli.suite.gates import Gate, Statistic, parse_gate


def gate(text: str) -> Gate:
    found = parse_gate(text, SourcePath.nowhere())
    assert isinstance(found, Gate), found
    return found


def judged(number: int, status: Status, score: float | None = None, **changes: object) -> CaseResult:
    scores = {} if score is None else {"coherence": score}
    assertion = make_judged(status, score, metric="coherence")
    return make_case(
        number, status=status, score=score, named_scores=scores, assertions=(assertion,), **changes
    )


PASSED = [judged(number, Status.PASSED, 0.9) for number in range(6)]
FAILED = [judged(number, Status.FAILED, 0.3) for number in range(6, 8)]
BROKEN = [judged(number, Status.ERROR) for number in range(8, 10)]
ALL = [*PASSED, *FAILED, *BROKEN]


def result_of(text: str, results: list[CaseResult]) -> GateResult:
    (found,) = judge_gates([gate(text)], results, max_errors=None)
    return found


@pytest.mark.parametrize(
    ("text", "status", "actual"),
    [
        ("coherence.mean >= 0.75", Status.PASSED, 0.75),
        ("coherence.mean > 0.75", Status.FAILED, 0.75),
        ("coherence.pass_rate >= 75%", Status.PASSED, 0.75),
        ("coherence.errors <= 2", Status.PASSED, 2),
        ("score.mean >= 0.8", Status.FAILED, 0.75),
        ("pass_rate >= 0.75", Status.PASSED, 0.75),
        ("pass_rate >= 76%", Status.FAILED, 0.75),
        ("passed >= 0.6", Status.PASSED, 0.6),
        ("passed >= 0.61", Status.FAILED, 0.6),
        ("failures <= 2", Status.PASSED, 2),
        ("failures < 20%", Status.FAILED, 0.2),
        ("errors <= 20%", Status.PASSED, 0.2),
        ("errors <= 1%", Status.ERROR, 0.2),
        ("errors <= 1", Status.ERROR, 2),
    ],
)
def test_gates_on_what_was_judged(text: str, status: Status, actual: float) -> None:
    found = result_of(text, ALL)

    assert (found.status, found.actual) == (status, pytest.approx(actual))


def in_sets(result: CaseResult, depth: int) -> CaseResult:
    """The same case, whose assertions are members of sets that hold sets."""
    members = result.assertions
    for _ in range(depth):
        members = (replace(make_judged(Status.PASSED, 1.0, metric="whole"), assertions=members),)
    return replace(result, assertions=members)


@pytest.mark.parametrize("figure", ["mean >= 0.75", "pass_rate >= 75%", "pass_rate >= 80%", "errors <= 1"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_gate_counts_members_of_sets_as_it_counts_assertions(figure: str, depth: int) -> None:
    text = f"coherence.{figure}"
    assert result_of(text, [in_sets(result, depth) for result in ALL]) == result_of(text, ALL)


def test_parts_of_an_assertion_do_not_count_for_its_own_metric_again() -> None:
    part = make_judged(Status.FAILED, 0.0, metric="coherence")
    whole = [replace(item, assertions=(replace(item.assertions[0], assertions=(part,)),)) for item in PASSED]
    assert result_of("coherence.pass_rate >= 1", whole).status is Status.PASSED


@pytest.mark.parametrize(
    ("text", "results", "note"),
    [
        ("pass_rate >= 75%", ALL, "n=8, 95 % CI 33 to 95 %; 60 % if both errors failed"),
        ("coherence.pass_rate >= 75%", ALL[:9], "n=8, 95 % CI 33 to 95 %; 67 % if the error failed"),
        ("pass_rate >= 75%", ALL[:8], "n=8, 95 % CI 33 to 95 %"),
        ("passed >= 60%", ALL, "n=10, 95 % CI 27 to 86 %"),
        ("pass_rate >= 75%", [PASSED[0], BROKEN[0]], "n=1; 50 % if the error failed"),
    ],
)
def test_a_pass_rate_beside_errors_says_what_it_is_at_least(
    text: str, results: list[CaseResult], note: str
) -> None:
    assert result_of(text, results).note == note


NO_ANSWER = make_case(10, status=Status.ERROR, score=None, named_scores={}, assertions=())
ALSO_FAILED = make_case(
    11,
    status=Status.FAILED,
    score=None,
    named_scores={"tone": 0.1},
    assertions=(*BROKEN[0].assertions, make_judged(Status.FAILED, 0.1, metric="tone")),
)
OF_OTHERS = make_case(
    12,
    status=Status.ERROR,
    score=None,
    named_scores={},
    assertions=(make_judged(Status.ERROR, None, metric="tone"),),
)
OF_CODE = replace(OF_OTHERS, assertions=(replace(OF_OTHERS.assertions[0], type="not-python"),))
CALIBRATED = replace(
    PASSED[0], assertions=(make_judged(Status.PASSED, 0.9, metric="coherence", detail={"borderline": True}),)
)


@pytest.mark.parametrize(
    ("text", "results", "note"),
    [
        ("score.mean >= 0", [*PASSED, *BROKEN], "n=6 of 8"),
        ("coherence.mean >= 0", [*PASSED, *BROKEN], "n=6 of 8"),
        ("coherence.mean >= 0", [*PASSED, BROKEN[0], NO_ANSWER], "n=6 of 8"),
        ("coherence.mean >= 0", [*PASSED, *FAILED, *BROKEN], "n=8 of 10, 95 % CI "),
        ("coherence.mean >= 0", [*PASSED, ALSO_FAILED], "n=6 of 7"),
        ("tone.mean >= 0", [*PASSED, ALSO_FAILED], "n=1"),
        ("coherence.mean >= 0", [*PASSED, OF_OTHERS], "n=6"),
        ("coherence.errors <= 9", [*PASSED, OF_OTHERS], "of 6"),
        ("coherence.mean >= 0", [*PASSED, OF_CODE], "n=6 of 7"),
        ("coherence.mean >= 0", PASSED, "n=6"),
        ("coherence.pass_rate >= 0", [*PASSED, NO_ANSWER], "n=6 of 7"),
        ("coherence.pass_rate >= 0", [*PASSED, BROKEN[0], NO_ANSWER], "86 % if the error failed"),
        ("coherence.errors <= 9", [*PASSED, BROKEN[0], NO_ANSWER], "of 7; 1 error not counted"),
        ("failures <= 9", ALL, "of 10, 2 errors among them"),
        ("failures <= 90%", ALL, "2 of 10, 2 errors among them"),
        ("borderline <= 1", [CALIBRATED, *BROKEN], "n=1 of 3"),
        ("passed >= 0", ALL, ""),
        ("errors <= 9", ALL, "of 10"),
    ],
)
def test_a_gate_says_how_many_cases_it_could_not_count(
    text: str, results: list[CaseResult], note: str
) -> None:
    found = result_of(text, results).note
    assert note in found
    assert (" of " in found) == (" of " in note or "if" in note)
    assert ("error" in found) == ("error" in note)


@pytest.mark.parametrize(
    "text", ["tone.mean >= 0.1", "pass_rate[area=x] >= 0", "tone.pass_rate >= 0", "latency.p95 < 9"]
)
def test_a_gate_without_anything_to_count_never_passes(text: str) -> None:
    found = result_of(text, ALL)

    assert (found.status, found.actual) == (Status.ERROR, None)
    assert found.note


def test_tags_select_by_metadata() -> None:
    results = [
        judged(0, Status.PASSED, 1.0, metadata={"area": "billing", "lang": ["de", "en"], "gold": True}),
        judged(1, Status.FAILED, 0.0, metadata={"area": "billing", "lang": "en", "level": 3}),
        judged(2, Status.FAILED, 0.0, metadata={"area": "refunds"}),
    ]

    def rate(tags: str) -> float | None:
        return result_of(f"pass_rate[{tags}] >= 0", results).actual

    assert rate("area=billing") == 0.5
    assert rate("area=billing, lang=de") == 1
    assert rate("gold=true") == 1
    assert rate("level=3") == 0


def test_cost_counts_answers_and_judging_and_an_unknown_price_is_no_pass() -> None:
    usage = {Role.GENERATION: Usage(cost_usd=0.2), Role.JUDGE: Usage(cost_usd=0.3)}
    paid = [make_case(number, usage=usage) for number in range(2)]
    unknown = make_case(2, usage={Role.JUDGE: Usage(cost_usd=None)})

    assert result_of("cost <= 1", paid).status is Status.PASSED
    assert result_of("cost < 1", paid).status is Status.FAILED
    assert result_of("cost <= 100", [*paid, unknown]) == GateResult(
        "cost <= 100", Status.ERROR, None, "a price is unknown"
    )


def test_latency_leaves_out_what_the_cache_answered_and_calls_that_failed() -> None:
    results = [make_case(number, latency_ms=100.0 * (number + 1)) for number in range(10)]
    cached = [make_case(number, latency_ms=90_000.0, cached=True) for number in range(10, 20)]

    error = ErrorInfo("ProviderTimeoutError", "no answer within 60 s")
    failed = [
        make_case(number, status=Status.ERROR, latency_ms=60_000.0, error=error) for number in range(20, 30)
    ]
    assert result_of("latency.p95 <= 1010", [*results, *cached, *failed]).status is Status.PASSED
    assert result_of("latency.p50 <= 510", results).actual == pytest.approx(500, rel=0.01)
    assert result_of("latency.mean <= 550", results).status is Status.PASSED


@pytest.mark.parametrize(("allowed", "status"), [(2, Status.PASSED), (1, Status.ERROR), (0, Status.ERROR)])
def test_more_errors_than_allowed_are_an_error(allowed: int, status: Status) -> None:
    (found,) = judge_gates([], ALL, max_errors=allowed)

    assert (found.gate, found.status, found.actual) == (f"errors <= {allowed}", status, 2)
    assert found.note == ("allowed by --max-errors" if allowed else "--max-errors N allows some")


HIDDEN = [
    make_case(
        number,
        status=Status.FAILED,
        score=None,
        assertions=(
            make_judged(Status.FAILED, 0.0, metric="tone"),
            make_judged(Status.ERROR, None, metric="coherence"),
        ),
        named_scores={"tone": 0.0},
    )
    for number in range(20, 25)
]
"""Cases that failed by one metric, while the judge of another one was down."""


@pytest.mark.parametrize("status_of_set", [None, Status.ERROR, Status.FAILED, Status.PASSED])
@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("score.mean >= 0.5", 5),
        ("coherence.mean >= 0.5", 5),
        ("coherence.pass_rate >= 50%", 5),
        ("coherence.delta >= -0.1 vs baseline", 5),
        ("coherence.true_mean >= 0.5", 5),
        ("score.delta >= -0.1 vs baseline", 5),
        ("coherence.errors <= 5", 0),
        ("tone.mean >= 0", 0),
        ("tone.pass_rate >= 0%", 0),
        ("pass_rate >= 50%", 0),
        ("passed >= 50%", 0),
        ("failures <= 5", 0),
        ("coherence.mean[area=nowhere] >= 0.5", 0),
        ("whole.mean >= 0.5", 5),
    ],
)
def test_errors_that_a_failed_assertion_hides_are_errors_for_gates_that_need_them(
    text: str, errors: int, status_of_set: Status | None
) -> None:
    results = [*PASSED, *HIDDEN]
    if status_of_set is not None:  # without a score, whatever its verdict
        sets = [in_sets(result, 1) for result in HIDDEN]
        whole = [replace(item.assertions[0], status=status_of_set, score=None) for item in sets]
        results = [
            *PASSED,
            *(replace(item, assertions=(one,)) for item, one in zip(sets, whole, strict=True)),
        ]
    if text.startswith("whole"):
        errors = errors if status_of_set else 0  # no such metric without a set
    *_, found = judge_gates([gate(text)], results, max_errors=0)
    assert (found.gate, found.actual) == ("errors <= 0", errors)
    assert found.status is (Status.ERROR if errors else Status.PASSED)


def test_a_note_says_how_many_scores_of_failed_cases_are_missing() -> None:
    assert result_of("score.mean >= 0.5", [*PASSED, *HIDDEN]).note.startswith("n=6 of 11")


def test_a_case_without_weights_has_no_score_and_no_error() -> None:
    weightless = [make_case(number, status=Status.FAILED, score=None) for number in range(30, 33)]
    (found, errors) = judge_gates([gate("score.mean >= 0.5")], [*PASSED, *weightless], max_errors=0)
    assert (found.note.split(",")[0], errors.actual) == ("n=6", 0)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("tone.mean >= 0.5", "no case has a score of tone"),
        ("pass_rate[area=nowhere] >= 1%", "no case has these tags"),
        ("latency.p95 <= 100", "no answer was timed; those from the cache are not"),
        ("latency.mean <= 100", "no answer was timed; those from the cache are not"),
    ],
)
def test_a_gate_on_nothing_says_what_is_missing(text: str, note: str) -> None:
    cached = [make_case(number, latency_ms=5.0, cached=True) for number in range(2)]

    assert result_of(text, cached) == GateResult(text, Status.ERROR, None, note)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("pass_rate >= 1%", "there is nothing to count"),
        ("pass_rate[area=nowhere] >= 1%", "no case has these tags"),
        ("latency.p95 <= 100", "no answer was timed"),
    ],
)
def test_a_gate_on_an_empty_run_says_so(text: str, note: str) -> None:
    assert result_of(text, []) == GateResult(text, Status.ERROR, None, note)


def test_a_single_score_has_a_number_beside_it_and_no_interval() -> None:
    assert result_of("coherence.mean >= 0.5", PASSED[:1]).note == "n=1"


def test_fail_under_counts_errors_as_not_passed() -> None:
    (just, missed) = judge_gates([passed_gate(0.6), passed_gate(0.601)], ALL, max_errors=None)

    assert (just.status, missed.status) == (Status.PASSED, Status.FAILED)


def test_what_was_not_evaluated_counts_neither_way() -> None:
    results = [*PASSED[:1], make_case(1, status=Status.NOT_EVALUATED, score=None)]

    assert result_of("passed >= 100%", results).status is Status.PASSED


@given(st.lists(st.floats(0.01, 1e7), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_quantiles_are_off_by_half_a_per_cent_at_most(values: list[float], share: float) -> None:
    quantiles = Quantiles()
    for value in values:
        quantiles.add(value)
    exact = sorted(values)[max(-(-int(share * 100) * len(values) // 100), 1) - 1]

    assert quantiles.at(share) == pytest.approx(exact, rel=0.0051)


def test_quantiles_of_numbers_that_are_zero_and_of_no_share() -> None:
    quantiles = Quantiles()
    for value in (0, -1, 0, 5):
        quantiles.add(value)
    assert [quantiles.at(share) for share in (0, 0.5, 0.75)] == [0, 0, 0]
    assert quantiles.at(0.76) == pytest.approx(5, rel=0.0051)
    several = Quantiles()
    several.add(7)
    assert several.at(0) == pytest.approx(7, rel=0.0051)


def test_a_gate_on_the_errors_of_one_metric() -> None:
    assert gate("coherence.errors <= 5%").statistic is Statistic.ERRORS
    assert result_of("coherence.errors <= 5%", ALL).actual == pytest.approx(0.2)


@pytest.mark.parametrize(("allowed", "status"), [(0, Status.PASSED), (1, Status.PASSED)])
def test_a_single_failed_test_is_no_error(allowed: int, status: Status) -> None:
    (found,) = judge_gates([], [*PASSED, FAILED[0]], max_errors=allowed)

    assert (found.status, found.actual) == (status, 0)


@pytest.mark.parametrize(
    ("text", "results", "status", "actual"),
    [
        ("failures[area=x] <= 0", ALL, Status.ERROR, None),
        ("errors[area=x] <= 0", ALL, Status.ERROR, None),
        ("pass_rate >= 50%", [*PASSED[:2], *FAILED], Status.PASSED, 0.5),
        ("pass_rate > 50%", [*PASSED[:2], *FAILED], Status.FAILED, 0.5),
    ],
)
def test_gates_at_their_edges(
    text: str, results: list[CaseResult], status: Status, actual: float | None
) -> None:
    found = result_of(text, results)

    assert (found.status, found.actual) == (status, actual)


@pytest.mark.parametrize(
    ("texts", "is_gated"),
    [
        (["errors[area=x] <= 5"], False),
        (["coherence.errors <= 5"], False),
        (["errors <= 5"], True),
        (["errors[area=x] <= 5", "errors <= 5"], True),
        (["errors <= 5", "errors[area=x] <= 5"], True),
        (["failures <= 5"], False),
    ],
)
def test_only_a_gate_on_the_errors_of_the_whole_run_allows_errors(texts: list[str], is_gated: bool) -> None:
    assert errors_are_gated([gate(text) for text in texts]) is is_gated


def test_p95_is_bounded_from_both_sides() -> None:
    results = [make_case(number, latency_ms=10.0 * (number + 1)) for number in range(100)]

    assert result_of("latency.p95 <= 9999", results).actual == pytest.approx(950, rel=0.0051)
    assert result_of("latency.p95 >= 940", results).status is Status.PASSED
    assert result_of("latency.p95 <= 940", results).status is Status.FAILED


def test_the_interval_beside_a_gate_counts_each_test_once() -> None:
    several = [replace(item, repeat_index=number) for item in [*PASSED, *FAILED] for number in range(3)]
    once, again = (result_of("coherence.mean >= 0.75", results) for results in ([*PASSED, *FAILED], several))

    assert once.note.removeprefix("n=8") == again.note.removeprefix("n=24")


@pytest.mark.parametrize(("name", "actual"), [("p50", 500), ("p95", 950), ("p99", 990)])
def test_each_quantile_of_latency_is_its_own(name: str, actual: float) -> None:
    results = [make_case(number, latency_ms=10.0 * (number + 1)) for number in range(100)]
    assert result_of(f"latency.{name} <= 9999", results).actual == pytest.approx(actual, rel=0.0051)


def test_tags_that_there_are_are_not_told_as_missing() -> None:
    broken = [make_case(0, status=Status.ERROR, metadata={"area": "billing"}, named_scores={})]
    assert result_of("pass_rate[area=billing] >= 1%", broken).note == "there is nothing to count"


@pytest.mark.parametrize(
    ("text", "actual"),
    [
        ("borderline <= 50%", 2 / 3),
        ("coherence.borderline <= 50%", 1 / 3),
        ("tone.borderline <= 50%", 1 / 2),
        ("of a set.borderline <= 50%", 0),
        ("style.borderline <= 50%", None),
    ],
)
def test_a_case_is_borderline_when_one_of_its_calibrated_scores_is(text: str, actual: float | None) -> None:
    def scored(metric: str, mark: object) -> AssertionResult:
        return make_judged(
            Status.PASSED, 0.5, metric=metric, detail={} if mark is None else {"borderline": mark}
        )

    group = make_judged(Status.PASSED, 0.5, metric="set", assertions=(scored("of a set", False),))
    results = [
        make_case(0, assertions=(scored("coherence", True), scored("tone", False))),
        make_case(1, assertions=(scored("coherence", False), scored("tone", True))),
        make_case(2, assertions=(scored("coherence", False), group)),
        make_case(3, assertions=(scored("style", None),)),
    ]
    found = result_of(text, results)

    assert found.actual == (None if actual is None else pytest.approx(actual))
    if actual is None:
        assert (found.status, found.note) == (
            Status.ERROR,
            "no case has a score calibrated with enough labels",
        )


@pytest.mark.parametrize(
    ("tests", "is_unknown"),
    [
        ([case(0)], True),
        ([case(0, promptfoo=PromptfooTestOptions(assertScoringFunction="file://score.py"))], False),
        ([case(0, promptfoo=PromptfooTestOptions(assertScoringFunction="file://score.py")), case(1)], False),
    ],
)
def test_what_computes_the_score_of_a_test_may_name_metrics(
    tests: list[MergedTest], is_unknown: bool
) -> None:
    subjects = GateSubjects([gate("tone.mean >= 0.5")])
    for test in tests:
        subjects.record(test, (), TEMPLATES)

    assert bool(list(subjects.problems())) is is_unknown


class OfAPackage(TextAssertion):
    """of-a-package: an assertion of an installed package, which may give scores to metrics of its own."""


def test_an_assertion_of_a_package_may_name_metrics() -> None:
    for kind, is_unknown in ((TextAssertion, True), (OfAPackage, False)):
        subjects = GateSubjects([gate("tone.mean >= 0.5")])
        subjects.record(case(0, assertions=(kind(type="contains", value="x"),)), (), TEMPLATES)

        assert bool(list(subjects.problems())) is is_unknown


@pytest.mark.parametrize(
    ("text", "metric", "is_mixed_up"),
    [
        ("latency.mean <= 0.8", "latency", True),
        ("latency.mean <= 1", "latency", True),
        ("latency.mean <= 800", "latency", False),
        ("latency.mean <= 0.8", "tone", False),
    ],
)
def test_a_gate_on_the_runs_latency_is_not_taken_for_one_on_a_metric_of_that_name(
    text: str, metric: str, is_mixed_up: bool
) -> None:
    problems = list(GateSubjects([gate(text)], metrics={metric}, fitting={0}).problems())

    assert [problem.hint for problem in problems] == ["give the metric another name"] * is_mixed_up


@pytest.mark.parametrize(
    ("text", "metric", "is_mixed_up"),
    [
        ("score.mean >= 0.5", "score", True),
        ("score.delta >= 0 vs baseline", "score", True),
        ("score equivalent within 0.1 vs baseline", "score", True),
        ("pass_rate.delta >= 0 vs baseline", "pass_rate", True),
        ("score.mean >= 0.5", "tone", False),
        ("'score'.mean >= 0.5", "score", False),
        ("score.pass_rate >= 0.5", "score", False),
        ("pass_rate >= 0.5", "pass_rate", False),
        ("tone.mean >= 0.5", "tone", False),
    ],
)
def test_a_figure_of_the_run_is_not_taken_for_that_of_a_metric_of_the_same_name(
    text: str, metric: str, is_mixed_up: bool
) -> None:
    problems = list(GateSubjects([gate(text)], metrics={metric}, own={metric}, fitting={0}).problems())

    assert [problem.hint for problem in problems] == ["give the metric another name"] * is_mixed_up


def test_the_cost_of_a_run_is_all_that_it_spent_and_that_of_some_tests_what_their_results_say() -> None:
    results = [replace(item, usage={Role.GENERATION: Usage(1, cost_usd=1.0)}) for item in PASSED]
    gates = [gate("cost <= 7"), gate("cost[area=none] <= 7")]
    found = judge_gates(gates, results, max_errors=None, spent=Usage(9, cost_usd=9.0))
    assert [(item.status, item.actual) for item in found] == [(Status.FAILED, 9.0), (Status.PASSED, 0.0)]
    unknown = judge_gates(gates[:1], results, max_errors=None, spent=Usage(9, cost_usd=None))
    assert [item.status for item in unknown] == [Status.ERROR]
