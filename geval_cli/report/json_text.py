"""JSON that every reader takes: no NaN, no Infinity, no unpaired surrogate, whatever a model or a config brought."""

import json
import math
from collections.abc import Mapping

from geval_cli.records import JsonValue, to_json


def json_text(value: object, *, indent: int | None = None) -> str:
    """A record or plain value as JSON text that encodes as UTF-8.

    Numbers that JSON lacks become null; bytes become text; other strangers their `repr`; a surrogate without its
    partner becomes U+FFFD, the replacement character.
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(
        _clean(to_json(value)), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def _clean(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _paired(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_paired(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", errors="replace")
    return _paired(repr(value))


def _paired(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")
