"""The grammar of nunjucks where it is not Jinja2's: numbers, escapes, the order of operators, the scopes of `set`.

What operators do is `js_values`' business; here calls of the environment's methods are put into their places.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from jinja2 import Environment, nodes
from jinja2.lexer import Lexer, Token
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from geval_cli.patterns import compile_later
from geval_cli.templating.limits import environment_call

_NUMBER = compile_later(r"\d+(\.\d+)?")
_ESCAPE = compile_later(r"\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
_EQUALITIES, _ORDERS = frozenset({"eq", "ne"}), frozenset({"lt", "lteq", "gt", "gteq"})
_STRICT = {"eq": "is", "ne": "isnot"}
_SUMS: dict[str, type[nodes.BinExpr]] = {"add": nodes.Add, "sub": nodes.Sub}
_PRODUCTS: dict[str, type[nodes.BinExpr]] = {"mul": nodes.Mul, "div": nodes.Div}
_CALCULATIONS = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.Mod)
_PYTHON_WORDS = frozenset({"True", "False", "None"})
_VERBATIM = compile_later(r"(\{%-?\s*(?:end)?)verbatim(?=\s*-?%\})")
_FRAMES, _BLOCK = "__frames", "__block"


class NunjucksLexer(Lexer):
    """`1e3`, `0x10` and `1_000` are names of nothing; a backslash is before a character, `n`, `t` or `r` alone."""

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
    """Jinja2's parser with the order of nunjucks' operators.

    nunjucks writes an expression out as JavaScript without parentheses, so that JavaScript's order counts: `~` is a
    sum, and `not` belongs to the first operand of what follows. `in`, `is`, `//` and `**` become calls.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._groups: dict[int, nodes.Expr] = {}  # what is in parentheses, by id

    def parse_not(self) -> nodes.Expr:
        if self.stream.current.test("name:not"):
            line = next(self.stream).lineno
            return self._negated(self.parse_not(), line)
        return self.parse_compare()

    def _negated(self, node: nodes.Expr, line: int) -> nodes.Expr:
        """`not node`, where the sign belongs to the first operand alone."""
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
        line, left = self.stream.current.lineno, self._operand(operators)
        while (operator := self.stream.current.type) in operators:
            next(self.stream)
            if operator in _STRICT and self.stream.skip_if("assign"):
                operator = _STRICT[operator]
            left = nodes.Compare(left, [nodes.Operand(operator, self._operand(operators))], lineno=line)
        return left

    def _operand(self, operators: frozenset[str]) -> nodes.Expr:
        return self._compared(_ORDERS) if operators is _EQUALITIES else self.parse_concat()

    def parse_concat(self) -> nodes.Expr:
        line, left = self.stream.current.lineno, self._product()
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
        """`left * right`, where a right side `a % b` without parentheses makes `left * a % b`."""
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
    """Return the tree of a template, its operators and scopes as nunjucks has them."""
    tree = NunjucksParser(environment, _VERBATIM.sub(r"\1raw", source), name, filename).parse()
    return _NunjucksNodes().visit(_with_scopes(tree))  # type: ignore[no-any-return]


class _NunjucksNodes(NodeTransformer):
    """Puts JavaScript's comparisons, texts, lists, objects and loops into the place of Python's."""

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
        if (
            node.test is not None
        ):  # what looks like Jinja2's filter of a loop is a condition of the whole there
            node.iter = nodes.CondExpr(node.test, cast("nodes.Expr", node.iter), None, lineno=node.lineno)
            node.test = None
        self.generic_visit(node)
        names = len(node.target.items) if isinstance(node.target, nodes.Tuple) else 1
        node.iter = environment_call("each", [cast("nodes.Expr", node.iter), nodes.Const(names)], node)
        return node


def _with_scopes(tree: nodes.Template) -> nodes.Template:
    """Make a `set` in a loop change the name that was set outside of it, which Jinja2 leaves as it was.

    Names that loops and macros bind themselves stay with Jinja2's rules.
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
    """Keeps some names in frames: one for the template and one for each loop that is going on."""

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
