"""similar, answer-relevance: how close two texts are in meaning, measured by their embeddings."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Amount,
    CheckContext,
    JudgeDefaults,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
    Subject,
    Tools,
    rendered_texts,
    shortened,
)
from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.assertions.judges import DEFAULT_THRESHOLD, judge_provider
from geval_cli.errors import JudgeParseError, Problem, Severity, UnjudgeableError
from geval_cli.extras.graded.asking import (
    JudgeClient,
    Question,
    check_own_prompt,
    check_value,
    needed_question,
)
from geval_cli.extras.graded.verdicts import parse_plain
from geval_cli.judge.calls import gather_all
from geval_cli.judge.estimate import passes
from geval_cli.judge.prompt import Block, user_message
from geval_cli.judge.replies import PLACEHOLDER
from geval_cli.numbers import format_score, format_score_beside, format_threshold
from geval_cli.patterns import compile_later
from geval_cli.providers.base import EMBEDDING
from geval_cli.records import ModelRequest, Purpose, Role, Status
from geval_cli.specs.promptfoo import JudgesSpec

Vector = tuple[float, ...]
_DEFAULT_THRESHOLD = 0.75
_EUCLIDEAN = "similar:euclidean"
_QUESTIONS = 3


async def embed(
    texts: Sequence[str], spec: ModelGradedAssertion, subject: Subject, tools: Tools
) -> tuple[list[Vector], float]:
    """Return the vectors of `texts` and the highest latency in milliseconds; equal texts are sent once.

    Raises:
        ProviderError: the model could not answer.
        JudgeParseError: its answer is not an embedding.
        UnjudgeableError: a text is empty and so has no meaning to compare.
    """
    if any(not text.strip() for text in texts):
        raise UnjudgeableError(
            "an empty text has no embedding", hint="make sure that neither the output nor `value` is empty"
        )
    model = tools.judge_for(judge_provider(spec, subject.test, tools.defaults, EMBEDDING))
    # An embedding is the same in every repeat, so that the repeat is no part of the request.
    requests = [
        ModelRequest(user_message(text), role=Role.JUDGE, purpose=Purpose.EMBEDDING) for text in texts
    ]
    responses = await gather_all(model.complete(request) for request in requests)
    vectors = [_vector(response.choices[0].text) for response in responses]
    if len({len(vector) for vector in vectors}) > 1:
        raise JudgeParseError("the embeddings differ in length", raw_text=responses[0].choices[0].text)
    return vectors, max(response.latency_ms or 0.0 for response in responses)


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine similarity of two non-zero vectors, -1 to 1."""
    return dot(first, second) / (math.hypot(*first) * math.hypot(*second))


def dot(first: Vector, second: Vector) -> float:
    """Return the dot product."""
    return math.fsum(one * other for one, other in zip(first, second, strict=True))


def distance(first: Vector, second: Vector) -> float:
    """Return the Euclidean distance."""
    return math.dist(first, second)


def _vector(text: str) -> Vector:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    vector = tuple(map(_number, found)) if isinstance(found, list) else ()
    if not vector or not all(map(math.isfinite, vector)):
        raise JudgeParseError(
            "the embedding model did not return a vector",
            raw_text=text,
            hint="name an embedding model, for example openai:embedding:text-embedding-3-small",
        )
    if not 0 < math.fsum(item * item for item in vector) < math.inf:
        message = "the embedding model returned a vector that is too short or too long to be compared"
        raise JudgeParseError(message, raw_text=text, hint="check the embedding model: it may have failed")
    return vector


def _number(item: object) -> float:
    try:
        return float(item) if isinstance(item, int | float) and not isinstance(item, bool) else math.nan
    except OverflowError:
        return math.inf


_MEASURES = {_EUCLIDEAN: distance, "similar:dot": dot}


class SimilarAssertion(ModelGradedAssertion):
    """similar: the embeddings of the output and a text are similar; of several texts, one is enough."""

    value_form = "texts"

    judge_kinds: ClassVar[tuple[str, ...]] = ("embedding",)

    value: str | int | float | tuple[str | int | float, ...] = Field(
        description="The text or texts to compare with (templates); one match is enough."
    )
    threshold: Amount | None = Field(
        None,
        description=(
            "The lowest passing similarity (for similar:euclidean the largest passing distance); 0.75"
            " by default."
        ),
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the texts and the threshold."""
        problems: list[Problem] = []
        check_value(self, self.value, "text to compare with", context, problems)
        if self.base_type != _EUCLIDEAN and self.threshold is not None and self.threshold > 1:
            message = f"the threshold of {self.base_type} must be between 0 and 1"
            problems.append(Problem(message, self.place.value("threshold"), "for example 0.8"))
        problems.extend(_passed_over(self, context))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return the result for the first text that is close enough, or else for the closest one.

        Raises:
            ProviderError, JudgeError: there are no embeddings.
            UnjudgeableError: a text is empty.
        """
        texts = rendered_texts(self.value, subject.test, tools.templates)
        (of_output, *vectors), latency_ms = await embed([subject.text, *texts], self, subject, tools)
        measure = _MEASURES.get(self.base_type, cosine)
        found = [measure(of_output, vector) for vector in vectors]
        return replace(self._verdict(texts, found), latency_ms=latency_ms)

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Compare stored similarities with the current threshold."""
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
            chosen = replace(
                chosen, reason=f"none of the {len(outcomes)} texts is similar enough; {chosen.reason}"
            )
        if len(found) > 1:
            chosen = replace(chosen, detail={**chosen.detail, "measured": list(found)})
        return chosen


def _passed_over(spec: SimilarAssertion, context: CheckContext) -> Iterator[Problem]:
    own = spec.provider
    asked = judge_provider(spec, context.test, JudgeDefaults(), EMBEDDING)
    if own is None or isinstance(own, JudgesSpec) or asked.label == own.label:
        return
    message = f"`{own.public_id}` gives no embeddings; {asked.public_id} is used instead"
    hint = "name an embedding model, for example openai:embedding:text-embedding-3-large"
    yield Problem(message, spec.place.value("provider"), hint, severity=Severity.WARNING)


def _compared(spec: SimilarAssertion, text: str, found: float) -> Outcome:
    is_default = spec.threshold is None
    threshold = _DEFAULT_THRESHOLD if spec.threshold is None else spec.threshold
    shown = shortened(text, 60)
    if spec.base_type == _EUCLIDEAN:
        far = format_score_beside(found, threshold)
        reason = f'the distance to "{shown}" is {far}; at most {format_threshold(threshold)} passes'
        status = Status.PASSED if passes(threshold, found) else Status.FAILED
        return Outcome(status, 1 / (1 + found), reason, threshold, is_default, {"distance": found})
    near = format_score_beside(found, threshold)
    reason = f'the similarity to "{shown}" is {near}; the threshold is {format_threshold(threshold)}'
    score = min(max(found, 0.0), 1.0)
    return Outcome.graded(score, reason, threshold, is_default=is_default, similarity=found)


# A reply that begins in this way and asks nothing.
_NO_QUESTION = compile_later(
    r"\W*(?:none|n/?a|null|(?:there is |there's )?no question\b|as an ai\b|(?:i['\u2019]?m |i am )?(?:very )?sorry\b"
    r"|i (?:can\s?not|can['\u2019]?t|could not|couldn['\u2019]?t|am (?:unable|not able)|was (?:unable|not able))\b)"
    r"[^?\uff1f\u061f]*",
    re.IGNORECASE,
)
_FENCE = compile_later(r"```\w* (.*) ```")


def _made_up_question(text: str) -> str:
    """Return the question that a judge wrote, even if it is the only text in a JSON object."""
    answer = parse_plain(text)
    fenced = _FENCE.fullmatch(answer)
    answer = fenced[1] if fenced else answer
    try:
        found = parse_strict_json(answer)
    except ValueError:
        found = answer
    if isinstance(found, dict) and "error" in found:
        found = None
    values = found.values() if isinstance(found, dict) else found if isinstance(found, list) else [found]
    questions = [value for value in values if isinstance(value, str) and value.strip()]
    if len(questions) != 1 or PLACEHOLDER.fullmatch(questions[0]) or _NO_QUESTION.fullmatch(questions[0]):
        raise JudgeParseError("the judge's reply has no question", raw_text=text)
    return questions[0]


class AnswerRelevanceAssertion(ModelGradedAssertion):
    """answer-relevance: how similar the question is to questions that the output would answer."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("text", "embedding")
    default_threshold = DEFAULT_THRESHOLD

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with a custom prompt in one test."""
        problems: list[Problem] = []
        check_own_prompt(self, context, ("answer",), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return the mean cosine similarity of the question to three questions that a judge derives from the answer.

        Raises:
            JudgeError, ProviderError: there are no questions or no embeddings.
            UnjudgeableError: there is no question to compare with.
        """
        actual_question = needed_question(subject)
        question = Question(
            "asked_question",
            (Block("Answer", subject.text),),
            {"answer": subject.text},
            purpose=Purpose.QUESTIONS,
        )
        judge = JudgeClient(self, subject, tools)
        made_up = await judge.ask_several(question, _QUESTIONS, _made_up_question)
        (asked, *vectors), embedding_ms = await embed([actual_question, *made_up], self, subject, tools)
        near = [cosine(asked, vector) for vector in vectors]
        score = min(max(math.fsum(near) / len(near), 0.0), 1.0)
        reason = f"the relevance is {format_score(score)}"
        latency_ms = judge.latency_ms + embedding_ms
        return self.scored(score, reason, latency_ms, questions=list(made_up))
