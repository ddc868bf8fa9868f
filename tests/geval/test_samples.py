"""Twenty samples: one request where the server allows it, few where not, and none that was paid for before."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.loopback import Reply, chat_reply, choices_reply, error_reply
from support.model_server import ModelServer
from support.product import Product

SAMPLED = {"type": "g-eval", "dimension": "coherence", "explain": "never"}


def a_config(tests: int = 1, **keys: Any) -> dict[str, Any]:
    """Tests whose outputs differ; steps are pinned, so that every request is for ratings."""
    assertion = {**SAMPLED, "evaluation_steps": ["Look for a thread."], **keys}
    return {"tests": [{"output": f"Text {number}.", "assert": [assertion]} for number in range(tests)]}


def wanted(server: ModelServer) -> list[int]:
    return [body.get("n", 1) for body in server.asked("form")]


def test_twenty_samples_are_one_request_at_temperature_1(product: Product) -> None:
    ratings = ["4"] * 12 + ["5"] * 6 + ["3"] * 2
    with ModelServer(form=choices_reply(ratings)) as server:
        finished = product.run(a_config(scoring="samples"), server)

    [body] = server.asked("form")
    assert (body["n"], body["temperature"], body["max_tokens"]) == (20, 1, 20)
    detail = finished.verdict["detail"]
    assert (detail["estimator"], detail["valid"], detail["requested"]) == ("samples", 20, 20)
    assert detail["rating"] == pytest.approx(4.2)
    assert detail["distribution"] == {"3": 0.1, "4": 0.6, "5": 0.3}
    assert finished.verdict["score"] == pytest.approx((4.2 - 1) / 4)


def test_a_server_that_ignores_n_is_asked_for_the_rest_in_parallel(product: Product) -> None:
    impatient = {"id": "openai:gpt-4.1", "config": {"timeout_s": 60, "max_retries": 0}}
    with ModelServer(form=one_at_a_time(waiting_for=19)) as server:
        finished = product.run(a_config(scoring="samples", provider=impatient), server)

    assert wanted(server) == [20, *[1] * 19]
    assert finished.verdict["detail"]["valid"] == 20
    assert "gives one answer per request" in finished.stderr


def one_at_a_time(waiting_for: int) -> Callable[[Any], Any]:
    """Answers requests without `n` only when so many of them wait: requests one by one would wait for ever."""
    barrier = asyncio.Barrier(waiting_for)

    async def answer(body: Any) -> Reply:
        if body.get("n", 1) == 1:
            await barrier.wait()
        return chat_reply("4")

    return answer


def test_a_server_that_refuses_n_is_asked_in_parallel_and_only_once_with_n(product: Product) -> None:
    def form(body: Any) -> Reply:
        if body.get("n", 1) > 1:
            return error_reply(400, "Only n = 1 is supported.", type="invalid_request_error", param="n")
        return chat_reply("4")

    with ModelServer(form=form) as server:
        finished = product.run(a_config(tests=3, scoring="samples"), server)

    assert sorted(wanted(server), reverse=True) == [20, *[1] * 60]
    assert {one["detail"]["valid"] for one in finished.verdicts} == {20}
    assert finished.stderr.count("gives one answer per request") == 1


def test_a_server_that_gives_five_is_asked_for_the_rest_in_fives(product: Product) -> None:
    with ModelServer(form=lambda body: chat_reply("4", n=min(5, body.get("n", 1)))) as server:
        finished = product.run(a_config(scoring="samples"), server)

    assert wanted(server) == [20, 5, 5, 5]
    assert finished.verdict["detail"]["valid"] == 20


def test_twenty_after_ten_pays_for_ten(product: Product) -> None:
    with ModelServer(form=lambda body: chat_reply("4", n=body["n"])) as server:
        ten = product.run(a_config(), server, "--samples", "10")
        twenty = product.run(a_config(), server, "--samples", "20")

    assert wanted(server) == [10, 10]
    assert ten.judge_usage["cached_requests"] == 0
    assert (twenty.judge_usage["requests"], twenty.judge_usage["cached_requests"]) == (20, 10)
    assert twenty.verdict["detail"]["valid"] == 20


def test_ten_after_twenty_pays_for_nothing(product: Product) -> None:
    with ModelServer(form=lambda body: chat_reply("4", n=body["n"])) as server:
        product.run(a_config(), server, "--samples", "20")
        product.run(a_config(), server, "--samples", "10")

    assert wanted(server) == [20]


def test_two_equal_tests_share_their_samples_and_others_do_not(product: Product) -> None:
    config = a_config(tests=2, scoring="samples")
    config["tests"].append(config["tests"][0])
    with ModelServer(form=lambda body: chat_reply("4", n=body["n"])) as server:
        finished = product.run(config, server)

    assert wanted(server) == [20, 20]
    assert (finished.judge_usage["requests"], finished.judge_usage["cached_requests"]) == (40, 0)


def test_a_sample_that_cannot_be_read_does_not_count_and_is_not_asked_for_again(product: Product) -> None:
    replies = ["4"] * 10 + ["I cannot say."] * 10
    with ModelServer(form=choices_reply(replies)) as server:
        finished = product.run(a_config(scoring="samples"), server)

    assert wanted(server) == [20]
    detail = finished.verdict["detail"]
    assert (finished.code, detail["valid"], detail["requested"], detail["rating"]) == (0, 10, 20, 4)


def test_below_half_of_the_samples_there_is_no_verdict(product: Product) -> None:
    replies = ["4"] * 9 + ["I cannot say."] * 11
    with ModelServer(form=choices_reply(replies)) as server:
        finished = product.run(a_config(scoring="samples"), server)
    with ModelServer(form=choices_reply(replies)) as server:
        lenient = product.run(a_config(scoring="samples", min_valid=0.4), server, "--no-cache")

    error = finished.verdict["error"]
    assert (finished.code, finished.verdict["score"], error["raw"]) == (3, None, "I cannot say.")
    assert error["message"].startswith(
        "only 9 of 20 samples are valid, 50 % are needed; 11 could not be read"
    )
    assert (lenient.code, lenient.verdict["detail"]["valid"]) == (0, 9)


@pytest.mark.parametrize("again", [(), ("--retry-errors",), ("--retry-errors", "--no-cache")], ids=" ".join)
def test_a_judge_that_was_repaired_is_asked_anew_for_the_samples_that_could_not_be_read(
    product: Product, again: tuple[str, ...]
) -> None:
    replies = ["4"] * 9 + ["I cannot say."] * 11
    says = iter([choices_reply(replies)])
    with ModelServer(form=lambda body: next(says, chat_reply("4", n=body["n"]))) as server:
        broken = product.run(a_config(scoring="samples"), server)
        repaired = product.run(a_config(scoring="samples"), server, *again)

    assert (broken.code, broken.verdict["score"]) == (3, None)
    assert (repaired.code, repaired.verdict["detail"]["valid"]) == (0, 20)
    assert wanted(server) == [20, 11]


def test_auto_takes_samples_when_a_judge_has_no_probabilities_and_says_so(product: Product) -> None:
    with ModelServer(form=lambda body: chat_reply("4", n=body.get("n", 1))) as server:
        finished = product.run(a_config(tests=3), server, "-v")

    assert sorted(wanted(server)) == [1, 20, 20, 20]
    assert {one["detail"]["estimator"] for one in finished.verdicts} == {"samples"}
    notes = {one["detail"]["fallback"] for one in finished.verdicts}
    assert notes == {"the judge gives no token probabilities: 20 samples were taken"}
    assert "PASS 0.75 ~" in finished.stdout
    assert "scored by a fallback method" in finished.stdout
