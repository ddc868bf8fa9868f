"""`POST /api/geval`: judge one output; the request contains everything the judge needs."""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel
from starlette.types import Receive

from geval_cli.assertions.geval_metric import GEvalFields, MetricDefaults, ScoringChoice, metric_from_spec
from geval_cli.assertions.judges import DEFAULT_JUDGE
from geval_cli.errors import JudgeError, ProviderError, UsageError
from geval_cli.extras.web.problems_json import RefusedError, described, upstream_problem
from geval_cli.extras.web.settings import ServerSettings
from geval_cli.judge.estimate import Grade
from geval_cli.judge.metric import JudgedCase, Metric
from geval_cli.judge.source import as_text
from geval_cli.records import JsonValue, to_json
from geval_cli.report.json_file import json_text
from geval_cli.runs.session import Session
from geval_cli.specs.base import ProviderSpec, samples_of

T = TypeVar("T")

_TOO_MANY, _UNAVAILABLE = 429, 503
_AGAIN_S = 1


class Evaluations:
    """Runs work for clients, with a limit on how much is in progress. Belongs to one event loop.

    Attributes:
        most: maximum number of evaluations in progress; further ones are refused immediately.
        timeout_s: time limit for one evaluation, in seconds.
    """

    def __init__(self, most: int, timeout_s: float) -> None:
        self.most = most
        self.timeout_s = timeout_s
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Return the result of `work`. It is cancelled if its client disconnects or if it takes too long.

        Raises:
            RefusedError: 429 if too many evaluations are in progress; 503 if the client disconnected, the time limit
                was exceeded or the server was stopped.
        """
        if len(self._under_way) >= self.most:
            work.close()
            message = f"{self.most} evaluations are already in progress"
            hint = "send it again after `Retry-After` seconds, or send fewer at a time"
            raise RefusedError(message, status=_TOO_MANY, hint=hint, retry_after_s=_AGAIN_S)
        task = asyncio.create_task(work)
        gone = asyncio.create_task(_gone(receive))
        self._under_way.add(task)
        try:
            await asyncio.wait({task, gone}, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            raise self._unfinished(task, gone)
        finally:
            self._under_way.discard(task)
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def stop_all(self) -> None:
        """Cancel all work; each client gets a 503."""
        for task in self._under_way:
            task.cancel()

    def _unfinished(self, task: "asyncio.Task[T]", gone: "asyncio.Task[None]") -> RefusedError:
        if task.cancelled():
            hint = "send it again when the server is back"
            return RefusedError("the server was stopped", status=_UNAVAILABLE, hint=hint)
        if gone.done():
            return RefusedError(
                "the client disconnected",
                status=_UNAVAILABLE,
                hint="keep the connection open until the answer arrives",
            )
        message = f"the evaluation took longer than {self.timeout_s:g} s"
        hint = "the judge may be overloaded: try again, or send fewer at a time"
        return RefusedError(message, status=_UNAVAILABLE, hint=hint, retry_after_s=_AGAIN_S)


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _listed(value: object) -> object:
    """Return a single text as a tuple of one, a list as a tuple; None if blank or empty."""
    if value is None or isinstance(value, str):
        return (value,) if value and value.strip() else None
    if not isinstance(value, list):
        raise ValueError("this must be a string or a list of strings")  # noqa: TRY004 - pydantic reports ValueErrors
    return tuple(value) or None


def _texts_schema(item: Mapping[str, JsonValue]) -> WithJsonSchema:
    listed = {"type": "array", "items": {"type": "string", **item}}
    return WithJsonSchema({"anyOf": [{"type": "string"}, listed, {"type": "null"}]})


_Filled = Annotated[str, StringConstraints(pattern=r"\S")]
_Texts = Annotated[tuple[str, ...] | None, BeforeValidator(_listed), _texts_schema({})]
_FilledTexts = Annotated[
    tuple[_Filled, ...] | None, BeforeValidator(_listed), _texts_schema({"pattern": r"\S"})
]


class GEvalRequest(BaseModel):
    """An output to judge. Besides input and output, the judge sees the optional fields that are sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    name: _Filled = Field(description="Name of the evaluation.", examples=["order_relevance"])
    input: _Filled = Field(
        description="The model's input.", examples=["Python course roadmap for beginners first module"]
    )
    actual_output: str = Field(description="The model's output.", examples=["- module 1: python basics"])
    criteria: _FilledTexts = Field(
        None,
        description="What makes an output good. Several criteria are judged one by one; their mean counts.",
        examples=["check if the course has the correct order for the intended audience"],
    )
    expected_output: _Texts = Field(
        None, description="A good answer, for comparison.", examples=["module 1: python basics"]
    )
    evaluation_steps: _FilledTexts = Field(
        None,
        description="The steps the judge follows. If left out, the judge writes them from the criteria.",
        examples=[["Verify the order of modules", "Check if topics follow a logical progression"]],
    )
    context: _Texts = Field(
        None,
        description="Known facts about the subject.",
        examples=["Python is a fundamental programming language."],
    )
    retrieval_context: _Texts = Field(None, description="What retrieval found for the input.")


class ScoreDetails(BaseModel):
    """How the score was computed."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel)

    estimator: str = Field(description="How the rating was found: logprobs, samples, single or mixed.")
    fallback: str | None = Field(None, description="Why a fallback method was used.")
    rating: float = Field(description="On the judge's scale.")
    score_range: tuple[float, float] = Field(description="That scale.")
    criteria: list[str] = Field(description="The criteria; empty if only steps were sent.")
    criteria_from: str | None = Field(
        None, description="Source of the criteria if neither criteria nor steps were sent."
    )
    evaluation_steps: list[str] = Field(description="The steps the judge followed.")
    evaluation_params: list[str] = Field(description="What the judge saw, in order.")
    judge: str = Field(description="Who judged.")
    usage: dict[str, Any] = Field(description="Cost of the judge's requests; null if unknown.")
    latency_ms: float = Field(description="Milliseconds from the request to the verdict.")


class GEvalAnswer(BaseModel):
    """The judge's score and reason."""

    model_config = ConfigDict(frozen=True)

    score: float = Field(ge=0, le=1, description="0 is worst, 1 is best.")
    reason: str = Field(description="The judge's explanation.")
    details: ScoreDetails | None = Field(
        None, description="With `?details=true`: how the score was computed."
    )


router = APIRouter(tags=["Judging"])

NO_REASON = "The judge gave no reason."


@router.post(
    "/api/geval",
    summary="Judge one output",
    operation_id="geval",
    response_model=GEvalAnswer,
    responses=described(400, 401, 403, 408, 413, 415, 422, 429, 502, 503),
)
async def judge_output(
    request: Request,
    asked: GEvalRequest,
    details: Annotated[bool, Query(description="Add how the score was computed.")] = False,
) -> Response:
    """Have an LLM judge score an output by G-Eval, with a reason.

    Without criteria and steps, the criterion is derived from the name and the expected output, if any.
    """
    started = time.perf_counter()
    state = request.app.state
    settings: ServerSettings = state.settings
    evaluations: Evaluations = state.evaluations
    metric, derived_from = _metric(asked, settings)
    try:
        grade = await evaluations.run(
            _grade(state.judges, judge_spec(settings), metric, _case(asked)), request.receive
        )
    except (ProviderError, JudgeError, UsageError) as error:
        return upstream_problem(error)
    # Clients compare it with a threshold of their own: without the rounding error of a mean.
    score = None if grade.score is None else round(grade.score, 12)
    body: dict[str, JsonValue] = {"score": score, "reason": grade.reason or NO_REASON}
    if details:
        latency_ms = (time.perf_counter() - started) * 1000
        parts = [_in_camel_case(part) for part in grade.detail.get("parts", [])]
        own = _in_camel_case(grade.detail)
        body["details"] = {
            **own,
            "parts": parts,
            "estimator": grade.estimate.estimator,
            "fallback": grade.estimate.fallback,
            "rating": grade.estimate.rating,
            "scoreRange": list(metric.asked_range),
            "criteria": list(metric.criteria),
            "criteriaFrom": derived_from,
            "evaluationSteps": list(grade.evaluation_steps),
            "evaluationParams": (parts[0] if parts else own).get("evaluationParams", []),
            "usage": _in_camel_case(to_json(grade.usage)),
            "latencyMs": latency_ms,
        }
    return Response(json_text(body), media_type="application/json")


def judge_spec(settings: ServerSettings) -> ProviderSpec:
    """Return the provider that judges requests to `/api/geval`."""
    return DEFAULT_JUDGE if settings.grader is None else ProviderSpec(id=settings.grader)


async def _grade(judges: Session, spec: ProviderSpec, metric: Metric, case: JudgedCase) -> Grade:
    return await judges.grade(metric, case, judges.find(spec))


def _case(asked: GEvalRequest) -> JudgedCase:
    return JudgedCase(
        actual_output=asked.actual_output,
        input=asked.input,
        expected_output=as_text(asked.expected_output) if asked.expected_output else None,
        context=asked.context,
        retrieval_context=asked.retrieval_context,
    )


def _metric(asked: GEvalRequest, settings: ServerSettings) -> tuple[Metric, str | None]:
    """Return the metric, and the fields that its criteria were derived from; None if nothing was derived."""
    criteria = asked.criteria or ()
    derived_from = None
    if not criteria and not asked.evaluation_steps:
        what = " ".join(asked.name.replace("_", " ").split())
        criteria = (f"Judge the actual output by its {what}.",)
        derived_from = "name"
        if asked.expected_output:
            criteria = (f"{criteria[0]} It should say the same as the expected output.",)
            derived_from = "name, expectedOutput"
    # Clients' texts are not templates, so they are passed already rendered and not as fields of the assertion.
    metric = metric_from_spec(
        GEvalFields(type="g-eval", metric=asked.name),
        criteria=criteria,
        evaluation_steps=asked.evaluation_steps,
        defaults=MetricDefaults(scoring=(ScoringChoice(settings.scoring, samples_of(settings.samples)),)),
    )
    # The answer is a score without a verdict, so sampling must not stop early once a verdict is certain.
    return replace(metric, stop_error=None), derived_from


def _in_camel_case(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return details with their keys in camel case, as everywhere in this API.

    This includes the keys of `usage` and the names listed in `evaluationParams`.
    """
    found = {to_camel(name): value for name, value in values.items()}
    if isinstance(found.get("usage"), Mapping):
        found["usage"] = _in_camel_case(found["usage"])
    if "evaluationParams" in found:
        found["evaluationParams"] = [to_camel(name) for name in found["evaluationParams"]]
    return found
