"""Templates as nunjucks renders them, for promptfoo's dialect: undefined names are empty, values are JavaScript's.

The grammar is Jinja2's, whose sandbox does the work; operators, loops, members, filters and tests are replaced by
ones that behave as in JavaScript.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from jinja2 import Template, Undefined, nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.exceptions import UndefinedError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from geval_cli.config.dialect import Dialect
from geval_cli.errors import TemplateError
from geval_cli.records import JsonValue
from geval_cli.templating.js_values import (
    JsUndefined,
    as_js,
    js_calculate,
    js_compare,
    js_member,
    js_text,
)
from geval_cli.templating.limits import (
    LimitedEnvironment,
    bounded,
    environment_call,
    limited_filters,
    rounds,
)
from geval_cli.templating.nunjucks_filters import FILTERS, TESTS
from geval_cli.templating.templates import TEMPLATE_MARKS, Templates

_UNFINISHED = re.compile(r"\{%[^%]*$|\{\{[^}]*$|\{#[^#]*$")
_HAS_RAW = re.compile(r"\{%-?\s*raw\s*-?%\}.*\{%-?\s*endraw\s*-?%\}", re.DOTALL)
_CARRIAGE_RETURN = "\ue00d"  # Jinja2 turns line breaks into its own; this stands for them meanwhile
_OWN_MEMBERS = (str, int, float, list, dict, type(None))


class NunjucksTemplates(Templates):
    """Renders templates as promptfoo does.

    `env` is what `{{ env.NAME }}` finds; `filters` come to the built-in ones, and may raise ValueError.
    """

    dialect = Dialect.PROMPTFOO

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        filters: Mapping[str, Callable[..., JsonValue]] | None = None,
    ) -> None:
        environment = _NunjucksEnvironment(
            undefined=JsUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            finalize=js_text,
            extensions=[_NunjucksTokens],
        )
        environment.globals = {
            **{name: environment.globals[name] for name in ("range", "cycler", "joiner")},
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


def _called(function: Callable[..., JsonValue], *arguments: Any) -> Any:
    return as_js(function(*(None if isinstance(item, Undefined) else item for item in arguments)))


class _NunjucksTokens(Extension):
    """Words and signs of nunjucks that Jinja2 spells otherwise: `elseif`, `===`, `!==`."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        before: Token | None = None
        for token in stream:
            if token.type == "assign" and before is not None and before.type in {"eq", "ne"}:
                before = None
                continue
            if token.type == "name" and token.value == "elseif":
                token = Token(token.lineno, "name", "elif")  # noqa: PLW2901
            before = token
            yield token


class _NunjucksNodes(NodeTransformer):
    """Puts JavaScript's comparisons, concatenation and loops into the place of Python's."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        result: nodes.Expr = node.expr
        for operand in node.ops:
            result = environment_call("compare", [result, nodes.Const(operand.op), operand.expr], node)
        return result

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return environment_call("join_texts", node.nodes, node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        names = len(node.target.items) if isinstance(node.target, nodes.Tuple) else 1
        node.iter = environment_call("each", [cast("nodes.Expr", node.iter), nodes.Const(names)], node)
        return node


class _NunjucksEnvironment(LimitedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    intercepted_unops = frozenset({"-", "+"})

    compare = staticmethod(js_compare)

    @staticmethod
    def join_texts(*values: Any) -> str:
        texts = [js_text(value) for value in values]
        bounded(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def each(value: Any, names: int) -> Any:
        """What a loop goes through: pairs of a mapping for two names, nothing for what is no list."""
        if isinstance(value, Mapping):
            return rounds(list(value.items())) if names > 1 else []
        return rounds(value) if isinstance(value, str | list | range) else []

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = js_calculate(operator, left, right)
        if isinstance(result, str):
            bounded(len(result))
        return result

    def call_unop(self, context: Any, operator: str, arg: Any) -> Any:
        return js_calculate("*", arg, -1 if operator == "-" else 1)

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
        if isinstance(obj, Mapping) and name in obj:
            return obj[name]
        found = js_member(obj, name)
        return self.undefined(obj=obj, name=name) if found is None else found

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        try:
            tree = ImmutableSandboxedEnvironment._parse(self, source, name, filename)
        except RecursionError as error:
            raise JinjaError("nested too deep") from error
        return _NunjucksNodes().visit(tree)  # type: ignore[no-any-return]
