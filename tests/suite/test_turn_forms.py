"""Turns of a conversation as forms: what each shows, and that a change is made in its lines alone."""

from textwrap import dedent

import pytest

from geval_cli.errors import UsageError
from geval_cli.suite.turn_forms import PLAYED, TurnChange, TurnForm, changed_turns, turn_forms

TURNS = dedent("""\
    # how it begins
    - user: Hello # kindly
    - { role: assistant, content: "Good day" }

    - role: assistant
      content: |
        I look,
        one moment.
      tool_calls: # one
        - { name: find, args: { id: 7 } }
    - role: tool
      tool_call_id: x
      content: found
    - role: assistant
      tool_calls: [{ name: find, args: {} }]
    - 7
    """)


def test_each_turn_shows_who_says_what() -> None:
    assert turn_forms(TURNS) == [
        TurnForm(PLAYED, "Hello"),
        TurnForm("assistant", "Good day"),
        TurnForm("assistant", "I look,\none moment.\n", ("tool_calls",)),
        TurnForm("tool", "found", ("tool_call_id",)),
        TurnForm("assistant", "", ("tool_calls",)),
        TurnForm(""),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        "user: 3",
        "role: judge",
        "role: user\n  content: [a]",
        "user: a\n  role: user",
        "role: [a]",
        "{}",
        "role: played",
    ],
)
def test_another_form_is_left_to_the_yaml(odd: str) -> None:
    assert turn_forms(f"- {odd}\n") == [TurnForm("")]
    with pytest.raises(UsageError, match="only its YAML"):
        changed_turns(f"- {odd}\n", TurnChange(0, text="b"))


def test_writing_back_what_is_shown_changes_no_byte() -> None:
    for index, form in enumerate(turn_forms(TURNS)):
        if form.role:
            assert changed_turns(TURNS, TurnChange(index, form.role, form.text)) == TURNS


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (TurnChange(0, text="Hi: you"), "Hello", '"Hi: you"'),
        (TurnChange(0, role="user"), "user: Hello # kindly", "role: user # kindly\n  content: Hello"),
        (TurnChange(1, text="Bye"), '"Good day"', "Bye"),
        (TurnChange(1, role="user"), "role: assistant", "role: user"),
        (TurnChange(2, role="system"), "- role: assistant\n  content: |", "- role: system\n  content: |"),
        (TurnChange(3, text="nothing"), "content: found", "content: nothing"),
        (TurnChange(4, text="wait"), "args: {} }]\n", "args: {} }]\n  content: wait\n"),
        (TurnChange(5, is_removed=True), "- 7\n", ""),
        (TurnChange(role="user", text="So?"), "- 7\n", "- 7\n- role: user\n  content: So?\n"),
    ],
)
def test_a_change_is_made_in_its_lines_alone(change: TurnChange, before: str, after: str) -> None:
    assert changed_turns(TURNS, change) == TURNS.replace(before, after, 1)


@pytest.mark.parametrize("empty", ["[]", "null", "~\n", "[ # none\n]\n", "# none\n[]"])
def test_the_first_turn_takes_the_place_of_a_list_that_says_it_is_empty(empty: str) -> None:
    assert turn_forms(empty) == []
    comment = "# none\n" if empty.startswith("#") else ""
    assert changed_turns(empty, TurnChange(text="Hi")) == f"{comment}- user: Hi"


def test_a_conversation_comes_and_goes() -> None:
    assert changed_turns("", TurnChange(text="Hi")) == "- user: Hi"
    assert (
        changed_turns("# why\n", TurnChange(role="user", text="Hi")) == "# why\n- role: user\n  content: Hi"
    )
    assert changed_turns("- user: Hi", TurnChange(0, is_removed=True)) == ""
