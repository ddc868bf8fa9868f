"""The suite editor's addresses: suites listed, shown, checked and saved. The page sends the text of the file."""

import asyncio
import difflib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from geval_cli.errors import ConfigError, Problem, Severity, UsageError
from geval_cli.extras.web.editor.suite_file import (
    LISTED_MAX,
    SuiteFile,
    check_text,
    create_suite_file,
    digest_on_disk,
    list_suites,
    open_suite_file,
    save_suite_file,
)
from geval_cli.extras.web.html import error_page, render_page
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.extras.web.served_folder import served_config
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.records import JsonValue
from geval_cli.report.json_file import json_text
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.problems import sort_problems
from geval_cli.suite.json_schema import config_json_schema

DIFFERENCE_MAX = 400_000
"""Characters of a text beyond which no difference is shown: finding it would take seconds."""

_CONFLICT, _UNPROCESSABLE = 409, 422

router = APIRouter(prefix="/suites", include_in_schema=False)


class _AskedEdit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckRequest(_AskedEdit):
    """A text to be looked at, and the SHA-256 of the file that it was made from."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    text: str


class SaveRequest(CheckRequest):
    """A text to be saved. `anyway`: although a run would refuse it."""

    anyway: bool = False


class NewRequest(_AskedEdit):
    """The name of a suite that is to be made."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)]


@router.get("", response_class=HTMLResponse)
def show_suites(request: Request) -> HTMLResponse:
    """Return the suites of the served folder."""
    folder = _settings(request).folder
    suites = list_suites(folder)
    return render_page(
        "editor/suites.html",
        section="suites",
        suites=suites,
        is_full=len(suites) >= LISTED_MAX,
        folder=folder,
        modified=lambda suite: f"{datetime.fromtimestamp(suite.modified_at, UTC):%Y-%m-%d %H:%M}",
    )


@router.get("/edit", response_class=HTMLResponse)
def edit_suite(request: Request, path: str) -> HTMLResponse:
    """Return the editor of one suite."""
    try:
        file = open_suite_file(_settings(request).folder, path)
    except RefusedError as error:
        return error_page(error.status, "This suite cannot be edited here", error.message, error.hint)
    except ConfigError as error:
        hint = "fix it in an editor; find the place with `geval validate`"
        problem = error.problems[0]
        where = problem.location
        sentence = (
            problem.message
            if where is None
            else f"line {where.line}, column {where.column}: {problem.message}"
        )
        return error_page(_UNPROCESSABLE, "This file is broken", sentence, hint)
    except UsageError as error:
        return error_page(_UNPROCESSABLE, "This suite cannot be edited here", error.message, error.hint)
    page = {"path": path, "config": str(file.path), "digest": file.digest, "text": file.text}
    return render_page("editor/suite.html", section="suites", name=path, page=page)


@router.get("/schema.json")
def config_schema() -> Response:
    """Return the JSON Schema of a config, by which the editor completes keys."""
    return Response(_schema_text(), media_type="application/json")


@cache
def _schema_text() -> str:
    return json_text(config_json_schema())


@router.post("/check")
async def check_draft(request: Request, asked: CheckRequest) -> Response:
    """Return the problems of a text, and whether its file is still the one that it was made from."""
    return _json(await asyncio.to_thread(_checked, _settings(request), asked))


@router.post("/save")
async def save_draft(request: Request, asked: SaveRequest) -> Response:
    """Write a text into its file; with problems only when asked to do it anyway, and never over a newer file."""
    async with request.app.state.saving:  # of two that save at once, the second finds the file changed
        status, answer = await asyncio.to_thread(_saved, _settings(request), asked)
    return _json(answer, status)


@router.post("/new", status_code=201)
async def create_suite(request: Request, asked: NewRequest) -> Response:
    """Write a suite to begin with."""
    name = await asyncio.to_thread(create_suite_file, _settings(request).folder, asked.path)
    return _json({"path": name}, 201)


def _checked(settings: ServerSettings, asked: CheckRequest) -> dict[str, Any]:
    path = served_config(settings.folder, asked.path)
    is_changed = digest_on_disk(path) != asked.digest
    before = None if is_changed else _opened(settings, asked.path)
    return {
        "changed_on_disk": is_changed,
        "problems": problems_json(path, text_problems(settings, path, asked.text)),
        "difference": "" if before is None else difference(before.text, asked.text),
    }


def _opened(settings: ServerSettings, name: str) -> SuiteFile | None:
    """Return the file as it is; None where it is no suite that can be read."""
    try:
        return open_suite_file(settings.folder, name)
    except ConfigError:
        return None


def _saved(settings: ServerSettings, asked: SaveRequest) -> tuple[int, dict[str, Any]]:
    path = served_config(settings.folder, asked.path)
    on_disk = digest_on_disk(path)
    if on_disk != asked.digest:
        hint = "reload it, or overwrite the file with your version"
        detail = "the file changed on disk since it was opened"
        return _CONFLICT, {"detail": detail, "digest": on_disk, "hint": hint}
    # Only a suite is written over, and only by a suite: the next visit must be able to open it.
    file = _opened(settings, asked.path)
    problems = text_problems(settings, path, asked.text)
    listed = problems_json(path, problems)
    has_errors = any(problem.severity is Severity.ERROR for problem in problems)
    try:
        check_text(path, asked.path, asked.text)
    except ConfigError:
        detail = "nothing was saved: this is not YAML"
        return _UNPROCESSABLE, {"detail": detail, "problems": listed, "is_readable": False}
    if has_errors and not asked.anyway:
        detail = "nothing was saved: the suite has problems"
        return _UNPROCESSABLE, {"detail": detail, "problems": listed, "is_readable": True}
    content = asked.text.encode() if file is None else file.written(asked.text)
    return 200, {"digest": save_suite_file(path, content, asked.digest), "problems": listed}


def text_problems(settings: ServerSettings, path: Path, text: str) -> list[Problem]:
    """Return the problems that `geval validate` would report of a text in the place of the file, warnings too."""
    request = RunRequest(
        config=path,
        environ=settings.environ,
        env_file=settings.env_file,
        grader=settings.grader,
        scoring=settings.scoring,
        samples=settings.samples,
        served=settings.readable_folder,
    )
    try:
        return list(prepare(replace(request, draft=text), is_going_to_run=False).warnings)
    except ConfigError as error:
        return sort_problems(error.problems)


def problems_json(path: Path, problems: Iterable[Problem]) -> list[JsonValue]:
    """Return problems of the suite at `path` for the page; `file` is another one, which the page does not show."""
    found: list[JsonValue] = []
    for problem in problems:
        place = problem.location
        is_own = place is None or place.file == str(path)
        found.append(
            {
                "severity": problem.severity.value,
                "message": problem.message,
                "hint": problem.hint,
                "notes": list(problem.notes),
                "line": place.line if place else None,
                "column": place.column if place else None,
                "key_path": place.key_path if place and is_own else "",
                "file": "" if place is None or is_own else Path(place.file).name,
            }
        )
    return found


def difference(before: str, after: str) -> str:
    """Return the lines that change, as `diff -u` shows them; empty when there are none, or too many to look at."""
    if before == after or len(before) + len(after) > DIFFERENCE_MAX:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=2, lineterm="")
    return "\n".join(list(lines)[2:])


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(json_text(value), status, media_type="application/json")


def _settings(request: Request) -> ServerSettings:
    settings: ServerSettings = request.app.state.settings
    return settings
