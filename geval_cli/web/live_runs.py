"""The runs that a server has under way: started, watched, stopped, and waited for when the server ends."""

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.events import CaseFinished, Noticed, RunEvent, RunFinished, RunStarted
from geval_cli.records import AssertionResult, CaseResult, RunRecord, RunStatus, RunSummary, Status, to_json
from geval_cli.runs.code import runs_code
from geval_cli.runs.evaluation import run_evaluation
from geval_cli.runs.options import RunOptions, values_of
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.store.runs import StoredRun
from geval_cli.store.state import State
from geval_cli.web.problems_json import RefusedError
from geval_cli.web.served_folder import served_config
from geval_cli.web.settings import ServerSettings

UNREAD_MAX = 500
"""A watcher with more unread events is given the state of things instead."""

_PROBLEMS_KEPT = 20
_REASON_LENGTH = 300

EventJson = dict[str, Any]


class LiveRun:
    """State of a run while it goes on. Belongs to one event loop.

    Its events are dicts with a `type`: `state` (always the first that a watcher gets), `case`, `notice`, `stopping`
    and, as the last one, `finished` or `broken`.
    """

    def __init__(self, run: RunRecord, total: int, stop: StopSignal) -> None:
        self.run = run
        self.total = total
        self._stop = stop
        self._tally = Tally()
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
        }

    def stop(self) -> None:
        """Ask for its end: nothing new is started, what is under way gets a short grace; asked twice, it gets none."""
        if self._stop.is_requested:
            self._stop.hurry()
        self._stop.request(StopReason.REQUEST)
        self._tell({"type": "stopping"})

    def listen(self, event: RunEvent) -> None:
        """Take note of an event and pass it on."""
        if isinstance(event, CaseFinished):
            self._tally.add(event.result)
            brief = _brief(event.result)
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


def run_json(run: RunRecord) -> EventJson:
    """Return a run's record as JSON without its config, which may be large."""
    return {name: value for name, value in to_json(replace(run, config=None)).items() if name != "config"}


def finished_event(run: RunRecord, summary: RunSummary) -> EventJson:
    """Return the last event of a run that came to its end."""
    return {"type": "finished", "run": run_json(run), "summary": to_json(summary)}


def _brief(result: CaseResult) -> EventJson:
    """Return the part of a case that a list shows; a watcher asks for the rest by its place."""
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
        "reason": _first_reason(result),
    }


def _first_reason(result: CaseResult) -> str | None:
    """Return why a case did not pass: its error, else the reason of the first assertion that gives one."""
    if result.error is not None:
        return _shortened(result.error.message)
    wanted = (Status.FAILED, Status.ERROR)
    reasons = (_reason(assertion) for assertion in result.assertions if assertion.status in wanted)
    return next((_shortened(reason) for reason in reasons if reason), None)


def _reason(assertion: AssertionResult) -> str | None:
    return assertion.error.message if assertion.error is not None else assertion.reason


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else f"{text[: _REASON_LENGTH - 1]}…"


_log = logging.getLogger("geval_cli")

_FORBIDDEN, _CONFLICT, _TOO_MANY, _UNAVAILABLE = 403, 409, 429, 503
_AGAIN_S = 10


class LiveRuns:
    """Starts runs and knows those under way. Belongs to one event loop."""

    def __init__(self, settings: ServerSettings, state: State) -> None:
        self._settings = settings
        self._state = state
        self._live: dict[str, LiveRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._is_closing = False

    @property
    def running(self) -> tuple[LiveRun, ...]:
        """The runs under way."""
        return tuple(self._live.values())

    def find(self, run_id: str) -> LiveRun | None:
        """Return the run under way with this id; None for any other."""
        return self._live.get(run_id)

    async def start(self, config: str, options: RunOptions | None = None) -> str:
        """Check a config of the served folder and start it; return the run's id once it is stored.

        Raises:
            RefusedError: no such config, one outside the folder, one that runs code, or too many runs under way.
            ConfigError: with every problem of the config.
        """
        self._check_room()
        path = served_config(self._settings.folder, config)
        self._starting += 1
        try:
            prepared = await asyncio.to_thread(self._prepare, self._request(path, options or RunOptions()))
            return await self._begin(prepared)
        finally:
            self._starting -= 1

    def stop(self, run_id: str) -> None:
        """Ask a run to stop; the second time, without waiting for requests under way.

        Raises:
            RefusedError: it is not under way in this server.
        """
        live = self._live.get(run_id)
        if live is None:
            message = f"run {run_id} is not under way in this server"
            raise RefusedError(
                message, status=_CONFLICT, hint="only a run that this server started can be stopped"
            )
        live.stop()

    async def events(self, stored: StoredRun) -> AsyncIterator[EventJson]:
        """Yield what happens in a run, from its state now to its end; see `LiveRun` for the events.

        Of a run that is over the last event comes at once. One that another process has under way gives its record.
        """
        live = self._live.get(stored.run.id)
        if live is not None:
            async for event in live.events():
                yield event
        elif stored.run.status is RunStatus.RUNNING or stored.summary is None:
            yield {"type": "elsewhere", "run": run_json(stored.run), "summary": to_json(stored.summary)}
        else:
            yield finished_event(stored.run, stored.summary)

    def stop_all(self) -> None:
        """Ask every run to stop."""
        for live in self.running:
            live.stop()

    def close(self) -> None:
        """Start no further run."""
        self._is_closing = True

    async def aclose(self) -> None:
        """Wait for the runs under way to come to their end; start no further one."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _check_room(self) -> None:
        if self._is_closing:
            raise RefusedError(
                "the server is stopping", status=_UNAVAILABLE, hint="start it again with `geval serve`"
            )
        if self._state.runs.is_gone:
            message = (
                "the folder with the stored runs was deleted while the server ran, so no run can be stored"
            )
            raise RefusedError(
                message, status=_UNAVAILABLE, hint="start the server again: it makes a new one"
            )
        if self._starting + len(self._live) >= self._settings.max_runs:
            message = f"{self._settings.max_runs} runs are under way already"
            hint = "wait until one of them is over, or stop one"
            raise RefusedError(message, status=_TOO_MANY, hint=hint, retry_after_s=_AGAIN_S)

    def _request(self, config: Path, asked: RunOptions) -> RunRequest:
        settings = self._settings
        options = dataclasses.replace(
            asked,
            env_file=settings.env_file,
            grader=asked.grader or settings.grader,
            scoring=asked.scoring or settings.scoring,
            samples=asked.samples or settings.samples,
        )
        return RunRequest(
            config,
            settings.environ,
            served=settings.readable_folder,
            is_own_grader=asked.grader in (None, settings.grader),
            **values_of(options),
        )

    def _prepare(self, request: RunRequest) -> PreparedRun:
        """Check a suite; called in a thread, since a suite may be large."""
        # The server's own grader is the word of whoever started it.
        foreign = (
            request if request.grader != self._settings.grader else dataclasses.replace(request, grader=None)
        )
        code = () if self._settings.allows_code else runs_code(foreign)
        if code:
            what = ", ".join(f"`{item}`" for item in code[:3])
            message = f"{request.config} runs code of its own ({what}), which this server does not allow"
            hint = "start the server with --allow-code if you trust every config in the folder"
            raise RefusedError(message, status=_FORBIDDEN, hint=hint)
        return prepare(request)

    async def _begin(self, prepared: PreparedRun) -> str:
        stop = StopSignal()
        begun: asyncio.Future[LiveRun] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(prepared, stop, begun))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        either: set[asyncio.Future[Any]] = {task, begun}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await task  # raises why it did not even begin
        return begun.result().run.id

    async def _run(self, prepared: PreparedRun, stop: StopSignal, begun: "asyncio.Future[LiveRun]") -> None:
        def listen(event: RunEvent) -> None:
            if isinstance(event, RunStarted):
                live = LiveRun(event.run, event.total, stop)
                self._live[event.run.id] = live
                begun.set_result(live)
            begun.result().listen(event)

        try:
            await run_evaluation(prepared, self._state, listen=listen, stop=stop)
        finally:
            if begun.done():
                live = begun.result()
                self._live.pop(live.run.id, None)
                live.end_broken("the run broke off; the server's own messages say why")

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a run broke off: %s", error, exc_info=error)
