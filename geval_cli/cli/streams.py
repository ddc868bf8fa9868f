"""Handle odd output streams: closed, with a narrow encoding, with a reader that has gone, or on a full disk."""

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_STANDARD = range(3)
_NAMES = ("stdout", "stderr")


def survive_odd_streams() -> None:
    """Keep a closed or broken output stream from ending a command.

    Model output may be any Unicode: what a stream cannot encode is escaped. If the reader of a pipe goes away
    (`geval run CONFIG | head`), the command continues to its end and further output is discarded. If the file behind
    stdout cannot be written to, it continues too, and `lost_output` returns the error. Output to a stream that was
    closed from the start (`geval run CONFIG >&-`) is discarded.
    """
    _open_what_is_closed()
    for name in _NAMES:
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if _may_break(stream):
                stream.flush()
                setattr(
                    sys,
                    name,
                    io.TextIOWrapper(
                        io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False)),
                        encoding=stream.encoding,
                        errors=stream.errors,
                        # With PYTHONUNBUFFERED, Python's own streams have no buffer that `write_through` would fill.
                        line_buffering=stream.line_buffering or stream.write_through,
                    ),
                )


def _open_what_is_closed() -> None:
    """Open the standard streams that are closed.

    Otherwise, one of our files or connections would get such a number, and a provider's program would print into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) in _STANDARD:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(_NAMES, start=1):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays


def lost_output() -> str | None:
    """Return the system error that lost output to stdout; None if none was lost, or if the reader went away."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    pipe = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return pipe.lost if isinstance(pipe, _Pipe) else None


def _may_break(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0 and not stream.isatty()
    except (OSError, ValueError):  # no file of the operating system is behind it
        return False


class _Pipe(io.FileIO):
    """A file descriptor that discards its output once writing to it has failed."""

    lost: str | None = None

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            pass
        except OSError as error:
            self.lost = error.strerror or str(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return len(content)
