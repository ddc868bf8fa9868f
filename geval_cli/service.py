"""The use cases, and the only place where rooms are wired together: check a suite, run it, read stored runs."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from geval_cli.assertions.outcome import JudgeDefaults, Tools
from geval_cli.config.load import open_suite
from geval_cli.config.problems import sort_problems
from geval_cli.config.schema import ProviderSpec, Scoring
from geval_cli.config.suite import Suite, SuiteOverrides
from geval_cli.engine.aggregate import Tally
from geval_cli.engine.case import Bench, run_job
from geval_cli.engine.check import Checked, check_plan
from geval_cli.engine.notices import Notices
from geval_cli.engine.plan import NO_PROVIDER, Job, Plan
from geval_cli.engine.runner import EventStream, StopReason, StopSignal, run_plan
from geval_cli.errors import ConfigError, ExitCode, Problem, Severity
from geval_cli.events import CaseFinished, RunEvent, RunFinished, RunStarted
from geval_cli.gateway.gateway import BoundModel, Gateway
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.prompt import prompt_version
from geval_cli.judging import ProviderPool
from geval_cli.providers.registry import check_provider, check_ready
from geval_cli.records import CaseResult, ModelRequest, ModelResponse, RunRecord, RunStatus, Status
from geval_cli.report.report import RunReport
from geval_cli.store.cache import ResponseCache
from geval_cli.store.recording import Recording
from geval_cli.store.runs import RunStore
from geval_cli.store.state import State
from geval_cli.templating import Templates
from geval_cli.version import __version__

DEFAULT_CONCURRENCY = 20
"""Requests under way at once unless `-j` or the config says otherwise; a server's own limits come on top."""

_JOBS_PER_REQUEST = (
    2  # more jobs than requests under way: while one job judges, another already asks its model
)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run, and how. `environ` is the process environment; `variables` are set in every test."""

    config: Path
    environ: Mapping[str, str] = field(repr=False)
    env_file: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    grader: str | None = None
    scoring: Scoring | None = None
    samples: int | None = None
    max_concurrency: int | None = None
    repeats: int = 1
    reads_cache: bool = True
    fail_fast: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A suite that is valid and can be run. `warnings` are problems that do not stop it; `notes` go into its record."""

    request: RunRequest
    suite: Suite
    plan: Plan
    defaults: JudgeDefaults
    templates: Templates
    tests: int
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def total(self) -> int:
        """How many cases there will be."""
        return self.tests * self.plan.repeats * len(self.plan.columns)


def prepare(request: RunRequest, *, is_going_to_run: bool = True) -> PreparedRun:
    """Load a config and check all of it; nothing is sent.

    Without `is_going_to_run` (`geval validate`), what only this machine lacks (a key, a model file) is a warning.

    Raises:
        ConfigError: with every problem of the config, the providers and the judges.
    """
    opened = open_suite(
        request.config,
        env=request.environ,
        env_file=request.env_file,
        overrides=SuiteOverrides(vars=request.variables),
    )
    suite = opened.suite
    plan = Plan(suite, request.repeats)
    templates = Templates()
    grader = None if request.grader is None else _resolved(ProviderSpec(id=request.grader), suite)
    defaults = JudgeDefaults(grader, request.scoring, request.samples)
    checked = check_plan(plan, templates, defaults, is_complete=not opened.problems)
    problems = [
        *opened.problems,
        *suite.warnings,
        *checked.problems,
        *_check_providers(suite, checked, is_going_to_run),
    ]
    if not checked.tests and not problems:
        problems.append(
            Problem(f"{suite.path} has no tests, so there is nothing to run", None, "add `tests:`")
        )
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ConfigError(sort_problems(problems))
    notes = tuple(_judge_notes(suite, checked, defaults))
    return PreparedRun(
        request, suite, plan, defaults, templates, checked.tests, tuple(sort_problems(problems)), notes
    )


def _resolved(spec: ProviderSpec, suite: Suite) -> ProviderSpec:
    """The configured provider whose label `spec` is, else `spec` itself.

    An id alone does not find a configured provider: a judge must not inherit what was set for the model under test.
    """
    named = (item for item in suite.providers if spec.id == item.label != item.id and not spec.config)
    return next(named, spec)


def _check_providers(suite: Suite, checked: Checked, is_going_to_run: bool) -> Iterator[Problem]:
    answering = [spec for spec in suite.providers if spec.id != NO_PROVIDER.id]
    judging = [_resolved(spec, suite) for spec in checked.judges]
    for judge in judging:
        if judge.id == NO_PROVIDER.id:
            hint = "name a model, for example with --grader openai:gpt-4.1"
            yield Problem("`none` cannot judge: it is no provider", judge.place.value(), hint)
    for spec in {spec.model_dump_json(): spec for spec in (*answering, *judging)}.values():
        problems = check_provider(spec, env=suite.env, base_dir=suite.base_dir)
        yield from problems
        if not problems:
            for problem in check_ready(spec, env=suite.env, base_dir=suite.base_dir):
                yield problem if is_going_to_run else replace(problem, severity=Severity.WARNING)


def _judge_notes(suite: Suite, checked: Checked, defaults: JudgeDefaults) -> Iterator[str]:
    if defaults.grader is not None and checked.own_judges:
        count = checked.own_judges
        what = "1 assertion, which names its" if count == 1 else f"{count} assertions, which name their"
        yield f"--grader did not apply to {what} own judge"
    answering = {spec.public_id for spec in suite.providers}
    for judge in sorted({_resolved(spec, suite).public_id for spec in checked.judges} & answering):
        yield f"{judge} judges its own answers; models tend to favour themselves"


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
        return await gateway.complete(pool.get(_resolved(spec, prepared.suite)), request)

    def judge_for(spec: ProviderSpec) -> BoundModel:
        return gateway.model(pool.get(_resolved(spec, prepared.suite)))

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


def load_report(runs: RunStore, name: str) -> RunReport:
    """A stored run as the reports read it; `name` is an id, its beginning, or `latest`.

    Raises:
        UsageError: no run, or more than one, has this name.
    """
    run, summary = runs.find(name)
    if summary is None:
        tally = Tally()
        for result in runs.results(run.id):
            tally.add(result)
        summary = tally.summary()
    return RunReport(run, summary, lambda: runs.results(run.id))


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """What a run says to the shell (GEVAL.md, section 4)."""
    if stopped_by is StopReason.SIGINT:
        return ExitCode.INTERRUPTED
    if stopped_by is StopReason.SIGTERM:
        return ExitCode.TERMINATED
    summary = report.summary
    if report.bugs:
        return ExitCode.BUG
    if summary.failed:
        return ExitCode.FAILED
    if summary.errored or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK if summary.total else ExitCode.USAGE
