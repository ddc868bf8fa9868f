"""Access checks and limits for requests: server names, origins, the token, and the type, size and time of bodies.

All of this is ASGI middleware, so it applies to every address, even one that does not exist; `BodyGuard` and
`HeadAsGet` act only where a route matches.
"""

import asyncio
import base64
import hashlib
import hmac
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geval_cli.extras.web.problems_json import has_route, problem_answer, problem_response
from geval_cli.extras.web.settings import TOKEN_VARIABLE, ServerSettings

OPEN_PATHS = frozenset({"/healthz"})
"""Paths that need no token: they reveal nothing except that the server is running."""

OPEN_OPERATIONS = frozenset({("POST", "/api/geval")})
"""Operations that need no token if the server made its own, being reachable only from this machine."""

_PARAMETER = "token"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_HTTP_PORT = 80


class HostAndOrigin:
    """Refuses requests for another server name (DNS rebinding) or from another site's page (CSRF)."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._authorities = _authorities(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                response = problem_answer(
                    scope, 403, refusal, hint="see docs/reference/http-api.md, “Access”"
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        host = headers.get("host", "").lower()
        if len(headers.getlist("host")) > 1:
            return "send exactly one server in the Host header"
        if self._authorities is not None and host not in self._authorities:
            return "this server does not accept the name in the Host header"
        origin = headers.get("origin")
        if origin is None or origin in self._settings.allowed_origins:
            return None
        if not host or origin.lower().removeprefix("https://").removeprefix("http://") != host:
            return "pages of other origins may not use this server"
        return None


class TokenCheck:
    """Requires the token: as `Authorization: Bearer TOKEN`, as the password of Basic authentication, or as a cookie.

    A page address with the token (`/?token=TOKEN`) sets the cookie and redirects to the address without it.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        assert settings.token is not None
        self._app = app
        self._token = settings.token.encode("utf-8", "surrogateescape")
        self._ticket = (settings.ticket or "").encode()
        self._open_operations = OPEN_OPERATIONS if settings.has_open_geval else frozenset()
        # Browsers send a host's cookies to all of its ports, so the name identifies the server. The value is not the
        # token itself, which may contain characters that are not allowed in a cookie.
        self._cookie_name = f"geval-{settings.port}"
        self._cookie = hmac.new(self._token, b"geval's cookie", hashlib.sha256).hexdigest().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        """Return a refusal, or the redirect that removes a token from the address; None if the request may pass."""
        if scope["path"] in OPEN_PATHS or (scope["method"], scope["path"]) in self._open_operations:
            return None
        if self._takes_token_of(scope):
            query = urlencode([(name, value) for name, value in _query(scope) if name != _PARAMETER])
            # Exactly one slash, since two would name another server.
            address = f"/{quote(scope['path'].lstrip('/'))}" + (f"?{query}" if query else "")
            cookie = f"{self._cookie_name}={self._cookie.decode()}; Path=/; HttpOnly; SameSite=Strict"
            return Response(status_code=303, headers={"location": address, "set-cookie": cookie})
        headers = Headers(scope=scope)
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie_name, "")
        given = _given_token(headers.get("authorization", ""))
        # Always compare both, so that the time reveals nothing.
        is_cookie = hmac.compare_digest(cookie.encode("utf-8", "replace"), self._cookie)
        has_token = hmac.compare_digest(given, self._token) or is_cookie
        if has_token:
            return None
        # A Basic challenge makes a browser prompt for the token; programs send Bearer.
        challenge = (
            'Bearer realm="geval"'
            if scope["path"].startswith("/api/")
            else 'Basic realm="geval", charset="UTF-8"'
        )
        return problem_answer(
            scope,
            401,
            "this server requires its token",
            hint="open the URL that the server printed at start, or send `Authorization: Bearer TOKEN`; "
            f"TOKEN is the server's {TOKEN_VARIABLE}, or part of that URL",
            headers={"www-authenticate": challenge},
        )

    def _takes_token_of(self, scope: Scope) -> bool:
        """Return whether the address of a page contains the token or the ticket. A ticket is valid only once."""
        if scope["method"] != "GET" or scope["path"].startswith("/api/"):
            return False
        given = dict(_query(scope)).get(_PARAMETER, "").encode("utf-8", "surrogateescape")
        if hmac.compare_digest(given, self._token):
            return True
        is_ticket = bool(self._ticket) and hmac.compare_digest(given, self._ticket)
        if is_ticket:
            self._ticket = b""
        return is_ticket


def _query(scope: Scope) -> list[tuple[str, str]]:
    text = scope["query_string"].decode("latin-1")
    return parse_qsl(text, keep_blank_values=True, errors="surrogateescape")


def _given_token(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        # Starlette always decodes headers as latin-1; this restores the bytes that were sent.
        return value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            # The user name is ignored: browsers ask for one, and people leave it empty.
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _authorities(settings: ServerSettings) -> frozenset[str] | None:
    """Return the values allowed in `Host`; None for any, if the server listens on every address."""
    if settings.is_wildcard and not settings.allowed_hosts:
        return None
    names = [*_LOOPBACK_NAMES, *(name.lower() for name in settings.allowed_hosts)]
    if not settings.is_wildcard:
        names.append(f"[{settings.host}]" if ":" in settings.host else settings.host.lower())
    found = {f"{name}:{settings.port}" for name in names}
    found.update(name.lower() for name in settings.allowed_hosts)  # behind a proxy with its own port
    if settings.port == _HTTP_PORT:
        found.update(names)
    return frozenset(found)


class HeadAsGet:
    """Handles HEAD as GET; uvicorn leaves out the body. Not for event streams, which may last for hours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if is_head and not scope["path"].endswith("/events"):
            as_get = {**scope, "method": "GET"}
            scope = as_get if has_route(as_get) else scope
        await self._app(scope, receive, send)


_BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class BodyGuard:
    """Refuses bodies that are not JSON (415), too large (413) or too slow (408).

    Requiring JSON guards against CSRF: any web page can send a form or plain text, but JSON needs a preflight request.
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
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            detail = "the request must be JSON"
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
        """Return the whole body; None if it is too large."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._limit:
            return None
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)  # the client has disconnected, so no one reads the answer
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


class _Replay:
    """Returns the body once more, then passes on the client's further messages, such as its disconnect."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()
