"""List where a run of one config differs from promptfoo: on purpose, with the reason in the docs."""

import re
from collections.abc import Iterator

from msgspec import Struct

from geval_cli.assertions.base import ModelGradedAssertion, TestCase, each_assertion
from geval_cli.errors import Location
from geval_cli.suite.suite import Suite

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d.*)?")


class Difference(Struct, frozen=True):
    """One thing in a config, what promptfoo makes of it, and what geval makes of it."""

    what: str
    promptfoo: str
    geval: str
    location: Location | None = None


def differences(suite: Suite) -> Iterator[Difference]:
    """Yield every known difference for a suite of promptfoo's dialect, each once, in the order of importance."""
    seen: set[tuple[str, Location | None]] = set()
    for found in _all(suite):
        if (found.what, found.location) not in seen:
            seen.add((found.what, found.location))
            yield found


def _all(suite: Suite) -> Iterator[Difference]:
    judged = False
    for test in suite.tests:
        for assertion in each_assertion(test.assertions):
            if isinstance(assertion, ModelGradedAssertion) and not judged:
                judged = True
                yield Difference(
                    "assertions that a judge decides",
                    "a judge that cannot be asked, or whose reply cannot be read, fails the test with score 0",
                    "that is an error: the test is neither passed nor failed, and the exit code is 3",
                    assertion.place.key(),
                )
        yield from _of_test(test)
    yield from _of_warnings(suite)
    for provider in suite.providers:
        if provider.config.get("cache") is not None:
            where = provider.place.value("config", "cache")
            yield Difference(
                "`cache` of one provider", "is obeyed", "goes to the model; use --no-cache", where
            )


def _of_test(test: TestCase) -> Iterator[Difference]:
    for name, value in test.vars.items():
        if isinstance(value, str) and _DATE.fullmatch(value):
            yield Difference(
                f"the variable `{name}` looks like a date",
                "an unquoted date becomes a JavaScript date, written out with weekday and time zone",
                "it stays the text that the config has",
                test.place.value("vars", name),
            )
    if test.promptfoo.store_output_as:
        yield Difference(
            "`storeOutputAs`",
            "template expressions in the stored answer are rendered in later prompts",
            "an answer is put in as it is and never rendered",
            test.place.value("options"),
        )


def _of_warnings(suite: Suite) -> Iterator[Difference]:
    for problem in suite.warnings:
        hint = f" ({problem.hint})" if problem.hint else ""
        yield Difference(problem.message, "takes it as it is", f"warns{hint}", problem.location)
