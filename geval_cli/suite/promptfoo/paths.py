"""Which files a text in a promptfoo config names: `file://`, bare paths, wildcards, folders, `file.py:function`."""

import glob
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.files import FILE_PREFIX, is_file_reference, read_document, read_text
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import SourcePath
from geval_cli.suite.validation import LoadContext

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
    return (path, sheet) if mark and path.lower().endswith((".xlsx", ".xls")) else (name, "")


def program_reference(file: NamedFile, asked_at: Location | None) -> str:
    """`file://` with the whole path of a program that can be run, and its function if one is named.

    Raises:
        ConfigError: it is in a language that is not run.
    """
    if file.suffix in RUNNABLE_SUFFIXES:
        function = f":{file.part}" if file.part else ""
        return f"{FILE_PREFIX}{file.path.absolute()}{function}"
    if file.suffix in JAVASCRIPT_SUFFIXES:
        hint = "compile it to JavaScript, and name the .js file"
        raise ConfigError([Problem(f"TypeScript is not run: `{file.path.name}`", asked_at, hint)])
    message = f"`{file.suffix}` files are not run: `{file.path.name}`"
    raise ConfigError([Problem(message, asked_at, "write it in Python or JavaScript")])


def missing_file(reference: str, folder: Path, access: Access, asked_at: Location | None) -> Problem:
    """Return the problem of a reference that names no file."""
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    if is_wildcard(name):
        return Problem(f"no file fits `{name}`", asked_at, f"paths are relative to {folder}")
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
    found = {
        folder / name
        for single in _without_braces(pattern)
        for name in glob.glob(single, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob refuses `..`
    }
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
            raise ValueError(f"`{pattern}` stands for more than {_MOST_CHOICES:,} names")
    return written_out


STRUCTURED_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


def file_keys(value: Mapping[str, JsonValue]) -> frozenset[str]:
    """Return those keys of a mapping, as it is written, whose whole value is the name of a file."""
    return frozenset(key for key, entry in value.items() if is_file_reference(entry))


def with_file_contents(value: JsonValue, place: SourcePath, folder: Path, reading: LoadContext) -> JsonValue:
    """`value` with the contents of the files that its texts name: data of YAML and JSON files, the text of others.

    Names of programs stay, and so do names that templates make.
    """
    if isinstance(value, list):
        return [
            with_file_contents(item, place.child(index), folder, reading) for index, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            key: with_file_contents(item, place.child(key), folder, reading) for key, item in value.items()
        }
    if not is_file_reference(value) or "{{" in value:
        return value
    try:
        files = existing_files(value, folder, reading.files.access, place.value())
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return value
    if files[0].suffix in CODE_SUFFIXES:
        return value
    try:
        if files[0].suffix in STRUCTURED_SUFFIXES:
            document = read_document(files[0].path, reading.files.access, asked_at=place.value())
            return with_file_contents(document.value, place, files[0].path.parent, reading)
        return read_text(files[0].path, reading.files.access, asked_at=place.value()).strip()
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return value
