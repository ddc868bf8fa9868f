"""Every documented parameter, on every API: it is sent under some name, or a problem says before the run that it is not."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.calls import ask, provider
from support.geval_command import run_geval
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import Problem, Severity
from geval_cli.extras import rag as context
from geval_cli.extras.conversations import relevance
from geval_cli.extras.graded import closed_questions, rubric
from geval_cli.judge import grading
from geval_cli.providers.options import ENDPOINT_KEYS, SET_BY_GEVAL
from geval_cli.providers.preset_table import WIRE_FORMATS
from geval_cli.providers.registry import check_provider
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.providers.wire.parameters import _BY_WIRE, CHAT_API, RESPONSES_API
from geval_cli.providers.wire.token_usage import token_limit
from geval_cli.specs.base import WIRE_SETTINGS, ProviderSpec

WIRES = (
    "openai:m",
    "openai:responses:m",
    "anthropic:claude-opus-4-6",
    "google:gemini-2.5-flash",
    "google:gemini-3-pro",
    "bedrock:converse:m",
)
OWN = {spelling for key in ENDPOINT_KEYS for spelling in key.spellings}
SCHEMA = {"type": "object", "properties": {"mark": {"type": "string"}}}
VALUES: dict[str, Any] = {
    "reasoning_effort": "high",
    "effort": "high",
    "response_format": {"type": "json_schema", "json_schema": {"name": "mark", "schema": SCHEMA}},
    "logprobs": True,
    "responseLogprobs": True,
    "top_p": 0.37,
    "topP": 0.37,
    "min_p": 0.37,
    "typical_p": 0.37,
    "stop": ["mark"],
    "systemInstruction": "mark",
    "system_instruction": "mark",
    "output_config": {"effort": "low"},
    "thinking": {"type": "enabled", "budget_tokens": 3737},
}


def test_every_api_is_among_them() -> None:
    apis = {rules.module for rules in WIRE_FORMATS.values()}
    assert apis - {wire.partition(":")[0] for wire in WIRES} == set(), "add a model of these APIs to WIRES"


@pytest.mark.parametrize("name", WIRES)
def test_configs_are_checked_by_the_parameters_of_the_provider(name: str) -> None:
    model = provider(name, {"base_url": "http://127.0.0.1:9", "apiKey": "key-123"})
    assert isinstance(model, EndpointProvider)
    checked_by = RESPONSES_API if ":responses:" in name else _BY_WIRE.get(model.identity.kind, CHAT_API)
    assert model.parameters is checked_by, "name them in _BY_WIRE of wire/parameters.py"


@pytest.mark.parametrize("name", WIRES)
def test_the_limit_on_tokens_is_known_by_the_name_of_the_api(name: str) -> None:
    limited = payload_of(name, {"max_tokens": 3737})
    assert token_limit(limited) == 3737, "name it in _LIMIT_NAMES of wire/token_usage.py"


def value_of(name: str) -> Any:
    """A value of the parameter's kind that nothing else in a request has."""
    kind = WIRE_SETTINGS[name]
    return VALUES.get(name) or next(
        value for value in (3737, {"mark": 1}, "mark", True) if kind.is_valid(value)
    )


def payload_of(name: str, config: dict[str, Any]) -> Any:
    model = provider(name, {"base_url": "http://127.0.0.1:9", "apiKey": "key-123", **config})
    assert isinstance(model, EndpointProvider)
    return model.payload(ask())


def problems_of(name: str, config: dict[str, Any]) -> list[Problem]:
    spec = ProviderSpec(id=name, config={"apiKey": "key-123", **config})
    return check_provider(spec, env={}, base_dir=Path())


@pytest.mark.parametrize("wire", [*WIRES, "vertex:claude-opus-4-6", "vertex:gemini-2.5-flash"])
def test_no_parameter_vanishes_without_a_word(wire: str) -> None:
    without, lost = payload_of(wire, {}), {}
    for name in sorted(WIRE_SETTINGS.keys() - OWN):
        config = {name: value_of(name)}
        problems = problems_of(wire, config)
        is_told = any(
            f"`{name}`" in problem.message and problem.severity is Severity.ERROR for problem in problems
        )
        is_told |= name in SET_BY_GEVAL and any("is ignored" in problem.message for problem in problems)
        sent = payload_of(wire, config)
        if is_told != (sent == without):
            lost[name] = (problems, sent)
    assert lost == {}


@pytest.mark.parametrize("name", ["stream", "background"])
@pytest.mark.parametrize("wire", WIRES)
def test_what_would_leave_an_answer_unread_is_not_sent(wire: str, name: str) -> None:
    assert payload_of(wire, {name: True}) == payload_of(wire, {})
    assert any("is ignored" in problem.message for problem in problems_of(wire, {name: True}))


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "minimal", {"thinkingBudget": 1024}),
        ("gemini-2.5-pro", "medium", {"thinkingBudget": 8192}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 24576}),
        ("gemini-3-flash", "minimal", {"thinkingLevel": "minimal"}),
        ("gemini-3.1-pro", "high", {"thinkingLevel": "high"}),
        ("gemini-flash-latest", "low", {"thinkingLevel": "low"}),
    ],
)
def test_an_effort_becomes_what_the_generation_of_gemini_has(model: str, effort: str, thinking: Any) -> None:
    sent = payload_of(f"google:{model}", {"reasoning_effort": effort})
    assert sent["generationConfig"] == {"thinkingConfig": thinking}


@pytest.mark.parametrize(
    ("wire", "config", "words"),
    [
        ("google:gemini-3-pro", {"reasoning_effort": "none"}, "always thinks"),
        ("google:gemini-2.5-pro", {"reasoning_effort": "xhigh"}, "no effort `xhigh`"),
        ("google:gemini-2.5-pro", {"reasoning_effort": "low", "thinkingConfig": {"thinkingBudget": 1}}, "mean the same"),
        ("google:gemini-2.5-pro", {"max_tokens": 5, "generationConfig": {"maxOutputTokens": 6}}, "mean the same"),
        ("openai:responses:m", {"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "mean the same"),
        ("openai:responses:m", {"max_tokens": 5, "max_output_tokens": 6}, "mean the same"),
        ("anthropic:m", {"max_tokens": 5, "max_completion_tokens": 6}, "mean the same"),
        ("anthropic:m", {"seed": 5}, "is not sent"),
        ("bedrock:converse:m", {"max_tokens": 5, "inferenceConfig": {"maxTokens": 6}}, "mean the same"),
        ("bedrock:converse:m", {"logprobs": True}, "is not sent"),
        ("bedrock:converse:m", {"response_format": {"type": "json_object"}}, "no plain JSON mode"),
        ("anthropic:m", {"logprobs": True}, "is not sent"),
        ("anthropic:m", {"reasoning_effort": "minimal"}, "no effort `minimal`"),
        ("anthropic:m", {"response_format": {"type": "json_object"}}, "no plain JSON mode"),
        ("anthropic:m", {"thinking": {"type": "enabled", "budget_tokens": 4096}, "max_tokens": 4096}, "must be less than"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_as_it_is_written_is_a_problem(
    wire: str, config: dict[str, Any], words: str
) -> None:
    [problem] = problems_of(wire, config)
    assert problem.severity is Severity.ERROR
    assert words in problem.message
    assert problem.hint or "keep one" in problem.message


ALLOWED = {"type", "properties", "required", "additionalProperties", "items", "enum"}
"""The keywords that the schemas of OpenAI's strict mode, Anthropic, Gemini and Mistral have in common."""


def keywords(schema: Any) -> set[str]:
    found = set(schema)
    for inner in schema.get("properties", {}).values():
        found |= keywords(inner)
    return found | (keywords(schema["items"]) if "items" in schema else set())


def test_the_schemas_of_judges_use_only_what_every_vendor_takes() -> None:
    modules = (grading, closed_questions, context, relevance, rubric)
    schemas = {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("SCHEMA")
    }
    assert len(schemas) >= 9
    assert set().union(*map(keywords, schemas.values())) <= ALLOWED
    assert all('"additionalProperties": false' in json.dumps(schema) for schema in schemas.values())


def weighed_reply(body: Any, _: Any) -> Reply:
    """A judge on either API: steps where they are asked for, else 5 at 75 % and 1 at 25 %, if probabilities are asked for."""
    text = json.dumps({"steps": ["Read it."]}) if "preparing an evaluation" in json.dumps(body) else "5"
    high, low = math.log(0.75), math.log(0.25)
    if "contents" in body:
        chosen = {"token": "5", "logProbability": high}
        result = {
            "chosenCandidates": [chosen],
            "topCandidates": [{"candidates": [chosen, {"token": "1", "logProbability": low}]}],
        }
        given = {"logprobsResult": result} if body.get("generationConfig", {}).get("responseLogprobs") else {}
        return Reply(
            body={"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP", **given}]}
        )
    entry = {
        "token": "5",
        "logprob": high,
        "top_logprobs": [{"token": "5", "logprob": high}, {"token": "1", "logprob": low}],
    }
    asked = "message.output_text.logprobs" in body.get("include", ())
    part = {"type": "output_text", "text": text, "logprobs": [entry] if asked else []}
    return Reply(
        body={"status": "completed", "output": [{"type": "message", "role": "assistant", "content": [part]}]}
    )


@pytest.mark.parametrize("judge", ["google:gemini-2.0-flash", "openai:responses:gpt-4.1"])
def test_ratings_are_weighed_by_the_token_probabilities_of_each_api(tmp_path: Path, judge: str) -> None:
    with LoopbackServer(respond=weighed_reply) as server:
        url = server.url if judge.startswith("google") else server.base_url
        config = {"base_url": url, "apiKey": "key-123"}
        judged = {"type": "g-eval", "dimension": "coherence", "provider": {"id": judge, "config": config}}
        suite = {"prompts": ["Hi"], "providers": ["echo"], "tests": [{"assert": [judged]}]}
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        done = run_geval("run", "suite.yaml", "-o", "out.json", cwd=tmp_path)
    [case] = json.loads((tmp_path / "out.json").read_text())["results"]
    [verdict] = case["assertions"]
    assert (verdict["detail"]["estimator"], round(verdict["detail"]["rating"], 3)) == ("logprobs", 4.0), done
