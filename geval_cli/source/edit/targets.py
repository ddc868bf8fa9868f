"""Values as they are to be in a text that is edited, with what is known of how they came about."""

from collections.abc import Sequence

from msgspec import Struct

from geval_cli.records import JsonValue
from geval_cli.source.edit.yaml_style import same


class EditedItem(Struct, frozen=True):
    """An item of a list as it is to be. `origin` is the item that it was, or that it is a copy of."""

    value: "TargetValue"
    origin: int | None = None
    is_copy: bool = False


class EditedList(Struct, frozen=True):
    """A list as it is to be, when it is known which item is which; those that stay keep their order."""

    items: tuple[EditedItem, ...]


class Written(Struct, frozen=True):
    """A value as somebody wrote it, comments included.

    Attributes:
        value: what it is.
        text: block YAML that reads as `value`; with its key where it `has_key`, as a new key of a mapping may, and one
            whose value is a scalar in one line.
    """

    value: JsonValue
    text: str
    has_key: bool = False


TargetValue = JsonValue | EditedList | Written
"""A value in which parts may be of these kinds."""


def plain_value(target: TargetValue) -> JsonValue:
    """Return the value alone."""
    if isinstance(target, Written):
        return target.value
    if isinstance(target, EditedList):
        return [plain_value(item.value) for item in target.items]
    if isinstance(target, dict):
        return {key: plain_value(value) for key, value in target.items()}
    if isinstance(target, list):
        return [plain_value(value) for value in target]
    return target


def has_written(target: TargetValue) -> bool:
    """Return whether a part is given in somebody's own lines, which may differ in comments alone."""
    if isinstance(target, dict):
        return any(map(has_written, target.values()))
    if isinstance(target, EditedList):
        return any(has_written(item.value) for item in target.items)
    return isinstance(target, Written) or (isinstance(target, list) and any(map(has_written, target)))


def matched(old: JsonValue, target: Sequence[TargetValue]) -> tuple[EditedItem, ...]:
    """Return which item was which, for a list that does not say it: the same at both ends, the others in order."""
    new = [plain_value(item) for item in target]
    shared = min(len(old), len(new))
    head = next((i for i in range(shared) if not same(old[i], new[i])), shared)
    tail = next((i for i in range(shared - head) if not same(old[-1 - i], new[-1 - i])), shared - head)
    origins: list[int | None] = []
    for index in range(len(new)):
        if index >= len(new) - tail:
            origins.append(len(old) - len(new) + index)
        else:
            origins.append(index if index < len(old) - tail else None)
    return tuple(EditedItem(item, origin) for item, origin in zip(target, origins, strict=True))
