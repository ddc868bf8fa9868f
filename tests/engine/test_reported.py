"""What a program gives beside its output reaches code, other assertions and results, whatever the program is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.code_runs import rows_of
from support.geval_command import run_geval
from support.loopback import LoopbackServer, Reply

from geval_cli import Suite, run

BESIDE: dict[str, Any] = {
    "metadata": {"toolCalls": ["search", "refund"], "deep": {"n": 1}},
    "raw": {"id": "r1", "parts": [1, None]},
    "logProbs": [-0.5, -1.5],
    "guardrails": {"flagged": False, "reason": "none"},
    "sessionId": "s-1",
    "tokenUsage": {"total": 7, "prompt": 3, "completion": 4, "numRequests": 2},
    "cost": 0.25,
    "cached": True,
    "finishReason": "length",
    "latencyMs": 12,
    "anything": "else",
}
ANSWER = {"output": "hello", **BESIDE}
PROGRAMS = ("python", "javascript", "http", "function")
DIALECTS = ("geval", "promptfoo")

JS_VERDICT = "({pass: true, score: 1, reason: JSON.stringify(context)})"
PY_VERDICT = "import json\nreturn {'pass': True, 'score': 1, 'reason': json.dumps(context)}"
FILES = {
    "check.js": f"module.exports = (output, context) => {JS_VERDICT};",
    "check.py": "import json\n\ndef get_assert(output, context):\n"
    "    return {'pass': True, 'score': 1, 'reason': json.dumps(context)}\n",
    "change.js": "module.exports = (output, context) => JSON.stringify(context);",
    "change.py": "import json\n\ndef get_transform(output, context):\n    return json.dumps(context)\n",
}
ASSERTIONS: Mapping[str, dict[str, Any]] = {
    "javascript": {"type": "javascript", "value": JS_VERDICT},
    "javascript file": {"type": "javascript", "value": "file://check.js"},
    "python": {"type": "python", "value": PY_VERDICT},
    "python file": {"type": "python", "value": "file://check.py"},
    "after its own transform": {"type": "javascript", "value": JS_VERDICT, "transform": "output + '!'"},
}
TRANSFORMS = {
    "transform": "JSON.stringify(context)",
    "transform file": "file://change.js",
    "transform in Python": "file://change.py",
}
CODE = (*ASSERTIONS, *TRANSFORMS)


def bot(prompt: str) -> dict[str, Any]:
    return ANSWER


def suite_for(
    program: str, dialect: str, folder: Path, answer: Mapping[str, Any], url: str
) -> dict[str, Any]:
    text = json.dumps(answer)
    files = {
        **FILES,
        "app.py": f"import json\n\ndef call_api(prompt, options, context):\n    return json.loads({text!r})\n",
        "app.js": f"module.exports = class {{ async callApi(prompt) {{ return {text}; }} }};",
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    provider: Any = {
        "python": "file://app.py" if dialect == "promptfoo" else "python:app.py",
        "javascript": "file://app.js",
        "http": {"id": url, "config": {"body": {"prompt": "{{ prompt }}"}, "transformResponse": "(json)"}},
        "function": bot,
    }[program]
    return {
        **({"dialect": dialect} if program != "function" else {}),
        "prompts": ["Say {{x}}"],
        "providers": [provider],
        "tests": [
            *({"vars": {"x": name}, "assert": [item]} for name, item in ASSERTIONS.items()),
            *({"vars": {"x": name}, "options": {"transform": code}} for name, code in TRANSFORMS.items()),
        ],
    }


def rows_for(program: str, dialect: str, folder: Path, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    with LoopbackServer(respond=lambda body, headers: Reply(body=answer)) as server:
        content = suite_for(program, dialect, folder, answer, server.url)
        if program != "function":
            return rows_of(folder, content)
        suite = Suite(folder=folder, **content)
        return json.loads(json.dumps(run(suite, home=folder / "state", progress=False).to_json()))["results"]


@pytest.fixture(
    scope="module", params=[(p, d) for p in PROGRAMS for d in DIALECTS if (p, d) != ("function", "promptfoo")]
)
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results by the kind of code, of one program in one dialect."""
    found = rows_for(*request.param, tmp_path_factory.mktemp("reported"), ANSWER)
    assert [row["error"] for row in found] == [None] * len(CODE)
    return {row["vars"]["x"]: row for row in found}


def context_in(row: Mapping[str, Any]) -> dict[str, Any]:
    """The `context` that the code of a test saw."""
    if not row["assertions"]:
        return json.loads(row["output"])
    [result] = row["assertions"]
    return json.loads(result["reason"])


@pytest.mark.parametrize("kind", CODE)
def test_code_finds_what_a_program_gave_beside_its_output(rows: dict[str, Any], kind: str) -> None:
    seen = context_in(rows[kind])
    assert {field: seen["providerResponse"].get(field) for field in BESIDE} == BESIDE
    assert seen["providerResponse"]["output"] == "hello"
    assert seen["metadata"] == BESIDE["metadata"]
    assert seen["logProbs"] == BESIDE["logProbs"]


def test_results_hold_what_a_program_gave_beside_its_output_apart_from_the_tests_metadata(
    rows: dict[str, Any],
) -> None:
    for row in rows.values():
        assert {key: row["reported"][key] for key in BESIDE} == BESIDE
        assert row["metadata"] == {}


def answers(
    folder: Path, answer: Mapping[str, Any], *assertions: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """The result of assertions on what a Python program answers."""
    code = f"import json\n\ndef call_api(prompt, options, context):\n    return json.loads({json.dumps(answer)!r})\n"
    (folder / "app.py").write_text(code, encoding="utf-8")
    dialect = more.pop("dialect", "geval")
    return rows_of(
        folder,
        {
            "dialect": dialect,
            "prompts": [{"label": "short", "raw": "Say {{x}}"}],
            "providers": ["file://app.py" if dialect == "promptfoo" else "python:app.py"],
            "tests": [{"vars": {"x": "a"}, "assert": list(assertions), **more}],
        },
    )[0]


FORBIDDEN = {"type": "python", "value": "'refund' not in context['metadata'].get('toolCalls', [])"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_forbidden_call_of_a_tool_in_metadata_fails(dialect: str, tmp_path: Path) -> None:
    assert answers(tmp_path, ANSWER, FORBIDDEN, dialect=dialect)["status"] == "failed"


@pytest.mark.parametrize(
    ("answer", "dialect", "is_there"),
    [
        ({"output": "a"}, "geval", True),
        ({"output": "a"}, "promptfoo", False),
        ({"output": "a", "metadata": None}, "promptfoo", False),
        ({"output": "a", "metadata": {}}, "promptfoo", True),
    ],
)
def test_metadata_that_nobody_gave_is_empty_or_by_promptfoos_rules_not_there(
    answer: dict[str, Any], dialect: str, is_there: bool, tmp_path: Path
) -> None:
    found = answers(
        tmp_path,
        answer,
        {"type": "javascript", "value": "'metadata' in context"},
        {"type": "python", "value": "context.get('metadata') == {}"},
        dialect=dialect,
    )
    assert [item["status"] == "passed" for item in found["assertions"]] == [is_there] * 2


def test_assertions_that_are_no_code_use_what_a_program_says_of_its_answer(tmp_path: Path) -> None:
    flagged = {"flagged": True, "flaggedInput": True, "reason": "a weapon"}
    answer = {**ANSWER, "guardrails": flagged}
    found = answers(
        tmp_path,
        answer,
        {"type": "guardrails"},
        {"type": "not-guardrails"},
        {"type": "finish-reason", "value": "length"},
        {"type": "perplexity", "threshold": 2.8},
        {"type": "perplexity", "threshold": 2.6},
        {"type": "latency", "threshold": 12},
        {"type": "latency", "threshold": 11},
        {"type": "cost", "threshold": 0.25},
        {"type": "cost", "threshold": 0.24},
    )["assertions"]
    said = ["failed", "passed", "passed", "passed", "failed", "passed", "failed", "passed", "failed"]
    assert [item["status"] for item in found] == said
    assert found[0]["reason"] == "a weapon"


def test_a_webhook_is_sent_the_metadata(tmp_path: Path) -> None:
    with LoopbackServer(Reply(body={"pass": True})) as server:
        found = answers(tmp_path, ANSWER, {"type": "webhook", "value": server.url})
        assert found["status"] == "passed"
        assert server.requests[0].json["context"]["metadata"] == BESIDE["metadata"]


def test_metadata_of_earlier_turns_is_in_the_conversation(tmp_path: Path) -> None:
    code = "def call_api(prompt, options, context):\n    return {'output': 'a', 'metadata': {'n': len(prompt)}}\n"
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    prompt = "{% for turn in _conversation %}[{{ turn.metadata.n }}]{% endfor %}{{x}}"
    content = {
        "dialect": "promptfoo",
        "prompts": [prompt],
        "providers": ["file://app.py"],
        "tests": [{"vars": {"x": "abc"}}, {"vars": {"x": "d"}}],
    }
    assert [row["prompt"]["rendered"] for row in rows_of(tmp_path, content)] == ["abc", "[3]d"]


def test_keys_and_values_that_json_lacks_do_not_spoil_the_answer(tmp_path: Path) -> None:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    odd = {"metadata": {1: float("nan"), "at": Path("x"), "half": "\ud83d", "cycle": cycle, "pair": (1, 2)}}

    def odd_bot(prompt: str) -> dict[str, Any]:
        return {"output": "a", **odd}

    suite = Suite(prompts=["Say"], providers=[odd_bot], tests=[{}])
    [row] = run(suite, home=tmp_path, progress=False).results
    assert row.error is None
    metadata = row.reported["metadata"]
    assert (metadata["1"], metadata["at"], metadata["half"], metadata["pair"]) == (
        None,
        "x",
        "\ufffd",
        [1, 2],
    )


def test_keys_of_the_config_are_masked_in_what_a_program_reports(tmp_path: Path) -> None:
    code = (
        "def call_api(prompt, options, context):\n"
        "    return {'output': 'a', 'raw': {'sent': ['Bearer ' + options['config']['apiKey']]}}\n"
    )
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    provider = {"id": "python:app.py", "config": {"apiKey": "sk-secret-1234567890"}}
    content = {"prompts": ["Say"], "providers": [provider], "tests": [{}]}
    [row] = rows_of(tmp_path, content)
    assert row["output"] == "a"
    assert "secret-1234567890" not in json.dumps(row["reported"])


def test_an_http_answer_from_the_cache_has_what_its_code_reported(tmp_path: Path) -> None:
    with LoopbackServer(respond=lambda body, headers: Reply(body=ANSWER)) as server:
        content = suite_for("http", "geval", tmp_path, ANSWER, server.url)
        content["tests"] = content["tests"][:1]
        first, again = rows_of(tmp_path, content)[0], rows_of(tmp_path, content)[0]
        assert len(server.requests) == 1
    assert again["cached"]
    assert again["reported"] == first["reported"]
    assert context_in(again)["metadata"] == BESIDE["metadata"]


def test_outputs_that_are_judged_again_bring_what_was_reported(tmp_path: Path) -> None:
    kept = {"type": "javascript", "value": "context.metadata.deep.n === 1"}
    (tmp_path / "app.py").write_text(
        f"def call_api(prompt, options, context):\n    return {ANSWER!r}\n", encoding="utf-8"
    )
    content = {"prompts": ["Say"], "providers": ["python:app.py"], "tests": [{"assert": [kept]}]}
    config = tmp_path / "gevalconfig.yaml"
    config.write_text(json.dumps(content), encoding="utf-8")
    assert run_geval("run", str(config), "--no-progress", cwd=tmp_path).code == 0
    (tmp_path / "app.py").write_text("def call_api(prompt, options, context):\n    raise KeyError\n")
    content["tests"][0]["assert"].append({"type": "perplexity", "threshold": 2.8})
    config.write_text(json.dumps(content), encoding="utf-8")
    ended = run_geval("judge", "latest", str(config), "--no-progress", cwd=tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr


def test_the_labels_and_outputs_that_transforms_see_are_promptfoos(tmp_path: Path) -> None:
    found = answers(
        tmp_path,
        {"output": "hello", "metadata": {"docs": ["d1"]}},
        {"type": "equals", "value": "Say a", "transform": "context.prompt.label"},
        {
            "type": "equals",
            "value": "hello",
            "transform": "context.providerResponse.providerTransformedOutput",
        },
        {"type": "equals", "value": "short hello", "transform": "context.providerResponse.output"},
        {
            "type": "javascript",
            "value": "context.providerResponse.output === 'short hello'",
            "transform": "'x'",
        },
        dialect="promptfoo",
        options={"transform": "context.prompt.label + ' ' + output"},
    )
    assert found["output"] == "short hello"
    assert [item["status"] for item in found["assertions"]] == ["passed"] * 4, found["assertions"]


@pytest.mark.parametrize(
    ("provider", "label"),
    [
        ("file://named.js", "custom"),
        ({"id": "file://named.js"}, "file://named.js"),
        ({"id": "file://named.js", "config": {"name": "mine"}}, "mine"),
        ({"id": "file://named.js", "label": "ours", "config": {"name": "mine"}}, "ours"),
        ("file://plain.js", "file://plain.js"),
        ("file://unnamed.js", "file://unnamed.js"),
    ],
)
def test_a_class_names_its_column_by_promptfoos_rules(provider: Any, label: str, tmp_path: Path) -> None:
    files = {
        "named.js": "module.exports = class {\n"
        "  constructor(options) { this.name = options.config.name || options.id || 'custom'; }\n"
        "  id() { return this.name; }\n"
        "  async callApi(prompt) { return { output: prompt }; }\n};",
        "plain.js": "module.exports = async (prompt) => ({ output: prompt });",
        "unnamed.js": "module.exports = class { async callApi(prompt) { return { output: prompt }; } };",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    content = {"dialect": "promptfoo", "prompts": ["Say"], "providers": [provider], "tests": [{}]}
    [row] = rows_of(tmp_path, content)
    assert (row["provider"]["label"], row["output"]) == (label, "Say")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("unknown", ["None", "float('nan')", "float('inf')"])
@pytest.mark.parametrize("measure", ["cost", "latencyMs"])
def test_no_limit_holds_for_a_measure_that_is_unknown(
    tmp_path: Path, measure: str, unknown: str, dialect: str
) -> None:
    app = f"def call_api(prompt, options, context):\n    return {{'output': 'x', {measure!r}: {unknown}}}\n"
    (tmp_path / "app.py").write_text(app, encoding="utf-8")
    seen = f"context.providerResponse.{measure}"
    checks = [f"{seen} < 1000000", f"{seen} >= 0", f"({seen}) <= 1e9 && true"]
    content = {
        "dialect": dialect,
        "prompts": ["Say {{x}}"],
        "providers": ["python:app.py"],
        "tests": [{"vars": {"x": 1}, "assert": [{"type": "javascript", "value": check} for check in checks]}],
    }
    (row,) = rows_of(tmp_path, content)
    assert [item["status"] for item in row["assertions"]] == ["failed"] * len(checks)
