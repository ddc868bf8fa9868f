"""Renders templates as nunjucks does: undefined names are empty, and values behave as in JavaScript.

Jinja2 and its sandbox do the work. Number literals, escapes, operator precedence and the scopes of `set` are changed to
nunjucks' rules, and operators, loops, members, filters and tests are replaced by ones that behave as in JavaScript.
"""

import html
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, cmp_to_key, partial
from typing import Any, cast
from urllib.parse import quote

from jinja2 import Environment, Template, Undefined, nodes
from jinja2.exceptions import UndefinedError
from jinja2.lexer import Lexer, Token
from jinja2.parser import Parser
from jinja2.sandbox import MAX_RANGE
from jinja2.visitor import NodeTransformer

from geval_cli.errors import TemplateError
from geval_cli.extras.promptfoo.js_values import (
    JS_SPACE,
    NAN,
    UNDEFINED,
    JsArray,
    JsObject,
    JsUndefined,
    as_js,
    js_add,
    js_calculate,
    js_compare,
    js_length,
    js_member,
    js_number_of,
    js_object,
    js_part,
    js_primitive_text,
    js_same,
    js_text,
    parse_json,
)
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import DialectRules
from geval_cli.templating.js_text import js_json
from geval_cli.templating.limits import (
    LimitedEnvironment,
    TemplateLimitError,
    bounded,
    environment_call,
    limited_filters,
    rounds,
    take_steps,
)
from geval_cli.templating.templates import Templates, is_template

_NUMBER = compile_later(r"\d+(\.\d+)?")
_ESCAPE = compile_later(r"\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
_EQUALITIES = frozenset({"eq", "ne"})
_ORDERS = frozenset({"lt", "lteq", "gt", "gteq"})
_STRICT = {"eq": "is", "ne": "isnot"}
_SUMS: dict[str, type[nodes.BinExpr]] = {"add": nodes.Add, "sub": nodes.Sub}
_PRODUCTS: dict[str, type[nodes.BinExpr]] = {"mul": nodes.Mul, "div": nodes.Div}
_CALCULATIONS = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.Mod)
_PYTHON_WORDS = frozenset({"True", "False", "None"})
_VERBATIM = compile_later(r"(\{%-?\s*(?:end)?)verbatim(?=\s*-?%\})")
_FRAMES, _BLOCK = "__frames", "__block"


class NunjucksLexer(Lexer):
    r"""Jinja2's lexer with nunjucks' literals.

    `1e3`, `0x10` and `1_000` are undefined. The only escapes are `\n`, `\t` and `\r`; any other backslash is dropped.
    """

    def wrap(
        self, stream: Iterable[tuple[int, str, str]], name: str | None = None, filename: str | None = None
    ) -> Iterator[Token]:
        return super().wrap(map(_as_read, stream), name, filename)


def _as_read(token: tuple[int, str, str]) -> tuple[int, str, str]:
    line, kind, text = token
    if kind in {"integer", "float"}:
        return token if _NUMBER.fullmatch(text) else (line, "name", "undefined")
    if kind == "string" and "\\" in text:
        read = _ESCAPE.sub(lambda found: _CONTROLS.get(found[1], found[1]), text[1:-1])
        return line, kind, f'"{read.encode("unicode-escape").decode()}"'
    return (line, kind, "elif") if kind == "name" and text == "elseif" else token


class NunjucksParser(Parser):
    """Jinja2's parser with the operator precedence of nunjucks.

    nunjucks compiles an expression to JavaScript without parentheses, so JavaScript's precedence applies: `~` has that
    of `+`, and `not` applies only to the first operand of what follows. `in`, `is`, `//` and `**` become calls.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._groups: dict[int, nodes.Expr] = {}  # expressions in parentheses, by id

    def parse_not(self) -> nodes.Expr:
        if self.stream.current.test("name:not"):
            line = next(self.stream).lineno
            return self._negated(self.parse_not(), line)
        return self.parse_compare()

    def _negated(self, node: nodes.Expr, line: int) -> nodes.Expr:
        """Return `not node`, where `not` applies only to the first operand."""
        if id(node) in self._groups:
            return nodes.Not(node, lineno=line)
        if isinstance(node, nodes.Compare) and node.ops[0].op not in {"in", "notin"}:
            node.expr = self._negated(node.expr, line)
        elif isinstance(node, _CALCULATIONS):
            node.left = self._negated(node.left, line)
        elif isinstance(node, nodes.Concat):
            node.nodes[0] = self._negated(node.nodes[0], line)
        else:
            return nodes.Not(node, lineno=line)
        return node

    def parse_compare(self) -> nodes.Expr:
        left = self._tested()
        while True:
            line = self.stream.current.lineno
            if self.stream.skip_if("name:in"):
                operator = "in"
            elif self.stream.current.test("name:not") and self.stream.look().test("name:in"):
                self.stream.skip(2)
                operator = "notin"
            else:
                return left
            left = nodes.Compare(left, [nodes.Operand(operator, self._tested())], lineno=line)

    def _tested(self) -> nodes.Expr:
        node = self._compared(_EQUALITIES)
        while self.stream.current.test("name:is"):
            node = self.parse_test(node)
        return node

    def parse_test(self, node: nodes.Expr) -> nodes.Expr:
        token = next(self.stream)
        is_negated = self.stream.skip_if("name:not")
        name = self.stream.expect("name").value
        arguments: list[nodes.Expr] = []
        if self.stream.current.type == "lparen":
            arguments = self.parse_call_args()[0]
        elif self.stream.current.type in {"integer", "float", "string"}:
            arguments = [self.parse_primary()]
        test = nodes.Test(node, name, arguments, [], None, None, lineno=token.lineno)
        return nodes.Not(test, lineno=token.lineno) if is_negated else test

    def _compared(self, operators: frozenset[str]) -> nodes.Expr:
        line = self.stream.current.lineno
        left = self._operand(operators)
        while (operator := self.stream.current.type) in operators:
            next(self.stream)
            if operator in _STRICT and self.stream.skip_if("assign"):
                operator = _STRICT[operator]
            left = nodes.Compare(left, [nodes.Operand(operator, self._operand(operators))], lineno=line)
        return left

    def _operand(self, operators: frozenset[str]) -> nodes.Expr:
        return self._compared(_ORDERS) if operators is _EQUALITIES else self.parse_concat()

    def parse_concat(self) -> nodes.Expr:
        line = self.stream.current.lineno
        left = self._product()
        while True:
            sign = self.stream.current.type
            if sign == "tilde":
                next(self.stream)
                left = nodes.Concat([left, self._product()], lineno=line)
            elif sign in _SUMS:
                next(self.stream)
                left = _SUMS[sign](left, self._product(), lineno=line)
            else:
                return left

    def _product(self) -> nodes.Expr:
        left = self._quotient()
        while (sign := self.stream.current.type) in _PRODUCTS:
            next(self.stream)
            left = self._joined(_PRODUCTS[sign], left, self._quotient())
        return left

    def _quotient(self) -> nodes.Expr:
        left = self._rest()
        while self.stream.skip_if("floordiv"):
            whole = self._joined(nodes.Div, left, self._rest())
            left = nodes.FloorDiv(whole, nodes.Const(1, lineno=left.lineno), lineno=left.lineno)
        return left

    def _rest(self) -> nodes.Expr:
        left = self.parse_pow()
        while self.stream.skip_if("mod"):
            left = nodes.Mod(left, self.parse_pow(), lineno=left.lineno)
        return left

    def _joined(self, kind: type[nodes.BinExpr], left: nodes.Expr, right: nodes.Expr) -> nodes.Expr:
        """Return `left * right`; if `right` is `a % b` without parentheses, `(left * a) % b`."""
        if isinstance(right, nodes.Mod) and id(right) not in self._groups:
            return nodes.Mod(self._joined(kind, left, right.left), right.right, lineno=left.lineno)
        return kind(left, right, lineno=left.lineno)

    def parse_filter_expr(self, node: nodes.Expr) -> nodes.Expr:
        while self.stream.current.type in {"pipe", "lparen"}:
            is_filter = self.stream.current.type == "pipe"
            node = cast("nodes.Expr", self.parse_filter(node)) if is_filter else self.parse_call(node)
        return node

    def parse_primary(self, with_namespace: bool = False) -> nodes.Expr:
        token = self.stream.current
        if token.test("name:null"):
            next(self.stream)
            return nodes.Const(None, lineno=token.lineno)
        if token.type == "name" and token.value in _PYTHON_WORDS:
            next(self.stream)
            return nodes.Name(token.value, "load", lineno=token.lineno)
        node = super().parse_primary(with_namespace)
        if token.type == "lparen":
            self._groups[id(node)] = node
        return node


def parse_nunjucks(
    environment: Environment, source: str, name: str | None, filename: str | None
) -> nodes.Template:
    """Parse a template and return its tree, with nunjucks' operators and scopes."""
    tree = NunjucksParser(environment, _VERBATIM.sub(r"\1raw", source), name, filename).parse()
    return _NunjucksNodes().visit(_with_scopes(tree))  # type: ignore[no-any-return]


class _NunjucksNodes(NodeTransformer):
    """Replaces Python's comparisons, concatenation, lists, objects and loops by JavaScript's."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        result: nodes.Expr = node.expr
        for operand in node.ops:
            result = environment_call("compare", [result, nodes.Const(operand.op), operand.expr], node)
        return result

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return environment_call("join_texts", node.nodes, node)

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.target, nodes.Tuple):  # each of the names gets the whole value
            names = nodes.Const(len(node.target.items))
            node.node = environment_call("for_each_name", [cast("nodes.Expr", node.node), names], node)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return environment_call("array", node.items, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        parts: list[nodes.Expr] = []
        for pair in node.items:
            key = nodes.Const(pair.key.name) if isinstance(pair.key, nodes.Name) else self.visit(pair.key)
            parts += [key, self.visit(pair.value)]
        return environment_call("object", parts, node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.test is not None:
            # What looks like Jinja2's loop filter is a condition for the whole loop in nunjucks.
            node.iter = nodes.CondExpr(node.test, cast("nodes.Expr", node.iter), None, lineno=node.lineno)
            node.test = None
        self.generic_visit(node)
        names = len(node.target.items) if isinstance(node.target, nodes.Tuple) else 1
        node.iter = environment_call("each", [cast("nodes.Expr", node.iter), nodes.Const(names)], node)
        return node


def _with_scopes(tree: nodes.Template) -> nodes.Template:
    """Make `set` inside a loop change a variable that was set outside it, unlike in Jinja2.

    Names that loops or macros bind follow Jinja2's rules.
    """
    names = {name for loop in tree.find_all(nodes.For) for name in _names_set_in(loop)}
    names -= {name for loop in tree.find_all(nodes.For) for name in _names_in(loop.target)}
    blocks: list[nodes.Macro | nodes.CallBlock] = [
        *tree.find_all(nodes.Macro),
        *tree.find_all(nodes.CallBlock),
    ]
    for block in blocks:
        names -= {argument.name for argument in block.args} | set(_names_set_in(block))
    if not names:
        return tree
    _SharedNames(names).visit(tree)
    frames = environment_call("frames", [], tree)
    tree.body.insert(0, nodes.Assign(nodes.Name(_FRAMES, "store"), frames, lineno=1))
    return tree


def _names_set_in(node: nodes.Node) -> Iterator[str]:
    targets: list[nodes.Node] = [found.target for found in node.find_all(nodes.Assign)]
    targets += [found.target for found in node.find_all(nodes.AssignBlock)]
    yield from (target.name for target in targets if isinstance(target, nodes.Name))


def _names_in(target: nodes.Node) -> Iterator[str]:
    if isinstance(target, nodes.Name):
        yield target.name
    yield from (name.name for name in target.find_all(nodes.Name))


class _SharedNames(NodeTransformer):
    """Keeps some names in frames: one for the template, and one for each active loop."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name not in self._names or node.ctx != "load":
            return node
        return environment_call("named", [self._frames(), nodes.Const(node.name), node], node)

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        name = self._shared_name(node.target)
        return node if name is None else self._set(name, node.node, node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node | list[nodes.Node]:
        self.generic_visit(node)
        name = self._shared_name(node.target)
        if name is None:
            return node
        node.target = nodes.Name(_BLOCK, "store", lineno=node.lineno)
        return [node, self._set(name, nodes.Name(_BLOCK, "load", lineno=node.lineno), node)]

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:
        self.generic_visit(node)
        begin, end = (self._statement(method, [], node) for method in ("enter_loop", "leave_loop"))
        return [begin, node, end]

    def _shared_name(self, target: nodes.Node) -> str | None:
        return target.name if isinstance(target, nodes.Name) and target.name in self._names else None

    def _set(self, name: str, value: nodes.Node, origin: nodes.Node) -> nodes.Node:
        return self._statement("set_name", [nodes.Const(name), cast("nodes.Expr", value)], origin)

    def _statement(self, method: str, arguments: list[nodes.Expr], origin: nodes.Node) -> nodes.Node:
        call = environment_call(method, [self._frames(), *arguments], origin)
        return nodes.ExprStmt(call, lineno=origin.lineno)

    @staticmethod
    def _frames() -> nodes.Expr:
        return nodes.Name(_FRAMES, "load")


_UNRESERVED = "!'()*~-_."  # what encodeURIComponent leaves unchanged
_TAG = compile_later(r"</?[a-z][a-z0-9]*\b[^>]*>|<!--.*?-->", re.IGNORECASE | re.DOTALL | re.ASCII)
_WORD = compile_later(r"\w+", re.ASCII)
_FLOAT = compile_later(r"[-+]?(?:Infinity|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)", re.ASCII)
_LINE_EDGES = compile_later(r"^ +|(?<! ) +$", re.MULTILINE)
_HIGHEST_BASE = 36
_HEX = 16
_DEFAULT_WIDTH, _DEFAULT_LENGTH, _DEFAULT_INDENT = 80, 255, 4
_MOST_INDENT = 10  # of JSON

_SURROUNDED = compile_later(r"(?P<before>\(|<|&lt;)?(?P<word>.*?)(?P<after>\.|,|\)|&gt;)?", re.DOTALL)
_HTTP_ADDRESS = compile_later(r"https?://.*")
_MAIL_ADDRESS = compile_later(
    r"[\w.!#$%&'*+\-/=?^`{|}~]+@[a-z\d\-]+(?:\.[a-z\d\-]+)+", re.IGNORECASE | re.ASCII
)
_COMMON_DOMAIN = compile_later(r"\.(?:org|net|com)(?::|/|$)")


def _is_nothing(value: Any) -> bool:
    return value is None or value is False or isinstance(value, Undefined)


def _text(value: Any) -> str:
    """Return a value as the text that filters work on; null, undefined and false are empty."""
    return "" if _is_nothing(value) else js_text(value)


def _whole(value: Any, otherwise: int) -> int:
    """Return a value as an integer; `otherwise` for 0 and for values that are not numbers."""
    number = js_number_of(value)
    return int(number) or otherwise if math.isfinite(number) else otherwise


def _default(value: Any, fallback: Any = UNDEFINED, or_false: Any = False) -> Any:
    if or_false:
        return value or fallback
    return fallback if isinstance(value, Undefined) else value


def _dump(value: Any, indent: Any = 0) -> Any:
    if isinstance(value, Undefined) or callable(value):
        return UNDEFINED
    if isinstance(indent, str):
        return js_json(_without_undefined(value), indent[:_MOST_INDENT])
    number = js_number_of(indent)
    return js_json(_without_undefined(value), min(int(number), _MOST_INDENT) if number > 0 else 0)


def _without_undefined(value: Any) -> Any:
    """Return a value as JSON represents it: undefined members are omitted, undefined list entries become null."""
    if isinstance(value, Mapping):
        return {key: _without_undefined(item) for key, item in value.items() if not _is_no_json(item)}
    if isinstance(value, list):
        return [None if _is_no_json(item) else _without_undefined(item) for item in value]
    return value


def _is_no_json(value: Any) -> bool:
    return isinstance(value, Undefined) or callable(value)


def _length(value: Any) -> Any:
    if _is_nothing(value):
        return 0
    return len(value) if isinstance(value, Mapping) else js_member(value, "length")


def _join(value: Any, separator: Any = "", attribute: Any = None) -> str:
    if isinstance(value, str):
        return value  # an error in nunjucks; joining single letters would be pointless
    items = _items(value)
    if attribute:
        items = [] if isinstance(value, Mapping) else [js_member(item, attribute) for item in items]
    return (js_primitive_text(separator) if separator else "").join(map(js_text, items))


def _replace(value: Any, old: Any, new: Any = UNDEFINED, most: Any = UNDEFINED) -> Any:
    if not _is_text_or_number(value) or not _is_text_or_number(old):
        return value
    text = js_text(value)
    searched = js_text(old)
    given = js_primitive_text(new)
    if not searched:
        return given + given.join(text) + given
    count = -1 if isinstance(most, Undefined) else int(js_number_of(most))
    return text.replace(searched, given, count)


def _is_text_or_number(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _first(value: Any) -> Any:
    return js_member(value, 0)


def _last(value: Any) -> Any:
    return js_member(value, js_member(value, "length") - 1) if isinstance(value, str | list) else UNDEFINED


def _list(value: Any) -> JsArray:
    if isinstance(value, Mapping):
        return JsArray(JsObject(key=key, value=item) for key, item in value.items())
    return JsArray(_items(value))


def _reverse(value: Any) -> Any:
    if isinstance(value, str):
        return value[::-1]
    return JsArray(reversed(_entries(value)))


def _round(value: Any, places: Any = 0, method: Any = None) -> float:
    factor = 10 ** _whole(places, 0)
    number = js_number_of(value) * factor
    if not math.isfinite(number):
        return NAN if math.isnan(number) else number
    # Halves are rounded up, as in JavaScript, also below zero.
    whole = {"ceil": math.ceil, "floor": math.floor}.get(js_text(method), lambda x: math.floor(x + 0.5))(
        number
    )
    return float(whole / factor)


def _sort(value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None) -> JsArray:
    def key_of(item: Any) -> Any:
        for name in js_text(attribute).split(".") if attribute else ():
            item = js_member(item, name)
        return item

    def order(left: Any, right: Any) -> int:
        first, second = key_of(left), key_of(right)
        if not case_sensitive and isinstance(first, str) and isinstance(second, str):
            first, second = first.lower(), second.lower()
        above = js_compare(first, "gt", second) - js_compare(first, "lt", second)
        return -above if reverse else above

    items = _entries(value)
    there = [item for item in items if not isinstance(item, Undefined)]
    return JsArray(sorted(there, key=cmp_to_key(order)) + [UNDEFINED] * (len(items) - len(there)))


def _dictsort(value: Any, case_sensitive: Any = False, by: Any = "key") -> JsArray:
    position = 1 if js_text(by) == "value" else 0

    def order(left: JsArray, right: JsArray) -> int:
        first, second = left[position], right[position]
        if not case_sensitive:
            first, second = (item.upper() if isinstance(item, str) else item for item in (first, second))
        return 1 if js_compare(first, "gt", second) else -(not js_same(first, second))

    pairs = [JsArray([key, item]) for key, item in (value.items() if isinstance(value, Mapping) else ())]
    return JsArray(sorted(pairs, key=cmp_to_key(order)))


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total: Any = 0
    for item in _entries(value):
        total = js_add(total, js_member(item, attribute) if attribute else item)
    return js_add(start, total)


def _groupby(value: Any, attribute: Any) -> JsObject:
    groups: dict[str, JsArray] = {}
    for item in _entries(value):
        found = item
        for name in js_text(attribute).split("."):
            found = js_member(found, name)
        groups.setdefault(js_primitive_text(found), JsArray()).append(item)
    return js_object(groups)


def _batch(value: Any, count: Any, fill: Any = None) -> JsArray:
    items = _entries(value)
    size = max(1, _whole(count, 1))
    rows = [JsArray(items[start : start + size]) for start in range(0, len(items), size)]
    if rows and fill:
        rows[-1].extend([fill] * (size - len(rows[-1])))
    return JsArray(rows)


def _slice(value: Any, count: Any, fill: Any = None) -> JsArray:
    items = _items(value)
    slices = max(1, _whole(count, 1))
    size, extra = divmod(len(items), slices)
    found, start = JsArray(), 0
    for index in range(slices):
        end = start + size + (index < extra)
        part = JsArray(items[start:end])
        if fill and index >= extra:
            part.append(fill)
        found.append("".join(part) if isinstance(value, str) else part)
        start = end
    return found


def _truncate(value: Any, length: Any = 0, kill_words: Any = False, end: Any = None) -> Any:
    if _is_text_or_number(value) and not isinstance(value, str):
        return value
    text = _text(value)
    most = _whole(length, _DEFAULT_LENGTH)
    if js_length(text) <= most:
        return text
    cut = js_part(text, 0, most)
    if not kill_words:
        # A space right after the cut counts too.
        space = js_part(text, 0, most + 1).rfind(" ")
        cut = cut if space < 0 else cut[:space]
    return cut + ("..." if end is None or isinstance(end, Undefined) else js_text(end))


def _indent(value: Any, width: Any = 0, first: Any = False) -> str:
    step = " " * _whole(width, _DEFAULT_INDENT)
    text = _text(value)
    lines = text.split("\n") if text else []
    return "\n".join(step + line if index or first else line for index, line in enumerate(lines))


def _title(value: Any) -> str:
    return " ".join(map(_capitalize, _text(value).split(" ")))


def _capitalize(value: Any) -> str:
    text = _text(value).lower()
    return text[:1].upper() + text[1:]


def _center(value: Any, width: Any = 0) -> str:
    text = _text(value)
    size = _whole(width, _DEFAULT_WIDTH)
    spaces = size - (len(value) if isinstance(value, list) else js_length(text))
    if spaces <= 0 or isinstance(value, int | float):
        return text
    before = math.ceil(spaces / 2 - spaces % 2)
    return " " * before + text + " " * math.ceil(spaces / 2)


def _urlencode(value: Any) -> str:
    if isinstance(value, Mapping):
        return "&".join(f"{_encoded(key)}={_encoded(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "&".join(f"{_encoded(js_member(pair, 0))}={_encoded(js_member(pair, 1))}" for pair in value)
    return _encoded(value) if isinstance(value, str) else ""


def _encoded(value: Any) -> str:
    return quote(js_primitive_text(value), safe=_UNRESERVED)


def _escape(value: Any) -> str:
    text = html.escape(js_text(value), quote=False).replace('"', "&quot;").replace("'", "&#39;")
    return text.replace("\\", "&#92;").replace("`", "&#96;")


def _striptags(value: Any, keep_breaks: Any = False) -> str:
    text = _TAG.sub("", _text(value)).strip(JS_SPACE)
    if keep_breaks:
        text = re.sub(" +", " ", _LINE_EDGES.sub("", text)).replace("\r\n", "\n")
        return re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(f"[{JS_SPACE}]+", " ", text)


def _int(value: Any, fallback: Any = UNDEFINED, base: Any = 10) -> Any:
    """Return the integer that a text begins with; `fallback` if there is none."""
    text = js_primitive_text(value).strip(JS_SPACE)
    radix = _whole(base, 0)  # 0 stands for 16 after `0x`, and for 10 otherwise
    sign = "-" if text.startswith("-") else ""
    digits = text.lstrip("+-")
    if len(text) - len(digits) > 1 or radix == 1 or not 0 <= radix <= _HIGHEST_BASE:
        return fallback
    if radix in {0, _HEX} and digits[:2] in {"0x", "0X"}:
        digits, radix = digits[2:], _HEX
    radix = radix or 10
    count = next((place for place, sign in enumerate(digits) if not _is_digit(sign, radix)), len(digits))
    return int(sign + digits[:count], radix) if count else fallback


def _is_digit(sign: str, base: int) -> bool:
    return sign.isascii() and sign.isalnum() and int(sign, _HIGHEST_BASE) < base


def _float(value: Any, fallback: Any = UNDEFINED) -> Any:
    found = _FLOAT.match(js_primitive_text(value).strip(JS_SPACE))
    return float(found[0]) if found else fallback


def _select(value: Any, keep: bool, test: Any = "truthy", argument: Any = None) -> JsArray:
    check = TESTS.get(js_text(test), TESTS["truthy"])
    return JsArray(
        item
        for item in _entries(value)
        if bool(check(item) if argument is None else check(item, argument)) is keep
    )


def _select_by(value: Any, attribute: Any, keep: bool) -> JsArray:
    return JsArray(item for item in _entries(value) if bool(js_member(item, attribute)) is keep)


def _urlize(value: Any, length: Any = UNDEFINED, no_follow: Any = False) -> str:
    most = js_number_of(length)
    rel = ' rel="nofollow"' if no_follow is True else ""
    shown = len(js_text(value)) if not math.isfinite(most) else max(0, int(most))
    return "".join(_linked(word, shown, rel) for word in re.split(r"(\s+)", js_text(value)))


def _linked(word: str, shown: int, rel: str) -> str:
    """Return a word as a link if it is an address, without surrounding punctuation, which nunjucks drops too."""
    found = _SURROUNDED.fullmatch(word)
    address = found["word"] if found else word
    if _HTTP_ADDRESS.fullmatch(address):
        return f'<a href="{address}"{rel}>{address[:shown]}</a>'
    if address.startswith("www."):
        return f'<a href="http://{address}"{rel}>{address[:shown]}</a>'
    if _MAIL_ADDRESS.fullmatch(address):
        return f'<a href="mailto:{address}">{address}</a>'
    if _COMMON_DOMAIN.search(address):
        return f'<a href="http://{address}"{rel}>{address[:shown]}</a>'
    return word


def _entries(value: Any) -> list[Any]:
    """Return the items that list filters work on; none for an object, as in nunjucks."""
    return [] if isinstance(value, Mapping) else _items(value)


def _items(value: Any) -> list[Any]:
    if value is None or isinstance(value, Undefined | bool | int | float):
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, Iterable) else []


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": lambda value: abs(js_number_of(value)),
    "batch": _batch,
    "capitalize": _capitalize,
    "center": _center,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "dump": _dump,
    "e": _escape,
    "escape": _escape,
    "first": _first,
    "float": _float,
    "forceescape": _escape,
    "groupby": _groupby,
    "indent": _indent,
    "int": _int,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "load": parse_json,
    "lower": lambda value: _text(value).lower(),
    "nl2br": lambda value: re.sub(r"\r\n|\n", "<br />\n", js_text(value)),
    "random": lambda value: random.choice(_items(value)) if _items(value) else None,
    "reject": lambda value, test="truthy", argument=None: _select(value, False, test, argument),
    "rejectattr": lambda value, attribute: _select_by(value, attribute, False),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": lambda value: "" if value is None or isinstance(value, Undefined) else js_text(value),
    "select": lambda value, test="truthy", argument=None: _select(value, True, test, argument),
    "selectattr": lambda value, attribute: _select_by(value, attribute, True),
    "slice": _slice,
    "sort": _sort,
    "string": js_text,
    "striptags": _striptags,
    "sum": _sum,
    "title": _title,
    "trim": lambda value: js_text(value).strip(JS_SPACE),
    "truncate": _truncate,
    "upper": lambda value: _text(value).upper(),
    "urlencode": _urlencode,
    "urlize": _urlize,
    "wordcount": lambda value: len(_WORD.findall(_text(value))) or None,
}
"""All filters that a template may use, without Jinja2's own, which promptfoo lacks."""

TESTS: dict[str, Callable[..., Any]] = {
    "callable": lambda value: callable(value) and not isinstance(value, Undefined),
    "defined": lambda value: not isinstance(value, Undefined),
    "divisibleby": lambda value, by: js_calculate("%", value, by) == 0,
    "eq": js_same,
    "equalto": js_same,
    "even": lambda value: js_calculate("%", value, 2) == 0,
    "falsy": lambda value: not value,
    "ge": lambda value, other: js_compare(value, "gteq", other),
    "greaterthan": lambda value, other: js_compare(value, "gt", other),
    "gt": lambda value, other: js_compare(value, "gt", other),
    "iterable": lambda value: isinstance(value, str | list),
    "le": lambda value, other: js_compare(value, "lteq", other),
    "lessthan": lambda value, other: js_compare(value, "lt", other),
    "lower": lambda value: js_text(value).lower() == value,
    "lt": lambda value, other: js_compare(value, "lt", other),
    "mapping": lambda value: isinstance(value, dict),
    "ne": lambda value, other: not js_same(value, other),
    "none": lambda value: value is None,
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "odd": lambda value: js_calculate("%", value, 2) == 1,
    "sameas": js_same,
    "string": lambda value: isinstance(value, str),
    "truthy": bool,
    "undefined": lambda value: isinstance(value, Undefined),
    "upper": lambda value: js_text(value).upper() == value,
}


_UNFINISHED = re.compile(r"\{%[^%]*$|\{\{[^}]*$|\{#[^#]*$")
_HAS_RAW = re.compile(r"\{%-?\s*raw\s*-?%\}.*\{%-?\s*endraw\s*-?%\}", re.DOTALL)
_CARRIAGE_RETURN = "\ue00d"  # placeholder, since Jinja2 normalizes line breaks
_PAIR = 2
_OWN_MEMBERS = (str, int, float, list, dict, type(None))


class NunjucksTemplates(Templates):
    """Renders templates as nunjucks does.

    `env` provides the values of `{{ env.NAME }}`; `filters` are added to the built-in ones, and may raise ValueError.
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
            # A prompt is not HTML; promptfoo turns off nunjucks' escaping too.
            autoescape=False,
            optimized=False,  # the optimizer would write NaN and Infinity into the code as unknown names
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
        """Replace every template expression in `text`; text with an unfinished expression stays unchanged.

        Raises:
            TemplateError: the template is broken, or does something that fails in JavaScript too.
        """
        if not is_template(text):
            return text
        if _UNFINISHED.search(text) and not _HAS_RAW.search(text):
            return text
        # Jinja2's lexer turns every line break into `\n`; nunjucks leaves them unchanged.
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
    """Return the numbers from `start` to before `stop`, or from 0 to before `start`."""
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
    """Returns its values in turn and starts over after the last: `cycler('a', 'b')`."""

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
        """Start over."""
        self._place, self.current = -1, None
        return ""


def _joiner(separator: Any = ",") -> Callable[[], str]:
    """Return a function that returns an empty text on its first call, and the separator afterwards."""
    calls = iter(("",))
    return lambda: next(calls, js_text(separator) if separator else ",")


def _called(function: Callable[..., JsonValue], *arguments: Any) -> Any:
    return as_js(function(*(None if isinstance(item, Undefined) else item for item in arguments)))


def _parts(value: Any, count: int) -> list[Any]:
    """Return the first `count` members of a list entry, for a loop with several names; missing ones are undefined."""
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
        """Return an object from alternating keys and values."""
        return js_object(dict(zip(map(js_primitive_text, parts[::2]), parts[1::2], strict=True)))

    @staticmethod
    def join_texts(*values: Any) -> str:
        texts = [js_primitive_text(value) for value in values]
        bounded(sum(map(len, texts)))
        return "".join(texts)

    @staticmethod
    def each(value: Any, names: int) -> Any:
        """Return the items of a loop; none if `value` cannot be looped over.

        With several names, an item is a key and its value (an index and a character of text), or the members of a list
        entry.
        """
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
        """Return the frames of variables by name: one for the template, to which each active loop adds one."""
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
        """Return the value of a name from the innermost frame that has it; `otherwise` if none has."""
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
