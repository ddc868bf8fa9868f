"""The keys of a g-eval assertion, their checks, and the metric built from them and from the levels above."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Struct
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion, JudgeDefaults, MergedTest, ModelGradedAssertion, Weight
from geval_cli.assertions.sets import AssertSet
from geval_cli.errors import Location, Problem, Severity, TemplateError
from geval_cli.judge.estimate import LARGEST_SCALE
from geval_cli.judge.metric import (
    DEFAULT_SAMPLES,
    DEFAULT_SCORE_RANGE,
    DEFAULT_THRESHOLD,
    DEFAULT_WINDOW,
    SHARE_RANGE,
    STRICT_RANGE,
    ChecklistItem,
    Metric,
    Over,
    RatedExample,
    RubricBand,
    RubricPrompt,
    ScoreRange,
    default_step,
    format_number,
)
from geval_cli.judge.prompt import DIMENSIONS
from geval_cli.metrics import default_metric
from geval_cli.numbers import percent_hint
from geval_cli.source.problems import did_you_mean
from geval_cli.specs.base import (
    EarlyStopSpec,
    JuryRulesSpec,
    JurySpec,
    RubricPromptSpec,
    SampleCount,
    Samples,
    Score,
    Scoring,
    Spec,
    TestOptionsSpec,
)
from geval_cli.templating import Templates

EvaluationParam = Literal[
    "input",
    "images",
    "audio",
    "actual_output",
    "expected_output",
    "context",
    "retrieval_context",
    "turns",
    "scenario",
    "expected_outcome",
    "role",
    "trace",
    "tools_called",
]


class RubricBandSpec(Spec):
    """One band of a rubric: a rating or range of ratings, and its description."""

    low: float = Field(description="The lowest rating of this band.")
    high: float = Field(description="The highest rating of this band.")
    description: str = Field(description="What an output needs for this rating.")


class RatedDimensionSpec(Spec):
    """One of several dimensions that are rated in one call."""

    dimension: str = Field(description=" or ".join(", ".join(DIMENSIONS).rsplit(", ", 1)) + ".")
    threshold: Score | None = Field(None, description="The lowest passing score; by default the assertion's.")


class ChecklistItemSpec(Spec):
    """One item of a checklist."""

    item: str = Field(description="A statement that the judge answers with yes or no; a template.")
    weight: Weight = Field(1.0, description="The weight of this item in the score.")
    required: bool = Field(False, description="Whether a no fails the output regardless of its score.")
    evidence: bool = Field(
        True,
        description=(
            "Whether a yes must quote the output as evidence; set it to false for things that should"
            " be absent."
        ),
    )


class RatedExampleSpec(Spec):
    """An output that people have rated, shown to the judge."""

    output: str = Field(description="The output.")
    rating: Annotated[float, Field(allow_inf_nan=False)] = Field(
        description="Its rating, in the range of the judge's ratings."
    )
    reason: str | None = Field(None, description="Why it has this rating.")
    input: str | None = Field(None, description="The input that led to the output.")


class GEvalFields(ModelGradedAssertion):
    """g-eval: a judge rates the output by a named `dimension`, your own `criteria` or a `checklist`."""

    dimension: str | None = Field(
        None,
        description=" or ".join(", ".join(DIMENSIONS).rsplit(", ", 1)) + ".",
    )
    dimensions: tuple[RatedDimensionSpec, ...] | None = Field(
        None,
        description="Several dimensions, rated in one call; each has its own metric and verdict.",
    )
    checklist: tuple[ChecklistItemSpec, ...] | None = Field(
        None, description="Statements that the judge answers with yes or no, all in one call."
    )
    criteria: str | tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("criteria", "value"),
        description=(
            "Your criteria in your own words; the items of a list are rated one by one. Template or file://."
        ),
    )
    evaluation_steps: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_steps", "evaluationSteps"),
        description="The judge's evaluation steps; by default generated from the criteria.",
    )
    evaluation_params: tuple[EvaluationParam, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_params", "evaluationParams"),
        description="The parts of the test that the judge sees.",
    )
    rubric: tuple[RubricBandSpec, ...] | None = Field(None, description="Descriptions of the ratings.")
    guidelines: tuple[str, ...] | None = Field(
        None, description="Sentences that tell the judge how to apply the criterion."
    )
    examples: tuple[RatedExampleSpec, ...] | None = Field(
        None,
        description="Rated outputs that the judge sees; a list, or file:// with a .jsonl, .json or .yaml file.",
    )
    score_range: tuple[float, float] | None = Field(
        None, description="The lowest and highest rating; [0, 10] by default."
    )
    score_step: Annotated[float, Field(gt=0)] | None = Field(
        None, description="The distance between two ratings."
    )
    strict_mode: bool = Field(False, description="All or nothing: the judge rates 0 or 1.")
    scoring: Scoring | None = Field(None, description="How to compute the score from the judge's ratings.")
    samples: SampleCount | EarlyStopSpec | None = Field(
        None, description="The number of ratings, or {upto: 20} to stop early; implies `scoring: samples`."
    )
    min_valid: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="The share of samples that must be readable."
    )
    explain: Literal["failed", "always", "never"] = Field(
        "failed", description="When to request a rationale for a dimension's score, in an extra call."
    )
    source: str | None = Field(None, description="The text that the output is based on; a template.")
    jury: JuryRulesSpec | None = Field(None, description="How to combine the verdicts of several judges.")
    over: Over | None = Field(
        None,
        description=(
            "What to rate in a test's `turns`: the whole conversation, or each answer; the score is"
            " then the mean."
        ),
    )
    window: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None,
        description=(
            "With `over: answers`, how many turns the judge sees, including the answer; 5 by default."
        ),
    )

    @property
    def parts(self) -> "tuple[GEvalFields, ...]":
        """Return this assertion, or one per entry in `dimensions`: they share a request but not the rating."""
        return tuple(
            self.model_copy(
                update={
                    "dimension": item.dimension,
                    "threshold": self.threshold if item.threshold is None else item.threshold,
                }
            )
            for item in self.dimensions or ()
        ) or (self,)

    @property
    def jury_rules(self) -> JuryRulesSpec | None:
        """Return how the verdicts of several judges are combined; None if there is only one judge."""
        if not isinstance(self.provider, JurySpec):
            return None
        return self.jury or JuryRulesSpec()


_OF_PROMPTS = "evaluation-llm"


def metric_name(spec: Assertion, test: MergedTest, templates: Templates) -> str | None:
    """Return the name under which scores are aggregated: the given `metric`, or the default for a g-eval.

    A name is a template. Return None if it renders to nothing in a test; if it cannot be rendered, it is used as
    written.
    """
    if spec.metric is None:
        return default_metric_of(spec, templates)
    try:
        return templates.render(spec.metric, test.variables).strip() or None
    except TemplateError:
        return spec.metric


def default_metric_of(spec: Assertion, templates: Templates) -> str | None:
    """Return a g-eval's dimension or, if the dialect supports it, a name made from its criteria; else None."""
    if spec.compared_by is not None:
        return default_metric(spec.compared_by, None)
    if not isinstance(spec, GEvalFields):
        return None
    if spec.dimension is not None or not templates.rules.names_geval_by_criteria:
        return spec.dimension
    if spec.base_type == _OF_PROMPTS and not spec.criteria:
        return None
    return default_metric(spec.criteria, spec.evaluation_steps, is_negated=spec.is_negated)


_DUST = 1e-9


def check_metric(spec: GEvalFields) -> list[Problem]:
    """Return every error and warning about one g-eval assertion that does not depend on a test case."""
    problems = [*_check_form(spec), *_check_joint(spec), *_check_checklist(spec), *_check_texts(spec)]
    range_problems = [*_check_range(spec)]
    problems += range_problems
    if not range_problems and spec.checklist is None:
        score_range = range_of(spec)
        problems += [*_check_step(spec, score_range), *_check_rubric(spec, score_range)]
        problems += [*_check_examples(spec, STRICT_RANGE if spec.strict_mode else score_range)]
    return [*problems, *_check_threshold(spec), *_check_jury(spec), *_check_window(spec)]


def range_of(spec: GEvalFields) -> ScoreRange:
    """Return the range of the ratings: 0..1 for a checklist, the dimension's, the one in the config, or 0 to 10."""
    if spec.checklist is not None:
        return SHARE_RANGE
    if spec.dimension is not None and spec.dimension in DIMENSIONS:
        return DIMENSIONS[spec.dimension].score_range
    return spec.score_range or DEFAULT_SCORE_RANGE


def threshold_question(threshold: float, score_range: ScoreRange) -> str | None:
    """Return a hint for a threshold outside 0..1, which may be meant on the rating scale; None if it is within."""
    if 0 <= threshold <= 1:
        return None
    low, high = score_range
    if low <= threshold <= high:
        share = format_number(round((threshold - low) / (high - low), 4))
        span = f"{format_number(low)} to {format_number(high)}"
        return f"if you meant the rating scale {span}, write {share}"
    meant = percent_hint(threshold)
    if meant:
        return f"thresholds are between 0 and 1: {meant} for {format_number(threshold)} %"
    return "thresholds are between 0 and 1, whatever the rating scale"


def _check_form(spec: GEvalFields) -> Iterator[Problem]:
    if spec.dimension is not None and spec.dimension not in DIMENSIONS and spec.dimensions is None:
        near = did_you_mean(spec.dimension, DIMENSIONS)
        yield Problem(
            f"there is no dimension `{spec.dimension}`",
            spec.place.value("dimension"),
            f"did you mean `{near}`?" if near else "",
            notes=(f"dimensions: {', '.join(DIMENSIONS)}; for anything else write `criteria`",),
        )
    if spec.dimension is not None and spec.criteria is not None:
        yield Problem(
            "a g-eval assertion has either a `dimension` or `criteria`, not both",
            spec.place.key("dimension"),
            "remove one of them",
        )
    is_silent = spec.dimension is None and spec.criteria is None and not spec.evaluation_steps
    if is_silent and spec.checklist is None:
        yield Problem(
            "a g-eval assertion needs a `dimension`, `criteria` or `evaluation_steps`",
            spec.place.key(),
            "add one of them, or a `checklist`",
        )
    for key in ("score_range", "evaluation_params"):
        if spec.dimension is not None and getattr(spec, key) is not None:
            yield Problem(
                f"`{key}` works only with `criteria`; a dimension has its own",
                spec.place.key(key),
                "leave it out, or write `criteria` instead of `dimension`",
            )
    if spec.dimension is None and spec.source is not None:
        yield Problem(
            "`source` works only with `dimension`",
            spec.place.key("source"),
            "give the test a `context` and name it in `evaluation_params`",
        )


_NOT_JOINT = (
    "checklist",
    "guidelines",
    "examples",
    "metric",
    "evaluation_steps",
    "rubric",
    "score_step",
    "strict_mode",
    "rubric_prompt",
)


def _check_joint(spec: GEvalFields) -> Iterator[Problem]:
    """Check that no key is set that applies to a single dimension if several are rated in one call."""
    if spec.dimensions is None:
        return
    for name in _NOT_JOINT:
        if getattr(spec, name):
            place = spec.place.spelled("rubricPrompt", "rubric_prompt") if name == "rubric_prompt" else None
            yield Problem(
                f"`{'rubricPrompt' if name == 'rubric_prompt' else name}` cannot be combined with "
                "`dimensions`",
                place or spec.place.key(name),
                "each dimension has its own; write an assertion with `dimension` for each",
            )


_NOT_WITH_CHECKLIST = (
    "dimension",
    "criteria",
    "evaluation_steps",
    "rubric",
    "score_range",
    "score_step",
    "over",
    "guidelines",
    "examples",
)


def _check_checklist(spec: GEvalFields) -> Iterator[Problem]:
    """Check the keys next to a checklist, and the weights of its items."""
    if spec.checklist is None:
        return
    if spec.dimensions is not None:
        return  # reported by `_check_joint`
    for name in _NOT_WITH_CHECKLIST:
        if getattr(spec, name) is not None:
            place = spec.place.key(name) or spec.place.spelled("value", "evaluationSteps")
            hint = "leave it out: the items say what is judged"
            yield Problem(f"`{name}` cannot be combined with a `checklist`", place, hint)
    if spec.rubric_prompt is not None:
        place = spec.place.spelled("rubricPrompt", "rubric_prompt")
        yield Problem("a `rubricPrompt` cannot be combined with a `checklist`", place, "leave it out")
    yield from _check_items(spec, spec.checklist)
    if spec.evaluation_params is not None and "actual_output" not in spec.evaluation_params:
        place = spec.place.spelled("evaluation_params", "evaluationParams")
        yield Problem(
            "a `checklist` needs the output, but `evaluation_params` leaves it out",
            place,
            "add actual_output",
        )


def _check_items(spec: GEvalFields, items: Sequence[ChecklistItemSpec]) -> Iterator[Problem]:
    if not any(item.weight for item in items):
        place = spec.place.child("checklist").value()
        yield Problem(
            "all items of the `checklist` have weight 0", place, "give at least one a weight above 0"
        )
    known: dict[str, int] = {}
    for number, item in enumerate(items, start=1):
        plain = " ".join(item.item.split())
        place = item.place.value("item") or item.place.value()
        if not plain:
            yield Problem(
                f"item {number} of the `checklist` is empty", place, "say what must be true of the output"
            )
        elif known.setdefault(plain, number) != number:
            message = f"items {known[plain]} and {number} of the `checklist` are the same"
            yield Problem(message, place, "remove one, or give the other a higher `weight`")


def _check_texts(spec: GEvalFields) -> Iterator[Problem]:
    criteria = (spec.criteria,) if isinstance(spec.criteria, str) else spec.criteria
    if criteria is not None and (not criteria or any(not item.strip() for item in criteria)):
        place = spec.place.key("criteria") or spec.place.key("value")
        yield Problem("`criteria` is empty", place, "say in a sentence what makes an output good")
    for key in ("evaluation_steps", "evaluation_params", "guidelines"):
        items = getattr(spec, key)
        if items is not None and (not items or any(not item.strip() for item in items)):
            yield Problem(f"`{key}` is empty", spec.place.key(key), "fill it in, or leave the key out")


def _check_range(spec: GEvalFields) -> Iterator[Problem]:
    if spec.score_range is None:
        return
    low, high = spec.score_range
    if low >= high:
        hint = "put the lower end first" if low > high else "use two different numbers"
        shown = f"[{format_number(low)}, {format_number(high)}]"
        yield Problem(f"`score_range` {shown} is not a range", spec.place.value("score_range"), hint)
    elif not math.isfinite(high - low):
        yield Problem("`score_range` is too wide", spec.place.value("score_range"))


def _check_step(spec: GEvalFields, score_range: ScoreRange) -> Iterator[Problem]:
    step = default_step(score_range) if spec.score_step is None else spec.score_step
    low, high = score_range
    if spec.score_step is not None:
        steps = (high - low) / step
        # Steps such as 0.1 are not exact in binary, so ignore a remainder as small as a rounding error.
        if (
            not math.isfinite(steps)
            or abs(steps - round(steps)) > _DUST * max(1.0, steps)
            or round(steps) < 1
        ):
            yield Problem(
                f"`score_step` {format_number(step)} does not divide "
                f"{format_number(low)} to {format_number(high)} evenly",
                spec.place.value("score_step"),
            )
            return
    if spec.scoring == "logprobs" and not spec.strict_mode and (high - low) / step + 1 > LARGEST_SCALE:
        yield Problem(
            f"token probabilities cannot tell apart more than {LARGEST_SCALE} ratings",
            spec.place.value("scoring"),
            "use a larger `score_step`, or `scoring: samples`",
        )


def _check_rubric(spec: GEvalFields, score_range: ScoreRange) -> Iterator[Problem]:
    if not spec.rubric:
        return
    low, high = score_range
    span = f"{format_number(low)} to {format_number(high)}"
    outside = [band for band in spec.rubric if not (low <= band.low and band.high <= high)]
    for band in spec.rubric:
        if band.low > band.high:
            yield Problem(
                f"the band {_band_text(band)} has its higher end first",
                _place_of(band, spec),
                "put the lower end first",
            )
    for band in outside:
        hint = "" if spec.score_range or spec.dimension else "set `score_range`, or rate within 0 to 10"
        yield Problem(f"the band {_band_text(band)} is outside {span}", _place_of(band, spec), hint)
    bands = sorted(spec.rubric, key=lambda band: (band.low, band.high))
    # If any sorted bands overlap, two neighbours do.
    for below, above in pairwise(bands):
        if above.low <= below.high:
            message = f"the bands {_band_text(below)} and {_band_text(above)} overlap"
            yield Problem(message, _place_of(above, spec), "put every rating into exactly one band")
    if outside:
        return
    for end, is_reached in ((low, bands[0].low <= low), (high, max(band.high for band in bands) >= high)):
        if not is_reached:
            yield Problem(
                f"the rubric has no band for {format_number(end)}, one end of the range {span}",
                spec.place.key("rubric"),
                "add a band that includes it",
                severity=Severity.WARNING,
            )


def _check_examples(spec: GEvalFields, score_range: ScoreRange) -> Iterator[Problem]:
    """Check the guidelines and the rated examples."""
    for key in ("guidelines", "examples"):
        if not getattr(spec, key):
            continue
        if spec.rubric_prompt is not None:
            hint = "write them into the `rubricPrompt`"
            yield Problem(f"a `rubricPrompt` does not show `{key}`", spec.place.key(key), hint)
        elif isinstance(spec.criteria, tuple) and len(spec.criteria) > 1:
            hint = "write an assertion for each criterion"
            yield Problem(
                f"`{key}` need a single criterion, but there are several", spec.place.key(key), hint
            )
    if spec.examples is not None and not spec.examples:
        yield Problem("`examples` is empty", spec.place.key("examples"), "add some, or leave the key out")
    known: dict[tuple[str | None, str], int] = {}
    low, high = score_range
    for number, example in enumerate(spec.examples or (), start=1):
        place = example.place.value("output") or example.place.value() or spec.place.key("examples")
        if not example.output.strip():
            yield Problem(f"the output of example {number} is empty", place, "show what was rated")
        first = known.setdefault((example.input, example.output), number)
        if first != number:
            yield Problem(f"examples {first} and {number} show the same output", place, "leave one out")
        if not low <= example.rating <= high:
            span = f"{format_number(low)} to {format_number(high)}"
            yield Problem(
                f"the rating {format_number(example.rating)} of example {number} is outside {span}",
                example.place.value("rating") or place,
                "rate it on the judge's scale",
            )


def _check_threshold(spec: GEvalFields) -> Iterator[Problem]:
    if spec.threshold is None:
        return
    question = threshold_question(spec.threshold, range_of(spec))
    if question is not None:
        message = f"`threshold` must be between 0 and 1, found {format_number(spec.threshold)}"
        yield Problem(message, spec.place.value("threshold"), question)
    elif spec.strict_mode and spec.threshold != 1:
        yield Problem(
            f"with `strict_mode` the threshold is 1, not {format_number(spec.threshold)}",
            spec.place.value("threshold"),
            "leave `threshold` out",
            severity=Severity.WARNING,
        )


def _check_window(spec: GEvalFields) -> Iterator[Problem]:
    if spec.window is not None and spec.over != "answers":
        hint = "write `over: answers`, or leave it out: the whole conversation is rated"
        yield Problem(
            "`window` works only with `over: answers`",
            spec.place.key("window"),
            hint,
        )


def _check_jury(spec: GEvalFields) -> Iterator[Problem]:
    jury = spec.provider
    if not isinstance(jury, JurySpec):
        if spec.jury is not None:
            hint = "list the judges: `provider: [openai:gpt-4.1, anthropic:claude-sonnet-4-5, ...]`"
            yield Problem("`jury` needs several judges in `provider`", spec.place.key("jury"), hint)
        return
    rules = spec.jury or JuryRulesSpec()
    if rules.min_judges is not None and rules.min_judges > len(jury.members):
        message = f"`min_judges` is {rules.min_judges}, but the jury has only {len(jury.members)} judges"
        yield Problem(
            message,
            spec.place.child("jury").value("min_judges"),
            "leave it out to require more than half of them",
        )


def _band_text(band: RubricBandSpec) -> str:
    if band.low == band.high:
        return format_number(band.low)
    return f"{format_number(band.low)} to {format_number(band.high)}"


def _place_of(band: RubricBandSpec, spec: GEvalFields) -> Location | None:
    return band.place.value() or spec.place.key("rubric")


_NEAR = 0.2  # of a step: clearly off the rating, but still close to the intended threshold
_DIGITS = 4
_PICKS_BY_SCORE = "max-score"


class ScoringChoice(Struct, frozen=True):
    """The estimator settings of one level: assertion, test options, command line or defaultTest options."""

    scoring: Scoring | None = None
    samples: Samples | None = None


class MetricDefaults(Struct, frozen=True):
    """The defaults for an assertion: the dialect's threshold, and the levels above the assertion.

    Attributes:
        threshold: the dialect's; 0.5 in geval's own.
        scoring: in order of precedence: test options, command line, defaultTest options.
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
    """Return the metric of a `spec` without errors from `check_metric`.

    Args:
        spec: the assertion.
        criteria: the rendered criteria; None for the text as written.
        evaluation_steps: the rendered steps; None for the text as written.
        checklist: the rendered items; None for the texts as written.
        defaults: used for what the assertion does not set.
    """
    scoring, samples = choose_scoring((ScoringChoice(spec.scoring, spec.samples), *defaults.scoring))
    texts = written_criteria(spec) if criteria is None else criteria
    # The scores of several criteria or answers are averaged, so a settled verdict on one of them is not enough.
    is_mean = len(texts) > 1 or spec.over == "answers"
    stop_error = samples.stop_error if isinstance(samples, EarlyStopSpec) and not is_mean else None
    if spec.checklist is not None:  # items are decided one by one, so no verdict can be settled early
        stop_error, evaluation_steps = None, ()
    bands = tuple(RubricBand(band.low, band.high, band.description) for band in spec.rubric or ())
    own_prompt = spec.rubric_prompt if spec.rubric_prompt is not None else defaults.rubric_prompt
    # `explain` refers to the verdict before `not-` inverts it.
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
    """Return the estimator and the number of samples; earlier levels take precedence.

    A number of samples implies `samples`, unless the same level or one before it names an estimator.
    """
    samples = next((level.samples for level in levels if level.samples is not None), DEFAULT_SAMPLES)
    for level in levels:
        if level.scoring is not None:
            return level.scoring, samples
        if level.samples is not None:
            return "samples", samples
    return "auto", samples


def written_criteria(spec: GEvalFields) -> tuple[str, ...]:
    """Return the criteria as written in the config; empty if there are none."""
    if spec.criteria is None:
        return ()
    return (spec.criteria,) if isinstance(spec.criteria, str) else spec.criteria


def scoring_levels(spec: GEvalFields, test: MergedTest, defaults: JudgeDefaults) -> tuple[ScoringChoice, ...]:
    """Return the estimator settings in order of precedence, the assertion's own first."""
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
    """Return why a settled verdict is not enough for `spec` in `test`, so that all samples are needed; else None.

    Early stopping settles only pass or fail. If the score itself is used, it must be as exact as possible.
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
    """Return what the score is a mean over, in words; empty if it comes from one rating."""
    if isinstance(spec.criteria, tuple) and len(spec.criteria) > 1:
        return "several criteria"
    return "the answers" if spec.over == "answers" else ""


def _combines_scores(spec: GEvalFields) -> bool:
    """Return whether the scores of several judges are combined, rather than their pass or fail votes counted."""
    return spec.jury_rules is not None and spec.jury_rules.combine != "majority"


def check_early_stop(
    spec: GEvalFields, test: MergedTest, defaults: JudgeDefaults, templates: Templates
) -> list[Problem]:
    """Return a warning if early stopping is requested but not possible."""
    _, samples = choose_scoring(scoring_levels(spec, test, defaults))
    why = why_all_samples(spec, test, defaults, templates) if isinstance(samples, EarlyStopSpec) else None
    if why is None or not isinstance(samples, EarlyStopSpec):
        return []
    message = f"all {samples.upto} samples are taken because {why}"
    place = spec.place.key("samples") if spec.samples is not None else spec.place.key()
    hint = f"write `samples: {samples.upto}`"
    return [Problem(message, place, hint, severity=Severity.WARNING)]


def check_threshold_on_rating(spec: GEvalFields, levels: Sequence[ScoringChoice]) -> list[Problem]:
    """Return a warning if a mean of ratings is compared with a threshold that is exactly one of the ratings.

    If the judge is almost sure of that rating, the mean is slightly above or below it, and chance decides. There is no
    warning for single ratings, strict mode and default thresholds, nor for the criteria form with `scoring: auto`,
    where it depends on the judge whether ratings are averaged.
    """
    if spec.threshold is None or not 0 < spec.threshold <= 1 or spec.strict_mode or spec.checklist:
        return []
    scoring, _ = choose_scoring(levels)
    is_mean = scoring in ("samples", "logprobs") or (scoring == "auto" and spec.dimension is not None)
    if not is_mean or _combines_scores(spec) or _averaged(spec):
        return []
    if spec.dimension is not None and spec.dimension not in DIMENSIONS:
        return []  # its scale is unknown
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
