"""Requests of HTTP providers that are templates throughout: address, method, headers, query and body.

What a template in data makes is data when it is a JSON object or list, and a text otherwise.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from geval_cli.errors import TemplateError
from geval_cli.patterns import compile_later
from geval_cli.providers.conversation import message_list
from geval_cli.providers.wire.placeholders import Places
from geval_cli.records import JsonValue, ModelRequest
from geval_cli.templating import TEMPLATE_MARKS, Templates
from geval_cli.templating.js_text import js_json

_EXPRESSION = compile_later(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_NAME = compile_later(r"[A-Za-z_$][\w$]*")
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
            "prompt": Places(self.request).prompt,
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
            return Places(self.request).fill(template)
        return _as_data(self.text(template))

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


def is_template(text: str) -> bool:
    """Return whether there is an expression in `text`."""
    return any(mark in text for mark in TEMPLATE_MARKS)


def _texts(template: Any) -> Iterator[str]:
    if isinstance(template, Mapping):
        for item in template.values():
            yield from _texts(item)
    elif isinstance(template, list | tuple):
        for item in template:
            yield from _texts(item)
    elif isinstance(template, str):
        yield template


def _as_data(text: str) -> JsonValue:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        found: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found


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
