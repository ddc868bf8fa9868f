"""JSON at both ends of what is fast: what msgspec refuses is left to the standard library."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.json_codec import decode_json, encode_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: object) -> None:
    assert decode_json(encode_json(value)) == value


@pytest.mark.parametrize("value", ["half \ud83d", 10**400, {None: 1}])
def test_what_only_the_standard_library_writes(value: object) -> None:
    assert decode_json(encode_json(value)) == json.loads(json.dumps(value))


def test_numbers_that_json_lacks_are_read_and_not_written() -> None:
    assert math.isnan(decode_json("NaN"))
    assert encode_json(math.nan) == b"null"


@pytest.mark.parametrize("text", ["[1,]", b"\xff", "[" * 200_000 + "]" * 200_000])
def test_what_is_no_json_that_can_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|Illegal|decode|nested"):
        decode_json(text)


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        encode_json({"a": object()})
