"""Write results as one JSON document (`-o results.json`), or as one result per line (`-o results.jsonl`)."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from msgspec import UNSET
from msgspec.structs import replace

from geval_cli.events import CaseFinished, RunEvent, RunFinished, RunStarted
from geval_cli.records import SCHEMA_VERSION, CaseResult, JsonValue, to_json
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile, open_in_place


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a record or plain value as JSON text that UTF-8 can encode.

    Numbers that JSON lacks become null, bytes become text, other objects become their `repr`, and a lone surrogate
    becomes U+FFFD, the replacement character.
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
    """A results file that needs the whole report and ignores the events."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        with SafeFile(self._path) as file:
            for part in json_document(report):
                file.write(part)


def json_document(report: RunReport) -> Iterator[str]:
    """Yield the JSON document in parts, one per result, so that a large run is never held in memory as a whole."""
    yield f'{{\n"schema_version": {SCHEMA_VERSION},\n"kind": "run",\n'
    yield f'"run": {json_text(report.run, indent=2)},\n'
    yield f'"summary": {json_text(report.summary, indent=2)},\n'
    yield '"tests": ['
    separator = "\n"
    for test in report.asked():
        yield separator + json_text(test)
        separator = ",\n"
    yield '\n],\n"results": ['
    separator = "\n"
    for result in report.results():
        yield separator + result_text(result)
        separator = ",\n"
    yield "\n]\n}\n"


def result_text(result: CaseResult) -> str:
    """Return a result as JSON text without its test, which is written once for all its results."""
    return json_text(replace(result, test=UNSET))


class JsonlFile:
    """A results file that writes each result as it arrives, and each test before its first result.

    At the end, the file is replaced by a complete one in test order. That may have more than the events did: a resumed
    run has earlier results, and a disk that was full for a while may have room again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._written = bytearray()  # whether each test was written, by its index

    def listen(self, event: RunEvent) -> None:
        try:
            if isinstance(event, RunStarted):
                descriptor = open_in_place(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")
            elif isinstance(event, CaseFinished) and self._file is not None:
                self._file.write(self._lines(event.result))
                self._file.flush()
            elif isinstance(event, RunFinished):
                self._close()
        except OSError:
            self._close()

    def finish(self, report: RunReport) -> None:
        self._close()
        with SafeFile(self._path) as file:
            self._written = bytearray()
            for result in report.results():
                file.write(self._lines(result))

    def _lines(self, result: CaseResult) -> str:
        index, test = result.test_index, ""
        if result.asked is not None:
            self._written.extend(bytes(max(0, index + 1 - len(self._written))))
            if not self._written[index]:
                self._written[index] = True
                test = f'{{"test":{json_text(result.asked)}}}\n'
        return f"{test}{result_text(result)}\n"

    def _close(self) -> None:
        # `finish` writes everything again, and reports the error if it persists.
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None
