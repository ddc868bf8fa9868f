"""Shards and permits: every test is in one shard, and workers together never hold more than the budget."""

import itertools
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_run import make_case

from geval_cli.engine.plan import DoneCases
from geval_cli.errors import BudgetError, ConfigError
from geval_cli.events import ModelCalled
from geval_cli.extras.workers.shards import (
    SHARD_TESTS,
    EventBatch,
    Permit,
    Permits,
    ShardEnd,
    batch_from_json,
    batch_to_json,
    cut,
    shard_size,
)
from geval_cli.extras.workers.worker import RangeReader
from geval_cli.gateway.budget import Budget
from geval_cli.records import CaseResult, Role, Usage
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest


def case(test: int, repeat: int, column: int) -> CaseResult:
    return replace(make_case(test), repeat_index=repeat, column=column)


@given(st.sets(st.integers(0, 3000), max_size=300), st.integers(1, 60))
def test_every_test_is_in_one_shard(indexes: set[int], size: int) -> None:
    shards = cut(sorted(indexes), size)
    for shard in shards:
        assert 1 <= sum(shard.start <= index < shard.stop for index in indexes) <= size
    assert all(first.stop <= second.start for first, second in itertools.pairwise(shards))
    assert all(any(shard.start <= index < shard.stop for shard in shards) for index in indexes)


@pytest.mark.parametrize(
    ("tests", "workers", "size"),
    [(1, 8, 1), (7, 2, 1), (60, 5, 3), (4000, 2, 500), (1_000_000, 64, SHARD_TESTS)],
)
def test_every_worker_has_several_shards(tests: int, workers: int, size: int) -> None:
    assert shard_size(tests, workers) == size


@given(st.integers(1, 3), st.integers(1, 3), st.sets(st.integers(0, 11)), st.integers(0, 11))
def test_the_marks_of_a_shard_say_what_is_done(
    repeats: int, columns: int, tests: set[int], start: int
) -> None:
    whole = DoneCases(repeats=repeats, columns=columns)
    for test in tests:
        assert whole.add(case(test, repeats - 1, 0))
    part = DoneCases(
        repeats=repeats, columns=columns, first_test=start, marks=whole.marks_of(start, start + 4)
    )
    for test in range(start, start + 4):
        assert part.has(case(test, repeats - 1, 0)) == (test in tests)
        assert part.has(case(test, 0, columns - 1)) == (test in tests and repeats == 1 and columns == 1)
    assert len(part) == len(tests & set(range(start, start + 4)))


@given(
    st.integers(1, 5000),
    st.floats(0.01, 1000),
    st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=200),
)
def test_permits_never_add_up_to_more_than_the_budget(
    requests: int, cost_usd: float, steps: list[tuple[bool, float]]
) -> None:
    budget = Budget(cost_usd, requests)
    permits, held = Permits(budget), deque[Permit]()
    for takes, used in steps:
        if takes or not held:
            try:
                permit = permits.take()
            except BudgetError:
                assert not held
                break
            if permit is None:
                assert held  # somebody will give back
            else:
                held.append(permit)
        else:
            permit = held.popleft()
            most, most_usd = permit.max_requests or 0, permit.max_cost_usd or 0.0
            permits.release_claim(permit, requests=int(most * used), cost_usd=most_usd * used)
        assert sum(item.max_requests or 0 for item in held) + budget.requests <= requests
        spent_usd = sum(item.max_cost_usd or 0.0 for item in held) + budget.cost_usd
        assert spent_usd <= cost_usd * (1 + 1e-9)


def test_until_a_price_is_known_one_worker_alone_finds_it_out() -> None:
    permits = Permits(Budget(10.0, None))
    first = permits.take()
    assert first == Permit(0.2, 10)
    assert permits.take() is None
    permits.release_claim(first, requests=10, cost_usd=0.01)
    assert permits.take() == Permit(pytest.approx(9.99 * 0.02), None)
    assert permits.take() == Permit(pytest.approx(9.99 * 0.98 * 0.02), None)


def test_a_lost_permit_counts_as_spent() -> None:
    budget = Budget(None, 1000)
    permits = Permits(budget)
    permit = permits.take()
    assert permit == Permit(None, 20)
    permits.lose(permit)
    assert budget.requests == 20


def test_what_workers_tell_survives_the_way() -> None:
    odd = replace(make_case(3), output="half of a pair: \ud83d", vars={"big": 10**30, "text": "é\u2028"})
    called = ModelCalled(Role.JUDGE, "openai:m", Usage(requests=1, cost_usd=None))
    for result in (make_case(3), odd):
        batch = EventBatch(results=[result], calls=[called], notices=["slow"], end=ShardEnd(requests=3))
        assert batch_from_json(batch_to_json(batch)) == batch


def in_place(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def by_another_file(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text, encoding="utf-8")
    other.replace(path)


ROWS = [f"{number},{'x' * 90},a\n" for number in range(60)]


@pytest.mark.parametrize("write", [in_place, by_another_file])
@pytest.mark.parametrize("is_again", [False, True])  # the shard of a lost worker
@pytest.mark.parametrize(
    ("rows", "is_refused"),
    [
        (ROWS, False),  # saved again as it was
        ([*ROWS[:40], f"40,{'y' * 90},a\n", *ROWS[41:]], True),
        (["new,x,a\n", *ROWS], True),  # the numbers of all tests are others
        (ROWS[1:], True),
    ],
)
def test_a_worker_reads_no_tests_that_were_changed_during_the_run(
    tmp_path: Path, write: Callable[[Path, str], None], is_again: bool, rows: list[str], is_refused: bool
) -> None:
    """With a row more at the top, one test was done twice, and another one not at all."""
    header = "i,pad,assert.contains\n"
    tests = tmp_path / "tests.csv"
    in_place(tests, header + "".join(ROWS))
    config = tmp_path / "config.yaml"
    config.write_text(
        "prompts: '{{ i }} {{ pad }}'\nproviders: echo\ntests: file://tests.csv\n", encoding="utf-8"
    )
    request = RunRequest(config, {})
    reader = RangeReader(prepare(request, is_going_to_run=False))
    assert [test.vars["i"] for test in reader.between(10, 20)] == [str(number) for number in range(10, 20)]
    write(tests, header + "".join(rows))
    start = 10 if is_again else 20
    if is_refused:
        with pytest.raises(ConfigError) as caught:
            reader.between(start, start + 10)
        assert "has changed since the run started" in caught.value.problems[0].message
    else:
        found = [test.vars["i"] for test in reader.between(start, start + 10)]
        assert found == [str(number) for number in range(start, start + 10)]
        assert [test.index for test in reader.between(40, 41)] == [40]
