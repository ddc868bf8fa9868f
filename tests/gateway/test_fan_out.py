import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import (
    ProviderAuthError,
    ProviderRequestError,
    ProviderTimeoutError,
    UnsupportedParameterError,
)
from geval_cli.providers.base import ProviderLimits


def refused(parameter="n"):
    return UnsupportedParameterError(
        "not supported", parameter=parameter, provider_id="fake", status=400, body="not supported"
    )


def complete(world, provider, *requests):
    async def body():
        gateway = world.gateway()
        return [await gateway.complete(provider, request) for request in requests]

    return world.time.run(body())


def sizes(provider):
    return [len(request.sample_indexes) for request in provider.requests]


def test_many_samples_go_in_one_request(world):
    provider = FakeProvider()
    [response] = complete(world, provider, ask(samples=20))
    assert sizes(provider) == [20]
    assert len(response.choices) == 20
    assert response.usage.requests == 20


def test_a_server_that_answers_fewer_is_asked_for_the_rest_and_for_no_more_than_that_later(world):
    provider = FakeProvider(lambda request: [str(index) for index in request.sample_indexes[:8]])
    first, second = complete(world, provider, ask("a", samples=20), ask("b", samples=20))
    assert sizes(provider) == [20, 8, 4, 8, 8, 4]
    for response in (first, second):
        assert [choice.text for choice in response.choices] == [str(index) for index in range(20)]


@pytest.mark.parametrize(
    "refusal",
    [
        refused(),
        ProviderRequestError("no", provider_id="fake", status=400, body='{"error": "n must be 1"}'),
        ProviderRequestError(
            "no", provider_id="fake", status=400, body="Only one completion choice is allowed"
        ),
    ],
)
def test_a_server_that_refuses_n_is_asked_in_parallel_and_never_for_more_again(world, refusal):
    provider = FakeProvider(lambda request: refusal if len(request.sample_indexes) > 1 else "one")
    first, second = complete(world, provider, ask("a", samples=5), ask("b", samples=3))
    assert sizes(provider) == [5, 1, 1, 1, 1, 1, 1, 1, 1]
    assert (len(first.choices), len(second.choices)) == (5, 3)
    assert len(world.notices) == 1


def test_a_server_that_gives_one_answer_for_n_is_asked_in_parallel(world):
    provider = FakeProvider(lambda request: str(request.sample_indexes[0]))
    [response] = complete(world, provider, ask(samples=4))
    assert sizes(provider) == [4, 1, 1, 1]
    assert [choice.text for choice in response.choices] == ["0", "1", "2", "3"]


def test_a_refusal_that_is_not_about_n_is_not_taken_for_one(world):
    body = '{"error": "maximum context length exceeded\\nuse a shorter prompt"}'
    provider = FakeProvider(lambda _: ProviderRequestError("no", provider_id="f", status=400, body=body))
    with pytest.raises(ProviderRequestError):
        complete(world, provider, ask(samples=4))
    assert sizes(provider) == [4]


def test_lost_samples_are_left_out_and_the_others_keep_their_numbers(world):
    def server(request):
        if len(request.sample_indexes) > 1:
            return refused()
        index = request.sample_indexes[0]
        return ProviderTimeoutError("slow", provider_id="fake") if index == 1 else str(index)

    provider = FakeProvider(server, limits=ProviderLimits(max_retries=0))
    [response] = complete(world, provider, ask(samples=4))
    assert response.sample_indexes == (0, 2, 3)
    assert [choice.text for choice in response.choices] == ["0", "2", "3"]


def test_when_every_sample_is_lost_the_error_is_raised(world):
    def server(request):
        return refused() if len(request.sample_indexes) > 1 else ProviderTimeoutError("slow", provider_id="f")

    provider = FakeProvider(server, limits=ProviderLimits(max_retries=0))
    with pytest.raises(ProviderTimeoutError, match="slow"):
        complete(world, provider, ask(samples=3))


def test_a_refused_key_is_never_hidden_behind_samples_that_came(world):
    def server(request):
        if len(request.sample_indexes) > 1:
            return refused()
        return ProviderAuthError("quota", provider_id="f") if request.sample_indexes == (2,) else "x"

    with pytest.raises(ProviderAuthError):
        complete(world, FakeProvider(server), ask(samples=3))


def test_whether_n_is_taken_is_found_out_by_one_call_while_the_others_wait(world):
    async def body():
        async def server(request):
            await world.time.sleep(1)
            return refused() if len(request.sample_indexes) > 1 else "one"

        provider, gateway = FakeProvider(server), world.gateway()
        await asyncio.gather(*(gateway.complete(provider, ask(str(i), samples=3)) for i in range(10)))
        return provider

    provider = world.time.run(body())
    assert sizes(provider) == [3] + [1] * 30


def test_calls_for_one_sample_do_not_wait_for_that(world):
    order = []

    async def body():
        async def server(request):
            if len(request.sample_indexes) > 1:
                await world.time.sleep(10)
            order.append(len(request.sample_indexes))
            return [str(index) for index in request.sample_indexes]

        provider, gateway = FakeProvider(server), world.gateway()
        await asyncio.gather(
            gateway.complete(provider, ask("a", samples=2)), gateway.complete(provider, ask("b"))
        )

    world.time.run(body())
    assert order == [1, 2]


def test_a_server_that_fails_is_not_asked_for_samples_one_call_at_a_time(world):
    async def body():
        async def server(_):
            await world.time.sleep(60)
            return ProviderTimeoutError("slow", provider_id="f")

        provider = FakeProvider(server, limits=ProviderLimits(max_retries=0))
        gateway = world.gateway()
        calls = (gateway.complete(provider, ask(str(i), samples=2)) for i in range(12))
        return await asyncio.gather(*calls, return_exceptions=True), world.time.now

    results, now = world.time.run(body())
    assert {type(result) for result in results} == {ProviderTimeoutError}
    assert now == 1000 + 2 * 60
