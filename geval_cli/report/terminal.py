"""A run on the terminal: the best column and how sure that is, what failed and why, the verdict, and what to do next.

Its matrix has one row per test and one column per prompt x provider pair, or a block per test if that does not fit.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_cost, format_duration, format_score, plural
from geval_cli.plugins import extra
from geval_cli.records import (
    STOPPED,
    CaseResult,
    Column,
    GateResult,
    RankedColumn,
    Role,
    RunStatus,
    RunSummary,
    Stat,
    Status,
    Usage,
)
from geval_cli.report.case_view import PROBLEMS, case_number, case_title
from geval_cli.report.columns import PASS_RATE, mean_text, print_columns, share_text
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.failures import FailedTests, GroupBy
from geval_cli.report.report import RunReport, informative_metrics, run_title, worst_case
from geval_cli.report.sanitize import (
    folder_options,
    home_option,
    one_line,
    quoted,
    resume_command,
    sanitize,
    value_text,
)
from geval_cli.report.verdict import (
    MANY_COLUMNS,
    STYLES,
    VERDICT_WIDTH,
    cell_verdict,
    column_title,
    fitted_title,
    gate_value,
    print_derived,
    print_legend,
    print_rankings,
    run_outcome,
    shown_gates,
    signs_of,
    with_signs,
)

ROWS_MAX = 50
SMALL_MAX, _WITH_EXCERPTS_MAX = 30, 6
_TITLE_MIN, _TITLE_MAX = 16, 40
_EXCERPT_MIN = 18
"""A narrower cell shows its verdict alone: fragments of an output are of no use."""
_CELL_MAX = 60
_GAP = 3

Row = tuple[CaseResult, ...]


class TableRows(Struct):
    """The rows that the table of a run shows, picked while its results go by in test order.

    A run of more than 50 rows shows only those with a failure or an error, at most 50.
    """

    total: int = 0
    problems: int = 0
    _first: list[Row] = field(default_factory=list)
    _with_problems: list[Row] = field(default_factory=list)
    _row: Row = ()

    def add(self, result: CaseResult) -> None:
        """Add the next result."""
        if self._row and _place(result) != _place(self._row[0]):
            self._end_row()
        self._row = (*self._row, result)

    def end(self) -> None:
        """Complete the last row: there are no more results."""
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
    """Widths in terminal cells; `cell` is 0 if the terminal has room only for one block per test."""

    number: int
    title: int
    cell: int


def print_small_table(rows: TableRows, report: RunReport, console: Console) -> None:
    """Print the matrix of a run of at most 30 rows, one line per row, if a cell has room for a verdict.

    A failed cell names the metric that failed it; if there are only a few rows, cells also show the beginning of
    outputs.
    """
    rows.end()
    if not 0 < rows.total <= SMALL_MAX:
        return
    layout = fit_table(rows.rows, len(report.columns), console.width)
    if layout.cell:
        is_short = rows.total <= _WITH_EXCERPTS_MAX
        print_matrix(rows.rows, report.columns, console, layout, has_excerpts=is_short, has_marks=False)
        console.print()


def _place(result: CaseResult) -> tuple[int, int]:
    return result.test_index, result.repeat_index


def fit_table(rows: tuple[Row, ...], column_count: int, width: int) -> _Layout:
    """Return the widths of a matrix that fits the terminal; `cell` is 0 if it would be too narrow for a verdict."""
    number = max((len(case_number(row[0])) for row in rows), default=2) - 1
    needed = max((cell_len(case_title(row[0], _TITLE_MAX)) for row in rows), default=_TITLE_MIN)
    widest = min(max(needed, len("test")), max(_TITLE_MIN, width // 4))
    for title in (widest, min(widest, _TITLE_MIN)):
        cell = (width - 1 - number - title - _GAP) // max(column_count, 1) - _GAP
        if cell >= _EXCERPT_MIN:
            break
    return _Layout(number, title, min(cell, _CELL_MAX) if cell >= VERDICT_WIDTH else 0)


def print_matrix(
    rows: tuple[Row, ...],
    columns: tuple[Column, ...],
    console: Console,
    layout: _Layout,
    *,
    has_excerpts: bool = True,
    has_marks: bool = True,
) -> None:
    """Print a row for each test, with a cell for each column."""
    signs = signs_of(console)
    titles = [column_title(column, columns, signs) for column in columns]
    widths = [(cell_len(title), max(map(cell_len, title.split()), default=0)) for title in titles]
    is_numbered = any(whole > 2 * layout.cell or word > layout.cell for whole, word in widths)
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


def _cell(result: CaseResult, width: int, console: Console, *, has_excerpt: bool, has_marks: bool) -> Text:
    text = cell_verdict(result, signs_of(console), width, has_marks=has_marks)
    text.no_wrap = None
    excerpt = excerpt_of(result, width * 2) if has_excerpt else ""
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


def excerpt_of(result: CaseResult, width: int) -> str:
    """Return the beginning of an output, or of the error that prevented it."""
    if result.error is not None:
        return one_line(result.error.message, width)
    return "" if result.output is None else one_line(value_text(result.output), width)


_LABEL_WIDTH = len("warning  ")
_METRICS_ON_A_LINE, _WARNINGS_SHOWN, _GATES_SHOWN = 6, 5, 5
_RANKINGS_SHOWN, _PLACES_SHOWN, _PLACE_WIDTH = 3, 3, 40
_TABLE_LINES_MAX = 16
"""Longer tables of rankings and derived metrics are shown only with -v."""


def print_report(
    report: RunReport,
    console: Console,
    *,
    verbose: bool = False,
    written: Sequence[Path] = (),
    by: GroupBy = GroupBy.ASSERTION,
    name: str = "",
    home: Path | None = None,
    cache_folder: Path | None = None,
    repeated: str | None = None,
    before: str = "",
) -> None:
    """Print what `geval run` and `geval show` show of a run: the answer, preceded by all its evidence if `verbose`.

    `written` are the results files of this run; `by` is how its failures are grouped; `name` is its name for
    `geval show`, "" for the latest run; `home` and `cache_folder` are the values of --home and --cache-dir;
    `repeated` is the other options that resume it, None if they are unknown; `before` is the config's previous run.
    """
    rows, failed = TableRows(), FailedTests()
    is_detailed = verbose or by is not GroupBy.ASSERTION
    failures = extra("evidence").Failures(verbose, by) if is_detailed else None
    for result in report.results():
        rows.add(result)
        failed.add(result)
        if failures is not None:
            failures.add(result)
    if failures is not None:
        extra("evidence").print_evidence(report, rows, failures, console)
    print_answer(
        report,
        console,
        failed=failed,
        rows=None if verbose else rows,
        written=written,
        name=name,
        home=home,
        cache_folder=cache_folder,
        repeated=repeated,
        is_detailed=is_detailed,
        before=before,
    )


def print_answer(
    report: RunReport,
    console: Console,
    *,
    failed: FailedTests | None = None,
    rows: TableRows | None = None,
    written: Sequence[Path] = (),
    name: str = "",
    home: Path | None = None,
    cache_folder: Path | None = None,
    repeated: str | None = None,
    is_detailed: bool = False,
    before: str = "",
) -> None:
    """Print which column is best and how sure that is, what failed and why, and the verdict: a screen for 100 cases."""
    summary = report.summary
    is_kept = report.is_stored or bool(report.file)
    show = show_command(name, home) if is_kept else ""
    console.print()
    # What was run, on one line: the config, its tests x prompts x models, and the judge.
    signs = signs_of(console)
    columns = report.columns
    run = report.run
    prompts = {column.prompt_label for column in columns}
    models = {column.provider_label for column in columns}
    if failed is None:
        shape = plural(report.summary.total, "case")
    else:
        is_grid = len(prompts) * len(models) == len(columns)
        factors = [
            *(((len(prompts), "prompt"), (len(models), "model")) if is_grid else ((len(columns), "column"),)),
            (failed.repeats, "repeat"),
        ]
        parts = [_tests_text(report, failed), *(plural(*factor) for factor in factors if factor[0] > 1)]
        shape = f" {signs.times} ".join(parts)
    if len(models) == 1 and next(iter(models)):
        shape += f" {signs.dot} {one_line(next(iter(models)), 60)}"
    if run.judges:
        judges = ", ".join(one_line(judge, 60) for judge in run.judges[:3])
        shape += f" {signs.dot} judge {judges}" if len(run.judges) == 1 else f" {signs.dot} judges {judges}"
    print_hanging(Text(), Text.assemble((run_title(run), "bold"), f" {signs.dot} {shape}"), console, indent=1)
    console.print()
    if failed is not None:  # first, because the figures below cover only what could be judged
        failed.print_errors(report, console, show)
    if rows is not None:
        print_small_table(rows, report, console)
    print_columns(report, console)
    if len(summary.columns) < 2:  # noqa: PLR2004
        _print_metrics_line(summary, console)
    if failed is not None:
        failed.print(report, console, show)
    if failed is not None and not is_detailed and summary.baseline is not None:
        later = quoted(name or "latest") + home_option(home) if is_kept else ""
        extra("comparison in words").print_baseline_in_short(summary.baseline, console, later)
    _print_remarkable(report, console, show)
    for path in written:
        print_line("wrote", Text(sanitize(str(path))), console)
    config = Text(f"  {sanitize(report.run.config_path)}", style="dim")
    print_line("run", Text(_run_text(report)).append_text(config), console)
    console.print()
    _print_counts(report, console, _hint_for_rest(report, folder_options(home, cache_folder), repeated))
    compare = f"geval compare {quoted(before)} {quoted(name or 'latest')}{home_option(home)}"
    rest = [compare if before else f"{show} -v", f"geval view{home_option(home)}"]
    # Print the commands that answer the next question, if the run is stored.
    if not report.is_stored or report.file or report.run.status is not RunStatus.COMPLETED:
        return
    commands = (
        [f"{show} --case {failed.worst.removeprefix('#')}"] if failed is not None and failed.worst else []
    )
    commands += rest
    print_hanging(
        Text("next: ", style="dim"),
        Text(f" {signs_of(console).dot} ".join(commands), style="dim"),
        console,
        indent=1,
    )


def _tests_text(report: RunReport, failed: FailedTests) -> str:
    """Return `12 tests`, or `3 of 12 tests` for a stopped run; it counts cases if the number of tests is unknown."""
    total = report.summary.total
    planned = report.planned or 0
    if planned <= total:
        return plural(failed.tests, "test")
    tests, rest = divmod(planned, max(len(report.columns), 1) * failed.repeats)
    if rest or not failed.tests or failed.repeats > 1 or tests < failed.tests:
        return f"{total:,} of {plural(planned, 'case')}"
    return f"{failed.tests:,} of {plural(tests, 'test')}"


def show_command(name: str, home: Path | None) -> str:
    """Return the command that shows this run; without a name, it shows the latest one."""
    return f"geval show{f' {quoted(name)}' if name else ''}{home_option(home)}"


def _print_metrics_line(summary: RunSummary, console: Console) -> None:
    """Print the pass rate and metrics of a run with one column."""
    dot = signs_of(console).dot
    judged = summary.passed + summary.failed
    rate = Stat(summary.passed / judged if judged else None, summary.pass_interval)
    parts = [f"{PASS_RATE} {share_text(rate)}{worst_case(summary)}"]
    metrics = informative_metrics(summary)
    for name, metric in list(metrics.items())[:_METRICS_ON_A_LINE]:
        # Errors in cases that another assertion failed are told nowhere else.
        errors = f", {plural(metric.errored, 'error')}" if metric.errored > summary.errored else ""
        parts.append(f"{one_line(name, 40)} {mean_text(Stat(metric.mean, metric.interval))}{errors}")
    if len(metrics) > _METRICS_ON_A_LINE:
        parts.append(f"{plural(len(metrics) - _METRICS_ON_A_LINE, 'more metric')} (-v)")
    if judged or metrics:
        print_hanging(Text(), Text(f" {dot} ".join(parts if judged else parts[1:])), console, indent=1)
        console.print()


def _print_remarkable(report: RunReport, console: Console, show: str) -> None:
    """Print what is worth a line: rankings, derived metrics, flaky tests, gates, warnings."""
    summary = report.summary
    dot = f" {signs_of(console).dot} "
    if len(report.columns) > MANY_COLUMNS:
        for metric, entries in list(summary.rankings.items())[:_RANKINGS_SHOWN]:
            print_line("ranking", Text(_ranking_text(metric, entries, console)), console)
    elif sum(len(entries) + 3 for entries in summary.rankings.values()) <= _TABLE_LINES_MAX:
        print_rankings(report, console)
    if len(summary.derived) * (len(report.columns) + 1) <= _TABLE_LINES_MAX:
        print_derived(report, console)
    else:
        values = (
            f"{one_line(name, 40)} {'none' if value is None else format_score(value)}"
            for name, value in list(summary.derived.items())[:_METRICS_ON_A_LINE]
        )
        print_line("derived", Text(dot.join(values)), console)
    if summary.flaky_count:
        numbers = [*dict.fromkeys(f"#{test.test_index + 1}" for test in summary.flaky)]
        some = ", ".join(numbers)
        # `flaky_count` has a test once per flaky column; here each listed test counts once.
        count = len(numbers) + summary.flaky_count - len(summary.flaky)
        counted = f"{plural(count, 'test')} passed in some repeats only"
        room = min(40, max(console.width - _LABEL_WIDTH - len(f"{counted}:  (-v)") - 3, 20))
        text = f"{counted}: {one_line(some, room)} (-v)"
        print_line("flaky", Text(text), console)
    gates = _decided_gates(report)
    shown = [gate for gate in gates if gate.status is not Status.PASSED]
    most = _GATES_SHOWN if len(report.columns) <= MANY_COLUMNS else 0
    for gate in gates if len(gates) <= most else shown:
        mark = signs_of(console).marks[gate.status]
        line = Text(f"{mark} {one_line(gate.gate, 80)}: {gate_value(gate)}", style=STYLES[gate.status])
        if gate.note:
            line.append(f"  {sanitize(gate.note)}", style="not bold dim")
        print_line("gate", line, console)
    stopped = _why_stopped(report)
    warnings = [text for text in report.run.warnings if text != f"{STOPPED}{stopped}"]
    for text in warnings[:_WARNINGS_SHOWN]:
        print_line("warning", Text(one_line(text, 2_000), style="yellow"), console)
    if len(warnings) > _WARNINGS_SHOWN:
        more = plural(len(warnings) - _WARNINGS_SHOWN, "more warning")
        where = f": {show} --json" if show else ""
        print_line("", Text(f"{more}{where}", style="yellow"), console)


def _ranking_text(metric: str, entries: Sequence[RankedColumn], console: Console) -> str:
    """Return `helpful: 1. polite × mini 1728; 8 more (-v)`, with more places on a wide terminal."""  # noqa: RUF002
    signs = signs_of(console)
    name = one_line(metric, 24)
    rated = [entry for entry in entries if entry.rating is not None]
    if not rated:
        return f"{name}: no ranking, since the comparisons do not connect all columns (-v)"
    room = console.width - 2 - _LABEL_WIDTH - len(f"{name}: ; {len(entries)} more (-v)")
    shown = rated[: max(1, min(_PLACES_SHOWN, room // _PLACE_WIDTH))]
    places = ", ".join(
        f"{place}. {fitted_title(with_signs(entry.label, signs), room // len(shown) - 10, signs)} {entry.rating:.0f}"
        for place, entry in enumerate(shown, start=1)
    )
    more = len(entries) - len(shown)
    return f"{name}: {places}{f'; {more:,} more (-v)' if more else ''}"


def _print_counts(report: RunReport, console: Console, way_on: str) -> None:
    summary = report.summary
    dot = f" {signs_of(console).dot} "
    counts = (
        (Status.PASSED, summary.passed, "passed"),
        (Status.FAILED, summary.failed, "failed"),
        (Status.ERROR, summary.errored, "error" if summary.errored == 1 else "errors"),
        (Status.NOT_EVALUATED, summary.not_evaluated, "not evaluated"),
    )
    line = Text()
    for status, count, word in counts:
        if count or status in (Status.PASSED, Status.FAILED):
            line.append("" if not line else ", ")
            line.append(f"{count:,} {word}", style=STYLES[status] if count else "dim")
    if gates := _decided_gates(report):
        met = sum(gate.status is Status.PASSED for gate in gates)
        so_far = " so far" if _is_cut_short(report) else ""
        line.append(f"{dot}{met:,} of {plural(len(gates), 'gate')} met{so_far}")
    if cost := _cost_text(summary.usage):
        line.append(f"{dot}{cost}")
    if report.run.duration_ms is not None:
        line.append(f"{dot}{format_duration(report.run.duration_ms)}")
    word, like = run_outcome(report.run, summary)
    head = Text(f"{word.upper()}  ", style="bold yellow" if like is None else _HEADLINE_STYLES[like])
    print_hanging(head, line, console, indent=1)
    remark = _remark(report, way_on)
    if remark:
        print_hanging(Text(), Text(remark, style="yellow"), console, indent=1)


def _is_cut_short(report: RunReport) -> bool:
    is_stopped = report.run.status in (RunStatus.INTERRUPTED, RunStatus.ABORTED)
    return is_stopped and (report.planned or 0) > report.summary.total


def _decided_gates(report: RunReport) -> Sequence[GateResult]:
    """Return the gates to report: of a stopped run only those with a value, as the others wait for missing cases."""
    gates = shown_gates(report.summary.gates)
    if not _is_cut_short(report):
        return gates
    return [gate for gate in gates if gate.status is not Status.ERROR] if report.summary.total else []


_HEADLINE_STYLES = {**STYLES, Status.PASSED: "bold green", Status.NOT_EVALUATED: "bold yellow"}


def _hint_for_rest(report: RunReport, folders: str, repeated: str | None) -> str:
    if report.run.judged_from is not None:  # such a run cannot be resumed
        return f"; judge run {report.run.judged_from} again for the rest: answers so far are cached"
    command = resume_command(report.run.config_path, (repeated or "") + folders)
    if repeated is None:
        return f"; finish it with `{command}` and the same options"
    return f"; continue: {command}"  # a budget of the same size pays for the next part


def _why_stopped(report: RunReport) -> str:
    """Return why a run was aborted, as its warnings say; "" for any other run."""
    if report.run.status is not RunStatus.ABORTED:
        return ""
    reasons = (text for text in report.run.warnings if text.startswith(STOPPED))
    return next(reasons, "").removeprefix(STOPPED)


def _remark(report: RunReport, way_on: str) -> str:
    summary = report.summary
    finished = summary.passed + summary.failed + summary.errored + summary.not_evaluated
    planned = max(report.planned or 0, summary.total)
    kept = (
        f"{finished:,} of {plural(planned, 'case')} finished"
        if planned > finished
        else "finished cases are kept"
    )
    match report.run.status:
        case RunStatus.INTERRUPTED | RunStatus.ABORTED:
            rest = way_on if planned > finished and report.is_stored else ""
            why = _why_stopped(report).partition(" (finished cases")[0]
            return f"stopped: {why}; {kept}{rest}" if why else f"the run was stopped early: {kept}{rest}"
        case RunStatus.RUNNING:
            return "the run is still in progress, or its process died"
    if not finished:
        return "no test was run"
    if finished == summary.not_evaluated and summary.rankings:
        return "outputs were only compared with each other, so nothing passes or fails"
    if finished == summary.not_evaluated:
        return "no assertion had anything to judge: give the tests an `assert`"
    return ""


def _cost_text(by_role: Mapping[Role, Usage]) -> str:
    """Return what this run paid, `$0.30 (judge $0.21)`; "" if it paid nothing, as with local models."""
    known = [usage.cost_usd for usage in by_role.values() if usage.cost_usd is not None]
    total = sum(known)
    is_partial = len(known) < len(by_role)
    names = {Role.JUDGE: "judge", Role.USER: "user"}
    parts = [
        f"{name} {format_cost(cost)}"
        for role, name in names.items()
        if (cost := by_role.get(role, Usage()).cost_usd)
    ]
    if not total:
        return "cost unknown" if is_partial else ""
    said = f"{format_cost(total)}{' or more' if is_partial else ''}"
    return f"{said} ({', '.join(parts)})" if parts else said


def _run_text(report: RunReport) -> str:
    run = sanitize(report.run.id)
    if report.file:
        return f"{run} in {sanitize(report.file)}"
    if report.is_partly_stored:
        return f"{run} (partly stored: geval show {run} shows the stored part)"
    if not report.is_stored:
        return f"{run} (not stored, so it cannot be shown again)"
    return run


def print_line(label: str, text: Text, console: Console) -> None:
    """Print a text beside its label; wrapped lines are aligned with the text."""
    print_hanging(Text(label.ljust(_LABEL_WIDTH), style="dim"), text, console, indent=1)
