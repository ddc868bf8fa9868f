"""`-o results.md`: a summary for people, short enough for a CI step summary or a comment on a merge request."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from geval_cli.events import RunEvent
from geval_cli.extras.evidence import usage_texts
from geval_cli.numbers import format_duration, format_percentage, format_share_interval, plural
from geval_cli.plugins import extra
from geval_cli.records import CaseResult, Column, ColumnSummary, RunSummary, Stat, Status
from geval_cli.report.case_view import (
    PROBLEMS,
    CaseView,
    JudgeVerdict,
    assertion_name,
    case_number,
    case_title,
    failure_text,
    output_text,
    whole_reason,
)
from geval_cli.report.columns import (
    DIFFERENCE_HEADER,
    DIFFERENCES_MAX,
    MEANS_HEADER,
    METRICS_MAX,
    PASS_RATE,
    baseline_number,
    column_table,
    cost_note,
    differences_of,
    leader_text,
    mean_cells,
    run_means,
)
from geval_cli.report.report import RunReport, worst_case
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import (
    clipped_lines,
    code_span,
    figures_in_markdown,
    longest_run,
    markdown_table,
    one_line,
    sanitize,
)
from geval_cli.report.verdict import (
    DERIVED_HEADER,
    RANKING_HEADER,
    UNICODE_SIGNS,
    column_title,
    derived_rows,
    gate_value,
    ranking_note,
    ranking_rows,
    rankings_shown,
    run_outcome,
    shown_gates,
    whole_titles,
)

TEXT_MAX = 60_000
"""Maximum length in characters; GitHub allows 65,536 in a comment, GitLab a million."""

_CASES_MAX, _ERRORS_MAX = 50, 10
_TEXT_LINES, _TEXT_CHARACTERS = 12, 1_500
_METRICS_MAX = 30
_COLUMNS_MAX = 60
_REST_ROOM = 1_000
_TOO_LONG = "*What is too long for a comment is left out here.*\n"
MARKS = {Status.PASSED: "✅", Status.FAILED: "❌", Status.ERROR: "⚠️", Status.NOT_EVALUATED: "➖"}  # noqa: RUF001


class MarkdownFile:
    """A results file in Markdown, written at the end from the whole report; events are ignored.

    Text from models, configs or servers is put in code spans or blocks, so that it cannot act as a link, a mention, an
    image or other markup.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        picked = _ShownCases()
        for result in report.results():
            picked.add(result)
        with SafeFile(self._path) as file:
            file.write(_document(report, picked))


class _ShownCases(Struct):
    """The part of the results that the page shows: counts by column, and the first cases that did not pass."""

    counts: Counter[tuple[int, Status]] = field(default_factory=Counter)
    cases: list[CaseResult] = field(default_factory=list)
    errors: list[CaseResult] = field(default_factory=list)
    left_out: int = 0

    def add(self, result: CaseResult) -> None:
        self.counts[result.column, result.status] += 1
        if result.status not in PROBLEMS:
            return
        kept, most = (self.errors, _ERRORS_MAX) if result.status is Status.ERROR else (self.cases, _CASES_MAX)
        if len(kept) < most:
            kept.append(result)
        else:
            self.left_out += 1

    def figures(self, column: Column) -> ColumnSummary:
        """Return a column's figures as counted here, for a run that has no summary by column yet."""
        passed, failed = self.counts[column.index, Status.PASSED], self.counts[column.index, Status.FAILED]
        return ColumnSummary(
            prompt=column.prompt_label,
            provider=column.provider_label,
            label="",
            passed=passed,
            failed=failed,
            errored=self.counts[column.index, Status.ERROR],
            not_evaluated=self.counts[column.index, Status.NOT_EVALUATED],
            pass_rate=Stat(passed / (passed + failed) if passed + failed else None),
        )


def _document(report: RunReport, picked: _ShownCases) -> str:
    summary = report.summary
    counts = (
        f"{MARKS[Status.ERROR]} {plural(summary.errored, 'error')}",
        f"{MARKS[Status.FAILED]} {summary.failed:,} failed",
        f"{MARKS[Status.PASSED]} {summary.passed:,} passed",
        f"{MARKS[Status.NOT_EVALUATED]} {summary.not_evaluated:,} not evaluated",
    )
    duration = "" if report.run.duration_ms is None else f" in {format_duration(report.run.duration_ms)}"
    columns = [column_title(column, report.columns, UNICODE_SIGNS) for column in report.columns]
    leader = leader_text(summary.columns, columns, code_span) if len(columns) > 1 else ""
    lines = [
        f"# geval: {run_outcome(report.run, report.summary)[0]}",
        leader,
        f"{' · '.join(counts)}{duration}",
        _pass_rate(summary),
    ]
    rows = [
        (
            code_span(sanitize(gate.gate)),
            gate_value(gate),
            f"{MARKS[gate.status]} {gate.status.value}",
            gate.note,
        )
        for gate in shown_gates(report.summary.gates)
    ]
    sections = [
        "\n\n".join(line for line in lines if line) + "\n",
        markdown_table(("gate", "actual", "status", "note"), rows) if rows else "",
        ""
        if report.summary.baseline is None
        else extra("comparison in words").baseline_markdown(report.summary.baseline),
        _columns(report, picked),
        _metrics(report.summary),
        _rankings(report.summary),
        _derived(report),
        "".join(
            f"- warning: {code_span(one_line(text, 500))}\n" for text in report.run.warnings[:_METRICS_MAX]
        ),
    ]
    usage = [f"{role}: {text}" for role, text in usage_texts(report.summary.usage)]
    named = "" if report.run.title is None else f" {code_span(one_line(report.run.title, 200))}"
    run = f"run{named} {code_span(sanitize(report.run.id))} of {code_span(sanitize(report.run.config_path))}"
    foot = f"\n---\n{' · '.join([run, *usage, f'geval {report.run.tool_version}'])}\n"
    room = TEXT_MAX - len(foot) - _REST_ROOM
    fitting = list[str]()
    for section in filter(None, sections):
        if len(section) < room:
            fitting.append(section)
            room -= len(section) + 1
        elif fitting[-1:] != [_TOO_LONG]:
            fitting.append(_TOO_LONG)
    text = "\n".join(fitting)
    details = _details(report, picked, room=TEXT_MAX - len(text) - len(foot))
    return "\n".join(part for part in (text, details, foot) if part)


def _pass_rate(summary: RunSummary) -> str:
    judged = summary.passed + summary.failed
    if not judged:
        return "Pass rate: none, since nothing was judged."
    rate = f"Pass rate: **{format_percentage(summary.passed, judged)}**{worst_case(summary)}"
    return (
        rate
        if summary.pass_interval is None
        else f"{rate} (95 % interval {format_share_interval(summary.pass_interval)})"
    )


def _columns(report: RunReport, picked: _ShownCases) -> str:
    if len(report.columns) < 2:  # noqa: PLR2004 - one column would repeat the head
        return ""
    titles = whole_titles(report.columns)
    figures: Sequence[ColumnSummary] = report.summary.columns
    if len(figures) != len(titles):  # a run in progress has none yet
        figures = [picked.figures(column) for column in report.columns]
    names = [titles[column.index] for column in report.columns]
    heading, rows = column_table(figures, names, code_span, METRICS_MAX)
    hidden = len(rows) - _COLUMNS_MAX
    more = f"\nand {plural(hidden, 'more column')}, none with a higher pass rate\n" if hidden > 0 else ""
    note = f"\n{note}\n" if (note := cost_note(figures)) else ""
    table = markdown_table(heading, rows[:_COLUMNS_MAX], names=2)
    return f"{table}{more}{note}{_differences(report) if report.summary.columns else ''}"


def _differences(report: RunReport) -> str:
    """Return a table of each column's differences from the baseline column; "" if no difference has a verdict."""
    titles = whole_titles(report.columns)
    rows = [
        (
            code_span(titles[column.index]),
            item.name if item.name == PASS_RATE else code_span(one_line(item.name, 40)),
            *map(figures_in_markdown, item.cells),
        )
        for column, figures in zip(report.columns, report.summary.columns, strict=True)
        for item in differences_of(figures)
        if item.verdict is not None
    ]
    if not rows:
        return ""
    hidden = len(rows) - DIFFERENCES_MAX
    more = f"\nand {plural(hidden, 'more difference')}\n" if hidden > 0 else ""
    baseline = report.columns[baseline_number(report.summary.columns) - 1]
    header = (f"against {code_span(titles[baseline.index])}", "", *DIFFERENCE_HEADER)
    return f"\n{markdown_table(header, rows[:DIFFERENCES_MAX])}{more}"


def _metrics(summary: RunSummary) -> str:
    means = run_means(summary)
    rows = [(code_span(one_line(name, 60)), *mean_cells(stat)) for name, stat in means[:_METRICS_MAX]]
    hidden = len(means) - len(rows)
    more = f"\nand {plural(hidden, 'more metric')}\n" if hidden else ""
    return markdown_table(("metric", *MEANS_HEADER), rows) + more if rows else ""


def _rankings(summary: RunSummary) -> str:
    parts = []
    for name, entries in rankings_shown(summary):
        rows = [
            (f"{place}. {code_span(one_line(label, 60))}".removeprefix(". "), *figures)
            for place, label, *figures in ranking_rows(entries[:_COLUMNS_MAX])
        ]
        note = ranking_note(summary, name)
        header = (f"ranking: {code_span(one_line(name, 40))}", *RANKING_HEADER)
        parts.append(markdown_table(header, rows) + (f"\n{note}\n" if note else ""))
    return "\n".join(parts)


def _derived(report: RunReport) -> str:
    titles = whole_titles(report.columns)
    rows = [(code_span(name), code_span(of), value) for name, of, value in derived_rows(report, titles)]
    return markdown_table(DERIVED_HEADER, rows) if rows else ""


def _details(report: RunReport, picked: _ShownCases, *, room: int) -> str:
    """Return the cases that did not pass, errors first, as many as fit in `room` characters."""
    cases = picked.errors + picked.cases
    if not cases:
        return ""
    parts = ["## Errors and failures\n"]
    left_out = picked.left_out
    used = len(parts[0]) + 200
    for position, result in enumerate(cases):
        text = _case(result, report)
        if used + len(text) > room:
            left_out += len(cases) - position
            break
        parts.append(text)
        used += len(text) + 1
    if left_out:
        command = code_span(f"geval show {report.run.id} -o results.html")
        parts.append(f"{left_out:,} more are not shown here; everything: {command}\n")
    return "\n".join(parts)


def _case(result: CaseResult, report: RunReport) -> str:
    column = whole_titles(report.columns).get(result.column) if len(report.columns) > 1 else None
    where = f" {code_span(column)}" if column else ""
    title = f"{MARKS[result.status]} **{case_number(result)}** {code_span(case_title(result, 120))}{where}\n"
    lines, view = [title], CaseView(result)
    if result.error is not None:
        lines.append(f"- {code_span(result.error.type)}: {code_span(one_line(result.error.message, 500))}")
    if whole := whole_reason(result):
        lines.append(f"- {whole}")
    for shown in view.problems:
        item = shown.assertion
        name = code_span(sanitize(assertion_name(item)))
        error = item.error
        said = (
            shown.said
            if error is None
            else "; ".join(filter(None, (f"{error.type}: {error.message}", error.hint)))
        )
        reason = f": {code_span(one_line(said, 700))}" if said else ""
        score = figures_in_markdown(failure_text(item))
        lines.append(f"- {', '.join([f'{name} {score}'.rstrip(), *shown.remarks])}{reason}")
        for part in JudgeVerdict(item.detail).items:
            mark = MARKS[Status.PASSED if part.is_met else Status.FAILED]
            lines.append(f"  - {mark} {code_span(part.line)}")
    if result.output is not None or result.turns:
        lines.append(_block(output_text(result)))
    lines += [f"{code_span(end)}\n" for end in view.ends]
    for name, text in view.test_texts.items():
        lines += ["", f"{name.capitalize()}:", _block(text)]
    return "\n".join(lines) + "\n"


def _block(text: str) -> str:
    lines = clipped_lines(text, line_count=_TEXT_LINES, character_count=_TEXT_CHARACTERS) or ["(empty)"]
    fence = "`" * max(3, longest_run("\n".join(lines)) + 1)
    return "\n".join([f"\n{fence}text", *lines, fence])
