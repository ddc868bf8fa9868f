import asyncio

from support.scripted_judge import reply, weighed_reply

from geval_cli.judge.memory import JudgeMemory


def test_the_first_caller_finds_out_while_the_others_wait():
    calls = []

    async def ask():
        calls.append(1)
        await asyncio.sleep(0)
        return reply("4")

    async def run():
        memory = JudgeMemory()
        return await asyncio.gather(*(memory.ask_with_logprobs("judge", ask) for _ in range(10)))

    answers = asyncio.run(run())

    assert len(calls) == 1
    assert [answer is None for answer in answers] == [False] + [True] * 9


def test_a_judge_that_gives_probabilities_is_asked_each_time():
    async def ask():
        return weighed_reply("", {"4": 1.0})

    async def run():
        memory = JudgeMemory()
        return [await memory.ask_with_logprobs("judge", ask) for _ in range(3)]

    assert all(answer is not None for answer in asyncio.run(run()))


def test_a_call_that_breaks_teaches_nothing():
    async def broken():
        raise ConnectionError

    async def ask():
        return reply("4")

    async def run():
        memory = JudgeMemory()
        try:
            await memory.ask_with_logprobs("judge", broken)
        except ConnectionError:
            return await memory.ask_with_logprobs("judge", ask)

    assert asyncio.run(run()) is not None


def test_judges_are_kept_apart():
    async def ask():
        return reply("4")

    async def run():
        memory = JudgeMemory()
        await memory.ask_with_logprobs("one", ask)
        memory.note_needs_room("one")
        return await memory.ask_with_logprobs("other", ask), memory

    answer, memory = asyncio.run(run())

    assert answer is not None
    assert memory.needs_room("one")
    assert not memory.needs_room("other")
