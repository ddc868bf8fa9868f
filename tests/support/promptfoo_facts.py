"""Which parameters promptfoo 0.123.1 sends to a model, depending on its id, its config and the environment.

Each fact was recorded from promptfoo itself, except for vendors whose URL a config cannot change: those are in
`IS_READ`. If promptfoo is installed, `python -m benchmarks promptfoo_requests` checks them again.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Fact(NamedTuple):
    """The parameters in the body of a request; `written` is the provider's config, `env` the environment."""

    provider: str
    sent: Mapping[str, Any]
    written: Mapping[str, Any] = {}
    env: str = ""


ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "": {},
    "all": {
        "OPENAI_TEMPERATURE": "0.7",
        "OPENAI_MAX_TOKENS": "55",
        "OPENAI_MAX_COMPLETION_TOKENS": "66",
        "OPENAI_TOP_P": "0.9",
        "OPENAI_PRESENCE_PENALTY": "0.1",
        "OPENAI_FREQUENCY_PENALTY": "0.2",
        "ANTHROPIC_TEMPERATURE": "0.4",
        "ANTHROPIC_MAX_TOKENS": "99",
    },
    "odd": {
        "OPENAI_TEMPERATURE": "warm",
        "OPENAI_MAX_TOKENS": "",
        "OPENAI_TOP_P": "1.0",
        "ANTHROPIC_TEMPERATURE": "",
        "ANTHROPIC_MAX_TOKENS": "12 or so",
    },
}

USUAL = {"temperature": 0, "max_tokens": 1024}
SET = {"top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.2}
USUAL_SET = {"temperature": 0.7, "max_tokens": 55, **SET}
AZURE = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
MANY = {
    "top_k": 3,
    "max_completion_tokens": 7,
    "reasoning_effort": "low",
    "seed": 5,
    "stop": ["x"],
    "top_p": 0.5,
    "user": "u",
    "parallel_tool_calls": True,
    "verbosity": "low",
}
KEPT = {"seed": 5, "stop": ["x"], "top_p": 0.5, "user": "u"}
THINKING = {"type": "enabled", "budget_tokens": 2000}
ADAPTIVE = {"type": "adaptive"}
GROK = {"seed": 5, "top_p": 0.5, "user": "u", "max_completion_tokens": 7, "temperature": 0}

OF_CHATS = (
    "openai:gpt-4.1", "openai:chat:gpt-4o", "openai:chat:ft:gpt-4.1:org", "groq:llama-3.3-70b-versatile",
    "openrouter:openai/gpt-4.1", "openrouter:anthropic/claude-sonnet-4", "fireworks:m", "huggingface:chat:m",
    "nvidia:m", "helicone:openai/gpt-4.1", "databricks:m", "deepseek:deepseek-chat", "deepseek:deepseek-reasoner",
    "perplexity:sonar",
)  # fmt: skip
"""Models of vendors that promptfoo asks as it asks OpenAI's."""
OPEN = ("togetherai:m", "cerebras:llama3.1-8b", "cloudflare-ai:chat:m")
"""Those of which it sends every parameter."""
REASONERS = (
    "openai:o3-mini",
    "openai:o1",
    "openai:o4-mini",
    "openai:chat:ft:o3-mini:org",
    "openrouter:openai/o3",
)
IS_READ = ("deepseek:", "perplexity:", "xai:", "cohere:")

FACTS: tuple[Fact, ...] = (
    *(Fact(name, USUAL) for name in (*OF_CHATS, *OPEN)),
    *(Fact(name, USUAL_SET, env="all") for name in (*OF_CHATS, *OPEN)),
    *(Fact(name, {**USUAL, **KEPT}, MANY) for name in OF_CHATS),
    *(Fact(name, {}) for name in (*REASONERS, "openai:gpt-5", "openrouter:openai/gpt-5-mini")),
    *(Fact(name, {"max_completion_tokens": 66, **SET}, env="all") for name in (*REASONERS, "openai:gpt-5")),
    *(
        Fact(name, {**KEPT, "max_completion_tokens": 7, "reasoning_effort": "low"}, MANY)
        for name in REASONERS
    ),
    Fact(
        "openai:gpt-5",
        {**KEPT, "max_completion_tokens": 7, "reasoning_effort": "low", "verbosity": "low"},
        MANY,
    ),
    Fact("openai:gpt-5", {}, {"max_tokens": 5, "temperature": 0.5}),
    Fact(
        "openai:gpt-4.1",
        {"temperature": 0.5, "max_tokens": 5, **SET},
        {"temperature": 0.5, "max_tokens": 5},
        "all",
    ),
    Fact("openai:gpt-4.1", {**USUAL, "top_p": 1}, env="odd"),
    Fact("openai:gpt-4.1", {}, {"omitDefaults": True}),
    Fact("openai:gpt-4.1", {**USUAL, "top_k": 3, "logprobs": True}, {"passthrough": {"top_k": 3, "logprobs": True}}),
    Fact("openai:gpt-4.1", {"temperature": 0.5, "max_tokens": 1024}, {"passthrough": {"temperature": 0.5}}),
    Fact("openai:chat:gpt-oss-20b", {**USUAL, **KEPT, "reasoning_effort": "low"}, MANY),
    Fact("groq:openai/gpt-oss-120b", {"temperature": 0}),
    Fact("groq:qwen/qwen3-32b", {"temperature": 0.7, "max_completion_tokens": 66, **SET}, env="all"),
    Fact("litellm:gpt-4.1", {}),
    Fact("litellm:o3", {}),
    Fact("litellm:gpt-4.1", USUAL_SET, env="all"),
    Fact("litellm:gpt-4.1", KEPT, MANY),
    Fact("mistral:mistral-large-latest", {"top_p": 1, "max_tokens": 1024}),
    Fact("mistral:mistral-large-latest", {"top_p": 1, "max_tokens": 1024}, env="all"),
    Fact(
        "mistral:mistral-large-latest",
        {"top_p": 0.5, "max_tokens": 9, "temperature": 0.5, "random_seed": 4, "safe_prompt": True},
        {"top_p": 0.5, "max_tokens": 9, "temperature": 0.5, "random_seed": 4, "safe_prompt": True, "top_k": 3},
    ),
    Fact("google:gemini-2.5-flash", {}),
    Fact("google:gemini-2.5-flash", {}, env="all"),
    Fact("azure:chat:dep", {**USUAL, **AZURE}),
    Fact("azure:chat:dep", USUAL_SET, env="all"),
    Fact("azure:chat:dep", {**USUAL, **AZURE, "seed": 5, "stop": ["x"], "top_p": 0.5}, MANY),
    Fact("azure:chat:o3", {"reasoning_effort": "medium", "max_completion_tokens": 1024, **AZURE}),
    Fact("azure:chat:gpt-5", {"reasoning_effort": "medium", "max_completion_tokens": 66, **SET}, env="all"),
    Fact("azure:chat:grok-4", {**USUAL, "top_p": 1}),
    Fact("azure:chat:claude-opus-4-7", {"max_tokens": 1024, "presence_penalty": 0, "frequency_penalty": 0}),
    Fact("azure:responses:dep", {"temperature": 0, "max_output_tokens": 1024}),
    Fact("openai:responses:gpt-4.1", {"temperature": 0, "max_output_tokens": 1024}),
    Fact("openai:responses:gpt-4.1", {"temperature": 0.7, "max_output_tokens": 55, "top_p": 0.9}, env="all"),
    Fact(
        "openai:responses:gpt-4.1",
        {"temperature": 0, "max_output_tokens": 1024, "top_p": 0.5, "parallel_tool_calls": True, "user": "u"},
        MANY,
    ),
    Fact("openai:responses:gpt-4.1", {"temperature": 0, "max_output_tokens": 1024}, {"max_tokens": 5}),
    Fact("openai:responses:gpt-4.1", {"temperature": 0, "max_output_tokens": 5}, {"max_output_tokens": 5}),
    Fact("openai:responses:gpt-5", {}),
    Fact("openai:responses:gpt-5", {"max_output_tokens": 66, "top_p": 0.9}, env="all"),
    Fact(
        "openai:responses:gpt-5",
        {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "parallel_tool_calls": True, "user": "u"},
        MANY,
    ),
    Fact("openai:responses:codex-mini-latest", {}),
    Fact("anthropic:claude-sonnet-4-5", USUAL),
    Fact("anthropic:messages:claude-3-haiku-20240307", USUAL),
    Fact("anthropic:claude-sonnet-4-5", {"temperature": 0.4, "max_tokens": 99}, env="all"),
    Fact("anthropic:claude-sonnet-4-5", {"temperature": 0, "max_tokens": 12}, env="odd"),
    Fact("anthropic:claude-sonnet-4-5", {"max_tokens": 1024, "top_p": 0.5, "top_k": 3}, MANY),
    Fact("anthropic:claude-sonnet-4-5", {"max_tokens": 2048, "thinking": THINKING}, {"thinking": THINKING}),
    Fact(
        "anthropic:claude-sonnet-4-5",
        {"max_tokens": 3024, "thinking": THINKING},
        {"thinking": THINKING, "max_tokens": 1000},
    ),
    Fact(
        "anthropic:claude-sonnet-4-5",
        {"max_tokens": 5000, "thinking": THINKING, "top_p": 0.95},
        {"thinking": THINKING, "max_tokens": 5000, "temperature": 1, "top_p": 0.5, "top_k": 3},
    ),
    Fact(
        "anthropic:claude-sonnet-4-5",
        {**USUAL, "thinking": {"type": "disabled"}},
        {"thinking": {"type": "disabled"}},
    ),
    Fact("anthropic:claude-sonnet-4-5", {**USUAL, "output_config": {"effort": "low"}}, {"effort": "low"}),
    Fact("anthropic:claude-sonnet-4-5", {**USUAL, "top_k": 9}, {"extra_body": {"top_k": 9}}),
    Fact("anthropic:claude-opus-4-7", {"max_tokens": 1024}),
    Fact("anthropic:claude-opus-4-7", {"max_tokens": 1024}, {"temperature": 0.5, "top_p": 0.5}),
    Fact("anthropic:claude-opus-4-7", {"max_tokens": 2048, "thinking": ADAPTIVE}, {"thinking": THINKING}),
    Fact("anthropic:claude-opus-5", {"max_tokens": 2048}),
    Fact(
        "anthropic:claude-opus-5",
        {"max_tokens": 1024, "thinking": {"type": "disabled"}},
        {"thinking": {"type": "disabled"}},
    ),
    Fact("anthropic:claude-opus-5", {"max_tokens": 99}, env="all"),
    Fact("xai:grok-3", USUAL),
    Fact("xai:grok-4", {"temperature": 0}),
    Fact("xai:grok-4", GROK, MANY),
    Fact("xai:grok-3-mini", {**GROK, "stop": ["x"], "reasoning_effort": "low"}, MANY),
    Fact("xai:grok-4.5", {**GROK, "reasoning_effort": "low"}, MANY),
    Fact("xai:grok-4-fast-non-reasoning", USUAL),
    Fact(
        "cohere:command-a-03-2025",
        {"temperature": 0.3, "top_p": 0.75, "frequency_penalty": 0, "presence_penalty": 0},
    ),
)  # fmt: skip

_NO_VERSION = ("anthropic:", "google:")


def write_config(folder: Path, facts: Iterable[Fact], url: str) -> Path:
    """Write a config with the providers of `facts`; the n-th one is called at `/fn` of a server's URL."""
    providers = []
    for number, fact in enumerate(facts):
        base_url = f"{url}/f{number}" + ("" if fact.provider.startswith(_NO_VERSION) else "/v1")
        config = {**fact.written, "apiBaseUrl": base_url, "apiKey": "sk-test"}
        if fact.provider.startswith("cloudflare-ai:"):
            config["accountId"] = "a"
        if fact.provider.startswith("databricks:"):
            config["workspaceUrl"] = base_url
        if fact.provider.startswith("helicone:"):
            config["baseUrl"] = base_url
        if fact.provider.startswith("azure:"):
            config["apiHost"] = url.removeprefix("http://")
        providers.append({"id": fact.provider, "label": f"f{number}", "config": config})
    path = folder / "promptfooconfig.yaml"
    content = {"prompts": ["Say hi to {{x}}"], "providers": providers, "tests": [{"vars": {"x": "Ann"}}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def number_of(path: str) -> int:
    """Return the number of the fact whose provider got a request."""
    return int(path.split("/")[1].removeprefix("f"))


def parameters_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in a body, without the defaults of the API."""
    spoken = {"model", "messages", "input", "contents", "system", "stream"}
    found = {name: value for name, value in body.items() if name not in spoken and value not in (None, {})}
    text = {name: value for name, value in found.pop("text", {}).items() if value != {"type": "text"}}
    return {**found, "text": text} if text else found
