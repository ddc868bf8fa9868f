"""Two runs case by case: which cases belong together, and what changed between them. Pure."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from geval_cli.records import Column, Status
from geval_cli.store.run_pages import StoredVerdict

_Key = tuple[object, ...]


class Change(StrEnum):
    """A change of a case's verdict, in the order in which people want to see it."""

    NEWLY_FAILED = "newly failed"
    NEWLY_ERROR = "newly error"
    FIXED = "fixed"
    OTHER = "changed otherwise"
    SAME = "same verdict"


CHANGE_ORDER = tuple(Change)


class Pair(Struct, frozen=True):
    """One case in both runs."""

    before: StoredVerdict
    after: StoredVerdict

    @property
    def change(self) -> Change:
        """Return the change of the verdict."""
        old, new = self.before.status, self.after.status
        if old is new:
            return Change.SAME
        if new is Status.FAILED:
            return Change.NEWLY_FAILED
        if new is Status.ERROR:
            return Change.NEWLY_ERROR
        return Change.FIXED if new is Status.PASSED else Change.OTHER

    @property
    def score_delta(self) -> float | None:
        """The later score minus the earlier one; None when one of them is missing."""
        if self.before.score is None or self.after.score is None:
            return None
        return self.after.score - self.before.score


class Comparison(Struct, frozen=True):
    """Which cases two runs share, sorted by what changed, the largest changes of score first.

    Attributes:
        tests_by: "variables" when tests with equal description and variables belong together, "place" when no two
            tests are equal and the first of one run is beside the first of the other.
        columns_by: "label" or "place", in the same way for prompt x provider.
        only_before: cases of the earlier run that have no partner.
        only_after: cases of the later run that have no partner.
    """

    pairs: tuple[Pair, ...]
    tests_by: str
    columns_by: str
    only_before: int
    only_after: int

    def counts(self) -> Mapping[Change, int]:
        """Return the number of pairs for each change."""
        found = Counter(pair.change for pair in self.pairs)
        return {change: found[change] for change in CHANGE_ORDER}


def compare_runs(
    before: Sequence[StoredVerdict],
    after: Sequence[StoredVerdict],
    *,
    before_columns: Sequence[Column],
    after_columns: Sequence[Column],
) -> Comparison:
    """Return the cases of two runs in pairs; results of each run must be sorted by test, repeat and column."""
    partners, columns_by = _column_partners(before_columns, after_columns)
    pairs, tests_by = _pairs(_by_variables(before), _by_variables(after), partners), "variables"
    if not pairs and before and after:
        pairs, tests_by = _pairs(_by_place(before), _by_place(after), partners), "place"
    pairs.sort(key=_importance)
    return Comparison(tuple(pairs), tests_by, columns_by, len(before) - len(pairs), len(after) - len(pairs))


def _importance(pair: Pair) -> _Key:
    place = (pair.after.test_index, pair.after.repeat_index, pair.after.column)
    return CHANGE_ORDER.index(pair.change), -abs(pair.score_delta or 0.0), *place


def _pairs(
    before: Mapping[_Key, StoredVerdict], after: Mapping[_Key, StoredVerdict], partners: Mapping[int, int]
) -> list[Pair]:
    """Return those of equal key in partner columns; a key ends with the column's index."""
    pairs = []
    for key, verdict in before.items():
        partner = after.get((*key[:-1], partners.get(verdict.column, -1)))
        if partner is not None:
            pairs.append(Pair(verdict, partner))
    return pairs


def _by_place(verdicts: Iterable[StoredVerdict]) -> dict[_Key, StoredVerdict]:
    return {(item.test_index, item.repeat_index, item.column): item for item in verdicts}


def _by_variables(verdicts: Iterable[StoredVerdict]) -> dict[_Key, StoredVerdict]:
    """By content, and among tests of equal content by which of them it is."""
    first_seen: dict[bytes, list[int]] = {}
    keyed: dict[_Key, StoredVerdict] = {}
    for item in verdicts:
        text = f"{item.description or ''}\n{item.vars}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        tests = first_seen.setdefault(digest, [])
        if item.test_index not in tests[-1:]:
            tests.append(item.test_index)
        keyed[(digest, len(tests), item.repeat_index, item.column)] = item
    return keyed


def _column_partners(before: Sequence[Column], after: Sequence[Column]) -> tuple[dict[int, int], str]:
    """For each earlier column the later one of equal labels; by place when no two labels are equal."""
    by_label = {(item.prompt_label, item.provider_label): item.index for item in reversed(after)}
    found = {
        item.index: by_label[item.prompt_label, item.provider_label]
        for item in before
        if (item.prompt_label, item.provider_label) in by_label
    }
    if found:
        return found, "label"
    return {old.index: new.index for old, new in zip(before, after, strict=False)}, "place"
