"""Put together what does the jobs of a prepared suite: models behind a gateway, judges, and code."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Tools
from geval_cli.engine.case import JobContext
from geval_cli.engine.columns import row_columns
from geval_cli.engine.comparison_groups import ComparisonGroups
from geval_cli.engine.plan import Job
from geval_cli.engine.runner import EventSink, EventStream, StopReason, StopSignal
from geval_cli.errors import BudgetError, StoppedError
from geval_cli.events import CaseFinished, CaseStarted, Noticed
from geval_cli.extras.programs.scripting.scripts import Scripts
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import CASE_OF_TRACE, Wire
from geval_cli.gateway.gateway import BatchStart, BoundModel, CallPolicy, Gateway
from geval_cli.judge.memory import JudgeMemory
from geval_cli.providers.redaction import Secrets
from geval_cli.records import ASKED_TEXTS, AskedTest, CaseResult, ModelRequest, ModelResponse
from geval_cli.runs.judging import ProviderPool, safe_assertion
from geval_cli.runs.preparation import reads_cache, resolved
from geval_cli.runs.record import STOPPED
from geval_cli.runs.requests import PreparedRun
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache

DEFAULT_CONCURRENCY = 20
"""Requests under way at once unless `-j` or the config says otherwise; a server's own limits come on top."""

JOBS_PER_REQUEST = (
    2  # more jobs than requests under way: while one job judges, another already asks its model
)

_MODELS_KEPT = 64
_USUAL_FILES = 4096
_FILES_BESIDE = 44  # databases, results files, name servers, modules that are imported late
_CLOSING_S = 5.0  # of a request after its time-out
_TESTS_KEPT = 64


class JobRunner(Struct, frozen=True):
    """Does the jobs of a run, one call of `execute` each. Belongs to one event loop; `open_jobs` makes it."""

    prepared: PreparedRun
    events: EventSink
    pool: ProviderPool
    gateway: Gateway
    groups: ComparisonGroups
    safe_tests: dict[int, AskedTest] = field(default_factory=dict)
    """The last tests without secrets, so that a long document is gone through once and not for every column."""

    def begin_pass(self) -> None:
        """Begin to go through the jobs, perhaps again: what waited for a batch is done as a whole."""
        self.gateway.begin_pass()
        self.groups.forget()

    async def execute(
        self, job: Job, *, stop: StopSignal, note: Callable[[Sequence[CaseResult]], None] | None = None
    ) -> CaseResult | None:
        """Do one job; the results of its row but the last leave as events. None: it has no result of its own now.

        When the budget is used up, `stop` is requested, and the job stays undone. `note` is told all results.

        Raises:
            PendingError: an answer comes with a batch, and the job stays undone.
        """
        request = self.prepared.request
        if request.otel and request.has_collector():
            CASE_OF_TRACE.set(job.id)  # of this job's own task, and of those that it makes
            self.events.emit(CaseStarted(job.id, time.time()))
        try:
            found = await self.groups.run(job)
        except StoppedError:
            return None
        except BudgetError as error:
            if stop.reason is not StopReason.BUDGET:
                self.events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint})"))
            stop.request(StopReason.BUDGET)
            return None
        results = [self._safe(result) for result in found]
        if note is not None:
            note(results)
        for result in results[:-1]:
            self.events.emit(CaseFinished(result))
        return results[-1] if results else None

    def _safe(self, result: CaseResult) -> CaseResult:
        """Return the result without secrets in its test and its verdicts."""
        result = _without_secrets(result, self.pool.secrets)
        if result.asked is None:
            return result
        known = self.safe_tests.get(result.test_index)
        if known is None:
            hide, texts = (
                self.pool.secrets.hide_in,
                {name: getattr(result.asked, name) for name in ASKED_TEXTS},
            )
            hidden = {name: hide(text) for name, text in texts.items() if text is not None}
            lists = {name: tuple(text) for name, text in hidden.items() if isinstance(text, list)}
            known = replace(result.asked, **{**hidden, **lists})
            if len(self.safe_tests) >= _TESTS_KEPT:
                del self.safe_tests[next(iter(self.safe_tests))]
            self.safe_tests[result.test_index] = known
        return replace(result, test=known)


@asynccontextmanager
async def open_jobs(
    prepared: PreparedRun,
    cache: ResponseCache,
    events: EventSink,
    policy: CallPolicy,
    *,
    began_s: float,
) -> AsyncIterator[JobRunner]:
    """Provide what does the jobs of a run until the end of the block.

    Args:
        prepared: the suite.
        cache: where answers are kept.
        events: gets what happens meanwhile.
        policy: the rules for requests.
        began_s: when the run began, in seconds since 1970 by the cache's clock.
    """
    async with _opened(prepared, cache, events, policy, began_s=began_s) as (context, pool, gateway):
        groups = ComparisonGroups(context, prepared.row_size)
        yield JobRunner(prepared, events, pool, gateway, groups)


@asynccontextmanager
async def open_bench(
    prepared: PreparedRun, cache: ResponseCache, budget: Budget
) -> AsyncIterator[tuple[JobContext, ProviderPool]]:
    """Provide the models, judges and code of a prepared suite until the end of the block, without a run.

    Answers go through the cache and the budget, as in a run. The pool knows the secrets of whatever was asked.
    """
    policy = call_policy(prepared, budget, run_id=None)
    async with _opened(prepared, cache, EventStream(), policy, began_s=cache.now()) as (context, pool, _):
        yield context, pool


@asynccontextmanager
async def _opened(
    prepared: PreparedRun, cache: ResponseCache, events: EventSink, policy: CallPolicy, *, began_s: float
) -> AsyncIterator[tuple[JobContext, ProviderPool, Gateway]]:
    suite = prepared.suite
    wanted, possible = _wanted_requests(prepared), request_limit(prepared)
    if possible < wanted:
        text = f"only {possible} of {wanted} requests are sent at once: more files must not be open (`ulimit -n`)"
        events.emit(Noticed(text))
    pool = ProviderPool(suite.env, suite.base_dir, suite.access)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.aclose)
        gateway = Gateway(
            cache=cache,
            reads_since=None if reads_cache(prepared) else began_s,
            on_event=events.emit,
            max_concurrency=request_limit(prepared),
            policy=policy,
        )
        stack.push_async_callback(gateway.aclose)
        scripts = Scripts(suite.base_dir, suite.access, env=suite.env)
        stack.push_async_callback(scripts.aclose)
        yield _bench(prepared, gateway, pool, scripts), pool, gateway


def _without_secrets(result: CaseResult, secrets: Secrets) -> CaseResult:
    """Return the result with no secret in what judges, webhooks and code say: what is sent to them may come back.

    The model's own answer stays as it is.
    """
    if not result.assertions:
        return result
    return replace(result, assertions=tuple(safe_assertion(item, secrets) for item in result.assertions))


def request_limit(prepared: PreparedRun) -> int:
    """Return the most requests under way at once: as many as are asked for, if the system allows for so many files."""
    most, wanted = _most_connections(), _wanted_requests(prepared)
    return wanted if most is None else min(wanted, most)


def _wanted_requests(prepared: PreparedRun) -> int:
    named = prepared.request.max_concurrency or prepared.suite.options.max_concurrency
    return named or DEFAULT_CONCURRENCY


@cache
def _most_connections() -> int | None:
    """Return how many connections the limit of open files leaves room for, raised as far as it may be; None: any."""
    try:
        import resource  # noqa: PLC0415 - there is none for Windows
    except ImportError:
        return None
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most > allowed:
        wanted = _USUAL_FILES if most == resource.RLIM_INFINITY else min(most, _USUAL_FILES)
        if wanted > allowed != resource.RLIM_INFINITY:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
                allowed = wanted
    return None if allowed == resource.RLIM_INFINITY else max(1, allowed - _FILES_BESIDE)


def answer_patience_s(prepared: PreparedRun, pool: ProviderPool) -> float:
    """Return the seconds after which every request that is under way has been answered or has timed out."""
    limits = [pool.get(spec).limits for spec in prepared.asked]
    return max((limit.timeout_s for limit in limits), default=0.0) + _CLOSING_S


def call_policy(
    prepared: PreparedRun,
    budget: Budget,
    run_id: str | None,
    begin_batches: BatchStart | None = None,
    wire: Wire | None = None,
) -> CallPolicy:
    """Return the rules for the requests of a run; None as `run_id` for what is no run."""
    request = prepared.request
    return CallPolicy(
        budget,
        is_tracing=request.traces_requests,
        trace_detail=request.trace_detail,
        is_heard=(lambda: True) if request.is_logged else request.has_collector,
        is_offline=request.is_offline,
        run_id=run_id,
        begin_batches=begin_batches,
        wire=wire or Wire(),
    )


def _bench(prepared: PreparedRun, gateway: Gateway, pool: ProviderPool, scripts: Scripts) -> JobContext:
    models: dict[int, tuple[ProviderSpec, BoundModel]] = {}

    def model_for(spec: ProviderSpec) -> BoundModel:
        known = models.get(id(spec))  # most tests share one spec, and comparing by content is slow
        if known is not None:
            return known[1]
        model = gateway.model(pool.get(resolved(spec, prepared.suite)))
        if len(models) < _MODELS_KEPT:
            models[id(spec)] = spec, model
        return model

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        return await model_for(spec).complete(request)

    tools = Tools(
        prepared.templates,
        model_for,
        JudgeMemory(prepared.locked_steps),
        prepared.defaults,
        scripts=scripts,
        access=prepared.suite.access,
        calibrations=prepared.suite.calibrations,
    )
    stored = None if prepared.stored is None else prepared.stored.find
    return JobContext(generate, tools, stored=stored, columns=row_columns(prepared.plan.columns))
