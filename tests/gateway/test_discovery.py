import asyncio

from geval_cli.gateway.capabilities import Discovery


def test_patience_ends_the_wait_without_a_claim():
    async def body():
        discovery = Discovery()
        first = await discovery.claim({"temperature"}, patience_s=9)
        second = await discovery.claim({"temperature"}, patience_s=0.001)
        discovery.settle(first, known=first)
        return first, second, await discovery.claim({"temperature"}, patience_s=9)

    assert asyncio.run(body()) == ({"temperature"}, frozenset(), frozenset())


def test_a_call_that_waits_claims_nothing_meanwhile():
    async def body():
        discovery = Discovery()
        first = await discovery.claim({"logprobs"}, patience_s=9)
        second = asyncio.create_task(discovery.claim({"logprobs", "temperature"}, patience_s=9))
        await asyncio.sleep(0)
        third = await discovery.claim({"temperature"}, patience_s=9)
        discovery.settle(first, known=first)
        discovery.settle(third, known=third)
        return third, await second

    assert asyncio.run(body()) == ({"temperature"}, frozenset())


def test_when_the_one_that_finds_out_fails_all_who_wait_go_ahead_and_a_later_one_tries():
    async def body():
        discovery = Discovery()
        first = await discovery.claim({"logprobs"}, patience_s=9)
        waiting = [asyncio.create_task(discovery.claim({"logprobs"}, patience_s=9)) for _ in range(3)]
        await asyncio.sleep(0)
        discovery.settle(first, known=frozenset())
        return await asyncio.gather(*waiting), await discovery.claim({"logprobs"}, patience_s=9)

    assert asyncio.run(body()) == ([frozenset()] * 3, {"logprobs"})
