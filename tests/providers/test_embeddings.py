import json
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderResponseError
from geval_cli.providers.judge_kinds import is_embedding

GOOD = {
    "model": "e-1",
    "data": [{"index": 1, "embedding": [9]}, {"index": 0, "embedding": [0.25, -1, 3e-7]}],
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("openai:embedding:e", "/v1/embeddings"),
        ("openai:embeddings:e", "/v1/embeddings"),
        ("ollama:embeddings:e", "/v1/embeddings"),
        ("mistral:embedding:e", "/v1/embeddings"),
        ("cohere:embedding:e", "/v1/embeddings"),
        ("voyage:e", "/v1/embeddings"),
        ("azure:embedding:e", "/openai/deployments/e/embeddings?api-version=2024-10-21"),
    ],
)
def test_a_text_becomes_a_vector(kind: str, path: str) -> None:
    with LoopbackServer(Reply(body=GOOD)) as server:
        address = server.url if kind.startswith("azure") else server.base_url
        model = provider(kind, {"base_url": address, "apiKey": "k-123", "dimensions": 3})
        [response] = run(answer(model, ask()))
    [request] = server.requests
    assert request.path == path
    assert request.json == {"model": "e", "input": "Say hi.", "dimensions": 3}
    assert json.loads(response.text) == [0.25, -1.0, 3e-7]
    assert response.usage.input_tokens == 5


@pytest.mark.parametrize(
    "body",
    [{}, [], {"data": []}, {"data": [{"embedding": []}]}, {"data": [{"embedding": "AAAA"}]}, {"data": [3]}],
)
def test_what_is_no_vector_is_an_error(body: Any) -> None:
    with LoopbackServer(Reply(body=body)) as server:
        model = provider("openai:embedding:e", {"base_url": server.base_url, "apiKey": "k-123"})
        with pytest.raises(ProviderResponseError):
            run(answer(model))


def test_what_an_embedding_costs_is_known() -> None:
    model: Any = provider("openai:embedding:text-embedding-3-large", {"apiKey": "k-123"})
    with LoopbackServer(Reply(body=GOOD)) as server:
        listed = {"base_url": server.base_url, "apiKey": "k-123", "price": "list"}
        priced = provider("openai:embedding:text-embedding-3-large", listed)
        [response] = run(answer(priced, ask()))
    assert model.price is not None
    assert response.usage.cost_usd == pytest.approx(5 * 0.13e-6)


def test_which_ids_are_of_embeddings() -> None:
    assert is_embedding("openai:embedding:m")
    assert is_embedding("voyage:voyage-3.5")
    assert not is_embedding("openai:embedding")
    assert not is_embedding("openai:chat:embedding")
    assert not is_embedding("http://localhost:embedding/x")
