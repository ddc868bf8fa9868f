"""Reads prompts in every form that promptfoo accepts: text, files, `{id, label, raw}`, `{file: label}`."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.promptfoo.env import (
    existing_files,
    file_keys,
    program_reference,
    warn_of_gone,
    with_file_contents,
)
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    find_files,
    is_wildcard,
    leads_outside,
    read_document,
    read_text,
)
from geval_cli.source.json_source import read_json
from geval_cli.source.source_map import SourcePath, split_lines
from geval_cli.specs.base import PromptSpec, describe_value
from geval_cli.specs.promptfoo import EXEC_PREFIX, NamedPromptSpec
from geval_cli.suite.tables import csv_rows, guess_delimiter, uneven_problem
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_json

_SEPARATOR = "---"
# Files may include files; anything deeper than this is a cycle.
_MAX_NESTED = 10

PromptTexts = Iterator[tuple[str, str]]
"""Texts, each with the label that the file gives it, or ""."""


def read_prompt_file(
    path: Path, access: Access, asked_at: Location | None, *, env: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the prompts in a file, with the labels that the file gives them.

    Args:
        path: the file.
        access: which files may be read for the config.
        asked_at: where the config names the file.
        env: environment values, for PROMPTFOO_PROMPT_SEPARATOR (`---` by default) and PROMPTFOO_CSV_DELIMITER.

    Raises:
        ConfigError: the file cannot be read, is not a prompts file, or has no prompts.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        hint = f"known: {', '.join(sorted(_READERS))}"
        raise ConfigError([Problem(f"`{path.name}` is not a prompts file", asked_at, hint)])
    separator = env.get("PROMPTFOO_PROMPT_SEPARATOR")
    if path.suffix.lower() == ".csv":
        texts = list(_of_csv(path, access, asked_at, env.get("PROMPTFOO_CSV_DELIMITER") or ","))
    elif path.suffix.lower() == ".txt" and separator:
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
    # Not `str.splitlines`, since a JSON string may contain U+2028.
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
        # With templates in it, a file may be valid YAML only after rendering.
        yield from _whole(path, access, asked_at)
        return
    value = _with_files(value, path.parent, _AskedPrompt(access, asked_at))
    yield (value if isinstance(value, str) else js_json(value)), ""


def _of_csv(path: Path, access: Access, asked_at: Location | None, delimiter: str = ",") -> PromptTexts:
    """Yield the `prompt` column of a table; if the file is not a table, each line, commas included."""
    read_text(path, access, asked_at=asked_at)  # refuses a file that is too large
    rows = [row for row in csv_rows(path, access, asked_at, delimiter=delimiter) if any(row.cells)]
    header = [name.strip() for name in rows[0].cells] if rows else []
    if len(header) == 1 and "prompt" in re.split(r"\s*[;\t]\s*", header[0]) and header != ["prompt"]:
        where = Location(str(path), 1, 1, length=0)
        raise ConfigError([Problem("this row has only one cell", where, delimiter_hint(header[0]))])
    uneven = next((row for row in rows if len(row.cells) != len(header)), None)
    if len(header) == 1 or (uneven is not None and "prompt" not in header):
        for row in rows[len(header) == 1 and header[0].lower() == "prompt" :]:
            text = row.cells[0] if len(row.cells) == 1 else row.text
            if text.strip():
                yield text.strip(), ""
        return
    if uneven is not None:
        raise ConfigError([uneven_problem(uneven, len(header), path)])
    if rows and "prompt" not in header:
        hint = "write `prompt` or `prompt,label` into the first line, and put texts with commas into double quotes"
        raise ConfigError([Problem("there is no column `prompt`", Location(str(path), 1, 1, length=0), hint)])
    for row in rows[1:]:
        named = dict(zip(header, row.cells, strict=True))
        if named["prompt"].strip():
            yield named["prompt"].strip(), named.get("label", "").strip()


def delimiter_hint(header: str) -> str:
    """Return the hint for a header with a delimiter other than the expected one."""
    mark = guess_delimiter(header)
    shown = "a tab" if mark == "\t" else f"`{mark}`"
    return f"set PROMPTFOO_CSV_DELIMITER to {shown}, or save the file with commas"


class _AskedPrompt(NamedTuple):
    """Where the config names a file of prompts, and which files may be read for it."""

    access: Access
    asked_at: Location | None


def _with_files(value: JsonValue, folder: Path, asked: _AskedPrompt, depth: int = 0) -> JsonValue:
    """Return `value` with file references replaced by the files' contents."""
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


DEFAULT_PROMPT = "{{prompt}}"
_CONVERSATION = "_conversation"
_MAX_LABEL = 60
_REMOTE = ("langfuse://", "portkey://", "helicone://", "package:")
_FORMS = "write text, file://, a list of chat messages, or a mapping with `raw` or `id`"


class ConfigPart(Struct, frozen=True):
    """One entry of a list in a config, and the folder that its paths are relative to."""

    value: JsonValue
    place: SourcePath
    folder: Path


class _Draft(Struct, frozen=True):
    """A prompt before it gets a unique name. `label` is the config's name for it, if any.

    `is_of_several` is true if it comes from a kind of file that may hold several prompts.
    """

    raw: str
    place: SourcePath
    label: str = ""
    shown: str = ""
    id: str = ""
    made_by: str = ""
    folder: str = ""
    sees_conversation: bool = False
    is_of_several: bool = False
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    file_params: frozenset[str] = frozenset()


def read_promptfoo_prompts(parts: list[ConfigPart], reading: LoadContext) -> tuple[PromptSpec, ...]:
    """Return the prompts of all `parts`, in order, each with a unique id and a label."""
    drafts: list[_Draft] = []
    for part in parts:
        try:
            value, place = part.value, part.place
            if isinstance(value, str):
                drafts.extend(_of_text(value, part, reading))
            elif isinstance(value, list):
                drafts.append(_Draft(js_json(value), place))
            elif isinstance(value, dict):
                params = _params(value, part, reading)
                written = value.get("config")
                files = file_keys(written) if isinstance(written, dict) else frozenset()
                drafts.extend(
                    replace(draft, params=params, file_params=files)
                    for draft in _of_mapping(value, part, reading)
                )
            else:
                reading.report(
                    f"a prompt must be text, a mapping or a list, found {describe_value(value)}",
                    place.value(),
                    _FORMS,
                )
        except ConfigError as error:
            reading.problems.extend(error.problems)
    return tuple(_named(drafts))


def default_prompt(place: SourcePath) -> PromptSpec:
    """Return the prompt of a config without `prompts`: the variable `prompt` of each test."""
    return PromptSpec(id="prompt-1", label=DEFAULT_PROMPT, raw=DEFAULT_PROMPT, place=place)


def _of_mapping(value: dict[str, JsonValue], part: ConfigPart, reading: LoadContext) -> Iterator[_Draft]:
    label, name = value.get("label"), value.get("id")
    shown = label if isinstance(label, str) else ""
    if {"raw", "id", "messages"} & value.keys():
        for key in value.keys() - {"id", "label", "raw", "messages", "display", "config"}:
            reading.warn(f"`{key}` of this prompt is not used", part.place.key(key))
    if isinstance(value.get("raw"), str):
        drafts = _of_text(value["raw"], replace(part, place=part.place), reading)
        yield from (
            replace(draft, id=name if isinstance(name, str) else "") for draft in _labelled(drafts, shown)
        )
    elif isinstance(value.get("messages"), list):
        yield _Draft(js_json(value["messages"]), part.place, shown, id=name if isinstance(name, str) else "")
    elif isinstance(name, str):
        yield from _labelled(_of_text(name, part, reading), shown)
    elif "role" in value:
        hint = "a chat prompt is one entry: put its messages into their own list, `- - role: user`"
        reading.report("found a chat message where a prompt is expected", part.place.value(), hint)
    elif value and all(isinstance(entry, str) and _may_be_file(file) for file, entry in value.items()):
        for file, its_label in value.items():
            inner = replace(part, place=part.place.child(file))
            yield from _labelled(_of_text(file, inner, reading), its_label)
    else:
        reading.report("this prompt has no text", part.place.value(), "add `raw`, or `id: file://prompt.txt`")


def _params(value: dict[str, JsonValue], part: ConfigPart, reading: LoadContext) -> dict[str, JsonValue]:
    """Return the prompt's own model parameters, with file references replaced by the files' contents."""
    config = value.get("config")
    place = part.place.child("config")
    if not {"raw", "id", "messages"} & value.keys() or config is None:
        return {}
    found = with_file_contents(config, place, part.folder, reading)
    if isinstance(found, dict):
        return found
    reading.report(f"`config` must be a mapping, found {describe_value(found)}", place.value())
    return {}


def _labelled(drafts: Iterator[_Draft], label: str) -> Iterator[_Draft]:
    """Give every prompt of a file its label, by which tests and providers choose prompts.

    A prompt from a file that may hold several is shown with the label, the file's name and its text.
    """
    for draft in drafts:
        shown = f"{label}: {draft.shown}" if label and draft.is_of_several else label
        yield replace(draft, label=label, shown=shown) if label else draft


def _of_text(text: str, part: ConfigPart, reading: LoadContext) -> Iterator[_Draft]:
    location = part.place.value()
    if text.startswith(_REMOTE):
        scheme = text.partition(":")[0]
        hint = "export the prompt to a file next to the config and use that"
        reading.report(f"prompts from {scheme} are not fetched", location, hint)
        return
    if text.startswith(EXEC_PREFIX) or _is_code(text):
        yield from _of_program(text, part, reading)
        return
    if not _may_be_file(text):
        yield from _one(text, part, reading)
        return
    access = reading.files.access
    if text.startswith(FILE_PREFIX) or _must_be_file(text):
        files = existing_files(text, part.folder, access, location)
    else:
        # A sentence with a slash in it is not a path to another folder, so nothing is looked up there.
        is_sentence = len(text.split()) > 1 or "{{" in text
        is_far = is_sentence and leads_outside(text, part.folder, access)
        files = [] if is_far else find_files(text, part.folder, access, location)
    if files:
        warn_of_gone(text, part.folder, reading, location)
    else:
        yield from _one(text, part, reading)
    for file in files:
        if file.suffix in CODE_SUFFIXES:
            yield from _of_program(f"{FILE_PREFIX}{file.path.absolute()}", part, reading)
            continue
        texts = read_prompt_file(
            file.path,
            reading.files.access,
            location,
            env=reading.env.values,
        )
        for raw, label in texts:
            name = label or file.path.name
            yield _Draft(
                raw,
                part.place,
                name if label else "",
                shown=label or f"{name}: {raw}",
                is_of_several=file.suffix == ".txt",
            )


def _of_program(text: str, part: ConfigPart, reading: LoadContext) -> Iterator[_Draft]:
    """Yield prompts whose text a program makes for each case; a wildcard may match several programs."""
    location = part.place.value()
    if text.startswith(EXEC_PREFIX):
        command = text.removeprefix(EXEC_PREFIX).strip()
        if not command:
            raise ConfigError(
                [Problem("`exec:` has no command after it", location, "write exec:./prompt.sh")]
            )
        folder = str(part.folder.absolute())
        yield _Draft(command, part.place, made_by=f"{EXEC_PREFIX}{command}", folder=folder)
        return
    for file in existing_files(text, part.folder, reading.files.access, location):
        name = f"{file.path.name}:{file.part}" if file.part else file.path.name
        made_by = program_reference(file, location)
        sees_conversation = _CONVERSATION in read_text(file.path, reading.files.access, asked_at=location)
        yield _Draft(
            name,
            part.place,
            made_by=made_by,
            folder=str(part.folder.absolute()),
            sees_conversation=sees_conversation,
        )


def _one(text: str, part: ConfigPart, reading: LoadContext) -> Iterator[_Draft]:
    if text.strip():
        yield _Draft(text, part.place)
    else:
        reading.report("this prompt is empty", part.place.value(), "write the text to send")


def _is_code(text: str) -> bool:
    name = text.removeprefix(FILE_PREFIX).rpartition(":")[0] or text.removeprefix(FILE_PREFIX)
    return "\n" not in text and " " not in text and Path(name).suffix.lower() in CODE_SUFFIXES


def _may_be_file(text: str) -> bool:
    return "\n" not in text and (
        text.startswith(FILE_PREFIX)
        or _must_be_file(text)
        or "/" in text
        or is_wildcard(text)
        or "." in text[-6:]
    )


def _must_be_file(text: str) -> bool:
    """Return whether text can only be a file name: one word with the suffix of a prompts file."""
    return "{{" not in text and len(text.split()) == 1 and Path(text).suffix.lower() in PROMPT_SUFFIXES


def _named(drafts: list[_Draft]) -> Iterator[PromptSpec]:
    taken: set[str] = set()
    for number, draft in enumerate(drafts, start=1):
        name = draft.label or draft.id or f"prompt-{number}"
        unique, count = name, 1
        while unique in taken:
            count += 1
            unique = f"{name}-{count}"
        taken.add(unique)
        shown = draft.shown or draft.label or draft.raw
        line = " ".join(shown.split())
        shortened = line if len(line) <= _MAX_LABEL else line[: _MAX_LABEL - 1].rstrip() + "…"
        yield NamedPromptSpec(
            id=unique,
            label=shortened,
            raw=draft.raw,
            place=draft.place,
            names=(draft.label, draft.id, shown, draft.raw),
            made_by=draft.made_by,
            folder=draft.folder,
            sees_conversation=draft.sees_conversation,
            params=dict(draft.params),
            file_params=draft.file_params,
        )
