"""What a g-eval without `metric` is summed up under, and how records that lack the name get it."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geval_cli.metrics import default_metric
from geval_cli.source.source_map import SourcePath
from geval_cli.suite.gates import Gate, parse_gate


@pytest.mark.parametrize(
    ("criteria", "steps", "name"),
    [
        ("The answer is right.", None, "the-answer-is-right"),
        ("  Polite,\n and   SHORT! ", None, "polite-and-short"),
        ("Doesn't promise what isn\u2019t ours", None, "doesnt-promise-what-isnt-ours"),
        ("{{ question }} is answered", None, "question-is-answered"),
        ("Die Antwort ist höflich", None, "die-antwort-ist-höflich"),
        (unicodedata.normalize("NFD", "Höflich"), None, "höflich"),
        ("उत्तर सही है", None, "उत्तर-सही-है"),
        ("ответ верен", None, "ответ-верен"),
        ("答" * 60, None, "答" * 40),
        (("Correct", "Polite"), None, "correct-polite"),
        ("one word of many stays while they all fit here", None, "one-word-of-many-stays-while-they-all"),
        ("ends at forty characters to the last one", None, "ends-at-forty-characters-to-the-last-one"),
        ("👍👍", None, "g-eval"),
        ("👍👍", ("Compare it.", "Rate it."), "compare-it"),
        (None, ("Compare it.", "Rate it."), "compare-it"),
        (None, None, "g-eval"),
        ("", (), "g-eval"),
    ],
)
def test_the_name_is_the_first_words(
    criteria: str | tuple[str, ...] | None, steps: tuple[str, ...] | None, name: str
) -> None:
    assert default_metric(criteria, steps) == name
    assert default_metric(criteria, steps, is_negated=True) == f"not-{name}"


@given(st.text())
@example("Latency")  # `latency.mean` is the run's
def test_any_name_is_short_and_can_stand_in_a_gate(criteria: str) -> None:
    name = default_metric(criteria, None)
    gate = parse_gate(f"{name}.mean >= 0.5", SourcePath.nowhere())

    assert 0 < len(name) <= 40
    assert isinstance(gate, Gate)
    assert gate.metric == name
