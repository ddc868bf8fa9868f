import json
from functools import partial

import pytest

from geval_cli.errors import JudgeError, JudgeParseError, JudgeRangeError
from geval_cli.extras.graded.checklists import parse_checklist
from geval_cli.extras.graded.verdicts import (
    JudgeDecision,
    parse_attributions,
    parse_category,
    parse_choice,
    parse_named_choice,
    parse_numbers,
    parse_plain,
    parse_rubric_verdict,
    parse_texts,
    parse_verdict_list,
    parse_winner,
    parse_yes_or_no,
)


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ('{"reason": "good", "pass": true, "score": 0.8}', JudgeDecision(True, "good", 0.8)),
        ('Sure!\n```json\n{"pass": "yes", "score": "0.5"}\n```', JudgeDecision(True, None, 0.5)),
        ('{"result": {"pass": false, "score": 0.2}}', JudgeDecision(False, None, 0.2)),
        (
            '{"pass": false, "score": 0, "reason": "No output was provided"}',
            JudgeDecision(False, "No output was provided", 0.0),
        ),
        ('<think>{"pass": true}</think>{"pass": false, "score": 0}', JudgeDecision(False, None, 0.0)),
        (
            'An example: {"pass": true, "score": 1}\nMine: {"pass": false, "score": 0}',
            JudgeDecision(False, None, 0.0),
        ),
    ],
)
def test_a_rubric_verdict_is_the_object_of_a_reply(text: str, decision: JudgeDecision) -> None:
    assert parse_rubric_verdict(text) == decision


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is fine.",
        '{"answer": 42}',
        '{"pass": true, "sco',
        "<think>hm",
        '{"pass": true}',
        '{"score": 0.2, "reason": "weak"}',
        '{"pass": true, "score": "high"}',
        '{"pass": "false", "score": 1}',
        '{"pass": true, "score": 1, "verdict": "fail"}',
        '{"pass": true, "score": 1, "error": "no output"}',
        '{"pass": false, "score": 0, "reason": "I cannot evaluate this without the source."}',
        '{"pass": false, "score": 0, "reason": "I\'m unable to judge images."}',
        '{"pass": true, "score": 1}\n\nCorrection: it fails.',
        '<submission>{"pass": true, "score": 1}</submission>',
        '> {"pass": true, "score": 1}\n\nThat is in the output.',
        'Example:\n```json\n{"pass": true, "score": 1}\n```',
        'I first thought {"pass": true, "score": 1}, but no: {"pass": false, "score": 0}',
    ],
)
def test_a_reply_without_one_clear_rubric_verdict_is_an_error(text: str) -> None:
    with pytest.raises(JudgeParseError) as caught:
        parse_rubric_verdict(text)
    assert caught.value.raw_text == text


def test_a_score_on_another_scale_is_an_error() -> None:
    with pytest.raises(JudgeRangeError, match="8"):
        parse_rubric_verdict('{"pass": true, "score": 8}')


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ('{"reason": "no doubt", "verdict": "Y"}', True),
        ('{"verdict": "no"}', False),
        ("It meets all of it.\n\nY", True),
        ("It says nothing of it. N", False),
        ("**Yes**", True),
        ("The answer is: no.", False),
        ("1. Is it short? Yes.\n2. Is it polite? No.\n\nN", False),
        ("1. Is it short? Yes.\n2. Is it polite? No.\n\nY", True),
    ],
)
def test_yes_or_no_is_read_from_json_or_the_last_word(text: str, passed: bool) -> None:
    assert parse_yes_or_no(text).passed is passed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Perhaps",
        "Anybody",
        '{"answer": "quite"} y',
        "I say yes, mostly",
        "not yes",
        "I cannot say yes",
        "It is not a yes",
        "Probably yes",
        "If complete, yes",
        "Yes, but no.",
        "Yes\nNo",
        "N\nY",
        "Criterion 1: N\nCriterion 2: Y",
        "Answer Y if so, else N",
        'The text tells me to say "yes"',
        "The text says: yes",
        "variable y",
        '{"verdict": "yes", "passed": false}',
        '{"verdict": true, "error": "there is no text"}',
        '{"verdict": "yes"}\n\nCorrection: no',
    ],
)
def test_what_is_neither_yes_nor_no_is_an_error(text: str) -> None:
    with pytest.raises(JudgeParseError):
        parse_yes_or_no(text)


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ('{"reason": "same", "category": "C"}', "C"),
        ('{"category": "(d)"}', "D"),
        ("(A) It is a subset.", "A"),
        ("B", "B"),
        ("e: differs", "E"),
    ],
)
def test_a_category_is_read_from_json_or_the_beginning(text: str, category: str) -> None:
    assert parse_category(text)[0] == category


@pytest.mark.parametrize("text", ["", "A good answer", '{"category": "Z"}', "Because"])
def test_what_is_no_category_is_an_error(text: str) -> None:
    with pytest.raises(JudgeParseError):
        parse_category(text)


def test_attributions_come_as_json_or_as_marks_in_lines() -> None:
    as_json = '{"sentences": [{"sentence": "a", "attributed": true}, {"sentence": "b", "attributed": false}]}'
    assert parse_attributions(as_json) == (True, False)
    assert parse_attributions("1. a [Attributed]\n2. b [Not Attributed]\nend") == (True, False)
    with pytest.raises(JudgeParseError):
        parse_attributions("all of it")


def test_verdicts_must_be_as_many_as_statements() -> None:
    as_json = '{"verdicts": [{"reason": "r", "verdict": "yes"}, {"reason": "r", "verdict": "no"}]}'
    assert parse_verdict_list(as_json, 2) == (True, False)
    assert parse_verdict_list("1. a. Verdict: Yes.\n2. b. Verdict: no.", 2) == (True, False)
    assert parse_verdict_list("Final verdict for each statement in order: No. Yes.", 2) == (False, True)
    with pytest.raises(JudgeParseError, match="2 verdicts where 3 were asked for"):
        parse_verdict_list(as_json, 3)


def test_texts_are_a_list_that_may_be_empty_or_lines() -> None:
    assert parse_texts('{"statements": ["a", " b "]}', "statements") == ("a", "b")
    assert parse_texts('{"statements": []}', "statements") == ()
    assert parse_texts("a\n\nb", "statements") == ("a", "b")
    for broken in ("", '{"other": ["a"]}', '{"statements": ["a", "b'):
        with pytest.raises(JudgeParseError):
            parse_texts(broken, "statements")


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "```\n{}\n```", "Here are the claims:\n\n{}"])
def test_a_list_without_its_key_is_no_text_of_its_own(around: str) -> None:
    for written, texts in (
        ('["a", "b"]', ("a", "b")),
        ("[]", ()),
        ("['a',\n 'b']", ("a", "b")),
        ("a\n b", ("a", "b")),
    ):
        assert parse_texts(around.replace("{}", written), "statements") == texts
    for broken in ('["a", "b', "[null]", '["a", 1]', '["..."]', "null"):
        with pytest.raises(JudgeParseError):
            parse_texts(around.replace("{}", broken), "statements")


@pytest.mark.parametrize(
    ("reply", "count"),
    [
        ("None", 0),
        ("N/A.", 0),
        ("No claims.", 0),
        ("There are no factual claims in the answer.", 0),
        ("The answer makes no statements.", 0),
        ("I found no claims in this answer.", 0),
        ("No claims found.", 0),
        ("No claims were made by the company.", 1),
        ("None of the shops opens on Sunday.", 1),
        ("[1] The shop opens at nine.", 1),
        ("I can\u2019t help with that.", None),
        ("I am unable to extract statements.", None),
        ("Es tut mir leid, ich kann keine Aussagen nennen.", None),
        ("Désolé, je ne peux pas vous aider.", None),
        ("抱歉,我无法提供帮助。", None),
    ],
)
def test_words_for_nothing_are_no_claim_and_a_refusal_is_no_list(reply: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(JudgeParseError):
            parse_texts(reply, "statements")
    else:
        assert len(parse_texts(reply, "statements")) == count


def test_numbers_count_once_and_must_exist() -> None:
    assert parse_numbers('{"relevant": [3, 1, 3]}', "relevant", 3) == (1, 3)
    assert parse_numbers('{"relevant": []}', "relevant", 3) == ()
    for most in range(1, 14):
        compact = json.dumps({"relevant": [*range(1, most + 1)]}, separators=(",", ":"))
        assert parse_numbers(compact, "relevant", most) == tuple(range(1, most + 1))
    for broken in ('{"relevant": [4]}', '{"relevant": [0]}', '{"relevant": ["x"]}', "1, 3"):
        with pytest.raises(JudgeParseError):
            parse_numbers(broken, "relevant", 3)


def test_a_choice_is_a_number_alone_or_in_json() -> None:
    assert parse_choice('{"reason": "funny", "best": 2}', 3) == (1, "funny")
    assert parse_choice(" 0.", 3, first=0) == (0, None)
    for broken in ("Reply 1b48: bananas", '{"best": 4}', '{"best": 1.5}', ""):
        with pytest.raises(JudgeError):
            parse_choice(broken, 3)


def test_a_plain_answer_is_what_follows_the_thoughts() -> None:
    assert parse_plain("<think>x</think>\nWhat is\n it?") == "What is it?"
    with pytest.raises(JudgeParseError):
        parse_plain("  ")


OTHER_TAGS = (
    "[Partially Attributed]",
    "(Not Attributed)",
    "[nicht belegt]",
    "**[Not** **Attributed]**",
    "is not in the context",
    "[?]",
)
WRONG_NUMBERS = ((3, 2, 1), (1, 1, 2), (1, 3, 4), (0, 2, 1))


def numbered(*numbers: int) -> str:
    return json.dumps({"verdicts": [{"statement": number, "verdict": "yes"} for number in numbers]})


def test_numbers_in_order_leave_verdicts_as_they_are() -> None:
    for numbers in ((1, 2, 3), (0, 1, 2)):
        assert parse_verdict_list(numbered(*numbers), 3) == (True, True, True)


def test_equal_sentences_count_once() -> None:
    said = [("a", True)] * 8 + [("b", False)]
    sentences = [{"sentence": text, "attributed": claim} for text, claim in said]
    assert parse_attributions(json.dumps({"sentences": sentences})) == (True, False)


@pytest.mark.parametrize(
    "tag", ["[Unattributed]", "[Not-Attributed]", "[NOT_ATTRIBUTED]", "[non attributed]"]
)
def test_spellings_of_not_attributed(tag: str) -> None:
    assert parse_attributions(f"a [Attributed]\nb {tag}") == (True, False)


@pytest.mark.parametrize(
    "reason",
    [
        "[see passage 2]",
        "(attributed to the first passage)",
        "as [1] has it",
        "[it](https://wiki.test) too",
        "[a]",
    ],
)
def test_words_in_brackets_before_a_tag_are_none(reason: str) -> None:
    for numbers in ("12", ("1.", "2)")):
        reply = f"{numbers[0]} a {reason} [Attributed]\n{numbers[1]} b {reason} [Not Attributed]"
        assert parse_attributions(reply) == (True, False)


@pytest.mark.parametrize(
    ("sentences", "is_read"),
    [(["It is red."], False), (["It is red.", "It is old."], True), (["It is red", "old", "big, too"], True)],
)
def test_a_reply_that_leaves_out_most_of_the_truth_is_none(sentences: list[str], is_read: bool) -> None:
    truth = "It is red. It is old. It is big. It costs 5.50 dollars."
    reply = json.dumps({"sentences": [{"sentence": text, "attributed": True} for text in sentences]})
    if is_read:
        assert parse_attributions(reply, truth) == (True,) * len(sentences)
    else:
        with pytest.raises(JudgeParseError, match="leaves out most"):
            parse_attributions(reply, truth)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_category, "(A), (B)"),
        (parse_category, "(A) or (C)"),
        (parse_category, "A. B."),
        (parse_category, "A - no, B."),
        (parse_category, "A) subset B) superset C) same"),
        (parse_category, "B. Actually, it is (C)."),
        (parse_category, "D'accord"),
        (parse_category, '{"category": "A) or B)"}'),
        (parse_category, '{"category": "C: no wait, D"}'),
        (parse_attributions, "1. x [Attributed] [Not Attributed]"),
        (parse_attributions, "Each line ends in [Attributed] or [Not Attributed]."),
        (parse_attributions, "I would write [Attributed] but there is no text."),
        *((parse_attributions, f"1. x [Attributed]\n2. y {tag}") for tag in OTHER_TAGS),
        *((parse_attributions, f"x [Attributed]\ny {tag}") for tag in OTHER_TAGS[:4]),
        (parse_attributions, '{"sentences": [{"sentence": "", "attributed": true}]}'),
        (parse_attributions, '{"sentences": [{"sentence": "...", "attributed": true}]}'),
        (
            parse_attributions,
            '{"sentences": [{"sentence": "x", "attributed": true}, {"sentence": "x", "attributed": false}]}',
        ),
        (
            lambda text: parse_verdict_list(text, 2),
            "verdict: yes\nverdict: not supported\nfinal verdict: yes",
        ),
        *((lambda text: parse_verdict_list(text, 3), numbered(*numbers)) for numbers in WRONG_NUMBERS),
        (lambda text: parse_texts(text, "claims"), '{"reason": "I cannot evaluate this", "claims": []}'),
        (lambda text: parse_numbers(text, "lines", 3), '{"reason": "I cannot assess this", "lines": []}'),
        (lambda text: parse_verdict_list(text, 2), "verdict: yes or no\nverdict: no"),
        (lambda text: parse_verdict_list(text, 2), "verdict: Yes/No\nverdict: Yes/No"),
        (lambda text: parse_verdict_list(text, 2), "verdict: yes?\nverdict: no"),
        (lambda text: parse_verdict_list(text, 1), '{"verdicts": [{"verdict": "yes", "passed": false}]}'),
        (lambda text: parse_texts(text, "questions"), "I'm sorry, but I can't help with that."),
        (lambda text: parse_numbers(text, "lines", 3), '{"lines": [1], "error": "cut short"}'),
        (lambda text: parse_numbers(text, "lines", 3), '{"lines": []}\n\nWait, 2 is one, too.'),
        (lambda text: parse_choice(text, 3), "1?"),
        (lambda text: parse_choice(text, 3), "-1"),
        (lambda text: parse_choice(text, 3), "1%"),
        (lambda text: parse_choice(text, 3), '{"best": 1, "error": "no outputs"}'),
    ],
)
def test_a_contradictory_or_doubted_reply_is_an_error(read, text: str) -> None:
    with pytest.raises(JudgeParseError):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"1": {"answer": "yes", "evidence": "abc"}, "2": {"answer": "yes", "evidence": "the qu',
        '{"item": 1, "answer": "yes", "evidence": "abc"}\n{"item": 2, "answer": "yes", "evidence": "the qu',
    ],
)
def test_an_item_of_a_checklist_whose_quotation_breaks_off_is_not_answered(text: str) -> None:
    with pytest.raises(JudgeParseError, match="does not answer item 2"):
        parse_checklist(text, ("Is it a?", "Is it b?"))


READERS = {
    "yes or no": (parse_yes_or_no, ('{{"reason": "{}", "answer": "no"}}', "{}\n\nN")),
    "category": (parse_category, ('{{"reason": "{}", "category": "D"}}', "(D) {}")),
    "named choice": (
        partial(parse_named_choice, names={"bad": "bad"}),
        ('{{"reason": "{}", "choice": "bad"}}',),
    ),
    "choice": (partial(parse_choice, count=2), ('{{"reason": "{}", "best": 1}}',)),
    "winner": (parse_winner, ('{{"reason": "{}", "winner": "tie"}}', "{}\nWinner: tie")),
    "checklist": (
        partial(parse_checklist, items=["a", "b"]),
        ('{{"1": {{"reason": "{0}", "answer": "no"}}, "2": {{"reason": "{0}", "answer": "no"}}}}',),
    ),
    "rubric": (parse_rubric_verdict, ('{{"reason": "{}", "pass": false, "score": 0}}',)),
}
REASONS = {
    "I cannot evaluate this.": True,
    "I'm sorry, but I can't assist with that.": True,
    "Ich kann diesen Text nicht bewerten.": True,
    "我无法评估此内容。": True,
    "I cannot rate it higher.": False,
    "It says that it cannot help.": False,
    "No output was provided.": False,
}


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, (_, forms) in READERS.items() for form in forms]
)
def test_a_verdict_beside_a_refusal_is_none(name: str, form: str) -> None:
    read, _ = READERS[name]
    refused = []
    for reason in REASONS:
        try:
            read(form.format(reason))
        except JudgeParseError as error:
            refused.append((reason, str(error)))
    assert refused == [
        (reason, "the judge's reply says that it gives no verdict")
        for reason, is_refusal in REASONS.items()
        if is_refusal
    ]


def test_an_item_that_cannot_be_judged_leaves_the_others_of_a_checklist() -> None:
    reply = (
        '{"1": {"reason": "I cannot assess it.", "answer": "no"}, "2": {"reason": "So.", "answer": "yes"}}'
    )
    assert [item.is_yes for item in parse_checklist(reply, ["a", "b"])] == [False, True]
