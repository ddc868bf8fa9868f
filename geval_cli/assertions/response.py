"""latency, cost, finish-reason, ended-by, guardrails, perplexity: what came with the answer, beside its text."""

import math
from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Amount,
    Assertion,
    CheckContext,
    MergedTest,
    Outcome,
    Subject,
    Tools,
    shortened,
)
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.judge.source import ENDS
from geval_cli.numbers import fixed, format_score, format_score_beside, format_threshold, trimmed
from geval_cli.providers.wire.finish_reasons import known_end, withheld
from geval_cli.records import ModelResponse
from geval_cli.specs.base import Score

_LARGEST_EXPONENT = 700  # beyond it a float overflows; a perplexity like that is no more than very large


class PerplexityAssertion(Assertion):
    """perplexity: how uncertain the model was about its own tokens; 1 is certain."""

    threshold_is_score = False
    needs_logprobs = True

    threshold: Amount | None = Field(None, description="The highest passing perplexity; by default any.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Pass up to the threshold, with score 1 or 0.

        Raises:
            UnjudgeableError: the answer came without token probabilities.
        """
        perplexity = _perplexity(subject.response, tools)
        passed = self.threshold is None or perplexity <= self.threshold
        limit = "" if self.threshold is None else f"; the threshold is {format_threshold(self.threshold)}"
        reason = f"the perplexity is {perplexity:.4g}{limit}"
        return Outcome.of(passed, reason, perplexity=perplexity, limit=self.threshold)


class PerplexityScoreAssertion(Assertion):
    """perplexity-score: 1 / (1 + perplexity)."""

    needs_logprobs = True

    threshold: Score | None = Field(None, description="The lowest passing score; by default any.")

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
        own = format_score_beside(score, self.threshold)
        reason = f"the score is {own}; the threshold is {format_threshold(self.threshold)}"
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


class GuardrailsAssertion(Assertion):
    """guardrails: the provider's safety filter stopped neither prompt nor answer."""

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Fails when the provider says that a filter stopped the prompt or the answer, or that the model refuses."""
        response = subject.response
        told = subject.reported.get("guardrails")
        if isinstance(told, Mapping) and told.get("flagged"):
            where = "the prompt" if told.get("flaggedInput") else "the output"
            said = str(told.get("reason") or f"{where} failed the provider's safety checks")
            return Outcome.of(False, shortened(said, 400))
        reason = None if response is None else response.choices[0].finish_reason
        if withheld(reason):
            return Outcome.of(False, f'the provider stopped it ("{reason}"): {shortened(subject.text)}')
        return Outcome.of(True, "no provider safety filter stopped it")


class FinishReasonAssertion(Assertion):
    """finish-reason: the model stopped for this reason: stop, length, content_filter, tool_calls."""

    value_form = "text"

    value: str = Field(description="The passing finish reason (case-insensitive); a template.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the template in `value`."""
        problems: list[Problem] = []
        context.render(self.value, self.place.value("value"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare what the words mean, whatever API they are of. Without a reason, it is not the right one."""
        expected = tools.templates.render(self.value, subject.test.variables).strip()
        ended = None if subject.response is None else subject.response.choices[0].finish_reason
        # A program's own word counts; for one that was flagged, `ended` says that a filter stopped it.
        own = subject.reported.get("finishReason") or subject.reported.get("finish_reason")
        found = own if isinstance(own, str) else ended
        if found is None:
            return Outcome.of(False, "the provider gave no finish reason")
        ends = [known_end(found), known_end(expected)]
        is_refusal = all(end is not None and end.is_refusal for end in ends)
        passed = (
            found.lower() == expected.lower() or is_refusal or (ends[0] is not None and ends[0] is ends[1])
        )
        reason = f'the model stopped because of "{shortened(found)}"'
        return Outcome.of(passed, reason if passed else f'{reason}, not "{shortened(expected)}"')


class EndedByAssertion(Assertion):
    """ended-by: the simulated user ended the conversation like this: goal, gave_up, limit."""

    value: Literal["goal", "gave_up", "limit"] = Field(
        description="The passing end: the goal was reached, the user gave up, or `max_turns` was reached."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return a problem where no simulated user ends anything."""
        if context.test.user is not None or self._has_broken_turns(context.test):
            return []
        message = f"ended-by needs a simulated user, but {context.where.removeprefix('in ')} has none"
        hint = "give the test `turns: {simulate: {goal: ...}}`, or leave ended-by out"
        return [Problem(message, self.place.value("type"), hint)]

    def _has_broken_turns(self, test: MergedTest) -> bool:
        """Return whether the test, or `defaultTest` with this assertion, has `turns` that are reported as wrong."""
        path = self.place.path
        end = next((place for place, key in enumerate(path) if key in ("assert", "assertions")), len(path))
        written = ((test.place.positions, test.place.path), (self.place.positions, path[:end]))
        return not test.turns and any((*path, "turns") in positions.values for positions, path in written)

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare how it ended.

        Raises:
            UnjudgeableError: no simulated user ended it.
        """
        if subject.ended_by is None:
            raise UnjudgeableError(
                "no simulated user ended this conversation",
                hint="leave ended-by out where the turns are fixed",
            )
        return Outcome.of(subject.ended_by == self.value, ENDS[subject.ended_by], ended_by=subject.ended_by)


class LimitAssertion(Assertion):
    """latency, cost: the answer took at most `threshold` milliseconds or US dollars."""

    threshold_is_score = False

    threshold: Amount = Field(
        description="The highest passing value: milliseconds for latency, US dollars for cost."
    )

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return whether the answer stayed within the limit: score 1 or 0.

        Raises:
            UnjudgeableError: the output was not generated, or its price is unknown.
        """
        if subject.response is None:
            raise UnjudgeableError(
                f"there is no {self.base_type}: no model was called for this output",
                hint=f"remove {self.base_type} from tests that have their own output",
            )
        is_latency = self.base_type == "latency"
        value, shown = _latency(subject.response) if is_latency else _cost(subject.response)
        passed = value <= self.threshold
        limit = f"the limit of {f'{self.threshold:,g} ms' if is_latency else _dollars(self.threshold)}"
        reason = f"{shown}, {'within' if passed else 'above'} {limit}"
        return Outcome.of(passed, reason, value=value, limit=self.threshold)


def _latency(response: ModelResponse) -> tuple[float, str]:
    """Return the latency in milliseconds; for an answer from the cache, that of the original request."""
    if response.latency_ms is None:
        raise UnjudgeableError(
            "there is no latency: the answer came from a batch",
            hint="run without --batch, or with --batch-judge instead",
        )
    when = " when it was generated (it comes from the cache)" if response.is_from_cache else ""
    return response.latency_ms, f"the answer took {response.latency_ms:,.0f} ms{when}"


def _cost(response: ModelResponse) -> tuple[float, str]:
    """US dollars. An answer from the cache cost what it cost when it was bought."""
    cost_usd = response.cost_usd_generated
    if cost_usd is None:
        raise UnjudgeableError(
            "the answer's cost is unknown",
            hint="set `price: {input: ..., output: ...}` (USD per million tokens) in the provider's config",
        )
    when = " when it was paid for (it comes from the cache)" if response.is_from_cache else ""
    return cost_usd, f"the answer cost {_dollars(cost_usd)}{when}"


def _dollars(amount_usd: float) -> str:
    """An amount beside a limit, which two digits might put on the wrong side of it."""
    return f"${trimmed(fixed(amount_usd, 6), keep=2)}"
