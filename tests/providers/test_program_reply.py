"""What the user's own program says that an answer took: amounts that cannot be are unknown, and never 0."""

import math
from dataclasses import replace
from typing import Any

import pytest

from geval_cli.errors import ProviderRequestError, ProviderShapeError
from geval_cli.extras.programs.providers.base import ProgramSettings, read_program_reply
from geval_cli.providers.prices import FixedPrice
from geval_cli.providers.wire.finish_reasons import KNOWN_REASONS, known_end
from geval_cli.records import Usage

PRICED = ProgramSettings("python:p.py", price=FixedPrice(1_000_000, 1_000_000))
SENSELESS = [-5, math.nan, math.inf, 10**400, "7", 7.5, True, [7], {"n": 7}]


def usage_of(reply: dict[str, Any]) -> Usage:
    return read_program_reply({"output": "x", **reply}, PRICED, prompt="hello")[1]


@pytest.mark.parametrize("cost", [*(odd for odd in SENSELESS if odd != 7.5), 10_001])
def test_a_cost_that_is_no_amount_is_unknown(cost: object) -> None:
    assert usage_of({"cost": cost, "tokenUsage": {"prompt": 1, "completion": 2}}).cost_usd is None


@pytest.mark.parametrize("count", SENSELESS)
@pytest.mark.parametrize("name", ["prompt", "input_tokens", "completion", "output_tokens"])
@pytest.mark.parametrize("key", ["token_usage", "tokenUsage"])
def test_tokens_that_are_no_amount_are_unknown(key: str, name: str, count: object) -> None:
    rest = {"prompt": 1} if name in {"completion", "output_tokens"} else {"completion": 2}
    assert usage_of({key: {**rest, name: count}}) == Usage(1, cost_usd=None)


@pytest.mark.parametrize(
    "counts", [{}, [], "12", 12, {"total": 12}, {"prompt": 12}, {"completion": 0, "prompt": 3}]
)
def test_counts_that_say_too_little_are_unknown(counts: object) -> None:
    assert usage_of({"token_usage": counts}) == Usage(1, cost_usd=None)


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt": 2, "completion": 3},
        {"input": 2, "output": 3},
        {"prompt_tokens": 2, "completion_tokens": 3},
        {"input_tokens": 2, "output_tokens": 3},
    ],
)
def test_tokens_are_read_under_each_of_their_names(counts: object) -> None:
    assert usage_of({"token_usage": counts}) == Usage(1, 2, 3, cost_usd=5.0)


def test_a_null_output_is_no_answer() -> None:
    with pytest.raises(ProviderShapeError, match="no answer: its `output` is null"):
        usage_of({"output": None})


@pytest.mark.parametrize(
    "failed", [{"error": "refused"}, {"output": None}, {"error": "refused", "output": None}]
)
@pytest.mark.parametrize(
    ("took", "cost_usd"),
    [
        ({"token_usage": {"prompt": 3, "completion": 0}}, 3.0),
        ({"token_usage": {"prompt": 3, "completion": 2}}, 5.0),
        ({"token_usage": {"prompt": 3, "completion": 0}, "cost": 0.5}, 0.5),
    ],
)
def test_an_error_costs_what_it_took_though_nothing_was_written(
    failed: dict[str, Any], took: dict[str, Any], cost_usd: float
) -> None:
    with pytest.raises((ProviderRequestError, ProviderShapeError)) as caught:
        read_program_reply({**failed, **took}, PRICED, prompt="hello")
    assert (caught.value.cost_usd, caught.value.input_tokens) == (cost_usd, 3)


OWN_REASONS = ("goal_reached", "", None, 7)
"""Reasons of the user's own, which say nothing to geval."""


@pytest.mark.parametrize("key", ["finish_reason", "finishReason"])
@pytest.mark.parametrize("reason", [*dict.fromkeys((*KNOWN_REASONS, "ERROR", "pause_turn")), *OWN_REASONS])
def test_an_answer_that_is_not_whole_is_not_judged(reason: Any, key: str) -> None:
    end = known_end(reason) if isinstance(reason, str) else None
    reply = {"output": "so far", key: reason, "cost": 0.5, "tokenUsage": {"prompt": 1, "completion": 2}}
    if end is None or end.is_answer:
        assert read_program_reply(reply, PRICED, prompt="hello") == ("so far", Usage(1, 1, 2, cost_usd=0.5))
        return
    with pytest.raises(ProviderRequestError, match="no whole answer") as caught:
        read_program_reply(reply, PRICED, prompt="hello")
    assert (caught.value.cost_usd, caught.value.input_tokens, caught.value.output_tokens) == (0.5, 1, 2)
    assert not caught.value.is_retryable
    by_promptfoo = replace(PRICED, folder="/")
    assert read_program_reply(reply, by_promptfoo, prompt="hello")[0] == "so far"
