"""Ask judges about outputs as they are and as probes make them, a bounded number at once, within the budget."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from geval_cli.assertions.base import ModelGradedAssertion, RowMember, Subject
from geval_cli.assertions.graded.geval_fields import GEvalFields, RatedDimensionSpec
from geval_cli.assertions.registry import wants_logprobs
from geval_cli.engine.case import JobContext, PendingResult, begin_job
from geval_cli.engine.judge_output import compare_outputs, judge_one
from geval_cli.engine.plan import Job
from geval_cli.errors import BudgetError, ConfigError
from geval_cli.extras.trust.labelling import draw
from geval_cli.extras.trust.matching import match_labels
from geval_cli.extras.trust.probe_findings import (
    JointLabel,
    JointScores,
    damage_finding,
    deception_finding,
    halo_finding,
    harmless_findings,
    loss_finding,
    padding_finding,
    place_finding,
    repetition_findings,
    skipped,
)
from geval_cli.extras.trust.probe_items import (
    APART,
    NO_FORM,
    SELECT_BEST,
    Asked,
    ProbedOutput,
    ProbeOptions,
    Target,
    changed_spec,
    is_compared,
    is_hit,
    jobs_of,
    material_for,
    with_floor,
)
from geval_cli.extras.trust.probes import (
    Finding,
    Kind,
    Pair,
    Probe,
    Verdict,
)
from geval_cli.extras.trust.rewrites import rewritten
from geval_cli.records import AssertionResult, Status, Usage
from geval_cli.runs.requests import PreparedRun

T = TypeVar("T")

_AT_ONCE = 64
LEAST_DIMENSIONS = 2
NO_LABELS_OF_OUTPUTS = "the loss of agreement needs labels of these outputs (--labels)"


class Desk:
    """Asks for ratings, a bounded number at once, and adds up what they took. Belongs to one event loop."""

    def __init__(self, context: JobContext, options: ProbeOptions, listen: Callable[[int], None]) -> None:
        self._context, self._options, self._listen = context, options, listen
        self._quiet: dict[int, tuple[ModelGradedAssertion, ModelGradedAssertion]] = {}
        self._failures: dict[int, asyncio.Future[tuple[Subject, AssertionResult] | None]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)
        self.asked = self.errored = 0
        self.usage = Usage()
        self.stopped = self.first_error = ""

    async def answers(self, jobs: Sequence[Job]) -> list[PendingResult]:
        """Return the outputs, without a verdict: the assertions are asked one by one."""

        async def answer(job: Job) -> PendingResult | None:
            kept = tuple(spec for spec in job.test.assertions if wants_logprobs([spec]))
            bare = replace(job, test=replace(job.test, assertions=kept))
            pending = await self._within_budget(lambda: begin_job(bare, self._context))
            return None if pending is None else replace(pending, job=job)

        found = await asyncio.gather(*map(answer, jobs))
        return [pending for pending in found if pending is not None]

    async def _within_budget(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return what is asked for; None once the budget is used up, when nothing is asked any more."""
        async with self._room:
            if self.stopped:
                return None
            try:
                return await ask()
            except BudgetError as error:
                self.stopped = error.message
                return None

    async def rate(self, spec: ModelGradedAssertion, subject: Subject) -> AssertionResult | None:
        """Return a rating; None for one that could not be had."""
        quiet = self._without_explanations(spec)
        found = await self._within_budget(lambda: judge_one(quiet, subject, self._context.tools))
        if found is None:
            return None
        self.asked += 1
        self.usage += found.usage
        self._listen(self.asked)
        if found.status is Status.ERROR or found.score is None:
            self.errored += 1
            self.first_error = self.first_error or (found.error.message if found.error else "no score")
            return None
        return found

    def _without_explanations(self, spec: ModelGradedAssertion) -> ModelGradedAssertion:
        """Return the assertion without reasons to be bought for its scores: nobody reads them here."""
        if not isinstance(spec, GEvalFields):
            return spec
        if id(spec) not in self._quiet:
            # The original is held, too, so that no other object can get its identity.
            self._quiet[id(spec)] = spec, spec.model_copy(update={"explain": "never"})
        return self._quiet[id(spec)][1]

    async def findings(self, probes: Sequence[Probe], items: Sequence[ProbedOutput]) -> list[Finding]:
        """Rate every output as it is, then as each probe makes it, and return what came of it, metric by metric."""
        asked = [item for item in probes if item.kind not in APART]
        wanted = [(item, name, spec) for item in items for name, spec in item.specs.items() if asked]
        based = await asyncio.gather(*(self.rate(spec, item.subject) for item, _, spec in wanted))
        targets: dict[str, list[Target]] = {}
        for (item, name, spec), base in zip(wanted, based, strict=True):
            if base is not None:
                targets.setdefault(name, []).append(Target(item, spec, base))
        found = []
        # All are held until everything is asked: `_failures` knows them by identity.
        floored = {name: with_floor(members) for name, members in targets.items()}
        for name, members in floored.items():
            for findings in await asyncio.gather(*(self._probe(item, name, members) for item in asked)):
                found += findings
        return found

    async def _probe(self, item: Probe, metric: str, targets: Sequence[Target]) -> list[Finding]:
        targets = [target for target in targets if is_hit(item, target.spec, self._options)]
        if not targets:
            return []
        results = {form: Asked() for form in item.forms}
        tasks = [self._ask(item, form, target, results[form]) for form in item.forms for target in targets]
        await asyncio.gather(*tasks)
        return _findings(item, metric, results, is_certain=self._is_certain(item, targets))

    def _is_certain(self, item: Probe, targets: Sequence[Target]) -> bool:
        """Return whether the damage is surely about the metric: a dimension says so, or the user."""
        is_dimension = all(getattr(target.spec, "dimension", None) is not None for target in targets)
        return is_dimension or item.hits is None or item.name in self._options.only

    async def _ask(self, item: Probe, form: str, target: Target, asked: Asked) -> None:
        """Rate one output in one form, beside what it is compared with."""
        spec, subject, base = target.spec, target.item.subject, target.base
        if item.kind is Kind.REPETITION:
            await self._again(form, target, asked)
            return
        if item.kind is Kind.DECEPTION:
            failed = await self._failed(target)
            if failed is None:
                asked.skip("no failed output to start from")
                return
            subject, base = failed
        if item.kind is Kind.DAMAGE and target.is_at_bottom:
            asked.skip("it has the lowest score already")
            return
        text = rewritten(form, material_for(target, subject.text, self._options.seed))
        if text is None:
            asked.skip("the rewrite changes nothing")
            return
        await self._compare(spec, replace(subject, output=text), target, base, asked)

    async def _compare(
        self,
        spec: ModelGradedAssertion,
        subject: Subject,
        target: Target,
        base: AssertionResult,
        asked: Asked,
    ) -> None:
        changed = await self.rate(spec, subject)
        if changed is None or changed.score is None or base.score is None:
            asked.skip("it was not rated")
            return
        verdicts = (base.status is Status.PASSED, changed.status is Status.PASSED)
        asked.pairs.append(Pair(target.item.cluster, base.score, changed.score, *verdicts))

    async def _failed(self, target: Target) -> tuple[Subject, AssertionResult] | None:
        """Return an output that failed: the test's own, else another test's; None when both pass."""
        if id(target) not in self._failures:  # all forms of deception start from the same output
            self._failures[id(target)] = asyncio.ensure_future(self._find_failed(target))
        return await self._failures[id(target)]

    async def _find_failed(self, target: Target) -> tuple[Subject, AssertionResult] | None:
        if target.base.status is Status.FAILED:
            return target.item.subject, target.base
        if not target.item.other:
            return None
        wrong = replace(target.item.subject, output=target.item.other)
        found = await self.rate(target.spec, wrong)
        return (wrong, found) if found is not None and found.status is Status.FAILED else None

    async def _again(self, form: str, target: Target, asked: Asked) -> None:
        steps = tuple(map(str, target.base.detail.get("evaluation_steps") or ()))
        spec = changed_spec(target.spec, form, steps)
        if spec is None:
            asked.skip(NO_FORM)
            return
        subject = target.item.subject
        if form == "again":  # the cache takes another repeat for another question
            subject = replace(subject, repeat_index=subject.repeat_index + 1)
        await self._compare(spec, subject, target, target.base, asked)

    async def together(self, item: Probe, items: Sequence[ProbedOutput]) -> list[Finding]:
        """Rate outputs by their dimensions one by one and all in one call, and return how the two differ."""
        asked = await asyncio.gather(*map(self._both_ways, items))
        found = [(output, both) for output, both in zip(items, asked, strict=True) if both is not None]
        if not found:
            return [skipped(item, "", "no test is judged by two dimensions")]
        pairs: dict[str, list[Pair]] = {}
        for _, compared in found:
            for name, pair in compared.items():
                pairs.setdefault(name, []).append(pair)
        findings = [one for name, members in pairs.items() for one in harmless_findings(item, name, members)]
        scores = [JointScores(output.cluster, *_sides(compared)) for output, compared in found]
        return [*findings, halo_finding(item, scores), *self._losses(item, found)]

    def _losses(self, item: Probe, found: Sequence[tuple[ProbedOutput, Mapping[str, Pair]]]) -> list[Finding]:
        """Return how much worse the ratings that were given together follow people, by dimension."""
        labels = self._options.labels
        if labels is None:
            return [skipped(item, "", NO_LABELS_OF_OUTPUTS)]
        outputs = [output.judged for output, _ in found]
        compared = {judged.id: pairs for judged, (_, pairs) in zip(outputs, found, strict=True)}
        try:
            matches = match_labels(labels.labels, outputs, allow_unmatched=True).matches
        except ConfigError as error:
            return [skipped(item, "", f"{NO_LABELS_OF_OUTPUTS}: {error.problems[0].message}")]
        scores: dict[str, list[JointLabel]] = {}
        for match in matches:
            pair = compared[match.item.id].get(match.label.metric)
            if pair is not None:
                cluster = match.label.doc or str(match.item.test_index)
                one = JointLabel(cluster, match.label.human, pair.before, pair.after)
                scores.setdefault(match.label.metric, []).append(one)
        return [loss_finding(item, name, members) for name, members in scores.items()]

    async def _both_ways(self, item: ProbedOutput) -> dict[str, Pair] | None:
        """Return the scores of one output one by one and together; None where not two dimensions judge it."""
        specs = {
            name: spec
            for name, spec in item.specs.items()
            if isinstance(spec, GEvalFields) and spec.dimension is not None
        }
        if len(specs) < LEAST_DIMENSIONS:
            return None
        rated = tuple(RatedDimensionSpec(dimension=str(spec.dimension)) for spec in specs.values())
        separate, joint = [
            await asyncio.gather(
                *(self.rate(spec.model_copy(update=keys), item.subject) for spec in specs.values())
            )
            for keys in ({"dimensions": None}, {"dimensions": rated})
        ]
        return {
            name: Pair(
                item.cluster,
                before.score or 0.0,
                after.score or 0.0,
                before.status is Status.PASSED,
                after.status is Status.PASSED,
            )
            for name, before, after in zip(specs, separate, joint, strict=True)
            if before is not None and after is not None
        }

    async def places(self, item: Probe, prepared: PreparedRun) -> list[Finding]:
        """Return whether `select-best` chooses the same output when they stand in the other order."""
        rows: dict[str, list[Job]] = {}
        for job in jobs_of(prepared):
            if is_compared(job):
                rows.setdefault(job.group, []).append(job)
        if not rows:
            return [skipped(item, SELECT_BEST, "no test has a select-best")]
        agreed: list[tuple[int, bool]] = []
        left_out = 0
        for name in draw(rows, self._options.items, seed=self._options.seed):
            same = await self._is_same_winner(rows[name])
            left_out += same is None
            agreed += [] if same is None else [(rows[name][0].test.index, same)]
        reasons = {"it was not decided": left_out} if left_out else {}
        return [replace(place_finding(item, SELECT_BEST, agreed), skipped=reasons)]

    async def _is_same_winner(self, jobs: Sequence[Job]) -> bool | None:
        pending = await self.answers(sorted(jobs, key=lambda job: job.column))
        members = [RowMember(found.subject) for found in pending if found.subject is not None]
        spec = next(spec for spec in jobs[0].test.assertions if spec.base_type == SELECT_BEST)
        winners = []
        for row in (members, members[::-1]):
            ask = partial(compare_outputs, spec, row, self._context.tools)
            compared = await self._within_budget(ask)
            if compared is None or any(result.status is Status.ERROR for result in compared):
                return None
            self.asked += 1
            chosen = [place for place, result in enumerate(compared) if result.status is Status.PASSED]
            winners.append(row[chosen[0]].subject.text if chosen else None)
        return winners[0] == winners[1]


def _findings(item: Probe, metric: str, results: Mapping[str, Asked], *, is_certain: bool) -> list[Finding]:
    if item.kind is Kind.REPETITION:
        return _repetitions(item, metric, results)
    pairs = [pair for result in results.values() for pair in result.pairs]
    if item.kind is Kind.DAMAGE:
        found = [damage_finding(item, metric, pairs, is_certain=is_certain)]
    elif item.kind is Kind.HARMLESS:
        found = harmless_findings(item, metric, pairs)
    elif item.kind is Kind.PADDING:
        found = [padding_finding(item, metric, pairs)]
    else:
        found = [deception_finding(item, metric, pairs)]
    left_out: dict[str, int] = {}
    for result in results.values():
        for why, count in result.skipped.items():
            left_out[why] = left_out.get(why, 0) + count
    return [_with_reasons(finding, left_out) for finding in found]


def _repetitions(item: Probe, metric: str, results: Mapping[str, Asked]) -> list[Finding]:
    """Return the findings of each form that the metric can have: one that has a scale of its own has no other."""
    known = {form: result for form, result in results.items() if result.skipped.keys() != {NO_FORM}}
    if not known:
        return [skipped(item, metric, NO_FORM)]
    return [
        _with_reasons(finding, result.skipped)
        for form, result in known.items()
        for finding in repetition_findings(item, form, metric, result.pairs)
    ]


def _with_reasons(finding: Finding, left_out: Mapping[str, int]) -> Finding:
    """Return a finding with what was left out of it; one of nothing says why in its note."""
    if finding.verdict is Verdict.SKIPPED and left_out:
        return replace(finding, note=max(left_out, key=lambda why: left_out[why]), skipped=dict(left_out))
    return replace(finding, skipped=dict(left_out))


def _sides(compared: Mapping[str, Pair]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of an output by dimension: one by one, and together."""
    return (
        {name: pair.before for name, pair in compared.items()},
        {name: pair.after for name, pair in compared.items()},
    )
