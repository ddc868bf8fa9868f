"""The judge calls of one judgement: request parameters, usage, and the retry after an unreadable reply.

The classes that remember what a run has learned about its judges, and the metrics it has built, are here too.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import JudgeError, JudgeParseError
from geval_cli.gateway.capabilities import Discovery
from geval_cli.judge.lenient_json import find_begun_objects
from geval_cli.judge.metric import CachingJudge, Judge, Metric, public_id_of
from geval_cli.judge.prompt import reread_text, user_message
from geval_cli.judge.replies import without_thoughts
from geval_cli.providers.wire.finish_reasons import FinishReason, known_end
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, ModelResponse, Purpose, Role, Usage

LOGPROBS = "logprobs"
"""The name in `ModelResponse.dropped` that says that the judge returned no token probabilities."""

_FEATURES = frozenset({LOGPROBS})
_PATIENCE_S = 10.0
_SHARED_KEPT = 1024  # the newest ones, in case every test of a config has its own criteria

# A judge that cannot write steps would be asked in vain for each test. In `geval serve` the reason may pass.
_MOST_FAILURES = 3
_FAILURES_HOLD_S = 30.0

Texts = tuple[str, ...] | None

Shared = TypeVar("Shared")


LockedSteps = Mapping[tuple[str, tuple[str, ...], str], tuple[str, ...]]
"""Evaluation steps as stored in `geval.lock`, by criteria, the labels of what the judge sees, and the judge's id."""


class _FailedSteps(Struct):
    """How often, and when last, a judge's steps for a criterion could not be read even after a retry."""

    error: JudgeError
    times: int
    at: float


class JudgeFacts:
    """The facts learned about judges in a run: which give no token probabilities, and which need more tokens.

    It also holds the steps from the lock file, for which no judge is called, and in `facts` the settings of each judge
    that determine its answers.

    There is one per run and event loop. Judges that compare equal share an entry, whatever their labels.
    """

    def __init__(self, locked_steps: LockedSteps | None = None) -> None:
        self._locked_steps = locked_steps or {}
        self._without_logprobs: set[Judge] = set()
        self._needs_room: set[Judge] = set()
        self.facts: dict[Judge, JsonValue] = {}
        self._discoveries: defaultdict[Judge, Discovery] = defaultdict(Discovery)
        self._unwritten: dict[tuple[str, tuple[str, ...], Judge], _FailedSteps] = {}

    def locked_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge) -> tuple[str, ...] | None:
        """Return the steps that the lock file has for a criterion, or None if it has none."""
        if not self._locked_steps:
            return None
        return self._locked_steps.get((criteria, labels, public_id_of(judge)))

    def note_no_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge, error: JudgeError) -> None:
        """Record that a judge's steps for a criterion could not be read."""
        before = self._unwritten.get((criteria, labels, judge))
        times = 1 if before is None else before.times + 1
        self._unwritten[criteria, labels, judge] = _FailedSteps(error, times, time.monotonic())

    def why_no_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge) -> JudgeError | None:
        """Return the error that keeps a judge from being asked for steps again, or None if it may be asked.

        After three failures, a judge is not asked again until 30 seconds have passed since the last one.
        """
        found = self._unwritten.get((criteria, labels, judge))
        if found is None or found.times < _MOST_FAILURES or time.monotonic() - found.at > _FAILURES_HOLD_S:
            return None
        error = found.error
        return type(error)(error.message, raw_text=error.raw_text, hint=error.hint)

    async def ask_with_logprobs(
        self,
        judge: Judge,
        ask: Callable[[], Awaitable[ModelResponse]],
        *,
        was_sampled: Callable[[], Awaitable[bool]] | None = None,
    ) -> ModelResponse | None:
        """Return the response of `ask`, or None without a call if the judge is known to give no logprobs.

        The first caller sends its request while the others with the same judge wait, for a limited time, for what it
        learns. `was_sampled` says whether an earlier run sampled this question right away, because another question had
        already shown that the judge gives none: which question comes first differs from run to run.
        """
        discovery = self._discoveries[judge]
        claimed = await discovery.claim(_FEATURES, patience_s=_PATIENCE_S)
        known = frozenset[str]()
        try:
            if claimed and was_sampled is not None and await was_sampled():
                self._without_logprobs.add(judge)
            response = None if judge in self._without_logprobs else await ask()
            if response is not None and LOGPROBS in response.dropped:
                self._without_logprobs.add(judge)
            # A response without text, or a failed one, does not show whether the judge gives token probabilities.
            gives_them = response is not None and any(choice.token_logprobs for choice in response.choices)
            if gives_them or judge in self._without_logprobs:
                known = claimed
            return response
        finally:
            discovery.settle(claimed, known=known)

    def needs_room(self, judge: Judge) -> bool:
        """Return whether this judge's replies are known to be cut off by the small token limit of scores-only forms."""
        return judge in self._needs_room

    def note_needs_room(self, judge: Judge) -> None:
        """Record that the small token limit is too small for this judge, as it is for models that think first."""
        self._needs_room.add(judge)


class SharedValues(Struct, Generic[Shared]):
    """A cache of values built from config objects and their rendered texts; one per run."""

    _kept: dict[tuple[object, ...], tuple[tuple[object, ...], Shared]] = field(default_factory=dict)

    def find(
        self, sources: tuple[object, ...], texts: tuple[Texts, ...], make: Callable[[], Shared]
    ) -> Shared:
        """Return the value for these very `sources` (by identity) and `texts`; `make` builds it on the first call."""
        key = (*map(id, sources), texts)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        value = make()
        # Keep the sources alive, so that no other object can get the id of one of them.
        self._kept[key] = sources, value
        if len(self._kept) > _SHARED_KEPT:
            del self._kept[next(iter(self._kept))]
        return value


class SharedMetrics(SharedValues[Metric]):
    """The metrics built from `g-eval` assertions, shared by all tests of a run."""


FORM_MAX_TOKENS = 20
"""The token limit of a form: enough for `- Engagingness: 3` in any tokenizer, too little for an essay."""

EXPLANATION_MAX_TOKENS = 200
"""The token limit of an explanation: enough for the two or three sentences that the prompt asks for."""

_LENGTH_KEYS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"})
_ROOM_KEYS = _LENGTH_KEYS | {
    "effort",
    "generationConfig",
    "maxOutputTokens",
    "output_config",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "thinkingConfig",
}

Read = TypeVar("Read")
Found = TypeVar("Found")


async def gather_all(asked: Iterable[Awaitable[Found]]) -> list[Found]:
    """Await everything at once and return the results in order; the first error is raised after all have ended.

    Requests in flight are paid for, so their cost must be counted and their answers kept even if another one fails.
    """
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    found = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def reply_schema(properties: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the JSON Schema of an object that has exactly these `properties`, in this order."""
    # The strict modes of some servers refuse a schema with optional or additional properties.
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class JudgeCalls:
    """The calls to one judge, with their total usage and latency."""

    def __init__(self, judge: Judge, memory: JudgeFacts) -> None:
        self.judge = judge
        self.memory = memory
        self.usage = Usage()
        self.latency_ms = 0.0

    def params(self, *, temperature: int, max_tokens: int | None = None) -> dict[str, JsonValue]:
        """Return the request's wire parameters, without those that the judge's config sets itself."""
        own = self.judge.provider_params
        params: dict[str, JsonValue] = {} if "temperature" in own else {"temperature": temperature}
        if max_tokens is not None and _ROOM_KEYS.isdisjoint(own):
            params["max_tokens"] = max_tokens
        return params

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Return the judge's response, and add its usage and latency to the totals of this judgement."""
        response = await self.judge.complete(await self._as_cached(_of_judge(request)))
        self.usage += response.usage
        self.latency_ms += response.latency_ms or 0.0  # None for a batch
        return response

    async def ask_with_logprobs(
        self, request: ModelRequest, samples: Callable[[], ModelRequest]
    ) -> ModelResponse | None:
        """Return the response to `request`, or None without a call if the judge is known to give no logprobs.

        `samples` makes the request that is sent instead in that case.
        """

        async def was_sampled() -> bool:
            if not isinstance(self.judge, CachingJudge) or await self.judge.has_kept(_of_judge(request)):
                return False
            return await self.judge.has_kept(await self._as_cached(_of_judge(samples())))

        return await self.memory.ask_with_logprobs(
            self.judge, lambda: self.ask(request), was_sampled=was_sampled
        )

    async def _as_cached(self, request: ModelRequest) -> ModelRequest:
        """Return `request` without geval's token limit if the judge needs room or only that form is cached.

        What an earlier run could read within the limit stays its verdict, whatever is known of the judge by now.
        """
        cache = self.judge if isinstance(self.judge, CachingJudge) else None
        if "max_tokens" not in request.params or (cache and await cache.has_kept(request)):
            return request
        roomier = replace(request, params=_without(request.params, "max_tokens"))
        if not self.memory.needs_room(self.judge):
            if not (cache and await cache.has_kept(roomier)):
                return request
            self.memory.note_needs_room(self.judge)
        return roomier

    async def read(self, request: ModelRequest, read: Callable[[Choice], Read]) -> Read:
        """Send `request` and return the result of `read`; after a JudgeError, ask once more with a reminder.

        Raises:
            JudgeError: the second reply cannot be read either.
        """
        return await self.read_again(request, (await self.ask(request)).choices[0], read)

    async def read_again(self, request: ModelRequest, choice: Choice, read: Callable[[Choice], Read]) -> Read:
        """Return the result of `read` for `choice`, the first reply to `request`, or else for a second reply."""
        try:
            return read(choice)
        except JudgeError as error:
            *before, last = request.messages
            reminder = reread_text(error.message)
            if isinstance(last.content, str):
                messages = (*before, Message(last.role, f"{last.content}\n\n{reminder}"))
            else:
                messages = (*request.messages, *user_message(reminder))
        return await self.ask_again(request, replace(request, messages=messages), read)

    async def ask_again(
        self, request: ModelRequest, again: ModelRequest, read: Callable[[Choice], Read]
    ) -> Read:
        """Send `again` after an unreadable reply to `request`, and read the reply to it.

        Raises:
            JudgeError: the second reply cannot be read either.
        """
        again = replace(again, sample_indexes=(1,), purpose=Purpose.RETRY)
        second = await self.ask(again)
        try:
            return read(second.choices[0])
        except JudgeError as error:
            await self.forget(request, again)
            message = f"{error.message}, even after a retry"
            raise type(error)(message, raw_text=error.raw_text, hint=error.hint) from error

    async def forget(self, *requests: ModelRequest) -> None:
        """Drop the cached answers to `requests`, so that an unreadable reply is not served from the cache for weeks."""
        if isinstance(self.judge, CachingJudge):
            for request in map(_of_judge, requests):
                await self.judge.forget(request)
                if "max_tokens" in request.params:
                    await self.judge.forget(replace(request, params=_without(request.params, "max_tokens")))

    def without_limit_if_cut(self, request: ModelRequest, choices: tuple[Choice, ...]) -> ModelRequest:
        """Return `request` without geval's token limit if that cut off one of the `choices`, else unchanged."""
        if "max_tokens" not in request.params or not any(is_cut_off(choice) for choice in choices):
            return request
        self.memory.note_needs_room(self.judge)
        return replace(request, params=_without(request.params, "max_tokens"))


def _of_judge(request: ModelRequest) -> ModelRequest:
    return request if request.role is Role.JUDGE else replace(request, role=Role.JUDGE)


def is_cut_off(choice: Choice) -> bool:
    """Return whether a token limit ended the reply."""
    return known_end(choice.finish_reason or "") is FinishReason.LENGTH


def whole_text(choice: Choice) -> str:
    """Return the text of a reply; a reply cut off by a token limit is accepted only if it is JSON or a single word.

    JSON shows what is missing from it.

    Raises:
        JudgeParseError: the limit cut off a reply in words, whose missing end may change its meaning.
    """
    text = choice.text
    if is_cut_off(choice):
        answer = without_thoughts(text)
        if len(answer.split()) > 1 and next(find_begun_objects(answer), None) is None:
            raise JudgeParseError(
                "the judge's reply breaks off (a token limit cut it off)",
                raw_text=text,
                hint="raise `max_tokens` in the judge's config",
            )
    return text


def _without(params: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    return {name: value for name, value in params.items() if name != key}
