"""Refuses untrusted configs that run code, read the environment, write files or call webhooks."""

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from geval_cli.assertions.base import MergedTest, each_assertion
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.source.access import TRUST_HINT
from geval_cli.source.source_map import Document, SourcePath
from geval_cli.specs.base import Spec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec, PromptfooOptions
from geval_cli.suite.suite import LoadedSuite, TestSource

_TRANSFORMS = {"transform": "transform", "context_transform": "contextTransform"}


class CodePart(Struct, frozen=True):
    """A part of a config that is code: its name in messages, and its location."""

    what: str
    location: Location | None


def code_of_suite(suite: LoadedSuite) -> Iterator[CodePart]:
    """Yield the code outside of tests. Provider programs are found by the package `providers`."""
    for item in suite.filters:
        yield CodePart(f"nunjucksFilters.{item.name}", item.location)
    for prompt in suite.prompts:
        if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
            yield CodePart(prompt.raw or prompt.made_by, prompt.place.value())
    for provider in suite.providers:
        if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
            yield CodePart("transform", provider.place.key("transform"))


def code_of_test(test: MergedTest) -> Iterator[CodePart]:
    """Yield the code that one test would run, including that of its assertions."""
    if test.transform is not None:
        yield CodePart("transform", test.transform[1])
    if test.transform_vars is not None:
        yield CodePart("transformVars", test.transform_vars[1])
    if test.promptfoo.assert_scoring_function is not None:
        yield CodePart("assertScoringFunction", test.place.key("assertScoringFunction"))
    if isinstance(test.provider, FilteredProviderSpec) and test.provider.transform is not None:
        yield CodePart("transform", test.provider.place.key("transform"))
    if test.tools is not None and test.tools.named_functions:
        yield CodePart("tools", test.tools.place.key())
    for name in test.promptfoo.made_vars:
        yield CodePart(f"vars.{name}", test.place.value("vars", name))
    for spec in each_assertion(test.all_assertions):
        if spec.runs_code:
            yield CodePart(spec.base_type, spec.place.value("type"))
        for name, key in _TRANSFORMS.items():
            if getattr(spec, name, None) is not None:
                yield CodePart(key, spec.place.key(key))


def suite_trust_problems(suite: LoadedSuite) -> Iterator[Problem]:
    """Yield the problems under --untrusted of the parts of a suite outside of its tests."""
    for part in code_of_suite(suite):
        yield _refused(part)
    options = suite.options
    if isinstance(options, PromptfooOptions) and options.outputs:
        message = f"`outputPath` writes a file ({options.outputs[0]}), which --untrusted does not allow"
        yield Problem(message, None, "leave it out, and write results with -o FILE")


class WatchedTests:
    """The tests of an untrusted suite. The first pass finds what is refused; later passes must yield the same tests.

    Tests are read again and again during a run, and the files that they come from may change in the meantime.
    """

    __test__ = False

    def __init__(self, source: TestSource) -> None:
        self._source = source
        self._digests: list[bytes] = []
        self._is_complete = False
        self._refused: dict[tuple[str, Location | None], Problem] = {}

    @property
    def refused(self) -> tuple[Problem, ...]:
        """Return the problems under --untrusted of the tests read so far, each once."""
        return tuple(self._refused.values())

    def __iter__(self) -> Iterator[MergedTest]:
        count = 0
        for test in self._source:
            self._check(count, test)
            count += 1
            yield test
        if count < len(self._digests):
            raise ConfigError([_changed(None, count)])
        self._is_complete = True

    def _check(self, number: int, test: MergedTest) -> None:
        # A hash of everything in a test except its place.
        try:
            text = msgspec.json.encode(test, enc_hook=_plain)
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold and UTF-8 cannot
            text = repr(msgspec.to_builtins(test, enc_hook=_plain)).encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(text).digest()
        if number < len(self._digests):
            if digest != self._digests[number]:
                raise ConfigError([_changed(test.place.value(), number)])
            return
        if self._is_complete:
            raise ConfigError([_changed(test.place.value(), number)])
        self._digests.append(digest)
        for problem in _of_test(test):
            self._refused.setdefault((problem.message, problem.location), problem)


def _changed(location: Location | None, number: int) -> Problem:
    message = f"test {number + 1} has changed since it was checked: a tests file was modified"
    return Problem(message, location, "do not change the files during a run, and run again")


def _plain(value: object) -> object:
    if isinstance(value, SourcePath):
        return None
    if isinstance(value, Spec):
        return [type(value).__name__, dict(value)]
    return repr(value)


def document_trust_problems(document: Document) -> Iterator[Problem]:
    """Yield the problems under --untrusted of a config as it is written."""
    if isinstance(document.value, dict) and document.value.get("env"):
        message = "`env` sets environment values, which --untrusted does not allow"
        yield Problem(message, document.place.key("env"), TRUST_HINT)


def _of_test(test: MergedTest) -> Iterator[Problem]:
    for part in code_of_test(test):
        yield _refused(part)
    for spec in each_assertion(test.all_assertions):
        if spec.calls_server:
            message = "a webhook sends outputs to another server, which --untrusted does not allow"
            yield Problem(message, spec.place.value("type"), TRUST_HINT)


def _refused(part: CodePart) -> Problem:
    return Problem(f"`{part.what}` runs code, which --untrusted does not allow", part.location, TRUST_HINT)
