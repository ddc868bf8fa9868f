"""Send requests of the chat APIs: the endpoint, the transport and the steps that their providers share.

A provider of an API says what is sent (`payload`) and how the answer is read (`choices`, `tokens`); the rest is here.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from msgspec import structs

from geval_cli.errors import ProviderRequestError, ProviderResponseError
from geval_cli.json_codec import encode_json
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.transport import Transport, response_error
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.batch_api import BatchApi
from geval_cli.providers.wire.chat import filtered_choice
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.refusals import CallContext, refusal_error, request_id_of
from geval_cli.providers.wire.token_usage import Exchange, TokenUsage, believed, read_chat_usage, token_limit
from geval_cli.records import Choice, JsonValue, ModelRequest, ModelResponse, Role, Usage

_ID_CHARS = 200


class Received(NamedTuple):
    """A 2xx answer: its JSON, and what an error about it needs to know."""

    body: Any
    reply: HttpResponse
    context: CallContext

    def refuse(self, what: str) -> ProviderResponseError:
        """Return the error to raise for an answer that is `what` instead of one."""
        return response_error(what, self.reply, self.context)


class EndpointProvider:
    """A model behind an API. A class of it is what one API says in its own way.

    Attributes:
        model_key: where the answer names the model.
        id_key: where it names the request, when no header does.
        sees_images: whether requests may hold images, which `payload` writes as the API wants them.
        writes: whether answers are texts that a model wrote, which takes tokens.
    """

    is_cacheable = True
    model_key: ClassVar[str] = "model"
    id_key: ClassVar[str] = "id"
    writes: ClassVar[bool] = True
    sees_images: ClassVar[bool] = False

    def __init__(self, endpoint: Endpoint, transport: Transport | None = None) -> None:
        self._endpoint = endpoint
        self.identity: ProviderIdentity = endpoint.identity
        self._transport = transport or Transport(certificate=endpoint.certificate)
        self._batches: BatchApi | None = None

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
        """Send `request` once; see `Provider.complete`."""
        self._endpoint.prepare()
        return await self._ask(self.payload(request), request)

    @property
    def batches(self) -> BatchApi | None:
        """Return the batch API of the model; None when it has none, or the config asks for none."""
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

    def _new_batches(self) -> BatchApi | None:
        """Return the batch API of the endpoint; a class whose API has batches says which."""
        return None

    def payload(self, request: ModelRequest) -> Mapping[str, Any]:
        """Return the body to send for `request`."""
        raise NotImplementedError

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        """Return the answers in a reply, at least one.

        Raises:
            ProviderError: there is none that can be read.
        """
        raise NotImplementedError

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        """Return the tokens that the reply reports; None when it reports none."""
        return read_chat_usage(body)

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        """Return the parts of a request that this API does not support."""
        wished = {"logprobs": request.want_logprobs, "n": len(request.sample_indexes) > 1}
        return tuple(name for name, is_wished in wished.items() if is_wished)

    async def _ask(self, payload: Mapping[str, Any], request: ModelRequest) -> ModelResponse:
        endpoint = self._endpoint
        context = self._context_of(payload)
        call = HttpCall(endpoint.url, endpoint.headers, timeout_s=endpoint.limits.timeout_s)
        try:
            body, reply = await self._transport.post_json(call, payload, context)
        except ProviderRequestError as error:
            filtered = self._filtered(error, request)
            if filtered is None:
                raise
            return filtered
        return self._response(Received(body, reply, context), payload, request)

    def batched_response(self, request: ModelRequest, status: int, body: JsonValue) -> ModelResponse:
        """Return the answer to `request` that came with a batch, as `complete` would: an HTTP status with a body.

        Raises:
            ProviderError: as `complete`.
        """
        payload = self.payload(request)
        context = self._context_of(payload)
        reply = HttpResponse(status, {}, encode_json(body))
        try:
            if not reply.is_success:
                raise refusal_error(reply, context, now_s=0.0)
            answer = self._response(Received(body, reply, context), payload, request, is_batched=True)
        except ProviderRequestError as error:
            filtered = self._filtered(error, request)
            if filtered is None:
                raise
            answer = filtered
        return structs.replace(answer, latency_ms=None)

    def _context_of(self, payload: Mapping[str, Any]) -> CallContext:
        endpoint = self._endpoint
        return CallContext(endpoint.id, endpoint.secrets, endpoint.key_source, frozenset(payload))

    def _filtered(self, error: ProviderRequestError, request: ModelRequest) -> ModelResponse | None:
        """Return an answer that a filter took away as an empty one; None for any other refusal."""
        choice = filtered_choice(error.body) if request.role is Role.GENERATION else None
        if choice is None:
            return None
        return ModelResponse((choice,), self._endpoint.usage(None, requests=1), request_id=error.request_id)

    def _response(
        self,
        received: Received,
        payload: Mapping[str, Any],
        request: ModelRequest,
        *,
        is_batched: bool = False,
    ) -> ModelResponse:
        endpoint, (body, reply, context) = self._endpoint, received
        choices = self._read(received, request)
        usage = self._usage(received, payload, choices, request, is_batched=is_batched)
        named = body if isinstance(body, dict) else {}
        model = named.get(self.model_key)
        return ModelResponse(
            choices=choices,
            usage=usage,
            latency_ms=reply.latency_ms,
            dropped=self.dropped(request),
            model=endpoint.secrets.hide(model) if isinstance(model, str) else None,
            request_id=request_id_of(reply, context)
            or endpoint.secrets.hide(str(named.get(self.id_key) or ""))[:_ID_CHARS]
            or None,
            exhausted_s=self._transport.exhausted_s(reply, usage),
        )

    def _read(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        """Return the answers in a reply; an error about it says what it cost all the same."""
        try:
            return self.choices(received, request)
        except ProviderResponseError as error:
            if isinstance(received.body, dict):
                tokens = believed(self.tokens(received.body), Exchange(""))
                error.cost_usd = self._endpoint.usage(tokens, requests=1).cost_usd
            raise

    def _usage(
        self,
        received: Received,
        payload: Mapping[str, Any],
        choices: tuple[Choice, ...],
        request: ModelRequest,
        *,
        is_batched: bool,
    ) -> Usage:
        """Return the usage of a reply, as far as it is plausible for `choices` in answer to `payload`."""
        body = received.body
        tokens = self.tokens(body) if isinstance(body, dict) else None
        if tokens is not None:
            texts = tuple(choice.text for choice in choices) if self.writes else ()
            asked = max(len(choices), len(request.sample_indexes))
            tokens = believed(tokens, Exchange(payload, texts, asked, token_limit(payload)))
        return self._endpoint.usage(tokens, requests=len(choices), is_batched=is_batched)
