"""Match the tests and columns of two runs. Pure functions that every comparison of runs uses.

Tests match if their content is equal, wherever they are in the suite; columns if their labels are, and the remaining
ones by position if both runs have equally many left.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.columns import column_name, names_of_both, same_labels
from geval_cli.engine.plan import key_across_formats, key_of, rough_key, with_texts, words_of
from geval_cli.errors import UsageError
from geval_cli.extras.run_pages import StoredVerdict
from geval_cli.json_codec import decode_json
from geval_cli.numbers import plural
from geval_cli.records import CaseResult, Column, JsonValue
from geval_cli.source.media import without_media_data

LEAST_SHARE = 0.5
"""Suites that share less than this of the smaller one's tests are taken for unrelated, and not compared."""


class TestName(Struct, frozen=True):
    """The content of a test, as far as it is known.

    Attributes:
        key: the key of its whole content (`engine.plan`); None if a result does not have it.
        rough: the key of what every result has: description, variables, and the turns that are not the assistant's.
        words: how many turns `rough` covers; an error may have cut a conversation short.
    """

    __test__ = False

    key: str | None
    rough: str
    words: int = 0


def name_of_test(test: MergedTest) -> TestName:
    """Return the name of a test that is about to run."""
    return _name(key_of(test), test.description, without_media_data(test.vars), words_of(test.turns))


def name_of_result(result: CaseResult | StoredVerdict) -> TestName:
    """Return the name of a result's test."""
    words = decode_json(result.words) if isinstance(result, StoredVerdict) else words_of(result.turns)
    return _name(result.test_key, result.description, result.vars, words)


def name_by(result: CaseResult | StoredVerdict, known: TestName | None) -> TestName | None:
    """Return the name of a test by a further result; None if that tells no more than what is `known`.

    Another column may have got further in a conversation, or be from a newer geval that resumed the run.
    """
    if known is None:
        return name_of_result(result)
    has_words = result.words != "[]" if isinstance(result, StoredVerdict) else bool(result.turns)
    if known.key is not None or not (has_words or result.test_key):
        return None
    name = name_of_result(result)
    return name if name.key is not None or name.words > known.words else None


def _name(
    key: str | None, description: str | None, variables: Mapping[str, JsonValue] | str, words: Sequence[str]
) -> TestName:
    found = _decoded(variables)
    if isinstance(found, Mapping):
        if key is not None:
            key = key_across_formats(key, description, found)
        variables = with_texts(found)
    return TestName(key, rough_key(description, variables, words), len(words))


def _decoded(variables: Mapping[str, JsonValue] | str) -> JsonValue:
    """Return variables, decoded if they are JSON text from a store; other text is returned unchanged."""
    if not isinstance(variables, str):
        return variables
    try:
        return decode_json(variables)
    except ValueError:
        return variables


class AmbiguousTests(Struct, frozen=True):
    """The tests of two runs that could also have been paired in another way.

    Attributes:
        miscounted: tests with the same content, of which the runs have different numbers.
        unknown: tests that the results of a run do not tell apart, of which the runs have different numbers.
        by_order: such tests of which both runs have equally many.
        without_keys: the runs that have such results: "A", "B" or "A and B"; empty if there are none.
    """

    miscounted: int = 0
    unknown: int = 0
    by_order: int = 0
    without_keys: str = ""


class TestPairs:
    """Finds the tests of a later run in an earlier one; of equal tests, the first is paired with the first, and so on.

    Tests are equal if their keys are. If one of the two has no key, the content that every result has is compared.

    Args:
        earlier: the tests of the earlier run by index, in the order of the run.

    Attributes:
        later: the tests of the later run, as far as they have been seen.
        partners: for each later test that has a partner, the index of the earlier one.
    """

    __test__ = False

    def __init__(self, earlier: Mapping[int, TestName]) -> None:
        self.earlier = earlier
        self.later: dict[int, TestName] = {}
        self.partners: dict[int, int] = {}
        self._taken: set[int] = set()
        self._by_key: defaultdict[str | None, deque[int]] = defaultdict(deque)
        self._by_rough: defaultdict[tuple[str, bool], deque[int]] = defaultdict(deque)
        for index, name in earlier.items():
            self._by_key[name.key].append(index)
            self._by_rough[name.rough, False].append(index)
            if name.key is None:
                self._by_rough[name.rough, True].append(index)

    def add(self, index: int, name: TestName) -> None:
        """Add a test of the later run, or more of its content if it has no partner yet."""
        self.later[index] = name
        if index in self.partners:
            return
        found = None if name.key is None else self._next(self._by_key.get(name.key))
        if found is None:  # with a key, only tests without one can still be equal
            found = self._next(self._by_rough.get((name.rough, name.key is not None)))
        if found is not None:
            self.partners[index] = found

    def _next(self, waiting: deque[int] | None) -> int | None:
        while waiting:
            index = waiting.popleft()
            if index not in self._taken:
                self._taken.add(index)
                return index
        return None

    def alike(self) -> AmbiguousTests:
        """Return how many of the tests so far could have been paired in another way."""
        mine, theirs = _counts_of_keys(self.later), _counts_of_keys(self.earlier)
        miscounted = _most_of_uneven((mine[key], theirs[key]) for key in mine.keys() & theirs.keys())
        # How many tests of both runs were candidates for each other without a key on one of the sides.
        by_key = {
            index
            for index, other in self.partners.items()
            if self.later[index].key is not None and self.later[index].key == self.earlier[other].key
        }
        before = _counts_by_rough(self.earlier, {self.partners[index] for index in by_key})
        after = _counts_by_rough(self.later, by_key)
        groups = []
        for rough in before.keys() & after.keys():
            (old, old_keyed), (new, new_keyed) = before[rough], after[rough]
            pair = old + (old_keyed if new else 0), new + (new_keyed if old else 0)
            if all(pair):
                groups.append(pair)
        lacking = [
            name
            for name, names in (("A", self.earlier), ("B", self.later))
            if any(item.key is None for item in names.values())
        ]
        return AmbiguousTests(
            miscounted,
            _most_of_uneven(groups),
            sum(before for before, after in groups if before == after > 1),
            " and ".join(lacking),
        )


def _counts_of_keys(names: Mapping[int, TestName]) -> Counter[str]:
    return Counter(name.key for name in names.values() if name.key is not None)


def _counts_by_rough(names: Mapping[int, TestName], settled: Container[int]) -> dict[str, tuple[int, int]]:
    """Return the numbers of tests without and with a key, by rough key, leaving out those that are settled."""
    found: dict[str, tuple[int, int]] = {}
    for index, name in names.items():
        if index not in settled:
            without, keyed = found.get(name.rough, (0, 0))
            found[name.rough] = (without + (name.key is None), keyed + (name.key is not None))
    return found


def _most_of_uneven(pairs: Iterable[tuple[int, int]]) -> int:
    return sum(max(pair) for pair in pairs if pair[0] != pair[1])


class MatchedBy(StrEnum):
    """How two columns were matched."""

    LABEL = "label"
    PLACE = "place"
    CHOICE = "choice"


class ColumnPair(Struct, frozen=True):
    """A column of the earlier run, and the one of the later run that it is compared with.

    `number` is that of the later column, `[2] `, if other pairs have the same labels; it comes first so that it is not
    cut.
    """

    before: Column
    after: Column
    by: MatchedBy
    number: str = ""

    @property
    def label(self) -> str:
        """The label that both columns have, or `old -> new`."""
        old, new = column_name(self.before), column_name(self.after)
        return self.number + (new if old == new else f"{old} -> {new}")


class ColumnMatch(Struct, frozen=True):
    """The columns of two runs in pairs, in the order of the later run, and those without a partner."""

    pairs: tuple[ColumnPair, ...]
    only_before: tuple[Column, ...]
    only_after: tuple[Column, ...]

    def partners(self) -> dict[int, int]:
        """Return the index of the earlier column by the index of the later one."""
        return {pair.after.index: pair.before.index for pair in self.pairs}


def match_columns(
    before: Sequence[Column], after: Sequence[Column], chosen: Sequence[str] = ()
) -> ColumnMatch:
    """Return the columns in pairs: those `chosen` as `OLD=NEW`, equal labels, then by position if as many are left.

    Raises:
        UsageError: a choice names no column, or more than one, or a column a second time.
    """
    pairs = [ColumnPair(*_chosen(text, before, after), MatchedBy.CHOICE) for text in chosen]
    if len({pair.before.index for pair in pairs}) < len(pairs) or len(
        {pair.after.index for pair in pairs}
    ) < len(pairs):
        raise UsageError("--column names a column twice", hint="pair each column only once")
    old = [item for item in before if item not in [pair.before for pair in pairs]]
    new = [item for item in after if item not in [pair.after for pair in pairs]]
    for partner, item in list(same_labels(old, new)):
        pairs.append(ColumnPair(partner, item, MatchedBy.LABEL))
        old.remove(partner)
        new.remove(item)
    # A column with the labels of a chosen one has lost its partner to the choice, but it was not renamed.
    by_choice = [pair for pair in pairs if pair.by is MatchedBy.CHOICE]
    chosen_before = {_labels(pair.before) for pair in by_choice}
    chosen_after = {_labels(pair.after) for pair in by_choice}
    renamed = [item for item in old if _labels(item) not in chosen_after]
    newly_named = [item for item in new if _labels(item) not in chosen_before]
    if len(renamed) == len(newly_named):
        pairs += [ColumnPair(*both, MatchedBy.PLACE) for both in zip(renamed, newly_named, strict=True)]
        old = [item for item in old if item not in renamed]
        new = [item for item in new if item not in newly_named]
    pairs.sort(key=lambda pair: pair.after.index)
    labels = Counter(pair.label for pair in pairs)
    numbered = (
        replace(pair, number=f"[{pair.after.index + 1}] ") if labels[pair.label] > 1 else pair
        for pair in pairs
    )
    return ColumnMatch(tuple(numbered), tuple(old), tuple(new))


def _labels(column: Column) -> tuple[str, str]:
    return column.prompt_label, column.provider_label


def _chosen(text: str, before: Sequence[Column], after: Sequence[Column]) -> tuple[Column, Column]:
    # Labels may contain `=`, so every position is tried.
    places = [place for place, letter in enumerate(text) if letter == "="]
    found = [
        (old[0], new[0])
        for place in places
        if len(old := _named(text[:place], before)) == 1 and len(new := _named(text[place + 1 :], after)) == 1
    ]
    if len(found) == 1:
        return found[0]
    message = f"--column `{text}` is not a pair of columns" if places else f"--column takes OLD=NEW: `{text}`"
    if len(places) == 1:
        names = text.partition("=")[::2]
        sides = zip(names, (before, after), "AB", strict=True)
        message += ": " + ", and ".join(filter(None, (_ambiguity(*side) for side in sides)))
    known = "; ".join(
        f"{side}: {', '.join(f'{item.index + 1} ({column_name(item)[:60]})' for item in columns)}"
        for side, columns in (("A", before), ("B", after))
    )
    raise UsageError(message, hint=f"use labels or numbers; {known}")


def _ambiguity(name: str, columns: Sequence[Column], side: str) -> str:
    """Return why a name does not identify one column; "" if it does."""
    count = len(_named(name, columns))
    if count == 1:
        return ""
    return (
        f"{count:,} columns of {side} have the label `{name}`" if count else f"{side} has no column `{name}`"
    )


def _named(name: str, columns: Sequence[Column]) -> list[Column]:
    """Return the columns with this name, or else with this provider, prompt or number: the first kind that matches."""
    name = name.strip()
    ways = (
        [item for item in columns if name in names_of_both(item)],
        [item for item in columns if item.provider_label == name],
        [item for item in columns if item.prompt_label == name],
        [item for item in columns if str(item.index + 1) == name],
    )
    return next((found for found in ways if found), [])


def require_kinship(earlier: int, later: int, paired: int, names: tuple[str, str]) -> None:
    """Check that the tests of two runs are mostly the same; `paired` is the number of their pairs.

    Raises:
        UsageError: less than `LEAST_SHARE` of the smaller suite's tests are in the other one.
    """
    smaller = min(earlier, later)
    if not smaller:
        raise UsageError(
            f"there is nothing to compare: {names[0] if not earlier else names[1]} has no results"
        )
    if paired < LEAST_SHARE * smaller:
        verb = "matches" if paired == 1 else "match"
        message = f"the suites are unrelated: {paired:,} of {plural(smaller, 'test')} {verb}"
        hint = "compare runs with the same tests: at least half of the smaller suite must match"
        raise UsageError(message, hint=hint)
