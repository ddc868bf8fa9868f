"""The runs that a server has under way: started, watched, stopped, and waited for when the server ends."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from geval_cli.engine.runner import StopSignal
from geval_cli.events import RunEvent, RunStarted
from geval_cli.records import RunStatus, to_json
from geval_cli.runs.code import runs_code
from geval_cli.runs.evaluation import run_evaluation
from geval_cli.runs.options import RunOptions, values_of
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.store.runs import StoredRun
from geval_cli.store.state import State
from geval_cli.web.live_run import EventJson, LiveRun, finished_event, run_json
from geval_cli.web.refusals import RefusedError
from geval_cli.web.served_folder import served_config
from geval_cli.web.settings import ServerSettings

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
        options = replace(
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
        foreign = request if request.grader != self._settings.grader else replace(request, grader=None)
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
