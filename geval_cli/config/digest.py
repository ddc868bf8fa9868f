"""What identifies a suite: a hash of its config and of every file that the config names."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from geval_cli.config.source_file import FILE_PREFIX, hash_file, is_file_reference
from geval_cli.records import JsonValue

JSON_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson"})

_MAX_PROVIDER_FILE = 16 * 1024 * 1024


def suite_digest(
    snapshot: JsonValue, filled: JsonValue, base_dir: Path, overrides: Mapping[str, JsonValue]
) -> str:
    """SHA-256, in hexadecimal, of everything in the files that decides the results.

    Args:
        snapshot: the config as it is kept with a run.
        filled: the config with env values in it, for the names of files.
        base_dir: what these names are relative to.
        overrides: vars from the command line.
    """
    files = {name: _hash_or_reason(base_dir / name) for name in sorted(_named_files(filled, base_dir))}
    known = {"config": snapshot, "files": files, "vars": dict(overrides)}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _named_files(value: JsonValue, base_dir: Path) -> Iterator[str]:
    for text in _strings(value):
        if is_file_reference(text):
            name = text.removeprefix(FILE_PREFIX)
            yield name
            if Path(name).suffix.lower() in JSON_LINES_SUFFIXES:
                yield from _named_in_lines(base_dir / name)
    if isinstance(value, dict):
        yield from _provider_files(value.get("providers"), base_dir)


def _strings(value: JsonValue) -> Iterator[str]:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)


def _named_in_lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as stream:
            for line in stream:
                if FILE_PREFIX.encode() in line:
                    yield from _named_in_line(line)
    except OSError:
        return


def _named_in_line(line: bytes) -> Iterator[str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    for text in _strings(value):
        if is_file_reference(text):
            yield text.removeprefix(FILE_PREFIX)


def _provider_files(providers: JsonValue, base_dir: Path) -> Iterator[str]:
    """Small files that a provider's id names after its kind: `scripted:replies.yaml`, `python:ask.py:main`."""
    for item in providers if isinstance(providers, list) else [providers]:
        name = item.get("id") if isinstance(item, dict) else item
        _, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
        for candidate in (rest, rest.rpartition(":")[0]):
            try:
                if candidate and "\0" not in candidate and (base_dir / candidate).is_file():
                    if (base_dir / candidate).stat().st_size <= _MAX_PROVIDER_FILE:
                        yield candidate
                    break
            except OSError:
                continue


def _hash_or_reason(path: Path) -> str:
    """The file's hash; for a file that cannot be read, which is reported elsewhere, a constant."""
    try:
        return hash_file(path)
    except (OSError, ValueError):
        return "unreadable"
