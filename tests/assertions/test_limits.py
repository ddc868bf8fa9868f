import pytest
from support.specs import case
from support.verdicts import judged

from geval_cli.assertions.base import Subject
from geval_cli.errors import UnjudgeableError
from geval_cli.records import Choice, ModelResponse, Status, Usage


def answered(**fields: object) -> Subject:
    response = ModelResponse((Choice("x"),), **fields)  # type: ignore[arg-type]  # any field of the record
    return Subject(case(), "x", "the prompt", response=response)


@pytest.mark.parametrize(
    ("kind", "latency_ms", "threshold", "status"),
    [
        ("latency", 100.0, 100, Status.PASSED),
        ("latency", 100.1, 100, Status.FAILED),
        ("latency", 0.0, 0, Status.PASSED),
        ("not-latency", 100.1, 100, Status.PASSED),
        ("not-latency", 99.0, 100, Status.FAILED),
    ],
)
def test_latency(kind: str, latency_ms: float, threshold: float, status: Status) -> None:
    result = judged(kind, "x", seen=answered(latency_ms=latency_ms), threshold=threshold)
    assert (result.status, result.threshold, result.detail["limit"]) == (status, None, threshold)


def test_an_answer_from_the_cache_is_judged_by_what_it_took_when_it_was_bought() -> None:
    seen = answered(
        latency_ms=900.0,
        cached=True,
        original_usage=Usage(1, cost_usd=0.5),
        usage=Usage(1, cached_requests=1),
    )
    slow = judged("latency", "x", seen=seen, threshold=500)
    assert slow.status is Status.FAILED
    assert "comes from the cache" in (slow.reason or "")
    assert judged("cost", "x", seen=seen, threshold=0.1).status is Status.FAILED


@pytest.mark.parametrize(
    ("cost", "status", "shown"),
    [
        (0.002, Status.FAILED, "$0.002, above the limit of $0.001"),
        (0.001004, Status.FAILED, "$0.001004, above the limit of $0.001"),
        (0.001, Status.PASSED, "$0.001, within the limit of $0.001"),
        (0.0, Status.PASSED, "$0.00, within the limit of $0.001"),
    ],
)
def test_cost(cost: float, status: Status, shown: str) -> None:
    seen = answered(usage=Usage(requests=1, cost_usd=cost))
    result = judged("cost", "x", seen=seen, threshold=0.001)
    assert (result.status, result.score) == (status, float(status is Status.PASSED))
    assert result.reason == f"the answer cost {shown}"


def test_an_unknown_price_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(UnjudgeableError, match="cost is unknown") as caught:
        judged("cost", "x", seen=answered(usage=Usage(requests=1, cost_usd=None)), threshold=1)
    assert "price:" in caught.value.hint


@pytest.mark.parametrize("kind", ["latency", "cost"])
def test_an_output_that_nobody_generated_cannot_be_judged(kind: str) -> None:
    with pytest.raises(UnjudgeableError, match=f"there is no {kind}"):
        judged(kind, "x", threshold=1)
