"""Read the answers of the user's functions and classes as providers, and how an id names them; for all languages."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from geval_cli.errors import ProviderRequestError, ProviderShapeError
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.prices import Price
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.token_usage import (
    Exchange,
    TokenUsage,
    believed,
    reported_cost_usd,
    reported_usage,
)
from geval_cli.records import Usage


class ProgramCaller(Struct, frozen=True):
    """Whose reply is read: how messages call it, what they must not show, what its tokens cost."""

    id: str
    secrets: Secrets = field(default_factory=Secrets)
    price: Price | None = None


def read_program_reply(result: Any, caller: ProgramCaller, *, prompt: str) -> tuple[str, Usage]:
    """Return the answer in a text, or in a mapping with `output`, `token_usage` and `cost`, which comes before a price.

    Args:
        result: what the program returned.
        caller: whose reply it is.
        prompt: what it was asked, by whose length its count of tokens is judged.

    Raises:
        ProviderRequestError: the mapping holds an `error`.
        ProviderShapeError: it is neither, or its `output` is null.
    """
    if isinstance(result, str):
        return result, _usage(None, None, caller)
    if isinstance(result, dict) and result.get("error"):
        message = caller.secrets.excerpt(f"{caller.id} reported an error: {result['error']}")
        raise ProviderRequestError(message, provider_id=caller.id)
    if not isinstance(result, dict) or "output" not in result:
        raise _shapeless(f"{type(result).__name__}, not a text or a mapping with `output`", result, caller)
    output = result["output"]
    if output is None:
        raise _shapeless("no answer: its `output` is null", result, caller)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    tokens = reported_usage(result.get("token_usage") or result.get("tokenUsage"))
    tokens = believed(tokens, Exchange(prompt, (text,)))
    return text, _usage(tokens, result.get("cost"), caller)


def _shapeless(what: str, result: Any, caller: ProgramCaller) -> ProviderShapeError:
    body = caller.secrets.excerpt(str(result))
    return ProviderShapeError(f"{caller.id} returned {what}", provider_id=caller.id, body=body)


def is_data(result: Any) -> bool:
    """Return whether a program answers with data in the place of a text."""
    return isinstance(result, dict) and not isinstance(result.get("output"), str | None)


def split_target(source: ProviderSource) -> tuple[Path, str]:
    """The file that an id names (`python:FILE`, `file://FILE:FUNCTION`), and the function; "" where none is named."""
    named = source.name.removeprefix("file:").removeprefix("//")
    file, separator, function = named.rpartition(":")
    if separator and function.isidentifier():
        return (source.base_dir / file).resolve(), function
    return (source.base_dir / named).resolve(), ""


def _usage(tokens: TokenUsage | None, cost: Any, caller: ProgramCaller) -> Usage:
    """Return the usage of the answer; an invalid `cost` makes the cost unknown, as if there were no price."""
    priced = None if caller.price is None else caller.price.cost_usd(tokens)
    counted = tokens or TokenUsage()
    cost_usd = priced if cost is None else reported_cost_usd(cost)
    return Usage(1, counted.input_tokens, counted.output_tokens, cost_usd=cost_usd)
