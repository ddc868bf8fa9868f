"""Turns an HTTP error answer into the ProviderError that says what it means and how long to wait."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from geval_cli.errors import (
    ProviderAuthError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderUnavailableError,
    UnsupportedParameterError,
)
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.unsupported import error_message, find_unsupported_parameter

_MESSAGE_CHARS = 400
_MAY_REFUSE_PARAMETERS = frozenset({400, 403, 404, 422, 501})
_AUTH_STATUSES = frozenset({401, 403})
_PASSING_STATUSES = frozenset({408, 409, 425})
_OK = 200
_REDIRECT = 300
_TOO_MANY_REQUESTS = 429
_PAYMENT_REQUIRED = 402
_NOT_FOUND = 404
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_OUT_OF_MONEY = re.compile(
    r"insufficient_quota|exceeded your current quota|billing_(?:not_active|hard_limit)"
    r"|credit balance is too low|insufficient (?:balance|credits?)",
    re.IGNORECASE,
)
_CONTEXT_TOO_LONG = re.compile(
    r"context[ _](?:length|size|window)|prompt is too long|too many tokens", re.IGNORECASE
)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WAIT_IN_WORDS = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|s|m|h)\b|\d+[mh](?=\d))+|\d+(?:\.\d+)?)", re.I
)
_EPOCH_SECONDS_FROM = 1e9
_EPOCH_MILLISECONDS_FROM = 1e12


@dataclass(frozen=True, slots=True)
class CallContext:
    """What an error needs to know about the call: who was asked, with which key and parameters."""

    provider_id: str
    secrets: Secrets = field(default_factory=Secrets)
    key_source: str = ""
    sent_parameters: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete HTTP answer. Header names are lower case; `latency_ms` runs to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: float = 0.0

    @property
    def is_success(self) -> bool:
        return _OK <= self.status < _REDIRECT

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def refusal_error(reply: HttpReply, context: CallContext, *, now_s: float) -> ProviderError:
    """The error that a non-2xx `reply` stands for. `now_s` is the Unix time, for dates in headers."""
    text = reply.text
    if reply.status == _PAYMENT_REQUIRED or (_is_client_error(reply.status) and _OUT_OF_MONEY.search(text)):
        return _auth_error(reply, context, "its quota or credit is used up")
    if reply.status in _MAY_REFUSE_PARAMETERS:
        parameter = find_unsupported_parameter(text, context.sent_parameters)
        if parameter:
            return UnsupportedParameterError(
                _message(reply, context),
                parameter=parameter,
                provider_id=context.provider_id,
                status=reply.status,
                body=context.secrets.excerpt(text),
            )
    if reply.status in _AUTH_STATUSES:
        return _auth_error(reply, context, "the key was refused")
    if reply.status == _TOO_MANY_REQUESTS:
        return ProviderRateLimitError(
            _message(reply, context),
            provider_id=context.provider_id,
            retry_after_s=retry_after_s(reply, now_s=now_s),
            status=reply.status,
            body=context.secrets.excerpt(text),
        )
    if reply.status >= _SERVER_ERROR or reply.status in _PASSING_STATUSES:
        return _unavailable_error(reply, context, now_s)
    return _request_error(reply, context)


def retry_after_s(reply: HttpReply, *, now_s: float) -> float | None:
    """How long the server asks to wait, in seconds (never negative), or None when it does not say.

    Read, in this order: retry-after-ms, Retry-After (seconds or date), the ratelimit-reset headers of the
    limits that are used up (OpenAI's, Anthropic's and others'), and "try again in 2.5s" in the body.
    """
    headers = reply.headers
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    stated = headers.get("retry-after")
    if stated is not None:
        wait = _number(stated)
        wait = _seconds_until_date(stated, now_s) if wait is None else wait
        if wait is not None:
            return max(0.0, wait)
    wait = _longest_reset(headers, now_s)
    if wait is not None:
        return wait
    worded = _WAIT_IN_WORDS.search(reply.text)
    return _duration_s(worded[1]) if worded else None


def _is_client_error(status: int) -> bool:
    return _CLIENT_ERROR <= status < _SERVER_ERROR


def _message(reply: HttpReply, context: CallContext) -> str:
    said = context.secrets.redact(error_message(reply.text))
    if said.lstrip().startswith("<"):
        said = "an HTML page instead of an API answer"
    if len(said) > _MESSAGE_CHARS:
        said = said[: _MESSAGE_CHARS - 1] + "…"
    return f"{context.provider_id} answered HTTP {reply.status}" + (f": {said}" if said else "")


def _auth_error(reply: HttpReply, context: CallContext, what: str) -> ProviderAuthError:
    if context.key_source:
        hint = f"the key came from {context.key_source} and {what}: put a valid one there"
    else:
        hint = "no key was sent; name the variable that holds one with `api_key_env`"
    return ProviderAuthError(
        _message(reply, context),
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
        hint=hint,
    )


def _unavailable_error(reply: HttpReply, context: CallContext, now_s: float) -> ProviderUnavailableError:
    error = ProviderUnavailableError(
        _message(reply, context),
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
    )
    error.retry_after_s = retry_after_s(reply, now_s=now_s)
    return error


def _request_error(reply: HttpReply, context: CallContext) -> ProviderRequestError:
    hint = ""
    if reply.status == _NOT_FOUND:
        hint = "check the model's name and `base_url`"
    elif reply.status < _CLIENT_ERROR:
        target = context.secrets.redact(reply.headers.get("location", "elsewhere"))
        hint = (
            f"the server redirects to {target}; redirects are not followed, so write that address as base_url"
        )
    elif _CONTEXT_TOO_LONG.search(reply.text):
        hint = (
            "the prompt is longer than the model can take: shorten it, or use a model with a larger context"
        )
    return ProviderRequestError(
        _message(reply, context),
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
        hint=hint,
    )


def _longest_reset(headers: Mapping[str, str], now_s: float) -> float | None:
    resets: dict[str, float] = {}
    used_up = set()
    for name, value in headers.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        wait = _reset_wait(value, now_s)
        if wait is not None:
            resets[name] = wait
            if headers.get(name.replace("reset", "remaining")) == "0":
                used_up.add(name)
    waits = [wait for name, wait in resets.items() if not used_up or name in used_up]
    return max(waits, default=None)


def _reset_wait(value: str, now_s: float) -> float | None:
    number = _number(value)
    if number is None:
        duration = _duration_s(value)
        return _seconds_until_iso(value, now_s) if duration is None else duration
    if number >= _EPOCH_MILLISECONDS_FROM:
        return max(0.0, number / 1000 - now_s)
    if number >= _EPOCH_SECONDS_FROM:
        return max(0.0, number - now_s)
    return max(0.0, number)


def _duration_s(text: str) -> float | None:
    """The seconds of "2.5", "2.5s", "350ms" or "1m30s"."""
    number = _number(text)
    if number is not None:
        return number
    parts = _DURATION_PART.findall(text)
    if not parts or _DURATION_PART.sub("", text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)


def _seconds_until_iso(value: str, now_s: float) -> float | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now_s)


def _seconds_until_date(value: str, now_s: float) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - now_s
    except ValueError:
        return None


def _number(value: str | None) -> float | None:
    try:
        number = json.loads(value) if value else None
    except ValueError:
        return None
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
