"""Budgets as users have them: `--max-requests`, `--max-cost`, and going on afterwards."""

import shlex
from typing import Any

import pytest
from support.judge_server import judge_sensibly, prompt_text
from support.loopback import LoopbackServer, chat_reply
from support.product import Product


def respond(body: Any, headers: Any) -> Any:
    return chat_reply("fine") if "Say" in prompt_text(body)[:3] else judge_sensibly(body, headers)


def config(tests: int, *, judged: bool = True, **provider: Any) -> dict[str, Any]:
    judge = {"id": "openai:judge", "config": {"price": {"input": 0, "output": 0}}}
    checks = [{"type": "contains", "value": "fine"}]
    if judged:
        checks.append({"type": "g-eval", "criteria": "It is good.", "provider": judge})
    return {
        "prompts": ["Say {{ x }}"],
        "providers": [{"id": "openai:m", "config": provider}],
        "defaultTest": {"assert": checks},
        "tests": [{"vars": {"x": number}} for number in range(tests)],
    }


def test_a_budget_of_requests_aborts_the_run_and_leaves_the_rest_undone(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config(20), server, "--max-requests", "30", "-j", "4")
        # A list of steps, and an answer and a rating for each case: the last one would not pay for another case.
        assert len(server.requests) == 29
    assert finished.code == 3
    assert finished.results["run"]["status"] == "aborted"
    summary = finished.results["summary"]
    assert summary["errored"] == summary["failed"] == 0
    assert summary["total"] == summary["passed"] == 14
    said = "the budget of 30 requests is used up: 1 left, but another case needs 2"
    assert " ".join(finished.stderr.split()).count(said) == 1
    assert "ABORTED" in finished.stdout


def test_a_run_goes_on_where_its_budget_ended(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        whole = config(20)
        product.run(whole, server, "--max-requests", "15", "-j", "4")
        finished = product.run(whole, server, "--resume")
        assert (
            len(server.requests) == 41
        )  # 20 answers, 20 ratings, one list of steps: nothing was asked twice
    assert finished.code == 0
    assert finished.results["run"]["status"] == "completed"
    assert finished.results["summary"]["passed"] == 20


@pytest.mark.parametrize(
    ("limit", "is_enough"),
    [
        ("--max-requests 2", False),
        ("--max-requests 4", True),
        ("--max-cost 0.05", False),
        ("--max-cost 0.4", True),
    ],
)
def test_a_budget_that_finishes_no_case_is_not_suggested_again(
    product: Product, limit: str, is_enough: bool
) -> None:
    price = {"input": 10_000, "output": 10_000}
    whole = config(5, price=price)
    whole["defaultTest"]["assert"][1]["provider"]["config"]["price"] = price
    with LoopbackServer(respond=respond) as server:
        finished = product.run(whole, server, *limit.split(), "-j", "1")
    said, option = " ".join(finished.stdout.split()), limit.split(maxsplit=1)[0]
    assert (finished.code, bool(finished.cases)) == (3, is_enough)
    assert f"--resume --max-concurrency 1 {limit if is_enough else f'{option} MORE'}" in said
    assert ("no case could be finished within the limit" in finished.stderr) == (not is_enough)


@pytest.mark.parametrize("concurrency", ["1", "3", "20", "100"])
def test_many_requests_at_once_overrun_no_money(product: Product, concurrency: str) -> None:
    price = {"input": 10_000, "output": 10_000}  # 7 tokens read and 3 written, each for a cent
    with LoopbackServer(respond=respond) as server:
        options = ("--max-cost", "1", "-j", concurrency)
        finished = product.run(config(50, judged=False, price=price), server, *options)
    assert finished.code == 3
    assert finished.results["summary"]["usage"]["generation"]["cost_usd"] == pytest.approx(1)
    assert len(finished.cases) == len(server.requests) == 10


def test_models_and_judges_overrun_no_money(product: Product) -> None:
    whole = config(50, price={"input": 10_000, "output": 10_000})
    whole["defaultTest"]["assert"][1]["provider"]["config"]["price"] = {"input": 20_000, "output": 20_000}
    with LoopbackServer(respond=respond) as server:
        finished = product.run(whole, server, "--max-cost", "5", "-j", "20")
    usage = finished.results["summary"]["usage"]
    spent = sum(usage[role]["cost_usd"] for role in ("generation", "judge"))
    assert spent == pytest.approx(5)  # steps for 0.2, then 16 cases for 0.3


def test_a_budget_that_suffices_changes_nothing(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config(5), server, "--max-requests", "11")
    assert (finished.code, len(server.requests)) == (0, 11)
    assert finished.results["run"]["status"] == "completed"


def test_answers_from_the_cache_take_nothing_of_it(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        product.run(config(5), server)
        finished = product.run(config(5), server, "--max-requests", "0")
    assert (finished.code, len(server.requests)) == (0, 11)


def test_what_has_no_price_is_refused_before_anything_is_sent(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        finished = product.run(config(5), server, "--max-cost", "1")
    assert (finished.code, len(server.requests)) == (2, 0)
    assert "the price of openai:m is unknown" in finished.stderr
    assert "price: {input: USD, output: USD}" in finished.stderr
    assert "openai:judge" not in finished.stderr


def test_echo_and_local_models_cost_nothing(product: Product) -> None:
    whole = config(3, judged=False)
    whole["providers"] = ["echo"]
    with LoopbackServer() as server:
        finished = product.run(whole, server, "--max-cost", "0.01")
    assert finished.code == 1  # an echo does not say that it is fine
    assert finished.results["run"]["status"] == "completed"


@pytest.mark.parametrize("amount", ["-1", "nan", "inf"])
def test_an_amount_that_is_none_is_refused(product: Product, amount: str) -> None:
    with LoopbackServer() as server:
        finished = product.run(config(1), server, "--max-cost", amount)
    assert finished.code == 2
    assert "--max-cost must be an amount in USD of at least 0" in finished.stderr


def test_what_continues_a_run_names_the_folders_that_it_was_given(product: Product) -> None:
    options = ("--home", "my state", "--cache-dir", "my answers")
    with LoopbackServer(respond=respond) as server:
        stopped = product.run(config(3), server, "--max-requests", "3", *options)
        said = " ".join(stopped.stdout.split())
        way_on = said.partition("; continue: geval run config.yaml ")[2].partition(" next:")[0]
        assert way_on.endswith("--max-requests 3 --home 'my state' --cache-dir 'my answers'")
        before = len(server.requests)
        product.run(config(3), server, *options, "--resume")
        assert 0 < len(server.requests) - before < 6


@pytest.mark.parametrize(
    "options",
    [
        ("--max-requests", "3"),
        ("--max-requests", "3", "--repeat", "2", "--filter-first-n", "2"),
        ("--max-requests", "3", "--filter-providers", "openai|x y", "--no-cache"),
    ],
)
def test_what_continues_a_run_keeps_its_budget_and_its_other_options(
    product: Product, options: tuple[str, ...]
) -> None:
    with LoopbackServer(respond=respond) as server:
        stopped = product.run(config(3), server, *options)
        said = " ".join(stopped.stdout.split())
        way_on = shlex.split(said.partition("; continue: geval run config.yaml ")[2].partition(" next:")[0])
        home = way_on.index("--home")
        assert sorted([*way_on[:home], *way_on[home + 2 :]]) == sorted(["--resume", *options])
        before = len(server.requests)
        resumed = product.run(config(3), server, *way_on)
        assert (stopped.code, resumed.code) == (3, 3), resumed.stderr
        assert len(server.requests) - before <= 3


def test_options_with_values_by_name_are_not_written_out_again(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        stopped = product.run(config(3), server, "--max-requests", "3", "--var", "pin=1234")
    said = " ".join(stopped.stdout.split())
    assert "finish it with `geval run config.yaml --resume --home " in said
    assert said.count("and the same options") == 1


@pytest.mark.parametrize(("budget", "said"), [("1", ""), ("5", " · 1 of 1 gate met so far")])
def test_gates_of_a_run_that_stopped_early_are_not_errors(product: Product, budget: str, said: str) -> None:
    whole = {**config(20), "gates": ["pass_rate >= 80%"]}
    with LoopbackServer(respond=respond) as server:
        finished = product.run(whole, server, "--max-requests", budget)
    assert "nothing to count" not in finished.stdout
    cases = (int(budget) - 1) // 2
    assert f"ABORTED  {cases} passed, 0 failed{said}" in finished.stdout
    limit = budget if cases else "MORE"
    way_on = f"continue: geval run config.yaml --resume --max-requests {limit}"
    assert f"{cases} of 20 cases finished; {way_on}" in " ".join(finished.stdout.split())
