"""Answers in gzip. The browser is on this machine or behind a proxy; pages of results compress to a tenth."""

import gzip
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from geval_cli.report.html.environment import STATIC_FOLDER

_LEVEL = 5
"""Two thirds of the processor time of the highest one, for pages a few hundredths larger."""
_OWN_SITES = (None, "none", "same-origin")
_KEPT_MAX = 64


class Compression:
    """Compresses what the server itself or its own pages ask for, but for streams of events and what is small.

    How well a page compresses tells those who see its size and can put their words into it what else is in it (BREACH).
    So what another site makes a browser ask for is sent as it is. Nothing here has a token in its body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=500, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope["type"] == "http" and Headers(scope=scope).get("sec-fetch-site") in _OWN_SITES
        await (self._compressing if is_own else self._app)(scope, receive, send)


class CompressedFiles(StaticFiles):
    """The server's own styles and scripts, then those that the report has too; each is compressed once."""

    def get_directories(self, *chosen: Any) -> list[Any]:
        return [*super().get_directories(*chosen), os.fspath(STATIC_FOLDER)]

    def file_response(
        self, full_path: Any, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        headers = Headers(scope=scope)
        plain = FileResponse(full_path, status_code=status_code, stat_result=stat_result)
        plain.headers["vary"] = "Accept-Encoding"
        takes_gzip = "gzip" in headers.get("accept-encoding", "") and "range" not in headers
        if takes_gzip and str(plain.media_type).startswith(("text/", "image/svg", "application/javascript")):
            body = _compressed(os.fspath(full_path), stat_result.st_mtime_ns, stat_result.st_size)
            found = Response(body, status_code, media_type=plain.media_type)
            for name in ("last-modified", "vary"):
                found.headers[name] = plain.headers[name]
            found.headers["etag"] = plain.headers["etag"].removesuffix('"') + '-gzip"'
            found.headers["content-encoding"] = "gzip"
            plain = found  # type: ignore[assignment]
        if self.is_not_modified(plain.headers, headers):
            return NotModifiedResponse(plain.headers)
        return plain


@lru_cache(_KEPT_MAX)
def _compressed(path: str, changed_ns: int, size: int) -> bytes:
    """Return a file in gzip; time and size are there so that one that changed is read again."""
    with Path(path).open("rb") as file:
        return gzip.compress(file.read(), mtime=0)
