"""Every page by the rules of axe-core, in both themes; `make soak PARTS=pages` looks at more data in more sizes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.axe import violations
from support.browser import PHONE, SCREEN, Visit, open_window, press_tab_until, serve
from support.realistic_runs import COLUMNS, Shape
from support.site_views import View, barriers, store_site
from support.web_server import all_routes

NO_PAGES = {
    "/healthz": "for machines",
    "/runs": "leads to the list",
    "/runs/{run_id}/results": "a part of a run's page",
    "/runs/{run_id}/results.{kind}": "a file",
    "/runs/{run_id}/media/{sha256}": "an image or a recording",
    "/runs/{run_id}/label/output": "a part of the page to label on",
    "/suites/schema.json": "data of the editor",
}
"""What a browser may ask for outside of `/api` and that is no page."""

SIGHTS = {("light", PHONE): (), ("dark", SCREEN): ("color-contrast",)}
"""A page is loaded once. Of the rules, only that of contrast depends on the theme."""


SHORTER = {"docs": "document.querySelectorAll('.docs-part:nth-child(n+3)').forEach((item) => item.remove());"}
"""What is taken from pages that say the same many times over; the rules take as long as there are elements."""


@dataclass(frozen=True)
class Site:
    """A served folder, and all that can be seen of it."""

    address: str
    views: dict[str, View]

    def short_views(self) -> dict[str, View]:
        """Return what is to be looked at; a save that is refused shows all of the editor."""
        views = {name: view for name, view in self.views.items() if name != "editor"}
        return {
            name: replace(view, script=view.script + SHORTER.get(name, "")) for name, view in views.items()
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("accessible")
    views = store_site(folder, Shape(tests=2, repeats=1, columns=COLUMNS[:2]))
    with serve(folder) as address:
        yield Site(address, views)


def page_routes() -> Iterator[Any]:
    """The routes of what a browser may open, as the server knows them."""
    for route in all_routes():
        is_page = "GET" in route.methods and route.path not in NO_PAGES
        if is_page and not route.path.startswith("/api/"):
            yield route


def test_no_page_is_left_out(site: Site) -> None:
    paths = [view.path.partition("?")[0] for view in site.views.values()]
    left_out = [route.path for route in page_routes() if not any(map(route.path_regex.fullmatch, paths))]
    assert left_out == []


def test_assistive_technology_can_use_every_page(site: Site, window: Visit) -> None:
    """As they are loaded, and with what opens on them."""
    found = {name: barriers(window, view, SIGHTS) for name, view in site.short_views().items()}
    window.complaints.clear()  # the browser tells of what is refused
    assert {name: problems for name, problems in found.items() if problems} == {}


LOOK = """
() => ['body', '.top', '.card', '.card h1', '.chip', '.button'].map((selector) => {
  const look = getComputedStyle(document.querySelector(selector));
  return [look.color, look.backgroundColor, look.font, look.padding, look.borderRadius];
})
"""


def test_page_that_wants_the_token_looks_like_any_other(site: Site, browser: Any, window: Visit) -> None:
    path = "/runs/latest"
    wrong = {
        "username": "anybody",
        "password": "wrong",
    }  # headless Chromium shows no page before it has been asked
    for theme in ("light", "dark"):
        window.page.emulate_media(color_scheme=theme)
        window.go("/nothing")
        usual = window.page.evaluate(LOOK)
        with open_window(browser, color_scheme=theme, http_credentials=wrong) as page:
            asked: set[str] = set()
            page.on("request", lambda request, asked=asked: asked.add(request.url))
            page.goto(site.address + path)
            assert page.get_by_text("this server requires its token").is_visible()
            assert page.evaluate(LOOK) == usual
            assert asked - {"data:,"} == {site.address + path}
            assert violations(page) == []
    window.complaints.clear()  # the browser tells of what is not there


def walk_to(page: Any, cell: str) -> None:
    """Walk through the matrix, row by row, to a cell."""
    for key in ("Home", "l"):
        page.keyboard.press(key)
    for _ in range(9):
        if page.evaluate("(cell) => document.activeElement.matches(cell)", cell):
            return
        page.keyboard.press("j")
    raise AssertionError(f"j leads to no {cell}")


def is_focused(page: Any, selector: str) -> None:
    page.wait_for_function("(selector) => document.activeElement.matches(selector)", arg=selector)


def test_keyboard_leads_from_the_list_to_a_rating_and_back_to_the_place(site: Site, window: Visit) -> None:
    page, run = window.page, site.views["run"].path.partition("?")[0]
    page.set_viewport_size({"width": 1440, "height": 900})
    link, cell = f'.main-link[href="{run}"]', f'[data-cell][href="{run}/results/1/0/1"]'
    window.go("/")
    press_tab_until(page, link)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{run}")
    press_tab_until(page, "[name=sort]")
    page.keyboard.press("ArrowDown")
    page.locator("[data-shown^='sort=']").wait_for()
    listed = page.url
    press_tab_until(page, "[data-cell]")
    walk_to(page, cell)
    page.keyboard.press("Enter")
    is_focused(page, "[data-drawer-body]")
    press_tab_until(page, "[href*='/label?']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/label?*")
    is_focused(page, "[data-rating]")
    rated = page.locator("[data-rating-place]").inner_text()
    page.keyboard.press("p")
    page.wait_for_function(
        "(rated) => document.querySelector('[data-rating-place]').textContent !== rated", arg=rated
    )
    page.keyboard.press("q")
    page.wait_for_url(listed)
    is_focused(page, cell)
    page.keyboard.press("Enter")
    is_focused(page, "[data-drawer-body]")
    page.reload()
    page.keyboard.press("Escape")
    page.wait_for_url(listed)
    is_focused(page, cell)
    window.go("/")
    press_tab_until(page, link)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{run}")
    page.go_back()
    is_focused(page, link)
