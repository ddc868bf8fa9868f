import json
import math

import pytest
from support.specs import assertion, case
from support.verdicts import judged

from geval_cli.assertions.base import Subject
from geval_cli.assertions.registry import wants_logprobs
from geval_cli.errors import UnjudgeableError
from geval_cli.providers.wire.chat import parse_token_logprobs
from geval_cli.records import Choice, ModelResponse, Status, TokenLogprob

HALF = math.log(0.5)


def answered(*logprobs: float) -> Subject:
    tokens = tuple(TokenLogprob("x", logprob) for logprob in logprobs) or None
    return Subject(case(), "x", "the prompt", response=ModelResponse((Choice("x", token_logprobs=tokens),)))


@pytest.mark.parametrize(
    ("kind", "threshold", "status", "score"),
    [
        ("perplexity", None, Status.PASSED, 1.0),
        ("perplexity", 2.0001, Status.PASSED, 1.0),
        ("perplexity", 1.9, Status.FAILED, 0.0),
        ("perplexity", 0, Status.FAILED, 0.0),
        ("not-perplexity", 1.9, Status.PASSED, 1.0),
        ("perplexity-score", None, Status.PASSED, 1 / 3),
        ("perplexity-score", 0.3, Status.PASSED, 1 / 3),
        ("perplexity-score", 0.4, Status.FAILED, 1 / 3),
        ("not-perplexity-score", 0.4, Status.PASSED, 2 / 3),
    ],
)
def test_verdicts(kind: str, threshold: float | None, status: Status, score: float) -> None:
    keys = {} if threshold is None else {"threshold": threshold}
    result = judged(kind, "x", seen=answered(HALF, HALF, HALF), **keys)
    assert result.status is status
    assert result.score == pytest.approx(score)


def test_unlikely_tokens_make_a_very_large_number_and_no_overflow() -> None:
    assert judged("perplexity", "x", seen=answered(-9998.0), threshold=10).status is Status.FAILED
    assert judged("perplexity-score", "x", seen=answered(-9998.0)).score == pytest.approx(0)


@pytest.mark.parametrize("kind", ["perplexity", "not-perplexity", "perplexity-score", "not-perplexity-score"])
@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize("logprob", ["null", '"-0.1"', "NaN", "-Infinity", "-9999.0", "1e999"])
def test_a_token_of_unknown_probability_leaves_the_verdict_open(
    kind: str, threshold: float | None, logprob: str
) -> None:
    entries = ('{"token": "a", "logprob": -0.1}', f'{{"token": "b", "logprob": {logprob}}}')
    raw = {"content": [json.loads(entry) for entry in entries]}
    response = ModelResponse((Choice("ab", token_logprobs=parse_token_logprobs(raw)),))
    keys = {} if threshold is None else {"threshold": threshold}
    with pytest.raises(UnjudgeableError, match="1 of 2 tokens is not known"):
        judged(kind, "ab", seen=Subject(case(), "ab", "the prompt", response=response), **keys)


@pytest.mark.parametrize("seen", [answered(), Subject(case(), "x", "p")])
def test_without_token_probabilities_nothing_can_be_said(seen: Subject) -> None:
    with pytest.raises(UnjudgeableError, match="without token probabilities"):
        judged("perplexity", "x", seen=seen)


def test_only_these_types_ask_for_token_probabilities_also_within_a_set() -> None:
    inner = assertion("perplexity-score")
    assert wants_logprobs([assertion("contains", value="x"), inner])
    assert wants_logprobs([assertion("assert-set", assertions=(inner,))])
    assert not wants_logprobs([assertion("contains", value="x")])
