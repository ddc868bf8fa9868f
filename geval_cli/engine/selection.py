"""Which tests, prompts and providers of a suite a run takes: the `--filter-...` options. Pure."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from msgspec import Struct

from geval_cli.assertions.base import TestCase
from geval_cli.records import CaseResult, JsonValue, Status
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.suite.suite import Suite, TestSource

_PATTERN_TIMEOUT_S = 2.0


class Selection(Struct, frozen=True):
    """A choice of tests; each part narrows the choice of those before it, in this order.

    Attributes:
        providers: a regular expression that is found in a provider's id or label.
        prompts: the same for prompts.
        pattern: the same for a test's description.
        metadata: names and values; a test must have all of them. A value fits when it is part of a text, or an item of
            a list.
        failing: fingerprints of tests, as `failing_tests` finds them; None for all.
        only: the numbers of tests; None for all.
        first: how many tests at most, from the first on.
        sample: how many tests at most, drawn at random with `seed`; they keep their order.
    """

    providers: str | None = None
    prompts: str | None = None
    pattern: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    failing: frozenset[str] | None = None
    only: frozenset[int] | None = None
    first: int | None = None
    sample: int | None = None
    seed: int = 0

    @property
    def takes_all(self) -> bool:
        """Return whether nothing is left out."""
        return self == Selection(seed=self.seed)

    def apply(self, suite: Suite) -> Suite:
        """Return the suite with what is selected of it. Tests keep their numbers."""
        if self.takes_all:
            return suite
        return replace(
            suite,
            providers=tuple(spec for spec in suite.providers if self._takes_provider(spec)),
            prompts=tuple(spec for spec in suite.prompts if self._takes_prompt(spec)),
            tests=SelectedTests(suite.tests, self),
        )

    def takes(self, test: TestCase) -> bool:
        """Return whether a test is one of those that `first` and `sample` choose among."""
        return (
            (self.pattern is None or _is_found(self.pattern, test.description or ""))
            and all(_fits(test.metadata.get(name), value) for name, value in self.metadata)
            and (self.failing is None or fingerprint(test) in self.failing)
            and (self.only is None or test.index in self.only)
        )

    def _takes_provider(self, spec: ProviderSpec) -> bool:
        return self.providers is None or any(
            _is_found(self.providers, name) for name in (spec.id, spec.label)
        )

    def _takes_prompt(self, spec: PromptSpec) -> bool:
        return self.prompts is None or any(_is_found(self.prompts, name) for name in (spec.id, spec.label))


class SelectedTests(Struct):
    """The selected tests of a source. The first pass goes through all of it, so that mistakes anywhere are found."""

    source: TestSource
    selection: Selection
    _drawn: frozenset[int] | None = None
    _is_checked: bool = False

    def __iter__(self) -> Iterator[TestCase]:
        if self.selection.sample is not None and self._drawn is None:
            self._drawn = _draw(self._candidates(), self.selection.sample, self.selection.seed)
        for test in self._candidates():
            if self._drawn is None or test.index in self._drawn:
                yield test
        self._is_checked = True

    def _candidates(self) -> Iterator[TestCase]:
        taken, first = 0, self.selection.first
        for test in self.source:
            if first is not None and taken >= first:
                if self._is_checked:
                    return
                continue
            if self.selection.takes(test):
                taken += 1
                yield test


def _draw(tests: Iterable[TestCase], count: int, seed: int) -> frozenset[int]:
    """The indexes of `count` tests, each equally likely, of a stream that is held at no time (reservoir sampling)."""
    generator = random.Random(seed)
    drawn: list[int] = []
    for position, test in enumerate(tests):
        if position < count:
            drawn.append(test.index)
        elif (place := generator.randrange(position + 1)) < count:
            drawn[place] = test.index
    return frozenset(drawn)


def failing_tests(results: Iterable[CaseResult]) -> frozenset[str]:
    """Return the fingerprints of the tests that failed, or could not be judged, in any column of an earlier run."""
    return frozenset(
        _fingerprint(result.description, result.vars, result.test_index)
        for result in results
        if result.status in {Status.FAILED, Status.ERROR}
    )


def fingerprint(test: TestCase) -> str:
    """Return the key that finds a test in another run: its description and vars; without both, its number."""
    return _fingerprint(test.description, test.vars, test.index)


def _fingerprint(description: str | None, variables: Mapping[str, JsonValue], index: int) -> str:
    what: JsonValue = [description, variables] if description or variables else index
    return json.dumps(what, sort_keys=True, ensure_ascii=False, default=str)


def _is_found(pattern: str, text: str) -> bool:
    import regex  # noqa: PLC0415 - few runs have patterns, and its own take a while to compile

    return regex.search(pattern, text, timeout=_PATTERN_TIMEOUT_S) is not None


def _fits(found: JsonValue, value: str) -> bool:
    if isinstance(found, list | tuple):
        return any(_text(item) == value for item in found)
    return found is not None and value in _text(found)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
