"""similar: how near the output is to a text in meaning, by the embeddings of both."""

from collections.abc import Iterator

from msgspec.structs import replace

from geval_cli.assertions.outcome import (
    CheckContext,
    JudgeDefaults,
    Outcome,
    Subject,
    Tools,
    judge_provider,
    shortened,
)
from geval_cli.assertions.values import check_texts, rendered_texts
from geval_cli.assertions.vectors import Vector, cosine, distance, dot, embed
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.graded_schema import SimilarSpec
from geval_cli.config.promptfoo.specs import JudgesSpec
from geval_cli.errors import Problem, Severity
from geval_cli.judge.scoring import passes
from geval_cli.numbers import format_score_beside
from geval_cli.providers.judge_kinds import EMBEDDING
from geval_cli.records import Status

DEFAULT_THRESHOLD = 0.75

_EUCLIDEAN = "similar:euclidean"


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the texts and of the threshold."""
    assert isinstance(spec, SimilarSpec)
    problems: list[Problem] = []
    if spec.value == ():
        message = f"{spec.base_type} has nothing to compare with"
        problems.append(Problem(message, spec.place.value("value"), "write the text in `value`"))
    check_texts(spec.value, spec.place.child("value"), context, problems)
    if spec.base_type != _EUCLIDEAN and spec.threshold is not None and spec.threshold > 1:
        message = f"the threshold of {spec.base_type} must be from 0 to 1"
        problems.append(Problem(message, spec.place.value("threshold"), "for example 0.8"))
    problems.extend(_passed_over(spec, context))
    return problems


def _passed_over(spec: SimilarSpec, context: CheckContext) -> Iterator[Problem]:
    own, asked = spec.provider, judge_provider(spec, context.test, JudgeDefaults(), EMBEDDING)
    if own is None or isinstance(own, JudgesSpec) or asked.label == own.label:
        return
    message = f"`{own.public_id}` gives no embeddings and is passed over; {asked.public_id} is asked"
    hint = "name an embedding model, for example openai:embedding:text-embedding-3-large"
    yield Problem(message, spec.place.value("provider"), hint, severity=Severity.WARNING)


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """The first of the texts that is near enough; when none is, the score is that of the nearest.

    Raises:
        ProviderError, JudgeError: the embeddings could not be had.
        UnjudgeableError: a text is empty.
    """
    assert isinstance(spec, SimilarSpec)
    texts = rendered_texts(spec.value, subject.test, tools.templates)
    (of_output, *vectors), latency_ms = await embed([subject.text, *texts], spec, subject, tools)
    outcomes = [_compared(spec, text, of_output, vector) for text, vector in zip(texts, vectors, strict=True)]
    near = next((outcome for outcome in outcomes if outcome.status is Status.PASSED), None)
    chosen = near or max(outcomes, key=lambda outcome: outcome.score or 0.0)
    if near is None and len(outcomes) > 1:
        chosen = replace(chosen, reason=f"none of the {len(outcomes)} texts is near; {chosen.reason}")
    return replace(chosen, latency_ms=latency_ms)


def _compared(spec: SimilarSpec, text: str, output: Vector, wanted: Vector) -> Outcome:
    is_default = spec.threshold is None
    threshold = DEFAULT_THRESHOLD if spec.threshold is None else spec.threshold
    shown = shortened(text, 60)
    if spec.base_type == _EUCLIDEAN:
        far = distance(output, wanted)
        reason = f'the distance to "{shown}" is {format_score_beside(far, threshold)}; at most {threshold:g} passes'
        status = Status.PASSED if passes(threshold, far) else Status.FAILED
        return Outcome(status, 1 / (1 + far), reason, threshold, is_default, {"distance": far})
    similarity = dot(output, wanted) if spec.base_type == "similar:dot" else cosine(output, wanted)
    near = format_score_beside(similarity, threshold)
    reason = f'the similarity to "{shown}" is {near}; the threshold is {threshold:g}'
    score = min(max(similarity, 0.0), 1.0)
    return Outcome.graded(score, reason, threshold, is_default=is_default, similarity=similarity)
