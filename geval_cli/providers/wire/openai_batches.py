"""OpenAI's batch API, through the official library: files go up and come down as streams."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit, urlunsplit

from geval_cli.errors import ProviderTimeoutError, ProviderUnavailableError
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.network.tls import tls_context
from geval_cli.providers.wire.batch_api import (
    BatchLine,
    RemoteBatch,
    RemoteState,
    joined,
    read_line,
    seconds,
    whole,
)
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.refusals import CallContext, refusal_error

_WINDOW = "24h"
_PATHS = ("/chat/completions", "/responses")
_STATES = {
    "completed": RemoteState.COMPLETED,
    "expired": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
    "failed": RemoteState.FAILED,
}
# Codes of requests that were not asked, since the batch ended before.
_LEFT_OUT = frozenset({"batch_expired", "batch_cancelled"})
_CLOCKS_DIFFER_S = 3600.0
_PAGE = 100
_READ_TIMEOUT_S = 300.0
_INTERNAL_ERROR = 500

T = TypeVar("T")


class OpenAIBatches:
    """The batches of one account. It belongs to the event loop of its first request."""

    most_requests = 50_000
    most_bytes = 180 * 1024 * 1024  # of 200 MB; each line has its own 150 bytes beside the request

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._context = CallContext(endpoint.id, endpoint.secrets, endpoint.key_source)
        self._client: Any = None
        parts = urlsplit(endpoint.url)
        path = next((name for name in _PATHS if parts.path.endswith(name)), _PATHS[0])
        self._base_url = urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix(path), "", ""))
        self._path = f"/v1{path}"

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id, "method": "POST", "url": self._path}, "body", body)

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        def send(client: Any) -> Awaitable[Any]:
            named = (f"geval-{batch_id}.jsonl", file, "application/jsonl")
            return client.files.create(file=named, purpose="batch")  # type: ignore[no-any-return]

        return str((await self._ask(send)).id)

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        found = await self._ask(
            lambda client: client.batches.create(
                input_file_id=file_id,
                endpoint=self._path,
                completion_window=_WINDOW,
                metadata={"geval_batch": batch_id},
            )
        )
        return self._remote(found)

    async def find(self, batch_id: str, *, since: float, requests: int) -> list[RemoteBatch]:
        async def look(client: Any) -> list[RemoteBatch]:
            async for item in client.batches.list(limit=_PAGE):
                found = self._remote(item)
                if found.label == batch_id:
                    return [found]
                created_at = seconds(getattr(item, "created_at", None))
                if created_at is not None and created_at < since - _CLOCKS_DIFFER_S:
                    break  # the newest come first
            return []

        return await self._ask(look)

    async def get(self, remote_id: str) -> RemoteBatch:
        return self._remote(await self._ask(lambda client: client.batches.retrieve(remote_id)))

    async def cancel(self, remote_id: str) -> None:
        await self._ask(lambda client: client.batches.cancel(remote_id))

    async def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        for file_id in batch.results:
            async for text in self._lines(file_id):
                if text.strip():
                    yield _line(text)

    async def _lines(self, file_id: str) -> AsyncIterator[str]:
        client = self._own_client()
        stream = client.files.with_streaming_response.content(file_id)
        response = await self._ask(lambda _: stream.__aenter__())
        try:
            lines = response.iter_lines()
            while True:
                text = await self._ask(lambda _: anext(lines, None))
                if text is None:
                    return
                yield text
        finally:
            await stream.__aexit__(None, None, None)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _ask(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Return what `ask` gives for the client; the library's errors become ours."""
        client = self._own_client()
        import openai  # noqa: PLC0415 - takes half a second, and few runs have batches

        name = self._endpoint.id
        try:
            return await ask(client)
        except openai.APIStatusError as error:
            headers = {key.lower(): value for key, value in error.response.headers.items()}
            body = error.response.content if error.response.is_closed else b""
            failure: Exception = refusal_error(
                HttpResponse(error.response.status_code, headers, body), self._context, now_s=0.0
            )
        except (TimeoutError, openai.APITimeoutError):
            failure = ProviderTimeoutError(
                f"the batch API of {name} gave no answer in time", provider_id=name
            )
        except Exception as error:
            # The library wraps what goes wrong before an answer comes, and not what breaks a stream.
            if not isinstance(error, openai.APIConnectionError) and not _is_transport_error(error):
                raise
            reason = self._endpoint.secrets.redact(str(error.__cause__ or error)) or type(error).__name__
            failure = ProviderUnavailableError(
                f"the batch API of {name} cannot be reached: {reason}",
                provider_id=name,
                hint="check the network and `base_url`",
            )
        raise failure  # out here it has no context: the library's errors hold the request, and with it the key

    def _remote(self, item: Any) -> RemoteBatch:
        metadata = getattr(item, "metadata", None)
        counts = getattr(item, "request_counts", None)
        errors = getattr(getattr(item, "errors", None), "data", None) or []
        message = str(getattr(errors[0], "message", "") or "") if errors else ""
        files = [getattr(item, name, None) for name in ("output_file_id", "error_file_id")]
        return RemoteBatch(
            id=str(item.id),
            state=_STATES.get(str(getattr(item, "status", "")), RemoteState.RUNNING),
            total=whole(getattr(counts, "total", 0)),
            answered=whole(getattr(counts, "completed", 0)) + whole(getattr(counts, "failed", 0)),
            expires_at=seconds(getattr(item, "expires_at", None)),
            label=metadata.get("geval_batch") if isinstance(metadata, dict) else None,
            results=tuple(file for file in files if isinstance(file, str) and file),
            code=str(getattr(errors[0], "code", "") or "") if errors else "",
            message=self._endpoint.secrets.redact(message),
        )

    def _own_client(self) -> Any:
        if self._client is None:
            import openai  # noqa: PLC0415

            options: dict[str, Any] = {"timeout": _READ_TIMEOUT_S, "follow_redirects": False}
            if self._base_url.startswith("https:"):
                options["verify"] = tls_context(self._endpoint.certificate)
            try:
                http_client: Any = openai.DefaultAioHttpClient(**options)
            except RuntimeError:  # an old version of the library without its extra for aiohttp
                http_client = openai.DefaultAsyncHttpxClient(**options)
            headers: dict[str, Any] = dict(self._endpoint.headers)
            # Under the library's own spelling: else both would be sent.
            authorization = headers.pop("authorization", None)
            headers["Authorization"] = authorization or openai.Omit()
            self._client = openai.AsyncOpenAI(
                base_url=self._base_url,
                api_key=(authorization or "none").rpartition(" ")[2],
                default_headers=headers,
                max_retries=0,
                http_client=http_client,
            )
            # Whose a key is, the endpoint's own headers say; those of the environment are for other programs.
            self._client.organization = self._client.project = None
        return self._client


def _is_transport_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"}


def _line(text: str) -> BatchLine:
    found = read_line(text)
    custom_id, response, error = found["custom_id"], found.get("response"), found.get("error")
    if isinstance(response, dict) and isinstance(response.get("status_code"), int):
        return BatchLine(custom_id, response["status_code"], response.get("body"))
    code = error.get("code") if isinstance(error, dict) else None
    if code in _LEFT_OUT:
        return BatchLine(custom_id, is_left_out=True)
    return BatchLine(custom_id, _INTERNAL_ERROR, {"error": error})
