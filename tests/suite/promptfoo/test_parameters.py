"""What promptfoo's dialect sends to models beside the prompt: the facts that were recorded from promptfoo itself."""

from pathlib import Path
from typing import Any

import pytest
from support.loopback import RecordedRequest
from support.promptfoo import load
from support.promptfoo_facts import ENVIRONMENTS, FACTS, number_of, parameters_in, write_config
from support.promptfoo_live import recording_server, sent_by_geval

from geval_cli.extras.promptfoo.requests import promptfoo_params
from geval_cli.specs.promptfoo import EnvProviderSpec


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RecordedRequest]:
    """What geval sends for each fact, by its number."""
    found = {}
    for env, values in ENVIRONMENTS.items():
        facts = [(number, fact) for number, fact in enumerate(FACTS) if fact.env == env]
        with recording_server() as server:
            path = write_config(tmp_path_factory.mktemp("facts"), [fact for _, fact in facts], server.url)
            sent, rows, told = sent_by_geval(path, server, values)
        assert len(rows) == len(facts), told
        found |= {facts[number_of(request.path)][0]: request for request in sent}
    return found


@pytest.mark.parametrize("number", range(len(FACTS)), ids=[f"{fact.provider}-{fact.env}" for fact in FACTS])
def test_models_are_sent_the_parameters_that_promptfoo_sends(
    requests: dict[int, RecordedRequest], number: int
) -> None:
    assert parameters_in(requests[number].json) == FACTS[number].sent


FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "g"}}]
CLAUDE_TOOLS = [
    {"name": "f", "description": "d", "input_schema": FUNCTION["parameters"]},
    {"name": "g", "input_schema": {"type": "object", "properties": {}}},
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}


@pytest.mark.parametrize(
    ("provider", "written", "sent"),
    [
        ("openai:m", {"tools": TOOLS, "tool_choice": "auto"}, {}),
        (
            "openai:responses:m",
            {"tools": [*TOOLS, {"type": "web_search"}]},
            {
                "tools": [
                    {"type": "function", **FUNCTION},
                    {"type": "function", "name": "g"},
                    {"type": "web_search"},
                ]
            },
        ),
        (
            "openai:responses:m",
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "function", "name": "f"}},
        ),
        ("openai:responses:m", {"tool_choice": {"type": "function", "name": "f"}}, {}),
        (
            "openai:responses:m",
            {"response_format": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": True},
                }
            },
        ),
        (
            "openai:responses:m",
            {"response_format": {"type": "json_schema", "name": "n", "schema": {}}},
            {"response_format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
        ),
        ("anthropic:m", {"tools": TOOLS}, {"tools": CLAUDE_TOOLS}),
        ("anthropic:m", {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "any"}}, {}),
        ("anthropic:m", {"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
        (
            "anthropic:m",
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "tool", "name": "f"}},
        ),
    ],
)
def test_tools_and_forms_are_written_as_the_api_wants_them(
    provider: str, written: dict[str, Any], sent: dict[str, Any]
) -> None:
    changed = promptfoo_params(EnvProviderSpec(id=provider, config=written), written, {})
    assert {name: value for name, value in changed.items() if name in written} == sent


def test_what_claude_has_in_beta_is_a_header(tmp_path: Path) -> None:
    config = {"beta": ["a", "b"], "headers": {"anthropic-beta": "b, c"}, "output_format": SCHEMA}
    (provider,) = load(tmp_path, {"providers": [{"id": "anthropic:m", "config": config}]}).providers
    assert provider.config["headers"] == {"anthropic-beta": "a,b,c,structured-outputs-2025-11-13"}
    assert "beta" not in provider.config
