"""Ctrl-C while a command starts: Python raises it wherever it happens to be, even where that is lost."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, known before that is imported: Ctrl-C may come earlier."""

INTERRUPTED_LINE = "interrupted by Ctrl-C\n"
"""What is said where nothing was under way that says more; nobody is to wonder why a command ended."""

_STDERR = 2


def stop_at_once() -> None:
    """From here on Ctrl-C ends the process; unless whoever started it wants Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def raise_again() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again: there is something to bring to its end."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def was_lost(end: SystemExit) -> bool:
    """Return whether a Ctrl-C ends the command of which typer tells nobody: it only chooses the exit code."""
    cause: BaseException | None = end
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return end.code == INTERRUPTED and cause is not None


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(_STDERR, INTERRUPTED_LINE.encode())
    os._exit(INTERRUPTED)
