"""Requests that a config spells out: places for values, templates throughout, and paths into JSON."""

import json
import re
from collections.abc import Iterator, Mapping
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
_VARS = "vars."
_ESCAPED = compile_later(r"\\.")


class PlaceholderValues(Struct, frozen=True):
    """The values for one request.

    Every method raises LookupError when a variable is named that the test does not have; its text says which.
    """

    request: ModelRequest

    @property
    def prompt(self) -> str:
        """The prompt as one text."""
        return request_text(self.request)

    def fill(self, template: Any) -> Any:
        """`template`, data of any depth, with the values in it.

        A text that is nothing but `{{ messages }}` or one variable becomes the value itself, a list or a number too.
        """
        if isinstance(template, dict):
            return {name: self.fill(item) for name, item in template.items()}
        if isinstance(template, list):
            return [self.fill(item) for item in template]
        if not isinstance(template, str):
            return template
        whole = _PLACEHOLDER.fullmatch(template.strip())
        return self._value(whole["name"]) if whole else self.fill_text(template)

    def fill_text(self, template: str) -> str:
        """`template` with the values in it; what is no text is there as JSON."""
        return _PLACEHOLDER.sub(lambda found: self._text(found["name"]), template)

    def fill_json_text(self, template: str) -> str:
        """JSON text with the values in it: escaped inside quotes, elsewhere as JSON values of their own."""

        def fill(found: re.Match[str]) -> str:
            if _ESCAPED.sub("", template[: found.start()]).count('"') % 2 == 1:
                return json.dumps(self._text(found["name"]), ensure_ascii=False)[1:-1]
            return json.dumps(self._value(found["name"]), ensure_ascii=False)

        return _PLACEHOLDER.sub(fill, template)

    def fill_url(self, url: str) -> str:
        """`url` with the values in it, percent-encoded."""
        return _PLACEHOLDER.sub(
            lambda found: quote(self._text(found["name"]), safe="", errors="replace"), url
        )

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
    """Return whether a value goes into `template`; with `names`, whether one of these does."""
    return any(not names or name in names for name in _names(template))


def variables_in(template: Any) -> tuple[str, ...]:
    """Return the names of the variables that `template` uses, sorted."""
    used = (name.removeprefix(_VARS) for name in _names(template) if name.startswith(_VARS))
    return tuple(sorted({name.partition(".")[0] for name in used}))


def without_spaces(text: str) -> str:
    """`text` with each place as one word, so that it can be split at spaces."""
    return _PLACEHOLDER.sub(lambda found: f"{{{{{found['name']}}}}}", text)


def _names(template: Any) -> Iterator[str]:
    return (found["name"] for text in _texts(template) for found in _PLACEHOLDER.finditer(text))


RESPONSE_KEYS = ("response_path", "responsePath", "transformResponse", "responseParser")
"""A pattern that tells a path to the answer of an HTTP API from JavaScript."""

_STEP = compile_later(r"""\.?([A-Za-z_$][\w$-]*)|\[(-?\d+)\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_ROOTS = ("json", "$")

PathStep = str | int


def parse_path(path: str) -> tuple[PathStep, ...]:
    """Parse `path` into keys and indexes. A leading `json` or `$` is the whole document.

    Raises:
        ValueError: it is not such a path.
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
    """Return the part of `value` at the end of the path.

    Raises:
        LookupError: the path leads nowhere; the text names the step.
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
    """Return whether `written` is a path, which needs no engine."""
    try:
        return bool(parse_path(written))
    except ValueError:
        return False


def has_response_code(config: Mapping[str, Any]) -> bool:
    """Return whether an HTTP provider takes the answer out of what comes back by code of the config's own."""
    written = [config.get(key) for key in RESPONSE_KEYS]
    return any(isinstance(item, str) and item != "" and not is_path(item) for item in written)


_EXPRESSION = compile_later(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_NAME = compile_later(r"[^\W\d][\w$]*|\$[\w$]*")
_OWN_PLACE = compile_later(r"\s*\{\{\s*(messages|vars(?:\.[A-Za-z_]\w*)+)\s*\}\}\s*")


class HttpTemplates(Struct, frozen=True):
    """Renders the templates of one request.

    They see the test's variables, and the `prompt` as it is sent. geval's own `{{ messages }}` and `{{ vars.NAME }}`
    work too, unless the test has variables of these names.
    """

    templates: Templates
    request: ModelRequest

    @property
    def variables(self) -> dict[str, JsonValue]:
        """Return the variables of the templates."""
        own = self.request.variables
        return {
            "messages": js_json(message_list(self.request.messages)),
            "vars": dict(own),
            **own,
            "prompt": PlaceholderValues(self.request).prompt,
        }

    def text(self, template: str) -> str:
        """`template` with the values in it.

        Raises:
            TemplateError: the template is broken.
        """
        return self.templates.render(template, self.variables)

    def data(self, template: Any) -> Any:
        """`template`, data of any depth, rendered; keys stay as they are.

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
        """JSON text with the values in it; where they break it, once more with their quotes and line breaks escaped.

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
    """Return every word of the expressions in `template`, sorted: the names of its variables are among them."""
    words = {
        name
        for text in _texts(template)
        for found in _EXPRESSION.finditer(text)
        for name in _NAME.findall(found[1])
    }
    return tuple(sorted(words))


def problems_of(template: Any, templates: Templates) -> Iterator[TemplateError]:
    """Yield the problems of the templates in `template`, data of any depth."""
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
    """JSON text without the spaces between its parts; None when it is none."""
    try:
        return js_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _escaped(value: JsonValue) -> JsonValue:
    """`value` with its texts as they are between the quotes of JSON."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)[1:-1]
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    return value
