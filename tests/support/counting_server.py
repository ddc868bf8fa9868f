"""A chat API on 127.0.0.1 that remembers every request: when it came, and whether its answer was sent.

Each question about `topic N` gets an answer of its own, so that an answer found anywhere tells which request it is of.
"""

import asyncio
import json
import re
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web

_TOPIC = re.compile(r"topic (\d+)")


@dataclass
class CountedRequest:
    """One request; `name` is equal for equal questions."""

    name: str
    answer: str
    is_answered: bool = False


class CountingServer:
    """The server; a context manager with a thread and an event loop of its own."""

    def __init__(self, *, latency_s: float = 0.02) -> None:
        self.requests: list[CountedRequest] = []
        self.port = 0
        self._latency_s = latency_s
        self._arrival = threading.Condition()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="counting-server")
        self._stop: asyncio.Event

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_for_requests(self, count: int, *, timeout_s: float) -> bool:
        """Whether `count` requests have arrived in all, waiting for them if need be."""
        with self._arrival:
            return self._arrival.wait_for(lambda: len(self.requests) >= count, timeout_s)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        application = web.Application()
        application.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, asked: web.Request) -> web.Response:
        request = _counted(await asked.json())
        with self._arrival:
            self.requests.append(request)
            self._arrival.notify_all()
        await asyncio.sleep(self._latency_s)
        request.is_answered = True
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
