"""Why an answer ended: every finish reason of every vendor, its meaning, and the vendor's documentation of it."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from geval_cli.patterns import compile_later


class FinishReason(StrEnum):
    """The meaning of a finish reason. The value is the finish reason in results, the same for all vendors."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    FILTERED = "content_filter"
    REFUSED = "refusal"
    PAUSED = "pause"
    BROKEN = "error"

    @property
    def is_refusal(self) -> bool:
        """Return whether a filter or the model itself withheld the answer."""
        return self in (FinishReason.FILTERED, FinishReason.REFUSED)

    @property
    def is_answer(self) -> bool:
        """Return False if the model paused or failed: what it has written so far is not an answer."""
        return self not in (FinishReason.PAUSED, FinishReason.BROKEN)


class Vocabulary(NamedTuple):
    """The finish reasons of one vendor, in lower case, and the source that lists them, as of November 2026."""

    vendor: str
    wire: str
    source: str
    reasons: Mapping[str, FinishReason]


CHAT, MESSAGES, GEMINI, RESPONSES, CONVERSE = "chat", "messages", "gemini", "responses", "converse"


def _each(end: FinishReason, names: str) -> dict[str, FinishReason]:
    return dict.fromkeys(names.split(), end)


_OF_BEDROCK = {
    **_each(FinishReason.STOP, "end_turn stop_sequence"),
    **_each(FinishReason.LENGTH, "max_tokens model_context_window_exceeded"),
    "tool_use": FinishReason.TOOL_CALLS,
    **_each(FinishReason.FILTERED, "guardrail_intervened content_filtered"),
    **_each(FinishReason.BROKEN, "malformed_model_output malformed_tool_use"),
}

VOCABULARIES = (
    Vocabulary(
        "OpenAI",
        CHAT,
        "openai 3.54.0, types/chat/chat_completion.py and types/completion_choice.py",
        {
            "stop": FinishReason.STOP,
            "length": FinishReason.LENGTH,
            **_each(FinishReason.TOOL_CALLS, "tool_calls function_call"),
            "content_filter": FinishReason.FILTERED,
        },
    ),
    Vocabulary(
        "OpenAI Responses",
        RESPONSES,
        "openai 3.54.0, types/responses/response_status.py, and incomplete_details in response.py",
        {
            "completed": FinishReason.STOP,
            **_each(FinishReason.LENGTH, "max_output_tokens max_messages"),
            "content_filter": FinishReason.FILTERED,
            "steered": FinishReason.PAUSED,
            **_each(FinishReason.BROKEN, "failed cancelled queued in_progress incomplete"),
        },
    ),
    Vocabulary(
        "Anthropic",
        MESSAGES,
        "anthropic 2.12.0, types/stop_reason.py and types/beta/beta_stop_reason.py",
        {
            **_each(FinishReason.STOP, "end_turn stop_sequence"),
            **_each(FinishReason.LENGTH, "max_tokens model_context_window_exceeded"),
            "tool_use": FinishReason.TOOL_CALLS,
            "refusal": FinishReason.FILTERED,
            **_each(FinishReason.PAUSED, "pause_turn compaction"),
        },
    ),
    Vocabulary(
        "Google",
        GEMINI,
        "google-genai 3.4.0, FinishReason in types.py",
        {
            "stop": FinishReason.STOP,
            "max_tokens": FinishReason.LENGTH,
            **_each(
                FinishReason.FILTERED,
                "safety recitation blocklist prohibited_content spii model_armor escalation"
                " image_safety image_prohibited_content image_recitation",
            ),
            "continuation": FinishReason.PAUSED,
            **_each(
                FinishReason.BROKEN,
                "finish_reason_unspecified other language malformed_function_call malformed_response"
                " unexpected_tool_call too_many_tool_calls missing_thought_signature image_other no_image"
                " pup_limited_disabled",
            ),
        },
    ),
    Vocabulary(
        "Gemini behind the chat API",
        CHAT,
        "ai.google.dev/gemini-api/docs/openai: a reason of Gemini's may stand behind a colon",
        {"function_call_filter": FinishReason.BROKEN},
    ),
    Vocabulary(
        "Mistral",
        CHAT,
        "mistralai 3.7.0, client/models/chatcompletionchoice.py",
        {
            "stop": FinishReason.STOP,
            **_each(FinishReason.LENGTH, "length model_length"),
            "tool_calls": FinishReason.TOOL_CALLS,
            "error": FinishReason.BROKEN,
        },
    ),
    Vocabulary(
        "OpenRouter",
        CHAT,
        "openrouter.ai/docs/api-reference/overview: normalised, and `error` with choices[].error",
        {
            "stop": FinishReason.STOP,
            "length": FinishReason.LENGTH,
            "tool_calls": FinishReason.TOOL_CALLS,
            "content_filter": FinishReason.FILTERED,
            "error": FinishReason.BROKEN,
        },
    ),
    Vocabulary(
        "DeepSeek",
        CHAT,
        "api-docs.deepseek.com/api/create-chat-completion",
        {
            "stop": FinishReason.STOP,
            "length": FinishReason.LENGTH,
            "tool_calls": FinishReason.TOOL_CALLS,
            "content_filter": FinishReason.FILTERED,
            "insufficient_system_resource": FinishReason.BROKEN,
        },
    ),
    Vocabulary(
        "Zhipu",
        CHAT,
        "docs.z.ai/api-reference/llm/chat-completion",
        {
            "stop": FinishReason.STOP,
            **_each(FinishReason.LENGTH, "length model_context_window_exceeded"),
            "tool_calls": FinishReason.TOOL_CALLS,
            "sensitive": FinishReason.FILTERED,
            "network_error": FinishReason.BROKEN,
        },
    ),
    Vocabulary(
        "vLLM and SGLang",
        CHAT,
        "vllm/v1/engine/__init__.py and sglang/srt/managers/schedule_batch.py",
        {
            "stop": FinishReason.STOP,
            **_each(FinishReason.LENGTH, "length repetition"),
            "tool_calls": FinishReason.TOOL_CALLS,
            **_each(FinishReason.BROKEN, "abort error"),
        },
    ),
    Vocabulary(
        "Text Generation Inference",
        CHAT,
        "text-generation-inference, FinishReason in its OpenAPI description",
        {**_each(FinishReason.STOP, "eos_token stop_sequence"), "length": FinishReason.LENGTH},
    ),
    Vocabulary(
        "llama.cpp, LM Studio, Ollama",
        CHAT,
        "llama.cpp tools/server, lmstudio.ai/docs (LLMPredictionStopReason), ollama api/types.go",
        {
            **_each(FinishReason.STOP, "stop eos word eos_found stop_string_found done"),
            **_each(FinishReason.LENGTH, "length limit max_predicted_tokens_reached context_length_reached"),
            "tool_calls": FinishReason.TOOL_CALLS,
            **_each(FinishReason.BROKEN, "user_stopped model_unloaded failed load unload"),
        },
    ),
    Vocabulary(
        "Together and xAI",
        CHAT,
        "docs.together.ai/reference/chat-completions-1 and docs.x.ai/docs/api-reference",
        {
            **_each(FinishReason.STOP, "stop eos end_turn"),
            "length": FinishReason.LENGTH,
            **_each(FinishReason.TOOL_CALLS, "tool_calls function_call"),
        },
    ),
    Vocabulary(
        "Cohere",
        CHAT,
        "cohere 7.3.1, types/chat_finish_reason.py, and the older generate API",
        {
            **_each(FinishReason.STOP, "complete stop_sequence"),
            **_each(FinishReason.LENGTH, "max_tokens error_limit"),
            "tool_call": FinishReason.TOOL_CALLS,
            "error_toxic": FinishReason.FILTERED,
            **_each(FinishReason.BROKEN, "error timeout user_cancel"),
        },
    ),
    Vocabulary("Bedrock", CONVERSE, "botocore, bedrock-runtime 2023-09-30, StopReason", _OF_BEDROCK),
    Vocabulary(
        "Bedrock behind a gateway", CHAT, "botocore, bedrock-runtime 2023-09-30, StopReason", _OF_BEDROCK
    ),
    Vocabulary(
        "other servers of the chat API",
        CHAT,
        "words for the same in other servers and gateways; nothing in them says that an answer broke off",
        {
            **_each(
                FinishReason.STOP,
                "completed success normal finish finished end end_of_turn end_of_text endoftext"
                " eot eot_token stop_token stop_string stop_word stop_words stop_sequences",
            ),
            **_each(
                FinishReason.LENGTH,
                "max_length max_output_tokens max_new_tokens max_completion_tokens token_limit",
            ),
            "function_calls": FinishReason.TOOL_CALLS,
            **_each(
                FinishReason.FILTERED,
                "filtered moderation content_policy_violation blocked guardrail guardrails",
            ),
            "refusal": FinishReason.REFUSED,
            **_each(FinishReason.BROKEN, "canceled aborted timed_out failure server_error internal_error"),
        },
    ),
)


def _of_wire(wire: str) -> dict[str, FinishReason]:
    return {name: end for words in VOCABULARIES if words.wire == wire for name, end in words.reasons.items()}


# A gateway may pass on the finish reason of its vendor: the API's own words take precedence over those of all others.
_OF_GATEWAYS = (CHAT, MESSAGES, CONVERSE)
_EVERY = {name: end for words in reversed(VOCABULARIES) for name, end in words.reasons.items()}
_ENDS_BY_WIRE = {
    wire: {**(_EVERY if wire in _OF_GATEWAYS else {}), **_of_wire(wire)}
    for wire in {words.wire for words in VOCABULARIES}
}
KNOWN_REASONS = ("stop", "length", "tool_calls", "content_filter", *_ENDS_BY_WIRE[CHAT])
"""The finish reasons that a config may name, beginning with those used in results."""

_SAYS_NOTHING = frozenset({"", "null", "none"})
_HUMP = compile_later(r"(?<=[a-z0-9])(?=[A-Z])")


def end_of(wire: str, reason: Any) -> FinishReason | None:
    """Return the meaning of a finish reason in an API; None if the server gives none, BROKEN for an unknown one."""
    if reason is None:
        return None
    if isinstance(reason, dict):  # older servers: {"type": "stop", "matched": ...}
        reason = reason.get("type")
    if not isinstance(reason, str):
        return FinishReason.BROKEN
    if known := _ENDS_BY_WIRE[wire].get(reason):  # nearly always: spelled as in the vendor's own table
        return known
    name, _, detail = reason.partition(":")
    name = _plain(name)
    if name in _SAYS_NOTHING:
        return None
    end = _ENDS_BY_WIRE[wire].get(name)
    if end is None and detail:
        end = _ENDS_BY_WIRE[GEMINI].get(_plain(detail))
    return end or FinishReason.BROKEN


def known_end(reason: str) -> FinishReason | None:
    """Return the meaning of a finish reason named by a config or a program, in any vendor's words; None if unknown."""
    return _ENDS_BY_WIRE[CHAT].get(reason) or _ENDS_BY_WIRE[CHAT].get(_plain(reason))


def withheld(reason: str | None) -> bool:
    """Return whether an answer with this finish reason was withheld by a filter or refused by the model."""
    end = None if reason is None else known_end(reason)
    return end is not None and end.is_refusal


def _plain(name: str) -> str:
    """Return a reason in a uniform spelling: `maxTokens`, `MAX_TOKENS` and `max-tokens` become `max_tokens`."""
    return re.sub(r"[\s-]+", "_", _HUMP.sub("_", name.strip())).lower()
