"""The server as an ASGI application: what it holds while it runs, and which part answers what."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from geval_cli.extras.web.api import geval, labels, openapi, run_actions, runs
from geval_cli.extras.web.api.geval import Evaluations
from geval_cli.extras.web.compression import CompressedFiles, Compression
from geval_cli.extras.web.editor.routes import router as editor_router
from geval_cli.extras.web.live_runs import LiveRuns
from geval_cli.extras.web.pages import router as pages_router
from geval_cli.extras.web.pages.charts import KeptFigures
from geval_cli.extras.web.pages.routing import Recent
from geval_cli.extras.web.problems_json import SecurityHeaders, add_problem_handlers
from geval_cli.extras.web.security import BodyGuard, HostAndOrigin, TokenCheck
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.report.json_file import json_text
from geval_cli.runs.requests import is_untrusted
from geval_cli.runs.session import open_session
from geval_cli.source.access import TRUSTED, access_of_stranger
from geval_cli.source.env import gather_env
from geval_cli.store.state import open_state
from geval_cli.version import __version__

_log = logging.getLogger("geval_cli")

_NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
"""Newer versions of FastAPI would report what the environment asks for; nothing is to be sent to anybody."""

_CHANGES_KEPT, _COMPARISONS_KEPT = 2_000, 4
"""Of the list of runs, small; and of pages that compare two runs, with a verdict for each case."""

_STATIC = Path(__file__).parent / "static"

_health = APIRouter(tags=["Server"])


@_health.get("/healthz", summary="Check that the server is up", operation_id="health")
async def health() -> Response:
    """Answer `ok` and the version. Needs no token."""
    return Response(json_text({"status": "ok", "version": __version__}), media_type="application/json")


ROUTERS = (
    geval.router,
    runs.router,
    run_actions.router,
    labels.router,
    _health,
    openapi.router,
    editor_router,
    pages_router,
)
"""All addresses but those of static files and of the OpenAPI document."""


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application.

    While it runs, its `state` has `settings`, `saving`, `figures`, `state` (the stores), `judges`, `evaluations` and
    `live_runs`.

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

    app = FastAPI(
        title="geval",
        version=__version__,
        summary="Judge outputs with G-Eval, start runs and read their results.",
        lifespan=lifespan,
        middleware=_middleware(settings),
        telemetry=_NO_TELEMETRY,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings, app.state.evaluations = settings, evaluations
    app.state.saving, app.state.figures = asyncio.Lock(), KeptFigures()
    app.state.changes, app.state.comparisons = Recent(_CHANGES_KEPT), Recent(_COMPARISONS_KEPT)
    app.state.counted = Recent(_CHANGES_KEPT)
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
    access = access_of_stranger([settings.folder]) if is_untrusted(settings.environ) else TRUSTED
    return gather_env(settings.environ, base_dir=settings.folder, env_file=settings.env_file, access=access)


def _log_notice(message: str) -> None:
    _log.warning("%s", message)


def _middleware(settings: ServerSettings) -> list[Middleware]:
    """Return the middleware, outermost first."""
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
    return [*found, Middleware(BodyGuard, settings=settings)]
