"""The server as an ASGI application: its state, its middleware and its routers.

Responses are compressed with gzip, since the browser may be behind a proxy; pages of results shrink to a tenth.
"""

import asyncio
import gzip
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from geval_cli.extras.html.environment import STATIC_FOLDER
from geval_cli.extras.web.api import geval, labels, openapi, runs
from geval_cli.extras.web.api.geval import Evaluations
from geval_cli.extras.web.editor.routes import router as editor_router
from geval_cli.extras.web.live_runs import LiveRuns
from geval_cli.extras.web.pages import router as pages_router
from geval_cli.extras.web.pages.compare import KeptFigures
from geval_cli.extras.web.pages.routing import RecentResults
from geval_cli.extras.web.problems_json import SecurityHeaders, add_problem_handlers
from geval_cli.extras.web.security import BodyGuard, HeadAsGet, HostAndOrigin, TokenCheck
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.report.json_file import json_text
from geval_cli.runs.requests import is_untrusted
from geval_cli.runs.session import open_session
from geval_cli.source.access import TRUSTED, untrusted_access
from geval_cli.source.env import gather_env
from geval_cli.store.state import open_state
from geval_cli.version import __version__

_LEVEL = 5
"""gzip level: takes two thirds of the CPU time of level 9 for pages that are a few percent larger."""
_OWN_SITES = (None, "none", "same-origin")
_KEPT_MAX = 64


class Compression:
    """Compresses responses to the server's own pages and to direct requests, except event streams and small bodies.

    The compressed size of a page can reveal its contents to an attacker who sees the size and can inject text (BREACH).
    So responses to requests from other sites are sent uncompressed. No response body contains a token.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=500, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope["type"] == "http" and Headers(scope=scope).get("sec-fetch-site") in _OWN_SITES
        await (self._compressing if is_own else self._app)(scope, receive, send)


class CompressedFiles(StaticFiles):
    """Serves the server's own styles and scripts, then those shared with the report; each is compressed once."""

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
    """Return a file compressed with gzip; time and size are cache keys, so that a changed file is read again."""
    with Path(path).open("rb") as file:
        return gzip.compress(file.read(), mtime=0)


_log = logging.getLogger("geval_cli")

_NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
"""Turns off the telemetry of newer FastAPI versions, which the environment could otherwise turn on."""

_CHANGES_KEPT, _COMPARISONS_KEPT = 2_000, 4
"""Sizes of caches: small entries for the list of runs, and large ones for comparisons, with a verdict per case."""

_STATIC = Path(__file__).parent / "static"

_health = APIRouter(tags=["Server"])


@_health.get("/healthz", summary="Check that the server is up", operation_id="health")
async def health() -> Response:
    """Return `ok` and the version. Needs no token."""
    return Response(json_text({"status": "ok", "version": __version__}), media_type="application/json")


ROUTERS = (
    geval.router,
    runs.router,
    labels.router,
    _health,
    openapi.router,
    editor_router,
    pages_router,
)
"""All routes except static files and the OpenAPI document."""


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application.

    While it runs, `app.state` holds `settings`, `saving`, `figures`, `changes`, `comparisons`, `counted`, `state` (the
    stores), `judges`, `evaluations` and `live_runs`.

    Raises:
        ConfigError: an env file cannot be read.
    """
    judge_env = judge_environment(settings)
    evaluations = Evaluations(settings.max_evaluations, settings.evaluation_timeout_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with open_state(settings.home, settings.environ) as state:
            for warning in state.warnings:
                _log_notice(warning)
            async with open_session(
                env=judge_env,
                base_dir=settings.folder,
                cache=state.cache,
                max_concurrency=settings.max_concurrency,
                notice=_log_notice,
            ) as judges:
                live_runs = LiveRuns(settings, state)
                app.state.state, app.state.judges, app.state.live_runs = state, judges, live_runs
                yield
                await live_runs.aclose()

    # The middleware, outermost first.
    found = [
        Middleware(Compression),
        Middleware(SecurityHeaders),
        Middleware(HostAndOrigin, settings=settings),
    ]
    if settings.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allowed_origins),
                allow_methods=["GET", "POST", "PATCH", "DELETE"],
                allow_headers=["authorization", "content-type"],
                expose_headers=["location", "retry-after"],
            )
        )
    if settings.token is not None:
        found.append(Middleware(TokenCheck, settings=settings))
    app = FastAPI(
        title="geval",
        version=__version__,
        summary="Judge outputs with G-Eval, start runs and read their results.",
        lifespan=lifespan,
        middleware=[*found, Middleware(HeadAsGet), Middleware(BodyGuard, settings=settings)],
        telemetry=_NO_TELEMETRY,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings, app.state.evaluations = settings, evaluations
    app.state.saving = asyncio.Lock()
    app.state.figures = KeptFigures()
    app.state.changes, app.state.comparisons = RecentResults(_CHANGES_KEPT), RecentResults(_COMPARISONS_KEPT)
    app.state.counted = RecentResults(_CHANGES_KEPT)
    add_problem_handlers(app)
    openapi.describe_api(app, needs_token=settings.token is not None, has_open_geval=settings.has_open_geval)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", CompressedFiles(directory=os.fspath(_STATIC), check_dir=False), name="static")
    return app


def judge_environment(settings: ServerSettings) -> dict[str, str]:
    """Return the variables for the judge of `/api/geval`: the env files, overridden by the environment.

    Raises:
        ConfigError: an env file cannot be read.
    """
    access = untrusted_access([settings.folder]) if is_untrusted(settings.environ) else TRUSTED
    return gather_env(settings.environ, base_dir=settings.folder, env_file=settings.env_file, access=access)


def _log_notice(message: str) -> None:
    _log.warning("%s", message)
