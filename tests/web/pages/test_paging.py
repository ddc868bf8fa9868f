"""Long lists come in pages: which rows a page has, where its links lead, and what a page that is not there shows."""

import html
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.browser import serve
from support.sample_run import RUN, SUMMARY, make_case, make_judged

from geval_cli.extras.web.pages.label import LABELS_PER_PAGE
from geval_cli.extras.web.pages.routing import page_count, page_shown
from geval_cli.extras.web.pages.run import RUNS_PER_PAGE
from geval_cli.records import Status
from geval_cli.report.sanitize import output_digest
from geval_cli.store.runs import RunOrigin, RunStore, StoredLabel, config_file

CONFIG = "a & b.yaml"
RUNS, TAGGED, OF_CONFIG = 2 * RUNS_PER_PAGE + 1, RUNS_PER_PAGE + 3, RUNS_PER_PAGE
LABELS, OF_METRIC = 2 * LABELS_PER_PAGE, LABELS_PER_PAGE + 1
METRIC = "tone & <i>voice</i>"


@dataclass(frozen=True)
class Site:
    """A served folder with many runs, and many labels of the first of them."""

    folder: Path
    address: str

    def page(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return str(answer.read().decode())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("paged")
    runs = RunStore.open(folder / ".geval")
    for number in range(RUNS):
        name = CONFIG if number < OF_CONFIG else "other.yaml"
        run = replace(
            RUN,
            id=run_id(number),
            started_at=f"2026-11-{1 + number // 24:02}T{number % 24:02}:00:00.000+00:00",
            config_path=name,
            tags={"why": "a & b"} if number < TAGGED else {},
        )
        runs.begin(run, RunOrigin(config_file(folder / name), 0, {}))
        labels = list(stored_labels(runs)) if number == 0 else []
        runs.finish(run, SUMMARY)
        runs.labels().put(run.id, labels)
    runs.close()
    with serve(folder, token=None) as address:
        yield Site(folder, address)


def run_id(number: int) -> str:
    return f"20261101-000000-{number:04}"


def stored_labels(runs: RunStore) -> Iterator[StoredLabel]:
    """Store the cases of the first run, and yield a label of each; half of them are of another metric."""
    for number in range(LABELS):
        metric = METRIC if number < OF_METRIC else "consistency"
        score = 0.5 + number / 1000
        case = make_case(
            number,
            assertions=(make_judged(Status.PASSED, score, metric=metric),),
            named_scores={metric: score},
        )
        digest = output_digest(case.output)
        row = {"id": case.id, "metric": metric, "label": 1.0, "output_sha256": digest, "annotator": "ana"}
        runs.add(run_id(0), case)
        yield StoredLabel(case.id, metric, "ana", digest, row)


def listed_runs(page: str) -> list[str]:
    return re.findall(r'id="run-([^"]+)"', page)


def listed_labels(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a class="mono" href="[^"]*">([^<]*)', page)


def turned(page: str) -> tuple[str, dict[str, str]]:
    """Return where a page says that it is, and where Previous and Next lead."""
    found = re.search(r'<nav class="pages"[^>]*>(.*?)</nav>', page, re.DOTALL)
    if found is None:
        return "", {}
    said = re.search(r"Page [\d,]+ of [\d,]+", found[1])
    assert said is not None
    links = re.findall(r'rel="(\w+)" href="([^"]*)"', found[1])
    return said[0], {rel: html.unescape(href) for rel, href in links}


@pytest.mark.parametrize(
    ("total", "count", "shown"),
    [(0, 1, (1, 1)), (1, 1, (1, 1)), (50, 1, (1, 1)), (51, 2, (1, 2)), (100, 2, (1, 2)), (101, 3, (1, 3))],
)
def test_there_are_as_many_pages_as_it_takes(total: int, count: int, shown: tuple[int, int]) -> None:
    assert page_count(total, 50) == count
    assert (page_shown(1, total, 50), page_shown(999_999_999, total, 50)) == shown


class TestListOfRuns:
    def test_pages_have_every_run_once_newest_first(self, site: Site) -> None:
        path, seen = "/", []
        for number in (1, 2, 3):
            page = site.page(path)
            said, links = turned(page)
            seen += listed_runs(page)
            assert said == f"Page {number} of 3"
            assert links.keys() == {"next", "prev"} - (
                {"prev"} if number == 1 else {"next"} if number == 3 else set()
            )
            path = links.get("next", "")
        assert seen == [run_id(number) for number in reversed(range(RUNS))]

    @pytest.mark.parametrize("asked", ["3", "4", "999999999"])
    def test_beyond_the_end_is_the_last_page(self, site: Site, asked: str) -> None:
        page = site.page(f"/?page={asked}")
        assert listed_runs(page) == [run_id(0)]
        assert turned(page) == ("Page 3 of 3", {"prev": "/?page=2"})

    @pytest.mark.parametrize("asked", ["0", "-1", "x", "1e3", "9" * 30, ""])
    def test_no_number_is_the_first_page(self, site: Site, asked: str) -> None:
        assert turned(site.page(f"/?page={asked}"))[0] == "Page 1 of 3"

    def test_a_filter_is_kept(self, site: Site) -> None:
        chosen = urllib.parse.urlencode({"tag": "why=a & b"})
        first = site.page(f"/?{chosen}")
        said, links = turned(first)
        last = site.page(links["next"])
        assert said == "Page 1 of 2"
        assert listed_runs(first) + listed_runs(last) == [
            run_id(number) for number in reversed(range(TAGGED))
        ]
        assert turned(last) == ("Page 2 of 2", {"prev": f"/?{chosen}&page=1"})
        assert listed_runs(site.page(f"/?{chosen}&page=9")) == listed_runs(last)

    def test_two_filters_are_kept(self, site: Site) -> None:
        chosen = urllib.parse.urlencode([("config", "other.yaml"), ("tag", "why=a & b")])
        page = site.page(f"/?{chosen}&page=2")
        assert listed_runs(page) == [run_id(number) for number in reversed(range(OF_CONFIG, TAGGED))]
        assert turned(page) == ("", {})

    def test_one_page_has_no_links_to_others(self, site: Site) -> None:
        page = site.page(f"/?{urllib.parse.urlencode({'config': CONFIG})}")
        assert len(listed_runs(page)) == OF_CONFIG == RUNS_PER_PAGE
        assert turned(page) == ("", {})


class TestLabels:
    PATH = f"/runs/{run_id(0)}/labels"

    def test_pages_have_every_label_once_the_furthest_apart_first(self, site: Site) -> None:
        first = site.page(self.PATH)
        said, links = turned(first)
        last = site.page(links["next"])
        assert said == "Page 1 of 2"
        assert links == {"next": f"{self.PATH}?page=2"}
        assert listed_labels(first) + listed_labels(last) == [f"{number}-0" for number in range(LABELS)]
        assert turned(last) == ("Page 2 of 2", {"prev": f"{self.PATH}?page=1"})
        assert f"{LABELS} labels" in first
        assert f"{LABELS} labels" in last

    @pytest.mark.parametrize("asked", ["3", "999999999"])
    def test_beyond_the_end_is_the_last_page(self, site: Site, asked: str) -> None:
        page = site.page(f"{self.PATH}?page={asked}")
        assert turned(page) == ("Page 2 of 2", {"prev": f"{self.PATH}?page=1"})
        assert len(listed_labels(page)) == LABELS - LABELS_PER_PAGE

    def test_the_metric_is_kept(self, site: Site) -> None:
        chosen = urllib.parse.urlencode({"metric": METRIC})
        said, links = turned(site.page(f"{self.PATH}?{chosen}"))
        last = site.page(links["next"])
        assert said == "Page 1 of 2"
        assert listed_labels(last) == [f"{OF_METRIC - 1}-0"]
        assert turned(last) == ("Page 2 of 2", {"prev": f"{self.PATH}?{chosen}&page=1"})
        assert f"{OF_METRIC} labels" in last

    def test_one_page_has_no_links_to_others(self, site: Site) -> None:
        page = site.page(f"{self.PATH}?metric=consistency&page=2")
        assert len(listed_labels(page)) == LABELS - OF_METRIC
        assert turned(page) == ("", {})

    def test_no_labels_are_no_pages(self, site: Site) -> None:
        for path in (f"/runs/{run_id(1)}/labels?page=2", f"{self.PATH}?metric=none&page=2"):
            page = site.page(path)
            assert listed_labels(page) == []
            assert turned(page) == ("", {})
