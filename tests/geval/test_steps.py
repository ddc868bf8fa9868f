"""Evaluation steps are paid for once and are the same criterion for every test, repeat and later run."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.loopback import chat_reply
from support.model_server import STEPS, ModelServer, prompt_of, verdict
from support.product import Product

from geval_cli.engine.runner import StopSignal
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.state import open_state

CRITERIA = "The output says when the shop opens."


def a_config(*assertions: dict[str, Any], tests: int = 8) -> dict[str, Any]:
    return {
        "defaultTest": {"assert": list(assertions)},
        "tests": [{"output": f"We open at {hour}."} for hour in range(tests)],
    }


def by_criteria(**keys: Any) -> dict[str, Any]:
    return {"type": "g-eval", "criteria": CRITERIA, **keys}


def test_many_tests_share_the_steps_of_one_request_and_show_them(product: Product) -> None:
    with ModelServer() as server:
        finished = product.run(a_config(by_criteria()), server, "--verbose")

    assert (len(server.asked("steps")), len(server.asked("evaluate"))) == (1, 8)
    assert {tuple(one["detail"]["evaluation_steps"]) for one in finished.verdicts} == {STEPS}
    for number, step in enumerate(STEPS, start=1):
        assert f"{number}. {step}" in finished.stdout
        assert all(f"{number}. {step}\n" in prompt_of(body) for body in server.asked("evaluate"))
    assert finished.stdout.count("the same as in #1, the-output-says-when-the-shop-opens") == 7


def test_each_dimension_and_each_criterion_has_steps_of_its_own(product: Product) -> None:
    both = [{"type": "g-eval", "dimension": name} for name in ("fluency", "coherence")]
    with ModelServer() as server:
        product.run(a_config(*both, by_criteria(), by_criteria(threshold=0.9)), server)

    asked = [prompt_of(body) for body in server.asked("steps")]
    assert len(asked) == len(set(asked)) == 3


def test_a_second_run_finds_the_steps_of_the_first_also_for_other_tests(product: Product) -> None:
    with ModelServer() as server:
        product.run(a_config(by_criteria(), tests=1), server)
        again = product.run(a_config(by_criteria(), tests=3), server)

    assert (len(server.asked("steps")), len(server.asked("evaluate"))) == (1, 3)
    assert {tuple(one["detail"]["evaluation_steps"]) for one in again.verdicts} == {STEPS}
    assert [one["usage"]["cached_requests"] for one in again.verdicts] == [2, 0, 0]


def test_without_the_cache_a_run_buys_its_steps_once(product: Product) -> None:
    with ModelServer() as server:
        product.run(a_config(by_criteria()), server)
        product.run(a_config(by_criteria()), server, "--no-cache")

    assert len(server.asked("steps")) == 2


def test_repeats_are_judged_anew_by_the_same_steps(
    product: Product, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = product.write(a_config(by_criteria(), tests=2))
    with ModelServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
        prepared = prepare(RunRequest(path, os.environ, repeats=3))
        with open_state(tmp_path / "state", os.environ) as state:
            report = asyncio.run(run_evaluation(prepared, state, listen=lambda _: None, stop=StopSignal()))
            results = list(report.results())

    assert len(results) == 6
    assert (len(server.asked("steps")), len(server.asked("evaluate"))) == (1, 6)


def test_another_judge_writes_steps_of_its_own(product: Product) -> None:
    with ModelServer() as server:
        product.run(a_config(by_criteria()), server, "--grader", "openai:one")
        product.run(a_config(by_criteria()), server, "--grader", "openai:other")

    assert [body["model"] for body in server.asked("steps")] == ["one", "other"]


def test_pinned_steps_buy_none_and_are_templates(product: Product) -> None:
    pinned = by_criteria(evaluation_steps=["Look for {{ hour }} o'clock."])
    config = {"tests": [{"vars": {"hour": 9, "output": "We open at 9."}, "assert": [pinned]}]}
    with ModelServer() as server:
        finished = product.run(config, server)

    assert server.asked("steps") == []
    assert finished.verdict["detail"]["evaluation_steps"] == ["Look for 9 o'clock."]
    assert "1. Look for 9 o'clock.\n" in prompt_of(server.asked("evaluate")[0])


def test_steps_alone_are_a_metric_without_criteria(product: Product) -> None:
    with ModelServer() as server:
        finished = product.run(
            a_config({"type": "g-eval", "evaluation_steps": ["Look for an hour."]}), server
        )

    assert (finished.code, server.asked("steps")) == (0, [])


def test_steps_that_cannot_be_read_are_asked_for_once_more(product: Product) -> None:
    replies = iter(["I would look at the hours.", '{"steps": ["Look for an hour."]}'])
    with ModelServer(steps=lambda _: next(replies)) as server:
        finished = product.run(a_config(by_criteria()), server)

    assert (finished.code, len(server.asked("steps"))) == (0, 2)
    assert finished.verdicts[0]["detail"]["evaluation_steps"] == ["Look for an hour."]


def test_prompts_of_all_tests_are_equal_up_to_the_text_to_be_judged(product: Product) -> None:
    """What is equal for all tests comes first, so that a server's own prompt cache can serve it."""
    with ModelServer() as server:
        product.run(a_config(by_criteria()), server)

    prompts = [prompt_of(body) for body in server.asked("evaluate")]
    assert len({prompt.partition("<<<BEGIN")[0] for prompt in prompts}) == 1
    assert len(set(prompts)) == 8
    assert all("We open at" not in prompt_of(body) for body in server.asked("steps"))


def test_the_reply_of_the_published_example_is_read_line_breaks_and_all(product: Product) -> None:
    """Its string runs over four lines, which JSON does not allow."""
    reply = """{
  "reason": "The actual output conveys all the key information from the expected output: a 30-day full
            refund at no extra cost. There are no significant
            discrepancies or missing elements.",
  "score": 9
}"""
    config = {
        "tests": [
            {
                "output": "You have 30 days to get a full refund at no extra cost.",
                "expected_output": "We offer a 30-day full refund at no extra costs.",
                "assert": [
                    {
                        "type": "g-eval",
                        "criteria": "Determine if the 'actual output' is correct based on the 'expected output'.",
                    }
                ],
            }
        ]
    }
    with ModelServer(evaluate=lambda _: chat_reply(reply)) as server:
        finished = product.run(config, server)

    found = finished.verdict
    assert (found["status"], found["score"], found["threshold"]) == ("passed", 0.9, 0.5)
    assert found["detail"]["rating"] == 9
    assert found["reason"].startswith("The actual output conveys all the key information")
    assert found["detail"]["evaluation_params"] == ["actual_output", "expected_output"]


def test_a_verbose_run_shows_the_steps_of_a_failing_verdict(product: Product) -> None:
    with ModelServer(evaluate=verdict(1, "No hour is named.")) as server:
        finished = product.run(a_config(by_criteria(), tests=1), server, "-v")

    assert finished.code == 1
    assert f"1. {STEPS[0]}" in finished.stdout
    assert "No hour is named." in finished.stdout
