"""Who may ask the server at all: names of the server, origins of pages, the token.

All of this is ASGI middleware, so that it holds for every address, also for one that does not exist.
"""

import base64
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from geval_cli.web.problems_json import problem_response
from geval_cli.web.settings import TOKEN_VARIABLE, ServerSettings

OPEN_PATHS = frozenset({"/healthz"})
"""What needs no token: it tells nobody anything but that the server is there."""

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_HTTP_PORT = 80


class HostAndOrigin:
    """Refuses requests meant for another server name (DNS rebinding) or sent by another site's page (CSRF)."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings
        self._authorities = _authorities(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                response = problem_response(403, refusal, hint="see docs/http-api.md, “Who may ask”")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        host = headers.get("host", "").lower()
        if self._authorities is not None and host not in self._authorities:
            return "this server does not answer to the name in the Host header"
        origin = headers.get("origin")
        if origin is None or origin in self._settings.allowed_origins:
            return None
        if not host or origin.lower().removeprefix("https://").removeprefix("http://") != host:
            return "pages of other origins may not use this server"
        return None


class TokenCheck:
    """Demands the token, as `Authorization: Bearer TOKEN`, or from browsers as the password of Basic authentication."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode("utf-8", "surrogateescape")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = _given_token(Headers(scope=scope).get("authorization", ""))
            if not hmac.compare_digest(given, self._token):
                response = problem_response(
                    401,
                    "this server wants its token",
                    hint=f"send `Authorization: Bearer TOKEN`; TOKEN is {TOKEN_VARIABLE} of the server",
                    headers={"www-authenticate": _challenge(scope["path"])},
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _challenge(path: str) -> str:
    """Browsers ask for a name and a password where pages are; programs want to be told of the token."""
    return 'Bearer realm="geval"' if path.startswith("/api/") else 'Basic realm="geval", charset="UTF-8"'


def _given_token(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _authorities(settings: ServerSettings) -> frozenset[str] | None:
    """What may stand in `Host`; None for anything, where the server has every address and the token protects it."""
    if settings.is_wildcard and not settings.allowed_hosts:
        return None
    names = [*_LOOPBACK_NAMES, *(name.lower() for name in settings.allowed_hosts)]
    if not settings.is_wildcard:
        names.append(f"[{settings.host}]" if ":" in settings.host else settings.host.lower())
    found = {f"{name}:{settings.port}" for name in names}
    found.update(name.lower() for name in settings.allowed_hosts)  # behind a proxy that has a port of its own
    if settings.port == _HTTP_PORT:
        found.update(names)
    return frozenset(found)
