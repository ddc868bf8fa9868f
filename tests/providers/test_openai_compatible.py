import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply, chat_reply, choices_reply, error_reply

from geval_cli.errors import (
    ProviderError,
    ProviderRateLimitError,
    ProviderResponseError,
    UnsupportedParameterError,
)
from geval_cli.providers.wire.chat import IMPOSSIBLE_LOGPROB, parse_choices
from geval_cli.records import Choice, Message, ModelRequest, ModelResponse, TokenAlternative


def exchange(
    *replies: Reply, request: ModelRequest | None = None, config: Mapping[str, Any] | None = None
) -> tuple[ModelResponse, dict[str, Any]]:
    """The response, and the last request's JSON body."""
    with LoopbackServer(*replies) as server:
        model = provider("openai:gpt-4.1", {"base_url": server.base_url, **(config or {})})
        [response] = run(answer(model, request or ask()))
    return response, server.requests[-1].json


def message_reply(message: Mapping[str, Any], **choice: Any) -> Reply:
    return Reply(body={"choices": [{"message": message, **choice}]})


def test_one_sample_sends_only_what_is_needed() -> None:
    _, sent = exchange(chat_reply("hi"))
    assert sent == {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Say hi."}]}


def test_config_goes_to_the_wire_without_our_own_keys() -> None:
    config = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_retries": 2,
        "maxConcurrency": 3,
        "price": {"input": 1, "output": 2},
        "passthrough": {"extra": True},
        "stop": None,
    }
    _, sent = exchange(chat_reply("hi"), config=config)
    assert {**sent, "messages": [], "model": ""} == {
        "model": "",
        "messages": [],
        "temperature": 0.5,
        "top_p": 0.9,
        "extra": True,
    }


def test_params_of_the_request_win_and_none_leaves_out() -> None:
    request = ask(params={"temperature": 0, "top_p": None})
    _, sent = exchange(chat_reply("hi"), request=request, config={"temperature": 0.5, "top_p": 0.9})
    assert sent["temperature"] == 0
    assert "top_p" not in sent


def test_a_renamed_token_limit_replaces_the_configured_one() -> None:
    request = ask(params={"max_completion_tokens": 50})
    _, sent = exchange(chat_reply("hi"), request=request, config={"max_tokens": 100})
    assert sent["max_completion_tokens"] == 50
    assert "max_tokens" not in sent


def test_a_refused_max_tokens_is_named() -> None:
    refusal = error_reply(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
        param="max_tokens",
        code="unsupported_parameter",
    )
    with pytest.raises(UnsupportedParameterError) as caught:
        exchange(refusal, config={"max_tokens": 100})
    assert caught.value.parameter == "max_tokens"


def test_several_samples_are_one_request() -> None:
    request = ask(sample_indexes=(0, 1, 2))
    response, sent = exchange(choices_reply(["a", "b", "c"]), request=request)
    assert sent["n"] == 3
    assert [choice.text for choice in response.choices] == ["a", "b", "c"]
    assert response.usage.requests == 3


def test_fewer_choices_than_asked_for_are_no_error_and_more_are_cut() -> None:
    few, _ = exchange(choices_reply(["a"]), request=ask(sample_indexes=(0, 1)))
    many, _ = exchange(choices_reply(["a", "b", "c"]), request=ask())
    assert [len(few.choices), len(many.choices)] == [1, 1]


def test_choices_come_in_the_order_of_their_index() -> None:
    body = {"choices": [{"index": 1, "message": {"content": "b"}}, {"index": 0, "message": {"content": "a"}}]}
    response, _ = exchange(Reply(body=body), request=ask(sample_indexes=(0, 1)))
    assert [choice.text for choice in response.choices] == ["a", "b"]


def test_a_cap_on_n_is_learnt_from_the_refusal() -> None:
    refusal = error_reply(400, "Field 'n': Value must be between 1 <= value <= 4, but got 20")
    with LoopbackServer(refusal, respond=lambda *_: choices_reply(["x"] * 4)) as server:
        model = provider("openai:m", {"base_url": server.base_url})
        request = ask(sample_indexes=tuple(range(20)))
        responses = run(answer(model, request, request))
    assert [item.json["n"] for item in server.requests] == [20, 4, 4]
    assert [len(item.choices) for item in responses] == [4, 4]


def test_a_cap_on_alternatives_is_learnt_from_the_refusal() -> None:
    refusal = error_reply(400, "Requested sample logprobs of 20, which is greater than max allowed: 5")
    reply = chat_reply("8", logprobs=[{"8": -0.1}])
    response, sent = exchange(refusal, reply, request=ask(want_logprobs=True))
    assert sent["top_logprobs"] == 5
    assert response.choices[0].token_logprobs is not None


def test_refused_logprobs_are_named() -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        exchange(error_reply(400, "logprobs are not supported"), request=ask(want_logprobs=True))
    assert caught.value.parameter == "logprobs"


def test_token_probabilities_are_read() -> None:
    reply = chat_reply("8!", logprobs=[{"8": -0.2, "9": -1.8}, {"!": -0.01}])
    response, sent = exchange(reply, request=ask(want_logprobs=True))
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 20)
    first, second = response.choices[0].token_logprobs or ()
    assert first.text == "8"
    assert first.alternatives == (TokenAlternative("8", -0.2), TokenAlternative("9", -1.8))
    assert second.text == "!"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, None),
        ({"content": None}, None),
        ({"content": []}, None),
        ({"content": [{"token": "8", "logprob": -9999.0, "top_logprobs": []}]}, [("8", -9999.0, ["8"])]),
        ({"content": [{"token": "8", "logprob": None}]}, [("8", IMPOSSIBLE_LOGPROB, ["8"])]),
        (
            {"content": [{"token": "8", "logprob": -1, "top_logprobs": [{"token": "9", "logprob": -0.5}]}]},
            [("8", -1.0, ["8", "9"])],
        ),
        (
            {
                "tokens": ["8", "!"],
                "token_logprobs": [-0.5, None],
                "top_logprobs": [{"8": -0.5, "7": -2}, None],
            },
            [("8", -0.5, ["8", "7"]), ("!", IMPOSSIBLE_LOGPROB, ["!"])],
        ),
        (
            {"content": [{"token": "8", "logprob": "-1", "top_logprobs": 3}]},
            [("8", IMPOSSIBLE_LOGPROB, ["8"])],
        ),
        ({"content": [{"token": "8", "logprob": 10**400}]}, [("8", IMPOSSIBLE_LOGPROB, ["8"])]),
        ({"content": [{"token": "8", "logprob": 0.5}]}, [("8", 0.0, ["8"])]),
        ({"tokens": ["8"], "token_logprobs": 3, "top_logprobs": 3}, [("8", IMPOSSIBLE_LOGPROB, ["8"])]),
        ({"tokens": 3}, None),
        (3, None),
    ],
    ids=[
        "null",
        "null content",
        "empty",
        "-9999",
        "no number",
        "chosen not among the top",
        "parallel lists",
        "a text and a number",
        "too long for a float",
        "above one",
        "numbers for lists",
        "no list",
        "a number",
    ],
)
def test_token_probabilities_of_every_form_are_tolerated(raw: Any, expected: Any) -> None:
    reply = message_reply({"content": "8"}, logprobs=raw)
    response, _ = exchange(reply, request=ask(want_logprobs=True))
    tokens = response.choices[0].token_logprobs
    read = None
    if tokens is not None:
        read = [(item.text, item.logprob, [other.text for other in item.alternatives]) for item in tokens]
    assert read == expected


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
            "ab",
        ),
    ],
)
def test_content_of_every_form_becomes_text(message: Mapping[str, Any], text: str) -> None:
    response, _ = exchange(message_reply(message, finish_reason="stop"))
    assert response.choices == (Choice(text, "stop"),)


def test_tool_calls_become_their_json_text() -> None:
    calls = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    response, _ = exchange(message_reply({"content": None, "tool_calls": calls}))
    assert json.loads(response.text) == calls


def test_usage_model_and_request_id_are_kept() -> None:
    response, _ = exchange(
        chat_reply("hi", usage=(1_000_000, 500_000), headers={"X-Request-Id": "req-1"}),
        config={"price": {"input": 2, "output": 8}},
    )
    assert (response.usage.input_tokens, response.usage.output_tokens) == (1_000_000, 500_000)
    assert response.usage.cost_usd == 6.0
    assert (response.model, response.request_id) == ("loopback-model", "req-1")


def test_without_usage_and_price_tokens_are_0_and_the_cost_is_unknown() -> None:
    response, _ = exchange(message_reply({"content": "hi"}))
    assert (response.usage.input_tokens, response.usage.output_tokens) == (0, 0)
    assert response.usage.cost_usd is None


@pytest.mark.parametrize(("closed", "strict"), [(False, True), (True, False)])
def test_a_schema_is_strict_only_where_strict_mode_takes_it(closed: bool, strict: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer"}},
        "required": ["score"],
        "additionalProperties": closed,
    }
    _, sent = exchange(chat_reply("{}"), request=ask(response_schema=schema))
    assert sent["response_format"]["json_schema"] == {"name": "answer", "strict": strict, "schema": schema}


@pytest.mark.parametrize("code", [429, "429"])
def test_an_error_inside_a_200_is_classified_by_its_code(code: int | str) -> None:
    with pytest.raises(ProviderRateLimitError):
        exchange(Reply(body={"error": {"code": code, "message": "slow down"}}))
    with pytest.raises(ProviderResponseError, match="error instead of an answer"):
        exchange(Reply(body={"error": {"message": "hm"}}))


@pytest.mark.parametrize("code", [None, "server_error", 400, 408, 422, 429, 500, 502, 503, 529])
def test_an_error_inside_a_200_costs_what_it_reports(code: int | str | None) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 500}
    body = {"error": {"code": code, "message": "it broke off"}, "usage": usage}
    with pytest.raises(ProviderError) as caught:
        exchange(Reply(body=body), config={"price": {"input": 1000, "output": 2000}})
    error = caught.value
    assert (error.input_tokens, error.output_tokens, error.cost_usd) == (1000, 500, 2.0)


@pytest.mark.parametrize("code", [400, 429, 503])
def test_a_refusal_inside_a_200_without_usage_is_free(code: int) -> None:
    with pytest.raises(ProviderError) as caught:
        exchange(
            Reply(body={"error": {"code": code, "message": "no"}}),
            config={"price": {"input": 1, "output": 1}},
        )
    assert caught.value.cost_usd is None


def test_messages_go_as_they_are() -> None:
    parts = [{"type": "text", "text": "Schön 🎉"}]
    request = ModelRequest((Message("system", "Be kind."), Message("user", parts)))
    _, sent = exchange(chat_reply("hi"), request=request)
    assert sent["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": parts},
    ]


def test_a_lone_surrogate_in_a_prompt_does_not_break_the_request() -> None:
    _, sent = exchange(chat_reply("hi"), request=ask("broken \ud800 text"))
    assert sent["messages"][0]["content"] == "broken ? text"


def test_the_key_is_optional_for_a_server_of_ones_own() -> None:
    with LoopbackServer(chat_reply("hi")) as server:
        run(answer(provider("openai:m", {"base_url": server.base_url})))
    assert "authorization" not in server.requests[0].headers


def test_own_headers_and_organization_are_sent() -> None:
    with LoopbackServer(chat_reply("hi")) as server:
        config = {"base_url": server.base_url, "organization": "org-1", "headers": {"X-Team": "blue"}}
        run(answer(provider("openai:m", {**config, "apiKey": "from-config"}, base_dir=Path())))
    headers = server.requests[0].headers
    assert headers["openai-organization"] == "org-1"
    assert headers["x-team"] == "blue"
    assert headers["authorization"] == "Bearer from-config"


def test_a_refusal_that_the_api_marks_is_an_answer_that_says_so() -> None:
    response, _ = exchange(message_reply({"content": None, "refusal": "I cannot."}, finish_reason="stop"))
    assert response.choices == (Choice("I cannot.", "refusal"),)


NAMES = ["token", "logprob", "top_logprobs", "tokens", "token_logprobs", "content", "text", "type"]
ODD_NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([10**400, -(10**400), True, None, "-0.1", ""])
)


def odd_json() -> st.SearchStrategy[Any]:
    return st.recursive(
        ODD_NUMBERS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
        ),
        max_leaves=8,
    )


@given(odd_json(), ODD_NUMBERS, st.dictionaries(st.sampled_from(NAMES), odd_json(), max_size=4))
def test_odd_numbers_beside_a_good_answer_take_nothing_from_it(index: Any, other: Any, logprobs: Any) -> None:
    entries = [
        {"index": place, "message": {"content": "hi"}, "finish_reason": "stop", "logprobs": logprobs}
        for place in (index, other)
    ]
    choices, _ = parse_choices({"choices": entries})
    assert [choice.text for choice in choices] == ["hi", "hi"]
    values = [token.logprob for choice in choices for token in choice.token_logprobs or ()]
    assert all(math.isfinite(value) and value <= 0 for value in values)


@given(st.dictionaries(st.sampled_from(["message", "finish_reason", "error", "index", "text"]), odd_json()))
def test_whatever_a_choice_is_it_is_an_answer_or_none(entry: Any) -> None:
    choices, wrong = parse_choices({"choices": [entry, 3, None]})
    assert choices or wrong
