"""A verdict's words never contradict it: where the score alone did not decide, they say what did."""

import io
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from support.sample_run import COLUMNS, RUN, console_of, make_case, make_judged, make_report

from geval_cli.engine.columns import with_columns
from geval_cli.extras.evidence import (
    UNCUT,
    CasePrinter,
    Failures,
    ShownCase,
    case_sentence,
    print_failures,
    print_test,
)
from geval_cli.extras.html.environment import make_environment
from geval_cli.extras.html.run import case_values, cell_of, run_values
from geval_cli.extras.web.live_runs import brief_of
from geval_cli.numbers import format_comparison
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ErrorInfo,
    MetricSummary,
    RankedColumn,
    RenderedPrompt,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.report.case_view import AssertionView, CaseView, score_text
from geval_cli.report.console import print_hanging
from geval_cli.report.failures import FailedTests
from geval_cli.report.report import informative_metrics, write_results_file
from geval_cli.report.sanitize import sanitize
from geval_cli.report.terminal import print_answer
from geval_cli.report.verdict import cell_verdict, signs_of

P, F = Status.PASSED, Status.FAILED
MISSING: dict[str, Any] = {
    "checklist": [
        {"item": "Names the price", "required": True, "met": False, "score": 0},
        {"item": "Is short", "required": False, "met": True, "score": 1},
    ]
}
BELOW = "the weighted score is below the test's threshold"
ROWS: list[tuple[AssertionResult, str]] = [
    (make_judged(F, 0.4, detail=MISSING, threshold=0.4), "0.40, a required item is missing"),
    (make_judged(F, 0.3, detail=MISSING, threshold=0.4), "0.30 < 0.40"),
    (
        make_judged(F, 0.9, detail={"judge_passed": False}, type="llm-rubric"),
        "0.90, the judge says it fails",
    ),
    (make_judged(F, 0.67, type="similar:euclidean", threshold=0.2), "0.67"),
    (make_judged(P, 0.59, type="similar:euclidean", threshold=0.75), "0.59"),
    (make_judged(P, 0.5), "0.50 ≥ 0.50"),
    (make_judged(F, 0.2), "0.20 < 0.50"),
    (make_judged(P, 0.2, threshold=None), "0.20"),
    (make_judged(Status.NOT_EVALUATED, 0.19, type="pairwise", threshold=0.1), "0.19"),
]


@pytest.mark.parametrize(("item", "text"), ROWS)
def test_a_score_stands_beside_a_threshold_that_decided(item: AssertionResult, text: str) -> None:
    assert score_text(item) == text


@pytest.mark.parametrize("status", [P, F])
@pytest.mark.parametrize("kind", ["g-eval", "not-g-eval", "llm-rubric", "similar:euclidean", "assert-set"])
@pytest.mark.parametrize("score", [0.0, 0.4, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("detail", [{}, MISSING])
def test_no_comparison_contradicts_a_verdict(status: Status, kind: str, score: float, detail: Any) -> None:
    item = make_judged(status, score, type=kind, detail=detail)
    view = AssertionView(item)
    for text in (score_text(item), view.scored):
        for left, sign, right in re.findall(r"([\d.]+) ([<≥]) ([\d.]+)", text):
            assert text.count(format_comparison(float(left), float(right))) == 1
            reached = (sign == "≥") is not kind.startswith("not-")
            assert status is (P if reached else F)


def test_every_file_says_why(tmp_path: Path) -> None:
    case = make_case(0, COLUMNS[0], F, score=0.4, assertions=(ROWS[0][0],))
    report = make_report(results=lambda: iter([case]))
    for ending in ("junit.xml", "md", "csv", "sarif", "html", "codequality.json"):
        path = tmp_path / f"r.{ending}"
        write_results_file(path, report)
        text = path.read_text(encoding="utf-8-sig")
        assert "a required item is missing" in text or ending == "html", ending
        assert not re.search(r"0\.40 (≥|&gt;=|>=) 0\.40", text), ending
    stream = io.StringIO()
    CasePrinter(report, console_of(stream, 100), UNCUT).print_entry(ShownCase(case))
    assert "0.40, a required item is missing" in stream.getvalue()


@pytest.mark.parametrize("width", [20, 34, 35, 40, 60, 100])
def test_lines_that_fit_are_printed_together_exactly_as_one_by_one(width: int) -> None:
    lines = [
        "",
        "a",
        " indented  ",
        "x" * 47,
        "x" * 48,
        "x" * 49,
        "word " * 30,
        "中" * 24,
        "cafe\u0301",
        "14 s",
    ]
    lines += [
        "   ",
        "[b]no markup[/b]",
        ":smile:",
        "x" * 88,
        "x" * 89,
        "\x1b[31m",
        "👨‍👩‍👧",
        "10 ms " * 9,
        "end",
    ]
    one_by_one, together = io.StringIO(), io.StringIO()
    for line in [line for line in lines for _ in range(3)]:
        print_hanging(Text(" " * 8), Text(sanitize(line)), console_of(one_by_one, width), indent=3)
    case = make_case(0, COLUMNS[0], P, output="\n".join(line for line in ["first", *lines] for _ in range(3)))
    CasePrinter(make_report(), console_of(together, width), UNCUT).print_entry(ShownCase(case))
    assert one_by_one.getvalue() in together.getvalue()


def test_a_hundred_thousand_short_lines_are_printed_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    console = console_of(io.StringIO(), 100)
    prints: list[object] = []
    monkeypatch.setattr(console, "print", lambda *args, **_: prints.append(args))
    case = make_case(0, COLUMNS[0], P, output="a\n" * 100_000)
    CasePrinter(make_report(), console, UNCUT).print_entry(ShownCase(case))
    assert len(prints) < 30


def test_every_place_names_the_assertion_that_failed_a_case_by_most(tmp_path: Path) -> None:
    items = (
        make_judged(F, 0.0, metric="measured", weight=0, reason="only measured"),
        make_judged(Status.ERROR, None, metric="broken", error=ErrorInfo("JudgeParseError", "no rating")),
        make_judged(P, 0.9, metric="fine", reason="as it should be"),
        make_judged(F, 0.55, metric="near", threshold=0.6, reason="nearly there"),
        make_judged(F, 0.2, metric="worst", threshold=0.6, reason="not at all"),
    )
    case = make_case(0, COLUMNS[0], F, score=0.81, assertions=items, named_scores={"near": 0.55})
    report = make_report(results=lambda: iter([case]))

    def written(ending: str) -> str:
        write_results_file(tmp_path / f"r.{ending}", report)
        return (tmp_path / f"r.{ending}").read_text(encoding="utf-8-sig")

    stream, found = io.StringIO(), FailedTests()
    found.add(case)
    found.print(report, console_of(stream, 200), "")
    signs = signs_of(console_of(stream, 200))
    assert "  worst 0.20 < 0.60, near 0.55 < 0.60\n" in stream.getvalue()
    assert cell_verdict(case, signs, 60, has_marks=False).plain.endswith("FAIL worst 0.20 +1")
    assert case_sentence([case]).endswith(": worst 0.20 < 0.60, near 0.55 < 0.60")
    assert 'message="g-eval worst 0.20 &lt; 0.60: not at all"' in written("junit.xml")
    lines = [line for line in written("md").split("\n") if line.startswith("- `")]
    assert [line.split("`")[1].split()[-1] for line in lines] == ["worst", "near", "measured", "broken"]
    assert lines[0] == "- `g-eval worst` 0.20 &lt; 0.60: `not at all`"
    cell = cell_of([case])
    assert (cell.figure, cell.reason) == ("worst 0.20 +1", "not at all")
    assert cell_of([case], "near").figure == "0.55"
    assert brief_of(case)["reason"] == "not at all"
    page = [shown.assertion.metric for shown in CaseView(case).assertions]
    assert page == ["worst", "near", "measured", "broken", "fine"]
    print_test([case], report, console_of(stream, 200), is_verbose=False)
    heads = re.findall(r"^   [✗!] g-eval (\w+)", stream.getvalue(), re.MULTILINE)
    assert heads == ["worst", "near", "measured", "broken"]
    assert "measured" not in written("sarif")


@pytest.mark.parametrize(
    ("status", "items", "reason"),
    [
        (P, (make_judged(F, 0.0, weight=0, reason="only measured"),), ""),
        (F, (), BELOW),
        (F, (make_judged(P, 0.5), make_judged(F, 0.0, weight=0, reason="only measured")), BELOW),
        (
            Status.ERROR,
            (
                make_judged(F, 0.1, reason="no"),
                make_judged(Status.ERROR, None, error=ErrorInfo("E", "broken")),
            ),
            "broken",
        ),
        (
            F,
            (
                make_judged(
                    F,
                    0.5,
                    type="assert-set",
                    threshold=None,
                    reason="llm-rubric: near",
                    assertions=(make_judged(F, 0.5, reason="near"), make_judged(F, 0.1, reason="far")),
                ),
            ),
            "far",
        ),
        (
            F,
            (
                make_judged(
                    F, 0.5, type="assert-set", reason="the set's score", assertions=(make_judged(P, 0.5),)
                ),
            ),
            "the set's score",
        ),
    ],
)
def test_the_reason_of_a_case_is_that_of_what_decided_it(
    status: Status, items: tuple[AssertionResult, ...], reason: str
) -> None:
    assert cell_of([make_case(0, COLUMNS[0], status, assertions=items)]).reason == reason


@pytest.mark.parametrize(
    "ending",
    [".md", ".junit.xml", ".csv", ".html", ".sarif", ".codequality.json", "list", "case", "in short"],
)
def test_where_only_the_tests_own_threshold_fails_a_case_every_format_says_so(
    ending: str, tmp_path: Path
) -> None:
    measured = make_judged(F, 0.0, weight=0, reason="only measured", metric="length", type="contains")
    case = make_case(0, COLUMNS[0], F, score=0.6, assertions=(make_judged(P, 0.6), measured))
    report = make_report(results=lambda: iter([case]), summary=RunSummary(total=1, failed=1))
    stream = io.StringIO()
    console = console_of(stream, 200)
    if ending == "list":
        failures = Failures()
        failures.add(case)
        print_failures(failures, report, console)
    elif ending == "case":
        print_test([case], report, console, is_verbose=False)
    elif ending == "in short":
        failed = FailedTests()
        failed.add(case)
        failed.print(report, console, "")
    else:
        write_results_file(tmp_path / f"r{ending}", report)
        stream.write(unescape((tmp_path / f"r{ending}").read_text(encoding="utf-8")))
    text = stream.getvalue().replace("\\u0027", "'")
    assert BELOW in text
    if ending == ".junit.xml":
        assert f'<failure message="{BELOW}" type="threshold">' in text
    assert "only measured" not in text or ending not in {".sarif", ".codequality.json", "in short"}


@pytest.mark.parametrize("ending", [".sarif", ".codequality.json"])
@pytest.mark.parametrize("status", [P, Status.ERROR])
def test_what_failed_in_a_case_that_did_not_fail_is_no_problem(
    ending: str, status: Status, tmp_path: Path
) -> None:
    broken = make_judged(Status.ERROR, None, metric="tone", error=ErrorInfo("JudgeParseError", "no rating"))
    other = make_judged(P, 1.0, metric="tone") if status is P else broken
    case = make_case(0, COLUMNS[0], status, score=0.6, assertions=(make_judged(F, 0.2), other))
    write_results_file(tmp_path / f"r{ending}", make_report(results=lambda: iter([case])))
    text = (tmp_path / f"r{ending}").read_text(encoding="utf-8")
    assert "consistency" not in text
    assert ("no rating" in text) is (status is Status.ERROR)


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        (Usage(), []),
        (Usage(2, 900, 40, 0, 0.21), ["$0.21", "1.4 s"]),
        (Usage(2, 900, 40, 1, 0.21), ["$0.21", "1.4 s"]),
        (Usage(2, 0, 0, 2, 0.0), ["from the cache"]),  # nothing was waited for, nothing paid
    ],
)
def test_what_a_judges_calls_cost(usage: Usage, said: list[str]) -> None:
    assert AssertionView(make_judged(P, 0.9, usage=usage, latency_ms=1_400.0)).paid == said


def test_everything_of_a_verdict_is_shown_but_what_only_programs_compare(tmp_path: Path) -> None:
    hashes = {"criterion_key": "sha256:12", "rating_key": "sha256:34", "criterion_parts": {"judge": "56789"}}
    items = (make_judged(F, 0.2, detail={**hashes, "prompt_version": "abc", "judge": "j"}),)
    case = make_case(0, COLUMNS[0], F, assertions=items, prompt=RenderedPrompt("p", "p", ""))
    stream = io.StringIO()
    report = make_report(results=lambda: iter([case]))
    print_test([case], report, console_of(stream, 200), is_verbose=True)
    page = (
        make_environment()
        .get_template("case_detail.html")
        .render(**case_values(case, [case], ""), case_link=str)
    )
    for text in (stream.getvalue(), page):
        assert "prompt_version" in text
        assert not [name for name in hashes if name in text]
    assert "\n   prompt" not in stream.getvalue()  # there is none


def test_a_name_is_not_said_twice(tmp_path: Path) -> None:
    case = make_case(0, COLUMNS[0], F, assertions=(make_judged(F, 0.2, type="g-eval", metric="g-eval"),))
    stream = io.StringIO()
    report = make_report(results=lambda: iter([case]))
    print_test([case], report, console_of(stream, 200), is_verbose=True)
    for ending in (".md", ".junit.xml", ".csv", ".html", ".sarif"):
        write_results_file(tmp_path / f"r{ending}", report)
        text = re.sub("<[^>]*>", "", (tmp_path / f"r{ending}").read_text(encoding="utf-8"))
        stream.write(text)
    assert not re.search(r"g-eval\s+g-eval", stream.getvalue())


@pytest.mark.parametrize(
    ("passed", "failed", "errored", "text"),
    [
        (25, 5, 20, "83 %, at least 50 % if all 20 errors failed"),
        (1, 0, 1, "100 %, at least 50 % if the error failed"),
        (0, 2, 1, "0 %"),
        (25, 5, 0, "83 %"),
    ],
)
def test_a_pass_rate_says_what_it_is_at_least(
    passed: int, failed: int, errored: int, text: str, tmp_path: Path
) -> None:
    summary = RunSummary(total=passed + failed + errored, passed=passed, failed=failed, errored=errored)
    report = make_report(summary=summary)
    stream = io.StringIO()
    print_answer(report, console_of(stream, 100))
    assert f"\n pass rate {text}\n" in stream.getvalue()
    write_results_file(tmp_path / "r.md", report)
    assert f"Pass rate: **{text.replace('%', '%**', 1)}\n" in (tmp_path / "r.md").read_text(encoding="utf-8")
    page = make_environment().get_template("run_summary.html").render(**run_values(report), filter_link=str)
    assert re.findall("<br>(at least [^<]*)", page) == (
        [text.partition(", ")[2]] if errored and passed else []
    )


def test_a_mean_that_is_always_a_half_is_not_shown() -> None:
    ranked = RankedColumn("a", 1500.0, None, None, wins=1, ties=0, losses=1)
    metrics = {"helpful": MetricSummary(0.5, 8, 0, (0.5, 0.5)), "tone": MetricSummary(0.5, 8, 0)}
    summary = RunSummary(metrics=metrics, rankings={"helpful": (ranked,)})
    assert list(informative_metrics(summary)) == ["tone"]
    beside = RunSummary(metrics={"helpful": MetricSummary(0.7, 8, 0)}, rankings={"helpful": (ranked,)})
    assert list(informative_metrics(beside)) == ["helpful"]


def test_the_largest_figure_of_a_page_is_of_the_cases_that_its_bar_shows() -> None:
    cases: list[CaseResult] = [
        make_case(test, column, P if test < 1 + 2 * (column.index == 1) else F)
        for test in range(4)
        for column in COLUMNS
    ]
    summary = RunSummary(total=8, passed=4, failed=4, pass_rate=0.5)
    summary = with_columns(summary, COLUMNS, cases, baseline=None, has_clusters=False)
    values = run_values(make_report(summary=summary))
    page = make_environment().get_template("run_summary.html").render(**values, filter_link=lambda **_: "")
    assert re.search(r"verdict-rate\">\s*50 %", page)
    assert "of 8 judged cases passed" in page
    assert RUN.columns is not None
