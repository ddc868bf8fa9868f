"""All addresses of the HTTP API."""

from fastapi import APIRouter

from geval_cli.web.api import documentation, geval, health, runs

router = APIRouter()
router.include_router(geval.router)
router.include_router(runs.router)
router.include_router(health.router)
router.include_router(documentation.router)
