"""The folder that geval keeps its state in: which one it is, and making it."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from geval_cli.errors import StoreError, UsageError

HOME_VARIABLE = "GEVAL_HOME"
DEFAULT_HOME = ".geval"


def current_folder() -> Path:
    """Return the folder that the process works in.

    Raises:
        UsageError: it was removed, or may not be entered any more.
    """
    try:
        return Path.cwd()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the current folder is gone: {reason}", hint="change into a folder that exists, then try again"
        ) from error


def home_folder(explicit: Path | None, *, env: Mapping[str, str], cwd: Path) -> Path:
    """Where state lives: `explicit` (`--home`), else GEVAL_HOME, else `.geval` in `cwd`. Nothing is created."""
    named = explicit or (Path(env[HOME_VARIABLE]) if env.get(HOME_VARIABLE) else Path(DEFAULT_HOME))
    return cwd / named.expanduser()


def make_shared_folder(folder: Path) -> None:
    """Create `folder` if it is not there, to be committed if its owner likes.

    Raises:
        StoreError: it cannot be created, or something else has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be created: {error.strerror or error}",
            path=str(folder),
            hint="give a folder that can be written to",
        ) from error


def make_folder(folder: Path) -> None:
    """Create `folder` if it is not there, with a .gitignore so that no state is committed by accident.

    A folder that was there before is left as it is: a cache that a team commits has no .gitignore on purpose.

    Raises:
        StoreError: it cannot be created, or something else has its name.
    """
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_gitignore(folder)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be created: {error.strerror or error}",
            path=str(folder),
            hint="give a folder that can be written to with --home or GEVAL_HOME",
        ) from error


def _write_gitignore(folder: Path) -> None:
    path = folder / ".gitignore"
    try:
        path.write_text("*\n", encoding="utf-8")
    except (
        OSError
    ):  # on a full disk; a folder that stays without it would be taken for one that was there before
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            folder.rmdir()
        raise
