import json
import zipfile
from pathlib import Path

import pytest
from support.code_runs import rows_of
from support.promptfoo import cases, errors_of, load, open_config, prompts_sent, warnings_of, write_files

BASE = {"providers": ["echo"], "prompts": ["{{x}}"]}


def xs(folder: Path, tests: object, **files: str) -> list[object]:
    named = {name.replace("__", "."): text for name, text in files.items()}
    return [case.vars.get("x") for case in cases(folder, {**BASE, "tests": tests}, files=named)]


ROWS = {
    "flat": ({"x": "a"}, "`x`"),
    "many keys": (dict.fromkeys("uvwxyz", "a"), "`u`, `v`, `w`, `x`"),
    "a whole config": ({"tests": [{"vars": {"x": "a"}}]}, "`tests`"),
    "described": ({"description": "d", "x": "a"}, "`description`, `x`"),
    "variables": ({"vars": {"x": "a"}}, None),
    "variables and a slip": ({"vars": {"x": "a"}, "stray": 1}, None),
    "a description": ({"description": "d"}, None),
    "an assertion": ({"assert": [{"type": "contains", "value": "a"}]}, None),
    "an output": ({"providerOutput": "a"}, None),
    "a choice": ({"providers": ["echo"]}, None),
    "a threshold": ({"threshold": 0.5}, None),
    "nothing": ({}, None),
}


def test_an_empty_output_is_none_and_that_of_the_defaults_is_for_scenarios(tmp_path: Path) -> None:
    given = ["mine", {"a": 1}, "", None, 0, False, [], {}]
    tests = [{"providerOutput": value} for value in given]
    content = {
        **BASE,
        "defaultTest": {"providerOutput": "of all"},
        "tests": [{"vars": {"x": "a"}}, *tests],
        "scenarios": [{"config": [{"vars": {"x": "a"}}], "tests": [{"vars": {"x": "b"}}, *tests]}],
    }
    found = [case.output if case.has_output else "asked" for case in cases(tmp_path, content)]
    asked, of_all = ["asked"] * 6, ["of all"] * 6
    assert found == ["asked", "mine", {"a": 1}, *asked, "of all", "mine", {"a": 1}, *of_all]
    [warning] = warnings_of(tmp_path, content)
    assert "scenarios only" in warning


@pytest.mark.parametrize("kind", ["inline", "list.json", "one.json", "t.jsonl", "t.yaml", "scenario"])
@pytest.mark.parametrize("row", ROWS)
def test_an_entry_without_any_key_of_a_test_is_refused(tmp_path: Path, row: str, kind: str) -> None:
    value, keys = ROWS[row]
    content = {"list.json": json.dumps([value]), "one.json": json.dumps(value), "t.jsonl": json.dumps(value)}
    files = {kind: content.get(kind, json.dumps([value]))} if "." in kind else {}
    tests = [f"file://{kind}"] if files else [value]
    where = (
        {"scenarios": [{"config": [{"vars": {}}], "tests": tests}]}
        if kind == "scenario"
        else {"tests": tests}
    )
    write_files(tmp_path, files)
    told = [message for message in errors_of(tmp_path, {**BASE, **where}) if "this is no test" in message]
    assert told == ([f"this is no test: none of its keys ({keys}) is one of a test"] if keys else [])


@pytest.mark.parametrize(
    "part",
    [
        {"tests": "file://t{1..3}.yaml"},
        {"tests": ["t{1,2,3}.yaml"]},
        {"prompts": ["file://p{1,3}.txt"]},
        {"prompts": ["p{3,1}.txt"]},
        {"tests": [{"vars": {"x": "file://p{1,3}.txt"}}]},
        {"tests": [{"vars": "v{1,3}.yaml"}]},
    ],
)
def test_a_file_of_braces_that_does_not_exist_gets_a_warning(tmp_path: Path, part: dict[str, object]) -> None:
    files = {
        "t1.yaml": "- vars: {x: a}\n",
        "t2.yaml": "- vars: {x: b}\n",
        "p1.txt": "{{x}}",
        "d1.yaml": "threshold: 1\n",
    }
    write_files(tmp_path, files | {"v1.yaml": "x: a\n"})
    content = {**BASE, "tests": "t{1,2,[7-9]}.yaml"}
    assert not warnings_of(tmp_path, content)
    [message] = warnings_of(tmp_path, {**content, **part})
    assert "there is no file" in message
    assert "3." in message


def test_files_of_every_kind_wildcards_and_inline_tests_in_one_list(tmp_path: Path) -> None:
    files = {
        "t/a.yaml": "- vars: {x: yaml}\n",
        "t/b.json": '{"vars": {"x": "json"}}',
        "c.jsonl": '{"vars": {"x": "line 1"}}\n\n{"vars": {"x": "line 2"}}\n',
        "d.csv": "x\ncsv\n",
    }
    write_files(tmp_path, files)
    tests = ["t/*", "file://c.jsonl", {"vars": {"x": "inline"}}, {"path": "d.csv"}]
    assert xs(tmp_path, tests) == ["json", "yaml", "line 1", "line 2", "inline", "csv"]


def test_rows_of_files_are_described_by_their_number(tmp_path: Path) -> None:
    found = cases(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": "x,__description\na,\nb,own\n"})
    assert [case.description for case in found] == ["Row #1", "own"]


def test_without_tests_each_prompt_runs_once(tmp_path: Path) -> None:
    assert prompts_sent(tmp_path, {"providers": ["echo"], "prompts": ["Hi{{x}}"]}) == ["Hi"]


def test_the_columns_of_a_table(tmp_path: Path) -> None:
    text = (
        "\ufefftopic , __expected1,__expected2,__metric,__threshold,__prefix,__suffix,__providerOutput,"
        "__metadata:area,__metadata:tags[],__config:__expected2:threshold\n"
        'cats,contains: a,levenshtein: b,m,0.5,P,S,out,zoo,"a,b\\,c",7\n'
    )
    (case,) = cases(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    assert dict(case.vars) == {"topic": "cats"}
    assert [(item.type, item.metric) for item in case.assertions] == [("contains", "m"), ("levenshtein", "m")]
    assert getattr(case.assertions[1], "threshold") == 7  # noqa: B009 - the base class has none
    assert (case.threshold, case.output) == (0.5, "out")
    assert (case.promptfoo.prefix, case.promptfoo.suffix) == ("P", "S")
    assert dict(case.metadata) == {"area": "zoo", "tags": ["a", "b,c"]}
    assert case.promptfoo.output_replaces_answer


def test_every_column_of_expectations_counts_and_spaces_belong_to_texts(tmp_path: Path) -> None:
    text = (
        "x,__expected,__expected1,__expected_more,__own,__prefix,__config:__expected2:threshold\n"
        " a ,contains: a,levenshtein: b,b,c,P ,4\n"
        "q,,levenshtein: b,is-json,c,,4\n"
    )
    first, second = cases(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    assert dict(first.vars) == {"x": " a ", "__own": "c"}
    assert [item.type for item in first.assertions] == ["contains", "levenshtein", "equals"]
    assert getattr(first.assertions[1], "threshold") == 4  # noqa: B009 - the base class has none
    assert first.promptfoo.prefix == "P "
    # The number counts the expectations that the row has.
    assert getattr(second.assertions[0], "threshold") == 0.75  # noqa: B009


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_a_list_in_a_cell_may_be_written_in_several_lines(tmp_path: Path, line_break: str) -> None:
    text = f'x,__expected{line_break}a,"contains-any: b,{line_break}c d"{line_break}'
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    (case,) = cases(tmp_path, {**BASE, "tests": "t.csv"})
    assert getattr(case.assertions[0], "value") == ("b", "c d")  # noqa: B009 - the base class has none


def test_quotes_inside_an_unquoted_cell_are_text(tmp_path: Path) -> None:
    assert xs(tmp_path, "t.csv", t__csv='x\n{"a": 1}\n') == ['{"a": 1}']


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ('"x" tail', '"x" tail'),
        ('"{"a": 1}"', '"{"a": 1}"'),
        ('"a ""b"" c"d', '"a "b" c"d'),
        ('"a "", b"', 'a ", b'),
        ('"two\nlines"', "two\nlines"),
        ('a"b', 'a"b'),
        ('"" ', '"" '),
    ],
)
@pytest.mark.parametrize("line", ["{},after\n", "before,{}", "{},{}\r\n"])
def test_a_quoted_cell_with_text_behind_it_keeps_its_quotes(
    tmp_path: Path, cell: str, value: str, line: str
) -> None:
    text = "x,y\n" + line.replace("{}", cell)
    (case,) = cases(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    expected = [value if part == "{}" else part for part in line.strip().split(",")]
    assert list(case.vars.values()) == expected


@pytest.mark.parametrize(
    "text",
    [
        'x,y\na,b\n1,"two\n2,c\n3,d\n',
        'x,y\na,b\n1,"two"" \n',
        'x,y\na,b\n"x" tail,"open',
    ],
)
def test_a_quote_that_is_never_closed_does_not_swallow_the_rows_below(tmp_path: Path, text: str) -> None:
    opened = open_config(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    (problem,) = opened.problems
    assert problem.message == "a quote in this row is never closed"
    assert problem.location
    assert problem.location.line == 3


def test_strict_tables_have_no_text_behind_a_quote(tmp_path: Path) -> None:
    files, strict = {"t.csv": 'x\n"a" b\n'}, {"PROMPTFOO_CSV_STRICT": "true"}
    found = errors_of(tmp_path, {**BASE, "tests": "t.csv"}, files=files, env=strict)
    assert found == ["there is text after a closing quote in this row"]


def test_of_columns_with_one_name_the_last_one_counts_once(tmp_path: Path) -> None:
    text = "x,__expected,__expected,x\na,contains: a,contains: b,b\n"
    (case,) = cases(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    assert dict(case.vars) == {"x": "b"}
    assert [getattr(item, "value", None) for item in case.assertions] == ["b"]
    found = warnings_of(tmp_path, {**BASE, "tests": "t.csv"})
    told = [text.split("`")[1] for text in found if text.startswith("several columns are called")]
    assert told == ["x", "__expected"]


@pytest.mark.parametrize("written", ["0", "0.0"])
def test_a_threshold_of_0_in_a_table_lets_no_failure_pass(tmp_path: Path, written: str) -> None:
    files = {"t.csv": f"x,__threshold,__expected\na,{written},b\n"}
    (case,) = cases(tmp_path, {**BASE, "tests": "t.csv"}, files=files)
    assert case.threshold is None
    (warning,) = warnings_of(tmp_path, {**BASE, "tests": "t.csv"})
    assert "`__threshold` of 0 is not used" in warning


def test_a_setting_of_no_expectation_is_warned_about(tmp_path: Path) -> None:
    text = "x,__expected1,__expected2,__config:__expected2:threshold\na,,similar: b,0.9\n"
    (warning,) = warnings_of(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    assert warning.startswith("`__config:__expected2:threshold` of this row is not used")


@pytest.mark.parametrize(("part", "found"), [("", "one"), ("#Two", "two"), ("#1", "one"), ("#2", "two")])
def test_sheets_have_names_and_numbers(tmp_path: Path, part: str, found: str) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for sheet, value in ((book.active, "one"), (book.create_sheet("Two"), "two")):
        sheet.append(["x"])
        sheet.append([value])
    book.save(tmp_path / "t.xlsx")
    assert xs(tmp_path, f"t.xlsx{part}") == [found]


def test_a_sheet_that_is_not_there_is_refused(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    openpyxl.Workbook().save(tmp_path / "t.xlsx")
    for part in ("0", "2", "Two"):
        assert errors_of(tmp_path, {**BASE, "tests": f"t.xlsx#{part}"}) == [f"`t.xlsx` has no sheet `{part}`"]


def test_another_delimiter_may_come_from_the_environment(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        {**BASE, "tests": "t.csv"},
        files={"t.csv": "x;y\na,b;c\n"},
        env={"PROMPTFOO_CSV_DELIMITER": ";"},
    )
    assert [dict(case.vars) for case in suite.tests] == [{"x": "a,b", "y": "c"}]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("t{1..2}.csv", "21"),
        ("t{3..2}.csv", "32"),
        ("t{2,3}.csv", "32"),
        ("t{01..10}.csv", "x"),
        ("t{2..2}.{csv,txt}", "2"),
    ],
)
def test_wildcards_may_count(tmp_path: Path, pattern: str, found: str) -> None:
    files = {f"t{number}.csv": f"x\n{number}\n" for number in (1, 2, 3)} | {"t05.csv": "x\nx\n"}
    suite = load(tmp_path, {**BASE, "tests": pattern}, files=files)
    assert "".join(str(case.vars["x"]) for case in suite.tests) == found


def test_a_table_that_seems_to_have_another_delimiter_brings_a_warning(tmp_path: Path) -> None:
    text = "x;__expected\na;b\n"
    found = load(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text}).warnings
    told = [(problem.message, problem.hint.split(",")[0]) for problem in found]
    assert ("the only column is called `x;__expected`", "set PROMPTFOO_CSV_DELIMITER to `;`") in told
    plain = load(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": "x\na;b\n"}).warnings
    assert not any("the only column" in problem.message for problem in plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\na\n", "this row has 1 cell, but the header has 2"),
        ("x,__threshold\na,high\n", "`__threshold` must be a number, found `high`"),
        ("x,__config:__expected2:threshold\na,1\n", "does not belong to a column"),
        ("x,__expected,__config:__expected:weight\na,b,1\n", "`weight` of"),
        ("", "contains no tests"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    found = errors_of(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    assert len(found) == 1
    assert message in found[0]


def test_slips_in_the_header_are_warned_about(tmp_path: Path) -> None:
    text = "x,_expected,__expcted,__metadata,__config:x\na,b,c,d,e\n"
    found = warnings_of(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": text})
    assert len(found) == 4


def test_a_problem_in_a_table_names_its_line(tmp_path: Path) -> None:
    files = {
        "t.csv": "x,__expected\na,contains: b\nc,regex: (\n",
        "p.csv": 'x,__expected\n"a\nb",is-json\nc,latency\n',
    }
    opened = open_config(tmp_path, {**BASE, "tests": "p.csv"}, files=files)
    assert not opened.problems
    cases_found = list(opened.suite.tests)
    assert [case.place.value().line for case in cases_found if case.place.value()] == [3, 4]


def test_sheets(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["x", "__expected", None])
    book.active.append(["a", "contains: a", None])
    book.active.append([1.0, None, None])
    book.create_sheet("More").append(["x"])
    book["More"].append([True])
    book.save(tmp_path / "t.xlsx")
    assert xs(tmp_path, "t.xlsx") == ["a", "1"]
    assert xs(tmp_path, "t.xlsx#More") == ["true"]
    assert "has no sheet `None`" in errors_of(tmp_path, {**BASE, "tests": "t.xlsx#None"})[0]
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as archive:
        archive.writestr("nothing", "")
    assert "is not a spreadsheet" in errors_of(tmp_path, {**BASE, "tests": "b.xlsx"})[0]
    (tmp_path / "c.xlsx").write_text("no archive")
    assert "is not a spreadsheet" in errors_of(tmp_path, {**BASE, "tests": "c.xlsx"})[0]


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("nothing.csv", "there is no file"),
        ("no/*.yaml", "no file matches"),
        ("huggingface://datasets/a/b", "Hugging Face datasets are not fetched"),
        ("https://docs.google.com/spreadsheets/d/1", "Google Sheets are not fetched"),
        ("file://make.py:build", "tests that a program makes are not supported"),
        ("tests.js", "tests that a program makes are not supported"),
        ("notes.txt", "is not a tests file"),
        ([7], "a test must be a mapping or name a file"),
        ([{"vars": 7}], "`vars` must be a mapping"),
        ([{"provider": 7}], "a provider must be text or a mapping"),
        ("bad.yaml", "a test must be a mapping"),
    ],
)
def test_tests_that_cannot_be_had_are_refused(tmp_path: Path, tests: object, message: str) -> None:
    files = {"notes.txt": "x", "bad.yaml": "- 7\n", "make.py": "", "tests.js": ""}
    found = errors_of(tmp_path, {**BASE, "tests": tests}, files=files)
    assert len(found) == 1
    assert message in found[0]


def test_lists_of_texts_multiply_the_tests_the_first_variable_slowest(tmp_path: Path) -> None:
    tests = [{"vars": {"x": ["a", "b"], "y": ["1", "2"], "n": [1, 2], "o": [{"k": "v"}]}}]
    found = cases(tmp_path, {**BASE, "tests": tests})
    assert [(case.vars["x"], case.vars["y"]) for case in found] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
        ("b", "2"),
    ]
    assert all(case.vars["n"] == [1, 2] and case.vars["o"] == [{"k": "v"}] for case in found)
    assert [case.index for case in found] == [0, 1, 2, 3]


def test_expansion_can_be_turned_off(tmp_path: Path) -> None:
    tests = [{"vars": {"x": ["a", "b"]}, "options": {"disableVarExpansion": True}}]
    assert xs(tmp_path, tests) == [["a", "b"]]
    suite = load(
        tmp_path, {**BASE, "tests": [{"vars": {"x": ["a"]}}]}, env={"PROMPTFOO_DISABLE_VAR_EXPANSION": "true"}
    )
    assert [case.vars["x"] for case in suite.tests] == [["a"]]


def test_lists_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    tests = [{"vars": {name: [str(number) for number in range(100)] for name in "abc"}}]
    assert "make 1,000,000 tests out of one" in errors_of(tmp_path, {**BASE, "tests": tests})[0]


def test_variables_from_files(tmp_path: Path) -> None:
    files = {
        "a.txt": " text \n",
        "b.yaml": "k: [1.0, x]\n",
        "c.json": '{"k": true}',
        "d/1.md": "one",
        "d/2.md": "two",
    }
    tests = [
        {"vars": {"x": "file://a.txt", "y": "file://b.yaml", "z": "file://c.json", "w": "file://d/*.md"}}
    ]
    found = cases(tmp_path, {**BASE, "tests": tests}, files=files)
    assert [dict(case.vars) for case in found] == [
        {"x": "text", "y": '{"k":[1,"x"]}', "z": '{"k": true}', "w": "two"},
        {"x": "text", "y": '{"k":[1,"x"]}', "z": '{"k": true}', "w": "one"},
    ]


def test_an_image_becomes_a_data_url(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert xs(tmp_path, [{"vars": {"x": "file://a.png"}}]) == ["data:image/png;base64,iVBORw=="]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("file://nothing.txt", "there is no file"),
        ("file://no*.txt", "no file matches"),
        ("file://make.go", "`.go` files cannot be run"),
        ("file://a.pdf", "cannot be read as PDF"),
    ],
)
def test_variables_that_cannot_be_loaded_are_refused(tmp_path: Path, value: str, message: str) -> None:
    files = {"make.go": "", "a.pdf": ""}
    found = errors_of(tmp_path, {**BASE, "tests": [{"vars": {"x": value}}]}, files=files)
    assert len(found) == 1
    assert message in found[0]


def test_all_variables_from_files_beside_the_file_of_tests(tmp_path: Path) -> None:
    files = {"t/tests.yaml": "- vars: ../v/*.yaml\n", "v/a.yaml": "x: 1\ny: 1\n", "v/b.yaml": "y: 2\n"}
    (case,) = cases(tmp_path, {**BASE, "tests": "t/tests.yaml"}, files=files)
    assert dict(case.vars) == {
        "x": 1,
        "y": 1,
    }  # the last file of the wildcard wins, and wildcards count downwards


def test_default_test_lies_under_every_test(tmp_path: Path) -> None:
    check, own = {"type": "contains", "value": "d"}, {"type": "contains", "value": "t"}
    content = {
        **BASE,
        "defaultTest": {
            "vars": {"x": "d", "y": "d"},
            "assert": [check],
            "metadata": {"a": 1},
            "threshold": 0.3,
        },
        "tests": [
            {"vars": {"x": "t"}, "assert": [own], "metadata": {"b": 2}},
            {"assert": [own], "options": {"disableDefaultAsserts": True}, "threshold": 0},
        ],
    }
    first, second = cases(tmp_path, content)
    assert dict(first.vars) == {"x": "t", "y": "d"}
    assert [getattr(item, "value", None) for item in first.assertions] == ["d", "t"]
    assert (dict(first.metadata), first.threshold) == ({"a": 1, "b": 2}, 0.3)
    assert [getattr(item, "value", None) for item in second.assertions] == ["t"]
    assert second.threshold == 0


def test_default_test_may_be_a_file(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, {**BASE, "defaultTest": "file://d.yaml"}, files={"d.yaml": "vars: {x: d}\n"})
    assert dict(case.vars) == {"x": "d"}


def test_scenarios_run_each_test_with_each_entry_of_their_config(tmp_path: Path) -> None:
    content = {
        **BASE,
        "defaultTest": {"vars": {"z": "d", "x": "d"}, "assert": [{"type": "contains", "value": "0"}]},
        "scenarios": [
            {
                "config": [
                    {"vars": {"x": "1", "y": "{{x}}!"}, "assert": [{"type": "contains", "value": "1"}]},
                    {"vars": {"x": ["2", "3"]}},
                ],
                "tests": [{"assert": [{"type": "contains", "value": "t"}]}],
            },
            "file://more.yaml",
        ],
    }
    files = {"more.yaml": "config: [{vars: {x: m}}]\ntests: file://t.csv\n", "t.csv": "y\nrow\n"}
    found = cases(tmp_path, content, files=files)
    assert [case.vars["x"] for case in found] == ["1", "2", "3", "m"]
    assert [getattr(item, "value", None) for item in found[0].assertions] == ["0", "1", "t"]
    assert [case.metadata["conversationId"] for case in found] == [
        f"__scenario_{at}__" for at in (0, 1, 1, 2)
    ]
    assert dict(found[3].vars) == {"x": "m", "y": "row", "z": "d"}


def test_each_entry_of_a_scenario_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    talk = "{% for turn in _conversation %}[{{ turn.input }}] {% endfor %}{{ x }} {{ y }}"
    scenarios = [
        {"config": [{"vars": {"x": x}} for x in entries], "tests": [{"vars": {"y": y}} for y in "12"]}
        for entries in ("ab", "c")
    ]
    content = {"prompts": [talk], "providers": ["echo"], "scenarios": scenarios}
    content["dialect"] = "promptfoo"
    sent = [row["prompt"]["rendered"] for row in rows_of(tmp_path, content)]
    assert sent == ["a 1", "[a 1] a 2", "b 1", "[b 1] b 2", "c 1", "[c 1] c 2"]
    named = {**content, "defaultTest": {"metadata": {"conversationId": "one"}}}
    assert {case.metadata["conversationId"] for case in cases(tmp_path, named)} == {"one"}
    scenarios[0]["config"][0]["metadata"] = {"conversationId": "own"}
    assert [case.metadata["conversationId"] for case in cases(tmp_path, content)][::2] == [
        "own",
        "__scenario_1__",
        "__scenario_2__",
    ]


@pytest.mark.parametrize(
    ("value", "options", "is_told"),
    [
        (["a", "b"], {"transformVars": "({ x: 'y' })"}, True),
        (["a", "b"], {"transformVars": "({ x: 'y' })", "disableVarExpansion": True}, False),
        (["a", "b"], {}, False),
        ([1, 2], {"transformVars": "({ x: 'y' })"}, False),
        ("a", {"transformVars": "({ x: 'y' })"}, False),
    ],
)
def test_lists_that_transform_vars_does_not_get_are_told(
    tmp_path: Path, value: object, options: dict[str, object], is_told: bool
) -> None:
    found = warnings_of(tmp_path, {**BASE, "tests": [{"vars": {"x": value}, "options": options}]})
    assert any("gets each value of the list `x` by itself" in message for message in found) == is_told


def test_variables_of_the_command_line_are_defaults(tmp_path: Path) -> None:
    content = {**BASE, "defaultTest": {"vars": {"x": "d"}}, "tests": [{}, {"vars": {"x": "own"}}]}
    found = cases(tmp_path, content, variables={"x": "cli"})
    assert [case.vars["x"] for case in found] == ["cli", "own"]


def test_assert_inside_vars_is_warned_about(tmp_path: Path) -> None:
    content = {**BASE, "tests": [{"vars": {"x": "a", "assert": [{"type": "contains"}]}}]}
    assert "`assert` is inside `vars`" in warnings_of(tmp_path, content)[0]


def test_an_unknown_option_goes_to_the_model_and_is_warned_about(tmp_path: Path) -> None:
    suite = load(tmp_path, {**BASE, "tests": [{"options": {"temperature": 0.5}}]})
    (case,) = suite.tests
    assert case.promptfoo.params == {"temperature": 0.5}
    assert any("`temperature` is sent to the model" in problem.message for problem in suite.warnings)


def test_each_pass_yields_equal_tests(tmp_path: Path) -> None:
    suite = load(tmp_path, {**BASE, "tests": "t.csv"}, files={"t.csv": "x\na\nb\n"})
    first, second = ([dict(case.vars) for case in suite.tests] for _ in range(2))
    assert first == second == [{"x": "a"}, {"x": "b"}]
