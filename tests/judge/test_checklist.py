"""Checklists: what is read from replies, which quotations count, and what score comes of it."""

import asyncio
import json
import math

import pytest
from msgspec.structs import replace
from support.scripted_judge import ScriptedJudge, prompt_of, reply

from geval_cli.errors import JudgeError, JudgeParseError
from geval_cli.extras.graded.checklists import checklist_score, is_quoted, parse_checklist
from geval_cli.judge.grading import grade, missed_required, steps_needed
from geval_cli.judge.metric import SHARE_RANGE, ChecklistItem, JudgedCase, Metric
from geval_cli.records import Choice, ModelResponse, Purpose, Status, TokenAlternative, TokenLogprob

OUTPUT = "You will get your refund of **5 euros**\nwithin three days."
CASE = JudgedCase(actual_output=OUTPUT, input="When do I get my refund?")
ITEMS = (ChecklistItem("Names the amount"), ChecklistItem("Says when"), ChecklistItem("Apologises"))
METRIC = Metric("Refund", checklist=ITEMS, evaluation_steps=(), score_range=SHARE_RANGE)


def answer(word, evidence="", reason="Because."):
    return {"reason": reason, "evidence": evidence, "answer": word}


def reply_with(*answers):
    return json.dumps({str(number): item for number, item in enumerate(answers, 1)})


AMOUNT, TIME, NO = answer("yes", "refund of 5 euros"), answer("yes", "within three days"), answer("no")
MADE_UP = answer("yes", "we are sorry")


def run(judge, metric=METRIC, case=CASE):
    return asyncio.run(grade(metric, case, judge))


def says(*replies):
    left = list(replies)
    return ScriptedJudge(lambda _: left.pop(0) if len(left) > 1 else left[0])


def items_of(found):
    return found.detail["checklist"]


# -- reading ----------------------------------------------------------------------------------------------------

TEXTS = ["Names the amount", "Says when"]
READABLE = {
    "the form asked for": '{"1": {"reason": "a", "evidence": "5", "answer": "yes"}, "2": {"answer": "no"}}',
    "words alone": '{"1": "Yes.", "2": "no"}',
    "truth values": '{"1": {"answer": true}, "2": {"answer": false}}',
    "a fence and prose": 'Here it is:\n```json\n{"1": "yes", "2": "no",}\n```\nI hope this helps.',
    "keys in words": '{"Item 1": "yes", "item_2": "no"}',
    "the items as keys": '{"names the amount": {"answer": "yes"}, "Says when?": {"answer": "no"}}',
    "inside another object": '{"checklist": {"1": {"answer": "yes"}, "2": {"answer": "no"}}}',
    "a list with numbers": '{"items": [{"number": 2, "answer": "no"}, {"number": 1, "answer": "yes"}]}',
    "a bare list with numbers": '[{"item": "2", "met": "no"}, {"item": 1, "met": "yes"}]',
    "a list with the items": '[{"item": "Says when", "answer": "no"}, {"item": "Names the amount", "answer": "yes"}]',
    "a bare list in order": '[{"answer": "yes"}, {"answer": "no"}]',
    "thoughts first": '<think>{"1": "no", "2": "yes"}</think>{"1": "yes", "2": "no"}',
    "the same twice": '{"1": "yes", "2": "no"}\n\nAgain: {"1": "yes", "2": "no"}',
    "line breaks in a text": '{"1": {"evidence": "5\neuros", "answer": "yes"}, "2": {"answer": "no"}}',
    "an example first": 'For example {"1": "no", "2": "no"} would be it. My answer: {"1": "yes", "2": "no"}',
    "no end": '{"1": {"answer": "yes"}, "2": {"answer": "no"}',
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_replies_are_read_however_they_are_wrapped(text):
    found = parse_checklist(text, TEXTS)
    assert [item.is_yes for item in found] == [True, False]
    for item, words in zip(found, ({"yes", "true"}, {"no", "false"}), strict=True):
        assert text[item.start : item.end].strip(". \\").lower() in words


UNREADABLE = {
    "": "empty",
    "Both items are met.": "no answer to the checklist",
    '{"1": "yes"}': "does not answer item 2",
    '{"2": {"answer": "no"}, "3": {"answer": "yes"}}': "does not answer item 1",
    '{"1": "yes", "2": "partly"}': "does not answer item 2",
    '{"1": {"answer": <"yes" or "no">}, "2": {"answer": <"yes" or "no">}}': "no answer to the checklist",
    '{"1": "yes", "2": "no"} or rather {"1": "no", "2": "no"}': "both yes and no to item 1",
    '{"1": "yes", "2": "no"}\n\nCorrection: 2 is met, too.': "retracts its verdict",
    '{"1": {"answer": "yes", "met": false}, "2": "no"}': "does not answer item 1",
    '{"1": {"answer": "yes", "answer": "no"}, "2": "no"}': "does not answer item 1",
    '[{"answer": "yes"}]': "no answer to the checklist",
    '{"1": {"answer": "yes"}, "2": {"evidence": "three days", "ans': "does not answer item 2",
    '{"1": {"reason": "x"': "no answer to the checklist",
    '{"score": 7}': "no answer to the checklist",
}


@pytest.mark.parametrize(("text", "problem"), UNREADABLE.items())
def test_a_reply_that_leaves_an_item_open_is_not_read(text, problem):
    with pytest.raises(JudgeParseError) as caught:
        parse_checklist(text, TEXTS)
    assert problem in caught.value.message


def test_reading_takes_time_in_proportion_to_the_reply():
    items = [f"Item {number}" for number in range(50)]
    text = reply_with(*[answer("yes", "{[" * 2_000)] * 50)
    assert len(parse_checklist(text, items)) == 50


# -- evidence ---------------------------------------------------------------------------------------------------

QUOTED = [
    ("refund of **5 euros**", True),
    ("refund of 5 euros", True),
    ("5  euros\n within three\tdays", True),
    ('"5 euros within three days."', True),
    ("You WILL get", True),
    ("You will get ... within three days", True),
    ("You will get […] three days", True),
    ("within three days ... You will get", False),
    ("refund of 6 euros", False),
    ("within three weeks", False),
    ("", False),
    ("  ", False),
    ('""', False),
    ("...", False),
]


@pytest.mark.parametrize(("evidence", "is_there"), QUOTED)
def test_words_count_as_quoted_whatever_white_space_and_emphasis_they_have(evidence, is_there):
    assert is_quoted(evidence, OUTPUT) is is_there


@pytest.mark.parametrize(
    ("evidence", "output"),
    [
        ("It's here", "It\u2019s here"),
        ("caf\u00e9", "The cafe\u0301 is open"),
        ("\u4e94\u6b27\u5143", "\u60a8\u5c06\u83b7\u5f97\u4e94\u6b27\u5143"),
        ("\U0001f389", "Done \U0001f389"),
        ("!", "Done!"),
        ("... and more", "a, b ... and more"),
    ],
)
def test_words_are_found_in_other_writing(evidence, output):
    assert is_quoted(evidence, output)


# -- from answers to a verdict ----------------------------------------------------------------------------------


def test_the_score_is_the_share_of_yes():
    judge = says(reply_with(AMOUNT, TIME, NO))
    found = run(judge)

    assert (found.status, found.score, found.estimate.estimator) == (
        Status.PASSED,
        pytest.approx(2 / 3),
        "single",
    )
    assert [(item["met"], item["evidence_found"]) for item in items_of(found)] == [
        (True, True),
        (True, True),
        (False, None),
    ]
    assert found.reason == "2 of 3 items met; not met: Apologises"
    assert found.estimate.fallback is not None
    assert len(judge.requests) == 1
    prompt = prompt_of(judge.requests[0])
    assert "1. Names the amount\n2. Says when\n3. Apologises" in prompt
    assert prompt.index("3. Apologises") < prompt.index(OUTPUT)
    assert judge.requests[0].purpose is Purpose.RATING
    assert list(judge.requests[0].response_schema["properties"]) == ["1", "2", "3"]


VERDICTS = [
    # weights, required, threshold, strict; the score of (yes, yes, no) and whether it passes
    ((1, 1, 2), (), 0.5, False, 0.5, True),
    ((1, 1, 2), (), 0.51, False, 0.5, False),
    ((3, 1, 0), (), 1.0, False, 1.0, True),
    ((3, 1, 0), (2,), 0.0, False, 1.0, False),
    ((1, 1, 1), (0, 1), 0.6, False, 2 / 3, True),
    ((1, 1, 1), (2,), 0.0, False, 2 / 3, False),
    ((1, 1, 1), (), 0.1, True, 0.0, False),
]


@pytest.mark.parametrize(("weights", "required", "threshold", "strict", "score", "passes"), VERDICTS)
def test_weights_and_required_items_decide(weights, required, threshold, strict, score, passes):
    items = tuple(
        replace(item, weight=weight, required=number in required)
        for number, (item, weight) in enumerate(zip(ITEMS, weights, strict=True))
    )
    metric = replace(METRIC, checklist=items, threshold=threshold, strict_mode=strict)
    found = run(says(reply_with(AMOUNT, TIME, NO)), metric)
    assert (found.score, found.status is Status.PASSED) == (pytest.approx(score), passes)
    assert missed_required(found.detail) == (["Apologises"] if 2 in required else [])


def test_a_yes_without_words_of_the_output_does_not_count():
    found = run(says(reply_with(AMOUNT, MADE_UP, answer("yes"))))
    assert found.score == pytest.approx(1 / 3)
    assert [(item["answer"], item["met"], item["evidence_found"]) for item in items_of(found)] == [
        ("yes", True, True),
        ("yes", False, False),
        ("yes", False, False),
    ]
    assert (
        "Says when (the quoted words are not in the output); Apologises (nothing is quoted)" in found.reason
    )


def test_an_item_about_what_is_absent_needs_no_words():
    items = (*ITEMS[:2], replace(ITEMS[2], text="Names no rival", evidence=False))
    judge = says(reply_with(AMOUNT, NO, answer("yes")))
    found = run(judge, replace(METRIC, checklist=items))
    assert found.score == pytest.approx(2 / 3)
    assert "3. Names no rival (nothing to quote)" in prompt_of(judge.requests[0])


def test_an_empty_output_has_nothing_to_quote():
    found = run(says(reply_with(AMOUNT, TIME, NO)), case=JudgedCase(actual_output=""))
    assert found.score == 0


def test_an_output_that_is_data_is_quoted_as_the_judge_saw_it():
    case = JudgedCase(actual_output={"amount": 5})
    found = run(says(reply_with(answer("yes", '"amount": 5'), NO, NO)), case=case)
    assert items_of(found)[0]["met"]


def test_huge_weights_make_no_infinite_score():
    items = [replace(item, weight=1e308) for item in ITEMS]
    assert checklist_score(items, [1, 1, 0]) == pytest.approx(2 / 3)


def test_no_steps_are_written_for_a_checklist():
    assert list(steps_needed(METRIC, CASE)) == []


# -- token probabilities ----------------------------------------------------------------------------------------


def weighed(*answers):
    """A reply whose answers have these probabilities: (evidence, {word: share}), the first word is the chosen one."""
    tokens, text = [TokenLogprob("{", 0.0)], "{"
    for number, (evidence, shares) in enumerate(answers, 1):
        before = (
            f'{", " if number > 1 else ""}"{number}": {{"reason": "no", "evidence": "{evidence}", "answer": "'
        )
        chosen = next(iter(shares))
        others = tuple(TokenAlternative(word, math.log(share)) for word, share in shares.items())
        tokens += [TokenLogprob(before, 0.0), TokenLogprob(chosen, math.log(shares[chosen]), others)]
        tokens.append(TokenLogprob('"}', 0.0))
        text += before + chosen + '"}'
    tokens.append(TokenLogprob("}", 0.0))
    return ModelResponse((Choice(text + "}", "stop", tuple(tokens)),))


def test_each_yes_counts_by_its_probability_at_its_own_place():
    response = weighed(
        ("5 euros", {"yes": 0.9, "no": 0.1}),
        ("three days", {"yes": 0.6, "no": 0.2, "maybe": 0.2}),
        ("", {"no": 0.7, "yes": 0.3}),
    )
    found = run(says(response))
    assert found.estimate.estimator == "logprobs"
    assert [item["p_yes"] for item in items_of(found)] == pytest.approx([0.9, 0.75, 0.3])
    assert found.score == pytest.approx((0.9 + 0.75 + 0.3) / 3)
    assert [item["met"] for item in items_of(found)] == [True, True, False]
    assert found.estimate.coverage == pytest.approx(0.8)
    assert found.estimate.fallback is None


def test_no_probability_makes_up_for_evidence_that_is_not_there():
    shares = {"yes": 0.9, "no": 0.1}
    found = run(says(weighed(("5 euros", shares), ("in a week", shares), ("", shares))))
    assert [item["score"] for item in items_of(found)] == pytest.approx([0.9, 0, 0])
    assert [item["p_yes"] for item in items_of(found)] == pytest.approx([0.9, 0.9, 0.9])


def unsettled():
    sure = {"yes": 0.9, "no": 0.1}
    return weighed(
        ("5 euros", sure), ("three days", {"yes": 0.3, "well": 0.7}), ("", {"no": 0.8, "yes": 0.2})
    )


def test_an_answer_that_its_probabilities_do_not_settle_is_taken_as_it_is():
    found = run(says(unsettled()))
    assert (found.estimate.estimator, found.score) == ("mixed", pytest.approx((0.9 + 1 + 0.2) / 3))
    assert items_of(found)[1]["p_yes"] is None
    assert "item 2" in found.estimate.fallback


@pytest.mark.parametrize("response", [unsettled(), reply(reply_with(AMOUNT, TIME, NO))])
def test_scoring_by_probabilities_alone_is_an_error_without_them(response):
    with pytest.raises(JudgeError, match="scoring: logprobs"):
        run(says(response), replace(METRIC, scoring="logprobs"))


# -- samples ----------------------------------------------------------------------------------------------------


def test_samples_make_a_share_of_each_item():
    texts = [
        reply_with(AMOUNT, TIME, NO),
        reply_with(AMOUNT, MADE_UP, NO),
        reply_with(AMOUNT, NO, MADE_UP),
        "I cannot say.",
    ]
    judge = ScriptedJudge(lambda _: reply(*texts))
    found = run(judge, replace(METRIC, scoring="samples", samples=4, min_valid=0.75))
    assert (found.estimate.estimator, found.estimate.valid, found.estimate.requested) == ("samples", 3, 4)
    assert [item["score"] for item in items_of(found)] == pytest.approx([1, 1 / 3, 0])
    assert [item["p_yes"] for item in items_of(found)] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [item["met"] for item in items_of(found)] == [True, False, False]
    assert found.score == pytest.approx(4 / 9)
    assert judge.requests[0].params["temperature"] == 1


def test_too_few_readable_samples_are_an_error():
    texts = [reply_with(AMOUNT, TIME, NO), "?", "?"]
    with pytest.raises(JudgeError, match="only 1 of 3 samples are valid"):
        run(ScriptedJudge(lambda _: reply(*texts)), replace(METRIC, scoring="samples", samples=3))


# -- unreadable replies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scoring", ["auto", "single"])
def test_a_reply_without_an_item_is_asked_for_once_more(scoring):
    judge = says(reply_with(AMOUNT, TIME), reply_with(AMOUNT, TIME, NO))
    assert run(judge, replace(METRIC, scoring=scoring)).score == pytest.approx(2 / 3)
    assert len(judge.requests) == 2
    assert "does not answer item 3" in prompt_of(judge.requests[1])


def test_a_second_one_is_an_error_and_no_score():
    judge = says(reply_with(AMOUNT, TIME))
    with pytest.raises(JudgeError, match="item 3 of the checklist with yes or no, even after a retry"):
        run(judge)
    assert len(judge.requests) == 2
