"""Values are changed where they stand: what was not asked for stays byte for byte."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.errors import UsageError
from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import EditedItem, EditedList, Written, plain_value
from geval_cli.source.edit.yaml_edit import editable_text
from geval_cli.source.edit.yaml_layout import Cuts
from geval_cli.source.edit.yaml_style import same
from geval_cli.source.yaml_source import read_yaml

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/configs/*.yaml"))


def apart(value: JsonValue) -> JsonValue:
    """A copy in which what aliases share is no longer shared."""
    return json.loads(json.dumps(value))


def edited(text: str, change: Callable[[JsonValue], object], name: str = "config.yaml") -> str:
    text = dedent(text)
    source = editable_text(text, name)
    value = apart(source.value)
    wanted = change(value)
    return source.with_value(value if wanted is None else wanted)


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that are only in the one, and only in the other, once what both begin and end with is gone."""
    old, new = before.split("\n"), after.split("\n")
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return old, new


CONFIG = """\
# Head of the file

prompts:   # what is sent
    -   id: "first"   # a name
        raw: 'It''s {{ x }}'

    # The second one.
    -   id: second
        raw: |
            One line

            and another   # no comment

tests:
- vars: {x: 1, "y": [a, b]}   # flow
  input: >-
    folded text
    in two lines

# about the second test
- input:
  assert:
  # what counts
  - type: equals   # exactly
    value: 12
"""

FLOW = '- vars: {x: 1, "y": [a, b]}   # flow'


class TestOnePlace:
    @pytest.mark.parametrize(
        ("path", "value", "old", "new"),
        [
            (["prompts", 0, "id"], "other", ['    -   id: "first"   # a name'], ['    -   id: "other"   # a name']),
            (["prompts", 0, "raw"], "It's", ["        raw: 'It''s {{ x }}'"], ["        raw: 'It''s'"]),
            (["prompts", 1, "id"], "no", ["    -   id: second"], ["    -   id: no"]),
            (["prompts", 1, "id"], "12", ["    -   id: second"], ['    -   id: "12"']),
            (["tests", 0, "vars", "x"], "a, b", [FLOW], [FLOW.replace("1", '"a, b"')]),
            (["tests", 0, "vars", "y"], [], [FLOW], [FLOW.replace("[a, b]", "[]")]),
            (["tests", 1, "input"], "hello", ["- input:"], ["- input: hello"]),
            (["tests", 1, "assert", 0, "value"], 12.5, ["    value: 12"], ["    value: 12.5"]),
            (["tests", 1, "assert", 0, "value"], "a\nb", ["    value: 12"], ["    value: |-", "      a", "      b"]),
        ],
    )  # fmt: skip
    def test_only_its_own_lines_change(
        self, path: list[str | int], value: JsonValue, old: list[str], new: list[str]
    ) -> None:
        def put(config: JsonValue) -> None:
            for part in path[:-1]:
                config = config[part]
            config[path[-1]] = value

        assert changed_lines(CONFIG, edited(CONFIG, put)) == (old, new)

    def test_a_folded_text_stays_folded(self) -> None:
        words = " ".join(["word"] * 40)
        after = edited(CONFIG, lambda config: config["tests"][0].update(input=words))
        assert "  input: >-\n    word word" in after
        assert max(map(len, after.split("\n"))) < 110

    def test_a_comment_stays_behind_the_key_when_the_value_gets_more_lines(self) -> None:
        after = edited("a: one # why\nb: 1\n", lambda config: config.update(a="x\ny"))
        assert after == "a: |- # why\n  x\n  y\nb: 1\n"

    def test_a_text_becomes_a_mapping_and_back(self) -> None:
        after = edited("- one # why\n- two\n", lambda config: config.__setitem__(0, {"raw": "one", "n": 1}))
        assert after == "- raw: one # why\n  n: 1\n- two\n"
        assert edited(after, lambda config: config.__setitem__(0, "one")) == "- one\n- two\n"

    def test_windows_line_breaks_stay(self) -> None:
        after = edited("a: 1\r\nb: x\r\n", lambda config: config.update(b="y\nz", c=[1]))
        assert after == "a: 1\r\nb: |-\r\n  y\r\n  z\r\nc:\r\n  - 1\r\n"

    def test_a_missing_last_line_break_is_no_trouble(self) -> None:
        assert edited("a: 1", lambda config: config.update(b=2)) == "a: 1\nb: 2"


class TestKeys:
    def test_a_new_key_follows_the_one_before_it(self) -> None:
        after = edited("a: 1\n# about c\nc: 3\n", lambda config: {"a": 1, "b": {"x": ["y"]}, "c": 3})
        assert after == "a: 1\nb:\n  x:\n    - y\n# about c\nc: 3\n"

    def test_a_new_key_may_come_first(self) -> None:
        assert edited("- b: 1\n", lambda config: [{"a": 0, **config[0]}]) == "- a: 0\n  b: 1\n"

    def test_a_key_goes_with_its_own_lines(self) -> None:
        after = edited("a: 1\nb:\n  - x # y\n\n# about c\nc: 3\n", lambda config: config.pop("b") and None)
        assert after == "a: 1\n\n# about c\nc: 3\n"

    def test_the_first_key_of_an_item_goes(self) -> None:
        assert edited("- a: 1 # x\n  b: 2\n", lambda config: config[0].pop("a") and None) == "- b: 2\n"

    def test_keys_in_braces_come_and_go(self) -> None:
        assert (
            edited("k: { a: 1, b: 2 }\n", lambda config: {"k": {"b": 2, "c": "x"}}) == "k: { b: 2, c: x }\n"
        )

    def test_a_key_that_needs_quotes_gets_them(self) -> None:
        after = edited("a: 1\n", lambda config: config.update({"b: c": 2}))
        assert after == "a: 1\n'b: c': 2\n"


class TestItems:
    TESTS = dedent("""\
        tests:
          # about one
          - a: 1 # one

          # about two
          - a: 2 # two
            b: |
              x

          - a: 3
        # end
        """)

    def change(self, *items: EditedItem) -> str:
        return editable_text(self.TESTS, "x.yaml").with_value({"tests": EditedList(items)})

    def test_an_item_goes_with_the_comment_above_it(self) -> None:
        after = self.change(EditedItem({"a": 1}, 0), EditedItem({"a": 3}, 2))
        assert after == "tests:\n  # about one\n  - a: 1 # one\n\n  - a: 3\n# end\n"

    def test_a_copy_keeps_comments_and_style(self) -> None:
        two = {"a": 2, "b": "x\n"}
        after = self.change(
            EditedItem({"a": 1}, 0),
            EditedItem(two, 1),
            EditedItem({**two, "a": 9}, 1, is_copy=True),
            EditedItem({"a": 3}, 2),
        )
        assert changed_lines(self.TESTS, after) == ([], ["  - a: 9 # two", "    b: |", "      x", ""])

    def test_a_new_item_comes_behind_the_one_before_it(self) -> None:
        after = self.change(
            EditedItem({"a": 1}, 0),
            EditedItem({"c": [1]}),
            EditedItem({"a": 2, "b": "x\n"}, 1),
            EditedItem({"a": 3}, 2),
        )
        assert changed_lines(self.TESTS, after) == ([], ["  - c:", "      - 1", ""])

    def test_the_last_item_is_followed_by_new_ones(self) -> None:
        text = "tests:\n- a\n- b # x\n# end\n"
        wanted = EditedList((EditedItem("a", 0), EditedItem("b", 1), EditedItem("c"), EditedItem("d")))
        after = editable_text(text, "x.yaml").with_value({"tests": wanted})
        assert after == "tests:\n- a\n- b # x\n- c\n- d\n# end\n"

    def test_all_items_may_go(self) -> None:
        assert edited("a:\n  - 1\n  - 2\nb: 1\n", lambda config: config.update(a=[])) == "a: []\nb: 1\n"

    def test_items_in_brackets_come_and_go(self) -> None:
        assert edited("[a, b, c]\n", lambda config: ["x", "b", "y"]) == "[x, b, y]\n"
        assert edited("[a, b, c]\n", lambda config: ["a", "c"]) == "[a, c]\n"


class TestAnchors:
    TEXT = "a: &a\n  x: 1\nb: *a\nc:\n  <<: *a\n  y: 2\n"

    def test_a_change_at_the_anchor_stays_there(self) -> None:
        after = edited(self.TEXT, lambda config: config["a"].update(x=5))
        assert read_yaml(after, "").value == {"a": {"x": 5}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
        assert after.startswith("a: &a\n  x: 5\n")

    def test_a_change_at_the_alias_writes_it_out(self) -> None:
        after = edited(self.TEXT, lambda config: {**config, "b": {"x": 7}})
        assert after == "a: &a\n  x: 1\nb:\n  x: 7\nc:\n  <<: *a\n  y: 2\n"

    def test_a_merged_key_is_overridden(self) -> None:
        after = edited(self.TEXT, lambda config: {**config, "c": {"x": 7, "y": 2}})
        assert "  <<: *a\n" in after
        assert read_yaml(after, "").value["c"] == {"x": 7, "y": 2}

    def test_an_alias_outlives_its_anchor(self) -> None:
        after = edited("- &p {x: 1}\n- *p\n", lambda config: EditedList((EditedItem({"x": 1}, 1),)))
        assert read_yaml(after, "").value == [{"x": 1}]


class TestWhatSomebodyWrote:
    def test_their_lines_go_in_as_they_are(self) -> None:
        text = "- type: is-json # strictly\n# and\n- type: equals\n  value: x"
        value = read_yaml(text, "").value
        after = edited(CONFIG, lambda config: config["tests"][1].update({"assert": Written(value, text)}))
        assert after.endswith(f"  assert:\n  # what counts\n{indent(text, '  ')}\n")

    def test_source_gives_the_lines_that_can_be_written_back(self) -> None:
        source = editable_text(CONFIG, "x.yaml")
        text = source.source("tests", 1, "assert")
        assert text == "- type: equals   # exactly\n  value: 12"
        wanted = apart(source.value)
        wanted["tests"][1]["assert"] = Written(source.value["tests"][1]["assert"], text)
        assert source.with_value(wanted) == CONFIG

    def test_a_new_key_takes_them_too(self) -> None:
        after = edited("- a: 1\n", lambda config: config[0].update(b=Written({"x": 1}, "x: 1 # y")))
        assert after == "- a: 1\n  b:\n    x: 1 # y\n"

    def test_what_uses_anchors_has_no_lines_of_its_own(self) -> None:
        source = editable_text("a: &a [1]\nb:\n  c: *a\nd: {x: 1}\ne: 1\n", "x.yaml")
        assert [source.source(key) for key in "bde"] == [None, None, None]
        assert source.source("a", 3) is source.source("none") is None


class TestJson:
    TEXT = '{\n  "tests": [\n    {\n      "a": 1,\n      "b": [1, 2]\n    }\n  ]\n}\n'

    def test_json_stays_json(self) -> None:
        after = edited(
            self.TEXT, lambda config: config["tests"][0].update(a="é\n", c={"x": None}), "suite.json"
        )
        assert json.loads(after)["tests"][0] == {"a": "é\n", "b": [1, 2], "c": {"x": None}}
        assert changed_lines(self.TEXT, after)[1][0] == '      "a": "é\\n",'

    def test_items_of_json_lists(self) -> None:
        after = edited(self.TEXT, lambda config: config["tests"].append({"a": 2}), "suite.json")
        assert json.loads(after)["tests"] == [{"a": 1, "b": [1, 2]}, {"a": 2}]
        assert '    },\n    {\n      "a": 2\n    }\n  ]' in after

    def test_json_that_is_no_yaml_is_refused(self) -> None:
        with pytest.raises(UsageError, match="cannot be changed here"):
            editable_text('{"a":\t"\\ud83d\\ude00"}', "suite.json")


def test_text_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot hold"):
        edited("a: 1\n", lambda config: config.update(a="half \ud83d of a pair"))


def places(value: JsonValue, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every value below `value`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in pairs for place in [(*path, key), *places(item, (*path, key))]]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_no_change_gives_the_same_bytes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    source = editable_text(text, path.name)
    assert source.with_value(apart(source.value)) == text


TEXTS = st.one_of(
    st.sampled_from(["", "no", "12", "a: b", "# x", "- y", "{{ z }}", "line\nline", "\n", " x "]),
    st.sampled_from(["a\n\nb\n\n", "*a", "'", '"']),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20),
)  # fmt: skip
KEYS = st.sampled_from(["a", "b", "c", "input", "vars", "<", "x y", "12", "null", "k: v"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.sampled_from([0.5, 1e20, -2.0]), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def example_texts(draw: st.DrawFn) -> str:
    """A config as somebody may have laid it out: the example configs, and some with less usual layout."""
    path = draw(st.sampled_from([*EXAMPLES, None]))
    text = CONFIG if path is None else path.read_text(encoding="utf-8")
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@settings(max_examples=60, deadline=None)
@given(example_texts(), st.data())
def test_one_changed_value_changes_only_lines_of_its_own(text: str, choices: st.DataObject) -> None:
    source = editable_text(text, "x.yaml")
    path = choices.draw(st.sampled_from(places(source.value)))
    new = choices.draw(VALUES)
    wanted = parent = apart(source.value)
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = new
    after = source.with_value(wanted)
    assert same(read_yaml(after, "x").value, wanted)
    location = source.document.place.value(*path)
    assert location is not None
    assert after.split("\n")[: location.line - 2] == text.split("\n")[: location.line - 2]
    if not any(mark in text for mark in ("&", "*")):
        own = place_lines(source.document.place.child(*path[:-1]), path[-1], parent, text)
        assert (
            after.split("\n")[len(after.split("\n")) - own :]
            == text.split("\n")[len(text.split("\n")) - own :]
        )


def place_lines(place: object, key: str | int, parent: JsonValue, text: str) -> int:
    """How many lines there are from what follows the value in the same collection to the end."""
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    following = keys[keys.index(key) + 1 :]
    if not following:
        return 0
    location = place.key(following[0])  # type: ignore[attr-defined]
    return len(text.split("\n")) - location.line


@settings(max_examples=60, deadline=None)
@given(example_texts(), st.data())
def test_any_change_gives_what_is_wanted(text: str, choices: st.DataObject) -> None:
    source = editable_text(text, "x.yaml")
    wanted = apart(source.value)
    for name in ("prompts", "tests"):
        old = wanted.get(name)
        if isinstance(old, list):
            wanted[name] = choices.draw(edited_lists(old))
    if choices.draw(st.booleans()):
        wanted[choices.draw(KEYS)] = choices.draw(VALUES)
    after = source.with_value(wanted)
    assert same(read_yaml(after, "x").value, plain_value(wanted))


@st.composite
def edited_lists(draw: st.DrawFn, old: list[JsonValue]) -> EditedList:
    items: list[EditedItem] = []
    for index, value in enumerate(old):
        match draw(st.sampled_from(["keep", "keep", "drop", "copy", "change", "new before"])):
            case "keep":
                items.append(EditedItem(value, index))
            case "copy":
                items += [EditedItem(value, index), EditedItem(draw(changed(value)), index, is_copy=True)]
            case "change":
                items.append(EditedItem(draw(changed(value)), index))
            case "new before":
                items += [EditedItem(draw(VALUES)), EditedItem(value, index)]
    return EditedList(tuple(items))


@st.composite
def changed(draw: st.DrawFn, value: JsonValue) -> JsonValue:
    if not isinstance(value, dict) or draw(st.integers(0, 3)) == 0:
        return draw(VALUES)
    new = {key: item for key, item in value.items() if draw(st.integers(0, 3))}
    key = draw(st.sampled_from([*value, "added"]))
    return {**new, key: draw(VALUES)}


def test_a_large_text_is_scanned_once_however_many_of_its_parts_are_shown() -> None:
    """The editor shows thousands of tests; a look through all of the text for each of them would take minutes."""
    scans = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal scans
        scans += event == "call" and frame.f_code is Cuts.__init__.__code__

    sys.setprofile(count)
    try:
        source = editable_text("".join(f"- a: [x]\n  b:\n    - {n}\n" for n in range(50)), "large.yaml")
        assert all(source.source(number, "b") for number in range(50))
        assert all(source.entries([number], ["a"]) for number in range(50))
    finally:
        sys.setprofile(None)
    assert scans == 1
