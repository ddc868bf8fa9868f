"""JSON for large amounts of data: as fast as msgspec, and as lenient as the standard library.

What msgspec refuses and `json` does not (unpaired surrogates, NaN, integers of any size) is left to `json`.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec


def encode_json(value: Any) -> bytes:
    """Return `value` as compact JSON in UTF-8; records become objects, enums their values.

    Unpaired surrogates, which UTF-8 cannot encode, are written as escapes.

    Raises:
        TypeError: a part of it has no JSON form.
    """
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError):
        return _LENIENT_ENCODER.encode(value).encode("ascii")


def decode_json(text: str | bytes) -> Any:
    """Parse `text`.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return _decoded(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def data_in(value: Any) -> Any:
    """Return the list or object in a JSON text, as APIs write arguments; any other value unchanged."""
    if isinstance(value, str) and value[:1] in {"[", "{"}:
        try:
            return decode_json(value)
        except ValueError:
            return value
    return value


def _decoded(text: str | bytes) -> Any:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(text)


def _plain(value: object) -> object:
    """Convert one level of a value that the encoders do not support: a mapping that is not a dict, or a record."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        return {name: item for name, item in fields if item is not msgspec.UNSET}
    raise TypeError(f"{type(value).__name__} has no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER = msgspec.json.Decoder()
_LENIENT_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
