import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.assertions.json_text import FoundJson, find_json, parse_strict_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value", "found_in"),
    [
        (' {"a": 1} ', {"a": 1}, "whole output"),
        ("42", 42, "whole output"),
        ('```json\n{"a": 1}\n```', {"a": 1}, "code fence"),
        ('Sure!\n\n~~~\n[1, 2]\n~~~\nAnything else?', [1, 2], "code fence"),
        ("```\ntrue\n```", True, "code fence"),
        ('```python\nprint({})\n```\n```json\n{"a": 1}\n```', {"a": 1}, "code fence"),
        ('{"draft": [1, 2, 3, 4]}\n```json\n{"a": 1}\n```', {"a": 1}, "code fence"),
        ('The order is {"a": 1}, as you wished.', {"a": 1}, "larger text"),
        ('In [1] it says {"a": [1]} {see}.', {"a": [1]}, "larger text"),
        ('First {"a": 1}, no: {"a": 2}.', {"a": 2}, "larger text"),
        ('```json\n{"a": 1}', {"a": 1}, "larger text"),
        ('```json\n{"code": "```"}\n```', {"code": "```"}, "code fence"),
        ('{"a": {"b": 1} oops} {"c": 1}', {"c": 1}, "larger text"),
        ('[NaN, {"a": 1}] {"b": 2}', {"b": 2}, "larger text"),
    ],
)  # fmt: skip
def test_json_is_found_where_it_stands(text: str, value: object, found_in: str) -> None:
    assert find_json(text) == FoundJson(value, found_in)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON here",
        "it is 42",
        "{'a': 1}",
        '{"a": 1,}',
        '{"items": [{"a": 1}, {"a": 2}',
        '{"items": [{"a": 1}, {"a": "tex',
        "Infinity",
        "[" * 100_000,
        "so [" + '{"x"' * 5_000,
    ],
)
def test_what_is_broken_or_missing_is_not_made_up_from_its_parts(text: str) -> None:
    with pytest.raises(ValueError, match="no JSON object or list"):
        find_json(text)


@given(VALUES, st.sampled_from(["{}", "Here:\n```json\n{}\n```\nDone.", "~~~\n{}\n~~~"]))
def test_any_value_is_read_as_it_is_from_the_whole_and_from_a_fence(value: object, around: str) -> None:
    text = around.replace("{}", json.dumps(value, ensure_ascii=True), 1)
    assert find_json(text).value == value


@given(st.text())
def test_any_text_holds_json_or_is_refused_with_a_value_error(text: str) -> None:
    try:
        found = find_json(text)
    except ValueError:
        return
    assert found.found_in in {"whole output", "code fence", "larger text"}


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "[" * 100_000, "'a'", ""])
def test_strict_json_is_json_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_strict_json(text)
