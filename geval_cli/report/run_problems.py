"""Problems of a run: what did not pass, on the config's own lines; for annotations, and for files of code hosts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from geval_cli.errors import Location, Problem, ProblemFormat, Severity
from geval_cli.events import RunEvent
from geval_cli.numbers import plural
from geval_cli.records import AssertionResult, CaseResult, Column, Status
from geval_cli.report.case_view import assertion_name, case_number, case_title, failure_text, whole_reason
from geval_cli.report.columns import run_sentence
from geval_cli.report.problem_formats import FILE_ENDINGS, Origin, write_problems
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import whole_titles

_TEXT_WIDTH = 500
_CASES_NAMED = 5
_COLUMNS_NAMED = 5
_PLACES_MAX = 1_000  # tests in a file of a million lines must not fill the memory
_LOCATION = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?\Z", re.DOTALL)
_SEVERITIES = {Status.FAILED: Severity.ERROR, Status.ERROR: Severity.WARNING}


class RunProblemsFile:
    """A results file with the problems of a run; it needs the whole report and lets the events pass."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        form = next(form for ending, form in FILE_ENDINGS.items() if self._path.name.lower().endswith(ending))
        with SafeFile(self._path) as file:
            file.write(
                write_problems(
                    run_problems(report),
                    form,
                    origin=Origin.RUN,
                    workspace=Path(),
                    summary=run_sentence(report),
                )
            )


def wants_annotations(environ: Mapping[str, str]) -> bool:
    """Return whether a GitHub workflow reads what we print."""
    return environ.get("GITHUB_ACTIONS") == "true"


def annotations(
    problems: Iterator[Problem] | Sequence[Problem], environ: Mapping[str, str], *, origin: Origin
) -> str:
    """Return problems as annotations on the lines of a pull request; "" where no GitHub workflow reads them."""
    if not wants_annotations(environ):
        return ""
    workspace = Path(environ.get("GITHUB_WORKSPACE") or ".")
    return write_problems(problems, ProblemFormat.GITHUB, origin=origin, workspace=workspace)


class _Failures(Struct):
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


def run_problems(report: RunReport) -> Iterator[Problem]:
    """Yield a problem for each line of the config on which something did not pass.

    Failures are errors; what could not be judged is a warning. The first score, threshold and reason stand for those of
    the other cases.
    """
    found: dict[tuple[Status, str, str], _Failures] = {}
    for result in report.results():
        for status, location, name, said in _failures(result, report):
            key = (status, location, name)
            if key in found or len(found) < _PLACES_MAX:
                found.setdefault(key, _Failures(status, location, said)).add(result)
    for item in found.values():
        more = f" and {item.tests - len(item.cases):,} more" if item.tests > len(item.cases) else ""
        cases = f"in {plural(item.count, 'case')}: {', '.join(item.cases)}{more}"
        notes = tuple(note for note in (cases, _where(item, report.columns)) if note)
        message, severity = one_line(item.said, _TEXT_WIDTH), _SEVERITIES[item.status]
        yield Problem(message, _location(item.location), notes=notes, severity=severity)


def _failures(result: CaseResult, report: RunReport) -> Iterator[tuple[Status, str, str, str]]:
    """Yield status, place, name and text of what did not pass; reasons differ, so names merge the cases of a place.

    What failed in a case that its test's threshold lets pass, or that has no verdict, is none.
    """
    if result.error is not None:
        kind = result.error.type
        yield Status.ERROR, report.run.config_path, kind, f"{kind}: {result.error.message}"
    if whole := whole_reason(result):
        yield Status.FAILED, report.run.config_path, whole, whole
    has_failed = result.status is Status.FAILED
    for item in result.assertions:
        if item.status not in _SEVERITIES or (
            item.status is Status.FAILED and not (has_failed and item.weight)
        ):
            continue
        name = assertion_name(item)
        text = f"{name} {failure_text(item)}".rstrip() + f": {_said(item)}"
        yield item.status, item.location or report.run.config_path, name, text


def _said(item: AssertionResult) -> str:
    if item.error is not None:
        return f"{item.error.type}: {item.error.message}"
    return item.reason or "did not pass"


def _where(item: _Failures, columns: Sequence[Column]) -> str:
    """Return the columns that have the trouble, where there are several."""
    if len(columns) < 2:  # noqa: PLR2004 - several
        return ""
    names = [title for index, title in whole_titles(columns).items() if index in item.columns]
    if len(names) == len(columns):
        return f"in all {len(columns):,} columns"
    more = f" and {len(names) - _COLUMNS_NAMED:,} more" if len(names) > _COLUMNS_NAMED else ""
    return f"in {len(names):,} of {len(columns):,} columns: {', '.join(names[:_COLUMNS_NAMED])}{more}"


def _location(text: str) -> Location:
    """Return a place as results store it; the first line where only a file is known."""
    match = _LOCATION.match(text)
    if match is None:
        return Location(text, 1, 1, length=0)
    return Location(match["file"], int(match["line"]), int(match["column"] or 1), length=0)
