"""The page's runs: the list, one run as a matrix, one case, two runs side by side."""

from fastapi import APIRouter

from geval_cli.web.pages import case, charts, compare, run, runs

router = APIRouter(include_in_schema=False)
router.include_router(runs.router)
router.include_router(run.router)
router.include_router(charts.router)
router.include_router(case.router)
router.include_router(compare.router)

__all__ = ["router"]
