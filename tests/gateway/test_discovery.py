import asyncio

from geval_cli.gateway.discovery import Discovery


def test_patience_ends_the_wait_without_a_claim():
    async def body():
        discovery = Discovery()
        first = await discovery.claim({"temperature"})
        second = await discovery.claim({"temperature"}, patience_s=0.001)
        discovery.settle(first, known=first)
        return first, second, await discovery.claim({"temperature"})

    assert asyncio.run(body()) == ({"temperature"}, frozenset(), frozenset())


def test_a_call_that_waits_claims_nothing_meanwhile():
    async def body():
        discovery = Discovery()
        first = await discovery.claim({"logprobs"})
        second = asyncio.create_task(discovery.claim({"logprobs", "temperature"}))
        await asyncio.sleep(0)
        third = await discovery.claim({"temperature"})
        discovery.settle(first, known=first)
        discovery.settle(third, known=frozenset())
        return third, await second

    assert asyncio.run(body()) == ({"temperature"}, {"temperature"})
