"""The items of a checklist in words, for all reports: met or not, and the words of the output that show it."""

from collections.abc import Mapping
from typing import TypeGuard

from msgspec import Struct

from geval_cli.judge.checklist import CHECKLIST
from geval_cli.numbers import format_score
from geval_cli.records import JsonValue
from geval_cli.report.sanitize import one_line

_TEXT_MAX = 300


class ShownItem(Struct, frozen=True):
    """One item; its texts are sanitized, each on one line.

    Attributes:
        notes: `required, weight 2, 0.97`: what is special about it, and a score that is neither 0 nor 1; mostly empty.
        because: the quoted words, or the judge's reason for a no.
    """

    is_met: bool
    text: str
    notes: str
    because: str

    @property
    def line(self) -> str:
        """Return `Names the price (required): "5 euros"`."""
        notes = f" ({self.notes})" if self.notes else ""
        return f"{self.text}{notes}: {self.because}" if self.because else f"{self.text}{notes}"


def checklist_items(detail: Mapping[str, JsonValue]) -> list[ShownItem]:
    """Return the items of a judgement's `detail`, which may come from a file that someone else wrote."""
    items = detail.get(CHECKLIST)
    listed = items if isinstance(items, list | tuple) else []
    return [_shown(item) for item in listed if isinstance(item, Mapping)]


def _shown(item: Mapping[str, JsonValue]) -> ShownItem:
    is_met = item.get("met") is True
    weight, score = item.get("weight"), item.get("score")
    notes = ["required"] if item.get("required") is True else []
    if _is_number(weight) and weight != 1:
        notes.append(f"weight {weight:g}")
    if _is_number(score) and score not in (0, 1):
        notes.append(format_score(score))
    return ShownItem(is_met, one_line(str(item.get("item", "")), _TEXT_MAX), ", ".join(notes), _because(item))


def _because(item: Mapping[str, JsonValue]) -> str:
    evidence, reason = (_text(item.get(name)) for name in ("evidence", "reason"))
    is_there = item.get("evidence_found")
    if is_there is False:
        if not evidence:
            return "yes, but it quotes nothing from the output"
        return f'yes, but "{evidence}" is not in the output'
    return f'"{evidence}"' if evidence and is_there is True else reason


def _text(value: JsonValue) -> str:
    return one_line(value, _TEXT_MAX) if isinstance(value, str) else ""


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
