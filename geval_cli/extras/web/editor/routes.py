"""The suite editor's addresses: suites listed, shown, checked and saved, each problem with its field."""

import asyncio
import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from msgspec import to_builtins

from geval_cli.errors import ConfigError, Problem, Severity, UsageError
from geval_cli.extras.web.editor.requests import (
    AssertionsAsked,
    CheckRequest,
    NewRequest,
    SaveRequest,
    TurnsAsked,
)
from geval_cli.extras.web.editor.suite_file import (
    LISTED_MAX,
    SuiteFile,
    create_suite_file,
    digest_on_disk,
    earlier_suite_file,
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
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.edit.yaml_edit import EditableText
from geval_cli.source.problems import sort_problems
from geval_cli.suite.assertion_forms import (
    OFTEN_USED,
    AssertionChange,
    assertion_forms,
    assertion_kinds,
    changed_assertions,
)
from geval_cli.suite.draft import (
    ComposedSuite,
    FieldProblem,
    compose_suite,
    suite_form,
)
from geval_cli.suite.draft_fields import (
    BODIES,
    DEFAULT_TEST,
    DEFAULT_TEST_PART,
    ITEM_FIELDS,
    SUITE_FIELDS,
    FieldSpec,
)
from geval_cli.suite.turn_forms import TURN_ROLES, TurnChange, changed_turns, turn_forms

DIFFERENCE_MAX = 400_000
"""Characters of a text beyond which no difference is shown: finding it would take seconds."""

_DEFAULT = "|".join(DEFAULT_TEST.spellings)
_PLACE = re.compile(rf"(prompts|providers|tests|{_DEFAULT})(?:\[(\d+)\])?(?:\.([A-Za-z_]+))?")
_MEMBER = r"\.(?:assert|assertions)\[(\d+)\]"
_ENTRY = re.compile(rf"(?:tests\[\d+\]|{_DEFAULT}){_MEMBER}(?:{_MEMBER})?(?:\.(\w+))?")
_TOP = re.compile(r"([A-Za-z_]+)")


_Target = tuple[str | None, int | None, str]
"""The list, the number and the field that the page shows a problem in."""


def draft_problems(request: RunRequest, composed: ComposedSuite) -> list[Problem]:
    """Return the problems that `geval validate` would report of the composed text, warnings too."""
    try:
        return list(prepare(replace(request, draft=composed.text), is_going_to_run=False).warnings)
    except ConfigError as error:
        return sort_problems(error.problems)


def problems_json(path: Path, fields: Iterable[FieldProblem], problems: Iterable[Problem]) -> list[JsonValue]:
    """Return problems of the suite at `path` for the page: first those of fields that cannot be read, then the others.

    `list`, `index` and `field` say where the page shows it; `assertion`, `member` (of an assert-set) and `key` where in
    a test's assertions; `file` which other file it is in, which the page does not show. Lines of the first kind are
    those of the field.
    """
    found: list[JsonValue] = []
    for item in fields:
        name, index = item.item or (None, None)
        found.append(_problem_json(item.problem, "", (name, index, item.field), in_field=True))
    for problem in problems:
        is_own = problem.location is None or problem.location.file == str(path)
        key_path = problem.location.key_path if problem.location and is_own else ""
        file = "" if problem.location is None or is_own else Path(problem.location.file).name
        found.append(_problem_json(problem, key_path, _target(key_path), file=file))
    return found


def has_errors(composed: ComposedSuite, problems: Iterable[Problem]) -> bool:
    """Return whether a run would refuse the text."""
    return bool(composed.problems) or any(problem.severity is Severity.ERROR for problem in problems)


def difference(before: str, after: str) -> str:
    """Return the lines that change, as `diff -u` shows them; empty when there are none, or too many to look at."""
    if before == after or len(before) + len(after) > DIFFERENCE_MAX:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=2, lineterm="")
    return "\n".join(list(lines)[2:])


def _problem_json(
    problem: Problem, key_path: str, target: _Target, *, in_field: bool = False, file: str = ""
) -> dict[str, JsonValue]:
    location, entry = problem.location, _ENTRY.match(key_path)
    name, index, field = target
    return {
        "severity": problem.severity.value,
        "message": problem.message,
        "hint": problem.hint,
        "notes": list(problem.notes),
        "line": location.line if location else None,
        "column": location.column if location else None,
        "in_field": in_field,
        "file": file,
        "list": name,
        "index": index,
        "field": field,
        "assertion": int(entry.group(1)) if entry else None,
        "member": int(entry.group(2)) if entry and entry.group(2) else None,
        "key": entry.group(3) if entry else None,
    }


def _target(key_path: str) -> _Target:
    found = _PLACE.match(key_path)
    if found is None:
        top = _TOP.match(key_path)
        key = top.group(1) if top else ""
        return None, None, _field_of(SUITE_FIELDS, key) or ""
    name, index, key = found.group(1), found.group(2), found.group(3) or ""
    if name in DEFAULT_TEST.spellings:
        name, index = DEFAULT_TEST_PART, "0"
    if not key:
        return name, None if index is None else int(index), ""
    is_body = name == "prompts" and key in BODIES
    return name, int(index or 0), "body" if is_body else _field_of(ITEM_FIELDS[name], key) or "more"


def _field_of(specs: Iterable[FieldSpec], key: str) -> str | None:
    return next((spec.name for spec in specs if key in spec.spellings), None)


router = APIRouter(prefix="/suites", include_in_schema=False)

_CONFLICT, _UNPROCESSABLE = 409, 422


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
        hint = "fix it in an editor; `geval validate` shows the place"
        return error_page(_UNPROCESSABLE, "This file is broken", _sentence(error.problems[0]), hint)
    except UsageError as error:
        return error_page(_UNPROCESSABLE, "This suite cannot be edited here", error.message, error.hint)
    page = {**_file_json(file), "path": path, "config": str(file.path), "text": file.source.text}
    return render_page("editor/suite.html", section="suites", name=path, page=page)


@router.post("/check")
async def check_draft(request: Request, asked: CheckRequest) -> Response:
    """Return the problems of a draft, and whether its file is still the one that it was made from."""
    settings = _settings(request)
    return _json(await asyncio.to_thread(_checked, settings, asked))


@router.post("/save")
async def save_draft(request: Request, asked: SaveRequest) -> Response:
    """Write a draft into its file; with problems only when asked to do it anyway, and never over a newer file."""
    settings = _settings(request)
    async with request.app.state.saving:  # of two that save at once, the second finds the file changed
        status, answer = await asyncio.to_thread(_saved, settings, asked)
    return _json(answer, status)


@router.get("/assertions")
async def list_assertion_kinds() -> Response:
    """Return every type of assertion with the keys that it knows, those that are used most first."""
    kinds = await asyncio.to_thread(assertion_kinds)
    return _json({"kinds": to_builtins(kinds), "often_used": len(OFTEN_USED)})


@router.post("/assertions")
async def read_assertions(asked: AssertionsAsked) -> Response:
    """Return a test's assertions as forms, after a change to their YAML where one is asked for."""
    return _json(await asyncio.to_thread(_assertions, asked))


@router.post("/turns")
async def read_turns(asked: TurnsAsked) -> Response:
    """Return the turns of a conversation as forms, after a change to their YAML where one is asked for."""
    return _json(await asyncio.to_thread(_turns, asked))


@router.post("/new", status_code=201)
async def create_suite(request: Request, asked: NewRequest) -> Response:
    """Write a suite to begin with."""
    name = await asyncio.to_thread(create_suite_file, _settings(request).folder, asked.path)
    return _json({"path": name}, 201)


def _assertions(asked: AssertionsAsked) -> dict[str, Any]:
    with _refusing():
        change = asked.change and AssertionChange(**dict(asked.change))
        text = changed_assertions(asked.text, change) if change else asked.text
        return {"text": text, "assertions": to_builtins(assertion_forms(text))}


def _turns(asked: TurnsAsked) -> dict[str, Any]:
    with _refusing():
        change = asked.change and TurnChange(**dict(asked.change))
        text = changed_turns(asked.text, change) if change else asked.text
        return {"text": text, "turns": to_builtins(turn_forms(text)), "roles": TURN_ROLES}


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse what cannot be done to a text with 422."""
    try:
        yield
    except UsageError as error:
        raise RefusedError(error.message, status=_UNPROCESSABLE, hint=error.hint) from error


def _checked(settings: ServerSettings, asked: CheckRequest) -> dict[str, Any]:
    file = _base(settings, asked)
    if file is None:
        return {"changed_on_disk": True, "problems": None, "difference": ""}
    composed = _composed(file.source, asked)
    problems = _problems(settings, file.path, composed)
    return {
        "changed_on_disk": digest_on_disk(file.path) != asked.digest,
        "problems": problems_json(file.path, composed.problems, problems),
        "difference": difference(file.source.text, composed.text),
    }


def _saved(settings: ServerSettings, asked: SaveRequest) -> tuple[int, dict[str, Any]]:
    file = _base(settings, asked)
    if file is None or file.digest != asked.digest:
        return _CONFLICT, _changed(settings, asked)
    composed = _composed(file.source, asked)
    problems = _problems(settings, file.path, composed)
    listed = problems_json(file.path, composed.problems, problems)
    if composed.problems or (has_errors(composed, problems) and not asked.anyway):
        return _UNPROCESSABLE, {"detail": "nothing was saved: the suite has problems", "problems": listed}
    save_suite_file(file.path, file.written(composed.text), asked.digest)
    saved = open_suite_file(settings.folder, asked.path)
    return 200, {**_file_json(saved), "text": saved.source.text, "problems": listed}


def _changed(settings: ServerSettings, asked: CheckRequest) -> dict[str, Any]:
    return {
        "detail": "the file changed on disk since it was opened",
        "digest": digest_on_disk(served_config(settings.folder, asked.path)),
        "hint": "reload it, or keep your version and overwrite what is there now",
    }


def _base(settings: ServerSettings, asked: CheckRequest) -> SuiteFile | None:
    """Return the file that a draft was made from; None when it changed since and the draft does not hold it."""
    if asked.base is not None:
        return earlier_suite_file(settings.folder, asked.path, asked.base)
    if digest_on_disk(served_config(settings.folder, asked.path)) != asked.digest:
        return None
    file = open_suite_file(settings.folder, asked.path)
    return file if file.digest == asked.digest else None


def _composed(source: EditableText, asked: CheckRequest) -> ComposedSuite:
    with _refusing():
        return compose_suite(source, asked.draft.draft())


def _problems(settings: ServerSettings, path: Path, composed: ComposedSuite) -> list[Problem]:
    return draft_problems(_request(settings, path), composed)


def _request(settings: ServerSettings, path: Path) -> RunRequest:
    return RunRequest(
        config=path,
        environ=settings.environ,
        env_file=settings.env_file,
        grader=settings.grader,
        scoring=settings.scoring,
        samples=settings.samples,
        served=settings.readable_folder,
    )


def _file_json(file: SuiteFile) -> dict[str, Any]:
    return {"digest": file.digest, "form": to_builtins(suite_form(file.source))}


def _sentence(problem: Problem) -> str:
    where = problem.location
    return (
        problem.message if where is None else f"line {where.line}, column {where.column}: {problem.message}"
    )


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(json_text(value), status, media_type="application/json")


def _settings(request: Request) -> ServerSettings:
    settings: ServerSettings = request.app.state.settings
    return settings
