"""Forecast the answers that a judgement may ask for, before anything is sent. Pure functions."""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from geval_cli.judge.metric import Metric


class Purpose(StrEnum):
    """The purpose of an answer, in the order in which a plan shows them."""

    ANSWER = "answers"
    STEPS = "steps"
    RATING = "ratings"
    SAMPLES = "samples"
    FALLBACK_SAMPLES = "fallback samples"
    EXPLANATION = "explanations"
    CLAIMS = "claims"
    QUESTIONS = "questions"
    VERDICT = "verdicts"
    CHOICE = "choices"
    EMBEDDING = "embeddings"


class FurtherAnswers(Struct, frozen=True):
    """A number of answers that a judgement asks for after its first ones, from `least` to `most`."""

    purpose: Purpose
    least: int
    most: int
    assumption: str


STEPS_STAND_IN = '{"steps": ["Read all of it.", "Compare it with the criteria.", "Decide on a rating."]}'
"""A stand-in for the judge's steps where a prompt is only measured."""


def further_answers(metric: Metric, after: Purpose) -> Iterator[FurtherAnswers]:
    """Yield what `grade` may ask for once it has asked for an answer of the purpose `after` (GEVAL.md, section 2).

    Asking once more after an unreadable reply is not counted: it is no way that anybody plans for.
    """
    if metric.dimension is None or after is Purpose.EXPLANATION:
        return
    if metric.scoring == "auto" and after is Purpose.RATING:
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
