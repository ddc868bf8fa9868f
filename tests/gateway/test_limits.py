import asyncio
import contextvars

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import (
    BudgetError,
    ProviderAuthError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderTimeoutError,
)
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import OPEN_CASE, ModelCall, OpenCase, ServerKey
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.gateway.limits import CapShare, OpenCases, Window, _Line
from geval_cli.providers.base import ProviderLimits
from geval_cli.records import Choice, ModelResponse, Role, Usage


def complete_all(world, jobs, **options):
    async def body():
        gateway = world.gateway(**options)
        calls = (gateway.complete(provider, request) for provider, request in jobs)
        return await asyncio.gather(*calls, return_exceptions=True)

    return world.time.run(body())


AMOUNTS = st.integers(1, 80).map(lambda quarters: quarters / 4)
"""Of which sums are exact."""


def slow(world, seconds=1.0, **options):
    async def server(request):
        await world.time.sleep(seconds)
        return request.messages[0].content

    return FakeProvider(server, **options)


def test_no_more_requests_at_once_than_a_provider_allows(world):
    provider = slow(world, limits=ProviderLimits(max_concurrency=3))
    complete_all(world, [(provider, ask(str(i))) for i in range(10)])
    assert provider.most_on_the_wire == 3
    assert world.time.now == 1004


def test_no_more_requests_at_once_than_allowed_in_all(world):
    providers = [slow(world, model=name) for name in ("a", "b")]
    jobs = [(provider, ask(str(i))) for i in range(10) for provider in providers]
    complete_all(world, jobs, max_concurrency=4)
    assert sum(provider.most_on_the_wire for provider in providers) <= 4
    assert world.time.now == 1005


def test_a_crowded_provider_does_not_keep_slots_from_another(world):
    crowded = slow(world, 100, model="crowded", limits=ProviderLimits(max_concurrency=1))
    free = slow(world, 1, model="free")
    finished = []

    async def body():
        gateway = world.gateway(max_concurrency=2)

        async def complete(provider, text):
            await gateway.complete(provider, ask(text))
            finished.append((provider.id, world.time.now))

        jobs = [complete(crowded, str(i)) for i in range(5)] + [complete(free, str(i)) for i in range(5)]
        await asyncio.gather(*jobs)

    world.time.run(body())
    assert finished[:5] == [("fake:free", 1000.0 + second) for second in range(1, 6)]


def test_no_more_requests_in_a_minute_than_allowed(world):
    sent = []

    def server(_):
        sent.append(world.time.now)
        return "x"

    provider = FakeProvider(server, limits=ProviderLimits(requests_per_minute=10))
    complete_all(world, [(provider, ask(str(i))) for i in range(25)])
    assert sent[:10] == [1000] * 10
    assert sent[10:20] == pytest.approx([1061] * 10)
    assert sent[20:] == pytest.approx([1122] * 5)


def test_retries_and_parts_of_a_fan_out_count_as_requests(world):
    sent = []

    def server(request):
        sent.append(world.time.now)
        first_time = len(sent) == 1
        return ProviderTimeoutError("slow", provider_id="f") if first_time else str(request.sample_indexes[0])

    provider = FakeProvider(server, limits=ProviderLimits(requests_per_minute=2))
    complete_all(world, [(provider, ask(samples=3))])
    assert sent == pytest.approx([1000, 1000.5, 1061, 1061.5])


@pytest.mark.parametrize("concurrency", [1, 20])
def test_tokens_in_a_minute_are_never_more_than_allowed_however_many_are_under_way(world, concurrency):
    sent = []

    async def server(_):
        sent.append(world.time.now)
        await world.time.sleep(1)
        return ModelResponse((Choice("x"),), usage=Usage(1, 10, 90))

    limits = ProviderLimits(tokens_per_minute=250, max_concurrency=concurrency)
    provider = FakeProvider(server, limits=limits)
    complete_all(world, [(provider, ask(str(i))) for i in range(6)])
    # The first one alone, whose 100 tokens the others are then expected to take.
    assert sent == pytest.approx([1000, 1001, 1061, 1062, 1122, 1123], abs=0.1)


def test_a_first_request_that_fails_leaves_the_finding_out_to_the_next(world):
    answers = iter([ProviderRequestError("no", provider_id="f")])

    async def server(_):
        await world.time.sleep(1)
        return next(answers, "x")

    provider = FakeProvider(server, limits=ProviderLimits(tokens_per_minute=1000))
    complete_all(world, [(provider, ask(str(i))) for i in range(9)])
    assert world.time.now == pytest.approx(1003, abs=0.1)


def test_the_line_is_first_come_first_served(world):
    order = []

    def server(request):
        order.append(request.messages[0].content)
        return "x"

    provider = FakeProvider(server, limits=ProviderLimits(requests_per_minute=2, max_concurrency=1))
    complete_all(world, [(provider, ask(str(i))) for i in range(7)])
    assert order == [str(i) for i in range(7)]


def test_a_newcomer_does_not_overtake_the_line(world):
    """When the minute is over and a slot is free, who comes at that moment stands behind those who waited."""
    order = []

    def server(request):
        order.append(request.messages[0].content)
        return "x"

    async def body():
        gateway = world.gateway()
        waiting = [asyncio.ensure_future(gateway.complete(provider, ask(str(i)))) for i in range(4)]
        await world.time.sleep(0.5)
        world.time.now = 1061.0  # the line has not been woken yet
        newcomer = asyncio.ensure_future(gateway.complete(provider, ask("newcomer")))
        await asyncio.gather(*waiting, newcomer)

    provider = FakeProvider(server, limits=ProviderLimits(requests_per_minute=1))
    world.time.run(body())
    assert order == ["0", "1", "2", "3", "newcomer"]


@pytest.mark.parametrize("is_called", [False, True], ids=["in the line", "when its turn has come"])
def test_whoever_is_cancelled_in_a_line_ends_and_keeps_nobody_waiting(is_called):
    async def body():
        line = _Line()
        await line.enter(goes_before=False)
        second, third = (asyncio.create_task(line.enter(goes_before=False)) for _ in range(2))
        await asyncio.sleep(0)
        if is_called:
            line.leave()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        if not is_called:
            await asyncio.sleep(0)
            assert not third.done()
            line.leave()
        await asyncio.wait_for(third, 30)
        line.leave()
        assert not line.is_behind(goes_before=False)

    asyncio.run(body())


def test_a_call_cancelled_in_line_leaves_its_slot_to_others(world):
    async def body():
        provider, gateway = slow(world, limits=ProviderLimits(max_concurrency=1)), world.gateway()
        tasks = [asyncio.create_task(gateway.complete(provider, ask(str(i)))) for i in range(4)]
        await world.time.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.wait(tasks)
        return await gateway.complete(provider, ask("after"))

    assert world.time.run(body()).text == "after"


@given(
    per_minute=st.floats(0.2, 50),
    asks=st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 20)), min_size=1, max_size=60),
)
def test_a_window_never_holds_more_than_its_cap(per_minute, asks):
    window, now, taken = Window(per_minute), 0.0, []
    cap = max(per_minute, 1.0)
    span_s = 60 * cap / per_minute
    for pause, amount in asks:
        now += pause
        while wait_s := window.wait_s(amount, now):
            now += max(wait_s, 1e-6)
        window.take(amount, now)
        taken.append((now, amount))
        within = [size for at, size in taken if at > now - span_s + 1e-5]
        assert sum(within) <= cap + 1e-6 or len(within) == 1


@given(
    per_minute=st.sampled_from([0.5, 1, 6, 60]),
    capacity=st.sampled_from([None, 2.0]),
    asks=st.lists(
        st.tuples(st.floats(0, 30), AMOUNTS, st.one_of(st.none(), AMOUNTS)),
        min_size=1,
        max_size=20,
    ),
)
def test_a_window_lets_an_amount_through_as_soon_as_it_has_room(per_minute, capacity, asks):
    window, now, taken = Window(per_minute, capacity=capacity, margin_s=0.5), 0.0, []
    cap = capacity or max(per_minute, 1.0)
    span_s = 60 * cap / per_minute + 0.5
    for pause, amount, corrected in asks:
        now += pause
        for at in sorted({now, *(max(now, at + span_s) for at, _ in taken)}):
            left = [size for begun, size in taken if begun + span_s > at]
            if not left or sum(left) + amount <= cap:
                break
        assert window.wait_s(amount, now) == pytest.approx(at - now, abs=1e-6)
        now = at
        assert window.wait_s(amount, now) == pytest.approx(0, abs=1e-6)
        one = window.take(amount, now)
        if corrected is not None:
            window.correct(one, corrected)
        taken.append((now, amount if corrected is None else corrected))


@pytest.mark.parametrize(
    ("processes", "cap", "part"), [(1, 10, 10), (3, 10, 3), (3, 2, 1), (3, 3, 1), (3, None, None), (2, 9, 4)]
)
def test_processes_share_the_caps_and_each_may_send_one_request(processes, cap, part):
    limits = ProviderLimits(
        max_concurrency=cap, requests_per_minute=60, tokens_per_minute=None, delay_ms=100, max_retries=7
    )
    assert CapShare(processes).part(cap) == part
    assert CapShare(processes).of(limits) == ProviderLimits(
        max_concurrency=part,
        requests_per_minute=60 / processes,
        tokens_per_minute=None,
        delay_ms=100 * processes,
        max_retries=7,
    )


def test_a_correction_after_the_span_changes_nothing():
    window = Window(10)
    taken = window.take(10, 0.0)
    assert window.wait_s(1, 61.0) == 0
    window.correct(taken, 1000)
    window.take(1, 61.0)
    assert window.wait_s(9, 61.0) == 0


def test_a_cap_below_one_spreads_single_requests():
    window = Window(0.5)
    window.take(1, 0.0)
    assert window.wait_s(1, 0.0) == 120


def test_requests_to_one_provider_are_as_far_apart_as_it_wishes(world):
    spaced = slow(world, 0, limits=ProviderLimits(delay_ms=1500))
    free = slow(world, 0, model="free")
    complete_all(world, [(spaced, ask(str(i))) for i in range(4)] + [(free, ask("now"))])
    assert world.time.now == pytest.approx(1000 + 3 * 1.5)


def test_an_answer_from_the_cache_waits_for_nothing(world):
    spaced = slow(world, 0, limits=ProviderLimits(delay_ms=1500))
    complete_all(world, [(spaced, ask("once")) for _ in range(4)])
    assert world.time.now == 1000


def test_a_call_cancelled_while_the_run_is_crowded_leaves_its_providers_slot(world):
    crowding = slow(world, 100, model="crowding")
    provider = slow(world, limits=ProviderLimits(max_concurrency=1))

    async def body():
        gateway = world.gateway(max_concurrency=1)
        first = asyncio.create_task(gateway.complete(crowding, ask("x")))
        await world.time.sleep(0)
        waiting = asyncio.create_task(gateway.complete(provider, ask("waiting")))
        await world.time.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting, first])
        return await gateway.complete(provider, ask("after"))

    assert world.time.run(body()).text == "after"


def test_a_pause_that_begins_while_a_call_stands_in_line_takes_no_slot(world):
    refused = []

    async def server(request):
        await world.time.sleep(1)
        if not refused:
            refused.append(request)
            raise ProviderRateLimitError("too many", provider_id="fake", status=429, retry_after_s=5)
        return "fine"

    provider = FakeProvider(server, limits=ProviderLimits(max_concurrency=1))
    answers = complete_all(world, [(provider, ask(str(number))) for number in range(4)])
    assert [answer.text for answer in answers] == ["fine"] * 4
    assert world.time.now >= 1010


@pytest.mark.parametrize(("characters", "ends_at"), [(200, 1000), (204, 1062)])
def test_four_characters_are_taken_for_a_token_until_the_server_says_more(world, characters, ends_at):
    provider = FakeProvider(
        lambda _: ModelResponse((Choice("x"),), usage=Usage(input_tokens=50)),
        limits=ProviderLimits(tokens_per_minute=100),
    )

    async def body():
        gateway = world.gateway()
        await gateway.complete(provider, ask("a" * 200))
        await gateway.complete(provider, ask("b" * characters))

    world.time.run(body())
    assert world.time.now == pytest.approx(ends_at, abs=1)


def test_an_answer_that_does_not_say_what_it_took_is_taken_as_estimated(world):
    answers = [Usage(), Usage(input_tokens=50), Usage()]
    provider = FakeProvider(
        lambda _: ModelResponse((Choice("x"),), usage=answers.pop()),
        limits=ProviderLimits(tokens_per_minute=100),
    )

    async def body():
        gateway = world.gateway()
        ends = []
        for text in "abc":
            await gateway.complete(provider, ask(text * 200))
            ends.append(world.time.now)
        return ends

    assert world.time.run(body()) == pytest.approx([1000, 1000, 1061], abs=1)


# -- calls on behalf of cases ---------------------------------------------------------------------------------------


class Cases:
    """Calls on behalf of cases through one gateway, and when each of them was sent."""

    def __init__(self, world, provider=None, **options):
        self.world, self.sent = world, []
        self.gateway = world.gateway(**options)
        self.provider = provider or FakeProvider()

    async def call(self, case, text, **fields):
        OPEN_CASE.set(case)
        await self.gateway.complete(self.provider, ask(text, **fields))
        self.sent.append((text[:9].strip(), self.world.time.now))

    async def start(self, case, text, **fields):
        """Let a call go as far as it comes at this moment."""
        task = asyncio.create_task(self.call(case, text, **fields))
        for _ in range(20):
            await asyncio.sleep(0)
        return task


def judged():
    return OpenCase(is_judged=True)


@pytest.mark.parametrize("is_answer_at_hand", [False, True])
def test_a_case_waits_until_one_of_those_that_are_open_is_whole(world, is_answer_at_hand):
    first, second, third = judged(), judged(), judged()

    async def body():
        calls = Cases(world, max_concurrency=2)
        role = Role.JUDGE if is_answer_at_hand else Role.GENERATION
        await asyncio.gather(calls.call(first, "1", role=role), calls.call(second, "2", role=role))
        waiting = await calls.start(third, "3")
        begun = first.is_begun, second.is_begun, third.is_begun
        await calls.call(first, "1 is judged", role=Role.JUDGE)
        assert not waiting.done()
        calls.gateway.cases.close(second)
        await waiting
        return begun, [name for name, _ in calls.sent]

    assert world.time.run(body()) == ((True, True, False), ["1", "2", "1 is judg", "3"])


def test_a_case_whose_judges_were_refused_while_it_waited_is_not_answered(world):
    def refuse(_):
        return ProviderAuthError("refused", provider_id="fake")

    judge = FakeProvider(refuse, model="judge")
    first = judged()
    second = OpenCase(is_judged=True, judges=lambda: [[judge]])

    async def body():
        calls = Cases(world, max_concurrency=1)
        await calls.call(first, "1")
        waiting = await calls.start(second, "2")
        with pytest.raises(ProviderAuthError):
            await calls.gateway.complete(judge, ask("judge it"))
        calls.gateway.cases.close(first)
        with pytest.raises(ProviderAuthError):
            await waiting
        return calls.sent

    assert world.time.run(body()) == [("1", 1000)]


def test_a_case_whose_judges_are_refused_is_not_answered_though_a_slot_is_free(world):
    judge = FakeProvider(lambda _: ProviderAuthError("refused", provider_id="fake"), model="judge")

    async def body():
        calls = Cases(world, max_concurrency=2)
        with pytest.raises(ProviderAuthError):
            await calls.gateway.complete(judge, ask("judge it"))
        with pytest.raises(ProviderAuthError, match="could not be judged"):
            await calls.call(OpenCase(is_judged=True, judges=lambda: [[judge]]), "1")
        return calls.provider.requests

    assert world.time.run(body()) == []


def test_a_case_that_the_budget_does_not_pay_for_takes_no_slot(world):
    async def body():
        calls = Cases(world, max_concurrency=1, policy=CallPolicy(Budget(max_requests=2)))
        with pytest.raises(BudgetError):
            await asyncio.create_task(calls.call(OpenCase(judge_calls=2), "case"))
        await calls.call(None, "other")
        return calls.sent

    assert world.time.run(body()) == [("other", 1000)]


def test_a_call_that_belongs_to_no_case_goes_before_those_of_cases_at_another_provider(world):
    """Many cases wait for it: such as for the evaluation steps of their criterion."""

    async def body():
        calls = Cases(world, slow(world), max_concurrency=1)
        waiting = []
        for case, text in ((OpenCase(), "1"), (OpenCase(), "2"), (None, "steps")):
            calls.provider = slow(world, model=text)
            waiting.append(await calls.start(case, text))
        await asyncio.gather(*waiting)
        return [name for name, _ in calls.sent]

    assert world.time.run(body()) == ["1", "steps", "2"]


def test_what_is_left_of_a_minute_goes_to_cases_that_are_begun(world):
    """A long question waits for the minute to end, and others behind it, but none that finishes a case."""
    begun = judged()

    async def body():
        calls = Cases(world, FakeProvider(spending, limits=ProviderLimits(tokens_per_minute=100)))
        await calls.call(begun, "answer".ljust(200))
        waiting = [await calls.start(judged(), text) for text in ("long".ljust(400), "behind".ljust(40))]
        await calls.call(begun, "verdict".ljust(200))
        await asyncio.gather(*waiting)
        return calls.sent

    def spending(request):
        return ModelResponse((Choice("x"),), usage=Usage(input_tokens=len(request.messages[0].content) // 4))

    sent = world.time.run(body())
    assert [name for name, _ in sent] == ["answer", "verdict", "long", "behind"]
    assert sent[1][1] == 1000
    assert sent[2][1] >= 1060


def test_each_overload_is_counted_for_all_processes_of_a_run(world):
    pace = CapShare(processes=2)
    errors = [
        ProviderRateLimitError("too many", provider_id="f", status=429),
        ProviderRequestError("bad", provider_id="f", status=400),
        ProviderRateLimitError("too many", provider_id="f", status=429),
    ]
    provider = FakeProvider(lambda _: errors.pop(), limits=ProviderLimits(max_retries=0))
    for text in "abc":
        complete_all(world, [(provider, ask(text))], policy=CallPolicy(pace=pace))
    assert pace.overloads == 2


def test_of_cases_that_wait_one_that_is_cancelled_keeps_no_other_from_beginning():
    async def body():
        cases, begun = OpenCases(Budget(), 1), []
        first, *others = (judged() for _ in range(4))
        await cases.begin(first)

        async def begin(case):
            await cases.begin(case)
            begun.append(others.index(case))

        waiting = [asyncio.create_task(begin(case)) for case in others]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        for case in (first, others[0]):
            assert case in cases.begun
            cases.close(case)
            assert case not in cases.begun
            await asyncio.sleep(0.01)
        await asyncio.wait_for(asyncio.gather(waiting[0], waiting[2]), 30)
        return begun, cases.begun

    begun, left = asyncio.run(body())
    assert begun == [0, 2]
    assert len(left) == 1


def test_a_case_whose_only_request_is_its_answer_needs_no_more_of_the_budget():
    assert OpenCases(Budget(max_requests=1), None).try_begin(OpenCase())


def test_no_case_begins_once_the_money_is_spent():
    with pytest.raises(BudgetError, match=r"the budget of \$1"):
        OpenCases(Budget(max_cost_usd=1.0, cost_usd=1.0), None).try_begin(judged())


def test_requests_beyond_those_that_a_case_was_given_are_taken_from_no_other():
    budget = Budget(max_requests=5)
    cases, longer = OpenCases(budget, None), OpenCase(is_judged=True, judge_calls=1)
    call = ModelCall(FakeProvider(), ask(), ServerKey("fake", "", "fake-1"))

    def send_three():
        OPEN_CASE.set(longer)
        for _ in range(3):
            budget.requests += 1
            cases.count(call)

    assert cases.try_begin(longer)
    contextvars.copy_context().run(send_three)
    assert longer.sent == 3
    assert cases.try_begin(OpenCase(is_judged=True, judge_calls=1))
    assert not cases.try_begin(OpenCase()), "two requests are left, and both belong to a case"


def test_repetitions_are_no_further_requests_of_a_case():
    cases, case = OpenCases(Budget(max_requests=9), None), OpenCase(is_judged=True, judge_calls=1)
    assert cases.try_begin(case)

    def send():
        OPEN_CASE.set(case)
        for attempt in (1, 2, 3):
            cases.count(ModelCall(FakeProvider(), ask(), ServerKey("fake", "", "fake-1"), attempt=attempt))

    contextvars.copy_context().run(send)
    assert case.sent == 1


def test_the_first_case_of_a_share_of_a_budget_begins_even_if_it_is_not_paid_for_whole():
    budget = Budget(max_requests=2, requests=1, begun_at=1)
    assert OpenCases(budget, None).try_begin(OpenCase(is_judged=True, judge_calls=1))
    budget.begun_at = 0
    with pytest.raises(BudgetError, match="1 left, but another case needs 2"):
        OpenCases(budget, None).try_begin(OpenCase(is_judged=True, judge_calls=1))


def test_cases_begin_as_far_as_what_the_whole_ones_cost_on_average_is_left():
    budget = Budget(max_cost_usd=1.0)
    cases = OpenCases(budget, None)
    first, second, third, fourth, fifth = (judged() for _ in range(5))

    def close(case, cost_usd):
        case.cost_usd, case.sent, case.is_whole = cost_usd, 2, True
        budget.cost_usd += cost_usd
        cases.close(case)

    assert cases.try_begin(first)
    assert not cases.try_begin(second), "the first one shows what one costs"
    close(first, 0.375)
    assert cases.try_begin(second)
    assert not cases.try_begin(third), "$0.625 pays for one of $0.375, not for two"
    close(second, 0.125)
    assert cases.try_begin(third)
    assert cases.try_begin(fourth), "$0.50 pays for two of $0.25"
    assert not cases.try_begin(fifth)


def test_nobody_overtakes_a_case_that_waits_and_all_go_on_when_it_is_cancelled():
    async def body():
        cases = OpenCases(Budget(), 2)
        large, small = OpenCase(is_judged=True, weight=2), judged()
        assert cases.try_begin(judged())
        waiting = [asyncio.create_task(cases.begin(case)) for case in (large, small)]
        await asyncio.sleep(0)
        assert not small.is_begun, "there is room for it, and another was here before"
        assert not cases.try_begin(judged())
        waiting[0].cancel()
        await asyncio.wait_for(waiting[1], 30)
        return large.is_begun, small.is_begun

    assert asyncio.run(body()) == (False, True)


def test_a_case_that_is_closed_twice_gives_back_its_room_once():
    cases, first = OpenCases(Budget(), 1), judged()
    assert cases.try_begin(first)
    cases.close(first)
    cases.close(first)
    assert cases.try_begin(judged())
    assert not cases.try_begin(judged())


@pytest.mark.parametrize(
    ("budget", "is_bound"), [(Budget(max_requests=3), True), (Budget(max_cost_usd=1.0), False)]
)
def test_steps_that_others_need_too_matter_where_requests_are_bounded(budget, is_bound):
    assert OpenCases(budget, None).bounds_requests is is_bound
