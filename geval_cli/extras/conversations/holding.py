"""Hold a conversation with the model under test.

What the user says is written in the test, or said by a second model, which is shown the conversation and plays the user
until it is over.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, CheckContext, MergedTest, Subject, shortened
from geval_cli.assertions.json_text import calls_beside
from geval_cli.engine.case import Generate, JobContext, ask_model
from geval_cli.engine.conversation import as_one
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import Rendered, render_prompt
from geval_cli.errors import (
    GevalError,
    Problem,
    ProviderShapeError,
    Severity,
    UndoneError,
    UnjudgeableError,
)
from geval_cli.judge.calls import is_cut_off
from geval_cli.judge.metric import CachingJudge
from geval_cli.judge.source import ASSISTANT, USER, last_words
from geval_cli.providers.wire.chat import message_list, tool_call
from geval_cli.records import (
    CaseResult,
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
from geval_cli.specs.base import PromptSpec
from geval_cli.suite.prompts import NO_PROMPT
from geval_cli.templating import Templates

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

_TWO_WORDS = ("some words", "other text")


class Conversation(Struct):
    """A conversation so far: the turns, the answers as they came, what was sent last, and the error that ended it.

    `failed_at` names the turn of the error, before what the error says. `said` are the messages of all turns, each as
    people read it and as the API wants it back. Whoever says the user's turns notes in `usage` what that took, and in
    `ended_by` why the conversation is over.
    """

    turns: list[Turn] = field(default_factory=list)
    responses: list[ModelResponse] = field(default_factory=list)
    sent: str = ""
    error: GevalError | None = None
    failed_at: str = ""
    said: list[tuple[Message, Message]] = field(default_factory=list)
    usage: dict[Role, Usage] = field(default_factory=dict)
    ended_by: str | None = None

    def record(self, turns: Iterable[Turn]) -> None:
        """Add what somebody else than the model said."""
        for turn in turns:
            self.turns.append(turn)
            self.said.append((_message(turn), _message(turn)))

    def note_answer(self, response: ModelResponse) -> None:
        """Add an answer of the model, and the tools that were called on the way to it."""
        for turn, message in response.between:
            self.turns.append(turn)
            self.said.append((_message(turn), message))
        self.responses.append(response)
        calls = calls_beside(response.text, response.tool_calls)
        self.turns.append(Turn(ASSISTANT, response.text, calls))
        # Nothing answers further calls of an answer, and APIs refuse calls without an answer.
        self.said.append((Message(ASSISTANT, response.text), Message(ASSISTANT, response.text)))

    @property
    def response(self) -> ModelResponse | None:
        """The last answer, with the usage and the time of all of them; None where there is none."""
        return as_one(self.responses) if self.responses else None

    @property
    def is_from_cache(self) -> bool:
        return all(item.is_from_cache for item in self.responses)

    def result(self, blank: CaseResult) -> CaseResult:
        """Return the result of the conversation before it is judged."""
        usage = {**blank.usage, **self.usage}
        response = self.response
        is_whole = self.error is None
        if response is None:
            return replace(blank, turns=tuple(self.turns), usage=usage)
        return replace(
            blank,
            output=response.text if is_whole else None,
            finish_reason=response.choices[0].finish_reason,
            tool_calls=response.tool_calls,
            latency_ms=response.latency_ms,
            cost_usd_generated=response.cost_usd_generated,
            cached=self.is_from_cache and is_whole,
            reported=response.choices[0].reported if is_whole else {},
            usage={**usage, Role.GENERATION: response.usage},
            turns=tuple(self.turns),
            ended_by=UNSET if self.ended_by is None else self.ended_by,
        )


class ScriptedUser:
    """The turns of a test: one after the other, or all at once where they were said before."""

    def __init__(self, test: MergedTest) -> None:
        self._rest = iter([(turn,) for turn in test.turns] if test.plays_turns else [test.turns])

    async def next_turns(self, held: Conversation) -> Sequence[Turn]:
        return next(self._rest, ())


async def hold_conversation(
    job: Job,
    test: MergedTest,
    context: JobContext,
    opaque: Mapping[str, JsonValue],
    generate: Generate,
    called: Sequence[TraceStep] | None,
) -> Conversation:
    """Have the model answer one turn after the other, each time with all that was said before.

    The messages of the prompt come first. Where the last of them is the user's, it is the form of what the user says:
    rendered with those words as `input`. Turns themselves are data and are never rendered.

    An error of the model, or of who gives the turns, ends the conversation; it names the turn, and what was said before
    stays.

    Args:
        job: the job, with the prompt and the provider.
        test: the test, with its variables as templates see them.
        context: the templates, and what asks and judges a simulated user.
        opaque: the variables that came from models, which are never rendered.
        generate: asks the model under test.
        called: the tools that were called so far; None where the test has no tools.

    Raises:
        UndoneError: the run may spend no more, or an answer comes with a batch.
        TemplateError: the prompt cannot be rendered.
    """
    model = replace(context, generate=generate)
    held = Conversation()
    user = ScriptedUser(test) if test.user is None else SimulatedConversation(job, test, context, called)
    opening: tuple[Message, ...] | None = None
    while True:
        try:
            new = await user.next_turns(held)
        except UndoneError:
            raise
        except GevalError as error:
            return _broken_off(held, error, test, ", the user")
        if not new:
            return held
        asked = replace(test, turns=(), user=None, input=last_words(new) or "")
        first, form = _parts_of_prompt(job.prompt, asked, context.tools.templates, opaque)
        opening = first if opening is None else opening  # it was said once, whatever the user says later
        # The messages of a turn: those of the prompt, what was said before, and what is `new`.
        added = [*map(_message, new)]
        if form is not None and new[-1].role == USER:
            added[-1] = form
        shown = [*opening, *(message for message, _ in held.said), *added]
        messages = (*opening, *(message for _, message in held.said), *added)
        rendered = Rendered(messages, json.dumps(message_list(shown), ensure_ascii=False))
        held.record(new)
        held.sent = rendered.text
        try:
            response = await ask_model(job, asked, rendered, model)
        except UndoneError:
            raise
        except GevalError as error:
            return _broken_off(held, error, test)
        held.note_answer(response)


def _broken_off(held: Conversation, error: GevalError, test: MergedTest, who: str = "") -> Conversation:
    held.error = error
    if test.plays_turns:
        number = sum(turn.role == USER for turn in held.turns) + bool(who)
        total = "" if test.user is not None else f" of {len(test.turns)}"
        held.failed_at = f"at turn {number}{total}{who}: "
    return held


def _parts_of_prompt(
    prompt: PromptSpec, asked: MergedTest, templates: Templates, opaque: Mapping[str, JsonValue]
) -> tuple[tuple[Message, ...], Message | None]:
    """Return the messages that open a conversation, and the user's words in the form that the prompt gives them."""
    if prompt == NO_PROMPT:
        shown = "\n".join((*asked.images, *asked.audio))
        return (), Message(USER, f"{asked.input}\n\n{shown}") if shown else None
    messages = render_prompt(prompt, asked, templates, opaque).messages
    if messages[-1].role != USER:
        return messages, None
    return messages[:-1], messages[-1]


def _message(turn: Turn) -> Message:
    further: dict[str, JsonValue] = {}
    if turn.tool_calls:
        further["tool_calls"] = [as_wire_call(call) for call in turn.tool_calls]
    if turn.tool_call_id is not None:
        further["tool_call_id"] = turn.tool_call_id
    return Message(turn.role, turn.content, further)


def as_wire_call(call: Mapping[str, JsonValue]) -> JsonValue:
    """Return a call of a tool as chat APIs take it, which a test may write in short as {id, name, args}."""
    if "function" in call or "name" not in call:
        return dict(call)
    return tool_call(call["name"], call.get("args", call.get("arguments")), call.get("id"))


def history_text(test: MergedTest) -> str:
    """Return what was said before the output of a conversation that was held, as chat messages in JSON."""
    before = test.turns[:-1] if test.ends_with_answer else test.turns
    return json.dumps(message_list([*map(_message, before)]), ensure_ascii=False)


def check_turns(test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield a warning where a test with turns has an input, too, which none of them says."""
    words = {turn.content for turn in test.turns if turn.role == USER}
    if test.input is not None and test.input not in words:
        message = f"`input` is not used ({context.where}): the user's words come from its `turns`"
        yield Problem(message, test.place.key("input"), "leave one out", severity=Severity.WARNING)


def check_prompt_of_turns(prompt: PromptSpec, test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield what is wrong with a prompt for the turns of a test: it has to say what the user says.

    Raises:
        TemplateError: the prompt cannot be rendered.
    """
    if test.ends_with_answer or prompt == NO_PROMPT or (test.turns and test.turns[-1].role != USER):
        return
    forms = []
    for words in _TWO_WORDS:
        asked = replace(test, turns=(), user=None, input=words)
        forms.append(_parts_of_prompt(prompt, asked, context.templates, {})[1])
    if forms[0] is not None and forms[0] == forms[1]:
        name = prompt.label or prompt.id
        message = f"the prompt `{name}` does not use the user's words from the turns ({context.where})"
        hint = "put {{ input }} where the user's words belong"
        if "input" in test.vars:
            hint = "remove the variable `input` from `vars`: it hides them"
        yield Problem(message, prompt.place.value(), hint)


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


class SimulatedConversation:
    """The user's side of one conversation. Its model sees the goal, the profile and what was said, and nothing else."""

    def __init__(
        self, job: Job, test: MergedTest, context: JobContext, called: Sequence[TraceStep] | None = None
    ) -> None:
        """Begin; `test` has its variables as templates see them, and `called` grows with each tool that is called.

        Raises:
            TemplateError: a text of the user cannot be rendered.
        """
        assert test.user is not None
        self._job = job
        self._test = test
        self._context = context
        self._user = test.user
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
        response = ModelResponse(())
        sent = list[ModelRequest]()
        is_cut = False
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
        if isinstance(model, CachingJudge):  # so that a retry does not find them in the cache
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
