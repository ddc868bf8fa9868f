"""`GET /healthz`: whether the server is there."""

from fastapi import APIRouter, Response

from geval_cli.report.json_file import json_text
from geval_cli.version import __version__

router = APIRouter(tags=["Server"])


@router.get("/healthz", summary="Ask whether the server is there", operation_id="health")
async def health() -> Response:
    """Answer `ok` and the version. Needs no token and asks nothing else."""
    return Response(json_text({"status": "ok", "version": __version__}), media_type="application/json")
