"""Pages to rate outputs without seeing the judge's verdict, and to compare the labels with the judge afterwards."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from geval_cli.errors import UsageError
from geval_cli.extras.html.run import chat_messages, row_title, whole_output
from geval_cli.extras.trust.labelling import parts_to_read
from geval_cli.extras.web.api.labels import own_row, reviewed_labels
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.live_runs import runs_of
from geval_cli.extras.web.pages.routing import (
    PageRoute,
    case_link,
    link_with,
    page_count,
    page_number,
    page_shown,
    run_link,
)
from geval_cli.metrics import with_members
from geval_cli.report.json_file import json_text
from geval_cli.report.report import run_title
from geval_cli.report.sanitize import output_digest
from geval_cli.runs.stored import load_report

LABELS_PER_PAGE = 50

router = APIRouter(route_class=PageRoute)


@router.get("/runs/{run_id}/label", response_class=HTMLResponse)
def label_outputs(request: Request, run_id: str) -> Response:
    """Return the page on which an annotator rates a run's outputs; its script loads them one by one."""
    report = load_report(runs_of(request), run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(link_with(f"{run_link(run.id)}/label", request.query_params))
    return render_page(
        "label.html",
        section="runs",
        run=run,
        metrics=list(report.summary.metrics),
        run_link=run_link,
        config_name=run_title(run),
    )


@router.get("/runs/{run_id}/label/output", response_class=HTMLResponse)
def show_output(
    request: Request,
    run_id: str,
    id: str = "",
    metric: str = "",
    annotator: str = "",
    verdict: bool = False,
    blind: bool = False,
) -> HTMLResponse:
    """Return one output to rate, with the judge's verdict once the annotator has rated it or if `verdict` is set.

    With `blind`, nothing reveals which of two runs the output comes from.
    """
    runs = runs_of(request)
    run = runs.find(run_id).run
    result = runs.cases(run.id, [id]).get(id)
    if result is None or result.output is None:
        hint = "it may have been judged again; reload the page"
        raise UsageError(f"the run {run.id} has no output {id} to rate", hint=hint)
    kept = runs.labels().find(run.id, result.id, metric, annotator.strip())
    messages = [] if blind else chat_messages(result.prompt.rendered)
    row = own_row(kept, output_digest(result.output))
    shows_verdict = verdict or "label" in row
    return render_page(
        "label_output.html",
        case=result,
        title=row_title(result),
        messages=messages,
        parts=list(parts_to_read(result, is_blind=blind))[1 if messages else 0 :],
        output=whole_output(result),
        row_text=json_text({"label": row.get("label"), "note": row.get("note") or ""}),
        verdicts=[
            item for item, _ in with_members(result.assertions) if shows_verdict and item.metric == metric
        ],
        shows_verdict=shows_verdict,
    )


@router.get("/runs/{run_id}/labels", response_class=HTMLResponse)
def review_labels(request: Request, run_id: str) -> Response:
    """Return human labels next to the judge's verdicts, disagreements first."""
    runs = runs_of(request)
    run = runs.find(run_id).run
    path = f"{run_link(run.id)}/labels"
    if run.id != run_id:
        return RedirectResponse(link_with(path, request.query_params))
    found = reviewed_labels(runs, run.id)
    metrics = list(dict.fromkeys(row.metric for row in found.rows))
    metric = request.query_params.get("metric") or None
    rows = [row for row in found.rows if metric in (None, row.metric)]
    number = page_shown(page_number(request), len(rows), LABELS_PER_PAGE)
    shown = rows[(number - 1) * LABELS_PER_PAGE : number * LABELS_PER_PAGE]
    results = runs.cases(run.id, {row.id for row in shown})
    return render_page(
        "labels.html",
        section="runs",
        run=run,
        rows=shown,
        rows_total=len(rows),
        flipped=sum(bool(row.is_flipped) for row in rows),
        broken=sum(row.score is None for row in rows),
        metrics=metrics,
        metric=metric,
        page=number,
        pages_total=page_count(len(rows), LABELS_PER_PAGE),
        page_link=lambda page: link_with(path, {"metric": metric, "page": page}),
        filter_link=lambda name: link_with(path, {"metric": name}),
        links={name: case_link(run.id, result) for name, result in results.items()},
        run_link=run_link,
        config_name=run_title(run),
    )
