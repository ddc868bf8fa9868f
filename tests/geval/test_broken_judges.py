"""A judge that breaks, or that writes its JSON in another way, never makes an answer look bad."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.model_server import STEPS, kind_of
from support.product import Product

TESTS_EACH = 20
VERDICT = {"reason": "It says what is asked for.\nNothing is missing.", "score": 9}

Answer = Callable[[Any], Reply]


def as_text(body: Any, **how: Any) -> str:
    return json.dumps({"steps": STEPS} if kind_of(body) == "steps" else VERDICT, **how)


def refused(body: Any) -> Reply:
    return error_reply(401, "Incorrect API key provided", code="invalid_api_key")


def pretty_printed(body: Any) -> Reply:
    return chat_reply(as_text(body, indent=2))


def fenced(body: Any) -> Reply:
    return chat_reply(f"Here is my verdict:\n\n```json\n{as_text(body, indent=4)}\n```\n")


def truncated(body: Any) -> Reply:
    if kind_of(body) == "steps":
        return chat_reply(as_text(body))
    return chat_reply(as_text(body)[:-30], finish_reason="length")


def empty(body: Any) -> Reply:
    return chat_reply("")


def hanging(body: Any) -> Reply:
    return Reply(hang=True)


class FirstTime:
    """Breaks at the first sight of each request and answers the second time."""

    def __init__(self, trouble: Reply) -> None:
        self._trouble = trouble
        self._seen: set[str] = set()

    def __call__(self, body: Any) -> Reply:
        text = json.dumps(body)
        if text in self._seen:
            return chat_reply(as_text(body))
        self._seen.add(text)
        return self._trouble


def judges() -> dict[str, Answer]:
    wait = {"retry-after-ms": "1"}
    return {
        "refused": refused,
        "pretty-printed": pretty_printed,
        "fenced": fenced,
        "truncated": truncated,
        "empty": empty,
        "limited-at-first": FirstTime(error_reply(429, "slow down", headers=wait)),
        "broken-at-first": FirstTime(error_reply(500, "the server had an error", headers=wait)),
        "hanging": hanging,
    }


READABLE = {"pretty-printed", "fenced", "limited-at-first", "broken-at-first"}
ERRORS = {
    "refused": "ProviderAuthError",
    "truncated": "JudgeParseError",
    "empty": "JudgeParseError",
    "hanging": "ProviderTimeoutError",
}


def a_server() -> LoopbackServer:
    """The model's name says in which way it breaks."""
    answers = judges()

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        return answers[body["model"]](body)

    return LoopbackServer(respond=respond)


def a_test(judge: str, number: int) -> dict[str, Any]:
    provider = {"id": f"openai:{judge}", "config": {"timeout_s": 0.3 if judge == "hanging" else 60}}
    if judge in {"hanging", "refused"}:
        provider["config"]["max_retries"] = 0
    criteria = "The output says when the shop opens."
    return {
        "description": judge,
        "output": f"We open at nine ({number}).",
        "assert": [{"type": "g-eval", "criteria": criteria, "provider": provider}],
    }


@pytest.mark.parametrize("judge", sorted(judges()))
def test_twenty_answers_are_passed_or_not_judged_and_none_is_failed(judge: str, product: Product) -> None:
    with a_server() as server:
        finished = product.run({"tests": [a_test(judge, number) for number in range(TESTS_EACH)]}, server)

    statuses = Counter(case["status"] for case in finished.cases)
    scores = {case["score"] for case in finished.cases}
    if judge in READABLE:
        assert (finished.code, statuses, scores) == (0, {"passed": TESTS_EACH}, {0.9})
    else:
        assert (finished.code, statuses, scores) == (3, {"error": TESTS_EACH}, {None})
        assert {verdict["error"]["type"] for verdict in finished.verdicts} == {ERRORS[judge]}


def test_an_unreadable_reply_is_shown_as_it_came(product: Product) -> None:
    with a_server() as server:
        finished = product.run({"tests": [a_test("truncated", 1)]}, server)

    error = finished.verdict["error"]
    assert error["raw"].startswith('{"reason": "It says what is asked for.')
    assert "It says what is asked for." in finished.stdout


def test_all_kinds_of_trouble_in_one_run_of_the_real_command(product: Product) -> None:
    """A refused key stops its own judge only."""
    tests = [a_test(judge, number) for number in range(TESTS_EACH) for judge in judges()]
    config = product.write({"tests": tests})
    with a_server() as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-loopback")
        finished = run_geval("run", config.name, "-o", "results.json", cwd=config.parent, env=env)

    assert finished.code == 3, finished.stderr
    results = json.loads((config.parent / "results.json").read_text(encoding="utf-8"))
    statuses = Counter((case["description"], case["status"]) for case in results["results"])
    assert statuses == {(judge, "passed" if judge in READABLE else "error"): TESTS_EACH for judge in judges()}
    assert results["summary"]["failed"] == 0


def test_a_strict_metric_that_cannot_be_judged_shows_the_threshold_that_would_have_decided(
    product: Product,
) -> None:
    criteria = {"type": "g-eval", "criteria": "It is polite.", "strict_mode": True, "threshold": 0.8}
    graceful = {**criteria, "strict_mode": False}
    with LoopbackServer(respond=lambda body, headers: empty(body)) as server:
        config = {"tests": [{"output": "Hello.", "assert": [criteria, graceful]}]}
        finished = product.run(config, server)

    assert [one["status"] for one in finished.verdicts] == ["error", "error"]
    assert [one["threshold"] for one in finished.verdicts] == [1, 0.8]
