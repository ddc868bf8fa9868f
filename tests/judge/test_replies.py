"""Replies of judges, written for these tests: a rating is read as a careful reader reads it, or not at all."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geval_cli.errors import JudgeError
from geval_cli.judge.replies import parse_rating

FILES = sorted((Path(__file__).parent / "replies").glob("*.yaml"))
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # each process of the tests reads all of it
GROUPS = [group for file in FILES for group in yaml.load(file.read_text(encoding="utf-8"), LOADER)]


def rating_or_none(reply, group):
    low, high = group["range"]
    is_cut_off = group.get("finish_reason") == "length"
    try:
        return parse_rating(
            reply, score_range=(low, high), name=group.get("name"), is_cut_off=is_cut_off
        ).rating
    except JudgeError:
        return None


@pytest.mark.parametrize("group", GROUPS, ids=[group["about"] for group in GROUPS])
def test_no_reply_is_read_as_another_rating_than_a_person_reads_in_it(group):
    # Each row has the rating that a careful person takes from the reply, or none. Many of these replies are not read
    # at all: the judge is then asked for the number alone.
    wrong = [
        (variant, rating)
        for reply, wanted in group["rows"]
        for variant in (
            reply,
            f"Sure, I can help with that.\n\n{reply}",
            reply.replace("\n", "\r\n"),
            f"\n\n{reply}",
            f"{reply}\n",
        )
        for rating in [rating_or_none(variant, group)]
        if rating not in (None if isinstance(wanted, str) else wanted, None)
    ]
    assert wrong == []


READ_FROM_1_TO_5 = [
    ('{"reason": "It is clear.", "score": 4}', "json"),
    ('```json\n{\n  "score": 4,\n  "reason": "It is clear."\n}\n```', "json"),
    ('Here is my evaluation: {"reason": "It is clear.", "score": "4/5"}', "json"),
    ('{"result": {"score": 4, "reason": "It is clear."}}', "json"),
    ('{"Coherence": 4}', "json"),
    ('<think>Perhaps a 3. Score: 3</think>\n{"score": 4}', "json"),
    ('[THINK]Perhaps a 3. Score: 3[/THINK]\n{"score": 4}', "json"),
    ("[THINK]\nI give it a 3.\n\nScore: 3\n[/THINK]\n\nCoherence: 4", "label"),
    ("Score: 4", "label"),
    ("- Coherence: 4", "label"),
    ("Coherence score: 4", "label"),
    ("**Final score:** 4/5", "label"),
    ("Rating: **4** out of 5", "label"),
    ("Rating: 4 (Good)", "label"),
    ("Score (1-5): 4", "label"),
    ("Score = four", "label"),
    ("### Score: 4\n\nThe summary is clear.", "label"),
    ("Rating: 4\n\nExplanation: it names 3 of the clubs.", "label"),
    ("It is clear, but the year is wrong. Final score: 4.", "label"),
    ("The year is wrong.\n\nMy rating: 4 stars", "label"),
    ("The year is wrong.\nScore: 4\nThe rest is right.", "label"),
    ("4", "number"),
    ("\n4.\n", "number"),
    ("**4**", "number"),
    ("4/5", "number"),
    ("4 out of 5", "number"),
    ("Four stars. The summary is clear.", "number"),
    ("4/5. Clear and short.", "number"),
    ("4\n\nThe summary is clear.", "number"),
    ("The summary is clear, but too long. 4", "number"),
    ("The summary is clear, so I would give it a score of 4.", "number"),
]


@pytest.mark.parametrize(("reply", "read_from"), READ_FROM_1_TO_5, ids=[row[0] for row in READ_FROM_1_TO_5])
def test_plain_replies_are_read_without_a_second_question(reply, read_from):
    parsed = parse_rating(reply, score_range=(1, 5), name="Coherence")

    assert (parsed.rating, parsed.read_from) == (4, read_from)
    assert reply[parsed.score_start : parsed.score_end].lower() in ("4", "four")


NOT_READ_FROM_0_TO_10 = [
    # taken back, or a second number for it
    '{"score": 9, "reason": "Correct."}\n\nI retract this.',
    '{"score": 9, "reason": "Correct."}\n\nAbove is a placeholder, since the output was empty.',
    "Score: 8\n\nStrike that.",
    "Score: 8\n\nNever mind, that was wrong.",
    "Score: 8\n\nKorrektur: sechs",
    "Score: 8\n\nActually, lower.",
    "Score: 8. Actually: make it less.",
    "Score: 8\n\nMy final answer is 7",
    "Score: 8. My answer: seven",
    "Score: 8. Nein, doch eher 6.",
    "Coherence: 4, but really 2",
    "Coherence: 5 -- sorry, 3",
    "Coherence: 5. Hmm, more like 3.",
    "Coherence: 3, maybe 4",
    "Coherence: 4, downgraded to two",
    "Score: 10, then 6 after checking",
    "Score: 8; 7",
    "Score: 8:7",
    "Score: 8...9",
    "Score: 4 .5",
    "6 (seven)",
    # points off the highest score
    "10 points, less 2 for style.",
    "Score: 10, with 3 points deducted for errors.",
    "Score: 10\nI subtract one point for the ending.",
    "Score: 10\nOne point off for the ending.",
    "Score: 10. Minus one point for the ending.",
    '{"score": 10, "penalty": 4}',
    '{"score": 8, "adjusted_score": 6}',
    '{"score": 4, "total": 5}',
    # a label that is another one, or a rating that is doubted
    "Score (max): 10",
    "Score (%): 8",
    "Coherence (local): 5",
    "Coherence (without intro): 5",
    "Coherence [A]: 4",
    "Score: 8 (?)",
    "Score: 10 (withdrawn)",
    "Score: 10 (a guess)",
    # no rating at all
    "Score:\n\n1. Correctness\n2. Style",
    "Score:\n1) good",
    "approx. 8",
    "No. 8",
    "A. 8",
    "> 3",
    "5 stars",
    # someone else's words
    "> Score: 10\n\nThis line in the answer is an injection.",
    '> {"score": 10}\n\nThat is in the text.',
    '<submission>{"score": 10}</submission>',
    "<text>\nScore: 10\n</text>",
    '<!-- {"score": 8} -->',
    'Example:\n```json\n{"score": 8, "reason": "Clear."}\n```',
    'The output includes the following:\n```\n{"score": 10}\n```',
    'The format is {"score": 8, "reason": "Clear."}.',
    "The submission rates itself:\n\nScore: 10",
    "For the reference answer:\n\nScore: 10",
    '{"score": 8, "reason": "<your reason>"}',
    '{"score": 8, "reason": "..."}',
    '{"score": 5, "error": "The output is empty."}',
    '{"score": 10, "passed": false}',
    "This deserves a score of 4 out of 5.\n\n1. Clarity. Score: 5 out of 5\n2. Facts. Score: 5 out of 5",
    "On a 1-5 scale this would be a 4",
    "Score: 7 (1-100)",
    "The previous version scored 8/10. This one is worse.",
    "A perfect answer would get 10/10.",
    "Score: 8\nScore: 8",
    "Score: 4,5",
    "Score: 4-5",
    "Score: 4 or 5",
    "Score: 4?",
    "Score: ~4",
    "Score: >4",
    "Score: 4 %",
    "Score: 8, if the date were right",
    "Score: 8. Actually, 3.",
    "Score: 8\nWait, the date is wrong.",
    "Score: 8\nOut of: 100",
    "Coherence: 4\nFluency: 2",
    "Coherence: 4, Fluency: 3",
    "Score: 8 (accuracy), 6 (fluency)",
    "Score: 5, lowered by 2 for typos",
    "The output says:\nScore: 10\nwhich is not so.",
    "The output ends with 'Score: 10'",
    'The output ends with "Score: 10"',
    "A great answer would get\nScore: 10",
    "Expected score: 10",
    "Score: 10 is what the author asks for. I would say 2.",
    "4/10 of the facts are right.",
    "5. The summary repeats itself.\n6. It is long.",
    "3 stars were visible that night, which the text omits.",
    "If the date were right, I would give it a score of 10.",
    '{"score": 4}\n{"score": 4}',
    '{"score": 4, "final_score": 8}',
    '{"score": 4, "max_score": 5}',
    '{"examples": {"score": 9}}',
    '{"steps": [{"score": 3}]}',
    '{"score": true}',
    '{"score": "high"}',
    '{"score": 4}\nOn reflection, that is too low.',
    'For example: {"score": 4}',
    'The output is "{"score": 10}"',
]


@pytest.mark.parametrize("reply", NOT_READ_FROM_0_TO_10)
def test_a_reply_that_can_be_understood_in_another_way_is_not_read(reply):
    assert rating_or_none(reply, {"range": [0, 10], "name": "Coherence"}) is None


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("Score: 8\n\nThe answer gives an example of dependency injection.", 8),
        ("Score: 8. Less detail would be better.", 8),
        ("Score: 8\n\nI deducted two points for the missing source.", 8),
        ("Score: 10\n\nNo points were deducted.", 10),
        ("Score: 8/10 (very good)", 8),
        ("Score (0-10): 8", 8),
        ('{"score": 8, "scale": "0-10"}', 8),
        ('{"score": 8, "range": [0, 10]}', 8),
        ('{"score": 8, "scale": "-10-10"}', 8),
        ('{"score": 8, "scale": "1-100"}', None),
        ("Compared with the expected output, the answer lacks a date.\n\nScore: 8", 8),
        (
            'Here is my evaluation in the requested format:\n\n```json\n{"score": 8, "reason": "Good."}\n```',
            8,
        ),
        (
            'Based on the instructions, here is my evaluation:\n```json\n{"score": 8, "reason": "Good."}\n```',
            8,
        ),
        ('<answer>{"score": 8, "reason": "Good."}</answer>', 8),
        ('{"score": 8, "reason": "Good.", "subscores": {"facts": 9}, "errors": [], "error": null}', 8),
    ],
)
def test_words_that_take_nothing_back_leave_a_rating_as_it_is(reply, wanted):
    assert rating_or_none(reply, {"range": [0, 10]}) == wanted


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("I give it a 4. " * 4_000, None),
        ("\n" * 60_000 + "Score: 4", 4),
        ("<think>\n" + "Maybe a 3. " * 6_000 + "</think>\nScore: 4", 4),
        ('{"score": 4}\n' + "It is good. " * 6_000, None),
        ("It is good. " * 6_000 + '\n{"score": 4}', 4),
        ("It is good. " * 6_000 + "\nScore: 4", 4),
    ],
    ids=["prose", "lines", "thoughts", "object first", "object last", "label last"],
)
def test_the_length_of_a_reply_does_not_matter(reply, wanted):
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


@settings(max_examples=300, deadline=None)
@given(replies())
@example(("Final score: 4 out of 10. Minor errors prevent it from a perfect score of 10.", 4))
def test_no_distractor_is_ever_taken_for_the_verdict(made):
    reply, rating = made

    assert rating_or_none(reply, {"range": [0, 10]}) in (rating, None)


@settings(max_examples=150, deadline=None)
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
