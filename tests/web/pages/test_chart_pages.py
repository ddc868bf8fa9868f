"""The pages with drawings as a server sends them: what they show, and where their marks lead."""

import html
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from support.browser import serve
from support.realistic_runs import Shape, store_history, store_labels
from support.sample_run import RUN, make_case, make_report
from support.stored_runs import hostile_tests, store_run, write_config

from geval_cli.records import RunStatus, RunSummary
from geval_cli.report.charts.figures import SCORE
from geval_cli.store.runs import RunStore
from geval_cli.web.pages.charts import KeptFigures


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
    return int(re.findall(r"data-found>([\d,]+) row", page)[0].replace(",", ""))


def test_all_drawings_of_a_run_are_there(site: Site) -> None:
    page = site.page(f"/runs/{site.runs[-1]}/charts")
    names = {"leaderboard", "cost", "latency", "scores-1", "repeats", "spreads", "people-1", "calibration-1"}
    assert names <= drawings(page).keys()
    assert '<table class="heat">' in page
    assert page.count("<details") == page.count("chart-figures-frame")


def test_every_mark_leads_to_as_many_results_as_it_says(site: Site) -> None:
    run = site.runs[-1]
    page = site.page(f"/runs/{run}/charts")
    marks = list(drawings(page)["scores-1"].iter("{http://www.w3.org/2000/svg}a"))
    assert marks
    for mark in marks[:: len(marks) // 5]:
        href = urlsplit(mark.attrib["href"])
        assert href.path == f"/runs/{run}"
        assert set(parse_qs(href.query)) == {"column", "metric", "low", "high"}
        [count] = re.findall(r": (\d+) score", mark.attrib["aria-label"])
        assert rows_found(site.page(mark.attrib["href"])) == int(count)


def test_run_page_says_what_was_chosen_and_keeps_it(site: Site) -> None:
    run = site.runs[-1]
    page = site.page(f"/runs/{run}?column=1&metric=tone&low=0.5&high=0.75")
    said = html.unescape(page)
    assert re.search(
        r"only those <strong[^>]*>in friendly \| gpt-4.1-mini with a score from 0.50 to below 0.75</strong>",
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
    pages, kept = store.pages(), KeptFigures()
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
