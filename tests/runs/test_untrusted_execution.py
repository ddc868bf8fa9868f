"""`--untrusted` holds while the run goes on: what was not checked is not run, read or asked."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.payloads import CANARY

from geval_cli.engine.runner import StopSignal
from geval_cli.errors import CodeFailedError, ConfigError, UnjudgeableError
from geval_cli.events import CaseFinished, RunFinished
from geval_cli.extras.programs.loading import LoadScripts
from geval_cli.extras.programs.scripting.code import Code, CodeError, Language, find_code
from geval_cli.extras.programs.scripting.scripts import Scripts
from geval_cli.extras.programs.webhook import ask_webhook
from geval_cli.providers.registry import build_provider
from geval_cli.records import RunStatus
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.session import ProviderPool
from geval_cli.source.access import TRUSTED, Access, access_in, untrusted_access
from geval_cli.source.command import run_command
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import RunStore
from geval_cli.store.state import State

BOTH = [untrusted_access([Path("/nowhere")]), access_in(Path("/nowhere"))]


@pytest.mark.parametrize("access", BOTH)
@pytest.mark.parametrize("language", list(Language))
def test_code_is_refused_where_it_would_run(tmp_path: Path, access: Access, language: Language) -> None:
    async def call() -> None:
        scripts = Scripts(tmp_path, access)
        try:
            await scripts.call(Code(language, "1"), {})
        finally:
            await scripts.aclose()

    with pytest.raises(CodeFailedError, match="runs code"):
        asyncio.run(call())


@pytest.mark.parametrize("access", BOTH)
def test_programs_are_refused_where_they_would_start(tmp_path: Path, access: Access) -> None:
    with pytest.raises(CodeFailedError, match="`true` runs code"):
        asyncio.run(run_command(["true"], access, folder=tmp_path, env=None, timeout_s=5))
    with pytest.raises(ConfigError):
        LoadScripts({}, access)(tmp_path / "x.py", "f", [], None)


@pytest.mark.parametrize(
    "provider", ["exec:true", "python:x.py", "file://x.py", "javascript:x.js", "file://x.js"]
)
@pytest.mark.parametrize("access", BOTH)
def test_providers_that_are_programs_are_not_built(tmp_path: Path, access: Access, provider: str) -> None:
    pool = ProviderPool({}, tmp_path, access)
    with pytest.raises(ConfigError) as caught:
        pool.get(ProviderSpec(id=provider))
    assert "runs code" in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("provider", "config"),
    [
        ("http://127.0.0.1:1/", {}),
        ("openai:m", {"base_url": "http://127.0.0.1:1/v1"}),
        ("openai:m", {"headers": {"Host": "x.example"}}),
        ("vertex:gemini-x", {"region": "x.example/", "project_id": "p"}),
        ("bedrock:m", {"region": "x.example/"}),
        ("azure:m", {"api_host": "x.example"}),
        ("databricks:m", {"base_url": "https://x.example"}),
    ],
)
def test_providers_elsewhere_are_not_built(tmp_path: Path, provider: str, config: dict[str, Any]) -> None:
    access = untrusted_access([tmp_path])
    with pytest.raises(ConfigError):
        build_provider(ProviderSpec(id=provider, config=config), env={}, base_dir=tmp_path, access=access)


def test_vendors_are_built_also_where_the_users_environment_moves_them(tmp_path: Path) -> None:
    access = untrusted_access([tmp_path])
    for provider, env in (
        ("openai:m", {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}),
        ("vertex:gemini-x", {"VERTEX_PROJECT_ID": "p", "VERTEX_REGION": "europe-west4"}),
        ("cloudflare-ai:m", {"CLOUDFLARE_ACCOUNT_ID": "a/../b"}),
        ("bedrock:m", {"AWS_BEARER_TOKEN_BEDROCK": "k", "AWS_REGION": "eu-central-1"}),
        ("watsonx:m", {"WATSONX_AI_BEARER_TOKEN": "k", "WATSONX_AI_REGION": "us-south"}),
        ("huggingface:text-classification:a/b", {}),
        ("anthropic:m", {}),
    ):
        assert build_provider(ProviderSpec(id=provider), env=env, base_dir=tmp_path, access=access)


def test_webhooks_are_not_asked() -> None:
    with pytest.raises(UnjudgeableError, match="another server"):
        asyncio.run(ask_webhook("http://127.0.0.1:1/", {}, BOTH[0]))


def test_code_elsewhere_is_not_even_looked_at(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("broken (", encoding="utf-8")
    with pytest.raises(CodeError, match="outside the config's folder"):
        find_code("file://../x.py", tmp_path / "in", Language.PYTHON, untrusted_access([tmp_path / "in"]))
    assert find_code("file://../x.py", tmp_path / "in", Language.PYTHON, TRUSTED).path is not None


def _run(folder: Path, config: dict[str, Any], between: Callable[[], None]) -> list[object]:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    prepared = prepare(RunRequest(path, {}, untrusted=True))
    between()
    seen: list[object] = []
    with RunStore.open_in_memory() as runs, ResponseCache.open_in_memory() as cache:
        asyncio.run(run_evaluation(prepared, State(runs, cache), listen=seen.append, stop=StopSignal()))
    return seen


ROW = {"vars": {"i": "x"}}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "another value": [{"vars": {"i": CANARY}}, ROW],
    "one more": [ROW, ROW, ROW],
    "one less": [ROW],
    "none": [],
    "code": [{**ROW, "assert": [{"type": "python", "value": "True"}]}, ROW],
    "an assertion": [{**ROW, "assert": [{"type": "equals", "value": "x"}]}, ROW],
    "a webhook": [ROW, {**ROW, "assert": [{"type": "webhook", "value": "http://127.0.0.1:1/"}]}],
    "a provider": [ROW, {**ROW, "provider": "exec:true"}],
    "metadata": [ROW, {**ROW, "metadata": {"a": "b"}}],
}


@pytest.mark.parametrize("name", CHANGES)
def test_tests_that_are_not_those_that_were_checked_stop_the_run(tmp_path: Path, name: str) -> None:
    tests = tmp_path / "t.jsonl"

    def write(rows: list[dict[str, Any]]) -> None:
        tests.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    write([ROW, ROW])
    config = {
        "dialect": "promptfoo",
        "prompts": ["Q {{i}}"],
        "providers": ["echo"],
        "tests": "file://t.jsonl",
    }
    seen = _run(tmp_path, config, lambda: write(CHANGES[name]))
    [end] = [item for item in seen if isinstance(item, RunFinished)]
    assert end.run.status is RunStatus.ABORTED
    [notice] = [text for text in end.run.warnings if "the tests changed" in text]
    assert "has changed since it was checked" in notice or "contains no tests" in notice
    done = [item.result.vars for item in seen if isinstance(item, CaseFinished)]
    assert done in ([], [{"i": "x"}], [{"i": "x"}] * 2)


def test_tests_that_stay_the_same_are_run(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(ROW), encoding="utf-8")
    config = {
        "dialect": "promptfoo",
        "prompts": ["Q {{i}}"],
        "providers": ["echo"],
        "tests": "file://t.jsonl",
    }
    assert _run(tmp_path, config, (tmp_path / "t.jsonl").touch)


def test_a_grader_of_the_config_is_not_the_users_word(tmp_path: Path) -> None:
    config = {
        "dialect": "promptfoo",
        "prompts": ["x"],
        "providers": ["echo"],
        "tests": [{"assert": [{"type": "llm-rubric", "value": "x"}]}],
        "commandLineOptions": {"grader": "exec:true"},
    }
    with pytest.raises(ConfigError) as caught:
        _run(tmp_path, config, lambda: None)
    assert "`exec:true` runs code" in caught.value.problems[0].message


def test_a_label_of_the_config_does_not_stand_for_the_judge_that_the_user_names(tmp_path: Path) -> None:
    config = {
        "dialect": "promptfoo",
        "prompts": ["x"],
        "providers": [{"id": "echo", "label": "anthropic:claude"}],
        "tests": [{"assert": [{"type": "llm-rubric", "value": "x"}]}],
    }
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(path, {}, untrusted=True, grader="anthropic:claude"))
    assert "no key for anthropic:claude" in caught.value.problems[0].message


def test_the_stranger_sees_no_more_of_the_environment_than_its_providers_need(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(
        json.dumps({"prompts": ["x"], "providers": ["openai:m"], "tests": [{}]}), encoding="utf-8"
    )
    env = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "other", "AWS_SECRET": "s", "HOME": "/root"}
    prepared = prepare(RunRequest(path, env, untrusted=True))
    assert dict(prepared.suite.env) == {"OPENAI_API_KEY": "k"}
    assert prepared.ports == frozenset({443})
    assert prepare(RunRequest(path, env)).suite.env.keys() >= env.keys()
