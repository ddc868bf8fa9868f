"""What paper shows: a report and the pages of a run, printed as PDF by a real browser."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from support.browser import open_window, serve
from support.realistic_runs import COLUMNS, Shape, realistic_report, store_history

from geval_cli.records import Column
from geval_cli.report.report import write_results_file

pypdf = pytest.importorskip("pypdf")

SHAPE = Shape(tests=5)
CONTROLS = ("Export", "Search tests", "Columns differ", "Label outputs", "Run again", "Next test", "API")
MANY = tuple(Column(number, f"prompt {number}", f"model {number}") for number in range(16))


@dataclass(frozen=True)
class Printed:
    """The pages of a PDF: the text of each, its width, and how far to the right a text begins."""

    texts: tuple[str, ...]
    widths: tuple[float, ...]
    rightmost: tuple[float, ...]

    @property
    def text(self) -> str:
        """All words on one line, as line breaks stand where a cell ends."""
        return " ".join(" ".join(self.texts).split())

    def page_with(self, words: str) -> int:
        return next(number for number, text in enumerate(self.texts) if words in " ".join(text.split()))


def printed(page: Any) -> Printed:
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    texts, widths, rightmost = [], [], []
    for sheet in pypdf.PdfReader(BytesIO(page.pdf(format="A4", prefer_css_page_size=True))).pages:
        places: list[float] = []

        def note(text: str, matrix: Any, place: Any, *_: Any, places: list[float] = places) -> None:
            if text.strip():
                places.append(place[4] * matrix[0] + place[5] * matrix[2] + matrix[4])

        texts.append(sheet.extract_text(visitor_text=note))
        widths.append(float(sheet.mediabox.width))
        rightmost.append(max(places, default=0.0))
    return Printed(tuple(texts), tuple(widths), tuple(rightmost))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("print")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    store_history(folder, SHAPE, 2)
    with serve(folder, token=None) as found:
        yield found


@pytest.fixture
def window(browser: Any) -> Iterator[Any]:
    with open_window(browser, color_scheme="dark") as page:
        yield page


def report(folder: Path, shape: Shape) -> str:
    file = folder / f"{len(shape.columns)}.html"
    write_results_file(file, realistic_report(shape))
    return f"file://{file}"


def check(found: Printed, *, pages: range) -> None:
    """No sheet is empty but for the last ones' ends, nothing begins beyond the edge, and no control is there."""
    assert len(found.texts) in pages
    assert all(text.strip() for text in found.texts)
    for width, right in zip(found.widths, found.rightmost, strict=True):
        assert right < width - 20
    for word in CONTROLS:
        assert not re.search(rf"\b{word}\b", found.text), word


def test_report_is_printed_whole_with_its_nine_columns_across(window: Any, folder: Path) -> None:
    window.goto(report(folder, SHAPE))
    numbers = [text.strip() for text in window.locator("tbody .test-number").all_inner_texts()]
    found = printed(window)
    check(found, pages=range(5, 12))
    matrix = found.page_with("Test short gpt-4.1-mini")
    sheet = found.texts[matrix]
    assert found.widths[matrix] > 800 > found.widths[0]
    assert all(sheet.count(name) >= 3 for name in ("gpt-4.1-mini", "claude-haiku", "mistral 7B"))
    across = " ".join(text for text, width in zip(found.texts, found.widths, strict=True) if width > 800)
    for number in numbers:
        assert re.search(rf"(?m)^\s*{re.escape(number)}\b", across), number
    for title in ("Pass rate by column", "Vs baseline", "Ranking: helpful", "Flaky tests"):
        assert title in found.text
    style = "getComputedStyle(document.body)"
    window.emulate_media(media="print", color_scheme="dark")
    assert window.evaluate(f"[{style}.backgroundColor, {style}.color]") == [
        "rgb(255, 255, 255)",
        "rgb(23, 26, 33)",
    ]


@pytest.mark.parametrize("columns", [COLUMNS[:3], MANY], ids=["three", "sixteen"])
def test_few_columns_stay_upright_and_many_lose_none(
    window: Any, folder: Path, columns: tuple[Column, ...]
) -> None:
    window.goto(report(folder, Shape(tests=3, repeats=1, columns=columns, has_pairs=False)))
    found = printed(window)
    check(found, pages=range(2, 12))
    assert (max(found.widths) > 800) is (len(columns) > 5)
    for column in columns:
        assert column.provider_label in found.text


def test_an_open_case_is_what_is_printed(window: Any, folder: Path) -> None:
    window.goto(f"{report(folder, SHAPE)}#case=2.0.1")
    window.get_by_role("dialog").locator("#case").wait_for()
    found = printed(window)
    check(found, pages=range(1, 4))
    for words in ("#3", "4 assertions", "How likely the judge found each rating", "Variables", "Tokens in"):
        assert words in found.text
    assert "Vs baseline" not in found.text


@pytest.mark.parametrize(
    ("path", "words", "pages"),
    [
        ("/runs/latest", ("judged cases passed", "Vs baseline"), range(3, 9)),
        ("/runs/latest/charts", ("Metrics by column", "Calibration: faithfulness"), range(4, 9)),
        ("/runs/latest/results/1/0/0", ("#2", "Output", "assertions", "Calls"), range(1, 4)),
    ],
)
def test_pages_are_printed_whole(
    window: Any, address: str, path: str, words: tuple[str, ...], pages: range
) -> None:
    window.goto(address + path)
    found = printed(window)
    check(found, pages=pages)
    for word in words:
        assert word in found.text
    assert "Config of this run" not in found.text
