"""Placeholders and templates in the requests that a config describes, and paths into JSON."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from geval_cli.errors import TemplateError
from geval_cli.patterns import compile_later
from geval_cli.providers.wire.chat import message_list, request_text
from geval_cli.records import JsonValue, ModelRequest
from geval_cli.templating import Templates
from geval_cli.templating.js_text import js_json

_PLACEHOLDER = re.compile(
    r"\{\{\s*(?P<name>prompt|messages|vars(?:\.[A-Za-z_]\w*)+)\s*(?:\|\s*(?:dump|tojson|safe)\s*)?\}\}"
)
_LIKE_A_PLACEHOLDER = compile_later(r"\{\{[^{}]*(?:(?:\{(?!\{)|\}(?!\}))[^{}]*)*\}\}")
_A_NAME = compile_later(r"\{\{-?\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*-?\}\}")
_VARS = "vars."
_ESCAPED = compile_later(r"\\.")
_KNOWN_PLACEHOLDERS = (
    "write {{ prompt }}, {{ messages }} or {{ vars.NAME }}; for anything else, use a Python provider"
)


class PlaceholderValues(Struct, frozen=True):
    """The values that replace the placeholders of one request.

    Every method raises LookupError, with a message that names it, if a placeholder's variable is not in the test.
    """

    request: ModelRequest

    @property
    def prompt(self) -> str:
        """Return the prompt as one string."""
        return request_text(self.request)

    def fill(self, template: Any) -> Any:
        """Return `template`, which may be nested data, with its placeholders replaced.

        A string that consists of a single placeholder becomes the value itself, which may be a list or a number.
        """
        if isinstance(template, dict):
            return {name: self.fill(item) for name, item in template.items()}
        if isinstance(template, list):
            return [self.fill(item) for item in template]
        if not isinstance(template, str):
            return template
        whole = _PLACEHOLDER.fullmatch(template.strip())
        return self._value(whole["name"]) if whole else self.fill_text(template)

    def fill_text(self, template: str, escape: Callable[[str], str] = str) -> str:
        """Return `template` with its placeholders replaced; values that are not strings are inserted as JSON."""
        return _PLACEHOLDER.sub(lambda found: escape(self._text(found["name"])), template)

    def fill_json_text(self, template: str) -> str:
        """Return JSON text with its placeholders replaced: escaped inside quotes, as JSON values elsewhere."""

        def fill(found: re.Match[str]) -> str:
            if _ESCAPED.sub("", template[: found.start()]).count('"') % 2 == 1:
                return json.dumps(self._text(found["name"]), ensure_ascii=False)[1:-1]
            return json.dumps(self._value(found["name"]), ensure_ascii=False)

        return _PLACEHOLDER.sub(fill, template)

    def fill_url(self, url: str) -> str:
        """Return `url` with its placeholders replaced by percent-encoded values."""
        return self.fill_text(url, lambda text: quote(text, safe="", errors="replace"))

    def _text(self, name: str) -> str:
        value = self._value(name)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _value(self, name: str) -> JsonValue:
        if name == "prompt":
            return self.prompt
        if name == "messages":
            return message_list(self.request.messages)
        try:
            return follow_path(dict(self.request.variables), parse_path(name.removeprefix(_VARS)))
        except LookupError as error:
            raise LookupError(f"the test has no variable for `{{{{ {name} }}}}`") from error


def has_place(template: Any, *names: str) -> bool:
    """Return whether `template` has a placeholder; with `names`, whether it has one of these."""
    return any(not names or name in names for name in _names(template))


def unknown_placeholder(template: Any, *, is_name: bool = False) -> tuple[str, str] | None:
    """Return the first `{{ ... }}` that is not replaced, and a hint; None if there is none.

    With `is_name` it must be a name alone: commands may have other templates, such as `--format {{.Names}}`.
    """
    for text in _texts(template):
        for found in _LIKE_A_PLACEHOLDER.finditer(text):
            name = _A_NAME.fullmatch(found[0])
            if not _PLACEHOLDER.fullmatch(found[0]) and (name or not is_name):
                hint = (
                    f"write `{{{{ vars.{name[1]} }}}}` for a variable of the tests"
                    if name
                    else _KNOWN_PLACEHOLDERS
                )
                return found[0], hint
    return None


def variables_in(template: Any) -> tuple[str, ...]:
    """Return the sorted names of the variables that `template` uses."""
    used = (name.removeprefix(_VARS) for name in _names(template) if name.startswith(_VARS))
    return tuple(sorted({name.partition(".")[0] for name in used}))


def without_spaces(text: str) -> str:
    """Return `text` without spaces inside its placeholders, so that it can be split at spaces."""
    return _PLACEHOLDER.sub(lambda found: f"{{{{{found['name']}}}}}", text)


def _names(template: Any) -> Iterator[str]:
    return (found["name"] for text in _texts(template) for found in _PLACEHOLDER.finditer(text))


RESPONSE_KEYS = ("response_path", "responsePath", "transformResponse", "responseParser")
"""A pattern that tells a path to the answer of an HTTP API from JavaScript."""

_STEP = compile_later(r"""\.?([A-Za-z_$][\w$-]*)|\[(-?\d+)\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_ROOTS = ("json", "$")

PathStep = str | int


def parse_path(path: str) -> tuple[PathStep, ...]:
    """Parse `path` into keys and indexes. A leading `json` or `$` stands for the whole document.

    Raises:
        ValueError: it is not a valid path.
    """
    steps: list[PathStep] = []
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if found is None:
            raise ValueError(f"not a path at {path[position:]!r}")
        name, index, *quoted = found.groups()
        steps.append(int(index) if index is not None else next(k for k in (name, *quoted) if k is not None))
        position = found.end()
    return tuple(steps[1:] if steps and steps[0] in _ROOTS else steps)


def follow_path(value: Any, steps: tuple[PathStep, ...]) -> Any:
    """Return the part of `value` that the path leads to.

    Raises:
        LookupError: the path leads nowhere; the message names the missing step.
    """
    for step in steps:
        if isinstance(step, int):
            has_step = isinstance(value, list) and -len(value) <= step < len(value)
        else:
            has_step = isinstance(value, dict) and step in value
        if not has_step:
            raise LookupError(f"there is no {step!r} in it")
        value = value[step]
    return value


def is_path(written: str) -> bool:
    """Return whether `written` is a path, which needs no JavaScript engine."""
    try:
        return bool(parse_path(written))
    except ValueError:
        return False


def has_response_code(config: Mapping[str, Any]) -> bool:
    """Return whether an HTTP provider's config extracts the answer with its own code instead of a path."""
    written = [config.get(key) for key in RESPONSE_KEYS]
    return any(isinstance(item, str) and item != "" and not is_path(item) for item in written)


_EXPRESSION = compile_later(r"\{[{%]([^{}%]*(?:(?:\{(?![{%])|[%}](?!\}))[^{}%]*)*)[%}]\}")
_NAME = compile_later(r"[^\W\d][\w$]*|\$[\w$]*")
_OWN_PLACE = compile_later(r"\s*\{\{\s*(messages|vars(?:\.[A-Za-z_]\w*)+)\s*\}\}\s*")


class HttpTemplates(Struct, frozen=True):
    """Renders the templates of one request.

    Templates see the test's variables, and the `prompt` as it is sent. geval's own placeholders, `{{ messages }}` and
    `{{ vars.NAME }}`, also work, unless the test has variables with these names.
    """

    templates: Templates
    request: ModelRequest

    @property
    def variables(self) -> dict[str, JsonValue]:
        """Return the variables that templates see."""
        own = self.request.variables
        return {
            "messages": js_json(message_list(self.request.messages)),
            "vars": dict(own),
            **own,
            "prompt": PlaceholderValues(self.request).prompt,
        }

    def text(self, template: str) -> str:
        """Return `template` rendered.

        Raises:
            TemplateError: the template is broken.
        """
        return self.templates.render(template, self.variables)

    def data(self, template: Any) -> Any:
        """Return `template`, which may be nested data, rendered; keys are left unchanged.

        A string that renders to a JSON object or list becomes that value.

        Raises:
            TemplateError: as for `text`.
            LookupError: `{{ vars.NAME }}` names a variable that the test does not have.
        """
        if isinstance(template, dict):
            return {name: self.data(item) for name, item in template.items()}
        if isinstance(template, list):
            return [self.data(item) for item in template]
        if not isinstance(template, str):
            return template
        own = _OWN_PLACE.fullmatch(template)
        if own is not None and own[1].partition(".")[0] not in self.request.variables:
            return PlaceholderValues(self.request).fill(template)
        text = self.text(template)
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            found: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return found

    def json_text(self, template: str) -> str:
        """Return JSON text rendered; if the values make it invalid, render it again with escaped strings.

        Raises:
            TemplateError: as for `text`.
        """
        rendered = self.text(template)
        found = _compact(rendered)
        if found is None:
            escaped = {name: _escaped(value) for name, value in self.variables.items()}
            found = _compact(self.templates.render(template, escaped))
        return rendered if found is None else found


def names_in(template: Any) -> tuple[str, ...]:
    """Return every name in the expressions of `template`, sorted; its variables are among them."""
    words = {
        name
        for text in _texts(template)
        for found in _EXPRESSION.finditer(text)
        for name in _NAME.findall(found[1])
    }
    return tuple(sorted(words))


def problems_of(template: Any, templates: Templates) -> Iterator[TemplateError]:
    """Yield the errors of the templates in `template`, which may be nested data."""
    for text in _texts(template):
        try:
            templates.check(text)
        except TemplateError as error:
            yield error


def _texts(template: Any) -> Iterator[str]:
    if isinstance(template, Mapping):
        for item in template.values():
            yield from _texts(item)
    elif isinstance(template, list | tuple):
        for item in template:
            yield from _texts(item)
    elif isinstance(template, str):
        yield template


def _compact(text: str) -> str | None:
    """Return JSON text without spaces between its parts; None if it is not valid JSON."""
    try:
        return js_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _escaped(value: JsonValue) -> JsonValue:
    """Return `value` with its strings escaped for use inside JSON quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)[1:-1]
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return value
