"""`evaluate_batch(..., batch=True)`: the verdicts of a direct call, at half the price."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.batch_server import BatchServer
from support.batch_trial import PRICE

from geval_cli import GEval, Result, TestCase, UsageError, aevaluate_batch, evaluate_batch

CASES = [TestCase(f"Tell me about topic {number}.", f"It is topic {number}.") for number in range(25)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GEVAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-batch")
    with BatchServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


def metric() -> GEval:
    judge = {"id": "openai:judge", "config": {"price": PRICE}}
    return GEval("Topic", criteria="It is about the topic.", model=judge, scoring="single")


def marks(outcomes: list[Any]) -> list[tuple[float, bool, str | None]]:
    assert all(isinstance(outcome, Result) for outcome in outcomes), outcomes
    return [(outcome.score, outcome.success, outcome.reason) for outcome in outcomes]


def test_the_verdicts_are_those_of_direct_calls_and_paid_for_once(server):
    batched = evaluate_batch(metric(), CASES, batch=0.01)
    assert sum(server.paid.values()) == 24  # the first one is asked directly, and so are the steps
    again = asyncio.run(aevaluate_batch(metric(), CASES, batch=0.01))
    assert (len(server.batches), len(server.direct)) == (1, 2)
    assert marks(batched) == marks(again) == marks(evaluate_batch(metric(), CASES))
    usage = batched[5].metadata["usage"]
    assert (usage["requests"], usage["batched_requests"], usage["cost_usd"]) == (1, 1, pytest.approx(0.00006))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ({"id": "echo"}, {}, "has no batch API"),
        ("openai:judge", {"batch": -1}, "a number of seconds above 0"),
    ],
)
def test_what_cannot_be_asked_in_batches_is_refused(server, model, options, words):
    with pytest.raises(UsageError, match=words):
        evaluate_batch(metric(), CASES, model=model, **{"batch": True, **options})
    assert not server.log


def test_what_could_not_be_found_again_is_not_handed_in(server, tmp_path):
    (tmp_path / "home" / "cache.db").mkdir(parents=True)
    with pytest.raises(UsageError, match="there is nowhere to record them"):
        evaluate_batch(metric(), CASES, batch=0.01)
    assert not server.log
