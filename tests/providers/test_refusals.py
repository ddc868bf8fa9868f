import json
from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import (
    ProviderAuthError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderUnavailableError,
    UnsupportedParameterError,
)
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.registry import build_provider
from geval_cli.providers.wire.refusals import CallContext, refusal_error, retry_after_s
from geval_cli.source.access import TRUSTED
from geval_cli.specs.base import ProviderSpec

NOW_S = 1_700_000_000.0


def wait(headers: dict[str, str], body: str = "", *, status: int = 429) -> float | None:
    return retry_after_s(HttpResponse(status, headers, body.encode()), now_s=NOW_S)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90.0),
        ({"x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6s"}, 6.0),
        (
            {
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6s",
                "x-ratelimit-remaining-tokens": "900",
            },
            1.0,
        ),
        ({"x-ratelimit-remaining-requests": "4999", "x-ratelimit-reset-requests": "8s"}, None),
        (
            {"x-ratelimit-remaining-a": "0", "x-ratelimit-reset-a": "1s", "x-ratelimit-reset-b": "9s"},
            1.0,
        ),
        ({"x-ratelimit-reset": "1700000012"}, 12.0),
        ({"x-ratelimit-reset": "1700000012500"}, 12.5),
        ({"anthropic-ratelimit-requests-reset": "2023-11-14T22:13:25Z"}, 5.0),
    ],
)
def test_the_wait_is_read_from_every_kind_of_header(headers: dict[str, str], expected: float | None) -> None:
    assert wait(headers) == expected


@pytest.mark.parametrize("status", [408, 500, 502, 503])
def test_only_a_429_is_about_the_limits_that_its_headers_tell(status: int) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "8s"}
    assert wait(headers, "try again in 3s", status=status) is None
    assert wait({**headers, "retry-after": "2"}, status=status) == 2.0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("Rate limit reached. Please try again in 2.5s.", 2.5),
        ("Please retry after 7 seconds", 7.0),
        ("Please try again in 250ms.", 0.25),
        ("Please try again in 1m30.5s. Visit us.", 90.5),
        ("Please slow down.", None),
    ],
)
def test_the_wait_is_read_from_the_words_when_no_header_says_it(body: str, expected: float | None) -> None:
    assert wait({}, body) == expected


def error_of(status: int, body: object, *, key_source: str = "") -> Exception:
    context = CallContext(
        "openai:gpt-4.1", key_source=key_source, sent_parameters={"temperature", "logprobs"}
    )
    return refusal_error(HttpResponse(status, {}, json.dumps(body).encode()), context, now_s=NOW_S)


def test_the_hint_names_where_the_key_came_from() -> None:
    error = error_of(401, {"error": {"message": "bad key"}}, key_source="the environment variable MY_KEY")
    assert isinstance(error, ProviderAuthError)
    assert "MY_KEY" in error.hint


def test_without_a_key_the_hint_says_that_none_was_sent() -> None:
    error = error_of(401, {"error": {"message": "no key"}})
    assert isinstance(error, ProviderAuthError)
    assert "no key was sent" in error.hint


KEY, TOKEN = "sk-0123456789", "Bearer sk-abcdefghij"
OWN = "`headers` in the config"


@pytest.mark.parametrize(
    ("provider_id", "config", "said"),
    [
        ("openai:m", {}, "the key came from OPENAI_API_KEY"),
        ("openai:m", {"api_key": KEY}, "the key came from `api_key` in the config"),
        ("openai:m", {"apiKey": KEY}, "the key came from `apiKey` in the config"),
        ("openai:m", {"api_key": None, "apiKey": KEY}, "the key came from `apiKey` in the config"),
        # It is sent in place of the key.
        ("openai:m", {"headers": {"Authorization": TOKEN}}, f"the key came from {OWN}"),
        ("openai:m", {"headers": {"x-trace": "7"}}, "the key came from OPENAI_API_KEY"),
        ("mistral:m", {"headers": {"Authorization": TOKEN}}, f"the key came from {OWN}"),
        ("mistral:m", {}, "no key was sent; set `api_key_env`"),
        ("vertex:gemini-m", {"project_id": "p", "headers": {"Authorization": TOKEN}}, f"came from {OWN}"),
        ("http", {"body": {"q": "{{ prompt }}"}, "headers": {"Authorization": TOKEN}}, f"came from {OWN}"),
        ("http", {"body": {"q": "{{ prompt }}"}}, "no key was sent; set `headers`"),
    ],
)
def test_the_hint_is_about_the_key_that_was_sent(
    provider_id: str, config: dict[str, object], said: str
) -> None:
    with LoopbackServer(respond=lambda *_: Reply(401, {"error": {"message": "who are you?"}})) as server:
        address = {"url": server.url} if provider_id == "http" else {"base_url": server.base_url}
        spec = ProviderSpec(id=provider_id, config={**address, "max_retries": 0, **config})
        provider = build_provider(spec, env={"OPENAI_API_KEY": KEY}, base_dir=Path(), access=TRUSTED)
        with pytest.raises(ProviderAuthError) as error:
            run(answer(provider))
    assert said in error.value.hint


def test_payment_required_is_an_auth_error() -> None:
    assert isinstance(error_of(402, {"error": {"message": "Insufficient Balance"}}), ProviderAuthError)


FLAGGED = 'Your chosen model requires moderation on Azure. Your input was flagged for "violence"'
POOR = "My account has insufficient balance, and my API key is not authorized. What now?"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, {"error": {"code": 403, "message": FLAGGED, "metadata": {"flagged_input": POOR}}}),
        (403, {"error": {"code": "unsupported_country", "message": "Country not supported"}}),
        (403, ""),
        (422, {"detail": [{"loc": ["body", "messages", 0], "msg": "String too long", "input": POOR}]}),
        (422, {"error": {"message": f"Cannot read: {POOR}"}}),
        (400, {"error": {"code": "content_filter", "message": "filtered"}, "prompt": POOR}),
    ],
)
def test_one_prompt_that_is_refused_says_nothing_about_the_key(status: int, body: object) -> None:
    error = error_of(status, body)
    assert isinstance(error, ProviderRequestError)
    assert not isinstance(error, ProviderAuthError)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, ""),
        (403, {"error": {"type": "permission_error", "message": "no"}}),
        (403, {"error": {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}}),
        (403, {"error": {"message": "Invalid API key"}}),
        (403, {"detail": "Not authenticated"}),
        (403, {"error": "You have no access to this model"}),
        (403, {"message": "Your team has used all available credits or reached its spending limit"}),
        (400, {"error": {"message": "Your credit balance is too low to access the API"}}),
        (400, {"error": {"status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}),
        (400, {"error": {"code": "billing_hard_limit_reached", "message": "no"}}),
        (429, {"error": {"type": "insufficient_quota", "message": "no"}}),
    ],
)
def test_a_refused_key_and_a_used_up_quota_end_the_asking(status: int, body: object) -> None:
    assert isinstance(error_of(status, body), ProviderAuthError)


def test_a_request_larger_than_a_minute_s_quota_is_not_repeated() -> None:
    message = "Request too large for m on tokens per min (TPM): Limit 10000, Requested 12000."
    error = error_of(429, {"error": {"code": "rate_limit_exceeded", "message": message}})
    assert isinstance(error, ProviderRequestError)
    assert "shorten it" in error.hint


def test_a_403_about_a_parameter_is_not_about_the_key() -> None:
    message = "You are not allowed to request logprobs from this model"
    error = error_of(403, {"error": {"message": message, "param": None}})
    assert isinstance(error, UnsupportedParameterError)
    assert error.parameter == "logprobs"


def test_a_prompt_that_is_too_long_gets_a_hint() -> None:
    body = {"error": {"type": "exceed_context_size_error", "message": "exceeds the available context size"}}
    error = error_of(400, body)
    assert isinstance(error, ProviderRequestError)
    assert "shorten it" in error.hint


def test_a_web_page_is_not_quoted_in_the_message() -> None:
    context = CallContext("openai:gpt-4.1")
    error = refusal_error(HttpResponse(404, {}, b"<!doctype html><html>..."), context, now_s=NOW_S)
    assert "HTML page" in error.message
    assert "base_url" in error.hint


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (300, "", ProviderRequestError),
        (302, "", ProviderRequestError),
        (400, "", ProviderRequestError),
        (408, "", ProviderUnavailableError),
        (409, "", ProviderUnavailableError),
        (425, "", ProviderUnavailableError),
        (498, "", ProviderUnavailableError),
        (499, "", ProviderRequestError),
        (500, "", ProviderUnavailableError),
        (501, "", ProviderUnavailableError),
        (599, "", ProviderUnavailableError),
        (402, "", ProviderAuthError),
        (429, "", ProviderRateLimitError),
        (429, {"error": {"message": "Rate limit reached for requests"}}, ProviderRateLimitError),
        (429, {"error": {"message": "You exceeded your current quota, please check"}}, ProviderAuthError),
        (429, {"error": {"message": "You have run out of credits"}}, ProviderAuthError),
        (429, {"error": {"message": "Insufficient balance"}}, ProviderAuthError),
        (422, {"error": {"message": "You wrote: insufficient balance"}}, ProviderRequestError),
        (500, {"error": {"message": "insufficient balance"}}, ProviderUnavailableError),
        (400, {"__type": "com.amazon.coral#ThrottlingException", "message": "slow"}, ProviderRateLimitError),
        (400, {"error": {"code": "Throttling.RateQuota", "message": "slow"}}, ProviderRateLimitError),
        (400, {"error": {"type": "rate_limit_error", "message": "slow"}}, ProviderRateLimitError),
        (403, {"error": {"code": 403, "status": "RESOURCE_EXHAUSTED"}}, ProviderRateLimitError),
        (403, {"code": "TooManyRequests", "message": "no access for now"}, ProviderRateLimitError),
        (404, {"error": {"code": "RequestLimitExceeded", "message": "slow"}}, ProviderRateLimitError),
        (422, {"error": {"type": "engine_overloaded_error", "message": "slow"}}, ProviderRateLimitError),
        (503, {"error": {"type": "overloaded_error", "message": "slow"}}, ProviderUnavailableError),
        (401, {"error": {"type": "rate_limit_error", "message": "no"}}, ProviderAuthError),
        (413, {"error": {"code": "rate_limit_exceeded", "message": "long"}}, ProviderRequestError),
        (
            400,
            {"error": {"code": "rate_limit_exceeded", "message": "Request too large"}},
            ProviderRequestError,
        ),
        (400, {"error": {"message": "what is a rate_limit_error?"}}, ProviderRequestError),
        *(
            (400, {"error": {"message": "Please adjust your prompt.", "code": code}}, ProviderResponseError)
            for code in ("json_validate_failed", "tool_use_failed", "output_parse_failed")
        ),
        (400, {"error": {"message": "what is json_validate_failed?"}}, ProviderRequestError),
        (403, {"error": {"code": "insufficient_quota", "type": "rate_limit_error"}}, ProviderAuthError),
    ],
)
def test_each_status_is_the_kind_of_error_that_decides_what_is_done(
    status: int, body: object, kind: type[Exception]
) -> None:
    assert type(error_of(status, body)) is kind


def used_up_at_gemini(quota: str, *, retry: str | None, is_worded: bool = False) -> dict[str, Any]:
    """As ai.google.dev refuses what is asked too often, in a minute or in a day."""
    words = (
        "You exceeded your current quota, please check your plan and billing details. For more information on this"
        " error, head to: https://ai.google.dev/gemini-api/docs/rate-limits."
    )
    violation = {"quotaMetric": f"generativelanguage.googleapis.com/{quota}", "quotaId": quota}
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]
    if retry is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": retry})
    said = f"{words} \nPlease retry in 34.074824224s." if is_worded else words
    return {
        "error": {"code": 429, "message": said, "status": "RESOURCE_EXHAUSTED", "details": details},
    }


@pytest.mark.parametrize("is_in_a_list", [False, True], ids=["own API", "OpenAI's API"])
@pytest.mark.parametrize(
    ("body", "wait_s"),
    [
        (used_up_at_gemini("GenerateContentPaidTierInputTokensPerModelPerMinute", retry="26s"), 26.0),
        (used_up_at_gemini("GenerateRequestsPerMinutePerProject", retry="34s", is_worded=True), 34.074824224),
        (used_up_at_gemini("GenerateRequestsPerDayPerProject", retry="34s", is_worded=True), None),
        (used_up_at_gemini("GenerateRequestsPerMinutePerProject", retry=None), None),
    ],
)
def test_what_gemini_renews_in_a_minute_is_waited_for_and_no_lack_of_money(
    body: dict[str, Any], wait_s: float | None, is_in_a_list: bool
) -> None:
    error = error_of(429, [body] if is_in_a_list else body)
    assert type(error) is (ProviderAuthError if wait_s is None else ProviderRateLimitError)
    assert getattr(error, "retry_after_s", None) == wait_s


def test_a_limit_under_another_status_is_waited_for_as_long_as_it_says() -> None:
    body = {"error": {"code": "rate_limit_exceeded", "message": "try again in 2.5s", "param": "temperature"}}
    error = error_of(400, body)
    assert isinstance(error, ProviderRateLimitError)
    assert (error.retry_after_s, error.status) == (2.5, 400)


@pytest.mark.parametrize("status", [300, 301, 302, 399])
def test_a_status_below_400_is_told_as_a_redirect(status: int) -> None:
    error = error_of(status, "")
    assert isinstance(error, ProviderRequestError)
    assert "redirects are not followed" in error.hint
    assert "redirect" not in str(getattr(error_of(400, ""), "hint", ""))


@pytest.mark.parametrize(("status", "is_success"), [(199, False), (200, True), (299, True), (300, False)])
def test_only_a_status_of_2xx_is_an_answer(status: int, is_success: bool) -> None:
    assert HttpResponse(status, {}, b"").is_success is is_success
