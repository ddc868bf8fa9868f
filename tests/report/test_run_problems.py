import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.sample_run import SUMMARY, make_case, make_judged, make_report

from geval_cli.errors import Severity
from geval_cli.extras.pull_requests.problem_formats import (
    ANNOTATIONS_MAX,
    Origin,
    annotations,
    run_problems,
    run_sentence,
)
from geval_cli.records import NO_ERRORS_NOTE, CaseResult, Column, ErrorInfo, GateResult, Status
from geval_cli.report.report import write_results_file

WORKSPACE = Path.cwd()


def lines_of(
    *cases: CaseResult, workspace: Path = WORKSPACE, columns: tuple[Column, ...] | None = None
) -> list[str]:
    changes = {"results": lambda: iter(cases)} if cases else {}
    report = make_report(**changes) if columns is None else make_report(columns, **changes)
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(workspace)}
    return annotations(run_problems(report), environ, origin=Origin.RUN).splitlines()


def test_failures_are_errors_and_what_was_not_judged_is_a_warning() -> None:
    lines = lines_of()

    assert [line.split(",title")[0] for line in lines] == [
        "::error file=examples/configs/vacation.yaml,line=18,col=9",
        "::error file=examples/configs/vacation.yaml,line=24,col=9",
        "::warning file=examples/configs/vacation.yaml,line=1,col=1",
        "::warning file=examples/configs/vacation.yaml,line=18,col=9",
    ]
    where = "%0Ain 1 of 2 columns: short × openai:gpt-4o"  # noqa: RUF001
    assert lines[0].endswith(f"%0Ain 1 case: #2 states the number of days without inventing a rule{where}")


def test_a_test_is_named_once_and_its_columns_beside_it() -> None:
    columns = tuple(Column(index, "p%", f"m:{index}") for index in range(9))
    judged = (make_judged(Status.FAILED, 0.1, reason="no"),)

    def line_of(tests: int, failing: int) -> str:
        cases = [
            make_case(test, column, Status.FAILED, description="t", assertions=judged)
            for test in range(tests)
            for column in columns[:failing]
        ]
        (line,) = lines_of(*cases, columns=columns)
        return line

    named = ", ".join(f"p%25 × m:{index}" for index in range(5))  # noqa: RUF001
    assert line_of(2, 7).endswith(f"in 14 cases: #1 t, #2 t%0Ain 7 of 9 columns: {named} and 2 more")
    assert line_of(1, 9).endswith("in 9 cases: #1 t%0Ain all 9 columns")


def test_one_annotation_for_a_line_that_many_tests_fail_on() -> None:
    cases = [
        make_case(
            number,
            status=Status.FAILED,
            vars={"v": number},
            assertions=(make_judged(Status.FAILED, 0.1, reason=f"r{number}"),),
        )
        for number in range(9)
    ]

    (line,) = lines_of(*cases)

    assert (
        "g-eval consistency 0.10 < 0.50: r0%0Ain 9 cases: #1 v=0, #2 v=1, #3 v=2, #4 v=3, #5 v=4 and 4 more"
        in line
    )


def test_as_many_as_github_shows_and_a_last_one_that_counts_the_rest() -> None:
    cases = [
        make_case(
            number,
            status=Status.FAILED,
            assertions=(make_judged(Status.FAILED, 0.1, location=f"a.yaml:{number + 1}:1"),),
        )
        for number in range(25)
    ]

    lines = lines_of(*cases)

    assert len(lines) == ANNOTATIONS_MAX
    assert lines[-1] == "::error title=geval%3A failed::16 more problems of this kind, see the log"


@pytest.mark.parametrize("text", ["a\n::error::b", "100%\r\n", "::set-output name=x::y"])
def test_no_text_of_a_model_becomes_a_command(text: str) -> None:
    judged = make_judged(Status.FAILED, 0.1, reason=text, location="a,b:c.yaml:3:1")
    (line,) = lines_of(make_case(status=Status.FAILED, description=text, assertions=(judged,)))

    assert line.count("\n") == 0
    assert line.startswith(
        "::error file=a%2Cb%3Ac.yaml,line=3,col=1,title=geval%3A failed::g-eval consistency 0.10 < 0.50: "
    )


def test_paths_are_relative_to_the_workspace(tmp_path: Path) -> None:
    judged = make_judged(Status.FAILED, 0.1, location=f"{tmp_path}/evals/a.yaml:3:1")
    (line,) = lines_of(make_case(status=Status.FAILED, assertions=(judged,)), workspace=tmp_path)

    assert "file=evals/a.yaml," in line


def test_errors_of_different_kinds_stay_apart() -> None:
    cases = [
        make_case(number, status=Status.ERROR, error=ErrorInfo(kind, "no answer"))
        for number, kind in enumerate(["ProviderAuthError", "ProviderTimeoutError", "ProviderAuthError"])
    ]

    assert [line.split("::")[2].split(":")[0] for line in lines_of(*cases)] == [
        "ProviderAuthError",
        "ProviderTimeoutError",
    ]


def test_only_in_a_workflow() -> None:
    assert annotations(run_problems(make_report()), {"CI": "true"}, origin=Origin.RUN) == ""


def test_files_that_ci_shows_begin_with_the_same_sentence(tmp_path: Path) -> None:
    report = make_report()
    said = run_sentence(report)
    assert said.startswith("failed: 2 errors, 1 of 10 failed")
    for name in ("run.sarif", "run.junit.xml"):
        write_results_file(tmp_path / name, report)
    sarif = json.loads((tmp_path / "run.sarif").read_text(encoding="utf-8"))
    assert sarif["runs"][0]["automationDetails"]["description"]["text"] == said
    root = ElementTree.parse(tmp_path / "run.junit.xml").getroot()
    assert {element.text for element in root.iter("system-out")} == {said}


def test_gates_that_are_not_met_are_problems_of_the_config() -> None:
    gates = (
        GateResult("tone.mean >= 0.9", Status.FAILED, 0.75, "n=8"),
        GateResult("cost <= 1", Status.PASSED, 0.5),
        GateResult("latency.p95 <= 5", Status.ERROR, None, "no answer was timed"),
        GateResult("errors <= 0", Status.ERROR, 2.0, NO_ERRORS_NOTE),
    )
    report = make_report(results=lambda: iter(()), summary=replace(SUMMARY, gates=gates))
    assert [(item.severity, str(item.location), item.message) for item in run_problems(report)] == [
        (
            Severity.ERROR,
            "examples/configs/vacation.yaml:1:1",
            "the gate `tone.mean >= 0.9` is not met: 0.75 (n=8)",
        ),
        (
            Severity.WARNING,
            "examples/configs/vacation.yaml:1:1",
            "the gate `latency.p95 <= 5` could not be checked: no answer was timed",
        ),
    ]
