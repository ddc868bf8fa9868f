"""Tests and prompts from files in geval's dialect: the same rows in every kind of file, and mistakes in them."""

import csv
import gc
import io
import json
import re
import tracemalloc
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.assertions.base import MergedTest
from geval_cli.errors import ConfigError, Problem
from geval_cli.extras.export import read_portable_suite
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.programs.loading import LoadScripts
from geval_cli.source.access import TRUSTED, Access, untrusted_access
from geval_cli.source.problems import sort_problems
from geval_cli.specs.base import Spec
from geval_cli.suite.load import open_suite
from geval_cli.suite.suite import OpenedSuite
from geval_cli.suite.tables import TableRow, column_letters, guess_delimiter

ECHO: dict[str, Any] = {"prompts": ["{{ question }}"], "providers": ["echo"]}

ROWS: list[dict[str, Any]] = [
    {
        "description": "tides",
        "question": "Why are there tides?",
        "expected_output": "The moon; also, the sun",
        "metadata.area": "sea",
        "assert.icontains": "moon",
        "threshold": 0.5,
        "year": "2024",
        "day": "2024-01-02",
        "vars.input": "a variable",
    },
    {
        "description": "",
        "question": 'He said "why?"\nand went',
        "expected_output": "",
        "metadata.area": "",
        "assert.icontains": "",
        "threshold": None,
        "year": "1.5",
        "day": "",
        "vars.input": "",
    },
]
NAMES = list(ROWS[0])


def as_csv(rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    def cell(value: object) -> str:
        return '"' + ("" if value is None else str(value)).replace('"', '""') + '"'

    lines = [NAMES, *([row[name] for name in NAMES] for row in rows)]
    return "".join(delimiter.join(map(cell, line)) + "\r\n" for line in lines)


def without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it, which leaves out what is not there."""
    kept = {"question", "year", "day", "vars.input"}
    return {name: value for name, value in row.items() if name in kept or value not in ("", None)}


def write_csv(folder: Path) -> str:
    (folder / "t.csv").write_text("\ufeff" + as_csv(ROWS), encoding="utf-8")
    return "file://t.csv"


def write_semicolons(folder: Path) -> str:
    (folder / "t.csv").write_text(as_csv(ROWS, ";"), encoding="utf-8")
    return "file://t.csv"


def write_tsv(folder: Path) -> str:
    (folder / "t.tsv").write_text(as_csv(ROWS, "\t"), encoding="utf-8")
    return "file://t.tsv"


def write_sheet(folder: Path) -> str:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.create_sheet("Cases")
    typed = [{**ROWS[0], "year": 2024.0, "day": datetime(2024, 1, 2)}, {**ROWS[1], "year": 1.5}]  # noqa: DTZ001 - sheets know no time zones
    for row in (NAMES, *([row[name] for name in NAMES] for row in typed), [None] * len(NAMES)):
        sheet.append(row)
    book.save(folder / "t.xlsx")
    return "file://t.xlsx#Cases"


def write_parquet(folder: Path) -> str:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {name: [without_empty(row).get(name) for row in ROWS] for name in NAMES}
    years = pa.array(columns["year"]).dictionary_encode()
    parquet.write_table(pa.table({**columns, "year": years}), folder / "t.parquet")
    return "file://t.parquet"


def write_sheet_with_macros(folder: Path) -> str:
    write_sheet(folder)
    (folder / "t.xlsx").rename(folder / "t.xlsm")
    return "file://t.xlsm#2"


def write_json_lines(folder: Path) -> str:
    (folder / "t.jsonl").write_text("".join(json.dumps(without_empty(row)) + "\n" for row in ROWS), "utf-8")
    return "file://t.jsonl"


def write_json(folder: Path) -> str:
    (folder / "t.json").write_text(json.dumps([without_empty(row) for row in ROWS], indent=1), "utf-8")
    return "file://t.json"


def write_yaml(folder: Path) -> str:
    (folder / "t.yaml").write_text(json.dumps([without_empty(row) for row in ROWS]), encoding="utf-8")
    return "file://t.yaml"


def write_generator(folder: Path) -> str:
    rows = [without_empty(row) for row in ROWS]
    rows[0]["day"] = "THE DAY"
    source = f"import datetime\ndef load():\n    for row in {rows!r}:\n        yield row\n"
    (folder / "t.py").write_text(source.replace("'THE DAY'", "datetime.date(2024, 1, 2)"), encoding="utf-8")
    return "file://t.py:load"


def opened(folder: Path, content: Mapping[str, Any], access: Access = TRUSTED) -> OpenedSuite:
    path = folder / "gevalconfig.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    scripts = cache(lambda: LoadScripts({}, access))
    return open_suite(path, env={"KEY": "sk-1"}, access=access, scripts=scripts)


def problems_of(folder: Path, content: Mapping[str, Any], access: Access = TRUSTED) -> list[Problem]:
    suite = opened(folder, content, access)
    found = list(suite.problems)
    try:
        for _ in suite.suite.tests:
            pass
    except ConfigError as error:
        found += error.problems
    return sort_problems(found)


def cases(folder: Path, tests: object, **more: Any) -> list[MergedTest]:
    suite = opened(folder, {**ECHO, **more, "tests": tests})
    assert not suite.problems, [problem.message for problem in suite.problems]
    return list(suite.suite.tests)


def plain(case: MergedTest) -> dict[str, Any]:
    """A test case as data, without its place."""
    entries = {name: getattr(case, name) for name in case.__struct_fields__}
    for name in ("place", "schema_place"):
        del entries[name]
    dumped = [item.model_dump(exclude={"place"}, serialize_as_any=True) for item in case.assertions]
    specs = {name: None for name, entry in entries.items() if isinstance(entry, Spec)}
    return {**entries, **specs, "assertions": dumped}


WRITERS: list[Callable[[Path], str]] = [
    write_csv,
    write_semicolons,
    write_tsv,
    write_sheet,
    write_sheet_with_macros,
    write_parquet,
    write_json_lines,
    write_json,
    write_yaml,
    write_generator,
]


@pytest.mark.parametrize("write", WRITERS)
def test_the_same_rows_are_the_same_tests_in_every_kind_of_file(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    inline = [
        {
            "description": "tides",
            "vars": {
                "question": "Why are there tides?",
                "year": "2024",
                "day": "2024-01-02",
                "input": "a variable",
            },
            "expected_output": "The moon; also, the sun",
            "metadata": {"area": "sea"},
            "threshold": 0.5,
            "assert": [{"type": "icontains", "value": "moon"}],
        },
        {"vars": {"question": 'He said "why?"\nand went', "year": "1.5", "day": "", "input": ""}},
    ]
    default = {"assert": [{"type": "contains", "value": "a"}], "metadata": {"level": "low"}}
    wanted = [plain(case) for case in cases(tmp_path, inline, defaultTest=default)]

    found = [plain(case) for case in cases(tmp_path, write(tmp_path), defaultTest=default)]

    assert found == wanted
    assert [len(case["assertions"]) for case in found] == [2, 1]


def test_lists_mix_tests_files_wildcards_and_functions_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name in ("b", "a", ".hidden"):
        (tmp_path / f"more/{name}.csv").write_text(f"question\n{name}\n", encoding="utf-8")
    (tmp_path / "t.py").write_text(
        "async def generate_tests():\n    return [{'question': 'made'}]\n", "utf-8"
    )
    first, last = {"vars": {"question": "first"}}, {"vars": {"question": "last"}}
    for folder in ("file://more/*.csv", "file://more", "file://more/{a,b}.csv"):
        found = cases(tmp_path, [first, folder, "file://t.py", last])
        assert [case.vars["question"] for case in found] == ["first", "a", "b", "made", "last"]
        assert [case.index for case in found] == [0, 1, 2, 3, 4]


def test_cells_of_keys_that_hold_no_text_are_json(tmp_path: Path) -> None:
    row = {
        "q": "x",
        "assert": json.dumps([{"type": "contains", "value": "x"}]),
        "assert.not-contains": "y",
        "context": json.dumps(["one", "two"]),
        "retrieval_context": "[1] is a footnote",
        "metadata": json.dumps({"a": 1}),
        "metadata.b": "2",
        "options.samples": "3",
        "provider": "echo",
        "evaluation_schema": json.dumps({"type": "object"}),
    }
    text = ",".join(row) + "\n" + ",".join('"' + value.replace('"', '""') + '"' for value in row.values())
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")

    (case,) = cases(tmp_path, "file://t.csv", prompts=["{{ q }}"])

    assert [item.type for item in case.assertions] == ["contains", "not-contains"]
    assert (case.context, case.retrieval_context) == (("one", "two"), "[1] is a footnote")
    assert (dict(case.metadata), case.options.samples) == ({"a": 1, "b": "2"}, 3)
    assert (case.evaluation_schema, case.provider and case.provider.id) == ({"type": "object"}, "echo")


@pytest.mark.parametrize("column", ["context", "options.prefix"])
def test_a_cell_that_is_nested_too_deeply_for_json_is_a_text(tmp_path: Path, column: str) -> None:
    (tmp_path / "t.csv").write_text(f"q,{column}\nx,{'[' * 20_000}\n", encoding="utf-8")
    content = {"prompts": ["{{ q }}"], "providers": ["echo"], "tests": "file://t.csv"}
    if column == "context":
        (case,) = cases(tmp_path, "file://t.csv", prompts=["{{ q }}"])
        assert case.context == "[" * 20_000
    else:
        assert problems_of(tmp_path, content)


BAD_TABLES = [
    ("q,threshold\na,0.5\nb,high\n", "3:3", "`threshold` must be a number, found `high`"),
    ('q,threshold\n"a\nb",0.5\n"c\nd","0,7"\n', "5:4", "`threshold` must be a number, found `0,7`"),
    ("q;assert\na;[{]\n", "2:3", "a cell of `assert` must be JSON"),
    ('q,assert\na,"[{""type"": ""contans""}]"\n', "2:3", "unknown assertion type `contans`"),
    ("q,assert.contans\na,b\n", "1:3", "there is no assertion type `contans`"),
    ("q,treshold\na,1\n", "1:3", "unknown key `treshold` in a test"),
    ("q,Expected Output\na,1\n", "1:3", "unknown key `Expected Output` in a test"),
    ("q,__expected\na,b\n", "1:3", "`__expected` is a promptfoo column"),
    ("q,__metadata:area\na,b\n", "1:3", "`__metadata:area` is a promptfoo column"),
    ("q,a,q\n1,2,3\n", "1:5", "two columns are called `q`"),
    ("q,vars.q\n1,2\n", "2:3", "`vars.q` duplicates another column"),
    ("vars,q\n1,2\n", "1:1", "a table has no column `vars`"),
    ("q,threshold\na,7\n", "2:3", "`threshold` must be a number from 0 to 1, found the number 7"),
    ("q,r\na\n", "2:1", "this row has 1 cell, but the header has 2"),
    ('q,r\n"a,b\nc,d\n', "2:1", "a quote in this row is never closed"),
    ('q,r\n"a"b,c\n', "2:1", "there is text after a closing quote"),
    ("q,context\na,file://none.txt\n", "2:3", "there is no file"),
    ("q\n\n  \n", "", "contains no tests"),
    ("", "", "contains no tests"),
]


@pytest.mark.parametrize(("text", "where", "message"), BAD_TABLES)
def test_a_mistake_in_a_table_is_shown_at_its_cell(
    tmp_path: Path, text: str, where: str, message: str
) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")

    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.csv"})

    assert message in problem.message
    assert problem.hint
    assert problem.location is not None
    shown = str(problem.location)
    assert shown.endswith(f"t.csv:{where}") if where else "gevalconfig.json" in shown


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("q,\na,lost\nb,lost\n", "2:3"),
        ("q,,b\na,,c\nd,lost,e\n", "3:3"),
        ("q; ;b\na;lost;c\n", "2:3"),
        (",q\nlost,a\n", "2:1"),
        (",q\n0,a\n1,b\n", ""),
        ("q,,\na,, \n", ""),
    ],
)
def test_a_cell_below_no_name_is_told_once(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    tests = opened(
        tmp_path, {"prompts": ["{{ q }}"], "providers": ["echo"], "tests": "file://t.csv"}
    ).suite.tests
    assert [case.vars["q"] for case in tests]
    told = [str(problem.location) for problem in tests.warnings.values() if "no name" in problem.message]
    assert [place.rpartition("t.csv:")[2] for place in told] == ([where] if where else [])


def test_a_mistake_in_a_sheet_is_shown_at_its_cell(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "My tests"
    for row in (["q", "threshold", "a"], ["x", "high", "#N/A"], [date(2024, 1, 2), True, None]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")

    found = problems_of(tmp_path, {**ECHO, "tests": "file://t.xlsx"})

    assert [problem.location and problem.location.key_path for problem in found] == [
        "My tests!B2",
        "My tests!C2",
        "My tests!B3",
    ]
    assert "#N/A" in found[1].message
    (missing,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.xlsx#None"})
    assert (missing.message, missing.hint) == ("`t.xlsx` has no sheet `None`", "it has: My tests")


def test_durations_in_a_sheet_are_what_it_shows(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    durations = [timedelta(hours=30, minutes=5), timedelta(seconds=7), timedelta(days=5, seconds=1)]
    for cell in ("length", *durations):
        book.active.append([cell])
    book.save(tmp_path / "t.xlsx")
    found = [dict(case.vars)["length"] for case in cases(tmp_path, "file://t.xlsx")]
    assert found == ["30:05:00", "00:00:07", "120:00:01"]


def test_a_number_that_a_sheet_shows_with_zeros_before_it_has_them(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["a", "b"], [2134, 2134], [123456, 0.5], [7.0, True], ["x", None]):
        book.active.append(row)
    for cell in book.active["A"]:
        cell.number_format = "[$-409]00000;@"
    book.active["B3"].number_format = book.active["B4"].number_format = "000"
    book.save(tmp_path / "t.xlsx")
    found = [(dict(case.vars)["a"], dict(case.vars)["b"]) for case in cases(tmp_path, "file://t.xlsx")]
    assert found == [("02134", "2134"), ("123456", "0.5"), ("00007", "true"), ("x", "")]


def test_a_merged_cell_counts_in_each_row_that_it_covers(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (
        ["area", "question", "word"],
        ["a", "1", "x"],
        [None, "2", None],
        [None, "3", "y"],
        [None, "4", None],
    ):
        sheet.append(row)
    sheet.merge_cells("A2:B2")  # in one row: the second column has no value of its own
    for merged in ("A3:A9", "C2:C3", "C1:D1"):
        sheet.merge_cells(merged)
    sheet["A3"] = "b"
    book.save(tmp_path / "t.xlsx")
    found = [
        tuple(dict(case.vars)[name] for name in ("area", "question", "word"))
        for case in cases(tmp_path, "file://t.xlsx")
    ]
    assert found == [("a", "", "x"), ("b", "2", "x"), ("b", "3", "y"), ("b", "4", "")]


def test_a_sheet_that_holds_a_chart_is_passed_over(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["q", "n"], ["x", 1]):
        book.active.append(row)
    chart = openpyxl.chart.BarChart()
    chart.add_data(openpyxl.chart.Reference(book.active, min_col=2, min_row=1, max_row=2))
    book.create_chartsheet("Chart", 0).add_chart(chart)
    book.save(tmp_path / "t.xlsx")
    for name in ("t.xlsx", "t.xlsx#Sheet", "t.xlsx#2"):
        assert problems_of(tmp_path, {**ECHO, "tests": f"file://{name}"}) == []
    for name in ("t.xlsx#Chart", "t.xlsx#1"):
        (problem,) = problems_of(tmp_path, {**ECHO, "tests": f"file://{name}"})
        assert problem.message == "the sheet `Chart` of `t.xlsx` holds a chart and no cells"
        assert problem.hint == "name one of: Sheet"


@pytest.mark.parametrize(
    ("written", "read", "missing"),
    [
        ("t{1,2}.csv", ["1", "2"], None),
        ("t{1..2}.csv", ["1", "2"], None),
        ("t{1,2}.{csv,csv}", ["1", "2"], None),
        ("t{1,2}*.{csv,jsonl}", ["1", "2"], None),
        ("{t,none}*.csv", ["1", "2"], None),
        ("{odd,name}.csv", ["odd"], None),
        ("t{1,2,3}.csv", [], "t3.csv"),
        ("t{0..2}.csv", [], "t0.csv"),
        ("t{1,2}.{csv,jsonl}", [], "t1.jsonl"),
    ],
)
def test_each_file_that_braces_name_must_exist(
    tmp_path: Path, written: str, read: list[str], missing: str | None
) -> None:
    for name, text in {"t1.csv": "1", "t2.csv": "2", "{odd,name}.csv": "odd"}.items():
        (tmp_path / name).write_text(f"q\n{text}\n", encoding="utf-8")
    if missing is None:
        assert [dict(case.vars)["q"] for case in cases(tmp_path, f"file://{written}")] == read
    else:
        (problem,) = problems_of(tmp_path, {**ECHO, "tests": [f"file://{written}"]})
        assert problem.message == f"there is no file `{tmp_path / missing}`"


def test_a_formula_without_a_saved_value_is_no_empty_cell(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["q", "r"], ["x", "y"], ["z", "=A2"]):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.xlsx"})
    assert "a formula whose value was never saved" in problem.message
    assert problem.location
    assert problem.location.key_path == "Sheet!B3"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"q,r\n1,2\n"])
def test_a_file_that_is_no_sheet_is_refused(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("openpyxl")
    (tmp_path / "t.xlsx").write_bytes(content)
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.xlsx"})
    assert "is not a spreadsheet" in problem.message


def test_what_excel_saves_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("question\nGrüße\n".encode("cp1252"))
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.csv"})
    assert "is not UTF-8 text" in problem.message
    assert "CSV UTF-8" in problem.hint


@pytest.mark.parametrize("number", ["1e400", "-1e999", "123456789e400", "NaN", "Infinity"])
@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".yaml"])
def test_a_number_that_is_not_finite_is_a_problem_in_every_format(
    tmp_path: Path, number: str, suffix: str
) -> None:
    row = f'{{"vars": {{"question": {number}}}, "assert": [{{"type": "latency", "threshold": 9e99}}]}}'
    (tmp_path / f"t{suffix}").write_text(row if suffix.endswith(("jsonl", "ndjson")) else f"[{row}]", "utf-8")
    found = problems_of(tmp_path, {**ECHO, "prompts": ["{{ question }}"], "tests": f"file://t{suffix}"})
    if suffix == ".yaml" and number.isalpha():  # in YAML, a word is a text
        assert found == []
        return
    [problem] = found
    assert "number" in problem.message or "JSON value is missing" in problem.message
    assert problem.location is not None
    assert problem.location.file.endswith(suffix)


def test_mistakes_in_flat_rows_of_json_lines_are_shown_where_they_stand(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "threshold": 5},
        {"question": "b", "treshold": 1},
        {"question": "c", "treshold": 1},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    first, second = problems_of(tmp_path, {**ECHO, "tests": "file://t.jsonl"})

    assert first.location
    assert second.location
    assert (first.location.line, first.location.column, first.location.key_path) == (
        1,
        32,
        "tests[0].threshold",
    )
    # Once, not in every row; and with the way to have a variable of that name.
    assert (second.location.line, second.location.column) == (2, 19)
    assert "`vars.treshold`" in second.notes[0]


def test_half_of_a_surrogate_pair_is_named_where_a_text_has_to_be(tmp_path: Path) -> None:
    row = json.dumps({"trace": [{"name": "a\ud83d"}]})
    (tmp_path / "t.jsonl").write_text(row, encoding="utf-8")
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.jsonl"})
    assert problem.message == "`name` is not valid text: it contains half of a surrogate pair"
    assert str(problem.location).endswith("t.jsonl:1:21")


def test_rows_with_vars_are_as_strict_as_tests_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"vars": {"question": "a"}, "topic": "b"}\n', encoding="utf-8")
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.jsonl"})
    assert problem.message == "unknown key `topic` in a test"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(
            (name, "assert.equals")
            for name in ("Assert.Equals", "asert.equals", "assertions.equals", "assert_equals")
        ),
        *(
            (name, "assert.equals")
            for name in ("assert: equals", "assert equals", " assert .equals", "assert.Equals")
        ),
        ("ASSERT.NOT_contains", "assert.not-contains"),
        ("Metadata.area", "metadata.area"),
        ("options:samples", "options.samples"),
        ("Vars.x", "vars.x"),
    ],
)
def test_a_column_that_nearly_asserts_something_is_no_variable(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / "t.csv").write_text(f"question,{name}\nq,value\n", encoding="utf-8")
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": "file://t.csv"})
    assert problem.hint == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    "name",
    [
        "content",
        "expected",
        "id",
        "label",
        "my column",
        "_x",
        "__id__",
        "asset.cost",
        "metadata_area",
        "insert.similar",
    ],
)
def test_other_columns_are_variables(tmp_path: Path, name: str) -> None:
    (tmp_path / "t.csv").write_text(f"question,{name},\nq,value,\n", encoding="utf-8")
    (case,) = cases(tmp_path, "file://t.csv")
    assert dict(case.vars) == {"question": "q", name: "value"}


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.py"])
def test_columns_can_have_other_names_in_the_config(tmp_path: Path, name: str) -> None:
    rows = [{"Customer question": "why?", "output": "because", "notes": "private", "contexts": "a book"}]
    lines = [",".join(rows[0]), ",".join(rows[0].values())]
    texts = {
        "t.csv": "\n".join(lines),
        "t.jsonl": json.dumps(rows[0]),
        "t.py": f"def generate_tests():\n    return {rows!r}\n",
    }
    (tmp_path / name).write_text(texts[name], encoding="utf-8")
    columns = {
        "Customer question": "question",
        "output": "expected_output",
        "notes": None,
        "contexts": "vars.context",
    }

    (case,) = cases(tmp_path, [{"path": f"file://{name}", "columns": columns}])

    assert dict(case.vars) == {"question": "why?", "context": "a book"}
    assert (case.expected_output, case.has_output, case.context) == ("because", False, None)
    content = {**ECHO, "tests": [{"path": f"file://{name}", "columns": {**columns, "note": "x"}}]}
    jsonschema.Draft202012Validator(config_json_schema()).validate(content)
    (problem,) = problems_of(tmp_path, content)
    assert (problem.message, problem.hint) == (f"`{name}` has no column `note`", "did you mean `notes`?")
    assert problem.location
    assert problem.location.key_path == "tests[0].columns"


@pytest.mark.parametrize(
    ("entry", "message", "hint"),
    [
        ({"path": "t.csv"}, "`path` must name tests files", "write file://t.csv"),
        ({"path": "file://t.csv", "colums": {}}, "unknown key `colums` in an entry of files", "`columns`?"),
        ({"path": "file://t.csv", "columns": {"q": 1}}, "`columns.q` must be text", ""),
        ({"path": "file://t.csv", "vars": {}}, "unknown key `vars` in an entry of files", ""),
        ({"path": "file://t.csv", "columns": {"q": "treshold"}}, "unknown key `treshold`", "`threshold`?"),
        ({"path": "file://t.csv", "columns": {"q": "r"}}, "`r` duplicates another column", "keep one"),
    ],
)
def test_mistakes_in_an_entry_of_files_are_shown(
    tmp_path: Path, entry: dict[str, Any], message: str, hint: str
) -> None:
    (tmp_path / "t.csv").write_text("q,r\na,b\n", encoding="utf-8")
    found = problems_of(tmp_path, {**ECHO, "tests": [entry]})
    assert [message in problem.message and hint in problem.hint for problem in found] == [True], found


GENERATORS = [
    ("def f():\n    return {'q': 1}\n", "must return or yield a mapping for each test, not dict"),
    ("def f():\n    return 'text'\n", "not str"),
    ("def f():\n    return None\n", "not NoneType"),
    ("def f():\n    yield {'q': {1}}\n", "row 1 cannot be written as JSON: set is not a JSON value"),
    ("def f():\n    yield {'q': 1}\n    yield {'q': float('nan')}\n", "row 2 cannot be written as JSON"),
    ("def f():\n    yield {'q': 1}\n    raise ValueError('no rows')\n", "ValueError: no rows"),
    ("def g():\n    pass\n", "has no attribute 'f'"),
    ("import nothing_of_this_name\n", "nothing_of_this_name"),
    ("def f(:\n", "SyntaxError"),
    ("def f():\n    return []\n", "made no tests"),
    ("def f():\n    return ['text']\n", "a test must be a mapping, found the text"),
    ("def f():\n    yield {'question': 'a', 'threshold': 5}\n", "`threshold` must be a number from 0 to 1"),
]


@pytest.mark.parametrize(("code", "message"), GENERATORS)
def test_a_function_that_makes_no_tests_is_a_problem_in_the_config(
    tmp_path: Path, code: str, message: str
) -> None:
    (tmp_path / "t.py").write_text(code, encoding="utf-8")
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": ["file://t.py:f"]})
    assert message in problem.message
    assert problem.location
    assert problem.location.file.endswith("gevalconfig.json")


def test_a_function_is_called_once_and_every_pass_sees_its_rows(tmp_path: Path) -> None:
    code = (
        "import pathlib, random\n"
        "def load():\n"
        "    with pathlib.Path(__file__).with_name('calls').open('a') as file:\n"
        "        file.write('x')\n"
        "    for _ in range(3):\n"
        "        yield {'question': str(random.random())}\n"
    )
    (tmp_path / "t.py").write_text(code, encoding="utf-8")

    suite = opened(tmp_path, {**ECHO, "tests": "file://t.py:load"}).suite
    passes = [[case.vars["question"] for case in suite.tests] for _ in range(3)]

    assert passes[0] == passes[1] == passes[2]
    assert len(set(passes[0])) == 3
    assert (tmp_path / "calls").read_text() == "x"


def test_rows_of_a_function_are_removed_with_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "t.py").write_text("def load():\n    yield {'question': 'a'}\n", encoding="utf-8")
    suite = opened(tmp_path, {**ECHO, "tests": "file://t.py:load"})
    (folder,) = tmp_path.glob("geval-tests-*")
    assert folder.stat().st_mode & 0o077 == 0
    del suite
    gc.collect()
    assert not folder.exists()


def test_a_run_is_identified_by_every_file_and_row(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")

    def write(name: str, word: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".xlsx"):
            book = openpyxl.Workbook()
            book.active.append(["question"])
            book.active.append([word])
            book.save(path)
        elif name == "t.py":
            path.write_text(f"def generate_tests():\n    yield {{'question': '{word}'}}\n", encoding="utf-8")
        else:
            path.write_text(
                f"question\n{word}\n" + ("file://doc.txt\n" if name == "one.csv" else ""), "utf-8"
            )

    files = ["one.csv", "data/two.csv", "t.py", "t.xlsx", "prompts/a.txt", "doc.txt", "beside_lines.txt"]
    line = '{"question": "file://beside_lines.txt"}\n'
    (tmp_path / "lines.jsonl").write_text(line, encoding="utf-8-sig")  # as some editors save it
    for name in files:
        write(name, "before")
    content = {
        **ECHO,
        "prompts": ["file://prompts/*.txt"],
        "tests": [
            *("file://one.csv", "file://data/*.csv", "file://t.py", "file://t.xlsx#Sheet"),
            "file://lines.jsonl",
        ],
    }

    def digest() -> str:
        suite = opened(tmp_path, content)
        assert not suite.problems
        return suite.suite.digest

    found = [digest()]
    assert digest() == found[0]
    for name in files:
        write(name, "after")
        found.append(digest())
    assert len({*found}) == len(found)


def test_a_file_that_a_wildcard_finds_later_identifies_another_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question\nx\n", encoding="utf-8")
    content = {**ECHO, "tests": "file://*.csv"}
    before = opened(tmp_path, content).suite.digest
    (tmp_path / "b.csv").write_text("question\ny\n", encoding="utf-8")
    assert opened(tmp_path, content).suite.digest != before


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("file://t.py:load", "runs code, which --untrusted does not allow"),
        (["file://../out.csv"], "is outside the config's folder"),
        (["file://{in.csv,../out.csv}"], "is outside the config's folder"),
        ("file://../*.csv", "is outside the config's folder"),
        ("file://link.csv", "is outside the config's folder"),
        ("file://lin*.csv", "is outside the config's folder"),
    ],
)
def test_a_strangers_tests_run_no_code_and_stay_in_their_folder(
    tmp_path: Path, tests: object, message: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "out.csv").write_text("question\nsecret\n", encoding="utf-8")
    (home / "in.csv").write_text("question\nx\n", encoding="utf-8")
    (home / "link.csv").symlink_to(tmp_path / "out.csv")
    (home / "t.py").write_text(
        "import pathlib\npathlib.Path('ran').touch()\ndef load():\n    return []\n", "utf-8"
    )

    found = problems_of(home, {**ECHO, "tests": tests}, untrusted_access([home]))

    assert message in found[0].message
    assert "secret" not in str(found)
    assert not (home / "ran").exists()


def test_no_environment_values_are_filled_into_tables(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question\n{{ env.KEY }}\n", encoding="utf-8")
    (case,) = cases(tmp_path, "file://t.csv")
    assert case.vars["question"] == "{{ env.KEY }}"


def peak_of(folder: Path, count: int) -> int:
    """The most memory of a pass over so many rows of a CSV file, in bytes."""
    (folder / "t.csv").write_text("question\n" + f"{'word ' * 100}\n" * count, encoding="utf-8")
    suite = opened(folder, {**ECHO, "tests": "file://t.csv"}).suite
    tracemalloc.start()
    try:
        assert sum(1 for _ in suite.tests) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_table_is_never_held_whole(tmp_path: Path) -> None:
    peak_of(tmp_path, 600)  # what is only loaded once
    assert peak_of(tmp_path, 2000) - peak_of(tmp_path, 600) < 100_000


def test_prompts_of_wildcards_and_folders_are_called_as_their_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "deep/a.txt", ".hidden"):
        path = tmp_path / "prompts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} {{{{ question }}}}\n", encoding="utf-8")

    def labels(*prompts: object) -> list[tuple[str, str]]:
        content = {**ECHO, "prompts": list(prompts), "tests": [{"vars": {"question": "q"}}]}
        suite = opened(tmp_path, content)
        assert not suite.problems, [problem.message for problem in suite.problems]
        return [(prompt.id, prompt.label) for prompt in suite.suite.prompts]

    named = [("a", "a"), ("b", "b")]
    assert labels("file://prompts") == labels("file://prompts/") == labels("file://prompts/*") == named
    assert labels("file://prompts/*.txt", "as it is") == [("b", "b"), ("prompt-2", "as it is")]
    both = [("prompts/a.md", "prompts/a.md"), ("prompts/deep/a.txt", "prompts/deep/a.txt")]
    assert labels("file://prompts/a*", "file://prompts/deep/*") == both
    assert labels({"label": "L", "raw": "file://prompts/*.txt"}) == [("b", "L: b")]
    assert labels("file://prompts/b.txt") == [("prompt-1", "b.txt {{ question }}")]


@pytest.mark.parametrize(
    ("column", "cell", "made"),
    [
        ("assert.latency", "250", {"type": "latency", "threshold": 250}),
        ("assert.not-perplexity", "1.5", {"type": "not-perplexity", "threshold": 1.5}),
        ("assert.contains", "250", {"type": "contains", "value": "250"}),
        ("assert.latency", "soon", '`threshold` must be a number of at least 0, found the text "soon"'),
        *(
            ("assert.latency", cell, f'`threshold` must be a number of at least 0, found the text "{cell}"')
            for cell in ("NaN", "Infinity", "1e400")
        ),
        ("assert.is-html", "yes", "unknown key `value` in an is-html assertion"),
    ],
)
def test_a_cell_is_the_threshold_of_an_assertion_that_has_no_value(
    tmp_path: Path, column: str, cell: str, made: object
) -> None:
    (tmp_path / "t.csv").write_text(f"question,{column}\nq,{cell}\n", encoding="utf-8")
    found = problems_of(tmp_path, {**ECHO, "prompts": ["x"], "tests": ["file://t.csv"]}, TRUSTED)
    if isinstance(made, str):
        assert (found[0].message, found[0].location.line) == (made, 2)
        return
    assert found == []
    opened(tmp_path, {**ECHO, "prompts": ["x"], "tests": ["file://t.csv"]})
    content = read_portable_suite(tmp_path / "gevalconfig.json", env={}).content
    assert content["tests"][0]["assert"] == [made]


def test_a_suite_with_files_is_exported_with_their_content(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"p/{name}.txt").write_text(f"{name} {{{{ question }}}}", encoding="utf-8")
    (tmp_path / "t.csv").write_text("question,assert.contains\nq,c\n", encoding="utf-8")
    opened(tmp_path, {**ECHO, "prompts": ["x", "file://p"], "tests": ["file://t.csv"]})

    content = read_portable_suite(tmp_path / "gevalconfig.json", env={}).content

    assert content["prompts"] == [
        {"raw": "x"},
        {"id": "a", "label": "a", "raw": "a {{ question }}"},
        {"id": "b", "label": "b", "raw": "b {{ question }}"},
    ]
    assert content["tests"] == [{"vars": {"question": "q"}, "assert": [{"type": "contains", "value": "c"}]}]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompts", "p/*.txt"),
        ("prompts", ["p/a.txt"]),
        ("prompts", ["p/"]),
        ("prompts", [{"raw": "p/a.txt"}]),
        ("tests", "t.csv"),
        ("tests", ["t.csv"]),
        ("tests", "*.csv"),
        ("tests", ["p/"]),
    ],
)
def test_a_path_without_file_is_refused_with_what_to_write(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/a.txt").write_text("{{ question }}", encoding="utf-8")
    (tmp_path / "t.csv").write_text("question\nq\n", encoding="utf-8")
    content = {**ECHO, "tests": [{"vars": {"question": "q"}}], key: value}
    (problem,) = problems_of(tmp_path, content)
    name = value if isinstance(value, str) else value[0]
    assert problem.hint == f"write file://{name['raw'] if isinstance(name, dict) else name}"


@pytest.mark.parametrize(
    ("tests", "message", "hint"),
    [
        ("file://none.csv", "there is no file", "paths are relative"),
        ("file://none*.csv", "no file matches `none*.csv`", "paths are relative"),
        (["file://notes.txt"], "`notes.txt` is not a tests file", "known: .csv"),
        (["file://t.js"], "only Python programs can make tests: `t.js`", ".jsonl"),
        ("file://", "`file://` has no path after it", "write"),
        (["file://empty"], "contains no files", "use another"),
        ("file://{{ x }}.csv", "cannot contain a template", "env"),
        ("file://m.yaml", "a tests file must contain a list of tests, found a mapping", ""),
    ],
)
def test_files_that_cannot_be_had_are_refused(tmp_path: Path, tests: object, message: str, hint: str) -> None:
    for name, text in {"notes.txt": "x", "t.js": "", "m.yaml": "a: 1\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (problem,) = problems_of(tmp_path, {**ECHO, "tests": tests})
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize("tests", ["file://t.csv", ["file://*.csv", {"vars": {"a": 1}}]])
def test_editors_accept_files_of_tests(tests: object) -> None:
    jsonschema.Draft202012Validator(config_json_schema()).validate({**ECHO, "tests": tests})


@given(
    st.lists(st.text(alphabet='a ",;\n\r\té', max_size=6), min_size=1, max_size=4), st.sampled_from(",;\t")
)
def test_a_cell_is_where_it_is_written(cells: list[str], delimiter: str) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=delimiter).writerow(cells)
    text = written.getvalue()
    row = TableRow(cells, 1, text.count("\n"), text, delimiter)
    for column, cell in enumerate(cells):
        place = row.location(Path("t.csv"), column)
        lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
        rest = "".join(lines[place.line - 1 :])[place.column - 1 :]
        read = next(csv.reader(io.StringIO(rest, newline=""), delimiter=delimiter), [])
        assert (read or [""])[0] == cell
        assert column == 0 or text[len(text) - len(rest) - 1] == delimiter


def test_delimiters_and_columns_have_the_names_that_people_use() -> None:
    assert [guess_delimiter(line) for line in ("a,b", "a;b", "a\tb", '"a;b",c', "a", "")] == [*",;\t,,,"]
    assert [column_letters(index) for index in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]
