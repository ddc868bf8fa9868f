"""Turns a prompt of the config and a test case into the messages that are sent."""

import json
from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest
from geval_cli.errors import TemplateError
from geval_cli.judge.source import last_words
from geval_cli.plugins import extra
from geval_cli.providers.wire.chat import message_list
from geval_cli.records import JsonValue, Message
from geval_cli.specs.base import PromptSpec
from geval_cli.specs.promptfoo import NamedPromptSpec
from geval_cli.templating import Templates

REQUESTS = "requests of promptfoo"
"""The name in `plugins.EXTRAS` of the module that makes requests from prompts by promptfoo's rules."""

_NOTHING: Mapping[str, JsonValue] = {}


class Rendered(Struct, frozen=True):
    """The messages to send, and the `text` that results show: the prompt, or the messages as JSON.

    `system` is the system message of a `{system: ...}` prompt, whose user message is the test's input; None for other
    prompts. `sent` is the whole prompt as one text, if that differs from `text`.
    """

    messages: tuple[Message, ...]
    text: str
    system: str | None = None
    sent: str | None = None

    @property
    def whole(self) -> str:
        """Return the prompt as one text, as it is sent."""
        return self.text if self.sent is None else self.sent


def render_prompt(
    prompt: PromptSpec, test: MergedTest, templates: Templates, opaque: Collection[str] = ()
) -> Rendered:
    """Render the prompt with the test's variables; the values of `opaque` ones came from a model.

    If the test has turns, the input is the user's first message where the turns are to be played, else the last one.

    Raises:
        TemplateError: a template is broken or uses an undefined name, or the prompt is `{system: ...}` and the test has
            no `input`.
    """
    rendered = _rendered(prompt, test, templates, opaque)
    missing = [marker for marker in (*test.images, *test.audio) if marker not in rendered.text]
    if not missing:
        return rendered
    # Images and audio that the template does not place go after the user's last message.
    shown = "\n".join(missing)
    *before, last = rendered.messages
    if rendered.text == last.content and not before:
        text = f"{last.content}\n\n{shown}" if last.content else shown
        return replace(rendered, messages=(replace(last, content=text),), text=text)
    place = max((i for i, item in enumerate(rendered.messages) if item.role == "user"), default=-1)
    if place < 0:
        return _chat(*rendered.messages, Message("user", shown))
    asked = rendered.messages[place]
    if isinstance(asked.content, list):
        content: JsonValue = [*asked.content, {"type": "text", "text": shown}]
    else:
        content = f"{asked.content}\n\n{shown}"
    messages = [*rendered.messages]
    messages[place] = replace(asked, content=content)
    return replace(_chat(*messages), system=rendered.system)


def _rendered(
    prompt: PromptSpec, test: MergedTest, templates: Templates, opaque: Collection[str]
) -> Rendered:
    if test.is_conversation:
        test = replace(test, input=last_words(test.turns[:1] if test.plays_turns else test.turns) or "")
    variables = test.variables
    if templates.rules.prompts_spell_chats and prompt.raw is not None:
        rendered: Rendered = extra(REQUESTS).rendered_prompt(prompt, test, templates, opaque)
        return rendered
    if prompt.system is not None:
        if test.input is None:
            raise TemplateError(
                "a `system` prompt needs the test's `input` as the user message",
                hint="give the test an `input`",
            )
        # Like vars, the input is data and is not rendered: a question about templates must arrive unchanged.
        system = templates.render(prompt.system, variables)
        return replace(_chat(Message("system", system), Message("user", test.input)), system=system)
    if prompt.messages is not None:
        return _chat(
            *(
                Message(item.role, render_content(item.content, variables, templates))
                for item in prompt.messages
            )
        )
    text = templates.render(prompt.raw or "", variables)
    return Rendered((Message("user", text),), text)


def prompt_params(prompt: PromptSpec) -> dict[str, JsonValue]:
    """Return the parameters that a prompt sets for the model."""
    return prompt.params if isinstance(prompt, NamedPromptSpec) else {}


def seen_by_templates(
    test: MergedTest, templates: Templates, earlier: Mapping[str, JsonValue] = _NOTHING
) -> MergedTest:
    """Return the test with the variables that templates see; in some dialects, variables may use other variables.

    `earlier` are variables that models produced in earlier jobs; they are never rendered.
    """
    if not templates.rules.nested_variables:
        return test
    return replace(test, vars=extra(REQUESTS).resolved_variables({**test.vars, **earlier}, earlier))


def shown_prompt(prompt: PromptSpec, test: MergedTest) -> dict[str, JsonValue]:
    """Return the prompt as programs and transforms see it: its template, not the rendered text."""
    return {
        "raw": template_of(prompt, test),
        "label": prompt.label,
        "config": prompt_params(prompt),
        "template": prompt.raw or "",
    }


def template_of(prompt: PromptSpec, test: MergedTest) -> str:
    """Return the prompt's template between the test's prefix and suffix; a prompt made by a program gets neither."""
    raw = prompt.raw or ""
    if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
        return raw
    return f"{test.promptfoo.prefix or ''}{raw}{test.promptfoo.suffix or ''}"


def _chat(*messages: Message) -> Rendered:
    return Rendered(messages, json.dumps(message_list(messages), ensure_ascii=False))


def render_content(content: JsonValue, variables: Mapping[str, JsonValue], templates: Templates) -> JsonValue:
    """Return a value with every text in it rendered."""
    if isinstance(content, str):
        return templates.render(content, variables)
    if isinstance(content, list):
        return [render_content(item, variables, templates) for item in content]
    if isinstance(content, dict):
        return {key: render_content(item, variables, templates) for key, item in content.items()}
    return content
