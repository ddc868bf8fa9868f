"""A provider that refuses whatever it is sent is called no more, on every API; the other columns go on."""

from typing import Any

import pytest
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.product import Finished, Product

TESTS, PARALLEL = 10, 3
UNKNOWN = {
    "chat": (
        "openai:nope",
        404,
        {"error": {"message": "The model `nope` does not exist", "code": "model_not_found"}},
    ),
    "chat, by an old server": ("openai:nope", 404, {"detail": "Not Found"}),
    "a page": ("openai:nope", 404, "<html>404</html>"),
    "Azure": (
        "azure:nope",
        404,
        {"error": {"code": "DeploymentNotFound", "message": "The API deployment is missing."}},
    ),
    "Mistral": ("openai:nope", 400, {"message": "Invalid model: nope", "type": "invalid_model"}),
    "DeepSeek": (
        "openai:nope",
        400,
        {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}},
    ),
    "OpenRouter": ("openai:nope", 400, {"error": {"message": "nope is not a valid model ID", "code": 400}}),
    "Ollama": ("openai:nope", 404, {"error": "model 'nope' not found"}),
    "no access": (
        "openai:nope",
        403,
        {"error": {"message": "Project does not have access to model `nope`", "code": "model_not_found"}},
    ),
    "Responses": (
        "openai:responses:nope",
        404,
        {"error": {"message": "The requested model 'nope' does not exist."}},
    ),
    "Anthropic": ("anthropic:nope", 404, {"error": {"type": "not_found_error", "message": "model: nope"}}),
    "Gemini": (
        "google:nope",
        404,
        {"error": {"status": "NOT_FOUND", "message": "models/nope is not found for v1beta"}},
    ),
    "http": ("http", 404, {"error": {"message": "no", "code": "model_not_found"}}),
    "a key": ("openai:nope", 401, {"error": {"message": "Incorrect API key"}}),
    "money": ("openai:nope", 402, {"error": {"message": "add credit"}}),
}
PASSING = {
    "a prompt that is too long": (400, {"error": {"message": "This model's context length is 8 tokens"}}),
    "a prompt about models": (
        400,
        {"error": {"message": f"{'x' * 90}: 'which model does not exist?' was flagged"}},
    ),
    "a filter": (403, {"error": {"message": "This text is not allowed"}}),
    "a file": (404, {"error": {"message": "No file with id file-7 was found"}}),
}


def config(server: LoopbackServer, provider: str, judge: str = "openai:judge") -> dict[str, Any]:
    at: dict[str, Any] = {"base_url": server.base_url, "max_retries": 0}
    if provider == "http":
        at = {"url": server.base_url, "body": {"model": "nope", "q": "{{ prompt }}"}, "response_path": "x"}
    checks = [{"type": "g-eval", "criteria": "It is good.", "provider": {"id": judge, "config": {**at}}}]
    if provider == "http":
        checks[0]["provider"] = {"id": judge, "config": {"base_url": server.base_url}}
    return {
        "prompts": ["Say {{ x }}"],
        "providers": [{"id": server.base_url if provider == "http" else provider, "config": at}, "echo"],
        "defaultTest": {"assert": checks},
        "tests": [{"vars": {"x": number}} for number in range(TESTS)],
    }


def is_of_judge(body: Any) -> bool:
    return body.get("model") == "judge"


def run(product: Product, monkeypatch: pytest.MonkeyPatch, server: LoopbackServer, written: Any) -> Finished:
    for name in ("ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "AZURE_API_KEY"):
        monkeypatch.setenv(name, "k")
    return product.run(written, server, "-j", str(PARALLEL), "--no-progress")


@pytest.mark.parametrize("name", UNKNOWN)
def test_it_is_called_no_more_and_named_with_its_place(
    product: Product, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    provider, status, refusal = UNKNOWN[name]

    def respond(body: Any, headers: Any) -> Reply:
        return judge_sensibly(body, headers) if is_of_judge(body) else Reply(status=status, body=refusal)

    with LoopbackServer(respond=respond) as server:
        written = config(server, provider)
        finished = run(product, monkeypatch, server, written)
    asked = [request for request in server.requests if not is_of_judge(request.json)]
    assert 1 <= len(asked) <= PARALLEL
    refused = [case for case in finished.cases if case["column"] == 0]
    [message] = {case["error"]["message"] for case in refused}
    assert len(refused) == TESTS
    assert provider == "http" or "(config.yaml:" in message
    assert [case["status"] for case in finished.cases if case["column"] == 1] == ["passed"] * TESTS


@pytest.mark.parametrize("name", PASSING)
def test_what_is_about_one_request_stops_no_other(
    product: Product, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    status, refusal = PASSING[name]

    def respond(body: Any, headers: Any) -> Reply:
        return judge_sensibly(body, headers) if is_of_judge(body) else Reply(status=status, body=refusal)

    with LoopbackServer(respond=respond) as server:
        run(product, monkeypatch, server, config(server, "openai:m"))
    assert sum(not is_of_judge(request.json) for request in server.requests) == TESTS


def test_answers_that_no_judge_can_be_called_for_are_not_paid_for(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(body: Any, headers: Any) -> Reply:
        return (
            error_reply(404, "The model `judge` does not exist") if is_of_judge(body) else chat_reply("fine")
        )

    with LoopbackServer(respond=respond) as server:
        written = config(server, "openai:m")
        finished = run(product, monkeypatch, server, written)
        answers = sum(not is_of_judge(request.json) for request in server.requests)
        assert answers <= 2 * PARALLEL
        assert sum(is_of_judge(request.json) for request in server.requests) <= PARALLEL
        said = "no answer was requested, since it could not be judged: openai:judge answered HTTP 404"
        unasked = [
            case for case in finished.cases if (case["error"] or {}).get("message", "").startswith(said)
        ]
        assert len(unasked) >= TESTS - answers
        # With the name mended, only what has no answer is requested.
        written = config(server, "openai:m", judge="openai:other")
        server._respond = lambda body, headers: (
            chat_reply("fine") if body["model"] == "m" else judge_sensibly(body, headers)
        )
        again = run(product, monkeypatch, server, written)
    assert {case["status"] for case in again.cases} == {"passed"}
    assert sum(request.json["model"] == "m" for request in server.requests) == TESTS
