"""A choice among the results of a run, by their statuses, scores, words and metadata."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from geval_cli.metrics import with_members
from geval_cli.records import CaseResult, JsonValue, Status

_WORD = re.compile(r'"([^"]+)"|([^\s"]+)')
FACETS_MAX, FACET_VALUES_MAX = 6, 30
"""More names are not offered, nor names with more values: they are rather numbers than kinds of tests."""


class Repeats(StrEnum):
    """The verdicts of a test's repeats in one column: all passed, all failed, or some passed and others failed."""

    PASSED = "passed"
    MIXED = "mixed"
    FAILED = "failed"


class ResultFilter(Struct, frozen=True):
    """A choice among results; None and an empty text choose all.

    Attributes:
        status: of the case; with a `metric`, of an assertion of that metric.
        metric: only results that have it; sorting by score then goes by its score.
        text: words, or phrases in double quotes, that all stand somewhere in the description, the variables, the
            prompt, the output, a reason or an error; upper and lower case are equal.
        metadata: names with the value that the result has for each.
        differs: only tests whose columns do not all have the same status.
        column: only results of this column.
        low: only results with a score from here on: of the `metric` if there is one, else of the case.
        high: only results with a score below this; 1 takes in a score of 1, where the scale of scores ends.
        test: only results of this test.
        repeats: only results of tests whose repeats in that column have these verdicts.
        label_low: only results whose mean label of the `metric` is from here on.
        label_high: only those whose mean label is below this.
        ids: only the results with these ids; those that have such labels.
    """

    status: Status | None = None
    metric: str | None = None
    text: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    differs: bool = False
    column: int | None = None
    low: float | None = None
    high: float | None = None
    test: int | None = None
    repeats: Repeats | None = None
    label_low: float | None = None
    label_high: float | None = None
    ids: frozenset[str] | None = None

    @property
    def is_active(self) -> bool:
        """Return whether the filter leaves anything out."""
        return self != ResultFilter()

    @property
    def words(self) -> tuple[str, ...]:
        """The words and phrases of `text`, ready to be found in folded texts."""
        return tuple((phrase or word).casefold() for phrase, word in _WORD.findall(self.text))


class Facet(Struct, frozen=True):
    """A name in the metadata of a run's results, with each of its values and the number of results that have it."""

    name: str
    values: tuple[tuple[str, int], ...]


def searched_texts(result: CaseResult) -> Iterator[str]:
    """Yield the texts of a result in which a search looks for words."""
    yield result.description or ""
    yield result.prompt.rendered
    yield from _texts_in(result.output)
    yield from _texts_in(result.vars)
    yield "" if result.error is None else result.error.message
    for item, _ in with_members(result.assertions):
        yield item.metric or ""
        yield item.reason or ""
        yield "" if item.error is None else item.error.message


def metadata_texts(value: JsonValue) -> tuple[str, ...]:
    """Return the text of a metadata value by which it is chosen; of a list, those of its members."""
    if isinstance(value, list | tuple):
        return tuple(text for item in value for text in metadata_texts(item))
    if isinstance(value, Mapping) or value is None:
        return ()
    return (value if isinstance(value, str) else json.dumps(value),)


def facets_of(metadata: Iterable[Mapping[str, JsonValue]]) -> tuple[Facet, ...]:
    """Return the names and values that metadata can be chosen by: those with a few values that several tests share."""
    counts: dict[str, Counter[str]] = {}
    for values in metadata:
        for name, value in values.items():
            of_name = counts.setdefault(name, Counter())
            if len(of_name) <= FACET_VALUES_MAX:
                of_name.update(set(metadata_texts(value)))
    usable = [(name, found) for name, found in counts.items() if 1 < len(found) <= FACET_VALUES_MAX]
    return tuple(Facet(name, tuple(sorted(found.items()))) for name, found in usable[:FACETS_MAX])


def _texts_in(value: JsonValue) -> Iterator[str]:
    """Yield the strings and numbers within a value, not the names of its members."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)
    elif value is not None:
        yield value if isinstance(value, str) else json.dumps(value, default=repr)


def may_fit(text: str, wanted: ResultFilter) -> bool:
    """Return whether a stored result may have all words, without reading it, which takes ten times as long."""
    if "\\u" in text:  # some of its characters are not written as they are
        return True
    plain = [word for word in wanted.words if word.isalnum()]
    folded = text.casefold() if plain else ""
    return all(word in folded for word in plain)


def fits(result: CaseResult, wanted: ResultFilter) -> bool:
    """Return whether a result has all words and all metadata that are wanted."""
    if any(value not in metadata_texts(result.metadata.get(name)) for name, value in wanted.metadata):
        return False
    missing = set(wanted.words)
    for text in searched_texts(result) if missing else ():
        folded = text.casefold()
        missing = {word for word in missing if word not in folded}
        if not missing:
            break
    return not missing
