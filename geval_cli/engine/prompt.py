"""A prompt of the config and a test case become the messages that are sent."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest
from geval_cli.errors import ConfigError, Problem, Severity, TemplateError
from geval_cli.judge.source import last_words
from geval_cli.patterns import compile_later
from geval_cli.providers.promptfoo_params import PromptForm, prompt_form
from geval_cli.providers.wire.chat import message_list
from geval_cli.records import JsonValue, Message
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating import Templates
from geval_cli.templating.js_text import js_json, js_string

_PLACEHOLDER = compile_later(r"\{\{\s*(\w+)\s*\}\}")
_PASSES = 5
_ACROSS_LINES = compile_later(r"\{%[^%]*$|\{\{[^}]*$|\{#[^#]*$", re.MULTILINE)
_RAW_MARKS = (re.compile(r"\{%\s*raw\s*%\}"), re.compile(r"\{%\s*endraw\s*%\}"))
_COMMENT = compile_later(r"\{#.*?#\}", re.DOTALL)
_NAMES = compile_later(r"\{\{\s*([^{}\s|]+)\s*(?:\|[^}]+)?\}\}|\{%\s*(?:if|for)\s+([^{}\s]+)\s*.*?%\}")
_LOOP = compile_later(r"\{%\s*for\s+(\w+)\s+in\s+(\w+)\s*%\}")
_ROOT = compile_later(r"[A-Za-z_]\w*")
_YAML_CHAT = "- role:"
_JSON_CHAT = compile_later(r"\[\s*\{")
_RENDERED_PARAMS = ("tools", "functions", "response_format", "output_format", "systemInstruction")
_AS_THEIR_FILE_HAS_THEM = {"tools", "functions"}


def resolved_variables(
    variables: Mapping[str, JsonValue], opaque: Collection[str] = ()
) -> dict[str, JsonValue]:
    """Variables with the values of others in the place of their names, as deep as five passes go.

    Args:
        variables: of a test. A line break at the end of a text is left out.
        opaque: variables that came from a model: names of these stay, so that their text is never rendered.
    """
    found = {
        name: value.removesuffix("\n") if isinstance(value, str) and name not in opaque else value
        for name, value in variables.items()
    }
    for _ in range(_PASSES):
        before = dict(found)
        for name, value in found.items():
            if isinstance(value, str) and name not in opaque:
                found[name] = _with_first(value, found, opaque)
        if found == before:
            break
    return found


def render_text(
    raw: str, variables: Mapping[str, JsonValue], templates: Templates, opaque: Collection[str] = ()
) -> str:
    """Return the text that is sent for a prompt.

    In a prompt that is JSON each text is rendered by itself, so that quotes and line breaks of variables cannot
    break it, and the whole is written with one entry a line.

    Raises:
        TemplateError: the prompt's template is broken.
    """
    try:
        document = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        if _stays_as_it_is(raw):
            return raw
        return templates.render(raw, _rendered_values(variables, templates, opaque))
    own = {name: _opened(value, variables, opaque, name) for name, value in variables.items()}
    return js_json(_rendered_leaves(document, own, templates), 2)


def rendered_params(
    params: Mapping[str, JsonValue],
    provider: ProviderSpec,
    prompt: PromptSpec,
    test: MergedTest,
    templates: Templates,
) -> dict[str, JsonValue]:
    """Return `params` with the test's variables in what is a template of a request: tools, functions, formats.

    `test` has its variables as templates see them. Tools and functions that stand in a file are no templates.

    Raises:
        TemplateError: a template is broken.
    """
    found = dict(params)
    for key in _RENDERED_PARAMS:
        level = next((level for level in param_levels(provider, prompt, test) if key in level[0]), None)
        written = params.get(key) if level is None else params.get(key, level[0][key])
        if written is None or (level is not None and key in level[1] and key in _AS_THEIR_FILE_HAS_THEM):
            continue
        rendered = _rendered_leaves(written, test.variables, templates)
        if rendered != written:
            found[key] = rendered
    return found


def param_levels(
    provider: ProviderSpec, prompt: PromptSpec, test: MergedTest
) -> Iterator[tuple[Mapping[str, JsonValue], frozenset[str]]]:
    """Yield where parameters of a request may be written, first what wins, each with those whose value is a file's."""
    yield test.promptfoo.params, test.promptfoo.file_params
    if isinstance(prompt, NamedPromptSpec):
        yield prompt.params, prompt.file_params
    files = provider.file_params if isinstance(provider, FilteredProviderSpec) else frozenset[str]()
    yield provider.config, files


def as_sent(text: str) -> str:
    """Return a text without templates as it is sent: JSON with one entry a line, any other text as it is."""
    try:
        return js_json(json.loads(text, parse_constant=_refuse), 2)
    except (ValueError, RecursionError):
        return text


def shown_text(text: str) -> str:
    """A prompt as results show it: JSON without the spaces between its parts, also within its texts; else as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return js_json(_with_compact_texts(json.loads(text, parse_constant=_refuse)))
    except (ValueError, RecursionError):
        return text


def chat_messages(text: str) -> tuple[Message, ...]:
    """Return the messages that a prompt's text spells out as JSON or YAML; else one message of the user."""
    found: JsonValue = None
    # YAML is tried only for its usual first line: most prose is valid YAML too.
    if text.strip().startswith(_YAML_CHAT):
        try:
            found = read_yaml(text, "prompt").value
        except ConfigError:
            found = None
    elif text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
    if isinstance(found, list) and found and all(_is_message(item) for item in found):
        return tuple(map(_message, found))
    return (Message("user", text),)


def messages_for(form: PromptForm, rendered: "Rendered") -> tuple[tuple[Message, ...], JsonValue]:
    """Return the messages of a prompt in the form that promptfoo gives them for a model, and how Claude is to think.

    The latter is None where the prompt does not say it.
    """
    text = rendered.whole
    if rendered.messages != chat_messages(text):  # not from a text: a conversation that was held
        return rendered.messages, None
    if text.lstrip().startswith("["):
        thinking = (message.further.get("thinking") for message in rendered.messages)
        if any(message.content != text for message in rendered.messages):
            return rendered.messages, next(filter(None, thinking), None) if form == "lines" else None
    if form == "lines":
        return _of_role_lines(text)
    return (rendered.messages if form == "chat" else (Message("user", text),)), None


_SPEAKERS = ("user", "assistant")


def _of_role_lines(text: str) -> tuple[tuple[Message, ...], JsonValue]:
    """Split a text at the lines that begin with a role; lines are trimmed, and blank ones left out."""
    system, thinking = None, None
    said: list[tuple[str, list[str]]] = []
    for line in filter(None, map(str.strip, text.split("\n"))):
        role, separator, rest = line.partition(":")
        if separator and role == "system":
            system = rest.strip()
        elif separator and role == "thinking":
            with suppress(ValueError):
                thinking = json.loads(rest, parse_constant=_refuse)
        elif separator and role in _SPEAKERS:
            said.append((role, [rest.strip()]))
        elif said:
            said[-1][1].append(line)
        else:
            said.append(("user", [line]))
    if not said and system is None:
        said = [("user", [text.strip()])]
    messages = [Message(role, "\n".join(lines)) for role, lines in said]
    # An empty `system:` line is sent as it is there, where it says nothing.
    return (*((Message("system", system),) if system else ()), *messages), thinking


def changed_for_claude(suite: LoadedSuite) -> Iterator[Problem]:
    """Yield a warning for each prompt of which Claude is not sent the text as it is written."""
    forms = {prompt_form(provider) for provider in suite.providers}
    if not suite.rules.prompts_spell_chats or "lines" not in forms:
        return
    for prompt in suite.prompts:
        raw = prompt.raw or ""
        if raw.lstrip().startswith("[") or (isinstance(prompt, NamedPromptSpec) and prompt.made_by):
            continue
        lines = raw.strip().split("\n")
        roles = {line.strip().partition(":")[0] for line in lines if ":" in line}
        named = [role for role in (*_SPEAKERS, "system", "thinking") if role in roles]
        changes = (
            [f"lines that begin with {', '.join(f'`{role}:`' for role in named)} set roles"] if named else []
        )
        changes += ["blank lines are dropped"] if any(not line.strip() for line in lines) else []
        is_indented = any(line != line.strip() for line in lines)
        changes += ["spaces around lines are dropped"] if is_indented else []
        if changes:
            message = (
                f"Claude does not get the prompt exactly as written, as in promptfoo: {'; '.join(changes)}"
            )
            hint = "to send it unchanged, write a JSON list of messages"
            yield Problem(message, prompt.place.value("raw"), hint, severity=Severity.WARNING)


def chat_mistake(text: str) -> str:
    """Why a text that begins as a chat does cannot be read as one; "" for a chat and for any other text."""
    bare = text.strip()
    try:
        if bare.startswith(_YAML_CHAT):
            read_yaml(text, "prompt")
        elif _JSON_CHAT.match(bare) and bare.endswith("]") and '"role"' in bare:
            json.loads(text)
    except ConfigError as error:
        return error.problems[0].message
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def _with_first(text: str, variables: Mapping[str, JsonValue], opaque: Collection[str]) -> str:
    """`text` with the first name of a variable in it replaced; unchanged when that is no variable."""
    place = _PLACEHOLDER.search(text)
    if place is None or place[1] not in variables or place[1] in opaque:
        return text
    value = variables[place[1]]
    written = "null" if value is None else js_string(value)
    return text[: place.start()] + written + text[place.end() :]


def _with_compact_texts(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, list):
        return [_with_compact_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_compact_texts(item) for key, item in value.items()}
    return value


def _stays_as_it_is(text: str) -> bool:
    """Return whether nothing of a prompt is rendered: an expression of it is not closed on the line where it begins."""
    is_marked = all(mark.search(text) for mark in _RAW_MARKS)
    return bool(_ACROSS_LINES.search(text)) and not is_marked


def _names_nothing_unknown(text: str, variables: Mapping[str, JsonValue]) -> bool:
    """Return whether a variable's text is rendered: one name in it that is no variable leaves all of it as it is."""
    text = _COMMENT.sub("", text)
    names = {found[1] or found[2] for found in _NAMES.finditer(text)}
    for loop in _LOOP.finditer(text):
        # A loop sets its own variable; the list that it goes over must be known.
        names = (names - {loop[1]}) | {loop[2]}
    roots = (_ROOT.match(name) for name in names)
    return all(root is None or root[0] == "env" or root[0] in variables for root in roots)


def _rendered_values(
    variables: Mapping[str, JsonValue], templates: Templates, opaque: Collection[str]
) -> dict[str, JsonValue]:
    """Return texts rendered once more; one that is no template, or names what is no variable, stays as it is."""
    rendered = {}
    for name, value in variables.items():
        rendered[name] = value
        is_template = isinstance(value, str) and name not in opaque and not _stays_as_it_is(value)
        if is_template and _names_nothing_unknown(value, variables):
            try:
                rendered[name] = templates.render(value, variables)
            except TemplateError:
                continue
    return rendered


def _opened(
    value: JsonValue, variables: Mapping[str, JsonValue], opaque: Collection[str], name: str
) -> JsonValue:
    """`value` with what came from a model in it; nothing is rendered after this."""
    if not isinstance(value, str) or name in opaque:
        return value
    # Last of all and in one pass: a model's text may look like a template and must never be rendered.
    return _PLACEHOLDER.sub(
        lambda place: js_string(variables[place[1]]) if place[1] in opaque else place[0], value
    )


def _rendered_leaves(value: JsonValue, variables: Mapping[str, JsonValue], templates: Templates) -> JsonValue:
    if isinstance(value, str):
        return templates.render(value, variables)
    if isinstance(value, list):
        return [_rendered_leaves(item, variables, templates) for item in value]
    if isinstance(value, dict):
        return {key: _rendered_leaves(item, variables, templates) for key, item in value.items()}
    return value


def _is_message(item: JsonValue) -> bool:
    """Return whether this is meant as a message. Without content the API refuses it; as text it would pass."""
    return isinstance(item, dict) and isinstance(item.get("role"), str)


def _message(item: dict[str, JsonValue]) -> Message:
    further = {key: value for key, value in item.items() if key not in {"role", "content"}}
    return Message(item["role"], item.get("content"), further)


def _refuse(name: str) -> JsonValue:
    raise ValueError(f"{name} is not a JSON value")


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
    prompt: PromptSpec, test: MergedTest, templates: Templates, opaque: Collection[str] = ()
) -> Rendered:
    """Put the test's variables into the prompt; the values of `opaque` ones came from a model.

    Of a test with turns, the input is what the user says first, or said last where the turns are not to be played.

    Raises:
        TemplateError: a template is broken or names something undefined, or a `{system: ...}` prompt meets a test
            without `input`.
    """
    rendered = _rendered(prompt, test, templates, opaque)
    missing = [marker for marker in (*test.images, *test.audio) if marker not in rendered.text]
    return _with_markers(rendered, missing) if missing else rendered


def _with_markers(rendered: Rendered, markers: Sequence[str]) -> Rendered:
    """Return a prompt with images and audio behind the user's last message: those that its template does not place."""
    shown = "\n".join(markers)
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
        is_made = isinstance(prompt, NamedPromptSpec) and bool(prompt.made_by)
        raw = _template_of(prompt, test)
        # What a program wrote may hold answers of models, which are never rendered.
        is_final = is_made and bool(opaque)
        sent = as_sent(raw) if is_final else render_text(raw, variables, templates, opaque)
        return Rendered(chat_messages(sent), shown_text(sent), sent=sent)
    if prompt.system is not None:
        if test.input is None:
            raise TemplateError(
                "a `system` prompt needs the test's `input` as the user message",
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
    """Return the parameters that a prompt sets for the model."""
    return prompt.params if isinstance(prompt, NamedPromptSpec) else {}


def seen_by_templates(
    test: MergedTest, templates: Templates, earlier: Mapping[str, JsonValue] = _NOTHING
) -> MergedTest:
    """Return the test with the variables that templates see, in which the dialect may let variables name others.

    `earlier` are variables that models made in earlier jobs; they are never rendered.
    """
    if not templates.rules.nested_variables:
        return test
    return replace(test, vars=resolved_variables({**test.vars, **earlier}, earlier))


def shown_prompt(prompt: PromptSpec, test: MergedTest) -> dict[str, JsonValue]:
    """Return the prompt as programs and transforms see it: its template, not what became of it."""
    return {
        "raw": _template_of(prompt, test),
        "label": prompt.label,
        "config": prompt_params(prompt),
        "template": prompt.raw or "",
    }


def _template_of(prompt: PromptSpec, test: MergedTest) -> str:
    """The prompt between the test's prefix and suffix. What programs make is no place for them: it may be a chat."""
    raw = prompt.raw or ""
    if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
        return raw
    return f"{test.promptfoo.prefix or ''}{raw}{test.promptfoo.suffix or ''}"


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
