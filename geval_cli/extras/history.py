"""`geval list`: stored runs, newest first, each with the change in pass rate since the previous run of its config."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from geval_cli.extras.compare.comparison import PASS_RATE, paired_cases, values_of
from geval_cli.extras.compare.matching import match_columns
from geval_cli.extras.run_pages import RunChoice, RunOutline, RunPages, StoredVerdict
from geval_cli.numbers import format_clock, format_percentage, plural
from geval_cli.records import (
    SHORT_COMMIT,
    Column,
    JsonValue,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    to_json,
)
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.report.verdict import STYLES, shown_gates
from geval_cli.statistics.intervals import Interval
from geval_cli.statistics.paired import DifferenceVerdict, PairedSample, decide
from geval_cli.store.runs import RunStore

_STATUS_STYLES = {
    RunStatus.COMPLETED: "",
    RunStatus.RUNNING: "cyan",
    RunStatus.INTERRUPTED: "yellow",
    RunStatus.ABORTED: "yellow",
}
_CHANGE_STYLES = {DifferenceVerdict.BETTER: "green", DifferenceVerdict.WORSE: "bold red"}
_WIDE = 160
"""At this width or more, long texts wrap; in narrower terminals they are cut."""
_GAP = 2
_TEXT_MAX = 120
_UPWARDS_MAX = 3
_CHANGE_NOTE = (
    "change: points of pass rate since the run before of the same config, in the tests of both, ± 95 % CI"
)


class RunChange(Struct, frozen=True):
    """The difference between the pass rates of a run and an earlier one, over the `n` cases judged in both.

    Attributes:
        against: the id of the earlier run.
        value: later minus earlier, -1..1.
        interval: its 95 % interval, clustered by test; None if there is none (a single test, or equal differences).
        clusters: the number of tests.
        verdict: whether the difference is more than chance.
    """

    against: str
    value: float
    interval: Interval | None
    n: int
    clusters: int
    verdict: DifferenceVerdict


class RunListEntry(Struct, frozen=True):
    """A run in the list. `config_file` is the absolute path of its config; None if the run was started without one."""

    run: RunRecord
    counts: RunSummary
    config_file: str | None = None
    change: RunChange | None = None


class _Column(Struct, frozen=True):
    """A column of the table, and how it gives way when there is not enough room.

    Attributes:
        rank: the column with the highest rank is dropped first; 0 is never dropped.
        minimum: the width down to which it may shrink; 0 if it is never cut.
    """

    heading: str
    cell: Callable[[RunListEntry, datetime, Path], Text]
    rank: int = 0
    minimum: int = 0
    is_number: bool = False


def print_runs(
    runs: Sequence[RunListEntry],
    console: Console,
    *,
    now: datetime,
    folder: Path,
    total: int | None = None,
    sentence: str = "",
) -> None:
    """Print a table with one row per run.

    Args:
        runs: newest first.
        console: the console to print to.
        now: the current time, with a time zone; times are shown relative to it.
        folder: the folder that config paths are shown relative to.
        total: the number of stored runs; None if these are all.
        sentence: the sentence above the table; "" for one about the latest run.
    """
    if not runs:
        console.print(Text(" no runs yet: start one with `geval run`"))
        return
    print_hanging(
        Text(), Text(sentence or _latest(runs, total or len(runs)), style="bold"), console, indent=1
    )
    console.print()
    is_wide = console.width >= _WIDE
    cells = {column.heading: [column.cell(run, now, folder) for run in runs] for column in _COLUMNS}
    filled = [column for column in _COLUMNS if not column.rank or any(cells[column.heading])]
    columns, widths = _fit(filled, cells, console.width)
    table = plain_table(console)
    table.padding = (0, _GAP - 1, 0, 0)  # plus the space between columns
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(column.heading, width=width, justify=justify, no_wrap=not is_wide, overflow="fold")
    for row in range(len(runs)):
        shown = (cells[column.heading][row] for column in columns)
        table.add_row(
            *(cell if is_wide else _cut(cell, width) for cell, width in zip(shown, widths, strict=True))
        )
    print_trimmed(indented(table), console)
    notes = [_CHANGE_NOTE] if any(column.heading == "change" for column in columns) else []
    if total is not None and total > len(runs):
        notes.append(f"{len(runs):,} of {total:,} runs; `geval list -n {total}` shows all")
    if notes:
        console.print()
    for note in notes:
        print_hanging(Text(), Text(note, style="dim"), console, indent=1)


def _latest(runs: Sequence[RunListEntry], total: int) -> str:
    """Return the sentence about the latest run.

    `6 runs; the latest, of helpdesk.yaml, passed 74 %, 5.7 points more than the run before (undecided)`.
    """
    item = runs[0]
    run, counts = item.run, item.counts
    config = one_line(Path(run.config_path).name, 60)
    said = f"{plural(total, 'run')}; the latest{f', of {config},' if config else ''}"
    if run.status is not RunStatus.COMPLETED:
        return f"{said} {'is running' if run.status is RunStatus.RUNNING else f'was {run.status.value}'}"
    judged = counts.passed + counts.failed
    if not judged:
        return f"{said} judged nothing"
    said += f" passed {format_percentage(counts.passed, judged)}"
    if (change := item.change) is not None:
        points = f"{abs(100 * change.value):.1f}"
        than = (
            f"{points} points {'more' if change.value > 0 else 'less'} than"
            if float(points)
            else "the same as"
        )
        verdict = "" if change.verdict is DifferenceVerdict.IDENTICAL else f" ({change.verdict.value})"
        said += f", {than} the run before{verdict}"
    return f"{said}; {plural(counts.errored, 'error')}" if counts.errored else said


def runs_json(runs: Sequence[RunListEntry], total: int) -> dict[str, JsonValue]:
    """Return the list as JSON: the run records without their configs."""
    return {
        "runs": [
            {
                "run": {name: value for name, value in to_json(item.run).items() if name != "config"},
                "summary": to_json(item.counts),
                "config_file": item.config_file,
                "change": to_json(item.change),
            }
            for item in runs
        ],
        "total": total,
    }


def _fit(
    columns: Sequence[_Column], cells: Mapping[str, Sequence[Text]], width: int
) -> tuple[list[_Column], list[int]]:
    """Return the columns that fit into the width, and their widths."""
    kept = list(columns)
    natural = {
        column.heading: max(
            len(column.heading),
            *(cell_len(line) for cell in cells[column.heading] for line in cell.plain.split("\n")),
        )
        for column in columns
    }
    least = {
        column.heading: min(column.minimum or natural[column.heading], natural[column.heading])
        for column in columns
    }

    def missing() -> int:
        return 1 + _GAP * (len(kept) - 1) + sum(least[column.heading] for column in kept) - width

    while missing() > 0 and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    free, widths = max(-missing(), 0), dict(least)
    # Columns that need least get their width first; the others share the rest.
    growing = sorted(
        (column.heading for column in kept), key=lambda heading: natural[heading] - least[heading]
    )
    for position, heading in enumerate(growing):
        share = min(natural[heading] - least[heading], free // (len(growing) - position))
        widths[heading] += share
        free -= share
    return kept, [widths[column.heading] for column in kept]


def _cut(cell: Text, width: int) -> Text:
    """Return a cell that fits; a path keeps its end, which is the most specific part."""
    text = cell.plain
    if cell_len(text) <= width:
        return cell
    if "/" in text and " " not in text:
        tail = text
        while cell_len(tail) > width - 1:
            tail = tail[1:]
        return Text(f"…{tail}", style=cell.style)
    return Text(set_cell_size(text, width - 1).rstrip() + "…", style=cell.style)


def _when(item: RunListEntry, now: datetime, _: Path) -> Text:
    started = _started(item.run, now)
    return Text(one_line(item.run.started_at, 30) if started is None else _ago(started, now))


def _config(item: RunListEntry, _: datetime, folder: Path) -> Text:
    if item.config_file is None:
        return Text(sanitize(item.run.config_path))
    near = os.path.relpath(item.config_file, folder)
    is_far = near.startswith(os.path.join(*[os.pardir] * _UPWARDS_MAX))  # noqa: PTH118 - it is compared with a text
    return Text(sanitize(item.config_file if is_far else near))


def _listed(texts: Mapping[str, None]) -> Text:
    return Text(one_line(", ".join(text for text in texts if text), _TEXT_MAX))


def _commit(item: RunListEntry, _: datetime, __: Path) -> Text:
    git = item.run.git
    if git is None or git.commit is None:
        return Text("")
    return Text(sanitize(git.commit[:SHORT_COMMIT]) + (" dirty" if git.dirty else ""))


def _count(
    status: Status, count: Callable[[RunSummary], int]
) -> Callable[[RunListEntry, datetime, Path], Text]:
    def cell(item: RunListEntry, _: datetime, __: Path) -> Text:
        found = count(item.counts)
        return Text(f"{found:,}", style=STYLES[status] if found else "dim")

    return cell


def _gates(item: RunListEntry, _: datetime, __: Path) -> Text:
    gates = shown_gates(item.counts.gates)
    met = sum(gate.status is Status.PASSED for gate in gates)
    style = "" if met == len(gates) else STYLES[Status.FAILED]
    return Text(f"{met} of {len(gates)}" if gates else "", style=style)


def _result(item: RunListEntry, _: datetime, __: Path) -> Text:
    run, counts = item.run, item.counts
    if run.status is not RunStatus.COMPLETED:
        return Text(run.status.value, style=_STATUS_STYLES[run.status])
    return Text(format_percentage(counts.passed, counts.passed + counts.failed))


def _change(item: RunListEntry, _: datetime, __: Path) -> Text:
    change = item.change
    if change is None:
        return Text("")
    return Text(change_text(change), style=_CHANGE_STYLES.get(change.verdict, ""))


def change_text(change: RunChange) -> str:
    """Return a change in percentage points with half the width of its interval: `+5.7 ±3.9`."""
    text = f"{100 * change.value:+.1f}"
    text = "0" if float(text) == 0 else text
    if change.interval is not None and change.interval[0] < change.interval[1]:
        # An interval that would leave -100..100 is cut there, so its longer side is half its width.
        low, high = change.interval
        text += f" ±{100 * max(change.value - low, high - change.value):.1f}"
    return text


def _started(run: RunRecord, now: datetime) -> datetime | None:
    try:
        return datetime.fromisoformat(run.started_at).astimezone(now.tzinfo)
    except ValueError:
        return None


def _ago(started: datetime, now: datetime) -> str:
    seconds = (now - started).total_seconds()
    return "just now" if seconds < 1 else f"{' '.join(format_clock(seconds).split()[:2])} ago"


_COLUMNS = (
    _Column("run", lambda item, _, __: Text(sanitize(item.run.id))),
    _Column("when", _when, 38),
    _Column("config", _config, 0, 10),
    _Column("title", lambda item, _, __: Text(one_line(item.run.title or "", _TEXT_MAX)), 30, 10),
    _Column("description", lambda item, _, __: Text(one_line(item.run.description or "", _TEXT_MAX)), 60, 16),
    _Column(
        "models",
        lambda item, _, __: _listed(dict.fromkeys(column.provider_label for column in item.run.columns)),
        80,
        10,
    ),
    _Column("judge", lambda item, _, __: _listed(dict.fromkeys(item.run.judges)), 90, 10),
    _Column(
        "tags",
        lambda item, _, __: Text(one_line(" ".join(f"{k}={v}" for k, v in item.run.tags.items()), _TEXT_MAX)),
        50,
        10,
    ),
    _Column("commit", _commit, 70),
    _Column("pass", _count(Status.PASSED, lambda counts: counts.passed), is_number=True),
    _Column("fail", _count(Status.FAILED, lambda counts: counts.failed), is_number=True),
    _Column("err", _count(Status.ERROR, lambda counts: counts.errored), is_number=True),
    _Column("gates", _gates, 40),
    _Column("result", _result),
    _Column("change", _change, 35),
)


_MOST_VERDICTS = 60_000
"""How many verdicts are read for one list, which takes about a second; later runs show no change."""


class RunHistory(Struct, frozen=True):
    """Some of the `total` matching runs, newest first."""

    runs: tuple[RunListEntry, ...]
    total: int


Remember = Callable[[tuple[str, ...], Callable[[], RunChange | None]], RunChange | None]
"""Returns an earlier result for the same ids and times, or else calls the function."""


def read_history(
    runs: RunStore,
    chosen: RunChoice,
    *,
    limit: int,
    offset: int = 0,
    remember: Remember = lambda _, make: make(),
    without: Sequence[str] = (),
) -> RunHistory:
    """Return the newest matching runs, after skipping the first `offset` and those whose ids are in `without`.

    `remember` provides the changes between runs that are the same as before.

    Raises:
        StoreError: the database cannot be read.
    """
    pages = RunPages(runs, without)
    outlines, total = pages.outlines(chosen, offset=offset, limit=limit)
    changes = _Changes(runs, pages, remember)
    return RunHistory(
        tuple(RunListEntry(item.run, item.counts, item.config_file, changes.of(item)) for item in outlines),
        total,
    )


class _Changes:
    """Compares runs with their predecessors until the limit on verdicts; the last run's verdicts are reused."""

    def __init__(self, runs: RunStore, pages: RunPages, remember: Remember) -> None:
        self._runs = runs
        self._remember = remember
        self._pages = pages
        self._left = _MOST_VERDICTS
        self._last: tuple[str, list[StoredVerdict]] = ("", [])

    def of(self, item: RunOutline) -> RunChange | None:
        """Return the change since the previous run; None if the run is incomplete or there is nothing to compare."""
        if item.run.status is not RunStatus.COMPLETED:
            return None
        before = self._pages.previous(item.run.id, finished=True)
        if before is None:
            return None
        older = self._runs.find(before).run
        made_of = (item.run.id, item.run.finished_at or "", older.id, older.finished_at or "")
        return self._remember(made_of, lambda: self._change(item, older))

    def _change(self, item: RunOutline, older: RunRecord) -> RunChange | None:
        before = older.id
        if not self._may_read(item.run.id, before):
            return None
        after = self._verdicts(item.run.id)
        return pass_rate_change(older, self._verdicts(before), after, item.run.columns)

    def _may_read(self, *run_ids: str) -> bool:
        unread = [run_id for run_id in run_ids if run_id != self._last[0]]
        self._left -= sum(self._pages.counts(run_id).total for run_id in unread)
        return self._left >= 0

    def _verdicts(self, run_id: str) -> list[StoredVerdict]:
        if run_id != self._last[0]:
            self._last = run_id, self._pages.verdicts(run_id)
        return self._last[1]


def pass_rate_change(
    older: RunRecord,
    before: Sequence[StoredVerdict],
    after: Sequence[StoredVerdict],
    columns: Sequence[Column],
) -> RunChange | None:
    """Return the change in pass rate over the cases judged in both runs; None if there are none.

    Tests are matched by content, and the cases of one test form a cluster.
    """
    sample = PairedSample()
    for pair in paired_cases(before, after, match_columns(older.columns, columns)).pairs:
        values = values_of(PASS_RATE, pair.before, pair.after)
        if values is not None:
            sample.add(pair.after.test_index, values, same=False)
    found = sample.test()
    if found is None:
        return None
    (decision,) = decide({PASS_RATE: found}, group=lambda _: None)
    return RunChange(older.id, found.delta, found.interval, found.n, found.clusters, decision.verdict)
