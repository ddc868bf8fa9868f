"""A choice among the results of a run, by their statuses, scores, words and metadata."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, JsonValue, Status

_WORD = re.compile(r'"([^"]+)"|([^\s"]+)')
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789 ")
_MAY_BE_NO_STRING = re.compile("[0-9-]|true$|false$|NaN$|Infinity$").match
_FOLD_TO_ASCII = (
    "\xdf\u0130\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)
"""All characters that have an ASCII letter in them once they are folded."""
WORST_FIRST = (Status.FAILED, Status.ERROR, Status.PASSED, Status.NOT_EVALUATED)
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
        status: of the case; with a `metric`, the worst one of its assertions of that metric.
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


class _Message(Struct, frozen=True):
    message: str


class _SearchedPrompt(Struct, frozen=True):
    rendered: str


class SearchedAssertion(Struct, frozen=True):
    """The parts of an assertion's result that a choice depends on."""

    metric: str | None
    reason: str | None = None
    error: _Message | None = None
    assertions: tuple["SearchedAssertion", ...] = ()


class SearchedResult(Struct, frozen=True):
    """The parts of a result that a choice depends on, read many times faster than all of it."""

    prompt: _SearchedPrompt
    description: str | None = None
    vars: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    ended_by: str | UnsetType = UNSET
    error: _Message | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    assertions: tuple[SearchedAssertion, ...] = ()


def searched_texts(result: CaseResult | SearchedResult) -> Iterator[str]:
    """Yield the texts of a result in which a search looks for words."""
    yield result.description or ""
    yield result.prompt.rendered
    yield from _texts_in(result.output)
    yield from _texts_in(result.vars)
    yield result.ended_by or ""
    yield "" if result.error is None else result.error.message
    yield from _said_in(result.assertions)


def _said_in(assertions: Sequence[AssertionResult] | Sequence[SearchedAssertion]) -> Iterator[str]:
    for item in assertions:
        yield item.metric or ""
        yield item.reason or ""
        yield "" if item.error is None else item.error.message
        yield from _said_in(item.assertions)


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
                for text in (value,) if isinstance(value, str) else set(metadata_texts(value)):
                    of_name[text] += 1
    usable = [(name, found) for name, found in counts.items() if 1 < len(found) <= FACET_VALUES_MAX]
    return tuple(Facet(name, tuple(sorted(found.items()))) for name, found in usable[:FACETS_MAX])


def _texts_in(value: JsonValue) -> Iterator[str]:
    """Yield the strings and numbers within a value, not the names of its members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)
    elif value is not None:
        yield json.dumps(value, default=repr)


def plain_parts(wanted: ResultFilter) -> tuple[tuple[str, ...], str]:
    """Return what the stored text of every wanted result has, in either case, and what else may stand for it.

    A database finds the parts many times faster than a program: they are ASCII, or of scripts without upper case. A
    text that lacks one of them may still have it once it is folded if it has one of the characters that are returned
    second: ß stands for ss.
    """
    runs = (groupby(word, key=_is_plain) for word in wanted.words)
    found = ("".join(run) for groups in runs for is_plain, run in groups if is_plain)
    parts = tuple(part for part in found if part.strip())
    letters = set("".join(parts))
    texts = (value for _, value in wanted.metadata if value.isprintable() and not _MAY_BE_NO_STRING(value))
    parts += tuple(json.dumps(text, ensure_ascii=False) for text in texts)
    return parts, "".join(sign for sign in _FOLD_TO_ASCII if letters & set(sign.casefold()))


def _is_plain(character: str) -> bool:
    return character in _PLAIN or unicodedata.category(character) == "Lo"


def metric_verdicts(result: CaseResult) -> dict[str, tuple[Status, float | None]]:
    """Return the worst status of each metric of a result, in the order of its assertions, with its score."""
    found: dict[str, Status] = {}
    for item, _ in with_members(result.assertions):
        if item.metric is not None:
            found[item.metric] = min(found.get(item.metric, item.status), item.status, key=WORST_FIRST.index)
    return {metric: (status, result.named_scores.get(metric)) for metric, status in found.items()}


def fits(
    result: CaseResult | SearchedResult, words: tuple[str, ...], metadata: Iterable[tuple[str, str]]
) -> bool:
    """Return whether a result has all words and all metadata."""
    if any(value not in metadata_texts(result.metadata.get(name)) for name, value in metadata):
        return False
    missing = words
    for text in searched_texts(result) if missing else ():
        folded = text.casefold()
        missing = tuple(word for word in missing if word not in folded)
        if not missing:
            break
    return not missing
