"""What functions and classes of the user's answer as providers, and how an id names them: shared by all languages."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from geval_cli.errors import ProviderRequestError, ProviderShapeError
from geval_cli.providers.prices import Price
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.source import ProviderSource
from geval_cli.providers.token_usage import TokenUsage, finite_amount
from geval_cli.records import Usage

_COUNT_NAMES = {
    "input": ("prompt", "input", "prompt_tokens"),
    "output": ("completion", "output", "output_tokens"),
}


class ProgramCaller(Struct, frozen=True):
    """Whose reply is read: how messages call it, what they must not show, what its tokens cost."""

    id: str
    secrets: Secrets = field(default_factory=Secrets)
    price: Price | None = None


def read_program_reply(result: Any, caller: ProgramCaller) -> tuple[str, Usage]:
    """The answer in a text, or in a mapping with `output`, `token_usage` and `cost`, which comes before a price.

    Raises:
        ProviderRequestError: the mapping holds an `error`.
        ProviderShapeError: it is neither.
    """
    if isinstance(result, str):
        return result, _usage(None, None, caller)
    if isinstance(result, dict) and result.get("error"):
        message = caller.secrets.excerpt(f"{caller.id} reported an error: {result['error']}")
        raise ProviderRequestError(message, provider_id=caller.id)
    if not isinstance(result, dict) or "output" not in result:
        message = f"{caller.id} returned {type(result).__name__}, not a text or a mapping with `output`"
        body = caller.secrets.excerpt(str(result))
        raise ProviderShapeError(message, provider_id=caller.id, body=body)
    output = result["output"]
    usage = _usage(result.get("token_usage") or result.get("tokenUsage"), result.get("cost"), caller)
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False), usage


def is_data(result: Any) -> bool:
    """Whether a program answers with data in the place of a text."""
    return isinstance(result, dict) and not isinstance(result.get("output"), str | None)


def split_target(source: ProviderSource) -> tuple[Path, str]:
    """The file that an id names (`python:FILE`, `file://FILE:FUNCTION`), and the function; "" where none is named."""
    named = source.name.removeprefix("file:").removeprefix("//")
    file, separator, function = named.rpartition(":")
    if separator and function.isidentifier():
        return (source.base_dir / file).resolve(), function
    return (source.base_dir / named).resolve(), ""


def _usage(counts: Any, cost: Any, caller: ProgramCaller) -> Usage:
    tokens = TokenUsage(_count(counts, "input"), _count(counts, "output")) if counts else None
    priced = None if caller.price is None else caller.price.cost_usd(tokens)
    told = finite_amount(cost)
    counted = tokens or TokenUsage()
    return Usage(
        1, counted.input_tokens, counted.output_tokens, cost_usd=priced if told is None else float(told)
    )


def _count(counts: Any, which: str) -> int:
    if not isinstance(counts, dict):
        return 0
    found = (finite_amount(counts.get(name)) for name in _COUNT_NAMES[which])
    return int(next((amount for amount in found if amount is not None), 0))
