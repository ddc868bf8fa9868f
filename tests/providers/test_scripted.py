import math
from pathlib import Path

import pytest
from support.calls import answer, ask, provider, run

from geval_cli.errors import (
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    UnsupportedParameterError,
)
from geval_cli.providers.registry import check_provider
from geval_cli.records import Message, ModelRequest, ModelResponse
from geval_cli.specs.base import ProviderSpec


def reply(tmp_path: Path, script: str, *requests: ModelRequest) -> list[ModelResponse]:
    (tmp_path / "replies.yaml").write_text(script, encoding="utf-8")
    return run(answer(provider("scripted:replies.yaml", base_dir=tmp_path), *requests))


SCRIPT = """
- match: capital of France
  reply: Paris
- match: 'rate \\d+'
  replies: [one, two, three]
- reply: I do not know.
- match: last
  reply: not the last
"""


def test_the_first_entry_that_fits_answers_and_one_without_match_comes_last(tmp_path: Path) -> None:
    asked = ("What is the capital of France?", "rate 7", "the last", "else")
    responses = reply(tmp_path, SCRIPT, *[ask(text) for text in asked])
    assert [item.text for item in responses] == ["Paris", "one", "not the last", "I do not know."]


def test_replies_follow_sample_and_repeat_not_the_order_of_calls(tmp_path: Path) -> None:
    requests = (
        ask("rate 7", sample_indexes=(3, 1)),
        ask("rate 7", repeat_index=2),
        ask("rate 7", repeat_index=0),
    )
    responses = reply(tmp_path, SCRIPT, *requests)
    texts = [[choice.text for choice in item.choices] for item in responses]
    assert texts == [["one", "two"], ["three"], ["one"]]


def test_all_messages_are_searched(tmp_path: Path) -> None:
    request = ModelRequest((Message("system", "capital of France"), Message("user", "?")))
    assert reply(tmp_path, SCRIPT, request)[0].text == "Paris"


def test_a_mapping_with_a_default_works_too(tmp_path: Path) -> None:
    script = "replies:\n  - match: a\n    reply: A\ndefault: Z\n"
    responses = reply(tmp_path, script, ask("a"), ask("b"))
    assert [item.text for item in responses] == ["A", "Z"]


def test_probabilities_stand_at_the_last_place_of_the_token(tmp_path: Path) -> None:
    script = """
- reply: '{"reason": "8 of 9", "score": 8}'
  logprobs: {"8": 0.75, "9": 0.25}
"""
    [with_logprobs, without] = reply(tmp_path, script, ask(want_logprobs=True), ask())
    tokens = with_logprobs.choices[0].token_logprobs or ()
    assert [token.text for token in tokens] == ['{"reason": "8 of 9", "score": ', "8", "}"]
    rated = {item.text: math.exp(item.logprob) for item in tokens[1].alternatives}
    assert rated == pytest.approx({"8": 0.75, "9": 0.25})
    assert without.choices[0].token_logprobs is None


def test_probabilities_alone_answer_the_likeliest_token(tmp_path: Path) -> None:
    [response] = reply(tmp_path, "- logprobs: {4: 0.2, 5: 0.8}\n", ask(want_logprobs=True))
    assert response.text == "5"


def test_missing_probabilities_are_reported_as_dropped(tmp_path: Path) -> None:
    assert reply(tmp_path, "- reply: x\n", ask(want_logprobs=True))[0].dropped == ("logprobs",)


def test_errors_are_classified_like_a_servers(tmp_path: Path) -> None:
    with pytest.raises(ProviderRateLimitError) as limited:
        reply(tmp_path, "- error: {status: 429, message: slow, retry_after_s: 3}\n", ask())
    assert limited.value.retry_after_s == 3
    with pytest.raises(UnsupportedParameterError) as unsupported:
        reply(
            tmp_path,
            "- error: {status: 400, message: logprobs are not supported}\n",
            ask(want_logprobs=True),
        )
    assert unsupported.value.parameter == "logprobs"


def test_a_prompt_without_a_reply_is_an_error_that_shows_it(tmp_path: Path) -> None:
    with pytest.raises(ProviderRequestError, match="'b'") as caught:
        reply(tmp_path, "- {match: a, reply: A}\n", ask("b"))
    assert "default" in caught.value.hint


def test_the_latency_is_reported(tmp_path: Path) -> None:
    assert reply(tmp_path, "- {reply: x, latency_ms: 1}\n", ask())[0].latency_ms == 1


@pytest.mark.parametrize(
    ("script", "message", "line"),
    [
        ("- mach: a\n  reply: x\n", "unknown key `mach`", 1),
        ("- match: a\n", "the entry has no reply", 1),
        ("- match: a\n  replies: []\n", "`replies` must be a list", 2),
        ("- reply: x\n  logprobs: {y: 0.5}\n", "none of these tokens is in the reply 'x'", 2),
        ("- reply: x\n  logprobs: {x: 0}\n", "`logprobs` must map tokens", 2),
        ("- error: {status: 200}\n", "`status` must be an HTTP error status", 1),
        ("- just text\n", "each reply must be a mapping", 1),
        ("- reply: x\n  latency_ms: -1\n", "`latency_ms` must be a number", 2),
        ("- calls: [{args: {}}]\n", "`calls` must be a list of {name, args}", 1),
        ("- reply: [\n", "", 2),
    ],
)
def test_a_broken_file_is_a_problem_with_its_place(
    tmp_path: Path, script: str, message: str, line: int
) -> None:
    (tmp_path / "r.yaml").write_text(script, encoding="utf-8")
    [problem] = check_provider(ProviderSpec(id="scripted:r.yaml"), env={}, base_dir=tmp_path)
    assert message in problem.message
    assert problem.location is not None
    assert (problem.location.file, problem.location.line) == ("r.yaml", line)


def test_all_problems_of_a_file_are_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("- reply: x\n  replies: [y]\n- match: z\n", encoding="utf-8")
    found = check_provider(ProviderSpec(id="scripted:r.yaml"), env={}, base_dir=tmp_path)
    assert len(found) == 2


def test_every_scripted_status_raises(tmp_path: Path) -> None:
    for status in (400, 401, 404, 429, 500, 503):
        with pytest.raises(ProviderError) as caught:
            reply(tmp_path, f"- error: {{status: {status}}}\n", ask())
        assert caught.value.status == status
