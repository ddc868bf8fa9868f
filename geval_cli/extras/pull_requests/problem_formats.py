"""Problems in formats for editors, code hosts and scripts; `source.problems` writes them for people.

A `Problem` is an error in a config or a failure in a run, located at a line of the config. Each writer here formats a
list of them.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from msgspec import Struct, field

from geval_cli.cli.options import ProblemFormat
from geval_cli.errors import Location, Problem, Severity
from geval_cli.events import RunEvent
from geval_cli.numbers import plural
from geval_cli.records import (
    NO_ERRORS_NOTE,
    AssertionResult,
    CaseResult,
    Column,
    GateResult,
    RunStatus,
    Status,
)
from geval_cli.report.case_view import assertion_name, case_number, case_title, failure_text, whole_reason
from geval_cli.report.columns import leader_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.report.verdict import UNICODE_SIGNS, column_title, gate_value, run_outcome, whole_titles
from geval_cli.source.problems import render_problems, sort_problems
from geval_cli.version import __version__

ANNOTATIONS_MAX = 10
"""Maximum number of annotations per severity that GitHub shows for one step."""

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_TEXT_WIDTH = 2_000


class Rule(Struct, frozen=True):
    """A kind of problem as code hosts list it: `id` for programs, `title` and `meaning` for people."""

    id: str
    title: str
    meaning: str


class Origin(StrEnum):
    """The source of problems; each has its own rules for errors and warnings."""

    CONFIG = "config"
    RUN = "run"


_RULES: Mapping[tuple[Origin, Severity], Rule] = MappingProxyType(
    {
        (Origin.CONFIG, Severity.ERROR): Rule("config-error", "geval: config", "The config cannot be run."),
        (Origin.CONFIG, Severity.WARNING): Rule(
            "config-warning", "geval: config", "The config runs but may not do what you intend."
        ),
        (Origin.RUN, Severity.ERROR): Rule(
            "failed", "geval: failed", "An output was judged and failed, or a gate is not met."
        ),
        (Origin.RUN, Severity.WARNING): Rule(
            "not-judged",
            "geval: could not be judged",
            "An output could not be obtained or judged, or a gate could not be checked.",
        ),
    }
)


FILE_ENDINGS: Mapping[str, ProblemFormat] = MappingProxyType(
    {
        ".codequality.json": ProblemFormat.GITLAB,
        ".sarif": ProblemFormat.SARIF,
        ".json": ProblemFormat.JSON,
    }
)
"""The format of a file of problems, by the end of its name; the first match counts."""


def write_problems(
    problems: Iterable[Problem], form: ProblemFormat, *, origin: Origin, workspace: Path, summary: str = ""
) -> str:
    """Return problems as text in the given format, ending with a line break; empty if there is nothing to write.

    Args:
        problems: in any order; duplicates are removed.
        form: the format.
        origin: where the problems come from.
        workspace: the repository's folder; paths inside it are written relative to it.
        summary: one sentence about all problems, used if the format has a place for it.
    """
    if form is ProblemFormat.SARIF:
        items = [_LocatedProblem(item, origin, workspace) for item in sort_problems(problems)]
        rules = {item.rule.id: item.rule for item in items}
        driver = {
            "name": "geval",
            "version": __version__,
            "rules": [
                {"id": rule.id, "name": rule.title, "shortDescription": {"text": rule.meaning}}
                for rule in rules.values()
            ],
        }
        results = [
            {
                "ruleId": item.rule.id,
                "level": item.problem.severity.value,
                "message": {"text": item.text},
                "locations": [] if item.place is None else [_sarif_place(item.path, item.place)],
                "partialFingerprints": {"geval/v1": fingerprint},
            }
            for item, fingerprint in zip(items, _fingerprints(items), strict=True)
        ]
        run: dict[str, Any] = {"tool": {"driver": driver}}
        if summary:
            run["automationDetails"] = {"description": {"text": sanitize(summary)}}
        run |= {"columnKind": "unicodeCodePoints", "results": results}
        return _json({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})
    return _WRITERS[form]([_LocatedProblem(item, origin, workspace) for item in sort_problems(problems)])


class _LocatedProblem:
    """A problem with its rule, and its path relative to the repository."""

    def __init__(self, problem: Problem, origin: Origin, workspace: Path) -> None:
        self.problem = problem
        self.rule = _RULES[origin, problem.severity]
        self.place = problem.location
        if self.place is None:
            self.path = ""
        else:
            path, root = Path(self.place.file).resolve(), workspace.resolve()
            self.path = path.relative_to(root).as_posix() if path.is_relative_to(root) else self.place.file

    @property
    def text(self) -> str:
        """Return the message, hint and notes on a line each, sanitized for terminals and logs."""
        lines = (self.problem.message, self.problem.hint, *self.problem.notes)
        return "\n".join(sanitize(line)[:_TEXT_WIDTH] for line in lines if line)

    @property
    def head(self) -> str:
        """Return the message up to its first colon, which stays the same when the judge's reason varies."""
        return self.problem.message.partition(":")[0]


def _full(items: Sequence[_LocatedProblem]) -> str:
    return _ended(render_problems(item.problem for item in items))


def _concise(items: Sequence[_LocatedProblem]) -> str:
    return _ended("\n".join(map(_concise_line, items)))


def _concise_line(item: _LocatedProblem) -> str:
    where = "" if item.place is None else f"{item.path}:{item.place.line}:{item.place.column}: "
    hint = f" ({item.problem.hint})" if item.problem.hint else ""
    return sanitize(" ".join(f"{where}{item.problem.severity}: {item.problem.message}{hint}".split()))


def _github(items: Sequence[_LocatedProblem]) -> str:
    """Return workflow commands, one per line, at most `ANNOTATIONS_MAX` of each severity.

    GitHub shows no more, so the last one counts the rest.
    """
    return _ended("\n".join(_github_lines(items)))


def _github_lines(items: Sequence[_LocatedProblem]) -> Iterator[str]:
    for severity in Severity:
        of_kind = [item for item in items if item.problem.severity is severity]
        shown = of_kind if len(of_kind) <= ANNOTATIONS_MAX else of_kind[: ANNOTATIONS_MAX - 1]
        for item in shown:
            if item.place is None:
                github_place = {}
            else:
                github_place = {"file": item.path, "line": item.place.line, "col": item.place.column}
            properties = {**github_place, "title": item.rule.title}
            listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
            yield f"::{severity} {listed}::{_message(item.text)}"
        if len(of_kind) > len(shown):
            text = f"{plural(len(of_kind) - len(shown), 'more problem')} of this kind, see the log"
            yield f"::{severity} title={_property(of_kind[0].rule.title)}::{_message(text)}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _gitlab(items: Sequence[_LocatedProblem]) -> str:
    """Return a GitLab Code Quality report, which can only contain problems with a place in a file."""
    severities = {Severity.ERROR: "major", Severity.WARNING: "minor"}
    found = [
        {
            "description": item.text,
            "check_name": f"geval/{item.rule.id}",
            "fingerprint": fingerprint,
            "severity": severities[item.problem.severity],
            "location": {"path": item.path, "lines": {"begin": item.place.line}},
        }
        for item, fingerprint in zip(items, _fingerprints(items), strict=True)
        if item.place is not None
    ]
    return _json(found)


def _fingerprints(items: Sequence[_LocatedProblem]) -> Iterator[str]:
    """Yield identifiers that are stable from run to run.

    They do not depend on lines, which move, or on reasons, which vary.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    for item in items:
        key = (item.rule.id, item.path, "" if item.place is None else item.place.key_path, item.head)
        seen[key] += 1
        yield hashlib.sha256(json.dumps([*key, seen[key]]).encode()).hexdigest()


def _sarif_place(path: str, place: Location) -> dict[str, Any]:
    region = {"startLine": place.line, "startColumn": place.column}
    if place.length:
        region["endColumn"] = place.column + place.length
    address = Path(path).as_uri() if Path(path).is_absolute() else quote(path)
    return {"physicalLocation": {"artifactLocation": {"uri": address}, "region": region}}


def _plain_json(items: Sequence[_LocatedProblem]) -> str:
    found = [
        {
            "severity": item.problem.severity.value,
            "rule": item.rule.id,
            "message": item.problem.message,
            "hint": item.problem.hint,
            "notes": list(item.problem.notes),
            "file": item.path or None,
            "line": None if item.place is None else item.place.line,
            "column": None if item.place is None else item.place.column,
            "length": None if item.place is None else item.place.length,
            "key_path": None if item.place is None else item.place.key_path,
        }
        for item in items
    ]
    return _json({"schema_version": 1, "kind": "problems", "problems": found})


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _ended(text: str) -> str:
    return f"{text}\n" if text else ""


_WRITERS: Mapping[ProblemFormat, Callable[[Sequence[_LocatedProblem]], str]] = MappingProxyType(
    {
        ProblemFormat.FULL: _full,
        ProblemFormat.CONCISE: _concise,
        ProblemFormat.GITHUB: _github,
        ProblemFormat.GITLAB: _gitlab,
        ProblemFormat.JSON: _plain_json,
    }
)


_SENTENCE_WIDTH = 500
_CASES_NAMED = 5
_COLUMNS_NAMED = 5
_PLACES_MAX = 1_000  # limits memory if tests come from a file of a million lines
_LOCATION = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?\Z", re.DOTALL)
_SEVERITIES = {Status.FAILED: Severity.ERROR, Status.ERROR: Severity.WARNING}


class RunProblemsFile:
    """A results file with the problems of a run, written at the end from the whole report; events are ignored."""

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
    """Return whether a GitHub workflow reads our output."""
    return environ.get("GITHUB_ACTIONS") == "true"


def annotations(
    problems: Iterator[Problem] | Sequence[Problem], environ: Mapping[str, str], *, origin: Origin
) -> str:
    """Return problems as annotations on the lines of a pull request; "" outside a GitHub workflow."""
    if not wants_annotations(environ):
        return ""
    workspace = Path(environ.get("GITHUB_WORKSPACE") or ".")
    return write_problems(problems, ProblemFormat.GITHUB, origin=origin, workspace=workspace)


class _Failures(Struct):
    """The failures at one line of a config, over all cases."""

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
        if number == self._last:  # the same test in the next column; results are ordered by test
            return
        self._last = number
        self.tests += 1
        if len(self.cases) < _CASES_NAMED:
            self.cases.append(f"{number} {case_title(result, 60)}".rstrip())


def run_problems(report: RunReport) -> Iterator[Problem]:
    """Yield a problem for each failed or unjudged assertion and each error, over all cases, and for each unmet gate.

    A run that did not finish is a problem itself: the cases that it has may all have passed.
    Failures are errors; anything that could not be judged or checked is a warning. A problem is located at its line of
    the config if that is known. Its message has the score, threshold and reason of the first case only.
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
        message = one_line(item.said, _SENTENCE_WIDTH)
        severity = _SEVERITIES[item.status]
        yield Problem(message, _location(item.location), notes=notes, severity=severity)
    for gate in report.summary.gates:
        if (
            gate.status in _SEVERITIES and gate.note != NO_ERRORS_NOTE
        ):  # cases with errors are reported themselves
            what = "is not met" if gate.status is Status.FAILED else "could not be checked"
            message = one_line(f"the gate `{gate.gate}` {what}: {gate_found(gate)}", _SENTENCE_WIDTH)
            yield Problem(message, _location(report.run.config_path), severity=_SEVERITIES[gate.status])
    if message := unfinished(report):
        yield Problem(message, _location(report.run.config_path), severity=Severity.WARNING)


def unfinished(report: RunReport) -> str:
    """Return what to say of a run that did not finish, since its counts are of only some cases; "" if it did."""
    if report.run.status is RunStatus.COMPLETED:
        return ""
    word = run_outcome(report.run, report.summary)[0]
    total, planned = report.summary.total, report.planned
    cases = plural(total, "case") if planned is None else f"{total:,} of {plural(planned, 'case')}"
    return f"the run is {word} after {cases}"


def gate_found(gate: GateResult) -> str:
    """Return the value of a gate with its note, or only the note if there is no value."""
    if gate.actual is None:
        return gate.note
    return f"{gate_value(gate)} ({gate.note})" if gate.note else gate_value(gate)


def _failures(result: CaseResult, report: RunReport) -> Iterator[tuple[Status, str, str, str]]:
    """Yield the status, location, name and text of each part of a case that did not pass.

    Cases are merged by location and name, since reasons differ. A failed assertion does not count if the case did not
    fail, for example thanks to its test's threshold.
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
    """Return the affected columns; "" if the run has only one."""
    if len(columns) < 2:  # noqa: PLR2004 - several
        return ""
    names = [title for index, title in whole_titles(columns).items() if index in item.columns]
    if len(names) == len(columns):
        return f"in all {len(columns):,} columns"
    more = f" and {len(names) - _COLUMNS_NAMED:,} more" if len(names) > _COLUMNS_NAMED else ""
    return f"in {len(names):,} of {len(columns):,} columns: {', '.join(names[:_COLUMNS_NAMED])}{more}"


def _location(text: str) -> Location:
    """Return the location that results store as text; the first line if it names only a file."""
    match = _LOCATION.match(text)
    if match is None:
        return Location(text, 1, 1, length=0)
    return Location(match["file"], int(match["line"]), int(match["column"] or 1), length=0)


def run_sentence(report: RunReport) -> str:
    """Return one sentence about a run, for files that CI shows.

    For example: `failed: 3 errors, 24 of 100 failed; b is better than the baseline a: ...`.
    """
    summary = report.summary
    titles = [column_title(column, report.columns, UNICODE_SIGNS) for column in report.columns]
    word, count = ("failed", summary.failed) if summary.failed else ("passed", summary.passed)
    counts = [plural(summary.errored, "error")] if summary.errored else []
    counts.append(f"{count:,} of {summary.total:,} {word}")
    leader = leader_text(summary.columns, titles) if len(titles) > 1 else ""
    return "; ".join(
        part for part in (f"{run_outcome(report.run, summary)[0]}: {', '.join(counts)}", leader) if part
    )
