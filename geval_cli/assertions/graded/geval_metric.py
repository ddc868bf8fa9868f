"""The metric that a g-eval assertion makes together with what is set above it."""

from collections.abc import Sequence

from msgspec import Struct

from geval_cli.assertions.graded.geval_checks import range_of
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.judge.metric import (
    DEFAULT_SAMPLES,
    DEFAULT_THRESHOLD,
    Explain,
    Metric,
    RubricBand,
    RubricPrompt,
)
from geval_cli.specs.base import EarlyStopSpec, RubricPromptSpec, Samples, Scoring


class ScoringChoice(Struct, frozen=True):
    """The estimator settings of one level: assertion, test options, command line or defaultTest options."""

    scoring: Scoring | None = None
    samples: Samples | None = None


class MetricDefaults(Struct, frozen=True):
    """The defaults of an assertion: the dialect's threshold and the levels above the assertion.

    Attributes:
        threshold: of the dialect, 0.5 in geval's own.
        scoring: from the strongest level to the weakest: test options, command line, defaultTest options.
        rubric_prompt: from the test options, else from the defaultTest options.
    """

    threshold: float = DEFAULT_THRESHOLD
    scoring: tuple[ScoringChoice, ...] = ()
    rubric_prompt: str | RubricPromptSpec | None = None


_NO_DEFAULTS = MetricDefaults()


def metric_from_spec(
    spec: GEvalFields,
    *,
    criteria: tuple[str, ...] | None = None,
    evaluation_steps: tuple[str, ...] | None = None,
    defaults: MetricDefaults = _NO_DEFAULTS,
) -> Metric:
    """Return the metric of a `spec` that `check_metric` finds no error in.

    Args:
        spec: the assertion.
        criteria: the rendered criteria; None for the text as written.
        evaluation_steps: the rendered steps; None for the text as written.
        defaults: what holds where the assertion is silent.
    """
    scoring, samples = choose_scoring((ScoringChoice(spec.scoring, spec.samples), *defaults.scoring))
    texts = _written_criteria(spec) if criteria is None else criteria
    # The scores of several criteria are averaged, so a settled verdict on one of them is not enough.
    stop_error = samples.stop_error if isinstance(samples, EarlyStopSpec) and len(texts) <= 1 else None
    bands = tuple(RubricBand(band.low, band.high, band.description) for band in spec.rubric or ())
    own_prompt = spec.rubric_prompt if spec.rubric_prompt is not None else defaults.rubric_prompt
    return Metric(
        name=spec.metric or spec.dimension or "g-eval",
        criteria=texts,
        dimension=spec.dimension,
        joint=tuple(item.dimension for item in spec.dimensions or ()),
        evaluation_params=spec.evaluation_params,
        evaluation_steps=spec.evaluation_steps if evaluation_steps is None else evaluation_steps,
        rubric=bands,
        score_range=range_of(spec),
        score_step=spec.score_step,
        strict_mode=spec.strict_mode,
        threshold=defaults.threshold if spec.threshold is None else spec.threshold,
        scoring=scoring,
        samples=samples.upto if isinstance(samples, EarlyStopSpec) else samples,
        stop_error=stop_error,
        min_valid=spec.min_valid,
        explain=_explain(spec),
        rubric_prompt=_rubric_prompt(own_prompt),
    )


def choose_scoring(levels: Sequence[ScoringChoice]) -> tuple[Scoring, Samples]:
    """Return the estimator and the number of samples, from the strongest level to the weakest.

    A number of samples means `samples` unless the same or a stronger level names an estimator.
    """
    samples = next((level.samples for level in levels if level.samples is not None), DEFAULT_SAMPLES)
    for level in levels:
        if level.scoring is not None:
            return level.scoring, samples
        if level.samples is not None:
            return "samples", samples
    return "auto", samples


def _written_criteria(spec: GEvalFields) -> tuple[str, ...]:
    if spec.criteria is None:
        return ()
    return (spec.criteria,) if isinstance(spec.criteria, str) else spec.criteria


def _explain(spec: GEvalFields) -> Explain:
    """Return when to explain, seen from the verdict before `not-` turns it round."""
    return "passed" if spec.is_negated and spec.explain == "failed" else spec.explain


def _rubric_prompt(written: str | RubricPromptSpec | None) -> RubricPrompt | None:
    if written is None:
        return None
    if isinstance(written, str):
        return RubricPrompt(evaluate=written)
    return RubricPrompt(written.steps, written.evaluate)
