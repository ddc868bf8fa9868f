import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.templating.js_text import js_json, js_number, js_string


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (100.25, "100.25"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e-7, "1.5e-7"),
        (0.000001, "0.000001"),
        (123456789012345680000.0, "123456789012345680000"),
        (5e-324, "5e-324"),
        (12, "12"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_numbers_are_written_as_javascript_writes_them(value: float, text: str) -> None:
    assert js_number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(value: float) -> None:
    assert float(js_number(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (["a", 1.0, [None, False]], "a,1,,false"),
        ({"a": 1}, "[object Object]"),
        ([{"a": 1}], "[object Object]"),
        ("é\n", "é\n"),
    ],
)
def test_texts(value: object, text: str) -> None:
    assert js_string(value) == text


def test_json_of_nested_values_with_an_indent() -> None:
    assert js_json({"a": [1.0, {}], "b": []}, 2) == '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": []\n}'


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert js_json("\ud800é") == '"\\ud800é"'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_reads_back_as_the_same_value(value: object) -> None:
    assert json.loads(js_json(value)) == value
    assert json.loads(js_json(value, 2)) == value
