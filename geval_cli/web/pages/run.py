"""One run as a matrix: tests down, prompts x providers across."""

import json
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from msgspec import Struct

from geval_cli.records import CaseResult, Column, RunSummary, Status
from geval_cli.report.junit_file import suite_name
from geval_cli.report.verdict import derived_rows, has_fallback
from geval_cli.store.run_pages import ResultFilter, ResultRow, SortOrder
from geval_cli.web.html import render_page, short_text, shown_text
from geval_cli.web.pages.routing import (
    PageRoute,
    case_link,
    link_with,
    page_count,
    page_number,
    run_link,
    stored_runs,
    word_in_query,
)
from geval_cli.web.pages.run_actions import actions_of, display_name, seen_run

ROWS_PER_PAGE = 50
_CONFIG_CHARACTERS_MAX = 40_000

router = APIRouter(route_class=PageRoute)


class Cell(Struct, frozen=True):
    """One case in the matrix, by its own score or by that of the chosen metric. `matches`: it passed the filter."""

    result: CaseResult
    status: Status
    score: float | None
    matches: bool
    has_fallback: bool


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
    query = {"status": wanted.status, "metric": wanted.metric, "q": wanted.text}
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
        rows=[(row, _cells(row, wanted.metric)) for row in found.rows],
        rows_total=found.total,
        wanted=wanted,
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


def columns_of(columns: tuple[Column, ...], rows: tuple[ResultRow, ...]) -> list[Column]:
    """Return the columns of the run; where its record has none, those that its results have."""
    if columns:
        return list(columns)
    results = {index: result for row in rows for index, result in row.cells.items()}
    return [Column(index, item.prompt.label, item.provider.label) for index, item in sorted(results.items())]


def row_title(result: CaseResult) -> str:
    """Return the title of a test: its description, else its variables in short, else its prompt."""
    if result.description:
        return short_text(result.description, 160)
    return variables_line(result) or short_text(result.prompt.rendered, 160)


def variables_line(result: CaseResult) -> str:
    """Return the variables of a test on one line."""
    pairs = [f"{short_text(name, 40)}: {short_text(value, 60)}" for name, value in result.vars.items()]
    return short_text(" · ".join(pairs), 160)


def _wanted(request: Request) -> ResultFilter:
    return ResultFilter(
        status=word_in_query(request, "status", Status),
        metric=request.query_params.get("metric") or None,
        text=request.query_params.get("q", "").strip(),
    )


def _cells(row: ResultRow, metric: str | None) -> dict[int, Cell]:
    return {column: _cell(result, metric, column in row.matching) for column, result in row.cells.items()}


def _cell(result: CaseResult, metric: str | None, matches: bool) -> Cell:
    status, score = result.status, result.score
    of_metric = [item.status for item in result.assertions if metric and item.metric == metric]
    if metric is not None and of_metric:
        order = (Status.FAILED, Status.ERROR, Status.PASSED, Status.NOT_EVALUATED)
        status = next(item for item in order if item in of_metric)
        score = result.named_scores.get(metric)
    return Cell(result, status, score, matches, has_fallback(result.assertions))


def _status_counts(summary: RunSummary) -> list[tuple[Status, int]]:
    return [
        (Status.FAILED, summary.failed),
        (Status.ERROR, summary.errored),
        (Status.PASSED, summary.passed),
        (Status.NOT_EVALUATED, summary.not_evaluated),
    ]
