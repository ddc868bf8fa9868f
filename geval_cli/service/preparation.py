"""Check all of a suite before anything is sent."""

from collections.abc import Iterator
from dataclasses import replace

from geval_cli.assertions.outcome import JudgeDefaults
from geval_cli.config.load import open_suite
from geval_cli.config.problems import sort_problems
from geval_cli.config.schema import ProviderSpec
from geval_cli.config.suite import Suite, SuiteOverrides
from geval_cli.engine.check import Checked, check_plan
from geval_cli.engine.plan import NO_PROVIDER, Plan
from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.providers.registry import check_provider, check_ready
from geval_cli.service.requests import PreparedRun, RunRequest
from geval_cli.templating import Templates


def prepare(request: RunRequest, *, is_going_to_run: bool = True) -> PreparedRun:
    """Load a config and check all of it; nothing is sent.

    Without `is_going_to_run` (`geval validate`), what only this machine lacks (a key, a model file) is a warning.

    Raises:
        ConfigError: with every problem of the config, the providers and the judges.
    """
    opened = open_suite(
        request.config,
        env=request.environ,
        env_file=request.env_file,
        overrides=SuiteOverrides(vars=request.variables),
    )
    suite = opened.suite
    plan = Plan(suite, request.repeats)
    templates = Templates()
    grader = None if request.grader is None else resolved(ProviderSpec(id=request.grader), suite)
    defaults = JudgeDefaults(grader, request.scoring, request.samples)
    checked = check_plan(plan, templates, defaults, is_complete=not opened.problems)
    problems = [
        *opened.problems,
        *suite.warnings,
        *checked.problems,
        *_check_providers(suite, checked, is_going_to_run),
    ]
    if not checked.tests and not problems:
        problems.append(
            Problem(f"{suite.path} has no tests, so there is nothing to run", None, "add `tests:`")
        )
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ConfigError(sort_problems(problems))
    notes = tuple(_judge_notes(suite, checked, defaults))
    return PreparedRun(
        request, suite, plan, defaults, templates, checked.tests, tuple(sort_problems(problems)), notes
    )


def resolved(spec: ProviderSpec, suite: Suite) -> ProviderSpec:
    """The configured provider whose label `spec` is, else `spec` itself.

    An id alone does not find a configured provider: a judge must not inherit what was set for the model under test.
    """
    named = (item for item in suite.providers if spec.id == item.label != item.id and not spec.config)
    return next(named, spec)


def _check_providers(suite: Suite, checked: Checked, is_going_to_run: bool) -> Iterator[Problem]:
    answering = [spec for spec in suite.providers if spec.id != NO_PROVIDER.id]
    judging = [resolved(spec, suite) for spec in checked.judges]
    for judge in judging:
        if judge.id == NO_PROVIDER.id:
            hint = "name a model, for example with --grader openai:gpt-4.1"
            yield Problem("`none` cannot judge: it is no provider", judge.place.value(), hint)
    for spec in {spec.model_dump_json(): spec for spec in (*answering, *judging)}.values():
        problems = check_provider(spec, env=suite.env, base_dir=suite.base_dir)
        yield from problems
        if not problems:
            for problem in check_ready(spec, env=suite.env, base_dir=suite.base_dir):
                yield problem if is_going_to_run else replace(problem, severity=Severity.WARNING)


def _judge_notes(suite: Suite, checked: Checked, defaults: JudgeDefaults) -> Iterator[str]:
    if defaults.grader is not None and checked.own_judges:
        count = checked.own_judges
        what = "1 assertion, which names its" if count == 1 else f"{count} assertions, which name their"
        yield f"--grader did not apply to {what} own judge"
    answering = {spec.public_id for spec in suite.providers}
    for judge in sorted({resolved(spec, suite).public_id for spec in checked.judges} & answering):
        yield f"{judge} judges its own answers; models tend to favour themselves"
