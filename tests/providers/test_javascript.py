"""JavaScript providers in whole runs, in both dialects, and tests that JavaScript makes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.code_runs import rows_of
from support.geval_command import run_geval

_CLASS = """
class Shouting {
  constructor(options) { this.mark = options.config.mark; }
  id() { return "shouting"; }
  async callApi(prompt, context) {
    return { output: prompt.toUpperCase() + this.mark + context.vars.who, tokenUsage: { prompt: 3, completion: 2 } };
  }
}
module.exports = Shouting;
"""


@pytest.mark.parametrize(
    ("dialect", "provider"),
    [
        ("geval", "javascript:p.js"),
        ("geval", "file://p.js"),
        ("promptfoo", "file://p.js"),
        ("promptfoo", "p.js"),
    ],
)
def test_a_class_answers(tmp_path: Path, dialect: str, provider: str) -> None:
    (tmp_path / "p.js").write_text(_CLASS, encoding="utf-8")
    content = {
        "dialect": dialect,
        "prompts": ["hello"],
        "providers": [{"id": provider, "config": {"mark": "!"}}],
        "tests": [{"vars": {"who": "Ada"}}],
    }
    (row,) = rows_of(tmp_path, content)
    assert row["output"] == "HELLO!Ada"
    assert row["usage"]["generation"]["input_tokens"] == 3


@pytest.mark.parametrize(
    ("code", "where", "hint"),
    [
        (
            "const fs = require('fs');\nmodule.exports = class { callApi() {} };",
            "validate",
            "loads a module",
        ),
        ("import fs from 'fs';\nexport default class { callApi() {} }", "validate", "loads a module"),
        ("module.exports = class {", "validate", "cannot be compiled"),
        ("module.exports = class { async callApi() { return fetch('http://x.example'); } };", "run", "fetch"),
    ],
)
def test_what_needs_node_is_an_error_that_says_what_to_do(
    tmp_path: Path, code: str, where: str, hint: str
) -> None:
    (tmp_path / "p.js").write_text(code, encoding="utf-8")
    (tmp_path / "gevalconfig.yaml").write_text(
        "prompts: [a]\nproviders: ['file://p.js']\ntests: [{}]\n", encoding="utf-8"
    )
    done = run_geval(where, "gevalconfig.yaml", cwd=tmp_path)
    assert done.code == (2 if where == "validate" else 3)
    said = " ".join((done.stdout + done.stderr).split())
    assert hint in said
    if "compiled" not in hint:
        assert "exec: node FILE.js" in said


def test_a_stranger_s_javascript_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "p.js").write_text(_CLASS, encoding="utf-8")
    for provider in ("file://p.js", "javascript:p.js"):
        (tmp_path / "gevalconfig.yaml").write_text(
            f"prompts: [a]\nproviders: ['{provider}']\ntests: [{{}}]\n", encoding="utf-8"
        )
        done = run_geval("validate", "--untrusted", "gevalconfig.yaml", cwd=tmp_path)
        assert done.code == 2
        assert "runs code, which --untrusted does not allow" in done.stderr


_MAKERS: dict[str, Any] = {
    "file://make.js": "module.exports = async () => [{ vars: { x: 'a' } }, { vars: { x: 'b' } }];",
    "file://make.mjs:build": "export const build = () => ['a', 'b'].map((x) => ({ vars: { x } }));",
    "file://make.cjs": "exports.default = [{ vars: { x: 'a' } }, { vars: { x: 'b' } }];",
}


@pytest.mark.parametrize("tests", sorted(_MAKERS))
def test_javascript_makes_tests(tmp_path: Path, tests: str) -> None:
    (tmp_path / tests.removeprefix("file://").partition(":")[0]).write_text(_MAKERS[tests], encoding="utf-8")
    content = {"dialect": "promptfoo", "prompts": ["{{x}}"], "providers": ["echo"], "tests": tests}
    (tmp_path / "promptfooconfig.json").write_text(json.dumps(content), encoding="utf-8")
    done = run_geval("run", "promptfooconfig.json", "-o", "r.jsonl", cwd=tmp_path)
    assert done.code == 0, done.stderr
    lines = (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["output"] for line in lines] == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (
            "const fs = require('fs');\nmodule.exports = () => [];",
            "loads a module",
            "have Node write the tests",
        ),
        ("module.exports = async () => fetch('http://x.example');", "fetch", "have Node write the tests"),
        ("module.exports = () => ({});", "make.js must return a list of tests", ""),
        ("module.exports = () => { throw new Error('no data'); };", "make.js failed: no data", ""),
    ],
)
def test_a_maker_that_cannot_run_is_a_problem_with_its_line(
    tmp_path: Path, code: str, message: str, hint: str
) -> None:
    (tmp_path / "make.js").write_text(code, encoding="utf-8")
    (tmp_path / "promptfooconfig.yaml").write_text(
        "prompts: ['{{x}}']\nproviders: [echo]\ntests: file://make.js\n", encoding="utf-8"
    )
    done = run_geval("validate", "promptfooconfig.yaml", cwd=tmp_path)
    assert done.code == 2
    assert message in done.stderr
    assert hint in " ".join(done.stderr.split())
    assert "promptfooconfig.yaml:3:8" in done.stderr


def test_geval_s_own_configs_take_tests_from_no_program(tmp_path: Path) -> None:
    (tmp_path / "make.js").write_text("module.exports = [];", encoding="utf-8")
    (tmp_path / "gevalconfig.yaml").write_text(
        "prompts: [x]\nproviders: [echo]\ntests: file://make.js\n", encoding="utf-8"
    )
    done = run_geval("validate", "gevalconfig.yaml", cwd=tmp_path)
    assert "only Python programs can make tests: `make.js`" in done.stderr
