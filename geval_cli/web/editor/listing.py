"""Which suites a folder holds."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError
from geval_cli.source.access import TRUSTED
from geval_cli.suite.load import read_with_rules
from geval_cli.web.editor.suite_file import is_suite
from geval_cli.web.served_folder import CONFIG_SUFFIXES

LISTED_MAX = 500
_FILES_MAX = 20_000
_LOOKED_INTO_BYTES = 1024 * 1024
_FOREIGN_FOLDERS = frozenset({"node_modules", "venv", "__pycache__", "site-packages"})
_RESULTS_KEYS = frozenset({"results", "summary"})


class ListedSuite(Struct, frozen=True):
    """A suite in the list.

    Attributes:
        name: its path within the folder, with `/`.
        description: what it says of itself.
        prompts: how many; `tests` too, None when they are in a file of their own.
        state: `ok`, `broken`, or the name of a dialect that is shown and not edited: `promptfoo`.
        modified_at: seconds since 1970.
    """

    name: str
    description: str
    prompts: int
    providers: int
    tests: int | None
    state: str
    modified_at: float


def list_suites(folder: Path) -> list[ListedSuite]:
    """List the suites below a folder by name, at most `LISTED_MAX`. Hidden folders are left out."""
    found: list[ListedSuite] = []
    for path in _config_files(folder):
        suite = _listed(folder, path)
        if suite is not None:
            found.append(suite)
        if len(found) >= LISTED_MAX:
            break
    return sorted(found, key=lambda suite: (suite.name.count("/"), suite.name))


def _config_files(folder: Path) -> Iterator[Path]:
    seen = 0
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _FOREIGN_FOLDERS
        )
        for name in sorted(files):
            seen += 1
            if seen > _FILES_MAX:
                return
            if name.lower().endswith(CONFIG_SUFFIXES) and not name.startswith("."):
                path = Path(where, name)
                if _has_address(path):
                    yield path


def _has_address(path: Path) -> bool:
    """Return whether a URL can name the file: on Linux a name may be bytes that are no text."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(folder: Path, path: Path) -> ListedSuite | None:
    name = path.relative_to(folder).as_posix()
    try:
        details = path.stat()
        is_small_file = stat.S_ISREG(details.st_mode) and details.st_size <= _LOOKED_INTO_BYTES
        if not is_small_file or not path.resolve().is_relative_to(folder.resolve()):
            return None
        document, rules = read_with_rules(path, TRUSTED)
    except ConfigError:
        is_named = path.stem.startswith(("geval", "promptfooconfig")) and path.suffix != ".json"
        return _broken(name, details.st_mtime) if is_named else None
    except OSError:
        return None
    value = document.value
    if not isinstance(value, dict) or not is_suite(value) or _RESULTS_KEYS & set(value):
        return None
    described, tests = value.get("description"), value.get("tests")
    return ListedSuite(
        name=name,
        description=described if isinstance(described, str) else "",
        prompts=_count(value.get("prompts")),
        providers=_count(value.get("providers")),
        tests=len(tests) if isinstance(tests, list) else None if tests else 0,
        state="ok" if rules.is_editable else str(rules.name),
        modified_at=details.st_mtime,
    )


def _broken(name: str, modified_at: float) -> ListedSuite:
    return ListedSuite(name, "", prompts=0, providers=0, tests=None, state="broken", modified_at=modified_at)


def _count(value: object) -> int:
    if isinstance(value, list):
        return len(value)
    return 0 if value is None else 1
