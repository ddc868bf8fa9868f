import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import BudgetError, ProviderAuthError, ProviderUnavailableError
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import Oversight
from geval_cli.providers.base import ProviderLimits
from geval_cli.records import Choice, ModelResponse, Usage


def ask_many(world, provider, budget, requests, **options):
    """The answers (or errors) to `requests`, all at once."""

    async def body():
        gateway = world.gateway(oversight=Oversight(budget), **options)
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


def test_money_is_exceeded_by_what_was_on_the_wire_at_most(world):
    async def slow(_):
        await world.time.sleep(1)
        return costing(0.25)(_)

    provider, budget = FakeProvider(slow), Budget(max_cost_usd=1.0)
    answers = ask_many(world, provider, budget, asks(50), max_concurrency=3)
    assert len(provider.requests) == 6
    assert len(answered(answers)) == 6


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
    assert "fake:fake-1 gave an answer whose cost is unknown" in answers[-1].message


def test_an_answer_of_unknown_cost_is_no_matter_for_a_budget_of_requests(world):
    assert len(answered(ask_many(world, FakeProvider(costing(None)), Budget(max_requests=9), asks(9)))) == 9


def test_equal_requests_and_known_answers_take_nothing(world):
    async def body():
        gateway = world.gateway(oversight=Oversight(budget))
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
        gateway = world.gateway(oversight=Oversight(budget))
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
        gateway = world.gateway(oversight=Oversight(budget))
        with pytest.raises(BudgetError):
            await gateway.complete(provider, ask(samples=5))
        budget.max_requests = 100
        return await gateway.complete(provider, ask(samples=5))

    provider, budget = FakeProvider(lambda _: ["only one"]), Budget(max_requests=3)
    assert len(world.time.run(body()).choices) == 5
    assert len(provider.requests) == 5


@pytest.mark.parametrize("budget", [Budget(max_requests=0), Budget(max_cost_usd=0.5)])
def test_every_message_says_what_to_do(budget):
    budget.cost_usd = 0.5
    with pytest.raises(BudgetError) as caught:
        budget.check()
    assert "--resume" in caught.value.hint
