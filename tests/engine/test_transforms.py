"""Transforms: in their order, on outputs and on variables, in both dialects."""

import json
from pathlib import Path

import pytest
from support.code_runs import rows_of
from support.geval_command import run_geval
from support.loopback import LoopbackServer, Reply, chat_reply
from support.promptfoo import load

from geval_cli.errors import ConfigError, Severity
from geval_cli.extras.programs.assertions import written_assertion
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest


def test_the_providers_transform_comes_before_the_tests_and_assertions_see_the_last(tmp_path: Path) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{word}}"],
        "providers": [{"id": "echo", "transform": "output + '1'"}],
        "defaultTest": {"options": {"transform": "output + 'd'"}},
        "tests": [
            {
                "vars": {"word": "a"},
                "options": {"transform": "output + context.vars.word"},
                "assert": [
                    {"type": "equals", "value": "a1a"},
                    {"type": "equals", "value": "a1a!", "transform": "output + '!'"},
                    {"type": "javascript", "value": "output === 'a1a'"},
                ],
            },
            {"vars": {"word": "b"}, "assert": [{"type": "equals", "value": "b1d"}]},
            {
                "vars": {"word": "c"},
                "providerOutput": "kept",
                "assert": [{"type": "equals", "value": "kept1d"}],
            },
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [row["status"] for row in rows] == ["passed"] * len(rows)
    assert [row["output"] for row in rows] == ["a1a", "b1d", "kept1d"]


def test_transforms_see_the_prompt_as_it_is_written(tmp_path: Path) -> None:
    code = "JSON.stringify([context.prompt.label, context.prompt.raw, context.prompt.template])"
    content = {
        "dialect": "promptfoo",
        "prompts": [{"label": "named", "raw": "{{word}}?"}],
        "providers": ["echo"],
        "tests": [{"vars": {"word": "a"}, "options": {"prefix": "<", "suffix": ">", "transform": code}}],
    }
    (row,) = rows_of(tmp_path, content)
    assert json.loads(row["output"]) == ["named", "<{{word}}?>", "{{word}}?"]


def _called(model: str) -> Reply:
    if model == "claude":
        block = {"type": "tool_use", "id": "t", "name": "f", "input": {"city": "Paris"}}
        return Reply(body={"content": [block], "stop_reason": "tool_use", "usage": {}, "role": "assistant"})
    if model == "responses":
        item = {
            "type": "function_call",
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
            "status": "completed",
        }
        return Reply(body={"object": "response", "status": "completed", "output": [item]})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = chat_reply(None, finish_reason="tool_calls")
    reply.body["choices"][0]["message"]["tool_calls"] = [call]
    return reply


@pytest.mark.parametrize(
    ("provider", "seen"),
    [
        ("openai:chat", 'object [{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]'),
        ("anthropic:claude", 'string {"type":"tool_use","id":"t","name":"f","input":{"city":"Paris"}}'),
        (
            "openai:responses:responses",
            'string {"type":"function_call","call_id":"c","name":"f","arguments":"{}","status":"completed"}',
        ),
    ],
)
def test_calls_of_tools_are_data_or_text_as_in_promptfoo(tmp_path: Path, provider: str, seen: str) -> None:
    code = "typeof output + ' ' + (typeof output === 'string' ? output : JSON.stringify(output))"
    content = {
        "dialect": "promptfoo",
        "prompts": ["Hi"],
        "tests": [
            {
                "assert": [
                    {"type": "contains", "value": '"name":"f"'},
                    {"type": "tool-call-f1", "value": ["f"]},
                ]
            },
            {"options": {"transform": code}, "assert": [{"type": "equals", "value": seen}]},
        ],
    }
    with LoopbackServer(respond=lambda body, _: _called(body["model"])) as server:
        base = server.url if provider.startswith("anthropic") else server.base_url
        config = {"base_url": base, "apiKey": "k", "tools": [{"type": "function", "name": "f"}]}
        rows = rows_of(tmp_path, {**content, "providers": [{"id": provider, "config": config}]})
    assert [row["status"] for row in rows] == ["passed", "passed"], rows


def test_outputs_may_become_data(tmp_path: Path) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{text}}"],
        "providers": ["echo"],
        "tests": [
            {
                "vars": {"text": '{"n": [1, 2]}'},
                "options": {"transform": "JSON.parse(output)"},
                "assert": [
                    {"type": "javascript", "value": "output.n[1] === 2"},
                    {"type": "python", "value": "output['n'] == [1, 2]"},
                ],
            }
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [row["status"] for row in rows] == ["passed"] * len(rows)
    assert rows[0]["output"] == {"n": [1, 2]}


def test_variables_are_transformed_before_the_prompt_is_rendered(tmp_path: Path) -> None:
    (tmp_path / "vars.py").write_text(
        "def get_transform(vars, context):\n    return {'word': vars['word'] * 2}\n", encoding="utf-8"
    )
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{word}}-{{more}}"],
        "providers": ["echo"],
        "tests": [
            {
                "vars": {"word": "a"},
                "options": {"transformVars": "return { ...vars, more: vars.word.toUpperCase() }"},
                "assert": [{"type": "equals", "value": "{{word}}-A"}],
            },
            {"vars": {"word": "b"}, "options": {"transformVars": "file://vars.py"}},
            {"vars": {"word": "c"}, "options": {"transformVars": "'no mapping'"}},
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [row["prompt"]["rendered"] for row in rows[:2]] == ["a-A", "bb-"]
    assert rows[0]["vars"] == {"word": "a", "more": "A"}
    assert rows[0]["status"] == "passed"
    assert "a mapping of variables" in rows[2]["error"]["message"]


def test_a_transform_that_fails_is_an_error_and_the_answer_is_kept(tmp_path: Path) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{word}}"],
        "providers": ["echo"],
        "tests": [
            {
                "vars": {"word": "a"},
                "options": {"transform": code},
                "assert": [{"type": "equals", "value": "a"}],
            }
            for code in ("output.a.b", "undefined", "while (false) {}")
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [(row["status"], row["output"], row["score"]) for row in rows] == [("error", "a", None)] * 3
    assert "cannot read property" in rows[0]["error"]["message"]
    assert "returned nothing" in rows[1]["error"]["message"]


def test_a_scoring_function_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "score.js").write_text(
        "module.exports = (named, { threshold }) => ({ pass: named.a > 0.2, score: named.a + threshold })",
        encoding="utf-8",
    )
    (tmp_path / "broken.py").write_text("def get_score(named, context):\n    return None\n", encoding="utf-8")
    assertions = [
        {"type": "javascript", "value": "0.25", "metric": "a"},
        {"type": "equals", "value": "other"},
    ]
    content = {
        "dialect": "promptfoo",
        "prompts": ["x"],
        "providers": ["echo"],
        "tests": [
            {"threshold": 0.5, "assertScoringFunction": "file://score.js", "assert": assertions},
            {"threshold": 0.5, "assertScoringFunction": "file://broken.py", "assert": assertions},
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [(row["status"], row["score"]) for row in rows] == [("passed", 0.75), ("error", None)]
    assert len(rows[1]["assertions"]) == 2


def test_a_scoring_function_sees_every_assertion_as_written_and_the_members_of_sets(tmp_path: Path) -> None:
    (tmp_path / "score.js").write_text(
        "module.exports = (named, context) => ({ pass: true, score: 1, reason: '',"
        " ...(() => { throw new Error(JSON.stringify([named, context])) })() })",
        encoding="utf-8",
    )
    told = "namedScores: {q: 0.25}, componentResults: [{pass: true, score: 1, reason: 'in'}]"
    code = f"({{pass: true, score: 0.5, reason: 'r', {told}}})"
    inner = [{"type": "equals", "value": "X", "metric": "i"}, {"type": "contains", "value": "no"}]
    whole = {"type": "assert-set", "threshold": 0.5, "metric": "s", "weight": 2, "assert": inner}
    first = {"type": "contains", "value": "{{x}}", "metric": "m"}
    script = {"type": "javascript", "value": code}
    last = {"type": "not-contains", "value": "zzz", "weight": 0}
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{x}}"],
        "providers": ["echo"],
        "tests": [
            {
                "vars": {"x": "X"},
                "assert": [first, whole, script, last],
                "assertScoringFunction": "file://score.js",
            }
        ],
    }
    (row,) = rows_of(tmp_path, content)
    text = row["error"]["message"]
    named, context = json.JSONDecoder().raw_decode(text[text.index("[{") :])[0]
    assert named == {"m": 1, "s": 0.5, "i": 1, "q": 0.25}
    parts = context["componentResults"]
    assert [part.get("assertion") for part in parts] == [
        first, None, inner[0], inner[1], script, script, last,
    ]  # fmt: skip
    assert [(part["pass"], part["score"]) for part in parts] == [
        (True, 1), (True, 0.5), (True, 1), (False, 0), (True, 0.5), (True, 1), (True, 1),
    ]  # fmt: skip
    assert parts[0]["metadata"] == {"renderedAssertionValue": "X"}
    assert parts[1]["componentResults"] == parts[2:4]
    assert parts[1]["metadata"]["assertionSet"] == {
        "type": "assert-set", "assertionCount": 2, "metric": "s", "threshold": 0.5, "weight": 2,
    }  # fmt: skip
    assert "threshold" not in context


@pytest.mark.parametrize(
    ("score", "is_one"),
    [("0.5", True), ("-3", True), ("10**300", True), ("10**400", False), ("-10**400", False)]
    + [(text, False) for text in ("float('nan')", "float('inf')", "True", "'1'", "None")],
)
def test_a_scoring_function_gives_a_finite_score_or_no_verdict(
    tmp_path: Path, score: str, is_one: bool
) -> None:
    code = f"def get_score(named, context):\n    return {{'pass': True, 'score': {score}, 'reason': 'r'}}\n"
    (tmp_path / "score.py").write_text(code, encoding="utf-8")
    test = {"assert": [{"type": "contains", "value": "x"}], "assertScoringFunction": "file://score.py"}
    content = {"dialect": "promptfoo", "prompts": ["x"], "providers": ["echo"], "tests": [test]}
    (row,) = rows_of(tmp_path, content)
    assert row["status"] == ("passed" if is_one else "error")
    assert (row["output"], len(row["assertions"])) == ("x", 1)
    assert is_one or "returned no verdict" in row["error"]["message"]


def test_an_output_that_a_test_brings_is_checked_against_the_tools_of_the_columns_provider(
    tmp_path: Path,
) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "required": ["a"]}}
    good, bad = (
        [{"type": "function", "function": {"name": "f", "arguments": text}}] for text in ('{"a": 1}', "{}")
    )
    check = {"type": "is-valid-openai-tools-call"}
    content = {
        "dialect": "promptfoo",
        "prompts": ["x"],
        "providers": [
            {"id": "echo", "label": "one", "config": {"tools": [{"type": "function", "function": tool}]}}
        ],
        "tests": [
            {
                "providerOutput": good,
                "assert": [check, {"type": "javascript", "value": "context.provider.label === 'one'"}],
            },
            {"providerOutput": bad, "assert": [check]},
            {
                "providerOutput": {"name": "f", "arguments": '{"a": 1}'},
                "assert": [{"type": "is-valid-function-call"}],
            },
        ],
    }
    assert [row["status"] for row in rows_of(tmp_path, content)] == ["passed", "failed", "passed"]


def test_code_sees_the_assertions_of_its_test_as_they_are_written_without_keys(tmp_path: Path) -> None:
    judge = {"id": "openai:x", "config": {"api_key": "sk-secret-1234"}}
    graded = {"type": "llm-rubric", "value": "fine", "weight": 0, "provider": judge}
    seen = {"type": "javascript", "value": "false || (() => { throw JSON.stringify(context.test.assert) })()"}
    content = {
        "dialect": "promptfoo",
        "prompts": ["x"],
        "providers": ["echo"],
        "tests": [{"assert": [seen, {"type": "contains", "value": "x"}]}],
    }
    (row,) = rows_of(tmp_path, content)
    assert '{\\"type\\":\\"contains\\",\\"value\\":\\"x\\"}' in json.dumps(row["assertions"][0]["reason"])
    assert "sk-secret" not in json.dumps(
        written_assertion(
            next(iter(load(tmp_path, {**content, "tests": [{"assert": [graded]}]}).tests)).assertions[0]
        )
    )


def test_what_models_said_never_becomes_code(tmp_path: Path) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{word}}"],
        "providers": ["echo"],
        "tests": [
            {"vars": {"word": "' + 'x"}, "options": {"storeOutputAs": "said"}},
            {
                "vars": {"word": "b"},
                "assert": [
                    {"type": "python", "value": "'{{said}}' == ''"},
                    {"type": "javascript", "value": "'{{said}}' === '' && context.vars.said === `' + 'x`"},
                ],
            },
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [row["status"] for row in rows] == ["not_evaluated", "passed"], rows


def test_a_plan_runs_no_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "t.py").write_text(
        "import pathlib\ndef get_transform(value, context):\n"
        f"    pathlib.Path({str(mark)!r}).touch()\n    return value\n",
        encoding="utf-8",
    )
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{word}}"],
        "providers": [{"id": "echo", "transform": "file://t.py"}],
        "tests": [
            {
                "vars": {"word": "a"},
                "options": {"transformVars": "file://t.py", "transform": "file://t.py"},
                "assert": [{"type": "python", "value": "file://t.py:get_transform"}],
            }
        ],
    }
    (tmp_path / "promptfooconfig.json").write_text(json.dumps(content), encoding="utf-8")
    done = run_geval("run", "promptfooconfig.json", "--plan", cwd=tmp_path)
    assert done.code == 0
    assert not mark.exists()
    rows_of(tmp_path, {**content, "dialect": "promptfoo"})
    assert mark.exists()


def test_broken_transforms_are_refused_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "promptfooconfig.yaml").write_text(
        "prompts: [hi]\nproviders:\n  - id: echo\n    transform: 'output.'\n"
        "defaultTest:\n  options:\n    transform: file://absent.js\n"
        "tests:\n  - vars: {a: b}\n    options:\n      transformVars: '({'\n",
        encoding="utf-8",
    )
    done = run_geval("run", "promptfooconfig.yaml", cwd=tmp_path)
    assert done.code == 2
    for line in (4, 11):
        assert f"promptfooconfig.yaml:{line}:" in done.stderr
    assert "`absent.js` cannot be read" in done.stderr


def test_geval_s_own_configs_have_the_same_transforms(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(
        "def get_transform(output, context):\n    return output + context['vars']['more']\n", encoding="utf-8"
    )
    content = {
        "prompts": ["{{ word }}-{{ more }}"],
        "providers": ["echo"],
        "defaultTest": {
            "options": {
                "transform": "output + '!'",
                "transform_vars": "({ ...vars, more: vars.word + '{{ word }}' })",
            }
        },
        "tests": [
            {
                "vars": {"word": "a"},
                "assert": [
                    {"type": "equals", "value": "a-a{{ '{{' }} word }}!"},
                    {"type": "contains", "value": "{{ more }}"},
                    {"type": "equals", "value": "A-A", "transform": "output.slice(0, 3).toUpperCase()"},
                ],
            },
            {
                "vars": {"word": "b"},
                "options": {"transformVars": "({ more: 'x' })", "transform": "file://t.py"},
                "assert": [{"type": "equals", "value": "b-xx"}],
            },
        ],
    }
    rows = rows_of(tmp_path, content)
    assert [row["output"] for row in rows] == ["a-a{{ word }}!", "b-xx"]
    assert [row["status"] for row in rows] == ["passed", "passed"]


def test_a_variable_that_neither_the_test_nor_its_code_gives_is_an_error_of_the_case(tmp_path: Path) -> None:
    content = {
        "prompts": ["{{ word }}-{{ mroe }}"],
        "providers": ["echo"],
        "tests": [{"vars": {"word": "a"}, "options": {"transformVars": "({ more: 'x' })"}}],
    }
    rows = rows_of(tmp_path, content)
    assert rows[0]["status"] == "error"
    assert "undefined variable `mroe`" in rows[0]["error"]["message"]


def test_transforms_of_geval_s_own_configs_are_checked_and_refused_to_strangers(tmp_path: Path) -> None:
    (tmp_path / "gevalconfig.yaml").write_text(
        "prompts: [a]\nproviders: [echo]\ntests:\n  - options:\n      transform: '(('\n", encoding="utf-8"
    )
    broken = run_geval("validate", "gevalconfig.yaml", cwd=tmp_path)
    assert broken.code == 2
    assert "gevalconfig.yaml:5:18" in broken.stderr
    stranger = run_geval("validate", "--untrusted", "gevalconfig.yaml", cwd=tmp_path)
    assert "`transform` runs code, which --untrusted does not allow" in stranger.stderr


def test_an_answer_asked_for_by_a_schema_is_data_by_promptfoos_rules(tmp_path: Path) -> None:
    schema = {"name": "s", "schema": {"type": "object"}}
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{word}}"],
        "tests": [
            {"vars": {"word": "a"}, "assert": [{"type": "javascript", "value": "output.n === 1"}]},
            {
                "vars": {"word": "a"},
                "options": {"transform": "output.n"},
                "assert": [{"type": "equals", "value": 1}],
            },
            {"vars": {"word": "b"}, "assert": [{"type": "javascript", "value": "output === 'no JSON'"}]},
        ],
    }
    answers = {"a": '{"n": 1}', "b": "no JSON"}
    with LoopbackServer(
        respond=lambda body, _: chat_reply(answers[body["messages"][0]["content"]])
    ) as server:
        config = {
            "base_url": server.base_url,
            "apiKey": "k",
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        rows = rows_of(tmp_path, {**content, "providers": [{"id": "openai:m", "config": config}]})
    assert [row["status"] for row in rows] == ["passed"] * 3
    assert [row["output"] for row in rows] == [{"n": 1}, 1, "no JSON"]


@pytest.mark.parametrize(("dialect", "status"), [("promptfoo", "failed"), ("geval", "passed")])
def test_the_echo_of_promptfoos_dialect_says_nothing_of_its_end(
    tmp_path: Path, dialect: str, status: str
) -> None:
    check = {"type": "finish-reason", "value": "stop"}
    content = {"dialect": dialect, "prompts": ["Hi"], "providers": ["echo"], "tests": [{"assert": [check]}]}
    (row,) = rows_of(tmp_path, content)
    assert row["status"] == status


@pytest.mark.parametrize("transform", ["output.nope", "null", "undefined", "file://t.js", "file://t.py"])
@pytest.mark.parametrize("holder", ["alone", "weightless", "negated", "in a set", "under a threshold"])
def test_an_assertions_transform_that_gives_nothing_is_an_error(
    tmp_path: Path, transform: str, holder: str
) -> None:
    (tmp_path / "t.js").write_text("module.exports = (output) => { output.length; };")
    (tmp_path / "t.py").write_text("def get_transform(output, context):\n    return None\n")
    check: dict[str, object] = {"type": "contains", "value": "H", "transform": transform}
    if holder == "weightless":
        check["weight"] = 0
    elif holder == "negated":
        check["type"] = "not-contains"
    elif holder == "in a set":
        check = {"type": "assert-set", "threshold": 0, "assert": [check]}
    test = {"assert": [check, {"type": "contains", "value": "H"}]}
    if holder == "under a threshold":
        test["threshold"] = 0  # type: ignore[assignment]
    content = {"dialect": "promptfoo", "prompts": ["Hi"], "providers": ["echo"], "tests": [test]}
    (row,) = rows_of(tmp_path, content)
    assert row["status"] == "error"


FROM_LATER = [
    {"type": "contains-all", "value": "{{made}}"},
    {"type": "icontains-any", "value": ["{{made}}"]},
    {"type": "contains", "value": "{{made}}"},
    {"type": "word-count", "value": "{{number}}"},
    {"type": "g-eval", "value": "{{made}}", "provider": "scripted:judge.yaml"},
    {"type": "trajectory:goal-success", "value": "{{made}}", "provider": "scripted:judge.yaml"},
    {"type": "webhook", "value": "{{url}}"},
    {"type": "assert-set", "assert": [{"type": "contains-all", "value": "{{made}}"}]},
]


@pytest.mark.parametrize("assertion", FROM_LATER, ids=lambda item: item["type"])
@pytest.mark.parametrize(
    ("dialect", "source"),
    [
        ("geval", "transformVars"),
        ("geval", "nothing"),
        ("promptfoo", "transformVars"),
        ("promptfoo", "a program"),
        ("promptfoo", "an earlier answer"),
        ("promptfoo", "nothing"),
    ],
)
def test_what_only_the_run_makes_is_not_missed_before_it(
    tmp_path: Path, dialect: str, assertion: dict[str, object], source: str
) -> None:
    """The same assertion is refused where nothing gives its variables."""
    (tmp_path / "judge.yaml").write_text("- {default: '{}'}", encoding="utf-8")
    (tmp_path / "made.py").write_text("def get_var(name, prompt, vars):\n    return {}\n", encoding="utf-8")
    first: dict[str, object] = {"vars": {"word": "a"}}
    test: dict[str, object] = {"vars": {"word": "b"}, "assert": [assertion]}
    if source == "transformVars":
        code = "({...vars, made: 'it is b', number: '3', url: 'http://127.0.0.1:9/x'})"
        test["options"] = {"transformVars": code}
    elif source == "a program":
        test["vars"] = {"word": "b", **dict.fromkeys(("made", "number", "url"), "file://made.py")}
    elif source == "an earlier answer":
        first["options"] = {"storeOutputAs": "made"}
    content = {"dialect": dialect, "prompts": ["{{word}}"], "providers": ["echo"], "tests": [first, test]}
    (tmp_path / "c.json").write_text(json.dumps(content), encoding="utf-8")
    try:
        prepare(RunRequest(tmp_path / "c.json", {}))
        problems = []
    except ConfigError as error:
        problems = [item.message for item in error.problems if item.severity is Severity.ERROR]
    # In promptfoo's templates an unknown variable is an empty text, which these find, with a warning.
    is_vacuous = dialect == "promptfoo" and assertion["type"] in {"contains", "icontains-any"}
    assert bool(problems) is (source == "nothing" and not is_vacuous), problems


@pytest.mark.parametrize(
    ("keys", "output"),
    [
        ({"tests": [{"options": {"transform": "output + '{{word}}'"}}]}, "a{{word}}"),
        ({"tests": [{"options": {"transform": "'{{word}}'"}, "vars": {"word": "' + 1 + '"}}]}, "{{word}}"),
        ({"tests": [{"options": {"transformVars": "({ word: '{{more}}'.length })"}}]}, "8"),
        ({"providers": [{"id": "echo", "transform": "'{{word}}'.length"}]}, 8),
        ({"tests": [{"assert": [{"type": "equals", "value": 8, "transform": "'{{word}}'.length"}]}]}, "a"),
    ],
)
def test_transforms_are_run_as_written_with_promptfoos_rules(
    tmp_path: Path, keys: dict[str, list[dict[str, object]]], output: str
) -> None:
    [test] = keys.get("tests", [{}])
    content = {"dialect": "promptfoo", "prompts": ["{{word}}"], "providers": ["echo"], **keys}
    content["tests"] = [{"vars": {"word": "a", "more": "m"}, **test}]
    [row] = rows_of(tmp_path, content)
    assert (row["output"], row["status"] in {"passed", "not_evaluated"}) == (output, True), row


@pytest.mark.parametrize(
    ("returned", "options", "rendered"),
    [
        ("['a', 'b']", {}, None),
        ("['a', 'b']", {"disableVarExpansion": True}, "a,b"),
        ("[1, 2]", {}, "1,2"),
        ("[]", {}, ""),
    ],
)
def test_lists_that_transform_vars_returns_make_no_tests(
    tmp_path: Path, returned: str, options: dict[str, object], rendered: str | None
) -> None:
    content = {
        "dialect": "promptfoo",
        "prompts": ["{{x}}"],
        "providers": ["echo"],
        "tests": [{"vars": {"x": "q"}, "options": {**options, "transformVars": f"({{ x: {returned} }})"}}],
    }
    [row] = rows_of(tmp_path, content)
    if rendered is None:
        assert "returned a list of texts for `x`" in row["error"]["message"]
    else:
        assert (row["error"], row["prompt"]["rendered"]) == (None, rendered)
