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
from geval_cli.judge.parse import parse_form_rating

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

    assert [(one.valid, one.requested) for one in grades] == [(20, 20)] * 20
    people = [item["human_relevance"] for item in items]
    assert round(spearman([one.rating for one in grades], people), 3) == 0.547


LONG_REPLIES = RECORDED.with_name("summeval_gpt4_rts.jsonl")


@pytest.mark.skipif(not LONG_REPLIES.exists(), reason=f"the recordings are not at {LONG_REPLIES}")
def test_recorded_replies_with_reasons_are_read_as_people_read_them():
    items = [json.loads(line) for line in LONG_REPLIES.read_text(encoding="utf-8").splitlines()]

    def read(item):
        try:
            name = item["dimension"].capitalize()
            return parse_form_rating(item["judge_response"], score_range=(1, 5), name=name).rating
        except JudgeError:
            return None

    assert [read(item) for item in items] == [item["score_audited"] for item in items]
