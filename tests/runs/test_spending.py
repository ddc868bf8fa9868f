from typing import Any

import pytest

from geval_cli.events import ModelCalled
from geval_cli.records import Role, Usage
from geval_cli.runs.spending import Spending, beyond, larger


def called(tokens: int, *, role: Role = Role.GENERATION, **fields: Any) -> ModelCalled:
    return ModelCalled(role, "p", Usage(1, tokens, 1, 0, 0.5), **fields)


def test_answers_without_a_result_are_part_of_what_a_run_cost() -> None:
    spending = Spending()
    for tokens in (10, 20, 30):
        assert spending.add(called(tokens))
    finished = {Role.GENERATION: Usage(2, 30, 2, 0, 1.0)}
    assert spending.with_results(finished)[Role.GENERATION] == Usage(3, 60, 3, 0, 1.5)


def test_failed_calls_cost_nothing() -> None:
    spending = Spending()
    assert not spending.add(called(10, failed=True))
    assert spending.total[Role.GENERATION] == Usage()


def test_a_resumed_run_carries_on_what_was_spent_before() -> None:
    before = {Role.JUDGE: Usage(4, 40, 4, 0, 2.0)}
    carried = {Role.JUDGE: Usage(1, 10, 1, 0, 0.5)}
    spending = Spending(before, carried)
    spending.add(called(7, role=Role.JUDGE))
    everything = {Role.JUDGE: Usage(5, 47, 5, 0, 2.5)}
    assert spending.with_results(everything)[Role.JUDGE] == Usage(6, 57, 6, 0, 3.0)
    assert spending.total[Role.JUDGE] == Usage(6, 57, 6, 0, 3.0)


@pytest.mark.parametrize(("one", "other"), [(None, 1.0), (1.0, None), (None, None)])
def test_what_is_unknown_in_part_is_unknown_as_a_whole(one: float | None, other: float | None) -> None:
    assert larger(Usage(cost_usd=one), Usage(cost_usd=other)).cost_usd is None


def test_nothing_is_ever_less_than_nothing() -> None:
    assert beyond(Usage(1, 5, 5, 0, 1.0), Usage(2, 3, 9, 1, 3.0)) == Usage(0, 2, 0, 0, 0.0)


def test_the_store_is_told_at_once_and_then_only_now_and_then() -> None:
    spending = Spending()
    assert spending.is_note_due()
    assert not spending.is_note_due()
