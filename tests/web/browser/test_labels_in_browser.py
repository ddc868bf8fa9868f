"""A person rates outputs in a real browser: by keyboard, blind, and nothing that was said is lost."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.browser import Visit, press_tab_until, serve, watch
from support.geval_command import run_geval
from support.stored_runs import HOSTILE, store_hostile_run, store_judged_run

from geval_cli.extras.html.file import HtmlFile
from geval_cli.extras.trust.labels import draw
from geval_cli.records import JsonValue
from geval_cli.runs.stored import load_report
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

_JUDGED_RUNS = 11


@dataclass(frozen=True)
class Site:
    """A served folder. No test gets a judged run that another has labelled: each takes one of `judged`."""

    folder: Path
    address: str
    judged: list[str]
    later: str
    hostile: str
    report: Path
    reported: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Runs cannot be made while a browser is open, so all are made before."""
    folder = tmp_path_factory.mktemp("labels")
    judged = [store_judged_run(folder) for _ in range(_JUDGED_RUNS)]
    later = store_judged_run(folder, good=("one",))
    metric = "kept \u202e<b>\x1b"
    hostile = store_hostile_run(folder, metric=metric)
    report, reported = folder / "report.html", judged.pop()
    with open_runs(folder / ".geval", {}) as runs:
        HtmlFile(report).finish(load_report(runs, reported))
    with serve(folder) as address:
        yield Site(folder, address, judged, later, hostile, report, reported)


@pytest.fixture
def folder(site: Site) -> Path:
    return site.folder


@pytest.fixture
def run_id(site: Site) -> str:
    """A run with four outputs to rate, which no one has labelled."""
    return site.judged.pop()


def kept(folder: Path, run_id: str) -> list[dict[str, JsonValue]]:
    """The rows of a run's labels, in the order in which they were given."""
    runs = RunStore.open(folder / ".geval")
    try:
        return [item.row for item in runs.labels().of_run(run_id)]
    finally:
        runs.close()


def wait_for_place(page: Any, text: str) -> None:
    page.locator("[data-rating-place]", has_text=text).wait_for()


def rate(page: Any, key: str, then: str) -> None:
    page.keyboard.press(key)
    wait_for_place(page, then)


def test_keyboard_alone_from_the_list_to_a_rated_output_and_back(
    window: Visit, folder: Path, run_id: str
) -> None:
    page = window.page
    window.go()
    press_tab_until(page, f"#run-{run_id} a.main-link")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run_id}")
    press_tab_until(page, "[data-run-actions] summary")
    page.keyboard.press("Enter")
    press_tab_until(page, f"a[href='/runs/{run_id}/label']")
    page.keyboard.press("Enter")
    wait_for_place(page, "1 of 4")
    page.keyboard.press("n")
    page.keyboard.type("sagt p und f, nicht mehr")
    page.keyboard.press("Escape")
    rate(page, "p", "2 of 4")
    rate(page, "s", "3 of 4")
    rate(page, "f", "4 of 4")
    rate(page, "b", "3 of 4")
    assert page.locator(".rating-choice.is-fail").get_attribute("aria-pressed") == "true"
    page.keyboard.press("q")
    page.wait_for_url(f"**/runs/{run_id}")
    rows = kept(folder, run_id)
    assert [(row["id"], row["label"], row.get("note")) for row in rows] == [
        ("0.0.0", "pass", "sagt p und f, nicht mehr"),
        ("1.0.0", "fail", None),
    ]
    assert all("annotator" not in row and "draw" not in row for row in rows)
    page.go_back()
    wait_for_place(page, "3 of 4")


def test_the_verdict_is_not_in_the_page_until_it_is_rated_or_asked_for(window: Visit, run_id: str) -> None:
    page = window.page
    window.go(f"/runs/{run_id}/label")
    wait_for_place(page, "1 of 4")
    assert "0.9" not in page.content()
    assert page.locator("[data-rated-verdict]").count() == 0
    page.keyboard.press("v")
    page.locator("[data-rated-verdict]").get_by_text("0.90").wait_for()
    rate(page, "p", "2 of 4")
    assert page.locator("[data-rated-verdict]").count() == 0
    rate(page, "f", "3 of 4")
    rate(page, "b", "2 of 4")
    page.locator("[data-rated-verdict]").wait_for()


def test_two_people_and_then_the_judge_beside_them(window: Visit, folder: Path, run_id: str) -> None:
    page = window.page
    window.go(f"/runs/{run_id}/label?draw=2&seed=7")
    for name in ("anna", "béa"):
        page.locator("[data-label-settings]").evaluate("element => { element.open = true; }")
        page.get_by_label("Your name").fill(name)
        page.get_by_role("button", name="Apply").click()
        page.get_by_text(f"0 of 2 rated by {name}, drawn with seed 7").wait_for()
        rate(page, "f", "2 of 2")
        page.keyboard.press("f")
        page.get_by_role("heading", name="All outputs are rated").wait_for()
    rows = kept(folder, run_id)
    assert [row["annotator"] for row in rows] == ["anna", "anna", "béa", "béa"]
    assert {row["draw"] for row in rows} == {"seed 7"}
    page.reload()
    page.get_by_text("2 of 2 rated by béa").wait_for()
    page.locator("[data-label-end]").get_by_role("link", name="Judge and human labels").click()
    page.get_by_role("heading", name="Judge and human labels").wait_for()
    page.locator("tbody tr").first.get_by_text("differ").wait_for()
    assert page.locator("tbody tr").count() == 4
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the labels").click()
    assert download.value.suggested_filename == f"labels-{run_id}.jsonl"
    page.locator("tbody tr a").first.click()
    page.get_by_role("link", name="Rate this output yourself").click()
    page.locator("[data-rated-verdict]").wait_for()  # béa has rated it


def test_both_outputs_of_two_runs_are_rated_and_nothing_says_which_is_which(
    window: Visit, folder: Path, site: Site, run_id: str
) -> None:
    page = window.page
    window.go(f"/compare?before={run_id}&after={site.later}")
    page.get_by_role("link", name="Label both outputs").click()
    shown = []
    for place in range(1, 7):  # of the first test both runs have the same text, which is rated once
        wait_for_place(page, f"{place} of 6")
        shown.append(page.locator("[data-rated]").inner_text())
        page.keyboard.press("p" if place % 2 else "f")
    page.get_by_role("heading", name="All outputs are rated").wait_for()
    assert not any("Tell me about" in text for text in shown)
    rows = [row for name in (run_id, site.later) for row in kept(folder, name)]
    assert sorted((row["id"], row["run_id"]) for row in rows if row["id"][0] == "1") == sorted(
        (f"1.0.{column}", name) for column in (0, 1) for name in (run_id, site.later)
    )
    assert len(rows) == 6
    page.reload()
    page.get_by_text("6 of 6 rated").wait_for()


def test_what_loads_for_an_earlier_choice_does_not_come_between_the_keys(window: Visit, run_id: str) -> None:
    page, held = window.page, []

    def hold_first(route: Any) -> None:
        if held:
            route.continue_()
        held.append(route)

    page.route("**/labels/sheet?**", hold_first)
    window.go(f"/runs/{run_id}/label?draw=2&seed=7")
    page.get_by_label("Your name").fill("anna")
    page.get_by_role("button", name="Apply").click()
    page.get_by_text("0 of 2 rated by anna, drawn with seed 7").wait_for()
    rate(page, "f", "2 of 2")
    with page.expect_response("**/labels/sheet?**"):
        held[0].continue_()
    page.keyboard.press("f")
    page.get_by_role("heading", name="All outputs are rated").wait_for()
    page.unroute("**/labels/sheet?**")
    assert sum("/label/output?" in url for url in window.requests) == 2


@pytest.mark.parametrize(
    ("scale", "keys", "label"),
    [("1,5", ["7", "4"], 4), ("0,100", ["8", "5", "Enter"], 85), ("-1,1", ["-", ".", "5", "Enter"], -0.5)],
)
def test_other_scales_have_other_keys(
    window: Visit, folder: Path, run_id: str, scale: str, keys: list[str], label: float
) -> None:
    page = window.page
    window.go(f"/runs/{run_id}/label?scale={scale}")
    wait_for_place(page, "1 of 4")
    for key in keys:
        page.keyboard.press(key)
    wait_for_place(page, "2 of 4")
    assert [row["label"] for row in kept(folder, run_id)] == [label]


def test_a_number_off_the_scale_is_refused_where_it_is_typed(
    window: Visit, folder: Path, run_id: str
) -> None:
    page = window.page
    window.go(f"/runs/{run_id}/label?scale=0,100")
    wait_for_place(page, "1 of 4")
    page.keyboard.type("999")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("999 is not a label from 0 to 100").wait_for()
    assert kept(folder, run_id) == []


def test_a_label_that_cannot_be_kept_is_not_passed_over(window: Visit, folder: Path, run_id: str) -> None:
    page = window.page
    window.go(f"/runs/{run_id}/label")
    wait_for_place(page, "1 of 4")
    page.context.set_offline(True)
    page.keyboard.press("p")
    page.get_by_role("alert").get_by_text("Not kept: the server cannot be reached").wait_for()
    assert page.locator("[data-rating-place]").inner_text() == "1 of 4"
    page.context.set_offline(False)
    rate(page, "p", "2 of 4")
    window.complaints.clear()  # the browser itself complains about the request that was lost
    assert len(kept(folder, run_id)) == 1


def test_hostile_outputs_are_only_text(window: Visit, site: Site) -> None:
    page = window.page
    window.go(f"/runs/{site.hostile}/label")
    for number in range(1, len(HOSTILE) + 1):
        wait_for_place(page, f"{number} of {len(HOSTILE)}")
        output = page.locator(".is-output")
        assert output.evaluate("element => element.children.length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("window.hacked") is None
        assert page.locator("[data-rating-metric]").inner_text() == "kept \\u202e<b>\\u001b"
        page.keyboard.press("f")
    page.get_by_role("heading", name="All outputs are rated").wait_for()
    window.go(f"/runs/{site.hostile}/labels")
    assert page.get_by_role("heading", name="Hacked", exact=True).count() == 0
    assert page.locator("tbody tr").count() == len(HOSTILE)


class TestReport:
    """Labels given in the file that `-o report.html` writes: opened from disk, with nobody to ask."""

    @pytest.fixture
    def file(self, site: Site, page: Any) -> Iterator[Any]:
        with watch(page, site.report.as_uri()) as window:
            window.go("")
            page.get_by_role("button", name="Label outputs").click()
            wait_for_place(page, "1 of 4")
            yield page
            page.evaluate("localStorage.clear()")

    def download(self, page: Any, place: Path) -> list[dict[str, JsonValue]]:
        with page.expect_download() as found:
            page.get_by_role("button", name="Download the labels").first.click()
        found.value.save_as(place)
        return [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]

    def test_the_file_goes_into_the_commands(self, file: Any, site: Site) -> None:
        assert file.locator("[data-rated-verdict]").count() == 0
        file.keyboard.press("n")
        file.keyboard.type("schön <b>")
        file.keyboard.press("Escape")
        rate(file, "p", "2 of 4")
        rate(file, "b", "1 of 4")
        file.locator("[data-rated-verdict]").get_by_text("0.90").wait_for()
        rate(file, "p", "2 of 4")
        rate(file, "f", "3 of 4")
        rows = self.download(file, site.folder / "from-report.jsonl")
        exported = ("label", site.reported, "--export", "exported.jsonl")
        taken = run_geval("label", site.reported, "--import", "from-report.jsonl", cwd=site.folder)
        assert (taken.code, "kept 2 labels" in taken.stdout) == (0, True)
        assert run_geval(*exported, cwd=site.folder).code == 0
        lines = (site.folder / "exported.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows
        assert rows[0]["note"] == "schön <b>"

    def test_a_draw_is_that_of_the_command(self, file: Any, site: Site) -> None:
        file.locator("[data-label-settings]").evaluate("element => { element.open = true; }")
        file.locator("#label-annotator").fill("anna")
        file.locator("#label-draw").fill("2")
        file.locator("#label-seed").fill("7")
        file.locator("#label-scale").fill("1, 5")
        file.get_by_role("button", name="Apply").click()
        file.get_by_text("0 of 2 rated by anna, drawn with seed 7").wait_for()
        rate(file, "4", "2 of 2")
        file.keyboard.press("2")
        file.get_by_role("heading", name="All outputs are rated").wait_for()
        rows = self.download(file, site.folder / "drawn.jsonl")
        assert [row["id"] for row in rows] == draw(["0.0.0", "0.0.1", "1.0.0", "1.0.1"], 2, seed=7)
        assert [(row["label"], row["scale"], row["draw"]) for row in rows] == [
            (4, [1, 5], "seed 7"),
            (2, [1, 5], "seed 7"),
        ]

    def test_back_at_the_results_the_page_is_as_it_was(self, file: Any) -> None:
        assert file.locator("[data-matrix]").is_hidden()
        file.keyboard.press("q")
        file.locator("[data-matrix]").wait_for()
        assert file.locator("[data-rating]").is_hidden()
        assert file.evaluate("document.activeElement.textContent") == "Label outputs"
