"""What in a config runs code, reads the environment, writes files or calls web hooks: refused to strangers."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import AssertSetSpec, CodeAssertionSpec, WebhookAssertionSpec
from geval_cli.config.confinement import TRUST_HINT
from geval_cli.config.document import Document
from geval_cli.config.promptfoo.specs import FilteredProviderSpec, NamedPromptSpec, PromptfooOptions
from geval_cli.config.suite import Suite, TestCase
from geval_cli.errors import Location, Problem

_TRANSFORMS = {"transform": "transform", "context_transform": "contextTransform"}


class CodePart(Struct, frozen=True):
    """A part of a config that is code: what messages call it, and where it stands."""

    what: str
    location: Location | None


def code_of_suite(suite: Suite) -> Iterator[CodePart]:
    """The code that belongs to no test. Providers that are programs are for the providers' room to tell."""
    for item in suite.filters:
        yield CodePart(f"nunjucksFilters.{item.name}", item.location)
    for prompt in suite.prompts:
        if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
            yield CodePart(prompt.raw or prompt.made_by, prompt.place.value())
    for provider in suite.providers:
        if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
            yield CodePart("transform", provider.place.key("transform"))


def code_of_test(test: TestCase) -> Iterator[CodePart]:
    """The code that one test would run, its assertions' too."""
    if test.transform is not None:
        yield CodePart("transform", test.transform[1])
    if test.transform_vars is not None:
        yield CodePart("transformVars", test.transform_vars[1])
    if test.directions.assert_scoring_function is not None:
        yield CodePart("assertScoringFunction", test.place.key("assertScoringFunction"))
    if isinstance(test.provider, FilteredProviderSpec) and test.provider.transform is not None:
        yield CodePart("transform", test.provider.place.key("transform"))
    for name in test.directions.made_vars:
        yield CodePart(f"vars.{name}", test.place.value("vars", name))
    for spec in _every(test.assertions):
        if isinstance(spec, CodeAssertionSpec):
            yield CodePart(spec.base_type, spec.place.value("type"))
        for name, key in _TRANSFORMS.items():
            if getattr(spec, name, None) is not None:
                yield CodePart(key, spec.place.key(key))


def suite_trust_problems(suite: Suite) -> Iterator[Problem]:
    """What --untrusted refuses in the parts of a suite that belong to no test."""
    for part in code_of_suite(suite):
        yield _refused(part)
    options = suite.options
    if isinstance(options, PromptfooOptions) and options.outputs:
        message = f"`outputPath` writes a file ({options.outputs[0]}), which --untrusted does not allow"
        yield Problem(message, None, "leave it out, and write results with -o FILE")


def test_trust_problems(tests: Iterable[TestCase]) -> Iterator[Problem]:
    """What --untrusted refuses in tests, each once."""
    told: set[tuple[str, Location | None]] = set()
    for test in tests:
        for problem in _of_test(test):
            if (problem.message, problem.location) not in told:
                told.add((problem.message, problem.location))
                yield problem


def document_trust_problems(document: Document) -> Iterator[Problem]:
    """What --untrusted refuses in a config as it is written."""
    if isinstance(document.value, dict) and document.value.get("env"):
        message = "`env` sets environment values, which --untrusted does not allow"
        yield Problem(message, document.place.key("env"), TRUST_HINT)


def _of_test(test: TestCase) -> Iterator[Problem]:
    for part in code_of_test(test):
        yield _refused(part)
    for spec in _every(test.assertions):
        if isinstance(spec, WebhookAssertionSpec):
            message = "a webhook sends outputs to a server of its own, which --untrusted does not allow"
            yield Problem(message, spec.place.value("type"), TRUST_HINT)


def _refused(part: CodePart) -> Problem:
    return Problem(f"`{part.what}` runs code, which --untrusted does not allow", part.location, TRUST_HINT)


def _every(assertions: Iterable[AssertionSpec]) -> Iterator[AssertionSpec]:
    for spec in assertions:
        yield spec
        if isinstance(spec, AssertSetSpec):
            yield from _every(spec.assertions)
