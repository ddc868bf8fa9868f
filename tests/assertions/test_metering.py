import asyncio

from support.scripted_judge import ScriptedJudge, reply

from geval_cli.engine.judge_output import Meter, MeteredJudge
from geval_cli.records import Message, ModelRequest

REQUEST = ModelRequest((Message("user", "Rate it."),))


def test_a_meter_adds_up_what_its_judge_costs() -> None:
    meter = Meter()
    judge = MeteredJudge(ScriptedJudge(lambda _: reply("8")), meter)

    async def body() -> None:
        await judge.complete(REQUEST)
        await judge.complete(REQUEST)
        await judge.forget(REQUEST)  # a judge that keeps nothing has nothing to forget

    asyncio.run(body())
    assert (meter.usage.requests, meter.usage.input_tokens) == (2, 200)


def test_a_judge_is_the_same_with_any_meter() -> None:
    one, other = ScriptedJudge(lambda _: reply("8")), ScriptedJudge(lambda _: reply("8"))
    assert MeteredJudge(one, Meter()) == MeteredJudge(one, Meter())
    assert hash(MeteredJudge(one, Meter())) == hash(MeteredJudge(one, Meter()))
    assert MeteredJudge(one, Meter()) != MeteredJudge(other, Meter())
