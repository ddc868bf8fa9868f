import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.providers.unsupported import error_message, find_cap, find_unsupported_parameter

SENT = (
    "model",
    "messages",
    "temperature",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "n",
    "response_format",
    "seed",
)


def openai(message: str, **error: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **error}}


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (
            openai(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            ),
            "max_tokens",
        ),
        (
            openai(
                "Unsupported value: 'temperature' does not support 0 with this model. "
                "Only the default (1) value is supported.",
                param="temperature",
                code="unsupported_value",
            ),
            "temperature",
        ),
        (
            openai("Only the default (1) is allowed", param="temperature", code="unsupported_value"),
            "temperature",
        ),
        (openai("logprobs are not supported with reasoning models."), "logprobs"),
        (openai("`logprobs` is not supported with this model"), "logprobs"),
        (openai("Unrecognized request argument supplied: seed", param=None), "seed"),
        (openai("Unrecognized request argument supplied: 'seed'"), "seed"),
        (openai("number of completions n > 1 is not supported"), "n"),
        (openai("Field 'n': Value must be between 1 <= value <= 4, but got 5"), "n"),
        (openai("Requested sample logprobs of 20, which is greater than max allowed: 5"), "logprobs"),
        (openai("top_logprobs must be between 0 and 5", param="top_logprobs"), "top_logprobs"),
        (openai("This response_format type is unavailable now"), "response_format"),
        (openai("Invalid parameter", param="response_format.json_schema"), "response_format"),
        ({"error": "json_schema is not supported by this model"}, "response_format"),
        (
            {"detail": [{"type": "extra_forbidden", "loc": ["body", "logprobs"], "msg": "not permitted"}]},
            "logprobs",
        ),
        ({"object": "error", "message": "top_logprobs is not supported"}, "top_logprobs"),
        ([{"error": {"code": 400, "message": 'Unknown name "seed": Cannot find field.'}}], "seed"),
        ("logprobs is not supported", "logprobs"),
    ],
)
def test_the_refused_parameter_is_named(body: Any, parameter: str | None) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert find_unsupported_parameter(text, SENT) == parameter


@pytest.mark.parametrize(
    "body",
    [
        openai("'temperature' must be between 0 and 2", param="temperature"),
        openai("max_tokens is too large: 100000. This model supports at most 4096", param="max_tokens"),
        openai("The model llama9 does not exist or is not supported", param="model", code="model_not_found"),
        openai(
            "This model's maximum context length is 8192 tokens.",
            param="messages",
            code="context_length_exceeded",
        ),
        openai("You sent n things that are not allowed"),
        openai("Unsupported parameter: 'tools'", param="tools", code="unsupported_parameter"),
        {"error": None},
        {},
        "",
    ],
)
def test_other_complaints_name_no_parameter(body: Any) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert find_unsupported_parameter(text, SENT) is None


@pytest.mark.parametrize(
    ("message", "cap"),
    [
        ("Value must be between 1 <= value <= 4, but got 5", 4),
        ("Requested sample logprobs of 20, which is greater than max allowed: 5", 5),
        ("must be less than or equal to 8", 8),
        ("logprobs are not supported", None),
    ],
)
def test_the_cap_is_read_from_the_message(message: str, cap: int | None) -> None:
    assert find_cap(json.dumps(openai(message))) == cap


def test_an_unreadable_body_is_its_own_message() -> None:
    assert error_message(" Bad Gateway ") == "Bad Gateway"


RAW = openai(
    "Unsupported parameter: 'seed' is not supported with this model.",
    param="seed",
    code="unsupported_parameter",
)


@pytest.mark.parametrize("raw", [json.dumps(RAW), RAW, "Unsupported parameter: 'seed'"])
def test_a_gateway_hands_on_the_words_of_the_server_behind_it(raw: Any) -> None:
    metadata = {"raw": raw, "provider_name": "OpenAI"}
    body = json.dumps({"error": {"message": "Provider returned error", "code": 400, "metadata": metadata}})
    assert find_unsupported_parameter(body, SENT) == "seed"
    assert "Unsupported parameter: 'seed'" in error_message(body)


@pytest.mark.parametrize("raw", [None, 3, [], "", "{", {}])
def test_a_gateway_that_hands_on_nothing_has_its_own_words(raw: Any) -> None:
    body = json.dumps({"error": {"message": "Provider returned error", "metadata": {"raw": raw}}})
    assert "Provider returned error" in error_message(body)


KEYS = ["error", "message", "detail", "loc", "type", "msg", "param", "code", "status", "metadata", "raw"]
ODD = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["seed", "[", "{"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), ODD, max_size=4))
def test_whatever_an_error_is_made_of_it_is_read(error: Any) -> None:
    for body in (json.dumps({"error": error}), json.dumps(error), json.dumps([{"error": error}])):
        assert find_unsupported_parameter(body, SENT) in (None, *SENT)
        assert isinstance(error_message(body), str)
        assert find_cap(body) is None or find_cap(body) >= 0
