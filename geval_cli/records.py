"""The frozen records of a run, and their JSON form, for reading and writing.

The field names of `RunRecord`, `RunSummary` and `CaseResult` are the JSON keys of `-o results.json`, of the store and
of the HTTP API. Nothing here computes anything or knows a file format other than JSON.
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
    """The four outcomes, never mixed up: `failed` was judged and did not pass, `error` could not be judged."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    NOT_EVALUATED = "not_evaluated"


class RunStatus(StrEnum):
    """The state of a run; `aborted` means that a limit or a fatal problem stopped it."""

    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"


class Role(StrEnum):
    """The role in which a model is called; usage is reported by role."""

    GENERATION = "generation"
    JUDGE = "judge"
    USER = "user"


class Purpose(StrEnum):
    """The purposes of model requests, in the order in which a plan shows them."""

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
    """One chat message; `content` is text, or the list of parts that chat APIs accept.

    `further` holds the other keys of the message, as in chat APIs: name, tool_calls, tool_call_id, ...
    """

    role: str
    content: JsonValue
    further: Mapping[str, JsonValue] = field(default_factory=dict)


class Turn(Struct, frozen=True):
    """One turn of a conversation.

    Attributes:
        role: user, assistant, system, developer or tool.
        content: the text; empty if an assistant only calls tools.
        tool_calls: the assistant's tool calls, as written in the test or by the API.
        tool_call_id: the id of the call that a tool turn answers.
    """

    role: str
    content: str = ""
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    tool_call_id: str | None = None


class TraceStep(Struct, frozen=True):
    """One step of an agent.

    Attributes:
        type: tool, llm or step.
        args: the arguments; None if unknown.
        output: the result.
        error: the error message; None if it did not fail.
        ms: the duration in milliseconds.
    """

    type: str
    name: str
    args: JsonValue = None
    output: JsonValue = None
    error: str | None = None
    ms: float | None = None


class ToolDefinition(Struct, frozen=True):
    """A tool as defined for a model; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


class SentMedia(Protocol):
    """An image or recording in a request, identified by its hash (`geval_cli.source.media.Media`)."""

    @property
    def sha256(self) -> str: ...

    @property
    def media_type(self) -> str: ...

    @property
    def characters(self) -> int: ...

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            GevalError: they are not available any more.
        """
        ...


class ModelRequest(Struct, frozen=True):
    """One request to a model, for as many choices as there are `sample_indexes`.

    Attributes:
        messages: the conversation.
        params: wire parameters of this request (temperature, max_tokens, ...); they override the provider's config.
            None leaves out a parameter, even one that the provider's config sets.
        added: the names of those `params` that geval added by itself: if the server refuses one, the request is sent
            without it. For a judge's request, that is all of them.
        sample_indexes: which samples of this same request are wanted; part of each choice's cache key.
        repeat_index: which repeat of the run sends it; part of the cache key too.
        want_logprobs: request token logprobs, with as many alternatives as the server gives (at most 20).
        response_schema: a JSON Schema for the answer, used where the provider supports it; a wish, not a promise.
        ratings: the answer should be one of these texts and nothing else; only providers that can constrain their model
            use them.
        variables: the test's, for providers that pass them on to the user's own application; a model never sees them.
        text: the whole prompt as one text, for providers that take one; None if the messages are everything.
        origin: what programs in promptfoo's configs are told about the origin of the request, apart from the variables.
        purpose: what the answer is for. Neither the model nor the cache key includes it.
        media: the images and recordings whose hashes are in the messages; only the hashes go into cache keys.
        tools: what the model may call, in addition to the tools in the provider's config in its API's own form.
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
        """Return the bytes of all messages, from which tokens and cost are estimated; an image counts as a page."""
        texts = sum(len(str(message.content).encode(errors="replace")) for message in self.messages)
        return texts + sum(item.characters for item in self.media)


CHARACTERS_PER_IMAGE = 4_000
"""About a thousand tokens, which is what vendors count for a medium-sized image."""

CHARACTERS_PER_SECOND = 128
"""About 32 tokens, which is what Google counts for a second of audio; OpenAI counts a third of that."""


class TokenAlternative(Struct, frozen=True):
    """A token that could have been chosen at a position, with its natural-log probability."""

    text: str
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """The token chosen at a position, and the alternatives reported by the server (including the chosen one)."""

    text: str
    logprob: float
    alternatives: tuple[TokenAlternative, ...] = ()


class Choice(Struct, frozen=True):
    """One answer.

    Attributes:
        token_logprobs: None if the server gave none.
        is_data: whether a program or an HTTP API answered with data, of which `text` is the JSON.
        reported: what a program returned with its `output`, as it wrote it: metadata, raw, guardrails, sessionId, ...
        tool_calls: the tools that the model calls, in the chat API's form whatever the API; those with another `type`
            than `function` and `custom` ran at the vendor. If the model only calls tools, `text` is the JSON of the
            calls, as the API wrote them.
        message: the answer as the API wants it back when its calls are answered, with thoughts and their signatures
            unchanged; None for a request without `tools`.
    """

    text: str
    finish_reason: str | None = None
    token_logprobs: tuple[TokenLogprob, ...] | None = None
    is_data: bool = False
    reported: Mapping[str, JsonValue] = field(default_factory=dict)
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    message: Message | None = None


class Usage(Struct, frozen=True):
    """The tokens and cost of calls; `cost_usd` is None if a price is unknown, never 0 for that reason.

    `requests` counts answers that were paid for or came from the cache. Of these, `cached_requests` came from the cache
    and `batched_requests` with a provider's batch. Tokens are counted for requests actually sent. An answer that
    several calls of one run share counts once, where it was paid for or read from the cache.
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
        choices: may be fewer than requested if single samples were lost even after retries; never empty.
        latency_ms: from sending to the last byte, of the slowest request; for a cached answer, as stored. None if one
            came in a batch.
        cached: every choice came without a request of its own, from the cache or from another call.
        shared: every choice was paid for, or read from the cache, by another call of the same run.
        dropped: parameters that were left out because the server refused them (for example "logprobs").
        sample_indexes: which sample each choice is, in the same order; set by the gateway (a provider leaves it empty:
            its choices are the first ones of the request's `sample_indexes`).
        original_usage: for an answer that came, at least in part, without a request of its own, its usage when it was
            generated; else None.
        model: as named in the answer, often more precisely than in the request.
        fingerprint: the vendor's name for the state of its servers (`system_fingerprint`); None if it gives none.
        between: what was said before this answer in the same exchange: answers with tool calls, and the results, each
            as a turn and as the API wants it back.
        repeated_usage: the part of `usage` that was already reported to a case that was then postponed, because its
            other answers were to come with a batch.
        request_id: the vendor's id of the request, from a header, else `response_id`.
        response_id: the API's id of its answer.
        cache_read_tokens, cache_write_tokens: how much of the input was read from, or written to, the vendor's prompt
            cache.
        exhausted_s: how long the server has no capacity left for its callers, by its own account; 0 if it has.
        lost: the number of choices that were not answers, such as those removed by a filter.
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
    original_usage: Usage | None = None
    shared: bool = False
    repeated_usage: Usage = Usage()
    between: tuple[tuple[Turn, Message], ...] = ()

    @property
    def usage_generated(self) -> Usage:
        """Return the usage of the answer when it was generated, whoever paid for it."""
        return self.usage if self.original_usage is None else self.original_usage

    @property
    def cost_usd_generated(self) -> float | None:
        """Return the cost of the answer when it was generated, whoever paid for it; None if unknown."""
        return self.usage_generated.cost_usd

    @property
    def is_from_cache(self) -> bool:
        """Return whether the answer was not paid for in this run."""
        return self.cached and not self.shared

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tool_calls(self) -> tuple[Mapping[str, JsonValue], ...]:
        return self.choices[0].tool_calls


INTERNAL_ERROR = "InternalError"
"""The error type of a result spoilt by a bug in geval; such a run ends with exit code 4."""


class ErrorInfo(Struct, frozen=True):
    """An error as a value; `type` is the exception's name, `raw` an excerpt of what was received instead of an answer.

    For a bug in geval, `raw` is the end of the traceback.
    """

    type: str
    message: str
    hint: str = ""
    raw: str | None = None

    @property
    def is_bug(self) -> bool:
        """Return whether geval itself has a bug, rather than the model, the judge or the config a problem."""
        return self.type == INTERNAL_ERROR


class AssertionResult(Struct, frozen=True):
    """The result of one assertion on one output; `score` is 0..1, or None if there was nothing to score."""

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
    """The prompt of one case; `rendered` is the text or, for chat prompts, the messages as JSON text."""

    id: str
    label: str
    rendered: str


class ProviderRef(Struct, frozen=True):
    """The provider that answered."""

    id: str
    label: str


class RecordedTest(Struct, frozen=True):
    """The texts of a test that a judge may compare an output with, stored once for all of its results.

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
        """Return whether the test has nothing but its description, variables and turns."""
        return not any(getattr(self, name) not in (None, ()) for name in self.__struct_fields__[1:])

    @property
    def texts(self) -> dict[str, str]:
        """Return the texts by name; a list of texts is joined by line breaks."""
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
"""The text fields of a test, in the order in which they are shown, in configs, merged tests and results."""


class CaseResult(Struct, frozen=True):
    """The outcome of one job: prompt x provider x test case x repeat.

    Attributes:
        column: the index of the prompt x provider pair.
        latency_ms: of the model's answer when it was generated, even if it came from the cache; None if it came with a
            batch.
        cost_usd_generated: the cost of the answer when it was generated, whereas `usage` has what this run paid; None
            if unknown.
        finish_reason: why the model ended its answer (`stop`, `length`, `content_filter`, ...); None if it did not say,
            or was not called.
        tool_calls: the tools that the model calls in its answer, in the chat API's form.
        turns: of a conversation, including every answer; `output` is the last. Empty for a test without turns.
        trace: the steps of the agent that led to the output, as far as they are known.
        reported: what a program returned with its output (metadata, raw, guardrails, sessionId, ...); `metadata` is the
            test's own.
        test_key: a hash of the test's content, equal in all runs that have the test (`engine.plan`); None in results of
            other programs.
        ended_by: how a simulated user ended the conversation: goal, gave_up or limit; absent without one.
        test: what the test has in addition to its variables; one object shared by all results of the test, and written
            once.
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
    test: RecordedTest | UnsetType = UNSET

    @property
    def asked(self) -> RecordedTest | None:
        """Return `test`, or None if it has nothing in addition to its variables."""
        return self.test or None


class Column(Struct, frozen=True):
    """One prompt x provider pair, a column of the table; `index` counts provider by provider, prompts within."""

    index: int
    prompt_label: str
    provider_label: str


SHORT_COMMIT = 9
"""How many characters of a commit's hash are shown."""


class GitState(Struct, frozen=True):
    """The commit that a run was made from.

    Attributes:
        commit: its hash; None before the first commit.
        branch: None on a detached HEAD.
        dirty: whether tracked files differed from the commit; None if unknown.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


class WorkerRecord(Struct, frozen=True):
    """The work of one of a run's processes.

    Attributes:
        name: its name within the run, such as `worker 1`.
        host: the machine.
        cases: number of results from it.
        requests: number of requests that it sent, including retries; those of a shard that was lost with it are not
            counted.
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
        remote_id: the provider's id of the batch; None before it has one.
        state: intent, uploaded or submitted while answers may come; completed, expired, cancelled or failed.
        failed: how many of its requests were answered with an error.
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
"""The note of the gate `errors <= 0`, which geval adds if none of the gates is about errors."""

STOPPED = "the run stopped early: "
"""The beginning of a warning that holds only until the run is resumed."""


class RunRecord(Struct, frozen=True):
    """One execution of one config. Times are ISO 8601 in UTC; `config` is a snapshot before env values are filled in.

    Attributes:
        columns: the columns of the table, in the order of their index.
        warnings: what the user should know about the run, each once.
        prompt_version: of the judges' prompts; results of different versions cannot be compared.
        description: the suite's description, from the config.
        judges: the titles of the judges.
        tags: labels that the user gave the run to find it again.
        git: the commit in which its config is; None outside a repository.
        judged_from: the run whose outputs were judged again; None for a run that generated its own.
        workers: the processes that worked on its cases; empty if that was the one that shows it.
        title: a name given to the run afterwards; None without one.
        batches: the batches whose answers it used or waits for, oldest first.
        anchors: how its judges re-rated outputs of an earlier run before it began; None if that was not configured.
        files: the first 100 files that its config names, each with the first 16 hexadecimal digits of its SHA-256.
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
    files: Mapping[str, str] = field(default_factory=dict)


class MetricSummary(Struct, frozen=True):
    """A metric over all cases: `mean` of the `n` scored ones (None without any), and the number of `errored` ones.

    `interval`: the bounds of the mean's 95 % confidence interval; None for fewer than two scores.
    """

    mean: float | None
    n: int
    errored: int
    interval: tuple[float, float] | None = None

    @property
    def is_half(self) -> bool:
        """Return whether the mean is a half, which it always is when all columns are compared with each other."""
        return self.mean is not None and abs(self.mean - 0.5) < 1e-9  # noqa: PLR2004


class GateResult(Struct, frozen=True):
    """The result of a gate: `failed` if it did not hold, `error` if there was nothing to count for it.

    Attributes:
        gate: as written in the config or on the command line.
        actual: the value compared with the gate's limit, in the limit's unit; shares are 0..1.
        note: how certain the value is, or why there is none.
    """

    gate: str
    status: Status
    actual: float | None
    note: str = ""


class FlakyTest(Struct, frozen=True):
    """A test that passed in some of its repeats and failed in others, in one column.

    Attributes:
        judged: the number of repeats with a verdict, of which `passed` passed.
        mean: of the scores; None without scores.
        deviation: their sample standard deviation; None for fewer than two scores.
    """

    test_index: int
    column: int
    description: str | None
    passed: int
    judged: int
    mean: float | None
    deviation: float | None


class Stat(Struct, frozen=True):
    """An estimate: `value` from `n` cases of `clusters` tests, with the bounds of its 95 % confidence interval.

    `value` is None without cases, `interval` for fewer than two tests.
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    clusters: int = 0


class MetricStat(Stat, frozen=True):
    """The mean of a metric in one column; the `errored` assertions could not be judged and are not included."""

    errored: int = 0


class Delta(Stat, frozen=True):
    """The mean of paired differences: a column's value minus the baseline's, from `n` pairs of `clusters` tests.

    Attributes:
        se: standard error of `value`; None for fewer than two tests.
        p: two-sided p-value of "no difference"; None for fewer than two tests.
        p_adjusted: the same, corrected (Holm) for all differences that are shown.
        mde: minimum detectable effect: the smallest true difference that this many tests show with 80 % power, allowing
            for the correction. None if it would be above 1, or if fewer than four tests differ: too few for a spread.
        needed_tests: the total number of tests that would decide with 80 % power, allowing for the correction: for two
            columns if the true difference were `value`, for two runs if it were that of `--detect`. None as for `mde`.
        differing: the number of tests with a difference other than 0.
        family: the number of differences among which the 5 % error rate is divided for this one.
        least_tests: fewer tests than this cannot decide among so many differences; None if there are as many.
        margin: the largest difference that does not matter, from `margin` in the config; None without one.
        margin_interval: the 90 % interval that is compared with the margin.
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
        verdict: None for fewer than two tests.
        same_as: the row (`pass_rate`, or a metric) with the same figures in every test, which is counted and shown as
            one with this row.
    """

    delta: Delta
    verdict: str | None
    same_as: str | None = None


class ColumnComparison(Struct, frozen=True):
    """A column compared with the one labelled `baseline`, test by test; None or no entry if no test is in both."""

    baseline: str
    pass_rate: Difference | None = None
    metrics: Mapping[str, Difference] = field(default_factory=dict)


class Latency(Struct, frozen=True):
    """The milliseconds from the prompt to the complete answer; None if no answer was timed."""

    median: float | None = None
    p95: float | None = None


class ColumnSummary(Struct, frozen=True):
    """The figures of one prompt x provider pair.

    Attributes:
        label: distinguishes it from the other columns of the run.
        pass_rate: of the judged cases, without `errored` and `not_evaluated` ones.
        pass_rate_at_least: the pass rate if every error had been a failure; None if nothing was judged.
        metrics: means; the repeats of a test are averaged first.
        cost_usd: what this run paid for its answers, without judges; None if a price is unknown.
        cost_usd_generated: the cost of the answers when they were generated, including those from the cache.
        latency_ms: of its answers when they were generated, including those from the cache.
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
    """A column in the ranking of a metric by which outputs were compared.

    Attributes:
        label: of the column, or `expected_output`.
        rating: Bradley-Terry, on the scale used in chess, with mean 1500; None if the comparisons do not connect all
            columns.
        low, high: the bounds of its 95 % confidence interval; None for fewer than five tests, or if all had the same
            outcome.
        wins, losses: pairs won or lost in both orders; `ties` are all others.
    """

    label: str
    rating: float | None
    low: float | None
    high: float | None
    wins: int
    ties: int
    losses: int


class SequentialDecision(Struct, frozen=True):
    """The finding about one gate, or about one column relative to another, when a run stopped early.

    Attributes:
        subject: the gate as written, or the label of the column.
        outcome: for a gate holds or fails, for a column better or worse; or undecided.
        mean: over the tests that counted, in the unit of the gate's limit; None without any.
        interval: the range for the true mean, valid at all looks simultaneously with `EarlyStop.alpha` divided by the
            number of decisions.
        n: number of tests that counted.
    """

    subject: str
    outcome: str
    mean: float | None
    interval: tuple[float, float] | None
    n: int


class EarlyStop(Struct, frozen=True):
    """The account of a run that stopped because it was decided, after `after` of `tests` tests in the order drawn.

    Attributes:
        alpha: the probability that any of the decisions is wrong.
        not_asked: the number of cases without an answer for that reason; `saved_requests` is an estimate of what they
            would have taken.
    """

    after: int
    tests: int
    alpha: float
    decisions: tuple[SequentialDecision, ...]
    not_asked: int
    saved_requests: int


class RunSummary(Struct, frozen=True):
    """The counts of a run. `pass_rate` = passed / (passed + failed), None if nothing was judged.

    Attributes:
        pass_interval: the bounds of the pass rate's 95 % confidence interval; None for fewer than two tests.
        pass_rate_at_least: the pass rate if every error had been a failure; None if the pass rate is.
        gates: conditions on the whole run; if there are any, they determine the exit code.
        flaky: the first of the `flaky_count` tests that both passed and failed when repeated.
        derived: the derived metrics of the config over all cases; None for one that cannot be computed.
        derived_by_column: the same for the cases of each column, in the order of the columns.
        columns: the figures of each column, in their order; empty while the run is in progress.
        baseline: the comparison with the run named as the baseline, as in `geval compare --json`; None without one.
        rankings: for each metric of pairwise comparisons, the columns from best to worst.
        order_consistency: the share of its pairs with the same verdict in both orders; None if the judge compared none.
        early_stop: how the run was decided before all tests had run; None if all of them have. Intervals and p-values
            elsewhere in the summary assume a run of fixed size, and do not hold for one that stopped early.
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
    if type(value) in _PLAIN:  # checked again below, which saves most of the calls
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
    """Return a `CaseResult` from the output of `to_json`, in this version of geval or another.

    Unknown keys and roles are ignored.

    Raises:
        ValueError: a required key is missing, or a value has the wrong type.
    """
    return _record(data, CaseResult)


def recorded_test_from_json(data: Mapping[str, JsonValue]) -> RecordedTest:
    """Return an `RecordedTest` from the output of `to_json`, as `case_result_from_json` does."""
    return _record(data, RecordedTest)


def run_record_from_json(data: Mapping[str, JsonValue]) -> RunRecord:
    """Return a `RunRecord` from the output of `to_json`, as `case_result_from_json` does."""
    return _record(data, RunRecord)


def run_summary_from_json(data: Mapping[str, JsonValue]) -> RunSummary:
    """Return a `RunSummary` from the output of `to_json`, as `case_result_from_json` does."""
    return _record(data, RunSummary)


def usage_by_role_from_json(data: Mapping[str, JsonValue]) -> dict[Role, Usage]:
    """Return usage by role from the output of `to_json`; unknown roles are ignored."""
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
