"""Limits on the time and memory of a template: a config must not be able to block the machine or fill its memory.

Jinja2's sandbox keeps templates away from Python and limits `range`. This module limits the rest: the length of texts,
the number of loop iterations and macro calls, and the numbers that stretch texts.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateRuntimeError
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

MAX_CHARACTERS = 16 * 1024 * 1024
"""The maximum length of any text that a template makes; text files have the same limit."""

MAX_STEPS = 1_000_000
"""The maximum per rendering of iterations, thousands of characters, and calls (ten each): a second or two."""

_MAX_WIDTH = 100_000
_MAX_BITS = 1_000_000
_CHARACTERS_A_STEP = 1_000
# A macro call creates a scope and a text of its own, so it costs more than a loop iteration.
_CALL_STEPS = 10
_WIDE_FIELD = re.compile(r"\d{6,}")
_STRETCHING = (
    "ljust",
    "rjust",
    "center",
    "zfill",
    "expandtabs",
    "format",
    "format_map",
    "replace",
    "join",
    "translate",
)
_STRETCHING_FILTERS = (
    "batch", "center", "dump", "format", "indent", "join", "replace", "round", "slice", "tojson", "xmlattr",
    "urlize", "wordwrap",
)  # fmt: skip
_SLOW_FILTERS = ("urlize", "wordwrap")
"""Filters whose time grows faster than the text."""

_STEPS: ContextVar[list[int] | None] = ContextVar("template_steps", default=None)


class TemplateLimitError(TemplateRuntimeError):
    """The template would make or do more than templates may."""


def begin_counting() -> Token[list[int] | None]:
    """Count all further steps of templates as one rendering, until `end_counting` gets the returned token."""
    return _STEPS.set([0])


def end_counting(begun: Token[list[int] | None]) -> None:
    """End the rendering that `begin_counting` started."""
    _STEPS.reset(begun)


def take_steps(count: int) -> None:
    """Count `count` steps. Raises TemplateLimitError above the limit."""
    steps = _STEPS.get()
    if steps is not None:
        steps[0] += count
        if steps[0] > MAX_STEPS:
            raise TemplateLimitError(f"it takes more than {MAX_STEPS:,} steps")


def bounded(length: int) -> None:
    """Count a text of `length` characters. Raises TemplateLimitError if it is longer than a text may be."""
    if length > MAX_CHARACTERS:
        raise TemplateLimitError(f"it makes text of more than {MAX_CHARACTERS // (1024 * 1024)} MB")
    take_steps(1 + length // _CHARACTERS_A_STEP)


def rounds(values: Any) -> Any:
    """Return the items of a loop, and count its iterations."""
    if isinstance(values, Sized):
        take_steps(len(values))
        return values
    return _counted(values)


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the filters, with limits for those that can make a short text long."""
    return {
        name: _limited(name, function) if name in _STRETCHING_FILTERS else function
        for name, function in filters.items()
    }


class _FiniteCode(CodeGenerator):
    """A code generator that writes infinity as `1e999`; Jinja2 would write the unknown name `inf`."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if node.value == math.inf:
            self.write("1e999")
        else:
            super().visit_Const(node, frame)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with limits on time and memory."""

    code_generator_class = _FiniteCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    rounds = staticmethod(rounds)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Return `parts` joined; limited here, since blocks and macros also collect their output with it."""
        collected, length = [], 0
        for part in parts:
            length += len(part)
            if length > MAX_CHARACTERS:
                break
            collected.append(part)
        bounded(length)
        return "".join(collected)

    @staticmethod
    def joined(*values: Any) -> str:
        """Return the result of `a ~ b`."""
        texts = [str(value) for value in values]
        bounded(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            # The text and the number may be on either side.
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(count, int):
                    bounded(len(value) * count)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            # Computing `9**9**9` would never finish, so its size is estimated from the operands.
            _check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_stretching("format", (left, *(right if isinstance(right, tuple) else (right,))), {})
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | list | tuple):
            bounded(len(result))
        return result

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if owner is not __self:
            take_steps(_CALL_STEPS)
        if isinstance(owner, str) and name in _STRETCHING:
            if name == "join" and args:
                args = (_items(args[0]), *args[1:])
            _check_stretching(name, (owner, *args), kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return `str.format` with a check of each field as it is formatted: its width may come from within a value."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__
        is_map = value.__name__ == "format_map"
        formatter = (
            _LimitedEscapeFormatter(self, escape=text.escape)
            if isinstance(text, Markup)
            else _LimitedFormatter(self)
        )

        @wraps(wrapped)
        def limited(*arguments: Any, **named: Any) -> str:
            if is_map:
                (named,), arguments = arguments, ()
            return type(text)(formatter.vformat(text, arguments, named))  # type: ignore[no-any-return]

        return limited

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _LimitedNodes().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]


class _LimitedFields:
    """Formats one field after checking its width, which is known only then."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        _check_field("format", format_spec)
        return super().format_field(value, format_spec)  # type: ignore[misc]


class _LimitedFormatter(_LimitedFields, SandboxedFormatter):
    pass


class _LimitedEscapeFormatter(_LimitedFields, SandboxedEscapeFormatter):
    pass


def environment_call(method: str, arguments: list[nodes.Expr], origin: nodes.Node) -> nodes.Call:
    """Return a call of a method of the environment that takes the place of `origin`."""
    function = nodes.EnvironmentAttribute(method, lineno=origin.lineno)
    call = nodes.Call(function, arguments, [], None, None, lineno=origin.lineno)
    return call.set_environment(origin.environment) if origin.environment else call  # type: ignore[return-value]


class _LimitedNodes(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return environment_call("joined", node.nodes, node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = environment_call("rounds", [node.iter], node)  # type: ignore[list-item]
        return node


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        take_steps(1)
        yield value


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        # Some filters take Jinja2's context as their first argument.
        first = int(hasattr(function, "jinja_pass_arg"))
        if name == "join" and len(arguments) > first:
            arguments = (*arguments[:first], _items(arguments[first]), *arguments[first + 1 :])
        own = arguments[first:]
        # Checked before the call, since its result may already use up the memory.
        _check_stretching(name, own, named)
        result = function(*arguments, **named)
        if isinstance(result, str):
            bounded(len(result))
        return result

    return limited


def _check_bits(count: int) -> None:
    if count > _MAX_BITS:
        raise TemplateLimitError("it computes a number that is much too large")


def _check_stretching(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if a call would make its first argument, a text or a list, too long."""
    if not arguments:
        return
    value, *further = (*arguments, *named.values())
    if name in {"format", "format_map"} and isinstance(value, str):
        _check_field(name, value)
    if name in _SLOW_FILTERS and isinstance(value, str) and len(value) > _MAX_WIDTH:
        raise TemplateLimitError(f"`{name}` gets more than {_MAX_WIDTH:,} characters")
    for number in further if name not in {"replace", "join"} else ():
        if _is_wide(number):
            raise TemplateLimitError(
                f"`{name}` gets the number {number!s:.20}; at most {_MAX_WIDTH:,} is allowed"
            )
    texts = [item for item in further if isinstance(item, str)]
    if name == "join":
        joined = further[0] if isinstance(value, str) and further and isinstance(further[0], list) else value
        bounded(sum(map(_length_of, joined)) if isinstance(joined, list) else 0)
    if name == "replace" and isinstance(value, str) and len(texts) > 1:
        bounded(len(value) + value.count(texts[0]) * len(texts[1]))
    elif name == "join" and texts and isinstance(value, Sized):
        bounded(len(value) * len(texts[0]))
    elif name == "join" and isinstance(value, str) and further and isinstance(further[0], Sized):
        bounded(len(value) * len(further[0]))
    elif name == "indent" and isinstance(value, str) and further and isinstance(further[0], int):
        bounded(len(value) + value.count("\n") * further[0])


def _items(values: Any) -> Any:
    """Return the values to join as a list, so that their length is known before they become a text."""
    return list(values) if isinstance(values, Iterator | tuple | range | set | frozenset) else values


def _length_of(item: Any) -> int:
    """Return the length of a text, or the total length of the texts in a mapping, one of which may be chosen."""
    if isinstance(item, str):
        return len(item)
    return (
        sum(len(text) for text in item.values() if isinstance(text, str)) if isinstance(item, Mapping) else 0
    )


def _check_field(name: str, fields: str) -> None:
    if _WIDE_FIELD.search(fields):
        raise TemplateLimitError(f"`{name}` makes fields of more than {_MAX_WIDTH:,} characters")


def _is_wide(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().isdigit() and len(value.strip()) > len(str(_MAX_WIDTH))
    return isinstance(value, int | float) and value > _MAX_WIDTH
