"""`http://...`, `https://...`: any HTTP API, its request and the place of the answer described in the config."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geval_cli.errors import Problem, ProviderRequestError, ProviderShapeError
from geval_cli.http_client.client import HttpCall
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.json_path import RESPONSE_KEYS, PathStep, follow_path, is_path, parse_path
from geval_cli.providers.options import (
    LIMIT_KEYS,
    OwnKey,
    check_settings,
    is_text,
    is_text_mapping,
    limits_of,
    own_settings,
)
from geval_cli.providers.placeholders import Places, has_place, variables_in
from geval_cli.providers.prices import Price, price_of
from geval_cli.providers.redaction import Secrets, keyed_url, keyed_value
from geval_cli.providers.refusals import CallContext, HttpReply
from geval_cli.providers.response_code import ResponseCode, code_problem
from geval_cli.providers.source import ProviderSource
from geval_cli.providers.token_usage import TokenUsage, read_chat_usage
from geval_cli.providers.transport import Transport, response_error
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

_KNOWN_ANSWERS = ("choices[0].message.content", "output", "answer", "response", "text", "content", "result")


def _is_method(value: Any) -> bool:
    return isinstance(value, str) and value.upper() in METHODS


HTTP_KEYS = (
    OwnKey(("method",), f"one of {', '.join(METHODS)}", _is_method),
    OwnKey(("headers",), "a mapping of header names to texts", is_text_mapping),
    OwnKey(("body",), "a mapping, a list or a text", lambda value: isinstance(value, dict | list | str)),
    OwnKey(
        RESPONSE_KEYS,
        "a path such as `choices[0].message.content`, or JavaScript",
        is_text,
    ),
    OwnKey(("url",), "an address", is_text),
    *LIMIT_KEYS,
)
_NOT_DONE = {
    "auth": "put the key into `headers`",
    "multipart": "send JSON or text in `body`, or use a Python provider",
    "queryParams": "write them into the address: ...?q={{ prompt }}",
    "request": "write `method`, `headers` and `body` apart",
    "sessionParser": "use a Python provider",
    "sessionSource": "use a Python provider",
    "signatureAuth": "use a Python provider",
    "tls": "name certificates in SSL_CERT_FILE",
    "transformRequest": "write what is sent into `body`, with {{ prompt }} in it",
    "validateStatus": "a status of 2xx is an answer, and any other an error",
}
"""What others do and this provider does not, with what to do instead."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """One HTTP API. `url` and `body` hold placeholders; without a body the prompt is sent as `{"prompt": ...}`."""

    id: str
    label: str
    url: str = field(repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Any = field(default=None, repr=False)
    response_path: tuple[PathStep, ...] = ()
    response_code: ResponseCode | None = None
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    price: Price | None = None


class HttpProvider:
    """Sends the prompt as the config says and takes the answer from the place that it names."""

    is_cacheable = True

    def __init__(self, settings: HttpSettings, transport: Transport | None = None) -> None:
        self._settings = settings
        self.identity = _identity(settings)
        self._transport = transport or Transport()
        self._context = CallContext(settings.id, settings.secrets)

    def __repr__(self) -> str:
        return f"HttpProvider({self._settings!r})"

    @property
    def id(self) -> str:
        return self._settings.id

    @property
    def label(self) -> str:
        return self._settings.label

    @property
    def limits(self) -> ProviderLimits:
        return self._settings.limits

    @property
    def price(self) -> Price | None:
        return self._settings.price

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """One answer, whatever number is asked for: an API of this kind knows nothing of several."""
        settings = self._settings
        context = self._context
        if settings.price is not None:
            settings.price.prepare()
        reply = await self._transport.send(self._call(Places(request)), context)
        text = await _answer_text(reply, settings, context)
        dropped = (("logprobs",) if request.want_logprobs else ()) + (
            ("n",) if len(request.sample_indexes) > 1 else ()
        )
        return ModelResponse((Choice(text),), self._usage(reply), reply.latency_ms, dropped=dropped)

    async def aclose(self) -> None:
        if self._settings.response_code is not None:
            self._settings.response_code.close()
        await self._transport.aclose()

    def _call(self, places: Places) -> HttpCall:
        settings = self._settings
        try:
            url = places.fill_url(settings.url)
            body, headers = _request_body(settings, places)
        except LookupError as error:
            hint = "give every test that uses this provider the variable"
            raise ProviderRequestError(f"{self.id}: {error}", provider_id=self.id, hint=hint) from error
        return HttpCall(
            url, {**headers, **settings.headers}, body, settings.method, settings.limits.timeout_s
        )

    def _usage(self, reply: HttpReply) -> Usage:
        """Tokens as far as the API counts them in the way of chat completions."""
        body = _json_of(reply)
        tokens = read_chat_usage(body) if isinstance(body, dict) else None
        counted = tokens or TokenUsage()
        price = self._settings.price
        cost = None if price is None else price.cost_usd(tokens)
        return Usage(1, counted.input_tokens, counted.output_tokens, cost_usd=cost)


def check(source: ProviderSource) -> list[Problem]:
    """What is wrong with the config of an HTTP provider."""
    problems = check_settings(source, HTTP_KEYS)
    for key in _NOT_DONE.keys() & source.spec.config.keys():
        message = f"`{key}` of an HTTP provider is not supported"
        problems.append(source.problem(message, key=key, hint=_NOT_DONE[key]))
    for key in RESPONSE_KEYS:
        written = source.spec.config.get(key)
        is_code = isinstance(written, str) and written != "" and not is_path(written)
        problem = code_problem(str(written), source.base_dir, source.access) if is_code else None
        if problem is not None:
            message, hint = problem
            hint = hint or "write a path such as `choices[0].message.content`, or JavaScript over `json`"
            message = f"`{key}` is no path, and as code: {message}"
            problems.append(source.problem(message, key=key, hint=hint))
    return problems


def build(source: ProviderSource) -> HttpProvider:
    """The provider that a checked `source` describes."""
    settings = own_settings(source.spec.config, HTTP_KEYS)
    url = settings.get("url", source.spec.id)
    written = settings.get("response_path", "")
    return HttpProvider(
        HttpSettings(
            id=source.id,
            label=source.label,
            url=url,
            secrets=Secrets(source.secret_values),
            method=settings.get("method", "GET" if _has_no_body(source) else "POST").upper(),
            headers={name.lower(): str(value) for name, value in settings.get("headers", {}).items()},
            body=settings.get("body"),
            response_path=parse_path(written) if is_path(written) else (),
            response_code=ResponseCode(written, source.base_dir, source.access)
            if written and not is_path(written)
            else None,
            limits=limits_of(settings),
            price=price_of(settings, url=url),
        )
    )


def _identity(settings: HttpSettings) -> ProviderIdentity:
    headers = {name: keyed_value(name, value) for name, value in settings.headers.items()}
    code = settings.response_code
    path: Any = list(settings.response_path) if code is None else code.digest_text
    params = {"method": settings.method, "headers": headers, "body": settings.body, "response_path": path}
    used = variables_in([settings.url, settings.body])
    return ProviderIdentity("http", "", keyed_url(settings.url), params, used)


def _has_no_body(source: ProviderSource) -> bool:
    return "body" not in source.spec.config and has_place(source.spec.id)


def _request_body(settings: HttpSettings, places: Places) -> tuple[bytes, dict[str, str]]:
    body = settings.body
    if body is None:
        if settings.method == "GET":
            return b"", {}
        body = {"prompt": "{{ prompt }}"}
    if isinstance(body, str):
        is_json = body.lstrip()[:1] in {"{", "["}
        text = places.fill_json_text(body) if is_json else places.fill_text(body)
        return text.encode("utf-8", "replace"), {
            "content-type": "application/json" if is_json else "text/plain"
        }
    filled = json.dumps(places.fill(body), ensure_ascii=False)
    return filled.encode("utf-8", "replace"), {"content-type": "application/json"}


async def _answer_text(reply: HttpReply, settings: HttpSettings, context: CallContext) -> str:
    if settings.response_code is not None:
        return _as_text(await settings.response_code.answer(reply, _json_of(reply), context))
    path = settings.response_path
    try:
        value = json.loads(reply.body)
    except ValueError as error:
        if path:
            raise response_error("an answer that is not JSON", reply, context) from error
        return reply.text
    if path:
        return _as_text(_follow(value, path, reply, context))
    if not isinstance(value, dict):
        return _as_text(value)
    for known in _KNOWN_ANSWERS:
        try:
            found = follow_path(value, parse_path(known))
        except LookupError:
            continue
        if isinstance(found, str):
            return found
    return reply.text


def _json_of(reply: HttpReply) -> Any:
    """The body as JSON; None when it is none."""
    try:
        return json.loads(reply.body)
    except ValueError:
        return None


def _follow(value: Any, path: tuple[PathStep, ...], reply: HttpReply, context: CallContext) -> Any:
    try:
        return follow_path(value, path)
    except LookupError as error:
        message = f"{context.provider_id} sent JSON in which `response_path` leads nowhere: {error}"
        raise ProviderShapeError(
            message,
            provider_id=context.provider_id,
            status=reply.status,
            body=context.secrets.excerpt(reply.text),
            hint="compare `response_path` with the answer",
        ) from error


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
