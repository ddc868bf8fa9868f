"""javascript and python assertions, in both dialects, in whole runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.code_runs import rows_of
from support.geval_command import run_geval


def judged(folder: Path, *assertions: Mapping[str, Any], dialect: str = "geval") -> list[dict[str, Any]]:
    """The results of assertions on the output `hello`."""
    found: list[dict[str, Any]] = ran(folder, *assertions, dialect=dialect)["assertions"]
    return found


def ran(folder: Path, *assertions: Mapping[str, Any], dialect: str = "geval") -> dict[str, Any]:
    content = {
        "dialect": dialect,
        "prompts": ["{{word}}"],
        "providers": ["echo"],
        "tests": [{"vars": {"word": "hello"}, "assert": list(assertions)}],
    }
    return rows_of(folder, content)[0]


def js(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "javascript", "value": value, **more}


def py(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "python", "value": value, **more}


def test_values_become_verdicts(tmp_path: Path) -> None:
    table = [
        (js("output === 'hello'"), "passed", 1),
        (js("false"), "failed", 0),
        (js("0.4"), "passed", 0.4),
        (js("0"), "failed", 0),
        (js("0.4", threshold=0.5), "failed", 0.4),
        (js("0", threshold=0), "passed", 0),
        (js("({pass: false, score: 0.9, reason: 'mine'})"), "failed", 0.9),
        (js("({pass: true, score: 0.3})", threshold=0.5), "failed", 0.3),
        (js("({score: 0.3})"), "passed", 0.3),
        (js("({pass: true})"), "passed", 1),
        ({**js("output === 'hello'"), "type": "not-javascript"}, "failed", 0),
        (py("output == 'hello'"), "passed", 1),
        (py("{'pass_': True, 'score': 0.5, 'named_scores': {'a': 0.25}}"), "passed", 0.5),
        (py("'True'"), "passed", 1),
        (py("'0.5'"), "passed", 0.5),
        (py("return '{\"pass\": false}'"), "failed", 0),
        (py("assert 'x' in output, 'no x'"), "failed", 0),
        (py("import asyncio\nawait asyncio.sleep(0)\nreturn True"), "passed", 1),
        (js("context.config.min <= output.length", config={"min": 3}), "passed", 1),
        (py("context['vars']['word'] == output and context['prompt'] == output"), "passed", 1),
        (js("context.test.vars.word === output && context.provider.id === 'echo'"), "passed", 1),
    ]
    found = judged(tmp_path, *(item for item, _, _ in table))
    assert [(item["status"], item["score"]) for item in found] == [
        (status, score) for _, status, score in table
    ]
    assert found[6]["reason"] == "mine"
    assert "no x" in found[16]["reason"]


def test_the_reason_is_what_decided(tmp_path: Path) -> None:
    table = [
        (py("{'pass': False, 'score': 1}"), "the code returned fail, with a score of 1.00"),
        (js("({pass: false, score: 0.9})", threshold=0.5), "the code returned fail, with a score of 0.90"),
        (js("({pass: true, score: 0})"), "the code returned pass, with a score of 0.00"),
        (js("({pass: true, score: 0.3})", threshold=0.5), "the code's score is 0.30; the threshold is 0.50"),
        (js("({pass: false, score: 0.3})", threshold=0.5), "the code's score is 0.30; the threshold is 0.50"),
        (js("({pass: true, score: 0.3})"), "the code's score is 0.30"),
        (js("({pass: false})"), "the code returned fail"),
    ]
    found = judged(tmp_path, *(item for item, _ in table))
    assert [item["reason"] for item in found] == [reason for _, reason in table]


def test_named_scores_of_the_code_are_metrics(tmp_path: Path) -> None:
    row = ran(tmp_path, js("({pass: true, score: 1, namedScores: {length: 0.5, tone: 0.25}})"))
    assert row["named_scores"] == {"length": 0.5, "tone": 0.25}
    assert row["score"] == 1
    row = ran(tmp_path, py("{'pass': True, 'named_scores': {'kind': True, 'short': False, 'no': None}}"))
    assert row["named_scores"] == {"kind": 1.0, "short": 0.0}


def test_code_without_a_verdict_is_an_error(tmp_path: Path) -> None:
    table = [
        (js("output.a.b"), "cannot read property 'b' of undefined"),
        (py("1 / 0"), "ZeroDivisionError"),
        (js("undefined"), "returned nothing"),
        (js("'perhaps'"), "returned a text"),
        (js("[1]"), "returned a list"),
        (js("output.length"), "not between 0 and 1"),
        (js("0 / 0"), "returned NaN"),
        (py("float('inf')"), "returned an infinite number"),
        (js("process.env.HOME"), "process is not available"),
        (js("({pass: 'yes'})"), "wrong type"),
        (js("({pass: true, score: 0 / 0})"), "returned NaN"),
        (js("({score: 1 / 0})"), "returned an infinite number"),
        (js("({passed: false, score: 1})"), "the key is `pass`"),
        (py("{'Pass': False, 'score': 1}"), "the key is `pass`"),
        (py("{'success': False, 'score': 1}"), "the key is `pass`"),
        (py("{'pass': True, 'Score': 0.1}"), "the key is `score`"),
        (py("{'pass': True, 'named_scores': {'a': float('nan')}}"), "named score `a` is not a number"),
        (js("({pass: true, namedScores: {a: 1, b: 'high'}})"), "named score `b` is not a number"),
        (py("import os; os._exit(1)"), "ended its process"),
        (py("{'error': 'service is down'}"), "reported an error: service is down"),
        (py("{'pass': False, 'score': 0, 'error': 'service is down'}"), "reported an error: service is down"),
        (
            {**js("({score: 0, error: {code: 5}})"), "type": "not-javascript"},
            "reported an error: {'code': 5}",
        ),
    ]
    found = judged(tmp_path, *(item for item, _ in table))
    for (_, message), item in zip(table, found, strict=True):
        assert (item["status"], item["score"]) == ("error", None)
        assert message in item["error"]["message"]
        assert item["error"]["hint"]


def test_promptfoo_takes_exceptions_for_failures_and_any_number_for_a_score(tmp_path: Path) -> None:
    table = [
        (js("output.a.b"), "failed", 0),
        (js("undefined"), "failed", 0),
        (py("1 / 0"), "failed", 0),
        (js("output.length"), "passed", 5),
        (py("len(output) - 5"), "failed", 0),
        (js("process.env.HOME"), "error", None),
        (js("fetch('http://127.0.0.1')"), "error", None),
    ]
    found = judged(tmp_path, *(item for item, _, _ in table), dialect="promptfoo")
    assert [(item["status"], item["score"]) for item in found] == [
        (status, score) for _, status, score in table
    ]


def test_variables_are_put_into_code_by_promptfoos_rules_only(tmp_path: Path) -> None:
    code = js("output === '{{word}}'")
    assert judged(tmp_path, code, dialect="promptfoo")[0]["status"] == "passed"
    assert judged(tmp_path, code)[0]["status"] == "failed"


def test_files_are_found_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("module.exports = { is: (o) => o === 'hello' }", encoding="utf-8")
    (tmp_path / "own.py").write_text("word = 'hello'", encoding="utf-8")
    (tmp_path / "b.py").write_text(
        "import own\nprint('noise')\ndef get_assert(output, context): return output == own.word\n",
        encoding="utf-8",
    )
    found = judged(tmp_path, js("file://a.js:is"), py("file://b.py"))
    assert [item["status"] for item in found] == ["passed", "passed"]


def test_broken_code_is_refused_with_its_place_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "prompts: [hi]\nproviders: [echo]\ntests:\n  - assert:\n"
        "      - type: javascript\n        value: output.length ===\n"
        "      - type: python\n        value: 'return ('\n"
        "      - type: javascript\n        value: require('fs')\n"
        "      - type: python\n        value: file://absent.py\n"
        "      - type: javascript\n        value: output\n        transform: 'output.'\n",
        encoding="utf-8",
    )
    done = run_geval("run", "c.yaml", cwd=tmp_path)
    assert done.code == 2
    for line, words in [
        (6, "SyntaxError"),
        (8, "syntax error"),
        (10, "loads a module"),
        (12, "`absent.py` cannot be read"),
        (15, "SyntaxError"),
    ]:
        assert f"c.yaml:{line}:" in done.stderr
        assert words in done.stderr


def test_a_transform_of_an_assertion_changes_what_it_sees_alone(tmp_path: Path) -> None:
    row = ran(
        tmp_path,
        {"type": "equals", "value": "HELLO", "transform": "output.toUpperCase()"},
        {"type": "equals", "value": "hello"},
        {"type": "equals", "value": "x", "transform": "output.a.b"},
    )
    assert [item["status"] for item in row["assertions"]] == ["passed", "passed", "error"]
    assert (row["status"], row["output"]) == ("error", "hello")


def test_promptfoo_wants_whole_verdicts_and_turns_no_score_round(tmp_path: Path) -> None:
    table = [
        (js("'0.7'"), "failed", 0),
        (js("({pass: true, score: 0.2, reason: 'low'})", threshold=0.5), "passed", 0.2),
        (js("({score: 0.9, reason: 'no pass'})"), "failed", 0),
        (js("({pass: true})"), "failed", 0),
        ({**js("({pass: true, score: 0.9, reason: 'x'})"), "type": "not-javascript"}, "failed", 0.9),
        ({**js("0.7"), "type": "not-javascript"}, "failed", 0.7),
        ({**js("false"), "type": "not-javascript"}, "passed", 1),
        ({**js("null"), "type": "not-javascript"}, "failed", 0),
        ({**js("throw new Error('x')"), "type": "not-javascript"}, "failed", 0),
        (py("{'score': 0.4, 'reason': 'no pass'}"), "failed", 0),
        (py("{'pass': True, 'score': 0.4, 'reason': 'x'}", threshold=0.5), "failed", 0.4),
    ]
    found = judged(tmp_path, *(item for item, _, _ in table), dialect="promptfoo")
    assert [(item["status"], item["score"]) for item in found] == [
        (status, pytest.approx(score)) for _, status, score in table
    ]


def test_a_function_that_code_gives_is_called_and_by_promptfoos_rules_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "curried.js").write_text("module.exports = (output) => () => true;", encoding="utf-8")
    codes = [js("(output) => output === 'hello'"), js("return () => true;"), js("file://curried.js")]
    assert [item["status"] for item in judged(tmp_path, *codes)] == ["passed"] * 3
    found = judged(tmp_path, *codes, dialect="promptfoo")
    assert [(item["status"], item["score"]) for item in found] == [("failed", 0)] * 3
    assert "function" in found[0]["reason"]


@pytest.mark.parametrize(
    ("assertion", "hint"),
    [
        (py("'{{ word }}' not in output"), "write context['vars']['word']"),
        (js("!output.includes('{{word}}')"), "write context.vars.word"),
        ({"type": "not-is-json", "value": {"const": "{{ word }}"}}, "write the value out"),
        ({"type": "contains-json", "value": '{"required": ["{{word}}"]}'}, "write the value out"),
        ({"type": "is-json", "value": {"pattern": "{{other}}"}}, ""),
        ({"type": "is-sql", "value": {"allowedTables": ["select::null::{{ word }}"]}}, "write the name out"),
        (py("output == f'{{other}}'"), ""),
        (py("output == context['vars']['word']"), ""),
        (js("({a: {b: 1}}).a.b === 1"), ""),
    ],
)
def test_a_variable_in_braces_that_is_not_rendered_is_warned_of(
    tmp_path: Path, assertion: Mapping[str, Any], hint: str
) -> None:
    said = {dialect: validated(tmp_path, assertion, dialect) for dialect in ("geval", "promptfoo")}
    assert ("is not rendered" in said["geval"]) == bool(hint), said
    assert hint in said["geval"]
    if assertion["type"] in ("python", "javascript"):  # promptfoo renders code
        assert "is not rendered" not in said["promptfoo"]


def validated(tmp_path: Path, assertion: Mapping[str, Any], dialect: str) -> str:
    """Return what is said of an assertion in a test with the variable `word`."""
    content = {
        "dialect": dialect,
        "prompts": ["{{word}}"],
        "providers": ["echo"],
        "tests": [{"vars": {"word": "hello"}, "assert": [assertion]}],
    }
    (tmp_path / "c.yaml").write_text(json.dumps(content), encoding="utf-8")
    checked = run_geval("validate", "c.yaml", cwd=tmp_path)
    assert checked.code == 0, checked.stderr
    return checked.stderr
