"""GitHub annotations: what did not pass, shown on the config's own lines in the pull request."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from geval_cli.records import AssertionResult, CaseResult, Column, Status
from geval_cli.report.junit_file import suite_name
from geval_cli.report.numbers import plural
from geval_cli.report.report import RunReport, case_number, case_title
from geval_cli.report.sanitize import one_line

ANNOTATIONS_MAX = 10
"""As many of each kind as GitHub shows for one step."""

_TEXT_WIDTH = 500
_CASES_NAMED = 5
_COLUMNS_NAMED = 5
_PLACES_MAX = 1_000  # tests in a file of a million lines must not fill the memory
_LOCATION = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?\Z", re.DOTALL)
_COMMANDS = {Status.FAILED: "error", Status.ERROR: "warning"}
_TITLES = {Status.FAILED: "geval: failed", Status.ERROR: "geval: could not be judged"}


def wants_annotations(environ: Mapping[str, str]) -> bool:
    """Return whether a GitHub workflow reads what we print."""
    return environ.get("GITHUB_ACTIONS") == "true"


class _Annotation(Struct):
    """The failures of one line of a config, over all cases."""

    status: Status
    location: str
    said: str
    cases: list[str] = field(default_factory=list)
    tests: int = 0
    count: int = 0
    columns: set[int] = field(default_factory=set)
    _last: str = ""

    def add(self, result: CaseResult) -> None:
        self.count += 1
        self.columns.add(result.column)
        number = case_number(result)
        if number == self._last:  # the same test in the next column: results come test by test
            return
        self._last = number
        self.tests += 1
        if len(self.cases) < _CASES_NAMED:
            self.cases.append(f"{number} {case_title(result, 60)}".rstrip())


def annotation_lines(report: RunReport, *, workspace: Path) -> Iterator[str]:
    """Workflow commands, one for each line of the config on which something did not pass, at most ten of a kind.

    Failures are errors; what could not be judged is a warning. Paths are given relative to `workspace`, the folder
    that the repository was checked out to.
    """
    found: dict[tuple[Status, str, str], _Annotation] = {}
    for result in report.results():
        for status, location, said in _problems(result, report):
            key = (status, location, _key(said))
            if key in found or len(found) < _PLACES_MAX:
                found.setdefault(key, _Annotation(status, location, said)).add(result)
    for status, command in _COMMANDS.items():
        of_kind = [item for item in found.values() if item.status is status]
        shown = of_kind if len(of_kind) <= ANNOTATIONS_MAX else of_kind[: ANNOTATIONS_MAX - 1]
        for item in shown:
            yield _command(item, report.columns, workspace)
        if len(of_kind) > len(shown):
            text = f"{plural(len(of_kind) - len(shown), 'more place')} with the same trouble, see the log"
            yield f"::{command} title={_property(_TITLES[status])}::{_message(text)}"


def _problems(result: CaseResult, report: RunReport) -> Iterator[tuple[Status, str, str]]:
    if result.error is not None:
        yield Status.ERROR, report.run.config_path, f"{result.error.type}: {result.error.message}"
    for item in result.assertions:
        if item.status not in _COMMANDS:
            continue
        name = f"{item.type} {item.metric}" if item.metric else item.type
        yield item.status, item.location or report.run.config_path, f"{name}: {_said(item)}"


def _said(item: AssertionResult) -> str:
    if item.error is not None:
        return f"{item.error.type}: {item.error.message}"
    return item.reason or "did not pass"


def _key(said: str) -> str:
    """Return the key that merges annotations: those of one place that begin alike, as each reason differs."""
    return said.partition(":")[0]


def _command(item: _Annotation, columns: Sequence[Column], workspace: Path) -> str:
    properties = {**_place(item.location, workspace), "title": _TITLES[item.status]}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    cases = ", ".join(item.cases)
    more = f" and {item.tests - len(item.cases):,} more" if item.tests > len(item.cases) else ""
    text = f"{one_line(item.said, _TEXT_WIDTH)}\nin {plural(item.count, 'case')}: {cases}{more}{_where(item, columns)}"
    return f"::{_COMMANDS[item.status]} {listed}::{_message(text)}"


def _where(item: _Annotation, columns: Sequence[Column]) -> str:
    """Return the columns that have the trouble, where there are several."""
    if len(columns) < 2:  # noqa: PLR2004 - several
        return ""
    names = [suite_name(column) for column in columns if column.index in item.columns]
    if len(names) == len(columns):
        return f"\nin all {len(columns):,} columns"
    more = f" and {len(names) - _COLUMNS_NAMED:,} more" if len(names) > _COLUMNS_NAMED else ""
    return f"\nin {len(names):,} of {len(columns):,} columns: {', '.join(names[:_COLUMNS_NAMED])}{more}"


def _place(location: str, workspace: Path) -> dict[str, str]:
    match = _LOCATION.match(location)
    file, line, column = match.group("file", "line", "column") if match else (location, None, None)
    path = Path(file).resolve()
    inside = path.is_relative_to(workspace.resolve())
    place = {"file": path.relative_to(workspace.resolve()).as_posix() if inside else file}
    if line is not None:
        place["line"] = line
    if column is not None:
        place["col"] = column
    return place


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
