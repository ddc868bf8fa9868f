"""Records as the text that is stored: what `records.to_json` says, written in one go."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from geval_cli.records import JsonValue


def record_text(record: Any) -> str:
    """The JSON form of a record as compact ASCII text.

    The same as encoding `to_json(record)`, without making its tree first: several times as fast.
    """
    return _ENCODER.encode(record)


def _members(value: Any) -> JsonValue:
    """What the encoder cannot write by itself, one level of it: a record, or a mapping that is no dict."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    names = _field_names(type(value))  # type: ignore[arg-type]  # mypy doubts that a class is hashable
    return {name: getattr(value, name) for name in names}


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    if not issubclass(kind, Struct):
        raise TypeError(f"{kind.__name__} has no JSON form")
    return kind.__struct_fields__


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_members)
