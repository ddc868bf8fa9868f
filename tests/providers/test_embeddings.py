import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ConfigError, ProviderResponseError
from geval_cli.providers.base import is_embedding
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest

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
        ("mistral:mistral-embed", "/v1/embeddings"),
        ("openai:text-embedding-3-small", "/v1/embeddings"),
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
    assert request.json == {"model": kind.rpartition(":")[2], "input": "Say hi.", "dimensions": 3}
    assert json.loads(response.text) == [0.25, -1.0, 3e-7]
    assert response.usage.input_tokens == 5


@pytest.mark.parametrize(
    ("kind", "usage"),
    [
        ("openai:text-embedding-3-small", {"prompt_tokens": 5, "total_tokens": 5}),
        ("mistral:mistral-embed", {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 0}),
        ("voyage:voyage-3.5", {"total_tokens": 5}),
        *[("openai:embedding:m", {"prompt_tokens": none, "total_tokens": 5}) for none in (0, None)],
        *[
            ("openai:embedding:m", usage)
            for usage in (
                {"prompt_tokens": 0, "total_tokens": 0}, {"total_tokens": 0}, {"prompt_tokens": 0}, {}, None,
                {"prompt_tokens": "5"}, {"prompt_tokens": -5}, {"prompt_tokens": 0, "total_tokens": "5"},
            )
        ],
    ],
)  # fmt: skip
def test_vectors_cost_what_was_read(kind: str, usage: Any) -> None:
    counts = (usage or {}).values()
    with LoopbackServer(Reply(body={**GOOD, "usage": usage})) as server:
        price = {"input": 1_000_000, "output": 1_000_000}
        model = provider(kind, {"base_url": server.base_url, "apiKey": "k-123", "price": price})
        [response] = run(answer(model))
    assert response.usage.cost_usd == (5.0 if 5 in counts else None)


@pytest.mark.parametrize("billed", [{"input_tokens": 0}, {}, None, {"input_tokens": "5"}])
def test_vectors_of_cohere_for_which_nothing_was_counted_are_not_free(billed: Any) -> None:
    with LoopbackServer(Reply(body={**VECTORS, "meta": {"billed_units": billed}})) as server:
        config = {"base_url": server.base_url, "apiKey": "k-123", "price": {"input": 1, "output": 1}}
        [response] = run(answer(provider("cohere:embedding:embed-v4.0", config)))
    assert response.usage.cost_usd is None


VECTORS = {
    "id": "da6e531f-54c5-4a73-bf92-f60566d8d753",
    "embeddings": {"float": [[0.25, -1, 3e-7]]},
    "texts": ["Say hi."],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 5}},
    "response_type": "embeddings_by_type",
}
"""As Cohere's reference describes the answer of POST /v2/embed."""


@pytest.mark.parametrize("kind", ["cohere:embed-v4.0", "cohere:embedding:embed-v4.0"])
@pytest.mark.parametrize("base", ["", "/compatibility/v1", "/compatibility/v1/"])
def test_cohere_is_sent_what_its_reference_says(kind: str, base: str) -> None:
    with LoopbackServer(Reply(body=VECTORS)) as server:
        config = {"base_url": f"{server.url}{base}", "apiKey": "k-123", "dimensions": 256}
        [response] = run(answer(provider(kind, config), ask()))
    [request] = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v2/embed", "Bearer k-123")
    assert request.json == {
        "model": "embed-v4.0",
        "texts": ["Say hi."],
        "input_type": "classification",
        "embedding_types": ["float"],
        "output_dimension": 256,
    }
    assert json.loads(response.text) == [0.25, -1.0, 3e-7]
    assert response.usage.input_tokens == 5


def test_cohere_is_told_what_the_vectors_are_for_as_the_config_says() -> None:
    with LoopbackServer(Reply(body=VECTORS)) as server:
        config = {"base_url": server.url, "apiKey": "k-123", "input_type": "clustering", "truncate": "START"}
        run(answer(provider("cohere:embed-v4.0", config), ask()))
    [request] = server.requests
    assert (request.json["input_type"], request.json["truncate"]) == ("clustering", "START")


@pytest.mark.parametrize(
    "body", [{}, {"embeddings": {}}, {"embeddings": {"float": []}}, {"embeddings": [[1]]}]
)
def test_what_is_no_vector_of_cohere_is_an_error(body: Any) -> None:
    with LoopbackServer(Reply(body=body)) as server, pytest.raises(ProviderResponseError):
        run(answer(provider("cohere:embed-v4.0", {"base_url": server.url, "apiKey": "k-123"})))


EMBEDDERS = (
    "voyage:voyage-3.5",
    "cohere:embed-v4.0",
    "openai:embedding:e",
    "openai:text-embedding-3-small",
    "local:embedding:smollm2",
)


def problems_of(folder: Path, config: dict[str, Any], **request: Any) -> list[str]:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"prompts": ["{{ q }}"], **config}), encoding="utf-8")
    env = dict.fromkeys(("VOYAGE_API_KEY", "COHERE_API_KEY", "OPENAI_API_KEY"), "key-0123456789")
    try:
        found = prepare(RunRequest(path, environ=env, **request), is_going_to_run=False).warnings
    except ConfigError as error:
        found = error.problems
    return [problem.message for problem in found]


@pytest.mark.parametrize("name", EMBEDDERS)
def test_what_returns_vectors_answers_no_prompt_and_judges_nothing(name: str, tmp_path: Path) -> None:
    test = {"vars": {"q": "hi"}, "assert": [{"type": "contains", "value": "x"}]}
    what = f"`{name}` is an embedding model"
    assert problems_of(tmp_path, {"providers": [name], "tests": [test]}) == [
        f"{what}: it returns vectors and cannot answer a prompt"
    ]
    for judged in (
        {"type": "llm-rubric", "value": "polite", "provider": name},
        {"type": "choice", "value": "polite", "choices": {"a": 1, "b": 0}, "provider": name},
        {"type": "g-eval", "value": "polite", "provider": name},
        {"type": "g-eval", "value": "polite", "provider": ["openai:gpt-4.1", name]},
        {"type": "moderation", "provider": name},
        {"type": "assert-set", "assert": [{"type": "factuality", "value": "x", "provider": name}]},
    ):
        suite = {"providers": ["openai:gpt-4.1"], "tests": [{"vars": {"q": "hi"}, "assert": [judged]}]}
        kind = judged["assert"][0]["type"] if "assert" in judged else judged["type"]
        assert problems_of(tmp_path, suite) == [f"{what}, which cannot judge {kind}"]
    suite = {
        "providers": ["openai:gpt-4.1"],
        "tests": [{"vars": {"q": "hi"}, "assert": [{"type": "llm-rubric", "value": "x"}]}],
    }
    assert problems_of(tmp_path, suite, grader=name) == [f"{what}: it returns vectors and cannot judge"]


def test_what_returns_vectors_measures_similarity(tmp_path: Path) -> None:
    for name in EMBEDDERS[:3]:
        similar = {"type": "similar", "value": "polite", "provider": name}
        relevant = {"type": "answer-relevance", "provider": name}
        test = {"vars": {"q": "hi"}, "assert": [similar, relevant]}
        assert problems_of(tmp_path, {"providers": ["openai:gpt-4.1"], "tests": [test]}) == []


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
    assert is_embedding("cohere:embed-multilingual-v3.0")
    assert not is_embedding("cohere:command-a-03-2025")
    assert not is_embedding("openai:embedding")
    assert not is_embedding("openai:chat:embedding")
    assert not is_embedding("http://localhost:embedding/x")
