"""What a run that ends early leaves behind: whole cases, and hardly an answer without its verdicts."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.judge_server import judge_sensibly, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.events import CaseFinished, ModelCalled, RunEvent
from geval_cli.records import Role
from geval_cli.report.report import RunReport
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import resume_run
from geval_cli.store.state import open_state

TESTS = 14
PRICE = {"input": 10_000, "output": 10_000}  # ten tokens: ten cents a request


def answer(body: Any, headers: Any) -> Reply:
    if body["model"].startswith("m"):  # no two answers are alike: equal ones are judged once
        return chat_reply(f"{body['model']} to {prompt_text(body)}")
    return judge_sensibly(body, headers)


def config(
    server: LoopbackServer,
    *,
    tests: int,
    columns: int,
    judges: int,
    shares_criteria: bool,
    compares: bool = False,
) -> dict[str, Any]:
    def provider(model: str) -> dict[str, Any]:
        return {"id": f"openai:{model}", "config": {"base_url": server.base_url, "price": PRICE}}

    def checks(test: int) -> list[Any]:
        whose = "" if shares_criteria else f" in test {test}"
        found = [{"type": "g-eval", "criteria": f"It has quality {n}{whose}."} for n in range(judges)]
        return [*found, *([{"type": "select-best", "value": "the best"}] if compares else [])]

    return {
        "prompts": ["Say {{ x }}"],
        "providers": [provider(f"m{column}") for column in range(columns)],
        "defaultTest": {"options": {"provider": provider("judge")}},
        "tests": [{"vars": {"x": number}, "assert": checks(number)} for number in range(tests)],
    }


def run(
    folder: Path,
    written: dict[str, Any],
    *,
    stop: StopSignal | None = None,
    listen: Callable[[RunEvent], None] = lambda _: None,
    resumes: bool = False,
    **options: Any,
) -> RunReport:
    path = folder / "config.yaml"
    path.write_text(json.dumps(written), encoding="utf-8")
    prepared = prepare(RunRequest(path, {"OPENAI_API_KEY": "k"}, **options))
    with open_state(folder / "state", {}) as state:
        resumed = resume_run(prepared, state.runs) if resumes else None
        running = run_evaluation(prepared, state, listen=listen, stop=stop or StopSignal(), resumed=resumed)
        return asyncio.run(running)


def count_answers(server: LoopbackServer) -> int:
    return sum("Say" in prompt_text(request.json)[:3] for request in server.requests)


@settings(max_examples=8)
@given(
    budget=st.integers(0, 60),
    concurrency=st.sampled_from([1, 2, 5, 20]),
    columns=st.integers(1, 3),
    judges=st.integers(1, 3),
    shares_criteria=st.booleans(),
)
def test_a_budget_of_requests_buys_as_many_whole_cases_as_it_pays_for(
    tmp_path_factory: pytest.TempPathFactory,
    budget: int,
    concurrency: int,
    columns: int,
    judges: int,
    shares_criteria: bool,
) -> None:
    folder, tests = tmp_path_factory.mktemp("run"), 8
    with LoopbackServer(respond=answer) as server:
        written = config(server, tests=tests, columns=columns, judges=judges, shares_criteria=shares_criteria)
        report = run(folder, written, max_requests=budget, max_concurrency=concurrency)
    whole, steps = report.summary.passed, 0 if shares_criteria else judges
    assert report.summary.total == whole
    assert len(server.requests) <= budget
    assert count_answers(server) == whole
    # Steps of shared criteria are paid for once, and those of a test's own by the first of its columns.
    most = 1 + judges + steps
    assert whole >= min(tests * columns, (budget - (judges if shares_criteria else 0)) // most)


def test_a_budget_of_money_buys_whole_cases(tmp_path: Path) -> None:
    with LoopbackServer(respond=answer) as server:
        written = config(server, tests=30, columns=2, judges=2, shares_criteria=True)
        report = run(tmp_path, written, max_cost=5.0, max_concurrency=20)
    # Steps of two criteria for 0.20, then an answer and two ratings for 0.30 each.
    assert report.summary.passed == report.summary.total == count_answers(server) == 16
    assert len(server.requests) == 50


@pytest.mark.parametrize("compares", [False, True], ids=["judged alone", "compared"])
@pytest.mark.parametrize(("concurrency", "at"), [(1, 7), (4, 21), (10, 33), (20, 30)])
def test_a_stop_leaves_at_most_so_many_answers_without_verdicts_as_requests_may_be_under_way(
    tmp_path: Path, concurrency: int, at: int, compares: bool
) -> None:
    loop: list[asyncio.AbstractEventLoop] = []
    stop, columns = StopSignal(), 3

    def respond(body: Any, headers: Any) -> Reply:
        if len(server.requests) == at:
            loop[0].call_soon_threadsafe(stop.request, StopReason.SIGINT)
        return answer(body, headers)

    def listen(event: RunEvent) -> None:
        if not loop:
            loop.append(asyncio.get_running_loop())

    with LoopbackServer(respond=respond) as server:
        written = config(
            server, tests=TESTS, columns=columns, judges=2, shares_criteria=True, compares=compares
        )
        report = run(tmp_path, written, stop=stop, listen=listen, max_concurrency=concurrency)
        # A row of outputs that are compared takes half of the room of its outputs, as they wait for each other.
        most = max(columns, 2 * concurrency) if compares else concurrency
        assert count_answers(server) - report.summary.total <= most
        assert report.summary.errored == 0
        assert at <= len(server.requests) <= at + 2 * concurrency
        report = run(tmp_path, written, resumes=True, resume_latest=True)
        assert report.summary.total == count_answers(server) == TESTS * columns


def test_what_finishes_a_case_goes_before_what_begins_one(tmp_path: Path) -> None:
    order: list[str] = []

    def listen(event: RunEvent) -> None:
        if isinstance(event, ModelCalled) and event.role is Role.GENERATION:
            order.append("answer")
        elif isinstance(event, CaseFinished):
            order.append("whole")

    with LoopbackServer(respond=answer) as server:
        written = config(server, tests=12, columns=2, judges=3, shares_criteria=False)
        run(tmp_path, written, listen=listen, max_concurrency=3)
    open_cases = [order[:n].count("answer") - order[:n].count("whole") for n in range(len(order))]
    assert max(open_cases) <= 3
