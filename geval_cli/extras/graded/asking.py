"""Asks an assertion's judge a question, with geval's prompt or the user's own."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct, field

from geval_cli.assertions.base import (
    CheckContext,
    MergedTest,
    ModelGradedAssertion,
    Subject,
    Tools,
    render_deep,
)
from geval_cli.assertions.judges import judge_provider
from geval_cli.errors import ConfigError, JudgeError, Problem, Severity, UnjudgeableError
from geval_cli.judge.calls import JudgeCalls, whole_text
from geval_cli.judge.prompt import Block, question_text, user_message
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, Purpose, Role
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import RubricPromptSpec, TestOptionsSpec
from geval_cli.templating.js_text import js_json

Part = Literal["evaluate", "steps"]


_LISTS: Mapping[str, JsonValue] = {
    "messages": [{"role": "user", "content": "text"}, {"role": "assistant", "content": "text"}],
    **{name: ["text", "text"] for name in ("outputs", "choices", "statements")},
}
"""Names that are lists, as a prompt is checked with them."""

_YAML_CHAT = ("- role:", '- "role":', "- 'role':")


Read = TypeVar("Read")


class Question(Struct, frozen=True):
    """A question to a judge.

    Attributes:
        name: of geval's prompt.
        blocks: the texts that it shows.
        names: what the user's own prompt can refer to besides the test's variables.
        schema: of the answer to geval's own prompt, if it is JSON.
        part: which of the user's own prompts replaces geval's.
        purpose: the purpose of the answer.
        prompt: the text of an installed package's prompt, in the same form as geval's, which replaces the one called
        `name`.
    """

    name: str
    blocks: tuple[Block, ...]
    names: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    part: Part = "evaluate"
    purpose: Purpose = Purpose.VERDICT
    prompt: str = ""


class JudgeClient:
    """Asks one assertion's judge about one output, and adds up the time taken."""

    def __init__(self, spec: ModelGradedAssertion, subject: Subject, tools: Tools) -> None:
        self._spec = spec
        self._subject = subject
        self._tools = tools
        judge = tools.judge_for(judge_provider(spec, subject.test, tools.defaults, spec.judge_kinds[0]))
        self._calls = JudgeCalls(judge, tools.judge_facts)

    @property
    def latency_ms(self) -> float:
        return self._calls.latency_ms

    async def ask(self, question: Question, read: Callable[[str], Read]) -> Read:
        """Return the judge's reply, parsed by `read`; a reply that cannot be parsed is requested once more.

        Raises:
            JudgeError: the second reply cannot be parsed either.
            ProviderError: the judge could not answer.
        """
        return await self.ask_choice(question, lambda choice: read(whole_text(choice)))

    async def ask_choice(
        self, question: Question, read: Callable[[Choice], Read], *, want_logprobs: bool = False
    ) -> Read:
        """Like `ask`, with a reader that also sees the token probabilities, if they are wanted and given.

        Raises:
            JudgeError, ProviderError: as in `ask`.
        """
        request = self._request(question, temperature=0, want_logprobs=want_logprobs)
        return await self._calls.read(request, read)

    async def ask_several(
        self, question: Question, count: int, read: Callable[[str], Read]
    ) -> Sequence[Read]:
        """Return `count` different replies, parsed by `read`; fewer if some of them failed.

        Raises:
            JudgeError: none of them can be parsed.
            ProviderError: the judge could not answer.
        """
        # At 0, several answers would mostly be one.
        request = self._request(question, temperature=1, samples=count)
        response = await self._calls.ask(request)
        found, problems = [], []
        for choice in response.choices:
            try:
                found.append(read(whole_text(choice)))
            except JudgeError as error:
                problems.append(error)
        if not found:
            raise problems[0]
        return found

    def _request(
        self, question: Question, *, temperature: int, samples: int = 1, want_logprobs: bool = False
    ) -> ModelRequest:
        own = own_prompt(self._spec, self._subject.test, question.part)
        if own is None:
            messages = user_message(question_text(question.name, question.blocks, prompt=question.prompt))
        else:
            variables = {**self._subject.test.variables, **question.names}
            messages = own_messages(own, variables, self._tools)
        return ModelRequest(
            messages,
            params=self._calls.params(temperature=temperature),
            sample_indexes=tuple(range(samples)),
            repeat_index=self._subject.repeat_index,
            want_logprobs=want_logprobs,
            # A prompt of the user's own may ask for an answer in another form.
            response_schema=question.schema if own is None else None,
            role=Role.JUDGE,
            purpose=question.purpose,
        )


def own_prompt(spec: ModelGradedAssertion, test: MergedTest, part: Part = "evaluate") -> str | None:
    """Return the user's own prompt for a question, from the nearest level that has one."""
    owner = _owner(spec, test)
    written = None if owner is None else owner.rubric_prompt
    if isinstance(written, RubricPromptSpec):
        return written.evaluate if part == "evaluate" else written.steps
    return written if part == "evaluate" else None


def own_messages(template: str, variables: Mapping[str, JsonValue], tools: Tools) -> tuple[Message, ...]:
    """Return the messages of the user's own prompt: those written in it as JSON or YAML, or else a single one.

    In a template that is JSON, each text is rendered by itself, so that no value can break the JSON.

    Raises:
        TemplateError: it cannot be rendered.
    """
    # In promptfoo, mappings, also those in a list, are text in such a prompt.
    if tools.rules.template_language == "nunjucks":
        variables = {name: _with_texts(value) for name, value in variables.items()}
    written = _chat(template)
    if written is None:
        text = tools.templates.render(template, variables)
        return _messages(_chat(text)) or user_message(text)
    rendered = render_deep(written, lambda item: tools.templates.render(item, variables))
    return _messages(rendered) or user_message(json.dumps(rendered, ensure_ascii=False))


def _with_texts(value: JsonValue) -> JsonValue:
    if isinstance(value, list | tuple):
        return [js_json(item) if isinstance(item, dict | list | tuple) else item for item in value]
    return js_json(value) if isinstance(value, dict) else value


def check_own_prompt(
    spec: ModelGradedAssertion,
    context: CheckContext,
    names: Sequence[str],
    problems: list[Problem],
    *,
    in_steps: Sequence[str] = (),
) -> None:
    """Report why the user's own prompt cannot be rendered.

    It can refer to `names`; as `{steps, evaluate}`, its first part only to those `in_steps`.
    """
    owner = _owner(spec, context.test)
    if owner is None:
        return
    parts: Mapping[Part, Sequence[str]] = {"evaluate": names, "steps": in_steps}
    for part, known in parts.items():
        variables = {**context.test.variables, **{name: _LISTS.get(name, "text") for name in known}}
        template = own_prompt(spec, context.test, part) if known else None
        if template is not None:
            place = owner.place.spelled("rubricPrompt", "rubric_prompt")
            context.render(template, place, problems, variables=variables)


def check_value(
    spec: ModelGradedAssertion, value: JsonValue, what: str, context: CheckContext, problems: list[Problem]
) -> None:
    """Report broken templates in a `value`, and a blank value, by which a paid judge could decide nothing."""
    place = spec.place.child("value")

    def check(part: JsonValue, at: SourcePath) -> bool:
        """Return whether this part of the value is, or may be, not blank."""
        if isinstance(part, list | tuple):
            return True in {check(item, at.child(index)) for index, item in enumerate(part)}
        if isinstance(part, dict):
            return True in {check(item, at.child(key)) or bool(key.strip()) for key, item in part.items()}
        text = context.render(part, at, problems) if isinstance(part, str) else part
        return text is None or not isinstance(text, str) or bool(text.strip())

    if not check(value, place) and own_prompt(spec, context.test) is None:
        severity = Severity.WARNING if context.rules.skips_null else Severity.ERROR
        hint = f"write the {what} in `value`, or leave the assertion out of this test"
        message = f"{spec.type} has no {what} ({context.where}): its `value` is empty"
        problems.append(Problem(message, place.value(), hint, severity=severity))


def _owner(spec: ModelGradedAssertion, test: MergedTest) -> ModelGradedAssertion | TestOptionsSpec | None:
    levels = (spec, test.options, test.default_options)
    return next((level for level in levels if level.rubric_prompt is not None), None)


def _chat(text: str) -> JsonValue:
    """Return the list or mapping that a text is in JSON, or the chat that it is in YAML; None if it is neither."""
    start = text.lstrip()
    if start.startswith(_YAML_CHAT):
        try:
            return read_yaml(text, "rubricPrompt").value
        except ConfigError:
            return None
    if not start.startswith(("[", "{")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _messages(found: JsonValue) -> tuple[Message, ...]:
    if not isinstance(found, list) or not found:
        return ()
    if not all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in found):
        return ()
    return tuple(Message(str(item["role"]), item["content"]) for item in found)


def question_of(subject: Subject) -> str:
    """Return the question: the variable `query`, or else the test's input, or else the whole task."""
    query = subject.test.variables.get("query")
    return query if isinstance(query, str) and query else subject.test.input or task_of(subject)


def task_of(subject: Subject) -> str:
    """Return the prompt; for an output that came without one, the question that it answers, if the test has one."""
    said = [{"role": turn.role, "content": turn.content} for turn in subject.conversation[:-1]]
    variables = subject.test.variables
    asked = (variables.get("query"), subject.test.input, variables.get("input"))
    texts = (subject.rendered_prompt, *asked, json.dumps(said, ensure_ascii=False) if said else "")
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def needed_question(subject: Subject) -> str:
    """Return the question.

    Raises:
        UnjudgeableError: the test has none.
    """
    if not (question := question_of(subject)).strip():
        hint = "set `input` in the test, or the variable `query`"
        raise UnjudgeableError("the test has no question: neither a prompt nor an `input`", hint=hint)
    return question
