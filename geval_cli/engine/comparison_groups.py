"""The cases of one test and repeat that are judged together, once all of them have an output."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, RowColumn, RowMember, Subject, Verdict, verdict_of
from geval_cli.engine.case import JobContext, PendingResult, begin_job, run_job
from geval_cli.engine.evaluation_modes import assertions_of
from geval_cli.engine.judge_output import Meter, MeteredJudge, compare_outputs
from geval_cli.engine.plan import Job
from geval_cli.metrics import named_scores
from geval_cli.records import AssertionResult, CaseResult, Role, Status, Usage


class ComparisonGroups(Struct):
    """Runs jobs; keeps results whose outputs are compared with others until the last of their group is there.

    What it keeps is bounded by the jobs under way, as long as jobs come row by row. The results of a row that is never
    complete, since the run stops, are never given out: its cases stay undone, and their answers are in the cache.
    """

    context: JobContext
    row_size: Callable[[Job], int]
    _rows: dict[str, list[PendingResult]] = field(default_factory=dict)

    def forget(self) -> None:
        """Forget groups that are not complete: a later pass over the plan does all of their jobs again."""
        self._rows.clear()

    async def run(self, job: Job) -> Sequence[CaseResult]:
        """Return the results that are final now: of the job, of its whole group, or none.

        Raises:
            UndoneError: the run may spend no more, or an answer comes with a batch.
        """
        if not any(spec.compares_outputs for spec in job.test.assertions):
            return (await run_job(job, self.context),)
        pending = await begin_job(job, self.context)
        row = self._rows.setdefault(job.group, [])
        row.append(pending)
        if len(row) < self.row_size(job):
            return ()
        # Complete groups are dropped at once: the plan's order keeps few of them open, so memory stays flat.
        del self._rows[job.group]
        # Jobs end in any order; a judge that compares must get the same request each time, or the cache never hits.
        row.sort(key=lambda member: member.job.column)
        return await finish_row(row, self.context)


async def finish_row(row: Sequence[PendingResult], context: JobContext) -> list[CaseResult]:
    """Return the final results of a whole group. Cases without an output are not compared and stay errors.

    Raises:
        UndoneError: the run may spend no more, or an answer comes with a batch.
    """
    specs = [spec for spec in row[0].job.test.assertions if spec.compares_outputs]
    answered = [member for member in row if member.subject is not None]
    verdicts: dict[int, list[AssertionResult]] = {member.job.column: [] for member in answered}
    for spec in specs:
        for column, result in await _compared(spec, answered, context):
            verdicts[column].append(result)
    return [
        _finished(member, verdicts[member.job.column]) if member.job.column in verdicts else member.result
        for member in row
    ]


async def _compared(
    spec: Assertion, answered: Sequence[PendingResult], context: JobContext
) -> list[tuple[int, AssertionResult]]:
    """Return the result of one comparison for each case that takes part; what it cost is in the first."""
    # Where scores are compared, a case whose assertions could not be judged has none.
    needs_scores = spec.base_type == "max-score"
    part = [item for item in answered if not (needs_scores and item.result.status is Status.ERROR)]
    members = [
        RowMember(in_column(item.subject, item.job, context.columns), item.result.assertions)
        for item in part
        if item.subject is not None
    ]
    meter = Meter()
    tools = replace(
        context.tools,
        judge_for=lambda judge: MeteredJudge(context.tools.judge_for(judge), meter),
        earlier=tuple(result for item in part for result in item.earlier),
    )
    results = await compare_outputs(spec, members, tools)
    return [
        (item.job.column, replace(meter.read(result), usage=Usage() if place else meter.usage))
        for place, (item, result) in enumerate(zip(part, results, strict=True))
    ]


def in_column(subject: Subject, job: Job, columns: Sequence[RowColumn]) -> Subject:
    """Return the subject with the column that its job is in, for comparisons that name it."""
    known = columns[job.column] if job.column < len(columns) else None
    return replace(subject, column=known or RowColumn(job.column, job.shown_provider.label))


def _finished(member: PendingResult, compared: Sequence[AssertionResult]) -> CaseResult:
    result = member.result
    assertions = tuple(_in_order(member.job, result.assertions, compared))
    verdict = _own_verdict(member, compared)
    choosing = [item for item in compared if not _is_ranked(item)]
    if choosing:
        verdict = row_verdict(verdict, choosing, is_alone=len(assertions) == len(choosing))
    judging = sum((item.usage for item in compared), result.usage.get(Role.JUDGE, Usage()))
    return replace(
        result,
        status=verdict.status,
        score=verdict.score,
        named_scores=named_scores(assertions),
        usage={**result.usage, Role.JUDGE: judging},
        assertions=assertions,
    )


def _is_ranked(result: AssertionResult) -> bool:
    """Return whether an output has a score of its own by a comparison, which counts like that of any assertion."""
    return result.type == "pairwise"


def _own_verdict(member: PendingResult, compared: Sequence[AssertionResult]) -> Verdict:
    """Return the verdict of all but the assertions that choose one output of the test."""
    result = member.result
    ranked = [item for item in compared if _is_ranked(item)]
    if not ranked or result.error is not None:
        return Verdict(result.status, result.score)
    return verdict_of((*result.assertions, *ranked), member.job.test.threshold)


def row_verdict(own: Verdict, compared: Sequence[AssertionResult], *, is_alone: bool) -> Verdict:
    """Return the verdict of a compared case: the loser fails with 0, the winner keeps its own.

    `is_alone` says that nothing but comparisons is asserted; then the winner has 1.
    """
    statuses = {result.status for result in compared if result.weight or result.status is Status.ERROR}
    if own.status is Status.ERROR or Status.ERROR in statuses:
        return Verdict(Status.ERROR, None)
    if Status.FAILED in statuses:
        return Verdict(Status.FAILED, 0.0)
    return Verdict(Status.PASSED, 1.0) if is_alone and compared else own


def _in_order(
    job: Job, own: Iterable[AssertionResult], compared: Iterable[AssertionResult]
) -> Iterator[AssertionResult]:
    """Yield the results in the order of the config."""
    rest, comparisons = iter(own), iter(compared)
    for spec in assertions_of(job.prompt, job.test):
        result = next(comparisons if spec.compares_outputs else rest, None)
        if result is not None:
            yield result
