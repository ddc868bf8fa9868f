"""The entry point of the process: quick answers, and the boundary that turns errors into exit codes."""

import errno
import os
import signal
import sys
from types import FrameType

from geval_cli.version import __version__

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, known before that is imported, since Ctrl-C may come earlier."""

INTERRUPTED_LINE = "interrupted by Ctrl-C\n"
"""The only line of a command that is interrupted before any work is under way."""

_STDERR = 2


def stop_at_once() -> None:
    """Make Ctrl-C end the process at once from here on, unless the parent process has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def restore_keyboard_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, once there is work to finish cleanly."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def swallowed_by(end: SystemExit) -> KeyboardInterrupt | None:
    """Return the Ctrl-C (or SIGTERM) that typer swallowed, leaving only its exit code; None if there was none."""
    cause: BaseException | None = end if end.code == INTERRUPTED else None
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(_STDERR, INTERRUPTED_LINE.encode())
    os._exit(INTERRUPTED)


# Not imported from `typing`: until `geval` is called, Ctrl-C during an import ends in Python's own traceback
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DEBUG = "--debug"
"""Anywhere in a command, this option makes errors appear with their tracebacks."""

_HELP = {"--help", "-h"}
_SPELT = {"--untrusted=strict": "--untrusted-strict"}
"""Options with an optional value, which the option parser knows only as two options."""


def geval() -> "NoReturn":
    """Run the `geval` command and end the process."""
    stop_at_once()
    code: int | str | None
    try:
        main()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt as stop:  # while an error was being reported
        code = _interrupted(stop)
    stop_at_once()
    if isinstance(code, int):
        _leave(code)
    sys.exit(code)


def main() -> "NoReturn":
    """Run the `geval` command within a process that continues afterwards.

    Raises:
        SystemExit: always; its code is the exit code.
    """
    try:
        code: int | str | None = _run_command()
    except SystemExit as end:
        swallowed = swallowed_by(end)
        code = end.code if swallowed is None else _interrupted(swallowed)
    except KeyboardInterrupt as stop:
        code = _interrupted(stop)
    sys.exit(_code_with_lost_output(code))


def _interrupted(stop: KeyboardInterrupt) -> int:
    from geval_cli.errors import ExitCode, TerminatedError

    if isinstance(stop, TerminatedError):
        sys.stderr.write(f"stopped by {stop.args[0] if stop.args else 'SIGTERM'}\n")
        return ExitCode.TERMINATED
    sys.stderr.write(INTERRUPTED_LINE)
    return INTERRUPTED


def _run_command() -> int:
    from geval_cli.cli.streams import survive_odd_streams
    from geval_cli.runs import collect_garbage_rarely

    survive_odd_streams()
    if sys.argv[1:] in (["--version"], ["-V"]):  # answered before anything heavy is imported
        sys.stdout.write(f"geval {__version__}\n")
        return 0
    collect_garbage_rarely()
    # Configs use no plugins of pydantic, and looking for some makes it read the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from geval_cli.cli.app import app, as_typed, names_of_commands
    from geval_cli.errors import ExitCode, GevalError, MachineLimitError

    shows_tracebacks = DEBUG in sys.argv
    sys.argv[1:] = [_SPELT.get(word, word) for word in sys.argv[1:] if word != DEBUG]
    try:
        # Raise UsageError if the current folder is gone, before a command fails over that in its own way.
        if not _HELP & {*sys.argv[1:]} and sys.argv[1:]:
            from geval_cli.store.home import current_folder

            current_folder()
        if os.environ.get("GEVAL_UNTRUSTED"):
            # If every config is untrusted, write through no link in this folder, whatever the command.
            from geval_cli.report.safe_file import distrust_links
            from geval_cli.runs.requests import is_untrusted
            from geval_cli.store.home import current_folder

            if is_untrusted(os.environ):
                distrust_links([current_folder()])
        sys.argv[1:] = as_typed(sys.argv[1:], names_of_commands())
        if sys.argv[1:2] != ["run"]:  # `run` has more to load first
            restore_keyboard_interrupt()
        app(prog_name="geval")
    except GevalError as error:
        from geval_cli.cli.problems import print_error

        if shows_tracebacks:
            _print_traceback()
        print_error(error)
        return error.exit_code
    except BaseException as error:  # the last boundary: a bug gets its own exit code and is never silent
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not _is_bug(error)):
            raise
        if not shows_tracebacks and (limit := MachineLimitError.of(error)):
            sys.stderr.write(f"error: {limit.message} ({limit.hint}); finished cases are kept\n")
            return limit.exit_code
        if not shows_tracebacks and isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            # A system call may be the first to find out, wherever a name comes from: an option, a config, a row
            name = str(error.filename or "")
            sys.stderr.write(
                f"error: the file name is too long: `{name[:60]}...` ({len(name):,} characters)\n"
            )
            return ExitCode.USAGE
        _print_traceback()
        from geval_cli.plugins import source_of_bug

        sys.stderr.write(
            f"\nthis is a bug in {source_of_bug(error)}; please report it with the lines above\n"
        )
        return ExitCode.BUG
    return ExitCode.OK


def _is_bug(end: SystemExit) -> bool:
    """Return whether a package that adds to a command of geval ended it, such as by `sys.exit()`."""
    from traceback import walk_tb

    *_, (frame, _) = walk_tb(end.__traceback__)
    if frame.f_globals.get("__name__", "").partition(".")[0] in {"click", "typer", "geval_cli"}:
        return False
    from geval_cli.plugins import COMMANDS, plugin_names, source_of_bug

    is_own_command = {*sys.argv[1:2]}.isdisjoint(plugin_names(COMMANDS))
    return is_own_command and source_of_bug(end).startswith("the package")


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()


def _code_with_lost_output(code: int | str | None) -> int | str | None:
    """Return `code`, or NOT_JUDGED instead of success if stdout lost part of the output."""
    from geval_cli.cli.streams import lost_output

    why = lost_output()
    if why is None:
        return code
    from geval_cli.errors import ExitCode

    sys.stderr.write(f"error: cannot write to stdout: {why}\n")
    sys.stderr.write("    = a stored run is not lost: `geval show` shows it again\n")
    return ExitCode.NOT_JUDGED if code in (None, ExitCode.OK) else code


def _leave(code: int) -> None:
    """End the process without freeing its memory first, which takes a tenth of the time of a thousand tests.

    Returns if that could lose something; then Python ends the process in its own way.
    """
    import atexit
    import threading

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


if __name__ == "__main__":
    geval()
