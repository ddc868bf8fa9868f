"""`{{ prompt }}`, `{{ messages }}` and `{{ vars.NAME }}` in requests that a config spells out itself.

These are places, not templates: what is in them is put in as it is, and is never rendered.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from geval_cli.providers.conversation import message_list, request_text
from geval_cli.providers.json_path import follow_path, parse_path
from geval_cli.records import JsonValue, ModelRequest

_PLACEHOLDER = re.compile(
    r"\{\{\s*(?P<name>prompt|messages|vars(?:\.[A-Za-z_]\w*)+)\s*(?:\|\s*(?:dump|tojson|safe)\s*)?\}\}"
)
_VARS = "vars."


class Places(Struct, frozen=True):
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
            if template[: found.start()].count('"') % 2 == 1:
                return json.dumps(self._text(found["name"]), ensure_ascii=False)[1:-1]
            return json.dumps(self._value(found["name"]), ensure_ascii=False)

        return _PLACEHOLDER.sub(fill, template)

    def fill_url(self, url: str) -> str:
        """`url` with the values in it, percent-encoded."""
        return _PLACEHOLDER.sub(lambda found: quote(self._text(found["name"]), safe=""), url)

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
    if isinstance(template, Mapping):
        for item in template.values():
            yield from _names(item)
    elif isinstance(template, list | tuple):
        for item in template:
            yield from _names(item)
    elif isinstance(template, str):
        yield from (found["name"] for found in _PLACEHOLDER.finditer(template))
