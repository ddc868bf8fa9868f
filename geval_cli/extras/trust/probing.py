"""Probe a judge with rewritten outputs: `geval probe` and `geval_cli.extras.trust.probe`.

The outputs are those of the config's own tests, given or generated as in a run, through the cache and within the
budget. `probes` makes the rewrites, and `probe_findings` evaluates the scores.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import ModelGradedAssertion, RowMember, Subject, each_assertion
from geval_cli.assertions.geval_metric import GEvalFields, RatedDimensionSpec, metric_name
from geval_cli.assertions.registry import wants_logprobs
from geval_cli.engine.case import JobContext, PendingResult, begin_job
from geval_cli.engine.judge_output import Meter, compare_outputs, judge_one, metered_tools
from geval_cli.engine.plan import Job, assertions_of
from geval_cli.errors import ConfigError, NotDoneError, UsageError
from geval_cli.events import RunEvent
from geval_cli.extras.plan import plan_run
from geval_cli.extras.trust.charts import probe_chart
from geval_cli.extras.trust.documents import Quote, ReportDocument, Section, Table
from geval_cli.extras.trust.labels import count_words, draw, vars_key
from geval_cli.extras.trust.matching import JudgedItem, by_output, match_labels
from geval_cli.extras.trust.options import ProbeOptions
from geval_cli.extras.trust.probe_findings import (
    SAME,
    FamilyScore,
    JointLabel,
    JointScores,
    damage_finding,
    deception_finding,
    family_finding,
    halo_finding,
    harmless_findings,
    loss_finding,
    padding_finding,
    place_finding,
    repetition_findings,
    skipped,
)
from geval_cli.extras.trust.probes import (
    Finding,
    Probe,
    ProbeKind,
    ProbeReport,
    ProbeVerdict,
    RewriteMaterial,
    ScoreChange,
    chosen_probes,
    rewritten,
    rewritten_steps,
)
from geval_cli.gateway.budget import Budget, Spending
from geval_cli.gateway.call import Wire
from geval_cli.judge.metric import DEFAULT_SCORE_RANGE, format_number
from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.numbers import fixed, format_share, plural, share_bounds
from geval_cli.patterns import compile_later
from geval_cli.providers.base import TEXT
from geval_cli.records import AssertionResult, Role, Status, Usage
from geval_cli.report.sanitize import output_digest
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.session import call_policy, job_context, open_suite_session
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import open_state
from geval_cli.templating import is_template

APART = (ProbeKind.PLACE, ProbeKind.FAMILY, ProbeKind.JOINT)
"""Probes that do not compare an output with a rewritten one, metric by metric."""

_SCALES = {"1 to 5": (1.0, 5.0), "0 to 10": (0.0, 10.0), "0 to 100": (0.0, 100.0)}
SELECT_BEST = "select-best"
NO_FORM = "the metric has no such form"


class ProbedOutput(Struct, frozen=True):
    """An output to probe, with the assertions that judge it, by metric."""

    subject: Subject
    specs: Mapping[str, ModelGradedAssertion]
    job: Job
    other: str = ""
    test_key: str | None = None

    @property
    def cluster(self) -> int:
        return self.subject.test.index

    @property
    def judged(self) -> JudgedItem:
        """Return the output in the form that labels are matched to."""
        job, test = self.job, self.subject.test
        own = test.metadata.get("id")
        return JudgedItem(
            id=job.id,
            names=frozenset({job.id} if own is None else {job.id, str(own)}),
            test_index=test.index,
            repeat=job.repeat_index + 1,
            prompt=(job.prompt.id, job.prompt.label),
            provider=(job.shown_provider.id, job.shown_provider.label),
            description=test.description,
            variables=vars_key(test.vars),
            output_sha256=output_digest(self.subject.output),
            test_key=self.test_key,
            words=count_words(self.subject.output),
            scores=dict.fromkeys(self.specs, 0.0),
            metadata=test.metadata,
            thresholds={},
            judges={},
        )


class Target(Struct, frozen=True):
    """One metric of one output, with its rating before any rewrite.

    `floor` is the lowest score among all original outputs; 0 if their scores are all equal.
    """

    item: ProbedOutput
    spec: ModelGradedAssertion
    base: AssertionResult
    floor: float = 0.0

    @property
    def is_at_bottom(self) -> bool:
        """Return whether the score cannot fall: it is 0, or the output failed with the judge's lowest score."""
        score = self.base.score or 0.0
        return score <= 0 or (self.base.status is Status.FAILED and score <= self.floor + SAME)


class ProbePairs(Struct):
    """The score changes of one form of a probe on one metric, and the number of outputs left out, by reason."""

    pairs: list[ScoreChange] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def drawn_jobs(prepared: PreparedRun, options: ProbeOptions) -> list[Job]:
    """Return the jobs to probe, in the order of the plan; jobs that no model judges are never drawn."""
    names = [job.id for job in jobs_of(prepared) if specs_of(job, prepared) or is_compared(job)]
    drawn = set(draw(names, options.items, seed=options.seed))
    return [job for job in jobs_of(prepared) if job.id in drawn]


def jobs_of(prepared: PreparedRun) -> Iterator[Job]:
    """Return the jobs of a plan without repeats: a judge is probed on one answer of each."""
    return (job for job in chain.from_iterable(prepared.plan.queues) if job.repeat_index == 0)


def specs_of(job: Job, prepared: PreparedRun) -> dict[str, ModelGradedAssertion]:
    """Return the assertions that a text model judges on their own, by metric; the first one of each metric."""
    found: dict[str, ModelGradedAssertion] = {}
    for spec in each_assertion(assertions_of(job.prompt, job.test)):
        if not isinstance(spec, ModelGradedAssertion) or spec.judge_kinds != (TEXT,):
            continue
        if spec.is_negated or spec.compares_outputs:
            continue
        name = metric_name(spec, job.test, prepared.templates) or spec.base_type
        found.setdefault(name, spec)
    return found


def is_compared(job: Job) -> bool:
    """Return whether a judge selects the best of the outputs of the job's test."""
    return any(spec.base_type == SELECT_BEST for spec in job.test.assertions)


def is_hit(item: Probe, spec: ModelGradedAssertion, options: ProbeOptions) -> bool:
    """Return whether a metric should react to a damage. Custom criteria may cover any damage, so all are tried."""
    dimension = getattr(spec, "dimension", None)
    return item.hits is None or dimension is None or dimension in item.hits or item.name in options.only


def with_floor(targets: Sequence[Target]) -> list[Target]:
    """Return the targets with `floor` set to the lowest of their scores."""
    scores = [target.base.score or 0.0 for target in targets]
    floor = min(scores) if max(scores) - min(scores) > SAME else 0.0
    return [replace(target, floor=floor) for target in targets]


def probed_output(found: PendingResult, prepared: PreparedRun) -> ProbedOutput:
    """Return an answer with the assertions that judge it."""
    assert found.subject is not None
    specs = specs_of(found.job, prepared)
    return ProbedOutput(found.subject, specs, found.job, test_key=found.result.test_key)


def with_others(items: Sequence[ProbedOutput]) -> list[ProbedOutput]:
    """Return the items, each with the output of the next item that has another test and another text."""
    found = []
    for place, item in enumerate(items):
        following = (*items[place + 1 :], *items[:place])
        fitting = (
            other.subject.text
            for other in following
            if other.cluster != item.cluster and other.subject.text != item.subject.text
        )
        found.append(replace(item, other=next(fitting, "")))
    return found


def changed_spec(spec: ModelGradedAssertion, form: str, steps: Sequence[str]) -> ModelGradedAssertion | None:
    """Return the assertion with another scale or with reworded steps; None if that does not apply to it."""
    if form == "again":
        return spec
    if not isinstance(spec, GEvalFields) or spec.dimension is not None or spec.checklist or spec.strict_mode:
        return None
    if form == "steps":
        reworded = rewritten_steps(steps)
        if not reworded or any(map(is_template, reworded)):
            return None
        return spec.model_copy(update={"evaluation_steps": reworded})
    scale = _SCALES[form]
    if spec.rubric or (spec.score_range or DEFAULT_SCORE_RANGE) == scale:
        return None
    return spec.model_copy(update={"score_range": scale, "score_step": None})


def material_for(target: Target, text: str, seed: int) -> RewriteMaterial:
    """Return the material for rewriting a text."""
    subject = target.item.subject
    dimension = str(getattr(target.spec, "dimension", None))
    own = getattr(target.spec, "score_range", None) or DEFAULT_SCORE_RANGE
    _, highest = DIMENSIONS[dimension].score_range if dimension in DIMENSIONS else own
    prompt = subject.rendered_prompt or subject.test.input or ""
    return RewriteMaterial(text, target.item.other, prompt, format_number(highest), seed)


T = TypeVar("T")

_AT_ONCE = 64
LEAST_DIMENSIONS = 2
NO_LABELS_OF_OUTPUTS = "the loss of agreement needs labels of these outputs (--labels)"


class ConcurrentRater:
    """Rates outputs with bounded concurrency and totals the usage. Bound to one event loop."""

    def __init__(self, context: JobContext, options: ProbeOptions, listen: Callable[[int], None]) -> None:
        self._context, self._options, self._listen = context, options, listen
        self._quiet: dict[int, tuple[ModelGradedAssertion, ModelGradedAssertion]] = {}
        self._failures: dict[int, asyncio.Future[tuple[Subject, AssertionResult] | None]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)
        # Every answer of a judge counts, also those for what then failed or was stopped by the budget.
        self._meter = Meter()
        self._tools = metered_tools(context.tools, self._meter)
        self.asked = self.errored = 0
        self.stopped = self.first_error = ""

    @property
    def usage(self) -> Usage:
        """The usage of the judges so far."""
        return self._meter.usage

    async def answers(self, jobs: Sequence[Job]) -> list[PendingResult]:
        """Return the outputs without verdicts; their assertions are rated one by one later."""

        async def answer(job: Job) -> PendingResult | None:
            kept = tuple(spec for spec in job.test.assertions if wants_logprobs([spec]))
            bare = replace(job, test=replace(job.test, assertions=kept))
            pending = await self._within_budget(lambda: begin_job(bare, self._context))
            return None if pending is None else replace(pending, job=job)

        found = await asyncio.gather(*map(answer, jobs))
        return [pending for pending in found if pending is not None]

    async def _within_budget(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of a call; None once the budget is used up, after which nothing is sent any more."""
        async with self._room:
            if self.stopped:
                return None
            try:
                return await ask()
            except NotDoneError as error:
                self.stopped = error.message
                return None

    async def rate(self, spec: ModelGradedAssertion, subject: Subject) -> AssertionResult | None:
        """Return a rating; None if it failed or the budget is used up."""
        # Reasons are switched off, since they cost money and are not used here.
        if not isinstance(spec, GEvalFields):
            quiet = spec
        else:
            if id(spec) not in self._quiet:
                # The original is kept, too, so that its id() is not reused.
                self._quiet[id(spec)] = spec, spec.model_copy(update={"explain": "never"})
            quiet = self._quiet[id(spec)][1]
        found = await self._within_budget(lambda: judge_one(quiet, subject, self._tools))
        if found is None:
            return None
        failed = found if found.status is Status.ERROR or found.score is None else None
        self._count(failed)
        return found if failed is None else None

    def _count(self, failed: AssertionResult | None) -> None:
        """Count a rating or a comparison, with the result that it failed with."""
        self.asked += 1
        self._listen(self.asked)
        if failed is not None:
            self.errored += 1
            self.first_error = self.first_error or (failed.error.message if failed.error else "no score")

    async def findings(self, probes: Sequence[Probe], items: Sequence[ProbedOutput]) -> list[Finding]:
        """Rate every output as it is and as each probe rewrites it, and return the findings, metric by metric."""
        asked = [item for item in probes if item.kind not in APART]
        wanted = [(item, name, spec) for item in items for name, spec in item.specs.items() if asked]
        based = await asyncio.gather(*(self.rate(spec, item.subject) for item, _, spec in wanted))
        targets: dict[str, list[Target]] = {}
        for (item, name, spec), base in zip(wanted, based, strict=True):
            if base is not None:
                targets.setdefault(name, []).append(Target(item, spec, base))
        found = []
        # All targets are kept until the end, since `_failures` is keyed by their id().
        floored = {name: with_floor(members) for name, members in targets.items()}
        for name, members in floored.items():
            for findings in await asyncio.gather(*(self._probe(item, name, members) for item in asked)):
                found += findings
        return found

    async def _probe(self, item: Probe, metric: str, targets: Sequence[Target]) -> list[Finding]:
        targets = [target for target in targets if is_hit(item, target.spec, self._options)]
        if not targets:
            return []
        results = {form: ProbePairs() for form in item.forms}
        tasks = [self._ask(item, form, target, results[form]) for form in item.forms for target in targets]
        await asyncio.gather(*tasks)
        # Whether the metric certainly covers the damage: by its dimension, or because the user says so.
        is_dimension = all(getattr(target.spec, "dimension", None) is not None for target in targets)
        is_certain = is_dimension or item.hits is None or item.name in self._options.only
        if item.kind is ProbeKind.REPETITION:
            # Only forms that the metric can take: one with a fixed scale cannot take another.
            known = {form: result for form, result in results.items() if result.skipped.keys() != {NO_FORM}}
            if not known:
                return [skipped(item, metric, NO_FORM)]
            return [
                _with_reasons(finding, result.skipped)
                for form, result in known.items()
                for finding in repetition_findings(item, form, metric, result.pairs)
            ]
        pairs = [pair for result in results.values() for pair in result.pairs]
        if item.kind is ProbeKind.DAMAGE:
            found = [damage_finding(item, metric, pairs, is_certain=is_certain)]
        elif item.kind is ProbeKind.HARMLESS:
            found = harmless_findings(item, metric, pairs)
        elif item.kind is ProbeKind.PADDING:
            found = [padding_finding(item, metric, pairs)]
        else:
            found = [deception_finding(item, metric, pairs)]
        left_out: dict[str, int] = {}
        for result in results.values():
            for why, count in result.skipped.items():
                left_out[why] = left_out.get(why, 0) + count
        return [_with_reasons(finding, left_out) for finding in found]

    async def _ask(self, item: Probe, form: str, target: Target, asked: ProbePairs) -> None:
        """Rate one output in one form, and record the change from its original rating."""
        spec, subject, base = target.spec, target.item.subject, target.base
        if item.kind is ProbeKind.REPETITION:
            await self._again(form, target, asked)
            return
        if item.kind is ProbeKind.DECEPTION:
            # A failed output: the test's own, else another test's; None if both pass.
            if id(target) not in self._failures:  # all forms of deception start from the same output
                self._failures[id(target)] = asyncio.ensure_future(self._find_failed(target))
            failed = await self._failures[id(target)]
            if failed is None:
                asked.skip("no failed output to start from")
                return
            subject, base = failed
        if item.kind is ProbeKind.DAMAGE and target.is_at_bottom:
            asked.skip("it already has the lowest score")
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
        asked: ProbePairs,
    ) -> None:
        changed = await self.rate(spec, subject)
        if changed is None or changed.score is None or base.score is None:
            asked.skip("it was not rated")
            return
        verdicts = (base.status is Status.PASSED, changed.status is Status.PASSED)
        asked.pairs.append(ScoreChange(target.item.cluster, base.score, changed.score, *verdicts))

    async def _find_failed(self, target: Target) -> tuple[Subject, AssertionResult] | None:
        if target.base.status is Status.FAILED:
            return target.item.subject, target.base
        if not target.item.other:
            return None
        wrong = replace(target.item.subject, output=target.item.other)
        found = await self.rate(target.spec, wrong)
        return (wrong, found) if found is not None and found.status is Status.FAILED else None

    async def _again(self, form: str, target: Target, asked: ProbePairs) -> None:
        steps = tuple(map(str, target.base.detail.get("evaluation_steps") or ()))
        spec = changed_spec(target.spec, form, steps)
        if spec is None:
            asked.skip(NO_FORM)
            return
        subject = target.item.subject
        if form == "again":  # the cache treats another repeat as another request
            subject = replace(subject, repeat_index=subject.repeat_index + 1)
        await self._compare(spec, subject, target, target.base, asked)

    async def together(self, item: Probe, items: Sequence[ProbedOutput]) -> list[Finding]:
        """Rate dimensions separately and jointly in one call, and return how the scores differ."""
        asked = await asyncio.gather(*map(self._both_ways, items))
        found = [(output, both) for output, both in zip(items, asked, strict=True) if both is not None]
        if not found:
            return [skipped(item, "", "no test is judged by two dimensions")]
        pairs: dict[str, list[ScoreChange]] = {}
        for _, compared in found:
            for name, pair in compared.items():
                pairs.setdefault(name, []).append(pair)
        findings = [one for name, members in pairs.items() for one in harmless_findings(item, name, members)]
        scores = [JointScores(output.cluster, *_sides(compared)) for output, compared in found]
        return [*findings, halo_finding(item, scores), *self._losses(item, found)]

    def _losses(
        self, item: Probe, found: Sequence[tuple[ProbedOutput, Mapping[str, ScoreChange]]]
    ) -> list[Finding]:
        """Return the loss of agreement with human labels of joint ratings, by dimension."""
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
        for match in by_output(matches):
            pair = compared[match.item.id].get(match.label.metric)
            if pair is not None:
                cluster = match.label.doc or str(match.item.test_index)
                one = JointLabel(cluster, match.label.human, pair.before, pair.after)
                scores.setdefault(match.label.metric, []).append(one)
        return [loss_finding(item, name, members) for name, members in scores.items()]

    async def _both_ways(self, item: ProbedOutput) -> dict[str, ScoreChange] | None:
        """Return the separate and joint scores of one output; None if fewer than two dimensions judge it."""
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
            name: ScoreChange(
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
        """Return whether `select-best` chooses the same output when their order is reversed."""
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
            compared = await self._within_budget(partial(compare_outputs, spec, row, self._tools))
            if compared is None:
                return None
            failed = next((result for result in compared if result.status is Status.ERROR), None)
            self._count(failed)
            if failed is not None:
                return None
            chosen = [place for place, result in enumerate(compared) if result.status is Status.PASSED]
            winners.append(row[chosen[0]].subject.text if chosen else None)
        return winners[0] == winners[1]


def _with_reasons(finding: Finding, left_out: Mapping[str, int]) -> Finding:
    """Return a finding with what was left out of it; a skipped one gets the most common reason as its note."""
    if finding.verdict is ProbeVerdict.SKIPPED and left_out:
        return replace(finding, note=max(left_out, key=lambda why: left_out[why]), skipped=dict(left_out))
    return replace(finding, skipped=dict(left_out))


def _sides(compared: Mapping[str, ScoreChange]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the separate and the joint scores of an output, by dimension."""
    return (
        {name: pair.before for name, pair in compared.items()},
        {name: pair.after for name, pair in compared.items()},
    )


NO_LABELS = "needs labels of outputs from two model families"


class ProbePlan(Struct, frozen=True):
    """The maximum number of ratings of a probe, before it is known which rewrites change something.

    Attributes:
        items: number of outputs.
        metrics: largest number of metrics of an output.
        variants: largest number of ratings of an output on one metric, besides that of the original.
        ratings: total; each takes one or more requests, depending on the judge's scoring method.
        cost_usd: upper bound, estimated from the plan of a run; None if unknown.
    """

    items: int
    metrics: int
    variants: int
    ratings: int
    cost_usd: float | None


def probe(
    config: Path | str,
    *,
    options: ProbeOptions = ProbeOptions(),  # noqa: B008 - frozen
    home: Path | None = None,
    **run_options: Any,
) -> ProbeReport:
    """Probe the judges of a config with rewritten outputs; `aprobe` is the same for async programs.

    Args:
        config: the config file.
        options: which probes, and on how many outputs.
        home: where the cache is; None for GEVAL_HOME, or `.geval` in the current folder.
        run_options: options of a run by their names in `RunOptions`: `grader`, `max_cost`, `max_requests`, ...

    Raises:
        ConfigError: with every problem of the config.
        UsageError: there is no such probe, or nothing in the config is judged by a model.
    """
    return asyncio.run(aprobe(config, options=options, home=home, **run_options))


async def aprobe(
    config: Path | str,
    *,
    options: ProbeOptions = ProbeOptions(),  # noqa: B008 - frozen
    home: Path | None = None,
    **run_options: Any,
) -> ProbeReport:
    """Probe the judges of a config with rewritten outputs, like `probe`."""
    chosen_probes(options.only)
    prepared = prepare(RunRequest(Path(config), os.environ, **run_options))
    with open_state(home, os.environ) as state:
        return await run_probe(prepared, state.cache, options)


async def plan_probe(prepared: PreparedRun, cache: ResponseCache | None, options: ProbeOptions) -> ProbePlan:
    """Return the maximum number of ratings of a probe, and their cost; nothing is sent.

    Raises:
        UsageError: there is no such probe, or nothing is judged by a model.
    """
    plan = _planned(prepared, options)
    run = await plan_run(prepared, cache)
    costs = [counts.cost_most_usd for kind, counts in run.rows if kind.role is Role.JUDGE]
    if not run.cases or None in costs:
        return plan
    each = sum(item or 0.0 for item in costs) / run.cases / max(1, plan.metrics)
    return replace(plan, cost_usd=each * plan.ratings)


def _planned(prepared: PreparedRun, options: ProbeOptions) -> ProbePlan:
    probes = chosen_probes(options.only)
    jobs = drawn_jobs(prepared, options)
    variants = ratings = most = 0
    base = int(any(item.kind not in APART for item in probes))  # each output is rated as it is, too
    for job in jobs:
        specs = specs_of(job, prepared)
        counts = [_variants(probes, spec, options) for spec in specs.values()]
        ratings += sum(count + base for count in counts)
        variants = max([variants, *counts])
        most = max(most, len(specs))
    kinds = {item.kind for item in probes}
    rows = {job.group for job in jobs_of(prepared) if is_compared(job)} if ProbeKind.PLACE in kinds else set()
    compared = min(len(rows), options.items)
    is_about_families = bool(options.only) and ProbeKind.FAMILY in kinds
    if not ratings and not compared and not is_about_families:
        hint = "add a g-eval or another judged assertion; `not-` assertions are not probed"
        raise UsageError("no test has an assertion judged by a model, or --only leaves it out", hint=hint)
    return ProbePlan(len(jobs), most, variants, ratings + 2 * compared, None)


def _variants(probes: Sequence[Probe], spec: ModelGradedAssertion, options: ProbeOptions) -> int:
    forms = 0
    for item in probes:
        if item.kind in APART or not is_hit(item, spec, options):
            continue
        if item.kind is ProbeKind.REPETITION:
            forms += sum(changed_spec(spec, form, ("a step",)) is not None for form in item.forms)
        else:
            forms += len(item.forms)
    if any(item.kind is ProbeKind.JOINT for item in probes) and getattr(spec, "dimension", None) is not None:
        forms += 2
    deceives = any(item.kind is ProbeKind.DECEPTION for item in probes)
    return forms + (1 if deceives else 0)  # another test's output, if the test's own passes


Listen = Callable[[int, int], None]
"""Receives the number of ratings so far and the largest planned number."""


async def run_probe(
    prepared: PreparedRun,
    cache: ResponseCache,
    options: ProbeOptions,
    listen: Listen = lambda asked, planned: None,
    wire: Wire | None = None,
) -> ProbeReport:
    """Probe the judges of a prepared suite; `listen` is called after each rating.

    Answers are cached, so repeating a probe costs nothing. If the budget is used up, the report covers the ratings made
    by then, and says so.

    Raises:
        UsageError: there is no such probe, or nothing is judged by a model.
    """
    budget = prepared.request.budget or Budget(prepared.request.max_cost, prepared.request.max_requests)
    policy = call_policy(prepared, budget, run_id=None, wire=wire)
    spending = Spending()

    def count(event: RunEvent) -> None:
        spending.add(event)

    async with open_suite_session(prepared, cache, policy, on_event=count) as session:
        report = await probe_with(job_context(session, prepared), prepared, options, listen)
        hide = session.secrets.hide
    return replace(
        report, stopped=hide(report.stopped), first_error=hide(report.first_error), usage=spending.usage
    )


async def probe_with(
    context: JobContext,
    prepared: PreparedRun,
    options: ProbeOptions,
    listen: Listen = lambda asked, planned: None,
) -> ProbeReport:
    """Probe the judges of a job context; see `run_probe`."""
    probes = chosen_probes(options.only)
    plan = _planned(prepared, options)
    rater = ConcurrentRater(context, options, lambda asked: listen(asked, plan.ratings))
    is_asked = any(item.kind not in (ProbeKind.PLACE, ProbeKind.FAMILY) for item in probes)
    pending = await rater.answers(drawn_jobs(prepared, options)) if is_asked else []
    items = with_others([probed_output(found, prepared) for found in pending if found.subject is not None])
    findings = await rater.findings(probes, items)
    for item in probes:
        if item.kind is ProbeKind.PLACE:
            findings += await rater.places(item, prepared)
        if item.kind is ProbeKind.JOINT:
            findings += await rater.together(item, items)
    return ProbeReport(
        config=str(prepared.suite.path),
        judges=tuple(spec.public_id for spec in prepared.judges),
        items=len(items),
        tests=len({item.cluster for item in items}),
        seed=options.seed,
        planned=plan.ratings,
        asked=rater.asked,
        errored=rater.errored,
        usage=rater.usage,
        findings=(*findings, *_family_findings(probes, options)),
        unanswered=len(pending) - len(items),
        stopped=rater.stopped,
        first_error=rater.first_error,
    )


def _family_findings(probes: Sequence[Probe], options: ProbeOptions) -> list[Finding]:
    item = next((item for item in probes if item.kind is ProbeKind.FAMILY), None)
    if item is None:
        return []
    if options.labels is None:
        return [skipped(item, "", NO_LABELS)]
    scores: dict[str, list[FamilyScore]] = {}
    found = match_labels(options.labels.labels, options.labelled, allow_unmatched=True)
    for match in by_output(found.matches):
        judge = match.item.judges.get(match.label.metric)
        if judge is None or match.score is None:
            continue
        is_own = family_of(judge) == family_of(match.item.provider[0])
        cluster = match.label.doc or str(match.item.test_index)
        error = match.score - match.label.human
        scores.setdefault(match.label.metric, []).append(FamilyScore(cluster, error, is_own))
    findings = [family_finding(item, metric, members) for metric, members in scores.items()]
    return findings or [skipped(item, "", NO_LABELS)]


def family_of(model: str) -> str:
    """Return the model family from a model's id: the vendor, or for a gateway the vendor in the model name."""
    vendor, _, name = model.partition(":")
    owner, slash, _ = name.rpartition("/")
    if slash:
        return owner.rpartition("/")[2].lower()
    return vendor.lower()


def probe_document(report: ProbeReport) -> ReportDocument:
    """Return the findings as a report: a section for each metric, and one for probes that were not run."""
    metrics: dict[str, list[Finding]] = {}
    for item in report.findings:
        metrics.setdefault(item.metric if item.figure else "", []).append(item)
    left_out = metrics.pop("", [])
    shown = [item for item in left_out if item.figure]
    if shown:  # findings without a metric
        metrics[""] = shown
    not_probed = list(_not_probed([item for item in left_out if not item.figure]))
    return ReportDocument(
        "Probes of the judge",
        lambda quote: _about(report, quote),
        [
            *(_section(metric, findings) for metric, findings in metrics.items()),
            *([Section("Not probed", notes=not_probed, is_overview=True)] if not_probed else []),
        ],
        report.to_json(),
        answer=lambda quote: _answer(report.findings),
    )


def _not_probed(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the probes that were not run, grouped by reason."""
    reasons: dict[str, dict[str, None]] = {}
    for item in findings:
        reasons.setdefault(item.note, {})[f"{item.probe} of {item.metric}" if item.metric else item.probe] = (
            None
        )
    for reason, names in reasons.items():
        yield f"not probed: {', '.join(names)} ({reason})"


_WORST_NAMED = 3
_WORST_FIRST = (ProbeVerdict.FAILS, ProbeVerdict.UNCLEAR, ProbeVerdict.HOLDS, ProbeVerdict.SKIPPED)


_NEEDS = compile_later(r"needs ([\d,]+) ")


def _answer(findings: Sequence[Finding]) -> str:
    """Return a sentence on whether the judge can be trusted, as far as the probes show."""
    of = {verdict: [item for item in findings if item.verdict is verdict] for verdict in _WORST_FIRST}
    failing, unclear, holding = of[ProbeVerdict.FAILS], of[ProbeVerdict.UNCLEAR], of[ProbeVerdict.HOLDS]
    checks = len(failing) + len(unclear) + len(holding)
    if not checks:
        return "Nothing could be probed."
    rest = [f"{len(holding):,} hold" if len(holding) != 1 else "1 holds"] if holding else []
    rest += (
        [f"{len(unclear):,} {'is' if len(unclear) == 1 else 'are'} unclear with so few outputs"]
        if unclear
        else []
    )
    if failing:
        worst = ", ".join(
            f"{item.probe} ({item.figure} {_level(item, item.estimate.value)}, {_bar(item)} is "
            f"{'allowed' if item.bar.startswith(('<=', '+-')) else 'required'})"
            for item in failing[:_WORST_NAMED]
        )
        more = f" and {len(failing) - _WORST_NAMED:,} more" if len(failing) > _WORST_NAMED else ""
        said = f"The judge fails {len(failing):,} of {plural(checks, 'check')}: {worst}{more}"
        return f"{said}; {', '.join(rest)}." if rest else f"{said}."
    if len(unclear) * 2 > checks:
        needed = [int(found[1].replace(",", "")) for item in unclear if (found := _NEEDS.match(item.note))]
        use = f"at least {max(needed)} are needed" if needed else "more are needed (--items)"
        is_are = "check is" if checks == 1 else "checks are"
        return f"Too few outputs: {len(unclear):,} of {checks:,} {is_are} undecided; {use}."
    if unclear:
        return f"The judge fails none of {plural(checks, 'check')}: {', '.join(rest)}."
    return f"The judge passes {'all ' if checks > 1 else ''}{plural(checks, 'check')}."


_BAR = compile_later(r"(<=|>=|[+]-|=) ?([\d.]+)")
_SHARES = frozenset({"share fallen", "flips", "agreement"})


def _level(finding: Finding, value: float | None) -> str:
    if value is None:
        return "-"
    return format_share(value) if finding.figure in _SHARES else fixed(value, 2)


def _bar(finding: Finding) -> str:
    """Return the limit of a finding in words, such as "at most 10 %", "at least 0.80" or "within 0.05"."""
    found = _BAR.fullmatch(finding.bar)
    if found is None:
        return finding.bar
    words = {"<=": "at most ", ">=": "at least ", "+-": "within ", "=": ""}
    return f"{words[found[1]]}{_level(finding, float(found[2]))}"


def _section(metric: str, findings: Sequence[Finding]) -> Section:
    chart = probe_chart(metric, findings)
    header = ("probe", "must", "figure", "value", "interval", "outputs", "tests", "bar", "verdict", "note")
    rows = [_row(item) for item in sorted(findings, key=lambda item: _WORST_FIRST.index(item.verdict))]
    brief = (0, 2, 3, 4, 5, 7, 8)
    notes: dict[str, dict[str, None]] = {}
    for item in findings:
        for note in filter(None, _note_of(item).split("; ")):
            notes.setdefault(note, {})[item.probe] = None
    return Section(
        metric or "all metrics",
        plots=[chart] if chart else [],
        tables=[Table(header, rows)],
        brief=[
            Table(
                ("probe", "must", "figure", "found", "", "n", "bar", ""),
                [[row[place] for place in (0, 1, *brief[1:])] for row in rows],
                least=140,
            ),
            Table(
                ("probe", "figure", "found", "", "n", "bar", ""),
                [[row[place] for place in brief] for row in rows],
            ),
        ],
        notes=[f"{note} ({', '.join(probes)})" for note, probes in notes.items()],
    )


def _about(report: ProbeReport, quote: Quote) -> str:
    """Return a sentence on what was probed and how many ratings were made."""
    judges = ", ".join(map(quote, report.judges)) or "none"
    parts = [
        f"Judge {judges}: {plural(report.items, 'output')} of {plural(report.tests, 'test')}",
        f"{plural(report.asked, 'rating')} of {report.planned:,} planned",
    ]
    if report.errored:
        parts.append(f"{report.errored:,} of them failed ({quote(report.first_error)})")
    if report.unanswered:
        parts.append(f"{plural(report.unanswered, 'output')} could not be obtained")
    if report.stopped:
        parts.append(f"stopped early: {quote(report.stopped)}")
    return ", ".join(parts) + "."


def _interval(finding: Finding, bounds: tuple[float, float]) -> str:
    return (
        share_bounds(bounds)
        if finding.figure in _SHARES
        else f"[{', '.join(fixed(end, 2) for end in bounds)}]"
    )


def _note_of(finding: Finding) -> str:
    """Return the note of a finding, with what was left out of it."""
    left_out = [f"{why}: {count:,}" for why, count in finding.skipped.items()]
    note = "" if finding.note in finding.skipped else finding.note
    return "; ".join(filter(None, (note, *left_out)))


def _row(finding: Finding) -> tuple[str, ...]:
    estimate = finding.estimate
    interval = estimate.interval
    return (
        finding.probe,
        finding.must.value,
        finding.figure,
        _level(finding, estimate.value),
        "-" if interval is None else _interval(finding, interval),
        f"{estimate.n:,}",
        f"{estimate.clusters:,}",
        _bar(finding),
        finding.verdict.value,
        _note_of(finding),
    )
