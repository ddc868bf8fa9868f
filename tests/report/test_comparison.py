"""Which cases of two runs belong together, and what changed between them."""

import pytest
from support.realistic_runs import Shape, realistic_results
from support.sample_run import RUN, make_case

from geval_cli.extras.compare.comparison import Change, Pair, paired_cases
from geval_cli.extras.compare.matching import match_columns, name_of_result
from geval_cli.extras.run_pages import RunPages, StoredVerdict
from geval_cli.records import CaseResult, Column, Status, Turn
from geval_cli.store.runs import RunStore

ONE = match_columns([Column(0, "p", "m")], [Column(0, "p", "m")])


def verdict(
    test: int,
    status: Status = Status.PASSED,
    score: float | None = 1.0,
    *,
    vars: str | None = None,
    column: int = 0,
    repeat: int = 0,
) -> StoredVerdict:
    text = f'{{"x":{test}}}' if vars is None else vars
    return StoredVerdict(test, repeat, column, status, score, None, text)


def changes(before: list[StoredVerdict], after: list[StoredVerdict]) -> list[tuple[int, Change]]:
    comparison = paired_cases(before, after, ONE)
    return [(pair.after.test_index, pair.change) for pair in comparison.pairs]


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (Status.PASSED, Status.FAILED, Change.NEWLY_FAILED),
        (Status.ERROR, Status.FAILED, Change.NEWLY_FAILED),
        (Status.FAILED, Status.ERROR, Change.NEWLY_ERROR),
        (Status.NOT_EVALUATED, Status.ERROR, Change.NEWLY_ERROR),
        (Status.FAILED, Status.PASSED, Change.FIXED),
        (Status.ERROR, Status.PASSED, Change.FIXED),
        (Status.PASSED, Status.NOT_EVALUATED, Change.OTHER),
        (Status.FAILED, Status.FAILED, Change.SAME),
    ],
)
def test_change_of_a_verdict(old: Status, new: Status, change: Change) -> None:
    assert Pair(verdict(0, old), verdict(0, new)).change is change


def test_newly_failed_first_then_by_how_far_the_score_moved() -> None:
    before = [verdict(0), verdict(1, score=0.5), verdict(2, Status.FAILED), verdict(3), verdict(4)]
    after = [
        verdict(0),
        verdict(1, score=0.9),
        verdict(2),
        verdict(3, Status.ERROR, None),
        verdict(4, Status.FAILED, 0.1),
    ]
    assert changes(before, after) == [
        (4, Change.NEWLY_FAILED),
        (3, Change.NEWLY_ERROR),
        (2, Change.FIXED),
        (1, Change.SAME),
        (0, Change.SAME),
    ]


def test_tests_that_moved_are_found_by_their_variables() -> None:
    before = [verdict(0, vars="a"), verdict(1, vars="b")]
    after = [verdict(0, vars="b"), verdict(1, Status.FAILED, vars="a"), verdict(2, vars="c")]
    comparison = paired_cases(before, after, ONE)
    assert [(pair.before.test_index, pair.after.test_index) for pair in comparison.pairs] == [(0, 1), (1, 0)]
    assert (comparison.only_before, comparison.only_after) == (0, 1)
    assert comparison.counts()[Change.NEWLY_FAILED] == 1


def test_equal_tests_are_taken_in_their_order() -> None:
    before = [verdict(0, vars="a", score=0.1), verdict(1, vars="a", score=0.2)]
    after = [verdict(3, vars="a", score=0.3), verdict(7, vars="a", score=0.4)]
    comparison = paired_cases(before, after, ONE)
    assert sorted((pair.before.score, pair.after.score) for pair in comparison.pairs) == [
        (0.1, 0.3),
        (0.2, 0.4),
    ]


def test_repeats_and_columns_of_one_test_are_kept_apart() -> None:
    columns = (Column(0, "p", "m"), Column(1, "q", "m"))
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    side = [verdict(0, repeat=repeat, column=column) for repeat, column in places]
    comparison = paired_cases(side, side, match_columns(columns, columns))
    assert len(comparison.pairs) == 4
    assert all(pair.before == pair.after for pair in comparison.pairs)


def test_tests_that_all_differ_have_no_partners() -> None:
    before, after = [verdict(0, vars="a")], [verdict(0, vars="b", status=Status.FAILED)]
    comparison = paired_cases(before, after, ONE)
    assert comparison.pairs == ()
    assert (comparison.only_before, comparison.only_after) == (1, 1)


def test_the_order_of_variables_decides_nothing() -> None:
    before, after = [verdict(0, vars='{"x":1,"y":[2]}')], [verdict(0, vars='{"y":[2],"x":1}')]
    assert len(paired_cases(before, after, ONE).pairs) == 1


def test_columns_are_matched_by_label_and_else_by_place() -> None:
    before = (Column(0, "p", "m"), Column(1, "q", "m"))
    side = [verdict(0, column=0, score=0.1), verdict(0, column=1, score=0.2)]
    turned = (Column(0, "q", "m"), Column(1, "p", "m"))
    by_label = paired_cases(side, side, match_columns(before, turned))
    assert by_label.columns_by == "label"
    assert {(pair.before.column, pair.after.column) for pair in by_label.pairs} == {(0, 1), (1, 0)}
    others = (Column(0, "p", "n"), Column(1, "q", "n"))
    by_place = paired_cases(side, side, match_columns(before, others))
    assert by_place.columns_by == "place"
    assert {(pair.before.column, pair.after.column) for pair in by_place.pairs} == {(0, 0), (1, 1)}


def test_nothing_to_compare() -> None:
    comparison = paired_cases([], [verdict(0)], ONE)
    assert comparison.pairs == ()
    assert (comparison.only_before, comparison.only_after) == (0, 1)


def test_score_that_is_missing_has_no_delta() -> None:
    assert Pair(verdict(0, score=None), verdict(0)).score_delta is None


def test_verdict_that_the_store_reads_is_that_of_the_result() -> None:
    turns = (Turn("user", "Gilt das?"), Turn("assistant", "ja"), Turn("system", "日本"))
    results = [
        *realistic_results(Shape(tests=21, repeats=1)),
        make_case(30, vars={"b": "\u2028 é", "a": [1, {"x": None}]}, turns=turns, test_key="k" * 32),
        make_case(31, score=None, status=Status.ERROR),
    ]
    with RunStore.open_in_memory() as runs:
        runs.begin(RUN)
        for result in results:
            runs.add(RUN.id, result).result()
        stored = list(runs.results(RUN.id))
        read = RunPages(runs).verdicts(RUN.id)
    assert list(map(_said, stored)) == list(map(_said, read))


def _said(case: CaseResult | StoredVerdict) -> tuple[object, ...]:
    """What comparisons read of a case: of the JSON texts of the store, what they mean."""
    place = (case.test_index, case.repeat_index, case.column)
    return (*place, case.status, case.score, case.description, dict(case.named_scores), name_of_result(case))
