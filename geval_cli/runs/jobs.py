"""Put together what does the jobs of a prepared suite: models behind a gateway, judges, and code."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest, ModelGradedAssertion, each_assertion
from geval_cli.assertions.graded.judges import judges_of
from geval_cli.engine.case import JobContext
from geval_cli.engine.columns import row_columns
from geval_cli.engine.comparison_groups import ComparisonGroups
from geval_cli.engine.plan import Job
from geval_cli.engine.runner import EventSink, StopReason, StopSignal
from geval_cli.errors import BudgetError, StoppedError
from geval_cli.events import CaseFinished, CaseStarted, Noticed
from geval_cli.gateway.call import CASE_OF_TRACE, OPEN_CASE, OpenCase
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.providers.base import Provider
from geval_cli.providers.redaction import Secrets
from geval_cli.records import (
    ASKED_TEXTS,
    STOPPED,
    AskedTest,
    CaseResult,
    ModelRequest,
    ModelResponse,
    Status,
    TraceStep,
)
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.session import ProviderPool, Session, open_suite_session, safe_assertion, safe_error
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.store.tool_calls import ToolCallLog

JOBS_PER_REQUEST = (
    2  # more jobs than requests under way: while one job judges, another already asks its model
)

_CLOSING_S = 5.0  # of a request after its time-out
_TESTS_KEPT = 64


class JobRunner(Struct, frozen=True):
    """Does the jobs of a run, one call of `execute` each. Belongs to one event loop; `open_jobs` makes it."""

    prepared: PreparedRun
    events: EventSink
    session: Session
    groups: ComparisonGroups
    rows: dict[str, OpenCase] = field(default_factory=dict)
    """Of tests whose outputs are compared, by their groups, until the last of them is done."""
    safe_tests: dict[int, AskedTest] = field(default_factory=dict)
    """The last tests without secrets, so that a long document is gone through once and not for every column."""

    def begin_pass(self) -> None:
        """Begin to go through the jobs, perhaps again: what waited for a batch is done as a whole."""
        self.session.begin_pass()
        self.rows.clear()
        self.groups.forget()

    async def execute(
        self, job: Job, *, stop: StopSignal, note: Callable[[Sequence[CaseResult]], None] | None = None
    ) -> CaseResult | None:
        """Do one job; the results of its row but the last leave as events. None: it has no result of its own now.

        When the budget is used up, `stop` is requested, and the job stays undone. `note` is told all results.

        Raises:
            PendingError: an answer comes with a batch, and the job stays undone.
        """
        request = self.prepared.request
        if request.otel and request.has_collector():
            CASE_OF_TRACE.set(job.id)  # of this job's own task, and of those that it makes
            self.events.emit(CaseStarted(job.id, time.time()))
        is_compared = any(spec.compares_outputs for spec in job.test.assertions)
        case = self._case_of(job, is_compared=is_compared)
        OPEN_CASE.set(case)
        is_over = True
        try:
            found = await self.groups.run(job)
            is_over = not is_compared or bool(found)
            case.is_whole = bool(found) and all(result.status is not Status.ERROR for result in found)
        except StoppedError:
            return None
        except BudgetError as error:
            if stop.reason is not StopReason.BUDGET:
                self.events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint})"))
            stop.open_cases = self.session.gateway.cases.begun
            stop.request(StopReason.BUDGET)
            return None
        finally:
            if is_over:
                self.rows.pop(job.group, None)
                self.session.gateway.cases.close(case)
        results = [self._safe(result) for result in found]
        if note is not None:
            note(results)
        for result in results[:-1]:
            self.events.emit(CaseFinished(result))
        return results[-1] if results else None

    def _case_of(self, job: Job, *, is_compared: bool) -> OpenCase:
        """Return the case on whose behalf a job calls: that of its whole row, where outputs are compared."""
        if is_compared and job.group in self.rows:
            return self.rows[job.group]
        outputs = self.groups.row_size(job) if is_compared else 1
        judged = [
            spec for spec in each_assertion(job.test.assertions) if isinstance(spec, ModelGradedAssertion)
        ]
        is_by_mode = job.prompt.effective_mode == "llm"
        case = OpenCase(
            kind=("row" if is_compared else job.column, *[spec.type for spec in judged]),
            weight=(outputs + 1) // 2,
            answer_calls=outputs * _answer_calls(job.test) if job.generates else 0,
            is_judged=bool(judged) or is_by_mode or job.test.plays_turns,
        )
        if judged:
            case.judges = partial(self._judges, job, judged)
        if self.session.gateway.cases.bounds_requests:
            # Of a jury, all of its judges; what is compared is compared for all outputs at once.
            each = [
                (1 if spec.compares_outputs else outputs)
                * len([*judges_of(spec, job.test, self.prepared.defaults)])
                for spec in judged
            ]
            case.judge_calls = sum(each) + outputs * is_by_mode
        if is_compared:
            self.rows[job.group] = case
        return case

    def _judges(self, job: Job, judged: Sequence[ModelGradedAssertion]) -> Iterator[Sequence[Provider]]:
        """Yield those who judge for each assertion of a test."""
        for spec in judged:
            found = tuple(judges_of(spec, job.test, self.prepared.defaults))
            yield [self.session.model_for(judge).provider for judge in found]

    def _safe(self, result: CaseResult) -> CaseResult:
        """Return the result without secrets in its test and its verdicts."""
        result = _without_secrets(result, self.session.secrets)
        if result.asked is None:
            return result
        known = self.safe_tests.get(result.test_index)
        if known is None:
            hide, texts = (
                self.session.secrets.hide_in,
                {name: getattr(result.asked, name) for name in ASKED_TEXTS},
            )
            hidden = {name: hide(text) for name, text in texts.items() if text is not None}
            lists = {name: tuple(text) for name, text in hidden.items() if isinstance(text, list)}
            known = replace(result.asked, **{**hidden, **lists})
            if len(self.safe_tests) >= _TESTS_KEPT:
                del self.safe_tests[next(iter(self.safe_tests))]
            self.safe_tests[result.test_index] = known
        return replace(result, test=known)


def _answer_calls(test: MergedTest) -> int:
    """Return the requests of a test before its output is judged; of a simulated user, as many as it may take."""
    if test.user is None:
        return max(1, len(test.turns))
    judged = len(test.user.assertions)
    opened = test.user.opening is not None
    return test.user.max_turns * (2 + judged) + 1 - opened - judged


@asynccontextmanager
async def open_jobs(
    prepared: PreparedRun,
    cache: ResponseCache,
    events: EventSink,
    policy: CallPolicy,
    *,
    began_s: float,
    calls: ToolCallLog | None = None,
) -> AsyncIterator[JobRunner]:
    """Provide what does the jobs of a run until the end of the block.

    Args:
        prepared: the suite.
        cache: where answers are kept.
        events: gets what happens meanwhile.
        policy: the rules for requests.
        began_s: when the run began, in seconds since 1970 by the cache's clock.
        calls: keeps the calls of tools; None where none may be called.
    """
    async with open_suite_session(prepared, cache, policy, on_event=events.emit, began_s=began_s) as session:
        groups = ComparisonGroups(
            replace(job_context(session, prepared), calls=calls), prepared.plan.row_size
        )
        yield JobRunner(prepared, events, session, groups)


def _without_secrets(result: CaseResult, secrets: Secrets) -> CaseResult:
    """Return the result with no secret in what judges, webhooks, tools and code say: what they are sent may come back.

    The model's own answer stays as it is.
    """
    if result.assertions:
        safe = tuple(safe_assertion(item, secrets) for item in result.assertions)
        result = replace(result, assertions=safe)
    if result.trace:
        turns = (
            replace(turn, content=secrets.hide(turn.content)) if turn.role == "tool" else turn
            for turn in result.turns
        )
        steps = (_safe_step(step, secrets) for step in result.trace)
        result = replace(result, trace=tuple(steps), turns=tuple(turns))
    if result.error is not None:
        result = replace(result, error=safe_error(result.error, secrets))
    return result


def _safe_step(step: TraceStep, secrets: Secrets) -> TraceStep:
    error = None if step.error is None else secrets.hide(step.error)
    return replace(step, args=secrets.hide_in(step.args), output=secrets.hide_in(step.output), error=error)


def answer_patience_s(prepared: PreparedRun, pool: ProviderPool) -> float:
    """Return the seconds after which every request that is under way has been answered or has timed out."""
    limits = [pool.get(spec).limits for spec in prepared.asked]
    return max((limit.timeout_s for limit in limits), default=0.0) + _CLOSING_S


def job_context(session: Session, prepared: PreparedRun) -> JobContext:
    """Return what one job of a suite needs: its models, tools and, where stored outputs are judged, these."""

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        return await session.model_for(spec).complete(request)

    tools = session.tools(prepared.suite, prepared.templates, prepared.defaults)
    return JobContext(generate, tools, stored=prepared.stored, columns=row_columns(prepared.plan.columns))
