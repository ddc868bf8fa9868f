import gc
import json
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.errors import ConfigError
from geval_cli.source.json_source import json_line_positions, read_json
from geval_cli.source.source_map import SourcePath

TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=80, deadline=None)
def test_values_are_those_of_the_standard_library(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read_json(text, "x.json").value == value


@given(st.text(st.sampled_from('{}[]",:0123.eE+-\\untrfals \n')))
@settings(max_examples=150, deadline=None)
def test_what_json_loads_refuses_is_refused_with_a_place(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ConfigError) as caught:
            read_json(text, "x.json")
        assert all(problem.location is not None for problem in caught.value.problems)
        return
    if text.count('"') < 4:  # duplicate keys are fine with json.loads
        assert read_json(text, "x.json").value == expected


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "1e999", "-Infinity"])
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_json(text, "x.json")


def test_positions_point_at_keys_and_values() -> None:
    place = SourcePath(read_json('{\n "a": [1, {"é": "x"}]\n}', "x.json").positions)
    assert str(place.key("a")) == "x.json:2:2"
    location = place.value("a", 1, "é")
    assert (str(location), location and location.length, location and location.key_path) == (
        "x.json:2:17",
        3,
        "a[1].é",
    )


def test_positions_in_a_line_know_the_line_and_the_test() -> None:
    place = SourcePath(json_line_positions('{"vars": {"a": 1}}', "t.jsonl", line=7, prefix="tests[4]"))
    location = place.value("vars", "a")
    assert location is not None
    assert (str(location), location.key_path) == ("t.jsonl:7:16", "tests[4].vars.a")


class Line(str):
    """A text of which a weak reference tells whether it is still in memory."""


def test_positions_of_a_line_leave_nothing_in_cycles() -> None:
    """There is a line for each test of a file, and memory in cycles stays until somebody looks for it."""
    line = Line('{"a": 1}')
    still_there = weakref.ref(line)
    gc.disable()
    try:
        json_line_positions(line, "tests.jsonl", line=1, prefix="")
        del line
        assert still_there() is None
    finally:
        gc.enable()
