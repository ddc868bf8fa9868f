from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.providers.registry import check_provider, check_ready, provider_access_problem
from geval_cli.source.access import untrusted_access
from geval_cli.specs.base import ProviderSpec

TOKEN = "ya29.secret-0123456789"
SAID = {
    "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 2},
    "modelVersion": "gemini-x",
}
IN_PROJECT = "/v1/projects/p-1/locations/europe-west4/publishers/google/models/gemini-x:generateContent"


def test_in_a_project_a_token_is_sent_to_the_region() -> None:
    with LoopbackServer(Reply(body=SAID)) as server:
        config = {"base_url": server.url, "projectId": "p-1", "region": "europe-west4", "temperature": 0}
        model = provider("vertex:gemini-x", config, env={"VERTEX_ACCESS_TOKEN": TOKEN})
        [response] = run(answer(model, ask()))
    [request] = server.requests
    assert (request.path, request.headers["authorization"]) == (IN_PROJECT, f"Bearer {TOKEN}")
    assert request.json["generationConfig"] == {"temperature": 0}
    assert (response.text, response.usage.input_tokens, response.model) == ("hi", 4, "gemini-x")


def test_without_a_project_a_key_is_sent() -> None:
    with LoopbackServer(Reply(body=SAID)) as server:
        env = {"VERTEX_API_KEY": TOKEN, "GOOGLE_CLOUD_PROJECT": "another"}
        [response] = run(answer(provider("vertex:gemini-x", {"base_url": server.url}, env=env), ask()))
    [request] = server.requests
    assert request.path == "/v1/publishers/google/models/gemini-x:generateContent"
    assert request.headers["x-goog-api-key"] == TOKEN
    assert response.text == "hi"


@pytest.mark.parametrize("config", [{}, {"project_id": "p"}])
@pytest.mark.parametrize("end", ["/", "/v1", "/v1/"])
def test_an_address_may_end_with_the_version_of_the_api(config: dict[str, Any], end: str) -> None:
    identities = [
        provider("vertex:gemini-x", {"base_url": f"https://models.example{end}", **config}, env={}).identity
        for end in ("", end)
    ]
    assert identities[0] == identities[1]


@pytest.mark.parametrize(
    ("config", "env", "host"),
    [
        ({"project_id": "p"}, {}, "https://us-central1-aiplatform.googleapis.com/v1/projects/p/"),
        ({"project_id": "p", "region": "global"}, {}, "https://aiplatform.googleapis.com/v1/projects/p/"),
        ({}, {"VERTEX_PROJECT_ID": "q"}, "https://us-central1-aiplatform.googleapis.com/v1/projects/q/"),
        ({}, {}, "https://aiplatform.googleapis.com/v1/publishers/"),
    ],
)
def test_the_address_follows_from_config_and_environment(
    config: dict[str, Any], env: dict[str, str], host: str
) -> None:
    assert provider("vertex:gemini-x", config, env=env).identity.endpoint.startswith(host)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("vertex:llama-4", {}),
        ("vertex:", {}),
        ("vertex:gemini-x", {"region": "evil.example/x"}),
        ("vertex:gemini-x", {"project_id": "../x"}),
        ("vertex:gemini-x", {"project_id": 3}),
    ],
)
def test_what_cannot_be_asked_there_is_refused(name: str, config: dict[str, Any]) -> None:
    assert check_provider(ProviderSpec(id=name, config=config), env={}, base_dir=Path())


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "VERTEX_API_KEY"),
        ({"GOOGLE_CLOUD_PROJECT": "p"}, "VERTEX_ACCESS_TOKEN"),
        (
            {"GOOGLE_CLOUD_PROJECT": "p", "VERTEX_REGION": "evil.example/x", "VERTEX_ACCESS_TOKEN": "t"},
            "region",
        ),
    ],
)
def test_what_is_missing_is_named(env: dict[str, str], words: str) -> None:
    [problem] = check_ready(ProviderSpec(id="vertex:gemini-x"), env=env, base_dir=Path())
    assert words in problem.hint


def test_a_stranger_may_ask_google_and_nobody_else() -> None:
    def refused(**config: Any) -> bool:
        spec = ProviderSpec(id="vertex:gemini-x", config=config)
        access = untrusted_access([Path()])
        return provider_access_problem(spec, env={}, base_dir=Path(), access=access) is not None

    assert not refused(project_id="p", region="europe-west4")
    assert refused(base_url="https://evil.example")
    assert refused(api_endpoint="https://evil.example/x")
    assert refused(api_key_env="OPENAI_API_KEY")
