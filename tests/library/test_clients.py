"""Clients of the openai library that a program already has, as judges."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.calls import answer, run
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply

from geval_cli import ApiError, GEval, Result, TestCase, UsageError, evaluate_batch
from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.extras.programs.providers.openai_client import ClientModel
from geval_cli.providers.registry import build_client_provider

KEY = "sk-client-0123456789abcdef"
TOKEN = "eyJhbGciOi-azure-token-0123456789"


@pytest.fixture
def judge() -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=judge_sensibly) as server:
        yield server


async def async_token() -> str:
    return TOKEN


def azure(kind: str, server: LoopbackServer, token: Any) -> Any:
    return of_openai(kind)(azure_endpoint=server.url, api_version="2024-10-21", azure_ad_token_provider=token)


def of_openai(name: str) -> type[Any]:
    """A class of OpenAI's library, which only the process loads that runs these tests."""
    import openai

    found: type[Any] = getattr(openai, name)
    return found


def plain(kind: str, server: LoopbackServer) -> Any:
    return of_openai(kind)(api_key=KEY, base_url=server.base_url)


CLIENTS: dict[str, Callable[[LoopbackServer], Any]] = {
    "OpenAI": lambda server: plain("OpenAI", server),
    "AsyncOpenAI": lambda server: plain("AsyncOpenAI", server),
    "AzureOpenAI": lambda server: azure("AzureOpenAI", server, lambda: TOKEN),
    "AsyncAzureOpenAI": lambda server: azure("AsyncAzureOpenAI", server, async_token),
}


def direct_model(server: LoopbackServer) -> dict[str, Any]:
    """The same model without a client."""
    return {"id": "openai:gpt-4.1", "config": {"api_key": KEY, "base_url": server.base_url}}


def tone(client: Any, **arguments: Any) -> GEval:
    return GEval("Tone", "The answer is polite.", model=(client, "gpt-4.1"), **arguments)


@pytest.mark.parametrize("name", CLIENTS)
class TestEveryClient:
    def test_it_judges_with_a_running_loop_and_without(self, name: str, judge: LoopbackServer) -> None:
        metric = tone(CLIENTS[name](judge))

        async def in_a_loop() -> tuple[Result, Result]:
            return metric.evaluate(TestCase("q", "b")), await metric.aevaluate(TestCase("q", "c"))

        results = [metric.evaluate(TestCase("q", "a")), *asyncio.run(in_a_loop())]
        assert [result.score for result in results] == [0.9] * 3
        direct = GEval("Tone", "The answer is polite.", model=direct_model(judge)).evaluate(
            TestCase("q", "a")
        )
        assert results[0].metadata["usage"] == direct.metadata["usage"]
        assert direct.metadata["usage"]["input_tokens"] > 0
        kind = "azure" if "Azure" in name else "openai"
        assert results[-1].metadata["judge"] == f"{kind}:gpt-4.1"

    def test_what_it_knows_is_sent(self, name: str, judge: LoopbackServer) -> None:
        client = CLIENTS[name](judge).with_options(default_headers={"x-team": "evals"})
        tone(client).evaluate(TestCase("q", "a"))
        for request in judge.requests:
            assert request.headers["authorization"] == f"Bearer {TOKEN if 'Azure' in name else KEY}"
            assert request.headers["x-team"] == "evals"
            assert request.json["model"] == "gpt-4.1"
            deployment = "/openai/deployments/gpt-4.1" if "Azure" in name else "/v1"
            assert request.path.startswith(f"{deployment}/chat/completions")

    def test_samples_are_asked_for_at_once(self, name: str, judge: LoopbackServer) -> None:
        metric = tone(CLIENTS[name](judge), scoring="samples", samples=5, evaluation_steps=["Look."])
        result = metric.evaluate(TestCase("q", "a"))
        assert result.metadata["valid"] == 5
        assert judge.requests[0].json["n"] == 5

    def test_repeating_is_the_gateways(self, name: str, judge: LoopbackServer) -> None:
        judge.add(error_reply(429, "slow down", headers={"retry-after-ms": "1"}), error_reply(503, "busy"))
        result = tone(CLIENTS[name](judge), evaluation_steps=["Look."]).evaluate(TestCase("q", "a"))
        assert result.score == 0.9
        assert len(judge.requests) == 3

    def test_a_refused_key_is_told_and_not_shown(self, name: str, judge: LoopbackServer) -> None:
        secret = TOKEN if "Azure" in name else KEY
        judge.add(error_reply(401, f"Incorrect API key provided: {secret}"))
        with pytest.raises(ApiError) as caught:
            tone(CLIENTS[name](judge), evaluation_steps=["Look."]).evaluate(TestCase("q", "a"))
        assert caught.value.status == 401
        assert "the client" in caught.value.hint
        assert len(judge.requests) == 1
        error: BaseException | None = caught.value
        while error is not None:
            assert secret not in f"{error} {error!r} {vars(error)}"
            error = error.__cause__ or error.__context__

    def test_a_parameter_that_is_refused_is_left_out(self, name: str, judge: LoopbackServer) -> None:
        refusal = {"error": {"message": "Unsupported parameter: 'logprobs'", "param": "logprobs"}}
        judge.add(Reply(400, body=refusal))
        metric = tone(CLIENTS[name](judge), evaluation_steps=["Look."])
        assert metric.evaluate(TestCase("q", "a")).score == 0.9
        assert judge.requests[0].json["logprobs"] is True
        assert "logprobs" not in judge.requests[-1].json

    def test_a_server_that_is_not_there(self, name: str) -> None:
        with LoopbackServer() as gone:
            client = CLIENTS[name](gone)
        assert "cannot be reached" in asked_once(client, ProviderUnavailableError).message

    def test_many_cases(self, name: str, judge: LoopbackServer) -> None:
        cases = [TestCase("q", f"answer {number}") for number in range(40)]
        found = evaluate_batch(tone(CLIENTS[name](judge)), cases, concurrency=20)
        assert [outcome.score for outcome in found if isinstance(outcome, Result)] == [0.9] * 40
        assert len(judge.requests) == 41


def asked_once(client: Any, failure: type[ProviderError]) -> ProviderError:
    """The error of a single request, without the gateway's patience."""
    with pytest.raises(failure) as caught:
        run(answer(build_client_provider(ClientModel(client, "gpt-4.1"), 0)))
    return caught.value


@pytest.mark.parametrize("name", ["AsyncOpenAI", "AsyncAzureOpenAI"])
def test_a_redirect_is_not_followed_with_a_key(name: str, judge: LoopbackServer) -> None:
    with LoopbackServer(respond=lambda *_: chat_reply("stolen")) as elsewhere:
        judge.add(Reply(307, {"location": f"{elsewhere.url}/v1/x"}))
        assert asked_once(CLIENTS[name](judge), ProviderRequestError).status == 307
    assert elsewhere.requests == []


def test_a_client_in_use_in_another_loop_stays_the_users(judge: LoopbackServer) -> None:
    """Its connections are neither used nor closed by the metric."""

    async def body() -> None:
        client = plain("AsyncOpenAI", judge)
        ask = client.chat.completions.create
        await ask(model="m", messages=[{"role": "user", "content": "hi"}])
        metric = tone(client)
        judged, _ = await asyncio.gather(
            metric.aevaluate(TestCase("q", "a")), ask(model="m", messages=[{"role": "user", "content": "hi"}])
        )
        assert judged.score == 0.9
        del metric
        gc.collect()
        assert not client.is_closed()
        await ask(model="m", messages=[{"role": "user", "content": "hi"}])
        await client.close()

    asyncio.run(body())


def test_logprobs_weigh_the_ratings() -> None:
    answer = '{"reason": "so", "score": 8}'
    content = [
        {"token": token, "logprob": -0.0001, "top_logprobs": []}
        for token in ('{"reason": "so", "score": ', "8", "}")
    ]
    content[1] = {
        "token": "8",
        "logprob": -0.6931,
        "top_logprobs": [{"token": "8", "logprob": -0.6931}, {"token": "6", "logprob": -0.6932}],
    }
    reply = chat_reply(answer)
    reply.body["choices"][0]["logprobs"] = {"content": content}
    with LoopbackServer(reply) as server:
        client = plain("AsyncOpenAI", server)
        result = tone(client, evaluation_steps=["Look."], scoring="logprobs").evaluate(TestCase("q", "a"))
    assert result.metadata["estimator"] == "logprobs"
    assert result.score == pytest.approx(0.7, abs=0.001)


def test_a_synchronous_client_brings_its_own_connections(judge: LoopbackServer) -> None:
    with of_openai("DefaultHttpxClient")(headers={"x-own": "yes"}) as connections:
        client = of_openai("OpenAI")(api_key=KEY, base_url=judge.base_url, http_client=connections)
        assert tone(client).evaluate(TestCase("q", "a")).score == 0.9
        assert not connections.is_closed
    assert judge.requests[0].headers["x-own"] == "yes"


@pytest.mark.parametrize("kind", ["OpenAI", "AsyncOpenAI"])
def test_the_time_that_a_client_waits_is_its_own(kind: str) -> None:
    with LoopbackServer(respond=lambda *_: Reply(hang=True)) as server:
        client = of_openai(kind)(api_key=KEY, base_url=server.base_url, timeout=0.05)
        said = asked_once(client, ProviderTimeoutError).message
    assert "did not answer within the client's timeout" in said


def test_a_token_provider_that_fails_is_an_error_of_the_judge(judge: LoopbackServer) -> None:
    def fails() -> str:
        raise RuntimeError("log in first")

    client = azure("AzureOpenAI", judge, fails)
    with pytest.raises(ApiError, match="RuntimeError: log in first"):
        tone(client).evaluate(TestCase("q", "a"))
    assert judge.requests == []


class TestWhatIsNoJudge:
    @pytest.mark.parametrize("name", CLIENTS)
    def test_a_bare_client_is_told_how_to_name_a_model(self, name: str, judge: LoopbackServer) -> None:
        client = CLIENTS[name](judge)
        for model in (client, (client,), (client, ""), ("gpt-4.1", client), [client, 4]):
            with pytest.raises(UsageError) as caught:
                GEval("Tone", "The answer is polite.", model=model)
            assert 'write model=(client, "gpt-4.1")' in caught.value.problems[0].hint

    def test_an_asynchronous_client_with_connections_of_another_loop(self, judge: LoopbackServer) -> None:
        client = of_openai("AsyncOpenAI")(
            api_key=KEY, base_url=judge.base_url, http_client=of_openai("DefaultAsyncHttpxClient")()
        )
        with pytest.raises(UsageError, match="belongs to another event loop") as caught:
            tone(client)
        assert caught.value.problems[0].hint == "give an OpenAI client, which is called in threads"

    def test_no_repr_shows_a_key(self, judge: LoopbackServer) -> None:
        assert KEY not in repr(tone(CLIENTS["AsyncOpenAI"](judge)))
