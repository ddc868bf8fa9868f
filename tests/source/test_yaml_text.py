import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geval_cli.errors import UsageError
from geval_cli.source.yaml_source import read_yaml, write_yaml

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
@example(
    {"a": ["1e3", "0o14", ".5", "012", "no", "Yes", "~", "", "12:30", "2024-01-01", "<<", "=", "- a", "# b"]}
)
@example({"<<": 1, "1e3": 2, "null": 3, "yes": 4, "": 5, "a: b": 6, "?": 7})
@example([" lead\ntrail ", "\n", "a\n\n", "\ta\n", "a\rb", "a\u2028b\u2029c\x85d", "\x00\x07\ufeff", "😀"])
@example([1e16, 5e-324, -0.0, 1, 1.0, 10**30, "1.0", "-1"])
def test_what_is_written_reads_as_the_same_value(value: object) -> None:
    found = read_yaml(write_yaml(value), "config.yaml").value
    assert repr(found) == repr(value)


def test_several_lines_are_a_block_and_plain_words_stay_plain() -> None:
    assert write_yaml({"a": "one\ntwo\n", "list": ["word", "no"], "long": "x " * 100 + "y"}) == (
        "a: |\n  one\n  two\nlist:\n  - word\n  - 'no'\nlong: " + "x " * 100 + "y\n"
    )


def test_equal_parts_are_written_out_and_not_as_aliases() -> None:
    part = {"a": [1]}
    assert "*" not in write_yaml([part, part])


def test_half_of_a_surrogate_pair_has_no_place_in_yaml() -> None:
    with pytest.raises(UsageError, match="text that YAML cannot represent"):
        write_yaml({"a": "\ud800"})
