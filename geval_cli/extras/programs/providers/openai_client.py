"""Sends chat API requests through the user's own client from the `openai` library."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import structs

from geval_cli.errors import ProviderRequestError, ProviderTimeoutError, ProviderUnavailableError
from geval_cli.extras.programs.providers.base import called_in_thread
from geval_cli.providers.base import ClientModel, ProviderIdentity, ProviderLimits, is_async_client
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.transport import Transport, json_in
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.prices import price_of
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.openai import OpenAICompatibleProvider
from geval_cli.providers.wire.refusals import CallContext, refusal_error

_THREADS = 32
"""How many calls of a synchronous client may run at once, each in a thread."""

_KEY_SOURCE = "the client"
_TOKENS_HINT = "an asynchronous token provider runs in the metric's event loop; a synchronous client has none"
_KEY_HEADERS = ("authorization", "api-key")


class ClientProvider(OpenAICompatibleProvider):
    """A model behind a user's client. It sends and reads the same messages as other chat API providers.

    The client keeps its own keys, token provider, address, headers and timeout; retries are the gateway's.
    """

    def __init__(self, asked: ClientModel, number: int) -> None:
        client, model = asked.client, asked.model
        url = str(client.base_url)
        is_azure = "Azure" in type(client).__name__
        name = f"{'azure' if is_azure else 'openai'}:{model}"
        endpoint = Endpoint(
            id=name,
            label=name,
            kind="openai",
            model=model,
            url=url,
            secrets=Secrets(_secrets_of(client)),
            key_source=_KEY_SOURCE,
            limits=ProviderLimits(max_concurrency=None if is_async_client(client) else _THREADS),
            price=price_of({}, url=url, model=model),
        )
        super().__init__(endpoint, ClientTransport(asked.client))
        identity = endpoint.identity
        # Two clients for the same address may belong to different users.
        self.identity = ProviderIdentity(identity.kind, identity.model, identity.endpoint, {"client": number})


class ClientTransport(Transport):
    """Sends requests through a client of the `openai` library. Belongs to the event loop of its first request."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._given = client
        self._is_async = is_async_client(client)
        self._copy: Any = None
        self._threads: ThreadPoolExecutor | None = None

    async def post_json(
        self, call: HttpCall, payload: Mapping[str, Any], context: CallContext
    ) -> tuple[Any, HttpResponse]:
        """POST `payload` through the client; `call` is ignored, since the client has its own address and headers."""
        reply, context = await self._post(payload, context)
        if not reply.is_success:
            raise refusal_error(reply, context, now_s=self._clock())
        return json_in(reply, context), reply

    async def aclose(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None and self._is_async:
            await copy.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _post(
        self, payload: Mapping[str, Any], context: CallContext
    ) -> tuple[HttpResponse, CallContext]:
        """Return the reply, and a context that also knows the keys and tokens that were sent, so as to hide them."""
        import openai  # noqa: PLC0415 - takes a second, but the user has already imported it

        started = time.perf_counter()
        try:
            raw = await self._create(payload)
        except openai.APIStatusError as error:
            return _reply_of(error.response, started), self._context_of(error.request, context)
        except openai.APITimeoutError:
            message = f"{context.provider_id} did not answer within the client's timeout"
            failure: Exception = ProviderTimeoutError(
                message, provider_id=context.provider_id, hint="raise the client's `timeout`"
            )
        except openai.APIConnectionError as error:
            reason = context.secrets.redact(str(error.__cause__ or "")) or error.message
            message = f"{context.provider_id} cannot be reached: {reason}"
            failure = ProviderUnavailableError(
                message, provider_id=context.provider_id, hint="check the network and the client's `base_url`"
            )
        except Exception as error:  # noqa: BLE001 - a token provider may raise anything
            reason = f"{type(error).__name__}: {context.secrets.redact(str(error))}"
            message = f"the client did not send the request: {reason}"
            failure = ProviderRequestError(message, provider_id=context.provider_id, hint=_TOKENS_HINT)
        else:
            return _reply_of(raw.http_response, started), context
        raise failure  # outside `except`, so without context: the library's errors hold the request, and so the key

    async def _create(self, payload: Mapping[str, Any]) -> Any:
        """Have the client send `payload`; everything except `model` and `messages` goes into the body unchanged."""
        create = self._own_copy().chat.completions.with_raw_response.create
        named = {"model": payload["model"], "messages": payload["messages"]}
        rest = {name: value for name, value in payload.items() if name not in named}
        if self._is_async:
            return await create(**named, extra_body=rest)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="geval-client")
        return await called_in_thread(self._threads, lambda: create(**named, extra_body=rest))

    def _context_of(self, request: Any, context: CallContext) -> CallContext:
        sent = [request.headers.get(name, "") for name in _KEY_HEADERS]
        tokens = [value.rpartition(" ")[2] for value in sent]
        return structs.replace(context, secrets=Secrets([*_secrets_of(self._given), *sent, *tokens]))

    def _own_copy(self) -> Any:
        """Return a copy of the user's client for this event loop, with the client's own retries turned off."""
        if self._copy is None:
            options: dict[str, Any] = {"max_retries": 0}
            if self._is_async:
                from openai import DefaultAsyncHttpxClient  # noqa: PLC0415

                own = DefaultAsyncHttpxClient(timeout=self._given.timeout, follow_redirects=False)
                options["http_client"] = own
            self._copy = self._given.with_options(**options)
        return self._copy


def build(asked: ClientModel, number: int) -> ClientProvider:
    """Return the provider for a user's client; `number` distinguishes it from the other clients."""
    return ClientProvider(asked, number)


def _secrets_of(client: Any) -> list[str | None]:
    headers = {name.lower(): value for name, value in client.default_headers.items()}
    return [client.api_key, *(value for name in _KEY_HEADERS if isinstance(value := headers.get(name), str))]


def _reply_of(response: Any, started: float) -> HttpResponse:
    headers = {name.lower(): value for name, value in response.headers.items()}
    latency_ms = (time.perf_counter() - started) * 1000
    return HttpResponse(response.status_code, headers, response.content, latency_ms)


def client_problem(client: Any) -> tuple[str, str] | None:
    """Return the problem of a client and a hint; None if the client can be used.

    Judges run in an event loop of their own, so an asynchronous client is copied with new connections. That is
    impossible if the user gave it an `http_client`, whose connections belong to the user's event loop.
    """
    if not is_async_client(client) or type(client._client).__name__ == "AsyncHttpxClientWrapper":
        return None
    message = (
        f"`model` is an {type(client).__name__} with its own `http_client`, which belongs to another "
        "event loop"
    )
    return (
        message,
        f"give an {type(client).__name__.removeprefix('Async')} client, which is called in threads",
    )
