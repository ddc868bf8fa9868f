import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.verdicts import judged, passes, problems

from geval_cli.assertions.base import compact_json
from geval_cli.assertions.match import expected_data, is_same_json
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import DEFAULT_RULES, PROMPTFOO_RULES

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "output", "expected"),
    [
        ("a", "a", True),
        ("a", "a ", False),
        ("", "", True),
        (True, "true", True),
        (42, "42", True),
        (42, "42.0", False),
        *((number, output, True) for number in (5.0, 5.00) for output in ("5", "5.0", "5.00", "5e0")),
        *((1.5, output, True) for output in ("1.5", "1.50")),
        *((5.0, output, False) for output in ("5.1", "05", "five", "", '"5"', "true", "[5]")),
        ({"a": 1, "b": [True]}, '{"b": [true], "a": 1.0}', True),
        ({"a": 1}, '{"a": true}', False),
        ({"a": 1}, '{"a": 1, "b": 2}', False),
        ([1, 2], "[2, 1]", False),
        ({"a": 1}, "no JSON", False),
        ({"a": 1}, "", False),
        (None, "null", True),
        ({"a": 1}, {"a": 1}, True),
        ('{"a": 1}', {"a": 1}, True),
        ("日本", "日本", True),
    ],
)
def test_verdicts(value: JsonValue, output: JsonValue, expected: bool) -> None:
    assert passes("equals", output, value=value) is expected


def test_texts_anywhere_in_the_value_are_templates() -> None:
    assert passes("equals", '{"a": ["x1"]}', value={"a": ["x{{n}}"]}, vars={"n": 1})
    assert problems("equals", value={"a": ["{{m}}"]}, vars={"n": 1})[0].message.startswith(
        "undefined variable `m`"
    )


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("{{ order.items }}", '["tea", 2]'),
        ("{{ order['items'] }}", '["tea",2]'),
        ('{{ orders[0]["items"] }}', '["tea",2]'),
        ("{{ orders.0 }}", '{"items":["tea",2]}'),
        ({"count": "{{ order.items[1] }}"}, '{"count": 2}'),
        ({"first": "{{ order.items[0] }}"}, '{"first": "tea"}'),
        ("{{ order.items | list }}", '["tea", 2]'),  # a text
    ],
)
def test_a_part_of_a_variable_is_data_too(value: JsonValue, output: str) -> None:
    order = {"items": ["tea", 2]}
    assert passes("equals", output, value=value, vars={"order": order, "orders": [order]})
    assert not passes("equals", "2", value=value, vars={"order": order, "orders": [order]})


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"id": 7, "tags": ["x"], "gone": null}', True),
        ('{"id": "7", "tags": ["x"], "gone": null}', True),
        ('{"id": 8, "tags": ["x"], "gone": null}', False),
        ('{"id": 7, "tags": ["y"], "gone": null}', False),
        ('{"id": 7, "tags": ["x"], "gone": 0}', False),
    ],
)
def test_a_variable_within_data_stands_for_what_it_holds(output: str, expected: bool) -> None:
    value = {"id": "{{ id }}", "tags": "{{ tags }}", "gone": "{{ gone }}"}
    variables = {"id": 7, "tags": ["x"], "gone": None}
    assert passes("equals", output, value=value, vars=variables) is expected


@pytest.mark.parametrize(
    ("variable", "output", "expected"),
    [
        ([1, "b"], '[1,"b"]', True),
        ({"a": 1, "b": [True]}, '{"b":[true],"a":1.0}', True),
        ({"a": 1}, '{"a": 2}', False),
        ([], "[]", True),
        ([], "", False),
        ({"a": "{{ x }}"}, '{"a": "{{ x }}"}', True),
        ('{"a": 1}', '{"a":1}', False),  # a text is compared letter by letter
        (True, "true", True),
    ],
)
@pytest.mark.parametrize("value", ["{{ expected }}", "{{expected}}", " {{- expected -}} "])
def test_a_variable_that_holds_data_is_compared_as_json(
    value: str, variable: JsonValue, output: str, expected: bool
) -> None:
    value = value if isinstance(variable, dict | list) else value.strip()
    assert passes("equals", output, value=value, vars={"expected": variable}) is expected


def test_the_reason_shows_data_as_compact_json() -> None:
    assert judged("equals", "x", value={"a": 1}).reason == 'the output is not equal to "{"a":1}"'


@given(JSON_VALUES)
def test_every_json_value_is_the_same_as_itself_and_passes_as_written(value: JsonValue) -> None:
    assert is_same_json(value, value)
    if isinstance(value, dict | list):
        keys = {"value": value}
        if "{" not in "".join(_texts(value)):
            assert passes("equals", compact_json(value), **keys)


def _texts(value: JsonValue) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


def test_only_the_texts_of_lists_are_templates_by_promptfoos_rules() -> None:
    def render(text: str) -> str:
        return text.replace("{{ x }}", "1")

    assert expected_data({"a": "{{ x }}"}, render, PROMPTFOO_RULES) == {"a": "{{ x }}"}
    assert expected_data(["{{ x }}", {"a": "{{ x }}"}], render, PROMPTFOO_RULES) == ["1", {"a": "{{ x }}"}]
    assert expected_data({"a": ["{{ x }}"]}, render, DEFAULT_RULES) == {"a": ["1"]}
