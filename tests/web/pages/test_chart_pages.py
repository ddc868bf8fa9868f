"""The pages with drawings as a server sends them: what they show, and where their marks lead."""

import html
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.browser import serve
from support.realistic_runs import Shape, store_history, store_labels
from support.sample_run import RUN, make_case, make_report
from support.stored_runs import hostile_tests, store_run, write_config

from geval_cli.extras.compare.comparison import paired_cases
from geval_cli.extras.compare.matching import match_columns
from geval_cli.extras.html.charts import SCORE
from geval_cli.extras.run_pages import RunPages
from geval_cli.extras.web.pages.compare import KeptFigures, compared
from geval_cli.extras.web.pages.routing import RecentResults
from geval_cli.records import CaseResult, RunStatus, RunSummary
from geval_cli.report.report import RunReport, write_results_file
from geval_cli.runs.stored import load_report
from geval_cli.store.runs import RunStore

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Site:
    """A served folder with two whole runs of one config, labels of the last, and one that did not end."""

    folder: Path
    address: str
    runs: tuple[str, ...]

    def page(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    def results(self, run: str, query: str) -> list[dict[str, Any]]:
        """The results that an address of a run's page chooses."""
        return [json.loads(line) for line in self.page(f"/runs/{run}/results.jsonl?{query}").splitlines()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("charts")
    shape = Shape(tests=6)
    runs = store_history(folder, shape, 2)
    store_labels(folder, runs[-1], shape)
    with serve(folder, token=None) as address:
        yield Site(folder, address, tuple(runs))


def drawings(page: str) -> dict[str, ElementTree.Element]:
    """The drawings of a page by the name that begins their ids."""
    found = [ElementTree.fromstring(text) for text in re.findall(r"<svg xmlns.*?</svg>", page, re.DOTALL)]
    return {item.attrib["aria-labelledby"].split()[0].removesuffix("-title"): item for item in found}


def rows_found(page: str) -> int:
    return int(re.findall(r"data-found>([\d,]+) test", page)[0].replace(",", ""))


def test_all_drawings_of_a_run_are_there(site: Site) -> None:
    page = site.page(f"/runs/{site.runs[-1]}/charts")
    names = {"leaderboard", "cost", "latency", "scores-1", "repeats", "spreads", "people-1", "calibration-1"}
    assert names <= drawings(page).keys()
    assert '<table class="table is-tight heat">' in page
    assert page.count("<details") == page.count("<summary>Figures</summary>") > 1


def test_every_mark_leads_to_as_many_results_as_it_says(site: Site) -> None:
    run = site.runs[-1]
    page = site.page(f"/runs/{run}/charts")
    checked = 0
    for name, drawing in drawings(page).items():
        marks = list(drawing.iter(f"{SVG}a"))
        assert marks, f"{name} leads nowhere"
        for mark in marks[:: len(marks) // 4 + 1]:
            href = urlsplit(mark.attrib["href"])
            assert href.path == f"/runs/{run}"
            fitting = site.results(run, href.query)
            assert count_said(name, mark.attrib["aria-label"]) == counted(name, fitting), mark.attrib
            assert rows_found(site.page(mark.attrib["href"])) == len({item["test_index"] for item in fitting})
            checked += 1
    assert checked > 20


def count_said(name: str, label: str) -> int:
    """How many results, or how many tests of repeats, a mark says that it stands for."""
    if name == "spreads":
        return label.rpartition(": ")[2].count(",") + 1
    pattern = {
        "leaderboard": r"of (\d+) case",
        "repeats": r": (\d+) test",
        "people": r"^(\d+) output",
        "calibration": r"of (\d+) output",
        "scores": r": (\d+) score",
    }.get(name.partition("-")[0])
    return -1 if pattern is None else int(re.findall(pattern, label)[0])


def counted(name: str, results: list[dict[str, Any]]) -> int:
    """The same of the results that a mark leads to; -1 of drawings whose marks say no number."""
    match name.partition("-")[0]:
        case "cost" | "latency":
            return -1
        case "repeats":
            return len({item["test_index"] for item in results})
        case "leaderboard":
            return sum(item["status"] in {"passed", "failed"} for item in results)
    return len(results)


def test_every_mark_of_a_comparison_leads_to_its_cases(site: Site) -> None:
    before, after = site.runs[-2:]
    both = f"before={before}&after={after}"
    found = drawings(site.page(f"/compare/charts?{both}"))
    assert found
    for name, drawing in found.items():
        marks = [mark.attrib["href"] for mark in drawing.iter(f"{SVG}a")]
        assert marks, f"{name} leads nowhere"
        assert "The page" not in site.page(marks[0])
    column = next(iter(found["intervals-1"].iter(f"{SVG}a"))).attrib["href"]
    assert "Of one column" in site.page(column)


def test_cases_of_a_comparison_are_chosen_by_their_scores(site: Site) -> None:
    before, after = site.runs[-2:]
    path = f"/compare?before={before}&after={after}&metric=tone"
    ends = ("before_low=0.7", "before_high=0.7"), ("after_low=0.6", "after_high=0.6")
    counts = [cases_found(site.page(f"{path}&{first}&{second}")) for first in ends[0] for second in ends[1]]
    assert all(counts)
    with_tone = cases_found(site.page(f"{path}&before_low=-1&after_low=-1"))
    assert sum(counts) == with_tone < cases_found(site.page(path))
    page = html.unescape(site.page(f"{path}&before_low=0.5&before_high=0.7&after_low=0.6&change=fixed"))
    assert '<strong dir="auto">tone from 0.50 to below 0.70 before, from 0.60 after</strong>' in page
    tabs = "&metric=tone&before_low=0.5&before_high=0.7&after_low=0.6"
    assert f'href="/compare?before={before}&after={after}{tabs}"' in page
    for senseless in ("before_low=x", "after_high=nan", "metric="):
        assert site.page(f"/compare?before={before}&after={after}&{senseless}")


def test_a_comparison_reads_each_run_once(site: Site) -> None:
    """Of large runs it is what one waits for."""
    read: list[str] = []

    def counted(report: RunReport) -> RunReport:
        def results() -> Iterator[CaseResult]:
            read.append(report.run.id)
            return report.results()

        return replace(report, results=results)

    with closing(RunStore.open(site.folder / ".geval")) as runs:
        before, after = (counted(load_report(runs, name)) for name in site.runs[-2:])
        recent: RecentResults[Any, Any] = RecentResults(1)
        request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(comparisons=recent)))
        decided, cases = compared(request, before, after)  # type: ignore[arg-type]
        assert compared(request, before, after) == (decided, cases)  # type: ignore[arg-type]
        verdicts = [RunPages(runs).verdicts(name) for name in site.runs[-2:]]
    assert read == list(site.runs[-2:])
    assert decided.paired == 6
    match = match_columns(before.run.columns, after.run.columns)
    assert cases.counts() == paired_cases(*verdicts, match).counts()


def cases_found(page: str) -> int:
    return int(re.findall(r'id="cases">([\d,]+) case', page)[0].replace(",", ""))


def test_run_page_says_what_was_chosen_and_keeps_it(site: Site) -> None:
    run = site.runs[-1]
    page = site.page(f"/runs/{run}?column=1&metric=tone&low=0.5&high=0.75")
    said = html.unescape(page)
    assert re.search(
        r"only those <strong[^>]*>in friendly × gpt-4.1-mini with a score from 0.50 to below 0.75</strong>",  # noqa: RUF001
        said,
    )
    assert '<input type="hidden" name="low" value="0.5">' in page
    assert f"/runs/{run}/results.csv?metric=tone&column=1&low=0.5&high=0.75" in said
    assert f'href="/runs/{run}/charts"' in page


@pytest.mark.parametrize(
    "query", ["column=x", "column=-1", "low=nan", "high=inf", "low=1e999", "column=99999999999"]
)
def test_senseless_choices_are_passed_over(site: Site, query: str) -> None:
    run = site.runs[-1]
    assert rows_found(site.page(f"/runs/{run}?{query}")) == rows_found(site.page(f"/runs/{run}"))


def test_hostile_names_stay_text(site: Site) -> None:
    run = store_run(
        write_config(
            site.folder, "hostile.json", hostile_tests(), prompts=["</svg><script>x</script>{{ x }}"]
        )
    )
    page = site.page(f"/runs/{run}/charts")
    assert drawings(page)
    assert "<script>x" not in page
    assert page.count("<script") == 3


def test_figures_are_counted_once_until_the_run_changes(tmp_path: Path) -> None:
    store = RunStore.open(tmp_path)
    store.begin(RUN)
    store.add(RUN.id, make_case(0)).result()
    pages, kept = RunPages(store), KeptFigures()
    report = make_report(run=RUN, summary=RunSummary(total=1, passed=1))
    first = kept.of(report, pages)
    assert kept.of(report, pages) is first
    store.add(RUN.id, make_case(1)).result()
    resumed = replace(report, summary=RunSummary(total=2, passed=2))
    assert kept.of(resumed, pages).scores[SCORE][0].n == 2
    running = replace(report, run=replace(RUN, status=RunStatus.RUNNING))
    assert kept.of(running, pages) is not kept.of(running, pages)
    for number in range(20):
        kept.of(replace(report, run=replace(RUN, id=f"run {number}")), pages)
    assert kept.of(report, pages) is not first
    store.close()


def test_short_id_leads_to_the_whole_one(site: Site) -> None:
    assert drawings(site.page("/runs/latest/charts")).keys()


def test_report_draws_the_judge_against_people(site: Site, tmp_path: Path) -> None:
    with closing(RunStore.open(site.folder / ".geval")) as runs:
        report = load_report(runs, site.runs[-1])
        write_results_file(tmp_path / "labelled.html", report)
        write_results_file(tmp_path / "plain.html", load_report(runs, site.runs[-2]))
    labelled, plain = ((tmp_path / name).read_text("utf-8") for name in ("labelled.html", "plain.html"))
    page = drawings(site.page(f"/runs/{report.run.id}/charts"))
    found = drawings(labelled)
    assert found.keys() == page.keys()
    for name in ("people-1", "calibration-1"):
        ours, servers = (
            [mark.attrib["aria-label"] for mark in item[name].iter(f"{SVG}a")] for item in (found, page)
        )
        assert ours == servers
        assert ours
    assert "people-1" not in drawings(plain)
