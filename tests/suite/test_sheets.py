"""Sheets as spreadsheet programs and libraries write them: what the XML of a cell means, in both dialects."""

import json
import zipfile
from datetime import time
from html import escape
from pathlib import Path
from typing import Any

import pytest

from geval_cli.errors import ConfigError
from geval_cli.source.access import TRUSTED
from geval_cli.suite.load import open_suite

Workbook: Any = pytest.importorskip("openpyxl").Workbook

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"
DIALECTS = ("geval", "promptfoo")


def text(place: str, value: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'


def header(*names: str) -> str:
    return f'<row r="1">{"".join(text(f"{chr(65 + at)}1", name) for at, name in enumerate(names))}</row>'


def write_book(path: Path, *sheets: str, states: tuple[str, ...] = (), shared: str = "") -> None:
    """Write sheets, each given by its XML: rows, or a whole document."""
    numbers = range(1, len(sheets) + 1)
    state = dict(zip(numbers, states, strict=False))
    rows = "".join(
        f'<sheet name="S{n}" sheetId="{n}" state="{state.get(n, "visible")}" r:id="r{n}"/>' for n in numbers
    )
    related = "".join(
        f'<Relationship Id="r{n}" Type="{RELATIONS}/worksheet" Target="worksheets/s{n}.xml"/>'
        for n in numbers
    )
    kinds = "".join(
        f'<Override PartName="/xl/worksheets/s{n}.xml" ContentType="{KIND}.worksheet+xml"/>' for n in numbers
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{PACKAGE}/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/xl/workbook.xml" ContentType="{KIND}.sheet.main+xml"/>{kinds}'
            f'<Override PartName="/xl/shared.xml" ContentType="{KIND}.sharedStrings+xml"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheets>{rows}</sheets></workbook>',
        )
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships">{related}<Relationship Id="s" '
            f'Type="{RELATIONS}/sharedStrings" Target="shared.xml"/></Relationships>',
        )
        archive.writestr("xl/shared.xml", f'<sst xmlns="{MAIN}"><si><t>{shared}</t></si></sst>')
        for number, sheet in zip(numbers, sheets, strict=True):
            document = sheet
            if not sheet.startswith(("<worksheet", "<x:")):
                document = f'<worksheet xmlns="{MAIN}"><sheetData>{sheet}</sheetData></worksheet>'
            archive.writestr(f"xl/worksheets/s{number}.xml", document)


def variables(folder: Path, dialect: str = "geval", tests: str = "file://t.xlsx") -> list[dict[str, Any]]:
    config = {"dialect": dialect, "prompts": ["{{ a }}"], "providers": ["echo"], "tests": tests}
    (folder / "c.json").write_text(json.dumps(config), encoding="utf-8")
    return [dict(case.vars) for case in open_suite(folder / "c.json", env={}, access=TRUSTED).suite.tests]


def refusal(folder: Path, dialect: str = "geval") -> tuple[str, str]:
    """Return the message of the only problem, and its cell."""
    with pytest.raises(ConfigError) as caught:
        variables(folder, dialect)
    (problem,) = caught.value.problems
    assert problem.location
    return problem.message, problem.location.key_path


ROWS = (
    f'{header("a", "b")}<row r="2">{text("A2", "1")}{text("B2", "2")}</row><row r="3">{text("A3", "3")}</row>'
)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("size", ["", "A1", "A1:A3", "A1:B1", "A1:B2", "A1:B3", "B1:B2", "A1:D40"])
def test_no_row_and_no_column_is_lost_whatever_size_the_file_states(
    tmp_path: Path, size: str, dialect: str
) -> None:
    given = f'<dimension ref="{size}"/>' if size else ""
    write_book(
        tmp_path / "t.xlsx",
        f'<worksheet xmlns="{MAIN}">{given}<sheetData>{ROWS}</sheetData></worksheet>',
    )
    assert variables(tmp_path, dialect) == [{"a": "1", "b": "2"}, {"a": "3", "b": ""}]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_row_wider_than_the_header_is_told_at_its_cell(tmp_path: Path, dialect: str) -> None:
    write_book(
        tmp_path / "t.xlsx",
        f'{header("a")}<row r="2">{text("A2", "1")}<c r="B2"/></row><row r="3">{text("C3", "x")}</row>',
    )
    assert refusal(tmp_path, dialect) == ("this cell is in a column without a name", "S1!C3")


FORMULAS = {
    "a value": ('<c r="A2" t="str"><f>B2</f><v>x</v></c>', "x"),
    "a number": ('<c r="A2"><f>B2</f><v>5</v></c>', "5"),
    "an empty text": ('<c r="A2" t="str"><f>IF(B2="x","y","")</f><v></v></c>', ""),
    "an empty text, short": ('<c r="A2" t="str"><f>B2</f><v/></c>', ""),
    "an empty text, shared": ('<c r="A2" t="str"><f t="shared" si="0"/><v/></c>', ""),
    "not saved": ('<c r="A2"><f>B2</f></c>', None),
    "not saved, empty": ('<c r="A2"><f>B2</f><v></v></c>', None),
    "not saved, of a text": ('<c r="A2" t="str"><f>B2</f></c>', None),
    "not saved, shared": ('<c r="A2" t="str"><f t="shared" si="0"/> </c>', None),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("prefix", ["", "x:"])
@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_has_its_saved_value_or_is_refused(
    tmp_path: Path, formula: str, prefix: str, dialect: str
) -> None:
    cell, value = FORMULAS[formula]
    rows = f'{header("a", "b")}<row r="2">{cell}{text("B2", "z")}</row>'
    if prefix:  # as Microsoft's own library writes them
        tags = rows.replace("</", "\0").replace("<", f"<{prefix}").replace("\0", f"</{prefix}")
        rows = f'<x:worksheet xmlns:x="{MAIN}"><x:sheetData>{tags}</x:sheetData></x:worksheet>'
    write_book(tmp_path / "t.xlsx", rows)
    if value is None:
        assert refusal(tmp_path, dialect) == (
            "this cell contains a formula whose value was never saved",
            "S1!A2",
        )
    else:
        assert variables(tmp_path, dialect) == [{"a": value, "b": "z"}]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("one_x000D_\ntwo", "one\ntwo"),
        ("one_x000d_\ntwo", "one\ntwo"),
        ("one_x000D_two", "one\rtwo"),
        ("_x0009_tab", "\ttab"),
        ("call _x0041_ me", "call _x0041_ me"),
    ],
)
def test_escapes_of_control_characters_are_no_text(
    tmp_path: Path, written: str, read: str, dialect: str
) -> None:
    shared = f'{header("a", "b")}<row r="2">{text("A2", f"-{written}-")}<c r="B2" t="s"><v>0</v></c></row>'
    write_book(tmp_path / "t.xlsx", shared, shared=f"-{written}-")
    found = {"a": f"-{read}-", "b": f"-{read}-"}
    assert variables(tmp_path, dialect) == [found]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.30000000000000004", "0.3"),
        ("1.1000000000000001", "1.1"),
        ("434.99999999999994", "435"),
        ("0.123456789012345", "0.123456789012345"),
        ("12345678901234", "12345678901234"),
        ("1.0", "1"),
        ("1E-7", "1e-7"),
    ],
)
def test_a_number_has_the_digits_that_a_sheet_can_show(tmp_path: Path, written: str, read: str) -> None:
    write_book(tmp_path / "t.xlsx", f'{header("a")}<row r="2"><c r="A2"><v>{written}</v></c></row>')
    assert variables(tmp_path) == [{"a": read}]


@pytest.mark.parametrize("error", ["#N/A", "#SPILL!", "#CALC!", "#FIELD!", "#ERROR!", "#NAME?", "Err:502"])
@pytest.mark.parametrize("kind", ["xlsx", "csv"])
def test_errors_of_every_spreadsheet_program_are_refused(tmp_path: Path, error: str, kind: str) -> None:
    if kind == "xlsx":
        write_book(tmp_path / "t.xlsx", f'{header("a")}<row r="2"><c r="A2" t="e"><v>{error}</v></c></row>')
    else:
        (tmp_path / "t.csv").write_text(f"a,b\n{error},x\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        variables(tmp_path, tests=f"file://t.{kind}")
    assert caught.value.problems[0].message == f"this cell contains the formula error {error}"


def test_the_first_sheet_is_the_first_that_is_seen(tmp_path: Path) -> None:
    sheets = [f'{header("a")}<row r="2">{text("A2", str(number))}</row>' for number in range(3)]
    for states, geval in ((("visible",), "0"), (("hidden", "veryHidden"), "2"), (("hidden",) * 3, "0")):
        write_book(tmp_path / "t.xlsx", *sheets, states=states)
        assert variables(tmp_path) == [{"a": geval}]
        assert variables(tmp_path, tests="file://t.xlsx#1") == [{"a": "0"}]
        assert variables(tmp_path, "promptfoo") == [{"a": "0"}]  # as there


SHOWN = [
    (0.15, "0%", "15%"),
    (0.29, "0%", "29%"),
    (0.1555, "0.00%", "15.55%"),
    (-0.5, "#,##0.0%", "-50%"),
    (1, "0%", "100%"),
    (0.15, "0.00", "0.15"),
    (True, "0%", "true"),
    (time(10, 30), "h:mm", "10:30"),
    (time(9, 5), "hh:mm;@", "09:05"),
    (time(9, 5), "h:mm", "9:05"),
    (time(0, 5), "h:mm AM/PM", "12:05 AM"),
    (time(21, 5), "[$-409]h:mm AM/PM;@", "9:05 PM"),
    (time(10, 30, 7), "h:mm", "10:30:07"),
    (time(10, 30), "h:mm:ss", "10:30:00"),
]


def test_what_is_typed_as_percentage_or_time_is_looked_for_as_such(tmp_path: Path) -> None:
    """A program stores a typed 15% as 0.15; with `assert.contains`, no output held that."""
    book = Workbook()
    sheet = book.active
    sheet.append(["a", "threshold", "assert.not-contains", "assert.answer-relevance"])
    for number, (value, form, _) in enumerate(SHOWN, start=2):
        sheet.append([value, 0.8, value, 0.7])
        for column, used in enumerate((form, "0%", form, "0%"), start=1):
            sheet.cell(number, column).number_format = used
    book.save(tmp_path / "t.xlsx")
    config = {"prompts": ["{{ a }}"], "providers": ["echo"], "tests": "file://t.xlsx"}
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    tests = list(open_suite(tmp_path / "c.json", env={}, access=TRUSTED).suite.tests)
    for test, (_, form, shown) in zip(tests, SHOWN, strict=True):
        contains, relevance = test.assertions
        assert (form, test.vars["a"], contains.value) == (form, shown, shown)
        assert (test.threshold, relevance.threshold) == (0.8, 0.7)


@pytest.mark.parametrize(("written", "read"), [("80%", 0.8), ("0.8", 0.8), ("7%", 0.07), ("100%", 1.0)])
def test_a_threshold_in_a_table_may_be_a_percentage(tmp_path: Path, written: str, read: float) -> None:
    (tmp_path / "t.csv").write_text(f"a,threshold\nx,{written}\n", encoding="utf-8")
    config = {"prompts": ["{{ a }}"], "providers": ["echo"], "tests": "file://t.csv"}
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    (test,) = open_suite(tmp_path / "c.json", env={}, access=TRUSTED).suite.tests
    assert test.threshold == read
