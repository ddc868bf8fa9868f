"""Ratings that GPT-4 really gave, replayed by a server: what the product makes of them agrees with people as published.

The recordings are not part of the repository.
"""

import json
from pathlib import Path

import pytest
from support.correlation import spearman
from support.loopback import choices_reply
from support.model_server import ModelServer, prompt_of
from support.product import Product

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data" / "geval_gpt4_samples.jsonl"
PUBLISHED = 0.547  # Spearman, over these 20 summaries


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recordings are not at {RECORDED}")
def test_twenty_samples_of_twenty_summaries_agree_with_people_and_none_is_lost(product: Product) -> None:
    items = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]

    def replay(body):
        [item] = [one for one in items if is_about(one, prompt_of(body))]
        assert body["n"] == 20
        return choices_reply(item["responses"])

    config = {
        "defaultTest": {
            "options": {"provider": "openai:gpt-4", "scoring": "samples", "samples": 20},
            "assert": [{"type": "g-eval", "dimension": "relevance", "explain": "never"}],
        },
        "tests": [
            {
                "vars": {"Document": item["document"]},
                "output": item["summary"],
                "metadata": {"id": item["id"]},
            }
            for item in items
        ],
    }
    with ModelServer(form=replay) as server:
        finished = product.run(config, server)

    assert [case["metadata"]["id"] for case in finished.cases] == [item["id"] for item in items]
    details = [verdict["detail"] for verdict in finished.verdicts]
    assert [(one["estimator"], one["valid"], one["requested"]) for one in details] == [
        ("samples", 20, 20)
    ] * 20
    assert (len(server.asked("steps")), len(server.asked("form"))) == (1, 20)
    agreement = spearman([one["rating"] for one in details], [item["human_relevance"] for item in items])
    assert round(agreement, 3) == PUBLISHED


def is_about(item, prompt):
    return item["document"] in prompt and f"\n{item['summary']}\n<<<END" in prompt
