"""Write a file so that no reader ever sees half of it, with errors that say what to do."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from geval_cli.errors import OutputError

_OWNER_ONLY, _BY_UMASK = 0o600, 0o666
_ADVICE = "the results are kept: `geval show RUN -o FILE` writes them again"
_HINTS = {
    errno.ENOSPC: "free some space, then write it again with `geval show RUN -o FILE`",
    errno.EDQUOT: "free some space, then write it again with `geval show RUN -o FILE`",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.ENOENT: "create the folder first",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def output_error(path: Path, error: OSError, *, advice: str = _ADVICE) -> OutputError:
    """Return the `OutputError` for an operating system's refusal; `advice` is the hint where none fits better."""
    reason = (error.strerror or str(error)).lower()
    hint = _HINTS.get(error.errno or 0, advice)
    return OutputError(f"cannot write {path}: {reason}", path=str(path), hint=hint)


class SafeFile:
    """A UTF-8 text file, or with `binary` a file of bytes, that appears, or replaces one, once all of it is on disk.

    It is written under another name in the same folder. When the block raises, or the disk is full, that file is
    removed and what was there before stays.

    Raises:
        OutputError: from `write` and from leaving the block.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Through a symbolic link, the file that it points to is replaced, not the link.
        self._target = Path(os.path.realpath(path))
        self._temporary = self._target.with_name(f".{self._target.name[:200]}.{os.getpid()}.tmp")

    def __enter__(self) -> Self:
        try:
            self._file = open(self._temporary, "w", encoding="utf-8", newline="\n", opener=self._opener)
        except OSError as error:
            raise output_error(self._path, error) from error
        return self

    def _opener(self, path: str, flags: int) -> int:
        """For the owner alone where a file is replaced, which may be one: it gets that one's mode at the end."""
        return os.open(path, flags, _OWNER_ONLY if self._target.exists() else _BY_UMASK)

    def write(self, text: str) -> None:
        """Add text."""
        try:
            self._file.write(text)
        except OSError as error:
            raise output_error(self._path, error) from error

    @property
    def binary(self) -> Any:
        """Return the file as bytes, for formats that are no text; they are written in place of `write`."""
        return self._file.buffer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._put_in_place()
        except OSError as trouble:
            raise output_error(self._path, trouble) from trouble
        finally:
            self._clean_up()

    def _put_in_place(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self._target.exists():
            self._temporary.chmod(stat.S_IMODE(self._target.stat().st_mode))
        self._temporary.replace(self._target)

    def _clean_up(self) -> None:
        # A full disk was reported by the write before; closing says it a second time.
        with suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)
