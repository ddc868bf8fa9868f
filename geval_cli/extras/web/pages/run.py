"""One run as a matrix: tests down, prompts x providers across."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import UsageError
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.pages.routing import (
    PageRoute,
    ValueT,
    case_link,
    link_with,
    number_in_query,
    page_count,
    page_number,
    page_shown,
    place_link,
    run_link,
    stored_runs,
    whole_number_in_query,
    word_in_query,
)
from geval_cli.extras.web.pages.run_actions import actions_of, seen_run
from geval_cli.records import CaseResult, RunRecord, Status
from geval_cli.report.charts.pair_charts import ScoreRange
from geval_cli.report.csv_file import csv_document
from geval_cli.report.html.environment import shown_text
from geval_cli.report.html.matrix import (
    ROWS_PER_PAGE,
    Matrix,
    columns_of,
    first_variables,
    heads_of,
    shown_row,
    status_sums,
)
from geval_cli.report.html.run_view import run_values
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import kept_labels_of
from geval_cli.store.result_filter import Facet, Repeats, ResultFilter
from geval_cli.store.run_pages import ResultPage, RunPages, SortOrder
from geval_cli.store.runs import RunStore

_CONFIG_CHARACTERS_MAX = 40_000
_ROWS_AT_ONCE = 200
_METADATA = "meta."
"""Begins the names of query parameters that choose by metadata."""

router = APIRouter(route_class=PageRoute)


class ResultsQuery(Struct, frozen=True):
    """A run's results as the query of an address chooses them."""

    wanted: ResultFilter
    sort: SortOrder
    page: int

    @property
    def query(self) -> Mapping[str, object]:
        """The query that makes this choice, without the page."""
        wanted = self.wanted
        return {
            "status": wanted.status,
            "metric": wanted.metric,
            "q": wanted.text,
            "differs": "yes" if wanted.differs else None,
            "column": wanted.column,
            "low": wanted.low,
            "high": wanted.high,
            "label_low": wanted.label_low,
            "label_high": wanted.label_high,
            "test": wanted.test,
            "repeats": wanted.repeats,
            **{f"{_METADATA}{name}": value for name, value in wanted.metadata},
            "sort": None if self.sort is SortOrder.TEST else self.sort,
        }


def choice_of(request: Request, runs: RunStore, run_id: str) -> ResultsQuery:
    """Read the query of an address about a run; what makes no sense is passed over."""
    choice = _asked_choice(request)
    wanted = choice.wanted
    labels = ScoreRange(wanted.label_low, wanted.label_high)
    if wanted.metric is None or labels == ScoreRange():
        return choice
    found = kept_labels_of(runs, run_id)
    means = {} if found is None else found.means().get(wanted.metric, {})
    ids = frozenset(output for output, label in means.items() if labels.holds(label))
    return replace(choice, wanted=replace(wanted, ids=ids))


def _asked_choice(request: Request) -> ResultsQuery:
    metadata = {
        name.removeprefix(_METADATA): value
        for name, value in request.query_params.items()
        if name.startswith(_METADATA) and value
    }
    wanted = ResultFilter(
        status=word_in_query(request, "status", Status),
        metric=request.query_params.get("metric") or None,
        text=request.query_params.get("q", "").strip(),
        metadata=tuple(metadata.items()),
        differs=request.query_params.get("differs") == "yes",
        column=whole_number_in_query(request, "column"),
        low=number_in_query(request, "low"),
        high=number_in_query(request, "high"),
        test=whole_number_in_query(request, "test"),
        repeats=word_in_query(request, "repeats", Repeats),
        label_low=number_in_query(request, "label_low"),
        label_high=number_in_query(request, "label_high"),
    )
    sort = word_in_query(request, "sort", SortOrder) or SortOrder.TEST
    return ResultsQuery(wanted, sort, page_number(request))


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
    choice, pages = choice_of(request, runs, run.id), runs.pages()
    origin = runs.origin(run.id)
    return render_page(
        "run.html",
        section="runs",
        previous=pages.previous(run.id),
        run_link=run_link,
        form_action=run_link(run.id),
        filter_link=lambda **changes: link_with(run_link(run.id), {**choice.query, **changes}),
        place_link=lambda *place: place_link(run.id, *place),
        config_file_name=Path(run.config_path).name or run.config_path,
        config_link=link_with("/", {"config": run.config_path if origin is None else origin.config_file}),
        tag_link=lambda name, value: link_with("/", {"tag": f"{name}={value}"}),
        progress=progress,
        actions=actions_of(request, report),
        planned=report.planned or 0,
        missing=max((report.planned or 0) - report.summary.total, 0),
        config_text=shown_text(json.dumps(run.config, ensure_ascii=False, indent=2), _CONFIG_CHARACTERS_MAX),
        **{**run_values(report), "is_live": progress is not None},
        **_results_values(
            request, report, choice, _kept(request, report, "facets", lambda: pages.facets(run.id))
        ),
    )


@router.get("/runs/{run_id}/results", response_class=HTMLResponse)
def show_results(request: Request, run_id: str) -> HTMLResponse:
    """Return the part of a run's page that its filters change, for the script that puts it in place."""
    runs = stored_runs(request)
    report, progress = seen_run(request, run_id)
    values = _results_values(request, report, choice_of(request, runs, report.run.id))
    return render_page("results.html", run=report.run, is_live=progress is not None, **values)


@router.get("/runs/{run_id}/results.{kind}")
def export_results(request: Request, run_id: str, kind: str) -> StreamingResponse:
    """Return the results that fit the filter as a file, `csv` or `jsonl`."""
    runs = stored_runs(request)
    run = runs.find(run_id).run
    choice, pages = choice_of(request, runs, run.id), runs.pages()

    def results() -> Iterator[CaseResult]:
        return _fitting(pages, run, choice)

    if kind == "csv":
        text, media_type = csv_document(results), "text/csv; charset=utf-8"
    elif kind == "jsonl":
        text, media_type = (json_text(result) + "\n" for result in results()), "application/x-ndjson"
    else:
        raise UsageError(f"results cannot be exported as `{kind}`", hint="use csv or jsonl")
    headers = {"content-disposition": f'attachment; filename="{run.id}.{kind}"'}
    return StreamingResponse(text, media_type=media_type, headers=headers)


def _fitting(pages: RunPages, run: RunRecord, choice: ResultsQuery) -> Iterator[CaseResult]:
    """Yield the results that fit a filter; each batch is read by whichever thread asks for it."""
    places = pages.places(run.id, choice.wanted, choice.sort)
    for first in range(0, len(places), _ROWS_AT_ONCE):
        for row in pages.rows_at(run.id, places[first : first + _ROWS_AT_ONCE]):
            for repeat, column in sorted(row.matching):
                yield from (item for item in row.cells[column] if item.repeat_index == repeat)


def _rows_of_page(pages: RunPages, run_id: str, choice: ResultsQuery, page: int) -> ResultPage:
    first = (page - 1) * ROWS_PER_PAGE
    return pages.rows(run_id, choice.wanted, sort=choice.sort, offset=first, limit=ROWS_PER_PAGE)


def _results_values(
    request: Request, report: RunReport, choice: ResultsQuery, facets: tuple[Facet, ...] = ()
) -> dict[str, Any]:
    """Return the values of the template `results.html` that depend on the filter; those of its form need `facets`."""
    run, wanted, pages = report.run, choice.wanted, stored_runs(request).pages()
    path = run_link(run.id)
    found = _rows_of_page(pages, run.id, choice, choice.page)
    page = page_shown(choice.page, found.total, ROWS_PER_PAGE)
    if page != choice.page:
        found = _rows_of_page(pages, run.id, choice, page)
    metric = wanted.metric
    counts = (
        None
        if metric is None
        else _kept(request, report, f"metric {metric}", lambda: pages.metric_counts(run.id, metric))
    )
    matrix = Matrix(
        heads=heads_of(columns_of(run.columns, found.rows), report.summary, wanted.metric, counts),
        rows=tuple(shown_row(row, wanted.metric) for row in found.rows),
        rows_total=found.total,
        wanted=wanted,
        sort=choice.sort,
        facets=facets,
        page=page,
        pages_total=page_count(found.total, ROWS_PER_PAGE),
        variables=first_variables(
            name for row in found.rows for name in next(iter(row.cells.values()))[0].vars
        ),
        counts=None if counts is None else status_sums(counts),
    )
    return {
        "matrix": matrix,
        "page_link": lambda page: link_with(path, {**choice.query, "page": page}),
        "case_link": lambda result: case_link(run.id, result),
        "export_link": lambda kind: link_with(f"{path}/results.{kind}", choice.query),
        "has_own_export": False,
        "export_command": None,
        "clear_link": path,
    }


def _kept(request: Request, report: RunReport, what: str, make: Callable[[], ValueT]) -> ValueT:
    """Return what takes long to count of a run; counted again when it has more results."""
    key = (report.run.id, report.run.finished_at, report.summary.total, what)
    found: ValueT = request.app.state.counted.get(key, make)
    return found
