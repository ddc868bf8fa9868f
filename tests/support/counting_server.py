"""A chat API on 127.0.0.1 that records every request: when it arrived, and whether its answer was sent.

Each question about `topic N` gets its own answer, so that every stored answer shows which request it belongs to.
"""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web
from support.loop_thread import LoopThread

_TOPIC = re.compile(r"topic (\d+)")


@dataclass
class CountedRequest:
    """One request; equal questions have equal `name`s."""

    name: str
    answer: str
    is_answered: bool = False
    status: int = 200


class CountingServer(LoopThread):
    """The server; a context manager. An answer takes `latency_s` seconds."""

    def __init__(
        self, *, latency_s: float = 0.02, read: "Callable[[Any], CountedRequest] | None" = None
    ) -> None:
        """Create a server; `read` returns a request with its answer, instead of one about `topic N`."""
        super().__init__("counting-server")
        self._read = read or _counted
        self.requests: list[CountedRequest] = []
        self._latency_s = latency_s
        self._most: int | None = None
        self._arrival = threading.Condition()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_for_requests(self, count: int, *, timeout_s: float) -> bool:
        """Wait until `count` requests have arrived in total; return whether they did."""
        with self._arrival:
            return self._arrival.wait_for(lambda: len(self.requests) >= count, timeout_s)

    def answer_at_most(self, count: int | None) -> None:
        """Never answer any requests after the first `count`; None to answer all further ones."""
        self._most = count

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _answer(self, asked: web.Request) -> web.Response:
        request = self._read(await asked.json())
        with self._arrival:
            self.requests.append(request)
            self._arrival.notify_all()
        if self._most is not None and len(self.requests) > self._most:
            await asyncio.Event().wait()
        await asyncio.sleep(self._latency_s)
        request.is_answered = True
        if request.status != HTTPStatus.OK:
            return web.json_response({"error": {"message": "this is refused"}}, status=request.status)
        message = {"role": "assistant", "content": request.answer}
        return web.json_response(
            {
                "model": "counted",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        )


def _counted(body: Any) -> CountedRequest:
    text = "\n".join(str(message["content"]) for message in body["messages"])
    topic = _TOPIC.search(text)
    number = topic[1] if topic else "-"
    if '"score"' in text:
        verdict = {"reason": f"verdict number {number}", "score": 3 + int(number) % 7}
        return CountedRequest(f"verdict {number}", json.dumps(verdict))
    if '"steps"' in text:
        return CountedRequest("steps", json.dumps({"steps": ["Read the text.", "Rate it."]}))
    return CountedRequest(f"answer {number}", f"A sentence about topic {number}.")
