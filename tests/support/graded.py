"""Model-graded assertions, evaluated with scripted judges: one that writes text, and one that returns embeddings."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.scripted_judge import prompt_of, reply
from support.specs import TEMPLATES, assertion, case

from geval_cli.assertions.base import JudgeDefaults, Subject, Tools
from geval_cli.assertions.registry import judge_assertion
from geval_cli.judge.calls import JudgeFacts
from geval_cli.judge.metric import Judge
from geval_cli.providers.base import is_embedding
from geval_cli.records import AssertionResult, JsonValue, ModelRequest, ModelResponse
from geval_cli.specs.base import ProviderSpec

Says = str | Exception | Callable[[str], str | Exception]


@dataclass(eq=False)
class SpeakingJudge:
    """Gives the scripted replies one after another, repeating the last one, and records all requests."""

    replies: Sequence[Says]
    label: str = "scripted:judge"
    provider_params: Mapping[str, JsonValue] = field(default_factory=dict)
    requests: list[ModelRequest] = field(default_factory=list)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        says = self.replies[min(len(self.requests), len(self.replies)) - 1]
        answer = says(prompt_of(request)) if callable(says) else says
        if isinstance(answer, Exception):
            raise answer
        return reply(*[answer] * len(request.sample_indexes))

    @property
    def prompts(self) -> list[str]:
        return [prompt_of(request) for request in self.requests]


@dataclass(eq=False)
class VectorJudge:
    """Returns embeddings for the texts that it knows."""

    vectors: Mapping[str, Sequence[float]]
    label: str = "scripted:embedding"
    provider_params: Mapping[str, JsonValue] = field(default_factory=dict)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return reply(json.dumps(self.vectors[prompt_of(request)]))


@dataclass(frozen=True)
class _NotedJudge:
    """Records the provider's id whenever the judge gets a new request."""

    judge: Judge
    provider_id: str
    asked: list[str] = field(compare=False)

    @property
    def label(self) -> str:
        return self.judge.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.judge.provider_params

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if self.provider_id not in self.asked:
            self.asked.append(self.provider_id)
        return await self.judge.complete(request)


def graded_tools(
    *replies: Says,
    vectors: Mapping[str, Sequence[float]] | None = None,
    judge: SpeakingJudge | None = None,
    asked: list[str] | None = None,
    defaults: JudgeDefaults | None = None,
) -> Tools:
    """Return tools with a speaking judge for text and, for ids of embedding models, a vector judge."""
    speaking, embedding = judge or SpeakingJudge(replies), VectorJudge(vectors or {})

    def judge_for(spec: ProviderSpec) -> Judge:
        judge = embedding if is_embedding(spec.id) else speaking
        return judge if asked is None else _NotedJudge(judge, spec.id, asked)

    return Tools(TEMPLATES, judge_for, JudgeFacts(), defaults or JudgeDefaults())


def graded(
    kind: str,
    tools: Tools,
    *,
    output: JsonValue = "the output",
    prompt: str = "the prompt",
    test: dict[str, Any] | None = None,
    **keys: Any,
) -> AssertionResult:
    """Return the result of an assertion of `kind` on `output`."""
    seen = Subject(case(**(test or {})), output, prompt)
    return asyncio.run(judge_assertion(assertion(kind, **keys), seen, tools))
