"""`--plan`: a run whose models count what they are asked, and answer from the cache or with a stand-in."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import lru_cache, partial
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.graded.geval import metric_of
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.assertions.graded.retrieval import ContextAssertion
from geval_cli.assertions.outcome import Subject, Tools
from geval_cli.assertions.registry import wants_logprobs
from geval_cli.assertions.row import RowMember
from geval_cli.engine.case import JobContext, PendingResult, begin_job, compare_outputs, judge_one
from geval_cli.engine.conversation_state import ConversationState
from geval_cli.engine.evaluation import assertions_of
from geval_cli.engine.plan import Job
from geval_cli.errors import GevalError, StoreError
from geval_cli.gateway.cache import choice_keys, recalled
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import Judge, Metric, format_number
from geval_cli.judge.prompt import user_message
from geval_cli.providers.base import Provider, ProviderIdentity
from geval_cli.providers.prices import known_price
from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.providers.wire.token_usage import TokenUsage, token_limit
from geval_cli.records import (
    Choice,
    JsonValue,
    ModelRequest,
    ModelResponse,
    Purpose,
    Role,
    TokenLogprob,
)
from geval_cli.report.plan import RequestCounts, RequestKind, RunPlan
from geval_cli.runs.judging import ProviderPool
from geval_cli.runs.preparation import reads_cache, resolved
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun
from geval_cli.source.secrets import mask_text
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.store.cache import ResponseCache

ASSUMED_ANSWER_TOKENS = 200
"""How long an answer is taken to be, in the prompt of its judge, when nothing bounds it."""

_JOBS_AT_ONCE = 64
_LONGEST_STAND_IN = 100_000
_CHARACTERS_PER_TOKEN = 4
_STEPS = '{"steps": ["Read all of it.", "Compare it with the criteria.", "Decide on a rating."]}'
_MADE_UP = "A stand-in for "
_AFTER_CODE = "none, if the cache knows what is asked after code of the config has run"
_AFTER_STAND_IN: Mapping[Purpose, str] = {
    Purpose.FALLBACK_SAMPLES: "for each rating, if the judge gives no usable token probabilities",
    Purpose.EXPLANATION: "one for each output that fails, or passes what it should not",
    Purpose.VERDICT: "one for each output that claims something",
    Purpose.EMBEDDING: "of made-up questions, as far as they differ",
}


async def plan_run(
    prepared: PreparedRun, cache: ResponseCache | None, resumed: ResumedRun | None = None
) -> RunPlan:
    """Return what running `prepared` would ask for; nothing is sent. Answers that `cache` has are counted apart.

    With `resumed` only what that run lacks. Goes through all tests once and holds none of them. No code that a config
    names is run.

    Raises:
        ConfigError: the tests can no longer be read as they were checked.
        StoreError: the cache cannot be read.
    """
    queues, since = prepared.queues, None
    if resumed is not None:
        queues = tuple(resumed.done.missing(queue) for queue in queues)
    if not reads_cache(prepared):
        # What the run itself was told counts.
        cache, since = (None, None) if resumed is None else (cache, resumed.started_s)
    if cache is not None and not (await cache.stats()).entries:
        cache = None
    pool = ProviderPool(prepared.suite.env, prepared.suite.base_dir, prepared.suite.access)
    try:
        dry_run = _DryRun(prepared, pool, cache, since, _memory=JudgeMemory(prepared.locked_steps))
        at_once = 1 if prepared.plan.is_serial else _JOBS_AT_ONCE
        for queue in queues:
            jobs = iter(queue)
            while some := list(islice(jobs, at_once)):
                await asyncio.gather(*(dry_run.add(job) for job in some))
                await dry_run.settle()
        return RunPlan(dry_run.cases, dry_run.counts)
    finally:
        await pool.aclose()


class _DryRun(Struct):
    """Does jobs without their models, and rows of jobs whose outputs are compared once all of them are there.

    Attributes:
        cache: None where no answers are kept, or none may be read.
        since: answers that were kept before this time (seconds since 1970) do not count; None for no such bound.
        cases, counts: what was counted so far; it does not grow with the number of tests.
    """

    prepared: PreparedRun
    pool: ProviderPool
    cache: ResponseCache | None
    since: float | None
    cases: int = 0
    counts: dict[RequestKind, RequestCounts] = field(default_factory=dict)
    _counting: "list[asyncio.Future[ModelResponse | None]]" = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    _prices: "dict[int, Callable[[int, int], float | None]]" = field(default_factory=dict)
    _memory: JudgeMemory = field(default_factory=JudgeMemory)
    _carried: ConversationState = field(default_factory=ConversationState)
    _rows: dict[str, list[PendingResult]] = field(default_factory=dict)

    async def add(self, job: Job) -> None:
        """Count what `job` would ask for."""
        self.cases += 1
        # Without its assertions: they are followed one by one, and some would run code or call a web hook.
        bare = replace(job, test=replace(job.test, assertions=()))
        stored = None if self.prepared.stored is None else self.prepared.stored.find
        context = JobContext(
            partial(self._generate, job=job), self._tools(_no_judge), self._carried, stored=stored
        )
        pending = replace(await begin_job(bare, context), job=job)
        for spec in _judged(assertions_of(job.prompt, job.test)):
            await self._follow(spec, [pending])
        if not any(spec.compares_outputs for spec in job.test.assertions):
            return
        row = self._rows.setdefault(job.group, [])
        row.append(pending)
        if len(row) == self.prepared.row_size(job):
            row = sorted(self._rows.pop(job.group), key=lambda item: item.job.column)
            for comparison in job.test.assertions:
                if comparison.compares_outputs and isinstance(comparison, ModelGradedAssertion):
                    await self._follow(comparison, row)

    async def settle(self) -> None:
        """Wait for what is still being counted: a judgement ends with the first of its questions that ends it.

        Raises:
            StoreError: the cache could not be read; whoever asked made a result of it, which nobody reads.
        """
        for outcome in await asyncio.gather(*self._counting, return_exceptions=True):
            if isinstance(outcome, StoreError):
                raise outcome
        self._counting.clear()

    async def note(
        self, provider: Provider, request: ModelRequest, assumption: str = ""
    ) -> ModelResponse | None:
        """Count the answers to `request`; those of the cache if it has all of them, else None.

        An `assumption` says under which condition it is asked for at all.
        """
        self._counting.append(asyncio.ensure_future(self._count(provider, request, assumption)))
        return await self._counting[-1]

    async def _count(
        self, provider: Provider, request: ModelRequest, assumption: str
    ) -> ModelResponse | None:
        keys = choice_keys(provider.identity, request)
        cache = self.cache if provider.is_cacheable else None
        known = {} if cache is None else await cache.get_many(keys, since=self.since)
        seen = 0
        if provider.is_cacheable or request.role is Role.JUDGE:
            # Equal requests are sent once, be they under way. A part of a key tells them apart, and takes little room.
            question = int(keys[0][:16], 16)
            seen = self._seen.get(question, 0)
            self._seen[question] = max(seen, len(keys))
        is_new = seen < len(keys)
        missing = [position for position, key in enumerate(keys) if key not in known] if is_new else []
        least = 0 if assumption else sum(position >= seen for position in missing)
        kind = RequestKind(request.role, provider.label, request.purpose, assumption if missing else "")
        cached = len(keys) - len(missing) if is_new else 0
        counts = self._estimate(provider, request, least, len(missing), cached)
        self.counts[kind] = self.counts.get(kind, RequestCounts()) + counts
        if len(known) < len(keys):
            return None
        samples = zip(request.sample_indexes, (known[key] for key in keys), strict=True)
        return recalled(dict(samples), new=len(keys))

    def _estimate(
        self, provider: Provider, request: ModelRequest, least: int, most: int, cached: int
    ) -> RequestCounts:
        """Return so many answers with their tokens and price: one request may read the prompt once for all of them."""
        if id(provider) not in self._prices:
            self._prices[id(provider)] = _price_of(provider)
        usd = self._prices[id(provider)]
        read = -(-sum(len(str(message.content)) for message in request.messages) // _CHARACTERS_PER_TOKEN)
        written = _most_written(provider, request) if most else 0
        least_read, most_written = (read if least else 0), None if written is None else most * written
        if written is None and usd(1, 1) == 0:
            written = 0  # what costs nothing costs nothing however much is written
        each_usd = None if written is None else usd(read, written)
        most_usd = None if each_usd is None else most * each_usd
        return RequestCounts(
            least=least,
            most=most,
            cached=cached,
            input_least=least_read,
            input_most=most * read,
            output_most=most_written,
            cost_least_usd=usd(least_read, 0),
            cost_most_usd=most_usd,
        )

    async def _follow(self, spec: ModelGradedAssertion, row: Sequence[PendingResult]) -> None:
        """Count what an assertion asks about an output, or about all of a row. There is no verdict."""
        subjects = [_with_context(spec, item.subject, item.job) for item in row if item.subject is not None]
        is_after_code, form = any(_is_after_code(item, spec) for item in row), None

        def judge(named: ProviderSpec) -> Judge:
            return _CountingJudge(self.provider(named), self, is_after_code, form)

        earlier = tuple(result for item in row for result in item.earlier)
        tools = replace(self._tools(judge), earlier=earlier)
        if spec.compares_outputs:
            await compare_outputs(spec, [RowMember(subject) for subject in subjects], tools)
            return
        for subject in subjects:
            if isinstance(spec, GEvalFields) and spec.dimension is not None:
                with suppress(GevalError):  # it is told where the output is judged
                    form = metric_of(spec, subject.test, tools)
            await judge_one(spec, subject, tools)

    async def _generate(self, spec: ProviderSpec, request: ModelRequest, job: Job) -> ModelResponse:
        provider, assumption = self.provider(spec), ""
        request = replace(request, want_logprobs=wants_logprobs(job.test.assertions))
        if _is_made(job):
            request = replace(request, messages=(*request.messages, *user_message(job.id)))
            assumption = "" if self.cache is None else _AFTER_CODE
        found = await self.note(provider, request, assumption)
        if found is not None:
            return found
        tokens = min(_most_written(provider, request) or ASSUMED_ANSWER_TOKENS, _LONGEST_STAND_IN)
        # Another one for each question: equal outputs have equal judgements, which are asked for once.
        name = choice_keys(provider.identity, request)[0] if provider.is_cacheable else job.id
        return ModelResponse((Choice(f"{name} {'word' * tokens}", "stop"),))

    def provider(self, spec: ProviderSpec) -> Provider:
        """Return the provider that `spec` names."""
        return self.pool.get(resolved(spec, self.prepared.suite))

    def _tools(self, judges: Callable[[ProviderSpec], Judge]) -> Tools:
        # Lenient: no code is run here, and what it adds to the variables is missing.
        templates, access = self.prepared.templates.lenient(), self.prepared.suite.access
        return Tools(templates, judges, self._memory, self.prepared.defaults, access=access)


class NotAskedError(GevalError):
    """A model was to be asked for what no stand-in can take the place of: no further can a judgement be followed."""


@dataclass(slots=True, unsafe_hash=True)
class _CountingJudge:
    """Answers one assertion from the cache. Judges of different assertions are the same judge when their provider is.

    Where more is asked about an answer (steps, claims, questions, ratings of a form), a stand-in is answered, and what
    hangs on that is asked for on an assumption. At any other question that the cache cannot answer the judgement ends.

    Attributes:
        is_after_code: whether code of the config, which is not run, makes what is judged out of something that the
            cache knows.
        form: the metric of a g-eval by a dimension; None for any other assertion.
    """

    provider: Provider
    dry_run: _DryRun = dataclass_field(compare=False, repr=False)
    is_after_code: bool = dataclass_field(compare=False)
    form: Metric | None = dataclass_field(compare=False)
    has_made_up: bool = dataclass_field(default=False, compare=False)

    @property
    def label(self) -> str:
        return self.provider.label

    @property
    def identity(self) -> ProviderIdentity:
        return self.provider.identity

    @property
    def public_id(self) -> str:
        return mask_text(self.provider.id)

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.provider.identity.params

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Count `request`, and answer it from the cache or by a stand-in.

        Raises:
            NotAskedError: neither is possible.
        """
        found = await self.dry_run.note(self.provider, request, self._assumption(request))
        if found is not None and not self.has_made_up:
            return found
        probabilities = None
        if request.purpose is Purpose.STEPS:
            return ModelResponse((Choice(_STEPS, "stop"),))
        if request.purpose in {Purpose.CLAIMS, Purpose.QUESTIONS}:
            # Answers that no other question has, as if each output led to something else.
            texts = [f"{_MADE_UP}{key}" for key in choice_keys(self.provider.identity, request)]
        elif self.form is not None and request.purpose is not Purpose.EXPLANATION:
            # A rating that is explained, if any is.
            rating = self.form.asked_range[self.form.explain == "passed"]
            texts = [format_number(rating)] * len(request.sample_indexes)
            probabilities = (TokenLogprob(texts[0], 0.0),) if self.form.scoring == "logprobs" else None
        else:
            raise NotAskedError("nothing is sent")
        self.has_made_up = True
        return ModelResponse(tuple(Choice(text, "stop", token_logprobs=probabilities) for text in texts))

    def _assumption(self, request: ModelRequest) -> str:
        otherwise = _AFTER_CODE if self.is_after_code else ""
        if request.purpose is Purpose.STEPS:
            return ""
        if request.purpose is Purpose.EMBEDDING:  # of another judge than the questions
            is_made_up = str(request.messages[0].content).startswith(_MADE_UP)
            return _AFTER_STAND_IN[Purpose.EMBEDDING] if is_made_up else otherwise
        is_always = self.form is not None and self.form.explain == "always"
        if not self.has_made_up or (is_always and request.purpose is Purpose.EXPLANATION):
            return otherwise
        return _AFTER_STAND_IN[request.purpose]


def _no_judge(spec: ProviderSpec) -> Judge:
    raise NotAskedError(f"{spec.public_id} is asked elsewhere")


def _price_of(provider: Provider) -> Callable[[int, int], float | None]:
    """Return what so many tokens read and written cost; None where that is unknown."""
    price = known_price(provider)

    @lru_cache(maxsize=1024)  # a list price is computed from a large table
    def usd(read: int, written: int) -> float | None:
        return None if price is None else price.cost_usd(TokenUsage(read, written))

    return usd


def _most_written(provider: Provider, request: ModelRequest) -> int | None:
    """Return the most tokens that one answer may have, if anything says so."""
    limit = token_limit({**provider.identity.params, **request.params})
    return DEFAULT_MAX_TOKENS if limit is None and provider.identity.kind == "anthropic" else limit


def _judged(specs: Iterable[Assertion]) -> Iterator[ModelGradedAssertion]:
    """Yield those that a judge judges by themselves, also within sets; the others ask nobody."""
    for spec in specs:
        if isinstance(spec, ModelGradedAssertion) and not spec.compares_outputs:
            yield spec
        yield from _judged(spec.members)


def _is_made(job: Job) -> bool:
    """Return whether code of the config, which is not run, makes the prompt or a variable in it."""
    is_program = isinstance(job.prompt, NamedPromptSpec) and bool(job.prompt.made_by)
    return is_program or bool(job.test.promptfoo.made_vars) or job.test.transform_vars is not None


def _is_after_code(pending: PendingResult, spec: Assertion) -> bool:
    """Return whether code of the config, which is not run, makes what is judged out of an output that is known."""
    job = pending.job
    own = job.provider.transform if isinstance(job.provider, FilteredProviderSpec) else None
    context = spec.context_transform if isinstance(spec, ContextAssertion) else None
    is_known = not job.generates or pending.result.cached
    return is_known and any(code is not None for code in (own, job.test.transform, spec.transform, context))


def _with_context(spec: Assertion, subject: Subject, job: Job) -> Subject:
    """Return the subject with something in the place of the context that code would take out of the output."""
    if not isinstance(spec, ContextAssertion) or spec.context_transform is None:
        return subject
    context: JsonValue = f"{job.id} {'word' * ASSUMED_ANSWER_TOKENS}"
    return replace(subject, test=replace(subject.test, vars={**subject.test.vars, "context": context}))
