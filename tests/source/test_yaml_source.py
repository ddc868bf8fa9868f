import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.errors import ConfigError
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import FAST_LOADER, read_yaml

LOADERS = pytest.mark.parametrize("loader", [FAST_LOADER, yaml.SafeLoader], ids=["fast", "plain"])

# What every YAML writer must escape is for the JSON reader: see test_json_source.py.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff\x85")
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=80, deadline=None)
def test_block_yaml_of_plain_values_is_read_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True, default_style='"' if isinstance(value, str) else None)
    strings_quoted = json.dumps(value, ensure_ascii=False, indent=1)

    assert read_yaml(strings_quoted, "x.yaml").value == value
    if isinstance(value, str):
        assert read_yaml(text, "x.yaml").value == value


@given(st.text(st.sampled_from("abc:-[]{}&*!|>'\"%@` \n\t#,?0.")))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    problems = ()
    try:
        read_yaml(text, "x.yaml")
    except ConfigError as error:
        problems = error.problems
    assert all(problem.location and problem.location.line <= text.count("\n") + 1 for problem in problems)


@LOADERS
def test_both_parsers_give_the_same_values_and_positions(loader: Any) -> None:
    document = read_yaml("a: &x [1, 'é']\nb:\n  - *x\n  - {漢: 0o17}\n", "x.yaml", loader=loader)
    place = SourcePath(document.positions)

    assert document.value == {"a": [1, "é"], "b": [[1, "é"], {"漢": 15}]}
    assert str(place.value("a", 1)) == "x.yaml:1:11"
    assert str(place.value("b", 0)) == "x.yaml:3:5"
    assert str(place.key("b", 1, "漢")) == "x.yaml:4:6"
    assert str(place.value("b", 1, "漢")) == "x.yaml:4:9"


@LOADERS
@pytest.mark.parametrize(
    "text", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000, "a: " + "[" * 101 + "]" * 101]
)
def test_hostile_nesting_is_refused(text: str, loader: Any) -> None:
    with pytest.raises(ConfigError):
        read_yaml(text, "x.yaml", loader=loader)


def test_a_hundred_levels_are_enough_for_anybody() -> None:
    value = read_yaml("[" * 100 + "]" * 100, "x.yaml").value
    depth = 0
    while value:
        value = value[0]
        depth += 1
    assert depth == 99


def test_many_uses_of_one_anchor_are_no_bomb() -> None:
    tests = "".join("  - assert: *checks\n" for _ in range(3000))
    text = "checks: &checks [" + "{type: contains, value: x}, " * 20 + "]\ntests:\n" + tests

    assert len(read_yaml(text, "x.yaml").value["tests"]) == 3000


def test_lines_are_counted_as_editors_do() -> None:
    text = 'a: "x\u2028y\x85z"\r\nb: 2\rc: 3\n'
    place = SourcePath(read_yaml(text, "x.yaml").positions)
    assert str(place.key("b")) == "x.yaml:2:1"
    assert str(place.key("c")) == "x.yaml:3:1"


def test_keys_stay_as_they_are_written() -> None:
    text = "{10: a, true: b, ~: c, 0x1F: d, 1.50: e}"
    assert list(read_yaml(text, "x.yaml").value) == ["10", "true", "~", "0x1F", "1.50"]


def test_of_merged_mappings_the_first_wins_and_own_keys_win_over_all() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  z: 3\n"
    document = read_yaml(text, "x.yaml")
    assert document.value["c"] == {"x": 1, "y": 1, "z": 3}
    assert str(SourcePath(document.positions).value("c", "x")) == "x.yaml:1:11"


def test_a_quoted_merge_key_is_a_key_like_any_other() -> None:
    assert read_yaml('"<<": {a: 1}', "x.yaml").value == {"<<": {"a": 1}}


@pytest.mark.parametrize("number", ["9" * 4001, "0x" + "f" * 3400, "0o" + "7" * 4500])
def test_a_number_that_cannot_be_written_again_is_refused(number: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(f"a: {number}", "x.yaml")
    assert "more than 4000 digits" in caught.value.problems[0].message
