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


def was_lost(end: SystemExit) -> bool:
    """Return whether typer swallowed a Ctrl-C, of which only its exit code is left."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return end.code == INTERRUPTED and cause is not None


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(_STDERR, INTERRUPTED_LINE.encode())
    os._exit(INTERRUPTED)
