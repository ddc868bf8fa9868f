import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderTimeoutError, UnsupportedParameterError
from geval_cli.providers.base import ProviderLimits
from geval_cli.records import Choice, ModelResponse, TokenLogprob, Usage

SCHEMA = {"type": "object"}


def refused(parameter):
    return UnsupportedParameterError(
        f"{parameter} is not supported", parameter=parameter, provider_id="fake", status=400, body=""
    )


def wire(request, provider):
    """The parameters of `request` as they would go out."""
    params = {**provider.identity.params, **request.params}
    return {name: value for name, value in params.items() if value is not None}


def picky(*parameters, **options):
    """A provider whose server refuses `parameters`, whether they stand in the config or in the request."""

    def server(request):
        sent = wire(request, provider)
        found = next((name for name in parameters if name in sent), None)
        return refused(found) if found else "fine"

    provider = FakeProvider(server, **options)
    return provider


def complete(world, provider, *requests):
    async def body():
        gateway = world.gateway()
        return [await gateway.complete(provider, request) for request in requests]

    return world.time.run(body())


@pytest.mark.parametrize(
    ("provider_id", "read", "is_told"),
    [
        ("ollama:llama3.2", 4096, True),
        ("ollama:llama3.2", 2050, True),  # half of 4096, and two
        ("ollama:llama3.2", 131_072, True),
        ("ollama:llama3.2", 4095, False),
        ("ollama:llama3.2", 1024, False),
        ("openai:gpt-4.1", 4096, False),
    ],
)
def test_a_prompt_that_ollama_probably_cut_off_is_told_once(world, provider_id, read, is_told):
    response = ModelResponse((Choice("fine"),), Usage(1, read, 5))
    provider = FakeProvider(lambda _: response)
    provider.id = provider_id
    complete(world, provider, *(ask(str(number)) for number in range(3)))
    assert len(set(world.notices)) == is_told
    assert all(f"exactly {read:,} tokens" in notice for notice in world.notices)


def test_a_refused_parameter_is_left_out_remembered_and_told_once(world):
    provider = picky("temperature")
    responses = complete(world, provider, *(ask(str(i), params={"temperature": 0}) for i in range(3)))
    assert [wire(request, provider) for request in provider.requests] == [{"temperature": 0}, {}, {}, {}]
    assert [response.dropped for response in responses] == [("temperature",)] * 3
    assert len(world.notices) == 1
    assert "temperature" in world.notices[0]


def test_a_parameter_of_the_config_can_be_left_out_too(world):
    provider = picky("top_k", params={"top_k": 5})
    [response] = complete(world, provider, ask())
    assert wire(provider.requests[-1], provider) == {}
    assert response.dropped == ("top_k",)


def test_several_refused_parameters_are_found_one_after_the_other(world):
    provider = picky("temperature", "seed", "top_p")
    params = {"temperature": 0, "seed": 1, "top_p": 1, "stop": "x"}
    [response] = complete(world, provider, ask(params=params))
    assert wire(provider.requests[-1], provider) == {"stop": "x"}
    assert set(response.dropped) == {"temperature", "seed", "top_p"}


@pytest.mark.parametrize("in_config", [True, False])
def test_max_tokens_becomes_max_completion_tokens_and_is_not_lost(world, in_config):
    params = {"max_tokens": 9}
    provider = picky("max_tokens", params=params if in_config else {})
    [response] = complete(world, provider, ask(params={} if in_config else params))
    assert wire(provider.requests[-1], provider) == {"max_completion_tokens": 9}
    assert response.dropped == ()


def test_a_server_that_takes_neither_spelling_gets_none(world):
    provider = picky("max_tokens", "max_completion_tokens")
    [response] = complete(world, provider, ask(params={"max_tokens": 9}))
    assert wire(provider.requests[-1], provider) == {}
    assert response.dropped == ("max_completion_tokens",)


def test_a_json_schema_becomes_plain_json_and_then_nothing(world):
    def server(request):
        asks_for_json = request.response_schema or request.params.get("response_format")
        return refused("response_format") if asks_for_json else "fine"

    provider = FakeProvider(server)
    first, second = complete(
        world, provider, ask("a", response_schema=SCHEMA), ask("b", response_schema=SCHEMA)
    )
    forms = [(request.response_schema, wire(request, provider)) for request in provider.requests]
    assert forms == [
        (SCHEMA, {}),
        (None, {"response_format": {"type": "json_object"}}),
        (None, {}),
        (None, {}),
    ]
    assert first.dropped == second.dropped == ("response_format",)


def test_a_server_with_plain_json_only_keeps_getting_it(world):
    provider = FakeProvider(lambda request: refused("response_format") if request.response_schema else "fine")
    [*_, last] = complete(world, provider, ask("a", response_schema=SCHEMA), ask("b", response_schema=SCHEMA))
    assert provider.requests[-1].params == {"response_format": {"type": "json_object"}}
    assert last.dropped == ("json_schema",)
    assert len(world.notices) == 1


@pytest.mark.parametrize("parameter", ["logprobs", "top_logprobs"])
def test_refused_logprobs_are_not_asked_for_again(world, parameter):
    provider = FakeProvider(lambda request: refused(parameter) if request.want_logprobs else "8")
    responses = complete(world, provider, ask("a", want_logprobs=True), ask("b", want_logprobs=True))
    assert [request.want_logprobs for request in provider.requests] == [True, False, False]
    assert [response.dropped for response in responses] == [("logprobs",)] * 2


def test_logprobs_that_are_silently_ignored_are_noticed_and_not_asked_for_again(world):
    provider = FakeProvider(lambda _: "8")
    responses = complete(world, provider, ask("a", want_logprobs=True), ask("b", want_logprobs=True))
    assert [request.want_logprobs for request in provider.requests] == [True, False]
    assert [response.dropped for response in responses] == [("logprobs",)] * 2
    assert len(world.notices) == 1


def test_an_empty_answer_says_nothing_about_logprobs(world):
    answers = iter(["", ModelResponse((Choice("8", "stop", (TokenLogprob("8", -0.1),)),)), "late"])
    provider = FakeProvider(lambda _: next(answers))
    responses = complete(world, provider, *(ask(str(i), want_logprobs=True) for i in range(3)))
    assert [request.want_logprobs for request in provider.requests] == [True, True, True]
    assert [response.dropped for response in responses] == [(), (), ()]
    assert world.notices == []


def test_a_refusal_of_what_was_not_sent_is_an_error(world):
    provider = FakeProvider(lambda _: refused("frobnicate"))
    with pytest.raises(UnsupportedParameterError):
        complete(world, provider, ask())
    assert len(provider.requests) == 1
    assert world.notices == []


def test_unknown_features_are_found_out_by_one_call_while_the_others_wait(world):
    async def body():
        async def server(request):
            await world.time.sleep(1)
            return refused("logprobs") if request.want_logprobs else "8"

        provider, gateway = FakeProvider(server), world.gateway()
        judged = (gateway.complete(provider, ask(str(i), want_logprobs=True)) for i in range(20))
        await asyncio.gather(*judged)
        return provider

    provider = world.time.run(body())
    assert sum(request.want_logprobs for request in provider.requests) == 1
    assert len(provider.requests) == 21


def test_calls_that_need_nothing_unknown_do_not_wait(world):
    order = []

    async def body():
        async def server(request):
            if request.want_logprobs:
                await world.time.sleep(10)
            order.append(request.messages[0].content)
            return "8"

        provider, gateway = FakeProvider(server), world.gateway(max_concurrency=2)
        wanted = [ask("judge", want_logprobs=True), ask("also judge", want_logprobs=True)]
        wanted += [ask("plain a"), ask("plain b")]
        await asyncio.gather(*(gateway.complete(provider, request) for request in wanted))

    world.time.run(body())
    assert order == ["plain a", "plain b", "judge", "also judge"]


def test_a_server_that_fails_or_hangs_is_not_asked_one_call_at_a_time(world):
    async def body():
        async def server(_):
            await world.time.sleep(60)
            return ProviderTimeoutError("slow", provider_id="f")

        provider = FakeProvider(server, limits=ProviderLimits(max_retries=0))
        gateway = world.gateway()
        wanted = (gateway.complete(provider, ask(str(i), want_logprobs=True)) for i in range(12))
        return await asyncio.gather(*wanted, return_exceptions=True), world.time.now

    results, now = world.time.run(body())
    assert {type(result) for result in results} == {ProviderTimeoutError}
    assert now == 1000 + 2 * 60


def test_who_did_not_wait_learns_too_and_it_is_told_once(world):
    async def body():
        answers = iter([ProviderTimeoutError("slow", provider_id="f"), *["8"] * 5])

        async def server(_):
            await world.time.sleep(1)
            return next(answers)

        provider = FakeProvider(server, limits=ProviderLimits(max_retries=0))
        gateway = world.gateway()
        wanted = (gateway.complete(provider, ask(str(i), want_logprobs=True)) for i in range(4))
        await asyncio.gather(*wanted, return_exceptions=True)
        await gateway.complete(provider, ask("later", want_logprobs=True))
        return provider

    provider = world.time.run(body())
    assert [request.want_logprobs for request in provider.requests] == [True] * 4 + [False]
    assert len(world.notices) == 1


def test_another_server_is_found_out_on_its_own(world):
    async def body():
        gateway = world.gateway()
        refusing = FakeProvider(
            lambda request: refused("seed") if wire(request, refusing) else "x", model="a"
        )
        taking = FakeProvider(model="b")
        for provider in (refusing, taking):
            await gateway.complete(provider, ask(params={"seed": 1}))
        return taking

    assert world.time.run(body()).requests[-1].params == {"seed": 1}
