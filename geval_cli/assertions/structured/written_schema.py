"""A JSON Schema as a config has it: written out or as text, perhaps empty. Needs no library that takes long to load."""

from typing import Any

from geval_cli.assertions.structured.json_text import parse_strict_json
from geval_cli.specs.base import WrittenSchema

Schema = dict[str, Any] | bool


def parse_schema(written: WrittenSchema) -> Schema:
    """Return the schema that a config means; text is JSON.

    Raises:
        ValueError: the text is not JSON, or not an object or a boolean.
    """
    if isinstance(written, dict | bool):
        return written
    schema = parse_strict_json(written)
    if not isinstance(schema, dict | bool):
        raise ValueError("it must be an object or a boolean")  # noqa: TRY004 - one kind of error for one kind of problem
    return schema


def unless_empty(written: WrittenSchema | None) -> WrittenSchema | None:
    """Return the schema, or None when it asks nothing: blank text, an object without keys, nothing at all."""
    is_empty = "".join(written.split()) in {"", "{}"} if isinstance(written, str) else written == {}
    return None if is_empty else written
