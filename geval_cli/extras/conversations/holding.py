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
from geval_cli.engine.case import Generate, JobContext, ask_model, stored_prompt
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import Rendered, render_prompt, seen_by_templates
from geval_cli.errors import (
    GevalError,
    NotDoneError,
    Problem,
    ProviderShapeError,
    Severity,
    UnjudgeableError,
)
from geval_cli.judge.calls import is_cut_off
from geval_cli.judge.metric import CachingJudge
from geval_cli.judge.replies import without_thoughts
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
_MARK = r"[\[\u3010]{1,2} *(GOAL[ _]REACHED|GIVING[ _]UP) *[\]\u3011]{1,2}"
_AROUND = r"[\s*_`\"'.!\u3002\uff01]*"
_LINE = re.compile(rf"{_AROUND}{_MARK}{_AROUND}", re.IGNORECASE)
# Behind a whole sentence, of any script: "I will not write [[GIVING UP]]" says the opposite.
_FULL_STOPS = (
    r".!?…)\"'*_\u2019\u201d\u00bb\u3002\uff01\uff1f\uff0e\uff61\u300d\u300f\uff09\u0964\u061f\u06d4"
)
_BEHIND = re.compile(rf"(?<=[{_FULL_STOPS}])\s*{_MARK}{_AROUND}\Z", re.IGNORECASE)
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
        """Add turns that the model under test did not write."""
        for turn in turns:
            self.turns.append(turn)
            self.said.append((_message(turn), _message(turn)))

    def note_answer(self, response: ModelResponse) -> None:
        """Add an answer of the model, after the tool calls that led to it."""
        for turn, message in response.between:
            self.turns.append(turn)
            self.said.append((_message(turn), message))
        self.responses.append(response)
        calls = calls_beside(response.text, response.tool_calls)
        self.turns.append(Turn(ASSISTANT, response.text, calls))
        # The calls of a final answer stay unanswered, and APIs refuse messages with unanswered calls.
        self.said.append((Message(ASSISTANT, response.text), Message(ASSISTANT, response.text)))

    @property
    def response(self) -> ModelResponse | None:
        """The last answer, with the total usage and latency of all answers; None before the first."""
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


def as_one(responses: Sequence[ModelResponse]) -> ModelResponse:
    """Return the last of several answers, with the usage and time of all of them."""
    return replace(
        responses[-1],
        usage=sum((item.usage for item in responses), Usage()),
        latency_ms=_sum_of_all([item.latency_ms for item in responses]),
        original_usage=sum((item.usage_generated for item in responses), Usage()),
        cached=all(item.cached for item in responses),
        shared=all(item.shared for item in responses),
    )


def _sum_of_all(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if a value is unknown, such as the time of an answer that came in a batch."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class ScriptedUser:
    """Plays the turns written in a test: one at a time, or all at once if they are a history."""

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
    """Send the user's turns one by one, each with the conversation so far, and return the whole conversation.

    The prompt's messages come first. If the last of them is the user's, it is a template for each user turn, rendered
    with the turn's words as `input`. The turns themselves are data and are never rendered.

    An error of the model or of the simulated user ends the conversation: it names the turn, and earlier turns are kept.

    Args:
        job: the job, with its prompt and provider.
        test: the test, with its variables as templates see them.
        context: the templates, and the models that play and judge a simulated user.
        opaque: variables that came from models and are never rendered.
        generate: calls the model under test.
        called: the tool calls so far, updated during the conversation; None if the test has no tools.

    Raises:
        NotDoneError: the budget is used up, or an answer comes with a batch.
        TemplateError: the prompt cannot be rendered.
    """
    model = replace(context, generate=generate)
    held = Conversation()
    user = ScriptedUser(test) if test.user is None else SimulatedConversation(job, test, context, called)
    opening: tuple[Message, ...] | None = None
    while True:
        try:
            new = await user.next_turns(held)
        except NotDoneError:
            raise
        except GevalError as error:
            return _broken_off(held, error, test, ", the user")
        if not new:
            return held
        asked = replace(test, turns=(), user=None, input=last_words(new) or "")
        first, form = _parts_of_prompt(job.prompt, asked, context.tools.templates, opaque)
        opening = first if opening is None else opening  # later turns do not change what was already sent
        # Each request has the prompt's messages, the conversation so far, and the `new` turns.
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
        except NotDoneError:
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
    """Return the messages that open a conversation, and the user message that the prompt makes of the input."""
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
    """Convert a tool call to the form of chat APIs; a test may write it in short as {id, name, args}."""
    if "function" in call or "name" not in call:
        return dict(call)
    return tool_call(call["name"], call.get("args", call.get("arguments")), call.get("id"))


def carry(job: Job, found: CaseResult | None, context: JobContext) -> None:
    """Keep what later tests may use of a case that an interrupted run has finished: its turn and its output."""
    if found is None or (found.error is not None and not found.assertions):
        return
    earlier = context.carried.variables_for(job)
    test = seen_by_templates(job.test, context.tools.templates, earlier)
    whole, _ = stored_prompt(job, test, found, context.tools, earlier)
    context.carried.record(job, Subject(test, found.output, whole, reported=found.reported))


def history_text(test: MergedTest) -> str:
    """Return the turns before the output of a recorded conversation, as chat messages in JSON."""
    before = test.turns[:-1] if test.ends_with_answer else test.turns
    return json.dumps(message_list([*map(_message, before)]), ensure_ascii=False)


def check_turns(test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield a warning if a test with turns also has an `input` that is in none of them."""
    words = {turn.content for turn in test.turns if turn.role == USER}
    if test.input is not None and test.input not in words:
        message = f"`input` is not used ({context.where}): the user's words come from its `turns`"
        yield Problem(message, test.place.key("input"), "leave one out", severity=Severity.WARNING)


def check_prompt_of_turns(prompt: PromptSpec, test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield a problem if a prompt ignores the user's turns: it must contain the `input`.

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
    """A reply of the model that plays the user: the message to send, and the reason if it ends the conversation."""

    words: str
    end: str | None = None


def read_reply(text: str, ends: Sequence[str] = (GOAL, GAVE_UP)) -> UserReply | None:
    """Parse a reply of the model that plays the user; None if it is empty or ambiguous.

    An end mark counts on a line of its own or after a full sentence. Marks that are not among `ends` are dropped.
    """
    text = without_thoughts(text)
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
    """The simulated user of one conversation. Its model sees only the goal, the profile and the conversation."""

    def __init__(
        self, job: Job, test: MergedTest, context: JobContext, called: Sequence[TraceStep] | None = None
    ) -> None:
        """Render the user's texts. `test` has its variables as templates see them; `called` grows with each tool call.

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
        """Return the user's next turns; none at the end, after setting `held.ended_by`.

        Raises:
            GevalError: the user's model fails or gives no usable message, or `done_when` cannot be judged.
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
        # An end mark before the first answer is ignored, and so is a message after the last turn.
        if said and reply.end is not None:
            held.ended_by = reply.end
        elif said >= self._user.max_turns:
            held.ended_by = LIMIT
        else:
            return (Turn(USER, reply.words),)
        return ()

    async def _reply(self, held: Conversation) -> UserReply:
        """Return the user's reply; an unreadable or truncated one is requested once more.

        Raises:
            ProviderShapeError: the second reply is unusable as well.
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
