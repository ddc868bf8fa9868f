"""The metric that a g-eval assertion makes together with what is set above it, and what hangs on its threshold."""

from collections.abc import Sequence

from msgspec import Struct

from geval_cli.assertions.assert_set import AssertSet
from geval_cli.assertions.base import JudgeDefaults, MergedTest
from geval_cli.assertions.graded.geval_checks import range_of
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.assertions.metric_names import metric_name
from geval_cli.errors import Problem, Severity
from geval_cli.judge.metric import (
    DEFAULT_SAMPLES,
    DEFAULT_THRESHOLD,
    DEFAULT_WINDOW,
    ChecklistItem,
    Metric,
    RatedExample,
    RubricBand,
    RubricPrompt,
    default_step,
    format_number,
)
from geval_cli.specs.base import EarlyStopSpec, RubricPromptSpec, Samples, Scoring, TestOptionsSpec
from geval_cli.templating import Templates

_NEAR = 0.2  # of a step: far enough from a rating, and still about the threshold that was meant
_DIGITS = 4
_DUST = 1e-9
_PICKS_BY_SCORE = "max-score"


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
    checklist: tuple[str, ...] | None = None,
    defaults: MetricDefaults = _NO_DEFAULTS,
) -> Metric:
    """Return the metric of a `spec` that `check_metric` finds no error in.

    Args:
        spec: the assertion.
        criteria: the rendered criteria; None for the text as written.
        evaluation_steps: the rendered steps; None for the text as written.
        checklist: the rendered items; None for the texts as written.
        defaults: what holds where the assertion is silent.
    """
    scoring, samples = choose_scoring((ScoringChoice(spec.scoring, spec.samples), *defaults.scoring))
    texts = _written_criteria(spec) if criteria is None else criteria
    # The scores of several criteria or answers are averaged, so a settled verdict on one of them is not enough.
    is_mean = len(texts) > 1 or spec.over == "answers"
    stop_error = samples.stop_error if isinstance(samples, EarlyStopSpec) and not is_mean else None
    if spec.checklist is not None:  # its items are decided one by one, so that no verdict is settled early
        stop_error, evaluation_steps = None, ()
    bands = tuple(RubricBand(band.low, band.high, band.description) for band in spec.rubric or ())
    own_prompt = spec.rubric_prompt if spec.rubric_prompt is not None else defaults.rubric_prompt
    # When to explain, seen from the verdict before `not-` turns it round.
    explain = "passed" if spec.is_negated and spec.explain == "failed" else spec.explain
    if own_prompt is None:
        rubric_prompt = None
    elif isinstance(own_prompt, str):
        rubric_prompt = RubricPrompt(evaluate=own_prompt)
    else:
        rubric_prompt = RubricPrompt(own_prompt.steps, own_prompt.evaluate)
    written = spec.checklist or ()
    rendered = [item.item for item in written] if checklist is None else checklist
    items = tuple(
        ChecklistItem(text, item.weight, item.required, item.evidence)
        for item, text in zip(written, rendered, strict=True)
    )
    return Metric(
        name=spec.metric or spec.dimension or "g-eval",
        criteria=texts,
        dimension=spec.dimension,
        joint=tuple(item.dimension for item in spec.dimensions or ()),
        checklist=items,
        evaluation_params=spec.evaluation_params,
        evaluation_steps=spec.evaluation_steps if evaluation_steps is None else evaluation_steps,
        rubric=bands,
        guidelines=spec.guidelines or (),
        examples=tuple(
            RatedExample(item.output, item.rating, item.reason or "", item.input or "")
            for item in spec.examples or ()
        ),
        score_range=range_of(spec),
        score_step=spec.score_step,
        strict_mode=spec.strict_mode,
        threshold=defaults.threshold if spec.threshold is None else spec.threshold,
        scoring=scoring,
        samples=samples.upto if isinstance(samples, EarlyStopSpec) else samples,
        stop_error=stop_error,
        min_valid=spec.min_valid,
        explain=explain,
        rubric_prompt=rubric_prompt,
        over=spec.over or "conversation",
        window=DEFAULT_WINDOW if spec.window is None else spec.window,
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


def scoring_levels(spec: GEvalFields, test: MergedTest, defaults: JudgeDefaults) -> tuple[ScoringChoice, ...]:
    """Return the estimator settings from the strongest level to the weakest; the assertion's own come first."""
    return (
        ScoringChoice(spec.scoring, spec.samples),
        _of_options(test.options),
        ScoringChoice(defaults.scoring, defaults.samples),
        _of_options(test.default_options),
    )


def _of_options(options: TestOptionsSpec) -> ScoringChoice:
    return ScoringChoice(options.scoring, options.samples)


def why_all_samples(
    spec: GEvalFields, test: MergedTest, defaults: JudgeDefaults, templates: Templates
) -> str | None:
    """Return why a settled verdict is not enough for `spec` in `test`, so that all samples are to be taken; else None.

    Only pass or fail is settled early. Where something is made of the score itself, it has to be as exact as it can be.
    """
    own = _why_by_itself(spec)
    if own is not None:
        return own
    if test.threshold is not None:
        return "the `threshold` of the test uses its score"
    if test.promptfoo.assert_scoring_function is not None:
        return "`assertScoringFunction` uses its score"
    for other in test.assertions:
        if isinstance(other, AssertSet) and other.threshold is not None and spec in other.members:
            return "the `threshold` of the assert-set uses its score"
        if other.base_type == _PICKS_BY_SCORE:
            return f"{_PICKS_BY_SCORE} compares its scores"
    if defaults.exact_metrics is None:
        return "a gate on `score.mean` or a derived metric uses its score"
    name = metric_name(spec, test, templates)
    return f"a gate compares the mean of `{name}` with a limit" if name in defaults.exact_metrics else None


def _why_by_itself(spec: GEvalFields) -> str | None:
    if not spec.weight:
        return "its weight is 0, so it has no verdict to settle"
    if spec.checklist is not None:
        return "each checklist item is decided from all of them"
    averaged = _averaged(spec)
    if averaged:
        return f"the scores of {averaged} are averaged"
    return "the scores of several judges are combined" if _combines_scores(spec) else None


def _averaged(spec: GEvalFields) -> str:
    """Return the name of what a score is the mean of; empty for a score of one rating."""
    if isinstance(spec.criteria, tuple) and len(spec.criteria) > 1:
        return "several criteria"
    return "the answers" if spec.over == "answers" else ""


def _combines_scores(spec: GEvalFields) -> bool:
    """Return whether several judges rate and their scores count, not how many of them pass the output."""
    return spec.jury_rules is not None and spec.jury_rules.combine != "majority"


def check_early_stop(
    spec: GEvalFields, test: MergedTest, defaults: JudgeDefaults, templates: Templates
) -> list[Problem]:
    """Return a warning where samples were to end early and cannot."""
    _, samples = choose_scoring(scoring_levels(spec, test, defaults))
    why = why_all_samples(spec, test, defaults, templates) if isinstance(samples, EarlyStopSpec) else None
    if why is None or not isinstance(samples, EarlyStopSpec):
        return []
    message = f"all {samples.upto} samples are taken because {why}"
    place = spec.place.key("samples") if spec.samples is not None else spec.place.key()
    hint = f"write `samples: {samples.upto}`"
    return [Problem(message, place, hint, severity=Severity.WARNING)]


def check_threshold_on_rating(spec: GEvalFields, levels: Sequence[ScoringChoice]) -> list[Problem]:
    """Return a warning where a mean of ratings is held against a threshold that lies exactly on one of them.

    A judge that is nearly sure of that rating gives a mean a hair above or below it, and chance decides. A single
    rating, all-or-nothing, and a threshold that no one wrote are not warned about; nor is the criteria form with
    `scoring: auto`, where the judge decides what is averaged.
    """
    if spec.threshold is None or not 0 < spec.threshold <= 1 or spec.strict_mode or spec.checklist:
        return []
    scoring, _ = choose_scoring(levels)
    is_mean = scoring in ("samples", "logprobs") or (scoring == "auto" and spec.dimension is not None)
    if not is_mean or _combines_scores(spec) or _averaged(spec):
        return []
    low, high = range_of(spec)
    if not low < high:
        return []
    step = default_step((low, high)) if spec.score_step is None else spec.score_step
    share = step / (high - low)
    steps = spec.threshold / share
    if abs(steps - round(steps)) > _DUST * max(1.0, steps):
        return []
    rating = format_number(round(low + spec.threshold * (high - low), 9))
    span = f"{format_number(low)} to {format_number(high)}"
    message = (
        f"`threshold` {format_number(spec.threshold)} is exactly the rating {rating} of {span}, so a tiny "
        "change flips the verdict"
    )
    halfway = [spec.threshold + part * share for part in (-0.5, 0.5)]
    between = " or ".join(_shown(value) for value in halfway if 0 < value < 1)
    hint = f"use a value halfway between two ratings: {between}, or {_shown(spec.threshold - _NEAR * share)}"
    entry = next((item for item in spec.dimensions or () if item.dimension == spec.dimension), None)
    place = spec.place if entry is None or entry.threshold is None else entry.place
    return [Problem(message, place.value("threshold"), hint, severity=Severity.WARNING)]


def _shown(threshold: float) -> str:
    return format_number(round(threshold, _DIGITS))
