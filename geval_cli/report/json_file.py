"""`-o results.json`: the whole run as one JSON document, written at the end and put in place in one step."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from geval_cli.events import RunEvent
from geval_cli.records import SCHEMA_VERSION, JsonValue, to_json
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a record or plain value as JSON text that encodes as UTF-8.

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


class JsonFile:
    """A results file that needs the whole report; it lets the events pass."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        with SafeFile(self._path) as file:
            for part in json_document(report):
                file.write(part)


def json_document(report: RunReport) -> Iterator[str]:
    """Yield the text in parts, one result each, so that a large run is never held whole."""
    yield f'{{\n"schema_version": {SCHEMA_VERSION},\n'
    yield f'"run": {json_text(report.run, indent=2)},\n'
    yield f'"summary": {json_text(report.summary, indent=2)},\n'
    yield '"results": ['
    separator = "\n"
    for result in report.results():
        yield separator + json_text(result)
        separator = ",\n"
    yield "\n]\n}\n"
