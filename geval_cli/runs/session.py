"""A session: the models, judges and code of a suite or a program, set up once for all requests and judgements."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache as computed_once
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from geval_cli.assertions.base import CodeRunner, JudgeDefaults, Tools
from geval_cli.assertions.registry import OWN_HASHES
from geval_cli.engine.case import JobContext
from geval_cli.engine.columns import row_columns
from geval_cli.errors import GevalError, Problem, Severity, UsageError
from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.gateway.budget import Budget, Spending
from geval_cli.gateway.call import COUNTS_CALL, Wire
from geval_cli.gateway.gateway import BatchStart, BoundModel, CallPolicy, Gateway, ModelCaller
from geval_cli.judge.calls import JudgeFacts, LockedSteps
from geval_cli.judge.estimate import Grade
from geval_cli.judge.grading import grade
from geval_cli.judge.metric import Judge, JudgedCase, Metric
from geval_cli.plugins import extra
from geval_cli.providers.base import AdoptedJudge, ClientModel, Provider, ProviderSource, batch_api
from geval_cli.providers.prices import known_price
from geval_cli.providers.redaction import MIN_ECHOED_CHARS, Secrets, learn_secret
from geval_cli.providers.registry import (
    NONE_PROVIDER,
    build_client_provider,
    build_provider,
    check_provider,
    check_ready,
)
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ErrorInfo,
    ModelRequest,
    ModelResponse,
    TraceStep,
    to_json,
)
from geval_cli.runs.requests import PreparedRun
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.secrets import is_secret_name, secret_variables
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating import Templates

DEFAULT_CONCURRENCY = 20
"""Requests in flight unless `-j` or the config says otherwise; a server's own limits apply as well."""

_MODELS_KEPT = 64
_SHARED_SPECS_KEPT = 64
_USUAL_FILES = 4096
_FILES_BESIDE = 44  # databases, results files, name servers, modules that are imported late


@dataclass(slots=True)
class ProviderPool:
    """A pool that builds each provider once. Belongs to one event loop.

    `secrets` are those of all providers built so far, and of the environment.
    """

    env: Mapping[str, str] = field(repr=False)
    base_dir: Path
    access: Access
    secrets: Secrets = field(default_factory=Secrets)
    _values: set[str] = field(default_factory=set, repr=False)
    _built: dict[bytes, Provider] = field(default_factory=dict)
    _shared: dict[int, tuple[ProviderSpec, Provider]] = field(default_factory=dict)

    @classmethod
    def of(cls, suite: LoadedSuite) -> Self:
        """Return the pool of a suite's providers. Programs see variables that another provider uses as its key."""
        for name in secret_variables(suite.snapshot):
            if not is_secret_name(name) and len(suite.env.get(name, "")) >= MIN_ECHOED_CHARS:
                learn_secret(suite.env[name])
        return cls(suite.env, suite.base_dir, suite.access)

    def get(self, spec: ProviderSpec) -> Provider:
        """Return the provider of a checked `spec`; equal specs share one."""
        shared = self._shared.get(id(spec))  # most tests share one spec, and comparing by content is slow
        if shared is not None:
            return shared[1]
        key = spec.fingerprint
        if key not in self._built:
            source = ProviderSource(spec, self.env, self.base_dir, access=self.access)
            self._built[key] = build_provider(spec, env=self.env, base_dir=self.base_dir, access=self.access)
            self._values.update(source.secret_values)
            self.secrets = Secrets(self._values)
        if len(self._shared) < _SHARED_SPECS_KEPT:
            self._shared[id(spec)] = spec, self._built[key]
        return self._built[key]

    def has(self, spec: ProviderSpec) -> bool:
        """Return whether the provider of `spec` is built."""
        return spec.fingerprint in self._built

    async def aclose(self) -> None:
        # The results are more than what a package says at the end of its provider.
        await asyncio.gather(*(one.aclose() for one in self._built.values()), return_exceptions=True)


class Session:
    """The providers of a suite or a program behind one gateway, with a memory for judges and a runner for code.

    Equal requests reach a judge once, even if no cache may keep its answers (a program, a function). Belongs to one
    event loop; `open_session` and `open_suite_session` create it.
    """

    def __init__(
        self,
        pool: ProviderPool,
        caller: ModelCaller,
        *,
        suite: LoadedSuite | None = None,
        locked_steps: LockedSteps | None = None,
    ) -> None:
        """Create a session.

        Args:
            pool: the providers.
            caller: calls them.
            suite: the suite whose labels name providers; None without a config.
            locked_steps: evaluation steps that need no judge call.
        """
        self.pool = pool
        self.memory = JudgeFacts(locked_steps or {})
        self._caller = caller
        self._suite = suite
        self._models: dict[int, tuple[ProviderSpec, BoundModel]] = {}
        self._adopted: dict[int, AdoptedJudge] = {}
        self._clients: dict[tuple[int, str], tuple[ClientModel, Provider]] = {}
        self._scripts: CodeRunner | None = None

    @property
    def gateway(self) -> Gateway:
        """Return the gateway; a session that only makes a plan has none."""
        assert isinstance(self._caller, Gateway)
        return self._caller

    @property
    def secrets(self) -> Secrets:
        """Return the keys that are hidden in the texts of judges and code."""
        return self.pool.secrets

    def scripts(self) -> CodeRunner:
        """Return the runner of the config's code; its processes start with the first call."""
        if self._scripts is None:
            self._scripts = extra("code runner").Scripts(
                self.pool.base_dir, self.pool.access, env=self.pool.env
            )
        return self._scripts

    def model_for(self, spec: ProviderSpec) -> BoundModel:
        """Return the model of a checked `spec`."""
        known = self._models.get(id(spec))  # most tests share one spec, and comparing by content is slow
        if known is not None:
            return known[1]
        found = spec if self._suite is None else self._suite.resolved(spec)
        model = BoundModel(self._caller, self.pool.get(found))
        if len(self._models) < _MODELS_KEPT:
            self._models[id(spec)] = spec, model
        return model

    def tools(
        self, suite: LoadedSuite, templates: Templates, defaults: JudgeDefaults, *, runs_code: bool = True
    ) -> Tools:
        """Return the tools of a suite's assertions."""
        is_own = suite is self._suite
        return Tools(
            templates,
            self.model_for if is_own else lambda spec: self.model_for(suite.resolved(spec)),
            self.memory,
            defaults,
            scripts=self.scripts if runs_code else None,
            access=suite.access,
            calibrations=suite.calibrations,
        )

    def find(self, spec: ProviderSpec) -> Judge:
        """Return the judge that `spec` names.

        Raises:
            UsageError: with every problem of the spec, and all that this machine lacks for it (a key, a model file).
        """
        if not self.pool.has(spec):
            problems = [*judge_problems(spec, env=self.pool.env, base_dir=self.pool.base_dir)]
            if problems:
                raise UsageError.of(f"{spec.public_id} cannot judge", problems)
        return self.model_for(spec)

    def adopt(self, judge: Judge) -> Judge:
        """Return a judge that was created elsewhere, behind this gateway: equal requests reach it once."""
        adopted = self._adopted.setdefault(id(judge), AdoptedJudge(judge, len(self._adopted)))
        return BoundModel(self._caller, adopted)

    def connect(self, asked: ClientModel) -> Judge:
        """Return a judge that is called through the user's own client; `aclose` closes what was opened for it."""
        key = id(asked.client), asked.model
        if key not in self._clients:
            self._clients[key] = asked, build_client_provider(asked, len(self._clients))
        return BoundModel(self._caller, self._clients[key][1])

    def has_batches(self, judge: Judge) -> bool:
        """Return whether a judge of this session can be called in batches."""
        return isinstance(judge, BoundModel) and batch_api(judge.provider) is not None

    async def grade(self, metric: Metric, case: JudgedCase, judge: Judge) -> Grade:
        """Rate `case` with one of these judges; raises what `geval_cli.judge.grading.grade` raises."""
        found = await grade(metric, case, judge, memory=self.memory)
        return without_secrets(found, self.secrets)

    async def aclose(self) -> None:
        """Close the connections of `connect` and the processes of `scripts`; the users' own clients stay open."""
        if self._scripts is not None:
            await self._scripts.aclose()
        await asyncio.gather(*(provider.aclose() for _, provider in self._clients.values()))


@asynccontextmanager
async def open_session(
    *,
    env: Mapping[str, str],
    base_dir: Path,
    cache: ResponseCache | None = None,
    max_concurrency: int | None = None,
    policy: CallPolicy | None = None,
    notice: Callable[[str], None] = lambda message: None,
) -> AsyncIterator[Session]:
    """Provide a session for a program or a server, which name their judges themselves, until the end of the block.

    Args:
        env: where keys and base URLs are looked up.
        base_dir: the folder that paths in provider ids are relative to.
        cache: where answers are kept; None keeps the latest in memory.
        max_concurrency: the most requests on the wire at once; None for no limit but the providers' own.
        policy: what may be spent, and whether anything may be sent; None for no limits.
        notice: called once with each sentence that the user should read (a server does not accept a parameter).
    """

    def listen(event: RunEvent) -> None:
        if isinstance(event, Noticed):
            notice(event.message)
        elif isinstance(event, ModelCalled) and (count := COUNTS_CALL.get()) is not None:
            count(event)  # in the context of the caller

    pool = ProviderPool(env, base_dir, TRUSTED)
    gateway = Gateway(
        cache=cache, on_event=listen, max_concurrency=max_concurrency, policy=policy or CallPolicy()
    )
    async with _closing(Session(pool, gateway)) as session:
        yield session


UNPRICED_HINT = "leave --max-cost out; --max-requests bounds what is sent"
"""For commands that name a model by its id alone, where no price can be given."""


def check_price(model: BoundModel, hint: str) -> None:
    """Check that the price of a model is known, so that a limit on the cost can be enforced.

    Raises:
        UsageError: it is unknown.
    """
    if known_price(model.provider) is None:
        message = f"the price of {model.public_id} is unknown, so --max-cost cannot be enforced"
        raise UsageError(message, hint=hint)


@contextmanager
def counted() -> Iterator[Spending]:
    """Provide the total usage of all calls within the block, failed ones included; only for sessions of `open_session`.

    A `GevalError` that leaves the block has the total as its `usage`.
    """
    spending = Spending()
    token = COUNTS_CALL.set(spending.add)
    try:
        yield spending
    except GevalError as error:
        error.usage = to_json(spending.usage)
        raise
    finally:
        COUNTS_CALL.reset(token)


@asynccontextmanager
async def open_suite_session(
    prepared: PreparedRun,
    cache: ResponseCache,
    policy: CallPolicy,
    *,
    on_event: Callable[[RunEvent], None] = lambda event: None,
    began_s: float | None = None,
) -> AsyncIterator[Session]:
    """Provide the session of a prepared suite until the end of the block.

    Args:
        prepared: the suite.
        cache: where answers are kept.
        policy: the rules for requests.
        on_event: receives the events.
        began_s: when its run began, by the cache's clock: if fresh answers are wanted, older ones do not count. None
            means the current time.
    """
    wanted = _wanted_requests(prepared)
    possible = request_limit(prepared)
    if possible < wanted:
        text = (
            f"only {possible} of {wanted} requests are sent at once: the limit of open files is too low "
            "(`ulimit -n`)"
        )
        on_event(Noticed(text))
    gateway = Gateway(
        cache=cache,
        reads_since=None if prepared.reads_cache else cache.now() if began_s is None else began_s,
        on_event=on_event,
        max_concurrency=possible,
        policy=policy,
    )
    session = Session(
        ProviderPool.of(prepared.suite), gateway, suite=prepared.suite, locked_steps=prepared.locked_steps
    )
    async with _closing(session):
        yield session


@asynccontextmanager
async def _closing(session: Session) -> AsyncIterator[Session]:
    async with AsyncExitStack() as stack:
        for close in (session.pool.aclose, session.gateway.aclose, session.aclose):
            stack.push_async_callback(close)
        yield session


def job_context(session: Session, prepared: PreparedRun) -> JobContext:
    """Return what jobs of a suite need: its models, its tools and, if stored outputs are judged, the stored cases."""

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        return await session.model_for(spec).complete(request)

    tools = session.tools(prepared.suite, prepared.templates, prepared.defaults)
    return JobContext(generate, tools, stored=prepared.stored, columns=row_columns(prepared.plan.columns))


def inspection_tools(
    suite: LoadedSuite, templates: Templates, defaults: JudgeDefaults, locked_steps: LockedSteps | None = None
) -> Tools:
    """Return tools to inspect assertions before anything is sent: their judges can be identified, but not called."""
    session = Session(ProviderPool.of(suite), _NoGateway(), suite=suite, locked_steps=locked_steps)
    return session.tools(suite, templates, defaults, runs_code=False)


class _NoGateway:
    """A stand-in for a gateway that sends nothing."""

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        raise NotImplementedError("nothing is sent until everything is checked")

    async def forget(self, provider: Provider, request: ModelRequest) -> None:
        """Do nothing: nothing is kept."""

    async def has_kept(self, provider: Provider, request: ModelRequest) -> bool:
        return False


def request_limit(prepared: PreparedRun) -> int:
    """Return the most requests in flight: as many as wanted, if the system's limit of open files allows that many."""
    most = _most_connections()
    wanted = _wanted_requests(prepared)
    return wanted if most is None else min(wanted, most)


def _wanted_requests(prepared: PreparedRun) -> int:
    named = prepared.request.max_concurrency or prepared.suite.options.max_concurrency
    return named or DEFAULT_CONCURRENCY


@computed_once
def _most_connections() -> int | None:
    """Return how many connections the limit of open files allows, once raised as far as possible; None for any."""
    try:
        import resource  # noqa: PLC0415 - not available on Windows
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


def call_policy(
    prepared: PreparedRun,
    budget: Budget,
    run_id: str | None,
    begin_batches: BatchStart | None = None,
    wire: Wire | None = None,
) -> CallPolicy:
    """Return the rules for the requests of a run; `run_id` is None for requests outside a run."""
    request = prepared.request
    return CallPolicy(
        budget,
        is_tracing=request.is_logged or request.otel,
        trace_detail=request.trace_detail,
        is_heard=(lambda: True) if request.is_logged else request.has_collector,
        is_offline=request.is_offline,
        run_id=run_id,
        begin_batches=begin_batches,
        wire=wire or Wire(),
    )


def without_secrets(grade: Grade, secrets: Secrets) -> Grade:
    """Return `grade` without secrets in the judge's texts: a gateway before the judge may echo what it was sent."""
    return replace(
        grade,
        reason=None if grade.reason is None else secrets.hide(grade.reason),
        evaluation_steps=tuple(map(secrets.hide, grade.evaluation_steps)),
        detail=secrets.hide_in(grade.detail),
    )


def safe_result(result: CaseResult, secrets: Secrets) -> CaseResult:
    """Return the result without secrets in the texts of judges, webhooks, tools and code, which may echo what they get.

    The model's own answer stays as it is.
    """
    if result.assertions:
        safe = tuple(safe_assertion(item, secrets) for item in result.assertions)
        result = replace(result, assertions=safe)
    if result.trace:
        turns = (
            replace(turn, content=secrets.hide(turn.content)) if turn.role == "tool" else turn
            for turn in result.turns
        )
        steps = (_safe_step(step, secrets) for step in result.trace)
        result = replace(result, trace=tuple(steps), turns=tuple(turns))
    if result.error is not None:
        result = replace(result, error=safe_error(result.error, secrets))
    return result


def _safe_step(step: TraceStep, secrets: Secrets) -> TraceStep:
    error = None if step.error is None else secrets.hide(step.error)
    return replace(step, args=secrets.hide_in(step.args), output=secrets.hide_in(step.output), error=error)


def safe_assertion(found: AssertionResult, secrets: Secrets) -> AssertionResult:
    """Return a result without secrets in the texts of judges, webhooks and code."""
    error = found.error
    said = [found.reason, {**found.detail, **dict.fromkeys(OWN_HASHES)}]
    safe = secrets.hide_in(said)
    if safe is said and error is None and not found.assertions:  # the usual case
        return found
    reason, detail = safe
    return replace(
        found,
        reason=reason,
        error=None if error is None else safe_error(error, secrets),
        detail={name: found.detail[name] if name in OWN_HASHES else detail[name] for name in found.detail},
        assertions=tuple(safe_assertion(item, secrets) for item in found.assertions),
    )


def safe_error(error: ErrorInfo, secrets: Secrets) -> ErrorInfo:
    """Return the error without secrets in any of its texts."""
    texts = {name: getattr(error, name) for name in ("message", "hint", "raw")}
    return replace(error, **{name: secrets.hide_in(text) for name, text in texts.items()})


def judge_problems(
    spec: ProviderSpec, *, env: Mapping[str, str], base_dir: Path, is_going_to_judge: bool = True
) -> Iterator[Problem]:
    """Yield the problems of a provider as a judge; nothing is sent.

    Without `is_going_to_judge`, whatever only this machine lacks (a key, a model file) is not reported.
    """
    if spec.id == NONE_PROVIDER:
        yield Problem(f"`{spec.public_id}` is not a model", hint="choose one, for example openai:gpt-4.1")
        return
    problems = check_provider(spec, env=env, base_dir=base_dir, access=TRUSTED)
    if not problems and is_going_to_judge:
        problems = check_ready(spec, env=env, base_dir=base_dir, access=TRUSTED)
    yield from (problem for problem in problems if problem.severity is Severity.ERROR)
