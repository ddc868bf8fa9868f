"""A list that is a text of its own, as a field of an editor has it: read, and written with its items changed."""

from collections.abc import Callable, Sequence

from geval_cli.errors import UsageError
from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import EditedItem, EditedList, TargetValue, plain_value
from geval_cli.source.edit.yaml_edit import editable_text
from geval_cli.source.edit.yaml_style import write_yaml
from geval_cli.source.yaml_source import read_yaml


def read_list(text: str, what: str) -> list[JsonValue]:
    """Return the items of a YAML list; none for an empty text, or one of comments alone.

    Raises:
        ConfigError: the text is broken.
        UsageError: it is no list; `what` says of what it should be one.
    """
    if not _has_content(text):
        return []
    value = read_yaml(text, "").value
    if value is None:
        return []
    if not isinstance(value, list):
        raise UsageError(f"{what} are a list", hint="put `- ` before each of them")
    return value


def write_list(text: str, items: Sequence[JsonValue], edited: Sequence[EditedItem]) -> str:
    """Return the YAML of a list that had `items` and is to have `edited`; every other byte of it stays.

    Raises:
        UsageError: its layout does not allow the change.
    """
    if not edited:
        return ""
    if not items:
        written = write_yaml([plain_value(item.value) for item in edited]).rstrip("\n")
        # What says that there is none, `[]` or `null`, makes room for the first.
        comments = "\n".join(line for line in text.rstrip("\n").split("\n") if not _has_content(line))
        return f"{comments}\n{written}" if comments.strip() else written
    ending = "\n" if text.endswith("\n") else ""
    return editable_text(text, "").with_value(EditedList(tuple(edited))).rstrip("\n") + ending


def as_written(items: Sequence[JsonValue]) -> list[EditedItem]:
    """Return a list in which each item is the one that it was."""
    return [EditedItem(item, number) for number, item in enumerate(items)]


def with_item(
    items: Sequence[JsonValue], index: int, changed: Callable[[JsonValue], TargetValue], what: str
) -> list[EditedItem]:
    """Return a list in which the item at `index` is what `changed` makes of it.

    Raises:
        UsageError: there is none; `what` says what it is one of.
    """
    edited = as_written(items)
    _check_index(edited, index, what)
    edited[index] = EditedItem(changed(items[index]), index)
    return edited


def without_item(items: Sequence[JsonValue], index: int, what: str) -> list[EditedItem]:
    """Return a list without the item at `index`.

    Raises:
        UsageError: there is none; `what` says what it is one of.
    """
    edited = as_written(items)
    _check_index(edited, index, what)
    del edited[index]
    return edited


def no_form(what: str) -> UsageError:
    """Return the error of a change to an item that no form shows."""
    return UsageError(f"this {what} has a form that only its YAML shows", hint="change it there")


def _check_index(items: Sequence[EditedItem], index: int, what: str) -> None:
    if not 0 <= index < len(items):
        raise UsageError(f"there is no {what} {index + 1}", hint="reload the page")


def _has_content(text: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.split("\n"))
