"""Templates as nunjucks renders them: undefined names are empty, values are JavaScript's.

The grammar is Jinja2's, whose sandbox does the work; operators, loops, members, filters and tests are replaced by
ones that behave as in JavaScript.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from jinja2 import Template, Undefined, nodes
from jinja2.exceptions import UndefinedError
from jinja2.sandbox import MAX_RANGE

from geval_cli.errors import TemplateError
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import DialectRules
from geval_cli.templating.js_members import js_member
from geval_cli.templating.js_values import (
    UNDEFINED,
    JsArray,
    JsObject,
    JsUndefined,
    as_js,
    js_calculate,
    js_compare,
    js_number_of,
    js_object,
    js_primitive_text,
    js_text,
)
from geval_cli.templating.limits import (
    LimitedEnvironment,
    TemplateLimitError,
    bounded,
    limited_filters,
    rounds,
    take_steps,
)
from geval_cli.templating.nunjucks_filters import FILTERS, TESTS
from geval_cli.templating.nunjucks_grammar import NunjucksLexer, parse_nunjucks
from geval_cli.templating.templates import TEMPLATE_MARKS, Templates

_UNFINISHED = re.compile(r"\{%[^%]*$|\{\{[^}]*$|\{#[^#]*$")
_HAS_RAW = re.compile(r"\{%-?\s*raw\s*-?%\}.*\{%-?\s*endraw\s*-?%\}", re.DOTALL)
_CARRIAGE_RETURN = "\ue00d"  # Jinja2 turns line breaks into its own; this stands for them meanwhile
_PAIR = 2
_OWN_MEMBERS = (str, int, float, list, dict, type(None))


class NunjucksTemplates(Templates):
    """Renders templates as nunjucks does.

    `env` is what `{{ env.NAME }}` finds; `filters` come to the built-in ones, and may raise ValueError.
    """

    def __init__(
        self,
        rules: DialectRules,
        env: Mapping[str, str] | None = None,
        filters: Mapping[str, Callable[..., JsonValue]] | None = None,
    ) -> None:
        self.rules = rules
        environment = _NunjucksEnvironment(
            undefined=JsUndefined,
            # A prompt is no HTML; promptfoo switches nunjucks' escaping off, too.
            autoescape=False,
            optimized=False,  # its optimizer writes NaN and Infinity into the code, where they are unknown names
            keep_trailing_newline=True,
            finalize=js_text,
        )
        environment.globals = {
            "range": _range,
            "cycler": _Cycler,
            "joiner": _joiner,
            "env": as_js(dict(env or {})),
        }
        own = {name: partial(_called, function) for name, function in (filters or {}).items()}
        environment.filters = {**limited_filters(FILTERS), **own}
        environment.tests = dict(TESTS)
        self._use(environment)

    def lenient(self) -> Templates:
        return self

    def render(self, text: str, variables: Mapping[str, JsonValue]) -> str:
        """`text` with every template expression replaced; text with an unfinished expression stays as it is.

        Raises:
            TemplateError: the template is broken, or does what JavaScript could not do either.
        """
        if not any(mark in text for mark in TEMPLATE_MARKS):
            return text
        if _UNFINISHED.search(text) and not _HAS_RAW.search(text):
            return text
        # Jinja2's lexer makes every line break `\n`; nunjucks leaves them as they are.
        if "\r" in text:
            return (
                super()
                .render(text.replace("\r", _CARRIAGE_RETURN), variables)
                .replace(_CARRIAGE_RETURN, "\r")
            )
        return super().render(text, variables)

    def check(self, text: str) -> None:
        if not _UNFINISHED.search(text) or _HAS_RAW.search(text):
            super().check(text)

    def _rendered(self, template: Template, variables: Mapping[str, JsonValue]) -> str:
        return template.render({name: as_js(value) for name, value in variables.items()})

    def _undefined(self, error: UndefinedError, variables: Mapping[str, JsonValue]) -> TemplateError:
        return TemplateError(f"the template cannot be rendered: {error.message}", known=sorted(variables))


def _range(start: Any, stop: Any = UNDEFINED, step: Any = 1) -> JsArray:
    """Return the numbers from `start` up to `stop`, or from 0 up to `start`."""
    first, last = (0, start) if isinstance(stop, Undefined) else (start, stop)
    first, last, width = (js_number_of(value) for value in (first, last, step or 1))
    if math.isnan(first) or math.isnan(last) or math.isnan(width):
        return JsArray()
    count = max(0.0, (last - first) / width)
    if count > MAX_RANGE:
        raise TemplateLimitError(f"`range` makes more than {MAX_RANGE:,} numbers")
    found = JsArray(first + place * width for place in range(math.ceil(count)))
    take_steps(len(found))
    return found


class _Cycler:
    """Gives one value after the other, and begins again: `cycler('a', 'b')`."""

    def __init__(self, *values: Any) -> None:
        self._values, self._place = values, -1
        self.current: Any = None

    def next(self) -> Any:
        """Return the next value."""
        if self._values:
            self._place = (self._place + 1) % len(self._values)
            self.current = self._values[self._place]
        return self.current

    def reset(self) -> str:
        """Begin again."""
        self._place, self.current = -1, None
        return ""


def _joiner(separator: Any = ",") -> Callable[[], str]:
    """Return a function that returns an empty text at its first call, and the separator at all others."""
    calls = iter(("",))
    return lambda: next(calls, js_text(separator) if separator else ",")


def _called(function: Callable[..., JsonValue], *arguments: Any) -> Any:
    return as_js(function(*(None if isinstance(item, Undefined) else item for item in arguments)))


def _parts(value: Any, count: int) -> list[Any]:
    """Return the first entries of what a loop with several names finds in a list; undefined where there is none."""
    return [js_member(value, place) for place in range(count)]


class _NunjucksEnvironment(LimitedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    intercepted_unops = frozenset({"-", "+"})

    compare = staticmethod(js_compare)

    @cached_property
    def lexer(self) -> NunjucksLexer:
        return NunjucksLexer(self)

    @staticmethod
    def array(*items: Any) -> JsArray:
        return JsArray(items)

    @staticmethod
    def object(*parts: Any) -> JsObject:
        """Return an object of keys and values, one after the other."""
        return js_object(dict(zip(map(js_primitive_text, parts[::2]), parts[1::2], strict=True)))

    @staticmethod
    def join_texts(*values: Any) -> str:
        texts = [js_primitive_text(value) for value in values]
        bounded(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def each(value: Any, names: int) -> Any:
        """Return the items of a loop: keys and values for two names, else parts of each entry; nothing for no list."""
        if names == 1:
            return rounds(value) if isinstance(value, str | list) else []
        if isinstance(value, Mapping | str):
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            missing = [UNDEFINED] * (names - _PAIR)
            return rounds([(*pair, *missing) for pair in pairs])
        return rounds([_parts(item, names) for item in value] if isinstance(value, list) else [])

    @staticmethod
    def for_each_name(value: Any, count: int) -> list[Any]:
        return [value] * count

    @staticmethod
    def frames() -> list[dict[str, Any]]:
        """Return the variables set by name: in the template, and in each loop under way."""
        return [{}]

    @staticmethod
    def enter_loop(frames: list[dict[str, Any]]) -> None:
        frames.append({})

    @staticmethod
    def leave_loop(frames: list[dict[str, Any]]) -> None:
        frames.pop()

    @staticmethod
    def set_name(frames: list[dict[str, Any]], name: str, value: Any) -> None:
        next((frame for frame in reversed(frames) if name in frame), frames[-1])[name] = value

    @staticmethod
    def named(frames: list[dict[str, Any]], name: str, otherwise: Any) -> Any:
        """Return the value of a name; `otherwise` where it was not set."""
        return next((frame[name] for frame in reversed(frames) if name in frame), otherwise)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = js_calculate(operator, left, right)
        if isinstance(result, str):
            bounded(len(result))
        return result

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        return js_calculate("*", arg, -1) if operator == "-" else js_number_of(arg)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, _OWN_MEMBERS) and not isinstance(obj, JsUndefined):
            return self._member(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, _OWN_MEMBERS) and not isinstance(obj, JsUndefined):
            if isinstance(argument, slice):
                return obj[argument] if isinstance(obj, str | list) else self.undefined()
            return self._member(obj, argument)
        return super().getitem(obj, argument)

    def _member(self, obj: Any, name: Any) -> Any:
        found = js_member(obj, name)
        return self.undefined(obj=obj, name=name) if found is UNDEFINED else found

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return parse_nunjucks(self, source, name, filename)
