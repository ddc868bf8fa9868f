"""Identify a suite by hashes of its config, of the env values in it, and of every file that it names."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path

from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.files import FILE_PREFIX, MAX_CONFIG_BYTES, SourceFiles, hash_file, is_file_reference
from geval_cli.source.secrets import mask_config

# Any word of an id may be a file's name. Scripts and replies are small; a model of gigabytes is not read.
_MAX_PROVIDER_FILE = 16 * 1024 * 1024
_KEPT_HASHES = 1024
_PROVIDER_KEYS = ("providers", "provider")
_MOST_FILES = 1000  # hashes kept one by one; a test set may name a file in each of its tests

CONFIG_PART = "config: "
FILE_PART = "file: "
ROWS_PART = "tests"
OVERRIDES_PART = "vars"


def suite_parts(
    filled: Mapping[str, JsonValue],
    rows: Iterable[JsonValue],
    files: SourceFiles,
    overrides: Mapping[str, JsonValue],
    masked: Mapping[str, JsonValue] | None = None,
) -> dict[str, str]:
    """Return everything in the files that decides the results, part by part, as SHA-256. Another key changes nothing.

    There is a part for each key of the config, for each file that is named (but many files are one part), for the
    rows, and for the overrides.

    Args:
        filled: the config with env values in it.
        rows: from a file of tests, all that name files or have env values in them, filled in.
        files: what the names of files are relative to, and which of them may be read.
        overrides: vars from the command line.
        masked: what `mask_config` made of those parts in which no env values were filled in.
    """
    known = masked or {}
    parts = {f"{CONFIG_PART}{key}": _part_hash(key, value, known.get(key)) for key, value in filled.items()}
    parts[OVERRIDES_PART] = _hash(dict(overrides))
    row_digest, file_digest = hashlib.sha256(), hashlib.sha256()
    hashed = lru_cache(_KEPT_HASHES)(lambda name: _hash_or_reason(files.base_dir / name, files.access))
    for part in chain([dict(filled)], _one_by_one(rows, row_digest)):
        for name in sorted(set(_named_files(part, files))):
            if f"{FILE_PART}{name}" in parts or len(parts) < _MOST_FILES:
                parts[f"{FILE_PART}{name}"] = hashed(name)
            else:
                file_digest.update(_canonical([name, hashed(name)]))
    parts[ROWS_PART] = row_digest.hexdigest()
    parts[f"{FILE_PART}..."] = file_digest.hexdigest()
    return parts


_STREAMED = frozenset({".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".pdf"})


def digest_of(parts: Mapping[str, JsonValue]) -> str:
    """Return SHA-256, in hexadecimal, of all `parts` together."""
    return _hash(dict(parts))


def _part_hash(key: str, value: JsonValue, masked: JsonValue) -> str:
    if masked is not None and key != "env":
        canonical = _canonical({key: masked})
        # Only of headers is more hidden there than here.
        if b"headers" not in canonical.lower():
            return hashlib.sha256(canonical).hexdigest()
    return _hash(_masked(key, value))


def _masked(key: str, value: JsonValue) -> JsonValue:
    """Return a part of the config without keys. `env:` loses only what is a key by its name: programs see all of it."""
    part = value if key == "env" else {key: value}
    return mask_config(part, hides_headers=False)


def _hash(value: JsonValue) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _one_by_one(rows: Iterable[JsonValue], digest: "hashlib._Hash") -> Iterator[JsonValue]:
    for row in rows:
        digest.update(_canonical(mask_config(row, hides_headers=False)))
        yield row


def _canonical(value: JsonValue) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _named_files(value: JsonValue, files: SourceFiles) -> Iterator[str]:
    """Yield the files that `value` and all in it refer to, also those that ids of providers and judges name."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            if is_file_reference(part):
                name = part.removeprefix(FILE_PREFIX)
                before, _, function = name.rpartition(":")
                yield before if function.isidentifier() and _is_small_file(files, before) else name
        elif isinstance(part, dict):
            pending.extend(part.values())
            for key in _PROVIDER_KEYS:
                if key in part:
                    yield from _provider_files(part[key], files)
        elif isinstance(part, list):
            pending.extend(part)


def _provider_files(named: JsonValue, files: SourceFiles) -> Iterator[str]:
    """Small files that the ids of providers and judges name: `scripted:replies.yaml`, `exec:./ask.sh --short`."""
    for item in named if isinstance(named, list) else [named]:
        provider_id = item.get("id") if isinstance(item, dict) else item
        if isinstance(provider_id, str):
            rest = provider_id.partition(":")[2].removeprefix("//")
            candidates = {rest, rest.rpartition(":")[0], *rest.split()}
            yield from (name for name in candidates if _is_small_file(files, name))


def _is_small_file(files: SourceFiles, name: str) -> bool:
    try:
        path = files.base_dir / name
        return (
            name != ""
            and not files.access.is_outside(path)
            and path.is_file()
            and path.stat().st_size <= _MAX_PROVIDER_FILE
        )
    except (OSError, ValueError):
        return False


def _hash_or_reason(path: Path, access: Access) -> str:
    """Return the file's hash; for a file that cannot be read, which is reported elsewhere, a constant."""
    try:
        # What is read as a whole may not be larger, which is reported elsewhere.
        is_streamed = path.suffix.lower() in _STREAMED
        return hash_file(path, access, max_bytes=None if is_streamed else MAX_CONFIG_BYTES)
    except (OSError, ValueError):
        return "unreadable"
