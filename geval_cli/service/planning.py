"""`--plan`: what a run would ask for, found by doing its jobs with models that only note what they are asked."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import msgspec
from msgspec.structs import replace

from geval_cli.assertions.geval import metric_of
from geval_cli.assertions.outcome import Tools, judge_provider
from geval_cli.assertions.registry import compares_outputs, members_of
from geval_cli.config.schema import AssertionSpec, GEvalAssertionSpec, ModelGradedSpec, ProviderSpec
from geval_cli.engine.case import Bench, run_job
from geval_cli.engine.evaluation import assertions_of
from geval_cli.engine.forecast import Forecast, ForecastTally, Tokens
from geval_cli.engine.plan import Job
from geval_cli.errors import GevalError
from geval_cli.gateway.identity import choice_keys
from geval_cli.judge.calls import EXPLANATION_MAX_TOKENS, FORM_MAX_TOKENS
from geval_cli.judge.forecast import STEPS_STAND_IN, Purpose, further_answers, purpose_of
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judging import ProviderPool
from geval_cli.providers.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.providers.base import Provider
from geval_cli.providers.prices import Price, known_price
from geval_cli.records import (
    AssertionResult,
    Choice,
    JsonValue,
    ModelRequest,
    ModelResponse,
    Role,
    Usage,
)
from geval_cli.service.preparation import resolved
from geval_cli.service.requests import PreparedRun
from geval_cli.store.cache import ResponseCache, StoredChoice

ASSUMED_ANSWER_TOKENS = 200
"""How long an answer is taken to be, in the prompt of its judge, when nothing bounds it."""

_CHARACTERS_PER_TOKEN = 4
_JOBS_AT_ONCE = 64
_LONGEST_STAND_IN = 100_000
_WRITTEN = {Purpose.FALLBACK_SAMPLES: FORM_MAX_TOKENS, Purpose.EXPLANATION: EXPLANATION_MAX_TOKENS}
_LENGTH_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")


async def forecast_run(prepared: PreparedRun, cache: ResponseCache | None) -> Forecast:
    """What running `prepared` would ask for; nothing is sent. Answers that `cache` has are counted apart.

    Goes through all tests once and holds none of them. No code that a config names is run.

    Raises:
        ConfigError: the tests can no longer be read as they were checked.
        StoreError: the cache cannot be read.
    """
    pool = ProviderPool(prepared.suite.env, prepared.suite.base_dir)
    try:
        planner = _Planner(prepared, pool, cache if prepared.request.reads_cache else None)
        for lane in prepared.plan.lanes:
            jobs = iter(lane)
            while some := list(islice(jobs, _JOBS_AT_ONCE)):
                await asyncio.gather(*(planner.add(job) for job in some))
        return planner.tally.forecast()
    finally:
        await pool.aclose()


class NotAskedError(GevalError):
    """A judge was to be asked: no further can a judgement be followed without an answer."""


@dataclass(frozen=True, slots=True)
class _SilentJudge:
    """A judge that counts what it is asked and answers from the cache only; of steps it makes some up.

    `unasked` are the requests of one job that it had no answer to.
    """

    provider: Provider
    planner: "_Planner" = field(compare=False, repr=False)
    unasked: list[ModelRequest] = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.provider.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.provider.identity.params

    async def complete(self, request: ModelRequest) -> ModelResponse:
        found = await self.planner.note(self.provider, request)
        if found is not None:
            return found
        if purpose_of(request) is Purpose.STEPS:
            return _stand_in(STEPS_STAND_IN)
        self.unasked.append(request)
        raise NotAskedError("nothing is sent")


class _Planner(msgspec.Struct):
    prepared: PreparedRun
    pool: ProviderPool
    cache: ResponseCache | None
    tally: ForecastTally = msgspec.field(default_factory=ForecastTally)
    _memory: JudgeMemory = msgspec.field(default_factory=JudgeMemory)
    _seen: set[int] = msgspec.field(default_factory=set)
    _prices: dict[int, tuple[Price | None]] = msgspec.field(default_factory=dict)

    async def add(self, job: Job) -> None:
        """Count what `job` would ask for."""
        asked = replace(job, test=replace(job.test, assertions=tuple(_judged(job.test.assertions))))
        unasked: list[ModelRequest] = []
        tools = Tools(
            self.prepared.templates,
            lambda spec: _SilentJudge(self._provider(spec), self, unasked),
            self._memory,
            self.prepared.defaults,
        )
        result = await run_job(asked, Bench(partial(self._generate, job=job), tools))
        self.tally.cases += 1
        specs = assertions_of(asked.prompt, asked.test)
        for spec, outcome in _side_by_side(specs, result.assertions):
            if isinstance(spec, GEvalAssertionSpec) and _ended_unasked(outcome):
                self._add_further(spec, asked, tools, unasked)

    async def note(self, provider: Provider, request: ModelRequest) -> ModelResponse | None:
        """Count the answers to `request`; those of the cache if it has all of them, else None."""
        keys = choice_keys(provider.identity, request)
        known = await self._known(provider, keys)
        wanted = len(request.sample_indexes)
        key = (request.role, provider.label, purpose_of(request))
        # Single flight and the cache see to it that equal requests are sent once.
        is_shared = provider.is_cacheable or request.role is Role.JUDGE
        is_new = not is_shared or not self._was_seen(keys[0])
        missing = wanted - len(known) if is_new else 0
        self.tally.add(
            key,
            self._price(provider),
            counts=(missing, missing, len(known) if is_new else 0),
            tokens=_tokens(provider, request, missing),
        )
        return _recalled(known.values()) if len(known) == wanted else None

    async def _generate(self, spec: ProviderSpec, request: ModelRequest, job: Job) -> ModelResponse:
        provider = self._provider(spec)
        found = await self.note(provider, request)
        if found is not None:
            return found
        tokens = min(_most_written(provider, request) or ASSUMED_ANSWER_TOKENS, _LONGEST_STAND_IN)
        # Each job's is another one: equal outputs would have equal judgements, which are asked for once.
        return _stand_in(f"{job.id} {'word' * tokens}")

    def _provider(self, spec: ProviderSpec) -> Provider:
        return self.pool.get(resolved(spec, self.prepared.suite))

    def _add_further(
        self, spec: GEvalAssertionSpec, job: Job, tools: Tools, unasked: Sequence[ModelRequest]
    ) -> None:
        judge = self._provider(judge_provider(spec, job.test, tools.defaults))
        # Samples are asked for in the words of the rating, and an explanation shows the judge as much.
        read = max((_input_tokens(request) for request in unasked), default=0)
        for further in further_answers(metric_of(spec, job.test, tools)):
            written = _bound(judge.identity.params) or _WRITTEN[further.purpose]
            self.tally.add(
                (Role.JUDGE, judge.label, further.purpose),
                self._price(judge),
                counts=(further.least, further.most, 0),
                tokens=Tokens(further.least * read, further.most * read, further.most * written),
                assumption=further.assumption,
            )

    def _price(self, provider: Provider) -> Price | None:
        """Asked once for each provider: a list price is looked up in a large table."""
        found = self._prices.get(id(provider))
        if found is None:
            found = self._prices[id(provider)] = (known_price(provider),)
        return found[0]

    async def _known(self, provider: Provider, keys: tuple[str, ...]) -> Mapping[str, StoredChoice]:
        if self.cache is None or not provider.is_cacheable:
            return {}
        return await self.cache.get_many(keys)

    def _was_seen(self, key: str) -> bool:
        """Whether this was asked before. Half of a key is enough to tell, and takes little room."""
        short = int(key[:16], 16)
        if short in self._seen:
            return True
        self._seen.add(short)
        return False


def _judged(specs: Iterable[AssertionSpec]) -> Iterator[AssertionSpec]:
    """Those that a judge judges. The others ask nobody, and some would run code or call a web hook."""
    for spec in specs:
        members = tuple(_judged(members_of(spec)))
        if isinstance(spec, ModelGradedSpec) and not compares_outputs(spec):
            yield spec
        elif members:
            yield spec.model_copy(update={"assertions": members})


def _side_by_side(
    specs: Sequence[AssertionSpec], results: Sequence[AssertionResult]
) -> Iterator[tuple[AssertionSpec, AssertionResult]]:
    """Each assertion, also within sets, with its result; nothing when the job broke before its assertions."""
    for spec, result in zip(specs, results, strict=False):
        yield spec, result
        yield from _side_by_side(members_of(spec), result.assertions)


def _ended_unasked(result: AssertionResult) -> bool:
    return result.error is not None and result.error.type == NotAskedError.__name__


def _recalled(known: Iterable[StoredChoice]) -> ModelResponse:
    stored = list(known)
    dropped = tuple(dict.fromkeys(name for item in stored for name in item.dropped))
    usage = Usage(len(stored), cached_requests=len(stored))
    return ModelResponse(tuple(item.choice for item in stored), usage, cached=True, dropped=dropped)


def _stand_in(text: str) -> ModelResponse:
    return ModelResponse((Choice(text, "stop"),))


def _tokens(provider: Provider, request: ModelRequest, count: int) -> Tokens:
    """Of `count` answers: one request may read the prompt once for all of them, or each its own."""
    if not count:
        return Tokens()
    read, written = _input_tokens(request), _most_written(provider, request)
    return Tokens(read, count * read, None if written is None else count * written)


def _input_tokens(request: ModelRequest) -> int:
    characters = sum(len(str(message.content)) for message in request.messages)
    return -(-characters // _CHARACTERS_PER_TOKEN)


def _most_written(provider: Provider, request: ModelRequest) -> int | None:
    """The most tokens that one answer may have, if anything says so."""
    named = _bound(request.params) or _bound(provider.identity.params)
    if named is None and provider.identity.kind == "anthropic":
        return DEFAULT_MAX_TOKENS
    return named


def _bound(params: Mapping[str, JsonValue]) -> int | None:
    limits = (params.get(name) for name in _LENGTH_KEYS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
