"""The runs that a server has in progress: start, resume, watch and stop them, and wait for them at shutdown.

Watchers get the state and the events of a run in this process, and the changing state of one in another process.
"""

import asyncio
import contextlib
import dataclasses
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from fastapi import Request
from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.runner import GRACE_S, StopReason, StopSignal
from geval_cli.errors import GevalError, UsageError
from geval_cli.events import CaseFinished, Noticed, RunEvent, RunFinished, RunStarted
from geval_cli.extras.run_pages import RunChoice, RunPages
from geval_cli.extras.web.config_code import runs_code
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.extras.web.settings import ServerSettings, served_config
from geval_cli.records import CaseResult, JsonValue, RunRecord, RunStatus, RunSummary, Status, to_json
from geval_cli.report.case_view import case_reason
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.options import RunOptions, declared_options, values_of
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.resume import GIVEN, ONLY, REPEATED, ResumedRun, resume_run
from geval_cli.specs.dialect import Dialect
from geval_cli.store.runs import RunStore, StoredRun
from geval_cli.store.state import State

UNREAD_MAX = 500
"""A watcher with this many unread events gets the current state instead."""

POLL_S = 1.0
"""Interval in seconds for reading the stored state of a run in another process."""

_PROBLEMS_KEPT = 20
_REASON_LENGTH = 300

EventJson = dict[str, Any]


class LiveRun:
    """The state of a run in progress. Belongs to one event loop.

    Its events are dicts with a `type`: `state` (always the first that a watcher gets), `case`, `notice`, `stopping`
    and, as the last one, `finished` or `broken`.
    """

    def __init__(self, run: RunRecord, total: int, stop: StopSignal, kept: Tally | None = None) -> None:
        """Start counting. If the run is resumed, `kept` has the counts of earlier results, which `total` includes."""
        self.run = run
        self.total = total
        self._stop = stop
        self._tally = Tally() if kept is None else deepcopy(kept)
        self._notices: list[str] = []
        # For watchers who join late. Only the last few: a run may have a million, and the store has them all.
        self._problems: deque[EventJson] = deque(maxlen=_PROBLEMS_KEPT)
        self._watchers: set[_Unread] = set()
        self._last: EventJson | None = None

    @property
    def is_stopping(self) -> bool:
        """Return whether the run has been told to stop."""
        return self._stop.is_requested

    @property
    def summary(self) -> RunSummary:
        """Return the counts so far."""
        return self._tally.summary()

    def counts(self) -> EventJson:
        """Return the progress of the run: finished cases by status, and the total."""
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
        """Return the state of the run now, as a `state` event."""
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
        """Start no further cases and wait for requests in progress; a second call stops the waiting.

        Args:
            patience_s: longest wait for requests in progress, in seconds; None for no limit.
        """
        if self._stop.is_requested:
            self._stop.hurry()
        self._stop.patience_s = patience_s
        self._stop.request(StopReason.REQUEST)
        self._tell({"type": "stopping"})

    def listen(self, event: RunEvent) -> None:
        """Record an event and pass it on to the watchers."""
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
        """Tell the watchers that the run was aborted; no effect on a finished run."""
        self._end({"type": "broken", "message": message})

    async def events(self) -> AsyncIterator[EventJson]:
        """Yield the current state, then each event as it happens, until the run is over."""
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
    """The unread events of one watcher. If it falls too far behind, it gets the current state instead."""

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
    """Return the stored state of a run that another process has in progress.

    Raises:
        StoreError: the stored runs cannot be read.
    """
    pages = RunPages(runs)
    origin = runs.origin(run.id)
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
    """Yield the state of another process's run whenever it changes, then its last event.

    The last event is `broken` if the run is removed. There is none if `closing` is set first.
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
    return finished_event(stored.run, stored.summary or RunPages(runs).counts(run_id))


def run_json(run: RunRecord) -> EventJson:
    """Return a run's record as JSON without its config, which may be large."""
    return {name: value for name, value in to_json(replace(run, config=None)).items() if name != "config"}


def finished_event(run: RunRecord, summary: RunSummary) -> EventJson:
    """Return the last event of a finished run."""
    return {"type": "finished", "run": run_json(run), "summary": to_json(summary)}


def brief_of(result: CaseResult) -> EventJson:
    """Return the parts of a result that a list of cases shows."""
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


_log = logging.getLogger("geval_cli")

_FORBIDDEN, _CONFLICT, _TOO_MANY, _UNAVAILABLE = 403, 409, 429, 503
_AGAIN_S = 10
_PAGE = 200


class LiveRuns:
    """Starts runs and keeps track of those in progress. Belongs to one event loop."""

    def __init__(self, settings: ServerSettings, state: State) -> None:
        self._settings = settings
        self._state = state
        self._live: dict[str, LiveRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: list[Path] = []
        self._closing = asyncio.Event()

    @property
    def running(self) -> tuple[LiveRun, ...]:
        """Return the runs in progress."""
        return tuple(self._live.values())

    def find(self, run_id: str) -> LiveRun | None:
        """Return the run in progress with this id; None if there is none in this server."""
        return self._live.get(run_id)

    async def start(
        self, config: str, options: RunOptions | None = None, *, unless_running: bool = False
    ) -> str:
        """Check a config in the served folder and start it; return the run's id once it is stored.

        With `unless_running`, refuse while a run of the config is in progress in any process.

        Raises:
            RefusedError: the config does not exist, is outside the folder or contains code, too many runs are in
                progress, or the server is stopping.
            ConfigError: the config has problems; all are listed.
        """
        path = served_config(self._settings.folder, config)
        return await self._launch(
            path, lambda: self._request(path, options or RunOptions()), unless_running=unless_running
        )

    async def start_again(self, stored: StoredRun, *, unless_running: bool = False) -> str:
        """Start a new run of a stored run's config, with the options that affected its results; see `start`.

        Raises:
            RefusedError: as for `start`; also if the run's config is not known or it judged stored outputs.
        """
        path = await asyncio.to_thread(self.config_of, stored.run)
        return await self._launch(
            path, lambda: self._repeated(stored.run, path), unless_running=unless_running
        )

    async def resume(self, stored: StoredRun, *, retries_errors: bool = False) -> str:
        """Run the missing cases of a run under its id; with `retries_errors`, also re-run those that ended in an error.

        Raises:
            RefusedError: as for `start_again`; also if the run is in progress, there is nothing to do, or the suite has
                changed.
            ConfigError: the config has problems; all are listed.
        """
        run, summary = stored
        if run.status is RunStatus.RUNNING:
            raise RefusedError(
                f"run {run.id} is in progress", status=_CONFLICT, hint="wait for it to finish, or stop it"
            )
        lacks_nothing = run.status is RunStatus.COMPLETED
        if lacks_nothing and not (retries_errors and summary is not None and summary.errored):
            what = "no case of it ended in an error" if retries_errors else "nothing is missing"
            hint = "start a new run of its suite to do it all again"
            raise RefusedError(f"run {run.id} is complete, and {what}", status=_CONFLICT, hint=hint)
        path = await asyncio.to_thread(self.config_of, run)

        def request() -> RunRequest:
            again = self._repeated(run, path)
            again = dataclasses.replace(again, baseline=self._baseline_of(run, again.baseline))
            # Who resumes a run that stopped at its first failure wants the rest of it.
            return dataclasses.replace(
                again, resume_from=run.id, retry_errors=retries_errors, fail_fast=False
            )

        return await self._launch(path, request)

    def config_of(self, run: RunRecord) -> Path:
        """Return the config of a stored run, to run it again.

        Raises:
            RefusedError: the run judged stored outputs, or its config is not known, missing or outside the served
            folder.
        """
        if run.judged_from is not None:
            hint = f"use `geval judge` in a terminal, with the outputs of run {run.judged_from}"
            raise RefusedError(f"run {run.id} judged stored outputs", status=_CONFLICT, hint=hint)
        origin = self._state.runs.origin(run.id)
        if origin is None:
            hint = "start its config in a terminal with `geval run`"
            raise RefusedError(
                f"run {run.id} has no config that can be run again", status=_CONFLICT, hint=hint
            )
        return served_config(self._settings.folder, origin.config_file)

    def stop(self, run_id: str) -> None:
        """Tell a run to stop; the second time, without waiting for requests in progress.

        Raises:
            RefusedError: the run is not in progress in this server.
        """
        live = self._live.get(run_id)
        if live is None:
            holder = self._state.runs.holder(run_id)
            message = (f"run {run_id} is not in progress") + (
                "" if holder is None else f" here, but in {holder}"
            )
            hint = "there is nothing to stop" if holder is None else "stop it there, for example with Ctrl-C"
            raise RefusedError(message, status=_CONFLICT, hint=hint)
        live.stop()

    async def events(self, stored: StoredRun) -> AsyncIterator[EventJson]:
        """Yield the events of a run from its current state to its end; see `LiveRun` for their types.

        A run that is over has only the last event. A run of another process has a new `state` for each change.
        """
        live = self._live.get(stored.run.id)
        if live is not None:
            async for event in live.events():
                yield event
        elif stored.run.status is RunStatus.RUNNING or stored.summary is None:
            async for event in stored_events(self._state.runs, stored.run.id, self._closing):
                yield event
        else:
            yield finished_event(stored.run, stored.summary)

    def stop_all(self) -> None:
        """Tell every run to stop soon, since the server is stopping."""
        for live in self.running:
            live.stop(patience_s=GRACE_S)

    def close(self) -> None:
        """Start no further runs, and end the event streams of other processes' runs."""
        self._closing.set()

    async def aclose(self) -> None:
        """Start no further runs, and wait for those in progress to finish."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _launch(
        self, path: Path, request: Callable[[], RunRequest], *, unless_running: bool = False
    ) -> str:
        with self._place(path, unless_running=unless_running):
            if unless_running:
                await asyncio.to_thread(self._check_idle, path)
            prepared, resumed = await asyncio.to_thread(self._prepare, request)
            stop = StopSignal()
            begun: asyncio.Future[LiveRun] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._run(prepared, resumed, stop, begun))
            self._tasks.add(task)
            task.add_done_callback(self._forget)
            either: set[asyncio.Future[Any]] = {task, begun}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                if resumed is not None:
                    self._state.runs.release(resumed.run.id)
                await task  # raises the error that kept it from starting
            return begun.result().run.id

    @contextmanager
    def _place(self, path: Path, *, unless_running: bool) -> Iterator[None]:
        """Reserve a place for a run that is starting, so that concurrent requests count it."""
        if self._closing.is_set():
            raise RefusedError(
                "the server is stopping", status=_UNAVAILABLE, hint="start it again with `geval serve`"
            )
        if self._state.runs.is_gone:
            message = (
                "the folder with the stored runs was deleted while the server ran, so no run can be stored"
            )
            raise RefusedError(message, status=_UNAVAILABLE, hint="restart the server, which makes a new one")
        if len(self._starting) + len(self._live) >= self._settings.max_runs:
            message = f"{self._settings.max_runs} runs are already in progress"
            hint = "wait until one of them finishes, or stop one"
            raise RefusedError(message, status=_TOO_MANY, hint=hint, retry_after_s=_AGAIN_S)
        if unless_running and path in self._starting:
            raise _is_running(path, None)
        self._starting.append(path)
        try:
            yield
        finally:
            self._starting.remove(path)

    def _check_idle(self, path: Path) -> None:
        stored = self._state.runs.under_way(path)
        if stored is not None:
            raise _is_running(path, stored.run.id)

    def _request(self, config: Path, asked: RunOptions) -> RunRequest:
        settings = self._settings
        options = dataclasses.replace(
            asked,
            grader=asked.grader or settings.grader,
            scoring=asked.scoring or settings.scoring,
            samples=asked.samples or settings.samples,
        )
        return self._exact_request(config, options)

    def _repeated(self, run: RunRecord, path: Path) -> RunRequest:
        """Return the request to run a stored run's config again, with that run's options instead of the server's."""
        origin = self._state.runs.origin(run.id)
        try:
            return self._exact_request(path, options_of({} if origin is None else origin.covered))
        except UsageError as error:
            raise RefusedError(error.message, status=_CONFLICT, hint=error.hint) from error

    def _baseline_of(self, run: RunRecord, name: str | None) -> str | None:
        """Return the run that the name of a baseline meant when a run began: by now, `latest` may be the run itself."""
        latest = re.fullmatch(r"latest(?:~(\d{1,9}))?", name or "")
        if latest is None:
            return name
        pages, offset, back = RunPages(self._state.runs), 0, int(latest[1] or 0)
        older: list[str] = []
        while len(older) <= back + 1:
            found, _ = pages.outlines(RunChoice(), offset=offset, limit=_PAGE)
            if not found:
                return name
            for item in found:
                if older or item.run.id == run.id:
                    older.append(item.run.id)
            offset += _PAGE
        return older[back + 1]

    def _exact_request(self, config: Path, options: RunOptions) -> RunRequest:
        settings = self._settings
        return RunRequest(
            config,
            settings.environ,
            served=settings.readable_folder,
            is_own_grader=options.grader in (None, settings.grader),
            **values_of(dataclasses.replace(options, env_file=settings.env_file)),
        )

    def _prepare(self, make_request: Callable[[], RunRequest]) -> tuple[PreparedRun, ResumedRun | None]:
        """Check and prepare a suite. Called in a thread, since a suite may be large."""
        request = make_request()
        # The server's own grader was chosen by whoever started the server, so it is trusted.
        foreign = (
            request if request.grader != self._settings.grader else dataclasses.replace(request, grader=None)
        )
        code = () if self._settings.allows_code else runs_code(foreign)
        if code:
            what = ", ".join(f"`{item}`" for item in code[:3])
            message = f"{request.config} contains code ({what}), which this server does not allow"
            hint = "start the server with --allow-code if you trust every config in the folder"
            raise RefusedError(message, status=_FORBIDDEN, hint=hint)
        prepared = prepare(request)
        if not request.resumes:
            return prepared, None
        try:
            return prepared, resume_run(prepared, self._state.runs)
        except UsageError as error:
            raise RefusedError(error.message, status=_CONFLICT, hint=error.hint) from error

    async def _run(
        self,
        prepared: PreparedRun,
        resumed: ResumedRun | None,
        stop: StopSignal,
        begun: "asyncio.Future[LiveRun]",
    ) -> None:
        kept = None if resumed is None else resumed.kept

        def listen(event: RunEvent) -> None:
            if isinstance(event, RunStarted):
                live = LiveRun(event.run, prepared.total, stop, kept)
                self._live[event.run.id] = live
                begun.set_result(live)
            begun.result().listen(event)

        is_stored = False
        try:
            report = await run_evaluation(prepared, self._state, listen=listen, stop=stop, resumed=resumed)
            is_stored = not report.is_partly_stored
            if not is_stored:
                _log.error("run %s: %s", report.run.id, report.run.warnings[-1])
        finally:
            if begun.done():
                live = begun.result()
                if not is_stored:  # without its end, the run would look as if it were in progress
                    self._state.runs.release(live.run.id)
                self._live.pop(live.run.id, None)
                live.end_broken("the run was aborted; see the server's log")

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # What geval itself says needs no traceback.
            _log.error(
                "a run was aborted: %s", error, exc_info=None if isinstance(error, GevalError) else error
            )


def options_of(covered: Mapping[str, JsonValue]) -> RunOptions:
    """Return the options of the run with this fingerprint that its results, verdict and cost depend on.

    Raises:
        UsageError: they are not recorded: its tests were selected by a list of which only a hash is kept, or come from
            several configs.
    """
    written, given = covered.get("options") or {}, covered.get(GIVEN) or {}
    values: dict[str, Any] = {"variables": dict(covered.get("vars") or {})}
    for field, option in declared_options(RunOptions):
        value = written.get(option.name) if option.decides_results else None
        if field.name in REPEATED and field.name in given:
            value = given[field.name]
            value = tuple(value) if isinstance(value, list) else value
        elif isinstance(value, list):
            value = tuple(tuple(pair.split("=", 1)) for pair in value)
        if value is not None:
            values[field.name] = Dialect(str(value)) if field.name == "dialect" else value
    if "filter_failing" in values or ONLY in written:
        hint = "select them again in a terminal, with `geval run --filter-failing RUN`"
        raise UsageError(
            "this run had only some of its suite's tests, and which ones was not recorded", hint=hint
        )
    if values.get("merge"):
        hint = "run them again in a terminal, with `geval run --merge`"
        raise UsageError("this run merged several configs, and which ones was not recorded", hint=hint)
    return RunOptions(**values)


def _is_running(path: Path, run_id: str | None) -> RefusedError:
    """Return the refusal to start a second run of a config; its field `running` is the id of the first, if known."""
    which = "is just starting" if run_id is None else f"is in progress: {run_id}"
    hint = "use that run, or start another one without `unless_running`"
    return RefusedError(
        f"a run of {path} {which}",
        status=_CONFLICT,
        hint=hint,
        more={} if run_id is None else {"running": run_id},
    )


def runs_of(request: Request) -> RunStore:
    """Return the store of the server's runs."""
    runs: RunStore = request.app.state.state.runs
    return runs


def live_of(request: Request) -> LiveRuns:
    """Return the server's runs in progress."""
    live: LiveRuns = request.app.state.live_runs
    return live
