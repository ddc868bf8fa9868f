"""`http://...`, `https://...`: any HTTP API, with its request described in the config.

The config's path or code extracts the answer; without either, geval looks where most APIs put it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlencode, urlunsplit

from msgspec.structs import replace

from geval_cli.errors import (
    Problem,
    ProviderRequestError,
    ProviderResponseError,
    ProviderShapeError,
    TemplateError,
)
from geval_cli.extras.http_provider.placeholders import (
    RESPONSE_KEYS,
    HttpTemplates,
    PathStep,
    PlaceholderValues,
    follow_path,
    has_place,
    is_path,
    names_in,
    parse_path,
    problems_of,
    unknown_placeholder,
    variables_in,
)
from geval_cli.json_codec import decode_json
from geval_cli.patterns import compile_later
from geval_cli.plugins import extra
from geval_cli.providers.base import ProviderIdentity, ProviderLimits, ProviderSource
from geval_cli.providers.network.addresses import (
    ClientCertificate,
    certificate_of,
    check_certificate,
    split_url,
)
from geval_cli.providers.network.messages import HttpCall, HttpResponse, Signer
from geval_cli.providers.network.transport import Transport, response_error
from geval_cli.providers.options import (
    CERTIFICATE_KEYS,
    LIMIT_KEYS,
    OwnKey,
    check_settings,
    is_text,
    is_text_mapping,
    limits_of,
    own_settings,
)
from geval_cli.providers.prices import Price, price_of
from geval_cli.providers.redaction import Secrets, keyed_url, keyed_value
from geval_cli.providers.wire.chat import (
    NotAnAnswer,
    error_in,
    parse_choices,
    refuse_other_status,
    reported_finish_reason,
    reported_logprobs,
    reports_trouble,
)
from geval_cli.providers.wire.finish_reasons import FinishReason, known_end
from geval_cli.providers.wire.refusals import HEADERS_SOURCE, CallContext
from geval_cli.providers.wire.token_usage import (
    Exchange,
    TokenUsage,
    plausible_tokens,
    read_chat_usage,
    reported_cost_usd,
    reported_usage,
)
from geval_cli.records import Choice, JsonValue, ModelRequest, ModelResponse, Usage
from geval_cli.source.secrets import secret_values
from geval_cli.templating import Templates, is_template, templates_of
from geval_cli.templating.js_text import js_json


class AnswerCode(Protocol):
    """Code from the config that extracts the answer from a reply."""

    @property
    def digest_text(self) -> str:
        """Return the code as text, for cache keys; for a file, its content."""
        ...

    async def answer(self, reply: HttpResponse, body: JsonValue, context: CallContext) -> JsonValue:
        """Return the code's result for a reply whose JSON is `body`; it may be a mapping with `output`.

        Raises:
            ProviderShapeError: the code fails or returns nothing.
        """
        ...

    def close(self) -> None:
        """Shut down the engine that runs the code. Safe to call twice."""
        ...


def code_error(what: str, reply: HttpResponse, context: CallContext) -> ProviderShapeError:
    """Return the error to raise when code cannot extract an answer from a reply."""
    return ProviderShapeError(
        f"{context.provider_id} answered, but {what}",
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
        hint="check it against the answer; it gets `json`, `text` and `context`",
    )


_KNOWN_ANSWERS = ("choices[0].message.content", "output", "answer", "response", "text", "content", "result")


_WITHOUT_CONTENT = (HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT)
# For this path the whole chat completion is parsed: whether it is complete, and its tool calls.
_CHAT_PATH = parse_path("choices[0].message.content")


async def find_answer(
    reply: HttpResponse,
    context: CallContext,
    *,
    path: tuple[PathStep, ...] = (),
    code: AnswerCode | None = None,
    selects_all: bool = False,
    may_be_page: bool = True,
) -> Choice:
    """Return the answer in a reply: at `path`, or from `code`, or else where most APIs put it.

    With `selects_all` there is no such search: without `path` and `code`, the whole JSON of the reply is the answer.
    Without `may_be_page`, a web page, such as one to log in, is no answer.

    Raises:
        ProviderShapeError: there is no answer.
    """
    if code is not None:
        made = await code.answer(reply, json_of(reply), context)
        if not isinstance(made, dict) or "output" not in made:
            return _choice(made)
        if made.get("error"):
            raise code_error(f"`transformResponse` reported an error: {made['error']}", reply, context)
        beside = context.secrets.hide_in({key: item for key, item in made.items() if key != "output"})
        logprobs = reported_logprobs(beside)
        reason = reported_finish_reason(beside)
        end = None if reason is None or selects_all else known_end(reason)
        if end is not None and not end.is_answer:
            raise response_error(f"no whole answer (finish reason: {reason})", reply, context)
        choice = _choice(made["output"])
        return replace(choice, finish_reason=reason, token_logprobs=logprobs, reported=beside)
    if reply.status in _WITHOUT_CONTENT and not selects_all:
        raise response_error(f"no answer (HTTP {reply.status})", reply, context)
    if "x-amz-function-error" in reply.headers and not selects_all:
        raise response_error("an error instead of an answer", reply, context)
    try:
        value = reply.json()
    except ValueError as error:
        if path:
            raise response_error("an answer that is not JSON", reply, context) from error
        if not selects_all:
            _refuse_text(reply, context, may_be_page=may_be_page)
        return Choice(reply.text)
    if isinstance(value, dict) and (path == _CHAT_PATH or not (path or selects_all)):
        answered = _chat_choice(value, reply, context)
        if answered is not None:
            return answered
    end = _end_beside(value, path, reply, context) if isinstance(value, dict) and not selects_all else None
    if path:
        found = _follow(value, path, reply, context)
    elif selects_all:
        found = value or reply.text
    else:
        found = _known_answer(value)
        if found is _NOWHERE:
            _refuse_failure(value, reply, context)
            found = value if not isinstance(value, dict) else reply.text
    if found is None:
        raise response_error("an answer that is null", reply, context)
    choice = _choice(found)
    return choice if end is None else replace(choice, finish_reason=end.value)


def _chat_choice(value: Mapping[str, Any], reply: HttpResponse, context: CallContext) -> Choice | None:
    """Return the answer of a chat API; None if the reply is not from one, or its content is not text.

    Raises:
        ProviderResponseError: the reply reports an error, or its answer is not valid.
    """
    if reports_trouble(value):
        raise response_error("an error instead of an answer", reply, context)
    listed = value.get("choices")
    first = listed[0] if isinstance(listed, list) and listed else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | list | None):
        return None
    _refuse_wrong(value, reply, context)
    choices, wrong = parse_choices(value)
    if not choices:
        raise response_error(context.secrets.redact(wrong), reply, context)
    return choices[0]


# Where vendors' APIs say why an answer ended; a path selects only its text.
_ENDS = tuple(
    map(
        parse_path,
        (
            "choices[0].finish_reason",
            "candidates[0].finishReason",
            "stop_reason",
            "stopReason",
            "done_reason",
            "finish_reason",
            "incomplete_details.reason",
        ),
    )
)


_ANSWERS = (parse_path("choices[0]"), parse_path("candidates[0]"))


def _refuse_wrong(part: Mapping[str, Any], reply: HttpResponse, context: CallContext) -> None:
    """Raise ProviderResponseError if part of a vendor's reply reports an error or an incomplete answer."""
    if error_in(part) is not None:
        raise response_error("an error next to the answer", reply, context)
    try:
        refuse_other_status(part)
    except NotAnAnswer as error:
        raise response_error(context.secrets.redact(str(error)), reply, context) from error


def _end_beside(
    value: Mapping[str, Any], path: tuple[PathStep, ...], reply: HttpResponse, context: CallContext
) -> FinishReason | None:
    """Return why the answer at a path ended; None if the reply gives no reason that geval knows.

    Raises:
        ProviderResponseError: the answer is incomplete, or the reply also reports an error.
    """
    # A `status` or a `code` may be data of the application.
    told = {name: value[name] for name in ("error", "success", "ok") if name in value and path[:1] != (name,)}
    if reports_trouble(told):
        raise response_error("an error next to the answer", reply, context)
    reasons: list[Any] = [value.get("status")] if isinstance(value.get("output"), list) else []
    for known in _ENDS:
        with suppress(LookupError):
            reasons.append(follow_path(value, known))
    ends = [end for reason in reasons if isinstance(reason, str) and (end := known_end(reason)) is not None]
    for known in _ANSWERS:
        with suppress(LookupError):
            found = follow_path(value, known)
            if isinstance(found, dict):
                _refuse_wrong(found, reply, context)
    is_open = value.get("done") is False  # Ollama
    if is_open or not all(end.is_answer for end in ends):
        raise response_error("no whole answer", reply, context)
    return ends[-1] if ends else None


_NOWHERE = object()
# What Amazon's Lambda and others write in place of an answer, with a status of 200.
_FAILURES = ("errorMessage", "error_message", "errorType", "exception", "faultstring")
_STATUSES = ("status", "statusCode", "status_code")
# JSON with these keys alone is a server's remark on the request, not an answer, unless a path names one of them.
_REMARKS = ("message", "msg", "detail", "details", "reason", "description", "title", "status", "state")
_BESIDE_REMARKS = {
    *("id", "instance", "object", "path", "type", "url", "version"),
    *("code", "success", "ok", "error", "errors", "statusCode", "status_code"),
    *("job_id", "jobId", "task_id", "taskId", "request_id", "requestId", "trace_id", "traceId"),
    *("time", "timestamp", "created", "created_at", "createdAt"),
}
_PAGE = (b"<!doctype html", b"<html")
_NO_STREAM = "turn streaming off in `body`, for example with `stream: false`"


def _refuse_text(reply: HttpResponse, context: CallContext, *, may_be_page: bool) -> None:
    """Raise ProviderResponseError for a reply that is not JSON, and no text that could be the answer either."""
    kind, start = reply.headers.get("content-type", "").lower(), reply.body.lstrip()
    if not start:
        raise response_error("an answer with an empty body", reply, context)
    _refuse_pending(reply, context)
    if kind.startswith("text/event-stream") or start.startswith(b"data: {"):
        raise _final_error("an event stream instead of an answer", reply, context, _NO_STREAM)
    if not may_be_page and start[:15].lower().startswith(_PAGE):
        hint = "check the address and the key; if the page is the answer, write `response_path: (json, text) => text`"
        raise _final_error("HTML instead of an answer", reply, context, hint)
    if "json" in kind and start.startswith((b"{", b"[")):
        if all(_is_json(line) for line in start.splitlines() if line.strip()):
            raise _final_error("a stream of JSON lines instead of an answer", reply, context, _NO_STREAM)
        raise response_error("an answer that is not JSON", reply, context)


def _refuse_pending(reply: HttpResponse, context: CallContext) -> None:
    """Raise ProviderResponseError for a reply that only promises an answer."""
    if reply.status == HTTPStatus.ACCEPTED:
        hint = "fetch the answer in a Python provider, or have the server wait for it"
        raise _final_error("no answer yet (HTTP 202)", reply, context, hint)


def _final_error(what: str, reply: HttpResponse, context: CallContext, hint: str) -> ProviderResponseError:
    """Return the error for a reply that would be the same, and cost the same, if the request were sent again."""
    error = response_error(what, reply, context)
    error.is_retryable, error.hint = False, hint
    return error


def _is_json(line: bytes) -> bool:
    try:
        decode_json(line)
    except ValueError:
        return False
    return True


def _refuse_failure(value: Any, reply: HttpResponse, context: CallContext) -> None:
    """Raise ProviderResponseError for JSON without an answer in any usual place that reports a failure."""
    _refuse_pending(reply, context)
    if "problem+json" in reply.headers.get("content-type", ""):
        raise response_error("an error instead of an answer", reply, context)
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, dict):
            continue
        statuses = (part.get(name) for name in _STATUSES)
        is_failure = any(isinstance(status, int) and 400 <= status < 600 for status in statuses)  # noqa: PLR2004
        if is_failure or reports_trouble(part) or any(part.get(name) for name in _FAILURES):
            raise response_error("an error instead of an answer", reply, context)
    if isinstance(value, dict):
        _refuse_remarks(value, reply, context)


def _refuse_remarks(value: Mapping[str, Any], reply: HttpResponse, context: CallContext) -> None:
    """Raise ProviderResponseError for JSON that only remarks on the request, such as `{"status": "queued"}`."""
    said = {name: item for name, item in value.items() if item not in (None, "", [], {})}
    remarks = [name for name in _REMARKS if isinstance(said.get(name), str)]
    are_flat = not any(isinstance(item, list | dict) for item in said.values())
    if remarks and are_flat and said.keys() <= _BESIDE_REMARKS.union(_REMARKS):
        what = f"JSON with nothing but {', '.join(f'`{name}`' for name in list(said)[:4])}"
        hint = f"if the answer is there, write `response_path: {remarks[0]}`"
        raise _final_error(what, reply, context, hint)


def _known_answer(value: Any) -> Any:
    """Return the answer where most APIs put it, `_NOWHERE` if there is none; None if the value there is null."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else _NOWHERE
    is_null = False
    for known in _KNOWN_ANSWERS:
        try:
            found = follow_path(value, parse_path(known))
        except LookupError:
            continue
        if isinstance(found, str):
            return found
        # A null in one known place may come with an answer in another: keep looking.
        is_null = is_null or found is None
    return None if is_null else _NOWHERE


def json_of(reply: HttpResponse) -> Any:
    """Return the body as JSON; None if it is not JSON."""
    try:
        return reply.json()
    except ValueError:
        return None


def _follow(value: Any, path: tuple[PathStep, ...], reply: HttpResponse, context: CallContext) -> Any:
    try:
        return follow_path(value, path)
    except LookupError as error:
        message = f"{context.provider_id} sent JSON in which `response_path` finds nothing: {error}"
        raise ProviderShapeError(
            message,
            provider_id=context.provider_id,
            status=reply.status,
            body=context.secrets.excerpt(reply.text),
            hint="check `response_path` against the answer",
        ) from error


def _choice(value: JsonValue) -> Choice:
    if isinstance(value, str):
        return Choice(value)
    return Choice(json.dumps(value, ensure_ascii=False), is_data=value is not None)


_JSON, _JSON_TYPE, _FORM_TYPE = "json", "application/json", "application/x-www-form-urlencoded"
_BREAKS = compile_later(r"[\t\r\n]")
_TEMPLATE_KEYS = ("url", "method", "headers", "query_params", "queryParams", "body")

_AWS = "signatures of AWS"

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _is_method(value: Any) -> bool:
    return isinstance(value, str) and (value.upper() in METHODS or is_template(value))


def _is_sign(value: Any) -> bool:
    return bool(extra(_AWS).is_sign(value))


HTTP_KEYS = (
    OwnKey(("method",), f"one of {', '.join(METHODS)}", _is_method),
    OwnKey(("query_params", "queryParams"), "a mapping of names to strings", is_text_mapping),
    OwnKey(("headers",), "a mapping of header names to strings", is_text_mapping),
    OwnKey(("body",), "a mapping, a list or a string", lambda value: isinstance(value, dict | list | str)),
    OwnKey(
        RESPONSE_KEYS,
        "a path such as `choices[0].message.content`, or JavaScript",
        is_text,
    ),
    OwnKey(("url",), "an address", is_text),
    OwnKey(("sign",), "`aws`, or a mapping of `aws` to `service`, `region` and `profile`", _is_sign),
    *CERTIFICATE_KEYS,
    *LIMIT_KEYS,
)
_NOT_DONE = {
    "auth": "put the key into `headers`",
    "multipart": "send JSON or text in `body`, or use a Python provider",
    "request": "write `method`, `headers` and `body` as separate keys",
    "sessionParser": "use a Python provider",
    "sessionSource": "use a Python provider",
    "signatureAuth": "write `sign: aws` for Amazon's services, or use a Python provider",
    "tls": (
        "put your certificate into `client_cert` and `client_key`, and the ones to trust into SSL_CERT_FILE"
    ),
    "transformRequest": "put what to send into `body`, with {{ prompt }} in it",
    "validateStatus": "leave it out: 2xx is an answer, any other status is an error",
}
"""Options of other tools that this provider lacks, with what to do instead."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The settings of one HTTP API; URL, query and body may contain placeholders.

    Without a body, the prompt is sent as `{"prompt": ...}`. With `templates`, they render the whole request; `env`
    holds the environment variables that they see.
    """

    id: str
    label: str
    url: str = field(repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    templates: Templates | None = field(default=None, repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Any = field(default=None, repr=False)
    response_path: tuple[PathStep, ...] = ()
    response_code: AnswerCode | None = None
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    price: Price | None = None
    certificate: ClientCertificate | None = None
    signer: Signer | None = None


class HttpProvider:
    """Sends the prompt as the config describes and extracts the answer from the reply."""

    is_cacheable = True

    def __init__(self, settings: HttpSettings, transport: Transport | None = None) -> None:
        self._settings = settings
        headers = {name: keyed_value(name, value) for name, value in settings.headers.items()}
        code = settings.response_code
        path: Any = list(settings.response_path) if code is None else code.digest_text
        params = {"method": settings.method, "headers": headers, "body": settings.body, "response_path": path}
        if settings.query:
            params["query"] = {name: keyed_value(name, value) for name, value in settings.query.items()}
        parts = [settings.url, settings.body, list(settings.query.values()), list(settings.headers.values())]
        if settings.templates is None:
            used = variables_in(parts)
        else:
            used = names_in([*parts, settings.method])
            params["templates"] = str(settings.templates.rules.name)
            if "env" in used:
                seen = {name: settings.env[name] for name in used if name in settings.env}
                params["env"] = {name: keyed_value("authorization", value) for name, value in seen.items()}
        self.identity = ProviderIdentity("http", "", keyed_url(settings.url), params, used)
        self._transport = transport or Transport(certificate=settings.certificate, signer=settings.signer)
        self._context = CallContext(
            settings.id,
            settings.secrets,
            key_source=_key_source(settings),
            key_hint="set `headers` to what the server wants",
            address="the provider's URL",
        )

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
        """Return one answer, however many were requested: such an API has no parameter for several."""
        settings = self._settings
        context = self._context
        if settings.price is not None:
            settings.price.prepare()
        call = self._call(request)
        reply = await self._transport.send(call, context)
        try:
            choice = await find_answer(
                reply,
                context,
                path=settings.response_path,
                code=settings.response_code,
                selects_all=settings.templates is not None,
                may_be_page=call.method == "GET",
            )
        except ProviderResponseError as error:
            body = json_of(reply)
            tokens = read_chat_usage(body) if isinstance(body, dict) else None
            tokens = plausible_tokens(tokens, Exchange((call.url, call.body)))
            if tokens is not None:
                error.cost_usd = None if settings.price is None else settings.price.cost_usd(tokens)
                error.input_tokens, error.output_tokens = tokens.input_tokens, tokens.output_tokens
            raise
        lacks_logprobs = request.want_logprobs and choice.token_logprobs is None
        dropped = (("logprobs",) if lacks_logprobs else ()) + (
            ("n",) if len(request.sample_indexes) > 1 else ()
        )
        # Tokens as reported by `transformResponse`, else by the API in the format of chat completions.
        body = json_of(reply)
        tokens = reported_usage(choice.reported.get("tokenUsage"))
        if tokens is None and isinstance(body, dict):
            tokens = read_chat_usage(body)
        tokens = plausible_tokens(tokens, Exchange((call.url, call.body), (choice.text,)))
        counted = tokens or TokenUsage()
        price = self._settings.price
        cost = None if price is None else price.cost_usd(tokens)
        if "cost" in choice.reported:
            cost = reported_cost_usd(choice.reported["cost"])
        usage = Usage(1, counted.input_tokens, counted.output_tokens, cost_usd=cost)
        said = settings.secrets.hide_echo(choice)
        return ModelResponse((said,), usage, reply.latency_ms, dropped=dropped)

    async def aclose(self) -> None:
        if self._settings.response_code is not None:
            self._settings.response_code.close()
        await self._transport.aclose()

    def _call(self, request: ModelRequest) -> HttpCall:
        settings = self._settings
        try:
            if settings.templates is not None:
                return _rendered_call(settings, HttpTemplates(settings.templates, request))
            places = PlaceholderValues(request)
            query = {name: places.fill_text(value) for name, value in settings.query.items()}
            url = _with_query(places.fill_url(settings.url), query)
            own_headers = {name: places.fill_text(value) for name, value in settings.headers.items()}
            body, headers = _request_body(settings, places)
            return HttpCall(url, {**headers, **own_headers}, body, settings.method, settings.limits.timeout_s)
        except (LookupError, TemplateError, ValueError) as error:
            hint = "set the variable in every test that uses this provider"
            if not isinstance(error, LookupError):
                hint = getattr(error, "hint", "") or "see the templates in the provider's config"
            raise ProviderRequestError(f"{self.id}: {error}", provider_id=self.id, hint=hint) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems with the config of an HTTP provider."""
    problems = check_settings(source, HTTP_KEYS, further=(*_NOT_DONE, *RESPONSE_KEYS))
    problems += [*check_certificate(source), *_template_problems(source)]
    if "sign" in source.spec.config:
        problems += extra(_AWS).check_sign(source)
    for key in _NOT_DONE.keys() & source.spec.config.keys():
        message = f"`{key}` of an HTTP provider is not supported"
        problems.append(source.problem(message, key=key, hint=_NOT_DONE[key]))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Report what is missing to sign requests, if the config says `sign`."""
    if "sign" not in source.spec.config:
        return []
    problems: list[Problem] = extra(_AWS).missing_for_sign(source)
    return problems


def _template_problems(source: ProviderSource) -> Iterator[Problem]:
    """Yield the problems with a request's templates if the dialect has templates; otherwise only check `method`."""
    if not source.rules.http_templates:
        method = source.spec.config.get("method")
        if isinstance(method, str) and is_template(method):
            hint = "templates are allowed here only in promptfoo configs"
            yield source.problem(f"`method` must be one of {', '.join(METHODS)}", key="method", hint=hint)
        for key in (None, "url", "headers", "query_params", "queryParams", "body"):
            unknown = unknown_placeholder(source.spec.id if key is None else source.spec.config.get(key))
            if unknown is not None:
                message = f"`{unknown[0]}` would be sent as it is written"
                yield source.problem(message, key=key, hint=unknown[1])
        return
    templates = templates_of(source.rules, source.env)
    parts: list[tuple[str | None, Any]] = [(key, source.spec.config.get(key)) for key in _TEMPLATE_KEYS]
    for key, part in [(None, source.spec.id), *parts]:
        for error in problems_of(part, templates):
            yield source.problem(error.message, key=key, hint=error.hint)


def build(source: ProviderSource, code: AnswerCode | None = None) -> HttpProvider:
    """Return the provider that a checked `source` describes; `code` replaces the path to the answer."""
    settings = own_settings(source.spec.config, HTTP_KEYS)
    url = settings.get("url", source.spec.id)
    written = settings.get("response_path", "")
    written_method = settings.get("method", "GET" if _has_no_body(source) else "POST")
    return HttpProvider(
        HttpSettings(
            id=source.id,
            label=source.label,
            url=url,
            secrets=Secrets(source.secret_values),
            method=written_method if is_template(written_method) else written_method.upper(),
            headers={name.lower(): str(value) for name, value in settings.get("headers", {}).items()},
            query={name: str(value) for name, value in settings.get("query_params", {}).items()},
            templates=templates_of(source.rules, source.env) if source.rules.http_templates else None,
            env=source.env,
            body=settings.get("body"),
            response_path=parse_path(written) if is_path(written) else (),
            response_code=code,
            limits=limits_of(settings),
            price=price_of(settings, url=url),
            certificate=certificate_of(source),
            signer=extra(_AWS).signer_of(source) if settings.get("sign") is not None else None,
        )
    )


def _key_source(settings: HttpSettings) -> str:
    """Return where the credentials in the request come from; empty if nothing in it looks like credentials."""
    if settings.signer is not None:
        return "AWS credentials"
    if secret_values(dict(settings.headers)):
        return HEADERS_SOURCE
    return "the address in the config" if secret_values([settings.url, dict(settings.query)]) else ""


def _has_no_body(source: ProviderSource) -> bool:
    url = source.spec.config.get("url") or source.spec.id
    if source.rules.http_templates:
        is_asked_by_address = is_template(str(url)) or "queryParams" in source.spec.config
    else:
        is_asked_by_address = has_place(str(url))
    return "body" not in source.spec.config and is_asked_by_address


def _rendered_call(settings: HttpSettings, templates: HttpTemplates) -> HttpCall:
    query = {name: templates.text(value) for name, value in settings.query.items()}
    # As browsers parse URLs: without line breaks and surrounding spaces.
    url = _with_query(_BREAKS.sub("", templates.text(settings.url)).strip(), query)
    method = templates.text(settings.method).strip().upper()
    if method not in METHODS:
        raise TemplateError(f"its `method` renders to `{method}`", hint=f"known: {', '.join(METHODS)}")
    headers = {name: templates.text(value) for name, value in settings.headers.items()}
    body, own_headers = _rendered_body(settings, templates, method, headers.get("content-type", ""))
    return HttpCall(url, {**own_headers, **headers}, body, method, settings.limits.timeout_s)


def _rendered_body(
    settings: HttpSettings, templates: HttpTemplates, method: str, content_type: str
) -> tuple[bytes, dict[str, str]]:
    if method == "GET":
        return b"", {}
    body = {"prompt": "{{ prompt }}"} if settings.body is None else settings.body
    if not isinstance(body, str):
        text = js_json(templates.data(body))
        default_type = _JSON_TYPE
    elif _JSON in content_type.lower() or (not content_type and body.lstrip()[:1] in {"{", "["}):
        text = templates.json_text(body)
        default_type = _JSON_TYPE
    else:
        text = templates.text(body).strip()
        default_type = _FORM_TYPE
    return text.encode("utf-8", "replace"), {"content-type": default_type}


def _with_query(url: str, query: Mapping[str, str]) -> str:
    """Return `url` with `query` appended to its parameters."""
    if not query:
        return url
    parts = split_url(url)
    return urlunsplit(
        parts._replace(query="&".join(filter(None, [parts.query, urlencode(query, errors="replace")])))
    )


def _request_body(settings: HttpSettings, places: PlaceholderValues) -> tuple[bytes, dict[str, str]]:
    body = settings.body
    if body is None:
        if settings.method == "GET":
            return b"", {}
        body = {"prompt": "{{ prompt }}"}
    told = settings.headers.get("content-type", "").lower()
    if isinstance(body, str):
        is_json = body.lstrip()[:1] in {"{", "["}
        if _FORM_TYPE in told:
            text = places.fill_url(body)
        elif is_json:
            text = places.fill_json_text(body)
        else:
            text = places.fill_text(body, escape if "xml" in told else str)
        return text.encode("utf-8", "replace"), {
            "content-type": "application/json" if is_json else "text/plain"
        }
    if _FORM_TYPE in told and isinstance(body, dict):
        fields = places.fill(body).items()
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields}
        return urlencode(texts, errors="replace").encode(), {}
    filled = json.dumps(places.fill(body), ensure_ascii=False)
    return filled.encode("utf-8", "replace"), {"content-type": "application/json"}
