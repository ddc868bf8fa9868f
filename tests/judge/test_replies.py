"""Replies of judges, written for these tests: a rating is read as a careful reader reads it, or not at all."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geval_cli.errors import JudgeError, JudgeParseError, JudgeRangeError
from geval_cli.judge.replies.parse import parse_form_rating, parse_rating

FILES = sorted((Path(__file__).parent / "replies").glob("*.yaml"))
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # each process of the tests reads all of it
GROUPS = [group for file in FILES for group in yaml.load(file.read_text(encoding="utf-8"), LOADER)]
ROWS = [(group, reply, wanted) for group in GROUPS for reply, wanted in group["rows"]]
LEAST_READ = 0.97


def read(reply, group):
    low, high = group["range"]
    how = {"score_range": (low, high), "is_cut_off": group.get("finish_reason") == "length"}
    if "name" in group:
        return parse_form_rating(reply, name=group["name"], **how)
    return parse_rating(reply, **how)


def rating_or_none(reply, group):
    try:
        return read(reply, group).rating
    except JudgeError:
        return None


@pytest.mark.parametrize(
    ("group", "reply", "wanted"), ROWS, ids=[f"{row[0]['about']}: {row[1]}"[:90] for row in ROWS]
)
def test_a_reply_gives_its_rating_or_an_error(group, reply, wanted):
    if isinstance(wanted, str):
        kind = {"error": JudgeParseError, "range": JudgeRangeError}[wanted]
        with pytest.raises(kind) as caught:
            read(reply, group)
        assert caught.value.raw_text == reply
        return
    parsed = read(reply, group)
    assert parsed.rating == wanted
    assert value_of(reply[parsed.score_start : parsed.score_end]) == wanted


def value_of(spelling):
    words = {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "seven": 7, "eight": 8, "true": 1}
    spelling = spelling.strip("[]\"' ").lower().replace(",", ".").replace("\u2212", "-")
    return words[spelling] if spelling in words else float(spelling)


def test_the_corpus_is_large_and_nearly_all_plain_replies_in_it_are_read():
    plain = [row for row in ROWS if row[0].get("is_plain")]
    read_right = [reply for group, reply, wanted in plain if rating_or_none(reply, group) == wanted]

    assert len(ROWS) >= 300
    assert len(plain) >= 150
    assert len(read_right) >= LEAST_READ * len(plain)


@pytest.mark.parametrize("group", GROUPS, ids=[group["about"] for group in GROUPS])
def test_a_polite_opening_and_other_line_ends_make_no_wrong_rating(group):
    wrong = [
        (variant, rating)
        for reply, wanted in group["rows"]
        for variant in (
            f"Sure, I can help with that.\n\n{reply}",
            reply.replace("\n", "\r\n"),
            f"\n\n{reply}",
        )
        for rating in [rating_or_none(variant, group)]
        if rating not in (None if isinstance(wanted, str) else wanted, None)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("I give it a 4. " * 4_000, None),
        ("\n" * 60_000 + "Score: 4", 4),
        ("<think>\n" + "Maybe a 3. " * 6_000 + "</think>\nScore: 4", 4),
        ('{"score": 4}\n' + "It is good. " * 6_000, 4),
        ("It is good. " * 6_000 + '\n{"score": 4}', 4),
    ],
    ids=["prose", "lines", "thoughts", "object first", "object last"],
)
def test_prose_without_end_is_no_verdict_and_what_stands_in_an_object_is_one(reply, wanted):
    assert rating_or_none(reply, {"range": [1, 5]}) == wanted


# -- generated --------------------------------------------------------------------------------------------------

VERDICTS = (
    "Final score: {}",
    "**Final score:** {}",
    "Score: {}/10",
    "Rating: {} out of 10.",
    '{{"reason": "It is as asked.", "score": {}}}',
    "I give it a {}.",
    "I would rate this output a {} out of 10.",
    "So it scores a {}.",
    "Therefore, the score is {}.",
    "<score>{}</score>",
)
DISTRACTORS = (
    "1. The year is right.\n{}. The city is wrong.",
    'The output itself claims "Score: {}".',
    "The output says that it deserves a {}.",
    "The output asks me to give it a {}.",
    "I cannot give it a {}.",
    "It does not deserve a score of {}.",
    "A score of {} is not justified.",
    "It falls short of a {}.",
    "It could be a {} with more sources.",
    "If it named the year, it would get a {}.",
    "It would have been a {}.",
    "The score would be {} if it had a source.",
    "A score of {} would mean that all is right.",
    "It names {} of the cities.",
    "It has {} paragraphs.",
    "Critics gave the film {} stars.",
    "0 (worst) to 10 (best).",
    "It would be {}/100 elsewhere.",
    "To get a {}, it must name the year.",
    "<thinking>Score: {}</thinking>",
    'For example: {{"score": {}}}',
    'The output tried {{"score": {}}} itself.',
)


@st.composite
def replies(draw):
    rating, other = draw(st.permutations(range(11)))[:2]
    lines = [draw(st.sampled_from(DISTRACTORS)).format(other) for _ in range(draw(st.integers(1, 3)))]
    lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(VERDICTS)).format(rating))
    return draw(st.sampled_from(["\n\n", "\n", " "])).join(lines), rating


@settings(max_examples=1500, deadline=None)
@given(replies())
@example(("Final score: 4 out of 10. Minor errors prevent it from a perfect score of 10.", 4))
def test_no_distractor_is_ever_taken_for_the_verdict(made):
    reply, rating = made

    assert rating_or_none(reply, {"range": [0, 10]}) in (rating, None)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(DISTRACTORS), min_size=1, max_size=3), st.integers(0, 10))
def test_distractors_alone_are_no_verdict(distractors, number):
    reply = "\n".join(line.format(number) for line in distractors)

    assert rating_or_none(reply, {"range": [0, 10]}) is None


@settings(max_examples=300, deadline=None)
@given(replies(), st.integers(0, 200))
def test_a_reply_that_a_limit_cuts_off_gives_its_rating_or_none(made, length):
    reply, rating = made

    assert rating_or_none(reply[:length], {"range": [0, 10], "finish_reason": "length"}) in (rating, None)


BESIDE_THE_VERDICT = (
    "It is better than a {} overall.",
    "It is at least a {}.",
    "Not a {}.",
    "Anything above {} would be too much.",
    "A {} would need a source.",
    "I was tempted to give it a {}.",
    "Some would give it a {}.",
    "Others may rate it {}.",
    "It deserves more than a {}.",
    "A full {} is reserved for flawless texts.",
    "For a {}, it would have to cite.",
    "The initial score was {}.",
    "Previously I gave it a {}.",
    "My first impression was a {}.",
    "The expected score is {}.",
    "The average rating is {}.",
    "You must give it a {}.",
    "In example {}, the score was high.",
    "The score ranges up to {}.",
    "The maximum is {}.",
    "I considered a score of {}.",
    "I considered giving it a {}.",
    "A rating of {} is for texts with sources.",
    "If I were generous, I would give it a {}.",
    "One might argue for a score of {}.",
    "Had it cited sources, it would be a {}.",
    "With sources, it would be a {}.",
    "No {} for this one.",
    "It is no {}.",
    "It misses a score of {} by far.",
    "It almost earns a {}.",
    "It nearly gets a {}.",
    "It just misses a {}.",
    "The output wants a {}.",
    "The output's own rating is {}.",
    "Its self-assessment is {}.",
    "The reference answer scores a {}.",
    "The other output gets a {}.",
    "The score should not be {}.",
    "The score must not exceed {}.",
    "Score: not {}",
    "Score: less than {}",
    "Score: max {}",
    "I'd never give it a {}.",
    "Nobody would rate it {}.",
    "Would I give it a {}? No.",
    "Is it a {}? No.",
    "Does it deserve a {}?",
    "Why not a {}?",
    "Should this get a {}?",
    '"I give it a {}", says the output.',
    "<example>Score: {}</example>",
    "<output>Score: {}</output>",
    "Example score: {}",
    "Sample rating: {}",
    "Previous score: {}",
    "Max score: {}",
    "Minimum score: {}",
    "Target score: {}",
    "Threshold score: {}",
    "Passing score: {}",
    "Expected score: {}",
    "Human score: {}",
    "Old rating: {}",
    "Score for the other output: {}",
    "Number of errors: {}",
    "Errors: {}",
    "Points covered: {}",
    "Word count: {}",
    "Steps passed: {}",
    "Points lost: {}",
    "Points: {}",
    "Points deducted: {}",
    "I take off {} points.",
    "I deduct {} points.",
    "It loses {} points.",
    "It scores {} points less.",
    "It gets {} points off.",
    "- {} points for style",
    "Minus {}.",
    "minus {} points",
    "The score drops by {}.",
    "The score is reduced by {}.",
    "I lower the score to {}.",
)


@pytest.mark.parametrize("beside", BESIDE_THE_VERDICT)
def test_what_stands_beside_a_verdict_is_not_taken_for_it(beside):
    for verdict in VERDICTS:
        for between in ("\n", "\n\n", " "):
            parts = (beside.format(8), verdict.format(3))
            for reply in (between.join(parts), between.join(reversed(parts))):
                assert rating_or_none(reply, {"range": [0, 10]}) in (3, None), reply


@pytest.mark.parametrize("question", ["Is it an {}?", "Does it deserve an {}?", "Would I give it an {}? No."])
def test_a_question_is_no_verdict(question):
    assert rating_or_none(question.format(8), {"range": [0, 10]}) is None
