"""A prompt of the config and a test case become the messages that are sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from geval_cli.config.schema import PromptSpec
from geval_cli.config.suite import TestCase
from geval_cli.errors import TemplateError
from geval_cli.providers.conversation import message_list
from geval_cli.records import JsonValue, Message
from geval_cli.templating import Templates


@dataclass(frozen=True, slots=True)
class Rendered:
    """The messages to send, and the `text` that results show: the prompt, or the messages as JSON.

    `system` is the system message of a `{system: ...}` prompt, whose other side is the test's input; None for others.
    """

    messages: tuple[Message, ...]
    text: str
    system: str | None = None


def render_prompt(prompt: PromptSpec, test: TestCase, templates: Templates) -> Rendered:
    """Put the test's variables into the prompt.

    Raises:
        TemplateError: a template is broken or names something undefined, or a `{system: ...}` prompt meets a test
            without `input`.
    """
    variables = test.variables
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
