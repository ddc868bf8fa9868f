"""Who judges and how ratings are found: assertion, then test options, command line, defaultTest options, default."""

from typing import Any

import pytest
from support.loopback import chat_reply
from support.model_server import ModelServer
from support.product import Product

LEVELS = ("assertion", "test options", "command line", "defaultTest options", "default")


def a_config(levels: tuple[str, ...], **named: dict[str, Any]) -> dict[str, Any]:
    """One test with the keys of `named` at each of its levels that is among `levels`."""

    def at(level: str) -> dict[str, Any]:
        return named[level.replace(" ", "_")] if level in levels else {}

    assertion = {
        "type": "g-eval",
        "dimension": "coherence",
        "evaluation_steps": ["Look for a thread."],
        **at("assertion"),
    }
    return {
        "defaultTest": {"options": at("defaultTest options")},
        "tests": [{"output": "A text.", "options": at("test options"), "assert": [assertion]}],
    }


@pytest.mark.parametrize("strongest", range(5), ids=LEVELS)
def test_the_nearest_number_of_samples_counts(strongest: int, product: Product) -> None:
    levels = LEVELS[strongest:]
    config = a_config(
        levels,
        assertion={"samples": 2},
        test_options={"samples": 3},
        defaultTest_options={"samples": 5},
    )
    options = ["--samples", "4"] if "command line" in levels else []
    with ModelServer() as server:
        finished = product.run(config, server, *options)

    detail = finished.verdict["detail"]
    expected = (*(("samples", count) for count in (2, 3, 4, 5)), ("logprobs", None))[strongest]
    assert (detail["estimator"], detail.get("requested")) == expected


@pytest.mark.parametrize("strongest", range(4), ids=LEVELS[:4])
def test_the_nearest_scoring_counts_even_against_samples_further_away(
    strongest: int, product: Product
) -> None:
    """`single` at one level stands against `samples` at the next."""
    single, sampled = {"scoring": "single"}, {"scoring": "samples", "samples": 3}
    names = ("assertion", "test_options", "command_line", "defaultTest_options")
    named = {name: single if index == strongest else sampled for index, name in enumerate(names)}
    on_command_line = named.pop("command_line")
    config = a_config(LEVELS[strongest:], **named)
    options = [word for key, value in on_command_line.items() for word in (f"--{key}", str(value))]
    with ModelServer() as server:
        finished = product.run(config, server, *(options if strongest <= 2 else []))

    assert finished.verdict["detail"]["estimator"] == "single"
    assert len(server.requests) == 1


def test_the_command_line_names_an_estimator_for_all_tests_that_do_not(product: Product) -> None:
    config = a_config(())
    with ModelServer() as server:
        found = [
            product.run(config, server, "--scoring", scoring).verdict["detail"]["estimator"]
            for scoring in ("single", "logprobs", "samples", "auto")
        ]

    assert found == ["single", "logprobs", "samples", "logprobs"]


def test_logprobs_demanded_of_a_judge_without_them_are_an_error_and_no_guess(product: Product) -> None:
    with ModelServer(form=lambda _: chat_reply("4")) as server:
        finished = product.run(a_config(()), server, "--scoring", "logprobs")

    assert (finished.code, finished.verdict["score"]) == (3, None)
    assert finished.verdict["error"]["message"].startswith("the judge gives no token probabilities")
    assert "scoring: auto" in finished.verdict["error"]["hint"]


@pytest.mark.parametrize("strongest", range(5), ids=LEVELS)
def test_the_nearest_judge_judges(strongest: int, product: Product) -> None:
    levels = LEVELS[strongest:]
    config = a_config(
        levels,
        assertion={"provider": "openai:of-the-assertion"},
        test_options={"provider": "openai:of-the-test"},
        defaultTest_options={"provider": "openai:of-the-default-test"},
    )
    options = ["--grader", "openai:of-the-command-line"] if "command line" in levels else []
    with ModelServer() as server:
        finished = product.run(config, server, *options)

    names = ("of-the-assertion", "of-the-test", "of-the-command-line", "of-the-default-test", "gpt-4.1")
    assert {request.json["model"] for request in server.requests} == {names[strongest]}
    assert finished.verdict["detail"]["judge"] == f"openai:{names[strongest]}"


def test_the_summary_says_where_the_grader_did_not_apply(product: Product) -> None:
    own = {"type": "g-eval", "dimension": "fluency", "provider": "openai:own", "explain": "never"}
    config = {
        "defaultTest": {"options": {"provider": "openai:default"}},
        "tests": [
            {"output": "One.", "assert": [own]},
            {"output": "Two.", "assert": [{"type": "g-eval", "dimension": "fluency"}]},
            {
                "output": "Three.",
                "options": {"provider": "openai:own"},
                "assert": [{"type": "g-eval", "dimension": "fluency"}],
            },
        ],
    }
    with ModelServer() as server:
        with_grader = product.run(config, server, "--grader", "openai:named")
        without = product.run(config, server)

    note = "--grader did not apply to 2 assertions, which name their own judge"
    assert with_grader.results["run"]["warnings"] == [note]
    assert note in with_grader.stdout
    assert [one["detail"]["judge"] for one in with_grader.verdicts] == [
        "openai:own",
        "openai:named",
        "openai:own",
    ]
    assert without.results["run"]["warnings"] == []


def test_a_model_that_judges_itself_is_noted(product: Product) -> None:
    config = {
        "prompts": ["Say something."],
        "providers": ["openai:gpt-4.1"],
        "tests": [{"assert": [{"type": "g-eval", "dimension": "fluency"}]}],
    }
    with ModelServer() as server:
        finished = product.run(config, server)

    note = "openai:gpt-4.1 judges its own answers; models tend to favour themselves"
    assert finished.results["run"]["warnings"] == [note]
    assert "judges its own answers" in finished.stdout
