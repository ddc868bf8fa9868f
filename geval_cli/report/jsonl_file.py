"""`-o results.jsonl`: one result a line, there to be followed while the run goes on."""

from contextlib import suppress
from pathlib import Path
from typing import TextIO

from geval_cli.events import CaseFinished, RunEvent, RunFinished, RunStarted
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile


class JsonlFile:
    """Writes each result as it comes; at the end replaces the file by the complete one in the order of the tests.

    The end may know more than the events said: a resumed run has results from before, and a disk that was full for a
    while may have room again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def listen(self, event: RunEvent) -> None:
        try:
            if isinstance(event, RunStarted):
                self._file = self._path.open("w", encoding="utf-8", newline="\n")
            elif isinstance(event, CaseFinished) and self._file is not None:
                self._file.write(json_text(event.result) + "\n")
                self._file.flush()
            elif isinstance(event, RunFinished):
                self._close()
        except OSError:
            self._close()

    def finish(self, report: RunReport) -> None:
        self._close()
        with SafeFile(self._path) as file:
            for result in report.results():
                file.write(json_text(result) + "\n")

    def _close(self) -> None:
        # What could not be written is written by `finish`, which reports the trouble if it lasts.
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None
