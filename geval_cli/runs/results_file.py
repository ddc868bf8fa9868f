"""Runs by name: stored ones, and files that `geval run -o` wrote, read result by result."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from geval_cli.errors import UsageError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.record_reading import run_record_from_json, run_summary_from_json
from geval_cli.records import CaseResult, Column, JsonValue, RunRecord, RunStatus, RunSummary
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import load_report
from geval_cli.store.record_text import read_case_result
from geval_cli.store.runs import RunStore

_ENDINGS = (".json", ".jsonl")
_RESULTS = '"results": ['
"""The line after which our own files have a result in each line; what other tools wrote anew is read whole."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_HINT = "name a file that `geval run -o FILE` wrote, or a run of `geval list`"


def named_report(name: str, runs: RunStore, *, folder: Path | None = None) -> RunReport:
    """Return the run that `name` means: a results file, relative to `folder`, or a stored run.

    Raises:
        UsageError: there is no such run or file, or it holds no results.
        StoreError: stored runs cannot be read.
    """
    if is_results_file(name):
        return read_results_file((folder or Path()) / name)
    return load_report(runs, name)


def is_results_file(name: str) -> bool:
    """Return whether a name is that of a file, and not of a stored run."""
    return Path(name).suffix.lower() in _ENDINGS


def read_results_file(path: Path) -> RunReport:
    """Return the run in a file; its results are read anew each time, and never all held.

    A .jsonl file holds results only: the id of its run is empty then.

    Raises:
        UsageError: the file cannot be read, or holds no results; going through the results may raise it, too.
    """
    run, summary = _head_of(path)
    if not run.columns:
        columns = {
            item.column: Column(item.column, item.prompt.label, item.provider.label)
            for item in results_in(path)
        }
        run = replace(run, columns=tuple(columns[index] for index in sorted(columns)))
    return RunReport(run, summary, lambda: results_in(path), is_stored=False)


def results_in(path: Path) -> Iterator[CaseResult]:
    """Yield the results of a file in their order; the errors of `read_results_file`."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            if path.suffix.lower() == ".jsonl":
                yield from (read_case_result(line) for line in file if line.strip())
            elif _skip_head(file) is not None:
                yield from _listed_results(file)
            else:
                yield from map(_result, _whole(path)["results"])
    except OSError as error:
        raise _cannot_read(path, error) from error
    except _UNREADABLE as error:
        raise UsageError(f"{path} holds no results of geval", hint=_HINT) from error


def _head_of(path: Path) -> tuple[RunRecord, RunSummary]:
    """Return the run and its summary; for a .jsonl file, which has neither, empty ones."""
    try:
        if path.suffix.lower() == ".jsonl":
            with path.open("rb"):
                return RunRecord("", RunStatus.COMPLETED, "", None, None, "", "", "", None), RunSummary()
        with path.open(encoding="utf-8-sig") as file:
            head = _skip_head(file)
        data = _whole(path) if head is None else decode_json(f"{head}{_RESULTS}]}}")
        return run_record_from_json(data["run"]), run_summary_from_json(data["summary"])
    except OSError as error:
        raise _cannot_read(path, error) from error
    except _UNREADABLE as error:
        raise UsageError(f"{path} holds no results of geval", hint=_HINT) from error


def _skip_head(file: TextIO) -> str | None:
    """Return what stands before the results, and leave the file at the first of them; None where no line says so."""
    lines: list[str] = []
    for line in file:
        if line.rstrip("\n") == _RESULTS:
            return "".join(lines)
        lines.append(line)
    return None


def _listed_results(file: TextIO) -> Iterator[CaseResult]:
    """Yield the results that stand in a line each, up to the end of their list.

    Raises:
        ValueError: the list does not end: the file was cut.
    """
    for line in file:
        text = line.rstrip()
        if text == "]":
            return
        yield read_case_result(text.removesuffix(","))
    raise ValueError("the list of results has no end")


def _whole(path: Path) -> Mapping[str, JsonValue]:
    data = decode_json(path.read_text(encoding="utf-8-sig"))
    if not isinstance(data, dict):
        raise TypeError("no mapping")
    return data


def _result(data: JsonValue) -> CaseResult:
    return read_case_result(encode_json(data).decode())


def _cannot_read(path: Path, error: OSError) -> UsageError:
    hint = "name a run of `geval list`, or a file that `geval run -o FILE` wrote"
    return UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}", hint=hint)
