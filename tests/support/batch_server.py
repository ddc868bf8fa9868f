"""An emulator of vendors' batch APIs on 127.0.0.1, together with the direct ones (`batch_vendors`); time is virtual.

A batch advances one step each time its state is requested, so tests need not wait. Each question about `topic N` gets
its own answer, the same directly and in a batch, and `paid` counts how often each request was answered.

    with BatchServer() as server:
        server.faults["create"] = ["lost"]      # stored, but the reply does not arrive
        ... run geval with base_url=server.base_url ...
    assert max(server.paid.values()) == 1

The faults of an operation (upload, put, preprocess, file, create, list, get, content, cancel, chat, message) are used
up one by one: "lost" (done, but the connection is cut), "500" (done, but answered with 500), "429" and "503" (not
done), "404", "cut" (of content: half of the file), "307" (redirected to the same URL), "done:TEXT" and "page:TEXT"
(done and not done, answered with 200 and this text).
"""

import asyncio
import hashlib
import json
import os
import queue
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from support.batch_vendors import SERVED, Lines, RemoteBatch, Vendor, error_body
from support.loop_thread import LoopThread

_STATES = ("validating", "in_progress", "finalizing")


class BatchServer(LoopThread):
    """The server; a context manager.

    Attributes:
        paid: how often a batch answered each custom_id; `direct` has the bodies of direct requests.
        faults: the faults of the next requests, by operation.
        looks: how often the state of a batch is requested until it ends.
        is_held: whether batches stay in progress.
        expired_share: the share of requests that expires in batches created from now on (used once).
        token_limit: how many requests may be enqueued at a time; None for no limit. `refusal` is the code of a batch
            that is beyond it.
        kills_at: the operation at which the process `victim` is killed, once, `before` or `after` it is done.
        spoil, spoil_file: change the lines of results, and their whole text, before they are sent.
        status_of: the HTTP status of a line of results, by the request's body.
        is_filtered: whether a content filter removes the answer to a body, directly and in a batch.
        page_size: the maximum number of batches on a page of a list.
        calls: if set, a list that receives each request: operation, method, path, query, header names, content.
    """

    def __init__(self, answer: Callable[[Any], str] | None = None) -> None:
        super().__init__("batch-server")
        self.paid: Counter[str] = Counter()
        self.direct: Lines = []
        self.asked: Counter[str] = Counter()
        self.log: list[str] = []
        self.batches: dict[str, RemoteBatch] = {}
        self.files: dict[str, Lines] = {}
        self.stored: dict[str, bytes] = {}
        self.seen: set[str] = set()
        self.checksums: dict[str, str] = {}
        self.faults: defaultdict[str, list[str]] = defaultdict(list)
        self.looks = 2
        self.is_held = False
        self.expired_share = 0.0
        self.token_limit: int | None = None
        self.refusal = "token_limit_exceeded"
        self.spoil: Callable[[Lines], Lines] = lambda lines: lines
        self.spoil_file: Callable[[bytes], bytes] = lambda file: file
        self.status_of: Callable[[Any], int] = lambda _: 200
        self.is_filtered: Callable[[Any], bool] = lambda _: False
        self.page_size = 100
        self.calls: list[Any] | None = None
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
        """Wait until `count` requests of any kind have arrived in total; return whether they did."""
        with self._arrival:
            return self._arrival.wait_for(lambda: len(self.log) >= count, timeout_s)

    def answer_at_most(self, count: int | None) -> None:
        """Serve the first `count` requests, and leave all later ones without effect or answer; None for no limit."""
        self._most = count

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._watched])
        for vendor in SERVED.values():
            for name, (method, path) in vendor.routes.items():
                app.router.add_route(method, vendor.prefix + path, getattr(self, f"_{name}"))
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
        if self.calls is not None:
            await self._note(operation, request)
        with self._arrival:
            self.log.append(operation)
            self.headers.append(request.headers)
            self._arrival.notify_all()
        if self._most is not None and len(self.log) > self._most:
            await asyncio.Event().wait()
        fault = self.faults[operation].pop(0) if self.faults[operation] else ""
        if fault in {"429", "503", "404", "400", "401"}:
            headers = {"retry-after": "0"} if fault == "429" else {}
            return web.json_response(
                error_body("server", f"fault {fault}"), status=int(fault), headers=headers
            )
        if fault == "307":
            return web.Response(status=307, headers={"location": f"{request.path}?elsewhere"})
        how, is_odd, text = fault.partition(":")
        if is_odd:
            if how == "done":
                await handler(request)
            kind = "text/html" if text.startswith("<") else "application/json"
            return web.Response(text=text, content_type=kind)
        when = self._kill_time(operation)
        if when == "before":
            await self._kill()
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - geval would ask again after a 500, for minutes
            self.mistakes.append(error)
            return web.json_response(error_body("emulator", repr(error)), status=422)
        if when == "after":
            await self._kill()
        if fault == "500":
            return web.json_response(error_body("server", "after storing"), status=500)
        if fault == "lost" and request.transport is not None:
            request.transport.close()
        if fault == "cut" and isinstance(response, web.Response) and isinstance(response.body, bytes):
            return web.Response(body=response.body[: len(response.body) // 2])
        return response

    async def _note(self, operation: str, request: web.Request) -> None:
        assert self.calls is not None
        content: Any
        if request.content_type == "multipart/form-data":
            content = {name: _plain(field) for name, field in (await request.post()).items()}
        else:
            content = (await request.read()).decode()
            if "json" in request.content_type and operation != "put":
                content = json.loads(content or "null")
        query = dict(request.query)
        self.calls.append((operation, request.method, request.path, query, dict(request.headers), content))

    def _kill_time(self, operation: str) -> str:
        if self.kills_at is None or self.kills_at[0] != operation:
            return ""
        when, self.kills_at = self.kills_at[1], None
        return when

    async def _kill(self) -> None:
        """Kill the client's process, and send no answer."""
        process = await asyncio.to_thread(self.victim.get)
        os.kill(process, signal.SIGKILL)
        await asyncio.sleep(0.05)
        raise web.HTTPInternalServerError

    def _vendor(self, request: web.Request) -> Vendor:
        found = [item for item in SERVED.values() if request.path.startswith(item.prefix + item.root)]
        return max(found, key=lambda vendor: len(vendor.prefix + vendor.root))

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.direct.append(body)
        status, reply = self._reply(self._vendor(request), body)
        return web.json_response(reply, status=status)

    _message = _chat

    def _reply(self, vendor: Vendor, body: Any) -> tuple[int, Any]:
        text = self._answer(body)
        self.asked[text] += 1
        if self.is_filtered(body):
            return vendor.filtered(body)
        return 200, vendor.reply(body, text)

    async def _upload(self, request: web.Request) -> web.Response:
        """Accept a file, or say where to upload it."""
        vendor = self._vendor(request)
        file_id = vendor.file_id(len(self.files))
        self.files[file_id] = []
        if vendor.uploads_elsewhere:
            self.stored[file_id] = b""
            target = f"http://127.0.0.1:{self.port}{vendor.prefix}{vendor.store}/{file_id}"
            return await vendor.place(request, target, file_id, self.checksums)
        form = await request.post()
        upload = form["file"]
        assert form["purpose"] == "batch"
        assert isinstance(upload, web.FileField)
        self.files[file_id] = [json.loads(line) for line in upload.file.read().splitlines()]
        return web.json_response(vendor.file(file_id, "pending"))

    async def _put(self, request: web.Request) -> web.Response:
        """Accept a file, or a part of one, at the URL that `_upload` returned."""
        assert not {"authorization", "x-api-key"} & {name.lower() for name in request.headers}
        file_id = request.match_info["id"]
        assert int(request.headers.get("x-goog-upload-offset", 0)) == len(self.stored[file_id])
        self.stored[file_id] += await request.read()
        is_last = "finalize" in request.headers.get("x-goog-upload-command", "finalize")
        if is_last:
            self.checksums[hashlib.sha256(self.stored[file_id]).hexdigest()] = file_id
            lines = self.stored[file_id].splitlines()
            self.files[file_id] = [json.loads(line) for line in lines]
        headers = {"x-goog-upload-status": "final" if is_last else "active"}
        return web.json_response({"file": {"name": file_id}}, headers=headers)

    async def _object(self, request: web.Request) -> web.Response:
        """Accept an object in a bucket, with a name chosen by the client."""
        assert request.headers["authorization"].startswith("AWS4-HMAC-SHA256")
        lines = (await request.read()).splitlines()
        self.files[request.match_info["id"]] = [json.loads(line) for line in lines]
        return web.Response()

    async def _preprocess(self, request: web.Request) -> web.Response:
        assert self.files[request.match_info["id"]]
        return web.json_response(self._vendor(request).file(request.match_info["id"], "uploaded"))

    async def _file(self, request: web.Request) -> web.Response:
        """Describe a file; it counts as processed from the second request on."""
        file_id = request.match_info["id"]
        status = "processed" if file_id in self.seen else "pending"
        self.seen.add(file_id)
        return web.json_response(self._vendor(request).file(file_id, status))

    async def _create(self, request: web.Request) -> web.Response:
        vendor, body = self._vendor(request), await request.json()
        file_id, label = vendor.wished(body)
        if "clientRequestToken" in body:
            same = [item for item in self.batches.values() if item.label == body["clientRequestToken"]]
            if same:
                return web.json_response(vendor.created(same[0]))
        batch = RemoteBatch(
            f"{vendor.id_prefix}batch_{len(self.batches)}",
            vendor,
            self.files[file_id] if file_id else vendor.submitted(body),
            label,
            file_id,
            expired_share=self.expired_share,
        )
        self.expired_share = 0.0
        names = [vendor.read(item)[0] for item in batch.requests]
        assert names
        assert len(set(names)) == len(names), "a custom_id stands twice in a batch"
        running = sum(len(other.requests) for other in self.batches.values() if not other.is_ended)
        if self.token_limit is not None and running + len(batch.requests) > self.token_limit:
            if vendor.refuses_when_full:
                return web.json_response(error_body("exhausted", "quota exceeded"), status=429)
            batch.end, batch.code = "failed", self.refusal
        self.batches[batch.id] = batch
        return web.json_response(vendor.created(batch))

    async def _list(self, request: web.Request) -> web.Response:
        vendor = self._vendor(request)
        found = [item for item in reversed(self.batches.values()) if item.vendor is vendor]
        for item in found:
            self._look_at(item)
        return web.json_response(vendor.listed(found, request.query, self.page_size))

    async def _get(self, request: web.Request) -> web.Response:
        batch = self._found(request)
        if batch is None:
            return web.json_response(error_body("not_found", "no such batch"), status=404)
        self._look_at(batch)
        return web.json_response(batch.vendor.shown(batch))

    def _found(self, request: web.Request) -> RemoteBatch | None:
        return self.batches.get(self._vendor(request).id_prefix + request.match_info["id"])

    def _look_at(self, batch: RemoteBatch) -> None:
        if not self.is_held or batch.is_cancelled:
            batch.age += 1
        if batch.age >= self.looks and not batch.is_ended:
            self._finish(batch)
        elif not batch.is_ended:
            batch.state = _STATES[min(batch.age, 2)]

    async def _cancel(self, request: web.Request) -> web.Response:
        batch = self._found(request)
        assert batch is not None
        batch.is_cancelled, batch.end = True, "cancelled"
        batch.expired_share = max(batch.expired_share, 0.5)
        return web.json_response(batch.vendor.shown(batch))

    async def _content(self, request: web.Request) -> web.Response:
        vendor, name = self._vendor(request), request.match_info["id"]
        batch = self.batches[vendor.id_prefix + name.removeprefix("out-").removeprefix("err-")]
        lines = batch.errors if name.startswith("err-") else batch.results
        text = "".join(json.dumps(line) + "\n" for line in self.spoil(list(lines)))
        return web.Response(body=self.spoil_file(text.encode()))

    def _finish(self, batch: RemoteBatch) -> None:
        if batch.end == "failed":
            batch.state = "failed"
            return
        vendor = batch.vendor
        left_out = round(len(batch.requests) * batch.expired_share)
        batch.state = batch.end if batch.is_cancelled else "expired" if left_out else "completed"
        for place, item in enumerate(reversed(batch.requests)):
            name, body = vendor.read(item)
            if place < left_out:
                line = vendor.left_out_line(name, is_cancelled=batch.is_cancelled)
                if line is not None:
                    (batch.errors if vendor.has_error_file else batch.results).append(line)
                continue
            status, reply = self.status_of(body), None
            if status != 200:
                reply = error_body("line", f"a line of {status}")
            else:
                status, reply = self._reply(vendor, body)
                self.paid[name] += 1
            is_error = vendor.has_error_file and status != 200
            (batch.errors if is_error else batch.results).append(vendor.line(name, status, reply))


def topic_answer(body: Any) -> str:
    """Return a different answer for each topic; for judge requests, a verdict or steps."""
    text = "\n".join(_texts_in(body))
    number = next((word.strip(".,\"'") for word in text.split("topic ")[1:]), "-").split()[0].strip(".")
    if '"score"' in text:
        digits = "".join(letter for letter in number if letter.isdigit()) or "0"
        return json.dumps({"reason": f"verdict number {number}", "score": 3 + int(digits) % 7})
    if '"steps"' in text:
        return json.dumps({"steps": ["Read the text.", "Rate it."]})
    return f"A sentence about topic {number}."


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a request, whatever the vendor's format."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts_in(item)


def _plain(field: Any) -> Any:
    if not isinstance(field, web.FileField):
        return field
    content = field.file.read()
    field.file.seek(0)
    return {"name": field.filename, "content": content.decode()}
