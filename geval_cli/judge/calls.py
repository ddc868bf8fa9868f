"""The calls of one judgement: their parameters, their usage, and the second attempt after an unreadable reply.

What a run has found out about its judges, and the metrics that it has made, are kept in memories here.
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
"""The name in `ModelResponse.dropped` that says that a judge gave no token probabilities."""

_FEATURES = frozenset({LOGPROBS})
_PATIENCE_S = 10.0
_SHARED_KEPT = 1024  # of a config with criteria of its own in every test, the last ones

# Who cannot write steps would be asked in vain for each test. A session of `geval serve` may outlive the reason.
_MOST_FAILURES = 3
_FAILURES_HOLD_S = 30.0

Texts = tuple[str, ...] | None

Shared = TypeVar("Shared")


LockedSteps = Mapping[tuple[str, tuple[str, ...], str], tuple[str, ...]]
"""Evaluation steps by criteria, the labels of what the judge sees, and the judge's id, as `geval.lock` has them."""


class _FailedSteps(Struct):
    """How often a judge's steps for a criterion could not be read, even after a retry, and when last."""

    error: JudgeError
    times: int
    at: float


class JudgeMemory:
    """A memory of the judges that give no token probabilities, and of those that need room for long answers.

    It also holds the steps that a lock file settles, which no judge is called for, and in `facts` what of each judge
    decides its answers.

    One per run and event loop. Judges that are equal are the same judge, whatever they are called.
    """

    def __init__(self, locked_steps: LockedSteps | None = None) -> None:
        self._locked_steps = locked_steps or {}
        self._without_logprobs: set[Judge] = set()
        self._needs_room: set[Judge] = set()
        self.facts: dict[Judge, JsonValue] = {}
        self._discoveries: defaultdict[Judge, Discovery] = defaultdict(Discovery)
        self._unwritten: dict[tuple[str, tuple[str, ...], Judge], _FailedSteps] = {}

    def locked_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge) -> tuple[str, ...] | None:
        """Return the steps that a lock file has for a criterion; None when it has none."""
        if not self._locked_steps:
            return None
        return self._locked_steps.get((criteria, labels, public_id_of(judge)))

    def note_no_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge, error: JudgeError) -> None:
        """Remember that no steps of a judge could be read."""
        before = self._unwritten.get((criteria, labels, judge))
        times = 1 if before is None else before.times + 1
        self._unwritten[criteria, labels, judge] = _FailedSteps(error, times, time.monotonic())

    def why_no_steps(self, criteria: str, labels: tuple[str, ...], judge: Judge) -> JudgeError | None:
        """Return why a judge is not asked for steps now: it was asked several times in vain. None if it may be."""
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
        """Return the answer of `ask`, or None without asking when the judge is known to give no token probabilities.

        The first caller asks while others with the same judge wait for what it finds, but not longer than they must.
        `was_sampled` says whether an earlier run took samples for this question at once, because another question had
        found out by then: which one comes first differs from run to run.
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
            # Neither an answer without text nor one that failed says anything about it.
            gives_them = response is not None and any(choice.token_logprobs for choice in response.choices)
            if gives_them or judge in self._without_logprobs:
                known = claimed
            return response
        finally:
            discovery.settle(claimed, known=known)

    def needs_room(self, judge: Judge) -> bool:
        """Return whether the small token limit of scores-only forms is known to cut this judge's replies off."""
        return judge in self._needs_room

    def note_needs_room(self, judge: Judge) -> None:
        """Remember that the small token limit is too small for this judge, as it is for those that think first."""
        self._needs_room.add(judge)


class SharedByTests(Struct, Generic[Shared]):
    """Values by the objects of the config that they come from and their rendered texts. One for a run."""

    _kept: dict[tuple[object, ...], tuple[tuple[object, ...], Shared]] = field(default_factory=dict)

    def find(
        self, sources: tuple[object, ...], texts: tuple[Texts, ...], make: Callable[[], Shared]
    ) -> Shared:
        """Return the value of these very `sources` with these `texts`; `make` builds it at the first call."""
        key = (*map(id, sources), texts)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        value = make()
        # The sources are held, so that no other object can get the identity of one of them.
        self._kept[key] = sources, value
        if len(self._kept) > _SHARED_KEPT:
            del self._kept[next(iter(self._kept))]
        return value


class SharedMetrics(SharedByTests[Metric]):
    """The metrics that g-evals were made into for other tests."""


FORM_MAX_TOKENS = 20
"""Room for `- Engagingness: 3` in any tokenizer, and not for an essay."""

EXPLANATION_MAX_TOKENS = 200
"""Room for the two or three sentences that are asked for."""

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


async def all_of(asked: Iterable[Awaitable[Found]]) -> list[Found]:
    """Return what comes of all that is asked at once, in order; the first error is raised when all have ended.

    What is under way is paid for: its cost is to be counted, and its answer to be kept, whatever another one raises.
    """
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    found = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def reply_schema(properties: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the JSON Schema of an object with all of `properties`, in this order, and no other."""
    # Strict modes of servers refuse a schema that leaves a property optional or allows further ones.
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class JudgeCalls:
    """The calls to one judge, with the sum of their usage and latency."""

    def __init__(self, judge: Judge, memory: JudgeMemory) -> None:
        self.judge = judge
        self.memory = memory
        self.usage = Usage()
        self.latency_ms = 0.0

    def params(self, *, temperature: int, max_tokens: int | None = None) -> dict[str, JsonValue]:
        """Return the request's own wire parameters; whatever the judge's config sets itself is left to it."""
        own = self.judge.provider_params
        params: dict[str, JsonValue] = {} if "temperature" in own else {"temperature": temperature}
        if max_tokens is not None and not (
            self.memory.needs_room(self.judge) or not _ROOM_KEYS.isdisjoint(own)
        ):
            params["max_tokens"] = max_tokens
        return params

    async def ask(self, request: ModelRequest) -> ModelResponse:
        """Return the judge's answer, its cost added to this judgement's."""
        response = await self.judge.complete(await self._as_kept(_of_judge(request)))
        self.usage += response.usage
        self.latency_ms += response.latency_ms or 0.0  # that of a batch says nothing about the judge
        return response

    async def ask_with_logprobs(
        self, request: ModelRequest, samples: Callable[[], ModelRequest]
    ) -> ModelResponse | None:
        """Return the answer to `request`, or None without asking a judge known to give no token probabilities.

        `samples` are asked for in its place then.
        """

        async def was_sampled() -> bool:
            if not isinstance(self.judge, CachingJudge) or await self.judge.has_kept(_of_judge(request)):
                return False
            return await self.judge.has_kept(await self._as_kept(_of_judge(samples())))

        return await self.memory.ask_with_logprobs(
            self.judge, lambda: self.ask(request), was_sampled=was_sampled
        )

    async def _as_kept(self, request: ModelRequest) -> ModelRequest:
        """Return `request` without our token limit if the cache has it only so: an earlier run knew of the need."""
        if "max_tokens" not in request.params or self.memory.needs_room(self.judge):
            return request
        if not isinstance(self.judge, CachingJudge) or await self.judge.has_kept(request):
            return request
        roomier = replace(request, params=_without(request.params, "max_tokens"))
        if not await self.judge.has_kept(roomier):
            return request
        self.memory.note_needs_room(self.judge)
        return roomier

    async def read(self, request: ModelRequest, read: Callable[[Choice], Read]) -> Read:
        """Ask and return the result of `read`; after a JudgeError, ask once more in other words.

        Raises:
            JudgeError: the second answer cannot be read either.
        """
        return await self.read_again(request, (await self.ask(request)).choices[0], read)

    async def read_again(self, request: ModelRequest, choice: Choice, read: Callable[[Choice], Read]) -> Read:
        """Return the result of `read` for `choice`, the first answer to `request`, or else for a second one."""
        try:
            return read(choice)
        except JudgeError as error:
            *before, last = request.messages
            reminder = reread_text(error.message)
            if isinstance(last.content, str):
                messages = (*before, Message(last.role, f"{last.content}\n\n{reminder}"))
            else:
                messages = (*request.messages, *user_message(reminder))
        return await self.ask_again(request, choice, messages, read)

    async def ask_again(
        self,
        request: ModelRequest,
        choice: Choice,
        messages: tuple[Message, ...],
        read: Callable[[Choice], Read],
    ) -> Read:
        """Ask with `messages` after `choice`, the first answer to `request`, which could not be read.

        Raises:
            JudgeError: the second answer cannot be read either.
        """
        roomier = self.give_room(request, (choice,))
        again = replace(roomier, messages=messages, sample_indexes=(1,), purpose=Purpose.RETRY)
        second = await self.ask(again)
        try:
            return read(second.choices[0])
        except JudgeError as error:
            await self.forget(request, again)
            message = f"{error.message}, even after a retry"
            raise type(error)(message, raw_text=error.raw_text, hint=error.hint) from error

    async def forget(self, *requests: ModelRequest) -> None:
        """Have `requests` answered anew the next time; else a cache would give what nobody can read for weeks."""
        if isinstance(self.judge, CachingJudge):
            for request in requests:
                await self.judge.forget(_of_judge(request))

    def give_room(self, request: ModelRequest, choices: tuple[Choice, ...]) -> ModelRequest:
        """Return `request` without our token limit if it cut one of the `choices` off, else unchanged."""
        if "max_tokens" not in request.params or not any(is_cut_off(choice) for choice in choices):
            return request
        self.memory.note_needs_room(self.judge)
        return replace(request, params=_without(request.params, "max_tokens"))


def _of_judge(request: ModelRequest) -> ModelRequest:
    return request if request.role is Role.JUDGE else replace(request, role=Role.JUDGE)


def is_cut_off(choice: Choice) -> bool:
    """Return whether a reply ends because a token limit was reached."""
    return known_end(choice.finish_reason or "") is FinishReason.LENGTH


def whole_text(choice: Choice) -> str:
    """Return the text of a reply. One that a token limit ended is read where it is JSON, which shows what is missing.

    Raises:
        JudgeParseError: the limit cut off a reply in words, of which nobody knows how it would have gone on.
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
