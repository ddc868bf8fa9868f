"""Ctrl-C while a command starts: Python raises it wherever it happens to be, even where that is lost."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, known before that is imported: Ctrl-C may come earlier."""

_STDERR = 2


def stop_at_once() -> None:
    """From here on Ctrl-C ends the process; unless whoever started it wants Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def raise_again() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again: there is something to bring to its end."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(_STDERR, b"stopped\n")
    os._exit(INTERRUPTED)
