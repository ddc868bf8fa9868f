"""The matrix of a run: one row a test, one column a prompt x provider pair; a block a test where that does not fit."""

from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import plural
from geval_cli.records import CaseResult, Column, Status
from geval_cli.report.case_view import PROBLEMS, case_number, case_title, has_fallback, is_split
from geval_cli.report.console import indented, plain_table, print_trimmed
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line, value_text
from geval_cli.report.verdict import VERDICT_WIDTH, cell_verdict, column_title, print_legend, signs_of

ROWS_MAX = 50
SMALL_MAX, _WITH_EXCERPTS_MAX = 30, 6
_TITLE_MIN, _TITLE_MAX = 16, 40
_EXCERPT_MIN = 18
"""A narrower cell shows its verdict alone: fragments of an output are of no use."""
_CELL_MAX = 60
_LINES_MAX = 100
"""In the block layout, more results than this leave out the ones that passed."""
_GAP = 3
_BLOCK_VERDICT_MAX = 28

Row = tuple[CaseResult, ...]


class TableRows(Struct):
    """The rows that the table of a run shows, picked while its results go by in the order of the tests.

    A run of more than 50 rows shows only those with a failure or an error, at most 50.
    """

    total: int = 0
    problems: int = 0
    _first: list[Row] = field(default_factory=list)
    _with_problems: list[Row] = field(default_factory=list)
    _row: Row = ()

    def add(self, result: CaseResult) -> None:
        """Take in the next result."""
        if self._row and _place(result) != _place(self._row[0]):
            self._end_row()
        self._row = (*self._row, result)

    def end(self) -> None:
        """Nothing comes any more."""
        if self._row:
            self._end_row()

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._first if self.total <= ROWS_MAX else self._with_problems)

    @property
    def is_whole(self) -> bool:
        return len(self.rows) == self.total

    def _end_row(self) -> None:
        row, self._row = self._row, ()
        self.total += 1
        if self.total <= ROWS_MAX:
            self._first.append(row)
        if any(result.status in PROBLEMS for result in row):
            self.problems += 1
            if self.problems <= ROWS_MAX:
                self._with_problems.append(row)


class _Layout(Struct, frozen=True):
    """Widths in terminal cells; `cell` is 0 where only a block a test fits."""

    number: int
    title: int
    cell: int


def print_table(rows: TableRows, report: RunReport, console: Console) -> None:
    """Print the matrix of the results that `rows` took in."""
    rows.end()
    if not rows.total:
        return
    layout = _fit(rows.rows, len(report.columns), console.width)
    if rows.rows and layout.cell:
        _print_matrix(rows.rows, report.columns, console, layout)
    elif rows.rows:
        _print_blocks(rows.rows, report.columns, console)
    _print_notes(rows, report, console)


def print_small_table(rows: TableRows, report: RunReport, console: Console) -> None:
    """Print the matrix of a run of at most 30 tests, where a cell has room for a verdict: a line a test.

    A failed cell names the metric that failed it; where the whole is a few lines, cells show the beginning of outputs.
    """
    rows.end()
    if not 0 < rows.total <= SMALL_MAX:
        return
    layout = _fit(rows.rows, len(report.columns), console.width)
    if layout.cell:
        is_short = rows.total <= _WITH_EXCERPTS_MAX
        _print_matrix(rows.rows, report.columns, console, layout, has_excerpts=is_short, has_marks=False)
        console.print()


def _place(result: CaseResult) -> tuple[int, int]:
    return result.test_index, result.repeat_index


def _fit(rows: tuple[Row, ...], column_count: int, width: int) -> _Layout:
    number = max((len(case_number(row[0])) for row in rows), default=2) - 1
    needed = max((cell_len(case_title(row[0], _TITLE_MAX)) for row in rows), default=_TITLE_MIN)
    widest = min(max(needed, len("test")), max(_TITLE_MIN, width // 4))
    for title in (widest, min(widest, _TITLE_MIN)):
        cell = (width - 1 - number - title - _GAP) // max(column_count, 1) - _GAP
        if cell >= _EXCERPT_MIN:
            break
    return _Layout(number, title, min(cell, _CELL_MAX) if cell >= VERDICT_WIDTH else 0)


def _print_matrix(
    rows: tuple[Row, ...],
    columns: tuple[Column, ...],
    console: Console,
    layout: _Layout,
    *,
    has_excerpts: bool = True,
    has_marks: bool = True,
) -> None:
    signs = signs_of(console)
    titles = [column_title(column, columns, signs) for column in columns]
    is_numbered = not all(_fits_in_heading(title, layout.cell) for title in titles)
    has_excerpts = has_excerpts and layout.cell >= _EXCERPT_MIN
    line_count = 2 if has_excerpts else 1
    table = plain_table(console, has_blank_lines=has_excerpts)
    table.add_column("#", width=layout.number, justify="right", style="dim")
    table.add_column("test", width=layout.title)
    for position, title in enumerate(titles, start=1):
        heading = Text(f"[{position}]" if is_numbered else title)
        table.add_column(heading, width=layout.cell, overflow="fold")
    for row in rows:
        cells = {
            result.column: _cell(result, layout.cell, console, has_excerpt=has_excerpts, has_marks=has_marks)
            for result in row
        }
        test = _clipped(case_title(row[0], layout.title * line_count), layout.title, line_count, console)
        number = case_number(row[0]).removeprefix("#")
        table.add_row(number, test, *(cells.get(column.index, Text("")) for column in columns))
    if is_numbered:
        print_legend(titles, console)
    print_trimmed(indented(table), console)


def _fits_in_heading(title: str, width: int) -> bool:
    return cell_len(title) <= 2 * width and all(cell_len(word) <= width for word in title.split())


def _cell(result: CaseResult, width: int, console: Console, *, has_excerpt: bool, has_marks: bool) -> Text:
    text = cell_verdict(result, signs_of(console), width, has_marks=has_marks)
    text.no_wrap = None
    excerpt = _excerpt(result, width * 2) if has_excerpt else ""
    if not excerpt:
        return text
    shown = _clipped(excerpt, width, 2, console)
    shown.stylize("dim")
    return text.append("\n").append_text(shown)


def _clipped(text: str, width: int, line_count: int, console: Console) -> Text:
    lines = Text(text).wrap(console, width)
    if len(lines) > line_count:
        lines[line_count - 1].rstrip()
        lines[line_count - 1].truncate(width - 1)
        lines[line_count - 1].append("…")
    return Text("\n").join(lines[:line_count])


def _excerpt(result: CaseResult, width: int) -> str:
    if result.error is not None:
        return one_line(result.error.message, width)
    return "" if result.output is None else one_line(value_text(result.output), width)


def _print_blocks(rows: tuple[Row, ...], columns: tuple[Column, ...], console: Console) -> None:
    signs = signs_of(console)
    titles = {column.index: column_title(column, columns, signs) for column in columns}
    positions = {column.index: position for position, column in enumerate(columns, start=1)}
    is_long = len(rows) * len(columns) > _LINES_MAX
    print_legend(list(titles.values()), console)
    for row in rows:
        number = case_number(row[0])
        title = case_title(row[0], console.width - len(number) - 4)
        console.print(Text.assemble((f" {number}", "bold"), f"  {title}"), no_wrap=True)
        shown = [result for result in row if not is_long or result.status in PROBLEMS]
        for result in shown:
            label = f"[{positions.get(result.column, result.column + 1)}]"
            _print_block_line(result, label.ljust(len(str(len(columns))) + 2), console)
        if len(shown) < len(row):
            rest = {result.status for result in row} - PROBLEMS
            others = "passed" if rest == {Status.PASSED} else "passed or were not evaluated"
            console.print(Text(f"   and {len(row) - len(shown)} {others}", style="dim"))


def _print_block_line(result: CaseResult, label: str, console: Console) -> None:
    line = Text(f"   {label} ", style="dim")
    width = max(VERDICT_WIDTH, min(_BLOCK_VERDICT_MAX, console.width // 3))
    line.append_text(cell_verdict(result, signs_of(console), width))
    line.pad_right(max(len(label) + 4 + width + 2 - line.cell_len, 1))
    line.append(_excerpt(result, max(console.width - line.cell_len - 1, 0)))
    line.rstrip()
    console.print(line, no_wrap=True, overflow="ellipsis")


def _print_notes(selection: TableRows, report: RunReport, console: Console) -> None:
    rows = selection.rows
    notes = []
    if any(has_fallback(result.assertions) for row in rows for result in row):
        notes.append("~ scored by a fallback method; the details say why")
    if any(is_split(result.assertions) for row in rows for result in row):
        notes.append("/ the judges' scores are 0.5 or more apart")
    if any(row[0].repeat_index for row in rows):
        notes.append("#3.2 is the second repeat of test 3")
    if not selection.is_whole:
        notes += [
            _what_is_hidden(selection),
            f"everything: {report.way_to_everything}",
        ]
    if notes and rows:
        console.print()
    for note in notes:
        console.print(Text(f" {note}", style="dim"))


def _what_is_hidden(selection: TableRows) -> str:
    of_all = f"of {plural(selection.total, 'row')}"
    if not selection.problems:
        return f"none {of_all} has a failure or an error, so none is shown"
    if len(selection.rows) == selection.problems:
        return f"shown {of_all}: the {selection.problems} with a failure or an error"
    return f"shown {of_all}: the first {len(selection.rows)} of {selection.problems:,} with a failure or an error"
