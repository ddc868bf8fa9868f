"""Samples that end early: how many requests a server gets, what is kept, and where all samples are needed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.loopback import choices_reply
from support.model_server import ModelServer, prompt_of
from support.product import Product

from geval_cli import GEval, TestCase, UsageError
from geval_cli.judge.estimate import normalise_rating, passes
from geval_cli.judge.replies import parse_rating
from geval_cli.statistics.early_stop import StopRule, batch_ends, decide

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data" / "geval_gpt4_samples.jsonl"
TAKEN = [8, 8, 2, 2, 2, 2, 2, 8, 20, 2, 2, 8, 14, 2, 2, 4, 8, 8, 2, 2]
SAMPLED = {"type": "g-eval", "dimension": "coherence", "explain": "never", "evaluation_steps": ["Read it."]}
UPTO = {"upto": 20}


def a_config(*more: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"tests": [{"output": "A text.", "assert": [{**SAMPLED, "threshold": 0.7, **keys}, *more]}]}


def saying(ratings: str) -> ModelServer:
    """A judge whose samples are these, in order, over all requests."""
    said = iter(ratings)
    return ModelServer(form=lambda body: choices_reply([next(said) for _ in range(body.get("n", 1))]))


def wanted(server: ModelServer) -> list[int]:
    return [body.get("n", 1) for body in server.asked("form")]


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recordings are not at {RECORDED}")
def test_recorded_samples_end_early_and_no_verdict_changes(product: Product) -> None:
    items = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    given = [0] * len(items)

    def replay(body: Any) -> Any:
        prompt = prompt_of(body)
        [place] = [
            index
            for index, item in enumerate(items)
            if item["document"] in prompt and f"\n{item['summary']}\n<<<END" in prompt
        ]
        start = given[place]
        given[place] += body.get("n", 1)
        return choices_reply(items[place]["responses"][start : given[place]])

    config: dict[str, Any] = {
        "defaultTest": {
            "assert": [{"type": "g-eval", "dimension": "relevance", "explain": "never", "threshold": 0.7}],
        },
        "tests": [{"vars": {"Document": item["document"]}, "output": item["summary"]} for item in items],
    }
    with ModelServer(form=replay) as server:
        early = product.run(config, server, "--samples", "upto:20")
        sent = len(server.asked("form"))
        again = product.run(config, server, "--samples", "upto:20")
        assert len(server.asked("form")) == sent
        whole = product.run(config, server, "--samples", "20")

    taken = [verdict["detail"]["early_stop"]["taken"] for verdict in early.verdicts]
    assert taken == TAKEN
    assert sent == sum((2, 4, 8, 14, 20).index(count) + 1 for count in TAKEN)
    assert given == [20] * 20
    assert [one["status"] for one in early.verdicts] == [one["status"] for one in whole.verdicts]
    assert [one["score"] for one in again.verdicts] == [one["score"] for one in early.verdicts]


@pytest.mark.parametrize(
    ("ratings", "keys", "asked", "verdict"),
    [
        ("22", {}, [2], ("failed", 2, 2)),
        ("55", {}, [2], ("passed", 2, 2)),
        ("44444444", {}, [2, 2, 4], ("passed", 8, 8)),
        (
            "4444" + "3443" * 4,
            {"samples": {"upto": 20, "stop_error": 0}},
            [2, 2, 4, 6, 6],
            ("failed", 20, 20),
        ),
        ("?2222222", {}, [2, 2], ("failed", 4, 3)),
        ("5555", {"samples": {"upto": 3, "stop_error": 0}, "threshold": 0.9}, [2, 1], ("passed", 3, 3)),
        ("11", {"strict_mode": True, "threshold": 1}, [2], ("passed", 2, 2)),
        ("1010" + "1" * 10, {"strict_mode": True, "threshold": 1}, [2, 2, 4, 6], ("passed", 14, 14)),
    ],
    ids=["low", "high", "twice", "certainty", "unreadable", "few", "strict", "strict and split"],
)
def test_batches_end_with_the_verdict(
    product: Product, ratings: str, keys: dict[str, Any], asked: list[int], verdict: tuple[str, int, int]
) -> None:
    with saying(ratings) as server:
        finished = product.run(a_config(**{"samples": UPTO, **keys}), server, "-v")
    detail = finished.verdict["detail"]
    assert wanted(server) == asked
    assert (finished.verdict["status"], detail["requested"], detail["valid"]) == verdict
    upto = {**UPTO, **keys.get("samples", {})}["upto"]
    left = upto - verdict[1]
    reasons = {"all samples were taken"} if not left else {f"the other {left} could not change the verdict"}
    if left and "stop_error" not in keys.get("samples", {}):
        reasons.add(f"the other {left} were unlikely to change the verdict")
    assert detail["early_stop"]["taken"] == verdict[1]
    assert detail["early_stop"]["upto"] == upto
    assert detail["early_stop"]["why"] in reasons
    assert f"{verdict[1]} of at most" in finished.stdout or finished.verdict["status"] == "passed"


def test_when_too_few_can_still_be_valid_no_more_are_asked_for(product: Product) -> None:
    with saying("?" * 20) as server:
        finished = product.run(a_config(samples=UPTO), server)
    assert wanted(server) == [2, 2, 4, 6]
    assert finished.code == 3
    assert finished.verdict["error"]["message"].startswith("only 0 of 14 samples are valid")


ALL: list[tuple[str, dict[str, Any]]] = [
    ("a gate compares the mean of `coherence`", {"gates": ["coherence.mean >= 0.1"]}),
    ("a gate on `score.mean`", {"gates": ["score.mean >= 0.1"]}),
    ("a derived metric", {"derivedMetrics": [{"name": "half", "value": "coherence / 2"}]}),
    ("the `threshold` of the test", {"test": {"threshold": 0.5}}),
    ("its weight is 0", {"keys": {"weight": 0}}),
]


@pytest.mark.parametrize(("why", "settings"), ALL, ids=[why for why, _ in ALL])
def test_all_samples_are_taken_where_the_score_itself_counts(
    product: Product, why: str, settings: dict[str, Any]
) -> None:
    config = a_config(samples=UPTO, **settings.get("keys", {}))
    config["tests"][0] |= settings.get("test", {})
    config |= {key: value for key, value in settings.items() if key not in ("keys", "test")}
    with saying("5" * 20) as server:
        finished = product.run(config, server)
    assert wanted(server) == [20]
    assert "all 20 samples are taken because" in finished.stderr
    assert why in " ".join(finished.stderr.split())


def test_all_samples_are_taken_in_a_set_with_a_threshold_and_for_several_criteria(product: Product) -> None:
    member = {**SAMPLED, "samples": UPTO, "threshold": 0.7}
    config = {
        "tests": [
            {"output": "A text.", "assert": [{"type": "assert-set", "threshold": 0.1, "assert": [member]}]}
        ]
    }
    with saying("5" * 20) as server:
        finished = product.run(config, server)
    assert wanted(server) == [20]
    assert "threshold` of the assert-set" in finished.stderr


def test_a_gate_on_the_pass_rate_needs_no_more(product: Product) -> None:
    with saying("55") as server:
        finished = product.run({**a_config(samples=UPTO), "gates": ["coherence.pass_rate >= 50%"]}, server)
    assert (finished.code, wanted(server)) == (0, [2])


def test_a_plan_gives_the_span_and_knows_what_is_cached(product: Product) -> None:
    judge = {"id": "openai:judge", "config": {"price": {"input": 10, "output": 10}}}
    config = a_config(samples=UPTO, provider=judge)
    with saying("44343434" + "433433" + "333333") as server:
        before = product.run(config, server, "--plan").results
        first = product.run({**config, "gates": ["pass_rate >= 0"]}, server, "--samples", "upto:20")
        after = product.run(config, server, "--plan").results
        other = a_config(samples={"upto": 20, "stop_error": 0}, provider=judge)
        further = product.run(other, server, "--plan").results
    assert (before["total"]["least"], before["total"]["most"]) == (2, 20)
    assert 0 < before["total"]["cost_least_usd"] < before["total"]["cost_most_usd"]
    taken = first.verdict["detail"]["requested"]
    assert (after["total"]["most"], after["total"]["cached"]) == (0, taken)
    assert (further["total"]["most"], further["total"]["cached"]) == (20 - taken, taken)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("upto:1", "--samples must be a number up to 1000"),
        ("upto:", "--samples must be a number up to 1000"),
        ("0", "--samples must be a number up to 1000"),
        ("1001", "--samples must be a number up to 1000"),
        ("upto:²", "--samples must be a number up to 1000"),
        ("many", "not `many`"),
    ],
)
def test_a_wrong_option_is_refused(product: Product, written: str, problem: str) -> None:
    with ModelServer() as server:
        finished = product.run(a_config(), server, "--samples", written)
    assert finished.code == 2
    assert problem in " ".join(finished.stderr.split())


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ({"upto": 1}, "`upto` must be a whole number from 2 to 1000"),
        ({"upto": "20"}, "remove the quotes"),
        ({}, "`samples` needs `upto`"),
        ({"upto": 20, "stop_error": 0.6}, "`stop_error` must be a number from 0 to 0.5"),
        ({"upto": 20, "error": 0.1}, "unknown key `error`"),
        ("upto:20", "or a mapping, found the text"),
    ],
)
def test_wrong_samples_are_problems_with_a_place(product: Product, samples: Any, problem: str) -> None:
    with ModelServer() as server:
        finished = product.run(a_config(samples=samples), server)
    assert (finished.code, server.requests) == (2, [])
    assert problem in " ".join(finished.stderr.split())


def test_the_library_ends_early_too() -> None:
    with saying("22") as server:
        judge = {"id": "openai:judge", "config": {"base_url": server.base_url, "api_key": "k"}}
        metric = GEval(
            "Thread", dimension="coherence", evaluation_steps=["Read it."], threshold=0.7, model=judge,
            scoring="samples", samples={"upto": 20},
        )  # fmt: skip
        result = metric.evaluate(TestCase(input="in", actual_output="out"))
    assert not result.success
    assert result.metadata["early_stop"]["taken"] == 2
    with pytest.raises(UsageError, match="unknown key `up`"):
        GEval("Thread", dimension="coherence", samples={"up": 20})


WARNED = [
    ({"dimension": "coherence", "threshold": 0.75}, "rating 4 of 1 to 5", "0.625 or 0.875, or 0.7"),
    ({"dimension": "fluency", "threshold": 0.5}, "rating 2 of 1 to 3", "0.25 or 0.75, or 0.4"),
    ({"dimension": "coherence", "threshold": 1}, "rating 5 of 1 to 5", "0.875, or 0.95"),
    (
        {"criteria": "Be kind.", "threshold": 0.7, "scoring": "samples"},
        "rating 7 of 0 to 10",
        "0.65 or 0.75, or 0.68",
    ),
    ({"criteria": "Be kind.", "threshold": 0.7, "samples": 5}, "rating 7 of 0 to 10", "0.65 or 0.75"),
    (
        {"criteria": "Be kind.", "threshold": 0.5, "scoring": "logprobs", "score_range": [0, 1]},
        "rating 0.5",
        "0.45",
    ),
]
NOT_WARNED: list[dict[str, Any]] = [
    {"dimension": "coherence", "threshold": 0.7},
    {"dimension": "coherence"},
    {"dimension": "coherance", "threshold": 0.7},
    {"dimension": "coherence", "threshold": 0.75, "scoring": "single"},
    {"dimension": "coherence", "threshold": 1, "strict_mode": True},
    {"dimension": "coherence", "threshold": 0},
    {"criteria": "Be kind.", "threshold": 0.7},
    {"criteria": ["Be kind.", "Be brief."], "threshold": 0.7, "scoring": "samples"},
]


@pytest.mark.parametrize(("keys", "where", "hint"), WARNED)
def test_a_threshold_on_a_rating_is_warned_about_once(
    product: Product, keys: dict[str, Any], where: str, hint: str
) -> None:
    config = {
        "defaultTest": {"assert": [{"type": "g-eval", **keys}]},
        "tests": [{"output": "One."}, {"output": "Two."}],
    }
    with ModelServer() as server:
        finished = product.run(config, server, "--plan")
    told = " ".join(finished.stderr.split())
    assert told.count("is exactly the rating") == 1
    assert where in told
    assert hint in told


@pytest.mark.parametrize("keys", NOT_WARNED, ids=str)
def test_a_threshold_that_hangs_on_no_hair_is_not(product: Product, keys: dict[str, Any]) -> None:
    with ModelServer() as server:
        finished = product.run(
            {"tests": [{"output": "One.", "assert": [{"type": "g-eval", **keys}]}]}, server, "--plan"
        )
    assert "is exactly" not in finished.stderr


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recordings are not at {RECORDED}")
def test_the_figures_of_the_page_hold_for_recorded_samples() -> None:
    """Over thresholds from 0.3 to 0.9 and random orders; with 40 orders of each it is 4.395 samples and 0.352 %."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    items = [
        [
            parse_rating(text, score_range=(1, 5), name="Relevance").rating
            for text in json.loads(line)["responses"]
        ]
        for line in lines
    ]
    shuffled, taken, changed, count = random.Random(1), 0, 0, 0
    for threshold in (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9):
        rule = StopRule((1.0, 2.0, 3.0, 4.0, 5.0), 1 + 4 * threshold)
        for ratings in items * 4:
            order = shuffled.sample(ratings, k=20)
            end = next(end for end in batch_ends(20) if decide(rule, order[:end], 20 - end).stops)
            whole, part = sum(ratings) / 20, sum(order[:end]) / end
            count, taken = count + 1, taken + end
            changed += passes(normalise_rating(whole, (1, 5)), threshold) != passes(
                normalise_rating(part, (1, 5)), threshold
            )
    assert count == 880
    assert 4.2 < taken / count < 4.6
    assert changed / count < 0.008
