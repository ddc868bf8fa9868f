"""perplexity, perplexity-score: how unsure the model was of the tokens that it wrote."""

import math

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import Amount, Assertion, Subject, Tools
from geval_cli.assertions.outcome import Outcome
from geval_cli.errors import UnjudgeableError
from geval_cli.numbers import format_score, format_score_beside
from geval_cli.records import ModelResponse
from geval_cli.specs.base import Score

_LARGEST_EXPONENT = 700  # beyond it a float overflows; a perplexity like that is no more than very large


class PerplexityAssertion(Assertion):
    """perplexity: how unsure the model was of its own tokens; 1 is certain. Needs token probabilities."""

    threshold_is_score = False
    needs_logprobs = True

    threshold: Amount | None = Field(
        None, description="The highest perplexity that passes; any when left out."
    )

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Pass up to the threshold, with score 1 or 0.

        Raises:
            UnjudgeableError: the answer came without token probabilities.
        """
        perplexity = _perplexity(subject.response, tools)
        passed = self.threshold is None or perplexity <= self.threshold
        limit = "" if self.threshold is None else f"; the threshold is {self.threshold:g}"
        reason = f"the perplexity is {perplexity:.4g}{limit}"
        return Outcome.of(passed, reason, perplexity=perplexity, limit=self.threshold)


class PerplexityScoreAssertion(Assertion):
    """perplexity-score: 1 / (1 + perplexity). Needs token probabilities."""

    needs_logprobs = True

    threshold: Score | None = Field(None, description="The lowest score that passes; any when left out.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Hold the score against the threshold, if there is one.

        Raises:
            UnjudgeableError: the answer came without token probabilities.
        """
        perplexity = _perplexity(subject.response, tools)
        score = 1 / (1 + perplexity)
        if self.threshold is None:
            reason = f"the perplexity is {perplexity:.4g}, which is a score of {format_score(score)}"
            return replace(Outcome.of(True, reason, perplexity=perplexity), score=score)
        reason = (
            f"the score is {format_score_beside(score, self.threshold)}; the threshold is {self.threshold:g}"
        )
        return Outcome.graded(score, reason, self.threshold, perplexity=perplexity)


def _perplexity(response: ModelResponse | None, tools: Tools) -> float:
    """Euler's number to the mean surprise of a token: 1 when the model was certain of each.

    A stored answer has no probabilities any more, but what was found of them.
    """
    for earlier in tools.earlier:
        if isinstance(known := earlier.detail.get("perplexity"), int | float):
            return float(known)
    tokens = None if response is None else response.choices[0].token_logprobs
    if not tokens:
        raise UnjudgeableError(
            "the answer came without token probabilities",
            hint="perplexity needs a provider that gives logprobs, for example an OpenAI chat model",
        )
    mean = sum(token.logprob for token in tokens) / len(tokens)
    return math.exp(min(-mean, _LARGEST_EXPONENT))
