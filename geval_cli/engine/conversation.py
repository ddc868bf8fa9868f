"""Hold a conversation with the model under test, and keep what later tests of a run see of earlier ones."""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest, Subject
from geval_cli.assertions.json_text import calls_beside
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import Rendered, render_prompt
from geval_cli.errors import GevalError, Problem, Severity, UndoneError
from geval_cli.judge.source import ASSISTANT, USER, last_words
from geval_cli.providers.wire.chat import message_list, tool_call
from geval_cli.records import JsonValue, Message, ModelResponse, Role, Turn, Usage
from geval_cli.specs.base import PromptSpec
from geval_cli.specs.promptfoo import NamedPromptSpec
from geval_cli.suite.prompts import NO_PROMPT
from geval_cli.templating import Templates

CONVERSATION_ID = "conversationId"
"""The key of a test's metadata that names its conversation."""

CONVERSATION = "_conversation"
"""The variable that holds the former turns: a list of prompt, input, output and a program's metadata."""


def uses_conversation(prompt: PromptSpec) -> bool:
    """Return whether a prompt uses former turns."""
    if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
        return prompt.sees_conversation
    return CONVERSATION in (prompt.raw or "")


def is_order_bound(test: MergedTest) -> bool:
    """Return whether later tests may depend on this one."""
    return test.promptfoo.store_output_as is not None


class ConversationState(Struct):
    """The outputs and turns that jobs leave to later ones; such jobs run one after another."""

    _outputs: dict[str, JsonValue] = field(default_factory=dict)
    _turns: dict[str, list[JsonValue]] = field(default_factory=dict)

    def variables_for(self, job: Job) -> dict[str, JsonValue]:
        """Return the variables added to a job's test. All of them came from models, and are never rendered."""
        found = dict(self._outputs)
        if uses_conversation(job.prompt) and not job.test.promptfoo.disable_conversation_var:
            found[CONVERSATION] = list(self._turns.get(_conversation_of(job), ()))
        return found

    def record(self, job: Job, subject: Subject) -> None:
        """Keep the request and the answer of a job for those after it."""
        output = subject.output
        name = job.test.promptfoo.store_output_as
        if name:
            self._outputs[name] = output
        if uses_conversation(job.prompt):
            prompt = _as_json(subject.rendered_prompt)
            last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
            said = last.get("content", last) if isinstance(last, dict) else last
            turn = {"prompt": prompt, "input": said, "output": "" if output is None else output}
            if "metadata" in subject.reported:
                turn["metadata"] = subject.reported["metadata"]
            self._turns.setdefault(_conversation_of(job), []).append(turn)


def _conversation_of(job: Job) -> str:
    own = job.test.metadata.get(CONVERSATION_ID, "")
    return f"{job.column}:{job.repeat_index}:{own}"


def _as_json(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_TWO_WORDS = ("some words", "other text")

Ask = Callable[[MergedTest, Rendered], Awaitable[ModelResponse]]
"""Sends the messages of one turn; the test has what the user says as its input."""


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
    def response(self) -> ModelResponse:
        """The last answer, with the usage and the time of all of them."""
        return as_one(self.responses)

    @property
    def is_from_cache(self) -> bool:
        return all(item.is_from_cache for item in self.responses)


NextTurns = Callable[[Conversation], Awaitable[Sequence[Turn]]]
"""Gives what comes next, by all that was said before, for the model to answer; nothing ends the conversation."""


def as_one(responses: Sequence[ModelResponse]) -> ModelResponse:
    """Return the last of some answers, with the usage and the time of all of them."""
    return replace(
        responses[-1],
        usage=sum((item.usage for item in responses), Usage()),
        latency_ms=_sum_of_all([item.latency_ms for item in responses]),
        bought_usd=_sum_of_all([item.cost_usd_generated for item in responses]),
        cached=all(item.cached for item in responses),
        shared=all(item.shared for item in responses),
    )


def _sum_of_all(values: Sequence[float | None]) -> float | None:
    """Return the sum; None where one of them is unknown, as is how long an answer of a batch took."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def script_of(test: MergedTest) -> NextTurns:
    """Return what gives the turns of a test: one after the other, or all at once where they were said before."""
    parts = [test.turns[place : place + 1] for place in range(len(test.turns))]
    rest = iter(parts if test.plays_turns else [test.turns])

    async def next_turns(held: Conversation) -> Sequence[Turn]:
        return next(rest, ())

    return next_turns


async def hold_conversation(
    prompt: PromptSpec,
    test: MergedTest,
    templates: Templates,
    opaque: Mapping[str, JsonValue],
    ask: Ask,
    next_turns: NextTurns,
) -> Conversation:
    """Have the model answer what `next_turns` gives, each time with all that was said before.

    The messages of the prompt come first. Where the last of them is the user's, it is the form of what the user says:
    rendered with those words as `input`. Turns themselves are data and are never rendered.

    An error of the model, or of who gives the turns, ends the conversation; it names the turn, and what was said before
    stays.

    Raises:
        UndoneError: the run may spend no more, or an answer comes with a batch.
        TemplateError: the prompt cannot be rendered.
    """
    held = Conversation()
    opening: tuple[Message, ...] | None = None
    while True:
        try:
            new = await next_turns(held)
        except UndoneError:
            raise
        except GevalError as error:
            return _broken_off(held, error, test, ", the user")
        if not new:
            return held
        asked = replace(test, turns=(), user=None, input=last_words(new) or "")
        first, form = _parts_of_prompt(prompt, asked, templates, opaque)
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
            response = await ask(asked, rendered)
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


def check_conversation(
    prompt: PromptSpec, test: MergedTest, templates: Templates, *, where: str
) -> Iterator[Problem]:
    """Yield what is wrong with a prompt for the turns of a test: it has to say what the user says."""
    if not test.is_conversation or test.ends_with_answer or prompt == NO_PROMPT:
        return
    if test.turns and test.turns[-1].role != USER:
        return
    forms = []
    for words in _TWO_WORDS:
        asked = replace(test, turns=(), user=None, input=words)
        forms.append(_parts_of_prompt(prompt, asked, templates, {})[1])
    if forms[0] is not None and forms[0] == forms[1]:
        message = (
            f"the prompt `{prompt.label or prompt.id}` does not use the user's words from the turns ({where})"
        )
        hint = "put {{ input }} where the user's words belong"
        if "input" in test.vars:
            hint = "remove the variable `input` from `vars`: it hides them"
        yield Problem(message, prompt.place.value(), hint)


def check_input(test: MergedTest, *, where: str) -> Iterator[Problem]:
    """Yield a warning for an input that no one says: the turns have the user's words."""
    words = {turn.content for turn in test.turns if turn.role == USER}
    if test.is_conversation and test.input is not None and test.input not in words:
        message = f"`input` is not used ({where}): the user's words come from its `turns`"
        yield Problem(message, test.place.key("input"), "leave one out", severity=Severity.WARNING)
