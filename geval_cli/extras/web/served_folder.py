"""The folder that a server serves: no path leads out of it."""

import os
from pathlib import Path

from geval_cli.errors import UsageError
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.store.home import current_folder

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")

_FORBIDDEN, _NOT_FOUND = 403, 404


def served_config(folder: Path, name: str) -> Path:
    """Return the config that `name`, relative to `folder`, means; relative to the current folder when it lies in it.

    Raises:
        RefusedError: it lies outside `folder` (symbolic links are followed first), is no config, or is not there.
    """
    hint = "use a .yaml, .yml or .json file relative to the served folder, for example `gevalconfig.yaml`"
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, too long, a loop of links
        raise RefusedError("this is not a file path", status=_NOT_FOUND, hint=hint) from error
    if not path.is_relative_to(folder.resolve()):
        raise RefusedError(f"{name} is outside the served folder", status=_FORBIDDEN, hint=hint)
    if path.suffix.lower() not in CONFIG_SUFFIXES or not _is_file(path):
        raise RefusedError(f"the served folder has no config {name}", status=_NOT_FOUND, hint=hint)
    # Relative to the current folder, so that all runs of a config carry the same path.
    try:
        here = current_folder()
    except UsageError:  # it was removed while the server runs
        return path
    return Path(os.path.relpath(path, here)) if path.is_relative_to(here) else path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
