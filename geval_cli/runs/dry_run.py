"""`--plan`: a run whose models count what they are asked, and answer from the cache or with a stand-in."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as member
from functools import lru_cache, partial
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.graded.geval import metric_of
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.assertions.graded.retrieval import ContextAssertion
from geval_cli.assertions.outcome import Subject, Tools
from geval_cli.assertions.registry import judge_assertion, judge_row, wants_logprobs
from geval_cli.assertions.row import RowMember
from geval_cli.engine.case import JobContext, PendingResult, begin_job
from geval_cli.engine.conversation_state import ConversationState
from geval_cli.engine.evaluation import assertions_of
from geval_cli.engine.plan import Job
from geval_cli.errors import GevalError, StoreError
from geval_cli.gateway.identity import choice_keys
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import Judge, Metric
from geval_cli.judge.prompt import user_message
from geval_cli.providers.base import Provider
from geval_cli.providers.prices import Price, known_price
from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.records import (
    Choice,
    JsonValue,
    ModelRequest,
    ModelResponse,
    Purpose,
    Role,
    TokenAlternative,
    TokenLogprob,
    Usage,
)
from geval_cli.report.plan import RequestCounts, RequestKind, RunPlan, TokenCounts
from geval_cli.runs.judging import ProviderPool
from geval_cli.runs.preparation import reads_cache, resolved
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.store.cache import ResponseCache, StoredChoice

ASSUMED_ANSWER_TOKENS = 200
"""How long an answer is taken to be, in the prompt of its judge, when nothing bounds it."""

_JOBS_AT_ONCE = 64
_LONGEST_STAND_IN = 100_000
_CHARACTERS_PER_TOKEN = 4
_LENGTH_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_STEPS = '{"steps": ["Read all of it.", "Compare it with the criteria.", "Decide on a rating."]}'
_MADE_PROMPT = "none, if the cache knows the prompts that code of the config makes"
_AFTER_CODE = "none, if the cache knows what is asked after code of the config has run"
_AFTER_STAND_IN: Mapping[Purpose, str] = {
    Purpose.FALLBACK_SAMPLES: "for each rating, if the judge gives no usable token probabilities",
    Purpose.VERDICT: "one for each output that claims something",
    Purpose.EMBEDDING: "of made-up questions, as far as they differ",
}
_EXPLAINED = {"failed": "one for each output that fails", "passed": "one for each output that passes"}


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
    since = None
    if not reads_cache(prepared):
        since = None if resumed is None else resumed.started_s  # what the run itself was told counts
        cache = None if resumed is None else cache
    if cache is not None and not (await cache.stats()).entries:
        cache = None
    queues = prepared.plan.queues
    if resumed is not None:
        queues = tuple(resumed.done.missing(queue) for queue in queues)
    pool = ProviderPool(prepared.suite.env, prepared.suite.base_dir, prepared.suite.access)
    try:
        counter = _Counter(cache, since)
        dry_run = _DryRun(prepared, pool, counter)
        at_once = 1 if prepared.plan.is_serial else _JOBS_AT_ONCE
        for queue in queues:
            jobs = iter(queue)
            while some := list(islice(jobs, at_once)):
                await asyncio.gather(*(dry_run.add(job) for job in some))
                counter.check()
        return RunPlan(dry_run.cases, counter.counts)
    finally:
        await pool.aclose()


class _Counter(Struct):
    """Counts requests as single flight and the cache would let them through: equal ones once.

    Attributes:
        cache: None where no answers are kept, or none may be read.
        since: answers that were kept before this time (seconds since 1970) do not count; None for no such bound.
        counts: what was counted so far; it does not grow with the number of tests.
    """

    cache: ResponseCache | None
    since: float | None
    counts: dict[RequestKind, RequestCounts] = field(default_factory=dict)
    _failure: StoreError | None = None
    _seen: dict[int, int] = field(default_factory=dict)
    _prices: dict[int, Price | None] = field(default_factory=dict)

    async def note(
        self, provider: Provider, request: ModelRequest, assumption: str = ""
    ) -> ModelResponse | None:
        """Count the answers to `request`; those of the cache if it has all of them, else None.

        An `assumption` says under which condition it is asked for at all.
        """
        keys = choice_keys(provider.identity, request)
        known = await self._known(provider, keys)
        seen = self._seen_before(keys) if provider.is_cacheable or request.role is Role.JUDGE else 0
        is_new = seen < len(keys)
        missing = [position for position, key in enumerate(keys) if key not in known] if is_new else []
        least = 0 if assumption else sum(position >= seen for position in missing)
        kind = RequestKind(request.role, provider.label, request.purpose, assumption if missing else "")
        counts = self._estimate(provider, request, least, len(missing))
        counts = replace(counts, cached=len(keys) - len(missing) if is_new else 0)
        self.counts[kind] = self.counts.get(kind, RequestCounts()) + counts
        return _recalled([known[key] for key in keys]) if len(known) == len(keys) else None

    def check(self) -> None:
        """Raise the StoreError that kept the cache from being read, if there was one."""
        if self._failure is not None:
            raise self._failure

    def _estimate(self, provider: Provider, request: ModelRequest, least: int, most: int) -> RequestCounts:
        """Return so many answers with their tokens and price: one request may read the prompt once for all of them."""
        if id(provider) not in self._prices:  # looked up in a large table
            self._prices[id(provider)] = known_price(provider)
        price, read = self._prices[id(provider)], _input_tokens(request)
        written = _most_written(provider, request) if most else 0
        tokens = TokenCounts(read if least else 0, most * read, None if written is None else most * written)
        least_usd = _price_usd(price, tokens.input_least, 0)
        if written is None and _price_usd(price, 1, 1) == 0:
            written = 0  # what costs nothing costs nothing however much is written
        each_usd = None if written is None else _price_usd(price, read, written)
        most_usd = None if each_usd is None else most * each_usd
        return RequestCounts(least, most, 0, tokens, least_usd, most_usd)

    async def _known(self, provider: Provider, keys: tuple[str, ...]) -> Mapping[str, StoredChoice]:
        if self.cache is None or not provider.is_cacheable:
            return {}
        try:
            return await self.cache.get_many(keys, since=self.since)
        except StoreError as error:  # whoever asks makes a result of it, which nobody reads
            self._failure = error
            raise

    def _seen_before(self, keys: tuple[str, ...]) -> int:
        """Return how many samples of this question were asked for before; they may be under way when it is asked again.

        A part of a key tells which question it is, and takes little room.
        """
        question = int(keys[0][:16], 16)
        before = self._seen.get(question, 0)
        self._seen[question] = max(before, len(keys))
        return before


class NotAskedError(GevalError):
    """A model was to be asked for what no stand-in can take the place of: no further can a judgement be followed."""


class _Questions(Struct):
    """What one assertion asks its judges about one output, or about a row of them.

    Where more is asked about an answer (steps, claims, questions, ratings of a form), a stand-in is answered, and what
    hangs on that is asked for on an assumption. At any other question that the cache cannot answer it ends.

    Attributes:
        is_after_code: whether code of the config, which is not run, makes what is judged out of something that the
            cache knows.
        form: the metric of a g-eval by a dimension; None for any other assertion.
    """

    dry_run: "_DryRun"
    is_after_code: bool
    form: Metric | None = None
    _made_up: Sequence[str] = ()
    _notes: "list[asyncio.Future[ModelResponse | None]]" = field(default_factory=list)

    async def follow(self, judging: Awaitable[object]) -> None:
        """Have the assertion judge. How it ends does not matter: there is no verdict."""
        await asyncio.gather(judging, return_exceptions=True)
        # Of questions that are asked side by side, the first that ends the judgement leaves the others under way.
        await asyncio.gather(*self._notes, return_exceptions=True)

    def judge(self, spec: ProviderSpec) -> Judge:
        return _CountingJudge(self.dry_run.provider(spec), self)

    async def answer(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """Count `request`, and answer it from the cache or by a stand-in.

        Raises:
            NotAskedError: neither is possible.
        """
        counting = self.dry_run.counter.note(provider, request, self._assumption(request))
        self._notes.append(asyncio.ensure_future(counting))
        found = await self._notes[-1]
        if found is not None and not self._made_up:
            return found
        if request.purpose is Purpose.STEPS:
            return _stand_in(_STEPS)
        if request.purpose in {Purpose.CLAIMS, Purpose.QUESTIONS}:
            # Answers that no other question has, as if each output led to something else.
            self._made_up = [f"Something about {key}" for key in choice_keys(provider.identity, request)]
        elif self.form is not None and request.purpose is not Purpose.EXPLANATION:
            # A rating that is explained, if any is.
            rating = request.ratings[-1 if self.form.explain == "passed" else 0]
            self._made_up = [rating] * len(request.sample_indexes)
        else:
            raise NotAskedError("nothing is sent")
        return _stand_in(*self._made_up, is_sure=self.form is not None and self.form.scoring == "logprobs")

    def _assumption(self, request: ModelRequest) -> str:
        otherwise = _AFTER_CODE if self.is_after_code else ""
        if request.purpose is Purpose.STEPS:
            return ""
        if not self._made_up:
            return otherwise
        if request.purpose is Purpose.EXPLANATION and self.form is not None:
            return _EXPLAINED.get(self.form.explain, otherwise)
        if request.purpose is Purpose.EMBEDDING and request.messages[0].content not in self._made_up:
            return otherwise
        return _AFTER_STAND_IN[request.purpose]


@dataclass(frozen=True, slots=True)
class _CountingJudge:
    """A judge that is not asked. Those of different assertions are the same judge when their provider is."""

    provider: Provider
    questions: _Questions = member(compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.provider.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.provider.identity.params

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.questions.answer(self.provider, request)


class _DryRun(Struct):
    """Does jobs without their models, and rows of jobs whose outputs are compared once all of them are there."""

    prepared: PreparedRun
    pool: ProviderPool
    counter: _Counter
    cases: int = 0
    _memory: JudgeMemory = field(default_factory=JudgeMemory)
    _carried: ConversationState = field(default_factory=ConversationState)
    _rows: dict[str, list[PendingResult]] = field(default_factory=dict)

    def provider(self, spec: ProviderSpec) -> Provider:
        """Return the provider that `spec` names."""
        return self.pool.get(resolved(spec, self.prepared.suite))

    async def add(self, job: Job) -> None:
        """Count what `job` would ask for."""
        self.cases += 1
        # Without its assertions: they are followed one by one, and some would run code or call a web hook.
        bare = replace(job, test=replace(job.test, assertions=()))
        context = JobContext(partial(self._generate, job=job), self._tools(_no_judge), self._carried)
        pending = replace(await begin_job(bare, context), job=job)
        for spec in _judged(assertions_of(job.prompt, job.test)):
            if pending.subject is not None:
                questions = _Questions(self, _is_after_code(pending, spec))
                await questions.follow(
                    self._judge(spec, _with_context(spec, pending.subject, job), questions)
                )
        if any(spec.compares_outputs for spec in job.test.assertions):
            await self._add_to_row(pending)

    async def _add_to_row(self, pending: PendingResult) -> None:
        job = pending.job
        row = self._rows.setdefault(job.group, [])
        row.append(pending)
        if len(row) < self.prepared.plan.cases_of(job.test):
            return
        del self._rows[job.group]
        row.sort(key=lambda item: item.job.column)
        members = [RowMember(item.subject) for item in row if item.subject is not None]
        for spec in job.test.assertions:
            if spec.compares_outputs and isinstance(spec, ModelGradedAssertion):
                questions = _Questions(self, any(_is_after_code(item, spec) for item in row))
                await questions.follow(judge_row(spec, members, self._tools(questions.judge)))

    async def _judge(self, spec: Assertion, subject: Subject, questions: _Questions) -> None:
        tools = self._tools(questions.judge)
        if isinstance(spec, GEvalFields) and spec.dimension is not None:
            questions.form = metric_of(spec, subject.test, tools)
        await judge_assertion(spec, subject, tools)

    async def _generate(self, spec: ProviderSpec, request: ModelRequest, job: Job) -> ModelResponse:
        provider, assumption = self.provider(spec), ""
        request = replace(request, want_logprobs=wants_logprobs(job.test.assertions))
        if _is_made(job):
            request = replace(request, messages=(*request.messages, *user_message(job.id)))
            assumption = "" if self.counter.cache is None else _MADE_PROMPT
        found = await self.counter.note(provider, request, assumption)
        if found is not None:
            return found
        tokens = min(_most_written(provider, request) or ASSUMED_ANSWER_TOKENS, _LONGEST_STAND_IN)
        # Another one for each question: equal outputs have equal judgements, which are asked for once.
        name = choice_keys(provider.identity, request)[0] if provider.is_cacheable else job.id
        return _stand_in(f"{name} {'word' * tokens}")

    def _tools(self, judges: Callable[[ProviderSpec], Judge]) -> Tools:
        # Lenient: no code is run here, and what it adds to the variables is missing.
        templates, access = self.prepared.templates.lenient(), self.prepared.suite.access
        return Tools(templates, judges, self._memory, self.prepared.defaults, access=access)


def _no_judge(spec: ProviderSpec) -> Judge:
    raise NotAskedError(f"{spec.public_id} is asked elsewhere")


def _stand_in(*texts: str, is_sure: bool = False) -> ModelResponse:
    def logprobs(text: str) -> tuple[TokenLogprob, ...]:
        return (TokenLogprob(text, 0.0, (TokenAlternative(text, 0.0),)),)

    return ModelResponse(
        tuple(Choice(text, "stop", token_logprobs=logprobs(text) if is_sure else None) for text in texts)
    )


def _recalled(stored: Sequence[StoredChoice]) -> ModelResponse:
    dropped = tuple(dict.fromkeys(name for item in stored for name in item.dropped))
    usage = Usage(len(stored), cached_requests=len(stored))
    return ModelResponse(tuple(item.choice for item in stored), usage, cached=True, dropped=dropped)


@lru_cache(maxsize=4096)  # a list price is computed from a large table
def _price_usd(price: Price | None, read: int, written: int) -> float | None:
    return None if price is None else price.cost_usd(TokenUsage(read, written))


def _input_tokens(request: ModelRequest) -> int:
    """Return about how many tokens a request has."""
    return -(-sum(len(str(message.content)) for message in request.messages) // _CHARACTERS_PER_TOKEN)


def _most_written(provider: Provider, request: ModelRequest) -> int | None:
    """Return the most tokens that one answer may have, if anything says so."""
    for params in (request.params, provider.identity.params):
        for limit in map(params.get, _LENGTH_KEYS):
            if isinstance(limit, int) and limit > 0:
                return limit
    return DEFAULT_MAX_TOKENS if provider.identity.kind == "anthropic" else None


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
