import re

import pytest

from geval_cli.judge.estimate import place_tokens
from geval_cli.records import TokenLogprob


def spans(tokens, text):
    return [
        (item.token.text, item.start, item.end)
        for item in place_tokens([TokenLogprob(t, 0.0) for t in tokens], text)
    ]


def test_tokens_are_placed_one_after_the_other():
    assert spans(["Score", ":", " 8"], "Score: 8") == [("Score", 0, 5), (":", 5, 6), (" 8", 6, 8)]


def test_white_space_that_the_server_stripped_does_not_shift_the_rest():
    assert spans([" 8", "."], "8.") == [(" 8", 0, 1), (".", 1, 2)]
    assert spans(["\n", "\n", "4"], "4") == [("4", 0, 1)]


def test_marks_that_are_not_in_the_text_are_left_out():
    assert spans(["<|start|>", "Score: ", "8", "<|end|>"], "Score: 8") == [("Score: ", 0, 7), ("8", 7, 8)]


@pytest.mark.parametrize(
    "pieces", [["\ufffd", "\ufffd"], ["\\xf0\\x9f", "\\x98\\x80"], ["", "", ""], ["ð", "Ł", "x"]]
)
def test_pieces_of_a_character_are_skipped_and_matching_resumes_behind_it(pieces):
    assert spans(["a ", *pieces, " ok ", "8", "}"], "a 😀 ok 8}")[-3:] == [
        (" ok ", 3, 7),
        ("8", 7, 8),
        ("}", 8, 9),
    ]


def test_raw_spelling_of_spaces_and_line_breaks_is_understood():
    assert spans(["Score:", "▁8"], "Score: 8")[-1] == ("▁8", 6, 8)
    assert spans(["Score:", "Ċ", "Ġ8"], "Score:\n 8")[-1] == ("Ġ8", 7, 9)


def test_after_a_gap_a_number_is_not_mistaken_for_an_earlier_one():
    text = '日 8 points, "score": 6}'
    tokens = ["\ufffd", "\ufffd", " ", "8", " points", ",", ' "score": ', "6", "}"]

    numbers = [item[:2] for item in spans(tokens, text) if item[0] in ("8", "6")]

    assert numbers == [("8", text.index("8")), ("6", text.index("6"))]


def test_tokens_of_another_text_are_placed_nowhere():
    assert spans(["some", "thing"], "8") == []


@pytest.mark.parametrize("mark", ["▁", "Ġ", "Ċ", " ", "\n", "\t", "▁▁"])
@pytest.mark.parametrize("text", ["4", "Score: 4", "Score:\n4", "Score:4"])
def test_a_mark_of_white_space_that_the_text_lacks_or_spells_otherwise_does_not_hide_the_score(mark, text):
    tokens = [f"{mark}4"] if text == "4" else ["Score", ":", f"{mark}4"]

    placed = spans(tokens, text)

    assert [item[0] for item in placed] == tokens
    assert text[placed[-1][1] : placed[-1][2]].strip() == "4"
    assert [item[1] for item in placed[1:]] == [item[2] for item in placed[:-1]]


def test_after_lost_tokens_one_character_alone_is_not_enough_to_go_on_from():
    # The lost tokens stand for at most four characters each, so the 8 far behind them is not this 8.
    text = "a" + "é" * 12 + "8 and the score is 8"

    assert [item[:2] for item in spans(["a", "?", "8"], text)] == [("a", 0)]
    assert spans(["a", "?", "?", "?", "8", " and"], text)[-2:] == [("8", 13, 14), (" and", 14, 18)]


def test_what_follows_lost_tokens_must_follow_in_the_text_too():
    text = "x 1 y 10"

    assert [item[:2] for item in spans(["x ", "\ufffd", "1", "0"], text)] == [("x ", 0), ("1", 6), ("0", 7)]


def test_matching_resumes_further_away_the_more_tokens_were_lost():
    text = "一二三四五六七八九十 ok 8}"
    assert spans(["\ufffd"] * 5 + [" ok ", "8", "}"], text) == [
        (" ok ", 10, 14),
        ("8", 14, 15),
        ("}", 15, 16),
    ]


@pytest.mark.parametrize(("missing", "is_found"), [("é", True), ("日本語の", True), ("日本語のも", False)])
def test_a_few_characters_may_have_no_token_at_all(missing, is_found):
    placed = spans(["a", " ok", "}"], f"a{missing} ok}}")

    start = 1 + len(missing)
    assert placed[1:] == (
        [(" ok", start, start + 3), ("}", start + 3, start + 4)]
        if is_found
        else [("}", start + 3, start + 4)]
    )


def test_once_found_again_tokens_may_differ_in_white_space_as_before():
    assert spans(["\ufffd", "ok ", "then", " 8"], "日 ok then\n8")[-2:] == [("then", 5, 9), (" 8", 9, 11)]


def test_matching_resumes_where_six_tokens_follow_one_another_and_not_where_five_do():
    digits = list("123456")
    assert spans(["\ufffd", "\ufffd", *digits, " 8"], "12345!123456 8") == [
        *((digit, 6 + index, 7 + index) for index, digit in enumerate(digits)),
        (" 8", 12, 14),
    ]


REPLIES = [
    "4",
    "- Coherence: 4",
    "Score: 4",
    '{"score": 4}',
    '{"reason": "clear", "score": 4}',
    "\n\nScore: 4\n",
]
THOUGHTS = [
    "<think>\n4\n</think>\n\n",
    "<think>\nI would say 4 or so, for Coherence: 4 is too much.\n</think>\n\n",
    'Score: 4? No, {"score": 4} is too much: 4, 4, 4.</think>',
    '{"reason": "clear", "score": 2}? Not quite. Score: 2.</think>',
    "- Coherence: 4\n</think>\n\n",
]


@pytest.mark.parametrize("thoughts", THOUGHTS)
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("end", [[], ["<|im_end|>"], ["", "</s>"]])
def test_numbers_in_thoughts_that_the_server_reports_too_are_not_the_score(thoughts, reply, end):
    pieces = [re.findall(r"\s?\w+|\W", text) for text in (thoughts, reply)]
    tokens = [
        TokenLogprob(text, where) for where, texts in zip((-1.0, -2.0), pieces, strict=True) for text in texts
    ]
    text = reply.strip()

    placed = place_tokens([*tokens, *(TokenLogprob(piece, -3.0) for piece in end)], text)

    assert {item.token.logprob for item in placed} == {-2.0}
    assert [text[item.start : item.end] for item in placed if "4" in item.token.text] in (["4"], [" 4"])
