"""Requests that are made at once: whatever one of them raises, the others are paid for and come to their end."""

import asyncio

import pytest

from geval_cli.errors import JudgeError
from geval_cli.judge.calls import gather_all


async def answer(number: int, ended: list[int], *, fails: bool = False) -> int:
    if fails:
        raise JudgeError(f"no answer to {number}")
    for _ in range(3):
        await asyncio.sleep(0)
    ended.append(number)
    return number


def test_answers_come_in_the_order_of_the_questions() -> None:
    async def body() -> list[int]:
        return await gather_all(answer(number, []) for number in (3, 1, 2))

    assert asyncio.run(body()) == [3, 1, 2]


def test_an_error_is_raised_when_all_others_have_ended() -> None:
    ended: list[int] = []

    async def body() -> None:
        with pytest.raises(JudgeError, match="no answer to 1"):
            await gather_all(answer(number, ended, fails=number in (1, 3)) for number in range(5))
        assert ended == [0, 2, 4]

    asyncio.run(body())
