"""The calls of one judgement: their parameters, their usage, and the second attempt after an unreadable reply."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from geval_cli.errors import JudgeError, JudgeParseError
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import Judge, KeepingJudge
from geval_cli.judge.prompt import reread_text, user_message
from geval_cli.judge.replies.lenient_json import find_begun_objects
from geval_cli.judge.replies.parse import without_thoughts
from geval_cli.providers.wire.finish_reasons import End, known_end
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, ModelResponse, Purpose, Role, Usage

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
            if not isinstance(self.judge, KeepingJudge) or await self.judge.has_kept(_of_judge(request)):
                return False
            return await self.judge.has_kept(await self._as_kept(_of_judge(samples())))

        return await self.memory.ask_with_logprobs(
            self.judge, lambda: self.ask(request), was_sampled=was_sampled
        )

    async def _as_kept(self, request: ModelRequest) -> ModelRequest:
        """Return `request` without our token limit if the cache has it only so: an earlier run knew of the need."""
        if "max_tokens" not in request.params or self.memory.needs_room(self.judge):
            return request
        if not isinstance(self.judge, KeepingJudge) or await self.judge.has_kept(request):
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
        if isinstance(self.judge, KeepingJudge):
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
    return known_end(choice.finish_reason or "") is End.LENGTH


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
