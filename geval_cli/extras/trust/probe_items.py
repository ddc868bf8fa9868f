"""The outputs that are probed, the assertions that judge them, and the forms in which they are rated."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import ModelGradedAssertion, Subject, each_assertion
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.assertions.metric_names import metric_name
from geval_cli.engine.case import PendingResult
from geval_cli.engine.evaluation_modes import assertions_of
from geval_cli.engine.plan import Job
from geval_cli.extras.trust.labelling import draw
from geval_cli.extras.trust.labels import LabelFile, count_words, vars_key
from geval_cli.extras.trust.matching import JudgedItem
from geval_cli.extras.trust.probe_findings import (
    SAME,
)
from geval_cli.extras.trust.probes import Kind, Pair, Probe
from geval_cli.extras.trust.rewrites import Material, rewritten_steps
from geval_cli.judge.dimensions import DIMENSIONS
from geval_cli.judge.metric import DEFAULT_SCORE_RANGE, format_number
from geval_cli.providers.judge_kinds import TEXT
from geval_cli.records import AssertionResult, Status
from geval_cli.report.sanitize import output_digest
from geval_cli.runs.requests import PreparedRun

APART = (Kind.PLACE, Kind.FAMILY, Kind.JOINT)
"""Probes that do not compare an output with a rewritten one, metric by metric."""

_SCALES = {"1 to 5": (1.0, 5.0), "0 to 10": (0.0, 10.0), "0 to 100": (0.0, 100.0)}
_TEMPLATE_MARKS = ("{{", "{%", "{#")
SELECT_BEST = "select-best"
NO_FORM = "the metric has no such form"


class ProbeOptions(Struct, frozen=True):
    """How a judge is probed.

    Attributes:
        items: so many outputs, drawn at random with `seed`.
        only: names of probes; empty for all. A damage that is named must lower the score of any metric.
        labels: people's labels: of `labelled` outputs for the probe `family`, and of the probed ones for `joint`.
    """

    items: int = 20
    seed: int = 0
    only: tuple[str, ...] = ()
    labels: LabelFile | None = None
    labelled: tuple[JudgedItem, ...] = ()


class ProbedOutput(Struct, frozen=True):
    """An output that is probed, with the assertions that judge it, by metric."""

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
        """Return the output as labels find it."""
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
    """One metric of one output, and how it was judged as it is.

    `floor` is the lowest score of all outputs as they are; 0 when they are all equal.
    """

    item: ProbedOutput
    spec: ModelGradedAssertion
    base: AssertionResult
    floor: float = 0.0

    @property
    def is_at_bottom(self) -> bool:
        """Return whether the judge has no worse for it: it failed, with the lowest score that the judge gave."""
        score = self.base.score or 0.0
        return score <= 0 or (self.base.status is Status.FAILED and score <= self.floor + SAME)


class Asked(Struct):
    """The pairs of one probe's form on one metric, and what was left out of them."""

    pairs: list[Pair] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def drawn_jobs(prepared: PreparedRun, options: ProbeOptions) -> list[Job]:
    """Return the jobs that are probed, in the order of the plan; those that nothing judges are never drawn."""
    names = [job.id for job in jobs_of(prepared) if specs_of(job, prepared) or is_compared(job)]
    drawn = set(draw(names, options.items, seed=options.seed))
    return [job for job in jobs_of(prepared) if job.id in drawn]


def jobs_of(prepared: PreparedRun) -> Iterator[Job]:
    """Return the jobs of a plan without repeats: a judge is probed on one answer of each."""
    return (job for job in chain.from_iterable(prepared.plan.queues) if job.repeat_index == 0)


def specs_of(job: Job, prepared: PreparedRun) -> dict[str, ModelGradedAssertion]:
    """Return the assertions that a text model judges for itself, by metric; the first of each."""
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
    """Return whether a judge chooses the best of the outputs of the job's test."""
    return any(spec.base_type == SELECT_BEST for spec in job.test.assertions)


def is_hit(item: Probe, spec: ModelGradedAssertion, options: ProbeOptions) -> bool:
    """Return whether a damage is about a metric. Of criteria in somebody's own words nobody knows; all are tried."""
    dimension = getattr(spec, "dimension", None)
    return item.hits is None or dimension is None or dimension in item.hits or item.name in options.only


def with_floor(targets: Sequence[Target]) -> list[Target]:
    """Return the targets with the lowest score that the judge gave one of them."""
    scores = [target.base.score or 0.0 for target in targets]
    floor = min(scores) if max(scores) - min(scores) > SAME else 0.0
    return [replace(target, floor=floor) for target in targets]


def probed_output(found: PendingResult, prepared: PreparedRun) -> ProbedOutput:
    """Return an answer with the assertions that judge it."""
    assert found.subject is not None
    specs = specs_of(found.job, prepared)
    return ProbedOutput(found.subject, specs, found.job, test_key=found.result.test_key)


def with_others(items: Sequence[ProbedOutput]) -> list[ProbedOutput]:
    """Return the items with the output of the next item that is of another test and has another text."""
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
    """Return the assertion with another scale or with reworded steps; None where it has none of it."""
    if form == "again":
        return spec
    if not isinstance(spec, GEvalFields) or spec.dimension is not None or spec.checklist or spec.strict_mode:
        return None
    if form == "steps":
        reworded = rewritten_steps(steps)
        if not reworded or any(mark in step for step in reworded for mark in _TEMPLATE_MARKS):
            return None
        return spec.model_copy(update={"evaluation_steps": reworded})
    scale = _SCALES[form]
    if spec.rubric or (spec.score_range or DEFAULT_SCORE_RANGE) == scale:
        return None
    return spec.model_copy(update={"score_range": scale, "score_step": None})


def material_for(target: Target, text: str, seed: int) -> Material:
    """Return what a rewrite of a text may be made of."""
    subject = target.item.subject
    dimension = str(getattr(target.spec, "dimension", None))
    own = getattr(target.spec, "score_range", None) or DEFAULT_SCORE_RANGE
    _, highest = DIMENSIONS[dimension].score_range if dimension in DIMENSIONS else own
    prompt = subject.rendered_prompt or subject.test.input or ""
    return Material(text, target.item.other, prompt, format_number(highest), seed)
