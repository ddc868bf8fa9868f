"""What a question for a rating allows, whether the samples that can be read are enough, and how ratings are told."""

import pytest
from support.scripted_judge import ScriptedJudge

from geval_cli.judge.calls import JudgeCalls, JudgeFacts
from geval_cli.judge.estimate import (
    Distribution,
    RatingEstimate,
    RatingQuestion,
    SampledReplies,
    describe,
    distribution_of,
)
from geval_cli.judge.metric import Metric
from geval_cli.judge.prompt import Criterion


@pytest.mark.parametrize(
    ("samples", "min_valid", "requested", "valid", "cannot_reach_minimum", "is_enough"),
    [
        (20, 0.5, 2, 2, False, True),
        (20, 0.5, 2, 1, False, False),
        (20, 0.5, 4, 2, False, True),
        (20, 0.5, 4, 1, False, False),
        (20, 0.5, 14, 3, True, False),
        (20, 0.5, 14, 4, False, False),
        (20, 0.5, 14, 7, False, True),
        (20, 0.5, 20, 9, True, False),
        (20, 0.5, 20, 10, False, True),
        (3, 0.5, 3, 1, True, False),
        (3, 0.5, 3, 2, False, True),
        (100, 0.07, 100, 7, False, True),
        (100, 0.07, 100, 6, True, False),
        (2, 0, 2, 0, True, False),
        (2, 0, 2, 1, False, False),
        (2, 0, 2, 2, False, True),
    ],
)
def test_how_many_samples_must_be_readable(
    samples: int, min_valid: float, requested: int, valid: int, cannot_reach_minimum: bool, is_enough: bool
) -> None:
    metric = Metric("fluency", samples=samples, min_valid=min_valid)
    taken = SampledReplies[int](requested, [4] * valid)

    assert (taken.cannot_reach_minimum(metric), taken.is_enough(metric)) == (cannot_reach_minimum, is_enough)


@pytest.mark.parametrize(
    ("score_range", "step", "joint", "ratings"),
    [
        ((1, 3), 1, (), ("1", "2", "3")),
        ((0, 1), 0.5, (), ("0", "0.5", "1")),
        ((1, 3), 1, ("fluency", "coherence"), ()),
        ((0, 100), 1, (), tuple(map(str, range(101)))),
        ((0, 101), 1, (), ()),
    ],
)
def test_a_question_for_one_rating_lists_what_may_be_answered(
    score_range: tuple[int, int], step: float, joint: tuple[str, ...], ratings: tuple[str, ...]
) -> None:
    criterion = Criterion("fluency", "", score_range, step)
    calls = JudgeCalls(ScriptedJudge(lambda _: ""), JudgeFacts())

    assert RatingQuestion((), criterion, 0, joint=joint).request(calls).ratings == ratings


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (RatingEstimate(4, None, "single", "prompt"), "4 on a scale of 1 to 5 (one rating)"),
        (
            RatingEstimate(4.304, None, "logprobs", "prompt", Distribution({4: 0.35, 5: 0.15}, 0.5)),
            "4.3 on a scale of 1 to 5 (from token probabilities: 4 70 %, 5 30 %)",
        ),
        (
            RatingEstimate(3, None, "samples", "prompt", distribution_of([5, 1, 3, 3]), valid=4),
            "3 on a scale of 1 to 5 (mean of 4 samples: 3 50 %, 1 25 %, 5 25 %)",
        ),
        (
            RatingEstimate(3, None, "samples", "prompt", distribution_of([5, 4, 3, 2, 1]), valid=5),
            "3 on a scale of 1 to 5 (mean of 5 samples: 1 20 %, 2 20 %, 3 20 %, 4 20 %, 5 20 %)",
        ),
        (
            RatingEstimate(3.5, None, "samples", "prompt", distribution_of([6, 1, 2, 3, 4, 5]), valid=6),
            "3.5 on a scale of 1 to 5 (mean of 6 samples: 1 17 %, 2 17 %, 3 17 %, 4 17 %, 5 17 %, ...)",
        ),
    ],
)
def test_an_estimate_is_told_with_its_commonest_ratings_first(estimate: RatingEstimate, words: str) -> None:
    assert describe(estimate, (1, 5)) == words
