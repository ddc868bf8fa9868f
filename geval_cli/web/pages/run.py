"""One run as a matrix: tests down, prompts x providers across."""

import json
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from geval_cli.numbers import format_score
from geval_cli.records import Column, RunSummary, Status
from geval_cli.report.html.environment import shown_text
from geval_cli.report.html.matrix import cells_of, columns_of, row_title
from geval_cli.report.junit_file import suite_name
from geval_cli.report.matching import column_label
from geval_cli.report.verdict import derived_rows
from geval_cli.store.run_pages import ResultFilter, SortOrder
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import (
    PageRoute,
    case_link,
    link_with,
    number_in_query,
    page_count,
    page_number,
    run_link,
    stored_runs,
    whole_number_in_query,
    word_in_query,
)
from geval_cli.web.pages.run_actions import actions_of, display_name, seen_run

ROWS_PER_PAGE = 50
_CONFIG_CHARACTERS_MAX = 40_000

router = APIRouter(route_class=PageRoute)


@router.get("/runs")
def go_to_runs() -> RedirectResponse:
    """Redirect to the list of runs, which has a shorter address."""
    return RedirectResponse("/")


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def show_run(request: Request, run_id: str) -> Response:
    """Return a run by its id, the beginning of it, or `latest`."""
    runs = stored_runs(request)
    report, progress = seen_run(request, run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(link_with(run_link(run.id), request.query_params))
    pages = runs.pages()
    wanted = _wanted(request)
    sort = word_in_query(request, "sort", SortOrder) or SortOrder.TEST
    number = page_number(request)
    found = pages.rows(run.id, wanted, sort=sort, offset=(number - 1) * ROWS_PER_PAGE, limit=ROWS_PER_PAGE)
    query: dict[str, object] = {"status": wanted.status, "metric": wanted.metric, "q": wanted.text}
    query |= {"column": wanted.column, "low": wanted.low, "high": wanted.high}
    query["sort"] = None if sort is SortOrder.TEST else sort
    path = run_link(run.id)
    return render_page(
        "run.html",
        section="runs",
        run=run,
        summary=report.summary,
        derived=list(derived_rows(report, {item.index: suite_name(item) for item in run.columns})),
        previous=pages.previous(run.id),
        columns=columns_of(run.columns, found.rows),
        rows=[(row, cells_of(row, wanted.metric)) for row in found.rows],
        rows_total=found.total,
        wanted=wanted,
        choice_words=_choice_words(wanted, run.columns),
        sort=sort,
        statuses=_status_counts(report.summary),
        page=number,
        pages_total=page_count(found.total, ROWS_PER_PAGE),
        page_link=lambda page: link_with(path, {**query, "page": page}),
        filter_link=lambda **changes: link_with(path, {**query, **changes}),
        case_link=lambda result: case_link(run.id, result),
        run_link=run_link,
        config_name=display_name(run),
        config_file_name=Path(run.config_path).name or run.config_path,
        config_link=link_with("/", {"config": run.config_path}),
        tag_link=lambda name, value: link_with("/", {"tag": f"{name}={value}"}),
        progress=progress,
        actions=actions_of(request, report),
        planned=report.planned or 0,
        missing=max((report.planned or 0) - report.summary.total, 0),
        title_of=row_title,
        description=run.config.get("description") if isinstance(run.config, dict) else None,
        config_text=shown_text(json.dumps(run.config, ensure_ascii=False, indent=2), _CONFIG_CHARACTERS_MAX),
    )


def _wanted(request: Request) -> ResultFilter:
    return ResultFilter(
        status=word_in_query(request, "status", Status),
        metric=request.query_params.get("metric") or None,
        text=request.query_params.get("q", "").strip(),
        column=whole_number_in_query(request, "column"),
        low=number_in_query(request, "low"),
        high=number_in_query(request, "high"),
    )


def _choice_words(wanted: ResultFilter, columns: Sequence[Column]) -> list[str]:
    """Return in words what a drawing's mark chose beside status and metric."""
    words = []
    if wanted.column is not None:
        named = [item for item in columns if item.index == wanted.column]
        words.append(f"in {column_label(named[0])}" if named else f"in column {wanted.column + 1:,}")
    if wanted.low is not None:
        words.append(f"with a score from {format_score(wanted.low)}")
    if wanted.high is not None:
        joint = " to" if wanted.low is not None else "with a score"
        words.append(f"{joint} {'' if wanted.high == 1 else 'below '}{format_score(wanted.high)}".strip())
    return words


def _status_counts(summary: RunSummary) -> list[tuple[Status, int]]:
    return [
        (Status.FAILED, summary.failed),
        (Status.ERROR, summary.errored),
        (Status.PASSED, summary.passed),
        (Status.NOT_EVALUATED, summary.not_evaluated),
    ]
