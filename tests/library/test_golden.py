"""The worked example of the seed document "How GEval Evaluates Your Test Case", through the library."""

import json
from pathlib import Path

import pytest
from support.loopback import LoopbackServer, chat_reply

from geval_cli import GEval, Result, TestCase

FOLDER = Path(__file__).parent / "golden"

CRITERION = "Determine if the 'actual output' is correct based on the 'expected output'."
STEPS = (
    "Compare the actual output with the expected output for semantic similarity",
    "Check if all key information from expected output is present in actual output",
    "Verify that no contradictory information exists in the actual output",
)
REASON = (
    "The actual output conveys all the key information from the expected output: a 30-day full "
    "refund at no extra cost. While the wording is different and the actual output adds a condition "
    "about shoes not fitting, it does not omit any required details. There are no significant "
    "discrepancies or missing elements."
)
CASE = TestCase(
    input="What if these shoes don't fit?",
    actual_output="You have 30 days to get a full refund at no extra cost.",
    expected_output="We offer a 30-day full refund at no extra costs.",
)


@pytest.fixture
def judged(server: LoopbackServer) -> tuple[Result, LoopbackServer]:
    server.add(chat_reply((FOLDER / "steps_reply.txt").read_text(encoding="utf-8")))
    server.add(chat_reply((FOLDER / "evaluate_reply.txt").read_text(encoding="utf-8")))
    metric = GEval("Correctness", CRITERION, evaluation_params=["actual_output", "expected_output"])
    return metric.evaluate(CASE), server


def test_rating_score_and_verdict(judged: tuple[Result, LoopbackServer]) -> None:
    result, _ = judged
    assert (result.metric, result.score, result.success, result.threshold) == (
        "Correctness [GEval]",
        0.9,
        True,
        0.5,
    )
    assert result.reason == REASON
    assert result.latency_ms > 0


def test_metadata_says_how_the_score_came_about(judged: tuple[Result, LoopbackServer]) -> None:
    metadata = dict(judged[0].metadata)
    assert metadata.pop("prompt_version")
    assert metadata == {
        "raw_score": 9,
        "score_range": (0, 10),
        "estimator": "single",
        "fallback": "the judge gives no token probabilities: one rating was taken at face value",
        "read_from": "json",
        "evaluation_steps": list(STEPS),
        "criteria": CRITERION,
        "evaluation_params": ["actual_output", "expected_output"],
        "judge": "openai:gpt-4.1",
        "usage": {
            "requests": 2,
            "input_tokens": 14,
            "output_tokens": 6,
            "cached_requests": 0,
            "cost_usd": None,
            "batched_requests": 0,
        },
    }


def test_the_requests_to_the_byte(judged: tuple[Result, LoopbackServer], update_expected: bool) -> None:
    _, server = judged
    assert [(request.method, request.path) for request in server.requests] == [
        ("POST", "/v1/chat/completions")
    ] * 2
    for request, name in zip(server.requests, ("steps_request.json", "evaluate_request.json"), strict=True):
        sent = json.dumps(request.json, indent=2, ensure_ascii=False) + "\n"
        if update_expected:
            (FOLDER / name).write_text(sent, encoding="utf-8")
        assert sent == (FOLDER / name).read_text(encoding="utf-8")


def test_the_verdict_is_read_from_the_token_probabilities_where_there_are_some(
    server: LoopbackServer,
) -> None:
    steps = (FOLDER / "steps_reply.txt").read_text(encoding="utf-8")
    tokens = [{'{"reason": "Close.", "score": ': 0.0}, {"9": -0.105360516, "8": -2.302585093}, {"}": 0.0}]
    text = "".join(next(iter(token)) for token in tokens)
    server.add(chat_reply(steps), chat_reply(text, logprobs=tokens))
    metric = GEval("Correctness", CRITERION, evaluation_params=["actual_output", "expected_output"])
    result = metric.evaluate(CASE)
    assert result.score == pytest.approx(0.89)
    assert result.metadata["estimator"] == "logprobs"
    assert result.metadata["raw_score"] == pytest.approx(8.9)
    assert result.metadata["distribution"] == pytest.approx({"9": 0.9, "8": 0.1})
