import pytest

from geval_cli.assertions.geval import GEvalAssertion
from geval_cli.assertions.geval_metric import (
    RatedExampleSpec,
    RubricBandSpec,
    check_metric,
    threshold_question,
)
from geval_cli.errors import Severity


def spec(**keys):
    return GEvalAssertion(type="g-eval", **keys)


def band(low, high=None):
    return RubricBandSpec(low=low, high=low if high is None else high, description="text")


def example(rating, output="text"):
    return RatedExampleSpec(output=output, rating=rating)


SOUND = [
    {"dimension": "fluency", "guidelines": ("Count typos.",), "examples": (example(1), example(2.5, "b"))},
    {"criteria": "a", "strict_mode": True, "examples": (example(0), example(1, "b"))},
    {"dimension": "coherence"},
    {"dimension": "coherence", "strict_mode": True, "threshold": 1},
    {"dimension": "coherence", "rubric": (band(1), band(2, 4), band(5))},
    {"criteria": "Be brief."},
    {"criteria": ("Be brief.", "Be kind.")},
    {"evaluation_steps": ("Check it.",)},
    {"criteria": "Be brief.", "evaluation_steps": ("Check it.",), "score_range": (1, 5), "score_step": 0.5},
    {"criteria": "Be brief.", "score_range": (0, 1)},
    {"criteria": "Be brief.", "score_range": (-2.5, 2.5)},
    {"criteria": "Be brief.", "rubric": tuple(band(rating) for rating in (10, 8, 6, 4, 2, 0))},
    {"criteria": "Be brief.", "score_range": (0, 0.3), "score_step": 0.1},
]


@pytest.mark.parametrize("keys", SOUND)
def test_a_sound_assertion_has_no_problem(keys):
    assert check_metric(spec(**keys)) == []


BAD = [
    ({"criteria": "a", "examples": (example(11),)}, "the rating 11 of example 1 is outside 0 to 10", "scale"),
    (
        {"dimension": "fluency", "examples": (example(1), example(4, "b"))},
        "rating 4 of example 2 is outside 1 to 3",
        "",
    ),
    ({"criteria": "a", "strict_mode": True, "examples": (example(7),)}, "is outside 0 to 1", ""),
    ({"criteria": "a", "examples": (example(3, " "),)}, "the output of example 1 is empty", ""),
    (
        {"criteria": "a", "examples": (example(3), example(3))},
        "examples 1 and 2 show the same output",
        "leave one",
    ),
    ({"criteria": "a", "examples": ()}, "`examples` is empty", ""),
    ({"criteria": "a", "guidelines": ("",)}, "`guidelines` is empty", ""),
    (
        {"criteria": ("a", "b"), "guidelines": ("c",)},
        "`guidelines` need a single criterion",
        "an assertion for each",
    ),
    (
        {"criteria": "a", "rubric_prompt": "{{ output }}", "examples": (example(3),)},
        "does not show `examples`",
        "",
    ),
    (
        {"checklist": ({"item": "a"},), "examples": (example(1),)},
        "`examples` cannot be combined with a `checklist`",
        "",
    ),
    ({"dimension": "coherance"}, "there is no dimension `coherance`", "did you mean `coherence`?"),
    ({"dimension": "helpfulness"}, "there is no dimension `helpfulness`", ""),
    ({"dimension": "coherence", "criteria": "Be brief."}, "either a `dimension` or `criteria`", "remove one"),
    ({}, "needs a `dimension`, `criteria` or `evaluation_steps`", "add one of them"),
    ({"criteria": "  "}, "`criteria` is empty", "say in a sentence"),
    ({"criteria": ()}, "`criteria` is empty", "say in a sentence"),
    ({"criteria": ("Be brief.", "")}, "`criteria` is empty", "say in a sentence"),
    ({"criteria": "a", "evaluation_steps": ("a", " ")}, "`evaluation_steps` is empty", "fill it in"),
    ({"criteria": "a", "evaluation_params": ()}, "`evaluation_params` is empty", "fill it in"),
    (
        {"criteria": "a", "score_range": (5, 1)},
        "`score_range` [5, 1] is not a range",
        "put the lower end first",
    ),
    (
        {"criteria": "a", "score_range": (5, 5)},
        "`score_range` [5, 5] is not a range",
        "use two different numbers",
    ),
    ({"criteria": "a", "score_range": (-1e308, 1e308)}, "`score_range` is too wide", ""),
    ({"criteria": "a", "score_range": (-1e308, 1e308), "score_step": 1}, "is too wide", ""),
    ({"criteria": "a", "score_range": (0, 1), "score_step": 5e-324}, "does not divide 0 to 1", ""),
    ({"criteria": "a", "score_step": 3}, "`score_step` 3 does not divide 0 to 10 evenly", ""),
    ({"criteria": "a", "score_step": 20}, "`score_step` 20 does not divide", ""),
    ({"criteria": "a", "scoring": "logprobs", "score_range": (0, 1e6)}, "more than 10001 ratings", "larger"),
    (
        {"dimension": "fluency", "score_range": (1, 5)},
        "`score_range` works only with `criteria`",
        "leave it out",
    ),
    (
        {"dimension": "fluency", "evaluation_params": ("input",)},
        "`evaluation_params` works only",
        "leave it out",
    ),
    ({"criteria": "a", "source": "{{x}}"}, "`source` works only with `dimension`", "context"),
    (
        {"criteria": "a", "rubric": (band(0), band(11))},
        "the band 11 is outside 0 to 10",
        "set `score_range`",
    ),
    ({"dimension": "fluency", "rubric": (band(1), band(5))}, "the band 5 is outside 1 to 3", ""),
    (
        {"criteria": "a", "rubric": (band(0, 5), band(5, 10))},
        "the bands 0 to 5 and 5 to 10 overlap",
        "one band",
    ),
    ({"criteria": "a", "rubric": (band(0), band(0), band(10))}, "the bands 0 and 0 overlap", "one band"),
    (
        {"criteria": "a", "rubric": (band(0), band(9, 7), band(10))},
        "has its higher end first",
        "lower end first",
    ),
]


@pytest.mark.parametrize(("keys", "message", "hint"), BAD, ids=[message for _, message, _ in BAD])
def test_each_mistake_is_named_with_a_way_out(keys, message, hint):
    problems = [item for item in check_metric(spec(**keys)) if item.severity is Severity.ERROR]

    assert message in problems[0].message
    assert hint in problems[0].hint


def test_an_unknown_dimension_lists_the_known_ones():
    (problem,) = check_metric(spec(dimension="helpfulness"))

    assert (
        "fluency, coherence, consistency, relevance, engagingness, groundedness, naturalness"
        in problem.notes[0]
    )


@pytest.mark.parametrize(("rubric", "end"), [((band(2), band(10)), "0"), ((band(0), band(1, 9)), "10")])
def test_a_rubric_that_does_not_reach_an_end_gets_a_warning(rubric, end):
    (problem,) = check_metric(spec(criteria="a", rubric=rubric))

    assert problem.severity is Severity.WARNING
    assert f"no band for {end}, one end of the range 0 to 10" in problem.message


def test_a_threshold_beside_strict_mode_gets_a_warning():
    (problem,) = check_metric(spec(criteria="a", strict_mode=True, threshold=0.8))

    assert problem.severity is Severity.WARNING
    assert "with `strict_mode` the threshold is 1" in problem.message


def test_all_mistakes_are_found_at_once():
    problems = check_metric(spec(dimension="x", criteria="", rubric=(band(-1), band(-1)), source="s"))

    assert len(problems) >= 4


def test_a_threshold_outside_zero_to_one_is_asked_about():
    assert threshold_question(0.7, (0, 10)) is None
    assert threshold_question(4, (1, 5)) == "if you meant the rating scale 1 to 5, write 0.75"
    assert "between 0 and 1" in threshold_question(70, (0, 10))


def test_a_threshold_that_came_past_the_schema_is_a_problem():
    (problem,) = check_metric(spec(criteria="a").model_copy(update={"threshold": 7}))

    assert "found 7" in problem.message
    assert "0.7" in problem.hint
    assert threshold_question(70, (0, 10)) == "thresholds are between 0 and 1: write 0.7 for 70 %"
