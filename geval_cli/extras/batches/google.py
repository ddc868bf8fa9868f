"""Batches of Google's Gemini API.

A batch is a file of requests, uploaded in parts, and a file of answers. Paths, fields and states are those of
`google-genai` 3.6 (`batches.py`, `files.py`), lines and limits those of ai.google.dev/gemini-api/docs/batch-api. Inline
requests are not used, even for small batches: their answers arrive in any order, often without keys
(python-genai#1909, js-genai#1191).
"""

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit, urlunsplit

from geval_cli.errors import ProviderRequestError
from geval_cli.extras.batches.api import (
    BatchApi,
    BatchLine,
    BrokenResultsError,
    RemoteBatch,
    RemoteState,
    has_texts,
    joined,
    labelled,
    moment,
    object_in,
    read_line,
    readable_lines,
    whole,
)
from geval_cli.providers.network.addresses import public_origin
from geval_cli.providers.network.messages import HttpCall, HttpResponse, json_bytes
from geval_cli.providers.network.transport import Transport, response_error
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.wire.chat import error_in
from geval_cli.providers.wire.refusals import CallContext

_PAGE = 100
_PART_BYTES = 8 * 1024 * 1024
_LIFE_S = 48 * 3600.0
_STATES = {
    "SUCCEEDED": RemoteState.COMPLETED,
    "EXPIRED": RemoteState.EXPIRED,
    "CANCELLED": RemoteState.CANCELLED,
    "FAILED": RemoteState.FAILED,
}
# Errors in results have gRPC codes, which correspond to these HTTP statuses (google/rpc/code.proto).
_HTTP_STATUS = {
    3: 400,
    4: 504,
    5: 404,
    6: 409,
    7: 403,
    8: 429,
    9: 400,
    10: 409,
    11: 400,
    12: 501,
    14: 503,
    16: 401,
}
_CANCELLED = 1
_EXHAUSTED = 8
_FIRST_HTTP_STATUS = 100
_INTERNAL_ERROR = 500


class GoogleBatches:
    """The batches of one project."""

    fewest_requests = 1
    most_requests = 100_000
    most_bytes = 180 * 1024 * 1024  # of 2 GB

    def __init__(self, endpoint: Endpoint, transport: Transport) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._context = CallContext(endpoint.id, endpoint.secrets, endpoint.key_source)
        parts = urlsplit(endpoint.url)
        root, _, self._model = parts.path.partition("/models/")
        self._model = self._model.rpartition(":")[0]
        before, _, version = root.rpartition("/")
        self._root = urlunsplit((parts.scheme, parts.netloc, root, "", ""))
        self._upload_url = urlunsplit(
            (parts.scheme, parts.netloc, f"{before}/upload/{version}/files", "", "")
        )
        self._query = parts.query

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"key": custom_id}, "request", body)

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        start = {
            "x-goog-upload-protocol": "resumable",
            "x-goog-upload-command": "start",
            "x-goog-upload-header-content-length": str(size),
            "x-goog-upload-header-content-type": "application/jsonl",
        }
        described = {
            "display_name": f"geval-{batch_id}",
            "mime_type": "application/jsonl",
            "size_bytes": size,
        }
        call = self._call("POST", self._upload_url, body=json_bytes({"file": described}))
        call = replace(call, headers={**call.headers, **start})
        reply = await self._transport.send(call, self._context)
        target = reply.headers.get("x-goog-upload-url", "")
        if not target:
            raise response_error("no address for a file", reply, self._context)
        if public_origin(target) != public_origin(self._root):
            message = f"{self._endpoint.id} wants the file of a batch at {public_origin(target)}"
            hint = "use a `base_url` that also takes files, or run without --batch"
            raise ProviderRequestError(message, provider_id=self._endpoint.id, hint=hint)
        sent = 0
        while part := file.read(_PART_BYTES):
            is_last = sent + len(part) >= size
            headers = {
                "x-goog-upload-command": "upload, finalize" if is_last else "upload",
                "x-goog-upload-offset": str(sent),
            }
            # Without a key: the upload address identifies the caller.
            put = HttpCall(target, headers, part, timeout_s=self._endpoint.limits.timeout_s)
            reply = await self._transport.send(put, self._context)
            sent += len(part)
        found = object_in(reply, self._context)
        file_id = found["file"].get("name") if isinstance(found.get("file"), dict) else None
        if not isinstance(file_id, str) or not file_id:
            raise response_error("an answer without a file name", reply, self._context)
        return file_id

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        batch = {"displayName": batch_id, "inputConfig": {"fileName": file_id}}
        url = f"{self._root}/models/{self._model}:batchGenerateContent"
        return self._remote(await self._send("POST", url, body=json_bytes({"batch": batch})))

    async def find(
        self, batch_id: str, *, since: float, requests: int, file_id: str | None
    ) -> list[RemoteBatch]:
        if file_id is None:
            return []  # no batch is created before its file is noted

        async def page_of(token: str) -> tuple[list[RemoteBatch], Any]:
            query = f"pageSize={_PAGE}" + (f"&pageToken={quote(token, safe='')}" if token else "")
            page = object_in(await self._send("GET", f"{self._root}/batches", query=query), self._context)
            listed = page.get("operations")
            items = [item for item in listed if _is_batch(item)] if isinstance(listed, list) else []
            return [_remote(item, self._endpoint) for item in items], page.get("nextPageToken")

        return await labelled(batch_id, self._endpoint.id, page_of)

    async def get(self, remote_id: str) -> RemoteBatch:
        name = remote_id if remote_id.startswith("batches/") else f"batches/{remote_id}"
        return self._remote(await self._send("GET", self._url_of(name)))

    async def cancel(self, remote_id: str) -> None:
        await self._send("POST", f"{self._url_of(remote_id)}:cancel")

    async def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        async for line in readable_lines(self._lines(batch.results), _line):
            yield line

    async def _lines(self, names: tuple[str, ...]) -> AsyncIterator[bytes]:
        for name in names:
            call = self._call("GET", f"{self._url_of(name)}:download", query="alt=media")
            async for line in self._transport.stream_lines(call, self._context):
                yield line

    async def aclose(self) -> None:
        """Do nothing: the connections belong to the provider, which closes them."""

    def _url_of(self, name: str) -> str:
        return f"{self._root}/{quote(name, safe='/')}"

    def _call(self, method: str, url: str, *, query: str = "", body: bytes = b"") -> HttpCall:
        query = "&".join(filter(None, (query, self._query)))
        headers = {"content-type": "application/json", "accept": "application/json", **self._endpoint.headers}
        full = f"{url}?{query}" if query else url
        return HttpCall(full, headers, body, method, self._endpoint.limits.timeout_s)

    async def _send(self, method: str, url: str, **parts: Any) -> HttpResponse:
        return await self._transport.send(self._call(method, url, **parts), self._context)

    def _remote(self, reply: HttpResponse) -> RemoteBatch:
        found = object_in(reply, self._context)
        if not _is_batch(found):
            raise response_error("an answer that does not describe a batch", reply, self._context)
        return _remote(found, self._endpoint)


def _is_batch(item: Any) -> bool:
    return has_texts(item, "name") and isinstance(item.get("metadata"), dict)


def _remote(item: Mapping[str, Any], endpoint: Endpoint) -> RemoteBatch:
    """Convert an operation to a batch; its metadata hold most of the fields."""
    said = item["metadata"]
    error = item.get("error")
    outputs = [part for part in (said.get("output"), item.get("response")) if isinstance(part, dict)]
    counts = said.get("batchStats") if isinstance(said.get("batchStats"), dict) else {}
    created_at = moment(said.get("createTime"))
    results = [str(part["responsesFile"]) for part in outputs if part.get("responsesFile")]
    state = _STATES.get(str(said.get("state")).rpartition("_STATE_")[2])
    if state is None and item.get("done"):  # in a way of its own
        state = RemoteState.EXPIRED if results else RemoteState.FAILED
    error = error if isinstance(error, dict) else {}
    return RemoteBatch(
        id=item["name"],
        state=state or RemoteState.RUNNING,
        total=whole(counts.get("requestCount")),
        answered=whole(counts.get("successfulRequestCount")) + whole(counts.get("failedRequestCount")),
        expires_at=None if created_at is None else created_at + _LIFE_S,
        label=said.get("displayName"),
        results=tuple(dict.fromkeys(results)),
        code="token_limit_exceeded"
        if whole(error.get("code")) == _EXHAUSTED
        else str(error.get("code") or ""),
        message=endpoint.secrets.redact(str(error.get("message") or "")),
    )


def _line(text: bytes) -> BatchLine:
    found = read_line(text, id_key="key")
    key = found["key"]
    response = found.get("response")
    error = error_in(found)
    if isinstance(response, dict) and error is None:
        return BatchLine(key, 200, response)
    if not isinstance(error, dict):
        raise BrokenResultsError("a results line has neither an answer nor an error")
    code = whole(error.get("code"))
    if code == _CANCELLED:
        return BatchLine(key, is_left_out=True)
    status = code if code >= _FIRST_HTTP_STATUS else _HTTP_STATUS.get(code, _INTERNAL_ERROR)
    return BatchLine(key, status, {"error": error})


def batches_of(endpoint: Endpoint, transport: Transport) -> BatchApi:
    """Return the batch API of an endpoint."""
    return GoogleBatches(endpoint, transport)
