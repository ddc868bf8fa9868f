"""What the user's own program says that an answer took: amounts that are none are not counted."""

import math

import pytest

from geval_cli.providers.program_reply import ProgramCaller, read_program_reply


@pytest.mark.parametrize("cost", [math.nan, math.inf, -3.0, 10**400, True, "1"])
def test_a_cost_that_is_no_amount_is_unknown(cost: object) -> None:
    _, usage = read_program_reply({"output": "x", "cost": cost}, ProgramCaller("python:p.py"))
    assert usage.cost_usd is None


@pytest.mark.parametrize("count", [-5, math.nan, 10**400, "7"])
def test_tokens_that_are_no_amount_are_none(count: object) -> None:
    reply = {"output": "x", "token_usage": {"prompt": count, "completion": 2}}
    _, usage = read_program_reply(reply, ProgramCaller("python:p.py"))
    assert (usage.input_tokens, usage.output_tokens) == (0, 2)
