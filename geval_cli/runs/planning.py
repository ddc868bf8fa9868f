"""`--plan`: what a run would ask for, found by doing its jobs with models that only note what they are asked."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.graded.geval import metric_of
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.assertions.graded.retrieval import ContextAssertion
from geval_cli.assertions.outcome import Subject, Tools, judge_provider
from geval_cli.assertions.registry import (
    judge_assertion,
    judge_row,
    wants_logprobs,
)
from geval_cli.assertions.row import RowMember
from geval_cli.engine.case import JobContext, PendingResult, begin_job
from geval_cli.engine.conversation_state import ConversationState
from geval_cli.engine.evaluation import assertions_of
from geval_cli.engine.forecast import Forecast
from geval_cli.engine.plan import Job
from geval_cli.gateway.identity import choice_keys
from geval_cli.judge.forecast import Purpose, further_answers
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.prompt import user_message
from geval_cli.records import Choice, JsonValue, ModelRequest, ModelResponse
from geval_cli.runs.cost_estimate import Assumption, Ledger, input_tokens, most_written
from geval_cli.runs.dry_run import DryRun, Judges, mute_judge
from geval_cli.runs.judging import ProviderPool
from geval_cli.runs.preparation import reads_cache
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.store.cache import ResponseCache

ASSUMED_ANSWER_TOKENS = 200
"""How long an answer is taken to be, in the prompt of its judge, when nothing bounds it."""

_JOBS_AT_ONCE = 64
_LONGEST_STAND_IN = 100_000
_MADE_DOUBT = Assumption("none, if the cache knows the prompts that code of the config makes")


async def forecast_run(
    prepared: PreparedRun, cache: ResponseCache | None, resumed: ResumedRun | None = None
) -> Forecast:
    """Return what running `prepared` would ask for; nothing is sent. Answers that `cache` has are counted apart.

    With `resumed` only what that run lacks. Goes through all tests once and holds none of them. No code that a config
    names is run.

    Raises:
        ConfigError: the tests can no longer be read as they were checked.
        StoreError: the cache cannot be read.
    """
    may_read, since = reads_cache(prepared), None
    if resumed is not None and not may_read:
        may_read, since = True, resumed.started_s  # what the run itself was told counts
    queues = prepared.plan.queues
    if resumed is not None:
        queues = tuple(resumed.done.missing(queue) for queue in queues)
    pool = ProviderPool(prepared.suite.env, prepared.suite.base_dir, prepared.suite.access)
    try:
        ledger = Ledger(prepared.suite, pool, cache if may_read else None, since)
        planner = _Planner(prepared, ledger)
        at_once = 1 if prepared.plan.is_serial else _JOBS_AT_ONCE
        for queue in queues:
            jobs = iter(queue)
            while some := list(islice(jobs, at_once)):
                await asyncio.gather(*(planner.add(job) for job in some))
                ledger.check()
        return ledger.tally.forecast()
    finally:
        await pool.aclose()


class _Planner(Struct):
    """Follows jobs, and rows of jobs whose outputs are compared once all of them are there."""

    prepared: PreparedRun
    ledger: Ledger
    _memory: JudgeMemory = field(default_factory=JudgeMemory)
    _carried: ConversationState = field(default_factory=ConversationState)
    _rows: dict[str, list[PendingResult]] = field(default_factory=dict)

    async def add(self, job: Job) -> None:
        """Count what `job` would ask for."""
        self.ledger.tally.cases += 1
        # Without its assertions: they are followed one by one, and some would run code or call a web hook.
        bare = replace(job, test=replace(job.test, assertions=()))
        context = JobContext(partial(self._generate, job=job), self._tools(mute_judge), self._carried)
        pending = replace(await begin_job(bare, context), job=job)
        if pending.subject is not None:
            for spec in _judged(assertions_of(job.prompt, job.test)):
                await self._follow(spec, pending)
        if any(spec.compares_outputs for spec in job.test.assertions):
            await self._add_to_row(pending)

    async def _add_to_row(self, pending: PendingResult) -> None:
        job = pending.job
        row = self._rows.setdefault(job.group, [])
        row.append(pending)
        if len(row) < self.prepared.plan.cases_of(job.test):
            return
        del self._rows[job.group]
        row.sort(key=lambda member: member.job.column)
        members = [RowMember(member.subject) for member in row if member.subject is not None]
        for spec in job.test.assertions:
            if spec.compares_outputs and isinstance(spec, ModelGradedAssertion):
                is_after_code = any(_is_known(item) and _is_transformed(item.job, spec) for item in row)
                dry_run = DryRun(spec, self.ledger, is_after_code)
                await dry_run.follow(partial(self._judge_row, spec, members))

    async def _follow(self, spec: ModelGradedAssertion, pending: PendingResult) -> None:
        job, subject = pending.job, pending.subject
        assert subject is not None
        subject = _with_context(spec, subject, job)
        dry_run = DryRun(spec, self.ledger, _is_known(pending) and _is_transformed(job, spec))
        await dry_run.follow(partial(self._judge, spec, subject))
        if not isinstance(spec, GEvalFields) or not dry_run.unasked:
            return
        tools = self._tools(mute_judge)
        judge = self.ledger.provider(judge_provider(spec, job.test, tools.defaults))
        # Samples are asked for in the words of the rating, and an explanation shows the judge as much.
        read = max(input_tokens(request) for _, request in dry_run.unasked)
        for further in further_answers(metric_of(spec, subject.test, tools), after=dry_run.unasked[0][0]):
            self.ledger.note_further(judge, further, read)

    async def _judge(self, spec: Assertion, subject: Subject, judges: Judges) -> None:
        await judge_assertion(spec, subject, self._tools(judges))

    async def _judge_row(self, spec: Assertion, members: Sequence[RowMember], judges: Judges) -> None:
        await judge_row(spec, members, self._tools(judges))

    async def _generate(self, spec: ProviderSpec, request: ModelRequest, job: Job) -> ModelResponse:
        provider = self.ledger.provider(spec)
        request = replace(request, want_logprobs=wants_logprobs(job.test.assertions))
        assumption = None
        if _is_made(job):
            request = replace(request, messages=(*request.messages, *user_message(job.id)))
            assumption = None if self.ledger.cache is None else _MADE_DOUBT
        found = await self.ledger.note(provider, request, Purpose.ANSWER, assumption)
        if found is not None:
            return found
        tokens = min(most_written(provider, request) or ASSUMED_ANSWER_TOKENS, _LONGEST_STAND_IN)
        # Another one for each question: equal outputs have equal judgements, which are asked for once.
        name = choice_keys(provider.identity, request)[0] if provider.is_cacheable else job.id
        return ModelResponse((Choice(f"{name} {'word' * tokens}", "stop"),))

    def _tools(self, judges: Judges) -> Tools:
        # Lenient: no code is run here, and what it adds to the variables is missing.
        return Tools(
            self.prepared.templates.lenient(),
            judges,
            self._memory,
            self.prepared.defaults,
            access=self.prepared.suite.access,
        )


def _judged(specs: Iterable[Assertion]) -> Iterator[ModelGradedAssertion]:
    """Yield those that a judge judges by themselves, also within sets; the others ask nobody."""
    for spec in specs:
        if isinstance(spec, ModelGradedAssertion) and not spec.compares_outputs:
            yield spec
        yield from _judged(spec.members)


def _is_known(pending: PendingResult) -> bool:
    """Return whether the output is what a run would judge, and not a stand-in."""
    return not pending.job.generates or pending.result.cached


def _is_made(job: Job) -> bool:
    """Return whether code of the config, which is not run, makes the prompt or a variable in it."""
    is_program = isinstance(job.prompt, NamedPromptSpec) and bool(job.prompt.made_by)
    return is_program or bool(job.test.promptfoo.made_vars) or job.test.transform_vars is not None


def _is_transformed(job: Job, spec: Assertion) -> bool:
    """Return whether code of the config, which is not run, makes what is judged out of the output."""
    own = job.provider.transform if isinstance(job.provider, FilteredProviderSpec) else None
    context = spec.context_transform if isinstance(spec, ContextAssertion) else None
    return any(code is not None for code in (own, job.test.transform, spec.transform, context))


def _with_context(spec: Assertion, subject: Subject, job: Job) -> Subject:
    """Return the subject with something in the place of the context that code would take out of the output."""
    if not isinstance(spec, ContextAssertion) or spec.context_transform is None:
        return subject
    context: JsonValue = f"{job.id} {'word' * ASSUMED_ANSWER_TOKENS}"
    return replace(subject, test=replace(subject.test, vars={**subject.test.vars, "context": context}))
