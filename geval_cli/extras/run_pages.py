"""Read stored runs and results page by page, for views that show a few of many.

A case result is stored as the JSON text of `records.to_json`, written and read in one step. Results can be selected by
status, score, words and metadata.
"""

import contextlib
import json
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.metrics import with_members
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    JsonValue,
    MetricSummary,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    run_record_from_json,
    run_summary_from_json,
)
from geval_cli.report.case_view import JudgeVerdict
from geval_cli.store.runs import ResultReader, RunStore

_WORD = re.compile(r'"([^"]+)"|([^\s"]+)')
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789 ")
_MAY_BE_NO_STRING = re.compile("[0-9-]|true$|false$|NaN$|Infinity$").match
_FOLD_TO_ASCII = (
    "\xdf\u0130\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)
"""All characters that contain an ASCII letter once they are case-folded."""
_PARTS_MAX, _PART_LENGTH_MAX = 100, 1000
FACETS_MAX, FACET_VALUES_MAX = 6, 30
"""The maximum numbers of facets, and of values of each: with more values, a name is not useful for filtering."""


class Repeats(StrEnum):
    """The verdicts of a test's repeats in one column: all passed, all failed, or some passed and others failed."""

    PASSED = "passed"
    MIXED = "mixed"
    FAILED = "failed"


class ResultFilter(Struct, frozen=True):
    """A selection of results; None and an empty text select all.

    Attributes:
        status: of the case; with a `metric`, the worst status of its assertions of that metric.
        metric: only results that have it; sorting by score then uses its score.
        text: words, or phrases in double quotes, all of which occur in the description, the variables, the prompt, the
            output, a reason or an error; case is ignored.
        metadata: names with the value that the result must have for each.
        differs: only tests whose columns do not all have the same status.
        column: only results of this column.
        low: only results with a score of at least this: of the `metric` if there is one, else of the case.
        high: only results with a score below this; 1 includes a score of 1, the end of the scale.
        test: only results of this test.
        repeats: only results of tests whose repeats in that column have these verdicts.
        label_low: only results whose mean label of the `metric` is at least this.
        label_high: only results whose mean label is below this.
        ids: only results with these ids: those whose labels are within these bounds.
    """

    status: Status | None = None
    metric: str | None = None
    text: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    differs: bool = False
    column: int | None = None
    low: float | None = None
    high: float | None = None
    test: int | None = None
    repeats: Repeats | None = None
    label_low: float | None = None
    label_high: float | None = None
    ids: frozenset[str] | None = None

    @property
    def is_active(self) -> bool:
        """Return whether the filter leaves anything out."""
        return self != ResultFilter()

    @property
    def words(self) -> tuple[str, ...]:
        """The words and phrases of `text`, case-folded for searching in folded texts."""
        return tuple((phrase or word).casefold() for phrase, word in _WORD.findall(self.text))


class Facet(Struct, frozen=True):
    """A name in the metadata of a run's results, with each of its values and the number of results that have it."""

    name: str
    values: tuple[tuple[str, int], ...]


class _Message(Struct, frozen=True):
    message: str


class _SearchedPrompt(Struct, frozen=True):
    rendered: str


class SearchedAssertion(Struct, frozen=True):
    """The parts of an assertion's result that a filter needs."""

    metric: str | None
    reason: str | None = None
    error: _Message | None = None
    assertions: tuple["SearchedAssertion", ...] = ()


class SearchedResult(Struct, frozen=True):
    """The parts of a result that a filter needs, which are read many times faster than all of it."""

    prompt: _SearchedPrompt
    description: str | None = None
    vars: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    ended_by: str | UnsetType = UNSET
    error: _Message | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    assertions: tuple[SearchedAssertion, ...] = ()


def searched_texts(result: CaseResult | SearchedResult) -> Iterator[str]:
    """Yield the texts of a result that are searched for words."""
    yield result.description or ""
    yield result.prompt.rendered
    yield from _texts_in(result.output)
    yield from _texts_in(result.vars)
    yield result.ended_by or ""
    yield "" if result.error is None else result.error.message
    yield from _said_in(result.assertions)


def _said_in(assertions: Sequence[AssertionResult] | Sequence[SearchedAssertion]) -> Iterator[str]:
    for item in assertions:
        yield item.metric or ""
        yield item.reason or ""
        yield "" if item.error is None else item.error.message
        yield from _said_in(item.assertions)


def metadata_texts(value: JsonValue) -> tuple[str, ...]:
    """Return the text by which a metadata value is selected; for a list, those of its members."""
    if isinstance(value, list | tuple):
        return tuple(text for item in value for text in metadata_texts(item))
    if isinstance(value, Mapping) or value is None:
        return ()
    return (value if isinstance(value, str) else json.dumps(value),)


def facets_of(metadata: Iterable[Mapping[str, JsonValue]]) -> tuple[Facet, ...]:
    """Return the metadata names and values to filter by: those with a few values that several tests share."""
    counts: dict[str, Counter[str]] = {}
    for values in metadata:
        for name, value in values.items():
            of_name = counts.setdefault(name, Counter())
            if len(of_name) <= FACET_VALUES_MAX:
                for text in (value,) if isinstance(value, str) else set(metadata_texts(value)):
                    of_name[text] += 1
    usable = [(name, found) for name, found in counts.items() if 1 < len(found) <= FACET_VALUES_MAX]
    return tuple(Facet(name, tuple(sorted(found.items()))) for name, found in usable[:FACETS_MAX])


def _texts_in(value: JsonValue) -> Iterator[str]:
    """Yield the strings and numbers within a value, but not the keys of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)
    elif value is not None:
        yield json.dumps(value, default=repr)


def plain_parts(wanted: ResultFilter) -> tuple[tuple[str, ...], str]:
    """Return the parts that the stored text of every wanted result contains, and characters that may stand for them.

    A database finds these parts many times faster than a program; they are ASCII, or of scripts without upper case. A
    text without one of them may still contain it once it is case-folded, if it has one of the characters that are
    returned second: ß stands for ss.
    """
    runs = (groupby(word, key=_is_plain) for word in wanted.words)
    found = ("".join(run) for groups in runs for is_plain, run in groups if is_plain)
    # A database takes neither very long patterns nor very many: a whole text may be searched for.
    parts = tuple(part[:_PART_LENGTH_MAX] for part in found if part.strip())[:_PARTS_MAX]
    letters = set("".join(parts))
    texts = (value for _, value in wanted.metadata if value.isprintable() and not _MAY_BE_NO_STRING(value))
    parts += tuple(json.dumps(text, ensure_ascii=False)[:_PART_LENGTH_MAX] for text in texts)[:_PARTS_MAX]
    return parts, "".join(sign for sign in _FOLD_TO_ASCII if letters & set(sign.casefold()))


def _is_plain(character: str) -> bool:
    return character in _PLAIN or unicodedata.category(character) == "Lo"


def fits(
    result: CaseResult | SearchedResult, words: tuple[str, ...], metadata: Iterable[tuple[str, str]]
) -> bool:
    """Return whether a result has all words and all metadata."""
    if any(value not in metadata_texts(result.metadata.get(name)) for name, value in metadata):
        return False
    missing = words
    for text in searched_texts(result) if missing else ():
        folded = text.casefold()
        missing = tuple(word for word in missing if word not in folded)
        if not missing:
            break
    return not missing


PartT = TypeVar("PartT")


class SortOrder(StrEnum):
    """The order of rows: by test; by status, failures first; by score, lowest first."""

    TEST = "test"
    STATUS = "status"
    SCORE = "score"


class ResultRow(Struct, frozen=True):
    """All results of one test: its repeats by column. `matching` are the (repeat, column) that passed the filter."""

    test_index: int
    cells: Mapping[int, tuple[CaseResult, ...]]
    matching: frozenset[tuple[int, int]]


RowPlace = tuple[int, str]
"""The test index, and the (repeat, column) pairs that passed the filter as JSON text."""


class ResultPage(Struct, frozen=True):
    """A page of rows, out of `total` that passed the filter."""

    rows: tuple[ResultRow, ...]
    total: int


class StoredVerdict(Struct, frozen=True, gc=False):
    """The status and scores of one result, without its texts.

    Attributes:
        vars: the variables as JSON text.
        words: the contents of a conversation's turns that are not the assistant's, as a JSON list.
        test_key: as in `CaseResult`.
    """

    test_index: int
    repeat_index: int
    column: int
    status: Status
    score: float | None
    description: str | None
    vars: str
    named_scores: Mapping[str, float] = field(default_factory=dict)
    words: str = "[]"
    test_key: str | None = None


class ScoredAssertion(Struct, frozen=True):
    """The type, metric and threshold of one assertion's result, and of the members of a set."""

    type: str
    metric: str | None = None
    threshold: float | None = None
    assertions: tuple["ScoredAssertion", ...] = ()


class ScoredResult(Struct, frozen=True):
    """The scores of one result without its texts, which are read many times faster than all of it."""

    test_index: int
    repeat_index: int
    column: int
    status: Status
    score: float | None
    description: str | None = None
    vars: Mapping[str, JsonValue] = field(default_factory=dict)
    named_scores: Mapping[str, float] = field(default_factory=dict)
    assertions: tuple[ScoredAssertion, ...] = ()


class _Metadata(Struct, frozen=True):
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


_SCORED_DECODER = msgspec.json.Decoder(ScoredResult)
_SEARCHED_DECODER = msgspec.json.Decoder(SearchedResult)
_VERDICTS_DECODER = msgspec.json.Decoder(dict[str, tuple[Status, float | None]])
_METADATA_DECODER = msgspec.json.Decoder(_Metadata)


class RunChoice(Struct, frozen=True):
    """A selection of runs; None and empty fields select all.

    Attributes:
        config: the path of the config as it was typed.
        config_file: the config's absolute path.
        tags: names and values that a run must all have.
    """

    config: str | None = None
    config_file: str | None = None
    tags: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_config(cls, config: str | None, tags: tuple[tuple[str, str], ...] = ()) -> "RunChoice":
        """Return the selection of a config's runs; an absolute path finds them however their config was typed."""
        is_absolute = config is not None and Path(config).is_absolute()
        return cls(config, config if is_absolute else None, tags)


class RunOutline(Struct, frozen=True):
    """A run without its config. `counts` lacks metrics and usage if the run has not ended.

    `config_file` is the absolute path of its config, None if the run began without one.
    """

    run: RunRecord
    counts: RunSummary
    config_file: str | None = None


class RunPoint(Struct, frozen=True):
    """One run with a summary in the history of its config.

    Attributes:
        is_partial: whether it did not run to its end.
        pass_interval: the 95 % interval of the pass rate.
        metrics: over all its cases, except comparisons of all columns with each other, whose mean is always a half.
        config_file: as in `RunOutline`.
    """

    run_id: str
    config_path: str
    started_at: str
    passed: int
    failed: int
    errored: int
    is_partial: bool = False
    pass_interval: tuple[float, float] | None = None
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    config_file: str | None = None

    @property
    def config(self) -> str:
        """The absolute path of the config, the same from every folder; the path as it was typed if that is unknown."""
        return self.config_file or self.config_path

    @property
    def pass_rate(self) -> float | None:
        """The share of passed results among the judged ones; None if there are none."""
        judged = self.passed + self.failed
        return self.passed / judged if judged else None


_LIGHT_RECORD = "json_set(record, '$.config', NULL)"
_NEWEST_FIRST = "ORDER BY sequence DESC LIMIT :limit OFFSET :offset"
_RUNS = "runs LEFT JOIN origins ON run_id = id"
_IS_LISTED = "id NOT IN (SELECT value FROM json_each(:without))"
_HAS_TAG = "EXISTS (SELECT 1 FROM json_each(record, '$.tags') WHERE key = :name{0} AND value = :value{0})"
_SELECT_HISTORY = f"""
    SELECT id, config_path, started_at, json_extract(summary, '$.passed'), json_extract(summary, '$.failed'),
           json_extract(summary, '$.errored'), status, json_extract(summary, '$.pass_interval'),
           json_extract(summary, '$.metrics'), json_extract(summary, '$.rankings'), config_file
    FROM {_RUNS} WHERE summary IS NOT NULL ORDER BY sequence DESC LIMIT ?
"""
# Runs of one config are found by its absolute path, or by the path as typed if one of the two runs lacks that.
_SELECT_PREVIOUS = f"""
    WITH known AS (SELECT sequence, id, config_path, config_file, summary FROM {_RUNS}
                   WHERE id NOT IN (SELECT value FROM json_each(:without)))
    SELECT older.id FROM known AS older JOIN known AS run ON run.id = :run
    WHERE older.sequence < run.sequence AND (older.summary IS NOT NULL OR NOT :finished)
        AND CASE WHEN older.config_file IS NULL OR run.config_file IS NULL
            THEN older.config_path = run.config_path ELSE older.config_file = run.config_file END
    ORDER BY older.sequence DESC LIMIT 1
"""
_COUNT_RESULTS = "SELECT status, count(*) FROM results WHERE run_id = ? GROUP BY status"
_SELECT_ROW = """
    SELECT result FROM results WHERE run_id = ? AND test_index = ? AND repeat_index = ? ORDER BY column_index
"""
_SELECT_REPEATS = """
    SELECT result FROM results WHERE run_id = ? AND test_index = ? AND column_index = ? ORDER BY repeat_index
"""
_SELECT_RESULTS = """
    SELECT result FROM results WHERE run_id = ? ORDER BY test_index, repeat_index, column_index LIMIT ? OFFSET ?
"""
_SELECT_PROBLEMS = """
    SELECT result FROM results WHERE run_id = ? AND status IN ('failed', 'error') ORDER BY rowid DESC LIMIT ?
"""
_SELECT_VERDICTS = """
    SELECT test_index, repeat_index, column_index, status, json_extract(result, '$.score'),
           json_extract(result, '$.description'), json_extract(result, '$.vars'),
           json_extract(result, '$.named_scores'), json_extract(result, '$.test_key'),
           (SELECT json_group_array(json_extract(turn.value, '$.content'))
            FROM json_each(result, '$.turns') AS turn WHERE json_extract(turn.value, '$.role') <> 'assistant')
    FROM results WHERE run_id = ? ORDER BY test_index, repeat_index, column_index
"""
_HAS_STATUS = "status = :status"
_HAS_METRIC = "metric_status(verdicts) IS NOT NULL"
_HAS_METRIC_STATUS = "metric_status(verdicts) = :status"
_IS_ESCAPED = r"result LIKE '%\u%'"
_MAY_FOLD = " OR may_fold(result)"
_FITS = "fits(result)"
_COUNT_VERDICTS = """
    SELECT column_index, metric_status(verdicts) AS said, count(*) FROM results WHERE run_id = ? GROUP BY 1, 2
    HAVING said IS NOT NULL
"""
_DIFFERS = """
    (test_index, repeat_index) IN (SELECT test_index, repeat_index FROM results WHERE run_id = :run
                                   GROUP BY test_index, repeat_index HAVING count(DISTINCT status) > 1)
"""
_SELECT_TESTS = """
    SELECT test_index FROM (SELECT DISTINCT test_index FROM results WHERE run_id = :run) AS test
    WHERE EXISTS (SELECT 1 FROM results WHERE {} AND test_index = test.test_index) ORDER BY test_index
"""
_IS_SHOWN = "test_index IN (SELECT value FROM json_each(:shown))"
_SELECT_PLACES = """
    SELECT test_index, json_group_array(json_array(repeat_index, column_index)) FROM results
    WHERE {} GROUP BY test_index ORDER BY {}
"""
# All results of a test have the same metadata, so only one of them is read.
_SELECT_METADATA = """
    SELECT result FROM results WHERE rowid IN (SELECT min(rowid) FROM results WHERE run_id = ? GROUP BY test_index)
"""
_SELECT_TEST_RESULTS = """
    SELECT result FROM results WHERE run_id = ? AND test_index = ? ORDER BY column_index, repeat_index
"""
_SELECT_NEIGHBOUR = """
    SELECT test_index, repeat_index FROM results
    WHERE run_id = ? AND column_index = ? AND (test_index, repeat_index) {0} (?, ?) {2}
    ORDER BY test_index {1}, repeat_index {1} LIMIT 1
"""
_IS_PROBLEM = "AND status IN ('failed', 'error')"
_HAS_COLUMN = "column_index = :column"
_HAS_TEST = "test_index = :test"
_HAS_ID = "case_id IN (SELECT value FROM json_each(:ids))"
_HAS_REPEATS = """
    (test_index, column_index) IN (
        SELECT test_index, column_index FROM results WHERE run_id = :run AND status IN ('passed', 'failed')
        GROUP BY test_index, column_index HAVING count(*) > 1
            AND CASE WHEN min(status) = max(status) THEN min(status) ELSE 'mixed' END = :repeats)
"""
# A score that is round except for rounding errors counts as round, as in the histograms that link here.
_HAS_SCORE_FROM = "{score} >= :low - 1e-10"
_HAS_SCORE_BELOW = "({score} < :high - 1e-10 OR :high = 1 AND {score} <= 1 + 1e-10)"
_CASE_SCORE = "json_extract(result, '$.score')"
_METRIC_SCORE = "metric_score(verdicts)"
_ORDERS = {
    SortOrder.TEST: "test_index",
    SortOrder.STATUS: "max(CASE status WHEN 'failed' THEN 3 WHEN 'error' THEN 2 WHEN 'not_evaluated' THEN 1 ELSE 0 END)"
    " DESC, test_index",
    SortOrder.SCORE: "min({score}) ASC NULLS LAST, test_index",
}


class RunPages(Struct, frozen=True):
    """A reader of parts of a store. Every method raises StoreError if the database cannot be read.

    Attributes:
        without: ids of runs that are left out of lists.
    """

    runs: RunStore
    without: Sequence[str] = ()

    def outlines(self, chosen: RunChoice, *, offset: int, limit: int) -> tuple[list[RunOutline], int]:
        """Return a page of the chosen runs, newest first, and the number of all of them."""
        with self._reading() as connection:
            condition, values = _run_query(chosen, self.without)
            which = f"FROM {_RUNS} WHERE {condition}"
            total = int(connection.execute(f"SELECT count(*) {which}", values).fetchone()[0])
            found = f"SELECT {_LIGHT_RECORD}, summary, config_file {which} {_NEWEST_FIRST}"
            rows = connection.execute(found, {**values, "limit": limit, "offset": offset}).fetchall()
            return [self._outline(connection, *row) for row in rows], total

    def history(self, limit: int) -> list[RunPoint]:
        """Return the outcomes of the last `limit` runs with a summary, newest first."""
        with self._reading() as connection:
            return [_point(row) for row in connection.execute(_SELECT_HISTORY, (limit,))]

    def previous(self, run_id: str, *, finished: bool = False) -> str | None:
        """Return the id of the last run of the same config before this one; with `finished`, of the last that ended."""
        with self._reading() as connection:
            values = {"run": run_id, "finished": finished, "without": json.dumps(list(self.without))}
            row = connection.execute(_SELECT_PREVIOUS, values).fetchone()
            return None if row is None else str(row[0])

    def counts(self, run_id: str) -> RunSummary:
        """Return the counts of a run so far, without metrics and usage."""
        with self._reading() as connection:
            return _counts(connection, run_id)

    def rows(
        self, run_id: str, wanted: ResultFilter, *, sort: SortOrder, offset: int, limit: int
    ) -> ResultPage:
        """Return a sorted page of the rows of a run that have a result as `wanted`."""
        if sort is not SortOrder.TEST:
            places = self.places(run_id, wanted, sort)
            return ResultPage(tuple(self.rows_at(run_id, places[offset : offset + limit])), len(places))
        # One fitting result is enough for its test to match; all results are checked only for the rows that are shown.
        with self._choosing(run_id, wanted) as (connection, conditions, values):
            found = connection.execute(_SELECT_TESTS.format(conditions), values).fetchall()
            shown = json.dumps([test for (test,) in found[offset : offset + limit]])
            narrowed = f"{conditions} AND {_IS_SHOWN}"
            statement = _SELECT_PLACES.format(narrowed, _ORDERS[sort])
            places = connection.execute(statement, {**values, "shown": shown}).fetchall()
        return ResultPage(tuple(self.rows_at(run_id, places)), len(found))

    def places(self, run_id: str, wanted: ResultFilter, sort: SortOrder) -> list[RowPlace]:
        """Return the sorted places of the rows that have a result as `wanted`."""
        order = _ORDERS[sort].format(score=_score(wanted))
        with self._choosing(run_id, wanted) as (connection, conditions, values):
            return connection.execute(_SELECT_PLACES.format(conditions, order), values).fetchall()

    @contextlib.contextmanager
    def _choosing(
        self, run_id: str, wanted: ResultFilter
    ) -> Iterator[tuple[sqlite3.Connection, str, dict[str, str | float | None]]]:
        """Yield a connection, the SQL condition of the wanted results, and its values."""
        words = wanted.words
        (parts, signs) = plain_parts(wanted)
        # This alone rules out most texts that lack a word; quotes and backslashes are written differently in JSON.
        rough = () if parts else tuple(word for word in words if not {"\\", '"'} & set(word))
        with self._reading() as connection:
            reader = ResultReader(connection, run_id)

            def may_fold(text: str) -> bool:
                return any(sign in text for sign in signs)

            def is_fitting(text: str) -> bool:
                if rough and "\\u" not in text:
                    folded = text.casefold()
                    if any(word not in folded for word in rough):
                        return False
                searched = _read_part(_SEARCHED_DECODER, reader, text)
                return fits(searched, words, wanted.metadata)

            connection.create_function("fits", 1, is_fitting)
            connection.create_function("may_fold", 1, may_fold)
            _offer_verdicts(connection, wanted.metric)
            values = _values_of(wanted) | {f"part{number}": f"%{part}%" for number, part in enumerate(parts)}
            conditions = _conditions(wanted)
            if parts:
                has_parts = " AND ".join(f"result LIKE :part{number}" for number in range(len(parts)))
                conditions.insert(-1, f"({has_parts} OR {_IS_ESCAPED}{_MAY_FOLD if signs else ''})")
            yield connection, " AND ".join(conditions), {**values, "run": run_id}

    def rows_at(self, run_id: str, places: Iterable[RowPlace]) -> list[ResultRow]:
        """Return the rows at `places`, in their order."""
        with self._reading() as connection:
            reader = ResultReader(connection, run_id)
            return [_row(connection, reader, run_id, place) for place in places]

    def repeats(self, run_id: str, test_index: int, column: int) -> list[CaseResult]:
        """Return the results of one test in one column, repeat by repeat."""
        with self._reading() as connection:
            reader = ResultReader(connection, run_id)
            found = connection.execute(_SELECT_REPEATS, (run_id, test_index, column))
            return [reader.read(text) for (text,) in found]

    def row(self, run_id: str, test_index: int, repeat_index: int) -> list[CaseResult]:
        """Return all results of one test and repeat, by column."""
        with self._reading() as connection:
            texts = connection.execute(_SELECT_ROW, (run_id, test_index, repeat_index))
            reader = ResultReader(connection, run_id)
            return [reader.read(text) for (text,) in texts]

    def neighbours(
        self, run_id: str, place: tuple[int, int], column: int, *, is_failed: bool = False
    ) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Return the test and repeat before and after `place` that have a result in a column; None at the ends.

        With `is_failed`, only results that failed or could not be judged count.
        """
        with self._reading() as connection:
            further = _IS_PROBLEM if is_failed else ""
            before, after = (
                connection.execute(
                    _SELECT_NEIGHBOUR.format(sign, order, further), (run_id, column, *place)
                ).fetchone()
                for sign, order in (("<", "DESC"), (">", "ASC"))
            )
            return before, after

    def facets(self, run_id: str) -> tuple[Facet, ...]:
        """Return the metadata that the results of a run can be filtered by."""
        with self._reading() as connection:
            rows = connection.execute(_SELECT_METADATA, (run_id,))
            reader = ResultReader(connection, run_id)
            return facets_of(_read_part(_METADATA_DECODER, reader, text).metadata for (text,) in rows)

    def metric_counts(self, run_id: str, metric: str) -> dict[tuple[int, Status], int]:
        """Return how many results have each status on a metric, by column and status."""
        with self._reading() as connection:
            _offer_verdicts(connection, metric)
            found = connection.execute(_COUNT_VERDICTS, (run_id,))
            return {(column, Status(said)): count for column, said, count in found}

    def results(self, run_id: str, *, offset: int, limit: int) -> tuple[list[CaseResult], int]:
        """Return a page of a run's results, ordered by test, repeat and column, and the number of all of them."""
        with self._reading() as connection:
            total = sum(count for _, count in connection.execute(_COUNT_RESULTS, (run_id,)))
            texts = connection.execute(_SELECT_RESULTS, (run_id, limit, offset))
            reader = ResultReader(connection, run_id)
            return [reader.read(text) for (text,) in texts], total

    def problems(self, run_id: str, limit: int) -> list[CaseResult]:
        """Return results that failed or ended in an error, those stored last first."""
        with self._reading() as connection:
            reader = ResultReader(connection, run_id)
            return [reader.read(text) for (text,) in connection.execute(_SELECT_PROBLEMS, (run_id, limit))]

    def verdicts(self, run_id: str) -> list[StoredVerdict]:
        """Return every verdict of a run, ordered by test, repeat and column."""
        with self._reading() as connection:
            return [_verdict(row) for row in connection.execute(_SELECT_VERDICTS, (run_id,))]

    def scored(self, run_id: str) -> Iterator[ScoredResult | CaseResult]:
        """Yield the scores of every result of a run by test, repeat and column, without keeping any in memory."""
        with self._reading() as connection:
            reader = ResultReader(connection, run_id)
            for (text,) in connection.execute(_SELECT_RESULTS, (run_id, -1, 0)):
                try:
                    yield _SCORED_DECODER.decode(text)
                except msgspec.DecodeError:  # written by another version
                    yield reader.read(text)

    def _outline(
        self, connection: sqlite3.Connection, record: str, summary: str | None, config_file: str | None
    ) -> RunOutline:
        run = self.runs.settled(run_record_from_json(json.loads(record)))
        counts = (
            _counts(connection, run.id) if summary is None else run_summary_from_json(json.loads(summary))
        )
        return RunOutline(run, counts, config_file)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self.runs.reading() as connection:
            connection.text_factory = _lenient_text
            yield connection


def _read_part(decoder: msgspec.json.Decoder[PartT], reader: ResultReader, text: str) -> PartT | CaseResult:
    """Return the part of a stored result that the decoder reads, or the whole result if it cannot."""
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:  # written by another version, or with a lone surrogate
        return reader.read(text)


def _run_query(chosen: RunChoice, without: Sequence[str]) -> tuple[str, dict[str, str | int | None]]:
    """Return the SQL condition of the chosen runs, and its values."""
    conditions = [_IS_LISTED]
    values: dict[str, str | int | None] = {
        "config": chosen.config,
        "config_file": chosen.config_file,
        "without": json.dumps(list(without)),
    }
    if chosen.config_file is not None:
        conditions.append("(config_file = :config_file OR config_file IS NULL AND config_path = :config)")
    elif chosen.config is not None:
        conditions.append("config_path = :config")
    for number, (name, value) in enumerate(chosen.tags):
        conditions.append(_HAS_TAG.format(number))
        values |= {f"name{number}": name, f"value{number}": value}
    return " AND ".join(conditions), values


def _offer_verdicts(connection: sqlite3.Connection, metric: str | None) -> None:
    """Register SQL functions for the status and the score of a metric among the verdicts of a result."""

    @lru_cache(1)  # both functions are called with the same result
    def verdict(text: str) -> tuple[Status | None, float | None]:
        return _VERDICTS_DECODER.decode(text).get(metric or "", (None, None))

    connection.create_function("metric_status", 1, lambda text: verdict(text)[0])
    connection.create_function("metric_score", 1, lambda text: verdict(text)[1])


def _score(wanted: ResultFilter) -> str:
    return _CASE_SCORE if wanted.metric is None else _METRIC_SCORE


def _conditions(wanted: ResultFilter) -> list[str]:
    """Return the SQL conditions of the wanted results, the fastest first."""
    score = _score(wanted)
    has_metric = wanted.metric is not None
    conditions = {
        "run_id = :run": True,
        _HAS_STATUS: not has_metric and wanted.status is not None,
        _HAS_COLUMN: wanted.column is not None,
        _HAS_TEST: wanted.test is not None,
        _HAS_ID: wanted.ids is not None,
        _HAS_METRIC: has_metric and wanted.status is None,
        _HAS_METRIC_STATUS: has_metric and wanted.status is not None,
        _HAS_SCORE_FROM.format(score=score): wanted.low is not None,
        _HAS_SCORE_BELOW.format(score=score): wanted.high is not None,
        _HAS_REPEATS: wanted.repeats is not None,
        _DIFFERS: wanted.differs,
        _FITS: bool(wanted.words or wanted.metadata),
    }
    return [condition for condition, is_wanted in conditions.items() if is_wanted]


def _values_of(wanted: ResultFilter) -> dict[str, str | float | None]:
    return {
        "status": wanted.status,
        "column": wanted.column,
        "low": wanted.low,
        "high": wanted.high,
        "test": wanted.test,
        "repeats": wanted.repeats,
        "ids": None if wanted.ids is None else json.dumps(sorted(wanted.ids)),
    }


def _row(connection: sqlite3.Connection, reader: ResultReader, run_id: str, place: RowPlace) -> ResultRow:
    test_index, matching = place
    cells: dict[int, list[CaseResult]] = {}
    for (text,) in connection.execute(_SELECT_TEST_RESULTS, (run_id, test_index)):
        result = reader.read(text)
        cells.setdefault(result.column, []).append(result)
    return ResultRow(
        test_index,
        {column: tuple(found) for column, found in cells.items()},
        frozenset((repeat, column) for repeat, column in json.loads(matching)),
    )


def _counts(connection: sqlite3.Connection, run_id: str) -> RunSummary:
    found = dict(connection.execute(_COUNT_RESULTS, (run_id,)).fetchall())
    passed, failed, errored = (
        found.get(status, 0) for status in (Status.PASSED, Status.FAILED, Status.ERROR)
    )
    return RunSummary(
        total=sum(found.values()),
        passed=passed,
        failed=failed,
        errored=errored,
        not_evaluated=found.get(Status.NOT_EVALUATED, 0),
        pass_rate=passed / (passed + failed) if passed + failed else None,
        pass_rate_at_least=passed / (passed + failed + errored) if passed + failed else None,
    )


def _verdict(row: tuple[Any, ...]) -> StoredVerdict:
    test_index, repeat_index, column, status, *said = row
    score, description, variables, named_scores, test_key, words = said
    return StoredVerdict(
        test_index,
        repeat_index,
        column,
        Status(status),
        score=score,
        description=description,
        vars=variables,
        named_scores=json.loads(named_scores),
        words=words,
        test_key=test_key,
    )


def _point(row: tuple[Any, ...]) -> RunPoint:
    run_id, config_path, started_at, passed, failed, errored, status, interval, metrics, *more = row
    rankings, config_file = more
    ranked = msgspec.json.decode(rankings or "{}", type=dict[str, msgspec.Raw])
    found = msgspec.json.decode(metrics or "{}", type=dict[str, MetricSummary])
    return RunPoint(
        run_id,
        config_path,
        started_at,
        passed=passed,
        failed=failed,
        errored=errored,
        is_partial=status != RunStatus.COMPLETED,
        pass_interval=msgspec.json.decode(interval or "null", type=tuple[float, float] | None),
        metrics={name: item for name, item in found.items() if name not in ranked or not item.is_half},
        config_file=config_file,
    )


def _lenient_text(value: bytes) -> str:
    return value.decode(errors="replace")


class ShownCriterion(Struct, frozen=True):
    """The criteria and steps that a judge followed; empty if the run does not say."""

    text: str = ""
    steps: tuple[str, ...] = ()


class MetricCriteria:
    """Collects the criteria of each metric from the results of a run.

    Attributes:
        criteria: by metric, from the first assertion that states any.
        judged: the metrics that a model judged.
    """

    def __init__(self) -> None:
        self.criteria: dict[str, ShownCriterion] = {}
        self.judged: set[str] = set()

    def add(self, result: CaseResult) -> None:
        """Collect what the assertions of one result say."""
        for assertion, _ in with_members(result.assertions):
            if assertion.metric is not None:
                self._learn(assertion.metric, assertion)

    def chosen(self, known: set[str]) -> set[str]:
        """Return the metrics of `known` that a model judged; all of them if it judged none."""
        return known & self.judged or known

    def _learn(self, metric: str, assertion: AssertionResult) -> None:
        verdict = JudgeVerdict(assertion.detail)
        if "judge" in verdict.detail or assertion.type.endswith("g-eval"):
            self.judged.add(metric)
        if metric in self.criteria and self.criteria[metric].text:
            return
        dimension = str(verdict.detail.get("dimension"))
        text = DIMENSIONS[dimension].definition if dimension in DIMENSIONS else verdict.criteria
        self.criteria[metric] = ShownCriterion(text, verdict.steps)
