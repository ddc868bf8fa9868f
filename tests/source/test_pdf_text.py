"""PDF files as variables, in both dialects."""

import sys
from pathlib import Path

import pytest
from support.promptfoo import cases, errors_of
from support.suites import load_suite

from geval_cli.errors import ConfigError
from geval_cli.source.files import pdf_text
from geval_cli.version import install_hint

pypdf = pytest.importorskip("pypdf")


def make_pdf(path: Path, *texts: str, password: str = "") -> Path:
    """A file with a page for each text, written by hand: the package that is tested cannot write text."""
    writer = pypdf.PdfWriter()
    for text in texts:
        page = writer.add_blank_page(200, 200)
        font = pypdf.generic.DictionaryObject(
            {
                pypdf.generic.NameObject("/Type"): pypdf.generic.NameObject("/Font"),
                pypdf.generic.NameObject("/Subtype"): pypdf.generic.NameObject("/Type1"),
                pypdf.generic.NameObject("/BaseFont"): pypdf.generic.NameObject("/Helvetica"),
            }
        )
        fonts = pypdf.generic.DictionaryObject({pypdf.generic.NameObject("/F1"): font})
        page[pypdf.generic.NameObject("/Resources")] = pypdf.generic.DictionaryObject(
            {pypdf.generic.NameObject("/Font"): fonts}
        )
        content = pypdf.generic.DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode())
        page[pypdf.generic.NameObject("/Contents")] = content
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    with path.open("wb") as file:
        writer.write(file)
    return path


def message_of(path: Path, max_characters: int = 1_000) -> str:
    with pytest.raises(ConfigError) as caught:
        pdf_text(path.read_bytes(), path, None, max_characters=max_characters)
    (problem,) = caught.value.problems
    assert problem.hint
    return problem.message


def test_variables_hold_the_text_of_all_pages(tmp_path: Path) -> None:
    make_pdf(tmp_path / "a.pdf", "first page", "second page")
    wanted = "first page\n\nsecond page"
    content = {"prompts": ["{{x}}"], "providers": ["echo"], "tests": [{"vars": {"x": "file://a.pdf"}}]}
    assert [case.vars["x"] for case in cases(tmp_path, content)] == [wanted]
    config = tmp_path / "gevalconfig.yaml"
    config.write_text(
        "prompts: ['{{ x }}']\nproviders: [echo]\ntests:\n  - vars: {x: 'file://a.pdf'}\n    context: file://a.pdf\n",
        encoding="utf-8",
    )
    (case,) = load_suite(config, env={}).tests
    assert (case.vars["x"], case.context) == (wanted, wanted)


def test_files_that_give_no_text_are_problems(tmp_path: Path) -> None:
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4\nno more")
    assert "cannot be read as PDF" in message_of(tmp_path / "broken.pdf")
    assert "cannot be read as PDF" in message_of(_written(tmp_path / "empty.pdf", b""))
    assert "contains no text" in message_of(make_pdf(tmp_path / "blank.pdf", ""))
    assert "has more than 5 characters" in message_of(make_pdf(tmp_path / "long.pdf", "too long"), 5)
    assert "is locked with a password" in message_of(make_pdf(tmp_path / "locked.pdf", "x", password="p"))


def test_without_the_package_there_is_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_pdf(tmp_path / "a.pdf", "text")
    monkeypatch.setitem(sys.modules, "pypdf", None)
    content = {"prompts": ["{{x}}"], "providers": ["echo"], "tests": [{"vars": {"x": "file://a.pdf"}}]}
    assert errors_of(tmp_path, content) == ["reading `a.pdf` needs the package pypdf"]
    with pytest.raises(ConfigError) as caught:
        pdf_text(path.read_bytes(), path, None, max_characters=10)
    assert install_hint("pdf") in caught.value.problems[0].hint


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
