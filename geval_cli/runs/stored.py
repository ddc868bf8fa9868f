"""Runs by name: stored ones, and results files: those that `geval run -o` wrote are read result by result."""

import codecs
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, UsageError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.plugins import extra
from geval_cli.records import (
    AskedTest,
    CaseResult,
    Column,
    JsonValue,
    ProviderRef,
    RenderedPrompt,
    RunRecord,
    RunStatus,
    RunSummary,
    asked_test_from_json,
    run_record_from_json,
    run_summary_from_json,
)
from geval_cli.report.report import HumanLabels, RunReport
from geval_cli.runs.import_run import ToldTests, newer_version, parquet_head, read_importable, summarized
from geval_cli.runs.spending import combined, larger
from geval_cli.source.access import TRUSTED, Access, open_regular
from geval_cli.source.files import MAX_CONFIG_BYTES, PARQUET_SUFFIX
from geval_cli.store.run_pages import read_asked_test, read_case_result
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

_ENDINGS = (".json", ".jsonl", PARQUET_SUFFIX)
_TESTS = b'"tests": ['
_RESULTS = b'"results": ['
"""The line after which our own files have a result in each line; what other tools wrote anew is read whole."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
T = TypeVar("T")
_HINT = "use a file that `geval run -o FILE` wrote, or a run from `geval list`"


_NAMELESS = RunRecord(
    id="",
    status=RunStatus.COMPLETED,
    started_at="",
    finished_at=None,
    duration_ms=None,
    tool_version="",
    config_path="",
    config_digest="",
    config=None,
)
"""The run of results without one."""


class _Place(Struct):
    """The column of a result."""

    column: int
    prompt: RenderedPrompt
    provider: ProviderRef


_PLACES = msgspec.json.Decoder(_Place)


def named_report(name: str, runs: RunStore, access: Access = TRUSTED) -> RunReport:
    """Return the run that `name` means: an id, its beginning, `latest`, `latest~1`, or the path of a results file.

    A results file is one that `geval run -o` wrote (.json, .jsonl, .parquet), or promptfoo's results of version 3.

    Raises:
        UsageError: there is no such run or file, or it holds no results.
        ConfigError: promptfoo's results have problems; all of them, with their places.
        StoreError: stored runs cannot be read.
    """
    if is_results_file(name):
        # The name of the file stands for an id that it lacks.
        report = read_results_file(Path(name), access)
        path = Path(name)
        run = report.run if report.run.id else replace(report.run, id=path.name)
        summary = report.summary if report.run.id else summarized(run, report.results)
        return replace(report, run=run, summary=summary, file=str(path))
    return load_report(runs, name)


@contextmanager
def open_report(
    name: str, home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[RunReport, tuple[str, ...]]]:
    """Open one run as `open_reports` does."""
    with open_reports([name], home, environ) as (reports, warnings):
        yield reports[0], warnings


@contextmanager
def open_reports(
    names: Sequence[str], home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[list[RunReport], tuple[str, ...]]]:
    """Open runs for reading, until the end of the block, with warnings about the store; names as in `named_report`.

    Raises:
        UsageError: there is no such run or file, or it holds no results.
        ConfigError: promptfoo's results have problems.
        StoreError: the database cannot be read.
    """
    if all(map(is_results_file, names)):  # no store is needed, so there may be none
        with RunStore.open_in_memory() as nothing:
            yield [named_report(name, nothing) for name in names], ()
        return
    with open_runs(home, environ) as runs:
        try:
            reports = [named_report(name, runs) for name in names]
        except UsageError as error:
            if runs.warnings:  # a run may be missing because a damaged database was moved aside
                raise UsageError("; ".join((error.message, *runs.warnings)), hint=error.hint) from error
            raise
        yield reports, runs.warnings


def load_report(runs: RunStore, name: str) -> RunReport:
    """Return a stored run as the reports read it; `name` is an id, its beginning, or `latest`.

    Raises:
        UsageError: no run, or more than one, has this name.
    """
    run, summary = runs.find(name)
    origin = runs.origin(run.id)
    if summary is None:
        spent = origin.spent if origin is not None and origin.spent is not None else {}
        summary = summarized(run, lambda: runs.results(run.id))
        summary = replace(summary, usage=combined(summary.usage, spent, larger))
    planned = None if origin is None else origin.planned
    return RunReport(
        run,
        summary,
        lambda: runs.results(run.id),
        planned=planned,
        labels=lambda: kept_labels_of(runs, run.id),
        tests=lambda: runs.tests(run.id),
    )


def kept_labels_of(runs: RunStore, run_id: str) -> HumanLabels | None:
    """Return what people said of the outputs of a stored run; None where nobody did."""
    kept = runs.labels().of_run(run_id)
    if not kept:
        return None
    labelled = runs.pages().cases(run_id, {label.case_id for label in kept})
    found: HumanLabels = extra("human labels").beside_judge(labelled.values(), kept)
    return found


def is_results_file(name: str) -> bool:
    """Return whether a name is that of a file, and not of a stored run."""
    return Path(name).suffix.lower() in _ENDINGS


def read_results_file(path: Path, access: Access = TRUSTED) -> RunReport:
    """Return the run in a file; its results are read anew each time, and never all held.

    A .jsonl file holds results only: the id of its run is empty then. Promptfoo's results are held.

    Raises:
        UsageError: the file cannot be read, or holds no results; going through the results may raise it, too.
        ConfigError: promptfoo's results have problems.
    """
    if _is_promptfoo(path, access):
        imported = read_importable(path, access)
        counted = summarized(imported.run, lambda: iter(imported.results))
        return RunReport(imported.run, counted, lambda: iter(imported.results), is_stored=False)
    run, summary = _head_of(path, access)
    if not run.columns:
        found: dict[int, Column] = {}
        for item in _read(path, access, lambda text, _: _PLACES.decode(text)):
            if item.column not in found:
                found[item.column] = Column(item.column, item.prompt.label, item.provider.label)
        columns_in = tuple(found[index] for index in sorted(found))
        run = replace(run, columns=columns_in)
    return RunReport(run, summary, lambda: _read(path, access, _with_test), is_stored=False)


def _with_test(text: bytes, test: Callable[[int], AskedTest | None]) -> CaseResult:
    result = read_case_result(text)
    return replace(result, test=test(result.test_index) or result.test)


def _read(
    path: Path, access: Access, decode: Callable[[bytes, Callable[[int], AskedTest | None]], T]
) -> Iterator[T]:
    """Yield what `decode` makes of each result of a file, and of a way to its test."""
    try:
        if _is_parquet(path):
            for _, text, written in extra("Parquet files").read_result_texts(path, access):
                asked = None if written is None else read_asked_test(written)
                yield decode(text.encode(), partial(_same, asked))
            return
        with _opened(path, access) as file, _opened(path, access) as beside:
            if path.suffix.lower() == ".jsonl":
                told = ToldTests()
                for line in file:
                    if line.strip() and not told.take(line):
                        yield decode(line, told.get)
            elif _skip_head(file) is not None:
                tests = _ListedTests(beside)
                yield from (decode(line, tests.get) for line in _listed_results(file))
            else:
                whole = _whole(path, access)
                found = map(asked_test_from_json, whole.get("tests") or ())
                by_index = {item.index: item for item in found}
                yield from (decode(encode_json(item), by_index.get) for item in whole["results"])
    except OSError as error:
        raise _cannot_read(path, error) from error
    except ConfigError as error:
        raise _not_parquet(error) from error
    except _UNREADABLE as error:
        raise UsageError(f"{path} is not a geval results file", hint=_HINT) from error


def _same(asked: AskedTest | None, _: int) -> AskedTest | None:
    return asked


class _ListedTests:
    """The tests at the head of a file, a line each, gone through beside its results: both are in the order of tests."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lines = self._begun()
        self._last: AskedTest | None = None

    def get(self, index: int) -> AskedTest | None:
        """Return the test with this index."""
        if self._last is not None and self._last.index > index:  # out of order: somebody wrote the file anew
            self._lines, self._last = self._begun(), None
        while self._last is None or self._last.index < index:
            line = next(self._lines, None)
            if line is None:
                return None
            self._last = read_asked_test(line)
        return self._last if self._last.index == index else None

    def _begun(self) -> Iterator[bytes]:
        self._file.seek(0)
        for line in self._file:
            text = line.rstrip(b"\r\n")
            if text == _RESULTS:
                return
            if text == _TESTS:
                break
        for line in self._file:
            text = line.strip()
            if text == b"],":
                return
            if text:
                yield text.removesuffix(b",")


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == PARQUET_SUFFIX


def _not_parquet(error: ConfigError) -> UsageError:
    first = error.problems[0]
    return UsageError(first.message, hint=first.hint)


def _head_of(path: Path, access: Access) -> tuple[RunRecord, RunSummary]:
    """Return the run and its summary; for a .jsonl file, which has neither, empty ones."""
    try:
        if path.suffix.lower() == ".jsonl":
            with _opened(path, access):
                return _NAMELESS, RunSummary()
        data = _parsed_head(path, access)
        newer = newer_version(data)
        if newer is not None:
            raise UsageError(f"{path} was written by a newer geval: {newer}", hint="update geval to read it")
        if (
            _is_parquet(path) and "run" not in data
        ):  # written anew by another program, which kept the rows alone
            return _NAMELESS, RunSummary()
        return run_record_from_json(data["run"]), run_summary_from_json(data["summary"])
    except OSError as error:
        raise _cannot_read(path, error) from error
    except _UNREADABLE as error:
        raise UsageError(f"{path} is not a geval results file", hint=_HINT) from error


def _parsed_head(path: Path, access: Access) -> Mapping[str, Any]:
    """Return what a file has beside its results."""
    if _is_parquet(path):
        try:
            return parquet_head(path, access)
        except ConfigError as error:
            raise _not_parquet(error) from error
    with _opened(path, access) as file:
        head = _skip_head(file)
    return _whole(path, access) if head is None else decode_json(head + _RESULTS + b"]}")


def _is_promptfoo(path: Path, access: Access) -> bool:
    """Return whether a file looks like promptfoo's results; one that cannot be read does not."""
    if path.suffix.lower() in {".jsonl", PARQUET_SUFFIX}:
        return False
    try:
        with _opened(path, access) as file:
            if _skip_head(file) is not None:
                return False
        return isinstance(_whole(path, access).get("results"), dict)
    except (OSError, *_UNREADABLE):
        return False


def _opened(path: Path, access: Access) -> BinaryIO:
    """Return a file to be read from its first letter: other programs put a mark of the encoding before it."""
    file = open_regular(path, access)
    if access.is_strangers and os.fstat(file.fileno()).st_size > MAX_CONFIG_BYTES:
        file.close()
        raise OSError(errno.EFBIG, f"it is larger than {MAX_CONFIG_BYTES >> 20} MB")
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    return file


def _skip_head(file: BinaryIO) -> bytes | None:
    """Return what stands before the results, and leave the file at the first of them; None where no line says so."""
    lines: list[bytes] = []
    is_in_tests = False
    for line in file:
        text = line.rstrip(b"\r\n")
        if text == _RESULTS:
            return b"".join(lines)
        if text == _TESTS:  # as many as there are: they are read beside the results
            is_in_tests = True
        elif not is_in_tests:
            lines.append(line)
        elif text == b"],":
            is_in_tests = False
    return None


def _listed_results(file: BinaryIO) -> Iterator[bytes]:
    """Yield the results that stand in a line each, up to the end of their list.

    Raises:
        ValueError: the list does not end: the file was cut.
    """
    for line in file:
        text = line.rstrip()
        if text == b"]":
            return
        yield text.removesuffix(b",")
    raise ValueError("the list of results has no end")


def _whole(path: Path, access: Access) -> Mapping[str, JsonValue]:
    with _opened(path, access) as file:
        data = decode_json(file.read())
    if not isinstance(data, dict):
        raise TypeError("no mapping")
    return data


def _cannot_read(path: Path, error: OSError) -> UsageError:
    hint = "use a run from `geval list`, or a file that `geval run -o FILE` wrote"
    return UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}", hint=hint)
