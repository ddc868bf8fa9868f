import asyncio
import sqlite3

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderAuthError, ProviderRequestError
from geval_cli.gateway.cache import CachedAnswers, Memory, choice_keys
from geval_cli.gateway.call import KEYS_OF_CASE, ModelCall, ServerKey
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.records import Choice, ModelResponse, Role, TokenAlternative, TokenLogprob, Usage
from geval_cli.store.cache import ResponseCache, StoredChoice


@pytest.fixture
def cache(tmp_path):
    cache = ResponseCache.open(tmp_path / "home")
    yield cache
    cache.close()


def complete(world, cache, provider, *requests, **options):
    async def body():
        gateway = world.gateway(cache=cache, **options)
        return [await gateway.complete(provider, request) for request in requests]

    return world.time.run(body())


async def until_entries(cache, count):
    while True:
        if (await cache.stats()).entries >= count:
            return
        await asyncio.sleep(0.001)


def test_what_was_answered_before_is_not_asked_again(world, cache):
    provider = FakeProvider()
    [first] = complete(world, cache, provider, ask())
    [second] = complete(world, cache, provider, ask())
    assert len(provider.requests) == 1
    assert (first.cached, second.cached) == (False, True)
    assert second.choices == first.choices
    assert second.usage == Usage(requests=1, cached_requests=1, cost_usd=0.0)
    assert second.latency_ms == first.latency_ms


def test_twenty_samples_after_ten_pay_for_ten(world, cache):
    provider = FakeProvider()
    complete(world, cache, provider, ask(samples=10))
    [response] = complete(world, cache, provider, ask(samples=20))
    assert [request.sample_indexes for request in provider.requests] == [
        tuple(range(10)),
        tuple(range(10, 20)),
    ]
    assert [choice.text for choice in response.choices] == [f"answer {index}" for index in range(20)]
    assert response.sample_indexes == tuple(range(20))
    assert not response.cached
    assert response.usage == Usage(
        requests=20, input_tokens=10, output_tokens=10, cached_requests=10, cost_usd=0.01
    )


def test_ten_samples_after_twenty_are_free(world, cache):
    provider = FakeProvider()
    complete(world, cache, provider, ask(samples=20))
    [response] = complete(world, cache, provider, ask(sample_indexes=(7, 3)))
    assert [choice.text for choice in response.choices] == ["answer 7", "answer 3"]
    assert response.cached
    assert len(provider.requests) == 1


def test_without_reading_nothing_older_is_used_but_this_runs_answers_are(world, cache):
    texts = iter(["old", "new", "newer"])
    provider = FakeProvider(lambda _: next(texts))
    complete(world, cache, provider, ask())
    first, second = complete(world, cache, provider, ask(), ask(), reads_since=cache.now())
    [later] = complete(world, cache, provider, ask())
    assert (first.text, second.text, second.cached) == ("new", "new", True)
    assert later.text == "new"


def test_without_a_cache_answers_of_this_run_are_shared_and_forgotten_with_it(world):
    provider = FakeProvider()
    first, second = complete(world, None, provider, ask(), ask())
    complete(world, None, provider, ask())
    assert (first.cached, second.cached) == (False, True)
    assert len(provider.requests) == 2


def test_everything_about_an_answer_comes_back_from_the_cache(world, cache):
    tokens = (
        TokenLogprob(" 8", -0.25, (TokenAlternative(" 8", -0.25), TokenAlternative("7\ud83d", -9999.0))),
        TokenLogprob("é", float("-inf")),
    )
    answer = ModelResponse(
        (Choice("8 é \ud800", "stop", tokens), Choice("", None, ())),
        usage=Usage(1, 11, 5, 0, None),
        latency_ms=12.5,
        dropped=("seed",),
        model="fake-1-0613",
    )
    provider = FakeProvider(lambda _: answer)
    [fresh] = complete(world, cache, provider, ask(samples=2, want_logprobs=True))
    [cached] = complete(world, cache, provider, ask(samples=2, want_logprobs=True))
    assert cached.choices == fresh.choices == answer.choices
    assert (cached.model, cached.dropped, cached.latency_ms) == ("fake-1-0613", ("seed",), 12.5)


def test_an_answer_is_on_disk_before_the_caller_has_it(world, cache, tmp_path):
    async def body():
        await world.gateway(cache=cache).complete(FakeProvider(), ask())
        other = sqlite3.connect(tmp_path / "home" / "cache.db")
        count = other.execute("SELECT count(*) FROM choices").fetchone()[0]
        other.close()
        return count

    assert asyncio.run(body()) == 1


def test_each_part_of_a_fan_out_is_kept_as_it_comes(world, cache):
    # One of the samples never comes; the others must be on disk already when the run is killed.
    async def body():
        async def server(request):
            if len(request.sample_indexes) > 1:
                return ProviderRequestError(
                    "no", provider_id="fake", status=400, body="parameter n must be 1"
                )
            if request.sample_indexes == (2,):
                await asyncio.Event().wait()
            return "fine"

        provider, gateway = FakeProvider(server), world.gateway(cache=cache)
        task = asyncio.create_task(gateway.complete(provider, ask(samples=4)))
        await until_entries(cache, 3)
        task.cancel()
        await asyncio.wait([task])
        return (await cache.stats()).entries

    assert asyncio.run(body()) == 3


def test_missing_samples_that_cannot_be_had_are_left_out(world, cache):
    answers = iter([["a", "b"], ProviderRequestError("no", provider_id="fake", status=400, body="filtered")])
    provider = FakeProvider(lambda _: next(answers))
    complete(world, cache, provider, ask(samples=2))
    [response] = complete(world, cache, provider, ask(samples=3))
    assert response.sample_indexes == (0, 1)


def test_a_refused_key_is_told_even_if_some_samples_are_known(world, cache):
    answers = iter([["a", "b"], ProviderAuthError("bad key", provider_id="fake")])
    provider = FakeProvider(lambda _: next(answers))
    complete(world, cache, provider, ask(samples=2))
    with pytest.raises(ProviderAuthError, match="bad key"):
        complete(world, cache, provider, ask(samples=3))


def test_a_cache_that_breaks_ends_no_run_and_is_told_once(world, cache, tmp_path):
    other = sqlite3.connect(tmp_path / "home" / "cache.db")
    other.execute("DROP TABLE choices")
    other.close()
    provider = FakeProvider()
    first, second, third = complete(world, cache, provider, ask("a"), ask("a"), ask("b"))
    assert (first.cached, second.cached, third.cached) == (False, True, False)
    assert len(world.notices) == 1
    assert "kept in memory" in world.notices[0]


def test_memory_in_place_of_a_cache_that_broke_holds_more_than_memory_beside_one(world, cache, tmp_path):
    other = sqlite3.connect(tmp_path / "home" / "cache.db")
    other.execute("DROP TABLE choices")
    other.close()
    provider = FakeProvider(lambda _: ["long " * 600_000])
    asked = [ask(text) for text in ("a", "b", "c", "a")]
    assert [response.cached for response in complete(world, cache, provider, *asked)] == [*[False] * 3, True]


def test_usage_of_an_unknown_price_stays_unknown_when_part_is_cached(world, cache):
    answer = ModelResponse((Choice("a"), Choice("b")), usage=Usage(1, 3, 3, 0, None))
    provider = FakeProvider(lambda _: answer)
    complete(world, cache, provider, ask(samples=2))
    [response] = complete(world, cache, provider, ask(samples=4))
    assert response.usage.cost_usd is None


def test_an_answer_that_cannot_be_kept_on_disk_is_given_and_found_again_in_this_run(world, cache, tmp_path):
    other = sqlite3.connect(tmp_path / "home" / "cache.db")
    other.execute("CREATE TRIGGER full BEFORE INSERT ON choices BEGIN SELECT RAISE(ABORT, 'no'); END")
    other.close()
    provider = FakeProvider()
    first, second = complete(world, cache, provider, ask("a"), ask("a"))
    assert (first.text, first.cached) == ("answer 0", False)
    assert (second.text, second.cached) == ("answer 0", True)
    assert len(world.notices) == 1


def test_a_cache_that_cannot_be_written_to_still_gives_what_it_has(world, cache, tmp_path):
    provider = FakeProvider()
    complete(world, cache, provider, ask("known"), ask("known too"))
    other = sqlite3.connect(tmp_path / "home" / "cache.db")
    other.execute("CREATE TRIGGER full BEFORE INSERT ON choices BEGIN SELECT RAISE(ABORT, 'no'); END")
    other.close()
    new, known, too = complete(world, cache, provider, ask("new"), ask("known"), ask("known too"))
    assert (new.cached, known.cached, too.cached) == (False, True, True)
    assert len(world.notices) == 1


def test_what_cannot_be_written_once_is_not_written_again_in_this_run(world, cache, tmp_path):
    """As the user was told: a disk that is full is not tried for every answer."""

    def change(statement):
        other = sqlite3.connect(tmp_path / "home" / "cache.db")
        other.execute(statement)
        other.commit()
        other.close()

    async def body():
        gateway = world.gateway(cache=cache)
        change("CREATE TRIGGER full BEFORE INSERT ON choices BEGIN SELECT RAISE(ABORT, 'no'); END")
        await gateway.complete(provider, ask("a"))
        change("DROP TRIGGER full")
        await gateway.complete(provider, ask("b"))
        return (await cache.stats()).entries

    provider = FakeProvider()
    assert world.time.run(body()) == 0
    assert len(world.notices) == 1


def test_what_cannot_be_removed_from_the_disk_ends_no_run_and_is_told_once(world, cache, tmp_path):
    def change(statement):
        other = sqlite3.connect(tmp_path / "home" / "cache.db")
        other.execute(statement)
        other.commit()
        other.close()

    async def body():
        gateway = world.gateway(cache=cache)
        await gateway.complete(provider, ask("a"))
        await gateway.complete(provider, ask("b"))
        change("CREATE TRIGGER stuck BEFORE DELETE ON choices BEGIN SELECT RAISE(ABORT, 'no'); END")
        await gateway.forget(provider, ask("a"))
        change("DROP TRIGGER stuck")
        await gateway.forget(provider, ask("b"))
        return (await cache.stats()).entries

    provider = FakeProvider()
    assert world.time.run(body()) == 2
    assert len(world.notices) == 1


@pytest.mark.parametrize(("is_cacheable", "entries"), [(True, 0), (False, 1)])
def test_only_a_provider_whose_answers_are_kept_on_disk_takes_them_away_there(
    world, cache, is_cacheable, entries
):
    async def body():
        gateway = world.gateway(cache=cache)
        await gateway.complete(FakeProvider(), ask("a"))
        await gateway.forget(FakeProvider(is_cacheable=is_cacheable), ask("a"))
        return (await cache.stats()).entries

    assert world.time.run(body()) == entries


def test_memory_keeps_what_was_read_last():
    memory = Memory()
    memory.put({str(number): StoredChoice(Choice(str(number))) for number in range(10_000)})
    memory.get(["0"])
    memory.put({"new": StoredChoice(Choice("new"))})
    assert set(memory.get(["0", "1", "2", "new"])) == {"0", "2", "new"}


def test_memory_keeps_fewer_answers_with_token_probabilities():
    alternatives = tuple(TokenAlternative(str(number), -1.0) for number in range(20))
    tokens = (TokenLogprob("x", -1.0, alternatives),) * 100
    memory = Memory()
    memory.put({"often read": StoredChoice(Choice("y"))})
    for number in range(400):
        memory.put({str(number): StoredChoice(Choice("x", "stop", tokens))})
        memory.get(["often read"])
    assert set(memory.get(["0", "200", "250", "399", "often read"])) == {"250", "399", "often read"}


def test_memory_keeps_fewer_long_answers():
    memory = Memory(1000)
    memory.put({str(number): StoredChoice(Choice("long" * 10_000)) for number in range(9)})
    assert set(memory.get([str(number) for number in range(9)])) == {"6", "7", "8"}


def test_an_answer_that_is_put_again_takes_its_room_once():
    memory = Memory(1000)
    for _ in range(100):
        memory.put({name: StoredChoice(Choice("long" * 10_000)) for name in "abc"})
    assert set(memory.get("abc")) == set("abc")


def test_an_answer_that_is_asked_for_often_is_read_from_the_disk_once(world, cache, tmp_path):
    async def body():
        provider, gateway = FakeProvider(), world.gateway(cache=cache)
        await world.gateway(cache=cache).complete(provider, ask())
        first = await gateway.complete(provider, ask())
        other = sqlite3.connect(tmp_path / "home" / "cache.db")
        other.execute("DELETE FROM choices")
        other.commit()
        other.close()
        return first, await gateway.complete(provider, ask()), provider

    first, second, provider = world.time.run(body())
    assert (first.cached, second.cached, len(provider.requests)) == (True, True, 1)


def test_a_judge_whose_answers_are_not_cached_is_asked_an_equal_question_once_in_a_run(world, cache):
    provider = FakeProvider(is_cacheable=False)
    question = ask("write the steps", role=Role.JUDGE)
    first, second = complete(world, cache, provider, question, question)
    [later] = complete(world, cache, provider, question)
    assert (first.cached, second.cached, later.cached) == (False, True, False)


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_an_answer_that_is_forgotten_is_asked_for_again(world, cache, is_on_disk):
    async def body():
        texts = iter(["unreadable", "also kept", "readable"])
        provider = FakeProvider(lambda _: next(texts))
        gateway = world.gateway(cache=cache if is_on_disk else None)
        await gateway.complete(provider, ask("a"))
        await gateway.complete(provider, ask("b"))
        await gateway.forget(provider, ask("a"))
        if is_on_disk:
            gateway = world.gateway(cache=cache)
        return [(await gateway.complete(provider, ask(text))).text for text in ("a", "b")]

    assert world.time.run(body()) == ["readable", "also kept"]


def test_within_one_run_an_answer_counts_once_however_many_share_it(world, cache):
    """Joined under way, found in memory, or read from the store once more: nothing of it is cached."""

    async def run(provider, requests):
        gateway = world.gateway(cache=cache, policy=CallPolicy(run_id="this run"))
        joined = await asyncio.gather(*(gateway.complete(provider, item) for item in requests))
        gateway._answers._memory = Memory()  # as if so much had come since that it was pushed out
        return [*joined, *[await gateway.complete(provider, item) for _ in range(2) for item in requests]]

    def counts(responses):
        total = sum((response.usage for response in responses), Usage())
        return total.requests, total.cached_requests

    provider, requests = FakeProvider(), [ask("steps"), ask("steps"), ask("steps"), ask("other", samples=3)]
    fresh = world.time.run(run(provider, requests))
    assert counts(fresh) == (4, 0)
    assert not any(response.is_from_cache for response in fresh)
    assert [response.shared for response in fresh] == [False, True, True, False] + [True] * 8
    assert all(
        response.cost_usd_generated == 0.01
        for response in fresh
        if response.shared and len(response.choices) == 1
    )
    again = world.time.run(run(provider, requests))
    assert counts(again) == (4, 4)
    assert [response.is_from_cache for response in again] == [True, False, False, True] + [False] * 8
    assert len(provider.requests) == 2


def test_more_samples_of_a_question_count_those_that_are_new_to_the_run(world, cache):
    async def run():
        gateway = world.gateway(cache=cache, policy=CallPolicy(run_id="this run"))
        return [(await gateway.complete(provider, ask(samples=count))).usage for count in (2, 5, 5)]

    provider = FakeProvider()
    usages = world.time.run(run())
    assert [(usage.requests, usage.cached_requests) for usage in usages] == [(2, 0), (3, 0), (0, 0)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_what_samples_of_one_request_cost_is_split_over_them_without_a_rest(world, cache, count):
    """So that whoever reads them one by one later finds what the whole cost."""

    def server(request):
        choices = tuple(Choice(str(index)) for index in request.sample_indexes)
        return ModelResponse(choices, Usage(1, input_tokens=100, output_tokens=11, cost_usd=0.35))

    request = ask(samples=count)
    provider = FakeProvider(server)
    complete(world, cache, provider, request)
    keys = choice_keys(provider.identity, request)
    stored = world.time.run(cache.get_many(keys))
    shares = [stored[key].usage for key in keys]
    assert [share.requests for share in shares] == [1] * count
    assert sum(share.input_tokens for share in shares) == 100
    assert sum(share.output_tokens for share in shares) == 11
    assert sum(share.cost_usd for share in shares) == pytest.approx(0.35)
    for of in ("input_tokens", "output_tokens"):
        amounts = [getattr(share, of) for share in shares]
        assert amounts == sorted(amounts, reverse=True)
        assert amounts[0] - amounts[-1] <= 1


class TestAnswersOfPasses:
    """Answers of a run that goes through its cases again and again, as one with batches does."""

    key = "0123456789abcdef" * 4
    bought = Usage(1, 100, 10, cost_usd=0.25)

    def answers(self, **options):
        return CachedAnswers(None, since=None, notice=lambda text: None, is_for_one_run=True, **options)

    def call(self, *keys):
        request = ask(samples=len(keys))
        return ModelCall(FakeProvider(), request, ServerKey("fake", "", "fake-1"), keys)

    def keep(self, answers, key, **changes):
        stored = StoredChoice(Choice("fine"), self.bought, **changes)
        asyncio.run(answers.keep(self.call(key), {key: stored}))

    @pytest.fixture(autouse=True)
    def _keys_of_case(self):
        token = KEYS_OF_CASE.set([])
        yield
        KEYS_OF_CASE.reset(token)

    def test_an_answer_counts_in_each_pass_until_its_case_is_done_and_costs_what_it_did(self):
        answers, call = self.answers(is_in_passes=True), self.call(self.key)
        self.keep(answers, self.key)
        in_same_pass = answers.answer_in_memory(call)
        answers.begin_pass()
        in_next_pass, once_more = answers.answer_in_memory(call), answers.answer_in_memory(call)
        assert KEYS_OF_CASE.get() == [self.key, self.key]
        answers.settle(KEYS_OF_CASE.get())
        answers.begin_pass()
        when_done = answers.answer_in_memory(call)

        assert in_next_pass.usage == in_next_pass.repeated_usage == self.bought
        assert not in_next_pass.cached
        for shared in (in_same_pass, once_more, when_done):
            assert shared.usage == Usage()
            assert (shared.cached, shared.shared, shared.cost_usd_generated) == (True, True, 0.25)

    def test_an_answer_of_a_batch_is_one_of_a_batch_in_each_pass(self):
        answers = self.answers(is_in_passes=True)
        self.keep(answers, self.key, latency_ms=None)
        answers.begin_pass()
        usage = answers.answer_in_memory(self.call(self.key)).usage
        assert usage == Usage(1, 100, 10, cost_usd=0.25, batched_requests=1)

    def test_of_samples_only_those_that_the_run_bought_are_told_again(self):
        answers, other = self.answers(is_in_passes=True), "f" * 64
        self.keep(answers, self.key)
        answers._memory.put({other: StoredChoice(Choice("older"), self.bought)})
        answers.begin_pass()
        response = answers.answer_in_memory(self.call(self.key, other))
        assert response.usage == Usage(2, 100, 10, cached_requests=1, cost_usd=0.25)
        assert (response.repeated_usage, response.cached) == (self.bought, True)

    def test_without_passes_an_answer_counts_once(self):
        answers = self.answers()
        self.keep(answers, self.key)
        answers.begin_pass()
        assert answers.answer_in_memory(self.call(self.key)).usage == Usage()
        assert KEYS_OF_CASE.get() == []

    def test_keys_that_differ_at_their_end_of_sixteen_digits_are_others(self):
        answers, near = self.answers(is_in_passes=True), "0123456789abcdee" + "0" * 48
        self.keep(answers, self.key)
        answers._memory.put({near: StoredChoice(Choice("older"), self.bought)})
        assert answers.answer_in_memory(self.call(near)).usage == Usage(1, cached_requests=1)

    def test_a_part_of_what_is_asked_for_is_not_at_hand(self):
        answers = self.answers()
        self.keep(answers, self.key)
        assert answers.answer_in_memory(self.call(self.key, "f" * 64)) is None
        assert answers.answer_in_memory(self.call("f" * 64)) is None

    def test_a_call_whose_answers_are_not_kept_is_never_at_hand(self):
        assert (
            self.answers().answer_in_memory(ModelCall(FakeProvider(), ask(), ServerKey("fake", "", "fake-1")))
            is None
        )

    def test_without_a_store_thousands_of_answers_of_the_run_stay_at_hand(self):
        answers = self.answers()
        keys = [f"{number:064x}" for number in range(5_000)]
        answers._memory.put({key: StoredChoice(Choice("fine"), self.bought) for key in keys})
        assert all(answers.answer_in_memory(self.call(key)) for key in keys)

    def test_of_samples_those_that_counted_in_this_pass_are_not_told_once_more(self):
        answers, other = self.answers(is_in_passes=True), "f" * 64
        self.keep(answers, self.key)
        self.keep(answers, other)
        answers.begin_pass()
        answers.answer_in_memory(self.call(self.key))
        assert answers.answer_in_memory(self.call(self.key, other)).usage == self.bought

    def test_beside_a_run_each_answer_counts_as_one_of_the_cache(self):
        answers = CachedAnswers(None, since=None, notice=lambda text: None)
        self.keep(answers, self.key)
        for _ in range(2):
            assert answers.answer_in_memory(self.call(self.key)).usage == Usage(1, cached_requests=1)
