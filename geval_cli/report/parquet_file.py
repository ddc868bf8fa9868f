"""`-o results.parquet`: one row for each case, for data frames and databases; `geval import run` reads it again."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from geval_cli.errors import OutputError
from geval_cli.events import RunEvent
from geval_cli.metrics import with_members
from geval_cli.records import ASKED_TEXTS, SCHEMA_VERSION, CaseResult, Usage
from geval_cli.report.csv_file import reasons_of
from geval_cli.report.json_file import json_text, result_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile, output_error
from geval_cli.report.sanitize import value_text
from geval_cli.source.parquet import INSTALL_HINT, RESULT_COLUMN, RESULTS_METADATA, TEST_COLUMN

_GROUP_ROWS = 20_000
_GROUP_CHARACTERS = 8 << 20
_METRIC, _REASON, _VARIABLE = "metric.", "reason.", "var."


class ParquetResultsFile:
    """A results file that needs the whole report; it lets the events pass.

    Columns: the numbers of the case, what it is about, what the test brings (`input`, `expected_output`, ... and all of
    it as JSON in `test`; equal texts are kept once), the prompt, the output, its status, score (0 to 1, null without
    one), why it failed, cost and latency, `metric.NAME`, `reason.NAME` and `var.NAME` for all that occur, and `result`,
    all of it as JSON. The run and its summary are kept beside the rows, in the metadata of the schema.
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
            raise OutputError(message, path=str(self._path), hint=INSTALL_HINT) from error
        metrics: dict[str, None] = {}
        variables: dict[str, None] = {}
        for result in report.results():
            metrics.update(dict.fromkeys(result.named_scores))
            variables.update(dict.fromkeys(result.vars))
        schema = _schema(pyarrow, metrics, variables, report)
        try:
            with SafeFile(self._path) as file, parquet.ParquetWriter(file.binary, schema) as writer:
                for rows in _groups(report, metrics, variables):
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
        except OSError as error:
            raise output_error(self._path, error) from error


def _schema(pyarrow: Any, metrics: Iterable[str], variables: Iterable[str], report: RunReport) -> Any:
    text, number, whole = pyarrow.string(), pyarrow.float64(), pyarrow.int64()
    fields = {
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
        **{f"{_REASON}{_clean(name)}": text for name in metrics},
        **{f"{_VARIABLE}{_clean(name)}": text for name in variables},
        TEST_COLUMN: text,
        RESULT_COLUMN: text,
    }
    head = {"schema_version": SCHEMA_VERSION, "run": report.run, "summary": report.summary}
    return pyarrow.schema(list(fields.items()), {RESULTS_METADATA: json_text(head).encode()})


def _groups(
    report: RunReport, metrics: Iterable[str], variables: Iterable[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in groups that fit into memory, whatever the size of the run and of its results."""
    rows: list[dict[str, Any]] = []
    size = 0
    for result in report.results():
        row = case_row(result, metrics, variables)
        row[TEST_COLUMN] = None if result.asked is None else json_text(result.asked)
        row[RESULT_COLUMN] = result_text(result)
        rows.append(row)
        size += len(row[RESULT_COLUMN]) + len(row[TEST_COLUMN] or "")
        if len(rows) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


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
        **{
            f"{_VARIABLE}{name}": value_text(result.vars[name]) if name in result.vars else None
            for name in variables
        },
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
        **{_clean(name): None if text is None else _clean(text) for name, text in said.items()},
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
