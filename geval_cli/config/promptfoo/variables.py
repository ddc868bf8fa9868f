"""Variables of a test: lists become one test for each combination, names of files their contents."""

import base64
import mimetypes
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from geval_cli.config.place import Place
from geval_cli.config.promptfoo.js_text import js_json
from geval_cli.config.promptfoo.paths import (
    CODE_SUFFIXES,
    NamedFile,
    existing_files,
    is_wildcard,
    program_reference,
    split_part,
)
from geval_cli.config.regular_file import open_regular
from geval_cli.config.source_file import FILE_PREFIX, MAX_TEXT_BYTES, is_file_reference, open_problem
from geval_cli.config.validation import Reading
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.records import JsonValue

_DOCUMENTS = frozenset({".yaml", ".yml"})
_MEDIA = ("image/", "audio/", "video/")
MAX_COMBINATIONS = 100_000
"""How many tests the lists of one test may become; more is a slip, and would fill the memory."""


def expanded(
    variables: Mapping[str, JsonValue], place: Place, reading: Reading, *, expands: bool
) -> Iterator[dict[str, JsonValue]]:
    """The variables of each test that one entry of `tests` stands for, files loaded.

    A list multiplies the tests only if its first member is a text; any other list is one value. The first variable
    changes slowest.

    Args:
        variables: as they are written.
        place: of the test.
        reading: takes the problems; its folder is what names of files are relative to.
        expands: whether lists and wildcards multiply tests at all.
    """
    choices = {name: _choices(value, name, place, reading, expands) for name, value in variables.items()}
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > MAX_COMBINATIONS:
        hint = "use fewer values, or several tests"
        reading.report(f"the lists in `vars` make {count:,} tests out of one", place.value("vars"), hint)
        return
    loaded = {
        name: [_loaded(value, name, place, reading) for value in values] for name, values in choices.items()
    }
    for combination in product(*loaded.values()):
        yield dict(zip(loaded, combination, strict=True))


def _choices(value: JsonValue, name: str, place: Place, reading: Reading, expands: bool) -> list[JsonValue]:
    if expands and isinstance(value, list) and value and isinstance(value[0], str):
        return [item for entry in value for item in _files_of(entry, name, place, reading)]
    return _files_of(value, name, place, reading) if expands else [value]


def _files_of(value: JsonValue, name: str, place: Place, reading: Reading) -> list[JsonValue]:
    """`value`, or a reference to each file that fits its wildcards."""
    if not is_file_reference(value) or not is_wildcard(value) or "{{" in value:
        return [value]
    try:
        files = _existing(value, name, place, reading)
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return []
    return [f"file://{file.path.absolute()}" for file in files]


def _loaded(value: JsonValue, name: str, place: Place, reading: Reading) -> JsonValue:
    if not is_file_reference(value) or "{{" in value:
        return value
    try:
        return _content(_existing(value, name, place, reading)[0], _location(place, name), reading)
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return None


def _existing(value: str, name: str, place: Place, reading: Reading) -> list[NamedFile]:
    return existing_files(value, reading.files.base_dir, reading.files.access, _location(place, name))


def _content(file: NamedFile, asked_at: Location | None, reading: Reading) -> JsonValue:
    if file.suffix in CODE_SUFFIXES:
        return program_reference(file, asked_at)
    if file.suffix in _DOCUMENTS:
        return js_json(reading.files.document_at(file.path, asked_at).value)
    kind = mimetypes.guess_type(file.path.name)[0] or ""
    if kind.startswith(_MEDIA) and file.suffix != ".svg":
        return _encoded(file.path, kind, asked_at, reading)
    return reading.files.text_at(file.path, asked_at).strip()


def names_program(value: JsonValue) -> bool:
    """Whether a loaded variable is the name of the program that makes it."""
    if not is_file_reference(value):
        return False
    path, _ = split_part(value.removeprefix(FILE_PREFIX))
    return Path(path).suffix.lower() in CODE_SUFFIXES and Path(path).is_absolute()


def _encoded(path: Path, kind: str, asked_at: Location | None, reading: Reading) -> str:
    """Images as a data URL, sound and film in base64 alone, as promptfoo puts them into prompts."""
    try:
        with open_regular(path, reading.files.access) as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    if len(content) > MAX_TEXT_BYTES:
        raise ConfigError([Problem(f"`{path}` is larger than 16 MB", asked_at, "name a smaller file")])
    text = base64.b64encode(content).decode()
    return f"data:{kind};base64,{text}" if kind.startswith("image/") else text


def _location(place: Place, name: str) -> Location | None:
    return place.value("vars", name)
