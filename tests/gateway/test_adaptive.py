import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderRateLimitError, ProviderRequestError, ProviderUnavailableError
from geval_cli.gateway.limits import AdaptiveSlots, CallOutcome, CapShare
from geval_cli.providers.base import ProviderLimits
from geval_cli.records import Choice, ModelResponse


def complete_all(world, jobs, **options):
    async def body():
        gateway = world.gateway(**options)
        calls = (gateway.complete(provider, request) for provider, request in jobs)
        return await asyncio.gather(*calls, return_exceptions=True)

    return world.time.run(body())


def rounds(slots, *outcomes):
    """All slots are used at once and given back with the same outcome, round by round; how many there were."""

    async def main():
        sizes = []
        for outcome in outcomes:
            tickets = [await slots.acquire() for _ in range(int(slots.allowed))]
            sizes.append(len(tickets))
            for ticket in tickets:
                slots.release(ticket, outcome)
        return sizes

    return asyncio.run(main())


def test_overload_halves_once_for_all_requests_that_were_under_way():
    assert rounds(AdaptiveSlots(64), *[CallOutcome.OVERLOAD] * 9) == [64, 32, 16, 8, 4, 2, 1, 1, 1]


def test_clean_answers_give_back_slots_up_to_the_cap_and_never_more():
    slots = AdaptiveSlots(20)
    assert rounds(slots, CallOutcome.OVERLOAD, *[CallOutcome.CLEAN] * 12)[:4] == [20, 10, 10, 11]
    assert slots.allowed == 20


def test_a_request_that_left_before_the_halving_does_not_halve_again():
    async def main():
        slots = AdaptiveSlots(8)
        tickets = [await slots.acquire() for _ in range(8)]
        slots.release(tickets[0], CallOutcome.OVERLOAD)
        after_first = slots.allowed
        for ticket in tickets[1:]:
            slots.release(ticket, CallOutcome.OVERLOAD)
        late = await slots.acquire()
        slots.release(late, CallOutcome.OVERLOAD)
        return after_first, slots.allowed

    assert asyncio.run(main()) == (4, 1)


def test_without_a_cap_the_requests_under_way_are_what_is_halved():
    async def main():
        slots = AdaptiveSlots(None)
        tickets = [await slots.acquire() for _ in range(30)]
        slots.release(tickets[0], CallOutcome.OVERLOAD)
        return slots.allowed

    assert asyncio.run(main()) == 15


@pytest.mark.parametrize(
    ("most", "taken", "after"),
    [(100, 100, (50, 55)), (40, 40, (20, 22)), (20, 20, (10, 11)), (4, 4, (2, 3)), (None, 30, (15, 16))],
)
def test_a_round_of_clean_answers_gives_back_a_twentieth_of_the_cap_and_at_least_one(most, taken, after):
    async def main():
        slots = AdaptiveSlots(most)
        tickets = [await slots.acquire() for _ in range(taken)]
        slots.release(tickets[0], CallOutcome.OVERLOAD)
        for ticket in tickets[1:]:
            slots.release(ticket)
        halved = slots.allowed
        for ticket in [slots.take() for _ in range(int(halved))]:
            slots.release(ticket, CallOutcome.CLEAN)
        return halved, slots.allowed

    halved, grown = asyncio.run(main())
    assert halved == after[0]
    assert grown == pytest.approx(after[1], rel=0.1)
    assert 0.7 * (after[1] - halved) < grown - halved <= after[1] - halved


@pytest.mark.parametrize("cancelled_at", ["in line", "at its turn"])
def test_a_cancelled_waiter_takes_no_slot_with_it(cancelled_at):
    async def main():
        slots = AdaptiveSlots(1)
        ticket = await slots.acquire()
        waiting = [asyncio.ensure_future(slots.acquire()) for _ in range(2)]
        await asyncio.sleep(0)
        if cancelled_at == "in line":
            waiting[0].cancel()
            await asyncio.sleep(0)
            slots.release(ticket)
        else:
            slots.release(ticket)
            waiting[0].cancel()
        slots.release(await waiting[1])
        assert waiting[0].cancelled()
        return slots.take(), slots.take()

    assert asyncio.run(main()) == (0, None)


def test_a_share_of_less_than_one_slot_is_one():
    slots = AdaptiveSlots(2, CapShare(processes=9, share=0.25))
    assert [slots.take(), slots.take()] == [0, None]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_share_that_grows_is_given_to_those_who_still_wait(is_cancelled):
    async def main():
        pace = CapShare(processes=2, share=0.25)
        slots = AdaptiveSlots(4, pace)
        ticket = await slots.acquire()
        waiting = asyncio.ensure_future(slots.acquire())
        await asyncio.sleep(0)
        if is_cancelled:
            waiting.cancel()
            await asyncio.wait([waiting])
        pace.share = 0.5
        if not is_cancelled:
            assert slots.take() is None
            slots.release(ticket)
            await waiting
        return [slots.take(), slots.take()]

    assert asyncio.run(main()) == [0, None]


def crowded_server(world, *, capacity):
    """Answers after a second, and refuses whatever comes while it has `capacity` requests under way."""
    state = {"busy": 0, "refused": 0}

    async def server(_):
        if state["busy"] >= capacity:
            state["refused"] += 1
            await world.time.sleep(0.5)
            return ProviderRateLimitError("too many", provider_id="f", status=429, retry_after_s=0.1)
        state["busy"] += 1
        await world.time.sleep(1)
        state["busy"] -= 1
        return "fine"

    return server, state


def test_a_server_that_takes_less_than_the_cap_is_asked_less_at_once(world):
    server, state = crowded_server(world, capacity=4)
    provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=32))
    answers = complete_all(world, [(provider, ask(str(number))) for number in range(200)])
    assert all(isinstance(answer, ModelResponse) for answer in answers)
    # Far fewer refusals than a fixed pace of 32 would bring: that is 28 in each second.
    assert state["refused"] < 100


def test_one_overloaded_server_leaves_the_slots_of_another_alone(world):
    limits = ProviderLimits(max_concurrency=8)
    overloaded = FakeProvider(
        lambda _: ProviderUnavailableError("busy", provider_id="f", status=529), model="a", limits=limits
    )

    async def steady(_):
        await world.time.sleep(1)
        return "fine"

    free = FakeProvider(steady, model="b", limits=limits)
    complete_all(world, [(provider, ask(str(i))) for i in range(16) for provider in (overloaded, free)])
    assert free.most_on_the_wire == 8


@pytest.mark.parametrize(
    ("status", "wait_s", "ends_at"),
    [(503, None, 1003), (529, None, 1003), (500, 1, 1003), (500, None, 1002), (502, None, 1002)],
)
def test_only_a_server_that_is_asked_too_much_is_asked_less_at_once(world, status, wait_s, ends_at):
    async def server(request):
        await world.time.sleep(1)
        if int(request.messages[0].content) < 8:
            error = ProviderUnavailableError("busy", provider_id="f", status=status)
            error.retry_after_s = wait_s
            return error
        return "fine"

    provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=8, max_retries=0))
    complete_all(world, [(provider, ask(str(number))) for number in range(16)])
    assert world.time.now == ends_at


def test_an_error_that_is_no_overload_changes_nothing(world):
    async def server(request):
        await world.time.sleep(1)
        if int(request.messages[0].content) < 8:
            return ProviderRequestError("bad", provider_id="f", status=400)
        return "fine"

    provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=8))
    complete_all(world, [(provider, ask(str(i))) for i in range(16)])
    assert world.time.now == 1002


def test_a_server_with_nothing_left_is_left_alone_until_it_has(world):
    sent = []

    def server(_):
        sent.append(world.time.now)
        return ModelResponse((Choice("x"),), exhausted_s=7.0 if len(sent) == 2 else 0.0)

    provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=1))
    complete_all(world, [(provider, ask(str(i))) for i in range(4)])
    assert sent == pytest.approx([1000, 1000, 1007, 1007])


def test_a_limit_that_is_renewed_in_hours_is_left_to_the_server_to_enforce(world):
    provider = FakeProvider(lambda _: ModelResponse((Choice("x"),), exhausted_s=8 * 3600.0))
    complete_all(world, [(provider, ask(str(i))) for i in range(4)])
    assert world.time.now == 1000
