"""The child process that runs a user's Python file: one JSON request a line in, one JSON answer a line out.

Started as a script with the file's path; it imports nothing of geval. What the user's code prints goes to stderr, so
that it cannot be taken for an answer.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO


def main() -> None:
    """Load the file that the command line names, with imports from its second argument; answer until stdin ends."""
    requests, answers = _private_pipes()
    path = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(Path(sys.argv[2]).resolve()))
    sys.argv = [str(path)]
    with asyncio.Runner() as runner:
        runner.run(_serve(path, requests, answers))


async def _serve(path: Path, requests: TextIO, answers: TextIO) -> None:
    module: ModuleType | None = None
    for line in requests:
        request = json.loads(line)
        if module is None:
            # Gathered, so that whatever the user's code raises comes back as a value.
            (loaded,) = await asyncio.gather(_load(path), return_exceptions=True)
            if isinstance(loaded, BaseException):
                _send(answers, _failure(loaded))
                continue
            module = loaded
        outcome: Any = (await asyncio.gather(_call(module, request), return_exceptions=True))[0]
        _send(answers, _failure(outcome) if isinstance(outcome, BaseException) else {"result": outcome})


async def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _call(module: ModuleType, request: dict[str, Any]) -> Any:
    function: Any = module
    for name in request["function"].split("."):
        function = getattr(function, name)
    arguments = request["arguments"][: _accepted_count(function)]
    result = function(*arguments)
    if inspect.isawaitable(result):
        result = await result
    json.dumps(result)
    return result


def _accepted_count(function: Callable[..., Any]) -> int | None:
    """How many positional arguments `function` takes; None for any number."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return sum(kind in positional for kind in kinds)


def _failure(error: BaseException) -> dict[str, Any]:
    lines = traceback.format_exception(error)
    return {"error": f"{type(error).__name__}: {error}", "traceback": "".join(lines)}


def _send(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _private_pipes() -> tuple[TextIO, TextIO]:
    """The protocol's two pipes; stdin and stdout are turned to nothing and to stderr, also for C code and children."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


if __name__ == "__main__":
    main()
