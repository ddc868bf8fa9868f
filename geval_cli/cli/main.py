"""Where the process begins and ends: the quick answers, and the boundary that turns errors into exit codes."""

import atexit
import gc
import os
import sys
import threading
import traceback
from typing import NoReturn

from geval_cli.cli.ctrl_c import INTERRUPTED, raise_again, stop_at_once
from geval_cli.version import __version__

DEBUG = "--debug"
"""Wherever it stands in a command, errors are shown with their tracebacks."""

_SPELT = {"--untrusted=strict": "--untrusted-strict"}
"""Options that take a value or none, which the parser of options knows only as two."""

_ALLOCATIONS_PER_COLLECTION = 200_000


def geval() -> NoReturn:
    """The `geval` command as a process of its own, which it ends."""
    stop_at_once()
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            _leave(end.code)
        raise


def main() -> NoReturn:
    """The `geval` command within a process that goes on.

    Raises:
        SystemExit: always; its code is the exit code.
    """
    try:
        code: int | str | None = _run_command()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        code = INTERRUPTED
    sys.exit(_code_with_lost_output(code))


def _run_command() -> int:
    from geval_cli.cli.streams import survive_odd_streams

    survive_odd_streams()
    if sys.argv[1:] in (["--version"], ["-V"]):  # answered before anything heavy is imported
        sys.stdout.write(f"geval {__version__}\n")
        return 0
    _collect_garbage_rarely()
    # Plugins of pydantic have no say in configs, and to look for some it reads about every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from geval_cli.cli.app import app
    from geval_cli.errors import ExitCode, GevalError

    if sys.argv[1:2] != ["run"]:  # which has more to load
        raise_again()
    shows_tracebacks = DEBUG in sys.argv
    sys.argv[1:] = [_SPELT.get(word, word) for word in sys.argv[1:] if word != DEBUG]
    try:
        app()
    except GevalError as error:
        from geval_cli.cli.problems import print_error

        if shows_tracebacks:
            traceback.print_exc()
        print_error(error)
        return error.exit_code
    except Exception:  # noqa: BLE001 - the last boundary: a bug gets its own exit code and is never silent
        traceback.print_exc()
        sys.stderr.write("\nthis is a bug in geval; please report it with the lines above\n")
        return ExitCode.BUG
    return ExitCode.OK


def _code_with_lost_output(code: int | str | None) -> int | str | None:
    """`code`, except that nothing is well when what was found could not be said."""
    from geval_cli.cli.streams import lost_output

    why = lost_output()
    if why is None:
        return code
    from geval_cli.errors import ExitCode

    sys.stderr.write(f"error: what geval says could not be written to stdout: {why}\n")
    sys.stderr.write("    = a run is kept all the same: `geval show` shows it again\n")
    return ExitCode.NOT_JUDGED if code in (None, ExitCode.OK) else code


def _leave(code: int) -> None:
    """End without taking apart what is in memory, which takes a tenth of the time of a thousand tests.

    Returns where that would lose something: then Python ends the process in its own way.
    """
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None
    if is_watched or any(not thread.daemon for thread in threading.enumerate()[1:]):
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


def _collect_garbage_rarely() -> None:
    """Almost nothing here is garbage in a cycle, and looking for it took a tenth of a large run."""
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 100)


if __name__ == "__main__":
    geval()
