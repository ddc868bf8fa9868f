import json
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderAuthError, ProviderResponseError, ProviderUnavailableError
from geval_cli.providers.registry import check_ready
from geval_cli.specs.base import ProviderSpec

NAME = "huggingface:text-classification:acme/toxicity"
SCORES = [{"label": "toxic", "score": 0.125}, {"label": "harmless", "score": 0.875}]
KEY = "hf_secret0123456789"


def classify(reply: Reply, **config: Any) -> tuple[Any, Any]:
    with LoopbackServer(reply) as server:
        model = provider(NAME, {"base_url": server.url, **config}, env={"HF_TOKEN": KEY})
        [response] = run(answer(model, ask("Off with you.")))
    return response, server.requests[0]


@pytest.mark.parametrize("body", [SCORES, [SCORES]])
def test_a_text_becomes_scores_of_classes(body: Any) -> None:
    response, request = classify(Reply(body=body), top_k=5)
    assert request.path == "/models/acme/toxicity"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json == {"inputs": "Off with you.", "parameters": {"top_k": 5}}
    assert json.loads(response.text) == {"toxic": 0.125, "harmless": 0.875}
    assert response.usage.requests == 1


def test_an_endpoint_of_one_s_own_is_asked_as_it_is_written() -> None:
    with LoopbackServer(Reply(body=SCORES)) as server:
        config = {"apiEndpoint": f"{server.url}/mine", "apiKey": KEY}
        [response] = run(answer(provider(NAME, config)))
    assert [request.path for request in server.requests] == ["/mine"]
    assert "harmless" in response.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        [[]],
        "x",
        [{"label": "a"}],
        [{"label": 1, "score": 1}],
        [{"label": "a", "score": True}],
        [[{"label": "a", "score": 1}]] * 2,
    ],
)
def test_what_is_no_classification_is_an_error(body: Any) -> None:
    with pytest.raises(ProviderResponseError):
        classify(Reply(body=json.dumps(body)))


def test_a_loading_model_and_a_refused_key_are_told_apart_and_show_no_key() -> None:
    with pytest.raises(ProviderUnavailableError):
        classify(Reply(503, {}, {"error": "Model is currently loading", "estimated_time": 20.0}))
    with pytest.raises(ProviderAuthError) as caught:
        classify(Reply(401, {}, {"error": f"Invalid token {KEY}"}))
    assert KEY not in str(caught.value) + caught.value.body


def test_without_a_token_it_says_which_variable_holds_one(tmp_path: Any) -> None:
    [problem] = check_ready(ProviderSpec(id=NAME), env={}, base_dir=tmp_path)
    assert "HF_TOKEN" in problem.message
    model = provider(NAME)
    assert model.identity.endpoint == "https://router.huggingface.co/hf-inference/models/acme/toxicity"
