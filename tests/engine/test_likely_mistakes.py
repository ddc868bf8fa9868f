"""Warnings about what a config hardly means, and the many ways of using a variable that are no mistake."""

import json
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from geval_cli.errors import ConfigError
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest

USED = {"type": "contains", "value": "a"}


def warnings(folder: Path, name: str = "config.yaml", **keys: object) -> list[str]:
    """The warnings about a config, with their hints, but for those of other kinds."""
    whole = {
        "prompts": ["Say {{ q }}"],
        "providers": ["echo"],
        "tests": [{"vars": {"q": "x"}, "assert": [USED]}],
    }
    path = folder / name
    whole = {key: value for key, value in {**whole, **keys}.items() if value is not None}
    path.write_text(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), encoding="utf-8")
    prepared = prepare(RunRequest(path, {"OPENAI_API_KEY": "k"}), is_going_to_run=False)
    assert all(problem.location for problem in prepared.warnings)
    return [f"{problem.message}; {problem.hint}" for problem in prepared.warnings]


def written_tests(*, check: object = USED, count: int = 1, **variables: object) -> list[object]:
    return [{"vars": {"q": "x", **variables}, "assert": [check]} for _ in range(count)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"tests": written_tests(note="b")},
            "the variable `note` is not used; use it in a prompt or an assertion, or remove it",
        ),
        (
            {"tests": written_tests(note="b", count=3)},
            "the variable `note` of 3 tests is not used; use it in a prompt",
        ),
        (
            {"tests": written_tests(a=1, b=2, c=3, d=4, e=5)},
            "the variables `a`, `b`, `c`, `d` and 1 more are not used; use them",
        ),
        (
            {"prompts": ["{{ question | default('') }}{{ q }}"], "tests": written_tests(questoin="b")},
            "the variable `questoin` is not used; did you mean `question`?",
        ),
        (
            {"prompts": ["{% for x in q %}{{ x }}{% endfor %}"], "tests": written_tests(count=2)},
            "`q` is text, so the loop in the prompt goes through its characters (2 tests); write it as a list, or",
        ),
        (
            {"prompts": [{"messages": [{"role": "user", "content": "{{ q|join(', ') }}"}]}]},
            "`q` is text, so the loop in the prompt goes through its characters; write",
        ),
        (
            {"prompts": ["{{ q }} {name}"], "tests": written_tests(name="b")},
            "`{name}`, which is sent as is; write {{ name }}",
        ),
        (
            {"prompts": ["{{ q }} ${name}"], "tests": written_tests(name="b")},
            "`${name}`, which is sent as is; write {{ name",
        ),
        (
            {"prompts": ["{{ q }} <name>"], "tests": written_tests(name="b")},
            "`<name>`, which is sent as is; write {{ name }}",
        ),
        (
            {"prompts": ["Say {q}"], "tests": [*written_tests(), *written_tests(q="y")]},
            "`{q}`, which is sent as is; write {{ q }}",
        ),
        (
            {"prompts": [[{"role": "user", "content": "{{ q }} {name}"}]], "tests": written_tests(name="b")},
            "`{name}`, which is sent as is; write {{ name }}",
        ),
        (
            {"prompts": ["{{ q }} {{ name }}"], "tests": written_tests(q="Hello {{ name }}", name="b")},
            "`{{ name }}` in `vars.q` is not rendered; test values are not templates",
        ),
        (
            {"tests": [{"vars": {"q": "x"}, "expected_output": "{{ q }}", "assert": [USED]}]},
            "`{{ q }}` in `expected_output` is not rendered; test values are not templates",
        ),
        *(
            (
                {"providers": [{"id": "openai:gpt-4.1", "config": {key: value}}]},
                f"`{{{{ q }}}}` in `{key}` is sent as it is written; settings of models are not templates",
            )
            for key, value in (
                ("user", "u {{ q }}"),
                ("headers", {"x-user": "{{ q }}"}),
                ("metadata", {"a": {"b": ["{{ q }}"]}}),
            )
        ),
        (
            {"tests": written_tests(check={"type": "contains", "value": "“a”"})},
            "the typographic quotes around `“a”` are part of the value; write straight",
        ),
        (
            {"tests": written_tests(check={"type": "contains-any", "value": ["a", "\u2018b c\u2019"]})},
            "the typographic quotes around `\u2018b c\u2019` are part of the value; write straight",
        ),
        (
            {"tests": written_tests(check={"type": "not-contains", "value": "{q}"})},
            "`{q}` is no template: it is looked for as it is; write {{ q }}",
        ),
        *(
            (
                keys | {"dialect": "promptfoo"},
                "is used as it is, with all its braces: its last one is never closed",
            )
            for keys in (
                {"tests": written_tests(check={"type": "not-contains", "value": "{{ q"})},
                {"tests": written_tests(check={"type": "not-contains-any", "value": ["a", "a {% if q"]})},
                {"tests": written_tests(check={"type": "llm-rubric", "value": "{{ q }} is in {{ q"})},
                {"prompts": ["Say {{ q }} in {{ braces"]},
            )
        ),
        (
            {"tests": written_tests(check={"type": "contains-any", "value": ["a", "${ q }"]})},
            "`${ q }` is no template: it is looked for as it is; write {{ q }}",
        ),
        (
            {
                "tests": written_tests(check={**USED, "metric": "m"}, count=2),
                "derivedMetrics": [{"name": "m", "value": "m / __count"}, {"name": "k", "value": "m * 2"}],
                "gates": ["m.mean >= 0.5"],
            },
            "`m` is also a metric of assertions, and gates and comparisons use that one; give the derived",
        ),
        (
            {
                "tests": written_tests(
                    check={"type": "assert-set", "metric": "k", "assert": [{**USED, "metric": "m"}]}
                ),
                "derivedMetrics": [{"name": "m", "value": "1 - m"}],
            },
            "`m` is also a metric of assertions",
        ),
        (
            {"providers": ["echo", "echo"]},
            "2 providers have the name `echo`, so their columns look alike; give each",
        ),
        (
            {"prompts": ["{{ q }}", "{{ q }}"]},
            "2 prompts have the name `{{ q }}`, so their columns look alike; give",
        ),
    ],
)
def test_each_likely_mistake_is_one_warning(tmp_path: Path, keys: dict[str, object], said: str) -> None:
    [found] = warnings(tmp_path, **keys)
    assert said in found


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("default_test: {vars: {q: x,\n  note: b}}\ntests:\n  - vars: {}\n  - vars: {q: y}\n", "`note` of 2 tests is"),
        ("defaultTest: {vars: {q: x,\n  quote: b}}\nenv: {QUOTES: z}\ntests: [{}]\n", "`quote` is not used"),
        ("defaultTest: {vars: {q: x},\n  expected_output: '{{ q }}'}\ntests: [{}]\n", "`{{ q }}` in `expected_output`"),
        ("defaultTest: {vars: {n: x,\n  q: '{{ n }}'}}\nprompts: ['{{ q }}{{ n }}']\ntests: [{}]\n", "in `vars.q`"),
        ("tests: [{vars: {q: x,\n  note: b}}]\ndefaultTest: {vars: {note: x}}\n", "`note` is not used"),
    ],
)  # fmt: skip
def test_a_mistake_in_default_test_is_shown_there(tmp_path: Path, config: str, said: str) -> None:
    path = tmp_path / "gevalconfig.yaml"
    rest = "" if "prompts" in config else "prompts: ['{{ q }}']\n"
    path.write_text(f"{config}{rest}providers: [echo]\n", encoding="utf-8")
    found = prepare(RunRequest(path, {}), is_going_to_run=False).warnings
    [problem] = [problem for problem in found if "no test has an assertion" not in problem.message]
    assert said in problem.message
    assert problem.location is not None
    assert (problem.location.line, problem.location.column) == (2, 3)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"prompts": ["{{ q }} {% if note %}!{% endif %}"], "tests": written_tests(note="b")},
        {"prompts": ["{{ q | upper }} {{ note.inner }}"], "tests": written_tests(note={"inner": 1})},
        {"prompts": ["<q>{{ q }}</q>"]},
        {
            "prompts": ["<note>{{ q }}</note>"],
            "tests": written_tests(check={"type": "contains", "value": "{{ note }}"}, note="b"),
        },
        {"prompts": ['{{ q }}: answer as {"name": "..."}']},
        {"tests": written_tests(check={"type": "contains", "value": "{{ note }}"}, note="b")},
        {"tests": written_tests(check={"type": "contains-any", "value": ["{{ note }}"]}, note="b")},
        {"tests": written_tests(check={"type": "g-eval", "criteria": "It says {{ note }}."}, note="b")},
        {"tests": written_tests(check={"type": "contains", "value": "a", "metric": "{{ note }}"}, note="b")},
        {
            "tests": written_tests(
                check={"type": "assert-set", "assert": [{"type": "equals", "value": "{{ note }}"}]}, note="b"
            )
        },
        {
            "tests": written_tests(
                check={"type": "python", "value": "context['vars']['note'] in output"}, note="b"
            )
        },
        {
            "tests": written_tests(
                check={"type": "python", "value": "any(v in output for v in context['vars'].values())"}, z="b"
            )
        },
        {
            "tests": written_tests(
                check={"type": "javascript", "value": "output.includes(context.vars.note)"}, note="b"
            )
        },
        {
            "tests": written_tests(
                check={"type": "javascript", "value": "const {note} = context.vars; return true"}, note="b"
            )
        },
        {
            "tests": written_tests(
                check={"type": "javascript", "value": "Object.keys(context.vars).length > 0"}, other="b"
            )
        },
        {"tests": written_tests(check={"type": "python", "value": "file://check.py"}, note="b")},
        {"tests": written_tests(check={"type": "webhook", "value": "http://127.0.0.1:9/x"}, note="b")},
        {
            "defaultTest": {"options": {"transform": "output + context.vars.note"}},
            "tests": written_tests(note="b"),
        },
        {
            "defaultTest": {"options": {"rubricPrompt": {"evaluate": "{{ note }} {{ actual_output }}"}}},
            "tests": written_tests(note="b"),
        },
        {"providers": ["exec:cat"], "tests": written_tests(note="b")},
        {
            "providers": [{"id": "http://127.0.0.1:9", "config": {"body": {"x": "{{ vars.note }}"}}}],
            "tests": written_tests(note="b"),
        },
        {"tests": written_tests(check={"type": "context-recall", "value": "x"}, context="b")},
        {"providers": ["echo", {"id": "echo", "label": "other"}]},
        {"prompts": ["{{ q }}", {"label": "again", "raw": "{{ q }}"}]},
        {"tests": written_tests(q="Hello {{ other }}")},
        {"tests": written_tests(check={"type": "contains", "value": "\u2019"})},
        {"tests": written_tests(check={"type": "contains-any", "value": ["“”", "“a” b"]})},
        {
            "prompts": ["{% for x in q %}{{ x }}{% endfor %}"],
            "tests": [{"vars": {"q": ["x"]}, "assert": [USED]}],
        },
        {"prompts": ["{% for x in q.split(',') %}{{ x }}{% endfor %}{{ q | upper }}"]},
    ],
)
def test_uses_of_variables_are_known(tmp_path: Path, keys: dict[str, object]) -> None:
    (tmp_path / "check.py").write_text(
        "def get_assert(output, context):\n    return True\n", encoding="utf-8"
    )
    assert warnings(tmp_path, **keys) == []


@pytest.mark.parametrize(
    ("written", "number"),
    [("02134", "2134"), ("1.10", "1.1"), ("1e3", "1000.0"), ("0x1F", "31"), ("+7", "7"), ("2.", "2.0")],
)
@pytest.mark.parametrize("place", ["vars.zip", "value", "output"])
def test_a_number_that_loses_its_form_is_told(tmp_path: Path, written: str, number: str, place: str) -> None:
    def shown(as_written: str) -> list[str]:
        zip_code, value, output = (
            as_written if place == key else "x" for key in ("vars.zip", "value", "output")
        )
        text = f"tests: [{{vars: {{zip: {zip_code}}}, output: {output}, description: '{{{{ zip }}}}', "
        text += f"assert: [{{type: contains, value: {value}}}]}}]"
        path = tmp_path / "config.yaml"
        path.write_text(text)
        prepared = prepare(RunRequest(path, {}), is_going_to_run=False)
        return [problem.message for problem in prepared.warnings]

    assert f"`{place}` is the number {number}, which is not how it is written" in shown(written)
    for harmless in (f'"{written}"', number, "true", "12.5", "-3"):
        assert not any("number" in message for message in shown(harmless))


@pytest.mark.parametrize(
    ("dialect", "kind", "value", "told"),
    [
        (
            "geval",
            "contains-any",
            "[a, 007, 1.50]",
            ["value[1]` is the number 7", "value[2]` is the number 1.5"],
        ),
        ("geval", "contains-any", "[a, '007', 7, 1.5]", []),
        (
            "promptfoo",
            "contains-any",
            "[a, 007, 1.50]",
            ["value` is the number 7", "value` is the number 1.5"],
        ),
        ("promptfoo", "equals", "007", ["value` is the number 7"]),
        ("promptfoo", "not-contains", "1.0", ["value` is the number 1"]),
        ("promptfoo", "not-contains", "'007'", []),
        ("promptfoo", "regex", "-12.5", []),
        ("promptfoo", "word-count", "010", ["value` is the number 10"]),
        ("promptfoo", "equals", "true", []),
    ],
)
@pytest.mark.parametrize(
    "where", ["tests: [{{vars: {{a: x}}, assert: [{}]}}]", "defaultTest: {{assert: [{}]}}"]
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_number_of_an_assertion_is_told_in_both_dialects(
    tmp_path: Path, dialect: str, kind: str, value: str, told: list[str], where: str, is_nested: bool
) -> None:
    assertion = f"{{type: {kind}, value: {value}}}"
    if is_nested:
        assertion = f"{{type: assert-set, assert: [{assertion}]}}"
    tests = "" if where.startswith("tests") else "tests: [{vars: {a: x}}]\n"
    path = tmp_path / "config.yaml"
    path.write_text(
        f"dialect: {dialect}\nprompts: '{{{{ a }}}}'\nproviders: echo\n{tests}{where.format(assertion)}\n"
    )
    found = prepare(RunRequest(path, {}), is_going_to_run=False).warnings
    numbers = [problem.message for problem in found if "is not how it is written" in problem.message]
    assert numbers == [f"`{text}, which is not how it is written" for text in told]


def told_of(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    found = prepare(RunRequest(path, {}), is_going_to_run=False).warnings
    return [problem.message for problem in found if "is not used" not in problem.message]


LOOKED_FOR = [
    *(f"{case}contains{which}" for case in ("", "i") for which in ("", "-all", "-any")),
    *("equals", "starts-with", "ends-with", "regex"),
]


@pytest.mark.parametrize("kind", [*LOOKED_FOR, *(f"not-{kind}" for kind in LOOKED_FOR)])
@pytest.mark.parametrize("dialect", ["geval", "promptfoo"])
def test_what_is_looked_for_but_not_seen_is_told(tmp_path: Path, kind: str, dialect: str) -> None:
    """`not-contains: |` looks for a line break too, so it passed an output with the banned word in the middle."""
    padded, unseen = "ends with a line break, which is looked for too", "which cannot be seen"
    is_list = kind.endswith(("-all", "-any"))
    rows = [
        ("|\n          banned\n", "x", "" if is_list else padded),
        (">\n          banned\n", "x", "" if is_list else padded),
        ("|-\n          banned\n", "x", ""),
        ("banned", "x", ""),
        ('"ban\\n"', "x", ""),
        ('"{{ v }}"', "|\n        banned\n", "" if is_list else padded),
        ('"{{ v }}"', "|-\n        banned\n", ""),
        ("ban\u200bned", "x", unseen),
        ("a\u00a0ban", "x", unseen),
        ('"a\\r\\nban"', "x", "" if is_list else unseen),
        ("ban\u202c", "x", unseen),
        ('"{{ v }}"', "ban\u00adned", unseen),
        ("\u05d0\u200f", "x", ""),
        ("\U0001f469\u200d\U0001f4bb", "x", ""),
        ("x" if is_list else '"\u00a0"', "x", ""),
        ("True", "x", "`value` is true, which is not how it is written"),
        ("FALSE", "x", "`value` is false, which is not how it is written"),
        ("true", "x", ""),
        ('"True"', "x", ""),
        ("ticket #12", "x", "`value` ends before `#12`, which is a comment"),
        ("ticket # 12", "x", ""),
        ("ticket #done", "x", ""),
        ('"ticket #12"', "x", ""),
        ('"ticket" #12', "x", ""),
    ]
    text = f"dialect: {dialect}\nproviders: [echo]\nprompts: ['{{{{ v }}}}']\ntests:\n"
    for value, variable, _ in rows:
        text += f"  - vars:\n      v: {variable}\n    assert:\n      - type: {kind}\n        value: {value}\n"
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    found: dict[int, list[str]] = {}
    for problem in prepare(RunRequest(path, {}), is_going_to_run=False).warnings:
        if problem.location and problem.location.key_path.endswith(("value", "vars.v", "vars")):
            index = problem.location.key_path.partition("[")[2].partition("]")[0]
            found.setdefault(int(index), []).append(problem.message)
    for index, (value, _, said) in enumerate(rows):
        assert [said in message for message in found.get(index, [])] == [True] * bool(said), (value, found)


def test_each_item_of_a_list_and_each_text_of_a_judge_is_looked_at(tmp_path: Path) -> None:
    text = "defaultTest: {options: {provider: local:smollm2}}\ntests:\n  - output: a\n    assert:\n"
    text += "      - type: contains-any\n        value:\n"
    text += "          - |\n            a\n          - b #2 # c\n          - True\n          - c\u2060d\n"
    text += "      - {type: llm-rubric, value: ticket #1\n        }\n"
    text += "      - type: g-eval\n        criteria: ticket #3\n"
    text += "      - type: llm-rubric\n        value: |\n          a\n"
    assert told_of(tmp_path / "config.yaml", text) == [
        "`value[0]` ends with a line break, which is looked for too",
        "`value[1]` ends before `#2 # c`, which is a comment",
        "`value[2]` is true, which is not how it is written",
        "`value[3]` contains U+2060 (word joiner), which cannot be seen",
        "`value` ends before `#1`, which is a comment",
        "`criteria` ends before `#3`, which is a comment",
    ]


def test_white_space_in_cells_is_told_once_for_all_rows(tmp_path: Path) -> None:
    rows = [(" a", "b "), ("a", "b\n"), ("a", "b"), ("\na\n", "b\t")]
    text = "".join(f'"{one}","{two}",x \n' for one, two in rows)
    (tmp_path / "t.csv").write_text(f"banned,assert.not-contains,output\n{text}", encoding="utf-8")
    config = (
        "tests: file://t.csv\ndefaultTest:\n  assert:\n    - {type: not-contains, value: '{{ banned }}'}\n"
    )
    said = "begins or ends with white space, which is looked for too"
    assert told_of(tmp_path / "config.yaml", config) == [
        f"`vars.banned` {said} (2 tests)",
        f"`value` {said} (3 tests)",
    ]


@pytest.mark.parametrize("dialect", ["geval", "promptfoo"])
def test_the_slashes_around_a_pattern_are_told(tmp_path: Path, dialect: str) -> None:
    for pattern, is_told in {
        "/paris/i": True, "/a b/gm": True, "/^paris$/": True, r"/\d+/": True, "/a|b/": True, "/[ab]/u": True,
        "/api/v1/": False, "/api/v1": False, "and/or": False, "^/a/i$": False, "/": False, "//": False,
    }.items():  # fmt: skip
        for kind in ("regex", "not-regex"):
            tests = written_tests(check={"type": kind, "value": pattern})
            found = warnings(tmp_path, tests=tests, dialect=dialect)
            assert [f"the slashes of `{pattern}`" in line for line in found] == [True] * is_told, (
                pattern,
                found,
            )
        assert warnings(tmp_path, tests=written_tests(check={"type": "contains", "value": pattern})) == []


SEES = {
    **dict.fromkeys(("llm-rubric", "search-rubric", "choice"), "output"),
    **dict.fromkeys(("factuality", "model-graded-closedqa"), "completion"),
    **{"context-recall": "context", "answer-relevance": "answer", "citation-correctness": "claims"},
    **{"conversation-relevance": "messages", "g-eval": "output", "context-relevance": "context"},
}


@pytest.mark.parametrize("kind", SEES)
@pytest.mark.parametrize("place", ["assertion", "options", "defaultTest"])
def test_a_judge_prompt_without_the_output_is_told(tmp_path: Path, kind: str, place: str) -> None:
    """A judge that does not see the output passes all of them, or none."""
    name = SEES[kind]
    for prompt, is_told in {
        "Is the output polite? Reply with JSON.": True,
        f"Is {name} polite?": True,
        f"Is {{{{ {name} }}}} polite?": False,
        f"{{% for part in {name} %}}{{{{ part }}}}{{% endfor %}}": False,
        json.dumps([{"role": "user", "content": f"Is {{{{ {name} | trim }}}} polite?"}]): False,
    }.items():
        check: dict[str, object] = {"type": kind, "provider": "scripted:r.txt"}
        check |= {"g-eval": {"criteria": "a"}}.get(kind, {"value": "a"})
        check |= {"choices": {"x": 1, "y": 0}} if kind == "choice" else {}
        if kind in (
            "answer-relevance",
            "citation-correctness",
            "conversation-relevance",
            "context-relevance",
        ):
            del check["value"]
        written = {"rubricPrompt": prompt}
        test: dict[str, object] = {"vars": {"q": "x", "context": "c"}, "assert": [check]}
        if place == "assertion":
            check |= written
        elif place == "options":
            test["options"] = written
        default = {"options": written} if place == "defaultTest" else None
        (tmp_path / "r.txt").write_text("{}")
        text = json.dumps(
            {"prompts": ["{{ q }}"], "providers": ["echo"], "tests": [test], "defaultTest": default or {}}
        )
        found = [
            line for line in told_of(tmp_path / "config.yaml", text) if "does not show the output" in line
        ]
        assert len(found) == is_told, prompt


@pytest.mark.parametrize(
    ("kind", "prompt", "names", "is_told"),
    [
        *(
            ("g-eval", f"Rate {{{{ {name} }}}}", [name], True)
            for name in ("output", "response", "summary", "Summary")
        ),
        ("g-eval", "Rate {{ response }} by {{ summary }}", ["response", "summary"], True),
        ("g-eval", "Rate {{ output }} by {{ summary }}", ["summary"], False),
        ("g-eval", "Rate {{ output }} by {{ q }}", ["summary"], False),
        ("llm-rubric", "Rate {{ output }}", ["output"], False),
    ],
)
def test_a_variable_that_takes_the_place_of_the_output_is_told(
    tmp_path: Path, kind: str, prompt: str, names: list[str], is_told: bool
) -> None:
    """With a column `summary`, g-eval rated that column, whatever the model answered."""
    check = {"type": kind, "value": "polite", "rubricPrompt": prompt, "provider": "scripted:r.txt"}
    (tmp_path / "r.txt").write_text("{}")
    tests = [{"vars": {"q": "x", **dict.fromkeys(names, "v")}, "assert": [check]}]
    text = json.dumps({"prompts": ["{{ q }}"], "providers": ["echo"], "tests": tests})
    found = [line for line in told_of(tmp_path / "config.yaml", text) if "does not show the output" in line]
    assert len(found) == is_told


@pytest.mark.parametrize(
    ("kind", "config", "test", "is_told"),
    [
        ("is-valid-openai-tools-call", {}, {}, True),
        ("not-is-valid-function-call", {}, {}, True),
        ("is-valid-openai-tools-call", {"functions": [{"name": "f"}]}, {}, True),
        ("is-valid-openai-tools-call", {"tools": [{"name": "f"}]}, {}, False),
        ("is-valid-openai-function-call", {"functions": [{"name": "f"}]}, {}, False),
        ("is-valid-function-call", {"tools": [{"name": "f"}]}, {}, False),
        (
            "is-valid-function-call",
            {},
            {"provider": {"id": "exec:x", "config": {"tools": [{"name": "f"}]}}},
            False,
        ),
        (
            "is-valid-function-call",
            {},
            {"tools": {"definitions": [{"name": "f"}], "recorded": [{"name": "f", "result": 1}]}},
            False,
        ),
    ],
)
def test_calls_without_functions_to_check_them_against_are_told(
    tmp_path: Path, kind: str, config: object, test: dict[str, object], is_told: bool
) -> None:
    provider = {"id": "openai:gpt-4.1", "config": config}
    tests = [{"vars": {"q": "x"}, "assert": [{"type": kind}], **test}]
    text = json.dumps({"prompts": ["{{ q }}"], "providers": [provider], "tests": tests})
    found = [
        line for line in told_of(tmp_path / "config.yaml", text) if "nothing to check calls against" in line
    ]
    assert len(found) == is_told


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"required": ["a"]}, "`required` at $ checks objects only"),
        ({"properties": {"a": {}}}, "`properties` at $ checks objects only"),
        ({"items": {"type": "string"}}, "`items` at $ checks arrays only"),
        ({"type": "array", "items": {"required": ["a"]}}, "`required` at $[*] checks objects only"),
        ({"type": "object", "properties": {"a": {"minimum": 1}}}, "`minimum` at $.a checks numbers only"),
        (
            {"type": "object", "properties": {"a": {"items": {"pattern": "^x"}}}},
            "`items` at $.a checks arrays only",
        ),
        ({"maxLength": 5, "description": "x"}, "`maxLength` at $ checks strings only"),
        ({"type": ["object", "null"], "required": ["a"]}, ""),
        ({"anyOf": [{"type": "object"}], "required": ["a"]}, ""),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, ""),
        ({"enum": [1], "minimum": 0}, ""),
        ({"const": 1}, ""),
        ({"type": "object", "properties": {"required": {"type": "string"}}}, ""),
    ],
)
def test_a_schema_that_values_of_other_types_pass_is_told(tmp_path: Path, schema: object, said: str) -> None:
    """A list of objects passed `{required: [city]}`."""
    for written in (schema, json.dumps(schema)):
        for kind in ("is-json", "not-contains-json"):
            found = warnings(tmp_path, tests=written_tests(check={"type": kind, "value": written}))
            assert [line.startswith(f"{said}, so any other value passes") for line in found] == [True] * bool(
                said
            )
        prompts = [{"raw": "{{ q }}", "evaluation_mode": "schema"}]
        found = warnings(
            tmp_path, prompts=prompts, tests=[{"vars": {"q": "x"}, "evaluation_schema": written}]
        )
        assert [line.startswith(f"{said}, so any other value passes") for line in found] == [True] * bool(
            said
        )


def test_numbers_of_other_files_and_with_anchors_are_as_they_are(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import_module("pyarrow.parquet").write_table(
        pyarrow.table({"n": [1], "f": [0.5]}), tmp_path / "t.parquet"
    )
    (tmp_path / "t.jsonl").write_text('{"n": 1e-7, "f": 2E3}\n')
    (tmp_path / "t.py").write_text("def generate_tests():\n    yield {'n': 1, 'f': 0.5}\n")
    (tmp_path / "t.yaml").write_text("- {n: &n 12, f: 0.5}\n- {n: 7, f: &f 0.25}\n")
    (tmp_path / "p.py").write_text(
        "def generate_tests():\n    return [{'vars': {'n': 1}, 'assert': [{'type': 'equals', 'value': 5.0}]}]\n"
    )
    (tmp_path / "p.json").write_text('[{"vars": {"n": 1}, "assert": [{"type": "equals", "value": 5.0}]}]')
    path = tmp_path / "config.yaml"
    path.write_text(
        "dialect: promptfoo\nprompts: '{{ n }}'\nproviders: echo\ntests: [file://p.py, file://p.json]\n"
    )
    told = [problem.message for problem in prepare(RunRequest(path, {}), is_going_to_run=False).warnings]
    assert not any("number" in message for message in told)
    names = ("t.parquet", "t.jsonl", "t.py", "t.yaml")
    tests = [f"file://{name}" for name in names]
    found = warnings(tmp_path, prompts=["{{ n }} {{ f }}"], tests=tests, defaultTest={"assert": [USED]})
    assert [line for line in found if "number" in line] == []


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("Hello {{ q }}\n---\nBye {{ q }}\n", True),
        ("---\nHello {{ q }}\n---\nBye {{ q }}\n---\n", True),
        ("Answer.\n---\n{{ q }}\n---\n", False),  # a line around a document
        ("Hello {{ q }}\n----\nBye {{ q }}\n", False),
        ("Hello\n---\nBye\n", False),
    ],
)
def test_lines_that_do_not_separate_prompts_are_told(tmp_path: Path, text: str, is_told: bool) -> None:
    (tmp_path / "p.txt").write_text(text)
    found = [line for line in warnings(tmp_path, prompts=["file://p.txt"]) if "`---`" in line]
    assert len(found) == int(is_told)


def test_columns_of_a_table_may_be_for_people_but_a_misspelt_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "tests.csv").write_text("q,number,nmae,assert.contains\nx,1,b,a\n", encoding="utf-8")
    [found] = warnings(tmp_path, prompts=["{{ q }} {{ name | default('') }}"], tests="file://tests.csv")
    assert found == "the variable `nmae` is not used; did you mean `name`?"


@pytest.mark.parametrize("value", ["<q>", "{other}", "{q} or more", "{{ q }}", "q", "{1}"])
def test_what_may_be_meant_as_it_is_brings_no_warning(tmp_path: Path, value: str) -> None:
    assert warnings(tmp_path, tests=written_tests(check={"type": "contains", "value": value})) == []


KEY = "zq9-0123456789"
PROGRAM = {"id": "exec:cat", "config": {"apiKey": "zq9-of-the-program"}}


@pytest.mark.parametrize(
    ("keys", "is_told"),
    [
        ({"tests": written_tests(check={"type": "not-contains", "value": "{{ env.OUR_KEY }}"})}, True),
        ({"tests": written_tests(check={"type": "contains", "value": f"key {KEY}."})}, True),
        ({"tests": written_tests(check={"type": "not-contains-any", "value": ["a", KEY]})}, True),
        ({"tests": written_tests(check={"type": "not-regex", "value": "zq9-of-the-program"})}, True),
        ({"tests": written_tests(check={"type": "not-contains", "value": "{{ secret }}"}, secret=KEY)}, True),
        ({"tests": written_tests(check={"type": "python", "value": f"'{KEY}' not in output"})}, True),
        ({"tests": written_tests(check={"type": "assert-set", "assert": [{"type": "equals", "value": KEY}]})}, True),
        ({"tests": written_tests(check={"type": "contains", "value": "{{ q }}"}, secret=KEY)}, False),
        ({"tests": written_tests(check={"type": "contains", "value": "zq9"})}, False),
        ({"tests": written_tests(check={"type": "contains", "value": "administrator"})}, False),
        ({"tests": written_tests(check={"type": "webhook", "value": f"http://127.0.0.1:9/?key={KEY}"})}, False),
        (
            {
                "providers": ["echo"],
                "tests": written_tests(check={"type": "contains", "value": KEY}),
            },
            False,
        ),
        (
            {
                "providers": [],
                "prompts": [],
                "tests": [{"output": KEY, "assert": [{"type": "contains", "value": KEY}]}],
            },
            False,
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["geval", "promptfoo"])
def test_a_check_for_a_key_that_is_masked_in_answers_is_an_error(
    tmp_path: Path, keys: dict[str, object], is_told: bool, dialect: str
) -> None:
    """`not-contains` passed the answer of a model that reveals its key."""
    if dialect == "promptfoo" and not keys.get("prompts", True):
        pytest.skip("not in this dialect")
    whole = {"dialect": dialect, "prompts": ["Say {{ q }}"], "providers": [PROGRAM], **keys}
    path = tmp_path / "config.yaml"
    path.write_text(
        yaml.safe_dump({name: value for name, value in whole.items() if value != []}), encoding="utf-8"
    )
    request = RunRequest(path, {"OUR_KEY": KEY, "ADMIN_PASSWORD": "administrator", "PATH": "/bin:/usr/bin"})
    said = ""
    try:
        prepare(request, is_going_to_run=False)
    except ConfigError as error:
        said = str([problem.message for problem in error.problems])
    assert ("so this is never found" in said) is is_told, said
    assert is_told or not said


@pytest.mark.parametrize(
    ("selection", "metadata", "prompt", "is_told"),
    [
        (None, {}, "{{ _conversation }} {{ q }}", False),
        ("t[01]", {}, "{{ _conversation }} {{ q }}", False),
        ("t[12]", {}, "{{ _conversation }} {{ q }}", True),
        ("t[02]", {}, "{{ _conversation }} {{ q }}", True),
        ("t2", {"conversationId": "one"}, "{{ _conversation }} {{ q }}", False),
        ("t2", {}, "{{ q }}", False),
    ],
)
def test_a_conversation_of_which_turns_are_filtered_out_gets_a_warning(
    selection: str | None, metadata: dict[str, str], prompt: str, is_told: bool, tmp_path: Path
) -> None:
    tests = [
        {"description": f"t{n}", "vars": {"q": "x"}, "metadata": metadata, "assert": [USED]} for n in range(3)
    ]
    whole = {"dialect": "promptfoo", "prompts": [prompt], "providers": ["echo"], "tests": tests}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    prepared = prepare(RunRequest(path, {}, filter_pattern=selection), is_going_to_run=False)
    said = [problem.message for problem in prepared.warnings if "lacks their turns" in problem.message]
    assert len(said) == is_told


@pytest.mark.parametrize(
    ("secret", "count"), [("{{ env.OUR_KEY }}", 1), (f"Bearer {KEY}", 1), ("a word", 0), (5, 0)]
)
def test_a_variable_that_holds_a_key_is_told(tmp_path: Path, secret: object, count: int) -> None:
    """Variables are stored as they are, and stand in comments on pull requests."""
    whole = {
        "prompts": ["Say {{ q }} {{ secret }}"],
        "providers": [PROGRAM],
        "tests": written_tests(count=3, secret=secret),
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    prepared = prepare(RunRequest(path, {"OUR_KEY": KEY, "PATH": "/bin:/usr/bin"}), is_going_to_run=False)
    told = [problem for problem in prepared.warnings if "holds a key" in problem.message]
    assert len(told) == count
    assert all("`secret`" in problem.message and KEY not in str(problem) for problem in told)


@pytest.mark.parametrize("part", ["vars", "metadata"])
@pytest.mark.parametrize("key", ["assert", "assertions"])
@pytest.mark.parametrize("checks", [[USED], USED, [USED, {"type": "g-eval", "criteria": "x"}]])
@pytest.mark.parametrize("prompt", ["Say {{ q }}", "{{ q }} {{ vars }}", "{{ q }} {{ assert }}"])
def test_assertions_that_are_data_of_a_test_are_told_once(
    tmp_path: Path, part: str, key: str, checks: object, prompt: str
) -> None:
    """Two spaces too many before `assert`, and the test is green without a check, beside others that have some."""
    test = {"vars": {"q": "x", "assert": "a", "vars": "b"}}
    misplaced = {**test, part: {**(test["vars"] if part == "vars" else {}), key: checks}}
    tests = [misplaced, misplaced, {**test, "assert": [USED]}]
    told = [
        line for line in warnings(tmp_path, prompts=[prompt], tests=tests) if key in line and "data" in line
    ]
    hint = f"write `{key}` beside `{part}`, not below it"
    assert told == [f"`{part}.{key}` of 2 tests is data, so its assertions check nothing; {hint}"]


@pytest.mark.parametrize("value", ["x", [1, 2], {"a": 1}, ["type"], None])
def test_a_variable_called_assert_is_not_told(tmp_path: Path, value: object) -> None:
    tests = [{"vars": {"q": "x", "assert": value}, "metadata": {"assert": value}, "assert": [USED]}]
    assert warnings(tmp_path, prompts=["{{ q }} {{ assert }}"], tests=tests) == []


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"role": "A clerk of {{ q }}"}, "role"),
        ({"scenario": "{{ q }} is late"}, "scenario"),
        ({"expected_outcome": "{{ q }} is sent"}, "expected_outcome"),
        ({"expected_output": "{{ q }}"}, "expected_output"),
        ({"context": ["a", "{{ q }}"]}, "context[1]"),
        ({"context": "{{ q }}"}, "context"),
        ({"retrieval_context": ["{{ q }}"]}, "retrieval_context[0]"),
        ({"turns": [{"user": "Where is {{ q }}?"}]}, "turns[0]"),
        (
            {
                "turns": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "{{ q | upper }}"},
                ]
            },
            "turns[1]",
        ),
    ],
)
def test_an_expression_in_any_text_of_a_test_is_told(
    tmp_path: Path, part: dict[str, object], where: str
) -> None:
    """A text of the test is shown to the model and the judge as it is written."""
    test = {"vars": {"q": "x"}, "assert": [USED], **part}
    prompt = "{{ q }} {{ input }}" if "turns" in part else "{{ q }}"
    told = [line for line in warnings(tmp_path, prompts=[prompt], tests=[test]) if "rendered" in line]
    written = "{{ q | upper }}" if where == "turns[1]" else "{{ q }}"
    hint = "test values are not templates: put it into the prompt, or write the value out"
    assert told == [f"`{written}` in `{where}` is not rendered; {hint}"]


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"guidelines": ["Short is good", "{{ q }} must be in it"]}, "guidelines[1]"),
        ({"rubric": {0: "no {{ q }}", 10: "good"}}, "rubric[0]"),
        ({"rubric": [[0, "bad"], [10, "{{q}}"]]}, "rubric[1]"),
        ({"rubric": {0: "no {{ other }}", 10: "good"}, "guidelines": ["Write {{ name }}"]}, ""),
    ],
)
def test_an_expression_in_guidelines_or_a_rubric_is_told(
    tmp_path: Path, part: dict[str, object], where: str
) -> None:
    """Only criteria, steps and checklists are templates; the judge would rate by the braces."""
    check = {"type": "g-eval", "criteria": "x", "provider": "openai:gpt-4.1", **part}
    told = [line for line in warnings(tmp_path, tests=written_tests(check=check)) if "rendered" in line]
    hint = "guidelines and rubrics are not templates: put it into the criteria, or write the value out"
    assert [line.partition(" in ")[2] for line in told] == (
        [f"`{where}` is not rendered; {hint}"] if where else []
    )


@pytest.mark.parametrize(
    "name", ["contains", "icontains", "equals", "not-contains", "g-eval", "not-is-json", "cost"]
)
def test_a_column_with_the_name_of_an_assertion_is_told(tmp_path: Path, name: str) -> None:
    """A column `contains` is a variable; its tests, beside others with assertions, would be green without a check."""
    (tmp_path / "t.csv").write_text(f"q,{name},assert.icontains\nx,a,\ny,,y\n", encoding="utf-8")
    told = f"the variable `{name}` of 2 tests is not used; to check by it, call it `assert.{name}`"
    assert warnings(tmp_path, prompts=["{{ q }}"], tests="file://t.csv") == ([] if name == "cost" else [told])


@pytest.mark.parametrize(
    ("value", "is_told"),
    [
        ([{"type": "contains", "value": "z"}], True),
        ({"type": "not-g-eval", "criteria": "z"}, True),
        ([{"type": "cost"}], False),
        ([{"type": "function", "name": "find"}], False),
        ([{"kind": "contains"}], False),
        ("contains", False),
    ],
)
def test_assertions_under_another_key_of_a_row_are_told(tmp_path: Path, value: object, is_told: bool) -> None:
    rows = [{"q": "x", "checks": value}, {"q": "y", "assert": [USED]}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    hint = "write them as `assert` beside `vars`, not below it"
    told = f"`vars.checks` is data, so its assertions check nothing; {hint}"
    assert warnings(tmp_path, prompts=["{{ q }}"], tests="file://t.jsonl") == ([told] if is_told else [])


def test_promptfoos_reader_tells_of_assertions_in_variables_alone(tmp_path: Path) -> None:
    test = {"vars": {"q": "x", "assert": [USED]}, "assert": [USED]}
    told = warnings(tmp_path, "promptfooconfig.yaml", prompts=["{{ q }}"], tests=[test])
    assert [line for line in told if "nothing" in line] == [
        "`assert` is inside `vars`, where it checks nothing; unindent it to the level of `vars`"
    ]


@pytest.mark.parametrize(
    ("value", "is_told"), [("file://a.txt", True), ("see file://a.txt", False), (5, False)]
)
def test_a_file_in_a_variable_of_the_command_line_is_told(
    tmp_path: Path, value: object, is_told: bool
) -> None:
    """In a config, file:// reads the file; here the models would get its name."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"prompts": ["Say {{ q }}"], "providers": ["echo"], "tests": written_tests()}),
        encoding="utf-8",
    )
    prepared = prepare(RunRequest(path, {}, variables={"q": value}), is_going_to_run=False)
    told = "the variable `q` is the text `file://a.txt`, not the content of the file"
    assert [problem.message for problem in prepared.warnings] == ([told] if is_told else [])


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("- vars:\n    q: #AI is great", "vars.q"),
        ("- vars:\n    'q':\n    r: 1", "vars.q"),
        ("- vars: {q: a}\n  assert:\n    - type: not-equals\n      value: #3", "value"),
        ("- vars: {q: null}", ""),
        ("- vars: {q: ~}", ""),
        ("- vars: {q: ''}", ""),
        ("- {vars: {q: a}, assert: [{type: not-equals, value: null}]}", ""),
        ("- {vars: {q: a}, assert: [{type: is-json}]}", ""),
    ],
)
def test_what_has_no_value_is_told(tmp_path: Path, written: str, key: str) -> None:
    """After `q:`, a text that begins with `#` is a comment; `not-equals` without a value passes whatever is said."""
    path = tmp_path / "config.yaml"
    path.write_text(
        f"prompts: 'Say {{{{ q }}}} {{{{ r }}}}'\nproviders: echo\ndefaultTest: {{vars: {{r: 1}}}}\n"
        f"tests:\n{written}\n- assert: [{{type: contains, value: a}}]\n  vars: {{q: b}}\n",
        encoding="utf-8",
    )
    told = prepare(RunRequest(path, {}), is_going_to_run=False).warnings
    assert [problem.message for problem in told] == ([f"`{key}` has no value"] if key else [])


@pytest.mark.parametrize(
    ("schema", "near"),
    [
        ({"tpye": "object"}, "type"),
        ({"type": "object", "requierd": ["a"]}, "required"),
        ({"type": "object"}, ""),
    ],
)
def test_a_misspelt_keyword_is_told_in_the_schema_of_a_prompt_too(
    tmp_path: Path, schema: dict[str, object], near: str
) -> None:
    prompt = {"id": "a", "raw": "Say {{ q }}", "expected_schema": schema}
    told = [line for line in warnings(tmp_path, prompts=[prompt]) if "checks nothing" in line]
    assert [line.partition("; ")[2] for line in told] == ([f"did you mean `{near}`?"] if near else [])


READ_AGAIN = "this file is read more than once, so each of its tests counts as several"


@pytest.mark.parametrize(
    ("tests", "count"),
    [
        (["file://a.csv", "file://*.csv"], 1),
        (["file://*.csv", "file://a.csv"], 1),
        (["file://a.csv", "file://./sub/../a.csv"], 1),
        (["file://a.csv", "file://sub"], 1),  # a link to it
        (["file://a.csv", {"path": "file://a.csv", "columns": {"assert.contains": None}}], 1),
        (["file://a.jsonl", "file://a.jsonl", "file://a.yaml", "file://a.yaml", "file://a.jsonl"], 2),
        (["file://a.csv", "file://a.jsonl", "file://a.yaml", "file://b.csv"], 0),
        (["file://twice.jsonl"], 0),  # equal rows of one file
        (["file://a.csv", {"path": "file://a.csv", "columns": {"q": "question", "other": "q"}}], 0),
        ([{"vars": {"q": "x"}, "assert": [USED]}, "file://a.csv", {"vars": {"q": "x"}, "assert": [USED]}], 0),
    ],
)
def test_a_file_of_tests_that_is_read_again_is_told_once(
    tmp_path: Path, tests: list[object], count: int
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.csv").write_text("q,other,assert.contains\nx,p,a\ny,r,a\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("q,assert.contains\nx,a\ny,a\n", encoding="utf-8")
    (tmp_path / "sub" / "c.csv").symlink_to(tmp_path / "a.csv")
    row = '{"q": "x", "assert.contains": "a"}\n'
    (tmp_path / "a.jsonl").write_text(row, encoding="utf-8")
    (tmp_path / "twice.jsonl").write_text(row * 2, encoding="utf-8")
    (tmp_path / "a.yaml").write_text(f"- {row}", encoding="utf-8")
    found = [line for line in warnings(tmp_path, tests=tests) if line.startswith(READ_AGAIN)]
    assert len(found) == count


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("x" * 32_767, True),
        ("x" * 32_766, False),
        ("x" * 40_000, False),
        ("\U0001f600" * 16_383 + "x", True),  # as Excel counts
        ("\U0001f600" * 32_767, True),  # as Python counts
        ("\U0001f600" * 20_000, False),
    ],
)
@pytest.mark.parametrize("column", ["q", "context", "expected_output"])
def test_a_text_that_a_sheet_has_cut_off_is_told(
    tmp_path: Path, column: str, text: str, is_told: bool
) -> None:
    rows = [{"q": "x", "assert.contains": "a", column: text}] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = [line for line in warnings(tmp_path, tests="file://a.jsonl") if "probably cut off" in line]
    start = f"`{column}` has as many characters as fit into a cell, so its end is probably cut off (2 tests); save"
    assert [line.startswith(start) for line in found] == [True] * is_told


@pytest.mark.parametrize(
    ("number", "kind", "is_told"),
    [
        ("4.11111E+15", "csv", True),  # what Excel writes for 4111111111111111
        ("4,11111E+15", "csv", True),
        ("1E+20", "tsv", True),
        ("1e+22", "csv", False),  # of a program
        ("4111111111111110", "csv", False),
        ("4111111111111110", "xlsx", True),
        ("-123456789012345000", "xlsx", True),
        ("100000000000000000000", "xlsx", False),
        ("411111111111111", "xlsx", False),
        ("4111111111111111", "xlsx", False),
        ("4.11111E+15", "jsonl", False),
    ],
)
def test_a_number_of_which_a_spreadsheet_kept_a_part_is_told(
    tmp_path: Path, number: str, kind: str, is_told: bool
) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in (["q", "assert.contains"], [number, "a"]):
            book.active.append(row)
        book.save(path)
    elif kind == "jsonl":
        path.write_text(json.dumps({"q": number, "assert.contains": "a"}), encoding="utf-8")
    else:
        mark = {"csv": ";", "tsv": "\t"}[kind]
        path.write_text(f"q{mark}assert.contains\n{number}{mark}a\n", encoding="utf-8")
    found = [line for line in warnings(tmp_path, tests=f"file://{path.name}") if "first digits" in line]
    assert len(found) == is_told


RECORDED = {"prompts": None, "providers": "none"}
SOURCES: list[dict[str, object]] = [
    {"input": "Why?"},
    {"context": "It rains."},
    {"retrieval_context": ["It rains."]},
    {"turns": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It rains."}]},
    *({"vars": {name: "It rains."}} for name in ("article", "query", "input", "knowledge")),
]


def rated(dimension: str, *tests: dict[str, object], **keys: object) -> list[object]:
    check = {"type": "g-eval", "dimension": dimension, **keys}
    return [
        {**({} if "turns" in test else {"output": "It rained."}), **test, "assert": [check]} for test in tests
    ]


@pytest.mark.parametrize("dimension", ["consistency", "relevance", "groundedness"])
def test_a_dimension_without_its_source_gets_a_warning(tmp_path: Path, dimension: str) -> None:
    [told] = warnings(
        tmp_path, **RECORDED, tests=rated(dimension, {}, {"input": "Why?"}, {"description": "x"})
    )
    assert told.startswith(f"`{dimension}` compares outputs with a source, which 2 tests lack")
    assert warnings(tmp_path, **RECORDED, tests=rated(dimension, *SOURCES)) == []
    assert warnings(tmp_path, **RECORDED, tests=rated(dimension, {}, source="It rains.")) == []
    assert warnings(tmp_path, providers="none", prompts=["Why?"], tests=rated(dimension, {})) == []


@pytest.mark.parametrize("dimension", ["fluency", "coherence", "naturalness", "engagingness"])
def test_a_dimension_that_can_do_without_a_source_gets_none(tmp_path: Path, dimension: str) -> None:
    assert warnings(tmp_path, **RECORDED, tests=rated(dimension, {})) == []


def test_each_of_several_dimensions_is_looked_at(tmp_path: Path) -> None:
    check = {"type": "g-eval", "dimensions": ["fluency", "relevance"]}
    [told] = warnings(tmp_path, **RECORDED, tests=[{"output": "It rained.", "assert": [check]}])
    assert told.startswith("`relevance` compares outputs with a source, which 1 test lacks")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"note": {"a": {"b": ["file://there.txt"]}}}, "there.txt"),
        ({"note": {"a": "file://there.txt"}}, "there.txt"),
        ({"note": "see file://there.txt, and answer"}, "there.txt"),
        ({"note": ["see file://photo.png", "see file://photo.png"]}, "photo.png"),
        ({"note": "file://there.txt"}, None),
        ({"note": ["file://there.txt"]}, None),
        ({"note": ["see file://other.txt", "a file://", "a file://" + "x" * 5000, "a file://a\0b"]}, None),
    ],
)
def test_a_file_that_is_named_where_none_is_read_is_told(
    variables: dict[str, object], named: str | None, tmp_path: Path
) -> None:
    for name in ("there.txt", "photo.png"):
        (tmp_path / name).write_text("text", encoding="utf-8")
    tests = [{"vars": {"q": "x", **variables}, "assert": [USED]}] * 2
    said = [
        line for line in warnings(tmp_path, prompts=["{{ q }} {{ note }}"], tests=tests) if "itself" in line
    ]
    assert said == [] if named is None else len(said) == 1
    assert all(f"`file://{named}` itself is used, not the content of the file" in line for line in said)


def judged(criteria: object = "is good", **keys: object) -> list[object]:
    written = {} if criteria is None else {"criteria": criteria}
    return [{"type": "g-eval", "provider": "openai:j", **written, **keys}]


MENTIONED = "mention what is expected, but the judge isn't shown it"


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        (
            judged("The answer to {q} is right."),
            "`{q}` is no template: the judge sees it as it is; write {{ q }}",
        ),
        (judged(evaluation_steps=["Compare it with ${q}"]), "`${q}` is no template"),
        (judged(None, checklist=["It answers {q}"]), "`{q}` is no template"),
        (
            [{"type": "llm-rubric", "value": "answers {q} well", "provider": "openai:j"}],
            "`{q}` is no template",
        ),
        (judged("The answer to {{ q }} is right, as {name}."), None),
        (
            judged("It matches the expected output."),
            f"the criteria {MENTIONED}; give the test `expected_output`",
        ),
        (judged("It agrees with the ground truth"), MENTIONED),
        (
            judged("x", evaluation_steps=["Compare with the Expected_Output"]),
            f"the evaluation steps {MENTIONED}",
        ),
        (judged(None, checklist=["It says what the reference answer says"]), "the checklist mentions what"),
        (judged("The expected output is 42."), None),
        (judged("It keeps to the expected output format."), None),
        (judged("It matches the expected output: {{ q }}"), None),
        (judged("It matches the expected output", rubricPrompt="Rate {{ output }} by {{ q }}"), None),
        (
            judged("Rate from 1 to 5 how polite it is"),
            "a scale of 1 to 5, but the judge rates from 0 to 10; set",
        ),
        (judged("Politeness, on a 1-5 scale"), "the criteria name a scale of 1 to 5"),
        (judged("Give a score between 0 and 100"), "set `score_range: [0, 100]`"),
        (
            judged("x", evaluation_steps=["Assign a rating of 0 to 1"]),
            "the evaluation steps name a scale of 0 to 1",
        ),
        (judged("Rate from 1 to 5", score_range=[1, 5]), None),
        (judged("Rate from 1 to 10"), None),
        (judged("Rate from 0 to 1", strict_mode=True), None),
        (judged("It has 1 to 3 sentences. A low score is for 1 to 2 words."), None),
    ],
)
def test_what_a_judge_would_misunderstand_is_told_once(
    checks: list[object], told: str | None, tmp_path: Path
) -> None:
    tests = [{"vars": {"q": "x"}, "assert": checks}] * 2
    said = [
        line
        for line in warnings(tmp_path, tests=tests)
        if any(words in line for words in ("no template", "what is expected", "a scale of"))
    ]
    assert len(said) == (told is not None)
    assert all(told is not None and told in line.replace(" (2 tests)", "") for line in said)
    assert all("(2 tests)" in line for line in said)


@pytest.mark.parametrize(
    ("test", "hint"),
    [
        ({"expected_output": "a"}, None),
        ({"turns": [{"user": "{{ q }}"}], "expected_outcome": "a"}, None),
        ({"vars": {"q": "x", "expected_output": "a"}}, "move expected_output from `vars` to the test itself"),
    ],
)
def test_a_judge_is_shown_what_is_expected_or_it_is_told_how(
    test: dict[str, object], hint: str | None, tmp_path: Path
) -> None:
    turns = test.get("turns")
    whole = {"vars": {"q": "x"}, **test, "assert": judged("It matches the expected output")}
    prompts = None if turns else ["Say {{ q }}"]
    said = [line for line in warnings(tmp_path, prompts=prompts, tests=[whole]) if MENTIONED in line]
    assert said == ([] if hint is None else [f"the criteria {MENTIONED}; {hint}"])


def test_what_is_expected_has_to_be_among_the_parameters(tmp_path: Path) -> None:
    checks = judged("It matches the expected output", evaluation_params=["actual_output"])
    tests = [{"vars": {"q": "x"}, "expected_output": "a", "assert": checks}]
    assert f"the criteria {MENTIONED}; add `expected_output` to evaluation_params" in warnings(
        tmp_path, tests=tests
    )


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (
            "\bParis\b",
            "`\\b` within double quotes is a backspace, not the edge of a word; write the pattern in",
        ),
        (r"\bParis\b", None),
        (r"\\bParis\\b", r"`\\b` looks for a backslash and the letter b; write `\b`: only"),
        (r"costs \\d+ euros", r"`\\d` looks for a backslash and the letter d; write `\d`"),
        (r"(\\w)", "the letter w"),
        (r"C:\\data\\bin\\docs", None),
        (r"\\begin\{a\}", None),
    ],
)
@pytest.mark.parametrize("kind", ["regex", "not-regex"])
def test_escapes_that_look_for_something_else_are_told(
    kind: str, pattern: str, told: str | None, tmp_path: Path
) -> None:
    tests = [{"vars": {"q": "x"}, "assert": [{"type": kind, "value": pattern}]}]
    said = [line for line in warnings(tmp_path, tests=tests) if "double quotes" in line]
    assert len(said) == (told is not None)
    assert all(told is not None and told in line for line in said)
