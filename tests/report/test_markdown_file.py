import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.sample_run import COLUMNS, make_case, make_judged, make_report

from geval_cli.records import CaseResult, RunSummary, Status
from geval_cli.report.markdown_file import TEXT_MAX
from geval_cli.report.output import write_results_file


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

    assert "prompt and provider" not in page
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
