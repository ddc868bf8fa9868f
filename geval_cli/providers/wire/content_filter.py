"""Read the verdict of a provider's safety filter: a refused request, flags beside an answer, a finish reason."""

from typing import Any

from geval_cli.patterns import compile_later
from geval_cli.providers.unsupported import error_words
from geval_cli.records import Choice

FILTERED = "content_filter"
"""The finish reason of an answer that a filter stopped, or kept from being written."""

REFUSED = "refusal"
"""The finish reason of an answer in which the API itself says that the model refuses."""

STOPPED_BY_FILTER = frozenset(
    {FILTERED, REFUSED, "guardrail_intervened", "safety", "prohibited_content", "blocklist", "spii"}
)
"""Every finish reason that means this, in small letters; those of gateways in front of Bedrock and Gemini too."""

# Azure's and OpenAI's codes of a prompt that their filters will not let through.
_CODE = compile_later(
    r'"code"\s*:\s*"(?:content_filter|invalid_prompt|content_policy_violation|ResponsibleAIPolicyViolation)"'
)


def filtered_choice(body: str) -> Choice | None:
    """Return the answer that a refused request stands for, when a filter refused it: what the server says about it."""
    if not _CODE.search(body):
        return None
    _, words = error_words(body)
    return Choice(words or "the prompt was stopped by the provider's content filter", FILTERED)


def is_filtered(results: Any) -> bool:
    """Return whether one of Azure's filters, by its results for a prompt or for an answer, held something back."""
    return isinstance(results, dict) and any(
        isinstance(result, dict) and result.get("filtered") is True for result in results.values()
    )


def reported_finish_reason(result: Any) -> str | None:
    """Why an answer ended, as a program says it beside its `output`; a `guardrails` verdict goes first."""
    if not isinstance(result, dict):
        return None
    verdict = result.get("guardrails")
    if isinstance(verdict, dict) and verdict.get("flagged") is True:
        return FILTERED
    reason = result.get("finish_reason") or result.get("finishReason")
    return reason if isinstance(reason, str) else None
