import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.sample_run import COLUMNS, make_case, make_judged, make_report

from geval_cli.engine.columns import with_columns
from geval_cli.extras.pull_requests.markdown_file import TEXT_MAX
from geval_cli.records import CaseResult, Column, RankedColumn, RunSummary, Status
from geval_cli.report.report import write_results_file


def page_of(path: Path, *cases: CaseResult, **changes: object) -> str:
    results = {"results": lambda: iter(cases)} if cases else {}
    write_results_file(path / "run.md", make_report(**results, **changes))
    return (path / "run.md").read_text("utf-8")


def without_code(markdown: str) -> str:
    """The page without its code blocks and spans: what a reader takes for markup."""
    no_blocks = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", no_blocks)


def test_page_of_a_run_with_every_status(tmp_path: Path, check_expected: Callable[[str, str], None]) -> None:
    check_expected("summary.md", page_of(tmp_path))


def test_one_column_needs_no_table_of_columns(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_case(), columns=COLUMNS[:1], summary=RunSummary(1, passed=1))

    assert "vs baseline" not in page
    assert "# geval: passed" in page
    assert "Failures" not in page


def test_a_page_fits_a_comment_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    judged = make_judged(Status.FAILED, 0.1, reason="far too long " * 50)
    cases = [
        make_case(number, status=Status.FAILED, output="x" * 5_000, assertions=(judged,))
        for number in range(80)
    ]

    page = page_of(tmp_path, *cases)

    assert TEXT_MAX // 2 < len(page) <= TEXT_MAX
    shown = page.count("❌ **#")
    assert f"{80 - shown:,} more are not shown here" in page


def test_a_page_of_hundreds_of_columns_fits_a_comment(tmp_path: Path) -> None:
    """The best of them are shown, and a sentence names only some of those that share the first place."""
    names = [f"{'a long and telling name ' * 6}{number}" for number in range(400)]
    columns = tuple(Column(index, name, name) for index, name in enumerate(names))
    cases = [
        make_case(test, column, Status.PASSED if column.index >= 100 or test else Status.FAILED)
        for test in range(2)
        for column in columns
    ]
    entries = tuple(RankedColumn(name, 1500.0, None, None, wins=1, ties=0, losses=1) for name in names)
    summary = RunSummary(
        800, passed=700, failed=100, rankings={f"ranked {number}": entries for number in range(12)}
    )
    summary = with_columns(summary, columns, cases, baseline=None, has_clusters=True)
    page = page_of(tmp_path, *cases, columns=columns, summary=summary)
    assert len(page) <= TEXT_MAX
    assert "and 340 more columns, none with a higher pass rate" in page
    assert "| 2 | 0 |" in page
    assert "| 1 | 1 | 0 |" not in page  # those of which a case failed are not among the best
    assert "295 more have the highest pass rate" in page
    assert "What is too long for a comment is left out here" in page


@given(
    st.text()
    | st.sampled_from(["@team", "![x](http://a)", "</details>", "```\n# big", "a`b``c", "| x |", "#12"])
)
def test_nothing_that_a_model_says_is_markup(tmp_path_factory, text: str) -> None:  # type: ignore[no-untyped-def]
    judged = make_judged(Status.FAILED, 0.1, metric="m", reason=text)
    case = make_case(status=Status.FAILED, output=text, description=text, assertions=(judged,))
    plain = make_case(
        status=Status.FAILED,
        output="o",
        description="d",
        assertions=(make_judged(Status.FAILED, 0.1, metric="m", reason="r"),),
    )
    folder = tmp_path_factory.mktemp("page")

    found = without_code(page_of(folder, case))

    def marks(page: str) -> list[str]:
        return re.findall(r"[@<\[\]#!]", page)

    assert marks(found) == marks(without_code(page_of(folder, plain)))
