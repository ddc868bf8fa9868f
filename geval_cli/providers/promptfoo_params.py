"""Which parameters promptfoo sends to a model: what it adds to those of a config, and which of them it leaves out.

What it adds is not the user's: a model that refuses it is asked without it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from geval_cli.patterns import compile_later
from geval_cli.providers.base import TEXT, kind_of
from geval_cli.providers.options import ENDPOINT_KEYS, SET_BY_GEVAL
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS
from geval_cli.records import JsonValue
from geval_cli.specs.base import ProviderSpec
from geval_cli.templating.js_text import js_json

ENV_NAMES = (
    "OPENAI_TEMPERATURE",
    "OPENAI_MAX_TOKENS",
    "OPENAI_MAX_COMPLETION_TOKENS",
    "OPENAI_TOP_P",
    "OPENAI_PRESENCE_PENALTY",
    "OPENAI_FREQUENCY_PENALTY",
    "ANTHROPIC_TEMPERATURE",
    "ANTHROPIC_MAX_TOKENS",
)
"""The environment variables that change what is added."""

_MAX_TOKENS = 1024
_MAX_TOKENS_OF_THINKERS = 2048
_CACHING = frozenset({"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"})
_CHAT = _CACHING | {
    "seed", "functions", "function_call", "tools", "tool_choice", "tool_resources", "response_format", "stop",
    "service_tier", "user", "metadata", "store",
}  # fmt: skip
_CHAT_OF: Mapping[str, frozenset[str]] = {
    "groq": frozenset({"reasoning_format", "include_reasoning", "compound_custom", "search_settings"}),
    "openrouter": frozenset({"transforms", "models", "route", "provider"}),
    "xai": frozenset({"search_parameters"}),
    "perplexity": frozenset(
        {
            "search_domain_filter", "search_recency_filter", "return_related_questions", "return_images",
            "search_after_date_filter", "search_before_date_filter", "web_search_options",
        }
    ),
}  # fmt: skip
"""What single vendors are sent besides."""
_RESPONSES = _CACHING | {
    "instructions", "tools", "tool_choice", "max_tool_calls", "include", "previous_response_id", "response_format",
    "truncation", "metadata", "parallel_tool_calls", "store", "background", "webhook_url", "user", "service_tier",
}  # fmt: skip
_AZURE = frozenset(
    {
        "seed", "functions", "function_call", "tools", "tool_choice", "deployment_id", "dataSources", "data_sources",
        "response_format", "stop",
    }
)  # fmt: skip
_MISTRAL = frozenset(
    {
        "temperature", "frequency_penalty", "presence_penalty", "stop", "safe_prompt", "random_seed", "prompt_mode",
        "reasoning_effort", "prompt_cache_key", "prediction", "metadata", "guardrails", "tools", "tool_choice",
        "parallel_tool_calls", "response_format",
    }
)  # fmt: skip
_CLAUDE = frozenset({"cache_control", "service_tier", "stop_sequences", "metadata", "tools", "tool_choice"})

_OPEN = frozenset({"together", "cerebras", "cloudflare-ai"})
"""Vendors that are sent every parameter that a config has."""
_AS_THEY_ARE = frozenset({"google", "vertex", "ollama", "vllm"})
"""Vendors for which nothing is added, and whose parameters are geval's to write."""
_WITHOUT_DEFAULTS = frozenset({"litellm"})
_OWN = frozenset(spelling for key in ENDPOINT_KEYS for spelling in key.spellings) | SET_BY_GEVAL.keys()

_O_SERIES = compile_later(r"(?:^|/)o[134]")
_GPT5 = compile_later(r"^gpt-5|/gpt-5")
_ASTRA = compile_later(r"(?:^|[/-])gpt-6-astra(?:-|$)")
_OTHER_REASONERS = compile_later(r"(?:^|/)gpt-daybreak-(?:blue|red)-latest$")
_REASONERS_ON_AZURE = compile_later(
    r"(?:^|-)(?:o[134]|gpt-5)|deepseek[-_]r1|phi-4-(?:mini-)?reasoning|mai-(?:thinking|ds-r1|reasoning)"
    r"|grok.*reasoning|reasoning.*grok"
)
_GROK_REASONERS = compile_later(r"^grok-(?:3-mini|[4-9]|code-fast|build|latest)(?!.*non-reasoning)")
_GROKS_WITH_EFFORT = compile_later(r"^grok-(?:3-mini|4\.[356]|(?:build-)?latest)")
_GROK_4_OR_NEWER = compile_later(r"grok-(?:[4-9]|\d{2,})")

_BEFORE, _AFTER = r"(?:^|[^a-z0-9])", r"(?![a-z0-9])"
_ALWAYS_THINKS = compile_later(rf"{_BEFORE}claude-(?:fable|mythos)-5{_AFTER}", re.I)
_THINKS_UNASKED = compile_later(rf"{_BEFORE}claude-(?:opus|sonnet)-5{_AFTER}", re.I)
_EFFORT_FORBIDS_OFF = compile_later(rf"{_BEFORE}claude-opus-5{_AFTER}", re.I)
_TAKES_NO_SAMPLING = compile_later(
    rf"{_BEFORE}claude-(?:opus-4-[78](?!\d)|[a-z][a-z0-9]*(?:-[a-z][a-z0-9]*){{0,4}}-(?:[5-9]|[1-9]\d){_AFTER})",
    re.I,
)
_TAKES_NO_SAMPLING_ON_AZURE = compile_later(
    rf"{_BEFORE}claude-(?:opus-4-[78](?!\d)|(?:opus|sonnet|fable|mythos)-5{_AFTER})", re.I
)
_LOWEST_TOP_P_OF_THINKERS = 0.95


PromptForm = Literal["chat", "json", "lines"]


def prompt_form(spec: ProviderSpec) -> PromptForm:
    """Return how promptfoo reads a prompt for a model.

    As a `chat` in JSON or YAML; as one in `json` or else a plain text; or, for Claude, as one in JSON or else by the
    `lines` that begin with a role.
    """
    kind, _, name = spec.id.partition(":")
    if kind == "anthropic":
        return "lines"
    return "json" if kind in PRESETS and name.startswith("responses:") else "chat"


def calls_as_output(spec: ProviderSpec, text: str) -> JsonValue:
    """Return an answer of nothing but calls of tools as promptfoo gives it: data, or texts of JavaScript's JSON."""
    kind = spec.id.partition(":")[0]
    if prompt_form(spec) == "json" or not text.startswith(("[", "{")):
        return text
    values: list[JsonValue] = []
    place = 0
    try:
        while place < len(text):
            value, place = _DECODER.raw_decode(text, place)
            values.append(value)
    except (ValueError, RecursionError):
        return text
    if kind == "anthropic":
        blocks = values[0] if isinstance(values[0], list) else values
        return "\n\n".join(js_json(block) for block in blocks)
    return values if kind in _LISTS_OF_PARTS else values[0]


_DECODER = json.JSONDecoder()
_LISTS_OF_PARTS = {"google", "vertex", "palm"}


def promptfoo_params(
    spec: ProviderSpec, written: Mapping[str, Any], env: Mapping[str, str]
) -> dict[str, JsonValue]:
    """Return the parameters that differ from those that are `written`: what is added or changed, None for left out.

    Args:
        spec: of the provider. What its config has under `passthrough` is sent as it is.
        written: the parameters of the config, the prompt and the test.
        env: values of `ENV_NAMES`.
    """
    written_kind, _, name = spec.id.partition(":")
    kind = KIND_ALIASES.get(written_kind.lower(), written_kind.lower())
    if kind not in PRESETS or kind in _AS_THEY_ARE or kind_of(spec.id) != TEXT:
        return {}
    mode, separator, rest = name.partition(":")
    model = rest if separator and mode in {"chat", "messages", "responses"} else name
    given = {key: value for key, value in written.items() if value is not None and key not in _OWN}
    if mode == "responses" and separator:
        sent = _responses(model, given, env)
    elif kind == "anthropic":
        sent = _claude(model, given, env)
    elif kind == "azure":
        sent = _azure(model, given, env)
    elif kind == "mistral":
        sent = {"top_p": 1, "max_tokens": _MAX_TOKENS, **_picked(given, _MISTRAL | {"top_p", "max_tokens"})}
    elif kind == "cohere":
        sent = {"temperature": 0.3, "top_p": 0.75, "frequency_penalty": 0, "presence_penalty": 0, **given}
    else:
        sent = _chat(kind, model, given, env)
    as_it_is = spec.config.get("passthrough") or {}
    found = {key: value for key, value in sent.items() if given.get(key) != value or key not in given}
    found |= dict.fromkeys(given.keys() - sent.keys())
    return {key: value for key, value in found.items() if key not in as_it_is}


def _chat(kind: str, model: str, given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    plain = re.sub(r"(^|/)ft:", r"\1", model)
    reasons = _reasons(plain)
    takes_temperature = not reasons
    if kind == "groq" and ("gpt-oss" in model or "qwen" in model):
        reasons = takes_temperature = True
    elif kind == "xai":
        reasons, takes_temperature = bool(_GROK_REASONERS.search(model)), True
    sent = _picked(given, _CHAT | _CHAT_OF.get(kind, frozenset()))
    if kind in _OPEN:
        sent |= given
    is_bare = kind in _WITHOUT_DEFAULTS or bool(given.get("omitDefaults"))
    sent.pop("omitDefaults", None)
    sampling = _penalties(given, env)
    if takes_temperature:
        sampling["temperature"] = given.get(
            "temperature", _number(env, "OPENAI_TEMPERATURE", None if is_bare else 0)
        )
    if reasons:
        sampling["max_completion_tokens"] = given.get(
            "max_completion_tokens", _whole(env, "OPENAI_MAX_COMPLETION_TOKENS")
        )
    elif not (kind in _OPEN and "max_completion_tokens" in given):
        default = None if is_bare else _MAX_TOKENS
        sampling["max_tokens"] = given.get("max_tokens", _whole(env, "OPENAI_MAX_TOKENS", default))
    sent |= _known(sampling)
    takes_effort = bool(_GROKS_WITH_EFFORT.search(model)) if kind == "xai" else reasons or "gpt-oss" in plain
    if takes_effort:
        sent |= _picked(given, {"reasoning_effort"})
    if _O_SERIES.search(plain):
        sent |= _picked(given, {"reasoning"})
    if _GPT5.search(plain) or _ASTRA.search(plain):
        sent |= _picked(given, {"verbosity"})
    if "audio" in plain:
        sent |= {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
        sent |= _picked(given, {"modalities", "audio"})
    if _ASTRA.search(plain):
        sent = {key: value for key, value in sent.items() if key != "top_p"}
    if kind == "xai" and _GROK_4_OR_NEWER.search(model):
        sent = {key: value for key, value in sent.items() if not key.endswith("_penalty") and key != "stop"}
    return sent


def _responses(model: str, given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    reasons = _reasons(re.sub(r"(^|/)ft:", r"\1", model)) or model == "codex-mini-latest"
    sent = {**_picked(given, _RESPONSES), **_for_responses(given)}
    is_bare = bool(given.get("omitDefaults"))
    if reasons:
        limit = _whole(env, "OPENAI_MAX_COMPLETION_TOKENS", _whole(env, "OPENAI_MAX_TOKENS"))
        sent |= _picked(given, {"reasoning", "reasoning_effort"})
    else:
        limit = _whole(env, "OPENAI_MAX_TOKENS", None if is_bare else _MAX_TOKENS)
        temperature = _number(env, "OPENAI_TEMPERATURE", None if is_bare else 0)
        sent |= _known({"temperature": given.get("temperature", temperature)})
    sent |= _known({"max_output_tokens": given.get("max_output_tokens", limit)})
    reasoning = given.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else None
    if not reasons or (effort or given.get("reasoning_effort") or "none") == "none":
        sent |= _known({"top_p": given.get("top_p", _number(env, "OPENAI_TOP_P"))})
    if _GPT5.search(model) or _ASTRA.search(model):
        sent |= _picked(given, {"verbosity"})
    if _ASTRA.search(model):
        sent.pop("top_p", None)
    return sent


def _functions(tools: Any) -> list[Mapping[str, Any]]:
    """Return the functions of tools in the form of the chat API; none for tools in any other form."""
    found = (
        [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
        if isinstance(tools, list)
        else []
    )
    return [item for item in found if isinstance(item, Mapping) and "name" in item]


def _for_responses(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return tools and the form of the answer as promptfoo writes them for the Responses API."""
    changed: dict[str, Any] = {}
    if _functions(given.get("tools")):
        changed["tools"] = [
            {**{key: value for key, value in tool.items() if key != "function"}, **tool["function"]}
            if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
            else tool
            for tool in given["tools"]
        ]
    choice = given.get("tool_choice")
    if isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
        changed["tool_choice"] = {"type": "function", "name": choice["function"].get("name")}
    form = given.get("response_format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        inner = form.get("json_schema")
        if isinstance(inner, Mapping):
            changed["response_format"] = {**form, "json_schema": {**inner, "strict": True}}
        else:
            changed["response_format"] = {**form, "strict": True}
    return changed


def _for_claude(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tools in Claude's form that a config has in that of the chat API."""
    changed: dict[str, Any] = {}
    functions = _functions(given.get("tools"))
    if functions and len(functions) == len(given["tools"]):
        nothing = {"type": "object", "properties": {}}
        changed["tools"] = [
            {
                **_picked(function, {"name", "description"}),
                "input_schema": function.get("parameters") or nothing,
            }
            for function in functions
        ]
    choice = given.get("tool_choice")
    if isinstance(choice, str) and choice in _CHOICES:
        changed["tool_choice"] = {"type": _CHOICES[choice]}
    elif isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
        changed["tool_choice"] = {"type": "tool", "name": choice["function"].get("name")}
    return changed


_CHOICES = {"required": "any", "auto": "auto", "none": "none"}


def _azure(model: str, given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    named = str(given.get("modelName") or model).lower()
    declared = given.get("isReasoningModel") or given.get("o1")
    reasons = bool(declared or _REASONERS_ON_AZURE.search(named) or _ASTRA.search(named))
    is_bare = bool(given.get("omitDefaults"))
    takes_sampling = not (given.get("isClaudeOpus47OrLater") or _TAKES_NO_SAMPLING_ON_AZURE.search(named))
    is_grok = bool(_GROK_4_OR_NEWER.search(model.lower()))
    limit = given.get("max_tokens", _whole(env, "OPENAI_MAX_TOKENS", None if is_bare else _MAX_TOKENS))
    sent = _picked(given, _AZURE - {"stop"} if is_grok else _AZURE)
    if reasons:
        newer = given.get("max_completion_tokens", _whole(env, "OPENAI_MAX_COMPLETION_TOKENS", limit))
        effort = given.get("reasoning_effort", None if is_bare else "medium")
        sent |= _known({"max_completion_tokens": newer, "reasoning_effort": effort})
    else:
        temperature = given.get("temperature", _number(env, "OPENAI_TEMPERATURE", None if is_bare else 0))
        sent |= _known({"max_tokens": limit, "temperature": temperature if takes_sampling else None})
        if is_grok:
            sent |= _picked(given, {"reasoning_effort"})
    rest = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
    rest = {} if is_bare else rest
    rest |= _penalties(given, env)
    if not takes_sampling:
        rest.pop("top_p", None)
    if is_grok:
        rest = _picked(rest, {"top_p"})
    return sent | rest


def _claude(model: str, given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    sent = {**_picked(given, _CLAUDE), **_for_claude(given)}
    always_thinks, takes_sampling = (
        bool(_ALWAYS_THINKS.search(model)),
        not _TAKES_NO_SAMPLING.search(model),
    )
    effort = given.get("effort")
    thinking: Any = given.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind == "enabled" and not takes_sampling:
        thinking = {"type": "adaptive", **_picked(thinking, {"display"})}
    elif kind == "disabled" and (
        always_thinks or (effort in {"xhigh", "max"} and _EFFORT_FORBIDS_OFF.search(model))
    ):
        thinking = None
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    thinks = always_thinks or kind in {"enabled", "adaptive"}
    spends = thinks or (thinking is None and bool(_THINKS_UNASKED.search(model)))
    default = _MAX_TOKENS_OF_THINKERS if spends else _MAX_TOKENS
    limit = given.get("max_tokens", _whole(env, "ANTHROPIC_MAX_TOKENS", default))
    budget = thinking.get("budget_tokens") if kind == "enabled" else None
    if isinstance(budget, int) and isinstance(limit, int) and limit <= budget:
        limit = budget + 1024
    top_p = given.get("top_p")
    if thinks and isinstance(top_p, int | float):
        top_p = max(_LOWEST_TOP_P_OF_THINKERS, min(1, top_p))
    sent |= _known({"max_tokens": limit, "thinking": thinking})
    if takes_sampling:
        sent |= _known({"top_p": top_p, "top_k": None if thinks else given.get("top_k")})
        if top_p is None and not thinks:
            sent["temperature"] = given.get("temperature", _number(env, "ANTHROPIC_TEMPERATURE", 0))
    output = _known({"format": given.get("output_format"), "effort": effort})
    if output:
        sent["output_config"] = output
    extra = given.get("extra_body")
    return {**sent, **extra} if isinstance(extra, Mapping) else sent


def _reasons(model: str) -> bool:
    return any(pattern.search(model) for pattern in (_O_SERIES, _GPT5, _ASTRA, _OTHER_REASONERS))


def _penalties(given: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    names = ("top_p", "presence_penalty", "frequency_penalty")
    return _known({name: given.get(name, _number(env, f"OPENAI_{name.upper()}")) for name in names})


def _picked(values: Mapping[str, Any], names: frozenset[str] | set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


_NUMBER = compile_later(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_WHOLE = compile_later(r"\s*([+-]?\d+)")


def _number(env: Mapping[str, str], name: str, default: float | None = None) -> float | None:
    """Return the number that a variable begins with, as JavaScript reads it."""
    found = _NUMBER.match(env.get(name, ""))
    if found is None:
        return default
    number = float(found[1])
    return int(number) if number.is_integer() else number


def _whole(env: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    found = _WHOLE.match(env.get(name, ""))
    return default if found is None else int(found[1])
