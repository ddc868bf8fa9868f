"""The requests that promptfoo makes from prompts: text, messages and parameters.

Parameters that promptfoo adds are not the user's: if a model rejects one, the request is repeated without it.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest, Subject, Tools
from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import Rendered, render_content, template_of
from geval_cli.errors import ConfigError, Problem, Severity, TemplateError
from geval_cli.patterns import compile_later
from geval_cli.providers.base import TEXT, is_program, kind_of, takes_text
from geval_cli.providers.options import ENDPOINT_KEYS, SET_BY_GEVAL
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS
from geval_cli.records import Choice, JsonValue, Message
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec, own_env_of
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating import Templates
from geval_cli.templating.js_text import js_json, js_string

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
"""The environment variables that change the added parameters."""

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
"""Further parameters that are sent to individual vendors."""
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
"""Vendors that are sent every parameter in a config."""
_AS_THEY_ARE = frozenset({"google", "vertex", "ollama", "vllm"})
"""Vendors for which nothing is added and whose parameters geval itself writes."""
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

    `chat`: a chat in JSON or YAML, otherwise text. `json`: a chat in JSON, otherwise text. `lines`, for Claude: a chat
    in JSON, otherwise lines that may begin with a role.
    """
    kind, _, name = spec.id.partition(":")
    if kind == "anthropic":
        return "lines"
    return "json" if kind in PRESETS and name.startswith("responses:") else "chat"


def calls_as_output(spec: ProviderSpec, text: str) -> JsonValue:
    """Return an answer that has nothing but tool calls as promptfoo does: as data, or as JavaScript's JSON text."""
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
    """Return the parameters that promptfoo adds or changes, and None for those it leaves out.

    Args:
        spec: the provider. The `passthrough` of its config is sent unchanged.
        written: the parameters of the config, the prompt and the test.
        env: the values of `ENV_NAMES`.
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
        reasons = bool(_GROK_REASONERS.search(model))
        takes_temperature = True
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
    """Return the functions of tools in the chat API's format; none for tools in another format."""
    found = (
        [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
        if isinstance(tools, list)
        else []
    )
    return [item for item in found if isinstance(item, Mapping) and "name" in item]


def _for_responses(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return tools, tool choice and response format as promptfoo sends them to the Responses API."""
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
    """Return tools and tool choice that are in the chat API's format in Claude's."""
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
    always_thinks = bool(_ALWAYS_THINKS.search(model))
    takes_sampling = not _TAKES_NO_SAMPLING.search(model)
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


_NUMBER = compile_later(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)")
_WHOLE = compile_later(r"\s*([+-]?\d+)")


def _number(env: Mapping[str, str], name: str, default: float | None = None) -> float | None:
    """Return the number that a variable begins with, as JavaScript's `parseFloat` does."""
    found = _NUMBER.match(env.get(name, ""))
    if found is None:
        return default
    number = float(found[1])
    return int(number) if number.is_integer() else number


def _whole(env: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    found = _WHOLE.match(env.get(name, ""))
    return default if found is None else int(found[1])


_SPEAKERS = ("user", "assistant")
_PLACEHOLDER = compile_later(r"\{\{\s*(\w+)\s*\}\}")
_PASSES = 5
_ACROSS_LINES = compile_later(r"\{%[^%]*$|\{\{[^}]*$|\{#[^#]*$", re.MULTILINE)
_RAW_MARKS = (re.compile(r"\{%\s*raw\s*%\}"), re.compile(r"\{%\s*endraw\s*%\}"))
_COMMENT = compile_later(r"\{#.*?#\}", re.DOTALL)
_NAMES = compile_later(r"\{\{\s*([^{}\s|]+)\s*(?:\|[^}]+)?\}\}|\{%\s*(?:if|for)\s+([^{}\s]+)\s*.*?%\}")
_LOOP = compile_later(r"\{%\s*for\s+(\w+)\s+in\s+(\w+)\s*%\}")
_ROOT = compile_later(r"[A-Za-z_]\w*")
_YAML_CHAT = "- role:"
_JSON_CHAT = compile_later(r"\[\s*\{")
_RENDERED_PARAMS = ("tools", "functions", "response_format", "output_format", "systemInstruction")
_AS_THEIR_FILE_HAS_THEM = {"tools", "functions"}


def rendered_prompt(
    prompt: PromptSpec, test: MergedTest, templates: Templates, opaque: Collection[str]
) -> Rendered:
    """Render a prompt, which may spell out a chat, between the test's prefix and suffix.

    Raises:
        TemplateError: the prompt's template is broken.
    """
    is_made = isinstance(prompt, NamedPromptSpec) and bool(prompt.made_by)
    raw = template_of(prompt, test)
    # A program's text may contain answers of models, which are never rendered.
    is_final = is_made and bool(opaque)
    sent = as_sent(raw) if is_final else render_text(raw, test.variables, templates, opaque)
    return Rendered(chat_messages(sent), shown_text(sent), sent=sent)


def request_parts(
    job: Job, test: MergedTest, rendered: Rendered, tools: Tools, params: dict[str, JsonValue]
) -> tuple[tuple[Message, ...], dict[str, JsonValue], frozenset[str]]:
    """Return a request's messages, its parameters, and the names of the parameters that are not the user's.

    Args:
        job: the prompt and the provider.
        test: the test, with its variables as templates see them.
        rendered: the rendered prompt.
        tools: has the rules of the dialect.
        params: the parameters of the prompt and the test.

    Raises:
        TemplateError: the prompt starts like a chat but cannot be read as one, or a template in a parameter is broken.
    """
    rules, messages = tools.rules, rendered.messages
    if rules.prompts_spell_chats:
        form = prompt_form(job.provider)
        if form == "chat":
            # Otherwise the model would get the broken chat as a user message, and be judged on its answer.
            mistake = "" if takes_text(job.provider) else chat_mistake(rendered.whole)
            if mistake:
                message = f"the prompt `{job.prompt.label}` starts like a chat, but cannot be read as one: {mistake}"
                raise TemplateError(
                    message, hint="write JSON with variables only inside strings, or `{{ name | dump }}`"
                )
        messages, thinking = messages_for(form, rendered)
        if thinking is not None and job.provider.config.get("thinking") is None:
            params.setdefault("thinking", thinking)
    if rules.renders_params:
        params = rendered_params(params, job.provider, job.prompt, test, tools.templates)
    if not rules.adds_params:
        return messages, params, frozenset()
    written = {**job.provider.config, **params}
    changed = promptfoo_params(job.provider, written, own_env_of(job.provider))
    added = frozenset(name for name in changed if written.get(name) is None)
    return messages, {**params, **changed}, added


def output_of(choice: Choice, provider: ProviderSpec) -> JsonValue:
    """Return the output, with data from a program, an HTTP API or tool calls kept as data."""
    if choice.tool_calls and not is_program(provider):
        return calls_as_output(provider, choice.text)
    if not choice.is_data:
        return choice.text
    output: JsonValue = json.loads(js_json(json.loads(choice.text)))
    return output


def with_structured_output(subject: Subject, provider: ProviderSpec, prompt: PromptSpec) -> Subject:
    """Return the subject with its answer parsed as JSON, if promptfoo would notice that a JSON Schema was requested."""
    if not _asks_for_data(provider, prompt, subject.test):
        return subject
    if subject.response is None or not isinstance(subject.output, str):
        return subject
    try:
        return replace(subject, output=parse_strict_json(subject.output))
    except ValueError:
        return subject


def _asks_for_data(provider: ProviderSpec, prompt: PromptSpec, test: MergedTest) -> bool:
    """Return whether promptfoo parses the answer as JSON, because it finds a JSON Schema where it looks for one.

    The test's parameters override the prompt's, and those override the provider's. A schema in a file is found for the
    Responses API and Anthropic's, but not for chat APIs.
    """
    # The parameter where promptfoo looks for a JSON Schema; None if it does not look.
    vendor = provider.id.partition(":")[0].lower()
    if vendor in _NEVER_DATA or takes_text(provider):
        key = None
    else:
        key = "output_format" if vendor == "anthropic" else "response_format"
    if key is None:
        return False
    for params, file_params in param_levels(provider, prompt, test):
        if key in params:
            asked = params[key]
            is_seen = key not in file_params or not _overlooks_schema_files(provider.id)
            return is_seen and isinstance(asked, Mapping) and asked.get("type") == "json_schema"
    return False


def resolved_variables(
    variables: Mapping[str, JsonValue], opaque: Collection[str] = ()
) -> dict[str, JsonValue]:
    """Return variables with the names of other variables in them replaced, in up to five passes.

    Args:
        variables: the variables of a test. A line break at the end of a text is dropped.
        opaque: names of variables that came from a model. They are not replaced, so that their text is never rendered.
    """
    found = {
        name: value.removesuffix("\n") if isinstance(value, str) and name not in opaque else value
        for name, value in variables.items()
    }
    for _ in range(_PASSES):
        before = dict(found)
        for name, value in found.items():
            if isinstance(value, str) and name not in opaque:
                found[name] = _with_first(value, found, opaque)
        if found == before:
            break
    return found


def render_text(
    raw: str, variables: Mapping[str, JsonValue], templates: Templates, opaque: Collection[str] = ()
) -> str:
    """Return the text to send for a prompt.

    In a JSON prompt each string is rendered separately, so that quotes and line breaks in variables cannot break it,
    and the result is indented.

    Raises:
        TemplateError: the prompt's template is broken.
    """
    try:
        document = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        if _stays_as_it_is(raw):
            return raw
        # Variables are rendered first; text that is not a template, or has an unknown name, stays unchanged.
        rendered = {}
        for name, value in variables.items():
            rendered[name] = value
            is_template = isinstance(value, str) and name not in opaque and not _stays_as_it_is(value)
            if is_template and _names_nothing_unknown(value, variables):
                try:
                    rendered[name] = templates.render(value, variables)
                except TemplateError:
                    continue
        return templates.render(raw, rendered)
    own = {name: _opened(value, variables, opaque, name) for name, value in variables.items()}
    return js_json(render_content(document, own, templates), 2)


def rendered_params(
    params: Mapping[str, JsonValue],
    provider: ProviderSpec,
    prompt: PromptSpec,
    test: MergedTest,
    templates: Templates,
) -> dict[str, JsonValue]:
    """Return `params` with the test's variables filled into tools, functions and response formats.

    `test` has its variables as templates see them. Tools and functions from a file are not rendered.

    Raises:
        TemplateError: a template is broken.
    """
    found = dict(params)
    for key in _RENDERED_PARAMS:
        level = next((level for level in param_levels(provider, prompt, test) if key in level[0]), None)
        written = params.get(key) if level is None else params.get(key, level[0][key])
        if written is None or (level is not None and key in level[1] and key in _AS_THEIR_FILE_HAS_THEM):
            continue
        rendered = render_content(written, test.variables, templates)
        if rendered != written:
            found[key] = rendered
    return found


def as_sent(text: str) -> str:
    """Return text without templates as it is sent: JSON is indented, other text is unchanged."""
    try:
        return js_json(json.loads(text, parse_constant=_refuse), 2)
    except (ValueError, RecursionError):
        return text


def shown_text(text: str) -> str:
    """Return a prompt as results show it: JSON, also within its strings, without whitespace; other text unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return js_json(_with_compact_texts(json.loads(text, parse_constant=_refuse)))
    except (ValueError, RecursionError):
        return text


def chat_messages(text: str) -> tuple[Message, ...]:
    """Return the messages that a prompt spells out in JSON or YAML, or else one user message."""
    found: JsonValue = None
    # YAML is tried only for its usual first line: most prose is valid YAML too.
    if text.strip().startswith(_YAML_CHAT):
        try:
            found = read_yaml(text, "prompt").value
        except ConfigError:
            found = None
    elif text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
    # A list of items with roles is a chat even without content: as text, the mistake would go unnoticed.
    if (
        isinstance(found, list)
        and found
        and all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in found)
    ):
        return tuple(map(_message, found))
    return (Message("user", text),)


def messages_for(form: PromptForm, rendered: "Rendered") -> tuple[tuple[Message, ...], JsonValue]:
    """Return the messages of a prompt as promptfoo sends them, and Claude's `thinking` parameter.

    The latter is None if the prompt does not set it.
    """
    text = rendered.whole
    if rendered.messages != chat_messages(text):  # not from text, but a conversation that was held
        return rendered.messages, None
    if text.lstrip().startswith("["):
        thinking = (message.further.get("thinking") for message in rendered.messages)
        if any(message.content != text for message in rendered.messages):
            return rendered.messages, next(filter(None, thinking), None) if form == "lines" else None
    if form == "lines":
        return _of_role_lines(text)
    return (rendered.messages if form == "chat" else (Message("user", text),)), None


def _of_role_lines(text: str) -> tuple[tuple[Message, ...], JsonValue]:
    """Split text at lines that begin with a role. Lines are stripped, and blank ones dropped."""
    system, thinking = None, None
    said: list[tuple[str, list[str]]] = []
    for line in filter(None, map(str.strip, text.split("\n"))):
        role, separator, rest = line.partition(":")
        if separator and role == "system":
            system = rest.strip()
        elif separator and role == "thinking":
            with suppress(ValueError, RecursionError):
                thinking = json.loads(rest, parse_constant=_refuse)
        elif separator and role in _SPEAKERS:
            said.append((role, [rest.strip()]))
        elif said:
            said[-1][1].append(line)
        else:
            said.append(("user", [line]))
    if not said and system is None:
        said = [("user", [text.strip()])]
    messages = [Message(role, "\n".join(lines)) for role, lines in said]
    # promptfoo sends an empty `system:` line too, but it says nothing.
    return (*((Message("system", system),) if system else ()), *messages), thinking


def changed_for_claude(suite: LoadedSuite) -> Iterator[Problem]:
    """Yield a warning for each prompt that Claude does not receive exactly as written."""
    forms = {prompt_form(provider) for provider in suite.providers}
    if "lines" not in forms:
        return
    for prompt in suite.prompts:
        raw = prompt.raw or ""
        if raw.lstrip().startswith("[") or (isinstance(prompt, NamedPromptSpec) and prompt.made_by):
            continue
        lines = raw.strip().split("\n")
        roles = {line.strip().partition(":")[0] for line in lines if ":" in line}
        named = [role for role in (*_SPEAKERS, "system", "thinking") if role in roles]
        changes = (
            [f"lines that begin with {', '.join(f'`{role}:`' for role in named)} set roles"] if named else []
        )
        changes += ["blank lines are dropped"] if any(not line.strip() for line in lines) else []
        is_indented = any(line != line.strip() for line in lines)
        changes += ["spaces around lines are dropped"] if is_indented else []
        if changes:
            message = (
                f"Claude does not get the prompt exactly as written, as in promptfoo: {'; '.join(changes)}"
            )
            hint = "to send it unchanged, write a JSON list of messages"
            yield Problem(message, prompt.place.value("raw"), hint, severity=Severity.WARNING)


def chat_mistake(text: str) -> str:
    """Return why text that starts like a chat cannot be read as one; empty for a valid chat and for other text."""
    bare = text.strip()
    try:
        if bare.startswith(_YAML_CHAT):
            read_yaml(text, "prompt")
        elif _JSON_CHAT.match(bare) and bare.endswith("]") and '"role"' in bare:
            json.loads(text)
    except ConfigError as error:
        return error.problems[0].message
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def _with_first(text: str, variables: Mapping[str, JsonValue], opaque: Collection[str]) -> str:
    """Replace the first placeholder in `text`; return it unchanged if that is not the name of a variable."""
    place = _PLACEHOLDER.search(text)
    if place is None or place[1] not in variables or place[1] in opaque:
        return text
    value = variables[place[1]]
    written = "null" if value is None else js_string(value)
    return text[: place.start()] + written + text[place.end() :]


def _with_compact_texts(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, list):
        return [_with_compact_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_compact_texts(item) for key, item in value.items()}
    return value


def _stays_as_it_is(text: str) -> bool:
    """Return whether text is not rendered at all, because an expression is not closed on the line where it begins."""
    is_marked = all(mark.search(text) for mark in _RAW_MARKS)
    return bool(_ACROSS_LINES.search(text)) and not is_marked


def _names_nothing_unknown(text: str, variables: Mapping[str, JsonValue]) -> bool:
    """Return whether a variable's text may be rendered; a single unknown name in it prevents that."""
    text = _COMMENT.sub("", text)
    names = {found[1] or found[2] for found in _NAMES.finditer(text)}
    for loop in _LOOP.finditer(text):
        # A loop sets its own variable; the list that it iterates over must be known.
        names = (names - {loop[1]}) | {loop[2]}
    roots = (_ROOT.match(name) for name in names)
    return all(root is None or root[0] == "env" or root[0] in variables for root in roots)


def _opened(
    value: JsonValue, variables: Mapping[str, JsonValue], opaque: Collection[str], name: str
) -> JsonValue:
    """Return `value` with the names of variables from a model replaced. Nothing is rendered after this."""
    if not isinstance(value, str) or name in opaque:
        return value
    # Last, and in one pass: a model's text may look like a template and must never be rendered.
    return _PLACEHOLDER.sub(
        lambda place: js_string(variables[place[1]]) if place[1] in opaque else place[0], value
    )


def _message(item: dict[str, JsonValue]) -> Message:
    further = {key: value for key, value in item.items() if key not in {"role", "content"}}
    return Message(item["role"], item.get("content"), further)


def _refuse(name: str) -> JsonValue:
    raise ValueError(f"{name} is not a JSON value")


def param_levels(
    provider: ProviderSpec, prompt: PromptSpec, test: MergedTest
) -> Iterator[tuple[Mapping[str, JsonValue], frozenset[str]]]:
    """Yield the parameters at each level, highest priority first, with the names of those whose value is in a file."""
    yield test.promptfoo.params, test.promptfoo.file_params
    if isinstance(prompt, NamedPromptSpec):
        yield prompt.params, prompt.file_params
    files = provider.file_params if isinstance(provider, FilteredProviderSpec) else frozenset[str]()
    yield provider.config, files


_NEVER_DATA = frozenset({"local", "mistral", "cohere", "ollama", "google", "gemini", "vertex"})
"""Vendors whose answers promptfoo leaves as text, whatever format was requested."""


def _overlooks_schema_files(provider_id: str) -> bool:
    """Return whether promptfoo leaves an answer as text if its format is in a file, as it does for chat APIs."""
    vendor, _, rest = provider_id.partition(":")
    return vendor.lower() != "anthropic" and not rest.startswith("responses:")
