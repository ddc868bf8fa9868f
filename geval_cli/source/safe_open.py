"""Open files that a config names: a pipe or a device, which may never end, is an error at once."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from geval_cli.source.access import Access

_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""How the shell hands over what another command writes: `--env-file <(...)`."""


class SpecialFileError(OSError):
    """The path names a pipe, a socket or a device instead of a file."""


def open_regular(path: Path, access: Access) -> BinaryIO:
    """Return the file at `path`, open for reading. Raises OSError, also for what is no file or may not be read."""
    access.require_inside(path)
    stream = open(path, "rb", opener=regular_only)  # noqa: SIM115 - the caller closes it
    try:
        access.require_same(stream, path)
    except OSError:
        stream.close()
        raise
    return stream


def regular_only(name: str, flags: int) -> int:
    """Return an opener, for `open`, of files and of nothing else."""
    if name.startswith(_STREAMS):
        return os.open(name, flags)
    # Without the flag, opening a pipe waits until somebody writes into it.
    descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{name} is a folder")
        raise SpecialFileError(f"{name} is a pipe or a device")
    return descriptor
