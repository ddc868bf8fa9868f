"""latency, cost: what the answer took, against a limit."""

from pydantic import Field

from geval_cli.assertions.base import Amount, Assertion, Subject, Tools
from geval_cli.assertions.outcome import Outcome
from geval_cli.errors import UnjudgeableError
from geval_cli.numbers import format_cost
from geval_cli.records import ModelResponse


class LimitAssertion(Assertion):
    """latency, cost: what the answer took, in milliseconds or US dollars, is at most `threshold`."""

    threshold_is_score = False

    threshold: Amount = Field(description="The most that passes: milliseconds for latency, dollars for cost.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return whether the answer stayed within the limit: score 1 or 0.

        Raises:
            UnjudgeableError: the output was not generated, or its price is unknown.
        """
        if subject.response is None:
            raise UnjudgeableError(
                f"there is no {self.base_type}: no model was asked for this output",
                hint=f"take {self.base_type} out of tests that bring their own output",
            )
        is_latency = self.base_type == "latency"
        value, shown = _latency(subject.response) if is_latency else _cost(subject.response)
        passed = value <= self.threshold
        limit = f"the limit of {self.threshold:g} {'ms' if is_latency else 'USD'}"
        reason = f"{shown}, {'within' if passed else 'above'} {limit}"
        return Outcome.of(passed, reason, value=value, limit=self.threshold)


def _latency(response: ModelResponse) -> tuple[float, str]:
    """Return the latency in milliseconds; for an answer from the cache, that of the original request."""
    when = " when it was asked for (it comes from the cache)" if response.is_from_cache else ""
    return response.latency_ms, f"the answer took {response.latency_ms:.0f} ms{when}"


def _cost(response: ModelResponse) -> tuple[float, str]:
    """US dollars. An answer from the cache cost what it cost when it was bought."""
    cost_usd = response.bought_usd if response.cached else response.usage.cost_usd
    if cost_usd is None:
        raise UnjudgeableError(
            "the answer's cost is unknown",
            hint="write `price: {input: ..., output: ...}`, dollars a million tokens, in the provider's config",
        )
    when = " when it was bought (it comes from the cache)" if response.is_from_cache else ""
    return cost_usd, f"the answer cost {format_cost(cost_usd)}{when}"
