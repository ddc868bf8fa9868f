import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_run import make_case, make_report, results_of

from geval_cli.records import AssertionResult, CaseResult, Status
from geval_cli.report.report import write_results_file


def rows_of(path: Path, *cases: CaseResult) -> list[dict[str, str]]:
    write_results_file(path / "run.csv", make_report(results=lambda: iter(cases)) if cases else make_report())
    with (path / "run.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_case_in_the_order_of_the_tests(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)

    assert [(row["test"], row["prompt"], row["status"]) for row in rows] == [
        (str(result.test_index + 1), result.prompt.label, result.status) for result in results_of()
    ]


def test_cells_of_a_failed_case(tmp_path: Path) -> None:
    row = rows_of(tmp_path)[2]

    assert row["score"] == "0.3749"
    assert row["reasons"].splitlines()[1] == 'contains: the output does not contain "28 days"'
    assert row["output"].startswith("You get 40 days.\nAnd")
    assert (row["var question"], row["var country"]) == ("How many days?", "DE")


def test_an_answer_on_the_path_to_a_pass_is_no_reason(tmp_path: Path) -> None:
    no = AssertionResult("model-graded-closedqa", None, Status.FAILED, 0.0, reason="not so")
    tree = AssertionResult("decision-tree", None, Status.PASSED, 1.0, reason="path", assertions=(no,))

    [row] = rows_of(tmp_path, make_case(0, assertions=(tree,)))

    assert row["reasons"] == ""


def test_columns_for_every_metric_variable_and_piece_of_metadata(tmp_path: Path) -> None:
    cases = (
        make_case(0, vars={"a": 1}, named_scores={"tone": 0.5}),
        make_case(1, vars={"b": {"x": "é"}}, metadata={"area": "billing"}),
    )

    first, second = rows_of(tmp_path, *cases)

    assert (first["score tone"], first["var a"], first["var b"], first["metadata area"]) == (
        "0.5",
        "1",
        "",
        "",
    )
    assert (second["score tone"], second["var b"], second["metadata area"]) == ("", '{"x": "é"}', "billing")


def test_an_unknown_score_is_empty_and_never_0(tmp_path: Path) -> None:
    assert [row["score"] for row in rows_of(tmp_path)[-4:]] == ["", "", "", ""]


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"])  # noqa: RUF001
def test_no_cell_is_a_formula(tmp_path: Path, text: str) -> None:
    row = rows_of(tmp_path, make_case(output=text, description=text, vars={"v": text}))[0]

    harmless = "'" + text.replace("\r=", "\r'=").replace("\n=", "\n'=")
    assert {row["output"], row["description"], row["var v"]} == {harmless}


def test_no_line_within_a_cell_is_a_formula_either(tmp_path: Path) -> None:
    text = "sums:\n=1+1\r\n@SUM(A1)\r+cmd|x\n-2+3\n- an entry\n+ another\n  =kept"
    row = rows_of(tmp_path, make_case(output=text))[0]

    assert row["output"] == "sums:\n'=1+1\r\n'@SUM(A1)\r'+cmd|x\n'-2+3\n- an entry\n+ another\n  =kept"


def test_every_text_is_in_quotes_so_that_no_program_guesses_another_separator(tmp_path: Path) -> None:
    write_results_file(tmp_path / "run.csv", make_report(results=lambda: iter([make_case(output="a;b")])))
    header, row = (tmp_path / "run.csv").read_text(encoding="utf-8-sig").splitlines()

    assert header.startswith('"test","repeat","description"')
    assert ',"a;b",' in row
    assert row.startswith("1,1,,")


def test_negative_numbers_stay_numbers(tmp_path: Path) -> None:
    row = rows_of(tmp_path, make_case(output="-3.5", vars={"v": -2}))[0]

    assert (row["output"], row["var v"]) == ("-3.5", "-2")


@given(st.text())
def test_any_output_comes_back_as_it_was(tmp_path_factory, text: str) -> None:  # type: ignore[no-untyped-def]
    row = rows_of(tmp_path_factory.mktemp("csv"), make_case(output=text))[0]

    wanted = text.replace("\0", "\ufffd").removeprefix("'")
    assert re.sub("([\r\n])'", r"\1", row["output"].removeprefix("'")) == re.sub("([\r\n])'", r"\1", wanted)


def test_a_run_without_results_has_a_header(tmp_path: Path) -> None:
    write_results_file(tmp_path / "run.csv", make_report(results=lambda: iter(())))

    text = (tmp_path / "run.csv").read_bytes()
    assert text.startswith(b'\xef\xbb\xbf"test","repeat",')
    assert text.count(b"\n") == 1
