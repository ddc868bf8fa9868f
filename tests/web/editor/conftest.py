"""A served folder with one suite, opened in the editor."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.browser import Visit, forget, serve, watch
from support.editor_page import JUDGE, REPLIES, SUITE, open_editor

_REFUSAL = re.compile("the server responded with a status of (403|409|422)")
"""What the browser itself logs when a request is refused, as some of these tests want it."""


@dataclass(frozen=True)
class Site:
    folder: Path
    address: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("suites")
    with serve(folder) as address:
        yield Site(folder, address)


@pytest.fixture
def folder(site: Site) -> Path:
    """The folder with nothing but the suite in it, and what the suite names."""
    for path in site.folder.glob("*.*"):
        if path.is_file():
            path.unlink()
    (site.folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    (site.folder / "replies.yaml").write_text(REPLIES)
    (site.folder / "judge.yaml").write_text(JUDGE)
    return site.folder


@pytest.fixture
def window(site: Site, folder: Path, page: Any) -> Iterator[Visit]:
    with watch(page, site.address) as found:
        open_editor(found)
        yield found
        forget(found)
        found.complaints[:] = [text for text in found.complaints if not _REFUSAL.search(text)]
