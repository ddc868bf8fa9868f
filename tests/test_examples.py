"""Every file in examples/configs is valid and runs; editors read them by the schema beside them."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.geval_command import clean_environment, run_geval, run_pytest
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.source.yaml_source import read_yaml

EXAMPLES = Path(__file__).parents[1] / "examples" / "configs"
CONFIGS = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
SCHEMA_COMMENT = "# yaml-language-server: $schema=./gevalconfig.schema.json\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLES, tmp_path / "configs", ignore=shutil.ignore_patterns(".geval"))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_example_is_valid_for_geval_and_for_editors(name: str, project: Path) -> None:
    assert run_geval("validate", name, cwd=project).code == 0
    text = (project / name).read_text(encoding="utf-8")
    assert text.startswith(SCHEMA_COMMENT)
    schema = json.loads((project / "gevalconfig.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(read_yaml(text, name).value)


def test_the_schema_example_tells_the_good_answer_from_the_bad_one(project: Path) -> None:
    finished = run_geval("run", "schema.yaml", cwd=project)
    assert finished.code == 1
    assert "1 passed, 1 failed" in finished.stdout
    assert "$.quantity: 'five' is not of type 'integer'" in " ".join(finished.stdout.split())


def test_the_checklist_example_catches_a_quotation_that_is_made_up(project: Path) -> None:
    finished = run_geval("run", "checklist.yaml", "-v", cwd=project)
    assert finished.code == 1
    assert "1 passed, 1 failed" in finished.stdout
    assert '"your refund in full" is not in the output' in " ".join(finished.stdout.split())


def respond(body: Any, headers: Mapping[str, str]) -> Reply:
    """A judge that likes everything, and a model that says little."""
    prompt = body["messages"][-1]["content"]
    if '"steps"' in prompt:
        return chat_reply('{"steps": ["Read the text.", "Rate it."]}')
    if '"score"' in prompt:
        return chat_reply('{"reason": "It does.", "score": 9}')
    best = re.search(r"to (\d) \(best\)", prompt)
    if best is not None:
        return chat_reply(best[1], logprobs=[{best[1]: -0.1, "2": -2.4}])
    return chat_reply("Elmsund has a new ferry terminal.")


def test_the_openai_example_runs_against_any_server_of_that_kind(project: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-example")
        finished = run_geval("run", "openai.yaml", "-o", "results.json", cwd=project, env=env)
    assert (finished.code, finished.stderr.count("error:")) == (0, 0)
    results = json.loads((project / "results.json").read_text(encoding="utf-8"))
    assert results["summary"]["passed"] == 2
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer sk-of-the-example"}
    assert {request.json["model"] for request in server.requests} == {"gpt-4.1", "gpt-4.1-mini"}


def test_the_dimensions_example_runs_with_another_judge(project: Path) -> None:
    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-example")
        command = ("run", "dimensions.yaml", "--grader", "openai:gpt-4.1", "-o", "results.json")
        assert run_geval(*command, cwd=project, env=env).code == 0
    results = json.loads((project / "results.json").read_text(encoding="utf-8"))
    judged = [item for case in results["results"] for item in case["assertions"]]
    assert {item["metric"] for item in judged} == set(DIMENSIONS)


@pytest.mark.local_model
def test_the_example_for_the_local_model_runs_on_the_real_one(project: Path) -> None:
    """As a judge it is in the demo (tests/cli/test_first_hour.py)."""
    config = project / "quickstart.yaml"
    # It takes a second of a processor for thirty tokens that it writes, or a hundred that it reads.
    text = config.read_text(encoding="utf-8")
    assert "max_tokens: 80" in text
    config.write_text(text.replace("max_tokens: 80", "max_tokens: 24"), encoding="utf-8")
    part = ("--filter-prompts", "tutor", "--filter-pattern", "data")
    finished = run_geval("run", config.name, *part, "-o", "results.json", cwd=project, timeout_s=600)
    # So small a model may write anything.
    assert finished.code in {0, 1}, finished.stdout + finished.stderr
    results = json.loads((project / "results.json").read_text(encoding="utf-8"))
    assert results["run"]["status"] == "completed"
    assert [(case["provider"]["label"], case["output"] != "") for case in results["results"]] == [
        ("smollm2", True),
        ("warm", True),
    ]


@pytest.mark.local_model
def test_the_example_that_compares_meanings_tells_near_from_far(project: Path) -> None:
    finished = run_geval("run", "similar-local.yaml", cwd=project, timeout_s=600)
    assert finished.code == 0, finished.stdout + finished.stderr


def test_the_example_about_safety_asks_a_moderator(project: Path) -> None:
    def answer(body: Any, headers: Mapping[str, str]) -> Reply:
        categories = dict.fromkeys(("harassment", "hate", "violence"), False)
        harmless = {"flagged": False, "categories": categories}
        return respond(body, headers) if "messages" in body else Reply(body={"results": [harmless]})

    with LoopbackServer(respond=answer) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-example")
        finished = run_geval("run", "safety.yaml", cwd=project, env=env)
    assert (finished.code, finished.stderr.count("error:")) == (0, 0)
    assert {request.path for request in server.requests} == {"/v1/chat/completions", "/v1/moderations"}


def test_the_starter_config_is_written_once_and_is_valid(tmp_path: Path) -> None:
    assert run_geval("init", cwd=tmp_path).code == 0
    assert run_geval("validate", "gevalconfig.yaml", cwd=tmp_path).code == 0
    again = run_geval("init", cwd=tmp_path)
    assert (again.code, again.stderr.splitlines()[0]) == (
        2,
        "error: gevalconfig.yaml already exists and was not changed",
    )


def test_the_pytest_example_passes_without_a_key_and_without_the_network(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES.parent / "pytest", tmp_path / "pytest")
    words = ("-q", "-p", "geval_cli.extras.pytest_plugin", ".", "support.geval.yaml")
    env = clean_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    finished = run_pytest(*words, cwd=folder, env=env)
    assert (finished.code, "6 passed" in finished.stdout) == (0, True), finished.stdout
    suite = folder / "support.geval.yaml"
    schema = json.loads((EXAMPLES / "gevalconfig.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(read_yaml(suite.read_text(encoding="utf-8"), suite.name).value)
    assert run_geval("run", "support.geval.yaml", cwd=folder).code == 0


def test_the_example_of_conversations_tells_a_kind_clerk_from_a_rude_one(project: Path) -> None:
    finished = run_geval("run", "conversations.yaml", "-o", "results.json", cwd=project)
    assert (finished.code, finished.stderr.count("error:")) == (1, 0)
    results = json.loads((project / "results.json").read_text(encoding="utf-8"))["results"]
    assert [case["status"] for case in results] == ["passed", "failed"]
    assert results[0]["output"] == "Wonderful, the sencha it is. Shall I wrap it for you?"
    assert results[1]["assertions"][1]["detail"]["min"] == {"score": 0.1, "answer": 2, "turn": 4}


def test_the_example_of_tools_calls_them_in_each_test_from_the_same_start(project: Path) -> None:
    finished = run_geval("run", "tools.yaml", "-o", "results.json", cwd=project)
    assert (finished.code, finished.stderr.count("error:")) == (1, 0)
    results = json.loads((project / "results.json").read_text(encoding="utf-8"))["results"]
    assert [case["status"] for case in results] == ["passed", "passed", "failed"]
    calls = [[step["name"] for step in case["trace"]] for case in results]
    assert calls == [["find_order", "cancel_order", "find_order"], ["find_order"], ["find_order"]]


def test_the_example_of_agents_tells_what_was_looked_up_from_what_was_made_up(project: Path) -> None:
    finished = run_geval("run", "agents.yaml", "-o", "results.json", cwd=project)
    assert (finished.code, finished.stderr.count("error:")) == (1, 0)
    results = json.loads((project / "results.json").read_text(encoding="utf-8"))["results"]
    statuses = [[item["status"] for item in case["assertions"]] for case in results]
    assert statuses == [["passed"] * 6, ["failed", "failed", "passed", "passed", "failed", "failed"]]
    assert [step["name"] for step in results[1]["trace"]] == ["find_order", "gpt-4.1"]
