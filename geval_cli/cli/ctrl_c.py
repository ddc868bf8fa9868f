"""Ctrl-C while a command starts: Python raises it wherever it happens to be, even where that is lost."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, known before that is imported: Ctrl-C may come earlier."""

INTERRUPTED_LINE = "interrupted by Ctrl-C\n"
"""The one line of a command that is interrupted before anything is under way."""

_STDERR = 2


def stop_at_once() -> None:
    """Make Ctrl-C end the process from here on, unless the parent process has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def raise_again() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, once there is work to finish cleanly."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def swallowed_by(end: SystemExit) -> KeyboardInterrupt | None:
    """Return the Ctrl-C, or what came in its place, that typer swallowed and left only an exit code of; else None."""
    cause: BaseException | None = end if end.code == INTERRUPTED else None
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(_STDERR, INTERRUPTED_LINE.encode())
    os._exit(INTERRUPTED)
