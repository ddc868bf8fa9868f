"""The list of runs, and the pages of one run: its cases, and a matrix of tests by prompts x providers.

The page of a run in progress shows how far it is.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from anyio import from_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, UnjudgeableError, UsageError
from geval_cli.extras.history import RunChange, RunHistory, change_text, read_history
from geval_cli.extras.html.charts import ScoreRange
from geval_cli.extras.html.environment import shown_text
from geval_cli.extras.html.run import (
    ROWS_PER_PAGE,
    Matrix,
    case_values,
    columns_of,
    first_variables,
    heads_of,
    row_title,
    run_values,
    shown_row,
    status_sums,
)
from geval_cli.extras.run_pages import (
    Facet,
    Repeats,
    ResultFilter,
    ResultPage,
    RunChoice,
    RunPages,
    SortOrder,
)
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.live_runs import EventJson, LiveRun, brief_of, live_of, options_of, runs_of
from geval_cli.extras.web.pages.compare import trends
from geval_cli.extras.web.pages.routing import (
    PageRoute,
    RecentResults,
    ValueT,
    case_link,
    link_with,
    number_in_query,
    page_count,
    page_number,
    page_shown,
    place_link,
    run_link,
    whole_number_in_query,
    word_in_query,
)
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.records import CaseResult, RunRecord, RunStatus, Status
from geval_cli.report.case_view import CaseView
from geval_cli.report.csv_file import csv_document
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport, run_title
from geval_cli.report.verdict import run_outcome, shown_gates
from geval_cli.runs.stored import kept_labels_of, load_report
from geval_cli.source.access import access_in
from geval_cli.source.media import names_media, read_media
from geval_cli.specs.dialect import RULES
from geval_cli.store.runs import RunStore

RUNS_PER_PAGE = 50
_HISTORY_RUNS = 500

router = APIRouter(route_class=PageRoute)


@router.get("/", response_class=HTMLResponse)
def show_runs(request: Request) -> HTMLResponse:
    """Return the list of runs, newest first, filtered by `?config=PATH` and `?tag=NAME=VALUE` (repeatable)."""
    runs = runs_of(request)
    config = request.query_params.get("config") or None
    tags = [text for text in request.query_params.getlist("tag") if text.partition("=")[1]]
    pairs = tuple((name, value) for name, _, value in (text.partition("=") for text in tags))
    number = page_number(request)
    chosen = RunChoice.of_config(config, pairs)
    changes: RecentResults[tuple[str, ...], RunChange | None] = request.app.state.changes

    def history_of(page: int) -> RunHistory:
        offset = (page - 1) * RUNS_PER_PAGE
        return read_history(runs, chosen, offset=offset, limit=RUNS_PER_PAGE, remember=changes.get)

    history = history_of(number)
    if number > (last := page_shown(number, history.total, RUNS_PER_PAGE)):
        number, history = last, history_of(last)
    points = [] if number > 1 or tags else RunPages(runs).history(_HISTORY_RUNS)
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
        gates=lambda counts: [gate.status is Status.PASSED for gate in shown_gates(counts.gates)],
        outcome=lambda item: run_outcome(item.run, item.counts),
        file_name=lambda path: Path(path).name or path,
        folder=request.app.state.settings.folder,
    )


_PROBLEMS_SHOWN = 5
_CONFLICT = 409
_UNFINISHED = (RunStatus.INTERRUPTED, RunStatus.ABORTED)


class RunProgress(Struct, frozen=True):
    """The progress of a run that has not finished; its counts are in its report.

    Attributes:
        total: number of cases the run will have.
        problems: the last cases that did not pass, newest first, in the form of the run's events.
        is_stopping: whether it has been told to stop.
        holder: the process that runs it; empty if that is this server.
    """

    total: int
    problems: tuple[EventJson, ...]
    is_stopping: bool = False
    holder: str = ""


class RunActions(Struct, frozen=True):
    """The actions available for a run.

    Attributes:
        suite_link: link to the editor of its suite; empty if the suite cannot be edited here.
        can_repeat: whether a run of its config can be started with the same options.
        can_resume: whether it ended early and the missing cases can be run.
        errors: number of cases that ended in an error and can be re-run.
        lacks: why it can be neither repeated nor resumed; empty if it can.
        is_gone: whether the reason is that its config is not in the served folder.
    """

    suite_link: str = ""
    can_repeat: bool = False
    can_resume: bool = False
    errors: int = 0
    lacks: str = ""
    is_gone: bool = False


def seen_run(request: Request, run_id: str) -> tuple[RunReport, RunProgress | None]:
    """Return a run, by its id, its first characters or `latest`, and its progress; None if it has finished.

    Raises:
        UsageError: no run, or more than one, has this id.
        StoreError: the stored runs cannot be read.
    """
    runs = runs_of(request)
    live_runs = live_of(request)
    live = live_runs.find(runs.find(run_id).run.id)
    if live is not None:
        return from_thread.run_sync(_seen_live, live, runs)  # a live run belongs to the event loop
    report = load_report(runs, run_id)
    run = report.run
    if run.status is not RunStatus.RUNNING:
        return report, None
    problems = tuple(brief_of(item) for item in RunPages(runs).problems(run.id, _PROBLEMS_SHOWN))
    total = max(report.planned or 0, report.summary.total)
    return report, RunProgress(total, problems, holder=runs.holder(run.id) or "another process")


def actions_of(request: Request, report: RunReport) -> RunActions:
    """Return the actions available for a run."""
    run = report.run
    runs = runs_of(request)
    folder = request.app.state.settings.folder
    try:
        path = live_of(request).config_of(run)
    except RefusedError as error:
        is_gone = error.status != _CONFLICT or (
            run.judged_from is None and not (folder / run.config_path).is_file()
        )
        return RunActions(lacks=f"{error.message}: {error.hint}", is_gone=is_gone)
    origin = runs.origin(run.id)
    covered = {} if origin is None else origin.covered
    options = covered.get("options")
    rules = RULES.get(str(options.get("--dialect"))) if isinstance(options, dict) else None
    is_editable = rules is None or rules.is_editable
    if is_editable:
        suite_link = link_with("/suites/edit", {"path": os.path.relpath(path.resolve(), folder.resolve())})
    else:
        suite_link = ""
    try:
        options_of(covered)
    except UsageError as error:
        return RunActions(suite_link, lacks=f"{error.message}: {error.hint}")
    if run.status is RunStatus.RUNNING:
        return RunActions(suite_link)
    is_unfinished = run.status in _UNFINISHED
    return RunActions(suite_link, can_repeat=True, can_resume=is_unfinished, errors=report.summary.errored)


def _seen_live(live: LiveRun, runs: RunStore) -> tuple[RunReport, RunProgress]:
    run = live.run
    report = RunReport(run, live.summary, lambda: runs.results(run.id), planned=live.total)
    problems = tuple(live.state()["problems"][: -_PROBLEMS_SHOWN - 1 : -1])
    return report, RunProgress(live.total, problems, live.is_stopping)


@router.get("/runs/{run_id}/results/{test}/{repeat}/{column}", response_class=HTMLResponse)
def show_case(request: Request, run_id: str, test: str, repeat: str, column: str) -> HTMLResponse:
    """Return the page of one case of a run; all three indexes start at 0."""
    runs = runs_of(request)
    run = runs.find(run_id).run
    pages = RunPages(runs)
    # The results of one test and repeat, one per column; empty if the path has no valid numbers.
    if not all(text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX for text in (test, repeat)):
        row = []
    else:
        row = pages.row(run.id, int(test), int(repeat))
    result = next((item for item in row if str(item.column) == column), None)
    if result is None:
        hint = "it may not be finished yet; see the run's page"
        raise UsageError(f"the run {run.id} has no result here", hint=hint)
    place = (result.test_index, result.repeat_index)
    steps = [
        None if found is None else place_link(run.id, *found, result.column)
        for is_failed in (False, True)
        for found in pages.neighbours(run.id, place, result.column, is_failed=is_failed)
    ]
    before, after, failed_before, failed_after = steps
    repeats = pages.repeats(run.id, result.test_index, result.column)
    found = []
    for item in CaseView(result).media:
        path = _media_path(request, run, item.name)
        link = link_with(f"{run_link(run.id)}/media/{item.sha256}", {"name": item.name})
        found.append(replace(item, link=link if path is not None and path.is_file() else None))
    return render_page(
        "case.html",
        section="runs",
        run=run,
        before=before,
        after=after,
        failed_before=failed_before,
        failed_after=failed_after,
        rate_link=link_with(f"{run_link(run.id)}/label", {"at": result.id}) if result.named_scores else None,
        run_link=run_link,
        case_link=lambda item: case_link(run.id, item),
        config_name=run_title(run),
        **{**case_values(result, row, row_title(result), repeats), "media": found},
    )


@router.get("/runs/{run_id}/media/{sha256}")
def show_media(request: Request, run_id: str, sha256: str) -> Response:
    """Return an image or recording of a run from the served folder, provided it still has this hash.

    A single byte range may be requested.
    """
    run = runs_of(request).find(run_id).run
    name = request.query_params.get("name", "")
    path = _media_path(request, run, name)
    gone = UsageError(f"the run {run.id} has no such file in the served folder any more")
    if path is None:
        raise gone
    try:
        item = read_media(path, name, access_in(request.app.state.settings.folder), None)
        content = item.read()
    except (ConfigError, UnjudgeableError) as error:
        raise gone from error
    if item.sha256 != sha256:
        raise gone
    # Safari plays recordings only if the server supports ranges (RFC 9110).
    media_type = item.media_type
    asked = request.headers.get("range", "")
    headers = {"cache-control": "private, max-age=3600", "accept-ranges": "bytes"}
    size = len(content)
    found = _RANGE.fullmatch(asked.strip())
    start, end = found.groups() if found else ("", "")
    # Send everything if the range is invalid, in another unit, or one of several.
    if not (start or end) or (start and end and int(start) > int(end)):
        return Response(content, media_type=media_type, headers=headers)
    first = int(start) if start else max(0, size - int(end))
    last = min(int(end), size - 1) if start and end else size - 1
    if first > last:
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{size}"})
    headers["content-range"] = f"bytes {first}-{last}/{size}"
    return Response(content[first : last + 1], 206, headers, media_type)


_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def _media_path(request: Request, run: RunRecord, name: str) -> Path | None:
    """Return the path of a media file, which is relative to a run's config; None if it is outside the served folder."""
    folder = request.app.state.settings.folder
    try:
        path = (folder / run.config_path).parent / name
        is_served = names_media(f"file://{name}") and path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a NUL, too long, a loop of links
        return None
    return path if is_served else None


_DIGITS_MAX = 10


_CONFIG_CHARACTERS_MAX = 40_000
_ROWS_AT_ONCE = 200
_METADATA = "meta."
"""Prefix of query parameters that filter by metadata."""


class ResultsQuery(Struct, frozen=True):
    """A choice of a run's results, as in the query of an address."""

    wanted: ResultFilter
    sort: SortOrder
    page: int

    @property
    def query(self) -> Mapping[str, object]:
        """Return the query parameters for this choice, without the page."""
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
    """Return the choice of results in the query of an address; invalid values are ignored."""
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
    """Redirect to the list of runs, which is at `/`."""
    return RedirectResponse("/")


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def show_run(request: Request, run_id: str) -> Response:
    """Return the page of a run; an id that is shortened or `latest` redirects to the full id."""
    runs = runs_of(request)
    report, progress = seen_run(request, run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(link_with(run_link(run.id), request.query_params))
    choice = choice_of(request, runs, run.id)
    pages = RunPages(runs)
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
    """Return the filtered part of a run's page, which its script inserts."""
    runs = runs_of(request)
    report, progress = seen_run(request, run_id)
    values = _results_values(request, report, choice_of(request, runs, report.run.id))
    return render_page("results.html", run=report.run, is_live=progress is not None, **values)


@router.get("/runs/{run_id}/results.{kind}")
def export_results(request: Request, run_id: str, kind: str) -> StreamingResponse:
    """Return the filtered results as a file, `csv` or `jsonl`."""
    runs = runs_of(request)
    run = runs.find(run_id).run
    choice = choice_of(request, runs, run.id)
    pages = RunPages(runs)

    def results() -> Iterator[CaseResult]:
        return _fitting(pages, run, choice)

    if kind == "csv":
        text = csv_document(results)
        media_type = "text/csv; charset=utf-8"
    elif kind == "jsonl":
        text = (json_text(result) + "\n" for result in results())
        media_type = "application/x-ndjson"
    else:
        raise UsageError(f"results cannot be exported as `{kind}`", hint="use csv or jsonl")
    headers = {"content-disposition": f'attachment; filename="{run.id}.{kind}"'}
    return StreamingResponse(text, media_type=media_type, headers=headers)


def _fitting(pages: RunPages, run: RunRecord, choice: ResultsQuery) -> Iterator[CaseResult]:
    """Yield the results that match a filter. Batches are read lazily, in whichever thread iterates."""
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
    """Return the values for the template `results.html`; `facets` are needed only for its filter form."""
    run = report.run
    wanted = choice.wanted
    pages = RunPages(runs_of(request))
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
    """Return a cached value about a run; recomputed once the run has more results or has finished again."""
    key = (report.run.id, report.run.finished_at, report.summary.total, what)
    found: ValueT = request.app.state.counted.get(key, make)
    return found
