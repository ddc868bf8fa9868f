"""Two runs case by case: what changed between them. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from geval_cli.records import Column, Status
from geval_cli.report.matching import MatchedBy, TestKeys, match_columns
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
        columns_by: how prompt x provider found its partner: "label", or "place" when one of them did not by label.
        only_before: cases of the earlier run that have no partner.
        only_after: cases of the later run that have no partner.
    """

    pairs: tuple[Pair, ...]
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
    match = match_columns(before_columns, after_columns)
    partners, earlier = match.partners(), _by_content(before)
    pairs = []
    for key, verdict in _by_content(after).items():
        partner = earlier.get((*key[:-1], partners.get(verdict.column)))
        if partner is not None:
            pairs.append(Pair(partner, verdict))
    pairs.sort(key=_importance)
    columns_by = (
        MatchedBy.PLACE if any(pair.by is MatchedBy.PLACE for pair in match.pairs) else MatchedBy.LABEL
    )
    return Comparison(tuple(pairs), columns_by, len(before) - len(pairs), len(after) - len(pairs))


def _importance(pair: Pair) -> _Key:
    place = (pair.after.test_index, pair.after.repeat_index, pair.after.column)
    return CHANGE_ORDER.index(pair.change), -abs(pair.score_delta or 0.0), *place


def _by_content(verdicts: Iterable[StoredVerdict]) -> dict[_Key, StoredVerdict]:
    """Return each by the content of its test, repeat and column."""
    keys = TestKeys()
    return {
        (keys.key(item.test_index, item.description, item.vars), item.repeat_index, item.column): item
        for item in verdicts
    }
