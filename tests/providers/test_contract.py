"""The same promises from every provider that speaks HTTP, kept against a real server."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply

from geval_cli.errors import (
    ProviderAuthError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.base import Provider
from geval_cli.providers.preset_table import WIRE_FORMATS

KEY = "sk-very-secret-0123456789"


def anthropic_reply(text: str, **reply: Any) -> Reply:
    body = {
        "id": "msg_1",
        "model": "claude-loopback",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }
    return Reply(body=body, **reply)


@dataclass(frozen=True)
class Case:
    """A provider kind: how to point it at a server, and what a good answer looks like on its wire."""

    build: Callable[[LoopbackServer, Mapping[str, Any]], Provider]
    good: Callable[..., Reply]
    path: str
    key_header: str


def openai(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    return provider("openai:gpt-4.1", {"base_url": server.base_url, **config}, env={"OPENAI_API_KEY": KEY})


def azure(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    env = {"AZURE_OPENAI_API_KEY": KEY, "AZURE_OPENAI_ENDPOINT": server.url}
    return provider("azure:my-deployment", config, env=env)


def groq(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    return provider("groq:llama", {"base_url": server.base_url, **config}, env={"GROQ_API_KEY": KEY})


def anthropic(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url}
    return provider("anthropic:claude-sonnet-4-5", config, env=env)


def google_reply(text: str, **reply: Any) -> Reply:
    body = {
        "candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3},
    }
    return Reply(body=body, **reply)


def google(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    return provider("google:gemini", {"base_url": server.url, **config}, env={"GEMINI_API_KEY": KEY})


def converse_reply(text: str, **reply: Any) -> Reply:
    body = {
        "output": {"message": {"role": "assistant", "content": [{"text": text}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10},
    }
    return Reply(body=body, **reply)


def bedrock(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    env = {"AWS_BEARER_TOKEN_BEDROCK": KEY}
    return provider("bedrock:converse:eu.amazon.nova-lite-v1:0", {"base_url": server.url, **config}, env=env)


def plain_http(server: LoopbackServer, config: Mapping[str, Any]) -> Provider:
    own = {
        "headers": {"Authorization": f"Bearer {KEY}"},
        "body": {"q": "{{ prompt }}"},
        "response_path": "choices[0].message.content",
    }
    return provider(f"{server.url}/answer", {**own, **config})


CASES = {
    "openai": Case(openai, chat_reply, "/v1/chat/completions", "authorization"),
    "azure": Case(
        azure,
        chat_reply,
        "/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21",
        "api-key",
    ),
    "groq": Case(groq, chat_reply, "/v1/chat/completions", "authorization"),
    "anthropic": Case(anthropic, anthropic_reply, "/v1/messages", "x-api-key"),
    "google": Case(google, google_reply, "/v1beta/models/gemini:generateContent", "x-goog-api-key"),
    "bedrock": Case(bedrock, converse_reply, "/model/eu.amazon.nova-lite-v1%3A0/converse", "authorization"),
    "http": Case(plain_http, chat_reply, "/answer", "authorization"),
}


def test_every_api_is_among_them() -> None:
    assert WIRE_FORMATS.keys() - CASES.keys() == set(), "add a case of these APIs to CASES"


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def failure(case: Case, reply: Reply, **config: Any) -> ProviderError:
    """What the provider raises when the server answers `reply`; it is checked to show the key nowhere."""
    with LoopbackServer(reply) as server:
        model = case.build(server, config)
        with pytest.raises(ProviderError) as caught:
            run(answer(model))
    error = caught.value
    cause = error.__cause__ or ""
    shown = "\n".join([str(error), repr(error), error.hint, error.body, str(cause), repr(model)])
    assert KEY not in shown
    return error


def test_a_good_answer_is_returned_with_its_latency(case: Case) -> None:
    with LoopbackServer(case.good("Hello")) as server:
        [response] = run(answer(case.build(server, {})))
    assert response.text == "Hello"
    assert response.latency_ms > 0
    request = server.requests[0]
    assert request.path == case.path
    assert KEY in request.headers[case.key_header]
    assert "Say hi." in json.dumps(request.json)


def test_a_compressed_answer_is_read(case: Case) -> None:
    with LoopbackServer(case.good("Hello", gzipped=True)) as server:
        [response] = run(answer(case.build(server, {})))
    assert response.text == "Hello"


def test_connections_are_kept_open(case: Case) -> None:
    with LoopbackServer(respond=lambda *_: case.good("Hello")) as server:
        run(answer(case.build(server, {}), ask("1"), ask("2"), ask("3")))
    assert len(server.requests) == 3
    assert server.connections == 1


def test_a_refused_key_is_an_auth_error_that_echoes_no_key(case: Case) -> None:
    error = failure(case, error_reply(401, f"Incorrect API key provided: {KEY}."))
    assert isinstance(error, ProviderAuthError)
    assert error.status == 401
    assert error.hint


def test_a_used_up_quota_is_not_retried_though_it_is_a_429(case: Case) -> None:
    reply = error_reply(429, "You exceeded your current quota", type="insufficient_quota")
    error = failure(case, reply)
    assert isinstance(error, ProviderAuthError)
    assert not error.is_retryable


def test_a_429_says_how_long_to_wait(case: Case) -> None:
    error = failure(case, error_reply(429, "slow down", headers={"Retry-After": "2.5"}))
    assert isinstance(error, ProviderRateLimitError)
    assert error.retry_after_s == 2.5
    assert error.is_retryable


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 529])
def test_trouble_on_the_server_is_unavailable_with_its_delay(case: Case, status: int) -> None:
    error = failure(case, error_reply(status, "overloaded", headers={"retry-after-ms": "1500"}))
    assert isinstance(error, ProviderUnavailableError)
    assert error.retry_after_s == 1.5
    assert error.is_retryable


@pytest.mark.parametrize("status", [302, 307, 400, 404, 413, 422])
def test_a_refused_request_is_not_retried(case: Case, status: int) -> None:
    error = failure(case, error_reply(status, "no", headers={"location": "http://elsewhere.example/"}))
    assert isinstance(error, ProviderRequestError)
    assert not error.is_retryable


def test_redirects_are_not_followed(case: Case) -> None:
    with LoopbackServer(case.good("stolen")) as elsewhere:
        failure(case, Reply(307, {"location": f"{elsewhere.url}/"}))
        assert elsewhere.requests == []


def test_no_answer_in_time_is_a_timeout(case: Case) -> None:
    error = failure(case, Reply(hang=True), timeout_s=0.02)
    assert isinstance(error, ProviderTimeoutError)
    assert "0.02 s" in error.message


@pytest.mark.parametrize("reply", [Reply(reset=True), chat_reply("cut off", truncate=True)])
def test_a_broken_connection_is_unavailable(case: Case, reply: Reply) -> None:
    assert isinstance(failure(case, reply), ProviderUnavailableError)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body="not json"),
        Reply(body="<html>Welcome</html>"),
        Reply(body=""),
        Reply(body={"choices": []}),
        Reply(body={"choices": [None]}),
        Reply(body=["a list"]),
        Reply(body={"content": "wrong type", "choices": "wrong type"}),
    ],
    ids=["text", "html", "empty", "no choices", "null choice", "list", "wrong types"],
)
def test_a_success_without_an_answer_is_a_response_error(case: Case, reply: Reply) -> None:
    error = failure(case, reply)
    assert isinstance(error, ProviderResponseError)
    # Where an HTTP API has its answer is the config's word, and asking again would not change that.
    is_config_wrong = case is CASES["http"] and not isinstance(reply.body, str)
    assert error.is_retryable != is_config_wrong


@pytest.mark.parametrize("start", ["data: {}", "event: message\ndata: {}", ": PROCESSING\n\ndata: {}"])
def test_a_stream_that_was_not_requested_is_not_paid_for_again(case: Case, start: str) -> None:
    reply = Reply(body=start.encode(), headers={"content-type": "text/event-stream"})
    error = failure(case, reply)
    assert isinstance(error, ProviderResponseError)
    assert "event stream" in str(error)
    assert not error.is_retryable


def test_a_server_that_is_not_there_is_unavailable(case: Case) -> None:
    with LoopbackServer() as gone:
        model = case.build(gone, {})
    with pytest.raises(ProviderUnavailableError, match="cannot be reached") as caught:
        run(answer(model))
    assert caught.value.hint == "is the server running?"


def test_a_long_error_body_is_cut(case: Case) -> None:
    error = failure(case, error_reply(400, "x" * 50_000))
    assert len(error.body) == 2_000
    assert len(error.message) < 600


def test_a_cancelled_call_leaves_the_provider_usable(case: Case) -> None:
    async def body(server: LoopbackServer) -> str:
        model = case.build(server, {})
        try:
            server.hold()
            task = asyncio.create_task(model.complete(ask()))
            await asyncio.to_thread(server.wait_for_requests, 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            server.release()
            return (await model.complete(ask())).text
        finally:
            await model.aclose()
            await model.aclose()

    with LoopbackServer(respond=lambda *_: case.good("Hello")) as server:
        assert run(body(server)) == "Hello"


def test_the_identity_has_no_key_and_stays_the_same(case: Case) -> None:
    with LoopbackServer() as server:
        one, other = case.build(server, {}), case.build(server, {})
    assert one.identity == other.identity
    assert KEY not in repr(one.identity)
