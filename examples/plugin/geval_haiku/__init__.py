"""A geval plugin: an assertion that counts lines, and results in the Test Anything Protocol."""

from pathlib import Path

from pydantic import Field

from geval_cli.assertions.base import Assertion, Outcome, Subject, Tools
from geval_cli.events import RunEvent
from geval_cli.records import Status
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import one_line


class LineCountAssertion(Assertion):
    """line-count: the output has exactly this many non-blank lines."""

    value: int = Field(ge=1, description="How many lines there must be.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        lines = sum(bool(line.strip()) for line in subject.text.splitlines())
        return Outcome.of(lines == self.value, f"the output has {lines} lines; wanted: {self.value}")


class TapFile:
    """`-o results.tap`: one line per result."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        """Ignore events: the file is written at the end."""

    def finish(self, report: RunReport) -> None:
        with SafeFile(self._path) as file:
            file.write(f"TAP version 14\n1..{report.summary.total}\n")
            for number, result in enumerate(report.results(), start=1):
                word = "ok" if result.status is Status.PASSED else "not ok"
                file.write(f"{word} {number} - {one_line(result.description or result.provider.label, 60)}\n")
