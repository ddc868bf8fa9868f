"""Where code of the config takes part in a job. `extras.programs` runs it, and is loaded only if there is any."""

from collections.abc import Iterator, Mapping, Sequence

from geval_cli.assertions.base import Assertion, CheckContext, MergedTest, Subject, Tools, Verdict
from geval_cli.assertions.judges import ContextAssertion
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import REQUESTS
from geval_cli.errors import Problem
from geval_cli.plugins import extra
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.suite import LoadedSuite

PROGRAMS = "code of a config"
"""The name in `plugins.EXTRAS` of the module that runs such code."""


def is_made_by_code(job: Job) -> bool:
    """Return whether code makes the prompt or a variable of a job."""
    is_program = isinstance(job.prompt, NamedPromptSpec) and bool(job.prompt.made_by)
    return is_program or bool(job.test.promptfoo.made_vars) or job.test.transform_vars is not None


def output_code(provider: ProviderSpec, test: MergedTest) -> list[str]:
    """Return the code that transforms an answer into the output, in order: the provider's own, then the test's."""
    own = provider.transform if isinstance(provider, FilteredProviderSpec) else None
    of_test = None if test.transform is None else test.transform[0]
    return [written for written in (own, of_test) if written is not None]


def assertion_code(spec: Assertion) -> tuple[str | None, str | None]:
    """Return an assertion's own code for the output and for the context that it sees; None where it has none."""
    return spec.transform, spec.context_transform if isinstance(spec, ContextAssertion) else None


async def with_made_parts(job: Job, tools: Tools, earlier: Mapping[str, JsonValue]) -> Job:
    """Return the job with the variables and the prompt that code makes; see `extras.programs.steps`."""
    if tools.scripts is None or not is_made_by_code(job):
        return job
    made: Job = await extra(PROGRAMS).with_made_parts(job, tools, earlier)
    return made


async def with_transformed_output(
    subject: Subject, provider: ProviderSpec, prompt: PromptSpec, tools: Tools
) -> Subject:
    """Return the subject with its output after the provider's `transform`, then the test's.

    Without `tools.scripts`, no code runs. In some dialects, an answer to a request with a JSON Schema is parsed before
    any transform sees it.

    Raises:
        CodeFailedError: the code fails, or returns nothing.
    """
    if tools.rules.parses_schema_answers:
        subject = extra(REQUESTS).with_structured_output(subject, provider, prompt)
    if tools.scripts is None or not output_code(provider, subject.test):
        return subject
    transformed: Subject = await extra(PROGRAMS).with_transformed_output(subject, provider, prompt, tools)
    return transformed


async def seen_by_assertion(spec: Assertion, subject: Subject, tools: Tools) -> Subject:
    """Return the subject with the output after the assertion's own `transform`, and the context that its code extracts.

    Raises:
        CodeFailedError: the code fails, or returns nothing.
    """
    if tools.scripts is None or assertion_code(spec) == (None, None):
        return subject
    seen: Subject = await extra(PROGRAMS).seen_by_assertion(spec, subject, tools)
    return seen


async def own_verdict(
    verdict: Verdict,
    judged: Sequence[tuple[Assertion, AssertionResult]],
    subject: Subject,
    tools: Tools,
) -> Verdict:
    """Return the verdict of the test's `assertScoringFunction`, or `verdict` itself if there is none.

    A test with an assertion that could not be judged stays an error, without a call of its function.

    Raises:
        CodeFailedError: the function fails, or returns no verdict.
    """
    if (
        subject.test.promptfoo.assert_scoring_function is None
        or not tools.rules.scoring_functions
        or tools.scripts is None
        or verdict.status is Status.ERROR
    ):
        return verdict
    own: Verdict = await extra(PROGRAMS).own_verdict(judged, subject, tools)
    return own


def check_code(suite: LoadedSuite, context: CheckContext, *, is_first: bool) -> Iterator[Problem]:
    """Yield the problems of a test's code and, with the first test, of the code outside tests."""
    if is_first and (
        any(isinstance(one, FilteredProviderSpec) and one.transform is not None for one in suite.providers)
        or any(isinstance(one, NamedPromptSpec) and one.made_by for one in suite.prompts)
    ):
        yield from extra(PROGRAMS).check_suite_code(suite, context)
    test = context.test
    if (
        (isinstance(test.provider, FilteredProviderSpec) and test.provider.transform is not None)
        or test.transform is not None
        or test.transform_vars is not None
        or test.promptfoo.assert_scoring_function is not None
        or test.promptfoo.made_vars
        or any(map(_has_code, test.assertions))
    ):
        yield from extra(PROGRAMS).check_test_code(test, context)


def _has_code(spec: Assertion) -> bool:
    return assertion_code(spec) != (None, None) or any(map(_has_code, spec.members))
