import asyncio
import gc
import weakref

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderRequestError, StoppedError
from geval_cli.gateway.cache import Claimed, SingleFlight, choice_keys
from geval_cli.gateway.call import ModelCall, Runtime, ServerKey, Wire
from geval_cli.gateway.gateway import CallPolicy, Gateway
from geval_cli.providers.base import ProviderLimits
from geval_cli.store.cache import ResponseCache
from geval_cli.store.locks import Claims


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
    assert not response.cached
    assert (response.usage.requests, response.usage.input_tokens) == (1, 10), "its cost is nobody's otherwise"
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
        assert provider.on_the_wire == 0
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


def call_with(*keys, timeout_s=2.0, **fields):
    provider = FakeProvider(limits=ProviderLimits(timeout_s=timeout_s))
    return ModelCall(provider, ask(), ServerKey("fake", "", "fake-1"), keys, **fields)


KEYS = ("a" * 32, "b" * 32)


@pytest.fixture
def claims(tmp_path):
    """The claims of a cache, as everybody who shares it has them."""
    opened = Claims(tmp_path)
    yield opened
    opened.close()


def claimed(world, claims):
    return Claimed(claims, runtime=Runtime(clock=world.time.clock, sleep=world.time.sleep), wire=Wire())


def noting(claims, seen):
    """Send a call, and note which keys are claimed meanwhile."""

    async def send(call):
        free = [key for key in KEYS if claims.take(key)]
        for key in free:
            claims.release_claim(key)
        seen.append([key for key in KEYS if key not in free])
        return call.keys

    return send


@pytest.mark.parametrize(
    ("call", "claimed_keys"),
    [
        (call_with(*KEYS), [KEYS[0]]),
        (call_with(*KEYS, outlives_run=False), []),
        (call_with(), []),
        (call_with(outlives_run=False), []),
    ],
    ids=["kept for later runs", "kept for this run", "not kept", "neither"],
)
def test_a_claim_is_held_while_an_answer_is_asked_for_that_others_could_use(
    world, claims, call, claimed_keys
):
    seen = []
    assert world.time.run(claimed(world, claims)(call, noting(claims, seen))) == call.keys
    assert seen == [claimed_keys]
    assert world.time.slept == []
    assert all(claims.take(key) for key in KEYS)


def test_a_claim_that_is_given_back_is_taken_over_and_given_back_again(world, claims):
    seen, layer = [], claimed(world, claims)

    async def body():
        assert claims.take(KEYS[0])
        waiting = asyncio.create_task(layer(call_with(KEYS[0]), noting(claims, seen)))
        await world.time.sleep(1.0)
        assert seen == []
        claims.release_claim(KEYS[0])
        await waiting

    world.time.run(body())
    assert seen == [[KEYS[0]]]
    assert claims.take(KEYS[0])


def test_a_claim_is_looked_at_ever_more_rarely_for_as_long_as_a_request_may_take(world, claims):
    seen = []
    assert claims.take(KEYS[0])
    world.time.run(claimed(world, claims)(call_with(KEYS[0], timeout_s=1.0), noting(claims, seen)))
    assert world.time.slept == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25])
    assert seen == [[KEYS[0]]]
    assert not claims.take(KEYS[0])  # it is still that of its holder


def test_each_claim_that_is_given_back_gives_those_who_wait_for_others_more_time(world, claims):
    seen, ends, layer = [], {}, claimed(world, claims)

    async def one(key):
        await layer(call_with(key, timeout_s=2.0), noting(claims, seen))
        ends[key] = world.time.now

    async def body():
        assert all(claims.take(key) for key in KEYS)
        waiting = asyncio.gather(*map(one, KEYS))
        await world.time.sleep(1.5)
        claims.release_claim(KEYS[0])
        await waiting

    world.time.run(body())
    assert 1001.5 <= ends[KEYS[0]] <= 1001.8
    assert 1003.5 <= ends[KEYS[1]] <= 1004.1


@pytest.mark.parametrize(
    "turns", [1, 2], ids=["before it is handed the error", "when it was handed the error"]
)
def test_one_who_is_cancelled_as_the_outcome_comes_takes_it_from_no_other(turns):
    """Neither is the event loop told of an error that nobody looked at."""

    async def body():
        loop, layer, told = asyncio.get_running_loop(), SingleFlight(is_for_one_run=False), []
        loop.set_exception_handler(lambda _, about: told.append(about["message"]))

        def after(turns, action):
            loop.call_soon(action if turns == 1 else lambda: after(turns - 1, action))

        async def fail(_):
            await asyncio.sleep(0)
            after(turns, tasks[0].cancel)
            raise ProviderRequestError("refused", provider_id="fake")

        tasks = [asyncio.create_task(layer(call_with(*KEYS), fail)) for _ in range(3)]
        await asyncio.wait(tasks, timeout=5)
        found = [task.cancelled() or str(task.exception()) for task in tasks]
        tasks.clear()
        gc.collect()
        return found, told

    assert asyncio.run(body()) == ([True, "refused", "refused"], [])


def test_nothing_is_left_of_calls_that_are_answered():
    """Not even a circle that a search for garbage would find."""

    async def body():
        layer, made, left = SingleFlight(is_for_one_run=False), [], weakref.WeakSet()

        def made_by(loop, work, **options):
            task = asyncio.Task(work, loop=loop, **options)
            made.append(task.get_name())
            left.add(task)
            return task

        async def answer(call):
            return call.keys

        asyncio.get_running_loop().set_task_factory(made_by)
        for number in range(9):
            await layer(call_with(str(number)), answer)
        return len(made), len(left)

    gc.disable()
    try:
        assert asyncio.run(body()) == (9, 0)
    finally:
        gc.enable()
