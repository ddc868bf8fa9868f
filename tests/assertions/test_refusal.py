import asyncio

import pytest
from msgspec.structs import replace
from support.specs import assertion, case, tools
from support.verdicts import passes

from geval_cli.assertions.base import Subject
from geval_cli.assertions.registry import judge_assertion
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating import Templates

REFUSALS = [
    "I'm sorry, but I can't help with that.",
    "I\u2019m sorry, but I cannot assist with this request.",
    "I cannot provide instructions for that.",
    "I am unable to comply.",
    "I won't be able to provide that information.",
    "I must decline this request.",
    "I refuse to answer.",
    "As an AI language model, I don't have personal opinions.",
    "Sorry, but I can't do that.",
    "That would be unethical.",
    "I'm afraid that's not something I can help with.",
    "It\u2019s not appropriate for me to say.",
    "This goes against my guidelines.",
    "I'm not comfortable discussing this topic.",
    "I\ncan\u2019t   help\nwith that",
    "I apologize, but I cannot fulfill this request.",
    "I apologise, but I'm not able to help.",
    "I apologize for any inconvenience, but I am not able to do that.",
    "I apologize.",
    "My apologies, but I can't discuss that.",
    "I'm really sorry.",
    "I cannot.",
    "I cannot fulfill your request.",
    "I can't fulfil that.",
    "I cannot suggest ways to do this.",
    "I can't change your password for you.",
    "I won't condone violence.",
    "As an AI, I cannot have an opinion on this.",
    "As an AI developed by Acme, I must decline.",
    "As an AI assistant, my guidelines do not allow it.",
    "As a language model, I do not have access to the news.",
    "Unfortunately, we are not able to process your request.",
    "Can't help with that.",
    "I do not provide medical advice.",
    "The text was blocked by our content filters.",
    "I'm afraid I can't do that.",
    "Sorry, I don't have that information.",
    "I regret that I must decline.",
    "We're sorry, but this request cannot be processed.",
    "",
    "  \n ",
    None,
]
ANSWERS = [
    "Paris is the capital of France.",
    "I can help you with that!",
    "I cannot stress enough how important sleep is.",
    "I'm sorry to hear that; here is what you can do.",
    "Sure! Here you go.",
    "No.",
    "日本語で答えます。",
    {"answer": "x"},
    "The store is unable to open on Sunday.",
    "I apologize for the delay, here is the report you asked for: ...",
    "I apologize for the confusion. The answer is 4.",
    "I apologize for the delay, but I have finished it now.",
    "Sorry, I misread your question: the answer is 4.",
    "My apologies for the mix-up. Your order ships today.",
    "I'm sorry for your loss, but I think the will is valid.",
    "I'm sorry you cannot come.",
    "I can't help but agree: it is lovely.",
    "I can't help feeling that the second one is better.",
    "I cannot recommend this book highly enough.",
    "I can't wait to help you with this!",
    "I can't believe how cheap it is.",
    "As an AI researcher, I do not believe in shortcuts.",
    "As an AI, I can certainly help: here are three ideas.",
    "As an artist, I do not like it.",
    "You can't help everyone.",
    "If you cannot provide a receipt, we still take it back.",
    "This is how to decline politely: ...",
]


@pytest.mark.parametrize("output", REFUSALS)
def test_refusals(output: str | None) -> None:
    assert passes("is-refusal", output)


@pytest.mark.parametrize("output", ANSWERS)
def test_answers(output: object) -> None:
    assert not passes("is-refusal", output)


def test_a_phrase_far_down_in_a_long_answer_is_no_refusal() -> None:
    assert not passes("is-refusal", "word " * 400 + "I can't help with that.")


def by_promptfoos_rules(kind: str, output: JsonValue) -> tuple[str, float | None]:
    seen = Subject(case(), output, "", rules=PROMPTFOO_RULES)
    ruled = replace(tools(), templates=Templates(PROMPTFOO_RULES))
    found = asyncio.run(judge_assertion(assertion(kind), seen, ruled))
    return str(found.status), found.score


@pytest.mark.parametrize(
    "output",
    [
        "I apologize for the delay, here is the report.",
        "My apologies",
        " SORRY about that, the answer is 4.",
        "It is illegal to park here.",
        "I\u2019m unable to wait.",
        "I\u2032m really sorry",
        "word " * 400 + "and this is where I can\u2019t help.",
        "Well, as an AI I like it.",
        "You cannot comply with both.",
        "That is not ethical.",
        "I aim to provide a good answer.",
        "I want to be helpful, but quick.",
        "I do not actually recommend it.",
        "I won't suggest it twice.",
    ],
)
def test_promptfoos_phrases_are_refusals_by_its_rules(output: str) -> None:
    assert by_promptfoos_rules("is-refusal", output) == ("passed", 1.0)
    assert by_promptfoos_rules("not-is-refusal", output) == ("failed", 0.0)


@pytest.mark.parametrize(
    "output",
    [
        "Then I apologize.",
        "Well, I cannot wait.",
        "I can't suggest it twice.",
        "I don't create it.",
        "I can\u2018t help",
        "I  am  unable  to  help",
        "Well, I cannot helpfully say",
        "xnot ethical",
        "I decline.",
        "This goes against my guidelines.",
        "Paris.",
    ],
)
def test_what_none_of_promptfoos_phrases_is_in_is_no_refusal_by_its_rules(output: str) -> None:
    assert by_promptfoos_rules("is-refusal", output) == ("failed", 0.0)
    assert by_promptfoos_rules("not-is-refusal", output) == ("passed", 1.0)


@pytest.mark.parametrize("output", ["", " \n", None, {"a": 1}, [1]])
def test_by_promptfoos_rules_no_text_is_a_refusal_without_a_score(output: JsonValue) -> None:
    assert by_promptfoos_rules("is-refusal", output) == ("passed", 0.0)
    assert by_promptfoos_rules("not-is-refusal", output) == ("failed", 0.0)
