from pathlib import Path

import pytest
from support.promptfoo import errors_of, load, prompts_sent

ECHO = {"providers": ["echo"]}


def raw_prompts(folder: Path, prompts: object, **files: str) -> list[str]:
    named = {name.replace("__", "."): text for name, text in files.items()}
    suite = load(folder, {**ECHO, "prompts": prompts}, files=named)
    return [prompt.raw or "" for prompt in suite.prompts]


def test_a_text_file_holds_prompts_between_lines_of_three_hyphens(tmp_path: Path) -> None:
    text = "---\none\n----\nstill one\n---\r\n two \n---\n"
    assert raw_prompts(tmp_path, "file://p.txt", p__txt=text) == ["one\n----\nstill one", "two"]


def test_markdown_and_jinja_files_are_one_prompt_each(tmp_path: Path) -> None:
    found = raw_prompts(tmp_path, ["file://a.md", "b.j2"], a__md="# A\n---\nB\n", b__j2="{{ x }}\n")
    assert found == ["# A\n---\nB\n", "{{ x }}\n"]


def test_chat_messages_in_yaml_become_json(tmp_path: Path) -> None:
    text = "- role: user\n  content: |\n    Hi {{ name }}\n"
    assert raw_prompts(tmp_path, "p.yaml", p__yaml=text) == ['[{"role":"user","content":"Hi {{ name }}\\n"}]']


def test_a_json_file_stays_as_it_is_and_json_lines_are_a_prompt_each(tmp_path: Path) -> None:
    files = {
        "a__json": '[ {"role": "user", "content": "x"} ]\n',
        "b__jsonl": '"one"\n\n["two"]\r\n"a\u2028b\x85c"\n',
    }
    assert raw_prompts(tmp_path, ["a.json", "b.jsonl"], **files) == [
        files["a__json"],
        '"one"',
        '["two"]',
        '"a\u2028b\x85c"',
    ]


def test_files_named_inside_json_prompts_are_put_in(tmp_path: Path) -> None:
    files = {"a__json": '[{"role": "system", "content": "file://s.txt"}]', "s__txt": "Be brief.\n"}
    assert raw_prompts(tmp_path, "a.json", **files) == ['[{"role":"system","content":"Be brief."}]']


def test_a_csv_file_has_prompts_and_labels(tmp_path: Path) -> None:
    suite = load(
        tmp_path, {**ECHO, "prompts": "p.csv"}, files={"p.csv": 'prompt,label\n"Hi, {{x}}",short\nBye,\n'}
    )
    assert [(prompt.raw, prompt.label) for prompt in suite.prompts] == [
        ("Hi, {{x}}", "short"),
        ("Bye", "p.csv: Bye"),
    ]


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        ("prompt\nHello, {{x}}\nBye\n", ["Hello, {{x}}", "Bye"]),
        ("Hello, {{x}}\nBye\n", ["Hello, {{x}}", "Bye"]),
        ('Prompt\n"Hi, {{x}}"\nBye, you, too\n', ["Hi, {{x}}", "Bye, you, too"]),
        ("Hello\nBye\n", ["Hello", "Bye"]),
        ("label, prompt\na,Hello\nb, \n", ["Hello"]),
    ],
)
def test_a_csv_file_without_a_table_has_a_prompt_in_each_line(
    tmp_path: Path, content: str, prompts: list[str]
) -> None:
    assert raw_prompts(tmp_path, "p.csv", p__csv=content) == prompts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt,label\nHello, you, there\n", "this row has 3 cells, but the header has 2"),
        ("Hello, you\nBye, you\n", "there is no column `prompt`"),
        ("prompt;label\nHello;a\n", "this row has only one cell"),
        ("label\tprompt\na\tHello\n", "this row has only one cell"),
    ],
)
def test_a_prompt_that_would_be_cut_at_a_comma_is_an_error(
    tmp_path: Path, content: str, message: str
) -> None:
    assert errors_of(tmp_path, {**ECHO, "prompts": "p.csv"}, files={"p.csv": content}) == [message]


def test_a_csv_file_of_prompts_has_the_delimiter_of_the_environment(tmp_path: Path) -> None:
    files, env = {"p.csv": "prompt;label\nHi, {{x}};a\n"}, {"PROMPTFOO_CSV_DELIMITER": ";"}
    (prompt,) = load(tmp_path, {**ECHO, "prompts": "p.csv"}, files=files, env=env).prompts
    assert (prompt.raw, prompt.label) == ("Hi, {{x}}", "a")


@pytest.mark.parametrize(
    ("content", "prompts"),
    [("prompt\rHi\rBye\r", ["Hi", "Bye"]), (f'prompt\r\n"{"x" * 200_000}"\r\n', ["x" * 200_000])],
    ids=["carriage returns", "long"],
)
def test_a_csv_file_of_prompts_may_have_any_line_break_and_long_texts(
    tmp_path: Path, content: str, prompts: list[str]
) -> None:
    (tmp_path / "p.csv").write_text(content, encoding="utf-8", newline="")
    assert [prompt.raw for prompt in load(tmp_path, {**ECHO, "prompts": "p.csv"}).prompts] == prompts


def test_a_quote_that_is_never_closed_in_a_csv_file_of_prompts_is_an_error(tmp_path: Path) -> None:
    files = {"p.csv": 'prompt\nHi\n"Bye\nAnd more\n'}
    errors = errors_of(tmp_path, {**ECHO, "prompts": "p.csv"}, files=files)
    assert errors == ["a quote in this row is never closed"]


def test_wildcards_folders_and_labels(tmp_path: Path) -> None:
    files = {"ps/a.txt": "A", "ps/b.md": "B", "c.txt": "C"}
    content = {**ECHO, "prompts": ["file://ps/*.{txt,md}", {"id": "file://c.txt", "label": "see"}]}
    suite = load(tmp_path, content, files=files)
    assert [(prompt.raw, prompt.label) for prompt in suite.prompts] == [
        ("B", "b.md: B"),
        ("A", "a.txt: A"),
        ("C", "see: c.txt: C"),
    ]
    assert [prompt.raw for prompt in load(tmp_path, {**ECHO, "prompts": ["file://ps"]}).prompts] == ["A", "B"]


def test_a_mapping_of_files_to_labels(tmp_path: Path) -> None:
    files = {"a.txt": "A", "b.md": "B", "c.json": '["C"]', "d.yaml": "- D\n"}
    content = {**ECHO, "prompts": {"a.txt": "first", "b.md": "second", "c.json": "third", "d.yaml": "fourth"}}
    suite = load(tmp_path, content, files=files)
    assert [(prompt.raw, prompt.label) for prompt in suite.prompts] == [
        ("A", "first: a.txt: A"),
        ("B", "second"),
        ('["C"]', "third"),
        ('["D"]', "fourth"),
    ]


def test_wildcards_name_files_in_promptfoos_order(tmp_path: Path) -> None:
    names = ["B", "_c", "a", "b10", "b2", "n1/a", "n1/q", "n2/b", "z"]
    content = {**ECHO, "prompts": ["ps/**/*.txt"]}
    suite = load(tmp_path, content, files={f"ps/{name}.txt": name for name in names})
    found = [prompt.raw for prompt in suite.prompts]
    assert found == ["z", "b2", "b10", "a", "_c", "B", "n2/b", "n1/q", "n1/a"]


def test_without_prompts_the_variable_prompt_is_asked(tmp_path: Path) -> None:
    assert prompts_sent(tmp_path, {**ECHO, "tests": [{"vars": {"prompt": "Hi"}}]}) == ["Hi"]


def test_a_text_that_only_looks_like_a_path_is_a_prompt(tmp_path: Path) -> None:
    prompts = ["Write and/or say {{x}}.", "Is this *bold*?", "Describe README.md"]
    assert raw_prompts(tmp_path, prompts) == prompts


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("file://nothing.txt", "there is no file"),
        ("missing.txt", "there is no file"),
        ("file://no/*.txt", "no file matches"),
        ("file://make.py:build", "there is no file"),
        ("prompt.ts", "TypeScript is not supported"),
        ("file://prompt.rb", "`.rb` files cannot be run"),
        ("exec: ", "`exec:` has no command after it"),
        ({"role": "user", "content": "Hi"}, "found a chat message where a prompt is expected"),
        ({"content": "Hi"}, "this prompt has no text"),
        ({"raw": "x", "config": 3}, "`config` must be a mapping"),
        ({"raw": "x", "config": {"tools": "file://tools.json"}}, "there is no file"),
        ("langfuse://a:1:text", "prompts from langfuse are not fetched"),
        ("  ", "this prompt is empty"),
        (7, "a prompt must be text"),
        ({"label": 3}, "this prompt has no text"),
        ("file://empty.txt", "there are no prompts in"),
        ("file://a.exe", "is not a prompts file"),
    ],
)
def test_what_cannot_be_a_prompt_is_refused(tmp_path: Path, prompt: object, message: str) -> None:
    files = {"empty.txt": "---\n", "a.exe": "x", "prompt.ts": "", "prompt.rb": ""}
    found = errors_of(tmp_path, {**ECHO, "prompts": [prompt]}, files=files)
    assert len(found) == 1
    assert message in found[0]


def test_a_json_prompt_is_rendered_leaf_by_leaf_so_that_variables_cannot_break_it(tmp_path: Path) -> None:
    content = {
        **ECHO,
        "prompts": ['[{"role": "user", "content": "Say {{x}}", "n": 1.0}]'],
        "tests": [{"vars": {"x": 'a "quoted"\nline'}}],
    }
    (sent,) = prompts_sent(tmp_path, content)
    assert sent == (
        '[\n  {\n    "role": "user",\n    "content": "Say a \\"quoted\\"\\nline",\n    "n": 1\n  }\n]'
    )


def test_variables_in_variables_are_resolved_to_any_depth(tmp_path: Path) -> None:
    content = {
        **ECHO,
        "prompts": ["{{a}} | {{d}}"],
        "tests": [{"vars": {"a": "A {{b}}", "b": "B {{ c }}", "c": "C", "d": "{{ c | upper }}{{ 7 * 7 }}"}}],
    }
    assert prompts_sent(tmp_path, content) == ["A B C | C49"]


def test_variables_that_look_like_broken_templates_stay_as_they_are(tmp_path: Path) -> None:
    content = {**ECHO, "prompts": ["{{a}}"], "tests": [{"vars": {"a": "{{x}{y}} {% nothing %}"}}]}
    assert prompts_sent(tmp_path, content) == ["{{x}{y}} {% nothing %}"]


def test_prefix_and_suffix_stand_around_the_prompt(tmp_path: Path) -> None:
    content = {
        **ECHO,
        "prompts": ["B"],
        "defaultTest": {"options": {"prefix": "A ", "suffix": " C"}},
        "tests": [{}, {"options": {"suffix": " {{x}}"}, "vars": {"x": "D"}}],
    }
    assert prompts_sent(tmp_path, content) == ["A B C", "A B D"]


@pytest.mark.parametrize("nothing", ["", None])
def test_an_empty_prefix_or_suffix_of_a_test_leaves_those_of_all(tmp_path: Path, nothing: str | None) -> None:
    content = {
        **ECHO,
        "prompts": ["B"],
        "defaultTest": {"options": {"prefix": "A ", "suffix": " C"}},
        "tests": [{"options": {"prefix": nothing, "suffix": nothing}}],
    }
    assert prompts_sent(tmp_path, content) == ["A B C"]
    rows = {"path": "rows.csv", "text": "x,__prefix,__suffix\n1,,\n2,P ,\n"}
    content["tests"] = rows["path"]
    assert prompts_sent(tmp_path, content, files={rows["path"]: rows["text"]}) == ["A B C", "P B C"]
