import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.browser import Visit, visit
from support.sample_columns import report_of as report_of_columns
from support.sample_run import RUN, STEPS, make_case, make_judged, make_report

from geval_cli.records import CaseResult, Status
from geval_cli.report.html_file import HtmlFile
from geval_cli.report.output import write_results_file
from geval_cli.report.report import RunReport

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    '<img src=x onerror="document.title=1">',
    "<!--<script>",
    "\u202eevil\u202c \u2028 \x00",
    "مرحبا 👩🏽‍🚀",
    "x" * 20_000,
)


@contextmanager
def opened(browser: Any, path: Path, report: RunReport, **context: Any) -> Iterator[Visit]:
    file = path / "run.html"
    write_results_file(file, report)
    with visit(browser, f"file://{file}", **context) as found:
        found.page.goto(f"file://{file}")
        yield found


def report_of(*cases: CaseResult) -> RunReport:
    return make_report(results=lambda: iter(cases))


def embedded(path: Path) -> list[dict[str, Any]]:
    page = path.read_text("utf-8")
    match = re.search(r'id="results-data">(.*?)</script>', page, re.DOTALL)
    assert match
    found: list[dict[str, Any]] = json.loads(match[1])
    return found


def test_summary_and_matrix(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, make_report()) as found:
        page = found.page
        assert page.locator("#summary .rate").inner_text() == "85.7%"
        assert "0.51 to 1.00" in page.locator("#summary").inner_text()
        assert page.locator("#heads th").all_inner_texts()[1:] == [
            "short × openai:gpt-4o",  # noqa: RUF001
            "friendly × openai:gpt-4o",  # noqa: RUF001
        ]
        assert page.locator("#rows tr").count() == 5
        assert page.locator(".cell .verdict").all_inner_texts()[2] == "✗ failed 0.37"


def test_columns_side_by_side(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, report_of_columns()) as found:
        card = found.page.locator("#summary section", has=found.page.locator("h2", has_text="Columns"))
        rows = [row.split("\t") for row in card.locator("tr").all_inner_texts()]

    assert rows[0][:5] == ["column", "passed", "pass rate", "clarity", "tone of voice"]
    assert rows[3][0] == "thorough × gpt-4o-mini"  # noqa: RUF001
    assert rows[3][2] == "66% (50.8% to 76%)"
    assert [row[-1] for row in rows] == [
        "verdict",
        "baseline",
        "undecided",
        "better: pass rate; worse: clarity",
        "better: pass rate",
        "worse: pass rate",
        "",
    ]


def test_a_case_with_its_judgement(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, make_report()) as found:
        page = found.page
        page.locator(".cell.is-failed").click()
        text = page.locator("#case").inner_text()
        for said in (
            "You get 40 days.",
            "0.49996",
            "0.5 (default)",
            "claims forty days",
            "logprobs, coverage 0.93",
        ):
            assert said in text
        assert (
            page.locator("svg.bars").get_attribute("aria-label")
            == "Ratings: 1: 5%, 2: 20%, 3: 45%, 4: 29.9%, 5: 0.1%"
        )
        page.get_by_text("evaluation steps").first.click()
        assert page.locator(".steps li").first.inner_text() == STEPS[0]


def test_filters_and_order(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, make_report()) as found:
        page, rows = found.page, found.page.locator("#rows tr")
        page.locator("#text").fill("forty DAYS")
        assert rows.count() == 1
        page.locator("#text").fill("")
        page.get_by_role("button", name="passed", exact=False).first.click()
        assert page.locator("#found").inner_text() == "4 of 5 tests"
        page.locator("#order").select_option("status")
        assert rows.first.locator("th").inner_text().startswith("#2")
        page.locator("#metric").select_option("consistency")
        assert page.locator("#found").inner_text() == "2 of 5 tests"


def test_by_keyboard_alone(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, make_report()) as found:
        page = found.page
        page.locator(".cell").first.focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        assert page.locator("#drawer-title").inner_text().startswith("#2 states")
        page.keyboard.press("ArrowRight")
        assert page.locator("#case .verdict").first.inner_text() == "✓ passed 1.00"
        page.keyboard.press("Escape")
        assert not page.locator("#drawer").is_visible()
        assert page.evaluate("document.activeElement.dataset.case") == "1-1"


@pytest.mark.parametrize("text", HOSTILE, ids=["script", "image", "comment", "controls", "scripts", "long"])
def test_what_a_model_says_is_text(browser: Any, tmp_path: Path, text: str) -> None:
    judged = make_judged(
        Status.FAILED, 0.1, reason=text, metric=text[:40], detail={"evaluation_steps": [text], "judge": text}
    )
    case = make_case(
        status=Status.FAILED, output=text, description=text, vars={text[:50]: text}, assertions=(judged,)
    )
    with opened(browser, tmp_path, report_of(case)) as found:
        page = found.page
        page.locator(".cell").click()
        shown = page.locator("#case pre").first.inner_text()
        assert (
            text.replace("\u202e", "\\u202e")
            .replace("\u202c", "\\u202c")
            .replace("\u2028", "\\u2028")
            .replace("\x00", "\\u0000")
            == shown
        )
        assert page.title() == "geval: examples/configs/vacation.yaml"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_narrow_and_dark(browser: Any, tmp_path: Path) -> None:
    window = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}
    with opened(browser, tmp_path, make_report(), **window) as found:
        page = found.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_ten_thousand_cases_are_paged(browser: Any, tmp_path: Path) -> None:
    cases = [make_case(number, vars={"n": number}, output="") for number in range(10_000)]
    with opened(browser, tmp_path, report_of(*cases)) as found:
        page = found.page
        assert page.locator("#rows tr").count() == 100
        page.locator("#next").click()
        assert page.locator("#rows tr").first.locator("th").inner_text() == "#101 n=100"
        page.locator("#text").fill("n=9999")
        page.locator("#text").fill("9999")
        assert page.locator("#found").inner_text() == "1 of 10,000 tests"


def test_above_the_cap_passed_cases_are_left_out_and_counted(tmp_path: Path) -> None:
    cases = [make_case(number) for number in range(30)]
    cases[20:20] = [make_case(99, status=Status.FAILED)]
    file = tmp_path / "run.html"
    HtmlFile(file, cases_max=20).finish(report_of(*cases))

    found = embedded(file)
    assert len(found) == 20
    assert found[-1]["status"] == "failed"
    assert '"left_out":11' in file.read_text("utf-8")


def test_the_config_is_not_in_the_page(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    write_results_file(file, make_report(run=replace(RUN, config={"note": "only for us"})))

    assert "only for us" not in file.read_text("utf-8")


def test_a_run_without_results(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, report_of()) as found:
        assert found.page.locator("#found").inner_text() == "0 of 0 tests"
