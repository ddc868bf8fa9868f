"""Send requests of the chat APIs: the endpoint, the transport and the steps that their providers share.

The provider of an API defines what is sent (`payload`) and how the answer is read (`choices`, `tokens`); the rest is
here.
"""

import time
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from msgspec import structs

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderResponseError,
    UnsupportedParameterError,
)
from geval_cli.json_codec import encode_json
from geval_cli.patterns import compile_later
from geval_cli.plugins import extra
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.transport import Transport, response_error
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.prices import Price
from geval_cli.providers.unsupported import error_words, find_cap
from geval_cli.providers.wire.chat import NotAnAnswer, filtered_choice, refuse_other_status, reports_trouble
from geval_cli.providers.wire.finish_reasons import FinishReason, withheld
from geval_cli.providers.wire.parameters import CHAT_API, WireParameters
from geval_cli.providers.wire.refusals import CallContext, WrittenParameter, refusal_error, request_id_of
from geval_cli.providers.wire.token_usage import (
    Exchange,
    TokenUsage,
    plausible_tokens,
    read_chat_usage,
    text_in,
    token_limit,
)
from geval_cli.records import Choice, JsonValue, ModelRequest, ModelResponse, Role, Usage

_ID_CHARS = 200

MAX_TOP_LOGPROBS = 20
"""The most alternatives per token that OpenAI and Google give; a server that gives fewer says how many."""

_HTTP_ERROR = compile_later(r"[45][0-9]{2}")
_PICTURE = r'"inlineData"|"image_generation_call"|"image_url"\s*:|"images"\s*:\s*\[\s*\{'
_PAUSE = r'"(?:stop|native_finish)_reason"\s*:\s*"(?:pause_turn|compaction)"'
_BOUGHT_ONCE = {
    compile_later(_PICTURE): "geval judges texts: use a model that answers in words",
    compile_later(_PAUSE): "allow fewer calls of server tools, and no pause after a compaction",
}


class JsonAnswer(NamedTuple):
    """A 2xx answer: its JSON, and what an error about it needs."""

    body: Any
    reply: HttpResponse
    context: CallContext

    def refuse(self, what: str) -> ProviderResponseError:
        """Return the error to raise for a reply that is `what` instead of an answer."""
        return response_error(self.context.secrets.redact(what), self.reply, self.context)


class EndpointProvider:
    """A model behind an API. A subclass contains what is specific to one API.

    Attributes:
        answer_key: the key of the answer in a body. A body without it that has a sentence for people is an error.
        status_keys: the keys with which a body may say that it is not a complete answer.
        model_key: the key of the model's name.
        id_key: the key of the request's id, used when no header has it.
        hears: the media types of audio that requests may contain.
        sees_images: whether requests may contain images, which `payload` writes in the API's form.
        has_batches: whether the API may have batches; the endpoint says which batch API.
        writes: whether answers are texts that a model wrote, which takes tokens.
        parameters: the API's names for the parameters of configs.
    """

    is_cacheable = True
    answer_key: ClassVar[str] = "choices"
    model_key: ClassVar[str] = "model"
    id_key: ClassVar[str] = "id"
    writes: ClassVar[bool] = True
    status_keys: ClassVar[tuple[str, ...]] = ("status", "state")
    sees_images: ClassVar[bool] = False
    has_batches: ClassVar[bool] = False
    hears: ClassVar[frozenset[str]] = frozenset()
    parameters: ClassVar[WireParameters] = CHAT_API

    def __init__(self, endpoint: Endpoint, transport: Transport | None = None) -> None:
        self._endpoint = endpoint
        self.identity: ProviderIdentity = endpoint.identity
        self._transport = transport or Transport(certificate=endpoint.certificate, signer=endpoint.signer)
        self._batches: Any = None
        # Learnt from refusals such as "n must be between 1 and 4"; kept for the lifetime of the provider.
        self.caps: dict[str, int] = {"top_logprobs": MAX_TOP_LOGPROBS}
        if endpoint.max_choices is not None:
            self.caps["n"] = endpoint.max_choices

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint!r})"

    @property
    def id(self) -> str:
        return self._endpoint.id

    @property
    def label(self) -> str:
        return self._endpoint.label

    @property
    def limits(self) -> ProviderLimits:
        return self._endpoint.limits

    @property
    def price(self) -> Price | None:
        return self._endpoint.price

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Send `request`, and once more with fewer choices or alternatives if the server says how many it gives."""
        self._endpoint.prepare()
        payload = self.payload(request)
        try:
            return await self._ask(payload, request)
        except UnsupportedParameterError as error:
            if not self._learn_cap(error, request):
                raise
        return await self._ask(self.payload(request), request)

    def _learn_cap(self, error: UnsupportedParameterError, request: ModelRequest) -> bool:
        """Return whether the refusal names the accepted maximum, so that a request for that many may succeed."""
        asked = {
            "top_logprobs": self.caps["top_logprobs"] if request.want_logprobs else 0,
            "n": min(len(request.sample_indexes), self.caps.get("n", len(request.sample_indexes))),
        }
        name = "top_logprobs" if error.parameter == "logprobs" else error.parameter
        cap = find_cap(error.body) if name in asked else None
        if cap is None or not 1 <= cap < asked[name]:
            return False
        self.caps[name] = cap
        return True

    @property
    def batches(self) -> Any:
        """Return the `BatchApi` of the model; None when it has none, or the config turns batches off."""
        if self._batches is None:
            self._batches = self._new_batches()
        return self._batches

    @property
    def batch_price(self) -> Price | None:
        return self._endpoint.batch_price

    async def aclose(self) -> None:
        if self._batches is not None:
            await self._batches.aclose()
        await self._transport.aclose()

    def _new_batches(self) -> Any:
        name = self._endpoint.batch if self.has_batches else ""
        return extra(f"batches: {name}").batches_of(self._endpoint, self._transport) if name else None

    def payload(self, request: ModelRequest) -> Mapping[str, Any]:
        """Return the body to send for `request`."""
        raise NotImplementedError

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        """Return the answers in a reply, at least one.

        Raises:
            ProviderError, NotAnAnswer: no answer can be read.
        """
        raise NotImplementedError

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        """Return the tokens that the reply reports; None when it reports none."""
        return read_chat_usage(body)

    def sent_choices(self, body: Any) -> int:
        """Return how many choices a reply contains, whether or not they are answers."""
        return 1

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        """Return the parts of a request that this API does not support."""
        wished = {"logprobs": request.want_logprobs, "n": len(request.sample_indexes) > 1}
        return tuple(name for name, is_wished in wished.items() if is_wished)

    async def _ask(self, payload: Mapping[str, Any], request: ModelRequest) -> ModelResponse:
        endpoint = self._endpoint
        context = self._context_of(payload, request)
        call = HttpCall(endpoint.url, endpoint.headers, timeout_s=endpoint.limits.timeout_s)
        try:
            body, reply = await self._transport.post_json(call, payload, context)
        except ProviderRequestError as error:
            filtered = self._filtered(error, request)
            if filtered is None:
                raise
            return filtered
        return self._response(JsonAnswer(body, reply, context), payload, request)

    def batched_response(self, request: ModelRequest, status: int, body: JsonValue) -> ModelResponse:
        """Return the answer to `request` that came in a batch, as an HTTP status and a body, the way `complete` would.

        Raises:
            ProviderError: as in `complete`.
        """
        payload = self.payload(request)
        context = self._context_of(payload, request)
        reply = HttpResponse(status, {}, encode_json(body))
        try:
            if not reply.is_success:
                raise refusal_error(reply, context, now_s=0.0)
            answer = self._response(JsonAnswer(body, reply, context), payload, request, is_batched=True)
        except ProviderRequestError as error:
            filtered = self._filtered(error, request)
            if filtered is None:
                raise
            answer = filtered
        return structs.replace(answer, latency_ms=None)

    def _context_of(self, payload: Mapping[str, Any], request: ModelRequest) -> CallContext:
        endpoint = self._endpoint
        params = {**endpoint.wire, **request.params}  # those of the request take precedence
        settings = {name for name, value in params.items() if value is not None}
        wished = {
            "logprobs": request.want_logprobs,
            "response_format": request.response_schema is not None,
            "n": len(request.sample_indexes) > 1,
        }
        wishes = {name for name, is_wished in wished.items() if is_wished}
        names = self.parameters.names
        spelled = {spelling for name in settings | wishes for spelling in names.get(name, ())}
        known = {spelling.partition(".")[0] for spelling in spelled}
        sent = {name: names.get(name, ()) for name in settings | wishes | (payload.keys() - known)}
        written = {name: value for name in settings if (value := self._written(name, request)) is not None}
        added = frozenset(settings | wishes) - written.keys()
        return CallContext(
            endpoint.id,
            endpoint.secrets,
            endpoint.key_source,
            sent,
            written,
            added,
            model=endpoint.model,
            place=endpoint.place,
        )

    def _written(self, name: str, request: ModelRequest) -> WrittenParameter | None:
        """Return a parameter as the user wrote it in the config, a prompt or a test; None if the user did not."""
        endpoint, params = self._endpoint, request.params
        value = params.get(name)
        if name == "max_completion_tokens" and "max_tokens" in params and params["max_tokens"] is None:
            name = "max_tokens"  # the gateway retries with the newer name of the limit
            if name not in endpoint.wire:
                is_written = request.role is Role.GENERATION and name not in request.added
                return WrittenParameter(value) if is_written else None
        elif value is not None:
            is_written = request.role is Role.GENERATION and name not in request.added
            return WrittenParameter(value, endpoint.places.get(name)) if is_written else None
        if name not in endpoint.wire:
            return None
        return WrittenParameter(endpoint.wire[name] if value is None else value, endpoint.places.get(name))

    def _filtered(self, error: ProviderRequestError, request: ModelRequest) -> ModelResponse | None:
        """Return the answer for a request that a content filter refused; None for any other refusal."""
        choice = filtered_choice(error.body) if request.role is Role.GENERATION else None
        if choice is None:
            return None
        # A refused request is free, but Azure charges for one that its filter has read, and does not say how much.
        is_free = self._endpoint.kind != "azure"
        usage = Usage(1) if is_free else self._endpoint.usage(None, requests=1)
        return ModelResponse((choice,), usage, request_id=error.request_id)

    def _response(
        self,
        received: JsonAnswer,
        payload: Mapping[str, Any],
        request: ModelRequest,
        *,
        is_batched: bool = False,
    ) -> ModelResponse:
        endpoint, (body, reply, context) = self._endpoint, received
        choices = self._read(received, request, is_batched=is_batched)
        tokens = self._tokens(received, payload, choices, request)
        usage = endpoint.usage(tokens, requests=len(choices), is_batched=is_batched)
        named = body if isinstance(body, dict) else {}
        model, fingerprint = text_in(named, self.model_key), text_in(named, "system_fingerprint")
        response_id = endpoint.secrets.hide(str(named.get(self.id_key) or ""))[:_ID_CHARS] or None
        return ModelResponse(
            choices=tuple(map(endpoint.secrets.hide_echo, choices)),
            usage=usage,
            latency_ms=reply.latency_ms,
            dropped=self.dropped(request),
            model=None if model is None else endpoint.secrets.hide(model),
            fingerprint=None if fingerprint is None else endpoint.secrets.hide(fingerprint)[:_ID_CHARS],
            request_id=request_id_of(reply, context) or response_id,
            response_id=response_id,
            cache_read_tokens=0 if tokens is None else tokens.cache_read_tokens,
            cache_write_tokens=0 if tokens is None else tokens.cache_write_tokens,
            exhausted_s=self._transport.exhausted_s(reply, usage),
            lost=max(0, min(self.sent_choices(body), len(request.sample_indexes)) - len(choices)),
        )

    def _read(self, received: JsonAnswer, request: ModelRequest, *, is_batched: bool) -> tuple[Choice, ...]:
        """Return the answers in a reply; an error about the reply includes what it cost."""
        body = received.body
        try:
            if isinstance(body, dict) and reports_trouble(body):
                return (self._in_place_of_error(received, request),)
            if isinstance(body, dict) and not body.get(self.answer_key) and self.writes:
                _, words = error_words(reply_text := received.reply.text)
                if words and filtered_choice(reply_text) is None:
                    raise received.refuse(f"an error instead of an answer: {words}")
            if isinstance(body, dict):
                refuse_other_status({key: body.get(key) for key in self.status_keys})
            choices = self.choices(received, request)
            if all(choice.text.strip() or choice.finish_reason != FinishReason.STOP for choice in choices):
                return choices
            # An empty answer of a model takes at least one token. Without any, the model did not answer.
            tokens = self.tokens(body)
            if tokens is None or tokens.output_tokens or not self.writes:
                return choices
            raise received.refuse("an empty answer: the model wrote no tokens")
        except (ProviderError, NotAnAnswer) as caught:
            error = received.refuse(str(caught)) if isinstance(caught, NotAnAnswer) else caught
            is_no_answer = isinstance(error, ProviderResponseError)
            tokens = self.tokens(body) if isinstance(body, dict) else None
            if isinstance(body, dict) and (is_no_answer or tokens is not None):
                usage = self._endpoint.usage(
                    plausible_tokens(tokens, Exchange("")), requests=1, is_batched=is_batched
                )
                error.cost_usd = usage.cost_usd
                error.input_tokens, error.output_tokens = usage.input_tokens, usage.output_tokens
            # A picture would be drawn again, and a long turn paid again, up to the next pause.
            for pattern, hint in _BOUGHT_ONCE.items() if is_no_answer else ():
                if pattern.search(received.reply.text):
                    error.is_retryable, error.hint = False, hint
            try:
                raise error from caught.__cause__
            finally:
                del error  # its traceback has this frame, and would be found as a cycle only

    def _in_place_of_error(self, received: JsonAnswer, request: ModelRequest) -> Choice:
        """Return the message of a content filter in a 2xx reply with an `error`; other errors may be there, too.

        Raises:
            ProviderError: it is another error.
        """
        body, reply, context = received
        filtered = filtered_choice(reply.text) if request.role is Role.GENERATION else None
        if filtered is not None:
            return filtered
        error = body.get("error")
        code = str((error if isinstance(error, dict) else body).get("code"))
        if _HTTP_ERROR.fullmatch(code):
            raise refusal_error(
                HttpResponse(int(code), reply.headers, reply.body), context, now_s=time.time()
            )
        _, words = error_words(reply.text)
        raise received.refuse("an error instead of an answer" + (f": {words}" if words else ""))

    def _tokens(
        self,
        received: JsonAnswer,
        payload: Mapping[str, Any],
        choices: tuple[Choice, ...],
        request: ModelRequest,
    ) -> TokenUsage | None:
        """Return the tokens that a reply reports if they are plausible for `choices` and `payload`; else None."""
        body = received.body
        tokens = self.tokens(body) if isinstance(body, dict) else None
        if tokens is None:
            return None
        # The text of a withheld answer is the message of the server, or of geval, instead.
        said = (choice for choice in choices if self.writes and not withheld(choice.finish_reason))
        texts = tuple(choice.text for choice in said)
        asked = max(len(choices), len(request.sample_indexes))
        return plausible_tokens(tokens, Exchange(payload, texts, asked, token_limit(payload)))
