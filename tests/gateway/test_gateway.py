import asyncio

import pytest
from msgspec.structs import replace
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderRequestError
from geval_cli.events import ModelCalled
from geval_cli.gateway.gateway import Gateway
from geval_cli.records import Role, Usage
from geval_cli.store.cache import ResponseCache


def test_calls_are_reported_by_role_with_what_they_cost(world):
    async def body():
        provider, gateway = FakeProvider(), world.gateway()
        await gateway.complete(provider, ask("a"))
        await gateway.complete(provider, ask("b", samples=3, role=Role.JUDGE))
        await gateway.complete(provider, ask("b", samples=3, role=Role.JUDGE))

    world.time.run(body())
    assert world.calls == [
        ModelCalled(Role.GENERATION, "fake:fake-1", Usage(1, 10, 1, 0, 0.01)),
        ModelCalled(Role.JUDGE, "fake:fake-1", Usage(3, 10, 3, 0, 0.01)),
        ModelCalled(Role.JUDGE, "fake:fake-1", Usage(3, 0, 0, 3, 0.0)),
    ]


def test_a_failed_call_is_reported_as_failed_and_without_cost(world):
    async def body():
        provider = FakeProvider(lambda _: ProviderRequestError("no", provider_id="fake"))
        with pytest.raises(ProviderRequestError):
            await world.gateway().complete(provider, ask(samples=2))

    world.time.run(body())
    assert world.calls == [ModelCalled(Role.GENERATION, "fake:fake-1", Usage(requests=2), failed=True)]


def test_a_bound_model_is_its_provider_behind_the_gateway(world):
    async def body():
        provider = FakeProvider(params={"temperature": 0.3})
        model = world.gateway().model(provider)
        return model, await model.complete(ask())

    model, response = world.time.run(body())
    assert (model.label, model.provider_params) == ("fake:fake-1", {"temperature": 0.3})
    assert response.text == "answer 0"


def test_more_choices_than_asked_for_are_cut(world):
    async def body():
        return await world.gateway().complete(FakeProvider(lambda _: ["a", "b", "c"]), ask())

    response = world.time.run(body())
    assert [choice.text for choice in response.choices] == ["a"]
    assert response.sample_indexes == (0,)


def test_an_error_that_is_no_provider_error_is_not_swallowed(world):
    async def body():
        return await world.gateway().complete(
            FakeProvider(lambda _: ZeroDivisionError("bug")), ask(samples=2)
        )

    with pytest.raises(ZeroDivisionError):
        world.time.run(body())


def test_everything_together_in_real_time_with_a_cache_on_disk(tmp_path):
    # 300 calls of 100 questions over two samples each, on a server that is down now and then and ignores logprobs.
    count = 0

    def server(request):
        nonlocal count
        count += 1
        if count % 10 == 0:
            return ProviderRequestError("odd one", provider_id="fake")
        return [f"{request.messages[0].content}/{index}" for index in request.sample_indexes]

    async def body():
        events, cache = [], ResponseCache.open(tmp_path)
        gateway = Gateway(cache=cache, on_event=events.append, max_concurrency=20)
        provider = FakeProvider(server)
        requests = [ask(str(i % 100), samples=2, want_logprobs=True) for i in range(300)]
        responses = await asyncio.gather(
            *(gateway.complete(provider, request) for request in requests), return_exceptions=True
        )
        again = await asyncio.gather(
            *(gateway.complete(provider, request) for request in requests), return_exceptions=True
        )
        await gateway.aclose()
        cache.close()
        return requests, responses, again, provider

    requests, responses, again, provider = asyncio.run(body())
    for request, response, later in zip(requests, responses, again, strict=True):
        text = request.messages[0].content
        if not isinstance(response, Exception):
            assert [choice.text for choice in response.choices] == [f"{text}/0", f"{text}/1"]
            assert replace(later, usage=response.usage, cached=response.cached) == response
            assert later.cached
    assert sum(isinstance(response, Exception) for response in responses) > 0
    assert sum(request.want_logprobs for request in provider.requests) <= 2
