import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.fake_provider import FakeProvider
from support.loopback import LoopbackServer, Reply, choices_reply

from geval_cli.errors import ProviderRequestError, ProviderResponseError
from geval_cli.events import ModelCalled
from geval_cli.gateway.gateway import Gateway
from geval_cli.records import Choice, ModelRequest, ModelResponse, Role, Usage

AZURE_REFUSAL = {
    "error": {
        "message": "The response was filtered due to the prompt triggering the content management policy.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True, "severity": "high"}},
        },
    }
}


def azure(reply: Reply, request: ModelRequest) -> ModelResponse:
    with LoopbackServer(reply) as server:
        model = provider("azure:d", {"base_url": server.url, "apiKey": "k-0123456789"})
        [response] = run(answer(model, request))
    return response


def completion(results: Any) -> Reply:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "so"},
        "finish_reason": "stop",
        "content_filter_results": results,
    }
    return Reply(body={"choices": [choice], "model": "gpt"})


def test_a_prompt_that_azure_will_not_let_through_is_answered_by_the_filter() -> None:
    response = azure(Reply(400, {"apim-request-id": "r-1"}, AZURE_REFUSAL), ask())
    assert response.choices == (Choice(AZURE_REFUSAL["error"]["message"], "content_filter"),)
    assert (response.usage.requests, response.request_id) == (1, "r-1")


@pytest.mark.parametrize(
    ("vendor", "reply", "cost_usd"),
    [
        ("openai:m", Reply(400, {}, {"error": {"message": "no", "code": "content_policy_violation"}}), 0.0),
        ("azure:d", Reply(400, {}, AZURE_REFUSAL), None),  # it charges for the prompt, and names no tokens
        (
            "google:gemini-2.5-flash",
            Reply(
                body={
                    "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
                    "usageMetadata": {"promptTokenCount": 1000, "totalTokenCount": 1000},
                }
            ),
            0.003,
        ),
    ],
)
def test_what_a_filter_took_away_costs_what_was_read_or_nothing(
    vendor: str, reply: Reply, cost_usd: float | None
) -> None:
    with LoopbackServer(reply) as server:
        price = {"input": 3, "output": 15}
        model = provider(vendor, {"base_url": server.url, "apiKey": "k-0123456789", "price": price})
        [response] = run(answer(model))
    assert response.usage.cost_usd == pytest.approx(cost_usd)


def test_a_judge_that_is_filtered_is_an_error() -> None:
    with pytest.raises(ProviderRequestError):
        azure(Reply(400, {}, AZURE_REFUSAL), ask(role=Role.JUDGE))


@pytest.mark.parametrize("code", ["context_length_exceeded", "invalid_request_error", None])
def test_any_other_refusal_stays_an_error(code: str | None) -> None:
    body = {"error": {"message": "no content_filter here", "code": code}}
    with pytest.raises(ProviderRequestError):
        azure(Reply(400, {}, body), ask())


def test_what_a_user_writes_is_no_code_of_a_filter() -> None:
    quoted = {"error": {"message": 'you sent "code": "content_filter"', "code": "bad"}}
    with pytest.raises(ProviderRequestError):
        azure(Reply(400, {}, quoted), ask())


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ({"hate": {"filtered": False}, "violence": {"filtered": True}}, "content_filter"),
        ({"hate": {"filtered": False, "severity": "safe"}}, "stop"),
        ({}, "stop"),
        (None, "stop"),
        ({"hate": 3}, "stop"),
    ],
)
def test_the_verdict_beside_an_answer_is_read(results: Any, reason: str) -> None:
    assert azure(completion(results), ask()).choices[0].finish_reason == reason


@pytest.mark.parametrize(
    "error",
    [
        {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"},
        {"type": "invalid_request_error", "message": "Content Exists Risk"},
        {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."},
    ],
)
def test_other_vendors_refuse_in_words_of_their_own(error: Any) -> None:
    response = azure(Reply(400, {}, {"error": error}), ask())
    assert response.choices == (Choice(error["message"], "content_filter"),)


def test_the_sentence_of_a_filter_within_another_is_none() -> None:
    quoted = {"error": {"message": "cannot read: Output blocked by content filtering policy"}}
    with pytest.raises(ProviderRequestError):
        azure(Reply(400, {}, quoted), ask())


def test_a_prompt_that_gemini_blocks_is_answered_by_the_filter_and_never_judges() -> None:
    blocked = Reply(body={"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})

    async def both() -> None:
        with LoopbackServer(blocked, blocked) as server:
            model = provider("google:gemini-x", {"base_url": server.url, "apiKey": "k-0123456789"})
            choice = (await model.complete(ask())).choices[0]
            assert (choice.finish_reason, "PROHIBITED_CONTENT" in choice.text) == ("content_filter", True)
            gateway = Gateway(cache=None, on_event=lambda _: None)
            with pytest.raises(ProviderResponseError, match="withheld answer"):
                await gateway.complete(model, ask(role=Role.JUDGE))
            await gateway.aclose()
            await model.aclose()

    asyncio.run(both())


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"output": "x", "guardrails": {"flagged": True, "reason": "rude"}}, "content_filter"),
        ({"output": "x", "guardrails": {"flagged": False}}, None),
        ({"output": "x", "finish_reason": "length"}, "length"),
        ({"output": "x", "finishReason": "stop", "guardrails": None}, "stop"),
        ({"output": "x", "finish_reason": 3}, None),
        ("x", None),
    ],
)
def test_a_program_of_one_s_own_may_say_why_it_ended(told: Any, reason: str | None, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"def call_api(prompt):\n    return {told!r}\n", encoding="utf-8")
    [response] = run(answer(provider("python:app.py", base_dir=tmp_path)))
    [choice] = response.choices
    assert (choice.text, choice.finish_reason) == ("x", reason)


@pytest.mark.parametrize(
    "entry",
    [
        {"finish_reason": "content_filter", "message": {"role": "assistant", "content": ""}},
        {"finish_reason": "content_filter", "message": {"role": "assistant", "content": "Score: 3"}},
        {"finish_reason": "stop", "message": {"role": "assistant", "content": None}},
        {"finish_reason": "abort", "message": {"role": "assistant", "content": "Sco"}},
    ],
    ids=["taken away", "cut off by a filter", "no text", "broken off"],
)
def test_a_sample_that_is_no_answer_is_lost_and_no_later_request_is_split_because_of_it(entry: Any) -> None:
    def respond(body: Any, headers: Any) -> Reply:
        reply = choices_reply(["Score: 4"] * body["n"])
        if "first" in str(body):
            reply.body["choices"][1] = {"index": 1, **entry}
        return reply

    async def judge(url: str) -> list[ModelResponse]:
        model = provider("openai:judge", {"base_url": url}, env={"OPENAI_API_KEY": "k"})
        gateway = Gateway(cache=None, on_event=lambda _: None)
        texts = ("the first", "the second")
        asked = [ask(text, sample_indexes=(0, 1, 2, 3), role=Role.JUDGE) for text in texts]
        responses = [await gateway.complete(model, request) for request in asked]
        await gateway.aclose()
        await model.aclose()
        return responses

    with LoopbackServer(respond=respond) as server:
        first, second = asyncio.run(judge(server.base_url))
    assert (len(first.choices), len(second.choices)) == (3, 4)
    assert [request.json["n"] for request in server.requests] == [4, 4]


_OF_CLAUDE = {"stop_reason": "refusal", "usage": {"input_tokens": 1, "output_tokens": 1}}
_OF_GEMINI = {"content": {"role": "model", "parts": []}, "finishReason": "SAFETY"}


def _of_chat(finish_reason: str, **message: Any) -> Any:
    entry = {"message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"choices": [entry], "usage": {"prompt_tokens": 1000, "completion_tokens": 500}}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai:m", _of_chat("content_filter", content="")),
        ("openai:m", _of_chat("content_filter", content="Score: 9")),
        ("openai:m", _of_chat("stop", content=None, refusal="I can't help with that.")),
        ("anthropic:claude-sonnet-4-5", {"content": [], **_OF_CLAUDE}),
        ("anthropic:claude-sonnet-4-5", {"content": [{"type": "text", "text": "Score: 9"}], **_OF_CLAUDE}),
        ("google:gemini-2.5-pro", {"candidates": [_OF_GEMINI]}),
        ("google:gemini-2.5-pro", {"promptFeedback": {"blockReason": "SAFETY"}}),
        ("http", _of_chat("content_filter", content="Score: 9")),
    ],
)
def test_a_verdict_that_is_withheld_is_an_error_and_not_requested_again(name: str, body: Any) -> None:
    async def judge(server: LoopbackServer) -> None:
        url = server.url if name.startswith("anthropic") else server.base_url
        config = {"price": {"input": 1000, "output": 2000}, "max_retries": 2}
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "k")
        is_http = name == "http"
        model = provider(
            url if is_http else name, config if is_http else {"base_url": url, **config}, env=keys
        )
        gateway = Gateway(cache=None, on_event=events.append)
        try:
            await gateway.complete(model, ask(role=Role.JUDGE))
        finally:
            await gateway.aclose()
            await model.aclose()

    events: list[Any] = []
    with (
        LoopbackServer(respond=lambda _, headers: Reply(body=body)) as server,
        pytest.raises(ProviderResponseError, match=r"withheld answer|was blocked"),
    ):
        asyncio.run(judge(server))
    assert len(server.requests) == 1
    if "choices" in body:
        assert [event.usage.cost_usd for event in events if isinstance(event, ModelCalled)] == [2.0]


def test_of_several_verdicts_those_that_are_not_withheld_count() -> None:
    choices = (Choice("Score: 4", "stop"), Choice("Score: 9", "content_filter"), Choice("Score: 5", "stop"))
    model = FakeProvider(lambda _: ModelResponse(choices, Usage(3)))

    async def judge() -> ModelResponse:
        gateway = Gateway(cache=None, on_event=lambda _: None)
        return await gateway.complete(model, ask(sample_indexes=(0, 1, 2), role=Role.JUDGE))

    response = asyncio.run(judge())
    assert [choice.text for choice in response.choices] == ["Score: 4", "Score: 5"]
    assert len(model.requests) == 1
