"""The parameters of each API: those it names differently from the chat API, and those it does not support."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct

from geval_cli.errors import Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.wire.token_usage import LIMITS


class WireParameters(Struct, frozen=True):
    """The parameters of one API.

    Attributes:
        names: the API's names for parameters that configs may write with other APIs' names.
        absent: other APIs' parameters that this one has no equivalent for, and what to do instead.
        same: groups of names with the same meaning here; a config may use only one of each group.
    """

    names: Mapping[str, tuple[str, ...]] = {}  # msgspec copies it
    absent: Mapping[str, str] = {}
    same: tuple[tuple[str, ...], ...] = ()


CHAT_API = WireParameters(names={"logprobs": ("top_logprobs",)})

RESPONSES_API = WireParameters(
    names={
        "response_format": ("text.format",),
        "verbosity": ("text.verbosity",),
        "reasoning_effort": ("reasoning.effort", "reasoning"),
        "logprobs": ("include", "top_logprobs", "message.output_text.logprobs"),
        **dict.fromkeys(LIMITS, ("max_output_tokens",)),
    },
    same=(
        LIMITS,
        ("reasoning_effort", "reasoning.effort"),
        ("verbosity", "text.verbosity"),
        ("response_format", "text.format"),
    ),
)

ANTHROPIC_API = WireParameters(
    names={
        "response_format": ("output_config.format", "output_format"),
        "reasoning_effort": ("output_config.effort", "effort"),
        "effort": ("output_config.effort",),
        "stop": ("stop_sequences",),
        **dict.fromkeys(LIMITS, ("max_tokens",)),
    },
    absent={
        "seed": "leave it out",
        "random_seed": "leave it out",
        "logprobs": "leave it out",
        "top_logprobs": "leave it out",
    },
    same=(
        LIMITS,
        ("stop", "stop_sequences", "stopSequences"),
        ("reasoning_effort", "effort", "output_config.effort"),
        ("response_format", "output_config.format"),
    ),
)

GOOGLE_API = WireParameters(
    names={
        "max_tokens": ("maxOutputTokens",),
        "max_completion_tokens": ("maxOutputTokens",),
        "max_output_tokens": ("maxOutputTokens",),
        "top_p": ("topP",),
        "top_k": ("topK",),
        "stop": ("stopSequences",),
        "stop_sequences": ("stopSequences",),
        "random_seed": ("seed",),
        "presence_penalty": ("presencePenalty",),
        "frequency_penalty": ("frequencyPenalty",),
        "response_format": ("responseMimeType", "responseJsonSchema", "responseSchema"),
        "logprobs": ("responseLogprobs", "logprobs"),
        "top_logprobs": ("logprobs",),
        "reasoning_effort": ("thinkingConfig", "thinkingLevel", "thinkingBudget"),
    },
    same=(
        (*LIMITS, "generationConfig.maxOutputTokens"),
        ("stop", "stop_sequences", "stopSequences", "generationConfig.stopSequences"),
        ("top_p", "topP", "generationConfig.topP"),
        ("top_k", "topK", "generationConfig.topK"),
        ("seed", "random_seed", "generationConfig.seed"),
        ("temperature", "generationConfig.temperature"),
        ("presence_penalty", "presencePenalty", "generationConfig.presencePenalty"),
        ("frequency_penalty", "frequencyPenalty", "generationConfig.frequencyPenalty"),
        ("reasoning_effort", "thinkingConfig", "generationConfig.thinkingConfig"),
        (
            "response_format",
            "responseSchema",
            "generationConfig.responseSchema",
            "generationConfig.responseJsonSchema",
        ),
        ("response_format", "responseJsonSchema"),
        ("response_format", "responseMimeType", "generationConfig.responseMimeType"),
    ),
)

CONVERSE_API = WireParameters(
    names={
        **dict.fromkeys(LIMITS, ("inferenceConfig.maxTokens", "maxTokens")),
        "temperature": ("inferenceConfig.temperature",),
        "top_p": ("inferenceConfig.topP", "topP"),
        "stop": ("inferenceConfig.stopSequences", "stopSequences"),
        "stop_sequences": ("inferenceConfig.stopSequences", "stopSequences"),
        "response_format": ("outputConfig.textFormat", "outputConfig", "textFormat", "output_config.format"),
        "reasoning_effort": ("outputConfig.effort", "output_config.effort"),
        "effort": ("outputConfig.effort", "output_config.effort"),
        "tools": ("toolConfig", "toolConfig.tools"),
        "tool_choice": ("toolConfig.toolChoice", "toolChoice"),
        "service_tier": ("serviceTier",),
    },
    absent={
        "logprobs": "leave it out",
        "top_logprobs": "leave it out",
    },
    same=(
        (*LIMITS, "maxTokens", "inferenceConfig.maxTokens"),
        ("temperature", "inferenceConfig.temperature"),
        ("top_p", "topP", "inferenceConfig.topP"),
        ("stop", "stop_sequences", "stopSequences", "inferenceConfig.stopSequences"),
        ("reasoning_effort", "effort", "outputConfig.effort"),
        ("response_format", "outputConfig.textFormat"),
        ("tool_choice", "toolChoice", "toolConfig.toolChoice"),
        ("service_tier", "serviceTier"),
        ("guardrailIdentifier", "guardrailConfig"),
        ("guardrailVersion", "guardrailConfig"),
    ),
)

_BY_WIRE: Mapping[str, WireParameters] = {
    "anthropic": ANTHROPIC_API,
    "google": GOOGLE_API,
    "converse": CONVERSE_API,
}


def check_parameters(
    source: ProviderSource, wire: str, *, is_responses: bool = False, told: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield a problem for each parameter that cannot be sent to the API as written: none may be dropped silently.

    `told` names the parameters that another check has already reported on.
    """
    table = RESPONSES_API if is_responses else _BY_WIRE.get(wire, CHAT_API)
    config = {name: value for name, value in source.spec.config.items() if name not in told}
    severity = source.rules.odd_params
    for name, advice in table.absent.items():
        if config.get(name) is not None:
            message = f"`{name}` is not sent: {source.kind} has no such parameter"
            yield source.problem(message, key=name, hint=advice, severity=severity)
    for spellings in table.same:
        found = [name for name in spellings if _value_at(config, name) is not None]
        if len(found) > 1:
            both = " and ".join(f"`{name}`" for name in found)
            yield source.problem(
                f"{both} mean the same: keep one", key=found[1].partition(".")[0], severity=severity
            )
    if is_responses or wire in _BY_WIRE:
        yield from _translations(source, config, wire)


def parameters_of(source: ProviderSource, written: Mapping[str, Any], wire: str) -> dict[str, Any]:
    """Return the parameters in `written` that are sent: all but those that the API does not support.

    Parameters under `passthrough` are sent in any case.
    """
    absent = _BY_WIRE.get(wire, CHAT_API).absent
    as_it_is = source.spec.config.get("passthrough") or {}
    return {name: value for name, value in written.items() if name not in absent or name in as_it_is}


def _translations(source: ProviderSource, config: Mapping[str, Any], wire: str) -> Iterator[Problem]:
    """Yield a problem for each value that this API writes differently and that cannot be translated."""
    for name in ("reasoning_effort", "response_format"):
        mistake = ""
        if wire == "anthropic" and config.get(name) is not None:
            mistake = (
                effort_mistake(config[name]) if name == "reasoning_effort" else format_mistake(config[name])
            )
        elif wire == "google" and name == "reasoning_effort" and config.get(name) is not None:
            mistake = gemini_effort_mistake(config[name], source.name)
        elif wire == "converse" and name == "response_format" and config.get(name) is not None:
            mistake = converse_format_mistake(config[name])
        if mistake:
            what, _, hint = mistake.partition("; ")
            yield source.problem(f"`{name}`: {what}", key=name, hint=hint, severity=source.rules.odd_params)
    if wire == "anthropic":
        budget = thinking_budget(config)
        limit = next((config[name] for name in LIMITS if config.get(name) is not None), None)
        if budget is not None and isinstance(limit, int) and limit <= budget:
            yield source.problem(
                f"`thinking.budget_tokens` ({budget}) must be less than `max_tokens` ({limit})",
                key="thinking",
                hint="raise `max_tokens`, which includes thinking, or leave it out",
            )


def _value_at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def thinking_budget(settings: Mapping[str, Any]) -> int | None:
    """Return the thinking budget in tokens of a `thinking` setting in Claude's old form; None when there is none."""
    thinking = settings.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) and not isinstance(budget, bool) else None


_CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def effort_mistake(effort: Any) -> str:
    """Return why Claude does not have this effort and, after a semicolon, what to do; empty when it does."""
    if effort in _CLAUDE_EFFORTS:
        return ""
    if effort == "none":
        return "Claude has no effort `none`; to turn thinking off, write `thinking: {type: disabled}`"
    return f"Claude has no effort `{str(effort)[:40]}`; write one of {', '.join(_CLAUDE_EFFORTS)}"


def format_mistake(written: Any) -> str:
    """Return why a `response_format` cannot be enforced with Claude, and what to do; empty when it can."""
    if isinstance(written, Mapping):
        if written.get("type") == "text" or schema_of(written) is not None:
            return ""
        if written.get("type") == "json_object":
            return (
                "Anthropic's API has no plain JSON mode; write type `json_schema` with a schema,"
                " or have the prompt ask for JSON"
            )
    return "it has no JSON Schema; write {type: json_schema, json_schema: {schema: ...}}"


def converse_format_mistake(written: Any) -> str:
    """Return why a `response_format` cannot be enforced with a Bedrock model, and what to do; empty when it can."""
    mistake = format_mistake(written)
    return mistake.replace("Anthropic's API", "Bedrock's Converse API")


def schema_of(written: Any) -> Mapping[str, Any] | None:
    """Return the JSON Schema in a `response_format`, in the form of the chat API or of the Responses API."""
    if not isinstance(written, Mapping) or written.get("type") != "json_schema":
        return None
    inner = written.get("json_schema")
    schema = (inner if isinstance(inner, Mapping) else written).get("schema")
    return schema if isinstance(schema, Mapping) else None


_GEMINI = compile_later(r"gemini-(\d+)")
_FIRST_WITH_LEVELS = 3
_BUDGETS = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
"""The token budgets that Google itself uses to translate `reasoning_effort` for Gemini 2.5."""
_LEVELS = ("minimal", "low", "medium", "high", "xhigh")


def gemini_thinking(effort: Any, model: str) -> dict[str, Any]:
    """Return the `thinkingConfig` for an effort: a budget for Gemini before 3, else a level of the same name."""
    if _takes_budget(model):
        return {"thinkingBudget": _BUDGETS[effort]}
    return {"thinkingLevel": str(effort)}


def gemini_effort_mistake(effort: Any, model: str) -> str:
    """Return why a Gemini model does not have this effort, and what to do; empty when it may have it."""
    known: Collection[str] = _BUDGETS if _takes_budget(model) else _LEVELS
    if isinstance(effort, str) and effort in known:
        return ""
    if effort == "none":
        return f"{model} always thinks; write `minimal`"
    return f"{model} has no effort `{str(effort)[:40]}`; write one of {', '.join(known)}"


def _takes_budget(model: str) -> bool:
    found = _GEMINI.search(model)
    return found is not None and int(found[1]) < _FIRST_WITH_LEVELS


_CLAUDE = compile_later(r"claude-[a-z]+-(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_OLD_CLAUDE = compile_later(r"claude-(?:instant|[23])")
_WITHOUT_SAMPLING = (4, 7)
_WITH_SCHEMAS = (4, 1)


def takes_sampling(model: str) -> bool:
    """Return whether a model may accept temperature, top_p and top_k: Claude 4.7 and later refuse all of them."""
    version = _claude_version(model)
    return "claude-mythos-preview" not in model and (version is None or version < _WITHOUT_SAMPLING)


def takes_schema(model: str) -> bool:
    """Return whether a model may accept a JSON Schema for its answer: Claude before 4.1 refuses it."""
    version = _claude_version(model)
    return not _OLD_CLAUDE.search(model) and (version is None or version >= _WITH_SCHEMAS)


def _claude_version(model: str) -> tuple[int, int] | None:
    found = _CLAUDE.search(model)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def places_of(source: ProviderSource) -> dict[str, Location]:
    """Return where the config sets each of its parameters, if it is in a file."""
    config = source.spec.config
    further = config.get("passthrough")
    paths = {name: (name,) for name in config} | {
        name: ("passthrough", name) for name in (further if isinstance(further, Mapping) else ())
    }
    found = {name: source.spec.place.value("config", *path) for name, path in paths.items()}
    return {name: place for name, place in found.items() if place is not None}
