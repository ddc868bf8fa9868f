"""Evaluates a config's Python snippets inside the worker process; it imports nothing of geval."""

import ast
import inspect
import json
import textwrap
from typing import Any

_NAME = "<the config's code>"


async def evaluate(source: str, arguments: dict[str, Any]) -> Any:
    """Run a snippet and return its result: the value of an expression, or what several lines return.

    Args:
        source: of the snippet; it sees `arguments` as variables, and the module json.
        arguments: by name.
    """
    text = textwrap.dedent(source).strip()
    tree = ast.parse(text, _NAME)
    body = tree.body
    if body and isinstance(body[-1], ast.Expr):
        # The last expression is the value, as in a notebook; `return` is not needed.
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    is_async = any(isinstance(node, ast.Await) for node in ast.walk(tree))
    # Any, since Python 3.12 alone wants all parts of a function to be named.
    kind: Any = ast.AsyncFunctionDef if is_async else ast.FunctionDef
    names = ast.arguments([], [ast.arg(name) for name in arguments], None, [], [], None, [])
    function = kind("snippet", names, body or [ast.Pass()], [], None)
    if hasattr(function, "type_params"):
        function.type_params = []
    module = ast.fix_missing_locations(ast.Module([function], []))
    space: dict[str, Any] = {"__name__": "snippet", "json": json}
    exec(compile(module, _NAME, "exec"), space)
    result = space["snippet"](*arguments.values())
    return await result if inspect.isawaitable(result) else result
