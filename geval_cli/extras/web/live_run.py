"""One run as its watchers see it: its state and what happens in it, in this process or in another one."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from typing import Any

from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.errors import UsageError
from geval_cli.events import CaseFinished, Noticed, RunEvent, RunFinished, RunStarted
from geval_cli.records import CaseResult, RunRecord, RunStatus, RunSummary, Status, to_json
from geval_cli.report.case_view import case_reason
from geval_cli.store.runs import RunStore

UNREAD_MAX = 500
"""A watcher with more unread events is given the state of things instead."""

POLL_S = 1.0
"""So often the store is asked about a run that another process has under way."""

_PROBLEMS_KEPT = 20
_REASON_LENGTH = 300

EventJson = dict[str, Any]


class LiveRun:
    """State of a run while it goes on. Belongs to one event loop.

    Its events are dicts with a `type`: `state` (always the first that a watcher gets), `case`, `notice`, `stopping`
    and, as the last one, `finished` or `broken`.
    """

    def __init__(self, run: RunRecord, total: int, stop: StopSignal, kept: Tally | None = None) -> None:
        """Begin to count; `kept` are the results of before where the run is resumed, which `total` includes."""
        self.run = run
        self.total = total
        self._stop = stop
        self._tally = Tally() if kept is None else deepcopy(kept)
        self._notices: list[str] = []
        # For watchers who join late; all of them are in the store, and a run may have a million.
        self._problems: deque[EventJson] = deque(maxlen=_PROBLEMS_KEPT)
        self._watchers: set[_Unread] = set()
        self._last: EventJson | None = None

    @property
    def is_stopping(self) -> bool:
        """Return whether the run was asked to stop."""
        return self._stop.is_requested

    @property
    def summary(self) -> RunSummary:
        """The counts so far."""
        return self._tally.summary()

    def counts(self) -> EventJson:
        """Return how far the run is: cases by status, and how many there will be."""
        counts = self._tally.counts
        return {
            "done": sum(counts.values()),
            "total": self.total,
            "passed": counts[Status.PASSED],
            "failed": counts[Status.FAILED],
            "errored": counts[Status.ERROR],
            "not_evaluated": counts[Status.NOT_EVALUATED],
        }

    def state(self) -> EventJson:
        """Return the state that a watcher needs who joins late."""
        return {
            "type": "state",
            "run": run_json(self.run),
            "counts": self.counts(),
            "summary": to_json(self.summary),
            "notices": list(self._notices),
            "problems": list(self._problems),
            "stopping": self.is_stopping,
            "holder": None,
        }

    def stop(self, *, patience_s: float | None = None) -> None:
        """Ask for its end: nothing new is started, and what was sent is waited for; asked twice, it is not.

        Args:
            patience_s: the longest wait for what was sent; None for as long as it takes.
        """
        if self._stop.is_requested:
            self._stop.hurry()
        self._stop.patience_s = patience_s
        self._stop.request(StopReason.REQUEST)
        self._tell({"type": "stopping"})

    def listen(self, event: RunEvent) -> None:
        """Take note of an event and pass it on."""
        if isinstance(event, CaseFinished):
            self._tally.add(event.result)
            brief = brief_of(event.result)
            if event.result.status in (Status.FAILED, Status.ERROR):
                self._problems.append(brief)
            self._tell({"type": "case", "case": brief, "counts": self.counts()})
        elif isinstance(event, Noticed):
            self._notices.append(event.message)
            self._tell({"type": "notice", "message": event.message})
        elif isinstance(event, RunFinished):
            self.run = event.run
            self._end(finished_event(event.run, event.summary))
        elif isinstance(event, RunStarted):
            self.run = event.run

    def end_broken(self, message: str) -> None:
        """Tell the watchers that the run broke off."""
        self._end({"type": "broken", "message": message})

    async def events(self) -> AsyncIterator[EventJson]:
        """Yield the state now, then everything as it happens, until the run is over."""
        unread = _Unread(self.state)
        if self._last is not None:
            unread.tell(self._last)
        self._watchers.add(unread)
        try:
            yield self.state()
            while True:
                event = await unread.next()
                yield event
                if event is self._last:
                    return
        finally:
            self._watchers.discard(unread)

    def _tell(self, event: EventJson) -> None:
        for unread in self._watchers:
            unread.tell(event)

    def _end(self, event: EventJson) -> None:
        if self._last is None:
            self._last = event
            self._tell(event)


class _Unread:
    """Events that one watcher has not read yet. A watcher that is far behind gets the state in their place."""

    def __init__(self, state: Callable[[], EventJson]) -> None:
        self._state = state
        self._events: deque[EventJson | None] = deque()
        self._has_some = asyncio.Event()

    def tell(self, event: EventJson) -> None:
        if len(self._events) >= UNREAD_MAX:
            self._events.clear()
            self._events.append(None)
        self._events.append(event)
        self._has_some.set()

    async def next(self) -> EventJson:
        while not self._events:
            self._has_some.clear()
            await self._has_some.wait()
        event = self._events.popleft()
        return self._state() if event is None else event


def stored_state(runs: RunStore, run: RunRecord) -> EventJson:
    """Return the state of a run that another process has under way, as far as it is stored.

    Raises:
        StoreError: the stored runs cannot be read.
    """
    pages, origin = runs.pages(), runs.origin(run.id)
    counts = pages.counts(run.id)
    return {
        "type": "state",
        "run": run_json(run),
        "counts": {
            "done": counts.total,
            "total": max(counts.total, 0 if origin is None else origin.planned),
            "passed": counts.passed,
            "failed": counts.failed,
            "errored": counts.errored,
            "not_evaluated": counts.not_evaluated,
        },
        "summary": to_json(counts),
        "notices": [],
        "problems": [brief_of(item) for item in reversed(pages.problems(run.id, _PROBLEMS_KEPT))],
        "stopping": False,
        "holder": runs.holder(run.id) or "another process",
    }


async def stored_events(runs: RunStore, run_id: str, closing: asyncio.Event) -> AsyncIterator[EventJson]:
    """Yield the state of a run of another process each time that it changed, and at last how the run ended.

    It ends without that when `closing` is set, and with `broken` when the run is removed.
    """
    told: EventJson | None = None
    while not closing.is_set():
        try:
            event = await asyncio.to_thread(_stored_event, runs, run_id)
        except UsageError as error:
            event = {"type": "broken", "message": error.message}
        if event != told:
            yield event
            told = event
        if event["type"] != "state":
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), POLL_S)


def _stored_event(runs: RunStore, run_id: str) -> EventJson:
    stored = runs.find(run_id)
    if stored.run.status is RunStatus.RUNNING:
        return stored_state(runs, stored.run)
    return finished_event(stored.run, stored.summary or runs.pages().counts(run_id))


def run_json(run: RunRecord) -> EventJson:
    """Return a run's record as JSON without its config, which may be large."""
    return {name: value for name, value in to_json(replace(run, config=None)).items() if name != "config"}


def finished_event(run: RunRecord, summary: RunSummary) -> EventJson:
    """Return the last event of a run that came to its end."""
    return {"type": "finished", "run": run_json(run), "summary": to_json(summary)}


def brief_of(result: CaseResult) -> EventJson:
    """Return the part of a case that a list shows; a watcher asks for the rest by its place."""
    text = case_reason(result)
    shortened = text if len(text) <= _REASON_LENGTH else f"{text[: _REASON_LENGTH - 1]}…"
    return {
        "id": result.id,
        "test_index": result.test_index,
        "repeat_index": result.repeat_index,
        "column": result.column,
        "description": result.description,
        "prompt": result.prompt.label,
        "provider": result.provider.label,
        "status": result.status.value,
        "score": result.score,
        "reason": shortened or None,
    }
