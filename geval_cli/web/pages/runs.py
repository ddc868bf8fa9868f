"""The list of runs, with the pass rate of each config over time."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from geval_cli.store.run_pages import RunChoice
from geval_cli.web.html import render_page
from geval_cli.web.pages.charts import trends
from geval_cli.web.pages.routing import PageRoute, link_with, page_count, page_number, run_link, stored_runs

RUNS_PER_PAGE = 50
_HISTORY_RUNS = 500

router = APIRouter(route_class=PageRoute)


@router.get("/", response_class=HTMLResponse)
def show_runs(request: Request) -> HTMLResponse:
    """Return all runs, newest first, or with `?config=` those of one config."""
    pages = stored_runs(request).pages()
    config = request.query_params.get("config") or None
    number = page_number(request)
    outlines, total = pages.outlines(
        RunChoice(config=config), offset=(number - 1) * RUNS_PER_PAGE, limit=RUNS_PER_PAGE
    )
    history = [] if number > 1 else pages.history(_HISTORY_RUNS)
    return render_page(
        "runs.html",
        section="runs",
        outlines=outlines,
        total=total,
        config=config,
        trends=trends(history, config),
        page=number,
        pages_total=page_count(total, RUNS_PER_PAGE),
        page_link=lambda page: link_with("/", {"config": config, "page": page}),
        config_link=lambda path: link_with("/", {"config": path}),
        run_link=run_link,
        file_name=lambda path: Path(path).name or path,
        folder=request.app.state.settings.folder,
    )
