"""Describes and calls the functions of a user's Python file, inside the worker process; does not import geval.

Each call executes the file anew, then restores the module's variables as the case's last call left them. So no case
sees the effects of another one, and a resumed case continues where it was.
"""

import ast
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticUndefined, to_jsonable_python

CONTEXT = "context"
"""A parameter with this name is no argument of the tool, but receives the test's variables."""

MOST_MEMORY_BYTES = 2 << 30
"""The memory limit for functions and everything the file imports, on Linux only."""
_MOST_STATE_CHARS = 4_000_000
_CONTAINERS = (dict, list, set, frozenset, tuple, bytearray)
_PLAIN = (str, int, float, complex, bool, bytes, type(None))


def describe(path: str, name: str) -> dict[str, Any]:
    """Return the tools in a file (all public functions, or the one named) and the problems with them."""
    module = _fresh(Path(path))
    names = [name] if name else [key for key, value in vars(module).items() if _is_tool(key, value, module)]
    tools, problems = [], []
    for one in names:
        function = getattr(module, one, None)
        if not inspect.isfunction(function):
            problems.append(f"{Path(path).name} has no function `{one}`")
            continue
        try:
            schema = _without_titles(_arguments_of(function)[0].model_json_schema())
        except _SignatureError as error:
            problems.append(str(error))
            continue
        tools.append({"name": one, "description": inspect.getdoc(function) or "", "parameters": schema})
    return {"tools": tools, "problems": problems}


async def call(
    path: str, name: str, arguments: dict[str, Any], variables: dict[str, Any], state: dict[str, str]
) -> dict[str, Any]:
    """Call a function and return its `result` or its `error`, and the `state` of the module's variables after it.

    If the arguments are not valid, nothing is called, and the answer is `refused` with the reason.
    """
    module = _fresh(Path(path))
    at_first = _written_variables(module)
    for variable, text in state.items():
        setattr(module, variable, ast.literal_eval(text))
    function = getattr(module, name)
    model, names = _arguments_of(function)
    try:
        given = model.model_validate(arguments)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        return {"refused": "; ".join(wrong)}
    keywords = {names[field]: getattr(given, field) for field in names}
    if CONTEXT in inspect.signature(function).parameters:
        keywords[CONTEXT] = {"vars": variables}
    answer: dict[str, Any]
    if sys.platform == "linux":
        import resource  # noqa: PLC0415 - Windows has none

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MOST_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    started = time.perf_counter()
    try:
        result = function(**keywords)
        answer = {"result": await result if inspect.isawaitable(result) else result}
    except MemoryError:  # the model cannot do anything about it
        raise MemoryError(f"it needs more than {MOST_MEMORY_BYTES >> 30} GB of memory") from None
    except Exception as error:  # noqa: BLE001 - a tool's error is sent to the model, as in an agent
        answer = {"error": f"{type(error).__name__}: {error}"}
    answer["ms"] = (time.perf_counter() - started) * 1000
    if "result" in answer:
        answer["result"] = to_jsonable_python(answer["result"])
    return {**answer, "state": _state(module, at_first)}


def _fresh(path: Path) -> ModuleType:
    """Execute the file anew and return its module; what it imports is imported only once."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    os.chdir(folder)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _is_tool(name: str, value: Any, module: ModuleType) -> bool:
    return not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__


class _SignatureError(Exception):
    """A function cannot be a tool; the message says why."""


def _arguments_of(function: Callable[..., Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """Return a model of a function's arguments, and the argument name for each of the model's fields.

    Raises:
        _SignatureError: the function's parameters cannot be modelled.
    """
    name = function.__name__
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except (NameError, SyntaxError, TypeError) as error:
        raise _SignatureError(f"the type hints of `{name}` cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for number, parameter in enumerate(parameters):
        if parameter.name == CONTEXT:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise _SignatureError(f"`{parameter}` of `{name}` cannot be given by name")
        if parameter.annotation is parameter.empty:
            raise _SignatureError(f"the parameter `{parameter.name}` of `{name}` has no type hint")
        default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
        fields[f"f{number}"] = (parameter.annotation, Field(default, alias=parameter.name))
        names[f"f{number}"] = parameter.name
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema()
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise _SignatureError(f"a type hint of `{name}` has no JSON Schema: {reason}") from None
    return model, names


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic derives from names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(item) for name, item in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _written_variables(module: ModuleType) -> dict[str, str]:
    return {
        name: repr(value)
        for name, value in vars(module).items()
        if not name.startswith("__") and isinstance(value, (*_CONTAINERS, *_PLAIN))
    }


def _state(module: ModuleType, at_first: Mapping[str, str]) -> dict[str, str]:
    """Return the module's variables that have changed since the file was executed, as Python literals.

    Raises:
        ValueError: one of them cannot be kept.
    """
    found = {}
    for name, text in _written_variables(module).items():
        if at_first.get(name) == text:
            continue
        try:
            is_kept = ast.literal_eval(text) == getattr(module, name)
        except (ValueError, SyntaxError, RecursionError):
            is_kept = False
        if not is_kept:
            raise ValueError(
                f"the variable `{name}` cannot be kept for the next call: "
                "use lists, dictionaries, sets, numbers and texts only"
            )
        found[name] = text
    if sum(map(len, found.values())) > _MOST_STATE_CHARS:
        raise ValueError("the variables that the tools have changed are larger than 4 MB")
    return found
