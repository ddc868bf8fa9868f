"""Results files become stored runs: geval's (`-o results.json`, `.jsonl`, `.parquet`) and promptfoo's, version 3."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally, flaky_tests
from geval_cli.engine.columns import RankingSums, margins_of, with_columns
from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.json_codec import decode_json
from geval_cli.plugins import extra, extras_of
from geval_cli.records import (
    SCHEMA_VERSION,
    AskedTest,
    CaseResult,
    Column,
    JsonValue,
    ProviderRef,
    RunRecord,
    RunStatus,
    RunSummary,
    asked_test_from_json,
    case_result_from_json,
    run_record_from_json,
    run_summary_from_json,
)
from geval_cli.source.access import TRUSTED, Access, open_regular
from geval_cli.source.files import PARQUET_SUFFIX, open_problem
from geval_cli.source.json_source import read_json
from geval_cli.source.secrets import mask_config, mask_text
from geval_cli.source.source_map import split_lines
from geval_cli.statistics.paired import Margins
from geval_cli.store.runs import LATEST, RunOrigin, RunStore, new_run, new_run_id, time_now

MAX_FILE_BYTES = 1 << 30
_MOST_PROBLEMS = 20
_MOST_INDEX = 1 << 31
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_WHAT_IS_READ = "use what `-o results.json`, `.jsonl` or `.parquet` wrote, or promptfoo results of version 3"


class ImportedRun(Struct, frozen=True):
    """A run as a file has it.

    Attributes:
        summary: what the file says beside the results; None when it says nothing.
        dialect: of the run's config, where the file settles it.
    """

    run: RunRecord
    results: Sequence[CaseResult]
    summary: RunSummary | None = None
    dialect: str = ""


class ForeignResults(Struct, frozen=True):
    """Results that another program wrote.

    Attributes:
        rows: one for each result.
        place: the keys under which the document has them.
        case_of_row: makes a result of a row; raises ValueError for what is none.
        id, time: of the run, where the document says them.
        dialect: of the run's config.
    """

    rows: Sequence[JsonValue]
    place: tuple[str, ...]
    case_of_row: Callable[[JsonValue], CaseResult]
    id: str = ""
    time: str = ""
    dialect: str = ""


def read_importable(path: Path, access: Access = TRUSTED) -> ImportedRun:
    """Return the run that a results file holds, every result checked, so that it can be stored.

    Raises:
        ConfigError: with every problem of the file, placed at its line and column.
    """
    if path.suffix.lower() == PARQUET_SUFFIX:
        return _read_parquet(path, access)
    text = _text_of(path, access)
    if path.suffix.lower() == ".jsonl":
        return _read_lines(text, path)
    value = _parsed(text, path)
    if not isinstance(value, dict):
        raise ConfigError([_not_results(path, "it contains no JSON object")])
    results = value.get("results")
    for reader in extras_of("results"):
        foreign = reader.read_results(value, lambda *keys: _place(text, path, *keys))
        if foreign is not None:
            config = value.get("config")
            cases = _converted(foreign.rows, foreign.case_of_row, text, path, *foreign.place)
            known: dict[str, Any] = {}
            if foreign.id:
                known["id"] = _safe_id(foreign.id)
            if _is_time(foreign.time):
                known["started_at"] = known["finished_at"] = foreign.time
            return ImportedRun(_new_run(path, cases, config, **known), cases, dialect=foreign.dialect)
    newer = newer_version(value)
    if newer is not None:
        where = _place(text, path, "schema_version")
        raise ConfigError([Problem(f"a newer geval wrote this: {newer}", where, "update geval to read it")])
    if "run" not in value or not isinstance(results, list):
        raise ConfigError([_not_results(path, "it has no `run` and `results`")])
    try:
        run = run_record_from_json(value["run"])
    except (ValueError, TypeError) as error:
        raise ConfigError(
            [Problem(f"the run cannot be read: {_why(error)}", _place(text, path, "run"), _WHAT_IS_READ)]
        ) from error
    tests = _tests_of(value.get("tests"), text, path)
    cases = _converted(results, case_result_from_json, text, path, "results")
    cases = [replace(case, test=tests.get(case.test_index) or UNSET) for case in cases]
    summary = None
    with suppress(ValueError, TypeError):  # it can be counted anew
        summary = run_summary_from_json(value.get("summary") or {})
    return ImportedRun(_safe_run(run, cases), cases, summary)


class ToldTests:
    """The tests of a file of lines, each before the first result that it has; only the last ones are kept."""

    def __init__(self) -> None:
        self._tests: dict[int, AskedTest] = {}

    def take(self, line: bytes) -> bool:
        """Keep the test of a line; return False for a line that holds something else.

        Raises:
            ValueError: the test cannot be read.
        """
        if not line.startswith(b'{"test":{'):
            return False
        if len(self._tests) >= _TESTS_KEPT:
            del self._tests[next(iter(self._tests))]
        test = asked_test_from_json(decode_json(line)["test"])
        self._tests[test.index] = test
        return True

    def get(self, index: int) -> AskedTest | None:
        """Return the test with this index, if it was told."""
        return self._tests.get(index)


_TESTS_KEPT = 10_000


def _tests_of(written: JsonValue, text: str, path: Path) -> dict[int, AskedTest]:
    try:
        found = [asked_test_from_json(item) for item in written or ()]
    except (ValueError, TypeError) as error:
        message = f"the tests cannot be read: {_why(error)}"
        raise ConfigError([Problem(message, _place(text, path, "tests"), _WHAT_IS_READ)]) from error
    return {test.index: test for test in found}


def newer_version(document: Mapping[str, JsonValue]) -> str | None:
    """Return the version of a results document if it is a later one than is read here, in words; else None."""
    found = document.get("schema_version")
    is_newer = isinstance(found, int) and found > SCHEMA_VERSION
    return f"`schema_version` is {found}; this geval reads {SCHEMA_VERSION}" if is_newer else None


def store_run(imported: ImportedRun, runs: RunStore) -> RunRecord:
    """Store an imported run, counted anew.

    Raises:
        UsageError: a run with its id is stored already.
        StoreError: it cannot be stored.
    """
    run = imported.run
    if _is_stored(run.id, runs):
        raise UsageError(f"run {run.id} is stored here already", hint=f"`geval show {run.id}` shows it")
    summary = summarized(run, lambda: iter(imported.results))
    if imported.summary is not None:
        said = imported.summary
        summary = replace(
            summary,
            gates=said.gates,
            derived=said.derived,
            derived_by_column=said.derived_by_column,
            baseline=said.baseline,
            early_stop=said.early_stop,
        )
    options = {"options": {"--dialect": imported.dialect}} if imported.dialect else {}
    runs.begin(run, RunOrigin(run.config_path, len(imported.results), options))
    written = [runs.add(run.id, result) for result in imported.results]
    for future in written:
        future.result()
    runs.finish(run, summary)
    return run


def summarized(run: RunRecord, results: Callable[[], Iterator[CaseResult]]) -> RunSummary:
    """Return the counts and figures of results that have no summary; it goes through them several times."""
    tally, has_repeats = Tally(), False
    for result in results():
        tally.add(result)
        has_repeats = has_repeats or result.repeat_index > 0
    return with_figures(
        tally.summary(),
        run.columns,
        results,
        baseline=run.config.get("baseline") if isinstance(run.config, dict) else None,
        has_clusters=tally.has_clusters,
        has_repeats=has_repeats,
        margins=margins_of(run),
    )


def with_figures(
    summary: RunSummary,
    columns: tuple[Column, ...],
    results: Callable[[], Iterator[CaseResult]],
    *,
    baseline: str | None,
    has_clusters: bool,
    has_repeats: bool,
    margins: Margins,
) -> RunSummary:
    """Return a summary with the figures and ranks of its columns, and its flaky tests."""
    ranking = RankingSums(columns)
    passing = ranking.passing(results())
    summary = with_columns(
        summary, columns, passing, baseline=baseline, has_clusters=has_clusters, margins=margins
    )
    summary = ranking.with_rankings(summary)
    if has_repeats:
        flaky, count = flaky_tests(results())
        summary = replace(summary, flaky=flaky, flaky_count=count)
    return summary


def _is_stored(run_id: str, runs: RunStore) -> bool:
    try:
        return runs.find(run_id).run.id == run_id
    except UsageError:
        return False


def _text_of(path: Path, access: Access) -> str:
    try:
        with open_regular(path, access) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, None)]) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([Problem(f"`{path}` is larger than 1 GiB", None, "split it, or import part of it")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        where = Location(str(path), line, column, length=0)
        message = f"this is not UTF-8 text: byte 0x{content[error.start]:02X}"
        raise ConfigError([Problem(message, where, "save the file as UTF-8")]) from error


def _parsed(text: str, path: Path, *, first_line: int = 1) -> JsonValue:
    """Return the value of JSON text; what is broken, NaN or given twice is found by the reader that knows places."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return read_json(text, str(path), first_line=first_line).value


def _place(text: str, path: Path, *keys: str | int, first_line: int = 1) -> Location | None:
    """Return where a value is; the text is read a second time, which only files with problems need."""
    try:
        place = read_json(text, str(path), first_line=first_line).place
    except ConfigError:
        return Location(str(path), first_line, 1, length=0)
    for key in keys[:-1]:
        place = place.child(key)
    return place.value(keys[-1]) if keys else place.value()


def _not_results(path: Path, why: str) -> Problem:
    return Problem(
        f"`{path}` is not a results file: {why}", Location(str(path), 1, 1, length=0), _WHAT_IS_READ
    )


def _converted(
    items: Sequence[JsonValue],
    convert: Callable[[Any], CaseResult],
    text: str,
    path: Path,
    *keys: str,
) -> list[CaseResult]:
    """Return the results; raises ConfigError with the place of each that is none."""
    found: list[CaseResult] = []
    wrong: list[tuple[int, str]] = []
    cases: dict[tuple[int, int, int], int] = {}
    for index, item in enumerate(items):
        try:
            case = _checked(convert(item), cases, index)
        except (ValueError, TypeError, AttributeError) as error:
            wrong.append((index, _why(error)))
            if len(wrong) >= _MOST_PROBLEMS:
                break
            continue
        found.append(case)
    if wrong:
        # The text is read a second time, with positions, which only files with problems need.
        indexes = [index for index, _ in wrong]
        place = read_json(text, str(path)).place
        for key in keys:
            place = place.child(key)
        places = {index: place.value(index) for index in indexes}
        raise ConfigError([Problem(f"result {index + 1}: {why}", places.get(index)) for index, why in wrong])
    return sorted(found, key=lambda case: (case.test_index, case.repeat_index, case.column))


def _why(error: Exception) -> str:
    """Return what is wrong with a result, without the name that it has in the code."""
    text = str(error)
    return text.partition(": ")[2] if text.startswith("this is not a ") else text


def _checked(case: CaseResult, cases: dict[tuple[int, int, int], int], index: int) -> CaseResult:
    """Return a result that can be stored, its provider's id without keys; ValueError when its case is there already."""
    place = (case.test_index, case.repeat_index, case.column)
    if not all(0 <= number < _MOST_INDEX for number in place):
        raise ValueError("test_index, repeat_index and column must be whole numbers of at least 0")
    if place in cases:
        raise ValueError(f"case {'.'.join(map(str, place))} is result {cases[place] + 1} already")
    cases[place] = index
    provider = ProviderRef(mask_text(case.provider.id), mask_text(case.provider.label))
    return replace(case, id=".".join(map(str, place)), provider=provider)


def _read_lines(text: str, path: Path) -> ImportedRun:
    told = ToldTests()

    def lines() -> Iterator[tuple[int, str, str | None]]:
        for number, line in enumerate(split_lines(text), 1):
            if line.strip() and not _is_told(told, line, number, path):
                yield number, line, None

    found = _read_results(lines(), path, told)
    return ImportedRun(_new_run(path, found, None), found)


def _is_told(told: ToldTests, line: str, number: int, path: Path) -> bool:
    try:
        return told.take(line.encode(errors="surrogatepass"))
    except ValueError as error:
        where = Location(str(path), number, 1, length=0)
        raise ConfigError([Problem(f"this test cannot be read: {error}", where, _WHAT_IS_READ)]) from error


def _read_parquet(path: Path, access: Access) -> ImportedRun:
    """Return the run of a Parquet file; its metadata have the run and its summary, as a .json file has them."""
    head = parquet_head(path, access)
    newer = newer_version(head)
    if newer is not None:
        where = Location(str(path), 1, 1, length=0)
        raise ConfigError([Problem(f"a newer geval wrote this: {newer}", where, "update geval to read it")])
    found = _read_results(extra("Parquet files").read_result_texts(path, access), path)
    run, summary = None, None
    with suppress(
        ValueError, TypeError, KeyError
    ):  # another program may have written the rows anew, without it
        run = run_record_from_json(head["run"])
        summary = run_summary_from_json(head["summary"])
    return ImportedRun(_new_run(path, found, None) if run is None else _safe_run(run, found), found, summary)


def parquet_head(path: Path, access: Access) -> Mapping[str, Any]:
    """Return `schema_version`, `run` and `summary` of a Parquet file of results; empty when it does not say them.

    Raises:
        ConfigError: the file cannot be read, or holds no results.
    """
    head: Mapping[str, Any] | None = extra("Parquet files").results_head(path, access)
    if head is None:
        raise ConfigError([_not_results(path, "it has no column `result`")])
    return head


def _read_results(
    lines: Iterable[tuple[int, str, str | None]], path: Path, told: ToldTests | None = None
) -> list[CaseResult]:
    """Return the results of lines or rows, with their numbers and the JSON of their tests, in their order.

    Raises:
        ConfigError: with the place of each that is none.
    """
    found: list[CaseResult] = []
    problems: list[Problem] = []
    cases: dict[tuple[int, int, int], int] = {}
    for number, line, written in lines:
        try:
            case = case_result_from_json(_parsed(line, path, first_line=number))
            test = None if told is None else told.get(case.test_index)
            test = test if written is None else asked_test_from_json(decode_json(written))
            found.append(replace(_checked(case, cases, number - 1), test=test or UNSET))
        except ConfigError as error:
            problems.extend(error.problems)
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(Problem(_why(error), Location(str(path), number, 1, length=0), _WHAT_IS_READ))
        if len(problems) >= _MOST_PROBLEMS:
            break
    if not problems and not found:
        problems.append(_not_results(path, "it is empty"))
    if problems:
        raise ConfigError(problems)
    found.sort(key=lambda case: (case.test_index, case.repeat_index, case.column))
    return found


def _safe_run(run: RunRecord, cases: Sequence[CaseResult]) -> RunRecord:
    """Return the record with an id that is no path, no keys in its config, and the columns that its results have."""
    status = RunStatus.INTERRUPTED if run.status is RunStatus.RUNNING else run.status
    known = {column.index for column in run.columns}
    columns = run.columns if all(case.column in known for case in cases) else _columns_of(cases)
    return replace(run, id=_safe_id(run.id), status=status, config=mask_config(run.config), columns=columns)


def _safe_id(written: str) -> str:
    safe = _NOT_IN_ID.sub("-", written).strip("-_")[:80]
    return safe if _ID.fullmatch(safe) and safe != LATEST else new_run_id()


def _new_run(path: Path, cases: Sequence[CaseResult], config: JsonValue, **known: Any) -> RunRecord:
    values = {"status": RunStatus.COMPLETED, "finished_at": time_now(), **known}
    return new_run(str(path), mask_config(config), _columns_of(cases), **values)


def _columns_of(cases: Iterable[CaseResult]) -> tuple[Column, ...]:
    found = {case.column: Column(case.column, case.prompt.label, case.provider.label) for case in cases}
    return tuple(found[index] for index in sorted(found))


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
