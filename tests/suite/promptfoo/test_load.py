import json
from pathlib import Path

import pytest
from support.promptfoo import (
    NAME,
    cases,
    errors_of,
    load,
    open_config,
    prompts_sent,
    warnings_of,
    write_files,
)

from geval_cli.errors import ConfigError
from geval_cli.extras.promptfoo.differences import differences
from geval_cli.specs.dialect import RULES, Dialect
from geval_cli.specs.promptfoo import PromptfooOptions
from geval_cli.suite.load import open_suite

BASE = {"providers": ["echo"], "prompts": ["{{x}}"]}


@pytest.mark.parametrize(
    ("name", "text", "dialect"),
    [
        ("promptfooconfig.yml", "providers: [echo]\n", Dialect.PROMPTFOO),
        (
            "c.yaml",
            "# yaml-language-server: $schema=https://promptfoo.dev/config-schema.json\n",
            Dialect.PROMPTFOO,
        ),
        ("c.yaml", "dialect: promptfoo\n", Dialect.PROMPTFOO),
        ("c.yaml", '"$schema": https://promptfoo.dev/config-schema.json\n', Dialect.PROMPTFOO),
        ("c.yaml", "# about promptfoo\n", Dialect.GEVAL),
        ("promptfooconfig.yaml", "dialect: geval\n", Dialect.GEVAL),
    ],
)
def test_a_config_says_whose_rules_it_follows(tmp_path: Path, name: str, text: str, dialect: Dialect) -> None:
    path = tmp_path / name
    path.write_text(f"{text}prompts: ['{{{{x}}}}']\ntests: [{{vars: {{x: 1}}, output: a}}]\n")
    assert open_suite(path, env={}).suite.rules is RULES[dialect]
    asked = open_suite(path, env={}, dialect=Dialect.PROMPTFOO).suite
    assert asked.rules is RULES[Dialect.PROMPTFOO]


def test_a_config_that_is_a_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "promptfooconfig.js"
    path.write_text("module.exports = {}\n")
    with pytest.raises(ConfigError) as caught:
        open_suite(path, env={})
    assert "geval does not run configs that are programs" in caught.value.problems[0].message


def test_references_are_put_in_with_what_stands_beside_them(tmp_path: Path) -> None:
    content = """
        prompts: [x]
        providers: [echo]
        tests:
          - assert:
              - $ref: '#/assertionTemplates/a'
              - {$ref: 'other.yaml#/b', metric: own}
        assertionTemplates:
          a: {type: contains, value: one}
    """
    (case,) = cases(tmp_path, content, files={"other.yaml": "b: {type: contains, value: two, metric: m}\n"})
    assert [(getattr(item, "value", None), item.metric) for item in case.assertions] == [
        ("one", None),
        ("two", "own"),
    ]


def test_references_of_a_file_are_relative_to_its_own_folder(tmp_path: Path) -> None:
    files = {
        "checks/a.yaml": "a: {$ref: 'b.yaml#/b'}\nc: {$ref: '../b.yaml#/b'}\nd: {$ref: '#/a'}\n",
        "checks/b.yaml": "b: {type: contains, value: below}\n",
        "b.yaml": "b: {type: contains, value: above}\n",
    }
    content = {**BASE, "tests": [{"assert": [{"$ref": f"checks/a.yaml#/{key}"} for key in "acd"]}]}
    (case,) = cases(tmp_path, content, files=files)
    assert [getattr(item, "value", None) for item in case.assertions] == ["below", "above", "below"]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("#/nothing", "there is no `nothing`"),
        ("#/loop", "refers to itself"),
        ("none.yaml#/a", "there is no file"),
        ("https://example.com/a.yaml", "is not fetched"),
    ],
)
def test_references_that_lead_nowhere_are_refused(tmp_path: Path, reference: str, message: str) -> None:
    content = {**BASE, "tests": [{"vars": {"$ref": reference}}], "loop": {"$ref": "#/loop"}}
    assert any(message in found for found in errors_of(tmp_path, content))


def test_references_that_double_again_and_again_are_refused(tmp_path: Path) -> None:
    doubling = {f"d{n}": {side: {"$ref": f"#/d{n + 1}"} for side in "ab"} for n in range(40)}
    content = {**BASE, "tests": [{"vars": {"x": {"$ref": "#/d0"}}}], **doubling, "d40": "x"}
    found = [message for message in errors_of(tmp_path, content) if "expands to more than" in message]
    assert found == ["`#/d0` expands to more than 1,000,000 values"]


def test_references_of_json_schemas_are_their_own(tmp_path: Path) -> None:
    schema = {"$defs": {"a": {"type": "object"}}, "$ref": "#/$defs/a"}
    (case,) = cases(tmp_path, {**BASE, "tests": [{"assert": [{"type": "is-json", "value": schema}]}]})
    assert getattr(case.assertions[0], "value", None) == schema


def test_env_values_are_filled_in_once_and_with_defaults(tmp_path: Path) -> None:
    content = {
        "env": {"OWN": "{{env.OUTER}}/x", "COUNT": 3},
        "providers": ["echo"],
        "prompts": ["{{env.OWN}} {{ env['COUNT'] }} {{ env.NONE | default('d') }} {{x}}"],
        "tests": [{"vars": {"x": "{{env.OUTER}}"}}],
    }
    assert prompts_sent(tmp_path, content, env={"OUTER": "o"}) == ["o/x 3 d o"]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("env.SET | upper", "VALUE"),
        ("env['SET'] | replace('a', 'o') | truncate(2, true, '')", "vo"),
        ("env.EMPTY | default('d')", ""),
        ("env.EMPTY | default('d', true)", "d"),
        ("env.NONE | default('d') | upper", "D"),
        ("env.NONE or 'd'", "d"),
        ("env.EMPTY or 'd'", "d"),
        ('env.NONE | d("}\'")', "}'"),
        ("env.SET | no_such_filter", "{{ env.SET | no_such_filter }}"),
        ("env.SET ~ x", "{{ env.SET ~ x }}"),
    ],
)
def test_filters_of_env_values_are_applied_where_nothing_is_rendered(
    tmp_path: Path, expression: str, text: str
) -> None:
    provider = {"id": "openai:gpt-4.1", "config": {"organization": f"<{{{{ {expression} }}}}>"}}
    env = {"SET": "value", "EMPTY": "", "OPENAI_API_KEY": "k"}
    suite = load(tmp_path, {**BASE, "providers": [provider]}, env=env)
    assert suite.providers[0].config["organization"] == f"<{text}>"


def test_an_env_expression_that_never_ends_takes_no_time(tmp_path: Path) -> None:
    text = "{{ env.A | default(" + "1" * 20_000 + " " * 20_000 + "x"
    assert load(tmp_path, {**BASE, "prompts": [text]}).prompts[0].raw == text


def test_an_env_value_that_is_not_set_is_warned_about_and_empty(tmp_path: Path) -> None:
    content = {**BASE, "prompts": ["a{{env.NOT_SET}}b"]}
    assert prompts_sent(tmp_path, content) == ["ab"]
    assert warnings_of(tmp_path, content) == [
        "the environment variable `NOT_SET` is not set and has no fallback"
    ]


def test_a_repeat_of_one_test_is_warned_about(tmp_path: Path) -> None:
    tests = [{"vars": {"x": "a"}, "options": {"repeat": count}} for count in (1, 3)]
    assert warnings_of(tmp_path, {**BASE, "tests": tests}) == ["`repeat` of a single test is not used"]


def test_unknown_keys_are_warnings_and_null_is_as_if_not_there(tmp_path: Path) -> None:
    content = {**BASE, "tests": [{"colour": 1, "vars": None, "assert": None}], "tsts": [], "x-common": {}}
    assert cases(tmp_path, content)[0].vars == {}
    found = warnings_of(tmp_path, content)
    assert [message.split("`")[1] for message in found] == ["colour", "tsts"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"extensions": ["file://hooks.js:beforeAll"]}, "extensions are not supported"),
        ({"redteam": {"purpose": "x"}}, "red teaming is not supported"),
        ({"nunjucksFilters": {"f": "f.js"}}, "there is no file"),
        ({"nunjucksFilters": {"f": "promptfooconfig.yaml"}}, "the filter `f` is not JavaScript"),
        ({"nunjucksFilters": ["f.js"]}, "`nunjucksFilters` must be a mapping"),
        ({"evaluateOptions": {"delay": "1s"}}, "`delay` must be a number of milliseconds of at least 0"),
        ({"evaluateOptions": 3}, "`evaluateOptions` must be a mapping"),
        ({"evaluateOptions": {"repeat": 0}}, "`repeat` must be a whole number of at least 1"),
        ({"scenarios": ["x.yaml"]}, "a scenario must be a mapping"),
        ({"scenarios": "file://x.yaml"}, "there is no file"),
        ({"defaultTest": "file://x.yaml"}, "there is no file"),
        (
            {"tests": [{"assert": [{"type": "contains", "value": "a", "contextTransform": "x"}]}]},
            "is not supported",
        ),
    ],
)
def test_what_would_be_left_out_is_refused(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    found = errors_of(tmp_path, {**BASE, **keys})
    assert len(found) == 1
    assert message in found[0]


def test_options_of_the_command_line_win_over_those_of_the_evaluation(tmp_path: Path) -> None:
    content = {
        **BASE,
        "evaluateOptions": {"maxConcurrency": 2, "repeat": 3, "cache": False, "delay": 0},
        "commandLineOptions": {"maxConcurrency": 5, "grader": "openai:j", "verbose": True},
        "outputPath": ["file://o.json", "p.csv"],
    }
    suite = load(tmp_path, content)
    assert suite.options == PromptfooOptions(
        max_concurrency=5, repeats=3, uses_cache=False, grader="openai:j", outputs=("o.json", "p.csv")
    )
    assert not suite.warnings


def test_several_configs_are_joined(tmp_path: Path) -> None:
    other = tmp_path / "sub" / "b.yaml"
    text = """
        description: B
        providers: [echo, {id: echo, label: other}]
        prompts: ['{{x}}', file://p.txt]
        env: {A: b}
        defaultTest: {vars: {y: b}, assert: [{type: contains, value: b}]}
        tests: [{vars: {x: b}}]
    """
    write_files(tmp_path, {"sub/b.yaml": text, "sub/p.txt": "{{x}}{{y}}{{z}}{{env.A}}"})
    content = {
        **BASE,
        "description": "A",
        "env": {"A": "a"},
        "defaultTest": {"vars": {"y": "a", "z": "a"}, "assert": [{"type": "contains", "value": "a"}]},
        "tests": [{"vars": {"x": "a"}}],
    }
    suite = load(tmp_path, content, joined=(other,))
    assert suite.description == "A, B"
    assert [provider.title for provider in suite.providers] == ["echo", "other"]
    tests = list(suite.tests)
    assert [len(case.assertions) for case in tests] == [2, 2]
    assert prompts_sent(tmp_path, content, joined=(other,))[:4] == ["a", "abab", "b", "bbab"]


def test_each_of_several_configs_has_its_own_env_values(tmp_path: Path) -> None:
    other = tmp_path / "b.yaml"
    text = "env: {A: b, B: '{{env.A}}{{env.OUT}}'}\nprompts: ['2 {{env.A}} {{env.B}} {{env.C}}']\n"
    write_files(tmp_path, {"b.yaml": text})
    content = {**BASE, "env": {"A": "a", "C": "c"}, "prompts": ["1 {{env.A}} {{env.B}}"], "tests": [{}]}
    found = prompts_sent(tmp_path, content, joined=(other,), env={"OUT": "o", "A": "outer"})
    assert found == ["1 a bo", "2 b bo c"]


def test_the_digest_covers_files_that_are_named_without_file(tmp_path: Path) -> None:
    content = {**BASE, "tests": "t.csv"}
    before = load(tmp_path, content, files={"t.csv": "x\na\n"}).digest
    assert load(tmp_path, content).digest == before
    assert load(tmp_path, content, files={"t.csv": "x\nb\n"}).digest != before


def test_keys_are_not_in_the_snapshot(tmp_path: Path) -> None:
    provider = {"id": "openai:m", "config": {"apiKey": "sk-secret-1234567890"}}
    suite = load(tmp_path, {**BASE, "providers": [provider]})
    assert "sk-secret" not in str(suite.snapshot)


def test_problems_have_their_place(tmp_path: Path) -> None:
    content = "prompts: [x]\nproviders: [echo]\ntests:\n  - vars: {x: file://nothing.txt}\n"
    (problem,) = open_config(tmp_path, content).problems
    assert problem.location is not None
    assert (Path(problem.location.file).name, problem.location.line, problem.location.column) == (NAME, 4, 15)


def test_differences_from_promptfoo_are_listed_once(tmp_path: Path) -> None:
    tests = [{"vars": {"d": "a"}, "assert": [{"type": "g-eval", "value": "x"}], "colour": 1}] * 2
    found = [item.what for item in differences(load(tmp_path, {**BASE, "tests": tests}))]
    assert sum(what.startswith("judged assertions whose judge") for what in found) == 1
    assert any("unknown key `colour`" in what for what in found)


@pytest.mark.parametrize("content", ["[]\n", "text\n", "3\n"])
def test_a_config_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError):
        open_config(tmp_path, content)


def test_a_text_that_a_comma_has_cut_in_two_is_told(tmp_path: Path) -> None:
    """In `{type: not-contains, value: Paris, France}`, `France` is a key without a value."""
    check = {"type": "not-contains", "value": "Paris", "France": None}
    test = {"vars": {"d": "a"}, "assert": [check]}
    said = " ".join(warnings_of(tmp_path, {**BASE, "tests": [test]}))
    assert "unknown key `France` in a contains assertion" in said


STRAY = {"stray": 1}


@pytest.mark.parametrize(
    "assertion",
    [
        {"type": "g-eval", "dimensions": ["fluency", {"dimension": "coherence", **STRAY}]},
        {"type": "g-eval", "criteria": "x", "examples": [{"output": "a", "rating": 5, **STRAY}]},
        {"type": "g-eval", "checklist": ["a", {"item": "b", **STRAY}]},
        {"type": "decision-tree", "tree": {"question": "q", "yes": 1, "no": 0, **STRAY}},
        {"type": "word-count", "value": {"min": 1, **STRAY}},
        {"type": "assert-set", "assert": [{"type": "contains", "value": "x", **STRAY}], **STRAY},
    ],
)
def test_an_unknown_key_drops_nothing(tmp_path: Path, assertion: dict[str, object]) -> None:
    def without_stray(value: object) -> object:
        if isinstance(value, dict):
            return {key: without_stray(item) for key, item in value.items() if key != "stray"}
        return [without_stray(item) for item in value] if isinstance(value, list) else value

    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", **STRAY}]
    test = {"turns": turns, "assert": [assertion]}
    (case,) = cases(tmp_path, {**BASE, "tests": [test]})
    assert "unknown key `stray`" in " ".join(warnings_of(tmp_path, {**BASE, "tests": [test]}))
    (clean,) = cases(tmp_path, {**BASE, "tests": [without_stray(test)]})
    assert case.assertions
    assert [item.model_dump() for item in case.assertions] == [item.model_dump() for item in clean.assertions]
    assert case.turns == clean.turns != ()


def test_many_warnings_refuse_no_config_and_equal_ones_are_told_a_few_times(tmp_path: Path) -> None:
    rows = [
        {"vars": {"x": n}, "one": 1, "assert": [{"type": "contains", "two": 2}] * 2} for n in range(1_100)
    ]
    files = {"t.jsonl": "\n".join(map(json.dumps, rows))}
    found = open_config(tmp_path, {**BASE, "tests": "file://t.jsonl"}, files=files)
    assert {problem.message for problem in found.problems} == {
        "a contains assertion needs `value`",
        "more than 1,000 problems: nothing after them is checked",
    }
    for row in rows:
        row["assert"] = [{"type": "contains", "value": "x", "two": 2}]
    suite = load(
        tmp_path, {**BASE, "tests": "file://t.jsonl"}, files={"t.jsonl": "\n".join(map(json.dumps, rows))}
    )
    told = [problem.message.split("`")[1] for problem in suite.warnings]
    assert {name: told.count(name) for name in told} == {"one": 10, "two": 10}
    assert sum(1 for _ in suite.tests) == 1_100


CHOOSING: dict[str, object] = {
    "prompts": [{"id": "p1", "label": "group:one", "raw": "{{x}}"}, {"raw": "two", "label": "Two"}],
    "providers": ["echo", {"id": "openai:gpt-4.1", "label": "Big"}],
}


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ({"prompts": ["p1"]}, 2),
        ({"prompts": ["group", "Two"]}, 4),
        ({"prompts": ["gro*"], "providers": ["openai", "echo"]}, 2),
        ({"providers": "Big"}, 2),
        ({"providers": []}, 0),
    ],
)
def test_a_test_runs_with_what_it_chooses(tmp_path: Path, chosen: dict[str, object], count: int) -> None:
    content = {**CHOOSING, "tests": [{"vars": {"x": 1}, **chosen}]}
    assert len(prompts_sent(tmp_path, content)) == count


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"prompts": ["Two", "Tow"]}, "there is no prompt `Tow`"),
        ({"prompts": ["gro"]}, "there is no prompt `gro`"),
        ({"providers": "gpt-4.1"}, "there is no provider `gpt-4.1`"),
        ({"providers": ["anthropic:*"]}, "there is no provider `anthropic:*`"),
    ],
)
@pytest.mark.parametrize("where", ["tests", "defaultTest", "scenarios", "file"])
def test_what_a_test_chooses_must_exist(
    tmp_path: Path, chosen: dict[str, object], message: str, where: str
) -> None:
    test = {"vars": {"x": 1}, **chosen}
    write_files(tmp_path, {"t.json": json.dumps([test])})
    places: dict[str, dict[str, object]] = {
        "tests": {"tests": [test]},
        "defaultTest": {"defaultTest": test},
        "scenarios": {"scenarios": [{"config": [test], "tests": [{}]}]},
        "file": {"tests": ["file://t.json"]},
    }
    assert errors_of(tmp_path, {**CHOOSING, **places[where]}) == [message]


def test_prompts_that_a_provider_chooses_and_do_not_exist_are_warned_about(tmp_path: Path) -> None:
    content = {**CHOOSING, "providers": [{"id": "echo", "prompts": ["Two", "Three"]}], "tests": [{}]}
    assert "there is no prompt `Three`" in warnings_of(tmp_path, content)


TESTS_IN_FILES = {
    "t.yaml": "- {vars: {x: file://doc.txt}}\n",
    "t.json": '[{"vars": {"x": ["file://doc.txt", "y"]}}]',
    "t.jsonl": '{"vars": {"x": "y"}, "assert": [{"type": "contains", "value": "file://doc.txt"}]}\n',
    "t.csv": "x\nfile://d*.txt\n",
}


@pytest.mark.parametrize(
    ("content", "files"),
    [
        *(({"tests": f"file://{name}"}, {name: text}) for name, text in TESTS_IN_FILES.items()),
        ({"scenarios": [{"config": "file://t.yaml"}]}, TESTS_IN_FILES),
        ({"scenarios": [{"config": [{}], "tests": ["t.csv"]}]}, TESTS_IN_FILES),
        ({"tests": [{"vars": "v.yaml"}]}, {"v.yaml": "x: file://doc.txt\n"}),
        ({"prompts": ["file://p.yaml"]}, {"p.yaml": "- {role: user, content: file://doc.txt}\n"}),
        ({"providers": [{"id": "echo", "config": {"a": "file://c.json"}}]}, {"c.json": '["file://doc.txt"]'}),
    ],
)
def test_a_change_of_a_file_that_a_file_names_is_noticed(
    tmp_path: Path, content: dict[str, object], files: dict[str, str]
) -> None:
    whole = {**BASE, **content}
    first = load(tmp_path, whole, files={**files, "doc.txt": "one"})
    same = load(tmp_path, whole)
    changed = load(tmp_path, whole, files={"doc.txt": "two"})
    assert first.digest == same.digest != changed.digest
