"""Drawings in a real browser: they are loaded when opened, reached by keyboard, and a click filters the matrix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import Visit, open_window, serve, watch
from support.realistic_runs import Shape, store_history

LEADERS = "#chart-leaderboard .chart-drawing a"


@pytest.fixture(scope="module")
def visited(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder: Path = tmp_path_factory.mktemp("charts")
    store_history(folder, Shape(tests=6), 1)
    with serve(folder) as address, open_window(browser) as page, watch(page, address) as found:
        yield found


def test_opened_drawings_stay_open_and_a_click_filters_the_matrix(visited: Visit) -> None:
    visited.go("/runs/latest")
    page = visited.page
    all_rows = page.locator("[data-matrix] tbody tr").count()
    page.locator("[data-charts-section] > summary").click()
    bar = page.locator("#chart-scores-1 .chart-drawing a").first
    said = bar.get_attribute("aria-label")
    bar.click()
    page.wait_for_url("**/runs/*?column=0&metric=faithfulness&low=*&high=*")
    rows = page.locator("[data-matrix] tbody tr").count()
    assert f": {rows} score" in said
    assert 0 < rows < all_rows
    page.locator("[data-charts-section] .chart-drawing").first.wait_for()
    page.locator("[data-charts-section] > summary").click()


def test_arrow_keys_move_through_a_drawing_that_is_one_tab_stop(visited: Visit) -> None:
    visited.go("/runs/latest/charts")
    page = visited.page
    marks = page.locator(LEADERS)
    assert page.locator(f"{LEADERS}[tabindex='0']").count() == 1
    marks.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    label = marks.nth(1).get_attribute("aria-label")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == label
    assert page.locator(f"{LEADERS}[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*?column=*#results-title")


def test_drawings_need_no_script_and_fit_a_phone(visited: Visit) -> None:
    address = f"{visited.page.url.split('/runs/')[0]}/runs/latest/charts"
    cookies = visited.page.context.cookies()
    with open_window(
        visited.page.context.browser, java_script_enabled=False, viewport={"width": 390, "height": 844}
    ) as page:
        page.context.add_cookies(cookies)
        page.goto(address)
        box = page.locator("#chart-leaderboard .chart-drawing").bounding_box()
        assert box["width"] > 300
        assert box["x"] + box["width"] <= 390
        assert page.locator("#chart-heat .table-frame").bounding_box()["width"] <= 390
        page.locator(LEADERS).first.click()
        page.wait_for_url("**?column=*")


def test_results_begin_on_the_second_screen_of_a_phone(visited: Visit) -> None:
    """Below the bars of a browser, a phone of 390 x 844 shows about 740 pixels."""
    page = visited.page
    page.set_viewport_size({"width": 390, "height": 844})
    visited.go("/runs/latest")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    top = page.locator("[data-matrix]").evaluate("element => element.getBoundingClientRect().top")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert top < 1_100, "the results begin below the second screen of a phone"


def test_drawings_stand_row_by_row_in_their_order(visited: Visit) -> None:
    """With opened figures no drawing moves into another column."""
    visited.go("/runs/latest/charts")
    places = """() => [...document.querySelectorAll(".chart:not(.is-wide)")].map((card) => {
        const { left, top } = card.getBoundingClientRect();
        return [Math.round(top + scrollY), Math.round(left)];
    })"""
    before = visited.page.evaluate(places)
    assert before == sorted(before)
    assert len({left for _, left in before}) == 3
    visited.page.locator("#chart-leaderboard summary").click()
    visited.page.locator("#chart-leaderboard .table-frame").wait_for()
    assert [left for _, left in visited.page.evaluate(places)] == [left for _, left in before]
