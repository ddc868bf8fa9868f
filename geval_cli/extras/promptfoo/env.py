"""`{{ env.NAME }}` in a promptfoo config: also in brackets, with defaults; what is not set stays as it is written."""

import re
from collections.abc import Mapping

from geval_cli.errors import Problem, Severity, TemplateError
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access, environment_problem
from geval_cli.source.env import EnvValues, settable
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating.js_text import js_string
from geval_cli.templating.templates import templates_of

TRUE_WORDS = frozenset({"1", "true", "yes", "yup", "yeppers"})
"""The words that promptfoo itself takes for yes in the environment."""

_QUOTED = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
_LITERAL = rf"(?:{_QUOTED}|-?[0-9]+(?:\.[0-9]+)?|true|false|none|null)"
_EXPRESSION = compile_later(
    rf"\{{\{{-?\s*env(?:\.(?P<name>[A-Za-z_]\w*)|\[\s*(?P<key>{_QUOTED})\s*\])\s*"
    rf"(?P<filters>(?:\|\s*\w+\s*(?:\(\s*(?:{_LITERAL}\s*(?:,\s*{_LITERAL}\s*)*)?\)\s*)?|or\s+{_LITERAL}\s*)*)-?\}}\}}"
)
_FALLBACK = compile_later(r"\bor\b|\|\s*(?:default|d)\s*\(")
_ESCAPE = compile_later(r"\\(.)", re.DOTALL)
_MARK = "env"
# As in `source.env`: a shorter value would be hidden in every message.
_MIN_HIDDEN = 6


class PromptfooEnv(EnvValues):
    """Fills environment values in; a name that is not set is warned about, once, and left to the rendering."""

    def __init__(self, values: Mapping[str, str], access: Access) -> None:
        super().__init__(values, access=access)
        self._missed: set[str] = set()

    def with_values(self, values: Mapping[str, str]) -> "PromptfooEnv":
        """Return the same with values that win over these; both know what each of them has filled in."""
        other = PromptfooEnv({**self.values, **values}, self.access)
        other._used, other._missed = self._used, self._missed
        return other

    def fill(self, value: JsonValue, place: SourcePath, problems: list[Problem]) -> JsonValue:
        if isinstance(value, str):
            return (
                self._fill_expressions(value, place, problems) if _MARK in value and "{{" in value else value
            )
        return super().fill(value, place, problems)

    def _fill_expressions(self, text: str, place: SourcePath, problems: list[Problem]) -> str:
        def replacement(found: re.Match[str]) -> str:
            name = found["name"] or _unquoted(found["key"])
            if not self.access.reads_environment:
                problems.append(environment_problem(name, place.value()))
                return ""
            value = self.values.get(name)
            self._keep_secret(value or "")
            if value is not None and not found["filters"]:
                return value
            if value is None and not _FALLBACK.search(found["filters"]):
                if name not in self._missed:
                    self._missed.add(name)
                    message = f"the environment variable `{name}` is not set and has no fallback"
                    hint = "set it, or add it to a .env file"
                    not_set = Problem(message, place.value(), hint, severity=Severity.WARNING)
                    problems.append(not_set)
                return found[0]  # a provider may have an `env` of its own
            known = {} if value is None else {name: value}
            try:
                filled = templates_of(PROMPTFOO_RULES, known).render(found[0], {})
            except TemplateError:  # of a filter that the config brings: left to the rendering
                return found[0]
            self._keep_secret(filled if value else "")
            return filled

        return _EXPRESSION.sub(replacement, text)

    def _keep_secret(self, value: str) -> None:
        if len(value) >= _MIN_HIDDEN:
            self._used.add(value)


def literal_env(raw: JsonValue, around: Mapping[str, str], access: Access) -> dict[str, str]:
    """Return the texts of an `env:` block; its values may use variables of the environment and of the block itself."""
    if not isinstance(raw, dict):
        return {}
    values = {
        str(name): js_string(value) for name, value in raw.items() if not isinstance(value, dict | list)
    }
    for _ in range(2):
        filled = PromptfooEnv({**around, **values}, access)
        values = {name: filled.fill(text, SourcePath.nowhere(), []) for name, text in values.items()}
    return settable(values, access)


def _unquoted(text: str) -> str:
    return _ESCAPE.sub(r"\1", text[1:-1])
