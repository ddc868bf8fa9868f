"""`-o results.json`: the whole run as one JSON document, written at the end and put in place in one step."""

from collections.abc import Iterator
from pathlib import Path

from geval_cli.events import RunEvent
from geval_cli.records import SCHEMA_VERSION
from geval_cli.report.json_text import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile


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
    """The text in parts, one result each, so that a large run is never held whole."""
    yield f'{{\n"schema_version": {SCHEMA_VERSION},\n'
    yield f'"run": {json_text(report.run, indent=2)},\n'
    yield f'"summary": {json_text(report.summary, indent=2)},\n'
    yield '"results": ['
    separator = "\n"
    for result in report.results():
        yield separator + json_text(result)
        separator = ",\n"
    yield "\n]\n}\n"
