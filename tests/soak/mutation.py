"""Makes small mistakes in Python source, one at a time: a turned comparison, a dropped statement, 1 more.

Every mistake is put into the text as it stands, so that its difference is one place and nothing is formatted anew.
"""

import ast
import copy
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One mistake: the first line that it touches, the one above, it before and after, and the whole text with it."""

    line: int
    above: str
    before: str
    after: str
    text: str

    def difference(self, original: str, path: str) -> str:
        """Return the mistake as a unified diff without context."""
        lines = difflib.unified_diff(
            original.splitlines(), self.text.splitlines(), path, path, n=0, lineterm=""
        )
        return "\n".join(list(lines)[2:])


COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutants(source: str) -> list[Mutant]:
    """Return every mistake that is made in `source`, in the order of the text."""
    starts = _line_starts(source)
    raw = source.encode()
    made = {}
    for node in _nodes_that_run(ast.parse(source)):
        for new in _mistakes(node):
            start = starts[node.lineno - 1] + node.col_offset
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = (raw[:start] + new.encode() + raw[end:]).decode()
            made[text] = node.lineno
    found = [_mutant(source, text, line) for text, line in made.items() if text != source]
    return sorted(found, key=lambda mutant: (mutant.line, mutant.text))


def lines_of_functions(source: str) -> frozenset[int]:
    """Return the lines that run when a function is called; the others, defaults among them, run on loading."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(
        line
        for function in functions
        for line in range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1)
    )


def _mutant(source: str, text: str, line: int) -> Mutant:
    before, after = source.splitlines(), text.splitlines()
    changed = next(
        (index for index, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), line - 1
    )
    above = before[changed - 1].strip() if changed else ""
    return Mutant(changed + 1, above, before[changed].strip(), after[changed].strip(), text)


def _line_starts(source: str) -> list[int]:
    """Return the byte at which each line begins, as `ast` counts columns."""
    starts = [0]
    for line in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _nodes_that_run(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield what decides or computes; not annotations, decorators, docstrings, imports or what is in f-strings.

    Before Python 3.12 the places of what is in an f-string are not those of the text.
    """
    if isinstance(tree, ast.JoinedStr | ast.Import | ast.ImportFrom) or _is_for_types(tree):
        return
    if isinstance(tree, ast.expr | ast.stmt):
        yield tree
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "bases", "keywords"} and not isinstance(
            tree, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes_that_run(child)


def _is_for_types(node: ast.AST) -> bool:
    return (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING") or (
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


def _mistakes(node: ast.expr | ast.stmt) -> Iterator[str]:
    for kind, make in _MAKERS.items():
        if isinstance(node, kind):
            yield from make(node)


def _written(node: ast.AST) -> str:
    """Return the code of an expression, in brackets so that it stays one wherever it is put."""
    code = ast.unparse(node)
    return code if isinstance(node, ast.Constant | ast.Name | ast.Call | ast.Attribute) else f"({code})"


def _changed(node: ast.expr, change: Callable[[ast.expr], object]) -> str:
    new = copy.deepcopy(node)
    change(new)
    return _written(new)


def _comparison(node: ast.Compare) -> Iterator[str]:
    for index, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            new = copy.deepcopy(node)
            new.ops[index] = other()
            yield _written(new)


def _boolean(node: ast.BoolOp) -> Iterator[str]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield _written(ast.BoolOp(other, node.values))
    for index in range(len(node.values)):
        left = [value for at, value in enumerate(node.values) if at != index]
        yield _written(left[0] if len(left) == 1 else ast.BoolOp(node.op, left))


def _unary(node: ast.UnaryOp) -> Iterator[str]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield _written(node.operand)


def _constant(node: ast.Constant) -> Iterator[str]:
    if isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node.value, int | float):
        yield repr(node.value + 1)
        if node.value:
            yield f"({node.value - 1!r})"


def _arithmetic(node: ast.BinOp) -> Iterator[str]:
    if (
        type(node.op) in ARITHMETIC
        and not isinstance(node.left, ast.JoinedStr)
        and ast.unparse(node.right) != "None"
    ):
        yield _written(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))


def _conditional(node: ast.IfExp) -> Iterator[str]:
    yield _written(ast.IfExp(node.test, node.orelse, node.body))


def _call(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
        yield ast.unparse(ast.Call(ast.Name(OPPOSITES[node.func.id], ast.Load()), node.args, node.keywords))


def _comprehension(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Iterator[str]:
    """Leave out each condition of a comprehension."""
    for at, generator in enumerate(node.generators):
        for index in range(len(generator.ifs)):
            new = copy.deepcopy(node)
            del new.generators[at].ifs[index]
            yield ast.unparse(new)


def _returned(node: ast.Return) -> Iterator[str]:
    if node.value is not None and ast.unparse(node.value) not in {"None", "True", "False"}:
        yield "return None"


def _dropped(node: ast.stmt) -> Iterator[str]:
    yield "pass"


def _dropped_call(node: ast.Expr) -> Iterator[str]:
    if not isinstance(node.value, ast.Constant):
        yield "pass"


def _dropped_setting(node: ast.Assign) -> Iterator[str]:
    """Leave out what is written into an object; a name that is never set would fail by itself."""
    if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield "pass"


def _jump(node: ast.stmt) -> Iterator[str]:
    yield "break" if isinstance(node, ast.Continue) else "continue"


_MAKERS: dict[type[ast.AST], Callable[..., Iterator[str]]] = {
    ast.Compare: _comparison,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.BinOp: _arithmetic,
    ast.IfExp: _conditional,
    ast.Call: _call,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.Return: _returned,
    ast.Raise: _dropped,
    ast.AugAssign: _dropped,
    ast.Expr: _dropped_call,
    ast.Assign: _dropped_setting,
    ast.Continue: _jump,
    ast.Break: _jump,
}
