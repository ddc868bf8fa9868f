"""`POST /api/geval`: one output judged, by the request alone."""

import time
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic.alias_generators import to_camel

from geval_cli.assertions.outcome import DEFAULT_JUDGE
from geval_cli.config.schema import ProviderSpec
from geval_cli.errors import JudgeError, ProviderError, UsageError
from geval_cli.judge.metric import DEFAULT_SAMPLES, Grade, JudgedCase, Metric
from geval_cli.judge.source import as_text
from geval_cli.judging import Judges
from geval_cli.records import JsonValue, to_json
from geval_cli.report.json_text import json_text
from geval_cli.web.api.described import described
from geval_cli.web.api.geval_models import GEvalAnswer, GEvalRequest
from geval_cli.web.evaluations import Evaluations
from geval_cli.web.problems_json import upstream_problem
from geval_cli.web.settings import ServerSettings

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
    details: Annotated[bool, Query(description="Add how the score came about.")] = False,
) -> Response:
    """Have an LLM judge score an output by G-Eval, with a reason.

    With neither criteria nor steps, a criterion is derived from the name and, if there is one, the expected output.
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
    body: dict[str, JsonValue] = {"score": grade.score, "reason": grade.reason or NO_REASON}
    if details:
        latency_ms = (time.perf_counter() - started) * 1000
        body["details"] = _details(metric, grade, derived_from, latency_ms)
    return Response(json_text(body), media_type="application/json")


def judge_spec(settings: ServerSettings) -> ProviderSpec:
    """Who judges what is sent to `/api/geval`."""
    return DEFAULT_JUDGE if settings.grader is None else ProviderSpec(id=settings.grader)


async def _grade(judges: Judges, spec: ProviderSpec, metric: Metric, case: JudgedCase) -> Grade:
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
    """The yardstick, and what its criteria were derived from when none were sent."""
    criteria, derived_from = asked.criteria or (), None
    if not criteria and not asked.evaluation_steps:
        what = " ".join(asked.name.replace("_", " ").split())
        criteria = (f"Judge the actual output by its {what}.",)
        derived_from = "name"
        if asked.expected_output:
            criteria = (f"{criteria[0]} It should say the same as the expected output.",)
            derived_from = "name, expectedOutput"
    scoring = settings.scoring or ("samples" if settings.samples else "auto")
    metric = Metric(
        name=asked.name,
        criteria=criteria,
        evaluation_steps=asked.evaluation_steps,
        scoring=scoring,
        samples=settings.samples or DEFAULT_SAMPLES,
    )
    return metric, derived_from


def _details(metric: Metric, grade: Grade, derived_from: str | None, latency_ms: float) -> JsonValue:
    parts = grade.detail.get("parts", [])
    seen = (parts[0] if parts else grade.detail).get("evaluation_params", [])
    return {
        **_in_camel_case({**grade.detail, "parts": [_in_camel_case(part) for part in parts]}),
        "estimator": grade.estimator,
        "fallback": grade.fallback,
        "rating": grade.rating,
        "scoreRange": list(metric.asked_range),
        "criteria": list(metric.criteria),
        "criteriaFrom": derived_from,
        "evaluationSteps": list(grade.evaluation_steps),
        "evaluationParams": [to_camel(name) for name in seen],
        "usage": _in_camel_case(to_json(grade.usage)),
        "latencyMs": latency_ms,
    }


def _in_camel_case(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {to_camel(name): value for name, value in values.items()}
