import asyncio
import itertools
from datetime import datetime

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import (
    ProviderAuthError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.gateway.call import ModelCall, Runtime, ServerKey, Wire
from geval_cli.gateway.retry import Pauses, Retry
from geval_cli.providers.base import ProviderLimits


def unavailable(retry_after_s=None):
    error = ProviderUnavailableError("down", provider_id="fake", status=503)
    error.retry_after_s = retry_after_s
    return error


def rate_limited(retry_after_s=None):
    return ProviderRateLimitError("slow down", provider_id="fake", retry_after_s=retry_after_s, status=429)


def answering(*answers, **options):
    remaining = iter(answers)
    return FakeProvider(lambda _: next(remaining), **options)


def complete(world, provider, request=None):
    async def body():
        return await world.gateway().complete(provider, request or ask())

    return world.time.run(body())


@pytest.mark.parametrize(
    "error",
    [
        unavailable(),
        rate_limited(),
        ProviderTimeoutError("slow", provider_id="fake"),
        ProviderResponseError("not JSON", provider_id="fake"),
    ],
)
def test_what_may_pass_is_asked_again(world, error):
    provider = answering(error, "fine")
    assert complete(world, provider).text == "fine"
    assert [call.failed for call in world.calls] == [False]


def test_what_will_not_pass_is_asked_once(world):
    provider = answering(ProviderRequestError("context too long", provider_id="fake", status=400))
    with pytest.raises(ProviderRequestError, match="context too long"):
        complete(world, provider)
    assert world.time.slept == []


def test_after_max_retries_the_last_error_is_raised(world):
    provider = FakeProvider(lambda _: unavailable(), limits=ProviderLimits(max_retries=3))
    with pytest.raises(ProviderUnavailableError, match="down"):
        complete(world, provider)
    assert len(provider.requests) == 4
    assert [call.failed for call in world.calls] == [True]


@pytest.mark.parametrize(
    ("wait_s", "retries", "asked"), [(0, 2, "down (sent 3 times)"), (120, 1, "down (sent 2 times)")]
)
def test_an_error_says_how_often_the_model_was_asked(world, wait_s, retries, asked):
    limits = ProviderLimits(max_retries=retries, timeout_s=60)
    with pytest.raises(ProviderUnavailableError) as caught:
        complete(world, FakeProvider(lambda _: unavailable(wait_s), limits=limits))
    assert caught.value.message == asked


def test_an_error_after_one_attempt_says_nothing_of_attempts(world):
    limits = ProviderLimits(max_retries=1, timeout_s=60)
    with pytest.raises(ProviderUnavailableError) as caught:
        complete(world, FakeProvider(lambda _: unavailable(120.5), limits=limits))
    assert caught.value.message == "down"


def test_an_error_that_no_attempt_could_mend_says_nothing_of_attempts(world):
    refused = ProviderRequestError("too long", provider_id="f")
    with pytest.raises(ProviderRequestError) as caught:
        complete(world, answering(unavailable(), unavailable(), refused))
    assert caught.value.message == "too long"


def test_waits_grow_exponentially_up_to_half_a_minute(world):
    provider = FakeProvider(lambda _: unavailable(), limits=ProviderLimits(max_retries=8))
    with pytest.raises(ProviderUnavailableError):
        complete(world, provider)
    assert world.time.slept == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_jitter_spreads_a_wait_over_its_whole_length(world):
    world.jitter = 0.1
    complete(world, answering(unavailable(), unavailable(), "fine"))
    assert world.time.slept == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize("error", [rate_limited(7), unavailable(7)])
def test_what_the_server_asks_for_comes_first(world, error):
    complete(world, answering(error, "fine"))
    assert world.time.now == 1007


def test_a_server_that_asks_for_no_wait_at_all_is_not_hammered(world):
    complete(world, answering(rate_limited(0), unavailable(0), "fine"))
    assert world.time.now == 1001.5


def test_a_wait_longer_than_the_call_may_take_is_not_begun(world):
    provider = FakeProvider(lambda _: rate_limited(3600), limits=ProviderLimits(timeout_s=60, max_retries=4))
    with pytest.raises(ProviderRateLimitError):
        complete(world, provider)
    assert len(provider.requests) == 1
    assert world.time.slept == []


def test_a_wait_that_takes_all_of_the_calls_patience_is_begun(world):
    provider = answering(rate_limited(120), "fine", limits=ProviderLimits(timeout_s=1, max_retries=1))
    assert complete(world, provider).text == "fine"
    assert world.time.now >= 1120


def test_a_rate_limit_pauses_that_provider_for_everyone_and_no_other(world):
    sent = []

    async def body():
        async def limited(request):
            text = request.messages[0].content
            sent.append((world.time.now, text))
            return rate_limited(30) if len(sent) == 1 else "fine"

        async def free(request):
            sent.append((world.time.now, request.messages[0].content))
            return "fine"

        gateway = world.gateway()
        one, other = FakeProvider(limited, model="one"), FakeProvider(free, model="other")
        first = asyncio.create_task(gateway.complete(one, ask("first")))
        await world.time.sleep(0)
        await asyncio.gather(
            first, gateway.complete(one, ask("second")), gateway.complete(other, ask("elsewhere"))
        )

    world.time.run(body())
    assert sent[:2] == [(1000, "first"), (1000, "elsewhere")]
    assert [at for at, _ in sent[2:]] == [1030, 1031]
    assert len(world.notices) == 1


class Quota:
    """A server that answers `allowed` requests in each minute of its clock, and does not say when the next begins."""

    def __init__(self, world, allowed):
        self._world, self._allowed = world, allowed
        self.answered_at, self.refused_at = [], []

    def __call__(self, _):
        now = self._world.time.now
        if sum(at // 60 == now // 60 for at in self.answered_at) < self._allowed:
            self.answered_at.append(now)
            return "fine"
        self.refused_at.append(now)
        return rate_limited()


def many(world, server, count, **options):
    """The answers (or errors) to `count` calls, 40 at a time, 20 of them on the wire."""

    async def body():
        provider, gateway = FakeProvider(server, **options), world.gateway(max_concurrency=20)
        jobs = asyncio.Semaphore(40)

        async def call(number):
            async with jobs:
                return await gateway.complete(provider, ask(str(number)))

        return await asyncio.gather(*(call(number) for number in range(count)), return_exceptions=True)

    return world.time.run(body())


def test_a_minute_s_quota_without_a_word_about_its_end_is_waited_for(world):
    server = Quota(world, allowed=10)
    answers = many(world, server, 40)
    assert [answer.text for answer in answers] == ["fine"] * 40
    assert len(server.refused_at) < 80


def test_a_server_that_only_ever_says_too_many_is_given_up_after_the_calls_patience(world):
    limits = ProviderLimits(timeout_s=60, max_retries=4)
    server = Quota(world, allowed=0)
    answers = many(world, server, 200, limits=limits)
    assert {type(answer) for answer in answers} == {ProviderRateLimitError}
    assert {str(answer) for answer in answers} == {"slow down (geval waits at most 300 s for a rate limit)"}
    assert 1200 < world.time.now < 1400
    assert len(server.refused_at) < 300


def at(moment):
    return f"{datetime.fromtimestamp(moment).astimezone():%H:%M}"


def test_a_pause_and_giving_up_are_told_once_each_with_the_time_on_the_clock(world):
    """However many 429s there are; a server that never recovers is spoken of once more in between."""
    limits = ProviderLimits(timeout_s=300, max_retries=4)
    server = Quota(world, allowed=0)
    many(world, server, 200, limits=limits)
    assert len(server.refused_at) > 100
    first, still, given_up = world.notices
    assert first == (f"fake:fake-1 is rate-limiting; geval waits as it asks and gives up at {at(2500)}")
    assert still.startswith("fake:fake-1 is still rate-limiting and has not answered for ")
    assert still.endswith(f"geval gives up at {at(2500)}")
    assert f"was given up at {at(world.time.now)}" in given_up or f"was given up at {at(2500)}" in given_up
    assert "at most 1500 s" in given_up


def test_a_quota_that_renews_each_minute_has_one_line(world):
    many(world, Quota(world, allowed=10), 60)
    assert len(world.notices) == 1


def test_a_wait_that_is_not_begun_is_told_as_given_up(world):
    provider = FakeProvider(lambda _: rate_limited(3600))
    with pytest.raises(ProviderRateLimitError):
        complete(world, provider)
    [given_up] = world.notices
    assert f"was given up at {at(1000)}" in given_up


def test_a_server_that_is_down_and_names_a_delay_is_told_with_the_time_too(world):
    complete(world, answering(unavailable(30), unavailable(30), "fine"))
    [told] = world.notices
    assert told.endswith(f"gives up at {at(2500)}")


def test_waits_before_a_server_names_a_delay_take_nothing_from_the_time_that_is_told(world):
    limits = ProviderLimits(timeout_s=100, max_retries=9)
    complete(world, answering(*[unavailable()] * 8, unavailable(30), "fine", limits=limits))
    [told] = world.notices
    assert told.endswith(f"gives up at {at(2000)}")


def test_a_short_time_limit_does_not_end_the_wait_for_a_minute_s_quota(world):
    answers = many(world, Quota(world, allowed=10), 15, limits=ProviderLimits(timeout_s=1, max_retries=1))
    assert [answer.text for answer in answers] == ["fine"] * 15


def test_a_call_that_alone_is_always_refused_is_given_up_while_others_are_answered(world):
    refused_at = []

    async def server(request):
        await world.time.sleep(5)
        if request.messages[0].content != "0":
            return "fine"
        refused_at.append(world.time.now)
        return rate_limited()

    first, *others = many(world, server, 1000, limits=ProviderLimits(timeout_s=30, max_retries=3))
    assert isinstance(first, ProviderRateLimitError)
    assert {answer.text for answer in others} == {"fine"}
    assert refused_at[-1] < 1150 < world.time.now


def test_without_retries_a_rate_limit_is_not_waited_for(world):
    provider = answering(rate_limited(1), limits=ProviderLimits(max_retries=0))
    with pytest.raises(ProviderRateLimitError):
        complete(world, provider)
    assert world.time.now == 1000


def test_after_a_pause_calls_go_out_one_by_one_and_faster_with_each_answer(world):
    sent = []

    async def server(_):
        sent.append(world.time.now)
        return rate_limited(10) if len(sent) <= 5 else "fine"

    many(world, server, 50)
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent[20:])]
    assert sent.count(1010) == 1
    assert gaps[:3] == sorted(gaps[:3], reverse=True)
    assert gaps[-1] == 0


def test_a_call_that_backs_off_holds_no_slot(world):
    order = []

    async def body():
        def server(request):
            text = request.messages[0].content
            order.append(text)
            return unavailable() if order == ["flaky"] else "fine"

        provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=1))
        gateway = world.gateway(max_concurrency=1)
        await asyncio.gather(*(gateway.complete(provider, ask(text)) for text in ("flaky", "steady")))

    world.time.run(body())
    assert order == ["flaky", "steady", "flaky"]


def test_a_refused_key_costs_one_request_and_every_call_says_the_same(world):
    async def body():
        def server(_):
            return ProviderAuthError("the key was refused", provider_id="fake", status=401, hint="set it")

        provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=1, requests_per_minute=1))
        gateway = world.gateway()
        calls = (gateway.complete(provider, ask(str(i))) for i in range(200))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        return provider, errors, world.time.now

    provider, errors, now = world.time.run(body())
    assert len(provider.requests) == 1
    assert {(type(e), e.message, e.hint, e.status, e.provider_id) for e in errors} == {
        (ProviderAuthError, "the key was refused", "set it", 401, "fake")
    }
    assert now < 1002


def test_a_refused_key_stops_only_the_provider_that_has_it(world):
    async def body():
        gateway = world.gateway()
        wrong_key = FakeProvider(lambda _: ProviderAuthError("refused", provider_id="fake"))
        right_key = FakeProvider()
        with pytest.raises(ProviderAuthError):
            await gateway.complete(wrong_key, ask())
        return await gateway.complete(right_key, ask("b"))

    assert world.time.run(body()).text == "answer 0"


class TestPauses:
    """The pauses by themselves, for one server."""

    server = ServerKey("fake", "", "fake-1")

    def test_each_pause_that_was_not_enough_doubles_the_next_up_to_a_minute(self, world):
        pauses, found = Pauses(world.time.clock), []
        assert (pauses.limited_since(self.server), pauses.limited_for_s(self.server)) == (None, 0)
        for _ in range(8):
            found.append(pauses.limited(self.server))
            pauses.pause(self.server, found[-1])
            world.time.now += found[-1] / 2
            assert pauses.limited(self.server) == found[-1]  # refused together with the one before
            world.time.now += found[-1] / 2

        assert found == [1, 2, 4, 8, 16, 32, 60, 60]
        assert pauses.limited_since(self.server) == 1000
        assert pauses.limited_for_s(self.server) == sum(found)
        pauses.answered(self.server)
        assert (pauses.limited_since(self.server), pauses.limited_for_s(self.server)) == (None, 0)
        assert pauses.limited(self.server) == 1

    def test_a_longer_pause_under_way_stays(self, world):
        pauses = Pauses(world.time.clock)
        assert pauses.remaining_s(self.server) == 0
        for delay_s, remaining_s in ((10, 10), (2, 10), (12, 12)):
            pauses.pause(self.server, delay_s)
            assert pauses.remaining_s(self.server) == remaining_s
        world.time.now += 13
        assert pauses.remaining_s(self.server) == 0

    @pytest.mark.parametrize(("delay_s", "remaining_s"), [(0, 0), (60, 60), (60.1, 0)])
    def test_a_server_with_nothing_left_is_left_alone_for_a_minute_at_most(self, world, delay_s, remaining_s):
        pauses = Pauses(world.time.clock)
        pauses.hold(self.server, delay_s)
        assert pauses.remaining_s(self.server) == remaining_s
        world.time.now += remaining_s
        pauses.sent(self.server)
        assert pauses.remaining_s(self.server) == 0  # no gap between calls afterwards

    @pytest.mark.parametrize(("delay_s", "gap_s"), [(4, 0.2), (20, 1), (60, 1)])
    def test_after_a_pause_the_gap_between_calls_shrinks_by_a_tenth_with_each_answer(
        self, world, delay_s, gap_s
    ):
        pauses = Pauses(world.time.clock)
        pauses.pause(self.server, delay_s)
        pauses.pause(self.server, 1)  # a shorter one makes it no smaller
        world.time.now += delay_s
        while gap_s >= 0.01:
            pauses.sent(self.server)
            assert pauses.remaining_s(self.server) == pytest.approx(gap_s)
            pauses.answered(self.server)
            world.time.now += gap_s + 1e-6
            gap_s *= 0.9
        pauses.sent(self.server)
        assert pauses.remaining_s(self.server) == 0

    def test_a_server_that_was_given_up_holds_nobody_back(self, world):
        pauses = Pauses(world.time.clock)
        pauses.pause(self.server, 20)
        pauses.give_up(self.server)
        world.time.now += 20
        pauses.sent(self.server)
        assert pauses.remaining_s(self.server) == 0


def test_each_repetition_has_its_number(world):
    async def body():
        attempts = []

        async def send(call):
            attempts.append(call.attempt)
            raise unavailable()

        retry = Retry(
            pauses=Pauses(world.time.clock),
            runtime=Runtime(clock=world.time.clock, sleep=world.time.sleep, random=lambda: 1.0),
            notice=lambda text: None,
            wire=Wire(),
        )
        provider = FakeProvider(limits=ProviderLimits(max_retries=3))
        with pytest.raises(ProviderUnavailableError):
            await retry(ModelCall(provider, ask(), TestPauses.server), send)
        return attempts

    assert world.time.run(body()) == [1, 2, 3, 4]
