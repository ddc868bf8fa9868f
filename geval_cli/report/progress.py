"""Show how far a run has come while it runs: two live lines on a terminal, occasional plain lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct, field
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from geval_cli.events import (
    BatchesAdvanced,
    CaseFinished,
    ModelCalled,
    Noticed,
    RunEvent,
    RunFinished,
    RunStarted,
)
from geval_cli.numbers import format_clock, format_cost, format_count, format_percentage, plural
from geval_cli.records import Role, RunStatus, Status, Usage
from geval_cli.report.console import is_unicode
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import STYLES, signs_of

_ETA_FROM_DONE = 3
_ETA_FROM_SHARE = 0.01
"""With fewer finished cases than this, an estimate would only jump about."""


class RunState(Struct):
    """Running totals of a run's events; times are in seconds of the clock that the owner reads."""

    started_s: float
    total: int = 0
    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    calls: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(Role, 0))
    usage: Usage = Usage()
    batches: dict[Role, BatchesAdvanced] = field(default_factory=dict)

    def add(self, event: RunEvent) -> None:
        """Add an event to the totals."""
        if isinstance(event, RunStarted):
            self.total = event.total
        elif isinstance(event, CaseFinished):
            self.counts[event.result.status] += 1
        elif isinstance(event, ModelCalled):
            self.calls[event.role] += event.usage.requests  # 0 if several cases share one request
            self.usage += event.usage
        elif isinstance(event, BatchesAdvanced):
            self.batches[event.role] = event

    def batch_texts(self, dot: str) -> list[str]:
        """Return `judge · batch 2 of 4 · 41,200 of 50,000 · expires in 23 h` for each role that waits for answers."""
        return [batch_text(event, dot) for event in self.batches.values() if event.answered < event.requests]

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    def count_parts(self) -> list[tuple[Status, str]]:
        """Return `5 passed`, `2 failed`, `1 error`, each with its status; failures and errors only if there are any."""
        passed, failed, errors = (self.counts[item] for item in (Status.PASSED, Status.FAILED, Status.ERROR))
        parts = [(Status.PASSED, f"{passed:,} passed")]
        if failed:
            parts.append((Status.FAILED, f"{failed:,} failed"))
        if errors:
            parts.append((Status.ERROR, plural(errors, "error")))
        return parts

    def counts_text(self) -> str:
        """Return the counts as one phrase."""
        return ", ".join(text for _, text in self.count_parts())

    def calls_text(self) -> str:
        """Return `calls 12 + 24 judge, 40% cached, $0.02`; the cost only if a price is known."""
        judge = self.calls[Role.JUDGE]
        text = f"calls {format_count(self.calls[Role.GENERATION])}"
        text += f" + {format_count(user)} user" if (user := self.calls[Role.USER]) else ""
        parts = [f"{text} + {format_count(judge)} judge" if judge else text]
        if self.usage.cached_requests and self.usage.requests:
            parts.append(f"{format_percentage(self.usage.cached_requests, self.usage.requests)} cached")
        if self.usage.cost_usd:
            parts.append(format_cost(self.usage.cost_usd))
        return ", ".join(parts)

    def elapsed_text(self, now_s: float) -> str:
        """Return the elapsed time as `1m 05s`."""
        return format_clock(max(now_s - self.started_s, 0))

    def eta_text(self, now_s: float) -> str:
        """Return `ETA 2m 10s`; "" while too little is known, and at the end."""
        is_early = self.done < max(_ETA_FROM_DONE, self.total * _ETA_FROM_SHARE)
        if is_early or self.done >= self.total:
            return ""
        elapsed = now_s - self.started_s
        return f"ETA {format_clock(elapsed / self.done * (self.total - self.done))}"


def batch_text(event: BatchesAdvanced, dot: str) -> str:
    """Return the progress of a role's batches on one line."""
    parts = [
        event.role.value,
        f"batch {event.number} of {event.batches}",
        f"{event.answered:,} of {event.requests:,}",
    ]
    if event.expires_in_s is not None and event.expires_in_s > 0:
        hours = event.expires_in_s / _HOUR_S
        left = f"{hours:.0f} h" if hours >= 1 else f"{event.expires_in_s / 60:.0f} min"
        parts.append(f"expires in {left}")
    return f" {dot} ".join(parts)


Clock = Callable[[], float]

_REFRESHES_PER_S = 8
_PLAIN_EVERY_S = 5.0
_PLAIN_AT_LEAST_EVERY_S = 30.0
_PLAIN_SHARE = 0.1
_NOTICE_WIDTH = 2_000
_BAR_MIN, _BAR_MAX = 8, 30
_HOUR_S = 3600.0


class Progress(Protocol):
    """A display that listens to a run's events while it is entered; leaving it always restores the terminal."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def listen(self, event: RunEvent) -> None:
        """Handle an event; must be cheap and execute nothing."""
        ...


def make_progress(
    console: Console,
    *,
    is_shown: bool = True,
    clock: Clock = time.monotonic,
    stopping: Callable[[], str] = str,
) -> Progress:
    """Return the progress display that fits `console` (stderr): live lines, plain lines, or only notices.

    `clock` returns seconds and never goes back. `stopping` returns what a stopping run still waits for, else "".
    """
    if not is_shown:
        return _NoticesOnly(console)
    kind = _LiveProgress if console.is_interactive else _PlainProgress
    return kind(console, clock, stopping)


class _NoticesOnly:
    def __init__(self, console: Console) -> None:
        self._notices = _Notices(console)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def listen(self, event: RunEvent) -> None:
        self._notices.listen(event)


class _Notices:
    """A printer of notices to the user; each message is printed once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: set[str] = set()

    def listen(self, event: RunEvent) -> None:
        if isinstance(event, Noticed) and event.message not in self._seen:
            self._seen.add(event.message)
            self._console.print(Text(f"note: {one_line(event.message, _NOTICE_WIDTH)}", style="yellow"))


class _LiveProgress:
    """Two lines that a thread of rich redraws in place; they vanish at the end, when the table takes over."""

    def __init__(self, console: Console, clock: Clock, stopping: Callable[[], str]) -> None:
        self._clock = clock
        self._state = RunState(clock())
        self._notices = _Notices(console)
        self._live = Live(
            console=console,
            get_renderable=lambda: _Lines(self._state, clock(), stopping()),
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def listen(self, event: RunEvent) -> None:
        if isinstance(event, RunStarted):
            self._state = RunState(self._clock())
        self._state.add(event)
        self._notices.listen(event)


class _Lines:
    """A line with a bar and counts, one with calls and times, then one per role with batches; long lines are cut."""

    def __init__(self, state: RunState, now_s: float, stopping: str) -> None:
        self._state = state
        self._now_s = now_s
        self._stopping = stopping

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width - 1
        dot = signs_of(console).dot
        batches = [Text(f" {text}", style="dim") for text in self._state.batch_texts(dot)]
        state, dot = self._state, signs_of(console).dot
        eta = "" if self._stopping else state.eta_text(self._now_s)
        parts = [state.elapsed_text(self._now_s), *([eta] if eta else []), state.calls_text()]
        head = Text.assemble(" ", (self._stopping, "yellow"), f" {dot}") if self._stopping else Text()
        second = head.append(" " + f" {dot} ".join(parts), style="dim")
        for line in (self._first(console, width), second, *batches):
            line.truncate(width, overflow="ellipsis")
            yield line

    def _first(self, console: Console, width: int) -> Text:
        state = self._state
        done = Text(f" {state.done:,}/{state.total:,}", style="bold")
        counts = Text("  ")
        for position, (status, words) in enumerate(state.count_parts()):
            counts.append(", " if position else "").append(words, style=STYLES[status])
        bar_width = min(_BAR_MAX, width - done.cell_len - counts.cell_len - 2)
        if bar_width >= _BAR_MIN:
            full, empty = ("━", "─") if is_unicode(console) else ("#", "-")
            share = self._state.done / self._state.total if self._state.total else 0
            filled = int(bar_width * min(share, 1))
            bar = Text.assemble((full * filled, "green"), (empty * (bar_width - filled), "dim"))
        else:
            bar = Text()
        return Text.assemble(" ", bar, done, counts)


class _PlainProgress(_NoticesOnly):
    """Progress for files, pipes and build logs: an occasional complete line, without control characters."""

    def __init__(self, console: Console, clock: Clock, stopping: Callable[[], str]) -> None:
        super().__init__(console)
        self._console = console
        self._clock = clock
        self._stopping = stopping
        self._state = RunState(clock())
        self._last_s = self._state.started_s
        self._last_done = 0
        self._last_batches: dict[Role, str] = {}

    def listen(self, event: RunEvent) -> None:
        if isinstance(event, RunStarted):
            self._state = RunState(self._clock())
            self._last_s, self._last_done = self._state.started_s, 0
            self._print(f"running {plural(event.total, 'case')} of {one_line(event.run.config_path, 200)}")
        self._state.add(event)
        self._notices.listen(event)
        if isinstance(event, RunFinished):
            state = self._state
            word = "finished" if event.run.status is RunStatus.COMPLETED else event.run.status.value
            done = f"{state.done:,} of {plural(state.total, 'case')}"
            self._print(f"{word}: {done}; {state.counts_text()}; {state.elapsed_text(self._clock())}")
        elif isinstance(event, BatchesAdvanced):
            # A new wave is reported at once, its progress not too often.
            text = batch_text(event, signs_of(self._console).dot)
            now_s = self._clock()
            is_new_wave = event.answered == 0 and self._last_batches.get(event.role) != text
            if is_new_wave or (
                self._last_batches.get(event.role) != text and now_s - self._last_s >= _PLAIN_EVERY_S
            ):
                self._last_batches[event.role], self._last_s = text, now_s
                self._print(text)
        elif not isinstance(event, RunStarted) and self._is_due(isinstance(event, CaseFinished)):
            state, now_s = self._state, self._clock()
            self._last_s, self._last_done = now_s, state.done
            eta = self._stopping() or state.eta_text(now_s)
            share = format_percentage(state.done, state.total)
            parts = [f"{state.done:,}/{state.total:,} ({share})", state.counts_text(), state.calls_text()]
            times = f"{state.elapsed_text(now_s)}, {eta}" if eta else state.elapsed_text(now_s)
            self._print("; ".join([*parts, times]))

    def _is_due(self, is_step: bool) -> bool:
        since_s = self._clock() - self._last_s
        # A sign of life, because build servers kill jobs that print nothing for long.
        if since_s >= _PLAIN_AT_LEAST_EVERY_S:
            return True
        progressed = self._state.done - self._last_done >= self._state.total * _PLAIN_SHARE
        return is_step and progressed and since_s >= _PLAIN_EVERY_S

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
