"""Batch APIs that take a file of requests: OpenAI's, and those of Azure, Mistral and Together.

Uses the official library: files are uploaded and downloaded as streams.

Azure: only deployments of the type Global Batch or Data Zone Batch accept batches, and they accept nothing else; so
direct requests go to the deployment in the provider's id, and batches to `batch_deployment`. Paths and lines follow
Microsoft's pages (`azure-ai-docs`, articles/ai-foundry/openai/includes/batch/batch-python.md).

Mistral: a job holds requests to one model. Paths, fields and states are those of `mistralai` 3.7 (`client/jobs.py`,
`models/batchjob.py`); a job takes up to a million requests (docs.mistral.ai/studio-api/batch-processing).

Together: a file is uploaded to another address than its description. Paths, fields and the three steps of an upload
are those of `together` 3.1 (`resources/batches.py`, `lib/resources/files.py`); a file may hold 50,000 requests and
100 MB (docs.together.ai/docs/inference/batch/overview).
"""

import hashlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl, quote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies

from msgspec.structs import replace

from geval_cli.errors import (
    ProviderAuthError,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.extras.batches.api import (
    BatchApi,
    BatchLine,
    BrokenResultsError,
    FileNotReadyError,
    ListedPages,
    RemoteBatch,
    RemoteState,
    has_texts,
    is_too_old,
    joined,
    moment,
    read_line,
    readable_lines,
    whole,
)
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.providers.network.addresses import tls_context
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.transport import MAX_BODY_BYTES, Transport, response_error
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.wire.chat import error_in
from geval_cli.providers.wire.refusals import CallContext, refusal_error

_WINDOW = "24h"
_PATHS = ("/chat/completions", "/responses")
# OpenAI's states, those of compatible servers (sometimes in capitals), and Mistral's.
_STATES = {
    "completed": RemoteState.COMPLETED,
    "success": RemoteState.COMPLETED,
    "expired": RemoteState.EXPIRED,
    "timeout_exceeded": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
    "failed": RemoteState.FAILED,
}
# Codes of requests that were not processed because the batch ended first.
_LEFT_OUT = frozenset({"batch_expired", "batch_cancelled"})
_RESULT_FILES = ("output_file_id", "error_file_id", "output_file", "error_file")
RAW = {"X-Stainless-Raw-Response": "true"}
"""The header that makes the library return the raw response; the library strips it before sending."""
_PAGE = 100
_READ_TIMEOUT_S = 300.0
_INTERNAL_ERROR = 500

T = TypeVar("T")


class OpenAIBatches:
    """The batches of one account. Belongs to the event loop of its first request.

    Attributes:
        collection: the path of the batches, below the base URL.
        is_newest_first: whether lists start with the newest batch.
    """

    fewest_requests = 1
    most_requests = 50_000
    most_bytes = 180 * 1024 * 1024  # of 200 MB; each line has its own 150 bytes beside the request
    collection = "/batches"
    is_newest_first = True

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._context = CallContext(endpoint.id, endpoint.secrets, endpoint.key_source)
        self._client: Any = None
        self._http_client: Any = None
        self._sent_headers: Mapping[str, str] = {}
        self._own_headers: Mapping[str, Any] = {}
        parts = urlsplit(endpoint.url)
        path = next((name for name in _PATHS if parts.path.endswith(name)), _PATHS[0])
        base_path = self.base_path(parts.path.removesuffix(path))
        self._base_url = urlunsplit((parts.scheme, parts.netloc, base_path, "", ""))
        self._query = dict(parse_qsl(parts.query))
        self._path = self.request_path(path)

    def base_path(self, path: str) -> str:
        """Return the base path of the files and batches API; direct requests go to a place below `path`."""
        return path

    def request_path(self, path: str) -> str:
        """Return the name that batches use for the endpoint at `path`."""
        return f"/v1{path}"

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id, "method": "POST", "url": self._path}, "body", body)

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        """Return the body of the request that creates a batch."""
        return {
            "input_file_id": file_id,
            "endpoint": self._path,
            "completion_window": _WINDOW,
            "metadata": {"geval_batch": batch_id},
        }

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        named = (f"geval-{batch_id}.jsonl", file, "application/jsonl")

        def send(client: Any) -> Awaitable[Any]:
            file.seek(0)
            files = client.files.with_raw_response
            return files.create(file=named, purpose="batch", extra_headers=self._own_headers)  # type: ignore[no-any-return]

        found = await self.answer("an answer without a file id", send, has_id)
        return str(found["id"])

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        return await self._batch("POST", self.collection, self.wish(batch_id, file_id))

    async def find(
        self, batch_id: str, *, since: float, requests: int, file_id: str | None
    ) -> list[RemoteBatch]:
        if file_id is None:
            return []  # no batch is created before its file is noted
        of_file: list[RemoteBatch] = []
        pages = ListedPages(self._endpoint.id)
        page: dict[str, Any] | None = self.first_page()
        while page is not None:
            said = await self.ask_for(
                "GET", self.collection, page, "a list of batches without `data`", _is_list
            )
            listed = said if isinstance(said, list) else said["data"]
            items = [item for item in listed if is_batch(item)]
            pages.turn(item["id"] for item in items)
            for item in items:
                if is_too_old(moment(item.get("created_at")), since):
                    if self.is_newest_first:
                        return of_file
                    continue
                found = self.remote(item)
                if found.label == batch_id:
                    return [found]
                # A batch keeps its file's name even where it stores no label.
                files = item.get("input_files")
                input_files = [item.get("input_file_id"), *(files if isinstance(files, list) else ())]
                if file_id in input_files:
                    of_file.append(replace(found, label=batch_id))
            page = self.next_page(page, said, items)
        return of_file

    def first_page(self) -> dict[str, Any]:
        """Return the query for the first page of a list."""
        return {"limit": _PAGE}

    def next_page(self, page: dict[str, Any], said: Any, items: list[Any]) -> dict[str, Any] | None:
        """Return the query for the page after `page`, which held `items`; None after the last page."""
        has_more = isinstance(said, dict) and said.get("has_more")
        return {**page, "after": items[-1]["id"]} if items and has_more else None

    async def get(self, remote_id: str) -> RemoteBatch:
        return await self._batch("GET", f"{self.collection}/{quote(remote_id, safe='')}")

    async def cancel(self, remote_id: str) -> None:
        path = f"{self.collection}/{quote(remote_id, safe='')}/cancel"
        await self.ask_for("POST", path, None, "an answer that is not an object", _is_object)

    async def results(self, batch: RemoteBatch) -> AsyncIterator[BatchLine]:
        async for line in readable_lines(self._lines(batch.results), _line):
            yield line

    async def _lines(self, file_ids: tuple[str, ...]) -> AsyncIterator[bytes]:
        """Yield the lines of files. The library's own reader also splits at U+2028, which JSON text may contain."""
        for file_id in file_ids:
            streams: list[Any] = []

            def begin(client: Any, file_id: str = file_id, streams: list[Any] = streams) -> Awaitable[Any]:
                files = client.files.with_streaming_response
                streams.append(files.content(file_id, extra_headers=self._own_headers))
                return streams[-1].__aenter__()  # type: ignore[no-any-return]

            response = await self.ask(begin)
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

    async def _batch(self, method: str, path: str, body: dict[str, Any] | None = None) -> RemoteBatch:
        """Send a request and return the batch in its answer."""
        found = await self.ask_for(method, path, body, "an answer that does not describe a batch", is_batch)
        return self.remote(found)

    async def ask_for(
        self,
        method: str,
        path: str,
        data: dict[str, Any] | None,
        otherwise: str,
        is_meant: Callable[[Any], bool],
    ) -> Any:
        """Send a request and return its JSON, as `answer` does; `data` is the query of a GET or the body of a POST."""

        def send(client: Any) -> Awaitable[Any]:
            headers = {**RAW, **self._own_headers}
            if method == "GET":
                options = {"headers": headers, "params": data or {}}
                return client.get(path, cast_to=object, options=options)  # type: ignore[no-any-return]
            return client.post(path, cast_to=object, body=data, options={"headers": headers})  # type: ignore[no-any-return]

        return await self.answer(otherwise, send, is_meant)

    async def answer(
        self, otherwise: str, ask: Callable[[Any], Awaitable[Any]], is_meant: Callable[[Any], bool]
    ) -> Any:
        """Return the JSON of a raw answer. Unlike the library, do not accept every answer with status 200.

        Raises:
            ProviderResponseError: the JSON does not satisfy `is_meant`; `otherwise` describes what was expected.
        """
        raw = await self.ask(ask)
        try:
            found = decode_json(raw.content)
        except ValueError:
            found, otherwise = None, "an answer that is not JSON"
        if not is_meant(found):
            headers = {key.lower(): value for key, value in raw.headers.items()}
            raise response_error(
                otherwise, HttpResponse(raw.status_code, headers, raw.content), self._context
            )
        return found

    async def ask(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Return the result of `ask` on the client; a refused key is replaced once, if a program prints it."""
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
        """Return the result of `ask`, translating the library's errors into geval's."""
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
            # The library wraps errors before a response, but not those that break a stream.
            if not isinstance(error, openai.APIConnectionError) and not _is_transport_error(error):
                raise
            reason = self._endpoint.secrets.redact(str(error.__cause__ or error)) or type(error).__name__
            failure = ProviderUnavailableError(
                f"the batch API of {name} cannot be reached: {reason}",
                provider_id=name,
                hint="check the network and `base_url`",
            )
        raise failure  # out here it has no context: the library's errors hold the request, and with it the key

    def remote(self, item: Mapping[str, Any]) -> RemoteBatch:
        """Convert a batch; Mistral and Together use other field names than OpenAI for some facts."""
        metadata, counts, errors = item.get("metadata"), item.get("request_counts"), item.get("errors")
        if not isinstance(counts, dict):
            names = {"total": "total", "completed": "succeeded", "failed": "failed"}
            counts = {name: item.get(f"{other}_requests") for name, other in names.items()}
        listed = errors.get("data") if isinstance(errors, dict) else errors
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        return RemoteBatch(
            id=item["id"],
            state=_STATES.get(item["status"].lower(), RemoteState.RUNNING),
            total=whole(counts.get("total")),
            answered=whole(counts.get("completed")) + whole(counts.get("failed")),
            expires_at=moment(item.get("expires_at") or item.get("job_deadline")),
            label=metadata.get("geval_batch") if isinstance(metadata, dict) else None,
            results=tuple(str(item[name]) for name in _RESULT_FILES if item.get(name)),
            code=str(first.get("code") or ""),
            message=self._endpoint.secrets.redact(str(first.get("message") or item.get("error") or "")),
        )

    def _own_client(self, own_headers: Mapping[str, str]) -> Any:
        """Return the client that sends `own_headers`; all clients share their connections."""
        import openai  # noqa: PLC0415

        headers: dict[str, Any] = dict(own_headers)
        # With the library's spelling of the name: otherwise both headers would be sent.
        authorization = headers.pop("authorization", None)
        if authorization:
            headers["Authorization"] = authorization
        # Without a key of its own, the library wants this header on each request.
        self._own_headers = {} if authorization else {"Authorization": openai.Omit()}
        key = (authorization or "none").rpartition(" ")[2]
        if self._client is None:
            options: dict[str, Any] = {
                "timeout": _READ_TIMEOUT_S,
                "follow_redirects": False,
                "verify": self._trust(),
            }
            try:
                self._http_client = openai.DefaultAioHttpClient(**options)
            except RuntimeError:  # an old version of the library without its extra for aiohttp
                self._http_client = openai.DefaultAsyncHttpxClient(**options)
            self._client = openai.AsyncOpenAI(
                base_url=self._base_url,
                api_key=key,
                default_headers=headers,
                default_query=self._query,
                max_retries=0,
                http_client=self._http_client,
            )
            # The endpoint's own headers set organization and project; the environment's are meant for other programs.
            self._client.organization = self._client.project = None
        elif own_headers != self._sent_headers:
            self._client = self._client.copy(api_key=key, set_default_headers=headers)
            self._client.organization = self._client.project = None
        self._sent_headers = own_headers
        return self._client

    def _trust(self) -> ssl.SSLContext:
        """Return the TLS context: an empty one if no URL uses TLS, as loading the system's certificates takes 50 ms."""
        urls = (self._base_url, *getproxies().values())
        if any(url.startswith("https:") for url in urls):
            return tls_context(self._endpoint.certificate)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _is_transport_error(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"}


async def _next_part(parts: AsyncIterator[bytes]) -> bytes | None:
    return await anext(parts, None)


def _is_object(found: Any) -> bool:
    return isinstance(found, dict)


def has_id(found: Any) -> bool:
    """Return whether `found` is an object with an id."""
    return has_texts(found, "id")


def is_batch(item: Any) -> bool:
    """Return whether `item` describes a batch."""
    return has_texts(item, "id", "status")


def _is_list(found: Any) -> bool:
    return isinstance(found, list) or (isinstance(found, dict) and isinstance(found.get("data"), list))


def _line(text: bytes) -> BatchLine:
    found = read_line(text)
    custom_id = found["custom_id"]
    response = found.get("response")
    error = error_in(found)
    if isinstance(response, dict) and (status := whole(response.get("status_code"))):
        body = response.get("body")
        # As in a direct reply, an error next to an answer makes the answer invalid.
        if status >= HTTPStatus.BAD_REQUEST or (isinstance(body, dict) and error is None):
            return BatchLine(custom_id, status, body)
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, str) and code in _LEFT_OUT:
            return BatchLine(custom_id, is_left_out=True)
        return BatchLine(custom_id, _INTERNAL_ERROR, {"error": error})
    raise BrokenResultsError("a results line has neither an answer nor an error")


_BEING_READ = frozenset({"pending", "running", "notRunning", "not_running"})
_REFUSED = frozenset({"error", "failed"})


class AzureBatches(OpenAIBatches):
    """The batches of one resource. Azure stores no label, so they are found again by their file."""

    def base_path(self, path: str) -> str:
        return path.partition("/deployments/")[0]

    def request_path(self, path: str) -> str:
        return "/v1/responses" if path == "/responses" else path

    def line(self, custom_id: str, body: bytes) -> bytes:
        asked = {**decode_json(body), "model": self._endpoint.batch_deployment}
        return super().line(custom_id, encode_json(asked))

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        wish = super().wish(batch_id, file_id)
        del wish["metadata"]  # no version of the deployment API describes it
        return wish

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        name = self._endpoint.id
        found = await self.ask_for(
            "GET",
            f"/files/{file_id}",
            None,
            "an answer without a file's status",
            lambda found: isinstance(found, dict) and isinstance(found.get("status"), str),
        )
        if found["status"] in _BEING_READ:
            raise FileNotReadyError
        if found["status"] in _REFUSED:
            reason = self._endpoint.secrets.redact(str(found.get("status_details") or "no reason was given"))
            raise ProviderRequestError(f"{name} refused the file of a batch: {reason}", provider_id=name)
        return await super().create(batch_id, file_id, file)


_HOURS = 24


class MistralBatches(OpenAIBatches):
    """The batch jobs of one workspace."""

    most_requests = 1_000_000
    collection = "/batch/jobs"

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id}, "body", body)

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        return {
            "input_files": [file_id],
            "model": self._endpoint.model,
            "endpoint": self._path,
            "metadata": {"geval_batch": batch_id},
            "timeout_hours": _HOURS,
        }

    def first_page(self) -> dict[str, Any]:
        return {"page": 0, "page_size": _PAGE, "order_by": "-created"}

    def next_page(self, page: dict[str, Any], said: Any, items: list[Any]) -> dict[str, Any] | None:
        return {**page, "page": page["page"] + 1} if items else None


_PART_BYTES = 1024 * 1024
_MOST_ADDRESSES = 4


class TogetherBatches(OpenAIBatches):
    """The batches of one account. Together stores no label, so they are found again by their file."""

    most_bytes = 90 * 1024 * 1024
    is_newest_first = False

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id}, "body", body)

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        wish = super().wish(batch_id, file_id)
        del wish["metadata"]
        return wish

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        found = await self.ask_for(
            "POST",
            self.collection,
            self.wish(batch_id, file_id),
            "an answer that does not describe a batch",
            lambda found: isinstance(found, dict) and is_batch(found.get("job")),
        )
        return self.remote(found["job"])

    def first_page(self) -> dict[str, Any]:
        return {}

    def next_page(self, page: dict[str, Any], said: Any, items: list[Any]) -> None:
        return None  # the list is always whole

    async def upload(self, batch_id: str, file: BinaryIO) -> str | None:
        checksum = hashlib.sha256()
        file.seek(0)
        while part := file.read(_PART_BYTES):
            checksum.update(part)
        form = {
            "purpose": "batch-api",
            "file_name": f"geval-{batch_id}.jsonl",
            "file_type": "jsonl",
            "checksum": checksum.hexdigest(),
        }
        reply = await self.ask(lambda client: _described(client, form, self._own_headers))
        if reply.status_code == HTTPStatus.CONFLICT:  # it has this file already
            return str(reply.json()["file_id"])
        target, file_id = (reply.headers.get(name, "") for name in ("location", "x-together-file-id"))
        for _ in range(_MOST_ADDRESSES):
            if not file_id or urlsplit(target).scheme not in {"https", urlsplit(self._base_url).scheme}:
                raise response_error("no address for a file", _response(reply), self._context)
            reply = await self.ask(lambda _, target=target: self._put(target, file))  # type: ignore[misc]
            if not reply.is_redirect:
                break
            target = urljoin(target, reply.headers.get("location", ""))
        if not reply.is_success:
            raise refusal_error(_response(reply), self._context, now_s=0.0)
        path = f"/files/{quote(file_id, safe='')}/preprocess"
        found = await self.ask_for("POST", path, None, "an answer without a file id", has_id)
        return str(found["id"])

    async def _put(self, target: str, file: BinaryIO) -> Any:
        """Upload a file to a signed address, which needs no key."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return await self._http_client.put(
            target, content=_parts(file), headers={"Content-Length": str(size)}, follow_redirects=False
        )


async def _described(client: Any, form: dict[str, str], own_headers: Mapping[str, Any]) -> Any:
    """Return the raw answer with the upload address: a redirect, which the library treats as an error."""
    import openai  # noqa: PLC0415

    # The content type makes the library send it as a form.
    headers = {"Content-Type": "multipart/form-data", **RAW, **own_headers}
    options = {"headers": headers, "follow_redirects": False}
    try:
        found = await client.post("/files", cast_to=object, body=form, options=options)
    except openai.APIStatusError as error:
        if error.status_code == HTTPStatus.FOUND or _names_a_file(error):
            return error.response
        raise
    return found


def _names_a_file(error: Any) -> bool:
    return (
        error.status_code == HTTPStatus.CONFLICT
        and isinstance(error.body, dict)
        and isinstance(error.body.get("file_id"), str)
    )


async def _parts(file: BinaryIO) -> AsyncIterator[bytes]:
    while part := file.read(_PART_BYTES):
        yield part


def _response(reply: Any) -> HttpResponse:
    headers = {key.lower(): value for key, value in reply.headers.items()}
    return HttpResponse(reply.status_code, headers, reply.content)


_CLASSES = {
    "openai": OpenAIBatches,
    "azure": AzureBatches,
    "mistral": MistralBatches,
    "together": TogetherBatches,
}


def batches_of(endpoint: Endpoint, transport: Transport) -> BatchApi:
    """Return the batch API that the endpoint names."""
    return _CLASSES[endpoint.batch](endpoint)
