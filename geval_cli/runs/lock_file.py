"""`geval.lock`: the evaluation steps that judges wrote for the criteria of a config, kept beside it.

With it a criterion means the same in every run and on every machine: its steps are not asked for again. Criteria that
name variables are not in it, since what fills them is data of tests.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError, Problem
from geval_cli.judge.memory import LockedSteps
from geval_cli.judge.prompt import prompt_version
from geval_cli.records import JsonValue
from geval_cli.report.safe_file import SafeFile
from geval_cli.source.access import Access
from geval_cli.source.files import read_document
from geval_cli.source.source_map import SourcePath

LOCK_NAME = "geval.lock"
_VERSION = 1
_KEYS = ("criteria", "params", "judge", "prompt_version", "steps")
_HINT = "write it again with `geval lock`"


StepsKey = tuple[str, tuple[str, ...], str]
"""Key of evaluation steps: criteria, the labels of what the judge is shown, the judge's id."""


class LockEntry(Struct, frozen=True, order=True):
    """The steps that a judge wrote for one criterion. `params` are the labels of what the judge is shown."""

    criteria: str
    params: tuple[str, ...]
    judge: str
    prompt_version: str
    steps: tuple[str, ...] = ()

    @property
    def key(self) -> StepsKey:
        """Return the key that the entry is found by."""
        return self.criteria, self.params, self.judge


class LockFile(Struct, frozen=True):
    """A lock file as it was read."""

    entries: tuple[LockEntry, ...]

    @property
    def steps(self) -> LockedSteps:
        """The steps of all entries that the judges' prompts of today are made for."""
        return {entry.key: entry.steps for entry in self.entries if not is_stale(entry)}

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of what it settles."""
        return hashlib.sha256(written_lock(self.entries).encode()).hexdigest()


def is_stale(entry: LockEntry) -> bool:
    """Return whether an entry was written for other prompts than the judges are asked with today."""
    return entry.prompt_version != prompt_version()


def lock_path(config: Path) -> Path:
    """Return where the lock file of a config is."""
    return config.parent / LOCK_NAME


def read_lock(config: Path, access: Access) -> LockFile | None:
    """Return the lock file beside a config; None when there is none.

    Raises:
        ConfigError: it is broken; every problem has its place.
    """
    path = lock_path(config)
    if not path.exists():
        return None
    document = read_document(path, access)
    problems: list[Problem] = []
    value, place = document.value, document.place
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(entries, list):
        raise ConfigError([Problem(f"{LOCK_NAME} must have `version` and `entries`", place.value(), _HINT)])
    if value.get("version") != _VERSION:
        message = f"{LOCK_NAME} does not have version {_VERSION}"
        raise ConfigError([Problem(message, place.value("version"), _HINT)])
    found: dict[StepsKey, LockEntry] = {}
    for index, item in enumerate(entries):
        entry = _entry(item, place.child("entries", index), problems)
        if entry is not None and entry.key in found:
            problems.append(
                Problem("the same criterion is locked twice", place.value("entries", index), _HINT)
            )
        elif entry is not None:
            found[entry.key] = entry
    if problems:
        raise ConfigError(problems)
    return LockFile(tuple(sorted(found.values())))


def _entry(item: JsonValue, place: SourcePath, problems: list[Problem]) -> LockEntry | None:
    before = len(problems)
    if not isinstance(item, dict):
        problems.append(Problem("an entry must be a mapping", place.value(), _HINT))
        return None
    for name in item.keys() - set(_KEYS):
        problems.append(
            Problem(f"an entry has no `{name}`", place.key(name), f"an entry has {', '.join(_KEYS)}")
        )
    for name in _KEYS:
        is_list = name in ("params", "steps")
        if not (_is_texts(item.get(name)) if is_list else isinstance(item.get(name), str)):
            what = "a list of non-empty strings" if is_list else "a text"
            where = place.value(name) if name in item else place.value()
            problems.append(Problem(f"`{name}` of an entry must be {what}", where, _HINT))
    if len(problems) > before:
        return None
    return LockEntry(
        criteria=item["criteria"],
        params=tuple(item["params"]),
        judge=item["judge"],
        prompt_version=item["prompt_version"],
        steps=tuple(item["steps"]),
    )


def _is_texts(value: JsonValue) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) and item.strip() for item in value)
    )


def written_lock(entries: Iterable[LockEntry]) -> str:
    """Return the text of a lock file: sorted, with a line for each step, so that differences are easy to read."""
    lines = [f"# Written by geval lock; commit it.\nversion: {_VERSION}\nentries:"]
    for entry in sorted(entries):
        lines.append(f"  - criteria: {_quoted(entry.criteria)}")
        lines.append(f"    params: [{', '.join(map(_quoted, entry.params))}]")
        lines.append(f"    judge: {_quoted(entry.judge)}")
        lines.append(f"    prompt_version: {_quoted(entry.prompt_version)}")
        lines.append("    steps:")
        lines += [f"      - {_quoted(step)}" for step in entry.steps]
    return "\n".join(lines if len(lines) > 1 else [f"{lines[0]} []"]) + "\n"


def _quoted(text: str) -> str:
    """Return a text as YAML and JSON write it, on one line; what editors might show as a line's end is escaped."""
    return (
        json.dumps(text, ensure_ascii=False)
        .replace("\x85", "\\u0085")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def write_lock(config: Path, entries: Iterable[LockEntry]) -> None:
    """Write the lock file of a config; what was there stays until all of it is on disk.

    Raises:
        OutputError: it cannot be written.
    """
    with SafeFile(lock_path(config)) as file:
        file.write(written_lock(entries))
