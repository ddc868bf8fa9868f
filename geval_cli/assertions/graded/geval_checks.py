"""Check g-eval assertions before anything is sent."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from geval_cli.assertions.graded.geval_fields import ChecklistItemSpec, GEvalFields, RubricBandSpec
from geval_cli.errors import Location, Problem, Severity
from geval_cli.judge.dimensions import DIMENSIONS
from geval_cli.judge.metric import (
    DEFAULT_SCORE_RANGE,
    SHARE_RANGE,
    STRICT_RANGE,
    ScoreRange,
    default_step,
    format_number,
)
from geval_cli.judge.weighing import LARGEST_SCALE
from geval_cli.numbers import percent_hint
from geval_cli.source.problems import did_you_mean
from geval_cli.specs.base import JuryRulesSpec, JurySpec

_DUST = 1e-9


def check_metric(spec: GEvalFields) -> list[Problem]:
    """Return every problem of one g-eval assertion that can be seen without a test case, errors and warnings."""
    problems = [*_check_form(spec), *_check_joint(spec), *_check_checklist(spec), *_check_texts(spec)]
    range_problems = [*_check_range(spec)]
    problems += range_problems
    if not range_problems and spec.checklist is None:
        score_range = range_of(spec)
        problems += [*_check_step(spec, score_range), *_check_rubric(spec, score_range)]
        problems += [*_check_examples(spec, STRICT_RANGE if spec.strict_mode else score_range)]
    return [*problems, *_check_threshold(spec), *_check_jury(spec), *_check_window(spec)]


def range_of(spec: GEvalFields) -> ScoreRange:
    """Return the range of the ratings: the dimension's, a share for a checklist, else the one written, or 0 to 10."""
    if spec.checklist is not None:
        return SHARE_RANGE
    if spec.dimension is not None and spec.dimension in DIMENSIONS:
        return DIMENSIONS[spec.dimension].score_range
    return spec.score_range or DEFAULT_SCORE_RANGE


def threshold_question(threshold: float, score_range: ScoreRange) -> str | None:
    """Return a hint for a threshold outside 0..1, which may be meant on the rating scale; None when it is fine."""
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
    """Check what is said for one of several dimensions that are rated in one call."""
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
    """Check what is said beside a checklist, and the weights of its items."""
    if spec.checklist is None:
        return
    if spec.dimensions is not None:
        return  # that is said there
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
        plain, place = " ".join(item.item.split()), item.place.value("item") or item.place.value()
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
    if not (math.isfinite(low) and math.isfinite(high)):
        yield Problem("`score_range` needs two finite numbers", spec.place.value("score_range"))
    elif low >= high:
        hint = "put the lower end first" if low > high else "use two different numbers"
        shown = f"[{format_number(low)}, {format_number(high)}]"
        yield Problem(f"`score_range` {shown} is not a range", spec.place.value("score_range"), hint)


def _check_step(spec: GEvalFields, score_range: ScoreRange) -> Iterator[Problem]:
    step = default_step(score_range) if spec.score_step is None else spec.score_step
    low, high = score_range
    if spec.score_step is not None:
        steps = (high - low) / step
        # Steps such as 0.1 are no exact binary numbers, so a remainder as small as rounding is none.
        if not math.isfinite(step) or abs(steps - round(steps)) > _DUST * max(1.0, steps) or round(steps) < 1:
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
                f"the band {_shown(band)} has its higher end first",
                _place_of(band, spec),
                "put the lower end first",
            )
    for band in outside:
        hint = "" if spec.score_range or spec.dimension else "set `score_range`, or rate within 0 to 10"
        yield Problem(f"the band {_shown(band)} is outside {span}", _place_of(band, spec), hint)
    bands = sorted(spec.rubric, key=lambda band: (band.low, band.high))
    # Sorted by their lower ends, bands can only overlap with a neighbour.
    for below, above in pairwise(bands):
        if above.low <= below.high:
            message = f"the bands {_shown(below)} and {_shown(above)} overlap"
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


def _shown(band: RubricBandSpec) -> str:
    if band.low == band.high:
        return format_number(band.low)
    return f"{format_number(band.low)} to {format_number(band.high)}"


def _place_of(band: RubricBandSpec, spec: GEvalFields) -> Location | None:
    return band.place.value() or spec.place.key("rubric")
