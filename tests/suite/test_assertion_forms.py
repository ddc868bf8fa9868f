"""Assertions as forms: what each type shows, and that a form changes what it is about and no other byte."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError, UsageError
from geval_cli.source.edit.yaml_edit import editable_text
from geval_cli.suite.assertion_forms import (
    OFTEN_USED,
    AssertionChange,
    assertion_forms,
    assertion_kinds,
    changed_assertions,
)
from geval_cli.suite.draft import suite_form

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"
MIXED = dedent("""\
    # all kinds of layout
    - type: icontains # any case
      value: bread

    - { type: not-contains-any, value: [a, "b c"] }
    # the judge
    - type: g-eval
      value: |
        Is it friendly, and
        does it answer?
      evaluation_steps:
        - Read it.   # slowly
        - Rate it.
      rubric: { 1: rude, 5: kind }
      score_range: [1, 5]
      threshold: 0.60
      provider:
        id: openai:gpt-4.1
        config: { temperature: 0 }
    - type: equals
      value: 5
    - type: is-json
      value: { type: object } # a schema
    """)


def written_assertions() -> Iterator[tuple[str, str]]:
    """The assertions of every test of the examples, as the editor shows them, with the name of the file."""
    yield "mixed", MIXED
    for path in sorted(EXAMPLES.glob("*.yaml")):
        try:
            form = suite_form(editable_text(path.read_text(encoding="utf-8"), path.name))
        except ConfigError:
            continue
        for test in form.tests:
            if test.is_editable and test.fields["assert"] and not test.fields["assert"].startswith("file://"):
                yield path.name, test.fields["assert"]


def test_every_type_has_a_form_and_the_often_used_come_first() -> None:
    kinds = assertion_kinds()
    assert sorted(kind.type for kind in kinds) == sorted(ASSERTION_TYPES)
    assert [kind.type for kind in kinds[: len(OFTEN_USED)]] == list(OFTEN_USED)
    assert OFTEN_USED[0] == "g-eval"
    assert all(kind.about and not kind.about.startswith(kind.type) for kind in kinds)
    assert all(entry.hint for kind in kinds for entry in kind.inputs)


def test_g_eval_asks_for_what_people_choose_first() -> None:
    kind = next(kind for kind in assertion_kinds() if kind.type == "g-eval")
    first = [(entry.label, entry.kind) for entry in kind.inputs if entry.is_first]
    assert first == [
        ("Dimension", "choice"),
        ("Criteria", "text"),
        ("Checklist", "checklist"),
        ("Evaluation steps", "texts"),
        ("Rubric", "pairs"),
        ("Range of ratings", "numbers"),
        ("Threshold", "number"),
        ("Judge", "text"),
        ("Metric", "text"),
    ]
    assert "coherence" in kind.inputs[0].choices


def test_writing_back_what_is_shown_changes_no_byte() -> None:
    seen = 0
    for name, text in written_assertions():
        for index, form in enumerate(assertion_forms(text)):
            for key, shown in form.values.items():
                change = AssertionChange(index, key=key, kind=shown.kind, value=shown.value)
                assert changed_assertions(text, change) == text, (name, key)
                seen += 1
    assert seen > 100


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (AssertionChange(0, key="value", value="rye"), "value: bread", "value: rye"),
        (AssertionChange(0, type="not-contains"), "icontains", "not-contains"),
        (AssertionChange(1, key="value", kind="texts", value="a\n\n c \n"), '[a, "b c"]', "[a, c]"),
        (
            AssertionChange(2, key="criteria", value="Kind?\n"),
            "Is it friendly, and\n    does it answer?",
            "Kind?",
        ),
        (
            AssertionChange(2, key="rubric", kind="pairs", value=[["1", "rude"], ["5", "海"], ["", " "]]),
            "5: kind",
            "5: 海",
        ),
        (AssertionChange(2, key="score_range", kind="numbers", value="0, 1.5"), "[1, 5]", "[0, 1.5]"),
        (AssertionChange(2, key="threshold", kind="number", value=" 0.7 "), "0.60", "0.7"),
        (AssertionChange(2, key="threshold", kind="number", value="calibrated"), "0.60", "calibrated"),
        (AssertionChange(2, key="threshold", kind="number", value="nan"), "0.60", "nan"),
        (AssertionChange(2, key="threshold", kind="number", value=None), "  threshold: 0.60\n", ""),
        (
            AssertionChange(
                2, key="provider", kind="yaml", value="id: openai:gpt-4.1\nconfig: {temperature: 1}"
            ),
            "temperature: 0",
            "temperature: 1",
        ),
        (
            AssertionChange(2, key="strict_mode", kind="flag", value=True),
            "temperature: 0 }\n",
            "temperature: 0 }\n  strict_mode: true\n",
        ),
        (
            AssertionChange(2, drop=("rubric", "score_range")),
            "  rubric: { 1: rude, 5: kind }\n  score_range: [1, 5]\n",
            "",
        ),
        (AssertionChange(type="latency"), "# a schema\n", "# a schema\n\n- type: latency\n"),
    ],
)
def test_a_change_is_made_where_it_belongs_and_nowhere_else(
    change: AssertionChange, before: str, after: str
) -> None:
    assert changed_assertions(MIXED, change) == MIXED.replace(before, after, 1)


SET = dedent("""\
    - type: assert-set # one
      threshold: 0.5 # half
      assert: # its own
        # the first
        - type: contains
          value: a # here

        - { type: latency, threshold: 900 }
      weight: 2
    - type: g-eval
      checklist:
        - Names it # short
        # the second
        - item: Says when
          required: true
          weight: 2.0
        - { item: Is kind, evidence: true }
    """)
ROWS = [
    {"item": "Names it", "weight": "", "required": False, "evidence": True},
    {"item": "Says when", "weight": "2.0", "required": True, "evidence": True},
    {"item": "Is kind", "weight": "", "required": False, "evidence": True},
]


def test_a_set_shows_its_members_and_a_checklist_its_items() -> None:
    of_set, of_list = assertion_forms(SET)
    assert of_set.members is not None
    assert [(form.type, sorted(form.values)) for form in of_set.members] == [
        ("contains", ["value"]),
        ("latency", ["threshold"]),
    ]
    assert ("assert" in of_set.values, of_list.members) == (False, None)
    assert (of_list.values["checklist"].kind, of_list.values["checklist"].value) == ("checklist", ROWS)


def checklist(*rows: dict[str, object]) -> AssertionChange:
    return AssertionChange(1, key="checklist", kind="checklist", value=list(rows))


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (AssertionChange(0, within=0, key="value", value="b"), "value: a", "value: b"),
        (AssertionChange(1, within=0, type="not-latency"), "type: latency", "type: not-latency"),
        (AssertionChange(1, within=0, is_removed=True), "\n    - { type: latency, threshold: 900 }\n", ""),
        (
            AssertionChange(0, within=0, is_removed=True),
            "    - type: contains\n      value: a # here\n\n",
            "",
        ),
        (AssertionChange(within=0, type="cost"), "900 }\n", "900 }\n\n    - type: cost\n"),
        (AssertionChange(0, key="threshold", kind="number", value="0.6"), "0.5 # half", "0.6 # half"),
        (checklist(*ROWS), "", ""),
        (
            checklist({**ROWS[0], "weight": "3"}, *ROWS[1:]),
            "- Names it # short\n",
            "- item: Names it # short\n      weight: 3\n",
        ),
        (checklist({**ROWS[0], "item": "Names her"}, *ROWS[1:]), "Names it", "Names her"),
        (checklist(ROWS[0], {**ROWS[1], "weight": "1.5"}, ROWS[2]), "2.0", "1.5"),
        (checklist(ROWS[0], {**ROWS[1], "required": False}, ROWS[2]), "      required: true\n", ""),
        (checklist(*ROWS[:2], {**ROWS[2], "evidence": False}), "evidence: true", "evidence: false"),
        (
            checklist(*ROWS, {"item": "Ends", "weight": "", "required": False}),
            "true }\n",
            "true }\n    - Ends\n",
        ),
        (checklist(*ROWS, {"item": " ", "weight": "", "required": False}), "", ""),
        (checklist(*ROWS[:2]), "    - { item: Is kind, evidence: true }\n", ""),
    ],
)
def test_a_set_and_a_checklist_change_where_they_are_changed(
    change: AssertionChange, before: str, after: str
) -> None:
    assert changed_assertions(SET, change) == SET.replace(before, after, 1)


def test_a_set_comes_to_its_members_whatever_it_had() -> None:
    for text in ("- type: assert-set", "- type: assert-set\n  assert:", "- type: assert-set\n  assert: []"):
        assert assertion_forms(text)[0].members in (None, ())
        added = changed_assertions(text, AssertionChange(within=0, type="cost"))
        [form] = assertion_forms(added)
        assert [member.type for member in form.members or ()] == ["cost"]
        emptied = changed_assertions(added, AssertionChange(0, within=0, is_removed=True))
        assert assertion_forms(emptied)[0].members == ()


def test_a_set_in_a_set_has_no_form_of_its_members() -> None:
    text = "- type: assert-set\n  assert:\n    - type: assert-set\n      assert: [{ type: cost }]\n"
    [outer] = assertion_forms(text)
    assert outer.members is not None
    assert outer.members[0].members is None
    assert outer.members[0].values["assert"].kind == "yaml"


@pytest.mark.parametrize(
    "written", ["[a, 3]", "[{ item: a, odd: 1 }]", "[{ item: a, weight: heavy }]", "[{ weight: 1 }]", "all"]
)
def test_a_checklist_of_another_form_is_shown_as_yaml(written: str) -> None:
    text = f"- type: g-eval\n  checklist: {written}\n"
    shown = assertion_forms(text)[0].values["checklist"]
    assert shown.kind == "yaml"
    assert (
        changed_assertions(text, AssertionChange(0, key="checklist", kind="yaml", value=shown.value)) == text
    )


@pytest.mark.parametrize("written", ["[true, 5]", "[low, 5]", "{ from: 1 }"])
def test_a_range_that_is_not_of_numbers_is_shown_as_yaml(written: str) -> None:
    text = f"- type: g-eval\n  score_range: {written}\n"
    assert assertion_forms(text)[0].values["score_range"].kind == "yaml"


def test_assertions_come_and_go_with_the_comments_above_them() -> None:
    assert changed_assertions("", AssertionChange(type="contains")) == "- type: contains"
    assert changed_assertions("# why\n", AssertionChange(type="cost")) == "# why\n- type: cost"
    assert changed_assertions("- type: cost", AssertionChange(0, is_removed=True)) == ""
    without = changed_assertions(MIXED, AssertionChange(2, is_removed=True))
    assert "g-eval" not in without
    assert "the judge" not in without
    assert without.startswith(MIXED.partition("# the judge")[0])


def test_what_means_nothing_to_a_type_is_left_over() -> None:
    [form] = assertion_forms(
        changed_assertions(
            "- type: g-eval\n  criteria: Kind?\n  weight: 2\n", AssertionChange(0, type="is-json")
        )
    )
    assert (form.type, form.left_over, list(form.values)) == ("is-json", ("criteria",), ["weight"])


@pytest.mark.parametrize(
    "text", ["- [", "type: contains", "- type: contains\n- type: contains\n  type: cost\n", "a: &a [*a]"]
)
def test_broken_yaml_has_no_form(text: str) -> None:
    with pytest.raises((ConfigError, UsageError)):
        assertion_forms(text)


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "# nothing yet\n", "- file://more.yaml", "- 3", "- {}", "- type: 7", "- type: nothing"],
)
def test_what_no_form_can_show_stays_as_it_is(text: str) -> None:
    assert all(form.values == {} for form in assertion_forms(text))


@pytest.mark.parametrize(
    "change",
    [
        AssertionChange(9, key="value"),
        AssertionChange(0, within=9, key="value"),
        AssertionChange(5, within=0, key="value"),
        AssertionChange(0, key="value", kind="yaml", value="["),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change: AssertionChange) -> None:
    with pytest.raises((ConfigError, UsageError)):
        changed_assertions(MIXED, change)
