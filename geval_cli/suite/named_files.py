"""Find the files that a text in a config names: `file://`, wildcards, folders, `make.py:function`, `a.xlsx#Sheet`."""

import re
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.source.access import Access
from geval_cli.source.files import FILE_PREFIX, matching_names
from geval_cli.source.problems import did_you_mean

PYTHON_SUFFIXES = frozenset({".py"})
JAVASCRIPT_SUFFIXES = frozenset({".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx"})
OTHER_CODE_SUFFIXES = frozenset({".rb", ".go"})
RUNNABLE_SUFFIXES = PYTHON_SUFFIXES | {".js", ".mjs", ".cjs"}
CODE_SUFFIXES = PYTHON_SUFFIXES | JAVASCRIPT_SUFFIXES | OTHER_CODE_SUFFIXES

_WILDCARD = compile_later(r"[*?\[{]")
_BRACES = compile_later(r"\{([^{}]*,[^{}]*)\}")
_FUNCTION = compile_later(r"(?P<path>.+\.(?:py|js|mjs|cjs|ts|mts|cts|rb|go)):(?P<function>[A-Za-z_][\w.]*)$")
_MAX_NAME = 500
_MOST_TOLD = 20
_MOST_CHOICES = 1000
"""The most names that braces may expand to; more would be a way to keep a machine busy."""


class NamedFile(Struct, frozen=True):
    """A file that exists, and its function or sheet; "" where none is named."""

    path: Path
    part: str = ""

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower()


def is_wildcard(name: str) -> bool:
    """Return whether `name` may match several files."""
    return _WILDCARD.search(name) is not None


def find_files(
    reference: str, folder: Path, access: Access, asked_at: Location | None = None
) -> list[NamedFile]:
    """Return the files that `reference` names; none when there is no such file, or when it cannot be a name.

    Those of a folder are sorted by name; those of wildcards come in promptfoo's order, the last name first.

    Raises:
        ConfigError: one of them may not be read. Where nothing may be read, nothing is looked at.
    """
    name, part = split_part(reference.removeprefix(FILE_PREFIX))
    if not name.strip() or len(name) > _MAX_NAME or "\n" in name or "\0" in name:
        return []
    if leads_outside(reference, folder, access):
        raise ConfigError([access.outside_problem(folder / name, asked_at)])
    found = _found_files(name, part, folder)
    outside = [file.path for file in found if access.is_outside(file.path)]
    if outside:
        raise ConfigError([access.outside_problem(path, asked_at) for path in outside[:_MOST_TOLD]])
    return found


def existing_files(
    reference: str, folder: Path, access: Access, asked_at: Location | None
) -> list[NamedFile]:
    """As `find_files`, at least one.

    Raises:
        ConfigError: there is none, or one of them may not be read.
    """
    found = find_files(reference, folder, access, asked_at)
    if not found:
        raise ConfigError([missing_file(reference, folder, access, asked_at)])
    return found


def leads_outside(reference: str, folder: Path, access: Access) -> bool:
    """Return whether a reference, or a file that its wildcards match, is outside of the readable folders.

    A name within braces counts as written, and `..` behind a wildcard as one that does.
    """
    if access.folders is None:
        return False
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    if access.is_outside(folder / name):
        return True
    if not is_wildcard(name):
        return False
    try:
        return any(_is_far(single, folder, access) for single in _without_braces(name))
    except ValueError:
        return True


def _is_far(pattern: str, folder: Path, access: Access) -> bool:
    parts = Path(pattern).parts
    first = next((index for index, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
    return access.is_outside(folder.joinpath(*parts[:first])) or ".." in parts[first:]


def _found_files(name: str, part: str, folder: Path) -> list[NamedFile]:
    try:
        path = folder / name
        if path.is_dir():
            return [NamedFile(entry, part) for entry in sorted(path.iterdir()) if entry.is_file()]
        if path.is_file():
            return [NamedFile(path, part)]
        return [NamedFile(match, part) for match in _matches(name, folder)] if is_wildcard(name) else []
    except (OSError, ValueError, re.error):
        return []


def split_part(name: str) -> tuple[str, str]:
    """`checks.py:score` as path and function, `cases.xlsx#Sheet1` as path and sheet; "" where there is none."""
    found = _FUNCTION.match(name)
    if found:
        return found["path"], found["function"]
    path, mark, sheet = name.partition("#")
    return (path, sheet) if mark and path.lower().endswith((".xlsx", ".xlsm", ".xls")) else (name, "")


def missing_file(reference: str, folder: Path, access: Access, asked_at: Location | None) -> Problem:
    """Return the problem of a reference that names no file."""
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    if is_wildcard(name):
        return Problem(f"no file matches `{name}`", asked_at, f"paths are relative to {folder}")
    path = folder / name
    if access.is_outside(path):
        return access.outside_problem(path, asked_at)
    try:
        near = did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return Problem(f"there is no file `{path}`", asked_at, f"there is no folder `{path.parent}` either")
    hint = f"did you mean `{near}`?" if near else f"paths are relative to {folder}"
    return Problem(f"there is no file `{path}`", asked_at, hint)


def _matches(pattern: str, folder: Path) -> list[Path]:
    found = {folder / name for single in _without_braces(pattern) for name in matching_names(single, folder)}
    return sorted((path for path in found if path.is_file()), key=_walk_key, reverse=True)


def _walk_key(path: Path) -> tuple[tuple[bool, str], ...]:
    """By which promptfoo's order of wildcards is falling: names from the last, files before the folders beside them."""
    *folders, name = path.parts
    return (*((False, folder) for folder in folders), (True, name))


def _without_braces(pattern: str) -> list[str]:
    """`a.{txt,md}` written out: Python's wildcards have no braces. Raises ValueError when that makes too many."""
    written_out, pending = [], [pattern]
    while pending:
        single = pending.pop()
        found = _BRACES.search(single)
        if not found:
            written_out.append(single)
        else:
            around = single[: found.start()], single[found.end() :]
            pending += [around[0] + choice + around[1] for choice in reversed(found[1].split(","))]
        if len(written_out) + len(pending) > _MOST_CHOICES:
            raise ValueError(f"`{pattern}` expands to more than {_MOST_CHOICES:,} names")
    return written_out
