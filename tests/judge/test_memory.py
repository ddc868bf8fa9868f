import asyncio

import pytest
from msgspec.structs import replace
from support.scripted_judge import ScriptedJudge, reply, weighed_reply

from geval_cli.judge.calls import JudgeFacts

WITHOUT = replace(reply("4"), dropped=("logprobs",))
WEIGHED = weighed_reply("", {"4": 1.0})


class Asked:
    """Gives the answers in turn, the last one for ever; an exception is raised."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.times = 0

    async def __call__(self):
        self.times += 1
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def judge(label="judge"):
    return ScriptedJudge(lambda _: "4", label=label)


def at_once(ask, *, count=10):
    async def body():
        memory, one = JudgeFacts(), judge()
        answers = (memory.ask_with_logprobs(one, ask) for _ in range(count))
        return await asyncio.gather(*answers, return_exceptions=True)

    return asyncio.run(body())


def test_the_first_caller_finds_out_while_the_others_wait():
    ask = Asked(WITHOUT)
    answers = at_once(ask)
    assert ask.times == 1
    assert [answer is None for answer in answers] == [False] + [True] * 9


def test_a_judge_that_gives_probabilities_is_asked_each_time():
    assert at_once(Asked(WEIGHED)) == [WEIGHED] * 10


@pytest.mark.parametrize("answer", [reply(""), replace(reply(""), dropped=("temperature",))])
def test_an_answer_without_text_teaches_nothing(answer):
    assert at_once(Asked(answer, WEIGHED)) == [answer] + [WEIGHED] * 9


def test_when_the_first_call_breaks_the_others_are_made_at_once():
    ask = Asked(ConnectionError(), WITHOUT)
    first, *others = at_once(ask)
    assert isinstance(first, ConnectionError)
    assert others == [WITHOUT] * 9


def test_judges_are_kept_apart_also_when_they_are_called_the_same():
    async def body():
        memory, one, other = JudgeFacts(), judge("same"), judge("same")
        memory.note_needs_room(one)
        await memory.ask_with_logprobs(one, Asked(WITHOUT))
        answer = await memory.ask_with_logprobs(other, Asked(WEIGHED))
        return answer, memory.needs_room(one), memory.needs_room(other)

    assert asyncio.run(body()) == (WEIGHED, True, False)
