"""Parameters of models that vendors agree on: their names and types, for checks before a run and for editors.

What else is in a provider's `config` is sent as well: vendors add parameters every month.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from geval_cli.records import JsonValue


class ValueKind(Struct, frozen=True):
    """The kind of a parameter's value: in words, as a test, and as a JSON Schema."""

    expected: str
    is_valid: Callable[[Any], bool]
    schema: Mapping[str, JsonValue]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_ANY = ValueKind("a value", lambda _: True, {})
_AMOUNT = ValueKind(
    "a number of at least 0", lambda value: _is_number(value) and value >= 0, {"type": "number", "minimum": 0}
)
_SHARE = ValueKind(
    "a number from 0 to 1",
    lambda value: _is_number(value) and 0 <= value <= 1,
    {"type": "number", "minimum": 0, "maximum": 1},
)
_NUMBER = ValueKind("a number", _is_number, {"type": "number"})
_WHOLE = ValueKind("a whole number", _is_whole, {"type": "integer"})
_COUNT = ValueKind(
    "a whole number of at least 1",
    lambda value: _is_whole(value) and value >= 1,
    {"type": "integer", "minimum": 1},
)
_FLAG = ValueKind("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
_FLAG_OR_WHOLE = ValueKind(
    "true or false, or a whole number",
    lambda value: isinstance(value, int),
    {"type": ["boolean", "integer"]},
)
_TEXT = ValueKind("a text", lambda value: isinstance(value, str), {"type": "string"})
_TEXTS = ValueKind(
    "a string or a list of strings",
    lambda value: (
        isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    ),
    {"type": ["string", "array"], "items": {"type": "string"}},
)
_MAPPING = ValueKind("a mapping", lambda value: isinstance(value, dict), {"type": "object"})

_NAMES: tuple[tuple[ValueKind, str], ...] = (
    (_AMOUNT, "temperature"),
    (_SHARE, "top_p topP min_p typical_p"),
    (
        _NUMBER,
        "frequency_penalty presence_penalty frequencyPenalty presencePenalty repetition_penalty repeat_penalty "
        "length_penalty top_a",
    ),
    (_WHOLE, "seed random_seed top_k topK min_tokens top_logprobs"),
    (
        _COUNT,
        "max_tokens max_completion_tokens max_output_tokens maxOutputTokens max_new_tokens best_of candidateCount "
        "dimensions",
    ),
    (_FLAG, "parallel_tool_calls ignore_eos skip_special_tokens responseLogprobs"),
    (_FLAG_OR_WHOLE, "logprobs"),
    (_TEXT, "reasoning_effort service_tier verbosity encoding_format"),
    (_TEXTS, "stop stop_sequences stopSequences"),
    (_MAPPING, "generationConfig logit_bias"),
    (
        _ANY,
        "response_format tools tool_choice functions function_call metadata store safetySettings toolConfig "
        "tool_config systemInstruction system_instruction system labels guided_json guided_regex guided_choice "
        "guided_grammar grammar transforms models route provider prompt previous_response_id conversation beta "
        "thinkingConfig safe_prompt prompt_mode input_type format options keep_alive moderation plugins effort "
        "user instructions suffix safety_identifier prompt_cache_key cachedContent task_type truncation modalities "
        "include audio prediction text reasoning thinking extra_body output_config web_search_options "
        "chat_template_kwargs stream_options background responseMimeType responseSchema responseJsonSchema",
    ),
)

WIRE_SETTINGS: Mapping[str, ValueKind] = {name: kind for kind, names in _NAMES for name in names.split()}
"""Each known parameter with what it takes."""

_SECONDS = {"type": "number", "exclusiveMinimum": 0}
_CAP = {"type": "number", "exclusiveMinimum": 0}

_PLAIN = ("number", "integer", "boolean")

OWN_SETTINGS: Mapping[tuple[str, ...], tuple[Mapping[str, JsonValue], str]] = {
    ("base_url", "apiBaseUrl"): ({"type": "string"}, "The base address of the API."),
    ("client_cert", "clientCert"): (
        {"type": "string"},
        "A client certificate (a PEM file), if the server requires one.",
    ),
    ("client_key", "clientKey"): (
        {"type": "string"},
        "The private key of `client_cert`, unless that file contains it.",
    ),
    ("api_endpoint", "apiEndpoint"): (
        {"type": "string"},
        "The full address of the endpoint; nothing is added to it.",
    ),
    ("api_host", "apiHost"): ({"type": "string"}, "The host of the API, without https://."),
    ("api_key_env", "apiKeyEnvar"): ({"type": "string"}, "The environment variable with the API key."),
    ("api_key", "apiKey"): ({"type": "string"}, "The API key itself. Prefer `api_key_env`."),
    ("api_key_command", "apiKeyCommand"): (
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "A program with its arguments that prints the API key, for tokens that expire.",
    ),
    ("cloud_login", "cloudLogin"): (
        {"type": "boolean"},
        "`true`: use this machine's login at Google Cloud (`vertex:`) or Azure (`azure:`) even if a variable holds a"
        " key or the address is not the cloud's; `false`: never.",
    ),
    ("token_scope", "azureTokenScope"): (
        {"type": "string"},
        "The scope of Azure's tokens, if not that of the address; or AZURE_TOKEN_SCOPE.",
    ),
    ("api_version", "apiVersion"): (
        {"type": "string"},
        "The version of the API; by default 2024-10-21 (or OPENAI_API_VERSION, AZURE_API_VERSION) for Azure,"
        " 2023-06-01 for Anthropic.",
    ),
    ("headers",): ({"type": "object"}, "Additional request headers."),
    ("passthrough",): (
        {"type": "object"},
        "Parameters to send unchecked, even if geval has a setting of the same name.",
    ),
    ("timeout_s", "timeoutS"): (
        _SECONDS,
        "Time limit of a request in seconds; 300 by default, 900 for `local:`.",
    ),
    ("max_retries", "maxRetries"): (
        {"type": "integer", "minimum": 0},
        "How often to retry a request after a temporary error; 4 by default.",
    ),
    ("max_concurrency", "maxConcurrency"): (
        {"type": "integer", "minimum": 1},
        "Maximum concurrent requests; by default the run's (20), 4 for `python:` and `exec:`, `n_parallel` for"
        " `local:`.",
    ),
    ("requests_per_minute", "requestsPerMinute"): (_CAP, "Most requests per minute."),
    ("tokens_per_minute", "tokensPerMinute"): (_CAP, "Most tokens per minute."),
    ("delay_ms", "delayMs"): (
        {"type": "number", "minimum": 0},
        "Pause between two requests in milliseconds; 0 by default.",
    ),
    ("price",): (
        {"type": ["object", "string"]},
        "US dollars per million tokens: {input, output, cached_input, batch}; or `list` for the vendor's list price.",
    ),
    ("batch",): (
        {"enum": ["openai", False]},
        "The server's batch API for --batch: `openai`, or false to send requests directly.",
    ),
    ("batch_deployment", "batchDeployment"): (
        {"type": "string"},
        "Azure: the Global Batch deployment of the same model, for --batch.",
    ),
    ("batch_s3", "batchS3"): ({"type": "string"}, "Bedrock: the folder in S3 for the files of --batch."),
    ("batch_role_arn", "batchRoleArn"): (
        {"type": "string"},
        "Bedrock: the ARN of the role that reads and writes these files.",
    ),
}
"""geval's own keys by their spellings, for editors; `providers.options` checks them."""


def config_schema() -> dict[str, JsonValue]:
    """Return the properties of a provider's `config`, by their JSON Schemas; other keys may be there too.

    Of what is sent, only numbers and flags: other words may mean something else to a program that is a provider.
    """
    own = {
        spelling: {**schema, "description": description}
        for spellings, (schema, description) in OWN_SETTINGS.items()
        for spelling in spellings
    }
    wire = {
        name: dict(kind.schema) for name, kind in WIRE_SETTINGS.items() if kind.schema.get("type") in _PLAIN
    }
    return {**wire, **own}
