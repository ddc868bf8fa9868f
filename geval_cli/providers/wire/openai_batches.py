"""OpenAI's batch API, through the official library: files go up and come down as streams."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit, urlunsplit

from geval_cli.errors import ProviderAuthError, ProviderTimeoutError, ProviderUnavailableError
from geval_cli.json_codec import decode_json
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.tls import tls_context
from geval_cli.providers.network.transport import MAX_BODY_BYTES, response_error
from geval_cli.providers.wire.batch_api import (
    BatchLine,
    BrokenResultsError,
    RemoteBatch,
    RemoteState,
    joined,
    read_line,
    readable_lines,
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
        self._sent_headers: Mapping[str, str] = {}
        parts = urlsplit(endpoint.url)
        path = next((name for name in _PATHS if parts.path.endswith(name)), _PATHS[0])
        self._base_url = urlunsplit((parts.scheme, parts.netloc, parts.path.removesuffix(path), "", ""))
        self._path = f"/v1{path}"

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id, "method": "POST", "url": self._path}, "body", body)

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        named = (f"geval-{batch_id}.jsonl", file, "application/jsonl")

        def send(client: Any) -> Awaitable[Any]:
            file.seek(0)
            return client.files.with_raw_response.create(file=named, purpose="batch")  # type: ignore[no-any-return]

        found = await self._object(
            "an answer without a file id",
            send,
            lambda found: _is_text(found.get("id")),
        )
        return str(found["id"])

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        return await self._batch(
            lambda batches: batches.create(
                input_file_id=file_id,
                endpoint=self._path,
                completion_window=_WINDOW,
                metadata={"geval_batch": batch_id},
            )
        )

    async def find(self, batch_id: str, *, since: float, requests: int) -> list[RemoteBatch]:
        page: dict[str, Any] = {"limit": _PAGE}
        while True:
            said = await self._object(
                "a list of batches without `data`",
                lambda client: client.batches.with_raw_response.list(**page),
                lambda found: isinstance(found.get("data"), list),
            )
            items = [item for item in said["data"] if _is_batch(item)]
            for item in items:
                found = self._remote(item)
                if found.label == batch_id:
                    return [found]
                created_at = seconds(item.get("created_at"))
                if created_at is not None and created_at < since - _CLOCKS_DIFFER_S:
                    return []  # the newest come first
            if not items or not said.get("has_more") or page.get("after") == items[-1]["id"]:
                return []
            page["after"] = items[-1]["id"]

    async def get(self, remote_id: str) -> RemoteBatch:
        return await self._batch(lambda batches: batches.retrieve(remote_id))

    async def cancel(self, remote_id: str) -> None:
        await self._batch(lambda batches: batches.cancel(remote_id))

    async def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        async for line in readable_lines(self._lines(batch.results), _line):
            yield line

    async def _lines(self, file_ids: tuple[str, ...]) -> AsyncIterator[bytes]:
        """Yield the lines of files. The library's own reader of lines also ends one at U+2028, which JSON may hold."""
        for file_id in file_ids:
            streams: list[Any] = []

            def begin(client: Any, file_id: str = file_id, streams: list[Any] = streams) -> Awaitable[Any]:
                streams.append(client.files.with_streaming_response.content(file_id))
                return streams[-1].__aenter__()  # type: ignore[no-any-return]

            response = await self._ask(begin)
            try:
                parts, rest = response.iter_bytes(), b""
                while (part := await self._ask_once(_next_part, parts)) is not None:
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        yield line
                    if len(rest) > MAX_BODY_BYTES:
                        raise BrokenResultsError(f"a results line is longer than {MAX_BODY_BYTES:,} bytes")
                yield rest
            finally:
                await streams[-1].__aexit__(None, None, None)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _batch(self, ask: Callable[[Any], Awaitable[Any]]) -> RemoteBatch:
        """Return the batch in the answer to what `ask` sends through the library's `batches`."""
        found = await self._object(
            "an answer that does not describe a batch",
            lambda client: ask(client.batches.with_raw_response),
            _is_batch,
        )
        return self._remote(found)

    async def _object(
        self,
        otherwise: str,
        ask: Callable[[Any], Awaitable[Any]],
        is_meant: Callable[[Mapping[str, Any]], bool],
    ) -> Mapping[str, Any]:
        """Return the JSON object in a raw answer. The library itself takes any answer of 200 for what it asked for.

        Raises:
            ProviderResponseError: there is none that `is_meant`; `otherwise` says what came in its place.
        """
        raw = await self._ask(ask)
        try:
            found = decode_json(raw.content)
        except ValueError:
            found, otherwise = None, "an answer that is not JSON"
        if not isinstance(found, dict) or not is_meant(found):
            headers = {key.lower(): value for key, value in raw.headers.items()}
            raise response_error(
                otherwise, HttpResponse(raw.status_code, headers, raw.content), self._context
            )
        return found

    async def _ask(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Return what `ask` gives for the client; a key that is refused is replaced once, if a program prints it."""
        signer = self._endpoint.signer
        if signer is None:
            return await self._ask_once(ask, self._own_client(self._endpoint.headers))
        call = await signer.sign(HttpCall(self._base_url, self._endpoint.headers))
        try:
            return await self._ask_once(ask, self._own_client(call.headers))
        except ProviderAuthError as error:
            call = await signer.sign_again(call, error)
        return await self._ask_once(ask, self._own_client(call.headers))

    async def _ask_once(self, ask: Callable[[Any], Awaitable[T]], of: Any) -> T:
        """Return what `ask` gives for a client, or for what it gave; the library's errors become ours."""
        import openai  # noqa: PLC0415 - takes half a second, and few runs have batches

        name = self._endpoint.id
        try:
            return await ask(of)
        except openai.APIStatusError as error:
            headers = {key.lower(): value for key, value in error.response.headers.items()}
            body = error.response.content if error.response.is_closed else b""
            failure: Exception = refusal_error(
                HttpResponse(error.response.status_code, headers, body), self._context, now_s=0.0
            )
        except (TimeoutError, openai.APITimeoutError):
            failure = ProviderTimeoutError(
                f"the batch API of {name} did not answer in time", provider_id=name
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

    def _remote(self, item: Mapping[str, Any]) -> RemoteBatch:
        metadata, counts, errors = item.get("metadata"), item.get("request_counts"), item.get("errors")
        counts = counts if isinstance(counts, dict) else {}
        listed = errors.get("data") if isinstance(errors, dict) else None
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        files = [item.get(name) for name in ("output_file_id", "error_file_id")]
        return RemoteBatch(
            id=item["id"],
            state=_STATES.get(item["status"], RemoteState.RUNNING),
            total=whole(counts.get("total")),
            answered=whole(counts.get("completed")) + whole(counts.get("failed")),
            expires_at=seconds(item.get("expires_at")),
            label=metadata.get("geval_batch") if isinstance(metadata, dict) else None,
            results=tuple(file for file in files if isinstance(file, str) and file),
            code=str(first.get("code") or ""),
            message=self._endpoint.secrets.redact(str(first.get("message") or "")),
        )

    def _own_client(self, own_headers: Mapping[str, str]) -> Any:
        """Return the client that sends `own_headers`; all of them share the connections."""
        import openai  # noqa: PLC0415

        headers: dict[str, Any] = dict(own_headers)
        # Under the library's own spelling: else both would be sent.
        authorization = headers.pop("authorization", None)
        headers["Authorization"] = authorization or openai.Omit()
        key = (authorization or "none").rpartition(" ")[2]
        if self._client is None:
            options: dict[str, Any] = {"timeout": _READ_TIMEOUT_S, "follow_redirects": False}
            if self._base_url.startswith("https:"):
                options["verify"] = tls_context(self._endpoint.certificate)
            try:
                http_client: Any = openai.DefaultAioHttpClient(**options)
            except RuntimeError:  # an old version of the library without its extra for aiohttp
                http_client = openai.DefaultAsyncHttpxClient(**options)
            self._client = openai.AsyncOpenAI(
                base_url=self._base_url,
                api_key=key,
                default_headers=headers,
                max_retries=0,
                http_client=http_client,
            )
            # Whose a key is, the endpoint's own headers say; those of the environment are for other programs.
            self._client.organization = self._client.project = None
        elif own_headers != self._sent_headers:
            self._client = self._client.copy(api_key=key, set_default_headers=headers)
            self._client.organization = self._client.project = None
        self._sent_headers = own_headers
        return self._client


def _is_transport_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"}


async def _next_part(parts: AsyncIterator[bytes]) -> bytes | None:
    return await anext(parts, None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_batch(item: Any) -> bool:
    return isinstance(item, dict) and _is_text(item.get("id")) and _is_text(item.get("status"))


def _line(text: bytes) -> BatchLine:
    found = read_line(text)
    custom_id, response, error = found["custom_id"], found.get("response"), found.get("error")
    if isinstance(response, dict):
        status, body = response.get("status_code"), response.get("body")
        if isinstance(status, int) and (isinstance(body, dict) or status >= HTTPStatus.BAD_REQUEST):
            return BatchLine(custom_id, status, body)
    elif error:
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, str) and code in _LEFT_OUT:
            return BatchLine(custom_id, is_left_out=True)
        return BatchLine(custom_id, _INTERNAL_ERROR, {"error": error})
    raise BrokenResultsError("a results line has neither an answer nor an error")
