"""`/api/runs/{id}`: name and tag a stored run, start it again, resume it, remove it."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from geval_cli.errors import StoreError, UsageError
from geval_cli.extras.web.api.runs import (
    LINKS,
    UNLESS_RUNNING,
    RunId,
    RunStartedAnswer,
    json_answer,
    started_answer,
)
from geval_cli.extras.web.live_run import run_json
from geval_cli.extras.web.live_runs import live_of, runs_of
from geval_cli.extras.web.problems_json import RefusedError, described
from geval_cli.runs.record import without_keys
from geval_cli.source.secrets import mask_bare
from geval_cli.store.runs import StoredRun
from geval_cli.store.state import State

_CONFLICT = 409
_TAGS_MAX = 50

_Title = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]
_TagName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^=\s]+$")]
_TagValue = Annotated[str, StringConstraints(max_length=500)]


class _AskedAction(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AnnotateRequest(_AskedAction):
    """The title and the tags of a run; one that is left out stays as it is."""

    title: _Title | None = Field(None, description="A name for the run; empty text removes it.")
    tags: dict[_TagName, _TagValue] | None = Field(
        None, max_length=_TAGS_MAX, description="All tags; replaces the current ones."
    )


class AgainRequest(_AskedAction):
    """How to start a run again."""

    unless_running: bool = UNLESS_RUNNING


class ResumeRequest(_AskedAction):
    """Which cases of a run to do."""

    retry_errors: StrictBool = Field(False, description="Re-run the cases that ended in an error.")


class RemoveRequest(_AskedAction):
    """Which things to remove with a run."""

    keep_answers: StrictBool = Field(
        False,
        description="Keep cached answers used only by this run; otherwise they are paid for again.",
    )
    labels: StrictBool = Field(False, description="Also remove the human labels of its outputs.")


class RemovedAnswer(BaseModel):
    """How many cached answers and labels are gone with a run, and how many labels stay."""

    model_config = ConfigDict(frozen=True)

    id: str
    answers_removed: int
    labels_removed: int
    labels_kept: int


router = APIRouter(prefix="/api/runs", tags=["Runs"])


@router.patch(
    "/{id}",
    summary="Name and tag a run",
    operation_id="annotate_run",
    responses={
        200: {"description": "The run's record, without its config."},
        **described(400, 401, 403, 404, 408, 409, 413, 415, 422, 503),
    },
)
async def annotate_run(request: Request, run_id: RunId, asked: AnnotateRequest) -> Response:
    """Set the title and tags of a finished run. API keys in them are masked, as with `--tag`."""
    runs = runs_of(request)

    def annotate() -> StoredRun:
        run = runs.find(run_id).run
        title = run.title if asked.title is None else mask_bare(asked.title) or None
        tags = run.tags if asked.tags is None else without_keys(asked.tags)
        _refusing(lambda: runs.annotate(run.id, title, tags))
        return runs.find(run.id)

    stored = await asyncio.to_thread(annotate)
    return json_answer(run_json(stored.run))


@router.post(
    "/{id}/again",
    status_code=201,
    summary="Start a run again",
    operation_id="start_run_again",
    response_model=RunStartedAnswer,
    responses={201: {"links": LINKS}, **described(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503)},
)
async def start_run_again(request: Request, run_id: RunId, asked: AgainRequest) -> Response:
    """Start a new run of the same config file, as it is now, with the run's options."""
    stored = await asyncio.to_thread(runs_of(request).find, run_id)
    new = await live_of(request).start_again(stored, unless_running=asked.unless_running)
    return started_answer(new, 201)


@router.post(
    "/{id}/resume",
    status_code=202,
    summary="Resume a run",
    operation_id="resume_run",
    response_model=RunStartedAnswer,
    responses=described(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
)
async def resume_run(request: Request, run_id: RunId, asked: ResumeRequest) -> Response:
    """Run the missing cases under the same id. Refused if the run's inputs have changed."""
    stored = await asyncio.to_thread(runs_of(request).find, run_id)
    resumed = await live_of(request).resume(stored, retries_errors=asked.retry_errors)
    return started_answer(resumed, 202)


@router.delete(
    "/{id}",
    summary="Remove a run",
    operation_id="remove_run",
    response_model=RemovedAnswer,
    responses=described(400, 401, 403, 404, 408, 409, 413, 415, 422, 503),
)
async def remove_run(request: Request, run_id: RunId, asked: RemoveRequest) -> Response:
    """Remove a finished run with its results and, by default, the cached answers that only it used."""
    state: State = request.app.state.state
    stored = await asyncio.to_thread(state.runs.find, run_id)
    found = stored.run.id
    if found != run_id:
        hint = f"write the whole id: {found}"
        raise RefusedError("removing a run needs its whole id", status=_CONFLICT, hint=hint)
    await asyncio.to_thread(_refusing, lambda: state.runs.remove(found))
    answers = 0 if asked.keep_answers else await _remove_answers(state, found)
    labels = state.runs.labels()
    removed = await asyncio.to_thread(labels.remove, found) if asked.labels else 0
    kept = await asyncio.to_thread(labels.count, found)
    body = {"id": found, "answers_removed": answers, "labels_removed": removed, "labels_kept": kept}
    return json_answer(body)


async def _remove_answers(state: State, run_id: str) -> int:
    # The database is not shrunk: runs under way in this server would have to wait for it. `geval rm` does so.
    try:
        return await state.cache.remove_runs([run_id], shrinks=False)
    except StoreError:  # the run is gone, whatever becomes of the answers
        return 0


def _refusing(act: Callable[[], object]) -> None:
    """Do what a process that works on the run may prevent: then it is a conflict, and no run that is missing."""
    try:
        act()
    except UsageError as error:
        raise RefusedError(error.message, status=_CONFLICT, hint=error.hint) from error
