"""Runs one job with a model that gives a scripted answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

from support.specs import case, suite, tools

from geval_cli.assertions.base import Assertion
from geval_cli.engine.case import JobContext, run_job
from geval_cli.engine.plan import Plan
from geval_cli.records import CaseResult, Choice, JsonValue, ModelRequest, ModelResponse, Usage
from geval_cli.specs.base import PromptSpec, ProviderSpec


class Model:
    """Gives the same answer to every request, and records the requests."""

    def __init__(self, answer: str | ModelResponse) -> None:
        is_text = isinstance(answer, str)
        self.answer = ModelResponse((Choice(answer),), Usage(1, 10, 5, 0, None)) if is_text else answer
        self.requests: list[ModelRequest] = []

    async def __call__(self, spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return self.answer


def run(
    answer: str | Model,
    assertions: Sequence[Any],
    *,
    config: dict[str, JsonValue] | None = None,
    **fields: JsonValue,
) -> CaseResult:
    """Return the result of a test with `assertions` and the variable x = "hello"."""
    checks: tuple[Assertion, ...] = tuple(assertions)
    test = case(0, **{"vars": {"x": "hello"}, **fields}, assertions=checks)
    provider = ProviderSpec(id="openai:m", label="M", config=config or {})
    prompts = (PromptSpec(id="p", label="P", raw="Say {{ x }}"),)
    [[job]] = Plan(suite([test], prompts=prompts, providers=(provider,))).queues
    model = answer if isinstance(answer, Model) else Model(answer)
    return asyncio.run(run_job(job, JobContext(model, tools())))
