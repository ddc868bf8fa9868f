import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderRequestError, StoppedError
from geval_cli.gateway.cache import choice_keys
from geval_cli.gateway.gateway import CallPolicy, Gateway
from geval_cli.providers.base import ProviderLimits
from geval_cli.store.cache import ResponseCache
from geval_cli.store.claims import Claims


def test_equal_requests_under_way_at_once_are_sent_once(world):
    async def body():
        provider, gateway = FakeProvider(), world.gateway()
        responses = await asyncio.gather(*(gateway.complete(provider, ask()) for _ in range(50)))
        return provider, responses

    provider, responses = world.time.run(body())
    assert len(provider.requests) == 1
    assert {response.text for response in responses} == {"answer 0"}
    assert sum(response.usage.requests for response in responses) == 50
    assert sum(response.usage.cached_requests for response in responses) == 49
    assert sum(response.usage.input_tokens for response in responses) == 10
    assert [call.usage for call in world.calls] == [response.usage for response in responses]


def test_other_samples_and_other_texts_are_requests_of_their_own(world):
    async def body():
        provider, gateway = FakeProvider(), world.gateway()
        wanted = [ask("a"), ask("b"), ask("a", sample_indexes=(1,)), ask("a", repeat_index=1)]
        await asyncio.gather(*(gateway.complete(provider, request) for request in wanted))
        return provider

    assert len(world.time.run(body()).requests) == 4


def test_the_first_one_being_cancelled_does_not_cancel_the_others(world):
    async def body():
        gate = asyncio.Event()

        async def slow(_):
            await gate.wait()
            return "late"

        provider, gateway = FakeProvider(slow), world.gateway()
        first, second = (asyncio.create_task(gateway.complete(provider, ask())) for _ in range(2))
        await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        gate.set()
        return provider, first, await second

    provider, first, response = asyncio.run(body())
    assert first.cancelled()
    assert response.text == "late"
    assert len(provider.requests) == 1


def test_a_call_that_nobody_waits_for_any_more_is_stopped_and_may_be_made_again(world):
    async def body():
        stopped = asyncio.Event()
        texts = iter(["never", "again"])

        async def server(_):
            text = next(texts)
            if text == "never":
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()
            return text

        provider, gateway = FakeProvider(server), world.gateway()
        task = asyncio.create_task(gateway.complete(provider, ask()))
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        again = await gateway.complete(provider, ask())
        return stopped.is_set(), again

    was_stopped, again = asyncio.run(body())
    assert was_stopped
    assert again.text == "again"


def test_an_error_is_shared_by_those_who_waited_and_by_nobody_later(world):
    async def body():
        answers = iter([ProviderRequestError("refused", provider_id="fake"), "fine"])
        provider, gateway = FakeProvider(lambda _: next(answers)), world.gateway()
        shared = await asyncio.gather(
            *(gateway.complete(provider, ask()) for _ in range(3)), return_exceptions=True
        )
        return shared, await gateway.complete(provider, ask())

    shared, later = world.time.run(body())
    assert [str(error) for error in shared] == ["refused"] * 3
    assert later.text == "fine"
    assert [call.failed for call in world.calls] == [True, True, True, False]


def test_providers_whose_answers_are_free_are_always_asked(world):
    async def body():
        provider, gateway = FakeProvider(is_cacheable=False), world.gateway()
        await asyncio.gather(*(gateway.complete(provider, ask()) for _ in range(3)))
        return await gateway.complete(provider, ask()), provider

    response, provider = world.time.run(body())
    assert len(provider.requests) == 4
    assert not response.cached


def test_closing_stops_what_is_under_way(world):
    async def body():
        provider, gateway = FakeProvider(lambda _: asyncio.Event().wait()), world.gateway()
        task = asyncio.create_task(gateway.complete(provider, ask()))
        await asyncio.sleep(0.001)
        await gateway.aclose()
        await gateway.aclose()
        with pytest.raises(asyncio.CancelledError):
            await task
        return provider

    assert asyncio.run(body()).on_the_wire == 0


def test_nobody_joins_a_flight_that_is_being_cancelled_however_long_that_takes(world):
    async def body():
        texts, stopping, may_stop = iter(["never", "again"]), asyncio.Event(), asyncio.Event()

        async def server(_):
            text = next(texts)
            if text == "never":
                try:
                    await asyncio.Event().wait()
                finally:
                    stopping.set()
                    await may_stop.wait()
            return text

        provider, gateway = FakeProvider(server), world.gateway()
        task = asyncio.create_task(gateway.complete(provider, ask()))
        await asyncio.sleep(0.001)
        task.cancel()
        await stopping.wait()
        again = asyncio.create_task(gateway.complete(provider, ask()))
        await asyncio.sleep(0.001)
        may_stop.set()
        return await again

    assert asyncio.run(body()).text == "again"


@pytest.mark.parametrize("since", [None, 1.0], ids=["cache", "no cache"])
def test_of_two_gateways_on_one_cache_one_asks_and_the_other_waits_for_its_answer(tmp_path, since):
    async def body():
        gate, asked = asyncio.Event(), asyncio.Event()

        async def slow(_):
            asked.set()
            await gate.wait()
            return "paid for once"

        provider = FakeProvider(slow)
        caches = [ResponseCache.open(tmp_path) for _ in range(2)]
        first, second = (Gateway(cache=cache, on_event=lambda _: None, reads_since=since) for cache in caches)
        calls = [asyncio.create_task(first.complete(provider, ask()))]
        await asyncio.wait_for(asked.wait(), 10)
        calls.append(asyncio.create_task(second.complete(provider, ask())))
        await asyncio.sleep(0.05)
        gate.set()
        responses = await asyncio.wait_for(asyncio.gather(*calls), 10)
        for gateway, cache in zip((first, second), caches, strict=True):
            await gateway.aclose()
            cache.close()
        return len(provider.requests), [(response.text, response.cached) for response in responses]

    found = asyncio.run(body())
    # Whoever reads no earlier answers wants one of their own.
    expected = (1, [False, True]) if since is None else (2, [False, False])
    assert found == (expected[0], [("paid for once", cached) for cached in expected[1]])


def test_a_holder_that_hangs_stops_nobody_for_longer_than_a_request_may_take(tmp_path):
    async def body():
        provider = FakeProvider(limits=ProviderLimits(timeout_s=0.2))
        cache = ResponseCache.open(tmp_path)
        (key,) = choice_keys(provider.identity, ask())
        held = Claims(tmp_path)
        assert held.take(key)
        gateway = Gateway(cache=cache, on_event=lambda _: None)
        response = await asyncio.wait_for(gateway.complete(provider, ask()), 10)
        await gateway.aclose()
        held.close()
        cache.close()
        return response.text, len(provider.requests)

    assert asyncio.run(body()) == ("answer 0", 1)


def test_a_run_that_is_to_stop_does_not_wait_for_the_answer_of_another(tmp_path):
    async def body():
        provider, policy = FakeProvider(), CallPolicy()
        cache, held = ResponseCache.open(tmp_path), Claims(tmp_path)
        (key,) = choice_keys(provider.identity, ask())
        assert held.take(key)
        gateway = Gateway(cache=cache, on_event=lambda _: None, policy=policy)
        call = asyncio.create_task(gateway.complete(provider, ask()))
        await asyncio.sleep(0.03)
        policy.wire.close()
        with pytest.raises(StoppedError):
            await asyncio.wait_for(call, 10)
        await gateway.aclose()
        held.close()
        cache.close()
        return provider.requests

    assert asyncio.run(body()) == []
