import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.engine.runner import StopSignal
from geval_cli.events import ModelCalled
from geval_cli.gateway.budget import Spending, beyond, larger
from geval_cli.records import Role, RunSummary, Usage, to_json
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.state import open_state


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
    assert not spending.add(ModelCalled(Role.GENERATION, "p", Usage(1), failed=True))
    assert spending.total[Role.GENERATION] == Usage()


def test_but_for_what_their_attempts_were_charged() -> None:
    spending = Spending()
    assert spending.add(called(10, failed=True))
    assert spending.total[Role.GENERATION] == Usage(0, 10, 1, 0, 0.5)


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
    assert beyond(Usage(1, 5, 5, 0, 1.0, 1), Usage(2, 3, 9, 1, 3.0, 2)) == Usage(0, 2, 0, 0, 0.0, 0)
    assert beyond(Usage(5, 5, 5, 5, 5.0, 5), Usage(4, 3, 2, 1, 4.5, 2)) == Usage(1, 2, 3, 4, 0.5, 3)


def test_the_store_is_told_at_once_and_then_only_now_and_then() -> None:
    spending = Spending()
    assert spending.is_note_due()
    assert not spending.is_note_due()


PRICE = {"input": 1_000, "output": 2_000}
BILLED = 1_000, 500
BILLED_USD = 2.0


def _messages(text: str | None) -> Any:
    content = [] if text is None else [{"type": "text", "text": text}]
    usage = {"input_tokens": BILLED[0], "output_tokens": BILLED[1]}
    return {"model": "m", "content": content, "stop_reason": "end_turn", "usage": usage}


def _contents(text: str | None) -> Any:
    parts = [] if text is None else [{"text": text}]
    usage = {"promptTokenCount": BILLED[0], "candidatesTokenCount": BILLED[1]}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage}


def _items(text: str | None) -> Any:
    said = [] if text is None else [{"type": "output_text", "text": text}]
    output = (
        [{"type": "message", "role": "assistant", "status": "completed", "content": said}] if said else []
    )
    usage = {"input_tokens": BILLED[0], "output_tokens": BILLED[1]}
    return {"status": "completed", "output": output, "usage": usage}


WIRES: Mapping[str, Any] = {
    "openai:m": lambda text: chat_reply(text, usage=BILLED).body,
    "openai:responses:m": _items,
    "anthropic:m": _messages,
    "google:m": _contents,
    "http": lambda text: chat_reply(text, usage=BILLED).body,
}


def spent(folder: Path, server: LoopbackServer, wire: str, *, samples: int = 1, **options: Any) -> RunSummary:
    url = server.url if wire.startswith(("anthropic", "http")) else server.base_url
    where = {} if wire == "http" else {"base_url": url}
    model = {"id": url if wire == "http" else wire, "config": {**where, "price": PRICE, "max_retries": 2}}
    judged: dict[str, Any] = {"type": "contains", "value": "fine"}
    if samples > 1:
        judged = {"type": "g-eval", "criteria": "It is kind.", "evaluation_steps": ["Read it."]}
        judged |= {"scoring": "samples", "samples": samples, "provider": model}
    written = {
        "prompts": ["Say {{ x }}"],
        "providers": ["echo" if samples > 1 else model],
        "tests": [{"vars": {"x": "this"}, "assert": [judged]}],
    }
    path = folder / "config.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "k")
    prepared = prepare(RunRequest(path, keys, **options))
    with open_state(folder / "state", {}) as state:
        report = asyncio.run(run_evaluation(prepared, state, listen=lambda _: None, stop=StopSignal()))
        return report.summary


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("empty", [1, 3])
def test_attempts_that_brought_nothing_but_a_bill_are_part_of_what_a_run_cost(
    tmp_path: Path, wire: str, empty: int
) -> None:
    numbers = itertools.count(1)

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        del body, headers
        return Reply(body=WIRES[wire](None if next(numbers) <= empty else "fine"))

    with LoopbackServer(respond=respond) as server:
        summary = spent(tmp_path, server, wire)
    assert len(server.requests) == min(empty + 1, 3)
    assert (summary.passed, summary.errored) == ((1, 0) if empty == 1 else (0, 1))
    usage = to_json(summary.usage)["generation"]
    bills = len(server.requests)
    assert usage["cost_usd"] == bills * BILLED_USD
    assert (usage["input_tokens"], usage["output_tokens"]) == (bills * BILLED[0], bills * BILLED[1])


@pytest.mark.parametrize("most", [2, 4, 7])
def test_samples_of_a_rating_that_a_budget_cuts_short_are_part_of_what_a_run_cost(
    tmp_path: Path, most: int
) -> None:
    verdict = _messages('{"reason": "Yes.", "score": 7}')
    with LoopbackServer(respond=lambda body, headers: Reply(body=verdict)) as server:
        summary = spent(tmp_path, server, "anthropic:m", samples=9, max_requests=most)
    assert len(server.requests) == most - 1  # and one for the echo
    assert to_json(summary.usage)["judge"]["cost_usd"] == (most - 1) * BILLED_USD


def test_a_judge_that_cannot_write_steps_is_not_asked_for_them_by_each_test(tmp_path: Path) -> None:
    tests = 30
    with LoopbackServer(respond=lambda body, headers: chat_reply("I would look at the tone.")) as server:
        judge = {"id": "openai:judge", "config": {"base_url": server.base_url}}
        written = {
            "prompts": ["Say {{ x }}"],
            "providers": ["echo"],
            "tests": [
                {"vars": {"x": x}, "assert": [{"type": "g-eval", "criteria": "Kind.", "provider": judge}]}
                for x in range(tests)
            ],
        }
        path = tmp_path / "config.json"
        path.write_text(json.dumps(written), encoding="utf-8")
        prepared = prepare(RunRequest(path, {"OPENAI_API_KEY": "k"}, max_concurrency=1))
        with open_state(tmp_path / "state", {}) as state:
            report = asyncio.run(run_evaluation(prepared, state, listen=lambda _: None, stop=StopSignal()))
            [error] = {
                (result.assertions[0].error.type, result.assertions[0].error.message)
                for result in report.results()
            }
    assert report.summary.errored == tests
    assert error == (
        "JudgeParseError",
        "no evaluation steps can be read from the judge's reply, even after a retry",
    )
    assert 6 <= len(server.requests) < tests  # twice for each test, if all of them asked
