"""Call judges ahead for answers that need no output, while the models under test still write theirs."""

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, Subject, Tools
from geval_cli.assertions.registry import prefetch_requests
from geval_cli.judge.metric import Judge, KeepingJudge, identity_of, public_id_of
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import CaseResult, JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.specs.base import ProviderSpec

_SPECS_KEPT = 256


class _PendingAnswer(Struct):
    judge: Judge
    request: ModelRequest
    answer: asyncio.Task[ModelResponse]


class PrefetchedAnswers(Struct):
    """Answers that were requested for one job. Each is handed out once, to the assertion that requests it."""

    _questions: list[_PendingAnswer] = field(default_factory=list)

    def ask(self, judge: Judge, request: ModelRequest) -> None:
        """Send the requests without waiting for the answers."""
        self._questions.append(_PendingAnswer(judge, request, asyncio.ensure_future(judge.complete(request))))

    def take(self, judge: Judge, request: ModelRequest) -> asyncio.Task[ModelResponse] | None:
        """Return the pending answer to `request`, if it was sent and nobody took its answer yet."""
        for question in self._questions:
            if question.judge == judge and question.request == request:
                self._questions.remove(question)
                return question.answer
        return None

    def tools(self, tools: Tools) -> Tools:
        """Return `tools` whose judges use these answers."""
        if not self._questions:
            return tools

        def judge_for(spec: ProviderSpec) -> Judge:
            return _PrefetchingJudge(tools.judge_for(spec), self)

        return replace(tools, judge_for=judge_for)

    async def accounted_for(self, result: CaseResult) -> CaseResult:
        """`result` with the cost of the answers that nobody took; they are paid for all the same."""
        if not self._questions:
            return result
        answers = [question.answer for question in self._questions]
        # Waited for, not cancelled: the requests are sent, and their cost belongs to this case.
        came = await asyncio.gather(*answers, return_exceptions=True)
        spent = sum((answer.usage for answer in came if isinstance(answer, ModelResponse)), Usage())
        judging = result.usage.get(Role.JUDGE, Usage()) + spent
        return replace(result, usage={**result.usage, Role.JUDGE: judging})

    def cancel(self) -> None:
        """Stop waiting for answers that nobody took."""
        for question in self._questions:
            question.answer.cancel()


class Prefetcher:
    """Sends the requests of each assertion ahead, once: the first test's requests serve all tests that share it."""

    def __init__(self) -> None:
        # Held, so that no other can get the identity of one of these.
        self._asked: dict[int, Assertion] = {}

    def ask(
        self, specs: Sequence[Assertion], subject: Subject, tools: Tools, answers: PrefetchedAnswers
    ) -> None:
        """Ask into `answers` what the new ones of `specs` need to know; `subject` has no output yet."""
        for spec in specs:
            # By identity: all tests share the assertion objects of `defaultTest`.
            if id(spec) in self._asked:
                continue
            self._asked[id(spec)] = spec
            if len(self._asked) > _SPECS_KEPT:
                del self._asked[next(iter(self._asked))]
            for judge, request in prefetch_requests(spec, subject, tools):
                answers.ask(judge, request)


class _PrefetchingJudge(Struct, frozen=True, eq=False):
    """A judge with some answers under way. To whoever remembers judges it is the judge itself."""

    judge: Judge
    answers: PrefetchedAnswers

    @property
    def label(self) -> str:
        return self.judge.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.judge.provider_params

    @property
    def identity(self) -> ProviderIdentity | None:
        return identity_of(self.judge)

    @property
    def public_id(self) -> str:
        return public_id_of(self.judge)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        answer = self.answers.take(self.judge, request)
        return await (self.judge.complete(request) if answer is None else answer)

    async def forget(self, request: ModelRequest) -> None:
        if isinstance(self.judge, KeepingJudge):
            await self.judge.forget(request)

    def __eq__(self, other: object) -> bool:
        return self.judge == (other.judge if isinstance(other, _PrefetchingJudge) else other)

    def __hash__(self) -> int:
        return hash(self.judge)
