from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderResponseError, ProviderShapeError
from geval_cli.providers.registry import check_provider
from geval_cli.providers.trust import runs_program
from geval_cli.specs.base import ProviderSpec

CHAT = {"choices": [{"message": {"content": "hi"}}], "n": 2, "none": None}


def answered(code: str, reply: Any = CHAT, base_dir: Path = Path()) -> str:
    with LoopbackServer(Reply(headers={"x-part": "seven"}, body=reply)) as server:
        model = provider(f"{server.url}/ask", {"transformResponse": code}, base_dir=base_dir)
        [response] = run(answer(model))
    return response.text


def problems(config: dict[str, Any], base_dir: Path = Path()) -> list[str]:
    spec = ProviderSpec(id="http://localhost:1/x", config=config)
    return [problem.message for problem in check_provider(spec, env={}, base_dir=base_dir)]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("json.choices[0].message.content", "hi"),
        ("json.choices[0].message.content.toUpperCase()", "HI"),
        ("(json, text, context) => `${json.n} ${text.length > 2} ${context.response.status}`", "2 true 200"),
        ("(json, text, context) => context.response.headers['x-part']", "seven"),
        ("({ output: json.n + 1, tokenUsage: {} })", "3"),
        ("(json) => ({ said: json.n })", '{"said": 2}'),
        ("json.choices.map((choice) => choice.message.content)", '["hi"]'),
        ("const n = json.n;\nreturn `n is ${n}`;", "n is 2"),
    ],
)
def test_code_takes_the_answer_out_of_what_came(code: str, text: str) -> None:
    assert answered(code) == text


def test_what_is_no_json_is_there_as_text() -> None:
    assert answered("json === null ? text.trim() : 'json'", b" plain ") == "plain"


def test_the_code_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "parse.js").write_text("module.exports = (json, text) => json.n + ':' + text.length;")
    assert answered("file://parse.js", {"n": 1}, tmp_path).startswith("1:")
    (tmp_path / "named.js").write_text("exports.pick = (json) => json.n;")
    assert answered("file://named.js:pick", {"n": 1}, tmp_path) == "1"


@pytest.mark.parametrize("code", ["json.absent.x()", "json.none || null", "(() => { throw 'no' })()"])
def test_code_that_fails_or_finds_nothing_is_an_error_and_not_repeated(code: str) -> None:
    with pytest.raises(ProviderShapeError) as caught:
        answered(code)
    assert not caught.value.is_retryable
    assert "transformResponse" in caught.value.message
    assert caught.value.body


@pytest.mark.parametrize(
    "reason", ["error", "pause_turn", "stop", "length", "content_filter", "goal_reached"]
)
def test_an_answer_that_the_code_calls_interrupted_is_an_error(reason: str) -> None:
    code = "({output: 'so far', finishReason: json.why})"
    if reason not in ("error", "pause_turn"):
        assert answered(code, {"why": reason}) == "so far"
        return
    with pytest.raises(ProviderResponseError, match="no whole answer"):
        answered(code, {"why": reason})


@pytest.mark.parametrize(
    "code", ["json.(", "require('fs').readFileSync('x')", "file://absent.js", "file://x.py"]
)
def test_code_that_cannot_run_is_refused_beforehand(code: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("def get(json): return json")
    assert len(problems({"transformResponse": code}, tmp_path)) == 1


def test_other_code_is_another_answer_for_the_cache() -> None:
    def identity(code: str) -> Any:
        return provider("http://localhost:1/x", {"transformResponse": code}).identity

    assert identity("json.a + 'x'") != identity("json.a + 'y'")


@pytest.mark.parametrize(
    ("config", "is_code"),
    [
        ({"transformResponse": "json.a[0].b"}, False),
        ({"response_path": "a.b"}, False),
        ({}, False),
        ({"transformResponse": "json.a + 1"}, True),
        ({"responseParser": "(json) => json.a"}, True),
        ({"response_path": "file://x.js"}, True),
    ],
)
def test_who_runs_code_is_told(config: dict[str, Any], is_code: bool) -> None:
    assert runs_program(ProviderSpec(id="http://localhost:1/x", config=config)) is is_code


@pytest.mark.parametrize("key", ["transformRequest", "validateStatus", "request", "auth"])
def test_what_is_not_done_is_refused_with_advice(key: str) -> None:
    spec = ProviderSpec(id="http://localhost:1/x", config={key: "x"})
    [problem] = check_provider(spec, env={}, base_dir=Path())
    assert key in problem.message
    assert problem.hint
