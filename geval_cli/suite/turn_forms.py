"""Show the turns of a conversation as forms, and write what is changed in a form back into their YAML."""

from typing import get_args

from msgspec import Struct

from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import EditedItem
from geval_cli.source.edit.yaml_list import (
    as_written,
    no_form,
    read_list,
    with_item,
    without_item,
    write_list,
)
from geval_cli.specs.conversation import TurnRole

PLAYED = "played"
"""Stands for a role in what a user is going to say: the model answers it in the run."""

_SAID_ROLES: tuple[str, ...] = get_args(TurnRole)
TURN_ROLES = (PLAYED, *_SAID_ROLES)


class TurnForm(Struct, frozen=True):
    """One turn: who says what, and the names of its other keys. Without a role in a form that only its YAML shows."""

    role: str
    text: str = ""
    others: tuple[str, ...] = ()


class TurnChange(Struct, frozen=True):
    """One change to the turns: of the one at `index`, or a new one at the end. What is None stays."""

    index: int | None = None
    role: str | None = None
    text: str | None = None
    is_removed: bool = False


def turn_forms(text: str) -> list[TurnForm]:
    """Return the turns of a YAML list; none for an empty text.

    Raises:
        ConfigError: the text is broken.
        UsageError: it is no list.
    """
    return [_form(item) for item in read_list(text, "turns")]


def changed_turns(text: str, change: TurnChange) -> str:
    """Return the YAML of a list of turns with one change; every other byte of it stays.

    Raises:
        ConfigError: the text is broken.
        UsageError: there is no such turn, or only its YAML shows it.
    """
    items = read_list(text, "turns")
    if change.index is None:
        edited = [*as_written(items), EditedItem(_said(change.role or PLAYED, change.text or ""))]
    elif change.is_removed:
        edited = without_item(items, change.index, "turn")
    else:
        edited = with_item(items, change.index, lambda item: _changed(item, change), "turn")
    return write_list(text, items, edited)


def _form(item: JsonValue) -> TurnForm:
    if not isinstance(item, dict):
        return TurnForm("")
    if "user" in item:
        role, words = PLAYED, item["user"]
        is_known = item.keys().isdisjoint({"role", "content"})
    else:
        role, words = str(item.get("role")), item.get("content", "")
        is_known = role in _SAID_ROLES
    if not is_known or not isinstance(words, str):
        return TurnForm("")
    own = _said(role, "")
    return TurnForm(role, words, tuple(str(key) for key in item if key not in own))


def _said(role: str, text: str) -> dict[str, JsonValue]:
    return {"user": text} if role == PLAYED else {"role": role, "content": text}


def _changed(item: JsonValue, change: TurnChange) -> JsonValue:
    shown = _form(item)
    if not shown.role or not isinstance(item, dict):
        raise no_form("turn")
    role = shown.role if change.role is None else change.role
    text = shown.text if change.text is None else change.text
    said = _said(role, text)
    if text == shown.text == "" and "content" not in item:
        said.pop("content", None)  # a turn of tool calls alone
    kept = {key: value for key, value in item.items() if key in said or key in shown.others}
    return {**kept, **said} if said.keys() & item.keys() else {**said, **kept}
