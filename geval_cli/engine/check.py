"""The first pass over a suite: every test is rendered and every assertion checked before anything is sent."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from geval_cli.assertions.outcome import CheckContext, JudgeDefaults, judge_provider
from geval_cli.assertions.registry import check_assertion
from geval_cli.config.schema import ModelGradedSpec, PromptSpec, ProviderSpec
from geval_cli.config.suite import TestCase
from geval_cli.engine.plan import Plan
from geval_cli.engine.prompt import render_prompt
from geval_cli.errors import ConfigError, Location, Problem, Severity, TemplateError
from geval_cli.templating import Templates, template_problem


@dataclass(frozen=True, slots=True)
class Checked:
    """What the first pass found.

    Attributes:
        problems: all of them, warnings too.
        tests: how many tests there are.
        judges: every provider that will judge; none of them twice.
        own_judges: how many assertions, counted once per test, name a judge of their own, so that `--grader` does
            not apply to them.
    """

    problems: tuple[Problem, ...]
    tests: int
    judges: tuple[ProviderSpec, ...] = ()
    own_judges: int = 0


@dataclass(slots=True)
class _Judges:
    """Who judges what, over all tests."""

    defaults: JudgeDefaults
    found: dict[str, ProviderSpec] = field(default_factory=dict)
    own: int = 0

    def note(self, test: TestCase) -> None:
        for spec in test.assertions:
            if isinstance(spec, ModelGradedSpec):
                judge = judge_provider(spec, test, self.defaults)
                self.found.setdefault(judge.model_dump_json(), judge)
                self.own += judge is not self.defaults.grader


@dataclass(slots=True)
class _Findings:
    """Problems, each kept once: a mistake in `defaultTest` or in a prompt shows in every test, but is one mistake."""

    _first: dict[tuple[str, Location | None], Problem] = field(default_factory=dict)
    _further: dict[tuple[str, Location | None], int] = field(default_factory=dict)

    def add(self, problem: Problem, where: str) -> None:
        key = (problem.message.replace(where, ""), problem.location)
        if key in self._first:
            self._further[key] = self._further.get(key, 0) + 1
        else:
            self._first[key] = problem

    def all(self) -> Iterator[Problem]:
        for key, problem in self._first.items():
            further = self._further.get(key, 0)
            if further and key[0] != problem.message:
                note = f"the same in {further} further test{'s' if further > 1 else ''}"
                yield replace(problem, notes=(*problem.notes, note))
            else:
                yield problem


def check_plan(
    plan: Plan, templates: Templates, defaults: JudgeDefaults, *, is_complete: bool = True
) -> Checked:
    """Go through all tests once and collect every problem; memory grows with the problems, not with the tests.

    Without `is_complete`, parts of the suite are missing because they have problems of their own, and nothing is
    said about what seems to be absent.
    """
    findings, judges = _Findings(), _Judges(defaults)
    count = 0
    try:
        for test in plan.suite.tests:
            count += 1
            judges.note(test)
            where = describe_test(test)
            if is_complete:
                for problem in _check_output(test, plan):
                    findings.add(problem, where)
            for problem in _check_test(test, plan, templates):
                findings.add(problem, where)
    except ConfigError as error:
        return Checked((*error.problems, *findings.all()), count)
    return Checked(tuple(findings.all()), count, tuple(judges.found.values()), judges.own)


def describe_test(test: TestCase) -> str:
    """How messages name a test: its number, counted from 1, and its description."""
    return f"test {test.index + 1}" + (f" ({test.description})" if test.description else "")


def _check_test(test: TestCase, plan: Plan, templates: Templates) -> Iterator[Problem]:
    rendered = None
    for prompt in plan.suite.prompts:
        try:
            rendered = render_prompt(prompt, test, templates).text
        except TemplateError as error:
            yield _prompt_problem(error, prompt, test)
    context = CheckContext(test, templates, f"in {describe_test(test)}", rendered)
    for spec in test.assertions:
        yield from check_assertion(spec, context)


def _prompt_problem(error: TemplateError, prompt: PromptSpec, test: TestCase) -> Problem:
    key = "system" if prompt.system is not None else "messages" if prompt.messages is not None else "raw"
    where = f"in prompt `{prompt.label or prompt.id}` for {describe_test(test)}"
    return template_problem(error, where=where, location=prompt.place.value(key))


def _check_output(test: TestCase, plan: Plan) -> Iterator[Problem]:
    """Whether there will be an output to judge, and whether one that the test brings is left unused."""
    generates = any(provider.id != "none" for provider in plan.providers)
    judges_as_is = any(provider.id == "none" for provider in plan.providers)
    has_output = test.has_output or "output" in test.vars
    if judges_as_is and not has_output:
        yield Problem(
            f"nothing to judge in {describe_test(test)}: there is no provider to ask, and the test has no `output`",
            test.place.value(),
            "add `providers:` to the config, or an `output` to the test",
        )
    if generates and not judges_as_is and has_output:
        key = ("output",) if test.has_output else ("vars", "output")
        name = ".".join(key)
        yield Problem(
            f"`{name}` is not judged in {describe_test(test)}: the config has providers, so their answers are",
            test.place.key(*key),
            "to judge it as it is, leave `providers` out or use `providers: none`",
            severity=Severity.WARNING,
        )
