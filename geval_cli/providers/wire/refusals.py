"""Turns a server's error response into geval's error, and reads how long to wait: named delays and rate limits."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from msgspec import Struct, field

from geval_cli.errors import (
    Location,
    ProviderAuthError,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderUnavailableError,
    UnknownModelError,
    UnsupportedParameterError,
)
from geval_cli.json_codec import decode_json
from geval_cli.patterns import compile_later
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.prices import similar_model
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.unsupported import Sent, error_message, error_words, find_unsupported_parameter
from geval_cli.providers.wire.chat import finite_number
from geval_cli.records import JsonValue

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
# In characters; finding the parts takes time quadratic in the length of the server's text
_LONGEST_DURATION = 100
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Some servers send a moment, others a wait. As a wait, the first number would be thirty years.
_EPOCH_SECONDS_FROM = 1e9
_EPOCH_MILLISECONDS_FROM = 1e12


def exhausted_for_s(headers: Mapping[str, str], *, now_s: float, tokens: int) -> float:
    """Return the seconds until the used-up limits are renewed; 0 when none is used up.

    Args:
        headers: the headers of a successful answer, with names in lower case: x-ratelimit-remaining-requests,
            -reset-requests and so on, as OpenAI and others write them, or anthropic-ratelimit-requests-remaining,
            -reset and so on.
        now_s: the Unix time, for headers that name a moment.
        tokens: the tokens of the answer; a limit with fewer left has no room for a similar one.
    """
    if not any("ratelimit" in name for name in headers):
        return 0.0
    waits = (
        wait
        for name, wait, left in _limits(headers, now_s)
        if left is not None and 0 <= left < max(1, tokens if "token" in name else 1)  # -1 means no limit
    )
    return max(waits, default=0.0)


def longest_reset_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the longest wait for a used-up limit in a refusal; for any limit, if no header says what is left."""
    limits = list(_limits(headers, now_s))
    used_up = [wait for _, wait, left in limits if left is not None and not left > 0]
    unknown = [wait for _, wait, left in limits if left is None]
    return max(used_up or unknown, default=None)


def duration_s(text: str) -> float | None:
    """Return the seconds of "2.5", "2.5s", "350ms" or "1m30s"."""
    number = read_number(text)
    if number is not None:
        return number
    parts = _DURATION_PART.findall(text) if len(text) <= _LONGEST_DURATION else []
    if not parts or _DURATION_PART.sub("", text):
        return None
    return finite_number(sum(float(amount) * _SECONDS[unit] for amount, unit in parts))


def read_number(value: str | None) -> float | None:
    """Return the number in a header, or None when it is not a number."""
    try:
        return finite_number(decode_json(value)) if value else None
    except ValueError:
        return None


def _limits(headers: Mapping[str, str], now_s: float) -> Iterator[tuple[str, float, float | None]]:
    """Yield each reported limit: its name, the seconds until its renewal, and what is left of it.

    What is left is None when no header says so, and NaN when the header cannot be read.
    """
    for name, value in headers.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        wait = _reset_wait(value, now_s)
        if wait is not None:
            remaining = headers.get(name.replace("reset", "remaining"))
            yield name, wait, None if remaining is None else _number_or_nan(remaining)


def _number_or_nan(text: str) -> float:
    number = read_number(text)
    return math.nan if number is None else number


def _reset_wait(value: str, now_s: float) -> float | None:
    number = read_number(value)
    if number is None:
        duration = duration_s(value)
        if duration is not None:
            return duration
        try:
            moment = datetime.fromisoformat(value)
            return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now_s)
        except (ValueError, OverflowError):
            return None
    if number >= _EPOCH_MILLISECONDS_FROM:
        return max(0.0, number / 1000 - now_s)
    if number >= _EPOCH_SECONDS_FROM:
        return max(0.0, number - now_s)
    return max(0.0, number)


CLOUD_CREDENTIALS = "default credentials"
"""The suffix of a key source that is a cloud's token rather than the user's own key."""

_MESSAGE_CHARS = 400
_SHORT = 80
_VALUE_CHARS = 60
_REQUEST_ID_CHARS = 200
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")
_MAY_REFUSE_PARAMETERS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.NOT_IMPLEMENTED,
    }
)
_NO_CAPACITY = 498  # Groq's, for its tier `flex`
_PASSING_STATUSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, _NO_CAPACITY}
)
# Groq's codes for what the model wrote: the request is all right, and another answer may be, too.
_UNUSABLE_ANSWER = compile_later(r"\b(?:json_validate|tool_use|output_parse)_failed\b")
_OUT_OF_MONEY_CODE = compile_later(
    r"insufficient_(?:quota|balance|credits?|funds)|exceeded_current_quota|billing_", re.IGNORECASE
)
_OUT_OF_MONEY = compile_later(
    r"exceeded your current quota|credit balance is too low|insufficient (?:balance|credits?|funds)"
    r"|out of (?:credits?|call volume quota)|available credits|spending limit",
    re.IGNORECASE,
)
# Not a 413 or 422: there the sentence may quote the request.
_MAY_SAY_OUT_OF_MONEY = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
)
# The wording of a 403 that is about the key; moderation and regions concern a single request.
_KEY_REFUSED = compile_later(
    r"\bkeys?\b|api_?key|authenti|authoriz|credential|permission|billing|quota|credits?\b|subscription|expired"
    r"|\b(?:invalid|missing|access|bearer|auth|security)[ _]token|\baccess ?(?:denied|to)\b|\bno[t]? (?:have )?access"
    r"|\baccessdenied|signature",
    re.IGNORECASE,
)
KEY_REASON = compile_later(r'"reason"\s*:\s*"API_KEY_(?:INVALID|SERVICE_BLOCKED)"')
"""Google's code for a key that it refuses with a status 400."""

_THROTTLED_CODE = compile_later(
    r"throttl|too_?many_?requests|rate_?limit|request_?limit_?exceeded|resource_?exhausted|slow_?down|overloaded",
    re.IGNORECASE,
)
# Whatever their codes say: a refused key, and a request larger than the limit per minute.
_NEVER_THROTTLED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
_TOO_LARGE = compile_later(r"request too large", re.IGNORECASE)
_CONTEXT_TOO_LONG = compile_later(
    r"context[ _](?:length|size|window)|prompt is too long|too many tokens", re.IGNORECASE
)
_WAIT_IN_WORDS = compile_later(
    r"(?:(?:try again|retry) (?:in|after) |\"retryDelay\"\s*:\s*\")"
    r"((?:\d+(?:\.\d+)?(?:ms|s|m|h)\b|\d+[mh](?=\d))+|\d+(?:\.\d+)?)",
    re.I,
)


class WrittenParameter(Struct, frozen=True):
    """A parameter that the user wrote: its value and its place; None if the place is unknown."""

    value: JsonValue
    place: Location | None = None


HEADERS_SOURCE = "`headers` in the config"


class CallContext(Struct, frozen=True):
    """The facts of a call that an error names: provider, key and parameters.

    Attributes:
        sent_parameters: the parameters of the request, with the API's names for them.
        written: those of them that the user wrote.
        added: the other ones, which the request can do without.
        key_hint: how to provide a key, for when none was sent.
        model: the model, if each request goes to the same one at the same address; otherwise empty.
        place: the provider's place in the config.
        address: the setting that determines the server's address, as named in hints.
    """

    provider_id: str
    secrets: Secrets = field(default_factory=Secrets)
    key_source: str = ""
    sent_parameters: Sent = ()
    written: Mapping[str, WrittenParameter] = {}  # msgspec copies it
    added: Collection[str] = ()
    key_hint: str = "set `api_key_env` to the variable that holds it"
    model: str = ""
    place: Location | None = None
    address: str = "`base_url`"


def refusal_error(reply: HttpResponse, context: CallContext, *, now_s: float) -> ProviderError:
    """Return the error for a non-2xx `reply`. `now_s` is the Unix time, for dates in headers."""
    error = _classified(reply, context, now_s)
    error.request_id = request_id_of(reply, context)
    return error


def request_id_of(reply: HttpResponse, context: CallContext) -> str | None:
    """Return the vendor's id of the request, if a header has it: shortened, and without keys that a server echoes."""
    for name in _REQUEST_ID_HEADERS:
        if named := reply.headers.get(name):
            return context.secrets.redact(named)[:_REQUEST_ID_CHARS]
    return None


def _classified(reply: HttpResponse, context: CallContext, now_s: float) -> ProviderError:
    text = reply.text
    codes, words = error_words(text)
    codes = f"{codes} {reply.headers.get('x-amzn-errortype', '')}"  # where Amazon puts the code
    # The order matters: an empty account often gets a 429, which would otherwise be retried for a long time.
    if reply.status == HTTPStatus.PAYMENT_REQUIRED or _is_out_of_money(reply.status, codes, words, text):
        return _auth_error(reply, context, is_out_of_money=True)
    # A single request above the limit per minute gets a 429, too, but waiting does not make it smaller.
    may_be_limited = not _TOO_LARGE.search(words)
    if may_be_limited and _is_throttled(reply.status, codes):
        return _rate_limit_error(reply, context, now_s)
    # A judge's schema is given up instead, as a parameter that geval added.
    if _UNUSABLE_ANSWER.search(codes) and "response_format" not in context.added:
        return ProviderResponseError(_message(reply, context), **error_facts(reply, context))
    if reply.status in _MAY_REFUSE_PARAMETERS:
        parameter = find_unsupported_parameter(text, context.sent_parameters, added=context.added)
        if parameter and (parameter not in context.written or _is_renamed(parameter, words, context)):
            return UnsupportedParameterError(
                _message(reply, context), parameter=parameter, **error_facts(reply, context)
            )
        if not parameter and context.written and not _CONTEXT_TOO_LONG.search(text):
            names = context.sent_parameters if isinstance(context.sent_parameters, Mapping) else {}
            of_user = {name: names.get(name, ()) for name in context.written}
            parameter = find_unsupported_parameter(text, of_user, added=of_user)
        if parameter:
            return _written_error(reply, context, parameter)
    if (
        reply.status == HTTPStatus.UNAUTHORIZED
        or KEY_REASON.search(text)
        or (reply.status == HTTPStatus.FORBIDDEN and _KEY_REFUSED.search(f"{codes} {words}"))
    ):
        return _auth_error(reply, context, is_out_of_money=False)
    if _is_unknown_model(reply.status, codes, words, context):
        similar = similar_model(context.provider_id, context.model)
        guess = f"did you mean `{similar}`? " if similar else ""
        hint = f"{guess}check the model's name and `base_url`; no further request was sent to it"
        return UnknownModelError(_message_at(reply, context), hint=hint, **error_facts(reply, context))
    if may_be_limited and reply.status == HTTPStatus.TOO_MANY_REQUESTS:
        return _rate_limit_error(reply, context, now_s)
    if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR or reply.status in _PASSING_STATUSES:
        error = ProviderUnavailableError(_message(reply, context), **error_facts(reply, context))
        error.retry_after_s = retry_after_s(reply, now_s=now_s)
        return error
    hint = ""
    if reply.status == HTTPStatus.NOT_FOUND:
        hint = (
            f"check the model's name and {context.address}" if context.model else f"check {context.address}"
        )
    elif reply.status < HTTPStatus.BAD_REQUEST:
        target = context.secrets.redact(reply.headers.get("location", ""))[:_MESSAGE_CHARS]
        hint = (
            f"the server redirects to {target}; redirects are not followed, so set {context.address} to that URL"
            if target
            else f"the server redirects without a target, and redirects are not followed: check {context.address}"
        )
    elif reply.status == HTTPStatus.FORBIDDEN:
        hint = "the server refuses this request; others may still be answered"
    elif reply.status == HTTPStatus.TOO_MANY_REQUESTS:
        hint = "the prompt has more tokens than your per-minute limit: shorten it, or have the limit raised"
    elif _CONTEXT_TOO_LONG.search(reply.text):
        hint = "the prompt is too long for the model: shorten it, or use a model with a larger context"
    return ProviderRequestError(_message(reply, context), hint=hint, **error_facts(reply, context))


def error_facts(reply: HttpResponse, context: CallContext) -> dict[str, Any]:
    """Return what every error about a refusal holds, as keyword arguments."""
    body = context.secrets.excerpt(reply.text)
    return {"provider_id": context.provider_id, "status": reply.status, "body": body}


def retry_after_s(reply: HttpResponse, *, now_s: float) -> float | None:
    """Return the wait that the server demands, in seconds (never negative), or None when it names none.

    Sources, in this order: retry-after-ms, Retry-After (seconds or date) and, for a 429, the ratelimit-reset headers of
    the used-up limits (OpenAI's, Anthropic's and others'), and "try again in 2.5s" in the body. Many servers send reset
    headers with every answer, even when there is nothing to wait for.
    """
    headers = reply.headers
    milliseconds = read_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    stated = headers.get("retry-after")
    if stated is not None:
        wait = read_number(stated)
        wait = _seconds_until_date(stated, now_s) if wait is None else wait
        if wait is not None:
            return max(0.0, wait)
    if reply.status != HTTPStatus.TOO_MANY_REQUESTS:
        return None
    wait = longest_reset_s(headers, now_s)
    if wait is not None:
        return wait
    worded = _WAIT_IN_WORDS.search(reply.text)
    return duration_s(worded[1]) if worded else None


def _is_out_of_money(status: int, codes: str, words: str, text: str) -> bool:
    if not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return False
    is_said = status in _MAY_SAY_OUT_OF_MONEY and _OUT_OF_MONEY.search(words)
    # Gemini uses the same words for a limit per minute, but then says when it is renewed.
    is_renewed = _WAIT_IN_WORDS.search(text) and "PerDay" not in text
    return bool((is_said and not is_renewed) or _OUT_OF_MONEY_CODE.search(codes))


def _is_throttled(status: int, codes: str) -> bool:
    """Return whether the code says "too many requests" under another status; Amazon also throttles with a 400."""
    is_refusal = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return bool(is_refusal and status not in _NEVER_THROTTLED and _THROTTLED_CODE.search(codes))


def _rate_limit_error(reply: HttpResponse, context: CallContext, now_s: float) -> ProviderRateLimitError:
    as_limit = HttpResponse(HTTPStatus.TOO_MANY_REQUESTS, reply.headers, reply.body)
    wait_s = retry_after_s(as_limit, now_s=now_s)
    return ProviderRateLimitError(
        _message(reply, context), retry_after_s=wait_s, **error_facts(reply, context)
    )


def _message(reply: HttpResponse, context: CallContext) -> str:
    said = context.secrets.redact(error_message(reply.text))
    if said.lstrip().startswith("<"):
        said = "an HTML page instead of an API answer"
    if len(said) > _MESSAGE_CHARS:
        said = said[: _MESSAGE_CHARS - 1] + "…"
    return f"{context.provider_id} answered HTTP {reply.status}" + (f": {said}" if said else "")


def _message_at(reply: HttpResponse, context: CallContext) -> str:
    """Return the message with the provider's place in the config, for errors that every request to it would get."""
    return _message(reply, context) + ("" if context.place is None else f" ({context.place})")


def _auth_error(reply: HttpResponse, context: CallContext, *, is_out_of_money: bool) -> ProviderAuthError:
    if is_out_of_money:
        account = f"the account of the key from {context.key_source}" if context.key_source else "the account"
        hint = f"add credit to {account}, or raise its limit"
    elif context.key_source.endswith(CLOUD_CREDENTIALS):
        hint = (
            f"the server refuses {context.key_source}: check the account, its project or tenant, and its role"
        )
    elif context.key_source:
        hint = f"the key came from {context.key_source} and was refused: set a valid one there"
    else:
        hint = f"no key was sent; {context.key_hint}"
    return ProviderAuthError(_message_at(reply, context), hint=hint, **error_facts(reply, context))


_MAY_SAY_NO_MODEL = _MAY_REFUSE_PARAMETERS - {HTTPStatus.NOT_IMPLEMENTED} | {HTTPStatus.GONE}
_NO_MODEL_CODE = compile_later(
    r"model_?not_?(?:found|exist|available)|(?:invalid|unknown)_?model|deployment_?not_?found|model_decommissioned",
    re.IGNORECASE,
)
_NO_MODEL = compile_later(
    r"(?:model|deployment)\b.{0,80}?(?:(?:does not|doesn't|not|n't) (?:exist|found)|not found|decommissioned)"
    r"|(?:invalid|unknown|no such) model|not a valid model|no endpoints found for|unable to access model"
    r"|model identifier is invalid|could not resolve the foundation model",
    re.IGNORECASE | re.DOTALL,
)
_NO_ROUTE = compile_later(
    r"\s*(?:<|$|not found|page not found|404\b|resource not found|invalid url|no route|unknown (?:url|path|endpoint)"
    r"|unrecognized request url|(?:cannot|could not|no) (?:get|post|handler))",
    re.IGNORECASE,
)


def _is_unknown_model(status: int, codes: str, words: str, context: CallContext) -> bool:
    """Return whether a refusal is about the model or the address, which are the same in every request."""
    if status not in _MAY_SAY_NO_MODEL:
        return False
    if _NO_MODEL_CODE.search(codes):
        return True
    if not context.model:
        return False
    is_named = re.search(rf"(?<![\w.-]){re.escape(context.model)}(?![\w-])", words) is not None
    if status == HTTPStatus.NOT_FOUND:
        return bool(is_named or _NO_MODEL.search(words) or _NO_ROUTE.match(words))
    # A long message may quote a prompt that says the same about something else.
    return bool((is_named or len(words) < _SHORT) and _NO_MODEL.search(words))


def _is_renamed(parameter: str, words: str, context: CallContext) -> bool:
    """Return whether a server wants the user's token limit under its newer name, which does not change its meaning."""
    newer = "max_completion_tokens"
    return parameter == "max_tokens" and newer in words and newer not in context.written


def _written_error(reply: HttpResponse, context: CallContext, parameter: str) -> ProviderRequestError:
    """Return the error for a parameter that the user wrote: dropping it would measure a different setting."""
    written = context.written[parameter]
    value = context.secrets.redact(json.dumps(written.value, ensure_ascii=False, default=str).strip('"'))
    shown = f"{parameter}: {value if len(value) <= _VALUE_CHARS else value[: _VALUE_CHARS - 1] + '…'}"
    place = f" ({written.place})" if written.place is not None else ""
    said = _message(reply, context).removeprefix(f"{context.provider_id} answered ")
    return ProviderRequestError(
        f"{context.provider_id} refuses `{shown}`{place}: {said}",
        hint=f"leave `{parameter}` out, or use a value that this model accepts",
        **error_facts(reply, context),
    )


def _seconds_until_date(value: str, now_s: float) -> float | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rarely needed, and imports the whole email package

    try:
        return parsedate_to_datetime(value).timestamp() - now_s
    except (ValueError, TypeError, IndexError, OverflowError):  # made for e-mails, it raises all of these
        return None
