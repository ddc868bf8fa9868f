"""Files of prompts, as promptfoo reads each kind: one text, several, a table, data that names other files."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.files import FILE_PREFIX, read_document, read_text
from geval_cli.source.json_source import read_json
from geval_cli.source.source_map import split_lines
from geval_cli.templating.js_text import js_json

_SEPARATOR = "---"
# Files may name files. Deeper than this it is a circle.
_MAX_NESTED = 10

PromptTexts = Iterator[tuple[str, str]]
"""Texts, each with the label that the file itself gives it, or ""."""


def read_prompt_file(
    path: Path, access: Access, asked_at: Location | None, *, separator: str | None
) -> list[tuple[str, str]]:
    """Return the prompts in a file, with the labels that the file gives them.

    Args:
        path: of the file.
        access: what may be read for the config.
        asked_at: where the config names it.
        separator: the line between the prompts of a text file, if it is not `---`.

    Raises:
        ConfigError: the file cannot be read, is of a kind that holds no prompts, or holds none.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        hint = f"known: {', '.join(sorted(_READERS))}"
        raise ConfigError([Problem(f"`{path.name}` is not a prompts file", asked_at, hint)])
    if path.suffix.lower() == ".txt" and separator:
        texts = list(_split(read_text(path, access, asked_at=asked_at), separator))
    else:
        texts = list(read(path, access, asked_at))
    if not texts:
        raise ConfigError([Problem(f"there are no prompts in `{path}`", asked_at, "write one into it")])
    return texts


def _split(text: str, separator: str = _SEPARATOR) -> PromptTexts:
    for piece in re.split(rf"^{re.escape(separator)}[ \t]*\r?$", text, flags=re.MULTILINE):
        if piece.strip():
            yield piece.strip(), ""


def _of_text_file(path: Path, access: Access, asked_at: Location | None) -> PromptTexts:
    return _split(read_text(path, access, asked_at=asked_at))


def _whole(path: Path, access: Access, asked_at: Location | None) -> PromptTexts:
    text = read_text(path, access, asked_at=asked_at)
    if text.strip():
        yield text, ""


def _of_lines(path: Path, access: Access, asked_at: Location | None) -> PromptTexts:
    # Not by `str.splitlines`: a string in JSON may have U+2028 in it.
    for number, line in enumerate(split_lines(read_text(path, access, asked_at=asked_at)), start=1):
        if line.strip():
            read_json(line, str(path), first_line=number)
            yield line, ""


def _of_json(path: Path, access: Access, asked_at: Location | None) -> PromptTexts:
    text = read_text(path, access, asked_at=asked_at)
    if FILE_PREFIX in text:
        yield (
            js_json(
                _with_files(read_json(text, str(path)).value, path.parent, _AskedPrompt(access, asked_at))
            ),
            "",
        )
    elif text.strip():
        yield text, ""


def _of_yaml(path: Path, access: Access, asked_at: Location | None) -> PromptTexts:
    try:
        value = read_document(path, access, asked_at=asked_at).value
    except ConfigError:
        # Templates can make a file that is no YAML until the variables are in it.
        yield from _whole(path, access, asked_at)
        return
    value = _with_files(value, path.parent, _AskedPrompt(access, asked_at))
    yield (value if isinstance(value, str) else js_json(value)), ""


def _of_csv(path: Path, access: Access, asked_at: Location | None) -> PromptTexts:
    rows = [row for row in csv.reader(io.StringIO(read_text(path, access, asked_at=asked_at))) if any(row)]
    header = [name.strip() for name in rows[0]] if rows else []
    column = header.index("prompt") if "prompt" in header else 0
    label = header.index("label") if "prompt" in header and "label" in header else None
    for row in rows["prompt" in header :]:
        if column < len(row) and row[column].strip():
            yield row[column].strip(), row[label].strip() if label is not None and label < len(row) else ""


class _AskedPrompt(NamedTuple):
    """Where the config names a file of prompts, and what may be read for it."""

    access: Access
    asked_at: Location | None


def _with_files(value: JsonValue, folder: Path, asked: _AskedPrompt, depth: int = 0) -> JsonValue:
    """`value` with the contents of the files that its texts name."""
    if isinstance(value, list):
        return [_with_files(item, folder, asked, depth) for item in value]
    if isinstance(value, dict):
        return {key: _with_files(item, folder, asked, depth) for key, item in value.items()}
    if not isinstance(value, str) or not value.startswith(FILE_PREFIX) or "{{" in value:
        return value
    path = folder / value.removeprefix(FILE_PREFIX)
    if depth >= _MAX_NESTED:
        raise ConfigError(
            [
                Problem(
                    f"`{path}` includes files that include it",
                    asked.asked_at,
                    "remove the circular reference",
                )
            ]
        )
    if path.suffix.lower() in {".json", ".yaml", ".yml"}:
        document = read_document(path, asked.access, asked_at=asked.asked_at)
        return _with_files(document.value, path.parent, asked, depth + 1)
    return read_text(path, asked.access, asked_at=asked.asked_at).strip()


_READERS: dict[str, Callable[[Path, Access, Location | None], PromptTexts]] = {
    ".txt": _of_text_file,
    ".md": _whole,
    ".j2": _whole,
    ".json": _of_json,
    ".jsonl": _of_lines,
    ".yaml": _of_yaml,
    ".yml": _of_yaml,
    ".csv": _of_csv,
}

PROMPT_SUFFIXES = frozenset(_READERS)
