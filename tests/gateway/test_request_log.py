from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderRateLimitError, ProviderUnavailableError
from geval_cli.events import ModelCalled, RequestEnded
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.records import Choice, ModelResponse, Usage


def traced(world, provider, *requests, is_tracing=True):
    async def body():
        gateway = world.gateway(policy=CallPolicy(is_tracing=is_tracing))
        for request in requests:
            await gateway.complete(provider, request)

    world.time.run(body())
    return [event for event in world.events if isinstance(event, RequestEnded)]


def failing(request_id):
    error = ProviderUnavailableError("down", provider_id="fake", status=503)
    error.request_id = request_id
    return error


def test_each_attempt_is_told_with_its_number_and_what_came_of_it(world):
    good = ModelResponse((Choice("fine", "length"),), Usage(1, 10, 2), request_id="req-3")
    limited = ProviderRateLimitError("slow down", provider_id="fake", status=429)
    answers = iter([failing("req-1"), limited, good])
    told = traced(world, FakeProvider(lambda _: next(answers)), ask("secret question"))
    assert [(item.call, item.attempt, item.status, item.request_id) for item in told] == [
        (1, 1, 503, "req-1"),
        (1, 2, 429, None),
        (1, 3, None, "req-3"),
    ]
    assert [item.error and item.error.type for item in told] == [
        "ProviderUnavailableError",
        "ProviderRateLimitError",
        None,
    ]
    assert told[-1].usage == Usage(1, 10, 2)
    assert told[-1].finish_reasons == ("length",)
    assert all(item.latency_ms >= 0 and item.started_at > 1e9 for item in told)
    assert "secret question" not in repr(told)
    assert "fine" not in repr(told)


def test_the_requests_of_a_call_bear_its_number(world):
    told = traced(world, FakeProvider(lambda _: ["one"]), ask("a", samples=3), ask("b"))
    assert [item.call for item in told] == [1, 1, 1, 2]
    assert [event.call for event in world.events if isinstance(event, ModelCalled)] == [1, 2]


def test_an_answer_from_the_cache_is_a_call_without_a_request(world):
    told = traced(world, FakeProvider(), ask(), ask())
    assert len(told) == 1
    assert [event.usage.cached_requests for event in world.calls] == [0, 1]


def test_nothing_is_told_where_nobody_asked_for_it(world):
    assert traced(world, FakeProvider(), ask(), is_tracing=False) == []
