"""Evaluates a config's Python snippets inside the worker process; it does not import geval."""

import ast
import inspect
import json
import textwrap
from typing import Any

_NAME = "<the config's code>"


async def evaluate(source: str, arguments: dict[str, Any]) -> Any:
    """Run a snippet and return the value of its last expression, or what it returns.

    Args:
        source: the snippet, which sees `arguments` as variables, and the module `json`.
        arguments: the variables, by name.
    """
    text = textwrap.dedent(source).strip()
    tree = ast.parse(text, _NAME)
    body = tree.body
    if body and isinstance(body[-1], ast.Expr):
        # The last expression is the value, as in a notebook; `return` is not needed.
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    is_async = any(isinstance(node, ast.Await) for node in ast.walk(tree))
    # Any, since only Python 3.12 and later have `type_params`.
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
