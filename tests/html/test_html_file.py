"""The report as one file: opened from disk in a real browser, which may ask nobody for anything."""

import base64
import json
import re
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from support.axe import violations
from support.browser import PHONE, SCREEN, Visit, open_window, serve, visit, watch
from support.realistic_runs import COLUMNS, Shape, realistic_report, realistic_results, summary_of
from support.sample_columns import ranked_report
from support.sample_columns import report_of as report_of_columns
from support.sample_run import RUN, STEPS, SUMMARY, make_case, make_judged, make_report

from geval_cli.extras.html import file as html_file
from geval_cli.extras.html.charts import ScoreRange
from geval_cli.extras.html.environment import asset
from geval_cli.extras.html.file import HtmlFile
from geval_cli.extras.run_pages import Repeats, ResultFilter, RunPages, SortOrder
from geval_cli.extras.trust.labelling import LabelledRun
from geval_cli.extras.trust.labels import LabelledOutput
from geval_cli.metrics import metric_verdicts
from geval_cli.numbers import format_percentage, format_score
from geval_cli.records import CaseResult, Column, RunSummary, Status, Turn
from geval_cli.report.report import RunReport, write_results_file
from geval_cli.runs.stored import load_report
from geval_cli.store.runs import RunStore

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    '<img src=x onerror="document.title=1">',
    "<!--<script>",
    "\u202eevil\u202c \u2028 \x00",
    "مرحبا 👩🏽‍🚀",
    "x" * 20_000,
    "   \n\n   ",
)
BYTES_PER_CASE = 450
"""Ten thousand cases shall stay below 6 MB, and open as quickly."""
EXPORTED_BYTES_PER_CASE = 400
"""What the page gives as files, with all digits of all numbers, takes less than that."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run of 280 cases."""
    file = tmp_path_factory.mktemp("written") / "run.html"
    write_results_file(file, realistic_report(Shape(tests=28, columns=COLUMNS[:5])))
    return file


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    """A window for all tests of the module."""
    with open_window(browser) as page:
        yield page


@contextmanager
def opened(tab: Any, path: Path, report: RunReport) -> Iterator[Visit]:
    file = path / "run.html"
    write_results_file(file, report)
    with shown(tab, file) as found:
        yield found


@contextmanager
def shown(tab: Any, file: Path) -> Iterator[Visit]:
    with watch(tab, f"file://{file}") as found:
        tab.goto(f"file://{file}")
        yield found
        tab.evaluate("localStorage.clear(); sessionStorage.clear()")


def report_of(*cases: CaseResult) -> RunReport:
    return make_report(results=lambda: iter(cases))


def chunks_of(path: Path) -> list[dict[str, Any]]:
    """What is packed in the file, as its script unpacks it."""
    packed = re.findall(r"data-chunk>([^<]*)</script>", path.read_text("utf-8"))
    return [json.loads(zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS)) for text in packed]


def numbers_of(page: Any) -> list[str]:
    """The numbers of the tests that the matrix shows."""
    return [text.strip() for text in page.locator("tbody .test-number").all_inner_texts()]


def table_under(page: Any, heading: str) -> list[list[str]]:
    section = page.locator("section", has=page.get_by_role("heading", name=heading))
    return [
        [cell.strip() for cell in row.split("\t")]
        for table in section.locator("table").all()
        for row in table.locator("tr").all_inner_texts()
    ]


def test_summary_and_matrix(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, make_report()) as found:
        page = found.page
        assert page.locator(".verdict-rate").inner_text() == "86 %"
        assert "0.51 to 1.00" in page.locator(".summary").inner_text()
        heads = [" ".join(text.split()) for text in page.locator("thead .cell-head").all_inner_texts()]
        assert heads == ["short openai:gpt-4o", "friendly openai:gpt-4o"]
        assert page.locator("tbody .test").count() == 5
        assert (
            " ".join(page.locator("[data-cell] .status").nth(2).inner_text().split()) == "Failed contains +1"
        )


def test_columns_side_by_side(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, report_of_columns()) as found:
        rows = table_under(found.page, "Columns, best first")
        heads = [" ".join(text.split()) for text in found.page.locator("thead .cell-head").all_inner_texts()]
    assert rows[0][:5] == ["Column", "Vs baseline", "Pass rate [95 %]", "clarity", "tone of voice"]
    assert [rows[4][place] for place in (0, 2)] == ["thorough × gpt-4o-mini", "66 % [51–76]"]  # noqa: RUF001
    assert [row[1] for row in rows[1:]] == [
        "no test in both",
        "worse: pass rate",
        "better: pass rate",
        "better: pass rate; worse: clarity",
        "no clear difference",
        "baseline",
    ]
    means = "clarity 0.71 tone of voice 0.90"
    assert heads[2] == f"thorough gpt-4o-mini 66 % [51–76] {means} n 40 · $0.013 · 1.4 s"  # noqa: RUF001


def test_rankings(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, ranked_report()) as found:
        rows = table_under(found.page, "Ranking")
        notes = found.page.locator("section", has=found.page.get_by_role("heading", name="Ranking"))
        said = notes.locator("p").all_inner_texts()
    assert rows[0] == ["Column", "Rating", "95 % interval", "Won", "Tied", "Lost"]
    assert rows[1] == ["1. large | thorough", "1644", "1472 to 1784", "6", "1", "1"]
    assert rows[4] == ["a", "none", "", "1", "0", "0"]
    assert said == [
        "the judge chose the same winner in both orders for 92 % of the pairs",
        "no ranking: the comparisons do not connect all columns",
    ]


def test_a_case_with_its_judgement(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, make_report()) as found:
        page = found.page
        page.locator("a.cell.is-failed").click()
        drawer = page.get_by_role("dialog")
        drawer.get_by_text("You get 40 days.").wait_for()
        text = drawer.inner_text()
        for said in ("0.49996 < 0.50 (default)", "claims forty days", "logprobs, coverage 93 %"):
            assert said in text
        assert "#2 states the number of days" in text
        words = "rating 1: 5 %, rating 2: 20 %, rating 3: 45 %, rating 4: 30 %, rating 5: 0.1 %"
        assert drawer.get_by_role("img", name=words).is_visible()
        page.get_by_text("evaluation steps").first.click()
        assert drawer.locator(".steps li").first.inner_text() == STEPS[0]


def test_filters_and_order(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, make_report()) as found:
        page, said = found.page, found.page.locator("[data-found]")
        page.locator("[data-search]").fill("DAYS forty")
        page.wait_for_url("**#q=DAYS+forty")
        assert numbers_of(page) == ["2"]
        page.locator("[data-search]").fill("")
        page.wait_for_url("**#")
        page.get_by_label("Error").check()
        page.wait_for_url("**#status=error")
        assert said.inner_text() == "2 tests with a matching result"
        page.get_by_label("All", exact=False).first.check()
        page.get_by_label("Sort").select_option("status")
        page.wait_for_url("**#sort=status")
        assert numbers_of(page)[0] == "2"
        page.get_by_label("Metric").select_option("consistency")
        page.wait_for_url("**#metric=consistency&sort=status")
        assert said.inner_text() == "3 tests with a matching result; verdicts are those on consistency"
        page.get_by_role("link", name="Clear").click()
        page.wait_for_url("**#")
        page.go_back()
        page.wait_for_url("**#metric=consistency&sort=status")
        assert page.get_by_label("Metric").input_value() == "consistency"


def test_by_keyboard_alone(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, make_report()) as found:
        page = found.page
        for key in ("j", "l", "j", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        drawer = page.get_by_role("dialog")
        drawer.get_by_role("heading", name="#2 states").wait_for()
        page.keyboard.press("l")
        drawer.get_by_text("Passed 1.00").first.wait_for()
        page.keyboard.press("Escape")
        drawer.wait_for(state="hidden")
        assert page.evaluate("document.activeElement.hash") == "#case=1.0.1"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "q"


@pytest.mark.parametrize(
    "text", HOSTILE, ids=["script", "image", "comment", "controls", "scripts", "long", "blank"]
)
def test_what_a_model_says_is_text(tab: Any, tmp_path: Path, text: str) -> None:
    judged = make_judged(
        Status.FAILED, 0.1, reason=text, metric=text[:40], detail={"evaluation_steps": [text], "judge": text}
    )
    case = make_case(
        status=Status.FAILED, output=text, description=text, vars={text[:50]: text}, assertions=(judged,)
    )
    file = tmp_path / "run.html"
    write_results_file(file, report_of(case))
    with watch(tab, f"file://{file}") as found:
        page = found.page
        page.goto(f"file://{file}")
        page.locator("[data-cell]").click()
        output = page.locator("dialog .is-output")
        output.wait_for()
        shown = text.replace("\u202e", "\\u202e").replace("\u202c", "\\u202c").replace("\u2028", "\\u2028")
        assert output.text_content() == shown.replace("\x00", "\\x00")
        assert page.title().endswith("geval: examples/configs/vacation.yaml")
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("screen", [PHONE, SCREEN], ids=["phone", "screen"])
def test_long_names_break_and_hide_no_figure(tab: Any, tmp_path: Path, screen: tuple[int, int]) -> None:
    """Names without a space: of a metric, which stands before its figures, and of a column, which stands in a cell."""
    name = "Donaudampfschifffahrtsgesellschaftskapitän" * 5
    columns = (Column(0, name, "echo"), Column(1, "short", "echo"))
    judged = make_judged(Status.FAILED, 0.1, metric=name)
    cases = [
        make_case(0, column, Status.FAILED, assertions=(judged,), named_scores={name: 0.1})
        for column in columns
    ]
    summary = replace(SUMMARY, metrics=dict.fromkeys((name, "tone"), next(iter(SUMMARY.metrics.values()))))
    tab.set_viewport_size({"width": screen[0], "height": screen[1]})
    with opened(tab, tmp_path, make_report(columns, results=lambda: iter(cases), summary=summary)) as found:
        page = found.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if screen == SCREEN:  # a phone has no room for all figures, whatever the names
            assert page.locator(".metrics").evaluate("card => card.scrollWidth <= card.clientWidth")
        page.locator("[data-cell]").first.click()
        page.get_by_role("dialog").locator(".assertion-head h3").wait_for()
        assert page.locator("dialog[open]").evaluate(
            "dialog => [...dialog.querySelectorAll('h3')].every("
            "head => head.getBoundingClientRect().right <= dialog.getBoundingClientRect().right)"
        )


def test_narrow_and_dark(tab: Any, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    tab.emulate_media(color_scheme="dark")
    with opened(tab, tmp_path, realistic_report(Shape(tests=3))) as found:
        page = found.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        top = page.locator("[data-matrix]").evaluate("element => element.getBoundingClientRect().top")
        assert top < 1_100, "the results begin below the second screen of a phone"
        sentence = page.locator(".leader").evaluate("element => element.getBoundingClientRect().bottom")
        assert sentence < 500, "who wins is not on the first screen of a phone"
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.get_by_role("button", name="Use the light theme").click()
        assert page.evaluate(background) != dark
    tab.set_viewport_size({"width": SCREEN[0], "height": SCREEN[1]})
    tab.emulate_media(color_scheme="light")


def test_assistive_technology_can_use_it(tab: Any, tmp_path: Path) -> None:
    with opened(tab, tmp_path, realistic_report(Shape(tests=2, columns=COLUMNS[:3]))) as found:
        page = found.page
        page.locator("[data-shown], [data-matrix][role=grid]").first.wait_for()
        assert violations(page) == []
        page.locator("[data-cell]").first.click()
        page.get_by_role("dialog").locator("#case").wait_for()
        assert violations(page) == []


def test_without_scripts_the_summary_and_the_first_results_are_there(browser: Any, written: Path) -> None:
    with visit(browser, f"file://{written}", java_script_enabled=False) as found:
        page = found.page
        page.goto(f"file://{written}")
        assert page.locator(".verdict-rate").is_visible()
        assert len(table_under(page, "Columns, best first")) == 6
        assert len(table_under(page, "Ranking: helpful")) == 6
        assert page.locator("tbody .test").count() == 28
        assert page.get_by_text("Without JavaScript this page shows").is_visible()


def test_links_into_the_file_work(tab: Any, written: Path) -> None:
    with shown(tab, written) as found:
        page = found.page
        page.goto(f"file://{written}#case=27.1.4")
        page.get_by_role("dialog").get_by_role("heading", name="#28.2").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        page.goto(page.url.partition("#")[0] + "#status=failed&meta.lang=de&sort=score")
        page.locator("[data-found]", has_text="with a matching result").wait_for()
        assert page.get_by_label("Failed").is_checked()
        assert page.get_by_label("Metadata lang").input_value() == "de"
        page.goto(page.url.partition("#")[0] + "#case=99.0.0")
        page.get_by_role("dialog").get_by_text("This case is not in the file").wait_for()


QUERIES = (
    "status=failed",
    "status=not_evaluated",
    "metric=tone&sort=score",
    "metric=tone&status=failed",
    "metric=nothing",
    "q=grinder+28",
    "q=%22pays+for+the+way+back%22+policy",
    "q=STRASSE",
    "q=Maẞe",
    "q=kapı",  # noqa: RUF001
    "q=kapi",
    "q=İzmir",
    "q=ΣΊΣΥΦΟΣ",
    "q=<policy>%20%26",
    "q=2021",
    "differs=yes",
    "differs=yes&status=error",
    "meta.lang=de",
    "meta.lang=ja&meta.hard=false&sort=status",
    "sort=score",
    "sort=status",
    "test=3&column=2",
    "repeats=mixed",
    "repeats=passed&column=1",
    "repeats=failed&sort=score",
    "metric=faithfulness&label_low=0.0",
    "metric=faithfulness&low=0.3&label_low=0.475&label_high=0.525",
    "metric=faithfulness&label_high=0.025",
    "metric=tone&label_low=0.0",
)


SENSELESS = "status=none&low=x&test=x&repeats=sometimes&column=-1&label_low=1e999"
"""A server passes over all of it."""


def test_the_file_chooses_what_a_server_chooses(tab: Any, tmp_path: Path) -> None:
    odd = ("Die Straße <policy> &", "ΣΊΣΥΦΟΣ", "die MASSE", "kapı, İZMİR", "kapi")  # noqa: RUF001
    shape = Shape(tests=21, columns=COLUMNS[:4])
    results = list(realistic_results(shape))
    results += [
        make_case(30 + number, output=text, metadata={"lang": ["de", "el"]})
        for number, text in enumerate(odd)
    ]
    labels = {result.id: (number % 3) / 2 for number, result in enumerate(results) if number % 2}
    labelled = [LabelledOutput(label, 0.5, name, 0.5) for name, label in labels.items()]
    report = replace(
        realistic_report(shape),
        results=lambda: iter(results),
        labels=lambda: LabelledRun({"faithfulness": labelled}),
    )
    with RunStore.open_in_memory() as runs:
        runs.begin(report.run)
        for result in results:
            runs.add(report.run.id, result).result()
        expected = {query: _places(runs, report.run.id, query, labels) for query in QUERIES}
    found = {}
    with opened(tab, tmp_path, report) as window:
        page = window.page
        for query in QUERIES:
            page.goto(page.url.partition("#")[0] + f"#{query}")
            page.locator(f"[data-shown='{urlencode(parse_qsl(query))}']").wait_for()
            found[query] = page.evaluate(_SHOWN)
        page.goto(page.url.partition("#")[0] + f"#metric=tone&sort=score&{SENSELESS}")
        page.locator(f"[data-shown$='{urlencode(parse_qsl(SENSELESS))}']").wait_for()
        senseless = page.evaluate(_SHOWN)
    assert found == expected
    assert senseless == found["metric=tone&sort=score"]
    assert [query for query in QUERIES[-8:] if not expected[query]] == ["metric=tone&label_low=0.0"]


_SHOWN = """
() => [...document.querySelectorAll("[data-matrix] tbody tr")].map((row) => [
  row.querySelector(".test-number").textContent.trim(),
  [...row.querySelectorAll("td")].filter((cell) => !cell.matches(".is-aside") && cell.querySelector("a")).length,
])
"""


_NUMBERS = ("low", "label_low", "label_high")


def _places(runs: RunStore, run_id: str, query: str, labels: Mapping[str, float]) -> list[list[Any]]:
    """The tests that the store chooses, and how many of their results; `labels` are those of faithfulness."""
    values = dict(parse_qsl(query))
    number = {name: float(values[name]) if name in values else None for name in _NUMBERS}
    wanted_labels = ScoreRange(number["label_low"], number["label_high"])
    of_metric = labels if values.get("metric") == "faithfulness" else {}
    ids = frozenset(name for name, label in of_metric.items() if wanted_labels.holds(label))
    wanted = ResultFilter(
        Status(values["status"]) if "status" in values else None,
        values.get("metric"),
        values.get("q", ""),
        tuple((name[5:], value) for name, value in values.items() if name.startswith("meta.")),
        "differs" in values,
        int(values["column"]) if "column" in values else None,
        number["low"],
        test=int(values["test"]) if "test" in values else None,
        repeats=Repeats(values["repeats"]) if "repeats" in values else None,
        ids=None if wanted_labels == ScoreRange() else ids,
    )
    places = RunPages(runs).places(run_id, wanted, SortOrder(values.get("sort", "test")))
    return [[f"{test + 1}", len({column for _, column in json.loads(matching)})] for test, matching in places]


def test_many_cases_are_paged_and_of_too_many_there_is_no_export(
    tab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_file, "EXPORTED_MAX", 150)
    cases = [make_case(number, vars={"n": number}, output="") for number in range(200)]
    with opened(tab, tmp_path, report_of(*cases)) as found:
        page = found.page
        assert page.locator("tbody .test").count() == 50
        page.get_by_role("link", name="Next").click()
        page.get_by_text("Page 2 of 4").wait_for()
        first = page.locator("[data-matrix] tbody tr").first
        assert [first.locator(part).inner_text() for part in (".test-number", ".variable")] == ["51", "50"]
        page.locator("[data-search]").fill("199")
        page.locator("[data-found]", has_text="1 test with a matching result").wait_for()
        # What an export needs would make it nearly twice as large.
        assert page.locator("[data-export], [data-exported]").count() == 0
        assert page.locator(".export code").inner_text() == f"geval show {RUN.id} -o results.csv"


def test_the_script_writes_shares_as_geval_does(tab: Any) -> None:
    [function] = re.findall(r"^function percentOf.*?^}", asset("report.js"), re.MULTILINE | re.DOTALL)
    counts = [
        (part, whole)
        for whole in (1, 3, 8, 250, 1_001, 2_500, 100_000)
        for part in sorted({0, 1, whole // 3, whole - 1, whole})
    ]
    shown = tab.evaluate(
        f"counts => {{ {function}\nreturn counts.map(([part, whole]) => percentOf(part, whole)); }}", counts
    )
    assert shown == [format_percentage(part, whole) for part, whole in counts]


def test_above_the_cap_passed_cases_are_left_out_and_counted(tmp_path: Path) -> None:
    cases = [make_case(number) for number in range(30)]
    cases[20:20] = [make_case(99, status=Status.FAILED)]
    file = tmp_path / "run.html"
    HtmlFile(file, cases_max=20).finish(report_of(*cases))

    found = [case for chunk in chunks_of(file) for case in chunk["cases"]]
    assert len(found) == 20
    assert found[-1]["status"] == "failed"
    assert "11 passed cases are not in this file" in file.read_text("utf-8")


@pytest.mark.parametrize(("characters", "chunks"), [(10, 1), (400_000, 4)])
def test_long_texts_are_packed_by_few_cases_at_a_time(
    tmp_path: Path, characters: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts of a chunk are in memory several times: with outputs of megabytes, a run took gigabytes."""
    monkeypatch.setattr(html_file, "CHUNK_CHARACTERS", 4_000_000)
    cases = [make_case(number, output=f"{number} " + "word " * (characters // 5)) for number in range(12)]
    file = tmp_path / "run.html"
    HtmlFile(file).finish(report_of(*cases))
    found = chunks_of(file)
    assert len(found) in range(chunks, 2 * chunks + 1)
    assert [case["at"][0] for chunk in found for case in chunk["cases"]] == list(range(12))
    for chunk in found:
        assert sum(map(len, chunk["strings"])) < 4_000_000 + 4 * characters + 100_000


def test_figures_of_a_metric_are_those_of_the_run_whatever_is_left_out(tab: Any, tmp_path: Path) -> None:
    """Metrics behind the first few that a cell has room for, and passed cases that the file does not have."""
    columns = COLUMNS[:2]
    metrics = [f"metric {number}" for number in range(9)]
    cases = []
    for number in range(30):
        for column in columns:
            scores = {name: (number + place + column.index) % 9 / 8 for place, name in enumerate(metrics)}
            judged = [
                make_judged(Status.PASSED if score >= 0.2 else Status.FAILED, score, metric=name)
                for name, score in scores.items()
            ]
            status = Status.FAILED if number % 10 == 0 else Status.PASSED
            cases.append(
                make_case(
                    number,
                    column,
                    status,
                    assertions=tuple(judged),
                    named_scores=scores,
                    id=f"{number}.0.{column.index}",
                )
            )
    summary = summary_of(columns, cases)
    HtmlFile(tmp_path / "run.html", cases_max=20).finish(
        make_report(columns, summary=summary, results=lambda: iter(cases))
    )
    with shown(tab, tmp_path / "run.html") as found:
        page = found.page
        for name in metrics:
            page.locator("[data-filters] [name=metric]").select_option(name)
            page.locator("[data-found]", has_text=f"verdicts are those on {name}").wait_for()
            verdicts = {case.id: metric_verdicts(case)[name] for case in cases}
            for column, head in zip(columns, page.locator("thead .cell-head").all(), strict=True):
                own = [verdicts[case.id][0] for case in cases if case.column == column.index]
                rate = format_percentage(own.count(Status.PASSED), len(own))
                assert head.locator("[data-head-rate]").inner_text() == rate
                assert head.locator("[data-head-n]").inner_text() == "30"
            counts = page.locator("input[name=status][value=passed] ~ .count").inner_text()
            assert int(counts) == [status for status, _ in verdicts.values()].count(Status.PASSED)
            scores = {case: format_score(score) for case, (_, score) in verdicts.items()}
            for cell in page.locator("[data-cell]").all():
                case_id = str(cell.get_attribute("href")).rpartition("=")[2]
                assert cell.locator(".score").inner_text() == scores[case_id]
        found.check()


def test_the_config_is_not_in_the_page(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    write_results_file(file, make_report(run=replace(RUN, config={"note": "only for us"})))

    assert "only for us" not in file.read_text("utf-8") + json.dumps(chunks_of(file))


def test_a_metric_may_be_called_half_of_a_surrogate_pair(tmp_path: Path) -> None:
    summary = replace(SUMMARY, metrics={"half \ud800": next(iter(SUMMARY.metrics.values()))})
    write_results_file(tmp_path / "run.html", make_report(summary=summary))
    assert "half ?" in (tmp_path / "run.html").read_text("utf-8")


def test_a_run_without_results(tab: Any, tmp_path: Path) -> None:
    report = make_report(results=lambda: iter(()), summary=RunSummary())
    with opened(tab, tmp_path, report) as found:
        assert found.page.locator("[data-found]").inner_text() == "0 tests"
        assert found.page.get_by_text("This run ended before its first case was finished").is_visible()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("data-chunk>", "The cases in this file are damaged and cannot be shown."),
        ("data-exported>", "The cases in this file are damaged and cannot be exported."),
    ],
)
def test_a_file_that_was_damaged_says_so(tab: Any, tmp_path: Path, part: str, said: str) -> None:
    file = tmp_path / "run.html"
    write_results_file(file, make_report())
    text = file.read_text("utf-8")
    place = text.index(part) + 200
    file.write_text(text[:place] + text[place + 100 :], "utf-8")
    with shown(tab, file) as found:
        if part == "data-exported>":
            found.page.locator("[data-export=csv]").click()
        found.page.get_by_text(said).wait_for()


def test_a_case_takes_little_room(tmp_path: Path) -> None:
    sizes: dict[str, list[int]] = {"chunk": [], "exported": []}
    for tests in (5, 20):
        file = tmp_path / "run.html"
        write_results_file(file, realistic_report(Shape(tests=tests, repeats=1, has_pairs=False)))
        for kind, found in sizes.items():
            found.append(sum(map(len, re.findall(rf"data-{kind}>([^<]*)<", file.read_text("utf-8")))))
    for kind, limit in (("chunk", BYTES_PER_CASE), ("exported", EXPORTED_BYTES_PER_CASE)):
        assert (sizes[kind][1] - sizes[kind][0]) / (15 * len(COLUMNS)) < limit


EXPORTED = ("", "status=failed&sort=score", "column=1&metric=tone&low=0.5", "test=40")
"""Few enough for Chromium, which lets one page give ten files."""


def formulas() -> Iterator[CaseResult]:
    """Cases whose cells a spreadsheet would compute, take for rows, or not read."""
    texts = (
        "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1",
        'a "quote", b', "a\n=2\n- entry",
        "1e5", "1_000", "nan", " 7", "0x10", "٣", "\x00null", "lone \ud800", "日本, 語", "", "'=1", "harmless",
    )  # fmt: skip
    for number, text in enumerate(texts, start=40):
        yield make_case(
            number,
            output=text,
            description=text or None,
            vars={text or "empty": text, "nested": {"a": [1, 2.0, None, text]}, "n": number / 7},
            metadata={f"={number % 3}": text, "list": ["x", text]},
            named_scores={"=evil": 1 / 3, text or "none": 1e-7},
            latency_ms=1e16 / 3,
            turns=(Turn("user", text), Turn("assistant", "=1")) if number % 5 == 0 else (),
            ended_by="=goal" if number % 10 == 0 else UNSET,
        )


def test_the_file_exports_what_a_server_exports(tab: Any, tmp_path: Path) -> None:
    shape = Shape(tests=4, columns=COLUMNS[:4])
    report = realistic_report(shape)
    with closing(RunStore.open(tmp_path / ".geval")) as runs:
        runs.begin(report.run)
        for result in [*realistic_results(shape), *formulas()]:
            runs.add(report.run.id, result).result()
        runs.finish(report.run, report.summary)
        write_results_file(tmp_path / "run.html", load_report(runs, report.run.id))
    servers, ours = {}, {}
    kinds = [(query, kind) for query in EXPORTED for kind in ("csv", "jsonl")]
    with serve(tmp_path, token=None) as address:
        with urllib.request.urlopen(f"{address}/runs/{report.run.id}") as answer:
            assert b"lone ?" in answer.read(), "half of a surrogate pair is no reason not to show the page"
        for query, kind in kinds:
            with urllib.request.urlopen(f"{address}/runs/{report.run.id}/results.{kind}?{query}") as answer:
                servers[query, kind] = answer.read()
    with shown(tab, tmp_path / "run.html") as window:
        page = window.page
        for query, kind in kinds:
            page.goto(f"file://{tmp_path}/run.html#{query}")
            if query:
                page.locator(f"[data-shown='{urlencode(parse_qsl(query))}']").wait_for()
            with page.expect_download() as waiting:
                page.locator(f"[data-export={kind}]").click()
            assert waiting.value.suggested_filename == f"{report.run.id}.{kind}"
            ours[query, kind] = Path(waiting.value.path()).read_bytes()
        page.goto(f"file://{tmp_path}/run.html#q=nothing+has+these+words")
        page.get_by_text("No matches").wait_for()
        assert not page.locator("[data-export=csv]").is_visible()
    for key, content in servers.items():
        assert ours[key] == content, key
    assert all(content.count(b"\n") > 1 for (_, kind), content in servers.items() if kind == "csv")
