"""Which tests and columns of two runs belong together. Pure; every comparison of runs goes by it.

Tests belong together when their content is equal, wherever they stand; columns when their labels are, and those that
are left over when as many are left in both runs.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from geval_cli.errors import UsageError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.records import Column, JsonValue
from geval_cli.report.numbers import plural

TestKey = tuple[bytes, int]
"""The content of a test, and which of the tests of equal content it is."""

LEAST_SHARE = 0.5

"""Of suites that share less than this of the smaller one's tests, nothing is said: they are taken for unrelated."""


class TestKeys(Struct):
    """The keys of the tests of one run, whose results come test by test."""

    __test__ = False

    _keys: dict[int, TestKey] = field(default_factory=dict)
    _counts: dict[bytes, int] = field(default_factory=dict)

    def key(
        self, test_index: int, description: str | None, variables: Mapping[str, JsonValue] | str
    ) -> TestKey:
        """Return the key of a test; its first result decides. `variables` may be JSON text."""
        known = self._keys.get(test_index)
        if known is not None:
            return known
        digest = _digest(description, variables)
        count = self._counts[digest] = self._counts.get(digest, 0) + 1
        self._keys[test_index] = key = (digest, count)
        return key

    def mistakable(self, other: "TestKeys") -> int:
        """Return how many tests may have a wrong partner: of equal content, and not as many in the `other` run."""
        mine, theirs = self._counts, other._counts
        both = ((mine[digest], theirs[digest]) for digest in mine.keys() & theirs.keys())
        return sum(max(pair) for pair in both if pair[0] != pair[1])

    def all(self) -> frozenset[TestKey]:
        """Return the keys of all tests so far."""
        return frozenset(self._keys.values())


def _digest(description: str | None, variables: Mapping[str, JsonValue] | str) -> bytes:
    if isinstance(variables, str):
        try:
            variables = decode_json(variables)
        except ValueError:
            variables = {"": variables}
    # Sorted by name: the order of variables in a file decides nothing.
    named = sorted(variables.items()) if isinstance(variables, Mapping) else variables
    return hashlib.blake2b(encode_json([description or "", named]), digest_size=16).digest()


class MatchedBy(StrEnum):
    """The reason why two columns belong together."""

    LABEL = "label"
    PLACE = "place"
    CHOICE = "choice"


class ColumnPair(Struct, frozen=True):
    """A column of the earlier run, and the one of the later run that it is compared with."""

    before: Column
    after: Column
    by: MatchedBy

    @property
    def label(self) -> str:
        """Return the label that both have, or `old -> new`."""
        old, new = column_label(self.before), column_label(self.after)
        return new if old == new else f"{old} -> {new}"


class ColumnMatch(Struct, frozen=True):
    """The columns of two runs in pairs, in the order of the later run, and those without a partner."""

    pairs: tuple[ColumnPair, ...]
    only_before: tuple[Column, ...]
    only_after: tuple[Column, ...]

    def partners(self) -> dict[int, int]:
        """Return for each later column's index that of the earlier one."""
        return {pair.after.index: pair.before.index for pair in self.pairs}


def match_columns(
    before: Sequence[Column], after: Sequence[Column], chosen: Sequence[str] = ()
) -> ColumnMatch:
    """Return the columns in pairs: those `chosen` as `OLD=NEW`, equal labels, and by place where numbers agree.

    Raises:
        UsageError: a choice names no column, or more than one, or a column a second time.
    """
    pairs = [ColumnPair(*_chosen(text, before, after), MatchedBy.CHOICE) for text in chosen]
    if len({pair.before.index for pair in pairs}) < len(pairs) or len(
        {pair.after.index for pair in pairs}
    ) < len(pairs):
        raise UsageError("--column names a column twice", hint="each column has one partner")
    old = [item for item in before if item not in [pair.before for pair in pairs]]
    new = [item for item in after if item not in [pair.after for pair in pairs]]
    for partner, item in list(same_labels(old, new)):
        pairs.append(ColumnPair(partner, item, MatchedBy.LABEL))
        old.remove(partner)
        new.remove(item)
    if len(old) == len(new):
        pairs += [ColumnPair(*both, MatchedBy.PLACE) for both in zip(old, new, strict=True)]
        old, new = [], []
    pairs.sort(key=lambda pair: pair.after.index)
    return ColumnMatch(tuple(pairs), tuple(old), tuple(new))


def same_labels(before: Iterable[Column], after: Iterable[Column]) -> Iterator[tuple[Column, Column]]:
    """Yield columns of two runs in pairs, in the order of the later one: the n-th with the same labels in both."""
    waiting: defaultdict[tuple[str, str], deque[Column]] = defaultdict(deque)
    for column in before:
        waiting[column.prompt_label, column.provider_label].append(column)
    for column in after:
        same = waiting[column.prompt_label, column.provider_label]
        if same:
            yield same.popleft(), column


def column_label(column: Column) -> str:
    """Return `prompt | provider`, or the one of them that there is."""
    return " | ".join(label for label in (column.prompt_label, column.provider_label) if label)


def _chosen(text: str, before: Sequence[Column], after: Sequence[Column]) -> tuple[Column, Column]:
    # Labels may hold `=`, so every one is tried.
    places = [place for place, letter in enumerate(text) if letter == "="]
    found = [
        (old[0], new[0])
        for place in places
        if len(old := _named(text[:place], before)) == 1 and len(new := _named(text[place + 1 :], after)) == 1
    ]
    if len(found) == 1:
        return found[0]
    what = "takes OLD=NEW" if not places else "names no pair of columns"
    known = "; ".join(
        f"{side}: {', '.join(f'{item.index + 1} ({column_label(item)[:60]})' for item in columns)}"
        for side, columns in (("A", before), ("B", after))
    )
    raise UsageError(f"--column {what}: `{text}`", hint=f"name them by label or number; {known}")


def _named(name: str, columns: Sequence[Column]) -> list[Column]:
    """Return the columns called so: by number, in full, by provider or by prompt; the first way that finds one."""
    name = name.strip()
    ways = (
        [item for item in columns if column_label(item) == name],
        [item for item in columns if item.provider_label == name],
        [item for item in columns if item.prompt_label == name],
        [item for item in columns if str(item.index + 1) == name],
    )
    return next((found for found in ways if found), [])


def require_kinship(a: frozenset[TestKey], b: frozenset[TestKey], names: tuple[str, str]) -> None:
    """Check that the tests of two runs are by and large the same.

    Raises:
        UsageError: less than `LEAST_SHARE` of the smaller suite's tests are in the other one.
    """
    smaller, paired = min(len(a), len(b)), len(a & b)
    if not smaller:
        raise UsageError(f"there is nothing to compare: {names[0] if not a else names[1]} has no results")
    if paired < LEAST_SHARE * smaller:
        message = f"the suites are unrelated: {paired:,} of {plural(smaller, 'test')} {_verb(paired)}"
        hint = "tests match when description and variables are equal; at least half of the smaller suite must"
        raise UsageError(message, hint=hint)


def _verb(count: int) -> str:
    return "matches" if count == 1 else "match"
