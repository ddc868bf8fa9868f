"""`-o results.parquet`: one row for each case, for data frames and databases; `geval import run` reads it again.

The tests are beside it in `results.tests.parquet`, one row for each, joined by `test_index`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from geval_cli.errors import OutputError
from geval_cli.events import RunEvent
from geval_cli.metrics import with_members
from geval_cli.records import ASKED_TEXTS, SCHEMA_VERSION, CaseResult, JsonValue, Usage
from geval_cli.report.csv_file import reasons_of
from geval_cli.report.json_file import json_text, result_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile, output_error
from geval_cli.report.sanitize import value_text
from geval_cli.source.parquet import RESULT_COLUMN, RESULTS_METADATA, TEST_COLUMN, file_of_tests, parquet_hint

_GROUP_ROWS = 20_000
_GROUP_CHARACTERS = 8 << 20
_METRIC, _REASON, _VARIABLE, _METADATA = "metric.", "reason.", "var.", "metadata."


class ParquetResultsFile:
    """A results file that needs the whole report; it lets the events pass.

    Columns: the numbers of the case, what it is about, what the test brings (`input`, `expected_output`, ... and all of
    it as JSON in `test`; equal texts are kept once), the prompt, the output, its status, score (0 to 1, null without
    one), why it failed, cost and latency, `metric.NAME`, `reason.NAME` and `var.NAME` for all that occur, and `result`,
    all of it as JSON. The run and its summary are kept beside the rows, in the metadata of the schema.

    The file of tests has, for each: its number and key, description, texts, `vars` and `metadata` as JSON, and
    `var.NAME` and `metadata.NAME` for all that occur.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        try:
            import pyarrow  # noqa: PLC0415 - an extra, and slow to import
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError as error:
            message = f"cannot write {self._path}: Parquet needs the package pyarrow"
            raise OutputError(message, path=str(self._path), hint=parquet_hint()) from error
        metrics: dict[str, None] = {}
        variables: dict[str, None] = {}
        metadata: dict[str, None] = {}
        for result in report.results():
            metrics.update(dict.fromkeys(result.named_scores))
            variables.update(dict.fromkeys(result.vars))
            metadata.update(dict.fromkeys(result.metadata))
        head = {"schema_version": SCHEMA_VERSION, "run": report.run, "summary": report.summary}
        kept = {RESULTS_METADATA: json_text(head).encode()}
        columns = {**case_columns(metrics, variables), TEST_COLUMN: str, RESULT_COLUMN: str}
        tests = {**_TEST_COLUMNS, **_text_columns(_VARIABLE, variables), **_text_columns(_METADATA, metadata)}
        arrow = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}
        schema, tests_schema = (
            pyarrow.schema([(name, arrow[kind]) for name, kind in kinds.items()], about)
            for kinds, about in ((columns, kept), (tests, {}))
        )
        try:
            with (
                SafeFile(file_of_tests(self._path)) as tests_file,
                parquet.ParquetWriter(tests_file.binary, tests_schema) as tests_writer,
                SafeFile(self._path) as file,
                parquet.ParquetWriter(file.binary, schema) as writer,
            ):
                for rows, test_rows in _groups(report, metrics, variables, metadata):
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                    if test_rows:
                        tests_writer.write_table(pyarrow.Table.from_pylist(test_rows, tests_schema))
        except OSError as error:
            raise output_error(self._path, error) from error


def case_columns(metrics: Iterable[str], variables: Iterable[str]) -> dict[str, type]:
    """Return the columns of `case_row` with the types of their values, all of which may be null."""
    text, number, whole = str, float, int
    return {
        "id": text,
        "test_index": whole,
        "repeat_index": whole,
        "column": whole,
        "test_key": text,
        "description": text,
        "prompt": text,
        "provider": text,
        "status": text,
        "ended_by": text,
        "score": number,
        "cost_usd": number,
        "cost_usd_generated": number,
        "latency_ms": number,
        **{f"{_METRIC}{_clean(name)}": number for name in metrics},
        **dict.fromkeys(("output", "reasons", "error", "rendered_prompt"), text),
        **dict.fromkeys(ASKED_TEXTS, text),
        **_text_columns(_REASON, metrics),
        **_text_columns(_VARIABLE, variables),
    }


_TEST_COLUMNS: dict[str, type] = {
    "test_index": int,
    **dict.fromkeys(("test_key", "description", *ASKED_TEXTS, "vars", "metadata"), str),
}


def _text_columns(prefix: str, names: Iterable[str]) -> dict[str, type]:
    return {f"{prefix}{_clean(name)}": str for name in names}


def _groups(
    report: RunReport, metrics: Iterable[str], variables: Iterable[str], metadata: Iterable[str]
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield rows of cases, and those of the tests that are new in them, in groups that fit into memory."""
    rows: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    seen: set[int] = set()
    size = 0
    for result in report.results():
        row = case_row(result, metrics, variables)
        row[TEST_COLUMN] = None if result.asked is None else json_text(result.asked)
        row[RESULT_COLUMN] = result_text(result)
        rows.append(row)
        size += len(row[RESULT_COLUMN]) + len(row[TEST_COLUMN] or "")
        if result.test_index not in seen:
            seen.add(result.test_index)
            tests.append(_test_row(result, variables, metadata))
        if len(rows) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
            yield rows, tests
            rows, tests, size = [], [], 0
    if rows:
        yield rows, tests


def _test_row(result: CaseResult, variables: Iterable[str], metadata: Iterable[str]) -> dict[str, Any]:
    """Return the test of a case as a row of a table."""
    texts = {} if result.asked is None else result.asked.texts
    said: dict[str, str | None] = {
        "test_key": result.test_key,
        "description": result.description,
        **{name: texts.get(name) for name in ASKED_TEXTS},
        "vars": json_text(result.vars),
        "metadata": json_text(result.metadata),
        **_texts_of(_VARIABLE, result.vars, variables),
        **_texts_of(_METADATA, result.metadata, metadata),
    }
    return {"test_index": result.test_index, **_cleaned(said)}


def _texts_of(prefix: str, values: Mapping[str, JsonValue], names: Iterable[str]) -> dict[str, str | None]:
    """Return values as texts, nested ones as JSON, by the names of their columns."""
    return {f"{prefix}{name}": value_text(values[name]) if name in values else None for name in names}


def _cleaned(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    return {_clean(name): None if text is None else _clean(text) for name, text in texts.items()}


def case_row(result: CaseResult, metrics: Iterable[str], variables: Iterable[str]) -> dict[str, Any]:
    """Return a case as a row of a table: numbers, texts and None, which UTF-8 can hold, by the names of columns."""
    texts = {} if result.asked is None else result.asked.texts
    error = None if result.error is None else f"{result.error.type}: {result.error.message}"
    said: dict[str, str | None] = {
        "output": None if result.output is None else value_text(result.output),
        "reasons": "\n".join(reasons_of(result)) or None,
        "error": error,
        "rendered_prompt": result.prompt.rendered,
        **{name: texts.get(name) for name in ASKED_TEXTS},
        **{f"{_REASON}{name}": _reasons_for(name, result) for name in metrics},
        **_texts_of(_VARIABLE, result.vars, variables),
    }
    return {
        "id": result.id,
        "test_index": result.test_index,
        "repeat_index": result.repeat_index,
        "column": result.column,
        "test_key": None if result.test_key is None else _clean(result.test_key),
        "description": None if result.description is None else _clean(result.description),
        "prompt": _clean(result.prompt.label),
        "provider": _clean(result.provider.label),
        "status": result.status.value,
        "ended_by": result.ended_by or None,
        "score": _finite(result.score),
        "cost_usd": sum(result.usage.values(), Usage()).cost_usd,
        "cost_usd_generated": result.cost_usd_generated,
        "latency_ms": result.latency_ms,
        **{f"{_METRIC}{_clean(name)}": _finite(result.named_scores.get(name)) for name in metrics},
        **_cleaned(said),
    }


def _reasons_for(metric: str, result: CaseResult) -> str | None:
    """Return what the assertions of a metric say, whether they passed or not; None where they say nothing."""
    found = [
        item.reason for item, _ in with_members(result.assertions) if item.metric == metric and item.reason
    ]
    return "\n".join(found) or None


def _clean(text: str) -> str:
    """Return a text that UTF-8 can hold: half a surrogate pair becomes U+FFFD."""
    return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
