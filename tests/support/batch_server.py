"""An emulator of two batch APIs on 127.0.0.1, OpenAI's and Anthropic's, beside the direct ones; time is virtual.

A batch takes one step each time that it is looked at, so tests wait for nothing. Each question about `topic N` gets an
answer of its own, the same directly and in a batch, and `paid` counts how often each request was answered.

    with BatchServer() as server:
        server.faults["create"] = ["lost"]      # stored, but the reply does not arrive
        ... run geval with base_url=server.base_url ...
    assert max(server.paid.values()) == 1

Faults of an operation (upload, create, list, get, content, cancel) are used up one by one: "lost" (done, the connection
is cut), "500" (done, answered with 500), "429" and "503" (not done), "404", "cut" (of content: half of the file),
"done:TEXT" and "page:TEXT" (done and not done, answered with 200 and this text).
"""

import asyncio
import json
import os
import queue
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support.loop_thread import LoopThread

Lines = list[dict[str, Any]]
_STATES = ("validating", "in_progress", "finalizing", "completed")
_EPOCH = 1_900_000_000


@dataclass
class RemoteBatch:
    """A batch as the server has it. `age` counts how often it was looked at."""

    id: str
    wire: str
    requests: Lines
    metadata: dict[str, str] = field(default_factory=dict)
    input_file_id: str = ""
    age: int = 0
    end: str = "completed"
    is_cancelled: bool = False
    results: Lines = field(default_factory=list)
    errors: Lines = field(default_factory=list)
    state: str = "validating"
    code: str = ""
    expired_share: float = 0.0


class BatchServer(LoopThread):
    """The server; a context manager.

    Attributes:
        paid: how often each custom_id was answered by a batch; `direct` are the bodies that were asked directly.
        faults: by operation, what goes wrong the next times.
        looks: how often a batch is looked at until it ends.
        is_held: whether batches stay in progress.
        expired_share: of the requests of batches that are created from now on, how much expires (used once).
        token_limit: how many requests may be enqueued at a time; None for any number.
        kills_at: the operation at which the process of `victim` is killed, once, `before` or `after` it is done.
        spoil, spoil_file: change the lines of results, and their whole text, before they are given out.
        status_of: the HTTP status of a line of results, by its body.
    """

    def __init__(self, answer: Callable[[Any], str] | None = None) -> None:
        super().__init__("batch-server")
        self.paid: Counter[str] = Counter()
        self.direct: Lines = []
        self.asked: Counter[str] = Counter()
        self.log: list[str] = []
        self.batches: dict[str, RemoteBatch] = {}
        self.files: dict[str, Lines] = {}
        self.faults: defaultdict[str, list[str]] = defaultdict(list)
        self.looks = 2
        self.is_held = False
        self.expired_share = 0.0
        self.token_limit: int | None = None
        self.spoil: Callable[[Lines], Lines] = lambda lines: lines
        self.spoil_file: Callable[[bytes], bytes] = lambda file: file
        self.status_of: Callable[[Any], int] = lambda _: 200
        self._answer = answer or topic_answer
        self._most: int | None = None
        self._arrival = threading.Condition()
        self.headers: list[Any] = []
        self.kills_at: tuple[str, str] | None = None
        self.victim: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_for_requests(self, count: int, *, timeout_s: float) -> bool:
        """Whether `count` requests of any kind have arrived in all, waiting for them if need be."""
        with self._arrival:
            return self._arrival.wait_for(lambda: len(self.log) >= count, timeout_s)

    def answer_at_most(self, count: int | None) -> None:
        """Do what the first `count` requests ask, and leave all later ones without effect or answer."""
        self._most = count

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._watched])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/files", self._upload)
        app.router.add_get("/v1/files/{id}/content", self._content)
        app.router.add_post("/v1/batches", self._create)
        app.router.add_get("/v1/batches", self._list)
        app.router.add_get("/v1/batches/{id}", self._get)
        app.router.add_post("/v1/batches/{id}/cancel", self._cancel)
        app.router.add_post("/v1/messages", self._message)
        app.router.add_post("/v1/messages/batches", self._create)
        app.router.add_get("/v1/messages/batches", self._list)
        app.router.add_get("/v1/messages/batches/{id}", self._get)
        app.router.add_get("/v1/messages/batches/{id}/results", self._content)
        app.router.add_post("/v1/messages/batches/{id}/cancel", self._cancel)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    @web.middleware
    async def _watched(self, request: web.Request, handler: Any) -> web.StreamResponse:
        operation = handler.__name__.removeprefix("_")
        with self._arrival:
            self.log.append(operation)
            self.headers.append(request.headers)
            self._arrival.notify_all()
        if self._most is not None and len(self.log) > self._most:
            await asyncio.Event().wait()
        fault = self.faults[operation].pop(0) if self.faults[operation] else ""
        if fault in {"429", "503", "404", "400", "401"}:
            headers = {"retry-after": "0"} if fault == "429" else {}
            return web.json_response(_error("server", f"fault {fault}"), status=int(fault), headers=headers)
        how, is_odd, text = fault.partition(":")
        if is_odd:
            if how == "done":
                await handler(request)
            kind = "text/html" if text.startswith("<") else "application/json"
            return web.Response(text=text, content_type=kind)
        when = self._kill_time(operation)
        if when == "before":
            await self._kill()
        response: web.StreamResponse = await handler(request)
        if when == "after":
            await self._kill()
        if fault == "500":
            return web.json_response(_error("server", "after storing"), status=500)
        if fault == "lost" and request.transport is not None:
            request.transport.close()
        if fault == "cut" and isinstance(response, web.Response) and isinstance(response.body, bytes):
            return web.Response(body=response.body[: len(response.body) // 2])
        return response

    def _kill_time(self, operation: str) -> str:
        if self.kills_at is None or self.kills_at[0] != operation:
            return ""
        when, self.kills_at = self.kills_at[1], None
        return when

    async def _kill(self) -> None:
        """Kill whoever asks, and answer nothing."""
        process = await asyncio.to_thread(self.victim.get)
        os.kill(process, signal.SIGKILL)
        await asyncio.sleep(0.05)
        raise web.HTTPInternalServerError

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.direct.append(body)
        status, reply = self._chat_reply(body)
        return web.json_response(reply, status=status)

    async def _message(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.direct.append(body)
        return web.json_response(self._message_reply(body))

    def _chat_reply(self, body: Any) -> tuple[int, Any]:
        text = self._answer(body)
        self.asked[text] += 1
        choices = [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for index in range(body.get("n", 1))
        ]
        usage = {"prompt_tokens": 100, "completion_tokens": 10 * len(choices), "total_tokens": 110}
        return 200, {"id": "chat", "model": body["model"], "choices": choices, "usage": usage}

    def _message_reply(self, body: Any) -> Any:
        text = self._answer(body)
        self.asked[text] += 1
        return {
            "id": "msg",
            "type": "message",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 10},
        }

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        upload = form["file"]
        assert form["purpose"] == "batch"
        assert isinstance(upload, web.FileField)
        file_id = f"file-{len(self.files)}"
        self.files[file_id] = [json.loads(line) for line in upload.file.read().splitlines()]
        return web.json_response({"id": file_id, "object": "file", "bytes": 0, "created_at": _EPOCH})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        is_openai = "messages" not in request.path
        requests = self.files[body["input_file_id"]] if is_openai else body["requests"]
        batch = RemoteBatch(
            f"batch_{len(self.batches)}",
            "openai" if is_openai else "anthropic",
            requests,
            body.get("metadata") or {},
            body.get("input_file_id", ""),
            expired_share=self.expired_share,
        )
        self.expired_share = 0.0
        names = [item["custom_id"] for item in requests]
        assert len(set(names)) == len(names), "a custom_id stands twice in a batch"
        running = sum(len(other.requests) for other in self.batches.values() if not self._is_ended(other))
        if self.token_limit is not None and running + len(requests) > self.token_limit:
            batch.end, batch.code = "failed", "token_limit_exceeded"
        self.batches[batch.id] = batch
        return web.json_response(self._shown(batch))

    async def _list(self, request: web.Request) -> web.Response:
        wire = "anthropic" if "messages" in request.path else "openai"
        found = [item for item in reversed(self.batches.values()) if item.wire == wire]
        for item in found:
            self._look_at(item)
        shown = [self._shown(item) for item in found]
        return web.json_response({"object": "list", "data": shown, "has_more": False})

    async def _get(self, request: web.Request) -> web.Response:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            return web.json_response(_error("not_found", "no such batch"), status=404)
        self._look_at(batch)
        return web.json_response(self._shown(batch))

    def _look_at(self, batch: RemoteBatch) -> None:
        if not self.is_held or batch.is_cancelled:
            batch.age += 1
        if batch.age >= self.looks and not self._is_ended(batch):
            self._finish(batch)

    async def _cancel(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        batch.is_cancelled, batch.end = True, "cancelled"
        batch.expired_share = max(batch.expired_share, 0.5)
        return web.json_response(self._shown(batch))

    async def _content(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if "messages" in request.path:
            lines = self.batches[name].results
        else:
            batch = self.batches[name.removeprefix("out-").removeprefix("err-")]
            lines = batch.results if name.startswith("out-") else batch.errors
        text = "".join(json.dumps(line) + "\n" for line in self.spoil(list(lines)))
        return web.Response(body=self.spoil_file(text.encode()))

    def _is_ended(self, batch: RemoteBatch) -> bool:
        return batch.state in {"completed", "failed", "expired", "cancelled"}

    def _finish(self, batch: RemoteBatch) -> None:
        if batch.end == "failed":
            batch.state = "failed"
            return
        left_out = round(len(batch.requests) * batch.expired_share)
        batch.state = batch.end if batch.is_cancelled else "expired" if left_out else "completed"
        for place, item in enumerate(reversed(batch.requests)):
            is_left_out = place < left_out
            line = self._openai_line if batch.wire == "openai" else self._anthropic_line
            found = line(batch, item, is_left_out=is_left_out)
            is_error = batch.wire == "openai" and (is_left_out or found["response"]["status_code"] != 200)
            (batch.errors if is_error else batch.results).append(found)

    def _openai_line(self, batch: RemoteBatch, item: Any, *, is_left_out: bool) -> Any:
        name = item["custom_id"]
        if is_left_out:
            code = "batch_cancelled" if batch.is_cancelled else "batch_expired"
            return {"custom_id": name, "response": None, "error": {"code": code, "message": "too late"}}
        assert item["method"] == "POST"
        assert item["url"] == "/v1/chat/completions"
        status = self.status_of(item["body"])
        if status != 200:
            response = {"status_code": status, "body": _error("line", f"a line of {status}")}
        else:
            self.paid[name] += 1
            response = {"status_code": 200, "body": self._chat_reply(item["body"])[1]}
        return {"id": f"r-{name[:8]}", "custom_id": name, "response": response, "error": None}

    def _anthropic_line(self, batch: RemoteBatch, item: Any, *, is_left_out: bool) -> Any:
        name = item["custom_id"]
        if is_left_out:
            return {"custom_id": name, "result": {"type": "canceled" if batch.is_cancelled else "expired"}}
        status = self.status_of(item["params"])
        if status != 200:
            kind = {400: "invalid_request_error", 429: "rate_limit_error"}.get(status, "api_error")
            error = {"type": "error", "error": {"type": kind, "message": f"a line of {status}"}}
            return {"custom_id": name, "result": {"type": "errored", "error": error}}
        self.paid[name] += 1
        return {
            "custom_id": name,
            "result": {"type": "succeeded", "message": self._message_reply(item["params"])},
        }

    def _shown(self, batch: RemoteBatch) -> Any:
        total, is_ended = len(batch.requests), self._is_ended(batch)
        answered = len(batch.results) + len(batch.errors)
        if batch.wire == "anthropic":
            return self._shown_by_anthropic(batch)
        if not is_ended:
            batch.state = _STATES[min(batch.age, 2)]
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "input_file_id": batch.input_file_id,
            "completion_window": "24h",
            "status": batch.state,
            "created_at": _EPOCH,
            "expires_at": _EPOCH + 86400,
            "metadata": batch.metadata,
            "output_file_id": f"out-{batch.id}" if batch.results else None,
            "error_file_id": f"err-{batch.id}" if batch.errors else None,
            "request_counts": {"total": total, "completed": answered, "failed": 0},
            "errors": {"data": [{"code": batch.code, "message": "too much"}]}
            if batch.state == "failed"
            else None,
        }

    def _shown_by_anthropic(self, batch: RemoteBatch) -> Any:
        is_ended = self._is_ended(batch)
        kinds = Counter(line["result"]["type"] for line in batch.results)
        names = ("succeeded", "errored", "canceled", "expired")
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended"
            if is_ended
            else "canceling"
            if batch.is_cancelled
            else "in_progress",
            "request_counts": {"processing": 0, **{name: kinds[name] for name in names}},
            "created_at": "2030-03-17T17:46:40Z",
            "expires_at": "2030-03-18T17:46:40Z",
            "results_url": "http://elsewhere.invalid/results" if is_ended else None,
        }


def topic_answer(body: Any) -> str:
    """An answer that is another one for each topic; a verdict or steps where a judge is asked for them."""
    text = "\n".join(str(message["content"]) for message in body["messages"]) + str(body.get("system", ""))
    number = next((word.strip(".,\"'") for word in text.split("topic ")[1:]), "-").split()[0].strip(".")
    if '"score"' in text:
        digits = "".join(letter for letter in number if letter.isdigit()) or "0"
        return json.dumps({"reason": f"verdict number {number}", "score": 3 + int(digits) % 7})
    if '"steps"' in text:
        return json.dumps({"steps": ["Read the text.", "Rate it."]})
    return f"A sentence about topic {number}."


def _error(kind: str, message: str) -> Any:
    return {"error": {"message": message, "type": kind, "code": None}}
