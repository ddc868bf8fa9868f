"""The list of runs, with the pass rate of each config over time."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from geval_cli.extras.history import RunChange, RunHistory, change_text, read_history
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.live_runs import runs_of
from geval_cli.extras.web.pages.charts import trends
from geval_cli.extras.web.pages.routing import (
    PageRoute,
    Recent,
    link_with,
    page_count,
    page_number,
    page_shown,
    run_link,
)
from geval_cli.records import Status
from geval_cli.report.report import run_title
from geval_cli.report.verdict import run_outcome
from geval_cli.store.run_pages import RunChoice

RUNS_PER_PAGE = 50
_HISTORY_RUNS = 500

router = APIRouter(route_class=PageRoute)


@router.get("/", response_class=HTMLResponse)
def show_runs(request: Request) -> HTMLResponse:
    """Return all runs, newest first; with `?config=` those of one config, with `?tag=NAME=VALUE` those with a tag."""
    runs = runs_of(request)
    config = request.query_params.get("config") or None
    tags = [text for text in request.query_params.getlist("tag") if text.partition("=")[1]]
    pairs = tuple((name, value) for name, _, value in (text.partition("=") for text in tags))
    number = page_number(request)
    chosen = RunChoice.of_config(config, pairs)
    changes: Recent[tuple[str, ...], RunChange | None] = request.app.state.changes

    def history_of(page: int) -> RunHistory:
        offset = (page - 1) * RUNS_PER_PAGE
        return read_history(runs, chosen, offset=offset, limit=RUNS_PER_PAGE, remember=changes.get)

    history = history_of(number)
    if number > (last := page_shown(number, history.total, RUNS_PER_PAGE)):
        number, history = last, history_of(last)
    points = [] if number > 1 or tags else runs.pages().history(_HISTORY_RUNS)
    query = {"config": config, "tag": tags}
    return render_page(
        "runs.html",
        section="runs",
        outlines=history.runs,
        total=history.total,
        config=config,
        tags=tags,
        trends=trends(points, config),
        page=number,
        pages_total=page_count(history.total, RUNS_PER_PAGE),
        page_link=lambda page: link_with("/", {**query, "page": page}),
        config_link=lambda path: link_with("/", {"config": path}),
        tag_link=lambda name, value: link_with("/", {"config": config, "tag": [*tags, f"{name}={value}"]}),
        without_tag=lambda tag: link_with("/", {**query, "tag": [item for item in tags if item != tag]}),
        run_link=run_link,
        display_name=run_title,
        change_text=change_text,
        models=lambda run: ", ".join(
            dict.fromkeys(item.provider_label for item in run.columns if item.provider_label)
        ),
        gates=lambda counts: sum(gate.status is Status.PASSED for gate in counts.gates),
        outcome=lambda item: run_outcome(item.run, item.counts),
        file_name=lambda path: Path(path).name or path,
        folder=request.app.state.settings.folder,
    )
