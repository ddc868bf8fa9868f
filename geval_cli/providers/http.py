"""`http://...`, `https://...`: any HTTP API, its request and the place of the answer described in the config."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from geval_cli.errors import Problem, ProviderResponseError
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.conversation import message_list, prompt_text
from geval_cli.providers.json_path import PathStep, follow_path, parse_path
from geval_cli.providers.options import (
    LIMIT_KEYS,
    OwnKey,
    check_settings,
    is_text,
    is_text_mapping,
    limits_of,
    own_settings,
)
from geval_cli.providers.redaction import Secrets, is_secret_name, public_url, secret_values
from geval_cli.providers.refusals import CallContext, HttpReply
from geval_cli.providers.source import ProviderSource
from geval_cli.providers.transport import HttpCall, Transport, response_error
from geval_cli.records import Choice, Message, ModelRequest, ModelResponse, Usage

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

_PLACEHOLDER = re.compile(r"\{\{\s*(prompt|messages)\s*(?:\|\s*(?:dump|tojson|safe)\s*)?\}\}")
_KNOWN_ANSWERS = ("choices[0].message.content", "output", "answer", "response", "text", "content", "result")


def _is_method(value: Any) -> bool:
    return isinstance(value, str) and value.upper() in METHODS


def _is_path(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(parse_path(value))
    except ValueError:
        return False


HTTP_KEYS = (
    OwnKey(("method",), f"one of {', '.join(METHODS)}", _is_method),
    OwnKey(("headers",), "a mapping of header names to texts", is_text_mapping),
    OwnKey(("body",), "a mapping, a list or a text", lambda value: isinstance(value, dict | list | str)),
    OwnKey(
        ("response_path", "responsePath", "transformResponse", "responseParser"),
        "a path such as `choices[0].message.content`",
        _is_path,
    ),
    OwnKey(("url",), "an address", is_text),
    *LIMIT_KEYS,
)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """One HTTP API. `body` holds `{{ prompt }}` or `{{ messages }}`; None sends the prompt as `{"prompt": ...}`."""

    id: str
    label: str
    url: str = field(repr=False)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Any = field(default=None, repr=False)
    response_path: tuple[PathStep, ...] = ()
    limits: ProviderLimits = field(default_factory=ProviderLimits)


class HttpProvider:
    """Sends the prompt as the config says and takes the answer from the place that it names."""

    is_cacheable = True

    def __init__(self, settings: HttpSettings, transport: Transport | None = None) -> None:
        self._settings = settings
        self._transport = transport or Transport()
        self._context = CallContext(settings.id, Secrets(secret_values(settings.headers, settings.url)))

    def __repr__(self) -> str:
        return f"HttpProvider({self._settings!r})"

    @property
    def id(self) -> str:
        return public_url(self._settings.id)

    @property
    def label(self) -> str:
        return self._settings.label

    @property
    def limits(self) -> ProviderLimits:
        return self._settings.limits

    @property
    def identity(self) -> ProviderIdentity:
        settings = self._settings
        plain = {name: value for name, value in settings.headers.items() if not is_secret_name(name)}
        path = list(settings.response_path)
        params = {"method": settings.method, "headers": plain, "body": settings.body, "response_path": path}
        return ProviderIdentity("http", "", public_url(settings.url), params)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """One answer, whatever number is asked for: an API of this kind knows nothing of several."""
        settings = self._settings
        context = CallContext(self.id, self._context.secrets)
        body, headers = _request_body(settings, request.messages)
        call = HttpCall(
            fill_url(settings.url, request.messages),
            {**headers, **settings.headers},
            body,
            settings.method,
            settings.limits.timeout_s,
        )
        reply = await self._transport.send(call, context)
        text = _answer_text(reply, settings.response_path, context)
        dropped = (("logprobs",) if request.want_logprobs else ()) + (
            ("n",) if len(request.sample_indexes) > 1 else ()
        )
        usage = Usage(requests=1, cost_usd=None)
        return ModelResponse((Choice(text),), usage, reply.latency_ms, dropped=dropped)

    async def aclose(self) -> None:
        await self._transport.aclose()


def check(source: ProviderSource) -> list[Problem]:
    """What is wrong with the config of an HTTP provider."""
    return check_settings(source, HTTP_KEYS)


def build(source: ProviderSource) -> HttpProvider:
    """The provider that a checked `source` describes."""
    settings = own_settings(source.spec.config, HTTP_KEYS)
    return HttpProvider(
        HttpSettings(
            id=source.spec.id,
            label=source.spec.label or public_url(source.spec.id),
            url=settings.get("url", source.spec.id),
            method=settings.get("method", "GET" if _has_no_body(source) else "POST").upper(),
            headers={name.lower(): str(value) for name, value in settings.get("headers", {}).items()},
            body=settings.get("body"),
            response_path=parse_path(settings.get("response_path", "")),
            limits=limits_of(settings),
        )
    )


def fill_template(template: Any, messages: tuple[Message, ...]) -> Any:
    """`template` with the prompt in it. A text that is nothing but `{{ messages }}` becomes the list itself."""
    if isinstance(template, dict):
        return {name: fill_template(item, messages) for name, item in template.items()}
    if isinstance(template, list):
        return [fill_template(item, messages) for item in template]
    if not isinstance(template, str):
        return template
    whole = _PLACEHOLDER.fullmatch(template.strip())
    if whole and whole[1] == "messages":
        return message_list(messages)
    return _PLACEHOLDER.sub(lambda found: _value(found[1], messages), template)


def fill_json_text(template: str, messages: tuple[Message, ...]) -> str:
    """JSON text with the prompt in it: escaped inside quotes, elsewhere as a JSON value of its own."""

    def fill(found: re.Match[str]) -> str:
        is_quoted = template[: found.start()].count('"') % 2 == 1
        if found[1] == "messages" and not is_quoted:
            return json.dumps(message_list(messages), ensure_ascii=False)
        text = json.dumps(_value(found[1], messages), ensure_ascii=False)
        return text[1:-1] if is_quoted else text

    return _PLACEHOLDER.sub(fill, template)


def fill_url(url: str, messages: tuple[Message, ...]) -> str:
    """`url` with the prompt in it, percent-encoded."""
    return _PLACEHOLDER.sub(lambda found: quote(_value(found[1], messages), safe=""), url)


def _value(name: str, messages: tuple[Message, ...]) -> str:
    return (
        prompt_text(messages) if name == "prompt" else json.dumps(message_list(messages), ensure_ascii=False)
    )


def _has_no_body(source: ProviderSource) -> bool:
    return "body" not in source.spec.config and _PLACEHOLDER.search(source.spec.id) is not None


def _request_body(settings: HttpSettings, messages: tuple[Message, ...]) -> tuple[bytes, dict[str, str]]:
    body = settings.body
    if body is None:
        if settings.method == "GET":
            return b"", {}
        body = {"prompt": "{{ prompt }}"}
    if isinstance(body, str):
        is_json = body.lstrip()[:1] in {"{", "["}
        text = fill_json_text(body, messages) if is_json else fill_template(body, messages)
        return str(text).encode(), {"content-type": "application/json" if is_json else "text/plain"}
    filled = json.dumps(fill_template(body, messages), ensure_ascii=False)
    return filled.encode("utf-8", "replace"), {"content-type": "application/json"}


def _answer_text(reply: HttpReply, path: tuple[PathStep, ...], context: CallContext) -> str:
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


def _follow(value: Any, path: tuple[PathStep, ...], reply: HttpReply, context: CallContext) -> Any:
    try:
        return follow_path(value, path)
    except LookupError as error:
        message = f"{context.provider_id} sent JSON in which `response_path` leads nowhere: {error}"
        raise ProviderResponseError(
            message,
            provider_id=context.provider_id,
            status=reply.status,
            body=context.secrets.excerpt(reply.text),
            hint="compare `response_path` with the answer",
        ) from error


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
