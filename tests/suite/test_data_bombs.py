"""Files of tests that are small on the disk and huge when they are read: refused with a message, and soon."""

import json
import time
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval

from geval_cli.assertions.registry import _bounded
from geval_cli.errors import ConfigError
from geval_cli.extras import xlsx
from geval_cli.extras.xlsx import sheet_rows
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source import files
from geval_cli.source.access import TRUSTED, untrusted_access
from geval_cli.source.files import MAX_CONFIG_BYTES, MAX_LINE_BYTES, hash_file
from geval_cli.source.problems import render_problems
from geval_cli.suite import tables, test_files
from geval_cli.suite.tables import MAX_COLUMNS, csv_rows

SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{size}<sheetData>'
    '<row r="1"><c r="A1" t="inlineStr"><is><t>x</t></is></c></row>'
    '<row r="{row}"><c r="{cell}" t="inlineStr"><is><t>{text}</t></is></c></row></sheetData></worksheet>'
)


def write_sheet(path: Path, cell: str, row: int, *, size: str = "", text: str = "y") -> None:
    """The least that is a workbook, with one cell far away."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
            f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{kind}.worksheet+xml"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{relations}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{relations}"><sheets>'
            '<sheet name="a" sheetId="1" r:id="r1"/></sheets></workbook>',
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
            f'Type="{relations}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        )
        given = f'<dimension ref="{size}"/>' if size else ""
        archive.writestr("xl/worksheets/sheet1.xml", SHEET.format(cell=cell, row=row, size=given, text=text))


def write_zeros(path: Path) -> None:
    """A line longer than any may be, that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(MAX_LINE_BYTES + (1 << 20))


BOMBS = {
    "a far cell": ("t.xlsx", lambda path: write_sheet(path, "XFD1048576", 1_048_576, size="A1:XFD1048576")),
    "a row beyond the last": ("t.xlsx", lambda path: write_sheet(path, "A1048577", 1_048_577)),
    "a long cell": ("t.xlsx", lambda path: write_sheet(path, "A2", 2, text="y" * (2 << 20))),
    "a far cell, no size": ("t.xlsx", lambda path: write_sheet(path, "XFD1048576", 1_048_576)),
    "a wide size": ("t.xlsx", lambda path: write_sheet(path, "B2", 2, size="A1:XFD2")),
    "a size of many cells": ("t.xlsx", lambda path: write_sheet(path, "B2", 2, size="A1:ALL1048576")),
    "columns": ("t.csv", lambda path: path.write_text(",".join(f"c{n}" for n in range(300_000)) + "\n1\n")),
    "columns of a row": ("t.csv", lambda path: path.write_text("a,b\n" + "," * 300_000 + "\n")),
    "tabs": ("t.tsv", lambda path: path.write_text("\t".join(f"c{n}" for n in range(300_000)) + "\n1\n")),
    "zeros, csv": ("t.csv", write_zeros),
    "zeros, jsonl": ("t.jsonl", write_zeros),
    "zeros, ndjson": ("t.ndjson", write_zeros),
    "zeros, json": ("t.json", write_zeros),
    "zeros, yaml": ("t.yaml", write_zeros),
    "zeros, xlsx": ("t.xlsx", write_zeros),
}


def write_config(folder: Path, tests: str) -> Path:
    path = folder / "c.json"
    named = tests if ":" in tests else f"file://{tests}"
    path.write_text(json.dumps({"prompts": ["Q"], "providers": ["echo"], "tests": named}))
    return path


def check(folder: Path, tests: str, *, is_untrusted: bool = False) -> None:
    prepare(RunRequest(write_config(folder, tests), {}, untrusted=is_untrusted))


@pytest.mark.parametrize("bomb", BOMBS)
def test_it_is_refused_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: str) -> None:
    name, write = BOMBS[bomb]
    for module in (tables, test_files, xlsx):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 1 << 20)
    write(tmp_path / name)
    began = time.process_time()
    for is_untrusted in (False, True):
        with pytest.raises(ConfigError) as caught:
            check(tmp_path, name, is_untrusted=is_untrusted)
        assert name in render_problems(caught.value.problems)
    assert time.process_time() - began < 60


@pytest.mark.parametrize("words", [(), ("--untrusted",)], ids=["own", "untrusted"])
def test_the_command_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_zeros(tmp_path / "t.csv")
    write_config(tmp_path, "t.csv")
    env = clean_environment(XDG_STATE_HOME=str(tmp_path / "state"))
    done = run_geval("validate", "c.json", *words, cwd=tmp_path, env=env)
    assert done.code == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert "t.csv" in done.stderr


def test_the_elements_of_a_stranger_s_sheet_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a hundred bytes and more where it takes five in the file, packed far less."""
    path = tmp_path / "t.xlsx"
    stranger = untrusted_access([tmp_path])
    monkeypatch.setattr(xlsx, "_MAX_ELEMENTS", 10_000)
    write_sheet(path, "A2", 2)
    assert len(list(sheet_rows(path, "", stranger, None))) == 2
    attributes = " ".join(f"a{number}=''" for number in range(5_000))
    for text in (
        "</t>" + "<r/>" * 10_000,
        "</t>" + "<r>" * 200,
        "</t>" + f"<r {attributes}/>" * 2,
        f"</t><r a='{'x' * (6 << 20)}",
    ):
        write_sheet(path, "A2", 2, text=text)
        with pytest.raises(ConfigError, match="1 problem") as caught:
            next(sheet_rows(path, "", stranger, None))
        assert "too large for a sheet" in caught.value.problems[0].message


def test_the_places_of_all_cells_of_a_row_are_found_at_once(tmp_path: Path) -> None:
    """A search from the beginning of the row for each of its cells takes hours where each has some kilobytes."""
    path = tmp_path / "t.csv"
    path.write_text(",".join(f'"{"x" * 5_000}\n{n}"' for n in range(2_000)) + "\n")
    (row,) = csv_rows(path, TRUSTED, None)
    found = [row.location(path, column) for column in range(2_000)]
    assert [(where.line, where.column) for where in found[:3]] == [(1, 1), (2, 4), (3, 4)]
    assert (found[-1].line, found[-1].column) == (2_000, 7)


def test_a_row_of_many_long_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 4 << 20)
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        file.write("a\n")
        for _ in range(8):  # each cell may have 16 MB, with lines in it
            file.write('"' + ("x" * (1 << 16) + "\n") * 10 + '",')
    with pytest.raises(ConfigError) as caught:
        list(csv_rows(path, TRUSTED, None))
    assert "it is longer than 4 MB" in caught.value.problems[0].message


def test_a_large_file_is_not_hashed_before_it_is_refused(tmp_path: Path) -> None:
    write_zeros(tmp_path / "t.yaml")
    began = time.process_time()
    with pytest.raises(OSError, match="larger than 64 MB"):
        hash_file(tmp_path / "t.yaml", TRUSTED, max_bytes=MAX_CONFIG_BYTES)
    assert time.process_time() - began < 1


def test_what_people_have_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        ",".join(f"c{n}" for n in range(MAX_COLUMNS)) + "\n" + "1," * (MAX_COLUMNS - 1) + "1\n"
    )
    check(tmp_path, "t.csv")
    (tmp_path / "t.jsonl").write_text(json.dumps({"vars": {"x": "y" * (20 << 20)}}) + "\n")
    check(tmp_path, "t.jsonl")
    assert MAX_LINE_BYTES > 20 << 20


WILDCARDS = {
    "many stars": ("**/" * 30 + "*.csv", True),
    "stars and names": ("**/a/" * 8 + "**/*.csv", True),
    "links to themselves": ("**/*.csv", True),
    "a star for each link": ("*/" * 30 + "x.csv", False),
    "longer than a name may be": ("*/" * 3000 + "x.csv", False),
}


@pytest.mark.parametrize("name", WILDCARDS)
def test_a_wildcard_walks_each_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(files, "_MOST_FOLDERS", 1_000)
    pattern, is_found = WILDCARDS[name]
    deep = tmp_path.joinpath("d", *["a"] * 20)
    deep.mkdir(parents=True)
    (deep / "x.csv").write_text("q\n1\n")
    for link in ("l", "m"):
        (tmp_path / link).symlink_to(".")
    began = time.process_time()
    with nullcontext() if is_found else pytest.raises(ConfigError):
        check(tmp_path, pattern, is_untrusted=True)
    assert time.process_time() - began < 30


def test_an_odd_address_is_no_error_of_geval(tmp_path: Path) -> None:
    for address in (
        "HTTP://127.0.0.1:9/t.csv",
        "HTTPS://127.0.0.1:9/t.csv",
        "HuggingFace://datasets/a/b",
        "Http://h/t.csv",
        "http://[::1/t.csv",
        "https://h:port/t.csv",
        "s3:///t.csv",
    ):
        for is_untrusted in (False, True):
            with pytest.raises(ConfigError):
                check(tmp_path, address, is_untrusted=is_untrusted)


def test_a_reason_of_megabytes_is_cut_and_says_so() -> None:
    found = _bounded({"reason": "x" * 5_000_000, "parts": [{"text": "y" * 200_000}], "score": 1})
    assert len(json.dumps(found)) < 250_000
    assert "5,000,000 characters" in found["reason"]
