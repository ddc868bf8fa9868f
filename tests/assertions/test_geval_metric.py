import pytest

from geval_cli.assertions.geval import GEvalAssertion
from geval_cli.assertions.geval_metric import (
    MetricDefaults,
    RubricBandSpec,
    ScoringChoice,
    choose_scoring,
    metric_from_spec,
)
from geval_cli.judge.metric import Metric, RubricBand, RubricPrompt
from geval_cli.specs.base import RubricPromptSpec


def spec(**keys):
    return GEvalAssertion(**{"type": "g-eval", "criteria": "Be brief.", **keys})


def test_an_assertion_that_says_little_gets_the_defaults():
    assert metric_from_spec(spec()) == Metric("g-eval", criteria=("Be brief.",))


def test_a_dimension_brings_its_name_and_range():
    metric = metric_from_spec(spec(criteria=None, dimension="fluency"))

    assert (metric.name, metric.dimension, metric.score_range, metric.criteria) == (
        "fluency",
        "fluency",
        (1, 3),
        (),
    )


def test_what_is_written_is_taken_over():
    metric = metric_from_spec(
        spec(
            metric="Brevity",
            threshold=0.3,
            score_range=(1, 5),
            score_step=0.5,
            strict_mode=True,
            min_valid=0.8,
            explain="never",
            evaluation_params=("actual_output",),
            evaluation_steps=("Count.",),
            rubric=(RubricBandSpec(low=1, high=5, description="any"),),
        )
    )

    assert metric.name == "Brevity"
    assert (metric.threshold, metric.effective_threshold) == (0.3, 1)
    assert (metric.score_range, metric.score_step, metric.min_valid, metric.explain) == (
        (1, 5),
        0.5,
        0.8,
        "never",
    )
    assert (metric.asked_range, metric.asked_step) == ((0, 1), 1)
    assert metric.evaluation_params == ("actual_output",)
    assert metric.evaluation_steps == ("Count.",)
    assert metric.rubric == (RubricBand(1, 5, "any"),)


def test_rendered_texts_replace_the_written_ones():
    metric = metric_from_spec(spec(), criteria=("Be very brief.",), evaluation_steps=("Count.",))

    assert (metric.criteria, metric.evaluation_steps) == (("Be very brief.",), ("Count.",))


def test_a_threshold_may_come_from_the_dialect():
    metric = metric_from_spec(spec(), defaults=MetricDefaults(threshold=0.7))

    assert metric.threshold == 0.7


@pytest.mark.parametrize(
    ("type_", "explain", "expected"),
    [("g-eval", "failed", "failed"), ("not-g-eval", "failed", "passed"), ("not-g-eval", "always", "always")],
)
def test_under_not_it_is_the_pass_that_is_explained(type_, explain, expected):
    assert metric_from_spec(spec(type=type_, explain=explain)).explain == expected


@pytest.mark.parametrize(
    ("own", "default", "expected"),
    [
        (None, None, None),
        ("F", None, RubricPrompt(evaluate="F")),
        (None, "F", RubricPrompt(evaluate="F")),
        ("own", "F", RubricPrompt(evaluate="own")),
        (RubricPromptSpec(steps="S", evaluate="E"), None, RubricPrompt("S", "E")),
    ],
)
def test_the_nearest_rubric_prompt_counts(own, default, expected):
    metric = metric_from_spec(spec(rubric_prompt=own), defaults=MetricDefaults(rubric_prompt=default))

    assert metric.rubric_prompt == expected


SAYS_NOTHING = ScoringChoice()


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], ("auto", 20)),
        ([SAYS_NOTHING, SAYS_NOTHING], ("auto", 20)),
        ([ScoringChoice("single")], ("single", 20)),
        ([ScoringChoice(samples=5)], ("samples", 5)),
        ([ScoringChoice("auto", 5)], ("auto", 5)),
        ([SAYS_NOTHING, ScoringChoice(samples=5), ScoringChoice("single")], ("samples", 5)),
        ([ScoringChoice("single"), ScoringChoice(samples=5)], ("single", 5)),
        ([ScoringChoice("samples"), ScoringChoice(samples=5)], ("samples", 5)),
        ([ScoringChoice("logprobs"), ScoringChoice("single", 7)], ("logprobs", 7)),
    ],
)
def test_the_strongest_level_decides_and_a_number_of_samples_means_samples(levels, expected):
    assert choose_scoring(levels) == expected


def test_the_assertion_is_the_strongest_level():
    defaults = MetricDefaults(scoring=(ScoringChoice("single"), ScoringChoice(samples=5)))

    metric = metric_from_spec(spec(samples=3), defaults=defaults)

    assert (metric.scoring, metric.samples) == ("samples", 3)
    assert metric_from_spec(spec(), defaults=defaults).scoring == "single"
