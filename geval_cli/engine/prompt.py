"""A prompt of the config and a test case become the messages that are sent."""

import json
from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.config.dialect import Dialect
from geval_cli.config.promptfoo.specs import NamedPromptSpec
from geval_cli.config.schema import PromptSpec
from geval_cli.config.suite import TestCase
from geval_cli.engine.promptfoo_prompt import (
    as_sent,
    chat_messages,
    render_text,
    resolved_variables,
    shown_text,
)
from geval_cli.errors import TemplateError
from geval_cli.providers.conversation import message_list
from geval_cli.records import JsonValue, Message
from geval_cli.templating import Templates

_NOTHING: Mapping[str, JsonValue] = {}


class Rendered(Struct, frozen=True):
    """The messages to send, and the `text` that results show: the prompt, or the messages as JSON.

    `system` is the system message of a `{system: ...}` prompt, whose other side is the test's input; None for others.
    `sent` is the whole prompt as one text, where that is not what `text` shows.
    """

    messages: tuple[Message, ...]
    text: str
    system: str | None = None
    sent: str | None = None

    @property
    def whole(self) -> str:
        """The prompt as one text, as it is sent."""
        return self.text if self.sent is None else self.sent


def render_prompt(
    prompt: PromptSpec, test: TestCase, templates: Templates, opaque: Collection[str] = ()
) -> Rendered:
    """Put the test's variables into the prompt; the values of `opaque` ones came from a model.

    Raises:
        TemplateError: a template is broken or names something undefined, or a `{system: ...}` prompt meets a test
            without `input`.
    """
    variables = test.variables
    if templates.dialect is Dialect.PROMPTFOO and prompt.raw is not None:
        is_made = isinstance(prompt, NamedPromptSpec) and bool(prompt.made_by)
        raw = prompt.raw if is_made else _with_surroundings(prompt.raw, test)
        # What a program wrote may hold answers of models, which are never rendered.
        is_final = is_made and bool(opaque)
        sent = as_sent(raw) if is_final else render_text(raw, variables, templates, opaque)
        return Rendered(chat_messages(sent), shown_text(sent), sent=sent)
    if prompt.system is not None:
        if test.input is None:
            raise TemplateError(
                "a `system` prompt needs the test's `input` as its user message",
                hint="give the test an `input`",
            )
        # The input is data, as vars are: a question about templates must arrive as it is.
        system = templates.render(prompt.system, variables)
        return replace(_chat(Message("system", system), Message("user", test.input)), system=system)
    if prompt.messages is not None:
        return _chat(
            *(
                Message(item.role, _render_content(item.content, variables, templates))
                for item in prompt.messages
            )
        )
    text = templates.render(prompt.raw or "", variables)
    return Rendered((Message("user", text),), text)


def prompt_params(prompt: PromptSpec) -> dict[str, JsonValue]:
    """The parameters that a prompt brings for the model."""
    return prompt.params if isinstance(prompt, NamedPromptSpec) else {}


def seen_by_templates(
    test: TestCase, templates: Templates, earlier: Mapping[str, JsonValue] = _NOTHING
) -> TestCase:
    """The test with the variables that templates see: in promptfoo's dialect variables may name others.

    `earlier` are variables that models made in earlier jobs; they are never rendered.
    """
    if templates.dialect is not Dialect.PROMPTFOO:
        return test
    return replace(test, vars=resolved_variables({**test.vars, **earlier}, earlier))


def _with_surroundings(raw: str, test: TestCase) -> str:
    """`raw` between the test's prefix and suffix. What programs make is no place for them: it may be a chat."""
    return f"{test.directions.prefix or ''}{raw}{test.directions.suffix or ''}"


def _chat(*messages: Message) -> Rendered:
    return Rendered(messages, json.dumps(message_list(messages), ensure_ascii=False))


def _render_content(
    content: JsonValue, variables: Mapping[str, JsonValue], templates: Templates
) -> JsonValue:
    if isinstance(content, str):
        return templates.render(content, variables)
    if isinstance(content, list):
        return [_render_content(item, variables, templates) for item in content]
    if isinstance(content, dict):
        return {key: _render_content(item, variables, templates) for key, item in content.items()}
    return content
