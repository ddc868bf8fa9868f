"""similar: how near the output is to a text in meaning, by the embeddings of both."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Amount,
    CheckContext,
    JudgeDefaults,
    ModelGradedAssertion,
    Subject,
    TestCase,
    Tools,
)
from geval_cli.assertions.graded.judges import judge_provider
from geval_cli.assertions.graded.vectors import cosine, distance, dot, embed
from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.assertions.values import check_texts, rendered_texts
from geval_cli.errors import Problem, Severity
from geval_cli.judge.scoring import passes
from geval_cli.numbers import format_score_beside
from geval_cli.providers.judge_kinds import EMBEDDING
from geval_cli.records import Status
from geval_cli.specs.promptfoo import JudgesSpec

DEFAULT_THRESHOLD = 0.75

_EUCLIDEAN = "similar:euclidean"
_MEASURES = {_EUCLIDEAN: distance, "similar:dot": dot}


class SimilarAssertion(ModelGradedAssertion):
    """similar: how near the output is to a text in meaning, by embeddings; of several texts any may be near."""

    value_form = "texts"

    judge_kinds: ClassVar[tuple[str, ...]] = ("embedding",)

    value: str | int | float | tuple[str | int | float, ...] = Field(
        description="The text, a template, or several, of which one must be near."
    )
    threshold: Amount | None = Field(
        None,
        description="The lowest similarity (for similar:euclidean the greatest distance) that passes; 0.75.",
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the texts and of the threshold."""
        problems: list[Problem] = []
        if self.value == ():
            message = f"{self.base_type} has nothing to compare with"
            problems.append(Problem(message, self.place.value("value"), "write the text in `value`"))
        check_texts(self.value, self.place.child("value"), context, problems)
        if self.base_type != _EUCLIDEAN and self.threshold is not None and self.threshold > 1:
            message = f"the threshold of {self.base_type} must be from 0 to 1"
            problems.append(Problem(message, self.place.value("threshold"), "for example 0.8"))
        problems.extend(_passed_over(self, context))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return the first of the texts that is near enough; when none is, the score is that of the nearest.

        Raises:
            ProviderError, JudgeError: the embeddings could not be had.
            UnjudgeableError: a text is empty.
        """
        texts = rendered_texts(self.value, subject.test, tools.templates)
        (of_output, *vectors), latency_ms = await embed([subject.text, *texts], self, subject, tools)
        measure = _MEASURES.get(self.base_type, cosine)
        found = [measure(of_output, vector) for vector in vectors]
        return replace(self._verdict(texts, found), latency_ms=latency_ms)

    def decide_again(self, rated: Outcome, test: TestCase, tools: Tools) -> Outcome | None:
        """Hold the similarities that were measured against the threshold of today."""
        texts = rendered_texts(self.value, test, tools.templates)
        one = rated.detail.get("similarity", rated.detail.get("distance"))
        found = rated.detail.get("measured", [one])
        if len(found) != len(texts) or None in found:
            return None
        return replace(self._verdict(texts, found), latency_ms=rated.latency_ms)

    def _verdict(self, texts: Sequence[str], found: Sequence[float]) -> Outcome:
        outcomes = [_compared(self, text, near) for text, near in zip(texts, found, strict=True)]
        near = next((outcome for outcome in outcomes if outcome.status is Status.PASSED), None)
        chosen = near or max(outcomes, key=lambda outcome: outcome.score or 0.0)
        if near is None and len(outcomes) > 1:
            chosen = replace(chosen, reason=f"none of the {len(outcomes)} texts is near; {chosen.reason}")
        if len(found) > 1:
            chosen = replace(chosen, detail={**chosen.detail, "measured": list(found)})
        return chosen


def _passed_over(spec: SimilarAssertion, context: CheckContext) -> Iterator[Problem]:
    own, asked = spec.provider, judge_provider(spec, context.test, JudgeDefaults(), EMBEDDING)
    if own is None or isinstance(own, JudgesSpec) or asked.label == own.label:
        return
    message = f"`{own.public_id}` gives no embeddings and is passed over; {asked.public_id} is asked"
    hint = "name an embedding model, for example openai:embedding:text-embedding-3-large"
    yield Problem(message, spec.place.value("provider"), hint, severity=Severity.WARNING)


def _compared(spec: SimilarAssertion, text: str, found: float) -> Outcome:
    is_default = spec.threshold is None
    threshold = DEFAULT_THRESHOLD if spec.threshold is None else spec.threshold
    shown = shortened(text, 60)
    if spec.base_type == _EUCLIDEAN:
        far = format_score_beside(found, threshold)
        reason = f'the distance to "{shown}" is {far}; at most {threshold:g} passes'
        status = Status.PASSED if passes(threshold, found) else Status.FAILED
        return Outcome(status, 1 / (1 + found), reason, threshold, is_default, {"distance": found})
    near = format_score_beside(found, threshold)
    reason = f'the similarity to "{shown}" is {near}; the threshold is {threshold:g}'
    score = min(max(found, 0.0), 1.0)
    return Outcome.graded(score, reason, threshold, is_default=is_default, similarity=found)
