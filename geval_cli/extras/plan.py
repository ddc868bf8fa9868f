"""`--plan`: what a run would send and cost, and how small a drop it could detect, as JSON or as a table.

The requests are counted in a dry run whose models answer from the cache or with a stand-in.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple, replace
from rich.console import Console
from rich.text import Text

from geval_cli.assertions.base import (
    Assertion,
    ModelGradedAssertion,
    RowMember,
    Subject,
    Tools,
    each_assertion,
)
from geval_cli.assertions.geval import metric_of
from geval_cli.assertions.geval_metric import GEvalFields
from geval_cli.assertions.judges import ContextAssertion
from geval_cli.assertions.registry import wants_logprobs
from geval_cli.engine.case import JobContext, PendingResult, begin_job, blank_result
from geval_cli.engine.columns import row_columns
from geval_cli.engine.conversation import ConversationState
from geval_cli.engine.judge_output import compare_outputs, judge_one
from geval_cli.engine.plan import Job, assertions_of
from geval_cli.engine.transforms import assertion_code, is_made_by_code, output_code
from geval_cli.errors import GevalError, StoreError, UnjudgeableError
from geval_cli.extras.comparisons import in_column
from geval_cli.extras.decision_trees import DecisionTreeAssertion
from geval_cli.extras.rag import CitationCorrectnessAssertion, NoiseSensitivityAssertion, by_context
from geval_cli.gateway.cache import choice_keys, recalled
from geval_cli.gateway.gateway import with_media_for
from geval_cli.json_codec import encode_json
from geval_cli.judge.metric import Metric, format_number
from geval_cli.judge.prompt import find_dimension, user_message
from geval_cli.numbers import estimated, format_cost, format_count, format_score, plural
from geval_cli.providers.base import Provider, batch_api
from geval_cli.providers.prices import Price, known_price
from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.providers.wire.token_usage import TokenUsage, token_limit
from geval_cli.records import (
    SCHEMA_VERSION,
    AssertionResult,
    CaseResult,
    Choice,
    JsonValue,
    ModelRequest,
    ModelResponse,
    Purpose,
    Role,
    RunStatus,
    Status,
    TokenLogprob,
    to_json,
)
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.sanitize import one_line
from geval_cli.runs.baseline import gates_of
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun
from geval_cli.runs.session import ProviderPool, Session
from geval_cli.runs.stored import load_report
from geval_cli.specs.base import ProviderSpec
from geval_cli.statistics.intervals import ClusteredMean
from geval_cli.statistics.paired import detectable_quantile
from geval_cli.store.cache import ResponseCache, StoredChoice
from geval_cli.store.runs import RunStore, config_file

_NAME_WIDTH = 60
_DIGITS = 2  # significant digits of a price: the token counts are estimates
_PROVIDER_WIDTH = 28
_PURPOSES = list(Purpose)
_TOKENS = ("input_least", "input_most", "output_most")
_DIRECTLY = (
    "the first request of each kind, and a wave of fewer than 20 (Bedrock: 100), are sent directly at the usual price,"
    " which is not counted here"
)
_WIDTH_FOR_TOKENS_OUT = 90
_REMARKS = (
    "Equal requests are sent once; retries are not counted. Tokens are estimated: one for every four bytes of text, and"
    " 200 for an answer without `max_tokens` that a judge reads.",
)


class RequestCounts(Struct, frozen=True):
    """Answers that would be requested, with their tokens and price. A sum with an unknown part is unknown.

    Attributes:
        least, most: the number of answers; retries are not counted.
        cached: the number of further answers that are in the cache, or in a batch that was submitted.
        output_most: the most output tokens; None if they have no limit.
        cost_least_usd: for the input alone; None if the price is unknown.
        cost_most_usd: None if the price is unknown or the output has no limit.
    """

    least: int = 0
    most: int = 0
    cached: int = 0
    input_least: int = 0
    input_most: int = 0
    output_most: int | None = 0
    cost_least_usd: float | None = 0.0
    cost_most_usd: float | None = 0.0

    def __add__(self, other: "RequestCounts") -> "RequestCounts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return RequestCounts(*sums)


class RequestKind(Struct, frozen=True):
    """Requests of one role to one provider for one purpose; `assumption` names the condition for sending them."""

    role: Role
    provider: str
    purpose: Purpose
    assumption: str = ""

    @property
    def name(self) -> str:
        return f"judge's {self.purpose}" if self.role is Role.JUDGE else self.purpose


class WorkersPlan(Struct, frozen=True):
    """The number of workers, of shards (of at most `shard_tests` tests) and of concurrent requests per worker."""

    workers: int
    shards: int
    shard_tests: int
    requests_at_once: int


class PowerPlan(Struct, frozen=True):
    """The number of tests needed to detect a drop, given the spread in an earlier run.

    Attributes:
        metric: the metric whose mean drops; None for the pass rate.
        drop: the size of the drop.
        needed: the number of tests that detect it with 80 % power at the 5 % level.
        tests: the number of tests in the suite.
        shown: the drop that these tests detect with that power; None if above 1, or with fewer than two tests.
        run: the id of the earlier run.
    """

    metric: str | None
    drop: float
    needed: int
    tests: int
    shown: float | None
    run: str


_STAGES: Mapping[Purpose, int] = {
    Purpose.ANSWER: 0,
    Purpose.FALLBACK_SAMPLES: 2,
    Purpose.FURTHER_SAMPLES: 2,
    Purpose.EMBEDDING: 2,
    Purpose.EXPLANATION: 3,
}
"""How many rounds of answers must be in before a request can be sent; 1 for all other purposes."""


class AnchorsPlan(Struct, frozen=True):
    """The ratings of anchors before a run, none of which come from the cache; `cost_usd` is None if unknown."""

    ratings: int
    cost_usd: float | None


class RunPlan(Struct, frozen=True):
    """The plan of a run.

    Attributes:
        cases: the number of cases.
        workers: None for a single process.
        batched: the kinds of requests that are sent in batches.
        anchors: the ratings before the run, which are not in `counts`; None without anchors.
        power: the drops that it can detect; empty if no earlier run shows the spread.
    """

    cases: int
    counts: Mapping[RequestKind, RequestCounts]
    workers: WorkersPlan | None = None
    batched: frozenset[RequestKind] = frozenset()
    power: tuple[PowerPlan, ...] = ()
    anchors: AnchorsPlan | None = None

    @property
    def waves(self) -> dict[RequestKind, int]:
        """Return the number (from 1) of the batch wave of each kind; kinds that are sent directly have none."""
        asked = [kind for kind in self.batched if self.counts[kind].most]
        stages = sorted({_STAGES.get(kind.purpose, 1) for kind in asked})
        return {kind: stages.index(_STAGES.get(kind.purpose, 1)) + 1 for kind in asked}

    @property
    def rows(self) -> list[tuple[RequestKind, RequestCounts]]:
        """Return the kinds that are requested: generation first, then judges, each by provider and purpose."""
        rows = [(kind, counts) for kind, counts in self.counts.items() if counts.most or counts.cached]
        return sorted(
            rows,
            key=lambda row: (row[0].role is Role.JUDGE, row[0].provider, _PURPOSES.index(row[0].purpose)),
        )

    @property
    def total(self) -> RequestCounts:
        return sum((counts for _, counts in self.rows), RequestCounts())


def plan_document(plan: RunPlan) -> JsonValue:
    """Return a plan as JSON."""
    waves = plan.waves
    rows = [
        {**to_json(kind), **({"wave": waves.get(kind)} if plan.batched else {}), **_counts_document(counts)}
        for kind, counts in plan.rows
    ]
    total = _counts_document(plan.total)
    head = {"schema_version": SCHEMA_VERSION, "kind": "plan"}
    workers = {} if plan.workers is None else {"workers": to_json(plan.workers)}
    batches = {"waves": max(waves.values(), default=0)} if plan.batched else {}
    power = {"power": to_json(plan.power)} if plan.power else {}
    anchors = {} if plan.anchors is None else {"anchors": to_json(plan.anchors)}
    return {
        **head,
        "total": total,
        "cases": plan.cases,
        **workers,
        **batches,
        **anchors,
        **power,
        "rows": rows,
    }


def _counts_document(counts: RequestCounts) -> dict[str, JsonValue]:
    document: dict[str, JsonValue] = to_json(counts)
    return {"tokens": {name: document.pop(name) for name in _TOKENS}, **document}


def print_plan(plan: RunPlan, config: str, console: Console) -> None:
    """Print the totals, the table and the assumptions."""
    cases = plural(plan.cases, "case")
    calls, cached, _, _, price = _cells(plan.total)
    noun = "call" if plan.total.least == plan.total.most == 1 else "calls"
    name = one_line(config, 200)
    if plan.total.most or not plan.total.cached:
        more = f", plus {cached} cached answers" if plan.total.cached else ""
        whole = f"{name} would make {calls} {noun} for {cases}{more}; price {price}; nothing was sent"
    else:
        whole = f"{name} would make 0 calls: the cache has all {cached} answers for {cases}; nothing was sent"
    print_hanging(Text(), Text(whole, style="bold"), console, indent=1)
    console.print()
    table = plain_table(console)
    table.add_column("provider", overflow="fold", max_width=_PROVIDER_WIDTH)
    table.add_column("what")
    waves = plan.waves
    figures = ["calls", "cached", "tokens in", "tokens out", "price"]
    hidden = figures.index("tokens out") if console.width < _WIDTH_FOR_TOKENS_OUT else len(figures)
    for heading in [*(["wave"] if plan.batched else []), *figures[:hidden], *figures[hidden + 1 :]]:
        table.add_column(heading, justify="right", no_wrap=heading == "price")
    for kind, counts in plan.rows:
        wave = [str(waves.get(kind, "direct"))] if plan.batched else []
        cells = _cells(counts)
        table.add_row(
            Text(one_line(kind.provider, _NAME_WIDTH)),
            kind.name,
            *wave,
            *cells[:hidden],
            *cells[hidden + 1 :],
        )
    if plan.rows:
        print_trimmed(indented(table), console)
        console.print()
    notes = [(f" {kind.name}: ", kind.assumption) for kind, _ in plan.rows if kind.assumption]
    for head, note in dict.fromkeys(notes):
        print_hanging(Text(head), Text(note, style="dim"), console, indent=0)
    if plan.workers is not None:
        print_hanging(
            Text(" workers ", style="bold"), Text(_describe_workers(plan.workers)), console, indent=0
        )
    if plan.batched:
        count = max(waves.values(), default=0)
        text = f"{plural(count, 'wave')} of batches, each answered within a day; {_DIRECTLY}"
        print_hanging(Text(" batches ", style="bold"), Text(text), console, indent=0)
    if plan.anchors is not None:
        cost = plan.anchors.cost_usd
        price = "price unknown" if cost is None else f"about {_dollars(cost)}"
        text = f"{plural(plan.anchors.ratings, 'more rating')} before the run, none from the cache; {price}"
        print_hanging(Text(" anchors ", style="bold"), Text(text), console, indent=0)
    for item in plan.power:
        total = plan.total
        what = "the pass rate" if item.metric is None else f"the mean of {one_line(item.metric, _NAME_WIDTH)}"
        told = f"{estimated(item.needed)} tests detect a drop of {format_score(item.drop)} in {what} (80 % power)"
        if total.most and total.cost_least_usd is not None:
            # The cache has no answers for more tests.
            scale = (total.most + total.cached) / total.most * item.needed / item.tests
            low, high = (
                None if usd is None else usd * scale for usd in (total.cost_least_usd, total.cost_most_usd)
            )
            told += f", price {_price(low, high)}"
        here = f"; the {item.tests:,} here detect {format_score(item.shown)} or more" if item.shown else ""
        print_hanging(
            Text(" power   ", style="bold"),
            Text(f"{told}{here} (spread as in run {item.run})"),
            console,
            indent=0,
        )
    for remark in _REMARKS:
        print_hanging(Text(" "), Text(remark, style="dim"), console, indent=0)


def _describe_workers(plan: WorkersPlan) -> str:
    shards = f"{plural(plan.shards, 'shard')} of at most {plural(plan.shard_tests, 'test')}"
    requests = plural(plan.requests_at_once, "request")
    return f"{plural(plan.workers, 'process', 'processes')} with {requests} at once each, {shards}"


def _cells(counts: RequestCounts) -> list[str]:
    return [
        _span(f"{counts.least:,}", f"{counts.most:,}"),
        f"{counts.cached:,}",
        _span(format_count(counts.input_least), format_count(counts.input_most)),
        "no bound" if counts.output_most is None else f"<= {format_count(counts.output_most)}",
        _price(counts.cost_least_usd, counts.cost_most_usd),
    ]


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def _price(least_usd: float | None, most_usd: float | None) -> str:
    low, high = (None if usd is None else _dollars(usd) for usd in (least_usd, most_usd))
    return "unknown" if low is None else f"from {low}" if high is None else _span(low, high)


def _dollars(amount_usd: float) -> str:
    return format_cost(float(f"{amount_usd:.{_DIGITS}g}")) if amount_usd else "$0"


ASSUMED_ANSWER_TOKENS = 200
"""The assumed length of an answer in its judge's prompt if nothing limits it."""

DROP = 0.05
"""The drop for which a plan says how many tests can detect it."""

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.INTERRUPTED, RunStatus.ABORTED})
_LEAST_TESTS = 2
_LEAST_KNOWN = 10
"""With fewer tests in the earlier run than this, their spread says too little."""

_LONGEST_STAND_IN = 100_000
_CHARACTERS_PER_TOKEN = 4
_READ_SETTINGS = (
    *("system", "systemInstruction", "system_instruction", "instructions"),
    *("tools", "functions", "toolConfig", "response_format"),
)
_STEPS = '{"steps": ["Read all of it.", "Compare it with the criteria.", "Decide on a rating."]}'
_MADE_UP = "A stand-in for "
_AFTER_CODE = "none, if the cache has the answers once the config's code has run"
_UNTIL_OVER = "at most; a simulated conversation may end earlier"
_IF_CITED = "one per output that cites passages"
_IF_UNSUPPORTED = "one per output with a claim that the ground truth does not support"
_ON_PATH = "per output whose path through the decision tree gets there"
_AFTER_CALLS = "one per answer that calls tools"
_PER_CALL = "one per call of a simulated tool"
_SAMPLES = (Purpose.SAMPLES, Purpose.FALLBACK_SAMPLES, Purpose.FURTHER_SAMPLES)
_AFTER_STAND_IN: Mapping[Purpose, str] = {
    Purpose.FALLBACK_SAMPLES: "per rating, if the judge gives no usable token probabilities",
    Purpose.FURTHER_SAMPLES: "until the verdict is settled",
    Purpose.EXPLANATION: "one per output that fails, or passes when it should not",
    Purpose.VERDICT: "one per output that makes claims",
    Purpose.EMBEDDING: "of generated questions, where they differ",
}


async def plan_run(
    prepared: PreparedRun, cache: ResponseCache | None, resumed: ResumedRun | None = None
) -> RunPlan:
    """Return what running `prepared` would request, without sending anything. Cached answers are counted separately.

    With `resumed`, only the cases that this run lacks are counted. Goes through all tests once without keeping them,
    and runs no code that the config names.

    Raises:
        ConfigError: the tests can no longer be read as they were checked.
        StoreError: the cache cannot be read.
    """
    queues, since = prepared.plan.queues, None
    if resumed is not None:
        queues = tuple(resumed.done.missing(queue) for queue in queues)
    if not prepared.reads_cache:
        # Answers received by the run itself count.
        cache, since = (None, None) if resumed is None else (cache, resumed.started_s)
    if cache is not None and not (await cache.stats()).entries:
        cache = None
    roles = prepared.request.batched_roles
    if resumed is not None and not roles:  # it goes on with its batches
        roles = frozenset(batch.role for batch in resumed.run.batches)
        roles |= {Role.JUDGE} if Role.GENERATION in roles else frozenset()
    has_batches = roles and prepared.reads_cache and cache is not None and not cache.is_read_only
    batches = cache.batches if cache is not None and has_batches and await cache.batches.all() else None
    suite = prepared.suite
    async with aclosing(ProviderPool.of(suite)) as pool:
        dry_run = _DryRun(prepared, pool, cache, since, roles, batches)
        session = Session(pool, dry_run, suite=suite, locked_steps=prepared.locked_steps)
        # Lenient, because no code is run here and the variables that it would add are missing.
        tools = session.tools(suite, prepared.templates.lenient(), prepared.defaults, runs_code=False)
        for _, group in groupby(chain.from_iterable(queues), key=lambda job: job.group):
            await dry_run.add(list(group), tools)
        return RunPlan(dry_run.cases, dry_run.counts, batched=frozenset(dry_run.batched))


class _Judgement(Struct):
    """The judgement being simulated: one assertion on one output, or on all outputs of a row.

    Attributes:
        metric: the metric of a g-eval assertion; None for any other.
        is_after_code: whether the config's code, which is not run here, produces the judged text from a known output.
        condition: the condition for judging it at all; "" for none.
        has_made_up: whether a stand-in has answered for a judge, so that later requests depend on the real answer.
    """

    metric: Metric | None
    is_after_code: bool
    condition: str = ""
    has_made_up: bool = False

    @property
    def form(self) -> Metric | None:
        """Return the metric of a g-eval with a dimension, whose ratings may be explained; else None."""
        return None if self.metric is None or self.metric.dimension is None else self.metric

    def further_samples(self, request: ModelRequest) -> ModelRequest | None:
        """Return the samples that may follow `request` if sampling may stop early; None if there are none."""
        metric = self.metric
        if metric is None or metric.stop_error is None or request.purpose not in _SAMPLES:
            return None
        rest = tuple(range(request.sample_indexes[-1] + 1, metric.samples))
        return replace(request, sample_indexes=rest, purpose=Purpose.FURTHER_SAMPLES) if rest else None

    def assumption(self, request: ModelRequest) -> str:
        """Return the condition for sending `request` at all; "" for none."""
        is_always = self.form is not None and self.form.explain == "always"
        is_made_up = self.has_made_up and not (is_always and request.purpose is Purpose.EXPLANATION)
        if request.purpose is Purpose.EMBEDDING:  # also of the question itself
            is_made_up = str(request.messages[0].content).startswith(_MADE_UP)
        if self.condition:
            return self.condition
        if request.purpose is Purpose.STEPS:
            return ""
        # Ratings of a conversation's answers do not depend on those of earlier answers.
        made_up = _AFTER_STAND_IN.get(request.purpose, "") if is_made_up else ""
        return made_up or (_AFTER_CODE if self.is_after_code else "")

    def stand_in(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """Return an invented answer of a judge if further requests depend on it: steps, claims, the ratings of a form.

        Raises:
            UnjudgeableError: there is no stand-in, so the simulation of the judgement ends.
        """
        probabilities = None
        if request.purpose is Purpose.STEPS:
            return ModelResponse((Choice(_STEPS, "stop"),))
        if request.purpose in {Purpose.CLAIMS, Purpose.QUESTIONS}:
            # Unique answers, as if each output led to something different.
            texts = [f"{_MADE_UP}{key}" for key in choice_keys(provider.identity, request)]
        elif self.form is not None and request.purpose is not Purpose.EXPLANATION:
            # A rating that triggers an explanation, if any does.
            rating = self.form.asked_range[self.form.explain == "passed"]
            metric = self.form
            if not metric.joint:
                rating_text = format_number(rating)
            else:
                lowest = {
                    find_dimension(name).label: int(find_dimension(name).score_range[0])
                    for name in metric.joint
                }
                rating_text = json.dumps(
                    {**lowest, find_dimension(metric.dimension or "").label: int(rating)}
                )
            texts = [rating_text] * len(request.sample_indexes)
            probabilities = (TokenLogprob(texts[0], 0.0),) if self.form.scoring == "logprobs" else None
        else:
            raise UnjudgeableError("nothing is sent")
        self.has_made_up = True
        return ModelResponse(tuple(Choice(text, "stop", token_logprobs=probabilities) for text in texts))


class _DryRun(Struct, eq=False):
    """Simulates one job after another, acting as the gateway to the models.

    Attributes:
        cache: None if there is no cache, or it may not be read.
        since: the Unix time before which cached answers do not count; None for no limit.
        batched_roles: the roles whose requests go into batches.
        batches: the `BatchStore` of submitted requests, which count as cached; None if there are none.
        cases, counts: the counts so far; their size does not depend on the number of tests.
        batched: the kinds of requests that would be sent in batches.
    """

    prepared: PreparedRun
    pool: ProviderPool
    cache: ResponseCache | None
    since: float | None
    batched_roles: frozenset[Role]
    batches: Any
    cases: int = 0
    counts: dict[RequestKind, RequestCounts] = field(default_factory=dict)
    batched: set[RequestKind] = field(default_factory=set)
    _seen: dict[int, int] = field(default_factory=dict)
    _carried: ConversationState = field(default_factory=ConversationState)
    _judgement: _Judgement | None = None
    _unreadable: StoreError | None = None
    _rounds_of: str = ""

    async def add(self, group: Sequence[Job], tools: Tools) -> None:
        """Count the requests of a group of jobs, whose outputs may be compared with one another.

        Raises:
            StoreError: the cache could not be read; the callers in between turn that into a result, which is ignored.
        """
        self.cases += len(group)
        row = [await self._begin(job, tools) for job in group]
        for pending in row:
            for whole in assertions_of(pending.job.prompt, pending.job.test):
                first = whole.tree.asked if isinstance(whole, DecisionTreeAssertion) else None
                for spec in _judged([whole]):
                    if not spec.compares_outputs:
                        is_certain = first is None or spec is first
                        condition = "" if is_certain else _ON_PATH
                        if pending.job.test.user is not None and getattr(spec, "over", None) == "answers":
                            condition = _UNTIL_OVER
                        await self._follow(spec, [pending], tools, condition)
                    elif pending is row[-1]:
                        await self._follow(spec, row, tools)
        if self._unreadable is not None:
            raise self._unreadable

    async def _begin(self, job: Job, tools: Tools) -> PendingResult:
        # Without its assertions: they are simulated one by one, and some would run code or call a webhook.
        bare = replace(job, test=replace(job.test, assertions=()))
        self._judgement = None
        context = JobContext(
            partial(self._generate, job=job),
            tools,
            self._carried,
            stored=self.prepared.stored,
            judge=partial(self._judge_end, job=job),
        )
        return replace(await begin_job(bare, context), job=job)

    async def _judge_end(
        self, spec: Assertion, subject: Subject, tools: Tools, *, job: Job
    ) -> AssertionResult:
        """Judge whether a conversation is over; if only a judge or the config's code could tell, it continues."""
        pending = PendingResult(job, blank_result(job), subject)
        known = None
        if not isinstance(spec, ModelGradedAssertion):
            known = await judge_one(spec, subject, tools)
        for member in _judged([spec]):
            known = await self._follow(member, [pending], tools, _UNTIL_OVER)
        self._judgement = None
        if known is None or known.error is not None:
            return AssertionResult(spec.type, None, Status.FAILED, 0.0)
        return known

    async def _generate(self, spec: ProviderSpec, request: ModelRequest, job: Job) -> ModelResponse:
        provider, assumption = self._provider(spec), ""
        request = replace(request, want_logprobs=wants_logprobs(job.test.assertions))
        if is_made_by_code(job):
            request = replace(request, messages=(*request.messages, *user_message(job.id)))
            assumption = "" if self.cache is None else _AFTER_CODE
        if job.test.user is not None and any(message.role == "assistant" for message in request.messages):
            assumption = _UNTIL_OVER
        found = await self._note(provider, request, assumption)
        if request.tools and (found is None or found.tool_calls):
            self._note_rounds(provider, request, job)
        if found is not None:
            return found
        tokens = min(_most_written(provider, request) or ASSUMED_ANSWER_TOKENS, _LONGEST_STAND_IN)
        # A unique text for each question: equal outputs would have equal judge requests, which are sent once.
        name = choice_keys(provider.identity, request)[0] if provider.is_cacheable else job.id
        return ModelResponse((Choice(f"{name} {'word' * tokens}", "stop"),))

    def _note_rounds(self, provider: Provider, request: ModelRequest, job: Job) -> None:
        """Count the requests that may follow when the model calls tools: at most one round per call."""
        tools = job.test.tools
        if tools is None or self._rounds_of == job.id:  # the limit applies to all turns of a case together
            return
        self._rounds_of = job.id
        asked = [(provider, request, _AFTER_CALLS)]
        if tools.simulator is not None:
            simulated = ModelRequest(user_message(tools.world), role=Role.JUDGE, purpose=Purpose.TOOL_ANSWER)
            asked.append((self._provider(tools.simulator), simulated, _PER_CALL))
        for one, what, assumption in asked:
            counts = request_counts(one, what, is_batched=False, least=0, most=tools.max_calls, cached=0)
            kind = RequestKind(what.role, one.label, what.purpose, assumption)
            self.counts[kind] = self.counts.get(kind, RequestCounts()) + counts

    async def _follow(
        self, spec: ModelGradedAssertion, row: Sequence[PendingResult], tools: Tools, condition: str = ""
    ) -> AssertionResult | None:
        """Count the judge requests of an assertion on an output or a row; return its result if it is cached."""
        columns = row_columns(self.prepared.plan.columns)
        subjects = [
            in_column(_as_judged(spec, item.subject, item), item.job, columns)
            for item in row
            if item.subject is not None
        ]
        if isinstance(spec, CitationCorrectnessAssertion) and not _is_known(row[0], spec):
            condition = condition or _IF_CITED
        metric = None
        is_after_code = any(_is_after_code(item, spec) for item in row)
        if subjects and isinstance(spec, GEvalFields):
            with suppress(GevalError):  # reported when the output is judged
                metric = metric_of(spec, subjects[0].test, tools)
        self._judgement = _Judgement(metric, is_after_code, condition)
        tools = replace(tools, earlier=tuple(result for item in row for result in item.earlier))
        if spec.compares_outputs:
            await compare_outputs(spec, [RowMember(subject) for subject in subjects], tools)
        elif subjects:
            found = await judge_one(spec, subjects[0], tools)
            is_open = found.error is not None or self._judgement.has_made_up
            if is_open and isinstance(spec, NoiseSensitivityAssertion):
                # Claims that the ground truth does not support are compared with the context, too.
                self._judgement = _Judgement(metric, is_after_code, condition or _IF_UNSUPPORTED)
                await judge_one(*by_context(spec, subjects[0]), tools)
            return None if is_open and self._judgement.has_made_up else found
        return None

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """Count a judge request, and answer it from the cache or with a stand-in.

        Raises:
            UnjudgeableError: neither is possible, or no judgement is being simulated.
        """
        followed = self._judgement
        if followed is None:
            raise UnjudgeableError("the judges are called once the job is done")
        found = None
        if not (followed.has_made_up and request.purpose is Purpose.FURTHER_SAMPLES):
            # Already counted with the previous samples.
            found = await self._note(provider, request, followed.assumption(request))
            further = None if found else followed.further_samples(request)
            if further is not None:
                await self._note(provider, further, _AFTER_STAND_IN[Purpose.FURTHER_SAMPLES])
        return found if found and not followed.has_made_up else followed.stand_in(provider, request)

    async def forget(self, provider: Provider, request: ModelRequest) -> None:
        """Do nothing: a dry run leaves the cache unchanged."""

    async def has_kept(self, provider: Provider, request: ModelRequest) -> bool:
        request = with_media_for(provider, request)
        keys = choice_keys(provider.identity, request)
        return provider.is_cacheable and len(await self._known(keys)) == len(keys)

    async def _note(self, provider: Provider, request: ModelRequest, assumption: str) -> ModelResponse | None:
        """Count the answers to `request`; return the cached ones if all of them are in the cache, else None.

        `assumption` is the condition for sending the request at all; "" for none.
        """
        request = with_media_for(provider, request)
        keys = choice_keys(provider.identity, request)
        known = await self._known(keys) if provider.is_cacheable else {}
        seen = 0
        if provider.is_cacheable or request.role is Role.JUDGE:
            # Equal requests are sent once. Part of the key identifies them and takes little memory.
            question = int(keys[0][:16], 16)
            seen = self._seen.get(question, 0)
            self._seen[question] = max(seen, len(keys))
        is_new = seen < len(keys)
        missing = [position for position, key in enumerate(keys) if key not in known] if is_new else []
        # Steps are never sent in a batch.
        is_wanted = request.role in self.batched_roles
        is_batched = is_wanted and request.purpose is not Purpose.STEPS and batch_api(provider) is not None
        if (
            is_batched
            and missing
            and self.batches is not None
            and await self.batches.is_known(keys[missing[0]])
        ):
            missing = []
        counts = request_counts(
            provider,
            request,
            is_batched=is_batched,
            least=0 if assumption else sum(position >= seen for position in missing),
            most=len(missing),
            cached=len(keys) - len(missing) if is_new else 0,
        )
        kind = RequestKind(request.role, provider.label, request.purpose, assumption if missing else "")
        self.counts[kind] = self.counts.get(kind, RequestCounts()) + counts
        if is_batched:
            self.batched.add(kind)
        if len(known) < len(keys):
            return None
        samples = zip(request.sample_indexes, (known[key] for key in keys), strict=True)
        return recalled(dict(samples), new=len(keys))

    async def _known(self, keys: Sequence[str]) -> Mapping[str, StoredChoice]:
        try:
            return {} if self.cache is None else await self.cache.get_many(keys, since=self.since)
        except StoreError as error:
            self._unreadable = error
            raise

    def _provider(self, spec: ProviderSpec) -> Provider:
        return self.pool.get(self.prepared.suite.resolved(spec))


def request_counts(
    provider: Provider,
    request: ModelRequest,
    *,
    least: int = 1,
    most: int = 1,
    cached: int = 0,
    is_batched: bool = False,
) -> RequestCounts:
    """Return the counts for a number of answers; at best, one request reads the prompt once for all of them."""
    price = known_price(provider, is_batched=is_batched)
    read = -(-(request.characters + _set_characters(provider, request)) // _CHARACTERS_PER_TOKEN)
    written = _most_written(provider, request) if most else 0
    each_usd = _usd(price, read, written)
    return RequestCounts(
        least=least,
        most=most,
        cached=cached,
        input_least=read if least else 0,
        input_most=most * read,
        output_most=None if written is None else most * written,
        cost_least_usd=_usd(price, read if least else 0, 0) if most else 0.0,
        cost_most_usd=0.0 if not most else None if each_usd is None else most * each_usd,
    )


@lru_cache(maxsize=1024)  # a list price is computed from a large table
def _usd(price: Price | None, read: int, written: int | None) -> float | None:
    """Return the cost of a number of tokens; None if it is unknown, as without a limit on the output."""
    tokens = None if written is None else TokenUsage(read, written)
    return None if price is None else price.cost_usd(tokens)


def _set_characters(provider: Provider, request: ModelRequest) -> int:
    """Return the length of what is sent beside the messages: instructions and tools."""
    params = {**provider.identity.params, **request.params}
    values = [params[name] for name in _READ_SETTINGS if params.get(name)]
    tools = [(tool.name, tool.description, tool.parameters) for tool in request.tools]
    return sum(len(value if isinstance(value, str) else encode_json(value)) for value in (*values, *tools))


def _most_written(provider: Provider, request: ModelRequest) -> int | None:
    """Return the maximum output tokens of one answer, if there is a limit; vectors have none."""
    if request.purpose is Purpose.EMBEDDING:
        return 0
    limit = token_limit({**provider.identity.params, **request.params})
    return DEFAULT_MAX_TOKENS if limit is None and provider.identity.kind == "anthropic" else limit


def _judged(specs: Iterable[Assertion]) -> Iterator[ModelGradedAssertion]:
    """Return the assertions that need a judge, including members of sets."""
    return (spec for spec in each_assertion(specs) if isinstance(spec, ModelGradedAssertion))


def _is_after_code(pending: PendingResult, spec: Assertion) -> bool:
    """Return whether the config's code, which is not run here, produces the judged text from a known output."""
    job = pending.job
    is_known = not job.generates or pending.result.cached
    return is_known and any((*output_code(job.provider, job.test), *assertion_code(spec)))


def _is_known(pending: PendingResult, spec: Assertion) -> bool:
    """Return whether the text that `spec` judges is known: given or in the cache, and not changed by code."""
    is_given = not pending.job.generates or pending.result.cached
    return is_given and not _is_after_code(pending, spec)


def _as_judged(spec: Assertion, subject: Subject, pending: PendingResult) -> Subject:
    """Return the subject with stand-ins for a context that code would extract, and for citations in unknown outputs."""
    if isinstance(spec, ContextAssertion) and spec.context_transform is not None:
        context: JsonValue = f"{pending.job.id} {'word' * ASSUMED_ANSWER_TOKENS}"
        subject = replace(subject, test=replace(subject.test, vars={**subject.test.vars, "context": context}))
    if isinstance(spec, CitationCorrectnessAssertion) and not _is_known(pending, spec):
        return replace(subject, output=f"{subject.text} [1].")
    return subject


def planned_power(prepared: PreparedRun, runs: RunStore) -> tuple[PowerPlan, ...]:
    """Return the drops that a run can detect in the pass rate and in its gates' metrics; empty without an earlier run.

    Raises:
        StoreError: the stored runs cannot be read.
    """
    stored = runs.of_config(config_file(prepared.suite.path), "")
    earlier = [item.run for item in stored if item.run.status in _ENDED and item.run.judged_from is None]
    if not earlier:
        return ()
    gates, _ = gates_of(prepared.request, prepared.suite)
    metrics = dict.fromkeys(gate.metric for gate in gates)
    report = load_report(runs, earlier[0].id)
    figures = _figures(report.results(), (None, *(name for name in metrics if name is not None)))
    return tuple(
        item
        for metric, mean in figures.items()
        if (item := _power(metric, mean, prepared.tests, report.run.id)) is not None
    )


def _figures(results: Iterable[CaseResult], metrics: Iterable[str | None]) -> dict[str | None, ClusteredMean]:
    """Return the mean of each metric over tests; under None, the pass rate."""
    figures = {metric: ClusteredMean() for metric in metrics}
    for result in results:
        for metric, mean in figures.items():
            for value in _values(result, metric):
                mean.add(result.test_index, value)
    return figures


def _values(result: CaseResult, metric: str | None) -> Iterator[float]:
    if metric is not None:
        if metric in result.named_scores:
            yield result.named_scores[metric]
    elif result.status in {Status.PASSED, Status.FAILED}:
        yield float(result.status is Status.PASSED)


def _power(metric: str | None, mean: ClusteredMean, tests: int, run_id: str) -> PowerPlan | None:
    centre = mean.mean
    error = mean.standard_error()
    known = mean.clusters
    if centre is None or error is None or known < _LEAST_KNOWN or not 0 <= centre <= 1:
        return None
    # If all tests had the same result, they do not show the spread that there would be after a drop.
    dropped = max(0.0, centre - DROP)
    spread = error * math.sqrt(known) or math.sqrt(dropped * (1 - dropped))
    if not spread:
        return None

    def detects(count: int) -> float:
        return detectable_quantile(count - 1) * spread / math.sqrt(count)

    most = _LEAST_TESTS
    while detects(most) > DROP:
        most *= 2
    needed = _LEAST_TESTS + bisect_left(range(_LEAST_TESTS, most), -DROP, key=lambda count: -detects(count))
    shown = detects(tests) if tests >= _LEAST_TESTS else math.inf
    return PowerPlan(metric, DROP, needed, tests, None if shown > 1 else shown, run_id)
