"""Which metrics are accepted, and that a refusal names everything at once, in the words of a config's problems."""

import warnings
from typing import Any

import pytest
from support.scripted_judge import ScriptedJudge

from geval_cli import GEval, UsageError
from geval_cli.assertions.judges import DEFAULT_JUDGE
from geval_cli.judge.metric import RatedExample, RubricBand
from geval_cli.library.definition import Definition, choose_judge, define
from geval_cli.specs.base import ProviderSpec


def definition(**arguments: Any) -> Definition:
    defaults = {
        "name": "Tone",
        "criteria": None,
        "dimension": None,
        "evaluation_params": None,
        "evaluation_steps": None,
        "rubric": None,
        "score_range": (0, 10),
        "strict_mode": False,
        "model": None,
        "threshold": 0.5,
        "scoring": "auto",
        "samples": 20,
        "min_valid": 0.5,
    }
    return define({**defaults, **arguments})


RUBRICS: list[Any] = [
    {10: "All of it.", 0: "None of it."},
    {"10": "All of it.", "0": "None of it."},
    [(10, "All of it."), (0, "None of it.")],
    [{"score": 10, "description": "All of it."}, {"score": 0, "description": "None of it."}],
    [
        {"score_range": (10, 10), "expected_outcome": "All of it."},
        {"score_range": [0, 0], "expected_outcome": "None of it."},
    ],
]


@pytest.mark.parametrize("rubric", RUBRICS)
def test_a_rubric_in_every_spelling(rubric: Any) -> None:
    made = definition(criteria="Be kind.", rubric=rubric)
    assert made.metric.rubric == (RubricBand(10, 10, "All of it."), RubricBand(0, 0, "None of it."))
    assert made.doubts == ()


def test_arguments_arrive_in_the_metric() -> None:
    metric = definition(
        criteria=["Be kind.", "Be brief."],
        evaluation_params=("input", "actual_output"),
        evaluation_steps=["Read."],
        score_range=(1, 5),
        threshold=0.75,
        scoring="samples",
        samples=3,
        min_valid=0.9,
    ).metric
    assert metric.name == "Tone"
    assert metric.criteria == ("Be kind.", "Be brief.")
    assert metric.evaluation_params == ("input", "actual_output")
    assert metric.evaluation_steps == ("Read.",)
    assert (metric.score_range, metric.threshold) == ((1, 5), 0.75)
    assert (metric.scoring, metric.samples, metric.min_valid) == ("samples", 3, 0.9)


def test_a_dimension_brings_its_own_range() -> None:
    assert definition(dimension="fluency").metric.score_range == (1, 3)


@pytest.mark.parametrize("samples", [20, 7])
def test_samples_say_how_many_and_scoring_says_whether(samples: int) -> None:
    metric = definition(criteria="Be kind.", samples=samples).metric
    assert (metric.scoring, metric.samples) == ("auto", samples)


def test_guidelines_and_examples_arrive_in_the_metric() -> None:
    shown = [{"output": "Hi.", "rating": 7, "reason": "Warm."}]
    metric = definition(criteria="Be kind.", guidelines=("Names count.",), examples=shown).metric
    assert metric.guidelines == ("Names count.",)
    assert metric.examples == (RatedExample("Hi.", 7.0, "Warm."),)


def test_templates_in_criteria_are_text() -> None:
    assert definition(criteria="Mention {{ name }}.").metric.criteria == ("Mention {{ name }}.",)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs a `dimension`, `criteria` or `evaluation_steps`"),
    ({"criteria": " "}, "`criteria` is empty"),
    ({"criteria": 3}, "`criteria` must be text or a list of texts, found the number 3"),
    ({"criteria": "file:///etc/passwd"}, "`criteria` is a file reference"),
    ({"criteria": ["Be kind.", "file://tone.txt"]}, "`criteria` is a file reference"),
    ({"criteria": "a", "examples": "file://shown.jsonl"}, "`examples` is a file reference"),
    ({"criteria": "a", "examples": [{"output": "b", "rating": 12}]}, "outside 0 to 10"),
    ({"criteria": "Be kind.", "dimension": "fluency"}, "either a `dimension` or `criteria`, not both"),
    ({"dimension": "fluencey"}, "there is no dimension `fluencey` (did you mean `fluency`?)"),
    ({"dimension": "fluency", "score_range": (1, 5)}, "`score_range` works only with `criteria`"),
    ({"criteria": "a", "evaluation_params": [":input"]}, "found the text \":input\" (did you mean `input`?)"),
    ({"criteria": "a", "evaluation_params": []}, "`evaluation_params` is empty"),
    ({"criteria": "a", "evaluation_steps": "Read."}, "`evaluation_steps` must be a list of texts"),
    ({"criteria": "a", "rubric": {11: "b"}}, "the band 11 is outside 0 to 10"),
    ({"criteria": "a", "rubric": [(3,)]}, "this is not a band of a rubric"),
    ({"criteria": "a", "score_range": (5, 1)}, "`score_range` [5, 1] is not a range"),
    ({"criteria": "a", "score_range": 10}, "`score_range` must be a list of two numbers"),
    ({"criteria": "a", "threshold": 7}, "7 of 10 is 0.7"),
    ({"criteria": "a", "scoring": "sample"}, "did you mean `samples`?"),
    ({"criteria": "a", "samples": 0}, "`samples` must be"),
    ({"criteria": "a", "min_valid": 2}, "`min_valid` must be"),
    ({"criteria": "a", "strict_mode": "yes"}, "`strict_mode` must be true or false"),
    ({"criteria": "a", "name": " "}, "`name` must be a non-empty string"),
    ({"criteria": "a", "name": None}, "`name` must be a non-empty string, found nothing"),
    ({"criteria": "a", "model": "opnai:gpt-4o"}, "did you mean `openai:gpt-4o`?"),
    ({"criteria": "a", "model": ""}, "a provider's id is empty"),
    ({"criteria": "a", "model": {"id": "none"}}, "`none` is not a model"),
    ({"criteria": "a", "model": ("openai",)}, "`model` must be a string, a pair of strings"),
    ({"criteria": "a", "model": object()}, "found an object of the class object"),
    ({"criteria": "a", "model": {"id": "openai:gpt-4o", "confg": {}}}, "did you mean `config`?"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_what_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        definition(**arguments)
    assert words in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        GEval("Tone", criteria=" ", evaluation_params=[], rubric={11: "All."}, model="opnai:gpt-4o")
    assert str(caught.value) == (
        "the metric 'Tone' is not valid:\n- `criteria` is empty (say in a sentence what makes an output "
        "good)\n- `evaluation_params` is empty (fill it in, or leave the key out)\n- the band 11 is "
        "outside 0 to 10 (set `score_range`, or rate within 0 to 10)\n- unknown provider `opnai:gpt-4o` "
        "(did you mean `openai:gpt-4o`?)"
    )
    assert len(caught.value.problems) == 4


def test_what_is_only_doubtful_is_warned_about_where_the_metric_is_made() -> None:
    with pytest.warns(UserWarning, match="has no band for 0") as caught:
        GEval("Tone", "Be kind.", rubric={10: "Kind."})
    assert caught[0].filename == __file__


def test_strict_mode_does_not_complain_about_the_default_threshold() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert definition(criteria="Be exact.", strict_mode=True).metric.effective_threshold == 1


JUDGES: list[tuple[Any, str | None, str]] = [
    (None, None, DEFAULT_JUDGE.id),
    ("gpt-4o", None, "openai:gpt-4o"),
    ("openai:gpt-4o", None, "openai:gpt-4o"),
    ("local:smollm2", None, "local:smollm2"),
    (("openai", "gpt-4o"), None, "openai:gpt-4o"),
    (("openai", "ft:gpt-4o:acme::7"), None, "openai:ft:gpt-4o:acme::7"),
    ("claude-sonnet-4-5", "anthropic", "anthropic:claude-sonnet-4-5"),
    ({"id": "openai:gpt-4o", "config": {"temperature": 0.2}}, None, "openai:gpt-4o"),
]


@pytest.mark.parametrize(("model", "adapter", "provider_id"), JUDGES)
def test_ways_to_name_a_judge(model: Any, adapter: str | None, provider_id: str) -> None:
    judge = choose_judge(model, adapter)
    assert isinstance(judge, ProviderSpec)
    assert judge.id == provider_id


def test_settings_of_a_judge_are_kept() -> None:
    judge = choose_judge({"id": "openai:gpt-4o", "config": {"temperature": 0.2}}, None)
    assert isinstance(judge, ProviderSpec)
    assert judge.config == {"temperature": 0.2}


def test_a_judge_object_is_taken_as_it_is() -> None:
    judge = ScriptedJudge(lambda request: "")
    assert choose_judge(judge, None) is judge


@pytest.mark.parametrize("model", [None, ("anthropic", "claude-sonnet-4-5")])
def test_an_adapter_needs_a_model_name(model: Any) -> None:
    with pytest.raises(UsageError, match="`adapter` also needs `model`"):
        choose_judge(model, "anthropic")
