"""Handle odd output streams: closed, narrow encoding, reader gone, full disk, or a build server's log."""

import io
import os
import re
import stat
import sys
from contextlib import suppress
from typing import Any, TextIO

_STANDARD = range(3)
_NAMES = ("stdout", "stderr")
_BUILD_SERVERS = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
"""Variables of build servers that take lines in a log for commands: GitHub, Azure Pipelines, TeamCity."""
_LINE_OF_COMMAND = re.compile(r"((?:^|[\r\n])[^\S\r\n]*):(?=:)")
_COMMAND_ANYWHERE = re.compile(r"##(?=(?:vso|teamcity)?\[)", re.IGNORECASE)


def survive_odd_streams() -> None:
    """Keep a closed or broken output stream from ending a command.

    Model output may be any Unicode: what a stream cannot encode is escaped. If the reader of a pipe goes away
    (`geval run CONFIG | head`), the command continues to its end and further output is discarded. If the file behind
    stdout cannot be written to, it continues too, and `lost_output` returns the error. Output to a stream that was
    closed from the start (`geval run CONFIG >&-`) is discarded. A build server finds no command in a model's words.
    """
    _open_what_is_closed()
    for name in _NAMES:
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if _may_break(stream):
                stream.flush()
                is_build_log = any(map(os.environ.get, _BUILD_SERVERS)) and not _is_file(stream)
                setattr(
                    sys,
                    name,
                    (_BuildLog if is_build_log else io.TextIOWrapper)(
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


def write_commands(text: str, stream: TextIO) -> None:
    """Write our own commands to a build server, such as annotations."""
    if isinstance(stream, _BuildLog):
        super(_BuildLog, stream).write(text)
    else:
        stream.write(text)


def _is_file(stream: TextIO) -> bool:
    return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)


def _may_break(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0 and not stream.isatty()
    except (OSError, ValueError):  # no file of the operating system is behind it
        return False


class _BuildLog(io.TextIOWrapper):
    """A log in which a build server looks for commands; those in what is written have an escape, as in JSON."""

    def write(self, text: str, /) -> int:
        if "::" in text or "##" in text:
            super().write(_COMMAND_ANYWHERE.sub(r"#\\u0023", _LINE_OF_COMMAND.sub(r"\1\\u003a", text)))
            return len(text)
        return super().write(text)


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
