"""Reads prompts in every form that a config may have: text, file, chat messages, `{id, label, raw}`, `{system}`."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from geval_cli.errors import ConfigError
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.files import FILE_PREFIX, is_bare_pattern, is_file_reference, is_wildcard
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import ChatMessageSpec, PromptSpec, describe_value
from geval_cli.suite.assertions import read_json_schema
from geval_cli.suite.test_files import named_files, relative_name
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields

NO_PROMPT = PromptSpec(id="none", label="", raw="")
"""Stands for the prompt of a suite without prompts, where outputs are judged as they are."""

_BODIES = ("raw", "messages", "system")
_MAY_BE_EMPTY = ("evaluation_criteria", "expected_schema")
_MAX_LABEL = 60
_DOCUMENTS = frozenset({".json", ".yaml", ".yml"})
_ROLES = get_args(ChatMessageSpec.model_fields["role"].annotation)
_LIKE_A_CHAT = compile_later(r"""\s*(?:[\[{][\s\S]{0,2000}?["']role["']\s*:|-\s+["']?role["']?\s*:)""")


def read_prompts(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[PromptSpec, ...]:
    """Return the prompts in the order of the file; each has a unique id and a label."""
    items = value if isinstance(value, list) else [value]
    places = [place.child(index) for index in range(len(items))] if isinstance(value, list) else [place]
    if not items:
        reading.report("`prompts` has no entries", place.value(), "add one, or leave the key out")
    entries = _of_files(list(zip(items, places, strict=True)), reading)
    found = [_read_prompt(item, at, reading) for item, at in entries]
    return _name_all([prompt for prompt in found if prompt is not None], reading)


def prompt_references(value: JsonValue, reading: LoadContext) -> Iterator[str]:
    """Yield a `file://` reference for each file that prompts name by wildcard or folder; these too identify a run."""
    for item in value if isinstance(value, list) else [value]:
        for file in _several_files(item, SourcePath.nowhere(), reading) or ():
            yield f"{FILE_PREFIX}{relative_name(file, reading)}"


def names_several_prompts(item: JsonValue, base_dir: Path) -> bool:
    """Return whether an entry of `prompts` names files by a wildcard or by their folder."""
    body = item.get("raw") if isinstance(item, dict) else item
    if not is_file_reference(body) or "{{" in body:
        return False
    name = body.removeprefix(FILE_PREFIX)
    try:
        path = base_dir / name
        return not path.is_file() and (is_wildcard(name) or path.is_dir())
    except (OSError, ValueError):
        return False


def _several_files(item: JsonValue, place: SourcePath, reading: LoadContext) -> list[Path] | None:
    """Return the files of an entry that names several, empty if that fails with a problem; None for other entries."""
    if not names_several_prompts(item, reading.files.base_dir):
        return None
    body = item["raw"] if isinstance(item, dict) else item
    try:
        return [file.path for file in named_files(body, place.value("raw"), reading)]
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return []


def _of_files(
    entries: list[tuple[JsonValue, SourcePath]], reading: LoadContext
) -> Iterator[tuple[JsonValue, SourcePath]]:
    """Yield the entries, one per file where an entry names several; such a prompt is named after its file."""
    several = [_several_files(item, place, reading) for item, place in entries]
    stems = Counter(file.stem for files in several for file in files or ())
    for (item, place), files in zip(entries, several, strict=True):
        if files is None:
            yield item, place
        for file in files or ():
            relative = relative_name(file, reading)
            name = file.stem if stems[file.stem] == 1 else relative
            reference = f"{FILE_PREFIX}{relative}"
            written = item if isinstance(item, dict) else {}
            names = {
                key: f"{written[key]}: {name}" if isinstance(written.get(key), str) else name
                for key in ("id", "label")
            }
            yield {**written, **names, "raw": reference}, place


def _read_prompt(value: JsonValue, place: SourcePath, reading: LoadContext) -> PromptSpec | None:
    if isinstance(value, str):
        if is_bare_pattern(value, reading.files.base_dir, reading.files.access):
            message = f"`{value}` itself would be sent, not the content of the files"
            reading.report(message, place.value(), f"write file://{value}")
        return _build(Fields("a prompt", place, {"raw": value}, {"raw": ""}), place, reading)
    if isinstance(value, list):
        return _build(Fields("a prompt", place, {"messages": value}, {"messages": ""}), place, reading)
    if not isinstance(value, dict):
        message = (
            f"a prompt must be text, a mapping or a list of chat messages, found {describe_value(value)}"
        )
        reading.report(message, place.value())
        return None
    if "role" in value and "content" in value:
        hint = "put the messages of one prompt into their own list"
        reading.report("found a chat message where a prompt is expected", place.value(), hint)
        return None
    fields = read_fields(PromptSpec, value, place, "a prompt", reading, nullable=_MAY_BE_EMPTY)
    if fields is None or not _has_one_body(fields, reading):
        return None
    return _build(fields, None, reading)


def _has_one_body(fields: Fields, reading: LoadContext) -> bool:
    given = [name for name in _BODIES if name in fields.written]
    if len(given) == 1:
        return True
    if given:
        names = " and ".join(f"`{name}`" for name in given)
        location = fields.place.key(given[1])
        reading.report(f"a prompt has {names}, but can have only one of them", location)
    else:
        reading.report("a prompt has no text", fields.place.value(), "add `raw`, `messages` or `system`")
    return False


def _build(fields: Fields, short_form: SourcePath | None, reading: LoadContext) -> PromptSpec | None:
    """Return the prompt with its files loaded. `short_form` is the place of the body if no key names it."""
    values = fields.values
    chat = _chat_in(values.get("raw"), short_form or fields.child("raw"), reading)
    if chat is not None:
        values["raw"] = None
        values["messages"] = messages = _read_messages(*chat, reading)
        return build_spec(PromptSpec, fields, reading) if messages is not None else None
    for name in ("raw", "system", "evaluation_criteria"):
        if values.get(name) is not None:
            at = short_form or fields.child(name)
            text = reading.text(values[name], at.value, is_for_models=True)
            if text is None:
                return None
            values[name] = text
    if "messages" in values:
        messages = _read_messages(values["messages"], short_form or fields.child("messages"), reading)
        if messages is None:
            return None
        values["messages"] = messages
    read_json_schema("expected_schema", fields, reading)
    return build_spec(PromptSpec, fields, reading)


def _chat_in(
    written: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[JsonValue, SourcePath] | None:
    """Return the chat messages in a prompt's text, or in the file that it names, and their place.

    None for any other prompt; with a warning if it looks like a chat, since it is sent as one text.
    """
    if not isinstance(written, str):
        return (written, place) if isinstance(written, list) else None
    what = "the prompt"
    text = written
    value = None
    at = place
    try:
        if is_file_reference(written):
            what = f"`{written}`"
            text = reading.files.text(written, place.value())
            if Path(written).suffix.lower() in _DOCUMENTS:
                document = reading.files.document(written, place.value())
                value, at = document.value, document.place
        if value is None and text.lstrip()[:1] in {"[", "{"}:
            value = json.loads(text)
    except (ConfigError, ValueError, RecursionError):
        pass  # a file that cannot be read is reported when its text is read; a text need not be JSON
    if _is_chat(value):
        return value, at
    is_near = value is None or (isinstance(value, list) and any(_is_chat([item]) for item in value))
    hint = "to send a chat, write a list of {role, content}, with templates only inside the text"
    if isinstance(value, dict) and _is_chat(value.get("messages")):
        hint = "to send a chat, write only the list that is under `messages`"
    elif not (is_near and _LIKE_A_CHAT.match(text)):
        return None
    reading.warn(f"{what} looks like chat messages, but is sent as one text", place.value(), hint)
    return None


def _is_chat(value: JsonValue) -> bool:
    """Return whether a value is a list of chat messages. Some may lack `content`, which is a mistake in a chat."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and item.get("role") in _ROLES for item in value)
        and any("content" in item for item in value if isinstance(item, dict))
    )


def _read_messages(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[ChatMessageSpec, ...] | None:
    if not isinstance(value, (list, tuple)) or not value:
        found = describe_value(value)
        reading.report(f"chat messages must be a list of {{role, content}}, found {found}", place.value())
        return None
    messages = []
    for index, item in enumerate(value):
        fields = read_fields(ChatMessageSpec, item, place.child(index), "a chat message", reading)
        if fields is None:
            continue
        if "content" in fields.values:
            fields.values["content"] = reading.text(
                fields.values["content"], fields.child("content").value, is_for_models=True
            )
            if fields.values["content"] is None:
                fields.drop("content")
        message = build_spec(ChatMessageSpec, fields, reading)
        if message is not None:
            messages.append(message)
    return tuple(messages) if len(messages) == len(value) else None


def _name_all(prompts: list[PromptSpec], reading: LoadContext) -> tuple[PromptSpec, ...]:
    taken: set[str] = set()
    for prompt in prompts:
        if prompt.id and prompt.id in taken:
            message = f"two prompts have the id `{prompt.id}`"
            reading.report(message, prompt.place.value("id"), "give each its own")
        taken.add(prompt.id)
    named = []
    for number, prompt in enumerate(prompts, start=1):
        label = prompt.label or prompt.id or _first_line(prompt)
        named.append(prompt.model_copy(update={"id": prompt.id or _free_id(number, taken), "label": label}))
    return tuple(named)


def _free_id(number: int, taken: set[str]) -> str:
    name = f"prompt-{number}"
    while name in taken:
        number += 1
        name = f"prompt-{number}"
    taken.add(name)
    return name


def _first_line(prompt: PromptSpec) -> str:
    text: JsonValue = prompt.raw or prompt.system or ""
    if prompt.messages:
        text = prompt.messages[0].content
    lines = [line.strip() for line in text.splitlines() if line.strip()] if isinstance(text, str) else []
    line = lines[0] if lines else "chat messages" if prompt.messages else "empty prompt"
    return line if len(line) <= _MAX_LABEL else line[: _MAX_LABEL - 1].rstrip() + "…"
