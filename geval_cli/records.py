"""Frozen records that flow through a run, and their one JSON form, written and read.

The field names of `RunRecord`, `RunSummary` and `CaseResult` are the JSON keys of `-o results.json`, of the store and
of the HTTP API. Nothing here computes; nothing here knows a file format beyond JSON.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

SCHEMA_VERSION = 1

JsonValue = Any
"""A str, number, bool or None, or lists and str-keyed mappings of these."""


class Status(StrEnum):
    """Four outcomes, kept apart everywhere. `failed` was judged and did not pass; `error` could not be judged."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    NOT_EVALUATED = "not_evaluated"


class RunStatus(StrEnum):
    """The state of a run. `aborted`: a budget or a fatal problem stopped it."""

    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"


class Role(StrEnum):
    """On whose behalf a model is called; usage is reported by it."""

    GENERATION = "generation"
    JUDGE = "judge"
    USER = "user"


class Purpose(StrEnum):
    """Purposes of a request to a model, in the order in which a plan shows them."""

    ANSWER = "answers"
    TOOL_ANSWER = "tool answers"
    USER_TURN = "user turns"
    STEPS = "steps"
    RATING = "ratings"
    SAMPLES = "samples"
    FALLBACK_SAMPLES = "fallback samples"
    FURTHER_SAMPLES = "further samples"
    RETRY = "retries"
    EXPLANATION = "explanations"
    CLAIMS = "claims"
    QUESTIONS = "questions"
    VERDICT = "verdicts"
    CHOICE = "choices"
    EMBEDDING = "embeddings"
    TEACHING = "teacher calls"
    WRITING = "generated tests"


class Message(Struct, frozen=True):
    """One chat message. `content` is text, or the list of parts that chat APIs take.

    `further` are the other keys of the message, as chat APIs write them: name, tool_calls, tool_call_id, ...
    """

    role: str
    content: JsonValue
    further: Mapping[str, JsonValue] = field(default_factory=dict)


class Turn(Struct, frozen=True):
    """One turn of a conversation.

    Attributes:
        role: user, assistant, system, developer or tool.
        content: what was said; empty where an assistant only calls tools.
        tool_calls: the tools that an assistant calls, as the test or the API wrote them.
        tool_call_id: which of them a tool answers.
    """

    role: str
    content: str = ""
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    tool_call_id: str | None = None


class TraceStep(Struct, frozen=True):
    """One step of an agent.

    Attributes:
        type: tool, llm or step.
        args: what it was called with; None where that is not known.
        output: what came back.
        error: why it failed; None when it did not.
        ms: how long it took.
    """

    type: str
    name: str
    args: JsonValue = None
    output: JsonValue = None
    error: str | None = None
    ms: float | None = None


class ToolDefinition(Struct, frozen=True):
    """A tool as a model is told of it; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


class SentMedia(Protocol):
    """An image or a recording that a request holds, by its hash (`geval_cli.source.media.Media`)."""

    @property
    def sha256(self) -> str: ...

    @property
    def media_type(self) -> str: ...

    @property
    def characters(self) -> int: ...

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            GevalError: they are not to be had any more.
        """
        ...


class ModelRequest(Struct, frozen=True):
    """One question to a model, for as many choices as there are `sample_indexes`.

    Attributes:
        messages: the conversation.
        params: wire parameters of this request (temperature, max_tokens, ...); they win over the provider's config.
            None leaves a parameter out, also one that the provider's config sets.
        added: those of `params` that no one wrote: a server that refuses one is asked without it. Of a judge's request
            all are such.
        sample_indexes: which samples of this very request are wanted; part of each choice's cache identity.
        repeat_index: which repeat of the run asks; part of the cache identity too.
        want_logprobs: ask for token log-probabilities with as many alternatives as the server gives (at most 20).
        response_schema: a JSON Schema that shapes the answer where the provider can; a wish, not a promise.
        ratings: the answer should be one of these texts and nothing else; only providers that can hold their model to
            it use them.
        variables: the test's, for providers that hand them on to the user's own application; a model never sees them.
        text: the whole prompt as one text, for providers that take one; None where the messages say it all.
        origin: what programs that promptfoo's configs name see of where the request comes from, besides the variables.
        purpose: what the answer is for, as whoever asks knows it. Neither the model nor the cache learns of it.
        media: the images and recordings of which the messages have the hashes, which alone go into cache keys.
        tools: what the model may call, beside the tools that the provider's config has in its API's own form.
    """

    messages: tuple[Message, ...]
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    sample_indexes: tuple[int, ...] = (0,)
    repeat_index: int = 0
    want_logprobs: bool = False
    response_schema: Mapping[str, JsonValue] | None = None
    ratings: tuple[str, ...] = ()
    role: Role = Role.GENERATION
    variables: Mapping[str, JsonValue] = field(default_factory=dict)
    text: str | None = None
    origin: Mapping[str, JsonValue] = field(default_factory=dict)
    purpose: Purpose = Purpose.ANSWER
    media: tuple[SentMedia, ...] = ()
    added: frozenset[str] = frozenset()
    tools: tuple[ToolDefinition, ...] = ()

    @property
    def characters(self) -> int:
        """The length of all messages together, of which tokens and cost are estimated; an image counts as a page."""
        texts = sum(len(str(message.content)) for message in self.messages)
        return texts + sum(item.characters for item in self.media)


CHARACTERS_PER_IMAGE = 4_000
"""About a thousand tokens, as vendors count an image of medium size."""

CHARACTERS_PER_SECOND = 128
"""About 32 tokens, as Google counts a second of audio; OpenAI counts a third of it."""


class TokenAlternative(Struct, frozen=True):
    """A token that could have been in a place, with its natural-log probability."""

    text: str
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """The token that was chosen in one place, and the alternatives that the server reported (chosen one included)."""

    text: str
    logprob: float
    alternatives: tuple[TokenAlternative, ...] = ()


class Choice(Struct, frozen=True):
    """One answer. `token_logprobs` is None when the server gave none.

    `is_data`: a program or an HTTP API answered with data, and `text` is its JSON. `reported`: what a program gave
    beside its `output`, as it wrote it: metadata, raw, guardrails, sessionId, ...

    `tool_calls`: the tools that the model calls, in the form of the chat API whatever API it is; those with another
    `type` than `function` and `custom` ran at the vendor. Where the model only calls tools, `text` is the JSON of the
    calls, as the API wrote them.

    `message`: the answer as the API wants it back when its calls are answered, thoughts and their signatures unchanged;
    None for a request without `tools`.
    """

    text: str
    finish_reason: str | None = None
    token_logprobs: tuple[TokenLogprob, ...] | None = None
    is_data: bool = False
    reported: Mapping[str, JsonValue] = field(default_factory=dict)
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    message: Message | None = None


class Usage(Struct, frozen=True):
    """Tokens and cost of calls. `cost_usd` is None when a price is unknown, never 0 for that reason.

    `requests` counts answers that were bought or came from the cache, `cached_requests` those of them that the cache
    gave, and `batched_requests` those that came with a provider's batch; tokens are of the requests that were really
    sent. An answer that several calls of one run share counts once,
    where it was paid for or read from the cache.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_requests: int = 0
    cost_usd: float | None = 0.0
    batched_requests: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        unknown = self.cost_usd is None or other.cost_usd is None
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_requests + other.cached_requests,
            None if unknown else (self.cost_usd or 0.0) + (other.cost_usd or 0.0),
            self.batched_requests + other.batched_requests,
        )


class ModelResponse(Struct, frozen=True):
    """The choices for one `ModelRequest`, in the order of its `sample_indexes`.

    Attributes:
        choices: may be fewer than asked for when single samples were lost after retries; never empty.
        latency_ms: from sending to the last byte, of the request that took longest; as stored, for a cached answer.
            None where one came in a batch.
        cached: every choice came without a request of its own, from the cache or from another call.
        shared: every choice was bought for, or read from the cache by, another call of the same run.
        dropped: parameters that the server would not take and that were left out (for example "logprobs").
        sample_indexes: which sample each choice is, in the same order; the gateway fills it in (a provider leaves it
            empty: its choices are the first ones of the request's `sample_indexes`).
        bought_usd: for a cached answer, what it cost when it was sent for; None when that is unknown.
        model: as the answer names it, often more exactly than the request does.
        fingerprint: what the vendor calls the state of its servers (`system_fingerprint`); None where it does not.
        between: what was said before this answer in the same exchange: answers that called tools, and the results, each
            as a turn and as the API wants it back.
        retold: the part of `usage` that was told of before, to a case that was given up since other answers of it were
            to come with a batch.
        request_id: by which the vendor finds the request: of a header, else `response_id`.
        response_id: what the API calls its answer.
        cache_read_tokens, cache_write_tokens: which part of the input came from the vendor's prompt cache, or was put
            there.
        exhausted_s: how long the server has nothing left for its callers, by its own account; 0 when it has.
        lost: how many choices came that are no answers, such as those that a filter took away.
    """

    choices: tuple[Choice, ...]
    usage: Usage = Usage()
    latency_ms: float | None = 0.0
    cached: bool = False
    dropped: tuple[str, ...] = ()
    model: str | None = None
    fingerprint: str | None = None
    request_id: str | None = None
    response_id: str | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    sample_indexes: tuple[int, ...] = ()
    exhausted_s: float = 0.0
    lost: int = 0
    bought_usd: float | None = None
    shared: bool = False
    retold: Usage = Usage()
    between: tuple[tuple[Turn, Message], ...] = ()

    @property
    def cost_usd_generated(self) -> float | None:
        """Return what the answer cost when it was generated, whoever paid for it; None when that is unknown."""
        return self.bought_usd if self.cached or self.bought_usd is not None else self.usage.cost_usd

    @property
    def is_from_cache(self) -> bool:
        """Return whether the run has not bought it."""
        return self.cached and not self.shared

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tool_calls(self) -> tuple[Mapping[str, JsonValue], ...]:
        return self.choices[0].tool_calls


INTERNAL_ERROR = "InternalError"
"""The error type of a result that a bug in geval spoilt; such a run ends with exit code 4."""


class ErrorInfo(Struct, frozen=True):
    """An error as a value: `type` is the exception's name, `raw` an excerpt of what came back instead of an answer.

    For a bug in geval, `raw` is the end of the traceback.
    """

    type: str
    message: str
    hint: str = ""
    raw: str | None = None

    @property
    def is_bug(self) -> bool:
        """Return whether geval itself broke, and not the model, the judge or the config."""
        return self.type == INTERNAL_ERROR


class AssertionResult(Struct, frozen=True):
    """The result of one assertion for one output. `score` is 0..1, or None when there was nothing to score."""

    type: str
    metric: str | None
    status: Status
    score: float | None
    threshold: float | None = None
    threshold_is_default: bool = False
    weight: float = 1.0
    reason: str | None = None
    error: ErrorInfo | None = None
    location: str | None = None
    latency_ms: float | None = 0.0
    usage: Usage = Usage()
    detail: Mapping[str, JsonValue] = field(default_factory=dict)
    assertions: tuple["AssertionResult", ...] = ()


class RenderedPrompt(Struct, frozen=True):
    """The prompt of one case. `rendered` is the text, or for chat prompts the messages as JSON text."""

    id: str
    label: str
    rendered: str


class ProviderRef(Struct, frozen=True):
    """Which provider answered."""

    id: str
    label: str


class AskedTest(Struct, frozen=True):
    """The texts of a test that a judge may compare an output with, once for all of its results.

    Attributes:
        index: `test_index` of its results.
        images, audio: the name and the SHA-256 hash of each.
    """

    index: int
    input: str | None = None
    expected_output: str | None = None
    context: str | tuple[str, ...] | None = None
    retrieval_context: str | tuple[str, ...] | None = None
    scenario: str | None = None
    expected_outcome: str | None = None
    role: str | None = None
    images: tuple[tuple[str, str], ...] = ()
    audio: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether the test brings nothing but its description, variables and turns."""
        return not any(getattr(self, name) not in (None, ()) for name in self.__struct_fields__[1:])

    @property
    def texts(self) -> dict[str, str]:
        """Return the texts by their names, a list of texts as one, each on lines of its own."""
        found = {}
        for name in TEST_TEXTS:
            value = getattr(self, name)
            if value is not None:
                found[name] = value if isinstance(value, str) else "\n".join(value)
        return found


TEST_TEXTS = (
    *("input", "expected_output", "context", "retrieval_context"),
    *("scenario", "expected_outcome", "role"),
)
"""The fields of a test that hold text, in the order in which they are shown: in configs, merged tests and results."""


class CaseResult(Struct, frozen=True):
    """The outcome of one job: prompt x provider x test case x repeat.

    Attributes:
        column: numbers the prompt x provider pairs.
        latency_ms: of the model's answer when it was generated, also where the cache had it; None where it came with a
            batch.
        cost_usd_generated: what the answer cost when it was generated, while `usage` has what this run paid; None when
            it is unknown.
        finish_reason: why the model ended its answer (`stop`, `length`, `content_filter`, ...); None when it did not
            say, or was not asked.
        tool_calls: the tools that the model calls in its answer, in the form of the chat API.
        turns: of a conversation, with every answer in it; `output` is the last. Empty for a test without turns.
        trace: the steps of the agent that led to the output, as far as they are known.
        reported: what a program gave beside its output (metadata, raw, guardrails, sessionId, ...); `metadata` is the
            test's own.
        test_key: a hash of what the test says, equal in all runs that have it (`engine.plan`); None in results
            of other programs.
        ended_by: how a simulated user ended the conversation: goal, gave_up or limit; absent elsewhere.
        test: what the test brings beside its variables; one object for all results of the test, and written once.
    """

    id: str
    test_index: int
    repeat_index: int
    column: int
    description: str | None
    prompt: RenderedPrompt
    provider: ProviderRef
    vars: Mapping[str, JsonValue]
    output: JsonValue
    status: Status
    score: float | None
    named_scores: Mapping[str, float] = field(default_factory=dict)
    error: ErrorInfo | None = None
    latency_ms: float | None = 0.0
    cached: bool = False
    usage: Mapping[Role, Usage] = field(default_factory=dict)
    assertions: tuple[AssertionResult, ...] = ()
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    finish_reason: str | None = None
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    turns: tuple[Turn, ...] = ()
    trace: tuple[TraceStep, ...] = ()
    test_key: str | None = None
    reported: Mapping[str, JsonValue] = field(default_factory=dict)
    cost_usd_generated: float | None = 0.0
    ended_by: str | UnsetType = UNSET
    test: AskedTest | UnsetType = UNSET

    @property
    def asked(self) -> AskedTest | None:
        """Return `test`; None where it brings nothing beside its variables."""
        return self.test or None


class Column(Struct, frozen=True):
    """One prompt x provider pair, a column of the table. `index` counts provider by provider, prompts within."""

    index: int
    prompt_label: str
    provider_label: str


SHORT_COMMIT = 9
"""So many characters of a commit's hash are shown."""


class GitState(Struct, frozen=True):
    """The commit that a run was made from.

    Attributes:
        commit: its hash; None before the first one.
        branch: None on a detached HEAD.
        dirty: whether tracked files differed from it; None when that is unknown.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


class WorkerRecord(Struct, frozen=True):
    """The work of one of the processes of a run.

    Attributes:
        name: within the run, such as `worker 1`.
        host: the machine.
        cases: results that came from it.
        requests: that it sent, repetitions among them; of a shard that was lost with it, none is counted.
        lost: how often the process ended before its work did.
    """

    name: str
    host: str
    cases: int = 0
    requests: int = 0
    lost: int = 0


class RunBatch(Struct, frozen=True):
    """A batch of a run's requests at a provider. Times are ISO 8601 in UTC.

    Attributes:
        remote_id: the provider's name of it; None before it has one.
        state: intent, uploaded or submitted while answers may come; completed, expired, cancelled or failed.
        failed: how many of its requests were answered by an error.
    """

    id: str
    remote_id: str | None
    provider_id: str
    role: Role
    state: str
    requests: int
    answered: int
    failed: int
    created_at: str
    ended_at: str | None


NO_ERRORS_NOTE = "--max-errors N allows some"
"""The note of the gate `errors <= 0`, which geval adds to gates of which none is about errors."""

STOPPED = "the run stopped early: "
"""Begins a warning that is true only until the run is resumed."""


class RunRecord(Struct, frozen=True):
    """One execution of one config. Times are ISO 8601 in UTC; `config` is the snapshot before env values go in.

    Attributes:
        columns: of the table, in the order of their index.
        warnings: what the user should know about the run, each once.
        prompt_version: of the judges' prompts; results of different versions cannot be compared.
        description: of the suite, as its config has it.
        judges: who judged, by their titles.
        tags: what the user said about the run, for finding it again.
        git: the commit in which its config lies; None outside a repository.
        judged_from: the run whose outputs were judged again; None for a run that asked for its own.
        workers: the processes that did its cases; empty when that was the one that shows it.
        title: the name that somebody gave the run afterwards; None without one.
        batches: those whose answers it used or waits for, oldest first.
        anchors: how its judges rated outputs of an earlier run once more before it began; None where none were to be.
    """

    id: str
    status: RunStatus
    started_at: str
    finished_at: str | None
    duration_ms: float | None
    tool_version: str
    config_path: str
    config_digest: str
    config: JsonValue
    columns: tuple[Column, ...] = ()
    warnings: tuple[str, ...] = ()
    prompt_version: str = ""
    description: str | None = None
    judges: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    git: GitState | None = None
    judged_from: str | None = None
    workers: tuple[WorkerRecord, ...] = ()
    title: str | None = None
    batches: tuple[RunBatch, ...] = ()
    anchors: JsonValue = None


class MetricSummary(Struct, frozen=True):
    """A metric over all cases: `mean` of the `n` scored ones (None when none was), `errored` beside it.

    `interval`: the lower and upper bound of the mean's 95 % interval; None of fewer than two scores.
    """

    mean: float | None
    n: int
    errored: int
    interval: tuple[float, float] | None = None

    @property
    def is_half(self) -> bool:
        """Return whether the mean is a half, which that of comparisons of all columns with each other always is."""
        return self.mean is not None and abs(self.mean - 0.5) < 1e-9  # noqa: PLR2004


class GateResult(Struct, frozen=True):
    """The result of a gate: `failed` it did not hold, `error` nothing could be counted for it.

    Attributes:
        gate: as written in the config or on the command line.
        actual: what was compared with the gate's limit, in the limit's unit; shares are 0..1.
        note: how sure that is, or why there is nothing.
    """

    gate: str
    status: Status
    actual: float | None
    note: str = ""


class FlakyTest(Struct, frozen=True):
    """A test that passed in some of its repeats and failed in others, in one column.

    Attributes:
        judged: repeats with a verdict; `passed` of them passed.
        mean: of the scores, with their sample standard `deviation`; None of no scores, and of fewer than two.
    """

    test_index: int
    column: int
    description: str | None
    passed: int
    judged: int
    mean: float | None
    deviation: float | None


class Stat(Struct, frozen=True):
    """An estimate: `value` of `n` cases of `clusters` tests, with the bounds of its 95 % interval.

    `value` is None of nothing, `interval` of fewer than two tests.
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    clusters: int = 0


class MetricStat(Stat, frozen=True):
    """The mean of a metric in one column; `errored` assertions of it could not be judged and are not in it."""

    errored: int = 0


class Delta(Stat, frozen=True):
    """The mean of paired differences: a column's value minus the baseline's, `n` pairs of `clusters` tests.

    Attributes:
        se: standard error of `value`; None of fewer than two tests.
        p: two-sided p-value of "no difference"; None of fewer than two tests.
        p_adjusted: the same, corrected (Holm) for all differences that are shown.
        mde: the smallest true difference that so many tests show with a chance of 80 %; it allows for the correction.
            None where it would be above 1, and where fewer than four tests differ, whose spread tells nothing.
        needed_tests: so many tests in all would decide with a chance of 80 %; it allows for the correction. Of two
            columns, were the true difference `value`, of two runs, were it the one of `--detect`. None as for `mde`.
        differing: tests with a difference that is not 0.
        family: among how many differences the 5 % are divided for this one.
        least_tests: fewer tests than these cannot decide among so many differences; None where there are as many.
        margin: the largest difference that does not matter, from `margin` of the config; None without one.
        margin_interval: the 90 % interval that is held against it.
    """

    se: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    mde: float | None = None
    needed_tests: int | None = None
    differing: int = 0
    family: int = 1
    least_tests: int | None = None
    margin: float | None = None
    margin_interval: tuple[float, float] | None = None


class Difference(Struct, frozen=True):
    """A paired difference and its verdict: `better`, `worse`, `undecided`, `equivalent` or `identical`.

    Attributes:
        verdict: None of fewer than two tests.
        same_as: the row (`pass_rate`, or a metric) that has the same figures in every test, and with which this one is
            counted and shown as one.
    """

    delta: Delta
    verdict: str | None
    same_as: str | None = None


class ColumnComparison(Struct, frozen=True):
    """A column compared with the one labelled `baseline`, test by test; None and no entry where no test is in both."""

    baseline: str
    pass_rate: Difference | None = None
    metrics: Mapping[str, Difference] = field(default_factory=dict)


class Latency(Struct, frozen=True):
    """Milliseconds from the prompt to the whole answer; None where no answer was timed."""

    median: float | None = None
    p95: float | None = None


class ColumnSummary(Struct, frozen=True):
    """The figures of one prompt x provider pair.

    Attributes:
        label: tells it from the other columns of the run.
        pass_rate: of the cases that were judged; `errored` and `not_evaluated` are not in it.
        pass_rate_at_least: what it would be if every error had been a failure; None where nothing was judged.
        metrics: means; the repeats of a test are averaged first.
        cost_usd: what this run paid for its answers, judges not counted; None when a price is unknown.
        cost_usd_generated: what they cost when they were generated, those from the cache included.
        latency_ms: of its answers when they were generated, those from the cache included.
        usage: by role, as in the summary of the run.
        pass_at_k: by k, the chance that at least one of k repeats passes; empty without repeats.
        pass_hat_k: by k, the chance that all of k repeats pass.
        vs_first: None for the baseline itself, which is the first column unless the config names another.
    """

    prompt: str
    provider: str
    label: str
    passed: int = 0
    failed: int = 0
    errored: int = 0
    not_evaluated: int = 0
    pass_rate: Stat = Stat()
    metrics: Mapping[str, MetricStat] = field(default_factory=dict)
    cost_usd: float | None = 0.0
    latency_ms: Latency = Latency()
    usage: Mapping[str, Usage] = field(default_factory=dict)
    pass_at_k: Mapping[str, Stat] = field(default_factory=dict)
    pass_hat_k: Mapping[str, Stat] = field(default_factory=dict)
    vs_first: ColumnComparison | None = None
    cost_usd_generated: float | None = 0.0
    pass_rate_at_least: float | None = None


class RankedColumn(Struct, frozen=True):
    """A column in the ranking of a metric that outputs were compared by.

    Attributes:
        label: of the column, or `expected_output`.
        rating: Bradley-Terry, on the scale of chess, with mean 1500; None where comparisons do not connect all columns.
        low: bounds of its 95 % interval, with `high`; None of fewer than five tests, and where all went alike.
        wins: pairs won in both orders; `losses` likewise. `ties` are all others.
    """

    label: str
    rating: float | None
    low: float | None
    high: float | None
    wins: int
    ties: int
    losses: int


class SequentialDecision(Struct, frozen=True):
    """The finding about one gate, or about one column beside another, when a run stopped early.

    Attributes:
        subject: the gate as written, or the label of the column.
        outcome: holds or fails of a gate, better or worse of a column; undecided.
        mean: over the tests that counted, in the unit of the gate's limit; None of none.
        interval: what the mean may truly be, valid at every look at once with `EarlyStop.alpha` divided by the number
            of decisions.
        n: tests that counted.
    """

    subject: str
    outcome: str
    mean: float | None
    interval: tuple[float, float] | None
    n: int


class EarlyStop(Struct, frozen=True):
    """A run that stopped since it was decided, after `after` of `tests` tests in the order in which they were drawn.

    Attributes:
        alpha: the chance that any of the decisions is wrong.
        not_asked: cases that have no answer for that reason; `saved_requests` is about what they would have taken.
    """

    after: int
    tests: int
    alpha: float
    decisions: tuple[SequentialDecision, ...]
    not_asked: int
    saved_requests: int


class RunSummary(Struct, frozen=True):
    """The counts of a run. `pass_rate` = passed / (passed + failed), None when nothing was judged.

    `pass_interval`: the lower and upper bound of the pass rate's 95 % interval; None of fewer than two tests.
    `pass_rate_at_least`: the pass rate if every error had been a failure; None like the rate.
    `gates`: conditions on the whole run; where there are any, they decide the exit code. `flaky`: the first of the
    `flaky_count` tests that both passed and failed when they were repeated. `derived`: the derived metrics of the
    config over all cases, None where one cannot be computed; `derived_by_column`: the same for the cases of each
    column, in the order of the columns. `columns`: the figures of each column, in their order; empty while the run goes
    on. `baseline`: the comparison with the run that was named for it, as `geval compare --json` has it; None without
    one. `rankings`: for each metric of comparisons in pairs, the columns from the best on. `order_consistency`: the
    share of its pairs of which the judge said the same in both orders, None where it was asked about none.
    `early_stop`: how it was decided before all tests had run; None where all of them have. Intervals and p-values
    elsewhere in the summary are for runs of a fixed size, and do not hold for one that stopped early.
    """

    total: int = 0
    passed: int = 0
    failed: int = 0
    errored: int = 0
    not_evaluated: int = 0
    pass_rate: float | None = None
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    usage: Mapping[Role, Usage] = field(default_factory=dict)
    pass_interval: tuple[float, float] | None = None
    gates: tuple[GateResult, ...] = ()
    flaky: tuple[FlakyTest, ...] = ()
    flaky_count: int = 0
    derived: Mapping[str, float | None] = field(default_factory=dict)
    derived_by_column: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    columns: tuple[ColumnSummary, ...] = ()
    baseline: JsonValue = None
    rankings: Mapping[str, tuple[RankedColumn, ...]] = field(default_factory=dict)
    order_consistency: Mapping[str, float | None] = field(default_factory=dict)
    early_stop: EarlyStop | None = None
    pass_rate_at_least: float | None = None


def to_json(value: Any) -> JsonValue:
    """Return the JSON form of any record: field names become keys, tuples lists, enums their text."""
    if type(value) in _PLAIN:  # asked once more below, where it saves most of the calls
        return value
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [item if type(item) in _PLAIN else to_json(item) for item in value]
    if isinstance(value, Struct):
        return {
            name: item if type(item) in _PLAIN else to_json(item)
            for name in value.__struct_fields__
            if (item := getattr(value, name)) is not UNSET
        }
    if isinstance(value, dict | Mapping):
        return {str(key): item if type(item) in _PLAIN else to_json(item) for key, item in value.items()}
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


T = TypeVar("T")


def case_result_from_json(data: Mapping[str, JsonValue]) -> CaseResult:
    """Return a `CaseResult` from what `to_json` made of it, in this geval or in another one.

    Keys and roles that this geval does not know are passed over.

    Raises:
        ValueError: a key is missing that this geval needs, or what is there is of the wrong kind.
    """
    return _record(data, CaseResult)


def asked_test_from_json(data: Mapping[str, JsonValue]) -> AskedTest:
    """Return an `AskedTest` from what `to_json` made of it; as `case_result_from_json`."""
    return _record(data, AskedTest)


def run_record_from_json(data: Mapping[str, JsonValue]) -> RunRecord:
    """Return a `RunRecord` from what `to_json` made of it; as `case_result_from_json`."""
    return _record(data, RunRecord)


def run_summary_from_json(data: Mapping[str, JsonValue]) -> RunSummary:
    """Return a `RunSummary` from what `to_json` made of it; as `case_result_from_json`."""
    return _record(data, RunSummary)


def usage_by_role_from_json(data: Mapping[str, JsonValue]) -> dict[Role, Usage]:
    """Usage by role from what `to_json` made of it; roles that this geval does not know are passed over."""
    known = {name: item for name, item in data.items() if name in _ROLES}
    return msgspec.convert(known, dict[Role, Usage])


def _record(data: Mapping[str, JsonValue], kind: type[T]) -> T:
    try:
        values = dict(data)
        if "usage" in values:
            values["usage"] = usage_by_role_from_json(values["usage"])
        return msgspec.convert(values, kind)
    except (msgspec.ValidationError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"this is not a {kind.__name__} of this version of geval: {error}") from error


_ROLES = frozenset(role.value for role in Role)
