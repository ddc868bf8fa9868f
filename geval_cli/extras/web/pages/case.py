"""The page of one case."""

import re
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from msgspec.structs import replace

from geval_cli.errors import ConfigError, UnjudgeableError, UsageError
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.pages.routing import (
    PageRoute,
    case_link,
    link_with,
    place_link,
    run_link,
    stored_runs,
)
from geval_cli.records import RunRecord
from geval_cli.report.case_view import CaseView
from geval_cli.report.html.case_parts import case_values
from geval_cli.report.html.matrix import row_title
from geval_cli.report.report import run_title
from geval_cli.source.access import access_in
from geval_cli.source.media import names_media, read_media

router = APIRouter(route_class=PageRoute)


@router.get("/runs/{run_id}/results/{test}/{repeat}/{column}", response_class=HTMLResponse)
def show_case(request: Request, run_id: str, test: str, repeat: str, column: str) -> HTMLResponse:
    """Return the case of a run in one cell of its matrix; all three numbers count from 0."""
    runs = stored_runs(request)
    run = runs.find(run_id).run
    # The results of one test and repeat by column; empty for what is no number.
    if not all(text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX for text in (test, repeat)):
        row = []
    else:
        row = stored_runs(request).pages().row(run.id, int(test), int(repeat))
    result = next((item for item in row if str(item.column) == column), None)
    if result is None:
        hint = "it may not be finished yet; see the run's page"
        raise UsageError(f"the run {run.id} has no result here", hint=hint)
    place = (result.test_index, result.repeat_index)
    pages = runs.pages()
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
    """Return an image or a recording that a run named, out of the served folder, if it still has this hash."""
    run = stored_runs(request).find(run_id).run
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
    # Safari plays no recording without ranges (RFC 9110).
    media_type = item.media_type
    asked = request.headers.get("range", "")
    headers = {"cache-control": "private, max-age=3600", "accept-ranges": "bytes"}
    size, found = len(content), _RANGE.fullmatch(asked.strip())
    start, end = found.groups() if found else ("", "")
    # Of what is no range, several of them or one in another unit, all is given.
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
    """Return the path of such a file beside the config of a run; None where it leads out of the served folder."""
    folder = request.app.state.settings.folder
    try:
        path = (folder / run.config_path).parent / name
        is_served = names_media(f"file://{name}") and path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a NUL, too long, a loop of links
        return None
    return path if is_served else None


_DIGITS_MAX = 10
