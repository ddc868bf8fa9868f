"""The criteria of a metric: the user's own, or a dimension of G-Eval (Liu et al. 2023; the definitions are our own)."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import UsageError
from geval_cli.judge.metric import Metric, ScoreRange
from geval_cli.judge.prompt import (
    Criterion,
    checklist_prompt_version,
    criteria_of,
    examples_prompt_version,
    joint_prompt_version,
    read_prompt,
)
from geval_cli.records import JsonValue
from geval_cli.source.problems import hint_among

METRICS_KEPT = 64  # of one run; what a metric asks for is put together once, not anew for every test
_THREE: ScoreRange = (1.0, 3.0)
_FIVE: ScoreRange = (1.0, 5.0)


class Dimension(Struct, frozen=True):
    """One aspect of quality. `label` is its name as shown to a judge, `Coherence`."""

    name: str
    score_range: ScoreRange

    @property
    def label(self) -> str:
        return self.name.capitalize()

    @property
    def definition(self) -> str:
        """Return the definition: a paragraph about what to reward and what to penalise."""
        return " ".join(read_prompt(f"dimensions/{self.name}").split())


DIMENSIONS: Mapping[str, Dimension] = MappingProxyType(
    {
        name: Dimension(name, score_range)
        for name, score_range in (
            ("fluency", _THREE),
            ("coherence", _FIVE),
            ("consistency", _FIVE),
            ("relevance", _FIVE),
            ("engagingness", _THREE),
            ("groundedness", _FIVE),
            ("naturalness", _THREE),
        )
    }
)


def find_dimension(name: str) -> Dimension:
    """Return the dimension of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in DIMENSIONS:
        raise UsageError(f"there is no dimension `{name}`", hint=hint_among(name, DIMENSIONS))
    return DIMENSIONS[name]


@lru_cache(maxsize=METRICS_KEPT)
def metric_criteria(metric: Metric) -> tuple[Criterion, ...]:
    """Return what a metric is judged by: its dimension, its criteria one by one, or nothing but its steps.

    Raises:
        UsageError: a criterion is empty, or there is neither a criterion nor a step.
    """
    if metric.dimension is not None:
        dimension = find_dimension(metric.dimension)
        return criteria_of(metric, dimension.label, (dimension.definition,))
    criteria = tuple(item.strip() for item in metric.criteria)
    if any(not item for item in criteria) or not (criteria or metric.evaluation_steps):
        hint = "write criteria, evaluation_steps or a dimension"
        raise UsageError(f"the metric {metric.name!r} has an empty criterion", hint=hint)
    return criteria_of(metric, metric.name, criteria or ("",))


@lru_cache(maxsize=METRICS_KEPT)
def joint_criteria(metric: Metric) -> tuple[Criterion, ...]:
    """Return the criteria of all dimensions that are rated together, as they are written."""
    found: list[Criterion] = []
    for name in metric.joint:
        dimension = find_dimension(name)
        alone = replace(metric, dimension=name, score_range=dimension.score_range)
        found += criteria_of(alone, dimension.label, (dimension.definition,))
    return tuple(found)


CRITERION_FACTS = (
    "dimension",
    "criteria",
    "evaluation_steps",
    "evaluation_params",
    "rubric",
    "score_range",
    "score_step",
    "strict_mode",
    "scoring",
    "samples",
    "rubric_prompt",
    "name",
)
"""The names of what `criterion_facts` returns first, whatever the metric."""


def criterion_facts(metric: Metric) -> list[JsonValue]:
    """Return what of a metric decides its ratings: all but the threshold, and the name where no judge sees it."""
    own = metric.rubric_prompt
    is_sampled = metric.scoring == "samples" or (metric.scoring == "auto" and metric.dimension is not None)
    facts: list[JsonValue] = [
        metric.dimension,
        _checklist_facts(metric) or [criterion.strip() for criterion in metric.criteria],
        metric.evaluation_steps,
        metric.evaluation_params,
        metric.rubric,
        metric.asked_range,
        metric.asked_step,
        metric.strict_mode,
        metric.scoring,
        [metric.samples, metric.min_valid] if is_sampled else None,
        own,
        metric.name if own is not None and metric.dimension is None else None,
    ]
    if metric.joint:
        facts.append(["joint", metric.joint, joint_prompt_version()])
    if metric.stop_error is not None:
        facts.append(["stop_error", metric.stop_error])
    if metric.over != "conversation":
        facts.append(["over", metric.over, metric.window])
    if metric.guidelines:
        facts.append(["guidelines", metric.guidelines])
    if metric.examples:
        facts.append(["examples", metric.examples, examples_prompt_version()])
    return facts


def _checklist_facts(metric: Metric) -> list[JsonValue]:
    """Return what of a checklist decides its score; empty without one."""
    if not metric.checklist:
        return []
    return ["checklist", metric.checklist, checklist_prompt_version()]
