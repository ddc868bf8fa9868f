"""What a test is known by in other runs: all that it says, and nothing that may change while it stays the same."""

from itertools import combinations
from typing import Any

import pytest

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.plan import NOTHING_SAID, content_key, key_across_formats, key_of, rough_key, words_of
from geval_cli.records import TraceStep, Turn
from geval_cli.source.source_map import SourcePath

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def key(index: int = 0, **parts: Any) -> str:
    return key_of(MergedTest(index, SourcePath.nowhere(), **parts))


def image(name: str, digit: str) -> str:
    return f"[image: {name} sha256:{digit * 64}]"


def said(*pairs: tuple[str, str]) -> tuple[Turn, ...]:
    return tuple(Turn(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("description", "variables", "known"),
    [
        (None, {}, "b3108f82ae513d6320b7639743a9e4c6"),
        ("a", {}, "d8ae59cc64ba90eaa76374140e81706b"),
        (None, {"x": 1}, "7bd7cab996b70ce007b8fe146eca43a8"),
        ("refund", {"b": [1, 2, {"z": None}], "a": "ü"}, "be1d00e56d09ca0bb348475a7e97589d"),
        ("é", {"n": 1.5, "t": True}, "5772d9627866aee877847ada22b86790"),
    ],
)
def test_tests_of_description_and_variables_have_the_keys_that_they_always_had(
    description: str | None, variables: dict[str, Any], known: str
) -> None:
    turned = dict(reversed(variables.items()))
    assert key(description=description, vars=variables) == known == key(description=description, vars=turned)
    assert content_key(description, variables) == rough_key(description, variables) == known


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        ({"n": 1, "x": "a"}, {"n": "1", "x": "a"}),
        ({"n": -2.5, "t": True, "f": False}, {"n": "-2.5", "t": "true", "f": "false"}),
        ({"n": None, "x": [1], "y": {"z": 2}}, {"n": None, "x": [1], "y": {"z": 2}}),
        ({"n": "01"}, {"n": "01"}),
    ],
)
def test_across_formats_a_test_has_the_key_of_a_table(
    variables: dict[str, Any], texts: dict[str, Any]
) -> None:
    known, wanted = (key(description="a", vars=part) for part in (variables, texts))
    assert key_across_formats(known, "a", variables) == wanted == key_across_formats(wanted, "a", texts)
    further = key(description="a", vars=variables, input="b")
    assert key_across_formats(further, "a", variables) == further, "results do not have the input"


OTHERS: list[dict[str, Any]] = [
    {},
    {"description": "a"},
    {"description": "b"},
    {"vars": {"x": "a"}},
    {"vars": {"input": "a"}},
    {"input": "a"},
    {"input": "b"},
    {"input": "a", "vars": {"x": "a"}},
    {"input": "a", "description": "a"},
    {"input": "a", "description": "b"},
    {"input": "a" * 100_000},
    {"input": "\ud800"},
    {"turns": said(("user", "a")), "plays_turns": True},
    {"turns": said(("user", "a"), ("user", "b")), "plays_turns": True},
    {"turns": said(("user", "b"), ("user", "a")), "plays_turns": True},
    {"turns": said(("user", "a"), ("assistant", "x"), ("user", "b"))},
    {"turns": said(("user", "a"), ("assistant", "y"), ("user", "b"))},
    {"turns": said(("system", "a"), ("user", "b"))},
    # The last answer is judged, and the question before it says which test it is.
    {"turns": said(("user", "a"), ("user", "c"), ("assistant", "x"))},
    {"turns": said(("user", "a"), ("user", "d"), ("assistant", "x"))},
    {
        "turns": (
            Turn("user", "a"),
            Turn("assistant", tool_calls=({"name": "f"},)),
            Turn("tool", "1", (), "c"),
        )
    },
    {
        "turns": (
            Turn("user", "a"),
            Turn("assistant", tool_calls=({"name": "g"},)),
            Turn("tool", "1", (), "c"),
        )
    },
    {"turns": (Turn("user", "a"), Turn("tool", "1", (), "c"))},
    {"turns": (Turn("user", "a"), Turn("tool", "1", (), "d"))},
    {"images": (image("a.png", "1"),)},
    {"images": (image("a.png", "2"),)},
    {"images": (image("a.png", "1"), image("b.png", "2"))},
    {"images": (image("a.png", "1"),), "input": "a"},
    {"audio": (image("a.wav", "4"),)},
    {"context": "a"},
    {"context": ("a", "b")},
    {"expected_output": "a"},
    {"expected_output": "b"},
]


def test_tests_that_say_something_else_have_another_key() -> None:
    for one, other in combinations(OTHERS, 2):
        assert key(**one) != key(**other), (one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"input": "a"}, {"input": "a", "index": 7}),
        ({"input": "a"}, {"input": "a", "expected_output": "b"}),
        ({"input": "a"}, {"input": "a", "context": "b", "retrieval_context": ("c",)}),
        ({"input": "a"}, {"input": "a", "metadata": {"id": 1}, "threshold": 0.5}),
        (
            {"input": "a"},
            {"input": "a", "has_output": True, "output": "b", "trace": (TraceStep("tool", "f"),)},
        ),
        ({"turns": said(("user", "a"))}, {"turns": said(("user", "a")), "plays_turns": True}),
        # What the model is going to answer itself.
        (
            {"turns": said(("user", "a"), ("assistant", "x"), ("user", "b")), "plays_turns": True},
            {"turns": said(("user", "a"), ("user", "b")), "plays_turns": True},
        ),
        # The last answer is what is judged.
        (
            {"turns": said(("user", "a"), ("assistant", "x"))},
            {"turns": said(("user", "a"), ("assistant", "y"))},
        ),
        ({"images": (image("a.png", "1"),)}, {"images": (image("renamed.png", "1"),)}),
        ({"vars": {"x": PIXEL}}, {"vars": {"x": PIXEL}, "role": "a clerk", "scenario": "a shop"}),
        ({}, {"has_output": True, "output": "b"}),
    ],
)
def test_what_may_change_while_a_test_stays_the_same_is_not_in_its_key(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert key(**one) == key(**other)


def test_a_test_that_says_nothing_is_told() -> None:
    assert key(has_output=True, output="x") == NOTHING_SAID


def test_a_rough_key_is_of_what_others_than_the_assistant_said() -> None:
    played = said(("user", "a"), ("assistant", "x"), ("user", "b"), ("assistant", "y"))
    assert words_of(played) == ["a", "b"]
    assert rough_key(None, {}, ["a", "b"]) != rough_key(None, {}, ["b", "a"]) != rough_key(None, {})


def test_values_without_a_json_form_are_no_crash() -> None:
    assert content_key(None, {"x": {1}}) == content_key(None, {"x": {1}}) != content_key(None, {"x": {2}})


@pytest.mark.parametrize("test", [{"vars": {"x": "a"}}, {"description": "a"}, {"input": "a"}])
def test_a_corrected_reference_leaves_a_test_the_same(test: dict[str, Any]) -> None:
    known = key(**test)
    for changed in (
        {"expected_output": "b"},
        {"context": ("c",)},
        {"expected_output": "b", "context": ("d",)},
    ):
        assert key(**test, **changed) == known
    assert key(expected_output="b") != key(expected_output="c")
