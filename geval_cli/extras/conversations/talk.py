"""Let a model play the user: what it is shown, how its replies are read, and when the conversation is over."""

import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from geval_cli.assertions.base import Assertion, MergedTest, Subject, shortened
from geval_cli.assertions.json_text import calls_beside
from geval_cli.engine.case import JobContext
from geval_cli.engine.conversation import Conversation
from geval_cli.engine.plan import Job
from geval_cli.errors import ProviderShapeError, UnjudgeableError
from geval_cli.judge.calls import is_cut_off
from geval_cli.judge.metric import KeepingJudge
from geval_cli.judge.source import ASSISTANT, USER
from geval_cli.records import (
    JsonValue,
    Message,
    ModelRequest,
    ModelResponse,
    Purpose,
    Role,
    Status,
    TraceStep,
    Turn,
    Usage,
)

GOAL, GAVE_UP, LIMIT = "goal", "gave_up", "limit"

_MARKS = {GOAL: "[[GOAL REACHED]]", GAVE_UP: "[[GIVING UP]]"}
_MARK = r"\[\[ *(GOAL[ _]REACHED|GIVING[ _]UP) *\]\]"
_AROUND = r"[\s*_`\"'.!]*"
_LINE = re.compile(rf"{_AROUND}{_MARK}{_AROUND}", re.IGNORECASE)
# Behind a whole sentence: "I will not write [[GIVING UP]]" says the opposite.
_BEHIND = re.compile(rf"(?<=[.!?…)\"'\u2019\u201d*_])\s*{_MARK}{_AROUND}\Z", re.IGNORECASE)
_ANYWHERE = re.compile(_MARK, re.IGNORECASE)
_OWN_NAME = re.compile(r"[\s*_]*(?:user|human)[*_ ]*:[*_]*\s*", re.IGNORECASE)
_OTHER_NAME = re.compile(r"^[ \t*_]*(?:assistant|ai)[*_ ]*:", re.IGNORECASE | re.MULTILINE)

_INSTRUCTIONS = """\
You play a person who writes to an assistant. You are this person and never the assistant: you do not help, you want \
something. The messages that you receive are the assistant's.
{profile}
What you want:
{goal}

How you write:
- Reply with this person's next message alone: no name before it, no quotation marks around it, no comment on it.
- Write as this person would in a chat, usually one or two sentences, in the language of the text above.
- Do not say everything at once. Say what matters when it is asked for or needed.
- If you are asked for something that is not said above, make up an answer that fits, and stay with it.
- Do not accept less than what you want, unless this person would.

How it ends:
{ends}"""
_PROFILE = "\nWho you are:\n{profile}\n"
_END_BY_SELF = """\
- {when}, reply with this line alone:
{mark}"""
_BEGIN = "(The chat is open. Write your first message.)"
_AGAIN = "(Reply with this person's next message alone, or with the agreed line alone.)"
_SHORTER = (
    "(That was too long and is cut off. Write this person's next message in one or two short sentences.)"
)


class UserReply(Struct, frozen=True):
    """A reply of the model that plays the user: the words to send, and how it ends the conversation, if it does."""

    words: str
    end: str | None = None


def read_reply(text: str, ends: Sequence[str] = (GOAL, GAVE_UP)) -> UserReply | None:
    """Read a reply of the model that plays the user; None where it says nothing, or could mean two things.

    A mark counts on a line of its own and behind a whole sentence. One that is not among the agreed `ends` is dropped.
    """
    own = _OWN_NAME.match(text)
    said = text[own.end() :] if own else text
    if other := _OTHER_NAME.search(said):  # what follows is not the user's
        said = said[: other.start()]
    marks: set[str] = set()
    lines = []
    for line in said.splitlines():
        if found := _LINE.fullmatch(line):
            marks.add(_end_of(found))
        else:
            lines.append(line)
    words = "\n".join(lines).strip()
    if found := _BEHIND.search(words):
        marks.add(_end_of(found))
        words = words[: found.start()].rstrip()
    marks &= set(ends)
    if _ANYWHERE.search(words) or len(marks) > 1 or not (words or marks):
        return None
    return UserReply(words, next(iter(marks), None))


def _end_of(found: re.Match[str]) -> str:
    return GOAL if found[1].upper().startswith("GOAL") else GAVE_UP


class SimulatedTalk:
    """The user's side of one conversation. Its model sees the goal, the profile and what was said, and nothing else."""

    def __init__(
        self, job: Job, test: MergedTest, context: JobContext, called: Sequence[TraceStep] | None = None
    ) -> None:
        """Begin; `test` has its variables as templates see them, and `called` grows with each tool that is called.

        Raises:
            TemplateError: a text of the user cannot be rendered.
        """
        assert test.user is not None
        self._job, self._test, self._context, self._user = job, test, context, test.user
        self._called = called
        self._ends = (GAVE_UP,) if test.user.assertions else (GOAL, GAVE_UP)
        variables = test.variables
        templates = context.tools.templates
        self._opening = None if test.user.opening is None else templates.render(test.user.opening, variables)
        done_when = test.user.done_when
        self._instructions = instructions(
            templates.render(test.user.goal or "", variables),
            test.user.profile,
            templates.render(done_when, variables) if isinstance(done_when, str) else "",
            self._ends,
        )

    async def next_turns(self, held: Conversation) -> Sequence[Turn]:
        """Return what the user says next; nothing at the end, which `held` then has in `ended_by`.

        Raises:
            GevalError: the user's model fails or says nothing that could be sent, or `done_when` cannot be judged.
        """
        said = sum(turn.role == USER for turn in held.turns)
        if not said and self._opening is not None:
            return (Turn(USER, self._opening),)
        if said:
            for spec in self._user.assertions:
                if await self._holds(spec, held):
                    held.ended_by = GOAL
                    return ()
                if said >= self._user.max_turns:
                    held.ended_by = LIMIT
                    return ()
        reply = await self._reply(held)
        # Before the first answer there is nothing to end, and after the last turn nothing to say.
        if said and reply.end is not None:
            held.ended_by = reply.end
        elif said >= self._user.max_turns:
            held.ended_by = LIMIT
        else:
            return (Turn(USER, reply.words),)
        return ()

    async def _reply(self, held: Conversation) -> UserReply:
        """Return the user's reply; one that cannot be read, or was cut off, is asked for once more.

        Raises:
            ProviderShapeError: the second one is no better.
        """
        provider = self._user.provider
        assert provider is not None
        messages = user_messages(self._instructions, held.turns)
        response, sent, is_cut = ModelResponse(()), list[ModelRequest](), False
        for again in (False, True):
            if again:
                asked = _SHORTER if is_cut else _AGAIN
                messages = (*messages[:-1], Message(USER, f"{messages[-1].content}\n\n{asked}"))
            request = ModelRequest(
                messages, repeat_index=self._job.repeat_index, role=Role.USER, purpose=Purpose.USER_TURN
            )
            sent.append(request)
            response = await self._context.generate(provider, request)
            held.usage[Role.USER] = held.usage.get(Role.USER, Usage()) + response.usage
            is_call = bool(response.tool_calls) and not calls_beside(response.text, response.tool_calls)
            is_cut = any(map(is_cut_off, response.choices))
            reply = None if is_call or is_cut else read_reply(response.text, self._ends)
            if reply is not None and (reply.words or held.responses):
                return reply
        model = self._context.tools.judge_for(provider)
        if isinstance(model, KeepingJudge):  # so that a retry does not find them in the cache
            for request in sent:
                await model.forget(request)
        what = "was cut off by a token limit" if is_cut else "is no message of a user"
        raise ProviderShapeError(
            f'the reply of {provider.public_id} {what}: "{shortened(response.text)}"',
            provider_id=provider.public_id,
            body=response.text,
            hint="raise `max_tokens` of `user`" if is_cut else "use a more capable model as `user`",
        )

    async def _holds(self, spec: Assertion, held: Conversation) -> bool:
        """Return whether `done_when` holds for the last answer.

        Raises:
            UnjudgeableError: it could not be judged.
        """
        response = held.responses[-1]
        subject = Subject(
            self._test,
            held.turns[-1].content,
            held.sent,
            self._job.repeat_index,
            response=response,
            provider=self._job.provider,
            rules=self._context.tools.rules,
            turns=tuple(held.turns),
            called=None if self._called is None else tuple(self._called),
        )
        result = await self._context.judge(spec, subject, self._context.tools)
        held.usage[Role.JUDGE] = held.usage.get(Role.JUDGE, Usage()) + result.usage
        if result.error is not None:
            message = f"`done_when` could not be judged: {result.error.message}"
            raise UnjudgeableError(message, hint=result.error.hint)
        return result.status is Status.PASSED


def instructions(
    goal: str, profile: str | Mapping[str, JsonValue] | None, done_when: str, ends: Sequence[str]
) -> str:
    """Return what the user's model is told before the conversation."""
    when = {
        GOAL: f"As soon as you have what you want ({done_when})"
        if done_when
        else "As soon as you have what you want",
        GAVE_UP: "If this person would give up, since the assistant does not help or goes round in circles",
    }
    told = "" if profile is None else _PROFILE.format(profile=_profile_text(profile))
    return _INSTRUCTIONS.format(
        profile=told,
        goal=goal,
        ends="\n".join(_END_BY_SELF.format(when=when[end], mark=_MARKS[end]) for end in ends),
    )


def _profile_text(profile: str | Mapping[str, JsonValue]) -> str:
    if isinstance(profile, str):
        return profile
    return "\n".join(
        f"- {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in profile.items()
    )


def user_messages(told: str, said: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the conversation with its roles exchanged, as the user's model sees it: without tools and their calls."""
    messages = [Message("system", told), Message(USER, _BEGIN)]
    for turn in said:
        if turn.role not in {USER, ASSISTANT} or not turn.content:
            continue
        role = ASSISTANT if turn.role == USER else USER
        if messages[-1].role == role and len(messages) > 2:  # noqa: PLR2004 - what the assistant says beside calls
            messages[-1] = Message(role, f"{messages[-1].content}\n\n{turn.content}")
        else:
            messages.append(Message(role, turn.content))
    if messages[-1].role == ASSISTANT:
        messages.append(Message(USER, "(The assistant says nothing.)"))
    return tuple(messages)
