"""`-o results.csv`: one row for each case, for spreadsheets and data frames."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from geval_cli.events import RunEvent
from geval_cli.judge.source import said
from geval_cli.records import AssertionResult, CaseResult, Role, Status, Usage
from geval_cli.report.case_view import assertion_name, whole_reason, why_otherwise
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import value_text

_BYTE_ORDER_MARK = "\ufeff"  # without it, spreadsheets assume another encoding than UTF-8
_FORMULA_STARTS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_FORMULA_LINE = re.compile("([\r\n])(?=[=@\uff1d\uff20]|[+\\-\uff0b\uff0d]\\S)")  # "- one" is a list item
_KEPT_LINE = re.compile("([\r\n])'(?=[=@\uff1d\uff20]|[+\\-\uff0b\uff0d]\\S)")
_FIXED_COLUMNS = (
    "test",
    "repeat",
    "description",
    "prompt",
    "provider",
    "status",
    "score",
    "output",
    "tool_calls",
    "reasons",
    "error",
    "latency_ms",
    "cached",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "cost_usd_generated",
    "rendered_prompt",
)
SCORE_COLUMN, VARIABLE_COLUMN, METADATA_COLUMN, CONVERSATION_COLUMN, END_COLUMN = (
    "score",
    "var",
    "metadata",
    "conversation",
    "ended_by",
)


class CsvFile:
    """A results file that needs the whole report and ignores the events.

    Columns: the fixed ones, what the tests contain besides their variables (`input`, `expected_output`, ...), then
    `score <metric>`, `var <name>` and `metadata <name>` for every name that occurs,
    and `conversation` and `ended_by` if a result has them.
    Texts that a spreadsheet would take for a formula are prefixed with an apostrophe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        with SafeFile(self._path) as file:
            for text in csv_document(report.results):
                file.write(text)


def csv_document(results: Callable[[], Iterator[CaseResult]]) -> Iterator[str]:
    """Yield the text of a CSV file in parts, one per result; it reads the results twice."""
    names = _Names()
    for result in results():
        names.add(result)
    yield _BYTE_ORDER_MARK + csv_line(names.header())
    for result in results():
        cells = csv_cells(result)
        named = [cells.asked.get(name, "") for name in names.asked]
        named += [cells.scores.get(name, "") for name in names.metrics]
        named += [cells.variables.get(name, "") for name in names.variables]
        named += [cells.metadata.get(name, "") for name in names.metadata]
        named += [cells.conversation] if names.has_turns else []
        named += [_quoted(result.ended_by or "")] if names.has_ends else []
        yield ",".join([cells.fixed, *named]) + "\r\n"


class _Names(Struct):
    """The metrics, variables and metadata that occur in a run; dicts keep them in the order of appearance."""

    metrics: dict[str, None] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)
    metadata: dict[str, None] = field(default_factory=dict)
    has_turns: bool = False
    has_ends: bool = False
    asked: dict[str, None] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        self.metrics.update(dict.fromkeys(result.named_scores))
        self.variables.update(dict.fromkeys(result.vars))
        self.metadata.update(dict.fromkeys(result.metadata))
        if result.asked is not None:
            self.asked.update(dict.fromkeys(result.asked.texts))
        self.has_turns = self.has_turns or bool(result.turns)
        self.has_ends = self.has_ends or bool(result.ended_by)

    def header(self) -> list[str]:
        return [
            *_FIXED_COLUMNS,
            *self.asked,
            *(f"{SCORE_COLUMN} {name}" for name in self.metrics),
            *(f"{VARIABLE_COLUMN} {name}" for name in self.variables),
            *(f"{METADATA_COLUMN} {name}" for name in self.metadata),
            *([CONVERSATION_COLUMN] if self.has_turns else []),
            *([END_COLUMN] if self.has_ends else []),
        ]


class CsvCells(Struct, frozen=True):
    """The cells of a result as they are written to a file: quoted, and harmless to spreadsheets.

    Attributes:
        fixed: the cells of the columns that every file has, joined.
        asked: what the test contains besides its variables, by name.
        scores: the scores by metric; likewise `variables` and `metadata` by name.
        conversation: the turns as text; empty if there are none.
    """

    fixed: str
    scores: Mapping[str, str]
    variables: Mapping[str, str]
    metadata: Mapping[str, str]
    conversation: str = ""
    asked: Mapping[str, str] = {}


def csv_cells(result: CaseResult) -> CsvCells:
    """Return the cells of a result."""
    return CsvCells(
        ",".join(map(_quoted, _fixed_cells(result))),
        {name: _quoted(_number(score)) for name, score in result.named_scores.items()},
        {name: _quoted(value_text(value)) for name, value in result.vars.items()},
        {name: _quoted(value_text(value)) for name, value in result.metadata.items()},
        _quoted("\n".join(f"{turn.role}: {said(turn)}" for turn in result.turns)),
        {name: _quoted(text) for name, text in (result.asked.texts if result.asked else {}).items()},
    )


def _fixed_cells(result: CaseResult) -> Iterator[str]:
    usage = sum(result.usage.values(), Usage())
    yield str(result.test_index + 1)
    yield str(result.repeat_index + 1)
    yield result.description or ""
    yield result.prompt.label
    yield result.provider.label
    yield result.status.value
    yield _number(result.score)
    yield "" if result.output is None else value_text(result.output)
    yield json.dumps(result.tool_calls, ensure_ascii=False, default=str) if result.tool_calls else ""
    yield "\n".join(reasons_of(result))
    yield "" if result.error is None else f"{result.error.type}: {result.error.message}"
    yield _number(
        result.latency_ms
        if result.latency_ms or result.usage.get(Role.GENERATION, Usage()).requests
        else None
    )
    yield "yes" if result.cached else "no"
    yield str(usage.input_tokens)
    yield str(usage.output_tokens)
    yield _number(usage.cost_usd)
    yield _number(result.cost_usd_generated)
    yield result.prompt.rendered


def reasons_of(result: CaseResult) -> Iterator[str]:
    """Yield a line for each assertion that failed or, where that decides, was not judged, including nested ones.

    If the test's own threshold decided, the first line says so.
    """
    if whole := whole_reason(result):
        yield whole
    told = {Status.FAILED, Status.ERROR, result.status} - {Status.PASSED}
    yield from _reasons(result.assertions, told)


def _reasons(assertions: tuple[AssertionResult, ...], told: set[Status]) -> Iterator[str]:
    for item in assertions:
        if item.status in told:
            name = assertion_name(item)
            why = ": ".join(filter(None, (why_otherwise(item), item.reason)))
            said = why if item.error is None else f"{item.error.type}: {item.error.message}"
            yield f"{name}: {said}" if said else name
            yield from _reasons(item.assertions, told)


def _number(value: float | None) -> str:
    return "" if value is None else repr(round(value, 9))


def csv_line(cells: Iterable[str]) -> str:
    """Return texts as one row of a CSV file, each harmless to spreadsheets."""
    return ",".join(map(_quoted, cells)) + "\r\n"


def csv_start() -> str:
    """Return the start of a file: its byte order mark, and the headings of the columns that every file has."""
    return _BYTE_ORDER_MARK + ",".join(map(csv_head, _FIXED_COLUMNS))


def csv_head(name: str) -> str:
    """Return a column name as it is written in the first line of a file."""
    return _quoted(name)


def _quoted(cell: str) -> str:
    """Return text in quotes even where it needs none: some programs count characters to guess the separator."""
    cell = _harmless(cell)
    return cell if cell == "" or _is_number(cell) else '"' + cell.replace('"', '""') + '"'


def _harmless(cell: str) -> str:
    """Return a cell that no spreadsheet computes; NUL, which no reader accepts, is replaced. Numbers are unchanged."""
    cell = cell.replace("\0", "\ufffd").encode("utf-8", errors="replace").decode()
    if _is_number(cell):
        return cell
    # A program that guesses a separator other than the comma takes each line of a cell for a row of its own.
    inner = _FORMULA_LINE.sub(r"\1'", cell)
    return "'" + inner if cell[:1] in _FORMULA_STARTS else inner


def formula_text(cell: str) -> str:
    """Return the text of a cell that `csv_line` wrote, without the apostrophes that protect it from being computed."""
    inner = _KEPT_LINE.sub(r"\1", cell)
    return inner[1:] if inner[:1] == "'" and inner[1:2] in _FORMULA_STARTS else inner


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and cell == cell.strip()
