import json
from collections.abc import Iterator
from pathlib import Path

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, make_case, make_judged, make_report

from geval_cli.records import (
    NO_ERRORS_NOTE,
    CaseResult,
    Column,
    ErrorInfo,
    GateResult,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.report import write_results_file

SCHEMA = Path(__file__).parent / "junit.xsd"
"""What the schemas for Ant's and for Jenkins' reports both ask for: elements, their order, required attributes."""


COLUMN = Column(0, "p", "m")


def read(path: Path, *cases: CaseResult) -> junitparser.JUnitXml:
    file = path / "run.junit.xml"
    write_results_file(file, make_report(results=lambda: iter(cases)) if cases else make_report())
    etree.XMLSchema(file=str(SCHEMA)).assertValid(etree.parse(str(file)))
    return junitparser.JUnitXml.fromfile(str(file))


def cases_of(xml: junitparser.JUnitXml) -> Iterator[junitparser.TestCase]:
    for suite in xml:
        yield from suite


def test_a_suite_for_each_column_with_true_counts(tmp_path: Path) -> None:
    suites = list(read(tmp_path))

    assert [suite.name for suite in suites] == ["short × openai:gpt-4o", "friendly × openai:gpt-4o"]  # noqa: RUF001
    counts = [(suite.tests, suite.failures, suite.errors, suite.skipped) for suite in suites]
    assert counts == [(5, 1, 1, 1), (5, 0, 2, 1)]
    for suite, (tests, failures, errors, skipped) in zip(suites, counts, strict=True):
        kinds = [type(result).__name__ for case in suite for result in case.result]
        assert len(list(suite)) == tests
        assert (kinds.count("Failure"), kinds.count("Error"), kinds.count("Skipped")) == (
            failures,
            errors,
            skipped,
        )


def test_columns_with_equal_names_are_told_apart_in_every_file(tmp_path: Path) -> None:
    columns = (Column(0, "p", "m"), Column(1, "p", "m"), Column(2, "q", "m"))
    failed = (make_judged(Status.FAILED, 0.1, reason="no"),)
    cases = [make_case(0, column, Status.FAILED, assertions=failed) for column in columns[1:]]
    report = make_report(columns, results=lambda: iter(cases), summary=RunSummary(total=2, failed=2))
    names = ["p × m [1]", "p × m [2]", "q × m"]  # noqa: RUF001
    for ending in ("junit.xml", "md", "sarif"):
        write_results_file(tmp_path / f"r.{ending}", report)
    suites = list(junitparser.JUnitXml.fromfile(str(tmp_path / "r.junit.xml")))
    assert [suite.name for suite in suites] == names
    assert [case.classname for suite in suites for case in suite] == names[1:]
    page = (tmp_path / "r.md").read_text("utf-8")
    assert [name for name in names if f"| `{name}` |" in page] == names
    assert all(f"` `{name}`\n" in page for name in names[1:])
    [problem] = json.loads((tmp_path / "r.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert f"in 2 of 3 columns: {', '.join(names[1:])}" in problem["message"]["text"]


def test_a_failure_says_the_judges_reason(tmp_path: Path) -> None:
    failure = list(cases_of(read(tmp_path)))[1].result[0]

    assert isinstance(failure, junitparser.Failure)
    assert failure.type == "contains"
    assert failure.message == 'contains: the output does not contain "28 days"'
    assert "contains, weight 2 at examples/configs/vacation.yaml:24:9" in failure.text
    assert "g-eval consistency 0.49996 < 0.50 at " in failure.text
    assert "The answer claims forty days" in failure.text
    assert "You get 40 days." in failure.text


def test_an_error_says_what_broke_and_what_to_do(tmp_path: Path) -> None:
    error = list(cases_of(read(tmp_path)))[3].result[0]

    assert isinstance(error, junitparser.Error)
    assert (error.type, error.message) == ("ProviderAuthError", "the server refused the API key (401)")
    assert "check OPENAI_API_KEY" in error.text


def test_a_case_that_missed_only_its_threshold(tmp_path: Path) -> None:
    xml = read(tmp_path, make_case(status=Status.FAILED, score=0.4))

    assert next(cases_of(xml)).result[0].message == "the weighted score is below the test's threshold"


def test_what_decided_the_case_comes_first(tmp_path: Path) -> None:
    broken = make_judged(Status.ERROR, None, error=ErrorInfo("JudgeParseError", "no rating"))
    failed = make_judged(Status.FAILED, 0.1, reason="wrong")
    xml = read(tmp_path, make_case(status=Status.FAILED, assertions=(broken, failed)))

    assert next(cases_of(xml)).result[0].message == "g-eval consistency 0.10 < 0.50: wrong"


def test_time_is_in_seconds(tmp_path: Path) -> None:
    xml = read(tmp_path, make_case(latency_ms=1_234.4), make_case(1, latency_ms=1))

    assert [case.time for case in cases_of(xml)] == [1.234, 0.001]
    assert next(iter(xml)).time == 1.235


@pytest.mark.parametrize(
    "text", ["]]>", "</failure>", "a\x00b\x1f", "\ud800", "\ufffe", "🙂", '"&<>', "", "x" * 100_000]
)
def test_any_text_gives_a_file_that_can_be_read(tmp_path: Path, text: str) -> None:
    judged = make_judged(Status.FAILED, 0.1, reason=text, metric=text or None)
    xml = read(tmp_path, make_case(status=Status.FAILED, output=text, description=text, assertions=(judged,)))

    assert len(list(cases_of(xml))) == 1


@given(st.text())
def test_any_output_gives_a_file_that_can_be_read(tmp_path_factory, text: str) -> None:  # type: ignore[no-untyped-def]
    judged = make_judged(Status.FAILED, 0.1, reason=text)
    case = make_case(status=Status.FAILED, output=text, description=text, assertions=(judged,))

    assert len(list(cases_of(read(tmp_path_factory.mktemp("junit"), case)))) == 1


def test_derived_metrics_of_a_column_are_properties_of_its_suite(tmp_path: Path) -> None:
    summary = replace(
        make_report().summary,
        derived={"f<1>": 0.5, "none": None, "whole": 2.0},
        derived_by_column={"f<1>": (0.25, 0.75), "none": (None, None)},
    )
    file = tmp_path / "run.junit.xml"
    write_results_file(file, replace(make_report(), summary=summary))
    tree = etree.parse(str(file))
    etree.XMLSchema(file=str(SCHEMA)).assertValid(tree)
    found = [
        {
            item.get("name"): item.get("value")
            for item in suite.iter("property")
            if "derived" in item.get("name")
        }
        for suite in tree.iter("testsuite")
    ]
    assert found == [
        {"geval.derived.f<1>": "0.25", "geval.derived.whole": "2.00"},
        {"geval.derived.f<1>": "0.75", "geval.derived.whole": "2.00"},
    ]


GATES = (
    GateResult("tone.mean >= 0.9", Status.FAILED, 0.75, "n=8"),
    GateResult("cost <= 1", Status.PASSED, 0.5),
    GateResult("latency.p95 <= 5", Status.ERROR, None, "no answer was timed"),
    GateResult("pass_rate >= 0.8", Status.NOT_EVALUATED, None, "undecided"),
    GateResult("errors <= 0", Status.ERROR, 2.0, NO_ERRORS_NOTE),
)


def test_gates_are_cases_of_a_suite_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "run.junit.xml"
    write_results_file(file, make_report(summary=replace(SUMMARY, gates=GATES)))
    etree.XMLSchema(file=str(SCHEMA)).assertValid(etree.parse(str(file)))
    *_, suite = junitparser.JUnitXml.fromfile(str(file))
    counts = (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped)
    assert counts == ("gates", 4, 1, 1, 1)
    told = {case.name: [(type(item).__name__, item.message) for item in case.result] for case in suite}
    assert told == {
        "tone.mean >= 0.9": [("Failure", "0.75 (n=8)")],
        "cost <= 1": [],
        "latency.p95 <= 5": [("Error", "no answer was timed")],
        "pass_rate >= 0.8": [("Skipped", None)],
    }


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("gates", [(), (GateResult("pass_rate >= 0.5", Status.PASSED, 1.0),)])
@pytest.mark.parametrize(
    ("planned", "said"), [(None, "1 case"), (1, "1 of 1 case"), (1200, "1 of 1,200 cases")]
)
def test_a_run_that_did_not_finish_is_an_error_in_every_file_that_ci_reads(
    tmp_path: Path, status: RunStatus, gates: tuple[GateResult, ...], planned: int | None, said: str
) -> None:
    case = make_case(0, COLUMN, Status.PASSED)
    summary = RunSummary(total=1, passed=1, gates=gates)
    run = replace(RUN, status=status)
    report = make_report((COLUMN,), results=lambda: iter([case]), summary=summary, run=run, planned=planned)
    for name in ("r.junit.xml", "r.sarif", "r.codequality.json"):
        write_results_file(tmp_path / name, report)

    etree.XMLSchema(file=str(SCHEMA)).assertValid(etree.parse(str(tmp_path / "r.junit.xml")))
    found = [
        item
        for case in cases_of(junitparser.JUnitXml.fromfile(str(tmp_path / "r.junit.xml")))
        for item in case.result
    ]
    messages = [item.message for item in found if isinstance(item, junitparser.Error)]
    expected = []
    if status is not RunStatus.COMPLETED:
        word = "unfinished" if status is RunStatus.RUNNING else status.value
        expected = [f"the run is {word} after {said}"]
    assert messages == expected
    (log,) = json.loads((tmp_path / "r.sarif").read_text())["runs"]
    assert [item["message"]["text"] for item in log["results"]] == expected
    assert [
        item["description"] for item in json.loads((tmp_path / "r.codequality.json").read_text())
    ] == expected
