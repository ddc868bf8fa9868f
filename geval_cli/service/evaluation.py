"""Run a prepared suite: events to whoever listens, results into the store as they come."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

from geval_cli.assertions.outcome import Tools
from geval_cli.config.schema import ProviderSpec
from geval_cli.engine.aggregate import Tally
from geval_cli.engine.case import Bench, run_job
from geval_cli.engine.notices import Notices
from geval_cli.engine.plan import Job
from geval_cli.engine.runner import EventStream, StopReason, StopSignal, run_plan
from geval_cli.errors import ConfigError
from geval_cli.events import CaseFinished, RunEvent, RunFinished, RunStarted
from geval_cli.gateway.gateway import BoundModel, Gateway
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.prompt import prompt_version
from geval_cli.judging import ProviderPool
from geval_cli.records import CaseResult, ModelRequest, ModelResponse, RunRecord, RunStatus, Status
from geval_cli.report.report import RunReport
from geval_cli.service.preparation import resolved
from geval_cli.service.requests import PreparedRun
from geval_cli.store.cache import ResponseCache
from geval_cli.store.recording import Recording
from geval_cli.store.state import State
from geval_cli.version import __version__

DEFAULT_CONCURRENCY = 20
"""Requests under way at once unless `-j` or the config says otherwise; a server's own limits come on top."""

_JOBS_PER_REQUEST = (
    2  # more jobs than requests under way: while one job judges, another already asks its model
)


async def run_evaluation(
    prepared: PreparedRun,
    state: State,
    *,
    listen: Callable[[RunEvent], None],
    stop: StopSignal,
) -> RunReport:
    """Run a prepared suite: every event goes to `listen`, every result into the store as it comes.

    After `stop` the run ends early; what was finished is stored and in the report, and the run is `interrupted`. When
    the tests can no longer be read as they were checked, it ends early too and is `aborted`. A store that fails ends
    no run: the report then says so, and holds all results.
    """
    events, tally, notices = EventStream(), Tally(), Notices()
    run, started = _new_run(prepared), time.monotonic()
    recording = Recording(state.runs, run)
    await recording.begin(run)
    running = asyncio.ensure_future(_run_jobs(prepared, state.cache, events, stop))
    status = RunStatus.ABORTED
    try:
        listen(RunStarted(run, prepared.total))
        async for event in events:
            notices.add(event)
            if isinstance(event, CaseFinished):
                await recording.add(event.result)
                tally.add(event.result)
                if prepared.request.fail_fast and event.result.status in (Status.FAILED, Status.ERROR):
                    stop.request(StopReason.FAIL_FAST)
            listen(event)
        await running
        status = _final_status(tally, prepared, stop, notices)
    except ConfigError as error:
        notices.say(_what_changed(error))
    except asyncio.CancelledError:
        status = RunStatus.INTERRUPTED
        raise
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        duration_ms = (time.monotonic() - started) * 1000
        run = replace(run, status=status, finished_at=_now(), duration_ms=duration_ms)
        run = replace(run, warnings=(*run.warnings, *notices.texts))
        await recording.finish(run, tally.summary())
    if recording.failure is not None:
        text = f"{recording.failure.message}; not all of this run is stored ({recording.failure.hint})"
        run = replace(run, warnings=(*run.warnings, text))
    listen(RunFinished(run, tally.summary()))
    return RunReport(run, tally.summary(), recording.results, planned=prepared.total, bugs=tally.bugs)


def _what_changed(error: ConfigError) -> str:
    first, count = error.problems[0], len(error.problems)
    where = f" ({first.location})" if first.location else ""
    more = f", and {count - 1:,} more" if count > 1 else ""
    return f"stopped, since the tests changed while the run went on: {first.message}{where}{more}"


def _final_status(tally: Tally, prepared: PreparedRun, stop: StopSignal, notices: Notices) -> RunStatus:
    """How a run stands whose jobs came to an end."""
    total = tally.summary().total
    if stop.is_requested and total < prepared.total:
        return RunStatus.INTERRUPTED
    if total != prepared.total:
        notices.say(f"the tests changed while the run went on: {total:,} cases instead of {prepared.total:,}")
    return RunStatus.COMPLETED


async def _run_jobs(
    prepared: PreparedRun, cache: ResponseCache, events: EventStream, stop: StopSignal
) -> None:
    limit = prepared.request.max_concurrency or prepared.suite.options.max_concurrency or DEFAULT_CONCURRENCY
    pool = ProviderPool(prepared.suite.env, prepared.suite.base_dir)
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(pool.aclose)
            gateway = Gateway(
                cache=cache,
                reads_cache=prepared.request.reads_cache,
                on_event=events.emit,
                max_concurrency=limit,
            )
            stack.push_async_callback(gateway.aclose)
            bench = _bench(prepared, gateway, pool)

            async def execute(job: Job) -> CaseResult:
                return await run_job(job, bench)

            await run_plan(
                prepared.plan.lanes, execute, parallel=limit * _JOBS_PER_REQUEST, events=events, stop=stop
            )
    finally:
        events.end()


def _bench(prepared: PreparedRun, gateway: Gateway, pool: ProviderPool) -> Bench:
    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        return await gateway.complete(pool.get(resolved(spec, prepared.suite)), request)

    def judge_for(spec: ProviderSpec) -> BoundModel:
        return gateway.model(pool.get(resolved(spec, prepared.suite)))

    return Bench(generate, Tools(prepared.templates, judge_for, JudgeMemory(), prepared.defaults))


def _new_run(prepared: PreparedRun) -> RunRecord:
    return RunRecord(
        id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        status=RunStatus.RUNNING,
        started_at=_now(),
        finished_at=None,
        duration_ms=None,
        tool_version=__version__,
        config_path=str(prepared.suite.path),
        config_digest=_digest(prepared),
        config=prepared.suite.snapshot,
        columns=prepared.plan.columns,
        warnings=prepared.notes,
        prompt_version=prompt_version(),
    )


def _digest(prepared: PreparedRun) -> str:
    """Of all that decides the results: the suite, and what the command line says about judging."""
    request = prepared.request
    parts = [prepared.suite.digest, request.grader, request.scoring, request.samples, request.repeats]
    parts.append(prompt_version())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
