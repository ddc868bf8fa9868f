"""A whole run on the terminal: table, failures, and the last lines with counts, metrics, cost and duration."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_cost, format_score
from geval_cli.records import Role, RunStatus, RunSummary, Status, Usage
from geval_cli.report.columns import print_columns
from geval_cli.report.comparison_text import print_baseline
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.failures import Failures, GroupBy, print_failures
from geval_cli.report.numbers import (
    format_count,
    format_duration,
    format_interval,
    format_percentage,
    format_share,
    plural,
)
from geval_cli.report.report import RunReport, telling_metrics
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.report.table import TableRows, print_table
from geval_cli.report.verdict import STYLES, print_derived, print_flaky, print_gates, print_rankings, signs_of

METRICS_MAX = 30
_LABEL_WIDTH = len("pass rate  ")
_ROLE_NAMES = {Role.GENERATION: "model", Role.JUDGE: "judge"}


def print_report(
    report: RunReport,
    console: Console,
    *,
    verbose: bool = False,
    written: Sequence[Path] = (),
    by: GroupBy = GroupBy.ASSERTION,
) -> None:
    """Print what `geval run` and `geval show` show of a run.

    `written` are the results files of this run; `by` is what its failures are grouped by.
    """
    rows, failures = TableRows(), Failures(verbose, by)
    for result in report.results():
        rows.add(result)
        failures.add(result)
    print_table(rows, report, console)
    print_failures(failures, report, console)
    print_baseline(report.summary.baseline, console)
    print_summary(report, console, written=written)


def print_summary(report: RunReport, console: Console, *, written: Sequence[Path] = ()) -> None:
    """Print the summary; `written` are the results files of this run."""
    summary = report.summary
    console.print()
    print_columns(report, console)
    _print_metrics(summary, console)
    print_rankings(report, console)
    print_derived(report, console)
    print_flaky(report, console)
    print_gates(report, console)
    for text in report.run.warnings:
        _print_line("warning", Text(one_line(text, 2_000), style="yellow"), console)
    for role, usage in summary.usage.items():
        if usage.requests:
            _print_line(_ROLE_NAMES[role], Text(_usage_text(usage)), console)
    _print_line("pass rate", Text(_pass_rate(summary)), console)
    for path in written:
        _print_line("written", Text(sanitize(str(path))), console)
    if report.run.title is not None:
        _print_line("name", Text(one_line(report.run.title, 200)), console)
    _print_line("config", Text(sanitize(report.run.config_path)), console)
    _print_line("run", _run_text(report, console), console)
    console.print()
    _print_counts(report, console)


def _print_counts(report: RunReport, console: Console) -> None:
    summary = report.summary
    counts = (
        (Status.PASSED, summary.passed, "passed"),
        (Status.FAILED, summary.failed, "failed"),
        (Status.ERROR, summary.errored, "error" if summary.errored == 1 else "errors"),
        (Status.NOT_EVALUATED, summary.not_evaluated, "not evaluated"),
    )
    line = Text()
    for status, count, word in counts:
        line.append("" if not line else ", ")
        line.append(f"{count:,} {word}", style=STYLES[status] if count else "dim")
    if report.run.duration_ms is not None:
        line.append(f" in {format_duration(report.run.duration_ms)}")
    print_hanging(_headline(report), line, console, indent=1)
    remark = _remark(report)
    if remark:
        print_hanging(Text(), Text(remark, style="yellow"), console, indent=1)


def _headline(report: RunReport) -> Text:
    summary = report.summary
    if report.run.status is RunStatus.INTERRUPTED:
        return Text("INTERRUPTED  ", style="bold yellow")
    if report.run.status is RunStatus.ABORTED:
        return Text("ABORTED  ", style="bold yellow")
    if report.run.status is RunStatus.RUNNING:
        return Text("UNFINISHED  ", style="bold yellow")
    if summary.gates:
        return _gates_headline(summary)
    if summary.failed:
        return Text("FAILED  ", style=STYLES[Status.FAILED])
    if summary.errored:
        return Text("NOT ALL JUDGED  ", style=STYLES[Status.ERROR])
    if summary.passed:
        return Text("PASSED  ", style="bold green")
    return Text("NOTHING EVALUATED  ", style="bold yellow")


def _gates_headline(summary: RunSummary) -> Text:
    """Return where there are gates, they decide, and a single failure need not be one of the run."""
    statuses = {gate.status for gate in summary.gates}
    if Status.FAILED in statuses:
        return Text("FAILED  ", style=STYLES[Status.FAILED])
    if Status.ERROR in statuses:
        return Text("NOT ALL JUDGED  ", style=STYLES[Status.ERROR])
    return Text("PASSED  ", style="bold green")


def _way_to_the_rest(report: RunReport) -> str:
    if report.run.judged_from is not None:  # such a run cannot be resumed
        return f"; judge run {report.run.judged_from} again for the rest: the cache has what was answered"
    config = shlex.quote(report.run.config_path)
    return f"; `geval run {config} --resume` with the same options does the rest"


def _remark(report: RunReport) -> str:
    summary = report.summary
    finished = summary.passed + summary.failed + summary.errored + summary.not_evaluated
    planned = max(report.planned or 0, summary.total)
    kept = (
        f"{finished:,} of {plural(planned, 'case')} finished"
        if planned > finished
        else "what was finished is kept"
    )
    match report.run.status:
        case RunStatus.INTERRUPTED | RunStatus.ABORTED:
            rest = _way_to_the_rest(report) if planned > finished and report.is_stored else ""
            return f"the run was stopped before its end: {kept}{rest}"
        case RunStatus.RUNNING:
            return "the run is still going on, or its process died before the end"
    if not finished:
        return "no test was run"
    if finished == summary.not_evaluated:
        return "no assertion had anything to judge: give the tests an `assert`"
    return ""


def _pass_rate(summary: RunSummary) -> str:
    judged = summary.passed + summary.failed
    if not judged:
        return "none: nothing was judged"
    left_out = summary.errored + summary.not_evaluated
    beside = f"; {left_out:,} not counted" if left_out else ""
    share = format_percentage(summary.passed, judged)
    between = ""
    if summary.pass_interval is not None:
        low, high = summary.pass_interval
        between = f"; 95 % interval {format_share(low)} to {format_share(high)}"
    return f"{share} ({summary.passed:,} of {judged:,} judged{beside}{between})"


def _usage_text(usage: Usage) -> str:
    answers = plural(usage.requests, "answer")
    if 0 < usage.cached_requests == usage.requests:
        return f"{answers}, all from the cache"
    cached = f" ({usage.cached_requests:,} cached)" if usage.cached_requests else ""
    tokens = f"{format_count(usage.input_tokens)} tokens in, {format_count(usage.output_tokens)} out"
    return f"{answers}{cached}, {tokens}{_cost_text(usage)}"


def _cost_text(usage: Usage) -> str:
    if usage.cost_usd is None:
        return ", cost unknown"
    return f", {format_cost(usage.cost_usd)}" if usage.cost_usd else ""


def _print_metrics(summary: RunSummary, console: Console) -> None:
    metrics = telling_metrics(summary)
    if not metrics:
        return
    table = plain_table(console)
    table.add_column("metric", overflow="fold")
    for heading in ("mean", "95 % interval", "n", "errors"):
        table.add_column(heading, justify="right")
    for name, metric in list(metrics.items())[:METRICS_MAX]:
        mean = "none" if metric.mean is None else format_score(metric.mean)
        errors = Text(f"{metric.errored:,}", style=STYLES[Status.ERROR] if metric.errored else "dim")
        between = "" if metric.interval is None else format_interval(metric.interval)
        table.add_row(Text(one_line(name, 60)), mean, between, f"{metric.n:,}", errors)
    print_trimmed(indented(table), console)
    hidden = len(metrics) - METRICS_MAX
    if hidden > 0:
        console.print(Text(f" and {plural(hidden, 'more metric')}", style="dim"))
    console.print()


def _run_text(report: RunReport, console: Console) -> Text:
    run = sanitize(report.run.id)
    if report.file:
        return Text.assemble(run, (f" in {sanitize(report.file)}", "dim"))
    if report.is_partly_stored:
        return Text(f"{run} (partly stored: geval show {run} shows what is)")
    if not report.is_stored:
        return Text(f"{run} (not stored, so it cannot be shown again)")
    command = f"geval show {run}"
    if console.width < _LABEL_WIDTH + len(run) + len(command) + len(" . see it again: ") + 2:
        return Text(command)
    return Text.assemble(run, (f" {signs_of(console).dot} see it again: {command}", "dim"))


def _print_line(label: str, text: Text, console: Console) -> None:
    print_hanging(Text(label.ljust(_LABEL_WIDTH), style="dim"), text, console, indent=1)
