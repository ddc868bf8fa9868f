"""The pages as a server sends them, without a browser."""

import csv
import dataclasses
import gzip
import hashlib
import html
import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.browser import serve
from support.geval_command import run_geval
from support.pictures import BLUE, data_url, png
from support.realistic_runs import COLUMNS, Shape, store_history, store_labels, store_realistic_run
from support.recordings import wav
from support.sample_run import RUN, SUMMARY, make_case, make_judged
from support.stored_runs import HOSTILE, hostile_tests, store_judged_run, store_run, write_config

from geval_cli.extras.trust.labelling import labels_kept_for
from geval_cli.extras.trust.true_differences import compare as corrected_by_labels
from geval_cli.extras.web.pages.compare import text_difference
from geval_cli.numbers import format_points
from geval_cli.records import ErrorInfo, GitState, Role, RunStatus, RunSummary, Status, TraceStep, Turn, Usage
from geval_cli.store.runs import RunOrigin, RunStore, config_file


@dataclass(frozen=True)
class Site:
    """A served folder."""

    folder: Path
    address: str

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        try:
            request = urllib.request.Request(self.address + path, headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def page(self, path: str) -> str:
        status, text = self.get(path)
        assert status == 200
        return text


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name == "style" or name.startswith("on")]


def text_of(page: str) -> str:
    """What a reader sees, in one line."""
    parser = _Text()
    parser.feed(page)
    return " ".join(" ".join(parser.parts).split())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with serve(tmp_path, token=None) as address:
        yield Site(tmp_path, address)


class TestRuns:
    def test_empty_folder_says_how_to_begin(self, site: Site) -> None:
        text = text_of(site.page("/"))
        assert "No runs yet" in text
        assert "geval run gevalconfig.yaml" in text

    def test_list_is_newest_first_with_rate_and_counts(self, site: Site) -> None:
        first, last = (store_judged_run(site.folder, good=good) for good in (("one",), ("one", "two")))
        page = site.page("/")
        assert page.index(f'id="run-{last}"') < page.index(f'id="run-{first}"')
        text = text_of(page)
        assert "2 runs" in text
        assert "4 passed 0 failed 2 errors" in text
        assert "2 passed 2 failed 2 errors" in text

    def test_pass_rates_of_a_config_are_drawn(self, site: Site) -> None:
        for good in (("one",), ("one", "two")):
            store_judged_run(site.folder, good=good)
        said = text_of(site.page("/"))
        assert re.search(r"2 runs: 50 % on [-\d]+ [:\d]+, 100 % on [-\d]+ [:\d]+", said)

    def test_one_config_alone(self, site: Site) -> None:
        store_run(write_config(site.folder, "a.json", [{"vars": {"x": "a"}}]))
        store_run(write_config(site.folder, "b.json", [{"vars": {"x": "b"}}]))
        page = site.page(f"/?config={site.folder / 'a.json'}")
        assert "1 run " in text_of(page)
        assert "b.json" not in page

    def test_a_config_is_one_however_it_was_typed(self, site: Site) -> None:
        """The command is given its name in a folder, the page its whole path."""
        whole = str(site.folder / "a & b.yaml")
        runs = RunStore.open(site.folder / ".geval")
        for number, typed in enumerate(("a & b.yaml", whole, "other.yaml")):
            run = replace(RUN, id=f"20261101-000000-{number}", config_path=typed)
            runs.begin(run, RunOrigin(config_file(site.folder / typed), 10, {}))
            runs.finish(run, SUMMARY)
        runs.close()
        assert "Pass rate: a & b.yaml 2 runs: 86 % on " in text_of(site.page("/"))
        page = site.page("/runs/20261101-000000-0")
        [link] = re.findall(r'<a dir="auto" href="(/\?config=[^"]*)">', page)
        assert "2 runs Newest first" in text_of(site.page(html.unescape(link)))
        listed = json.loads(site.page(f"/api/runs?{urllib.parse.urlencode({'config': whole})}"))
        assert [item["run"]["id"] for item in listed["runs"]] == ["20261101-000000-1", "20261101-000000-0"]

    @pytest.mark.parametrize(
        ("warning", "shown"),
        [
            (
                "it does not take `seed`, but `n`",
                'it does not take <code class="mono">seed</code>, but <code class="mono">n</code>',
            ),
            ("half of `a pair", "half of `a pair"),
            ("a `<b>` tag", 'a <code class="mono">&lt;b&gt;</code> tag'),
        ],
    )
    def test_names_in_warnings_are_code(self, site: Site, warning: str, shown: str) -> None:
        runs = RunStore.open(site.folder / ".geval")
        runs.begin(replace(RUN, warnings=(warning,)))
        runs.finish(replace(RUN, warnings=(warning,)), SUMMARY)
        runs.close()
        assert f'<span dir="auto">{shown}</span>' in site.page(f"/runs/{RUN.id}")

    def test_nothing_judged_has_no_rate(self, site: Site) -> None:
        store_run(write_config(site.folder, "a.json", [{"vars": {"x": "a"}}]))
        assert "n/a" in text_of(site.page("/"))


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str, str]]:
    """Two runs of one suite with tags; the later one has a title and a commit."""
    folder = tmp_path_factory.mktemp("facts")
    tests = [{"vars": {"x": "a"}, "assert": [{"type": "contains", "value": "a"}]}]
    keys = {"description": "A suite <b>of</b> one", "gates": ["pass_rate >= 0.5"]}
    config = write_config(folder, "facts.json", tests, **keys)
    first = store_run(config, tags={"stage": "1", "owner": "Zoë & co"})
    second = store_run(config, tags={"stage": "2"})
    runs = RunStore.open(folder / ".geval")
    run = runs.find(second).run
    runs.begin(replace(run, git=GitState("0f3c9a1d2b4e", branch="main", dirty=True), judges=("judge",)))
    runs.finish(replace(runs.find(second).run), RunSummary(total=1, passed=1, pass_rate=1.0))
    runs.annotate(second, "The <i>good</i> one", {"stage": "2"})
    runs.close()
    with serve(folder, token=None) as address:
        yield Site(folder, address), first, second


class TestFacts:
    """What `geval list` has, the page of runs has too."""

    def test_stand_in_the_list(self, listed: tuple[Site, str, str]) -> None:
        text = text_of(listed[0].page("/"))
        assert "The <i>good</i> one" in text
        assert "0f3c9a1d2 dirty" in text
        assert "A suite <b>of</b> one" in text
        assert "echo judged by judge" in text
        assert "1 of 1 gate met" in text
        assert "owner=Zoë & co" in text

    def test_a_tag_narrows_the_list(self, listed: tuple[Site, str, str]) -> None:
        site, first, second = listed
        page = site.page("/?tag=stage=1")
        assert f'id="run-{first}"' in page
        assert f'id="run-{second}"' not in page
        assert 'href="/?tag=stage%3D1&amp;tag=owner%3DZo%C3%AB+%26+co"' in page
        assert "No runs match" in site.page("/?tag=stage=1&tag=stage=2")
        assert site.get("/?tag=nonsense")[0] == 200

    def test_lead_from_a_run_to_its_suite_and_its_tags(self, listed: tuple[Site, str, str]) -> None:
        site, _, second = listed
        page = site.page(f"/runs/{second}")
        assert 'href="/suites/edit?path=facts.json"' in page
        assert 'href="/?tag=stage%3D2"' in page
        assert "0f3c9a1d2 dirty" in text_of(page)


class TestRun:
    def test_all_four_statuses_stand_in_words(self, site: Site) -> None:
        runs = RunStore.open(site.folder / ".geval")
        run = replace(RUN, config_path="gone.yaml")
        runs.begin(run)
        for number, status in enumerate(Status):
            runs.add(run.id, make_case(number, status=status, score=None)).result()
        runs.finish(run, RunSummary(total=4, passed=1, failed=1, errored=1, not_evaluated=1, pass_rate=0.5))
        runs.close()
        page = site.page(f"/runs/{run.id}")
        for status, word in zip(Status, ("Passed", "Failed", "Error", "Not evaluated"), strict=True):
            assert f'href="#icon-{status}"' in page
            assert f'<span class="status-word">{word}</span>' in page
        assert "gone.yaml no longer exists" in text_of(page)

    def test_id_may_be_short_or_latest(self, site: Site) -> None:
        run = store_judged_run(site.folder)
        assert run in site.page("/runs/latest?status=passed")
        assert run in site.page(f"/runs/{run[:-1]}")

    def test_unknown_run_is_a_page(self, site: Site) -> None:
        status, page = site.get("/runs/nothing")
        assert status == 404
        assert "there is no run nothing" in text_of(page)

    @pytest.mark.parametrize(
        ("query", "tests"),
        [
            ("", "1 2 3"),
            ("?status=failed", "2"),
            ("?status=error", "3"),
            ("?status=nonsense&page=x&sort=x", "1 2 3"),
            ("?metric=coherence", "1 2"),
            ("?metric=coherence&status=failed", "2"),
            ("?metric=nothing", ""),
            ("?q=FINE", "1"),
            ("?q=test%20two", "2"),
            ("?sort=status", "2 3 1"),
            ("?sort=score", "2 1 3"),
            ("?metric=coherence&sort=score", "2 1"),
        ],
    )
    def test_filters_and_orders(self, judged: Site, query: str, tests: str) -> None:
        page = judged.page(f"/runs/latest{query}")
        assert " ".join(re.findall(r'test-number mono">(\d+)<', page)) == tests

    @pytest.mark.parametrize(
        ("query", "tests"), [("", [0, 0, 1, 1, 2, 2]), ("?status=failed", [1, 1]), ("?q=nothing", [])]
    )
    def test_what_is_filtered_is_exported(self, judged: Site, query: str, tests: list[int]) -> None:
        lines = judged.page(f"/runs/latest/results.jsonl{query}").splitlines()
        assert [json.loads(line)["test_index"] for line in lines] == tests
        rows = list(
            csv.DictReader(
                judged.page(f"/runs/latest/results.csv{query}").removeprefix("\ufeff").splitlines()
            )
        )
        assert [int(row["test"]) - 1 for row in rows] == tests

    def test_unknown_export_is_a_page(self, judged: Site) -> None:
        status, page = judged.get("/runs/latest/results.exe")
        assert status == 404
        assert "use csv or jsonl" in text_of(page)

    def test_score_of_a_metric_is_shown(self, judged: Site) -> None:
        assert "Passed 0.90" in text_of(judged.page("/runs/latest?metric=coherence"))
        assert "Passed 0.97" in text_of(judged.page("/runs/latest"))

    def test_summary_has_metric_means_with_n_and_errors(self, judged: Site) -> None:
        text = text_of(judged.page("/runs/latest"))
        assert "coherence 0.53" in text
        assert "2 failed 2 errors 2 passed 0 not evaluated" in text

    def test_derived_metrics_are_shown_for_each_column_and_over_all(self, site: Site) -> None:
        checks = [{"type": "contains", "value": "a", "metric": "has_a"}]
        tests = [{"vars": {"x": "a<b>"}, "assert": checks}]
        derived = [{"name": "double", "value": "has_a * 2"}]
        keys = {"prompts": ["{{ x }}", "b"], "derivedMetrics": derived}
        store_run(write_config(site.folder, "derived.json", tests, **keys))
        text = text_of(site.page("/runs/latest"))
        assert "Derived metric Of Value double {{ x }} 2.00 double b 0.00 double all cases 2.00" in text

    def test_rows_come_in_pages(self, site: Site) -> None:
        tests = [{"vars": {"x": f"word {number}"}} for number in range(120)]
        store_run(write_config(site.folder, "many.json", tests))
        page = site.page("/runs/latest?page=3")
        assert "Page 3 of 3" in text_of(page)
        assert page.count("data-cell>") == 20
        assert "No matches" not in page

    @pytest.mark.parametrize(
        "path", ["/runs/latest?", "/runs/latest/results?", "/compare?before={0}&after={0}&"]
    )
    def test_a_page_beyond_the_last_one_is_the_last_one(self, site: Site, path: str) -> None:
        path = path.format(store_words(site.folder, range(60)))
        assert "Page 2 of 2" in text_of(site.page(f"{path}page=99"))
        assert text_of(site.page(f"{path}page=99")) == text_of(site.page(f"{path}page=2"))

    @pytest.mark.parametrize("place", ["", "/results/0/0/0", "/label", "/labels", "/charts"])
    def test_a_named_run_has_its_name_on_every_page(self, site: Site, place: str) -> None:
        run = store_words(site.folder, range(2))
        runs = RunStore.open(site.folder / ".geval")
        runs.annotate(run, "Mine \u202e<b>", {})
        runs.close()
        page = site.page(f"/runs/{run}{place}")
        assert "Mine \\u202e<b>" in text_of(page)
        shown = re.sub(r'(value|data-run-title)="[^"]*"', "", page)  # what a form gives back is as it was
        assert "\u202e" not in shown

    def test_filter_that_fits_nothing_offers_the_way_back(self, judged: Site) -> None:
        assert "Show all results" in judged.page("/runs/latest?q=zebra")

    def test_run_that_was_killed_is_shown_as_interrupted(self, site: Site) -> None:
        runs = RunStore.open(site.folder / ".geval")
        runs.begin(replace(RUN, status=RunStatus.RUNNING, finished_at=None, duration_ms=None))
        runs.add(RUN.id, make_case()).result()
        runs.close()
        text = text_of(site.page(f"/runs/{RUN.id}"))
        assert "This run was interrupted" in text
        assert "of 1 judged case passed" in text
        assert "Interrupted" in text_of(site.page("/"))

    def test_run_of_another_process_is_shown_as_running(self, site: Site) -> None:
        runs = RunStore.open(site.folder / ".geval")
        runs.begin(replace(RUN, status=RunStatus.RUNNING, finished_at=None, duration_ms=None))
        page = site.page(f"/runs/{RUN.id}")
        runs.close()
        assert "data-live-run" in page
        assert "Waiting for the first result" in page


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One judged run: test one is good, two is poor, three cannot be answered."""
    folder = tmp_path_factory.mktemp("judged")
    store_judged_run(folder, good=("one",))
    with serve(folder, token=None) as address:
        yield Site(folder, address)


class TestCase:
    def test_everything_about_a_verdict(self, judged: Site) -> None:
        text = text_of(judged.page("/runs/latest/results/0/0/0"))
        assert "#1 test one" in text
        assert "Tell me about one." in text
        assert "a fine answer about one" in text
        assert "g-eval coherence 0.90 ≥ 0.50 (default)" in text
        assert "2 evaluation steps Read it. Rate it." in text
        assert "4.6 in 1 to 5 (logprobs, coverage 100 %)" in text
        assert "contains 1.00 weight 2" in text
        assert "Judge 2" in text

    def test_distribution_is_drawn_over_the_whole_scale(self, judged: Site) -> None:
        page = judged.page("/runs/latest/results/0/0/0")
        words = "rating 1: 0 %, rating 2: 0 %, rating 3: 10 %, rating 4: 20 %, rating 5: 70 %"
        assert f'aria-label="{words}"' in page

    def test_chat_prompt_is_shown_as_messages(self, judged: Site) -> None:
        text = text_of(judged.page("/runs/latest/results/0/0/1"))
        assert "system Be kind. user about one" in text

    def test_error_with_its_hint(self, judged: Site) -> None:
        text = text_of(judged.page("/runs/latest/results/2/0/0"))
        assert "ProviderUnavailableError" in text
        assert "overloaded" in text

    @pytest.mark.parametrize("place", ["9/0/0", "0/9/0", "0/0/9", "x/0/0", "0/-1/0", f"{'9' * 30}/0/0"])
    def test_no_result_in_this_place(self, judged: Site, place: str) -> None:
        status, page = judged.get(f"/runs/latest/results/{place}")
        assert status == 404
        assert "has no result here" in text_of(page)

    def test_details_from_anywhere(self, site: Site) -> None:
        """What stands in a result may come from an older version or be broken."""
        detail = {
            "distribution": {"a": "b"},
            "evaluation_steps": 7,
            "parts": [1],
            "rating": [],
            "odd": {"x": None},
        }
        error = ErrorInfo("JudgeParseError", "unreadable", "use another judge", "<b>raw</b>\x1b[0m")
        inner = make_judged(Status.ERROR, None, error=error)
        outer = make_judged(Status.FAILED, 0.2, detail=detail, reason="<i>why</i>", assertions=(inner,))
        runs = RunStore.open(site.folder / ".geval")
        runs.begin(RUN)
        runs.add(RUN.id, make_case(assertions=(outer,), output={"a": ["ü"]}, metadata={"tag": "x"})).result()
        runs.finish(RUN, RunSummary(total=1, passed=1))
        runs.close()
        text = text_of(site.page(f"/runs/{RUN.id}/results/0/0/0"))
        assert "<i>why</i>" in text
        assert r"<b>raw</b>\x1b[0m" in text
        assert "use another judge" in text
        assert '{ "a": [ "ü" ] }' in text

    def test_next_to_no_share_of_a_distribution_is_written_short(self, site: Site) -> None:
        shares = {"1": 2e-7, "2": 0.001, "3": 0.6, "4": 0.3989998, "5": 0.0}
        judged = make_judged(Status.PASSED, 0.6, detail={"distribution": shares})
        runs = RunStore.open(site.folder / ".geval")
        runs.begin(RUN)
        runs.add(RUN.id, make_case(assertions=(judged,))).result()
        runs.finish(RUN, RunSummary(total=1, passed=1))
        runs.close()
        page = site.page(f"/runs/{RUN.id}/results/0/0/0")
        said = "rating 1: &lt;0.1 %, rating 2: 0.1 %, rating 3: 60 %, rating 4: 40 %"
        assert f'aria-label="{said}' in page

    def test_hostile_text_stays_text(self, site: Site) -> None:
        store_run(write_config(site.folder, "hostile.json", hostile_tests()))
        tags = set()
        for number, text in enumerate(HOSTILE.values()):
            page = site.page(f"/runs/latest/results/{number}/0/0")
            parser = _Text()
            parser.feed(page)
            tags.update(parser.tags)
            if text.isprintable() and len(text) < 1000:
                assert text in "".join(parser.parts)
        assert "img" not in tags
        assert "\x1b" not in page


def store_words(folder: Path, failing: range) -> str:
    """A run of as many tests as the range ends at; those in it fail."""
    tests = [
        {
            "vars": {"x": f"word {number}"},
            "assert": [{"type": "contains", "value": "!" if number in failing else "word"}],
        }
        for number in range(failing.stop)
    ]
    return store_run(write_config(folder, "words.json", tests))


class TestCompare:
    def test_newly_failed_comes_first(self, site: Site) -> None:
        before = store_judged_run(site.folder, good=("one",))
        after = store_judged_run(site.folder, good=("two",))
        text = text_of(site.page(f"/compare?run={after}&run={before}"))
        assert "Tests are matched by content, columns by their label" in text
        assert text.index("Newly failed #1 test one") < text.index("Fixed #2 test two")
        assert text.index("Fixed #2 test two") < text.index("Same verdict #3 test three")
        assert "All 6 Newly failed 2 Fixed 2 Same verdict 2" in text

    def test_metric_means_of_both(self, site: Site) -> None:
        before = store_judged_run(site.folder, good=("one",))
        after = store_judged_run(site.folder, good=("one", "two"))
        text = text_of(site.page(f"/compare?before={before}&after={after}"))
        assert "coherence ? Undecided 0.53 0.90 +0.38" in text

    def test_one_change_alone(self, site: Site) -> None:
        before = store_judged_run(site.folder, good=("one",))
        after = store_judged_run(site.folder, good=("two",))
        text = text_of(site.page(f"/compare?before={before}&after={after}&change=fixed"))
        assert "#2 test two" in text
        assert "#1 test one" not in text

    def test_decision_is_that_of_the_command(self, site: Site) -> None:
        """Forty tests, of which three more pass, which decides nothing, or twelve, which do."""
        for fixed, verdict in ((3, "Undecided"), (12, "Better")):
            before, after = (store_words(site.folder, range(passed, 40)) for passed in (8, 8 + fixed))
            page = site.page(f"/compare?before={before}&after={after}")
            found = run_geval("compare", before, after, "--json", cwd=site.folder)
            row = json.loads(found.stdout)["rows"][0]
            text = text_of(page)
            assert row["verdict"] == verdict.lower()
            assert f"{verdict} {json.loads(found.stdout)['headline']}." in text
            interval = ", ".join(map(format_points, row["delta"]["interval"]))
            assert f"[{interval}]" in text
            assert "40 tests in both runs" in text
        assert "What this many tests can detect" in text
        swapped = text_of(site.page(f"/compare?before={after}&after={before}"))
        assert "Worse B is worse than A: pass rate = score 50 % to 20 % (-30 points, 95 % CI " in swapped

    def test_run_with_itself_is_identical(self, judged: Site) -> None:
        text = text_of(judged.page("/compare?before=latest&after=latest"))
        assert "coherence = Identical 0.53 0.53 0.00" in text
        assert (
            "Identical B is the same as A: every figure is identical in 2 tests." in text
        )  # the third is an error
        assert "No known change in prompts, models, judges, criteria, thresholds or tests." in text
        assert "Both sides are the same run." in text

    def test_decision_is_that_of_all_columns_together(self, site: Site) -> None:
        """What all columns show together, none of the four does alone."""
        before, after = (
            store_realistic_run(
                site.folder, Shape(tests=12, repeats=1, columns=COLUMNS[:4], drift=drift), number
            )
            for number, drift in enumerate((-0.15, 0.0), start=1)
        )
        page = site.page(f"/compare?before={before}&after={after}")
        found = json.loads(run_geval("compare", before, after, "--json", cwd=site.folder).stdout)
        rows = [row["verdict"] for row in found["rows"] if row["kind"] == "pass_rate"]
        text = text_of(page)
        assert found["overall"]["verdict"] == "better"
        assert rows == ["undecided"] * 4
        assert f"▲ Better {found['headline']}." in text
        assert "All columns together: pass rate " in text

    def test_unrelated_suites_are_refused_as_by_the_command(self, site: Site) -> None:
        before, after = (
            store_run(write_config(site.folder, f"{name}.json", [{"vars": {"x": name}}])) for name in "ab"
        )
        status, page = site.get(f"/compare?before={before}&after={after}")
        assert status == 422
        assert "the suites are unrelated: 0 of 1 test match" in text_of(page)
        found = run_geval("compare", before, after, cwd=site.folder)
        assert found.code == 2
        assert "the suites are unrelated: 0 of 1 test match" in found.stderr

    def test_flip_says_which_assertion_and_what_changed_in_the_output(self, site: Site) -> None:
        before = store_judged_run(site.folder, good=("one",))
        after = store_judged_run(site.folder, good=("two",))
        page = site.page(f"/compare?before={before}&after={after}&change=newly+failed&column=0")
        text = text_of(page)
        assert "Decided by g-eval coherence" in text
        assert "removed: fine added: poor answer removed: about one" in text
        assert page.count('class="pair"') == 1
        assert "Of one column; show all columns" in text

    def test_equal_outputs_that_are_judged_otherwise_are_told(self, site: Site) -> None:
        tests = [{"vars": {"x": "a"}, "assert": [{"type": "contains", "value": value}]} for value in "ab"]
        before, after = (store_run(write_config(site.folder, "c.json", [test])) for test in tests)
        text = text_of(site.page(f"/compare?before={before}&after={after}"))
        assert "The output is the same in both runs, but it was judged differently." in text

    def test_cases_come_in_pages(self, site: Site) -> None:
        run = store_words(site.folder, range(120))
        page = site.page(f"/compare?before={run}&after={run}&page=3")
        assert "Page 3 of 3" in text_of(page)
        assert page.count('role="listitem"') == 20

    @pytest.mark.parametrize("query", ["", "?before=latest", "?run=latest", "?run=latest&run=latest"])
    def test_two_runs_are_needed(self, judged: Site, query: str) -> None:
        status, page = judged.get(f"/compare{query}")
        assert status == 404
        assert "choose" in text_of(page)


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("a", "a", []),
        ("", "", []),
        ("the old way", "the new way", ["=the ", "-old", "+new", "= way"]),
        ("a", "", ["-a"]),
        ("", "日本語", ["+日本語"]),
        ("x" * 100_000, "y", []),
        ("a b " * 9000, "b c " * 9000, ["-" + "a b " * 9000, "+" + "b c " * 9000]),
        ("a\n" * 4000, "a\n" * 4000 + "b", ["=" + "a\n" * 4000, "+b"]),
    ],
)
def test_difference_of_texts(before: str, after: str, pieces: list[str]) -> None:
    signs = {"same": "=", "removed": "-", "added": "+"}
    found = text_difference(before, after)
    assert [signs[piece.kind] + piece.text for piece in found] == pieces
    if found:
        assert "".join(piece.text for piece in found if piece.kind != "added") == before
        assert "".join(piece.text for piece in found if piece.kind != "removed") == after


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nowhere/<b>", 404, "there is nothing at /nowhere/<b>"),
        ("/suites/edit", 422, "1 problem in the request: this is required"),
        ("/suites/check", 405, "GET is not possible at /suites/check"),
        ("/api/nowhere", 404, ""),
    ],
)
def test_what_is_not_there_is_a_page_for_a_browser_and_data_for_a_program(
    judged: Site, path: str, status: int, words: str
) -> None:
    program = judged.get(path)
    browser = judged.get(path, accept="text/html,application/xhtml+xml")
    assert (program[0], browser[0]) == (status, status)
    assert json.loads(program[1])["status"] == status
    if not words:
        assert browser == program
        return
    assert words in text_of(browser[1])
    assert "All runs" in text_of(browser[1])


class TestImages:
    def test_a_case_shows_its_images_while_their_files_are_the_same(self, site: Site) -> None:
        (site.folder / "pics").mkdir()
        (site.folder / "pics" / "a <b>.png").write_bytes(png())
        (site.folder / "pics" / "call.wav").write_bytes(wav())
        config = {
            "prompts": ["{{ photo }}"],
            "providers": ["echo"],
            "tests": [{"vars": {"photo": "file://pics/a <b>.png"}, "images": [data_url(png(BLUE))]}],
        }
        config["tests"][0]["audio"] = ["file://pics/call.wav"]
        (site.folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        assert run_geval("run", "config.yaml", cwd=site.folder).code == 0
        [run] = re.findall(r'id="run-([\w-]+)"', site.page("/"))
        page = site.page(f"/runs/{run}/results/0/0/0")
        assert "2 images" in text_of(page)
        assert "1 recording" in text_of(page)
        [sound] = [html.unescape(found) for found in re.findall(r'<audio src="([^"]+)"', page)]
        with urllib.request.urlopen(site.address + sound, timeout=60) as answer:
            assert (answer.read(), answer.headers["content-type"]) == (wav(), "audio/wav")
        size = len(wav())
        for asked, part in {
            "bytes=0-1": (0, 2),
            "bytes=2-": (2, size),
            f"bytes=4-{size * 2}": (4, size),
            "bytes=-3": (size - 3, size),
            f"bytes=-{size * 2}": (0, size),
        }.items():
            with urllib.request.urlopen(
                urllib.request.Request(site.address + sound, headers={"range": asked}), timeout=60
            ) as answer:
                said = f"bytes {part[0]}-{part[1] - 1}/{size}"
                assert (answer.status, answer.headers["content-range"]) == (206, said), asked
                assert answer.read() == wav()[slice(*part)], asked
        for asked in ("bytes=5-2", "bytes=-", "bytes=0-1,3-4", "seconds=0-1", "bytes=x-1"):
            with urllib.request.urlopen(
                urllib.request.Request(site.address + sound, headers={"range": asked}), timeout=60
            ) as answer:
                assert (answer.status, answer.read()) == (200, wav()), asked
        for asked in (f"bytes={size}-", "bytes=-0"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(
                    urllib.request.Request(site.address + sound, headers={"range": asked}), timeout=60
                )
            with refused.value as answer:
                assert (answer.code, answer.headers["content-range"]) == (416, f"bytes */{size}")
        [link] = [html.unescape(found) for found in re.findall(r'<img src="([^"]+)"', page)]
        with urllib.request.urlopen(site.address + link, timeout=60) as answer:
            assert answer.read() == png()
            assert answer.headers["content-type"] == "image/png"
            assert answer.headers["x-content-type-options"] == "nosniff"
        (site.folder / "pics" / "a <b>.png").write_bytes(png(BLUE))
        assert site.get(link)[0] == 404

    def test_nothing_but_an_image_with_this_hash_is_served(self, site: Site) -> None:
        run = store_judged_run(site.folder, good=("one",))
        (site.folder / "secret.png").write_bytes(b"secret")
        (site.folder / "true.png").write_bytes(png())
        outside = site.folder.parent / f"{site.folder.name}-outside.png"
        outside.write_bytes(png())
        (site.folder / "link.png").symlink_to(outside)
        digest, other = hashlib.sha256(png()).hexdigest(), hashlib.sha256(b"secret").hexdigest()
        names = [
            "true.png",
            "../" + outside.name,
            str(outside),
            "link.png",
            "secret.png",
            "config.yaml",
            "",
            "\0.png",
        ]
        found = {
            name: [
                site.get(f"/runs/{run}/media/{sha}?" + urllib.parse.urlencode({"name": name}))[0]
                for sha in (digest, other)
            ]
            for name in names
        }
        assert found == {"true.png": [200, 404], **{name: [404, 404] for name in names[1:]}}

    def test_a_checklist_is_shown_item_by_item(self, site: Site) -> None:
        for name in ("checklist.yaml", "replies/refund-judge.yaml"):
            (site.folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(Path(__file__).parents[3] / "examples" / "configs" / name, site.folder / name)
        run_geval("run", "checklist.yaml", cwd=site.folder)
        [run] = re.findall(r'id="run-([\w-]+)"', site.page("/"))
        text = text_of(site.page(f"/runs/{run}/results/1/0/0"))
        assert 'Says how much the refund is: yes, but "your refund in full" is not in the output' in text
        assert "Names no other shop: No other shop is named." in text
        label = {"id": "1.0.0", "metric": "refund reply", "label": "pass", "run_id": run}
        (site.folder / "labels.jsonl").write_text(json.dumps(label), encoding="utf-8")
        assert run_geval("label", run, "--import", "labels.jsonl", cwd=site.folder).code == 0
        said = text_of(site.page(f"/runs/{run}/labels"))
        assert re.search("refund reply \u2013 pass fail 0[.]\\d\\d 0[.]\\d\\d differ", said)


def test_a_case_shows_its_conversation_and_its_trace(site: Site) -> None:
    hostile = "<b>bold</b>\u202e"
    calls: tuple[dict[str, Any], ...] = (
        {"name": "search"},
        {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "t\\u00e9"}'}},
        {"type": "tool_use", "id": "c2", "name": "buy", "input": {"tea": "sencha " * 20}},
        {"odd": "<i>"},
    )
    turns = (
        Turn("user", "Tea?"),
        Turn("assistant", "", calls),
        Turn("tool", "None.", tool_call_id="c1"),
        Turn("assistant", hostile),
    )
    trace = (
        TraceStep("tool", "search", {"q": "tea"}, hostile, ms=20),
        TraceStep("tool", "buy", error="sold out <i>", ms=5),
        TraceStep("step", "plan"),
    )
    runs = RunStore.open(site.folder / ".geval")
    runs.begin(RUN)
    usage = {Role.GENERATION: Usage(requests=1, cached_requests=1)}
    case = make_case(0, turns=turns, trace=trace, usage=usage, cached=True, cost_usd_generated=0.41)
    runs.add(RUN.id, case).result()
    runs.finish(RUN, RunSummary(total=1, passed=1, pass_rate=1.0))
    runs.close()
    page = site.page(f"/runs/{RUN.id}/results/0/0/0")
    shown = text_of(page)
    bought = json.dumps({"tea": "sencha " * 20}, indent=2)
    called = f'calls search calls find {{"q": "t\u00e9"}} calls buy {bought} calls {{"odd": "<i>"}} tool find None.'
    assert f"Conversation user Tea? assistant {' '.join(called.split())} assistant <b>bold" in shown
    assert "Trace tool search 20 ms Arguments and result" in shown
    assert "tool buy failed 5 ms sold out <i>" in shown
    assert "step plan" in shown
    assert "$0.00, $0.41 when generated" in shown
    assert "<b>bold" not in page
    assert 'value="5.0" aria-label="5 ms of the longest 20 ms"' in page


def test_a_case_says_each_thing_once_and_what_failed_first(tmp_path: Path) -> None:
    """The conversation stands for the output and the prompt; the judges of a jury share one drawing."""
    turns = (Turn("user", "Tea?"), Turn("assistant", "Yes, green."))
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tea?"}]
    judges = [
        {
            "judge": f"judge {number}",
            "score": 0.2,
            "score_range": [1, 5],
            "distribution": {"1": share, "2": 1 - share},
        }
        for number, share in ((1, 0.4), (2, 0.8))
    ]
    assertions = (
        make_judged(Status.PASSED, 0.9, metric="tone", reason="kind"),
        make_judged(Status.FAILED, 0.2, metric="truth", detail={"judges": judges}),
    )
    prompt = replace(make_case().prompt, rendered=json.dumps(asked))
    said = {"prompt": prompt, "turns": turns, "output": "Yes, green.", "assertions": assertions}
    runs = RunStore.open(tmp_path / ".geval")
    runs.begin(RUN)
    for test, status in enumerate((Status.FAILED, Status.PASSED, Status.ERROR)):
        runs.add(RUN.id, make_case(test, status=status, **said)).result()
    runs.finish(RUN, RunSummary(total=3, passed=1, failed=1, errored=1))
    runs.close()
    with serve(tmp_path, token=None) as address:
        path = f"/runs/{RUN.id}/results"
        page, middle = (Site(tmp_path, address).page(f"{path}/{test}/0/0") for test in (0, 1))
    text = text_of(page)
    assert [text.count(words) for words in ("Tea?", "Be brief.", "kind")] == [1, 1, 2]
    outputs = re.findall(r"<pre([^>]*)>Yes, green.</pre>", page)
    assert [" hidden" in attributes for attributes in outputs] == [False, True]
    assert re.findall(r'role="img" aria-label="([^"]*)"', page) == [
        "rating 1: 60 %, rating 2: 40 %, rating 3: 0 %, rating 4: 0 %, rating 5: 0 %"
    ]
    assert text.index("truth") < text.index("tone")
    assert re.findall(r'href="([^"]*)" data-key="([np])"', middle) == [
        (f"{path}/2/0/0", "n"),
        (f"{path}/0/0/0", "p"),
    ]


def test_texts_are_sent_compressed_but_not_to_other_sites_pages(tmp_path: Path) -> None:
    """How well a page compresses tells what is in it to somebody who can put words into it."""
    run = store_judged_run(tmp_path)
    own = ["/", f"/runs/{run}", f"/runs/{run}/results.jsonl", f"/api/runs/{run}/results", "/static/run.css"]
    own += ["/static/matrix.js", "/openapi.json"]
    asked = [(path, site) for path in own for site in (None, "none", "same-origin")]
    asked += [(path, site) for path in own[:4] for site in ("same-site", "cross-site")]
    encodings, texts = {}, {}
    with serve(tmp_path, token=None) as address:
        for path, site in asked:
            headers = {"accept-encoding": "gzip", **({} if site is None else {"sec-fetch-site": site})}
            with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers)) as answer:
                encodings[path, site] = answer.headers["content-encoding"]
                body = answer.read()
            texts.setdefault(path, set()).add(gzip.decompress(body) if encodings[path, site] else body)
        with urllib.request.urlopen(f"{address}/static/run.css") as answer:
            texts["/static/run.css"].add(answer.read())
            assert answer.headers["content-encoding"] is None
    assert encodings == {
        (path, site): None if site in ("same-site", "cross-site") else "gzip" for path, site in asked
    }
    assert {path: len(found) for path, found in texts.items()} == dict.fromkeys(own, 1)


def test_repeats_are_one_cell_that_says_how_many_passed(tmp_path: Path) -> None:
    runs = RunStore.open(tmp_path / ".geval")
    runs.begin(RUN)
    tone = [
        make_judged(status, score, metric="tone", reason=f"reason {score}")
        for status, score in ((Status.PASSED, 0.9), (Status.FAILED, 0.1))
    ]
    for repeat, (status, item) in enumerate(zip((Status.FAILED, Status.PASSED), tone, strict=True)):
        case = make_case(0, status=status, repeat_index=repeat, score=0.5 + repeat / 10, assertions=(item,))
        runs.add(RUN.id, replace(case, named_scores={"tone": item.score})).result()
    runs.finish(RUN, RunSummary(total=2, passed=1, failed=1))
    runs.close()
    with serve(tmp_path, token=None) as address:
        site, path = Site(tmp_path, address), f"/runs/{RUN.id}"
        found = {
            query: (re.findall('href="([^"]*)" data-cell', page), text_of(page.partition("<tbody>")[2]))
            for query in ("", "status=passed", "metric=tone", "metric=tone&status=passed")
            if (page := site.page(f"{path}/results?{query}"))
        }
        case = text_of(site.page(f"{path}/results/0/0/0"))
    cells = {query: links for query, (links, _) in found.items()}
    first, second = [f"{path}/results/0/0/0"], [f"{path}/results/0/1/0"]
    assert cells == {
        "": first,
        "status=passed": second,
        "metric=tone": second,
        "metric=tone&status=passed": first,
    }
    assert all("1/2 flaky" in text for _, text in found.values())
    assert "Failed 0.10 1/2 flaky tone 0.10 reason 0.1" in found["metric=tone"][1]
    assert "Passed 0.90 1/2 flaky tone 0.90 reason 0.9" in found["metric=tone&status=passed"][1]
    assert "Repeats" in case


def test_comparison_is_corrected_by_the_labels_there_are(tmp_path: Path) -> None:
    shape = Shape(tests=51, repeats=1, columns=COLUMNS[:1])
    *_, before, after = store_history(tmp_path, shape, 2)
    path = f"/compare?before={before}&after={after}"
    with serve(tmp_path, token=None) as address:
        site = Site(tmp_path, address)
        assert "Corrected by human labels" not in site.page(path)  # only the later run has any
        store_labels(tmp_path, before, dataclasses.replace(shape, drift=-0.05))
        page = html.unescape(site.page(path))
    home = tmp_path / ".geval"
    found = corrected_by_labels(labels_kept_for(before, after, home=home), before, after, home=home)
    assert found.rows[0].corrected.interval is not None
    for said in (found.sentence, *found.figures.rows[0], *found.notes):
        assert said in page


_STYLES = [
    Path(__file__).parents[3] / "geval_cli" / folder for folder in ("extras/html/static", "extras/web/static")
]
_LINKED = re.compile(r'rel="stylesheet" href="/static/([\w-]+\.css)')


def classes_in(css: str) -> set[str]:
    """The classes that a stylesheet says something about."""
    return set(
        re.findall(r"\.(-?[A-Za-z_][\w-]*)", re.sub(r"/\*.*?\*/|\{[^{}]*\}", " ", css, flags=re.DOTALL))
    )


def test_every_style_is_of_something_that_is_shown() -> None:
    """A class counts as used where a template, a script or Python names it, or its two parts: `heat-{level}`."""
    package = _STYLES[0].parents[2]
    files = [path for end in ("html", "js", "py") for path in package.rglob(f"*.{end}")]
    source = "\n".join(path.read_text("utf-8") for path in files if path.name != "codemirror.js")
    words, stems = (
        set(re.findall(r"[\w-]+", source + source.lower())),
        set(re.findall(r"([\w-]+-)(?:\{|\$\{)", source)),
    )
    names = {
        name
        for folder in _STYLES
        for path in folder.glob("*.css")
        for name in classes_in(path.read_text("utf-8"))
    }
    parts = {name: name.rpartition("-") for name in names - words}
    unused = [
        name
        for name, (stem, _, rest) in parts.items()
        if f"{stem}-" not in stems or not (rest.isdigit() or rest in words)
    ]
    assert unused == []


def test_pages_load_the_styles_of_what_they_show(tmp_path: Path) -> None:
    """A class that some stylesheet knows, on a page that loads none of those: what is shown there looks broken."""
    first, second = store_judged_run(tmp_path), store_judged_run(tmp_path)
    sheets = {
        path.name: classes_in(path.read_text("utf-8")) for folder in _STYLES for path in folder.glob("*.css")
    }
    paths = ["/runs", "/suites", "/docs", f"/compare?run={first}&run={second}"]
    paths += [f"/runs/{first}{rest}" for rest in ("", "/charts", "/label", "/labels", "/results/0/0/0")]
    broken = {}
    with serve(tmp_path, token=None) as address:
        for path in paths:
            page = Site(tmp_path, address).page(path)
            linked = _LINKED.findall(page)
            assert linked, path
            known = set().union(*(sheets[name] for name in linked))
            used = {name for names in re.findall(r'class="([^"]*)"', page) for name in names.split()}
            missing = (used & set().union(*sheets.values())) - known
            if missing:
                broken[path] = sorted(missing)
    assert broken == {}
