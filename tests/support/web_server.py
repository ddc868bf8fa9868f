"""A real server on a free port of 127.0.0.1, in a thread of this process.

    with running_server(folder, environ={...}) as server:
        answer = server.post("/api/geval", {...})

`server.url` is the base of every URL; `server.app` is the application, whose parts belong to its own event loop.
"""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from support.loopback import LoopbackServer

from geval_cli.extras.web.app import ROUTERS
from geval_cli.extras.web.server import Server, bind
from geval_cli.extras.web.settings import ServerSettings

KEY = "sk-loopback-0123456789"


@dataclass(frozen=True)
class HttpAnswer:
    """A response. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class RunningServer:
    """A running server, with methods that send requests to it."""

    url: str
    settings: ServerSettings
    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def app(self) -> FastAPI:
        return self.server.app

    def get(self, path: str, **headers: str) -> HttpAnswer:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, value: Any, **headers: str) -> HttpAnswer:
        """Send `value` as JSON. Keywords are headers, with `_` for `-` in their names."""
        headers.setdefault("content_type", "application/json")
        return self.send("POST", path, json.dumps(value).encode(), headers)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        request = urllib.request.Request(self.url + path, body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return HttpAnswer(found.status, _lower(found.headers), found.read())
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, _lower(error.headers), error.read())

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the data of server-sent events until the stream ends."""
        with urllib.request.urlopen(self.url + path, timeout=60) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])


@contextmanager
def running_server(folder: Path, **settings: Any) -> Iterator[RunningServer]:
    """Run a server for `folder`, whose state is in its `.geval` unless the settings say otherwise."""
    settings.setdefault("environ", {})
    settings.setdefault("home", folder / ".geval")
    listening, bound = bind(ServerSettings(folder.resolve(), port=0, **settings))
    with listening:
        loop, started = asyncio.new_event_loop(), threading.Event()
        server = Server(bound, on_started=started.set)

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(server.serve([listening]))

        thread = threading.Thread(target=run, name="web-server", daemon=True)
        thread.start()
        assert started.wait(60)
        try:
            yield RunningServer(bound.url, bound, server, loop)
        finally:
            loop.call_soon_threadsafe(server.end)
            thread.join(60)
            assert not thread.is_alive(), "the server did not end"


def judge_environ(judge: LoopbackServer) -> dict[str, str]:
    """Return an environment in which `openai:...` calls `judge`."""
    return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": judge.base_url}


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def all_routes() -> Iterator[Any]:
    """Yield every route of the application except those of static files and the OpenAPI document."""
    pending: list[Any] = [route for router in ROUTERS for route in router.routes]
    while pending:
        route = pending.pop()
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            pending += inner.routes
