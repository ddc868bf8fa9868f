"""All addresses of the HTTP API, and `GET /healthz`: whether the server is there."""

from fastapi import APIRouter, Response

from geval_cli.report.json_file import json_text
from geval_cli.version import __version__
from geval_cli.web.api import geval, openapi, runs

router = APIRouter()
router.include_router(geval.router)
router.include_router(runs.router)


@router.get("/healthz", summary="Ask whether the server is there", operation_id="health", tags=["Server"])
async def health() -> Response:
    """Answer `ok` and the version. Needs no token and asks nothing else."""
    return Response(json_text({"status": "ok", "version": __version__}), media_type="application/json")


router.include_router(openapi.router)
