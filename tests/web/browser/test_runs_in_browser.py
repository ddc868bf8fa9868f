"""The page in a real browser: what people do with it, and that nothing else happens."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.browser import PHONE, Visit, serve, visit, visit_in
from support.sample_run import RUN, make_case
from support.stored_runs import (
    HOSTILE,
    store_hostile_run,
    store_judged_run,
    store_run,
    write_config,
    write_replies,
)

from geval_cli.records import RunStatus, RunSummary
from geval_cli.store.runs import RunStore

PATIENCE_MS = 3000
"""So long the page waits before it asks again about a run that another process has under way."""


@dataclass(frozen=True)
class Site:
    """A served folder with a hostile run and two judged ones."""

    folder: Path
    address: str
    hostile: str
    before: str
    after: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    hostile = store_hostile_run(folder)
    before, after = (store_judged_run(folder, good=good) for good in (("one",), ("two",)))
    with serve(folder) as address:
        yield Site(folder, address, hostile, before, after)


def statuses(window: Visit) -> list[str]:
    """The words of the matrix, cell by cell."""
    return [" ".join(text.split()) for text in window.page.locator("[data-cell] .status").all_inner_texts()]


def focused(window: Visit) -> str:
    return str(window.page.evaluate("document.activeElement.href ?? document.activeElement.className"))


def test_from_the_list_to_a_verdict(window: Visit, site: Site) -> None:
    window.go()
    page = window.page
    page.locator(f"#run-{site.before} a.main-link").click()
    page.wait_for_url(f"**/runs/{site.before}")
    page.get_by_label("Failed").check()
    page.wait_for_url("**?status=failed")
    assert page.locator("tbody .test-number").all_inner_texts() == ["2"]
    page.locator("[data-cell].is-failed").first.click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("heading", name="test two").wait_for()
    assert drawer.get_by_role("img", name="rating 2: 60 %").is_visible()
    assert page.url.endswith(f"/runs/{site.before}/results/1/0/0")


def test_search_leaves_what_fits(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.after}")
    window.page.get_by_placeholder("Search tests").fill("FINE answer")
    window.page.keyboard.press("Enter")
    window.page.locator("[data-found]", has_text="1 test with a matching result").wait_for()
    assert window.page.url.endswith("?q=FINE+answer")
    window.page.get_by_role("link", name="Clear").click()
    window.page.locator("[data-found]", has_text="3 tests").wait_for()


def test_choosing_metric_and_order_needs_no_button(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.after}")
    window.page.get_by_label("Sort").select_option("status")
    window.page.wait_for_url("**?sort=status")
    window.page.get_by_label("Metric").select_option("coherence")
    window.page.wait_for_url("**?metric=coherence&sort=status")
    assert statuses(window)[:2] == ["Failed 0.15", "Failed 0.15"]


def test_filters_keep_their_place(window: Visit, site: Site) -> None:
    window.page.set_viewport_size({"width": 1000, "height": 420})
    window.go(f"/runs/{site.after}")
    page = window.page
    page.evaluate("window.isTheSamePage = true")
    page.locator("[data-filters]").evaluate(
        "element => scrollTo(0, element.getBoundingClientRect().top - 80)"
    )
    before = page.evaluate("scrollY")
    assert before > 0
    page.get_by_label("Sort").select_option("status")
    page.locator("[data-shown='sort=status']").wait_for()
    page.get_by_label("Failed").check()
    page.locator("[data-shown='status=failed&sort=status']").wait_for()
    assert page.evaluate("[scrollY, window.isTheSamePage, document.activeElement.value]") == [
        before,
        True,
        "failed",
    ]
    page.go_back()
    page.locator("[data-shown='sort=status']").wait_for()
    assert page.locator("[name=status][value='']").is_checked()
    page.set_viewport_size({"width": 1440, "height": 900})


def test_columns_are_hidden_pinned_and_resized(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.before}")
    page, heads = window.page, window.page.locator("thead .cell-head")
    page.locator("[data-columns] > summary").click()
    lines = page.locator("[data-columns-list] .menu-line", has_not_text="variable ")
    lines.locator(".check").first.click()
    assert [head.is_visible() for head in heads.all()] == [False, True]
    page.get_by_role("button", name="Pin chat").click()
    assert heads.nth(1).evaluate("element => getComputedStyle(element).position") == "sticky"
    handle = heads.nth(1).get_by_role("separator")
    handle.focus()
    page.keyboard.press("ArrowLeft")
    width = int(handle.get_attribute("aria-valuenow"))
    assert heads.nth(1).evaluate("element => element.style.maxWidth") == f"{width}px"
    page.reload()
    assert [head.is_visible() for head in heads.all()] == [False, True]
    page.get_by_label("Sort").select_option("status")
    page.locator("[data-shown='sort=status']").wait_for()
    assert [head.is_visible() for head in heads.all()] == [False, True]


def test_case_page_leads_to_the_tests_beside_it(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.before}/results/0/0/1")
    page = window.page
    assert page.get_by_role("link", name="Previous test").count() == 0
    page.keyboard.press("j")
    page.wait_for_url("**/results/1/0/1")
    page.get_by_role("link", name="Next test").click()
    page.wait_for_url("**/results/2/0/1")
    assert page.get_by_role("link", name="Next test").count() == 0
    page.keyboard.press("k")
    page.wait_for_url("**/results/1/0/1")


def test_keyboard_alone(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.before}")
    page = window.page
    page.locator("[data-cell]").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert focused(window).endswith("/results/1/0/1")
    page.keyboard.press("ArrowRight")
    assert focused(window).endswith("/results/1/0/1")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("heading", name="test two").wait_for()
    assert "drawer-body" in focused(window)
    page.keyboard.press("Escape")
    page.wait_for_url(f"**/runs/{site.before}")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert focused(window).endswith("/results/1/0/1")
    assert page.locator("[data-cell][tabindex='0']").count() == 1


def test_drawer_walks_through_tests_and_columns(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.before}")
    page = window.page
    page.locator("[data-cell]").first.click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("button", name="Next test").click()
    drawer.get_by_role("heading", name="test two").wait_for()
    drawer.get_by_role("link", name="chat").click()
    drawer.get_by_text("Be kind.").wait_for()
    assert page.url.endswith("/results/1/0/1")
    choice, shown = drawer.get_by_label("Compare with"), drawer.locator("[data-output-difference]")
    other = choice.locator("option").nth(1).get_attribute("value")
    choice.select_option(index=1)
    shown.wait_for()
    kept = page.evaluate(
        """() => ['del', 'ins'].map((left) => {
            const copy = document.querySelector('dialog [data-output-difference]').cloneNode(true);
            copy.querySelectorAll(left).forEach((part) => part.remove());
            return copy.textContent;
        })"""
    )
    own = drawer.locator("[data-output-text]").text_content()
    theirs = page.evaluate(
        """async (href) => new DOMParser().parseFromString(await (await fetch(href)).text(), "text/html")
            .querySelector("[data-output-text]").textContent""",
        other,
    )
    assert kept == ([own, theirs] if own != theirs else ["Both outputs are equal."] * 2)
    choice.select_option(index=0)
    shown.wait_for(state="hidden")
    page.go_back()
    drawer.wait_for(state="hidden")
    assert page.url.endswith(f"/runs/{site.before}")
    page.go_forward()
    drawer.get_by_text("Be kind.").wait_for()


def test_skip_link_is_the_first_stop(window: Visit) -> None:
    window.go()
    window.page.keyboard.press("Tab")
    assert window.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    window.page.keyboard.press("Enter")
    assert window.page.evaluate("document.activeElement.id") == "content"


def test_two_ticked_runs_are_compared(window: Visit, site: Site) -> None:
    window.go()
    page = window.page
    compare = page.get_by_role("button", name="Compare")
    assert compare.is_disabled()
    for run in (site.hostile, site.after, site.before):
        page.get_by_label(f"Compare run {run}").check()
    assert not page.get_by_label(f"Compare run {site.hostile}").is_checked()
    compare.click()
    page.wait_for_url(f"**/compare?before={site.before}&after={site.after}")
    heads = page.locator(".pairs-head").all_inner_texts()
    assert heads == ["Newly failed", "Fixed", "Same verdict"]
    page.get_by_role("link", name="Swap").click()
    page.wait_for_url(f"**/compare?before={site.after}&after={site.before}")


def test_model_output_is_only_text(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.hostile}")
    page = window.page
    page.locator("[data-cell]").first.click()
    for number, (name, text) in enumerate(HOSTILE.items(), start=1):
        page.get_by_role("dialog").get_by_role("heading", name=f"#{number} {name}").wait_for()
        output = page.locator("dialog .is-output")
        assert output.evaluate("element => element.children.length") == 0
        assert output.evaluate("element => element.scrollWidth <= element.clientWidth")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("window.hacked") is None
        assert page.get_by_role("heading", name="Hacked", exact=True).count() == 0
        shown = output.inner_text()
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        if text.isprintable():
            assert shown == text
        if number < len(HOSTILE):
            page.get_by_role("button", name="Next test").click()


def test_foreign_text_turns_no_neighbour_round(window: Visit, site: Site) -> None:
    number = list(HOSTILE).index("right to left")
    window.go(f"/runs/{site.hostile}/results/{number}/0/0")
    bidi = window.page.locator(".is-output").evaluate("element => getComputedStyle(element).unicodeBidi")
    assert bidi in ("isolate", "plaintext", "isolate-override")


PLACES = """
(element) => ['1', 'Open'].map((words) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && !walker.currentNode.data.includes(words));
  const range = document.createRange();
  const start = walker.currentNode.data.indexOf(words);
  range.setStart(walker.currentNode, start);
  range.setEnd(walker.currentNode, start + words.length);
  return range.getBoundingClientRect().left;
})
"""


def test_each_line_of_an_output_has_its_own_direction(page: Any, tmp_path: Path) -> None:
    """An answer in Hebrew with a step in English: its number stands before it, also where two runs are compared."""
    tests = [{"description": "steps", "assert": [{"type": "contains", "value": "parcels"}]}]
    before, after = (
        store_run(
            write_config(tmp_path, "steps.json", tests, prompts=[{"id": "p", "raw": f"שלום\n1. Open {word}"}])
        )
        for word in ("orders", "parcels")
    )
    with serve(tmp_path) as address, visit_in(page, address) as window:
        window.go(f"/runs/{after}/results/0/0/0")
        places = [window.page.locator(".is-output").evaluate(PLACES)]
        window.go(f"/compare?before={before}&after={after}")
        window.page.get_by_text("What changed in the output").click()
        places.append(window.page.locator(".pair-difference .text").evaluate(PLACES))
    assert all(number < word for number, word in places)


def test_theme_follows_the_system_until_it_is_chosen(page: Any, site: Site) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with visit_in(page, site.address, color_scheme="dark") as window:
        window.go()
        before = window.page.evaluate(background)
        window.page.get_by_role("button", name="Use the light theme").click()
        chosen = window.page.evaluate(background)
        window.page.reload()
        assert window.page.evaluate(background) == chosen != before


_CONTRAST = """
() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (element) => {
    for (let item = element; item; item = item.parentElement) {
      const colour = parse(getComputedStyle(item).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("button[disabled], .is-aside, svg, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) weak.push(element.textContent.trim().slice(0, 40));
  }
  return weak;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(page: Any, site: Site, scheme: str) -> None:
    """Every text has a contrast of at least 4.5 to 1 to its ground."""
    with visit_in(page, site.address, color_scheme=scheme) as window:
        for path in (
            "/",
            f"/runs/{site.before}",
            f"/runs/{site.before}/results/2/0/0",
            f"/compare?before={site.before}&after={site.after}",
        ):
            window.go(path)
            assert window.page.evaluate(_CONTRAST) == []


def test_small_screens_never_scroll_sideways(page: Any, site: Site) -> None:
    with visit_in(page, site.address, viewport=PHONE) as window:
        for path in (
            "/",
            f"/runs/{site.hostile}",
            f"/runs/{site.hostile}/results/3/0/0",
            f"/compare?before={site.before}&after={site.after}",
            "/docs",
        ):
            window.go(path)
            assert window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_filters_fit_a_phone(window: Visit, site: Site) -> None:
    """Also of a run with a single column, which has no menu of columns beside the search."""
    window.page.set_viewport_size({"width": 390, "height": 844})
    try:
        for run, least in ((site.hostile, 330), (site.before, 200)):
            window.go(f"/runs/{run}")
            assert window.page.locator(".search").bounding_box()["width"] > least
    finally:
        window.page.set_viewport_size({"width": 1440, "height": 900})


def test_a_tick_stands_beside_the_middle_of_its_words(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.before}")
    window.page.locator("[data-more-filters] > summary").click()
    label = window.page.locator(".check", has=window.page.locator("[name=differs]"))
    middles = [
        box["y"] + box["height"] / 2 for box in (label.bounding_box(), label.locator("input").bounding_box())
    ]
    assert abs(middles[0] - middles[1]) < 2


def test_shares_of_ratings_stand_apart(window: Visit, site: Site) -> None:
    window.go(f"/runs/{site.before}/results/1/0/0")
    drawing = window.page.locator(".spread svg").first
    drawing.evaluate(
        "(drawing) => drawing.querySelectorAll('.spread-share').forEach((text) => { text.textContent = '<0.1%'; })"
    )
    boxes = [text.bounding_box() for text in drawing.locator(".spread-share").all()]
    ends = [drawing.bounding_box()["x"], *(box["x"] + box["width"] for box in boxes)]
    assert len(boxes) == 5
    assert all(end < box["x"] for end, box in zip(ends, boxes, strict=False))


def test_everything_works_without_scripts(browser: Any, site: Site) -> None:
    with visit(browser, site.address, java_script_enabled=False) as window:
        page = window.page
        window.go(f"/runs/{site.before}")
        page.locator("[data-cell]").first.click()
        page.get_by_role("heading", name="test one").wait_for()
        page.get_by_role("link", name="chat").click()
        page.get_by_text("Be kind.").wait_for()
        page.get_by_role("link", name="judged.json").click()
        page.get_by_placeholder("Search tests").fill("poor")
        page.get_by_role("button", name="Apply").click()
        page.get_by_text("1 test with a matching result").wait_for()


def test_run_under_way_elsewhere_comes_to_its_end(browser: Any, tmp_path: Path) -> None:
    runs = RunStore.open(tmp_path / ".geval")
    runs.begin(replace(RUN, status=RunStatus.RUNNING, finished_at=None, duration_ms=None))
    with serve(tmp_path) as address, visit(browser, address) as window:
        window.page.clock.install()
        with window.page.expect_response("**/events"):
            window.go(f"/runs/{RUN.id}")
        window.page.get_by_text("Waiting for the first result").wait_for()
        runs.add(RUN.id, make_case()).result()
        runs.finish(RUN, RunSummary(total=1, passed=1, pass_rate=1.0))
        runs.close()
        window.page.clock.fast_forward(PATIENCE_MS)
        window.page.locator('[data-run-status="completed"]').wait_for()
        assert statuses(window) == ["Passed 0.88"]


def test_progress_of_a_run_under_way(page: Any, tmp_path: Path) -> None:
    ten_minutes = 600_000
    replies = [
        {"match": "item 5", "reply": "no"},
        {"match": "item 7", "reply": "yes", "latency_ms": ten_minutes},
        {"default": "yes"},
    ]
    model = {"id": write_replies(tmp_path, "slow.json", replies)}
    check = [{"type": "contains", "value": "yes"}]
    tests = [{"vars": {"x": f"item {number}"}, "assert": check} for number in range(8)]
    write_config(tmp_path, "config.json", tests, providers=[model])
    with serve(tmp_path) as address, visit_in(page, address) as window:
        page = window.page
        answer = page.request.post(f"{address}/api/runs", data={"config": "config.json"})
        run = answer.json()["id"]
        window.go(f"/runs/{run}")
        page.locator("[data-live-text]", has_text="7 of 8 done · 6 passed, 1 failed").wait_for()
        page.locator("[data-live-problems]").get_by_role("link", name="#6 failed").wait_for()
        for _ in range(2):
            page.request.post(f"{address}/api/runs/{run}/stop", data={})
        page.get_by_text("This run was interrupted").wait_for()
        assert [text.split()[0] for text in statuses(window)] == ["Passed"] * 5 + ["Failed", "Passed"]
