"""Request bodies: of JSON, not too large, not too slow; read whole before anything looks at them."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geval_cli.web.problems_json import problem_response
from geval_cli.web.routing import has_route
from geval_cli.web.settings import ServerSettings

_BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class BodyGuard:
    """Refuses bodies that no endpoint takes: 415 for what is not JSON, 413 for too much, 408 for too slow.

    A form or a plain text can be sent by any web page without asking first, JSON cannot.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._limit = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _BODY_METHODS or not has_route(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not _is_json(headers.get("content-type", "")):
            detail = "the request must say that it is JSON"
            response = problem_response(415, detail, hint="send the header `Content-Type: application/json`")
            await response(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(headers, receive)
        except TimeoutError:
            response = problem_response(408, f"the body took longer than {self._timeout_s:g} s to arrive")
            await response(scope, receive, send)
            return
        if body is None:
            response = problem_response(
                413,
                f"the body is larger than {self._limit:,} bytes",
                hint="send less at a time",
                headers={"connection": "close"},
            )
            await response(scope, receive, send)
            return
        await self._app(scope, _Replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the whole body; None when it is too large."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._limit:
            return None
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)  # the client has gone; nobody reads the answer
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


class _Replay:
    """Gives the body once more, then whatever else the client sends: that it has gone."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"
