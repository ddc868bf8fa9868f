"""The child process that runs a user's Python file: one JSON request and one JSON answer per line.

It is started as a script with the file's path, and does not import geval. What the user's code prints goes to stderr,
so that it cannot be mistaken for an answer. asyncio and inspect take longer to load than everything else here, so they
are loaded only for code that needs them.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_OWNER = os.getpid()
_HIGH = 700  # below 1024, the lowest common limit on open files
_CO_VARARGS = 0x04


def main() -> None:
    """Load the file in the first command-line argument and answer requests until stdin ends.

    The second argument is the first folder for imports.
    """
    # The protocol's pipes are moved off descriptors 0 and 1, which the user's code may use: its stdin is empty, and
    # what it prints goes to stderr, also from C and from child processes. Forks close the pipes, so that the parent
    # notices when this process ends.
    channel = [_moved_up(0), _moved_up(1)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: [os.dup2(nothing, number) for number in channel])
    requests = os.fdopen(channel[0], "r", encoding="utf-8")
    answers = os.fdopen(channel[1], "w", encoding="utf-8")
    path = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(Path(sys.argv[2]).resolve()))
    sys.argv = [str(path)]
    module: ModuleType | None = None
    for line in requests:
        request = json.loads(line)
        try:
            module = module or _load(path)
            answer = {"result": _call(module, request)}
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises is an answer
            if isinstance(error, RowsError):
                answer = {"error": str(error), "traceback": ""}
            else:
                import traceback

                lines = traceback.format_exception(error)
                answer = {"error": _named(error), "traceback": "".join(lines)}
        number = request["id"]
        if os.getpid() != _OWNER:  # the user's code forked, and the fork returned: only the parent answers
            os._exit(0)
        answers.write(json.dumps({"id": number, **answer}) + "\n")
        answers.flush()


def _named(error: BaseException) -> str:
    """Return the class and the text of what the user's code raised; its `__str__` may raise, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - without an answer, the call would be repeated
        return f"{type(error).__name__}: <its text cannot be read>"


def _load(path: Path) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _call(module: ModuleType, request: dict[str, Any]) -> Any:
    function: Any = module
    for name in request["function"].split("."):
        function = getattr(function, name)
    arguments = request["arguments"][: _accepted_count(function)]
    result = function(*arguments)
    if hasattr(result, "__await__"):
        result = _runner().run(_awaited(result))
    if "rows_into" in request:
        return _runner().run(_write_rows(result, request["rows_into"]))
    # A result that is not JSON fails here, as an error of the call, not while the answer is written.
    return json.loads(json.dumps(result, default=_plain))


@cache
def _runner() -> Any:
    """Return the runner for all coroutines, so that they run one after another in the same event loop."""
    import asyncio
    import atexit

    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


async def _awaited(result: Any) -> Any:
    return await result


async def _write_rows(made: Any, path: str) -> int:
    """Write the rows that a function returned or yields to a file as JSON Lines, and return their number.

    Dates are written as text, and numpy's values as plain ones.
    """
    if isinstance(made, (str, bytes, dict)) or (
        not hasattr(made, "__iter__") and not hasattr(made, "__aiter__")
    ):
        raise RowsError(f"it must return or yield a mapping for each test, not {type(made).__name__}")
    count = 0
    with Path(path).open("w", encoding="utf-8") as file:  # noqa: ASYNC230 - nothing else runs in this process
        async for row in _each(made):
            count += 1
            try:
                line = json.dumps(row, allow_nan=False, default=_plain)
            except (TypeError, ValueError) as error:
                raise RowsError(f"row {count} cannot be written as JSON: {error}") from None
            file.write(line + "\n")
    return count


async def _each(made: Any) -> AsyncIterator[Any]:
    if hasattr(made, "__aiter__"):
        async for row in made:
            yield row
    else:
        for row in made:
            yield row


def _plain(value: Any) -> Any:
    for name in ("isoformat", "tolist"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _accepted_count(function: Callable[..., Any]) -> int | None:
    """Return how many positional arguments `function` takes; None if any number."""
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        return None if code.co_flags & _CO_VARARGS else code.co_argcount
    import inspect

    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return sum(kind in positional for kind in kinds)


class RowsError(Exception):
    """A function returned something other than rows. Reported without a traceback, which would not help."""


def _moved_up(descriptor: int) -> int:
    """Return a copy of the descriptor that child programs do not inherit, with a high number if possible."""
    if fcntl is not None:
        with suppress(OSError):
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    return os.dup(descriptor)


if __name__ == "__main__":
    main()
