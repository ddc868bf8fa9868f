"""Parts of what is stored: pages of runs, rows of results, verdicts."""

# ruff: noqa: RUF001 - words of several scripts

import sqlite3
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.sample_run import COLUMNS, RUN, make_case, make_judged

from geval_cli.errors import StoreError
from geval_cli.extras.run_pages import ResultFilter, RunChoice, RunPages, SortOrder
from geval_cli.records import CaseResult, RunStatus, RunSummary, Status
from geval_cli.store.runs import RUNS_FILE, RunStore

ALL = ResultFilter()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore.open(tmp_path)
    yield store
    store.close()


def add(runs: RunStore, *results: CaseResult) -> RunPages:
    runs.begin(RUN)
    for result in results:
        runs.add(RUN.id, result)
    return RunPages(runs)


def indexes_of(pages: RunPages, wanted: ResultFilter = ALL, sort: SortOrder = SortOrder.TEST) -> list[int]:
    return [row.test_index for row in pages.rows(RUN.id, wanted, sort=sort, offset=0, limit=50).rows]


class TestRows:
    def test_row_has_all_columns_and_says_which_fit(self, runs: RunStore) -> None:
        pages = add(runs, make_case(0), make_case(0, COLUMNS[1], Status.FAILED), make_case(1))
        found = pages.rows(RUN.id, ResultFilter(Status.FAILED), sort=SortOrder.TEST, offset=0, limit=9)
        assert [row.test_index for row in found.rows] == [0]
        assert sorted(found.rows[0].cells) == [0, 1]
        assert found.rows[0].matching == frozenset({(0, 1)})

    def test_pages_know_the_total(self, runs: RunStore) -> None:
        pages = add(runs, *(make_case(number) for number in range(7)))
        found = pages.rows(RUN.id, ALL, sort=SortOrder.TEST, offset=5, limit=5)
        assert [row.test_index for row in found.rows] == [5, 6]
        assert found.total == 7

    def test_repeats_are_in_the_row_of_their_test(self, runs: RunStore) -> None:
        pages = add(runs, make_case(0), make_case(0, repeat_index=1, status=Status.FAILED))
        [row] = pages.rows(RUN.id, ResultFilter(Status.FAILED), sort=SortOrder.TEST, offset=0, limit=9).rows
        assert [result.repeat_index for result in row.cells[0]] == [0, 1]
        assert row.matching == frozenset({(1, 0)})
        assert pages.repeats(RUN.id, 0, 0) == list(row.cells[0])

    @pytest.mark.parametrize(
        ("text", "tests"),
        [
            ("STRASSE", [0]),
            ("straße", [0]),
            ("größe", [1]),
            ("deep inside", [2]),
            ("100%", [3]),
            ("prompt text", [4]),
            ("領収書", [5]),
            ("の 宛名", [5]),
            ("ВОЗВРАТ", [6]),
            ("возвраты", []),
            ("C:\\temp", [6]),
            ("null", []),
            ("test_index", []),
            ("'; DROP TABLE results; --", []),
        ],
    )
    def test_text_is_found_wherever_people_see_it(self, runs: RunStore, text: str, tests: list[int]) -> None:
        plain = {"output": "-", "vars": {}}
        pages = add(
            runs,
            make_case(0, **{**plain, "description": "die Straße"}),
            make_case(1, **{**plain, "vars": {"x": {"y": ["GRÖSSE", "Größe"]}}}),
            make_case(2, **{**plain, "output": {"a": [{"b": "deep inside"}]}}),
            make_case(3, **{**plain, "output": "100% sure"}),
            make_case(4, **plain, prompt=replace(make_case().prompt, rendered="the prompt text")),
            make_case(5, **{**plain, "output": "領収書の 宛名"}),
            make_case(6, **{**plain, "output": "Возврат в C:\\Temp"}),
        )
        for sort in SortOrder:
            assert indexes_of(pages, ResultFilter(text=text), sort) == tests

    @pytest.mark.parametrize(
        ("value", "tests"),
        [
            ("de", [0]),
            ("DE", []),
            ('a "b" 100%', [1]),
            ("7", [2, 3]),
            ("true", [4]),
            ("true\n", []),
            ("é", [5]),
        ],
    )
    def test_metadata_is_the_same_to_the_letter(self, runs: RunStore, value: str, tests: list[int]) -> None:
        values = ("de", ['a "b" 100%'], 7, "7", True, "é")
        pages = add(
            runs,
            *(make_case(number, metadata={"lang": lang}) for number, lang in enumerate(values)),
            make_case(9, description=f"{value} \ud83d", metadata={"other": value}),
        )
        assert indexes_of(pages, ResultFilter(metadata=(("lang", value),))) == tests

    @pytest.mark.parametrize(
        "text",
        [" ".join(f"w{number}" for number in range(3000)), "long" * 20_000, f'"{"a long phrase " * 5_000}"'],
    )
    def test_a_whole_text_may_be_searched_for(self, runs: RunStore, text: str) -> None:
        own = text.strip('"')
        pages = add(
            runs,
            make_case(0, output=own, metadata={"lang": own}),
            make_case(1, output=f"{own[:-10]}?", metadata={"lang": f"{own[:-10]}?"}),
        )
        assert indexes_of(pages, ResultFilter(text=text)) == [0]
        assert indexes_of(pages, ResultFilter(metadata=(("lang", own),))) == [0]

    def test_what_a_database_searches_for_has_no_other_spelling(self) -> None:
        letters = [chr(code) for code in range(sys.maxunicode + 1)]
        plain = {letter for letter in letters if unicodedata.category(letter) == "Lo"}
        assert [letter for letter in letters if plain & {*letter.casefold()} - {letter}] == []

    def test_half_a_character_keeps_nothing_from_being_found(self, runs: RunStore) -> None:
        pages = add(
            runs,
            make_case(0, output="half \ud83d done", description="d \ud83d"),
            make_case(1, output="whole", description="e"),
        )
        assert indexes_of(pages, ResultFilter(text="whole")) == [1]
        assert indexes_of(pages, ResultFilter(text="done")) == [0]
        [first, _] = pages.verdicts(RUN.id)
        assert first.description is not None
        assert first.description.startswith("d ")

    def test_metric_with_a_strange_name(self, runs: RunStore) -> None:
        name = 'it\'s "tone" $.[0]'
        judged = make_judged(Status.FAILED, 0.2, metric=name)
        pages = add(runs, make_case(0), make_case(1, assertions=(judged,), named_scores={name: 0.2}))
        assert indexes_of(pages, ResultFilter(metric=name), SortOrder.SCORE) == [1]
        assert indexes_of(pages, ResultFilter(Status.PASSED, name)) == []

    def test_failures_first(self, runs: RunStore) -> None:
        kinds = (Status.PASSED, Status.NOT_EVALUATED, Status.ERROR, Status.FAILED)
        pages = add(runs, *(make_case(number, status=status) for number, status in enumerate(kinds)))
        assert indexes_of(pages, sort=SortOrder.STATUS) == [3, 2, 1, 0]

    def test_lowest_score_first_and_none_last(self, runs: RunStore) -> None:
        scores = (0.5, None, 0.1)
        pages = add(runs, *(make_case(number, score=score) for number, score in enumerate(scores)))
        assert indexes_of(pages, sort=SortOrder.SCORE) == [2, 0, 1]

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            (ResultFilter(column=1), [(3, {1})]),
            (ResultFilter(column=7), []),
            (ResultFilter(low=0.5), [(1, {0}), (2, {0}), (3, {1})]),
            (ResultFilter(low=0.5, high=0.95), [(1, {0})]),
            (ResultFilter(high=0.5), [(0, {0}), (3, {0})]),
            (ResultFilter(low=0.95, high=1.0), [(2, {0}), (3, {1})]),
            (ResultFilter(metric="tone", low=0.2, high=0.25), [(3, {1})]),
            (ResultFilter(Status.FAILED, column=0, high=0.5), [(3, {0})]),
        ],
    )
    def test_column_and_scores(
        self, runs: RunStore, wanted: ResultFilter, found: list[tuple[int, set[int]]]
    ) -> None:
        tone = make_judged(Status.PASSED, 0.2, metric="tone")
        dust = 0.5 - 1e-12
        pages = add(
            runs,
            *(make_case(number, score=score) for number, score in enumerate((0.49, dust, 1.0))),
            make_case(3, status=Status.FAILED, score=0.0),
            make_case(3, COLUMNS[1], score=0.95, assertions=(tone,), named_scores={"tone": 0.2}),
            make_case(4, score=None),
        )
        rows = pages.rows(RUN.id, wanted, sort=SortOrder.TEST, offset=0, limit=50).rows
        assert [(row.test_index, {column for _, column in row.matching}) for row in rows] == found


class TestScores:
    def test_scores_are_those_of_the_results(self, runs: RunStore) -> None:
        inner = make_judged(Status.PASSED, 0.9, metric="inner", threshold=0.25)
        judged = make_judged(Status.FAILED, 0.2, metric="tone", assertions=(inner,))
        cases = [
            make_case(0, vars={"x": ["y", 1]}, named_scores={"tone": 0.2}, assertions=(judged,)),
            make_case(0, COLUMNS[1], Status.ERROR, score=None, description="d \ud83d"),
            make_case(1, repeat_index=1),
        ]
        pages = add(runs, *cases)
        for read, case in zip(pages.scored(RUN.id), cases, strict=True):
            assert (read.test_index, read.repeat_index, read.column) == (
                case.test_index,
                case.repeat_index,
                case.column,
            )
            assert (read.status, read.score, read.vars) == (case.status, case.score, case.vars)
            assert read.named_scores == case.named_scores
            assert [item.threshold for item in read.assertions] == [
                item.threshold for item in case.assertions
            ]
        first = next(iter(pages.scored(RUN.id)))
        assert first.assertions[0].assertions[0].threshold == 0.25
        assert list(pages.scored("nothing")) == []


class TestRuns:
    def test_outlines_leave_the_config_out(self, runs: RunStore) -> None:
        runs.begin(replace(RUN, config={"tests": ["x" * 1000]}))
        outlines, total = RunPages(runs).outlines(RunChoice(), offset=0, limit=5)
        assert total == 1
        assert outlines[0].run == replace(RUN, config=None)

    def test_run_without_an_end_is_counted(self, runs: RunStore) -> None:
        pages = add(runs, make_case(0), make_case(1, status=Status.FAILED), make_case(2, status=Status.ERROR))
        counts = pages.outlines(RunChoice(), offset=0, limit=5)[0][0].counts
        assert (counts.total, counts.passed, counts.failed, counts.errored) == (3, 1, 1, 1)
        assert counts.pass_rate == 0.5
        assert pages.counts(RUN.id) == counts

    def test_run_of_a_dead_process_is_interrupted(self, tmp_path: Path) -> None:
        dead = RunStore.open(tmp_path)
        dead.begin(replace(RUN, status=RunStatus.RUNNING))
        dead.close()
        runs = RunStore.open(tmp_path)
        assert (
            RunPages(runs).outlines(RunChoice(), offset=0, limit=5)[0][0].run.status is RunStatus.INTERRUPTED
        )
        runs.close()

    def test_history_and_the_run_before(self, runs: RunStore) -> None:
        for name, config in (("a", "one.yaml"), ("b", "two.yaml"), ("c", "one.yaml")):
            run = replace(RUN, id=name, config_path=config)
            runs.begin(run)
            runs.finish(run, RunSummary(total=4, passed=1, failed=3))
        runs.begin(replace(RUN, id="d", config_path="one.yaml"))
        pages = RunPages(runs)
        assert [point.run_id for point in pages.history(2)] == ["c", "b"]
        assert pages.history(1)[0].pass_rate == 0.25
        assert [pages.previous(name) for name in "abcd"] == [None, None, "a", "c"]
        assert [
            item.run.id for item in pages.outlines(RunChoice(config="one.yaml"), offset=1, limit=5)[0]
        ] == ["c", "a"]


def test_verdicts_hold_what_a_comparison_needs(runs: RunStore) -> None:
    pages = add(runs, make_case(1, score=None), make_case(0, named_scores={"tone": 0.5}))
    first, second = pages.verdicts(RUN.id)
    assert (first.test_index, first.score, first.named_scores) == (0, 0.875, {"tone": 0.5})
    assert (second.test_index, second.score) == (1, None)
    assert first.vars == '{"question":"How many days?","country":"DE"}'


def test_unreadable_result_is_a_store_error(runs: RunStore, tmp_path: Path) -> None:
    pages = add(runs, make_case(0))
    assert pages.row(RUN.id, 0, 0)
    with sqlite3.connect(tmp_path / RUNS_FILE) as connection:
        connection.execute("UPDATE results SET result = '{}'")
    connection.close()
    with pytest.raises(StoreError, match="cannot read"):
        pages.row(RUN.id, 0, 0)
