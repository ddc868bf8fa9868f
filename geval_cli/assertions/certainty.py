"""perplexity, perplexity-score: how unsure the model was of the tokens that it wrote."""

import math

from msgspec.structs import replace

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import PerplexityAssertionSpec, PerplexityScoreAssertionSpec
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.numbers import format_score, format_score_beside
from geval_cli.records import ModelResponse

_LARGEST_EXPONENT = 700  # beyond it a float overflows; a perplexity like that is no more than very large


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Nothing depends on the test."""
    return []


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """A perplexity passes up to its threshold, with score 1 or 0; perplexity-score is the score itself.

    Raises:
        UnjudgeableError: the answer came without token probabilities.
    """
    perplexity = _perplexity(subject.response)
    if isinstance(spec, PerplexityScoreAssertionSpec):
        score = 1 / (1 + perplexity)
        if spec.threshold is None:
            reason = f"the perplexity is {perplexity:.4g}, which is a score of {format_score(score)}"
            return replace(Outcome.of(True, reason, perplexity=perplexity), score=score)
        reason = (
            f"the score is {format_score_beside(score, spec.threshold)}; the threshold is {spec.threshold:g}"
        )
        return Outcome.graded(score, reason, spec.threshold, perplexity=perplexity)
    assert isinstance(spec, PerplexityAssertionSpec)
    passed = spec.threshold is None or perplexity <= spec.threshold
    limit = "" if spec.threshold is None else f"; the threshold is {spec.threshold:g}"
    reason = f"the perplexity is {perplexity:.4g}{limit}"
    return Outcome.of(passed, reason, perplexity=perplexity, limit=spec.threshold)


def _perplexity(response: ModelResponse | None) -> float:
    """Euler's number to the mean surprise of a token: 1 when the model was certain of each."""
    tokens = None if response is None else response.choices[0].token_logprobs
    if not tokens:
        raise UnjudgeableError(
            "the answer came without token probabilities",
            hint="perplexity needs a provider that gives logprobs, for example an OpenAI chat model",
        )
    mean = sum(token.logprob for token in tokens) / len(tokens)
    return math.exp(min(-mean, _LARGEST_EXPONENT))
