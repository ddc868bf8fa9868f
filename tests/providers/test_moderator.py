import json
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderResponseError
from geval_cli.providers.registry import check_provider
from geval_cli.specs.base import ProviderSpec


def verdict(**categories: float) -> dict[str, Any]:
    names = {"hate": 0.0, "violence": 0.0, **categories}
    return {
        "id": "modr-1",
        "model": "omni-moderation-latest",
        "results": [
            {
                "flagged": bool(categories),
                "categories": {name: name in categories for name in names},
                "category_scores": names,
            }
        ],
    }


@pytest.mark.parametrize(
    ("name", "model"),
    [("openai:moderation", "omni-moderation-latest"), ("openai:moderation:text-m", "text-m")],
)
def test_a_text_is_sent_and_what_is_flagged_comes_back(name: str, model: str) -> None:
    with LoopbackServer(Reply(body=verdict(violence=0.9))) as server:
        moderator = provider(name, {"base_url": server.base_url, "apiKey": "k-0123456789"})
        [response] = run(answer(moderator, ask("You will regret this.")))
    [request] = server.requests
    assert request.path == "/v1/moderations"
    assert request.json == {"model": model, "input": "You will regret this."}
    assert json.loads(response.text) == {"flagged": {"violence": 0.9}, "categories": ["hate", "violence"]}
    assert response.usage.requests == 1


def test_what_is_harmless_has_no_categories() -> None:
    with LoopbackServer(Reply(body=verdict())) as server:
        moderator = provider("openai:moderation", {"base_url": server.base_url, "apiKey": "k-0123456789"})
        [response] = run(answer(moderator))
    assert json.loads(response.text) == {"flagged": {}, "categories": ["hate", "violence"]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"results": []},
        {"results": [{"flagged": True}]},
        {"results": [{"flagged": True, "categories": {"hate": False}}]},
        {"results": [{"flagged": "true", "categories": {"hate": False}}]},
        {"results": [{"categories": {"hate": "true"}}]},
        {"results": [{"categories": {}}]},
        {"results": [{"flagged": None, "categories": {"hate": None, "violence": None}}]},
        {"results": verdict()["results"] + verdict(hate=0.9)["results"]},
    ],
)
def test_what_is_no_verdict_is_an_error(body: Any) -> None:
    with LoopbackServer(Reply(body=body)) as server:
        moderator = provider("openai:moderation", {"base_url": server.base_url, "apiKey": "k-0123456789"})
        with pytest.raises(ProviderResponseError):
            run(answer(moderator))


def test_openai_takes_nothing_for_it_and_another_host_may() -> None:
    model: Any = provider("openai:moderation", {"apiKey": "k-0123456789"})
    assert model.price.cost_usd(None) == 0
    elsewhere: Any = provider("openai:moderation", {"base_url": "https://gate.example/v1"})
    assert elsewhere.price is None


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("openai:moderation", True),
        ("mistral:moderation:mistral-moderation-latest", True),
        ("anthropic:moderation:x", False),
        ("google:moderation:x", False),
        ("azure:moderation:x", False),
        ("openai:text-classification:x", False),
        ("huggingface:text-classification:x/y", True),
        ("huggingface:feature-extraction:x/y", False),
        ("google:embedding:x", False),
        ("azure:embedding:x", True),
    ],
)
def test_what_a_vendor_is_not_asked_for_is_refused(name: str, is_known: bool, tmp_path: Any) -> None:
    found = check_provider(ProviderSpec(id=name), env={}, base_dir=tmp_path)
    assert (found == []) is is_known
    assert all(problem.hint for problem in found)
