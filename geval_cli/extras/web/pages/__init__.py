"""The web pages about runs: the list, one run as a matrix, one case, two runs side by side, human labels."""

from fastapi import APIRouter

from geval_cli.extras.web.pages import compare, label, run

router = APIRouter(include_in_schema=False)
router.include_router(run.router)
router.include_router(compare.router)
router.include_router(label.router)

__all__ = ["router"]
