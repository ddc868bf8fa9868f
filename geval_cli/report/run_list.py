"""The table of `geval list`: stored runs, newest first."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import PurePath
from typing import Literal

from rich.console import Console
from rich.text import Text

from geval_cli.records import RunRecord, RunStatus, RunSummary, Status
from geval_cli.report.console import print_trimmed
from geval_cli.report.numbers import format_clock, format_duration, format_percentage
from geval_cli.report.sanitize import sanitize
from geval_cli.report.verdict import STYLES
from geval_cli.report.verdict_tables import indented, plain_table

_STATUS_STYLES = {
    RunStatus.COMPLETED: "",
    RunStatus.RUNNING: "cyan",
    RunStatus.INTERRUPTED: "yellow",
    RunStatus.ABORTED: "yellow",
}
_WIDE = 128
"""Narrower terminals leave out the date, the status word and the duration, so that ids and counts stay whole."""
_CONFIG_MIN = 10
_GAP = 3

Row = tuple[Text, ...]


def print_runs(
    runs: Iterable[tuple[RunRecord, RunSummary | None]], console: Console, *, now: datetime
) -> None:
    """Print one line a run. Times are shown relative to `now` (aware) and in its time zone."""
    is_wide = console.width >= _WIDE
    make_row = _wide_row if is_wide else _narrow_row
    rows = [make_row(run, summary, now) for run, summary in runs]
    if not rows:
        console.print(Text(" no runs yet: start one with `geval run CONFIG`"))
        return
    headings = _WIDE_HEADINGS if is_wide else _NARROW_HEADINGS
    widths = [
        max(len(heading), *(row[place].cell_len for row in rows)) for place, heading in enumerate(headings)
    ]
    config = headings.index("config")
    free = console.width - 1 - _GAP * (len(headings) - 1) - sum(widths) + widths[config]
    widths[config] = min(widths[config], max(free, _CONFIG_MIN))
    table = plain_table(console)
    for heading, width in zip(headings, widths, strict=True):
        justify: Literal["left", "right"] = "right" if heading in _NUMERIC else "left"
        table.add_column(heading, width=width, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    print_trimmed(indented(table), console)


_WIDE_HEADINGS = ("run", "when", "config", "status", "passed", "failed", "errors", "pass rate", "took")
_NARROW_HEADINGS = ("run", "when", "config", "pass", "fail", "err", "result")
_NUMERIC = frozenset({"passed", "failed", "errors", "pass", "fail", "err", "pass rate", "took"})


def _wide_row(run: RunRecord, summary: RunSummary | None, now: datetime) -> Row:
    started = _started(run, now)
    when = sanitize(run.started_at) if started is None else f"{_ago(started, now)}, {started:%Y-%m-%d %H:%M}"
    return (
        Text(sanitize(run.id)),
        Text(when),
        Text(sanitize(run.config_path)),
        Text(run.status.value, style=_STATUS_STYLES[run.status]),
        *_counts(summary),
        Text(_pass_rate(summary)),
        Text("" if run.duration_ms is None else format_duration(run.duration_ms)),
    )


def _narrow_row(run: RunRecord, summary: RunSummary | None, now: datetime) -> Row:
    started = _started(run, now)
    is_over = run.status is RunStatus.COMPLETED
    return (
        Text(sanitize(run.id)),
        Text("?" if started is None else _ago(started, now)),
        Text(sanitize(PurePath(run.config_path).name)),
        *_counts(summary),
        Text(_pass_rate(summary) if is_over else run.status.value, style=_STATUS_STYLES[run.status]),
    )


def _counts(summary: RunSummary | None) -> Row:
    if summary is None:
        return (Text(""),) * 3
    counts = (
        (Status.PASSED, summary.passed),
        (Status.FAILED, summary.failed),
        (Status.ERROR, summary.errored),
    )
    return tuple(Text(f"{count:,}", style=STYLES[status] if count else "dim") for status, count in counts)


def _pass_rate(summary: RunSummary | None) -> str:
    return "" if summary is None else format_percentage(summary.passed, summary.passed + summary.failed)


def _started(run: RunRecord, now: datetime) -> datetime | None:
    try:
        return datetime.fromisoformat(run.started_at).astimezone(now.tzinfo)
    except ValueError:
        return None


def _ago(started: datetime, now: datetime) -> str:
    seconds = (now - started).total_seconds()
    return "just now" if seconds < 1 else f"{format_clock(seconds).split()[0]} ago"
