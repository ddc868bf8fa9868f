import io

import pytest
from msgspec.structs import replace
from support.sample_run import COLUMNS, console_of, make_case, make_judged, make_report

from geval_cli.extras.evidence import print_table
from geval_cli.records import CaseResult, Column, RecordedTest, Status
from geval_cli.report.case_view import case_title
from geval_cli.report.report import RunReport
from geval_cli.report.terminal import TableRows

MANY = tuple(Column(number, f"p{number}", "echo") for number in range(9))


def printed(report: RunReport, width: int = 100) -> str:
    stream = io.StringIO()
    rows = TableRows()
    for result in report.results():
        rows.add(result)
    print_table(rows, report, console_of(stream, width))
    return stream.getvalue()


def report_of(*cases: CaseResult, columns: tuple[Column, ...] = COLUMNS[:1]) -> RunReport:
    return make_report(columns, results=lambda: iter(cases))


def test_nothing_is_printed_for_a_run_without_results() -> None:
    assert printed(report_of()) == ""


def test_fifty_rows_are_shown_whole() -> None:
    text = printed(report_of(*(make_case(test) for test in range(50))))

    assert text.count("PASS") == 50
    assert "everything" not in text


def test_of_more_rows_only_those_with_a_failure_or_error_are_shown() -> None:
    failed = {7: Status.FAILED, 33: Status.ERROR}
    text = printed(
        report_of(*(make_case(test, status=failed.get(test, Status.PASSED)) for test in range(51)))
    )

    assert (text.count("PASS"), text.count("FAIL"), text.count("ERROR")) == (0, 1, 1)
    assert "shown of 51 rows: the 2 with a failure or an error" in text
    assert "everything: geval show 20261121-214544-k3f9 --all" in text


def test_at_most_fifty_of_many_failures_are_shown() -> None:
    text = printed(report_of(*(make_case(test, status=Status.FAILED) for test in range(2_000))))

    assert text.count("FAIL") == 50
    assert "shown of 2,000 rows: the first 50 of 2,000 with a failure or an error" in text


def test_a_long_run_without_failures_has_no_table() -> None:
    text = printed(report_of(*(make_case(test) for test in range(60))))

    assert "none of 60 rows has a failure or an error, so none is shown" in text
    assert "PASS" not in text


def test_repeats_have_rows_of_their_own() -> None:
    text = printed(report_of(make_case(0), make_case(0, repeat_index=1)))

    assert [line.split()[0] for line in text.split("\n") if "PASS" in line] == ["1", "1.2"]
    assert "#3.2 is the second repeat of test 3" in text


def test_a_missing_cell_stays_empty() -> None:
    second = make_case(0, COLUMNS[1], score=0.25)
    text = printed(report_of(second, columns=COLUMNS))
    row = next(line for line in text.split("\n") if "PASS" in line)

    assert row.index("PASS") > row.index("1") + 50


def test_a_fallback_is_marked_and_explained() -> None:
    judged = make_judged(Status.PASSED, 0.9, detail={"fallback": "no token probabilities"})
    outer = replace(make_judged(Status.PASSED, 0.9), type="assert-set", assertions=(judged,))
    text = printed(report_of(make_case(assertions=(outer,))))

    assert "PASS 0.88 ~" in text
    assert "~ scored by a fallback method" in text


def test_a_score_that_just_missed_its_threshold_does_not_look_equal_to_it() -> None:
    judged = make_judged(Status.FAILED, 0.49999)
    text = printed(report_of(make_case(status=Status.FAILED, score=0.49999, assertions=(judged,))))

    assert "FAIL consistency 0.49999" in text


def test_a_test_that_passes_by_its_own_threshold_names_no_metric_that_failed() -> None:
    judged = make_judged(Status.FAILED, 0.4)
    cells = [
        make_case(0, score=0.4, assertions=(judged,)),
        make_case(1, status=Status.FAILED, assertions=(judged,)),
    ]
    lines = [line for line in printed(report_of(*cells)).split("\n") if "PASS" in line or "FAIL" in line]

    assert ["consistency" in line for line in lines] == [False, True]


def test_columns_are_named_by_what_tells_them_apart() -> None:
    by_provider = (Column(0, "p", "openai:a"), Column(1, "p", "openai:b"))
    cases = [make_case(0, column) for column in by_provider]
    heading = printed(report_of(*cases, columns=by_provider)).split("\n")[0]

    assert heading.split() == ["#", "test", "openai:a", "openai:b"]


def test_the_prompt_stands_for_a_test_without_description_and_vars() -> None:
    assert "How much vacation" in printed(report_of(make_case(vars={})))


def test_a_huge_output_costs_one_glance() -> None:
    text = printed(report_of(make_case(output="wort" * 1_000_000)))

    assert len(text) < 1_000


def test_wide_characters_keep_the_columns_in_line() -> None:
    text = printed(
        report_of(make_case(0, COLUMNS[0], output="漢字" * 30), make_case(0, COLUMNS[1]), columns=COLUMNS), 80
    )
    lines = text.split("\n")
    plain = next(line for line in lines if "PASS" in line)
    wide = next(line for line in lines if "漢" in line)
    shift = sum(1 for character in wide[: wide.index("You")] if character in "漢字")

    assert wide.index("You") + shift == plain.index("✓", plain.index("✓") + 1)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("parts", "cell"),
    [
        ([("helpful", 0.75, 0.8), ("polite", 1.0, None)], "✗ FAIL helpful 0.75"),
        ([("contains", 0.0, None)], "✗ FAIL contains"),
        ([("helpful", 0.75, 0.8), ("contains", 0.0, None)], "✗ FAIL contains +1"),
        ([], "✗ FAIL 0.88"),
    ],
)
def test_a_figure_of_a_failed_cell_is_that_of_the_assertion_it_names(
    width: int, parts: list[tuple[str, float, float | None]], cell: str
) -> None:
    items = tuple(
        make_judged(Status.PASSED if score == 1 else Status.FAILED, score, metric=name, threshold=threshold)
        for name, score, threshold in parts
    )
    case = make_case(0, status=Status.FAILED, score=0.875, assertions=items)
    shown = [
        printed(report_of(case), width),
        printed(report_of(*(replace(case, column=n) for n in range(9)), columns=MANY), width),
    ]
    assert all(cell in text for text in shown)
    assert all(("0.88" in text) is (not parts) for text in shown)


@pytest.mark.parametrize(
    ("variables", "title"),
    [
        ({"q": "refund after 30 days"}, "refund after 30 days"),
        ({"q": "refunds"}, "refunds"),
        ({"n": 3}, "n=3"),
        ({"n": "3"}, "n=3"),
        ({"question": "How many days?", "country": "DE"}, "How many days?, country=DE"),
        ({"question": "我的咖啡机漏水了怎么办呢谢谢你", "n": 2}, "我的咖啡机漏水了怎么办呢谢谢你, n=2"),
        ({"a": "", "b": "x"}, "a=, b=x"),
    ],
)
def test_a_test_is_named_by_its_values_where_they_speak_for_themselves(
    variables: dict[str, object], title: str
) -> None:
    assert case_title(make_case(vars=variables), 80) == title


def test_a_test_without_variables_is_named_by_its_input_before_the_prompt_that_all_tests_share() -> None:
    assert case_title(replace(make_case(vars={}), test=RecordedTest(0, "How long?")), 80) == "How long?"
    assert case_title(make_case(vars={}), 80) == "How much vacation do I have?"
