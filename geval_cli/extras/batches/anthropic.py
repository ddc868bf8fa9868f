"""Anthropic's Message Batches: requests are uploaded in one call, answers come back as JSON lines."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit, urlunsplit

from geval_cli.extras.batches.api import (
    BatchApi,
    BatchLine,
    BrokenResultsError,
    ListedPages,
    RemoteBatch,
    RemoteState,
    has_texts,
    is_too_old,
    joined,
    moment,
    object_in,
    read_line,
    readable_lines,
    whole,
)
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.transport import Transport, response_error
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.wire.refusals import CallContext

_PAGE = 100
_MOST_PAGES = 20
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_LEFT_OUT = frozenset({"canceled", "expired"})
_STATUS_OF_ERROR = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_INTERNAL_ERROR = 500


class AnthropicBatches:
    """The batches of one workspace. Anthropic stores no label, so `find` matches batches by size and time."""

    fewest_requests = 1
    most_requests = 100_000
    most_bytes = (
        24 * 1024 * 1024
    )  # the whole of it is one request, which is held in memory; 256 MB are allowed

    def __init__(self, endpoint: Endpoint, transport: Transport) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._context = CallContext(endpoint.id, endpoint.secrets, endpoint.key_source)

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id}, "params", body)

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        return None

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        lines = b"" if file is None else file.read()
        body = b'{"requests": [' + b",".join(lines.splitlines()) + b"]}"
        return await self._ask("POST", body=body)

    async def find(
        self, batch_id: str, *, since: float, requests: int, file_id: str | None
    ) -> list[RemoteBatch]:
        found: list[RemoteBatch] = []
        after = ""
        pages = ListedPages(self._endpoint.id)
        for _ in range(_MOST_PAGES):
            page, reply = await self._exchange("GET", query=f"limit={_PAGE}{after}")
            if not isinstance(page.get("data"), list):
                raise response_error("a list of batches without `data`", reply, self._context)
            items = [item for item in page["data"] if _is_batch(item)]
            pages.turn(item["id"] for item in items)
            recent = [item for item in items if not is_too_old(moment(item.get("created_at")), since)]
            # Its counts may be 0 until it has ended.
            found += [item for item in map(_remote, recent) if item.total in {0, requests}]
            if len(recent) < len(items) or not page.get("has_more") or not items:
                break
            after = f"&after_id={quote(str(page.get('last_id') or items[-1]['id']), safe='')}"
        return found

    async def get(self, remote_id: str) -> RemoteBatch:
        return await self._ask("GET", f"/{quote(remote_id, safe='')}")

    async def cancel(self, remote_id: str) -> None:
        await self._ask("POST", f"/{quote(remote_id, safe='')}/cancel", body=b"{}")

    async def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        # Not from the address in the answer: the key would be sent there.
        call = self._call("GET", f"/{quote(batch.id, safe='')}/results")
        async for line in readable_lines(self._transport.stream_lines(call, self._context), _line):
            yield line

    async def aclose(self) -> None:
        """Do nothing: the connections belong to the provider, which closes them."""

    async def _ask(self, method: str, path: str = "", *, body: bytes = b"") -> RemoteBatch:
        """Send a request and return the batch in its answer."""
        found, reply = await self._exchange(method, path, body=body)
        if not _is_batch(found):
            raise response_error("an answer that does not describe a batch", reply, self._context)
        return _remote(found)

    async def _exchange(
        self, method: str, path: str = "", *, query: str = "", body: bytes = b""
    ) -> tuple[Mapping[str, Any], HttpResponse]:
        reply = await self._transport.send(self._call(method, path, query=query, body=body), self._context)
        return object_in(reply, self._context), reply

    def _call(self, method: str, path: str, *, query: str = "", body: bytes = b"") -> HttpCall:
        parts = urlsplit(self._endpoint.url)
        url = urlunsplit((parts.scheme, parts.netloc, f"{parts.path}/batches{path}", query, ""))
        headers = {"content-type": "application/json", "accept": "application/json", **self._endpoint.headers}
        return HttpCall(url, headers, body, method, self._endpoint.limits.timeout_s)


def _is_batch(item: Any) -> bool:
    return has_texts(item, "id", "processing_status")


def _remote(item: Mapping[str, Any]) -> RemoteBatch:
    said = item.get("request_counts")
    counts = {name: whole(said.get(name)) for name in _COUNTS} if isinstance(said, dict) else {}
    done = sum(count for name, count in counts.items() if name != "processing")
    if item.get("processing_status") != "ended":
        state = RemoteState.RUNNING
    elif counts.get("canceled") or item.get("cancel_initiated_at"):
        state = RemoteState.CANCELLED
    else:
        state = RemoteState.EXPIRED if counts.get("expired") else RemoteState.COMPLETED
    return RemoteBatch(
        id=item["id"],
        state=state,
        total=sum(counts.values()),
        answered=done,
        expires_at=moment(item.get("expires_at")),
        results=(item["id"],),
    )


def _line(text: bytes) -> BatchLine:
    found = read_line(text)
    custom_id = found["custom_id"]
    result = found.get("result")
    result = result if isinstance(result, dict) else {}
    kind, message = result.get("type"), result.get("message")
    if isinstance(kind, str) and kind in _LEFT_OUT:
        return BatchLine(custom_id, is_left_out=True)
    if kind == "succeeded" and isinstance(message, dict):
        return BatchLine(custom_id, 200, message)
    if kind != "errored":
        raise BrokenResultsError("a results line has neither an answer nor an error")
    body = result.get("error")
    inner = body.get("error") if isinstance(body, dict) else None
    name = inner.get("type") if isinstance(inner, dict) else None
    return BatchLine(custom_id, _STATUS_OF_ERROR.get(str(name), _INTERNAL_ERROR), body)


def batches_of(endpoint: Endpoint, transport: Transport) -> BatchApi:
    """Return the batch API of an endpoint."""
    return AnthropicBatches(endpoint, transport)
