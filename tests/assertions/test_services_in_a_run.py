"""Moderators, classifiers and embeddings as users have them: asked, counted, kept, and never mistaken for a verdict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Finished, Product

SCORES = [[{"label": "toxic", "score": 0.1}, {"label": "harmless", "score": 0.9}]]
HARMLESS = {"results": [{"flagged": False, "categories": {"hate": False}, "category_scores": {"hate": 0.1}}]}


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def respond(body: Any, headers: Mapping[str, str]) -> Reply:
    if "inputs" in body:
        return Reply(body=SCORES)
    if "messages" in body:
        return chat_reply("You are kind.")
    return Reply(body=HARMLESS)


def config(server: LoopbackServer) -> dict[str, Any]:
    classifier = {
        "id": "huggingface:text-classification:acme/toxicity",
        "config": {"base_url": server.url, "apiKey": "hf_0123456789"},
    }
    return {
        "prompts": ["{{ text }}"],
        "providers": ["openai:gpt-4.1"],
        "tests": [
            {
                "vars": {"text": "Say something kind."},
                "assert": [
                    {"type": "moderation", "value": ["hate"]},
                    {"type": "classifier", "value": "harmless", "threshold": 0.8, "provider": classifier},
                    {"type": "guardrails"},
                ],
            }
        ],
    }


def statuses(finished: Finished) -> list[str]:
    return [item["status"] for item in finished.verdicts]


def test_services_are_asked_once_and_their_requests_are_counted(product: Product) -> None:
    with LoopbackServer(respond=respond) as server:
        first, again = product.run(config(server), server), product.run(config(server), server)
        assert len(server.requests) == 3
    assert (first.code, statuses(first)) == (0, ["passed"] * 3)
    assert first.judge_usage["requests"] == 2
    assert again.judge_usage["cached_requests"] == 2


def test_a_service_that_breaks_makes_an_error_and_never_a_failure(product: Product) -> None:
    def broken(body: Any, headers: Mapping[str, str]) -> Reply:
        return respond(body, headers) if "messages" in body else Reply(400, {}, {"error": {"message": "no"}})

    with LoopbackServer(respond=broken) as server:
        finished = product.run(config(server), server)
    assert (finished.code, statuses(finished)) == (3, ["error", "error", "passed"])
    assert finished.cases[0]["status"] == "error"
    assert "hf_0123456789" not in finished.stdout + finished.stderr


def test_a_prompt_that_the_provider_s_filter_stops_is_a_failure_of_guardrails(product: Product) -> None:
    refusal = {"error": {"message": "The prompt was filtered.", "code": "content_filter"}}
    tests = [
        {"vars": {"text": "x"}, "assert": [{"type": "guardrails"}, {"type": "contains", "value": "filtered"}]}
    ]
    with LoopbackServer(Reply(400, {}, refusal)) as server:
        finished = product.run({**config(server), "tests": tests}, server)
    assert (finished.code, statuses(finished)) == (1, ["failed", "passed"])
    assert finished.cases[0]["finish_reason"] == "content_filter"


@pytest.mark.local_model
def test_a_local_model_compares_meanings_without_any_server(product: Product) -> None:
    wanted = {"type": "similar", "value": "The capital of France is Paris.", "provider": "local:smollm2"}
    tests = [
        {"output": "Paris is the capital of France.", "assert": [{**wanted, "threshold": 0.9}]},
        {"output": "def f(x): return x + 1", "assert": [{**wanted, "threshold": 0.9}]},
    ]
    with LoopbackServer() as server:
        finished = product.run({"providers": "none", "tests": tests}, server)
        assert server.requests == []
    assert statuses(finished) == ["passed", "failed"]
    assert finished.judge_usage["cost_usd"] == 0
