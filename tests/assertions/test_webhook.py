import asyncio

import pytest
from support.loopback import LoopbackServer, Reply
from support.specs import assertion, case, subject, tools
from support.verdicts import problems

from geval_cli.assertions.registry import judge_assertion
from geval_cli.errors import GevalError, ProviderError, UnjudgeableError
from geval_cli.records import AssertionResult, JsonValue, Status


def asked(reply: JsonValue, kind: str = "webhook") -> tuple[AssertionResult, JsonValue]:
    with LoopbackServer(Reply(body=reply) if not isinstance(reply, Reply) else reply) as server:
        seen = subject("the output", case(vars={"base": server.base_url}), "the prompt")
        result = asyncio.run(judge_assertion(assertion(kind, value="{{base}}/check"), seen, tools()))
        [request] = server.requests
        assert (request.method, request.path) == ("POST", "/v1/check")
        return result, request.json


def test_the_server_is_sent_output_prompt_and_vars_and_its_answer_is_the_verdict() -> None:
    result, sent = asked({"pass": False, "score": 0.25, "reason": "too short"})
    assert (result.status, result.score, result.reason) == (Status.FAILED, 0.25, "too short")
    assert sent["output"] == "the output"
    assert sent["context"]["prompt"] == "the prompt"
    assert list(sent["context"]["vars"]) == ["base"]


@pytest.mark.parametrize(
    ("kind", "reply", "status", "score"),
    [
        ("webhook", {"pass": True}, Status.PASSED, 1.0),
        ("webhook", {"pass": False}, Status.FAILED, 0.0),
        ("webhook", {"pass": False, "error": None}, Status.FAILED, 0.0),
        ("webhook", {"pass": True, "error": ""}, Status.PASSED, 1.0),
        ("not-webhook", {"pass": True, "score": 0.75}, Status.FAILED, 0.25),
    ],
)
def test_the_score_follows_the_verdict(kind: str, reply: JsonValue, status: Status, score: float) -> None:
    result, _ = asked(reply, kind)
    assert (result.status, result.score) == (status, score)
    assert result.reason


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ({"verdict": True}, UnjudgeableError),
        ({"pass": False, "error": "the database is down"}, UnjudgeableError),
        ({"pass": True, "score": 1, "error": {"code": 7}}, UnjudgeableError),
        ({"pass": "yes"}, UnjudgeableError),
        ({"pass": True, "score": 7}, UnjudgeableError),
        ({"pass": True, "score": True}, UnjudgeableError),
        ([1], UnjudgeableError),
        (Reply(body="no json"), ProviderError),
        (Reply(status=500), ProviderError),
        (Reply(reset=True), ProviderError),
    ],
)
def test_a_broken_server_gives_an_error_and_no_verdict(reply: JsonValue, error: type[GevalError]) -> None:
    with pytest.raises(error):
        asked(reply)


@pytest.mark.parametrize("url", ["", "ftp://x/y", "example.com/check", "http://", "http://[::1"])
def test_what_is_no_url_is_a_problem(url: str) -> None:
    [problem] = problems("webhook", value=url)
    assert "not a valid URL" in problem.message


def test_a_secret_in_the_url_is_not_shown() -> None:
    [problem] = problems("webhook", value="ftp://user:hunter2hunter2@example.com/")
    assert "hunter2" not in problem.message


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=404),
        Reply(status=302),
        Reply(status=302, headers={"location": "https://checks.example.com/v2"}),
        Reply(body="<html>Sign in</html>"),
    ],
    ids=["no such page", "a redirect without a target", "a redirect", "a web page"],
)
def test_a_hint_about_the_address_names_the_webhooks_url(reply: Reply) -> None:
    with pytest.raises(ProviderError) as caught:
        asked(reply)
    said = f"{caught.value.message} {caught.value.hint}"
    assert "the webhook's URL" in said
    assert "base_url" not in said
    assert "model" not in said
