import asyncio
import math
import operator

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import (
    BudgetError,
    ProviderAuthError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StoppedError,
)
from geval_cli.events import ModelCalled
from geval_cli.gateway.budget import (
    MORE_HINT,
    RESUME_HINT,
    Budget,
    BudgetLayer,
    CostReservation,
    Spending,
    _Price,
    combined,
)
from geval_cli.gateway.call import OPEN_CASE, ModelCall, OpenCase, ServerKey, Wire
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.gateway.limits import OpenCases
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.records import Choice, ModelResponse, Purpose, Role, Usage


def ask_many(world, provider, budget, requests, **options):
    """The answers (or errors) to `requests`, all at once."""

    async def body():
        gateway = world.gateway(policy=CallPolicy(budget), **options)
        calls = (gateway.complete(provider, request) for request in requests)
        return await asyncio.gather(*calls, return_exceptions=True)

    return world.time.run(body())


def asks(count):
    return [ask(str(number)) for number in range(count)]


def answered(answers):
    return [answer for answer in answers if isinstance(answer, ModelResponse)]


def costing(cost_usd):
    def server(_):
        return ModelResponse((Choice("fine"),), Usage(1, 10, 1, cost_usd=cost_usd))

    return server


def test_no_more_requests_leave_than_the_budget_has(world):
    provider, budget = FakeProvider(), Budget(max_requests=7)
    answers = ask_many(world, provider, budget, asks(50), max_concurrency=10)
    assert len(provider.requests) == 7
    assert len(answered(answers)) == 7
    assert {type(answer) for answer in answers} == {ModelResponse, BudgetError}


def test_a_budget_that_is_just_enough_stops_nobody(world):
    assert len(answered(ask_many(world, FakeProvider(), Budget(max_requests=5), asks(5)))) == 5


def test_repetitions_are_requests_too(world):
    failures = iter([ProviderUnavailableError("down", provider_id="fake")] * 3)
    provider = FakeProvider(lambda _: next(failures, "fine"))
    [answer] = ask_many(world, provider, Budget(max_requests=3), asks(1))
    assert isinstance(answer, BudgetError)
    assert len(provider.requests) == 3


def test_several_answers_of_one_request_are_one_request(world):
    provider, budget = FakeProvider(), Budget(max_requests=1)
    [answer] = ask_many(world, provider, budget, [ask(samples=20)])
    assert len(answer.choices) == 20
    assert budget.requests == 1


def test_money_stops_what_has_not_left_yet(world):
    provider, budget = FakeProvider(costing(0.25)), Budget(max_cost_usd=1.0)
    ask_many(world, provider, budget, asks(50), max_concurrency=1)
    assert len(provider.requests) == 4
    assert budget.cost_usd == 1.0


def slowly(world, server):
    async def answer(request):
        await world.time.sleep(1)
        return server(request)

    return answer


@pytest.mark.parametrize("concurrency", [1, 3, 20, 100])
@pytest.mark.parametrize(
    ("cost_usd", "most_usd"), [(0.25, 1.0), (0.1, 1.0), (0.3, 10.0), (7.0, 1.0), (1.0, 50.0)]
)
def test_money_is_exceeded_by_one_request_at_most(world, concurrency, cost_usd, most_usd):
    provider, budget = FakeProvider(slowly(world, costing(cost_usd))), Budget(max_cost_usd=most_usd)
    answers = ask_many(world, provider, budget, asks(200), max_concurrency=concurrency)
    assert len(provider.requests) == math.ceil(round(most_usd / cost_usd, 6))
    assert len(answered(answers)) == len(provider.requests)
    assert most_usd <= budget.cost_usd + 1e-6 < most_usd + cost_usd + 1e-6


def test_each_kind_of_request_tells_its_own_price_first(world):
    def server(request):
        return costing(5.0 if request.role is Role.JUDGE else 0.01)(request)

    provider, budget = FakeProvider(slowly(world, server)), Budget(max_cost_usd=20.0)
    requests = [ask(f"{role} {n:02}", role=role) for n in range(50) for role in Role]
    ask_many(world, provider, budget, requests, max_concurrency=100)
    assert budget.cost_usd < 20.0 + 5.0 + 0.01
    assert [request.role for request in provider.requests[: len(Role)]] == list(Role)


def test_questions_for_other_answers_are_of_another_kind(world):
    def server(request):
        return costing(5.0 if "steps" in request.response_schema["properties"] else 0.01)(request)

    provider, budget = FakeProvider(slowly(world, server)), Budget(max_cost_usd=20.0)
    schemas = [{"properties": {name: {}}} for name in ("score", "steps")]
    requests = [ask(f"{n:02}", response_schema=schema) for n in range(50) for schema in schemas]
    ask_many(world, provider, budget, requests, max_concurrency=100)
    assert [request.response_schema for request in provider.requests[:2]] == schemas
    assert budget.cost_usd < 20.0 + 5.0 + 0.01


@pytest.mark.parametrize("cost_usd", [0.0, None])
def test_what_a_filter_refuses_is_no_price_of_its_kind_and_ends_no_budget(world, cost_usd):
    refused = ModelResponse((Choice("no", "content_filter"),), Usage(1, cost_usd=cost_usd))
    provider = FakeProvider(
        slowly(world, lambda _: refused if len(provider.requests) == 1 else costing(0.4)(None))
    )
    budget = Budget(max_cost_usd=1.0)
    answers = answered(ask_many(world, provider, budget, asks(20), max_concurrency=10))
    assert 0.8 <= budget.cost_usd <= 1.0 + 0.4
    assert len(answers) == 1 + round(budget.cost_usd / 0.4)


def test_longer_questions_are_expected_to_cost_more(world):
    def server(request):
        return costing(len(request.messages[0].content) / 100)(request)

    provider, budget = FakeProvider(slowly(world, server)), Budget(max_cost_usd=10.0)
    ask_many(world, provider, budget, [ask("x"), *(ask(f"{n:0100}") for n in range(99))], max_concurrency=100)
    assert budget.cost_usd <= 11.01


def test_of_several_answers_together_each_is_expected_to_cost_its_part(world):
    def server(_):
        return ModelResponse((Choice("fine"),) * 5, Usage(1, 10, 5, cost_usd=1.0))

    provider, budget = FakeProvider(slowly(world, server)), Budget(max_cost_usd=9.0)
    requests = [ask(f"{n}", samples=5) for n in range(9)]
    assert len(answered(ask_many(world, provider, budget, requests, max_concurrency=100))) == 9
    assert provider.most_on_the_wire == 8  # all but the first, which told the price


def test_the_usage_of_each_role_is_put_together_and_no_role_is_added():
    one, two = Usage(1, 10, 1), Usage(2, 20, 2)
    assert combined({Role.JUDGE: one}, {Role.JUDGE: two}, operator.add) == {
        Role.GENERATION: Usage(),
        Role.JUDGE: one + two,
    }


@pytest.mark.parametrize(("cost_usd", "has_cost"), [(None, True), (0.01, True), (0.0, False)])
def test_a_run_has_cost_where_an_answer_was_paid_for_or_may_have_been(cost_usd, has_cost):
    spending = Spending()
    assert not spending.has_cost
    assert spending.add(ModelCalled(Role.JUDGE, "p", Usage(1, 10, 1, cost_usd=cost_usd)))
    assert spending.has_cost is has_cost


def test_of_several_answers_to_a_question_each_counts_as_one_of_its_length():
    price = _Price()
    price.learn(1.0, answers=4, characters=100)
    assert price.expected_usd(answers=2, characters=100) == pytest.approx(0.5)
    assert price.expected_usd(answers=2, characters=200) == pytest.approx(1.0)
    assert price.expected_usd(answers=1, characters=1) == pytest.approx(0.25)


def test_a_price_learnt_from_an_empty_question_holds_for_a_character():
    price = _Price()
    price.learn(0.5, answers=1, characters=0)
    assert price.expected_usd(answers=1, characters=0) == pytest.approx(0.5)
    assert price.expected_usd(answers=1, characters=3) == pytest.approx(1.5)


def test_only_the_first_request_of_a_kind_goes_alone(world):
    provider = FakeProvider(slowly(world, costing(0.01)))
    ask_many(world, provider, Budget(max_cost_usd=100.0), asks(41), max_concurrency=20)
    assert world.time.now == 1000 + 1 + 40 / 20


def test_without_a_bound_on_money_nothing_goes_alone(world):
    provider = FakeProvider(slowly(world, costing(0.01)))
    ask_many(world, provider, Budget(max_requests=1000), asks(40), max_concurrency=20)
    assert world.time.now == 1000 + 40 / 20


@pytest.mark.parametrize(
    "error",
    [
        ProviderRequestError("no", provider_id="fake"),
        ProviderUnavailableError("down", provider_id="fake"),
        ProviderResponseError("odd", provider_id="fake"),
        RuntimeError("a bug"),
    ],
)
def test_when_the_first_request_fails_the_next_one_finds_out(world, error):
    failures, half_a_dollar = iter([error]), costing(0.5)
    provider = FakeProvider(slowly(world, lambda request: next(failures, None) or half_a_dollar(request)))
    budget = Budget(max_cost_usd=3.0)
    ask_many(world, provider, budget, asks(30), max_concurrency=10)
    assert budget.cost_usd == 3.0
    assert len(provider.requests) == 7


def test_when_the_first_request_is_cancelled_the_next_one_finds_out(world):
    async def body():
        gateway = world.gateway(policy=CallPolicy(budget), max_concurrency=10)
        first, *others = [asyncio.ensure_future(gateway.complete(provider, item)) for item in asks(9)]
        await world.time.sleep(0.5)
        assert len(provider.requests) == 1
        first.cancel()
        return await asyncio.gather(*others, return_exceptions=True)

    provider, budget = FakeProvider(slowly(world, costing(0.5))), Budget(max_cost_usd=2.0)
    assert len(answered(world.time.run(body()))) == 4
    assert budget.cost_usd == 2.0


def test_one_who_waits_for_money_may_be_cancelled(world):
    async def body():
        gateway = world.gateway(policy=CallPolicy(budget), max_concurrency=10)
        first, second, third = [asyncio.ensure_future(gateway.complete(provider, item)) for item in asks(3)]
        await world.time.sleep(0.5)
        second.cancel()
        return await asyncio.gather(first, third)

    provider, budget = FakeProvider(slowly(world, costing(0.5))), Budget(max_cost_usd=2.0)
    assert len(world.time.run(body())) == 2


def test_usage_that_cannot_be_read_is_charged_what_was_set_aside_and_shown_as_unknown(world):
    costs = iter([0.5])

    def server(request):
        return costing(next(costs, None))(request)

    provider, budget = FakeProvider(server), Budget(max_cost_usd=3.0)
    answers = answered(ask_many(world, provider, budget, asks(30), max_concurrency=10))
    assert [answer.usage.cost_usd for answer in answers] == [0.5] + [None] * 5


def _broken_off():
    error = ProviderUnavailableError("cut", provider_id="fake")
    error.has_begun = True
    return error


@pytest.mark.parametrize(
    ("error", "told_usd", "requests"),
    [
        (ProviderResponseError("odd", provider_id="fake"), None, 6),
        (ProviderResponseError("odd", provider_id="fake"), 1.0, 4),
        (ProviderTimeoutError("late", provider_id="fake"), None, 6),
        (_broken_off(), None, 6),
        (ProviderUnavailableError("down", provider_id="fake", status=503), None, 30),
        (ProviderUnavailableError("down", provider_id="fake", status=503), 1.0, 4),
        (ProviderRequestError("no", provider_id="fake"), 1.0, 4),
    ],
)
def test_answers_that_could_not_be_used_take_money_too(world, error, told_usd, requests):
    if told_usd is not None:
        error.cost_usd = told_usd
    first = iter([costing(0.5)(None)])
    provider = FakeProvider(lambda _: next(first, error), limits=ProviderLimits(max_retries=0))
    answers = ask_many(world, provider, Budget(max_cost_usd=3.0), asks(30), max_concurrency=10)
    assert len(provider.requests) == requests
    left = {BudgetError} if requests < 30 else set()
    assert {type(answer) for answer in answers} == {ModelResponse, type(error), *left}


def test_answers_that_cost_nothing_go_on_for_ever(world):
    provider = FakeProvider(costing(0.0))
    assert len(answered(ask_many(world, provider, Budget(max_cost_usd=0.01), asks(30)))) == 30


def test_no_money_at_all_buys_nothing(world):
    provider = FakeProvider()
    [answer] = ask_many(world, provider, Budget(max_cost_usd=0.0), asks(1))
    assert isinstance(answer, BudgetError)
    assert provider.requests == []


def test_an_answer_of_unknown_cost_ends_a_budget_of_money(world):
    provider = FakeProvider(costing(None))
    answers = ask_many(world, provider, Budget(max_cost_usd=1.0), asks(9), max_concurrency=1)
    assert len(answered(answers)) == 1
    assert "the cost of an answer from fake:fake-1 is unknown" in answers[-1].message


def test_an_answer_of_unknown_cost_is_no_matter_for_a_budget_of_requests(world):
    assert len(answered(ask_many(world, FakeProvider(costing(None)), Budget(max_requests=9), asks(9)))) == 9


def test_equal_requests_and_known_answers_take_nothing(world):
    async def body():
        gateway = world.gateway(policy=CallPolicy(budget))
        together = await asyncio.gather(*(gateway.complete(provider, ask()) for _ in range(10)))
        return [*together, await gateway.complete(provider, ask())]

    provider, budget = FakeProvider(), Budget(max_requests=1)
    assert len(world.time.run(body())) == 11
    assert budget.requests == 1


def test_a_refused_key_takes_one_request_and_is_told_as_itself(world):
    provider = FakeProvider(lambda _: ProviderAuthError("refused", provider_id="fake"))
    budget = Budget(max_requests=1)
    answers = ask_many(world, provider, budget, asks(20), max_concurrency=1)
    assert {type(answer) for answer in answers} == {ProviderAuthError}
    assert budget.requests == 1


def test_a_call_that_waits_for_its_minute_is_told_when_the_budget_is_gone(world):
    limits = ProviderLimits(requests_per_minute=1)
    slow, quick, budget = FakeProvider(limits=limits), FakeProvider(model="quick"), Budget(max_requests=3)

    async def body():
        gateway = world.gateway(policy=CallPolicy(budget))
        waiting = asyncio.gather(*(gateway.complete(slow, item) for item in asks(2)), return_exceptions=True)
        for item in asks(2):
            await gateway.complete(quick, item)
        return await waiting

    first, second = world.time.run(body())
    assert isinstance(first, ModelResponse)
    assert isinstance(second, BudgetError)
    assert world.time.now < 1003


def test_samples_that_were_paid_for_are_not_bought_again(world):
    async def body():
        gateway = world.gateway(policy=CallPolicy(budget))
        with pytest.raises(BudgetError):
            await gateway.complete(provider, ask(samples=5))
        budget.max_requests = 100
        return await gateway.complete(provider, ask(samples=5))

    provider, budget = FakeProvider(lambda _: ["only one"]), Budget(max_requests=3)
    assert len(world.time.run(body()).choices) == 5
    assert len(provider.requests) == 5


@pytest.mark.parametrize(
    ("most", "said"),
    [(1, "of 1 request is used up"), (2, "of 2 requests is used up"), (1000, "of 1,000 requests is used up")],
)
def test_a_budget_is_named_by_its_number(most, said):
    with pytest.raises(BudgetError, match=said):
        Budget(max_requests=most, requests=most).check()


@pytest.mark.parametrize("given", [{"max_requests": 0}, {"max_cost_usd": 0.5}])
def test_every_message_says_what_to_do_where_the_money_comes_from(given):
    for hint in (MORE_HINT, RESUME_HINT):
        whole = Budget(**given, cost_usd=0.5, hint=hint)
        for budget in (whole, whole.part(3)):
            with pytest.raises(BudgetError) as caught:
                budget.check()
            assert caught.value.hint == hint


def test_a_refused_key_takes_nothing_of_the_budget_where_requests_leave():
    """Also for a request that was let through before another one was refused."""

    def refuse(_):
        raise ProviderAuthError("refused", provider_id="fake")

    async def never(_):
        raise AssertionError("it must not leave")

    budget, provider = Budget(max_requests=1), FakeProvider()
    layer = BudgetLayer(budget, check_provider=refuse, wire=Wire(), note=lambda _: None)
    call = ModelCall(provider, ask(), ServerKey("fake", "", "fake-1"))
    with pytest.raises(ProviderAuthError):
        asyncio.run(layer(call, never))
    assert budget.requests == 0


@pytest.mark.parametrize(
    ("budget", "beside_usd", "is_room"),
    [
        (Budget(max_cost_usd=1.0, cost_usd=0.3, reserved_usd=0.4), 0.2, True),
        (Budget(max_cost_usd=1.0, cost_usd=0.3, reserved_usd=0.4), 0.3, False),
        (Budget(max_cost_usd=1.0, cost_usd=0.1 + 0.2, reserved_usd=0.7), 0.0, False),
        (Budget(max_cost_usd=1.0, cost_usd=1.0), 0.0, False),
        (Budget(cost_usd=9.0, reserved_usd=9.0), 9.0, True),
    ],
)
def test_money_that_is_set_aside_is_as_good_as_spent(budget, beside_usd, is_room):
    assert budget.has_money_left(beside_usd) is is_room


@pytest.mark.parametrize(
    ("budget", "expected_usd", "count"),
    [
        (Budget(), [1.0] * 4, 4),
        (Budget(), [], 0),
        (Budget(max_requests=5, requests=2), [0.0] * 9, 3),
        (Budget(max_requests=5, requests=2), [0.0] * 2, 2),
        (Budget(max_requests=2, requests=3), [0.0] * 9, 0),
        (Budget(max_cost_usd=1.0), [0.4] * 3, 2),
        (Budget(max_cost_usd=1.0, cost_usd=0.1, reserved_usd=0.2), [0.4] * 3, 1),
        (Budget(max_cost_usd=1.0), [2.0], 0),
        (Budget(max_cost_usd=1.0, max_requests=1), [0.4] * 3, 1),
    ],
)
def test_of_a_batch_as_many_are_submitted_as_the_budget_has_room_for(budget, expected_usd, count):
    assert budget.affordable_count(expected_usd) == count


def test_what_parts_of_a_budget_spend_is_spent_of_the_whole():
    whole = Budget(max_cost_usd=1.0)
    first, second = whole.part(3), whole.part(1)
    first.reserve_batch(2, 0.25)
    first.pay(0.5)

    assert (first.requests, first.reserved_usd, first.cost_usd) == (2, 0.25, 0.5)
    assert (whole.requests, whole.cost_usd) == (0, 0.5)
    assert [first.has_money_left(usd) for usd in (0.2, 0.25)] == [True, False]
    assert [second.has_money_left(usd) for usd in (0.45, 0.5)] == [True, False]
    first.take_request()
    for part, most in ((first, 3), (second, 1)):
        part.requests = most
        with pytest.raises(BudgetError, match="request"):
            part.check()
    third = whole.part(9)
    second.give_up("fake:m")
    assert (whole.unpriced, first.unpriced) == ("fake:m", None)
    with pytest.raises(BudgetError, match="fake:m is unknown"):
        third.check()
    assert not third.is_ended
    whole.end("the disk is full", hint="make room")
    assert whole.is_ended
    with pytest.raises(BudgetError, match="the disk is full") as caught:
        third.check()
    assert caught.value.hint == "make room"


def test_a_request_beyond_the_budget_does_not_leave_and_is_not_counted():
    budget = Budget(max_requests=1)
    budget.take_request()
    with pytest.raises(BudgetError):
        budget.take_request()
    assert budget.requests == 1


@pytest.mark.parametrize(
    ("answer", "cost_usd"),
    [
        (costing(0.25), 0.75),
        (costing(None), 0.75),  # what was set aside for it
        (lambda _: ProviderTimeoutError("late", provider_id="fake"), 0.75),
        (lambda _: ProviderUnavailableError("down", provider_id="fake"), 0.5),
    ],
    ids=["as told", "untold", "too late", "not answered"],
)
def test_a_case_is_charged_what_it_took_but_not_the_steps_that_serve_others(world, answer, cost_usd):
    case = OpenCase()
    servers = [costing(0.25), costing(0.25), costing(0.25), answer]
    purposes = [Purpose.ANSWER, Purpose.STEPS, Purpose.ANSWER, Purpose.ANSWER]

    async def body():
        provider = FakeProvider(lambda _: servers.pop(0)(None), limits=ProviderLimits(max_retries=0))
        gateway = world.gateway(policy=CallPolicy(Budget(max_cost_usd=9.0)))
        OPEN_CASE.set(case)
        for number, purpose in enumerate(purposes):
            call = gateway.complete(provider, ask(str(number), purpose=purpose))
            await asyncio.gather(call, return_exceptions=True)

    world.time.run(body())
    assert case.cost_usd == cost_usd


JUDGED = {"response_schema": {"properties": {"score": {}}}}


@pytest.mark.parametrize(
    ("one", "other", "are_of_one_kind"),
    [
        ({}, {}, True),
        ({"role": Role.JUDGE}, {}, False),
        ({"samples": 2}, {}, False),
        ({"samples": 2}, {"samples": 5}, True),
        ({"want_logprobs": True}, {}, False),
        ({"params": {"temperature": 0.5}}, {}, True),
        ({"params": {"max_tokens": 9}}, {}, False),
        ({"params": {"max_tokens": 9}}, {"params": {"max_tokens": 9}}, True),
        ({"params": {"max_tokens": 9}}, {"params": {"max_tokens": 10}}, False),
        ({"params": {"max_tokens": 9}}, {"params": {"max_completion_tokens": 9}}, True),
        ({"params": {"max_completion_tokens": 9}}, {"params": {"max_completion_tokens": 10}}, False),
        (JUDGED, JUDGED, True),
        (JUDGED, {}, False),
        (JUDGED, {"response_schema": {}}, False),
        ({"response_schema": {}}, {}, True),
    ],
)
def test_requests_of_one_kind_wait_for_the_price_of_the_first(world, one, other, are_of_one_kind):
    layer, sent = CostReservation(Budget(max_cost_usd=9.0), begin=OpenCases(Budget(), None).begin), []

    async def send(call):
        sent.append(world.time.now)
        await world.time.sleep(1)
        return costing(0.1)(call)

    async def body():
        server = ServerKey("fake", "", "fake-1")
        calls = [ModelCall(FakeProvider(), ask(**fields), server) for fields in (one, other)]
        await asyncio.gather(*(layer(call, send) for call in calls))

    world.time.run(body())
    assert sent == [1000, 1001 if are_of_one_kind else 1000]


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize(
    ("kind", "counts"), [("fake", (1, 1)), ("local", (1, 0)), ("echo", (0, 0)), ("scripted", (0, 0))]
)
def test_a_run_that_stops_waits_for_what_was_sent_and_knows_what_of_it_costs_money(kind, counts, is_answered):
    provider, wire, noted, seen = FakeProvider(), Wire(), [], []
    provider.identity = ProviderIdentity(kind, "m", "", {})
    layer = BudgetLayer(Budget(), check_provider=lambda _: None, wire=wire, note=noted.append)
    call = ModelCall(provider, ask(), ServerKey(kind, "", "m"))

    async def send(_):
        seen.append((wire.under_way, wire.paid))
        if not is_answered:
            raise ProviderTimeoutError("late", provider_id=kind)
        return "answer"

    async def body():
        return await asyncio.gather(layer(call, send), return_exceptions=True)

    [answer] = asyncio.run(body())
    assert (answer == "answer") is is_answered
    assert seen == [counts]
    assert noted == [call]
    assert (wire.under_way, wire.paid) == (0, 0)
    wire.close()
    with pytest.raises(StoppedError):
        asyncio.run(layer(call, send))
    assert len(seen) == 1


def test_the_bound_on_money_is_kept_however_the_requests_before_ended(world):
    """What was set aside for a request is given back once, whatever became of it; what is left is spent to the end."""
    outcomes = [costing(0.1), costing(0.3), lambda _: ProviderRequestError("no", provider_id="fake")] * 9
    provider = FakeProvider(slowly(world, lambda _: outcomes[len(provider.requests) - 1](None)))
    budget = Budget(max_cost_usd=3.0)
    ask_many(world, provider, budget, asks(60), max_concurrency=3)
    assert 3.0 - 1e-6 <= budget.cost_usd < 3.4
