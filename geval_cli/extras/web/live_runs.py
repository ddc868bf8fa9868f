"""The runs that a server has under way: started, resumed, watched, stopped, and waited for when the server ends."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import Request

from geval_cli.engine.runner import GRACE_S, StopSignal
from geval_cli.errors import UsageError
from geval_cli.events import RunEvent, RunStarted
from geval_cli.extras.web.config_code import runs_code
from geval_cli.extras.web.live_run import EventJson, LiveRun, finished_event, stored_events
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.extras.web.served_folder import served_config
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.records import RunRecord, RunStatus
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.options import RunOptions, values_of
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.resume import ResumedRun, options_of, resume_run
from geval_cli.store.runs import RunStore, StoredRun
from geval_cli.store.state import State

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
        self._starting: list[Path] = []
        self._closing = asyncio.Event()

    @property
    def running(self) -> tuple[LiveRun, ...]:
        """The runs under way."""
        return tuple(self._live.values())

    def find(self, run_id: str) -> LiveRun | None:
        """Return the run under way with this id; None for any other."""
        return self._live.get(run_id)

    async def start(
        self, config: str, options: RunOptions | None = None, *, unless_running: bool = False
    ) -> str:
        """Check a config of the served folder and start it; return the run's id once it is stored.

        With `unless_running` it is refused while a run of the config is under way, in whatever process.

        Raises:
            RefusedError: no such config, one outside the folder, one that runs code, or too many runs under way.
            ConfigError: with every problem of the config.
        """
        self._check_room()
        path = served_config(self._settings.folder, config)
        return await self._launch(
            path, lambda: self._request(path, options or RunOptions()), unless_running=unless_running
        )

    async def start_again(self, stored: StoredRun, *, unless_running: bool = False) -> str:
        """Start a new run of the config of a stored one, with the options that decided its results; as `start`.

        Raises:
            RefusedError: as `start`; also when not enough is known of the run.
        """
        self._check_room()
        path = await asyncio.to_thread(self.config_of, stored.run)
        return await self._launch(
            path, lambda: self._repeated(stored.run, path), unless_running=unless_running
        )

    async def resume(self, stored: StoredRun, *, retries_errors: bool = False) -> str:
        """Do what a run lacks, under its id; with `retries_errors` also the cases again that ended in an error.

        Raises:
            RefusedError: as `start_again`; also when there is nothing to do, or the suite is another one by now.
            ConfigError: with every problem of the config.
        """
        self._check_room()
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
            return dataclasses.replace(again, resume_from=run.id, retry_errors=retries_errors)

        return await self._launch(path, request)

    def config_of(self, run: RunRecord) -> Path:
        """Return the config that a stored run came from, to run it once more.

        Raises:
            RefusedError: it is not known, not there any more, or outside of the served folder.
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
        """Ask a run to stop; the second time, without waiting for requests under way.

        Raises:
            RefusedError: it is not under way in this server.
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
        """Yield what happens in a run, from its state now to its end; see `LiveRun` for the events.

        Of a run that is over the last event comes at once. One of another process has a new `state` for each change.
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
        """Ask every run to stop soon: the server that holds them ends."""
        for live in self.running:
            live.stop(patience_s=GRACE_S)

    def close(self) -> None:
        """Start no further run, and end what only watches."""
        self._closing.set()

    async def aclose(self) -> None:
        """Wait for the runs under way to come to their end; start no further one."""
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _check_room(self) -> None:
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
                await task  # raises why it did not even begin
            return begun.result().run.id

    @contextmanager
    def _place(self, path: Path, *, unless_running: bool) -> Iterator[None]:
        """Count a run as starting, so that of two requests at once the second one knows of the first."""
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
        """Return the request of a stored run once more, with its own options and not the server's."""
        origin = self._state.runs.origin(run.id)
        try:
            return self._exact_request(path, options_of({} if origin is None else origin.covered))
        except UsageError as error:
            raise RefusedError(error.message, status=_CONFLICT, hint=error.hint) from error

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
        """Check a suite; called in a thread, since a suite may be large."""
        request = make_request()
        # The server's own grader is the word of whoever started it.
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

        try:
            await run_evaluation(prepared, self._state, listen=listen, stop=stop, resumed=resumed)
        finally:
            if begun.done():
                live = begun.result()
                self._live.pop(live.run.id, None)
                live.end_broken("the run was aborted; see the server's log")

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a run was aborted: %s", error, exc_info=error)


def _is_running(path: Path, run_id: str | None) -> RefusedError:
    """Return the refusal of a second run of a config; `running` in its answer is the id of the first."""
    which = "is just starting" if run_id is None else f"is in progress: {run_id}"
    hint = "use that run, or start another one without `unless_running`"
    return RefusedError(
        f"a run of {path} {which}",
        status=_CONFLICT,
        hint=hint,
        more={} if run_id is None else {"running": run_id},
    )


def runs_of(request: Request) -> RunStore:
    """Return the runs that the server keeps."""
    runs: RunStore = request.app.state.state.runs
    return runs


def live_of(request: Request) -> LiveRuns:
    """Return the runs that the server has under way."""
    live: LiveRuns = request.app.state.live_runs
    return live
