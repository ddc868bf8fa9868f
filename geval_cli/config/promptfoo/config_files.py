"""Files that stand for parts of a provider's or a prompt's `config`: their contents are put in their places."""

from collections.abc import Mapping
from pathlib import Path

from geval_cli.config.place import Place
from geval_cli.config.promptfoo.paths import CODE_SUFFIXES, existing_files
from geval_cli.config.source_file import is_file_reference, read_document, read_text
from geval_cli.config.validation import Reading
from geval_cli.errors import ConfigError
from geval_cli.records import JsonValue

STRUCTURED_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


def file_keys(value: Mapping[str, JsonValue]) -> frozenset[str]:
    """Those keys of a mapping, as it is written, whose whole value is the name of a file."""
    return frozenset(key for key, entry in value.items() if is_file_reference(entry))


def with_file_contents(value: JsonValue, place: Place, folder: Path, reading: Reading) -> JsonValue:
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
