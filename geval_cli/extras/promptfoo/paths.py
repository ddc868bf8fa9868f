"""Files as only promptfoo's configs use them: programs named anywhere, and data loaded wherever a text names it."""

from collections.abc import Mapping
from pathlib import Path

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.records import JsonValue
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    JAVASCRIPT_SUFFIXES,
    RUNNABLE_SUFFIXES,
    NamedFile,
    existing_files,
    is_file_reference,
    read_document,
    read_text,
)
from geval_cli.source.source_map import SourcePath
from geval_cli.suite.validation import LoadContext

STRUCTURED_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


def program_reference(file: NamedFile, asked_at: Location | None) -> str:
    """`file://` with the whole path of a program that can be run, and its function if one is named.

    Raises:
        ConfigError: it is in a language that is not run.
    """
    if file.suffix in RUNNABLE_SUFFIXES:
        function = f":{file.part}" if file.part else ""
        return f"{FILE_PREFIX}{file.path.absolute()}{function}"
    if file.suffix in JAVASCRIPT_SUFFIXES:
        hint = "compile it to JavaScript and use the .js file"
        raise ConfigError([Problem(f"TypeScript is not supported: `{file.path.name}`", asked_at, hint)])
    message = f"`{file.suffix}` files cannot be run: `{file.path.name}`"
    raise ConfigError([Problem(message, asked_at, "write it in Python or JavaScript")])


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
