"""`-o results.junit.xml`: a file for build servers, with a suite per prompt x provider and a test case per case."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from geval_cli.events import RunEvent
from geval_cli.extras.pull_requests.problem_formats import gate_found, run_sentence, unfinished
from geval_cli.numbers import format_score
from geval_cli.records import NO_ERRORS_NOTE, AssertionResult, CaseResult, RunRecord, Status
from geval_cli.report.case_view import (
    AssertionView,
    CaseView,
    JudgeVerdict,
    assertion_name,
    case_number,
    case_title,
    failure_text,
    output_text,
    whole_reason,
)
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import clipped_lines, one_line, sanitized_lines
from geval_cli.report.verdict import whole_titles

_DERIVED_MAX = 60
_NAME_WIDTH = 200
_MESSAGE_WIDTH = 300
_TEXT_LINES, _TEXT_CHARACTERS = 40, 8_000
_GATES, _RUN = "gates", "run"
_GATE_ELEMENTS = {Status.FAILED: "failure", Status.ERROR: "error", Status.NOT_EVALUATED: "skipped"}
# Everything outside the ranges of XML 1.0, section 2.2.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JunitFile:
    """A results file in JUnit format, written at the end from the whole report; events are ignored.

    A failed case is a `failure` with the reasons as its text, one that could not be judged is an `error`, and one with
    nothing to judge is `skipped`. Gates are cases in a suite of their own; without it, a run that fails only because of
    its gates would look like a passed one, as would one that stopped early without an error in a suite `run`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        counts: Counter[tuple[int, Status]] = Counter()
        times: Counter[int] = Counter()
        for result in report.results():
            counts[result.column, result.status] += 1
            times[result.column] += round(result.latency_ms or 0.0)
        with SafeFile(self._path) as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n')
            said = _text(run_sentence(report))
            titles = whole_titles(report.columns)
            for column in report.columns:
                title, time_ms = titles[column.index], times[column.index]
                statuses = {status: counts[column.index, status] for status in Status}
                # The derived metrics of a column, as properties of its suite; those that cannot be computed are
                # left out.
                summary = report.summary
                found: dict[str, str] = {}
                for name, of_all in list(summary.derived.items())[:_DERIVED_MAX]:
                    of_columns = summary.derived_by_column.get(name, ())
                    value = of_columns[column.index] if column.index < len(of_columns) else of_all
                    if value is not None:
                        found[f"geval.derived.{one_line(name, _NAME_WIDTH)}"] = format_score(value)
                derived = found
                file.write(_suite_start(title, column.index, report.run, statuses, time_ms, derived))
                for result in report.results():  # read again for each column instead of being kept in memory
                    if result.column == column.index:
                        file.write(_case(result, title))
                file.write(f"<system-out>{said}</system-out>\n<system-err/>\n</testsuite>\n")
            file.write(_gates(report, said))
            file.write(_early_end(report, said))
            file.write("</testsuites>\n")


def _suite_start(
    title: str,
    index: int,
    run: RunRecord,
    counts: Mapping[Status, int],
    time_ms: int,
    derived: dict[str, str],
) -> str:
    attributes = {
        "id": str(index),
        "name": title,
        "package": "geval",
        "timestamp": run.started_at[:19],
        "hostname": "localhost",
        "tests": str(sum(counts.values())),
        "failures": str(counts[Status.FAILED]),
        "errors": str(counts[Status.ERROR]),
        "skipped": str(counts[Status.NOT_EVALUATED]),
        "time": _seconds(time_ms),
    }
    properties = {"geval.run": run.id, "geval.config": run.config_path, "geval.version": run.tool_version}
    if run.title is not None:
        properties["geval.title"] = one_line(run.title, _NAME_WIDTH)
    listed = "".join(
        _element("property", {"name": name, "value": value})
        for name, value in {**properties, **derived}.items()
    )
    return f"<testsuite{_attributes(attributes)}>\n<properties>\n{listed}</properties>\n"


def _gates(report: RunReport, said: str) -> str:
    """Return the suite of the run's gates; "" if it has none.

    The gate on errors is left out, since the errors are shown as cases.
    """
    gates = [gate for gate in report.summary.gates if gate.note != NO_ERRORS_NOTE]
    if not gates:
        return ""
    statuses = Counter(gate.status for gate in gates)
    inner = ""
    for gate in gates:
        attributes = {"name": one_line(gate.gate, _NAME_WIDTH), "classname": _GATES, "time": _seconds(0)}
        message = one_line(gate_found(gate), _MESSAGE_WIDTH)
        if gate.status is Status.PASSED:
            inner += _element("testcase", attributes)
            continue
        kind = _GATE_ELEMENTS[gate.status]
        told = {} if kind == "skipped" else {"message": message, "type": "gate"}
        inner += f"<testcase{_attributes(attributes)}>\n{_element(kind, told)}</testcase>\n"
    start = _suite_start(_GATES, len(report.columns), report.run, statuses, 0, {})
    return f"{start}{inner}<system-out>{said}</system-out>\n<system-err/>\n</testsuite>\n"


def _early_end(report: RunReport, said: str) -> str:
    """Return a suite with an error for a run that did not finish; "" for one that did."""
    message = unfinished(report)
    if not message:
        return ""
    attributes = {"name": "finished", "classname": _RUN, "time": _seconds(0)}
    error = _element("error", {"message": message, "type": report.run.status.value})
    start = _suite_start(_RUN, len(report.columns) + 1, report.run, Counter({Status.ERROR: 1}), 0, {})
    case = f"<testcase{_attributes(attributes)}>\n{error}</testcase>\n"
    return f"{start}{case}<system-out>{said}</system-out>\n<system-err/>\n</testsuite>\n"


def _case(result: CaseResult, title: str) -> str:
    attributes = {
        "name": f"{case_number(result)} {case_title(result, _NAME_WIDTH)}".strip(),
        "classname": title,
        "time": _seconds(result.latency_ms or 0.0),
    }
    inner = _outcome(result)
    if not inner:
        return _element("testcase", attributes)
    return f"<testcase{_attributes(attributes)}>\n{inner}</testcase>\n"


def _outcome(result: CaseResult) -> str:
    match result.status:
        case Status.NOT_EVALUATED:
            reason = next((item.reason for item in result.assertions if item.reason), "")
            return _element("skipped", {"message": one_line(reason, _MESSAGE_WIDTH)} if reason else {})
        case Status.PASSED:
            return ""
    kind = "failure" if result.status is Status.FAILED else "error"
    view = CaseView(result)
    is_whole = bool(whole_reason(result))  # then assertions that only measure did not fail the case
    told = () if is_whole else view.problems
    first = next((shown for shown in told if shown.assertion.status is result.status), None)
    if result.error is not None:
        message = one_line(result.error.message, _MESSAGE_WIDTH)
    elif first is None:
        message = whole_reason(result) or f"the case is marked as {result.status.value}"
    else:
        message = one_line(
            f"{_named(first.assertion)}: {first.said or first.assertion.status}", _MESSAGE_WIDTH
        )
    attributes = {"message": message, "type": _type(result, first)}
    text = "\n".join(_details(view))
    return f"<{kind}{_attributes(attributes)}>{_text(text)}</{kind}>\n"


def _type(result: CaseResult, first: AssertionView | None) -> str:
    if result.error is not None:
        return result.error.type
    if first is None:
        return "threshold"
    item = first.assertion
    return item.error.type if item.error is not None else item.type


def _named(item: AssertionResult) -> str:
    return f"{assertion_name(item)} {failure_text(item)}".rstrip()


def _details(view: CaseView) -> Iterator[str]:
    result = view.result
    if result.error is not None:
        yield from _clipped(f"{result.error.message}\n{result.error.hint}")
    if whole := whole_reason(result):
        yield whole
    for shown in view.problems:
        item = shown.assertion
        place = f" at {item.location}" if item.location else ""
        yield from sanitized_lines(", ".join([_named(item), *shown.remarks]) + place)
        yield from _clipped(shown.said or item.status.value)
        yield from (
            f"{'met' if part.is_met else 'missed'}: {part.line}" for part in JudgeVerdict(item.detail).items
        )
    if result.output is not None or result.turns:
        yield "conversation:" if result.turns else "output:"
        yield from _clipped(output_text(result)) or ["(empty)"]
    yield from view.ends
    for name, text in view.test_texts.items():
        yield f"{name}:"
        yield from _clipped(text)


def _clipped(text: str) -> list[str]:
    return clipped_lines(text, line_count=_TEXT_LINES, character_count=_TEXT_CHARACTERS)


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.3f}"


def _element(name: str, attributes: dict[str, str]) -> str:
    return f"<{name}{_attributes(attributes)}/>\n"


def _attributes(attributes: dict[str, str]) -> str:
    return "".join(f" {name}={quoteattr(_valid(value))}" for name, value in attributes.items())


def _text(text: str) -> str:
    return escape(_valid(text))


def _valid(text: str) -> str:
    """Return `text` with characters that XML 1.0 does not allow replaced by U+FFFD.

    These are control characters, lone surrogates and two noncharacters.
    """
    return _NOT_XML.sub("\ufffd", text)
