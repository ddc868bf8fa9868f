"""Replies that GPT-4 really gave, read again. The recordings are not part of the repository."""

import asyncio
import json
from pathlib import Path

import pytest
from support.correlation import spearman
from support.scripted_judge import ScriptedJudge, reply

from geval_cli.errors import JudgeError
from geval_cli.judge.grading import grade
from geval_cli.judge.metric import JudgedCase, Metric
from geval_cli.judge.replies import parse_rating, parse_steps

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "data" / "geval_gpt4_samples.jsonl"


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recordings are not at {RECORDED}")
def test_recorded_samples_agree_with_people_as_published_and_no_reply_is_lost():
    items = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    metric = Metric(
        "relevance", dimension="relevance", score_range=(1, 5), scoring="samples", explain="never"
    )

    async def judge(item):
        case = JudgedCase(actual_output=item["summary"], vars={"Document": item["document"]})
        return await grade(metric, case, ScriptedJudge(lambda _: reply(*item["responses"])))

    grades = [asyncio.run(judge(item)) for item in items]

    assert [(one.estimate.valid, one.estimate.requested) for one in grades] == [(20, 20)] * 20
    people = [item["human_relevance"] for item in items]
    assert round(spearman([one.estimate.rating for one in grades], people), 3) == 0.547


LONG_REPLIES = RECORDED.with_name("summeval_gpt4_rts.jsonl")


@pytest.mark.skipif(not LONG_REPLIES.exists(), reason=f"the recordings are not at {LONG_REPLIES}")
def test_recorded_replies_with_reasons_are_read_as_people_read_them():
    items = [json.loads(line) for line in LONG_REPLIES.read_text(encoding="utf-8").splitlines()]

    def read(item):
        try:
            name = item["dimension"].capitalize()
            return parse_rating(item["judge_response"], score_range=(1, 5), name=name).rating
        except JudgeError:
            return None

    ratings = [(read(item), item["score_audited"]) for item in items]

    assert [pair for pair in ratings if pair[0] not in (pair[1], None)] == []
    # The others are asked for the number alone.
    assert sum(rating is not None for rating, _ in ratings) >= 0.997 * len(ratings)


# -- a few of our own, in the same words, for where the recordings are not ----------------------------------------

OWN_REPLIES = [
    ("The summary names the two clubs and the result and nothing else that matters. Final score: 4.", 4),
    ("The summary gives the wrong town for the fire and adds a quote nobody said. Final score: 1.", 1),
    ("The summary reads well, but its third sentence repeats the first; I would give it a score of 3.", 3),
    ("The summary covers the ruling and leaves out its reasons, so it is coherent but thin. 3/5.", 3),
    ("The summary stops in the middle of a sentence and is hard to follow, so it gets a 2.", 2),
    ("The summary is well-written, correct and easy to read. 5", 5),
    (
        "Every sentence is borne out by the article about the 18-year-old swimmer, who won 3 races. Final score: 5.",
        5,
    ),
    ("The summary says that the price rose by 4 per cent, where the article has 14. Final score: 2.", 2),
    ("The summary could mention that the vote was 52 to 48. Final score: 4.", 4),
    ("\n2", 2),
    ("4", 4),
]


@pytest.mark.parametrize(("reply_text", "rating"), OWN_REPLIES)
def test_replies_in_the_words_of_recorded_ones_are_read(reply_text, rating):
    assert parse_rating(reply_text, score_range=(1, 5), name="Relevance").rating == rating


def test_samples_of_our_own_give_their_mean_and_none_is_lost():
    metric = Metric("relevance", dimension="relevance", score_range=(1, 5), scoring="samples", samples=11)
    case = JudgedCase(actual_output="A summary.", vars={"Document": "News."})
    judge = ScriptedJudge(lambda _: reply(*[text for text, _ in OWN_REPLIES]))

    found = asyncio.run(grade(metric, case, judge))

    assert (found.estimate.valid, found.estimate.requested) == (11, 11)
    assert found.estimate.rating == pytest.approx(sum(rating for _, rating in OWN_REPLIES) / 11)


@pytest.mark.parametrize(
    "spaces", [{"separators": (",", ":")}, {}, {"indent": 2}], ids=["compact", "usual", "indented"]
)
def test_steps_are_read_however_their_json_is_spaced(spaces):
    steps = ("Read both texts.", 'Note what is "new", and why.', "Rate: how much is borne out?")

    assert parse_steps(json.dumps({"steps": steps}, **spaces)) == steps
