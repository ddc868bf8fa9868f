"""A real HTTP server on 127.0.0.1 scripted by a test: what it answers, how late, and how it breaks.

    with LoopbackServer(chat_reply("Paris"), Reply(status=500)) as server:   # a queue: one reply per request
        ... talk to server.base_url ("http://127.0.0.1:PORT/v1") ...
    assert server.requests[0].json["messages"][0]["content"] == "Capital of France?"

    with LoopbackServer(respond=lambda body, headers: chat_reply(body["model"])) as server: ...

- A queued reply is used once; if the queue is empty, `respond` answers, else a 500 that says so.
- `respond(request_json, headers)` may be async; it returns a `Reply`, a `(status, headers, body)` tuple, or
  a body.
- `Reply.delay_s` waits, `Reply.reset` aborts the connection, `Reply.hang` never answers, `Reply.truncate`
  closes after half of the body, `Reply.drip_s` sends one byte at a time at this interval.
- `server.hold()` keeps every answer back until `server.release()`: with `server.wait_for_requests(n)`, tests
  of concurrency need no sleep.
- `server.requests` are recorded in order of arrival, `server.peak_in_flight` is the most that were open at
  once, `server.connections` counts TCP connections.
"""

import asyncio
import gzip
import inspect
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from support.loop_thread import LoopThread

Responder = Callable[[Any, Mapping[str, str]], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as it arrived. Header names are lower case; `json` is None if the body is not JSON."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    json: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `body` is sent as is if it is bytes or str, anything else as JSON."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = b""
    delay_s: float = 0.0
    reset: bool = False
    hang: bool = False
    truncate: bool = False
    gzipped: bool = False
    drip_s: float = 0.0


def chat_reply(
    text: str | None,
    *,
    n: int = 1,
    logprobs: Sequence[Mapping[str, float]] | None = None,
    usage: tuple[int, int] = (7, 3),
    finish_reason: str = "stop",
    **reply: Any,
) -> Reply:
    """Return a chat completion with `n` equal choices.

    `logprobs` has one mapping per token, {token: logprob}; its first entry is the chosen token. `usage` is (prompt
    tokens, completion tokens). Other keywords go to `Reply`.
    """
    choice: dict[str, Any] = {
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
        "logprobs": None if logprobs is None else {"content": [_token_entry(token) for token in logprobs]},
    }
    body = {
        "id": "chatcmpl-loopback",
        "object": "chat.completion",
        "model": "loopback-model",
        "choices": [{"index": index, **choice} for index in range(n)],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)},
    }
    return Reply(body=body, **reply)


def choices_reply(texts: Sequence[str], *, usage: tuple[int, int] = (7, 3)) -> Reply:
    """Return a chat completion with one choice for each of `texts`."""
    reply = chat_reply("", n=len(texts), usage=usage)
    for choice, text in zip(reply.body["choices"], texts, strict=True):
        choice["message"] = {"role": "assistant", "content": text}
    return reply


def error_reply(
    status: int, message: str, *, headers: Mapping[str, str] | None = None, **error: Any
) -> Reply:
    """Return an error in OpenAI's format; `error` adds keys such as type, code and param."""
    return Reply(status=status, headers=headers or {}, body={"error": {"message": message, **error}})


def _token_entry(alternatives: Mapping[str, float]) -> dict[str, Any]:
    entries = [
        {"token": token, "logprob": value, "bytes": list(token.encode())}
        for token, value in alternatives.items()
    ]
    return {**entries[0], "top_logprobs": entries}


class LoopbackServer(LoopThread):
    """The server; a context manager. `base_url` ends in /v1, `url` does not; every path is answered."""

    def __init__(self, *replies: Reply, respond: Responder | None = None) -> None:
        super().__init__("loopback-server")
        self.requests: list[RecordedRequest] = []
        self.peak_in_flight = 0
        self.connections = 0
        self.hang_ups = 0
        self._replies = deque(replies)
        self._respond = respond
        self._in_flight = 0
        self._arrival = threading.Condition()
        self._may_answer = asyncio.Event()
        self._may_answer.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def add(self, *replies: Reply) -> None:
        """Append more replies to the queue."""
        self._replies.extend(replies)

    def hold(self) -> None:
        """Keep every answer back from now on; requests still arrive and are recorded."""
        self._loop.call_soon_threadsafe(self._may_answer.clear)

    def release(self) -> None:
        """Send the answers that `hold` kept back."""
        self._loop.call_soon_threadsafe(self._may_answer.set)

    def wait_for_requests(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Block until `count` requests have arrived; from async code: `await asyncio.to_thread(...)`."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} requests arrived")

    def wait_until_quiet(self, count: int, *, quiet_s: float = 1.0) -> int:
        """Wait until `count` requests have arrived, and then no more for a while; return their number."""
        self.wait_for_requests(count)
        with self._arrival:
            while True:
                before = len(self.requests)
                if not self._arrival.wait_for(lambda: len(self.requests) > before, quiet_s):  # noqa: B023
                    return before

    def wait_for_hang_ups(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Block until `count` clients have disconnected from a `hang` reply."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: self.hang_ups >= count, timeout_s):
                raise TimeoutError(f"{self.hang_ups} of {count} clients hung up")

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain function with our own task, because asyncio would report a cancelled coroutine as an error.
        self.connections += 1
        task = self._loop.create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                with self._arrival:
                    self.requests.append(request)
                    self._arrival.notify_all()
                self._in_flight += 1
                self.peak_in_flight = max(self.peak_in_flight, self._in_flight)
                try:
                    reply = await self._reply_to(request)
                    keep_open = await self._send(reply, reader, writer)
                finally:
                    self._in_flight -= 1
                if not keep_open:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _reply_to(self, request: RecordedRequest) -> Reply:
        await self._may_answer.wait()
        if self._replies:
            return self._replies.popleft()
        if self._respond is None:
            return error_reply(500, "the loopback server has no reply left")
        try:
            answer = self._respond(request.json, request.headers)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 - whatever the code of a test raises
            self.mistakes.append(error)
            return error_reply(422, repr(error))
        if isinstance(answer, Reply):
            return answer
        if isinstance(answer, tuple):
            return Reply(*answer)
        return Reply(body=answer)

    async def _send(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send `reply`; return whether the connection can be reused."""
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.reset:
            return False
        if reply.hang:
            await reader.read()
            with self._arrival:
                self.hang_ups += 1
                self._arrival.notify_all()
            return False
        payload = _encode(reply.body)
        headers = {"content-type": _content_type(reply.body), **reply.headers}
        if reply.gzipped:
            payload = gzip.compress(payload)
            headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(payload))
        if reply.truncate:
            payload = payload[: len(payload) // 2]
        head = f"HTTP/1.1 {reply.status} Scripted\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )
        writer.write(head.encode() + b"\r\n")
        if reply.drip_s:
            await _drip(payload, reply.drip_s, writer)
        else:
            writer.write(payload)
        await writer.drain()
        if reply.truncate:
            writer.close()
        return not reply.truncate


async def _drip(payload: bytes, drip_s: float, writer: asyncio.StreamWriter) -> None:
    for position in range(len(payload)):
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(payload[position : position + 1])
        await writer.drain()
        await asyncio.sleep(drip_s)


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await _read_body(reader, headers)
    return RecordedRequest(method, path, headers, body, _json_or_none(body))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


def _json_or_none(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _encode(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _content_type(body: Any) -> str:
    return "text/plain; charset=utf-8" if isinstance(body, bytes | str) else "application/json"
