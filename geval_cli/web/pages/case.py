"""The page of one case."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from geval_cli.errors import UsageError
from geval_cli.records import CaseResult
from geval_cli.report.html.case_parts import case_values
from geval_cli.report.html.matrix import row_title
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import PageRoute, case_link, link_with, run_link, stored_runs

router = APIRouter(route_class=PageRoute)


@router.get("/runs/{run_id}/results/{test}/{repeat}/{column}", response_class=HTMLResponse)
def show_case(request: Request, run_id: str, test: str, repeat: str, column: str) -> HTMLResponse:
    """Return the case of a run in one cell of its matrix; all three numbers count from 0."""
    runs = stored_runs(request)
    run = runs.find(run_id).run
    row = _row(request, run.id, test, repeat)
    result = next((item for item in row if str(item.column) == column), None)
    if result is None:
        hint = "it may not be finished yet; the run's page shows what is there"
        raise UsageError(f"the run {run.id} has no result in this place", hint=hint)
    return render_page(
        "case.html",
        section="runs",
        run=run,
        rate_link=link_with(f"{run_link(run.id)}/label", {"at": result.id}) if result.named_scores else None,
        run_link=run_link,
        case_link=lambda item: case_link(run.id, item),
        config_name=Path(run.config_path).name or run.config_path,
        **case_values(result, row, row_title(result)),
    )


def _row(request: Request, run_id: str, test: str, repeat: str) -> list[CaseResult]:
    """Return the results of one test and repeat by column; empty for what is no number."""
    if not all(text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX for text in (test, repeat)):
        return []
    return stored_runs(request).pages().row(run_id, int(test), int(repeat))


_DIGITS_MAX = 10
