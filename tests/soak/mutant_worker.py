"""Runs tests on order, each order in a fresh process that already has the libraries: a line of JSON in, one out.

It is started with an environment whose `geval_cli` is a copy, which the one who gives the orders changes meanwhile.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LIBRARIES = (
    "pytest", "hypothesis", "pydantic", "jsonschema", "msgspec", "yaml", "jinja2", "rich.console", "typer", "sqlglot",
    "regex", "rapidfuzz", "aiohttp", "trustme", "_pytest.main", "pexpect",
)  # fmt: skip
TIMED_OUT = -1
BROKEN = 99


def main() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        began = time.monotonic()
        code = run(order)
        print(json.dumps({"code": code, "seconds": time.monotonic() - began}), flush=True)


def run(order: dict[str, Any]) -> int:
    """Return the exit code of pytest for the order's arguments, or `TIMED_OUT`."""
    child = os.fork()
    if child == 0:
        _test(order)
    signal.signal(signal.SIGTERM, lambda *_: (_kill(child), os._exit(1)))
    deadline = time.monotonic() + order["limit_s"]
    code = None
    while code is None and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.02)
    _kill(child)
    if code is None:
        os.waitpid(child, 0)
        return TIMED_OUT
    return code


def _kill(leader: int) -> None:
    """End the process and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _test(order: dict[str, Any]) -> None:
    """Run pytest in this process, which ends with it."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        import pytest

        import geval_cli

        if not Path(geval_cli.__file__).is_relative_to(order["copy"]):
            os._exit(BROKEN)  # the tests would try the original, and every mistake would seem to survive
        code = int(pytest.main(order["arguments"], plugins=[_InTheOrderOfTheFile()]))
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it is
        traceback.print_exc()
        code = BROKEN
    finally:
        sys.stdout.flush()
        os._exit(code)


class _InTheOrderOfTheFile:
    """Has the tests of a file run in its order, whatever the order that they are named in: some build on others."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: (str(item.path), item.location[1]))


if __name__ == "__main__":
    main()
