"""What a judgement may ask for, told before anything is asked. Pure."""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from geval_cli.judge.metric import Metric
from geval_cli.records import ModelRequest, Role


class Purpose(StrEnum):
    """What an answer is asked for."""

    ANSWER = "answers"
    STEPS = "steps"
    RATING = "ratings"
    SAMPLES = "samples"
    FALLBACK_SAMPLES = "fallback samples"
    EXPLANATION = "explanations"


class FurtherAnswers(Struct, frozen=True):
    """Answers that a judgement asks for after its first ones: at least `least`, at most `most`."""

    purpose: Purpose
    least: int
    most: int
    assumption: str


STEPS_STAND_IN = '{"steps": ["Read all of it.", "Compare it with the criteria.", "Decide on a rating."]}'
"""Stands for the judge's steps where a prompt is only measured."""


def purpose_of(request: ModelRequest) -> Purpose:
    """What `request` is for, as far as its form tells."""
    if request.role is Role.GENERATION:
        return Purpose.ANSWER
    schema = request.response_schema or {}
    if "steps" in schema.get("properties", {}):
        return Purpose.STEPS
    return Purpose.SAMPLES if len(request.sample_indexes) > 1 else Purpose.RATING


def further_answers(metric: Metric) -> Iterator[FurtherAnswers]:
    """What `grade` may ask for once it has asked for a rating or for samples (GEVAL.md, section 2).

    Asking once more after an unreadable reply is not counted: it is no way that anybody plans for.
    """
    if metric.dimension is None:
        return
    if metric.scoring == "auto":
        yield FurtherAnswers(
            Purpose.FALLBACK_SAMPLES,
            0,
            metric.samples,
            f"{metric.samples} for each rating, if the judge gives no usable token probabilities",
        )
    if metric.explain == "always":
        yield FurtherAnswers(Purpose.EXPLANATION, 1, 1, "one for each rating")
    elif metric.explain != "never":
        yield FurtherAnswers(Purpose.EXPLANATION, 0, 1, f"one for each output that {_FALLS[metric.explain]}")


_FALLS = {"failed": "fails", "passed": "passes"}
