"""`/api/runs`: start, watch and read runs; name, tag, repeat, resume and remove stored ones."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec import UNSET, Struct
from msgspec.structs import replace
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    create_model,
)

from geval_cli.errors import StoreError, UsageError
from geval_cli.extras.run_pages import RunChoice, RunPages
from geval_cli.extras.web.live_runs import LiveRuns, live_of, run_json, runs_of
from geval_cli.extras.web.problems_json import RefusedError, answered, described
from geval_cli.records import (
    SCHEMA_VERSION,
    CaseResult,
    JsonValue,
    RecordedTest,
    RunRecord,
    RunSummary,
    to_json,
)
from geval_cli.report.json_file import json_document, json_text
from geval_cli.runs.options import InApi, Option, RunOptions, declared_options, default_of
from geval_cli.runs.record import without_keys
from geval_cli.runs.stored import load_report
from geval_cli.source.secrets import mask_bare
from geval_cli.specs.base import Scoring
from geval_cli.specs.dialect import Dialect
from geval_cli.store.runs import StoredRun
from geval_cli.store.state import State


def _no_text(value: object) -> object:
    """Return `value` unless it is a string or a boolean, which pydantic would accept as a number."""
    if isinstance(value, str | bool):
        raise ValueError("this must be a number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


UNLESS_RUNNING: Any = Field(
    False,
    strict=True,
    description="Refuse (409) while a run of this config is in progress; `running` in the answer is its id.",
)


class _StartRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str = Field(
        min_length=1,
        max_length=1000,
        description="A config file, relative to the served folder.",
        examples=["gevalconfig.yaml"],
    )

    unless_running: bool = UNLESS_RUNNING

    def options(self) -> RunOptions:
        """Return the options that override the config."""
        return RunOptions(**self.model_dump(exclude={"config", "unless_running"}))


def start_request(options: type[RunOptions]) -> type[_StartRequest]:
    """Return the model of a request to start a run: a config, and the options that clients may set."""
    types = get_type_hints(options, localns={"Scoring": Scoring, "Dialect": Dialect}, include_extras=True)
    named: dict[str, Any] = {
        field.name: _in_api(get_args(types[field.name])[0], default_of(field), option)
        for field, option in declared_options(options)
        if option.in_api is not None
    }
    return create_model(
        "StartRequest",
        __base__=_StartRequest,
        __doc__="The config to run, and overrides.",
        **named,
    )


def _in_api(kind: Any, default: object, option: Option) -> tuple[Any, Any]:
    """Return the type and the pydantic field of an option in a request, with its limits."""
    said = option.in_api or InApi(option.help)
    if said.default is not None:
        kind = type(said.default)
        default = said.default
    limits = Field(ge=option.minimum, le=said.maximum or option.maximum)
    strict: dict[Any, Any] = {
        int: Annotated[int, limits, BeforeValidator(_no_text)],
        bool: StrictBool,
        str: Annotated[str, Field(min_length=1)],
    }
    is_optional = NoneType in get_args(kind)
    plain = get_args(kind)[0] if is_optional else kind
    taken = strict.get(plain, plain)
    return taken | None if is_optional else taken, Field(default, description=said.description)


if TYPE_CHECKING:
    StartRequest = _StartRequest
else:
    StartRequest = start_request(RunOptions)


class StopRequest(BaseModel):
    """An empty object: `{}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunStartedAnswer(BaseModel):
    """The id and the URLs of the run."""

    model_config = ConfigDict(frozen=True)

    id: str
    url: str
    events: str
    results: str


class RunAnswer(Struct, frozen=True):
    """A run as in `results.json`; its results only on request."""

    schema_version: int
    kind: Literal["run"]
    run: RunRecord
    summary: RunSummary
    tests: list[RecordedTest] | None = None
    results: list[CaseResult] | None = None


class ListedRun(Struct, frozen=True):
    """A run without its config, and its counts."""

    run: dict[str, Any]
    summary: RunSummary


class RunListAnswer(Struct, frozen=True):
    """A page of the stored runs."""

    runs: list[ListedRun]
    total: int
    offset: int
    limit: int


class ResultsAnswer(Struct, frozen=True):
    """A page of a run's results, and the tests they belong to."""

    tests: list[RecordedTest]
    results: list[CaseResult]
    total: int
    offset: int
    limit: int


ANSWERS: tuple[type[Struct], ...] = (RunAnswer, RunListAnswer, ResultsAnswer)
"""Responses that contain records. The OpenAPI document has a schema for each, and for the records, by name."""


router = APIRouter(prefix="/api/runs", tags=["Runs"])

HEARTBEAT_S = 15.0
"""Seconds of silence after which watchers get a comment, since proxies close idle connections."""

_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
LINKS = {
    name: {"operationId": name, "parameters": {"id": "$response.body#/id"}}
    for name in ("read_run", "read_results", "watch_run", "stop_run")
}

RunId = Annotated[
    str, Path(alias="id", max_length=200, description="A run id or its first characters, or `latest`.")
]
Offset = Annotated[int, Query(ge=0, le=2**53, description="Number of results to skip.")]


@router.get(
    "",
    summary="List runs",
    operation_id="list_runs",
    responses={200: answered(RunListAnswer), **described(401, 403, 422)},
)
async def list_runs(
    request: Request,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of results.")] = 20,
    config: Annotated[
        str | None, Query(description="Only runs of the config with this path, absolute or as typed.")
    ] = None,
    tag: Annotated[
        list[Annotated[str, Field(pattern="^[^=]+=")]] | None,
        Query(description="Only runs with this tag, `name=value`; repeatable.", max_length=20),
    ] = None,
) -> Response:
    """List stored runs, newest first, without their configs. A run in progress has its counts so far."""
    pages = RunPages(runs_of(request))
    pairs = (text.partition("=") for text in tag or ())
    chosen = RunChoice.of_config(config, tuple((name, value) for name, _, value in pairs))
    outlines, total = await asyncio.to_thread(pages.outlines, chosen, offset=offset, limit=limit)
    listed = [{"run": run_json(item.run), "summary": to_json(item.counts)} for item in outlines]
    return json_answer({"runs": listed, "total": total, "offset": offset, "limit": limit})


@router.post(
    "",
    status_code=201,
    summary="Start a run",
    operation_id="start_run",
    response_model=RunStartedAnswer,
    responses={201: {"links": LINKS}, **described(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503)},
)
async def start_run(request: Request, asked: StartRequest) -> Response:
    """Check a config in the served folder and start it. Returns when the run has started, not when it has finished."""
    run_id = await live_of(request).start(asked.config, asked.options(), unless_running=asked.unless_running)
    return started_answer(run_id, 201)


def started_answer(run_id: str, status: int) -> Response:
    """Return a response with the URLs of a run that has just started."""
    where = f"/api/runs/{run_id}"
    body = {"id": run_id, "url": where, "events": f"{where}/events", "results": f"{where}/results"}
    return json_answer(body, status, {"location": where})


@router.get(
    "/{id}",
    summary="Read a run",
    operation_id="read_run",
    responses={200: answered(RunAnswer), **described(401, 403, 404, 422, 503)},
)
async def read_run(
    request: Request,
    run_id: RunId,
    results: Annotated[bool, Query(description="With all results, as in `-o results.json`.")] = False,
) -> Response:
    """Return a run with its config and counts. Results have their own path, since there may be many."""
    runs = runs_of(request)
    report = await asyncio.to_thread(load_report, runs, run_id)
    if results:
        return StreamingResponse(_bytes(json_document(report)), media_type="application/json")
    head = {"schema_version": SCHEMA_VERSION, "kind": "run"}
    body = {**head, "run": to_json(report.run), "summary": to_json(report.summary)}
    return json_answer(body)


@router.get(
    "/{id}/results",
    summary="Read results",
    operation_id="read_results",
    responses={200: answered(ResultsAnswer), **described(401, 403, 404, 422, 503)},
)
async def read_results(
    request: Request,
    run_id: RunId,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of results.")] = 100,
) -> Response:
    """Return a page of a run's results, ordered by test, repeat and column; the results so far if it is in progress."""
    runs = runs_of(request)
    stored = await asyncio.to_thread(runs.find, run_id)
    pages = RunPages(runs)
    found, total = await asyncio.to_thread(pages.results, stored.run.id, offset=offset, limit=limit)
    tests = {item.test_index: to_json(item.asked) for item in found if item.asked is not None}
    listed = [to_json(replace(item, test=UNSET)) for item in found]
    return json_answer(
        {"tests": list(tests.values()), "results": listed, "total": total, "offset": offset, "limit": limit}
    )


@router.get(
    "/{id}/events",
    summary="Watch a run",
    operation_id="watch_run",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events.",
            "content": {"text/event-stream": {"schema": _EVENT}},
        },
        **described(401, 403, 404, 422, 503),
    },
)
async def watch_run(request: Request, run_id: RunId) -> Response:
    """Stream a run as server-sent events: first `state`, then each `case`, finally `finished`."""
    stored = await asyncio.to_thread(runs_of(request).find, run_id)
    return StreamingResponse(
        event_stream(live_of(request), stored),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


@router.post(
    "/{id}/stop",
    status_code=202,
    summary="Stop a run",
    operation_id="stop_run",
    responses={
        202: {"description": "It was told to stop."},
        **described(400, 401, 403, 404, 408, 409, 413, 415, 422, 503),
    },
)
async def stop_run(request: Request, run_id: RunId, asked: StopRequest) -> Response:
    """Start no more cases of a run; requests in progress are awaited, unless it is stopped twice. Results are kept."""
    stored = await asyncio.to_thread(runs_of(request).find, run_id)
    live_of(request).stop(stored.run.id)
    return json_answer({"id": stored.run.id, "stopping": True}, 202)


async def event_stream(
    live_runs: LiveRuns, stored: StoredRun, heartbeat_s: float = HEARTBEAT_S
) -> AsyncIterator[bytes]:
    """Yield the events of a run as bytes of an event stream, with a comment after `heartbeat_s` seconds of silence."""
    events = live_runs.events(stored)
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=heartbeat_s)
            if not done:
                yield b": still here\n\n"
                continue
            event = following.result()
            if event is None:
                return
            yield f"event: {event['type']}\ndata: {json_text(event)}\n\n".encode()
            following = asyncio.ensure_future(anext(events, None))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _bytes(parts: Iterator[str]) -> Iterator[bytes]:
    for part in parts:
        yield part.encode()


def json_answer(value: JsonValue, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(json_text(value), status, headers, media_type="application/json")


_CONFLICT = 409
_TAGS_MAX = 50

_Title = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]
_TagName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^=\s]+$")]
_TagValue = Annotated[str, StringConstraints(max_length=500)]


class _AskedAction(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AnnotateRequest(_AskedAction):
    """The title and tags of a run; a field that is left out stays unchanged."""

    title: _Title | None = Field(None, description="A name for the run; empty text removes it.")
    tags: dict[_TagName, _TagValue] | None = Field(
        None, max_length=_TAGS_MAX, description="All tags; replaces the current ones."
    )


class AgainRequest(_AskedAction):
    """How to start a run again."""

    unless_running: bool = UNLESS_RUNNING


class ResumeRequest(_AskedAction):
    """Which cases of a run to run."""

    retry_errors: StrictBool = Field(False, description="Re-run the cases that ended in an error.")


class RemoveRequest(_AskedAction):
    """The data to remove along with a run."""

    keep_answers: StrictBool = Field(
        False,
        description="Keep cached answers used only by this run; otherwise they are paid for again.",
    )
    labels: StrictBool = Field(False, description="Also remove the human labels of its outputs.")


class RemovedAnswer(BaseModel):
    """How many cached answers and labels were removed with a run, and how many labels were kept."""

    model_config = ConfigDict(frozen=True)

    id: str
    answers_removed: int
    labels_removed: int
    labels_kept: int


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
    # The database is not shrunk here, since runs in progress would have to wait. `geval rm` shrinks it.
    try:
        return await state.cache.remove_runs([run_id], shrinks=False)
    except StoreError:  # the run has been removed, even if its answers have not
        return 0


def _refusing(act: Callable[[], object]) -> None:
    """Call `act` and turn a UsageError into a conflict (409) instead of a missing run (404).

    The error means that another process is working on the run.
    """
    try:
        act()
    except UsageError as error:
        raise RefusedError(error.message, status=_CONFLICT, hint=error.hint) from error
