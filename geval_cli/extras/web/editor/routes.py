"""The suite editor's routes: list, show, check, create and save suites. The page sends the whole text of a file.

Suites are files in the served folder. Saving replaces the whole file, but never one that has changed since it was
read.
"""

import asyncio
import difflib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, StringConstraints

from geval_cli.errors import ConfigError, OutputError, Problem, Severity, UsageError
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.starter import choose_starter
from geval_cli.extras.web.html import error_page, render_page
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.extras.web.settings import CONFIG_SUFFIXES, ServerSettings, served_config
from geval_cli.records import JsonValue
from geval_cli.report.json_file import json_text
from geval_cli.report.safe_file import SafeFile, open_in_place
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.access import TRUSTED, open_regular
from geval_cli.source.files import MAX_CONFIG_BYTES, is_file_reference, read_text
from geval_cli.source.json_source import read_json
from geval_cli.source.problems import sort_problems
from geval_cli.source.yaml_source import read_yaml
from geval_cli.suite.load import read_with_rules, rules_of

SUITE_KEYS = frozenset({"prompts", "providers", "tests", "defaultTest", "default_test"})

_FORBIDDEN, _NOT_FOUND = 403, 404
_CONFLICT, _TOO_LARGE = 409, 413
_UNPROCESSABLE = 422
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_NEW_SUFFIXES = (".yaml", ".yml")
_NAME_LENGTH = 200


class SuiteFile(Struct, frozen=True):
    """A suite's file at the time it was read. `digest` is the SHA-256 of its bytes."""

    path: Path
    text: str
    digest: str
    has_mark: bool

    def written(self, text: str) -> bytes:
        """Return the bytes of the file with `text` as its content; a byte order mark is kept."""
        return (_BYTE_ORDER_MARK if self.has_mark else b"") + text.encode()


def is_suite(value: JsonValue) -> bool:
    """Return whether the content of a file looks like a suite, judging by its keys."""
    return isinstance(value, dict) and not SUITE_KEYS.isdisjoint(value)


def open_suite_file(folder: Path, name: str) -> SuiteFile:
    """Return the suite `name` of the served folder. A file that is named like a suite may contain broken YAML.

    Raises:
        RefusedError: the file does not exist, is not a suite, or cannot be edited here.
        ConfigError: its text cannot be parsed, and its name is not that of a suite.
    """
    path = served_config(folder, name)
    parts = path.resolve().relative_to(folder.resolve()).parts
    if any(part.startswith(".") for part in parts):
        hint = "files whose names start with a dot are not suites"
        raise RefusedError(f"{name} is hidden", status=_FORBIDDEN, hint=hint)
    try:
        with open_regular(path, TRUSTED) as stream:
            content = stream.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "check the file's permissions"
        raise RefusedError(f"{path.name} cannot be read: {reason}", status=_FORBIDDEN, hint=hint) from error
    text = read_text(path, TRUSTED, max_bytes=MAX_CONFIG_BYTES)
    try:
        check_text(path, name, text)
    except ConfigError:
        if not _is_named_suite(path):
            raise
    has_mark = content.startswith(_BYTE_ORDER_MARK)
    return SuiteFile(path, text, hashlib.sha256(content).hexdigest(), has_mark)


def check_text(path: Path, name: str, text: str) -> None:
    """Check that a text is a suite that can be edited here.

    Raises:
        RefusedError: it is not.
        ConfigError: it is not YAML or JSON.
    """
    document = (read_json if path.suffix.lower() == ".json" else read_yaml)(text, str(path))
    if not is_suite(document.value):
        hint = "a suite has `prompts`, `providers` or `tests`"
        raise RefusedError(f"{name} is not a suite", status=_NOT_FOUND, hint=hint)
    rules = rules_of(path, document, text.split("\n", 1)[0])
    if not rules.is_editable:
        hint = "edit it in an editor; `geval run` can run it"
        message = f"{name} follows {rules.name}'s rules, which this editor does not support"
        raise RefusedError(message, status=_UNPROCESSABLE, hint=hint)


def _is_named_suite(path: Path) -> bool:
    return path.stem.startswith(("geval", "promptfooconfig")) and path.suffix != ".json"


def digest_on_disk(path: Path) -> str:
    """Return the SHA-256 of a file's current bytes; empty if it cannot be read."""
    try:
        with open_regular(path, TRUSTED) as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def save_suite_file(path: Path, content: bytes, expected_digest: str) -> str:
    """Replace a file's content unless the file has changed since it was read; return the new digest.

    The file's mode is kept. The replacement is atomic: readers see either the old content or the new.

    Raises:
        RefusedError: the file has changed, is read-only, or cannot be written.
    """
    if digest_on_disk(path) != expected_digest:
        hint = "reload it, or overwrite the file with your version"
        raise RefusedError(f"{path.name} changed on disk since it was opened", status=_CONFLICT, hint=hint)
    # Check the mode too, since for root `access` reports every file as writable.
    if not path.stat().st_mode & _WRITABLE or not os.access(path, os.W_OK):
        hint = "make it writable (chmod u+w), then save again"
        raise RefusedError(f"{path.name} is read-only", status=_FORBIDDEN, hint=hint)
    try:
        with SafeFile(path) as file:
            file.write(content.decode())
    except OutputError as error:
        hint = "fix it, then save again: your changes are still on this page"
        raise RefusedError(error.message, status=_FORBIDDEN, hint=hint) from error
    return hashlib.sha256(content).hexdigest()


def create_suite_file(folder: Path, name: str) -> str:
    """Write a starter suite under a new name; return the name with its suffix.

    Raises:
        RefusedError: the name is taken, invalid or outside the folder, or the file cannot be written.
    """
    name = name.strip()
    name = name if name.lower().endswith(_NEW_SUFFIXES) else f"{name}.yaml"
    hint = "choose a name such as `support.yaml`"
    base, path = folder.resolve(), folder / name
    stem = path.name.rpartition(".")[0]
    if (
        not stem
        or len(name) > _NAME_LENGTH
        or not name.isprintable()
        or any(part.startswith(".") for part in Path(name).parts)
    ):
        raise RefusedError("this is not a valid name for a suite", status=_UNPROCESSABLE, hint=hint)
    if not path.parent.resolve().is_relative_to(base):
        raise RefusedError(f"{name} is outside the served folder", status=_FORBIDDEN, hint=hint)
    text = choose_starter(os.environ, folder, TRUSTED).text
    try:
        # O_EXCL instead of a check beforehand, so that of two concurrent requests only one gets the name.
        descriptor = open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        raise RefusedError(f"{name} already exists", status=_CONFLICT, hint="choose another name") from error
    except FileNotFoundError as error:
        raise RefusedError(f"there is no folder {path.parent.name}", status=_NOT_FOUND, hint=hint) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno not in {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}:
            hint = "fix it, then try again"
        raise RefusedError(f"cannot write {name}: {reason}", status=_FORBIDDEN, hint=hint) from error
    return name


LISTED_MAX = 500
_FILES_MAX = 20_000
_LOOKED_INTO_BYTES = 1024 * 1024
_FOREIGN_FOLDERS = frozenset({"node_modules", "venv", "__pycache__", "site-packages"})
_RESULTS_KEYS = frozenset({"results", "summary"})


class ListedSuite(Struct, frozen=True):
    """A suite in the list.

    Attributes:
        name: path relative to the folder, with `/`.
        description: the suite's own description.
        prompts: number of prompts.
        providers: number of providers.
        tests: number of tests; None if some of them are in other files or the suite is broken.
        state: `ok`, `broken`, or the name of a dialect that cannot be edited here, such as `promptfoo`.
        modified_at: seconds since 1970.
    """

    name: str
    description: str
    prompts: int
    providers: int
    tests: int | None
    state: str
    modified_at: float


def list_suites(folder: Path) -> list[ListedSuite]:
    """Return the suites below a folder, at most `LISTED_MAX`, those in the fewest subfolders first, then by name.

    Hidden folders are skipped.
    """
    found: list[ListedSuite] = []
    for path in _config_files(folder):
        suite = _listed(folder, path)
        if suite is not None:
            found.append(suite)
        if len(found) >= LISTED_MAX:
            break
    return sorted(found, key=lambda suite: (suite.name.count("/"), suite.name))


def _config_files(folder: Path) -> Iterator[Path]:
    seen = 0
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _FOREIGN_FOLDERS
        )
        for name in sorted(files):
            seen += 1
            if seen > _FILES_MAX:
                return
            if name.lower().endswith(CONFIG_SUFFIXES) and not name.startswith("."):
                path = Path(where, name)
                if _has_address(path):
                    yield path


def _has_address(path: Path) -> bool:
    """Return whether a URL can name the file; on Linux a file name may contain bytes that are not text."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(folder: Path, path: Path) -> ListedSuite | None:
    name = path.relative_to(folder).as_posix()
    try:
        details = path.stat()
        is_small_file = stat.S_ISREG(details.st_mode) and details.st_size <= _LOOKED_INTO_BYTES
        if not is_small_file or not path.resolve().is_relative_to(folder.resolve()):
            return None
        document, rules = read_with_rules(path, TRUSTED)
    except ConfigError:
        if not _is_named_suite(path):
            return None
        return ListedSuite(
            name, "", prompts=0, providers=0, tests=None, state="broken", modified_at=details.st_mtime
        )
    except OSError:
        return None
    value = document.value
    if not isinstance(value, dict) or not is_suite(value) or _RESULTS_KEYS & set(value):
        return None
    described, tests = value.get("description"), value.get("tests")
    return ListedSuite(
        name=name,
        description=described if isinstance(described, str) else "",
        prompts=_count(value.get("prompts")),
        providers=_count(value.get("providers")),
        tests=_count_tests(tests),
        state="ok" if rules.is_editable else str(rules.name),
        modified_at=details.st_mtime,
    )


def _count_tests(tests: JsonValue) -> int | None:
    """Return the number of tests; None if some of them are in files."""
    if not isinstance(tests, list):
        return None if tests else 0
    has_files = any(is_file_reference(item) or (isinstance(item, dict) and "path" in item) for item in tests)
    return None if has_files else len(tests)


def _count(value: object) -> int:
    if isinstance(value, list):
        return len(value)
    return 0 if value is None else 1


DIFFERENCE_MAX = 400_000
"""Maximum length of both texts together, in characters; a difference of longer ones would take seconds."""


router = APIRouter(prefix="/suites", include_in_schema=False)


class _AskedEdit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckRequest(_AskedEdit):
    """A text to check, and the SHA-256 of the file it was made from."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    text: str


class SaveRequest(CheckRequest):
    """A text to save; with `anyway`, even if a run would refuse it."""

    anyway: bool = False


class NewRequest(_AskedEdit):
    """The name of a new suite."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1000)]


@router.get("", response_class=HTMLResponse)
def show_suites(request: Request) -> HTMLResponse:
    """Return the page that lists the suites of the served folder."""
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
    """Return the page to edit a suite, or an error page if it cannot be edited."""
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
    # A larger one could be neither checked nor saved.
    if len(json_text(page).encode()) > _settings(request).max_body_bytes:
        hint = "edit it in an editor, or put its tests into a file of their own"
        return error_page(
            _TOO_LARGE, "This suite cannot be edited here", f"{path} is too large for this page", hint
        )
    return render_page("editor/suite.html", section="suites", name=path, page=page)


@router.get("/schema.json")
def config_schema() -> Response:
    """Return the JSON Schema of a config, which the editor uses to complete keys."""
    return Response(_schema_text(), media_type="application/json")


@cache
def _schema_text() -> str:
    return json_text(config_json_schema(with_plugins=True))


@router.post("/check")
async def check_draft(request: Request, asked: CheckRequest) -> Response:
    """Return the problems of a text, its difference from the file, and whether the file has changed on disk."""
    return _json(await asyncio.to_thread(_checked, _settings(request), asked))


@router.post("/save")
async def save_draft(request: Request, asked: SaveRequest) -> Response:
    """Save a text to its file: with problems only if `anyway` is set, and never over a file that has changed."""
    async with request.app.state.saving:  # if two requests save at once, the second finds the file changed
        status, answer = await asyncio.to_thread(_saved, _settings(request), asked)
    return _json(answer, status)


@router.post("/new", status_code=201)
async def create_suite(request: Request, asked: NewRequest) -> Response:
    """Create a starter suite."""
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
    """Return the suite's file; None if its text cannot be parsed."""
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
    # Only overwrite a suite, and only with a suite, so that the editor can open it again.
    file = _opened(settings, asked.path)
    problems = text_problems(settings, path, asked.text)
    listed = problems_json(path, problems)
    has_errors = any(problem.severity is Severity.ERROR for problem in problems)
    try:
        check_text(path, "this", asked.text)
    except RefusedError as error:  # the file exists, but the text sent is wrong
        raise RefusedError(
            f"nothing was saved: {error.message}", status=_UNPROCESSABLE, hint=error.hint
        ) from error
    except ConfigError:
        detail = "nothing was saved: this is not YAML"
        return _UNPROCESSABLE, {"detail": detail, "problems": listed, "is_readable": False}
    if has_errors and not asked.anyway:
        detail = "nothing was saved: the suite has problems"
        return _UNPROCESSABLE, {"detail": detail, "problems": listed, "is_readable": True}
    content = asked.text.encode() if file is None else file.written(asked.text)
    return 200, {"digest": save_suite_file(path, content, asked.digest), "problems": listed}


def text_problems(settings: ServerSettings, path: Path, text: str) -> list[Problem]:
    """Return the problems, warnings included, that `geval validate` would report if the file contained `text`."""
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
    """Return problems of the suite at `path` for the page; `file` is set for a problem in another file."""
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
    """Return the changed lines in the format of `diff -u`; empty if there are none or the texts are too long."""
    if before == after or len(before) + len(after) > DIFFERENCE_MAX:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=2, lineterm="")
    return "\n".join(list(lines)[2:])


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(json_text(value), status, media_type="application/json")


def _settings(request: Request) -> ServerSettings:
    settings: ServerSettings = request.app.state.settings
    return settings
