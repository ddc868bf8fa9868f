import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.suites import load_suite

from geval_cli.assertions.geval import GEvalAssertion
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError
from geval_cli.extras.starter import starter_config
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import SourceFiles, suite_parts
from geval_cli.source.secrets import mask_config
from geval_cli.specs.base import spec_in
from geval_cli.suite.load import open_suite
from geval_cli.suite.suite import LoadedSuite


def write(folder: Path, text: str, name: str = "suite.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path, **variables: str) -> LoadedSuite:
    return load_suite(path, env={"HOME": "/"}, variables=variables)


def test_a_missing_config_is_one_problem(tmp_path: Path) -> None:
    write(tmp_path, "prompts: x", "gevalconfig.yaml")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "gevalconfg.yaml")
    assert [problem.hint for problem in caught.value.problems] == ["did you mean `gevalconfig.yaml`?"]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("{windowsize: 3}", "4:45: unknown key `windowsize` in `config`; did you mean `windowSize`?"),
        (
            "{windowSize: few}",
            '4:57: `windowSize` must be a whole number from 1 to 1000, found the text "few"; ',
        ),
        ("3", "4:44: `config` must be a mapping, found the number 3; "),
    ],
)
def test_a_mapping_inside_of_an_assertion_has_its_keys_checked(
    tmp_path: Path, config: str, line: str
) -> None:
    path = write(
        tmp_path, f"tests:\n- output: x\n  assert:\n  - {{type: conversation-relevance, config: {config}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        list(load(path).tests)
    [problem] = caught.value.problems
    place = problem.location
    assert place is not None
    assert f"{place.line}:{place.column}: {problem.message}; {problem.hint}" == line


NOT_READ = {"provider", "rubric_prompt", "assertions"}


@pytest.mark.parametrize("kind", ASSERTION_TYPES)
def test_an_unknown_key_inside_of_an_assertion_is_called_one(tmp_path: Path, kind: str) -> None:
    for name, info in ASSERTION_TYPES[kind].model_fields.items():
        if spec_in(info) is None or name in NOT_READ:
            continue
        written = {"type": kind, "criteria": "x", name: {"nosuch": {}}}
        path = write(tmp_path, json.dumps({"tests": [{"output": "x", "assert": [written]}]}), "c.json")
        with pytest.raises(ConfigError) as caught:
            list(load(path).tests)
        assert "unknown key `nosuch`" in " ".join(problem.message for problem in caught.value.problems), name


def test_problems_of_the_tests_alone_come_with_the_first_pass(tmp_path: Path) -> None:
    suite = load(write(tmp_path, "prompts: x\ntests: [{}, {asert: 1}, {}, {treshold: 1}]"))
    seen = []
    with pytest.raises(ConfigError) as caught:
        seen.extend(test.index for test in suite.tests)
    assert seen == [0, 1, 2, 3]
    assert len(caught.value.problems) == 3  # what is under a misspelt key is checked, too


def test_an_opened_suite_gives_what_can_be_read_and_all_problems(tmp_path: Path) -> None:
    opened = open_suite(
        write(tmp_path, "prompts: [a, 5]\nproviders: [echo, 7]\ntests: [{}]\nenvs: 1"), env={}
    )
    assert [prompt.raw for prompt in opened.suite.prompts] == ["a"]
    assert [provider.id for provider in opened.suite.providers] == ["echo"]
    assert len(list(opened.suite.tests)) == 1
    assert len(opened.problems) == 4  # what is under a misspelt key is checked, too


def test_vars_of_the_command_line_win_over_all(tmp_path: Path) -> None:
    path = write(tmp_path, "prompts: x\ndefaultTest: {vars: {a: 1, b: 1}}\ntests: [{vars: {a: 2, c: 2}}]")
    assert [test.vars for test in load(path, a="9").tests] == [{"a": "9", "b": 1, "c": 2}]


def test_a_suite_without_prompts_has_the_empty_one(tmp_path: Path) -> None:
    suite = load(write(tmp_path, "tests: [{output: fine}]"))
    assert [(prompt.id, prompt.raw) for prompt in suite.prompts] == [("none", "")]
    assert suite.providers == ()


def test_other_rooms_find_positions_by_field_name(tmp_path: Path) -> None:
    text = "prompts: x\ntests:\n  - assert:\n      - type: g-eval\n        value: good\n        rubricPrompt: y\n"
    (test,) = load(write(tmp_path, text)).tests
    (assertion,) = test.assertions
    assert isinstance(assertion, GEvalAssertion)
    assert [
        location and (location.line, location.column, location.key_path)
        for location in (
            assertion.place.value("criteria"),
            assertion.place.key("rubric_prompt"),
            assertion.place.value("threshold"),
        )
    ] == [(5, 16, "tests[0].assert[0].value"), (6, 9, "tests[0].assert[0]"), (4, 9, "tests[0].assert[0]")]


def digest_of(folder: Path, config: str, **variables: str) -> str:
    return load(write(folder, config), **variables).digest


def test_the_digest_changes_with_all_that_decides_results(tmp_path: Path) -> None:
    config = "prompts: file://p.txt\nproviders: scripted:r.yaml\ntests: file://t.jsonl\n"
    files = {"p.txt": "hi", "r.yaml": "a", "t.jsonl": '{"vars": {"a": "file://v.txt"}}\n', "v.txt": "v"}
    for name, content in files.items():
        write(tmp_path, content, name)
    digests = {digest_of(tmp_path, config)}
    for name, content in files.items():
        write(tmp_path, content + " ", name)
        digests.add(digest_of(tmp_path, config))
    digests.add(digest_of(tmp_path, config, a="1"))
    digests.add(digest_of(tmp_path, config + "description: new\n"))
    assert len(digests) == 1 + len(files) + 2


JUDGED = "{type: g-eval, criteria: x, provider: scripted:r.yaml}"


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ("prompts: x\ntests: [{vars: {a: file://v.txt}}]", ""),
        ("prompts: x\ntests: [{vars: {a: [b, file://v.txt]}}]", ""),
        ("prompts: x\ntests: file://t.yaml", "- vars: {a: file://v.txt}"),
        ("prompts: x\ntests: file://t.yaml", "- vars: {a: [[file://v.txt]]}"),
        (f"prompts: x\ntests: file://t.yaml\ndefaultTest: {{assert: [{JUDGED}]}}", "- {}"),
        ("prompts: x\ntests: file://t.yaml", f"- assert: [{JUDGED}]"),
        ("prompts: x\nproviders: file://f.py:ask\ntests: [{}]", ""),
        ("prompts: x\nproviders: 'exec:python f.py {{ prompt }}'\ntests: [{}]", ""),
    ],
)
def test_the_digest_covers_files_wherever_they_are_named(tmp_path: Path, config: str, rows: str) -> None:
    write(tmp_path, rows, "t.yaml")
    digests = set()
    for content in ("one", "two"):
        for name in ("v.txt", "r.yaml", "f.py"):
            write(tmp_path, content, name)
        digests.add(digest_of(tmp_path, config))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ("prompts: x\ntests: [{vars: {a: [b, file://v.txt]}}]", ""),
        ("prompts: x\ndefaultTest: {vars: {a: [b, file://v.txt]}}\ntests: [{}]", ""),
        ("prompts: x\ntests: file://t.yaml", "- vars: {a: [b, file://v.txt]}"),
        ("prompts: x\ntests: file://t.jsonl", '{"vars": {"a": ["b", "file://v.txt"]}}'),
    ],
)
def test_files_in_the_list_of_a_variable_are_read(tmp_path: Path, config: str, rows: str) -> None:
    for name in ("t.yaml", "t.jsonl"):
        write(tmp_path, rows, name)
    write(tmp_path, "content\n", "v.txt")
    path = write(tmp_path, config)
    assert [test.vars["a"] for test in open_suite(path, env={}).suite.tests] == [["b", "content"]]
    (tmp_path / "v.txt").unlink()
    opened = open_suite(path, env={})
    problems = list(opened.problems)
    if not problems:  # those of tests are found when these are read
        with pytest.raises(ConfigError) as raised:
            list(opened.suite.tests)
        problems = raised.value.problems
    assert [problem.message[:16] for problem in problems] == ["there is no file"]


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ("prompts: 'x {{ env.MODEL }}'\ntests: [{}]", ""),
        ("prompts: x\nproviders: 'openai:{{ env.MODEL }}'\ntests: [{}]", ""),
        ("prompts: x\ntests: file://t.yaml", "- vars: {a: '{{ env.MODEL }}'}"),
        ("prompts: x\ntests: file://t.jsonl", '{"vars": {"a": "{{ env.MODEL }}"}}'),
        ("prompts: x\ntests: file://t.jsonl", '{"vars": {"a": "file://{{ env.MODEL }}.txt"}}'),
    ],
)
def test_the_digest_covers_env_values(tmp_path: Path, config: str, rows: str) -> None:
    for name in ("t.yaml", "t.jsonl"):
        write(tmp_path, rows, name)
    path = write(tmp_path, config)
    one, other, again = (open_suite(path, env={"MODEL": name}).suite.digest for name in ("m1", "m2", "m1"))
    assert one == again
    assert one != other


def test_another_key_is_the_same_suite(tmp_path: Path) -> None:
    provider = (
        "{id: 'http://x/?sig={{ env.A }}', config: {headers: {Cookie: '{{ env.A }}'}, apiKey: '{{ env.A }}'}}"
    )
    path = write(tmp_path, f"prompts: x\nproviders: {provider}\ntests: [{{}}]")
    assert open_suite(path, env={"A": "one"}).suite.digest == open_suite(path, env={"A": "two"}).suite.digest


def test_the_digest_ignores_comments_layout_and_keys(tmp_path: Path) -> None:
    one = "prompts: x\nproviders: {id: a, config: {apiKey: one}}"
    two = "# hello\nproviders:\n  config: {apiKey: two}\n  id: a\nprompts: 'x'"
    assert digest_of(tmp_path, one) == digest_of(tmp_path, two)


def test_keys_appear_in_no_repr(tmp_path: Path) -> None:
    path = write(tmp_path, "prompts: x\nproviders: {id: a, config: {apiKey: '{{ env.KEY }}'}}")
    suite = load_suite(path, env={"KEY": "very-secret-key"})
    assert suite.providers[0].config == {"apiKey": "very-secret-key"}
    assert "very-secret" not in repr(suite)
    assert "very-secret" not in json.dumps(suite.snapshot)


def test_tests_of_a_json_lines_file_are_never_held(tmp_path: Path) -> None:
    row = json.dumps({"vars": {"a": "x" * 1000}, "assert": [{"type": "contains", "value": "x"}]})
    write(tmp_path, row, "one.jsonl")
    assert len(list(load(write(tmp_path, "prompts: x\ntests: file://one.jsonl")).tests)) == 1  # loads modules
    write(tmp_path, f"{row}\n" * 2500, "t.jsonl")
    suite = load(write(tmp_path, "prompts: x\ntests: file://t.jsonl"))
    tracemalloc.start()
    try:
        assert sum(1 for _ in suite.tests) == 2500
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_pass_gives_up_after_a_thousand_problems(tmp_path: Path) -> None:
    write(tmp_path, '{"vars": {}, "asert": []}\n' * 3000, "t.jsonl")
    suite = load(write(tmp_path, "prompts: x\ntests: file://t.jsonl"))
    with pytest.raises(ConfigError) as caught:
        list(suite.tests)
    assert len(caught.value.problems) == 1001
    assert "after tests[999]" in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("q\n", "the file has a header and no rows: add one row per test"),
        ("", "write a header and one row per test"),
    ],
)
def test_a_table_without_rows_says_what_it_lacks(tmp_path: Path, text: str, hint: str) -> None:
    write(tmp_path, text, "t.csv")
    with pytest.raises(ConfigError) as caught:
        list(load(write(tmp_path, "prompts: x\ntests: file://t.csv")).tests)
    assert caught.value.problems[0].hint == hint


def test_an_empty_json_lines_file_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, "\n\n", "t.jsonl")
    with pytest.raises(ConfigError) as caught:
        list(load(write(tmp_path, "prompts: x\ntests: file://t.jsonl")).tests)
    assert "contains no tests" in caught.value.problems[0].message


def test_the_starter_config_loads_and_is_explained(tmp_path: Path) -> None:
    text = starter_config("local:smollm2")
    suite = load(write(tmp_path, text))
    assert [provider.id for provider in suite.providers] == ["local:smollm2"]
    assert [len(test.assertions) for test in suite.tests] == [2, 1]
    assert text.startswith("# yaml-language-server: $schema=")


@pytest.mark.parametrize(
    "part",
    [
        {
            "providers": [
                {"id": "openai:m", "config": {"api_key": "sk-abcdef0123456789", "headers": {"X-Corp": "a b"}}}
            ]
        },
        {"providers": [{"id": "openai:m", "config": {"Headers": {"X-Corp": "a b"}}}]},
        {"env": {"TOKEN": "t", "PLAIN": "p"}},
        {"tests": [{"vars": {"password": "kept", "text": "Bearer sk-abcdef0123456789"}}]},
        {"tests": None},
    ],
)
def test_a_part_that_is_masked_already_has_the_same_digest(tmp_path: Path, part: dict[str, Any]) -> None:
    files = SourceFiles(tmp_path, TRUSTED)
    assert suite_parts(part, (), files, {}, mask_config(part)) == suite_parts(part, (), files, {})


def test_an_edited_file_of_functions_is_another_suite_also_where_one_of_them_is_named(tmp_path: Path) -> None:
    part, digests = {"tools": "file://tools.py:find"}, []
    for text in ("def find(): ...", "def find(): pass"):
        (tmp_path / "tools.py").write_text(text, encoding="utf-8")
        digests.append(suite_parts(part, (), SourceFiles(tmp_path, TRUSTED), {}))
    before, after = digests
    assert before["file: tools.py"] != after["file: tools.py"]


@pytest.mark.parametrize(
    "written",
    [
        {"criteria": "FILE"},
        {"criteria": ["FILE"]},
        {"criteria": "x", "evaluation_steps": ["FILE"]},
        {"criteria": "x", "guidelines": ["FILE"]},
        {"checklist": ["FILE"]},
        {"checklist": [{"item": "FILE", "required": True}]},
        {"criteria": "x", "rubric": {"0": "bad", "10": "FILE"}},
        {"criteria": "x", "rubric": [[0, "bad"], [10, "FILE"]]},
        {
            "criteria": "x",
            "rubric": [{"score": 0, "description": "FILE"}, {"score": 10, "description": "good"}],
        },
        {"criteria": "x", "rubric": [{"score_range": [0, 10], "expected_outcome": "FILE"}]},
    ],
)
def test_every_text_for_the_judge_may_be_in_a_file(tmp_path: Path, written: dict[str, Any]) -> None:
    def config(name: str) -> Path:
        assertion = json.dumps({"type": "g-eval", **written}).replace("FILE", f"file://{name}")
        return write(tmp_path, f'{{"tests": [{{"output": "a", "assert": [{assertion}]}}]}}', "suite.json")

    write(tmp_path, "It names the price.", "wanted.txt")
    [test] = load(config("wanted.txt")).tests
    shown = str(test.assertions[0].model_dump(exclude={"place"}))
    assert "It names the price." in shown
    assert "file://" not in shown
    with pytest.raises(ConfigError) as caught:
        list(load(config("gone.txt")).tests)
    [problem] = caught.value.problems
    assert problem.message == f"there is no file `{tmp_path / 'gone.txt'}`"


@pytest.mark.parametrize("row", ["output:", "output: ~", "output: null", "vars: {a: b}\n  output: null"])
@pytest.mark.parametrize("part", ["defaultTest:\n  ROW", "tests:\n- ROW"])
def test_an_output_without_a_value_is_no_output_that_passes(tmp_path: Path, part: str, row: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(load(write(tmp_path, part.replace("ROW", row))).tests)
    assert "`output` has no value" in [problem.message for problem in caught.value.problems]
