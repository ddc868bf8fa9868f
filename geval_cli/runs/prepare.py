"""Checks a whole suite before anything is sent."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.base import JudgeDefaults
from geval_cli.assertions.judges import check_writer, kind_by_default
from geval_cli.engine.check import Checked, check_plan, is_of_gates
from geval_cli.engine.plan import NO_PROVIDER, Plan, SampledTests, SelectedTests
from geval_cli.errors import ConfigError, Location, MissingKey, Problem, Severity
from geval_cli.plugins import extra
from geval_cli.providers.base import TEXT, batch_api
from geval_cli.providers.prices import FREE_KINDS, known_price
from geval_cli.providers.registry import (
    begin_loading,
    build_provider,
    check_provider,
    check_ready,
    needs_of,
    provider_access_problem,
)
from geval_cli.providers.trust import runs_program
from geval_cli.records import Role
from geval_cli.runs.baseline import baseline_problems, gates_of
from geval_cli.runs.options import DECIDED
from geval_cli.runs.requests import PreparedRun, RunRequest, open_config
from geval_cli.source.files import read_text
from geval_cli.source.problems import sort_problems
from geval_cli.source.secrets import MASK
from geval_cli.specs.base import ProviderSpec, samples_of
from geval_cli.specs.promptfoo import PromptfooOptions
from geval_cli.suite.gates import Statistic
from geval_cli.suite.suite import LoadedSuite, OpenedSuite
from geval_cli.suite.trust import WatchedTests
from geval_cli.templating import Templates, templates_of

LOCK_NAME = "geval.lock"
"""The file beside a config that holds the evaluation steps of its criteria."""
_CODE_WHILE_READING = "code while reading"
_NOTHING_CHECKED = Problem(
    "no test has an assertion: nothing will be evaluated",
    None,
    "add `assert` to the tests or to `defaultTest`",
    severity=Severity.WARNING,
)


def prepare(request: RunRequest, *, is_going_to_run: bool = True) -> PreparedRun:
    """Load a config and check all of it; nothing is sent.

    Without `is_going_to_run` (`geval validate`), what only this machine lacks (a key, a model file) is a warning.

    Raises:
        ConfigError: with every problem of the config, the providers and the judges.
    """
    opened = _opened(request)
    watched = WatchedTests(opened.suite.tests) if request.is_untrusted else None
    suite = opened.suite if watched is None else dataclasses.replace(opened.suite, tests=watched)
    suite = request.selection.apply(suite)
    judged = (
        None
        if request.judged is None
        else extra("judging again").JudgedTests(suite.tests, request.judged, templates_for(suite))
    )
    suite = suite if judged is None else dataclasses.replace(suite, tests=judged)
    asks_models = judged is None and not request.asks_judges_only
    if is_going_to_run and asks_models and not opened.problems and not suite.access.is_untrusted:
        # Slow parts (a local model) load during the check; an untrusted config may not start anything.
        begin_loading(suite.providers, env=suite.env, base_dir=suite.base_dir)
    plan = Plan(suite, request.repeats or _repeats_of(suite))
    templates = templates_for(suite)
    defaults = _judge_defaults(request, suite)
    lock = _lock_of(request)
    locked_steps = {} if lock is None else lock.steps
    checked = check_plan(
        plan,
        templates,
        defaults,
        is_complete=all(map(is_of_gates, opened.problems)),
        is_filtered=not request.selection.selects_all or judged is not None,
        broken=opened.problems,
        text=_text_of(request) if opened.suite.gates else "",
    )
    refused = [*(watched.refused if watched else ())]
    if not opened.problems:
        refused += judged.problems() if judged else ()
        if lock is not None and request.is_locked:
            with suppress(ConfigError):  # tests that cannot be read are reported by their own check
                refused += lock.problems(plan, templates, defaults)
    labels = None
    if suite.labels is not None or any(gate.needs_labels for gate in suite.gates):
        labels, of_labels = extra("true figures").read_suite_labels(suite)
        refused += of_labels
    anchors = None
    if suite.anchors is not None:
        anchors, of_anchors = extra("anchors").read_suite_anchors(suite)
        refused += of_anchors
    judging = [suite.resolved(spec) for spec in checked.judges]
    answering = (
        (*suite.providers, *checked.answerers, *map(suite.resolved, checked.users)) if asks_models else ()
    )
    asked = {
        Role.GENERATION: [spec for spec in answering if spec.id != NO_PROVIDER.id],
        Role.JUDGE: [spec for spec in judging if spec.id != NO_PROVIDER.id],
    }
    problems = _all_problems(opened, refused, plan, checked, request, asked, is_going_to_run=is_going_to_run)
    if not suite.calibrations.is_empty and not any(item.severity is Severity.ERROR for item in problems):
        found = extra("calibration").calibration_problems(plan, locked_steps, templates, defaults)
        problems = sort_problems([*problems, *found])
    # Everything is collected before anything is raised: the user sees all problems at once.
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise ConfigError(problems)
    notes = tuple(_judge_notes(suite, checked, defaults))
    suite, ports = _with_needs(suite, checked, request)
    drawn = (
        SampledTests(suite.tests, checked.tests, request.seed)
        if _stops_when_decided(request, suite)
        else None
    )
    plan = replace(plan, suite=suite, is_serial=checked.is_serial, is_in_rows=checked.is_in_rows, drawn=drawn)
    stored = (
        None
        if request.judged is None
        else extra("judging again").match_outputs(plan, request.judged, templates)
    )
    if stored is not None:
        plan = replace(plan, repeats=stored.repeats, has_output=stored.has)
        notes = (*notes, *stored.notes())
    return PreparedRun(
        request=request,
        suite=suite,
        plan=plan,
        defaults=defaults,
        templates=templates,
        tests=checked.tests,
        warnings=tuple(problems),
        notes=notes,
        total=checked.cases * plan.repeats if stored is None else stored.total,
        asked=_distinct([*asked[Role.GENERATION], *asked[Role.JUDGE]]),
        ports=ports,
        judges=_distinct(judging),
        stored=None if stored is None else stored.find,
        lock_digest=None if lock is None else lock.digest,
        locked_steps=locked_steps if stored is None else {**stored.steps, **locked_steps},
        labels=labels,
        anchors=anchors,
    )


def _lock_of(request: RunRequest) -> Any:
    """Return the lock file beside a config; None if there is none and none is required."""
    if not request.is_locked and not (request.config.parent / LOCK_NAME).exists():
        return None
    return extra("lock").read_lock(request.config, request.access)


def _text_of(request: RunRequest) -> str:
    """Return the text of the config; empty if it has none."""
    if request.built is not None:
        return ""
    try:
        return request.draft or read_text(request.config, request.access)
    except ConfigError:
        return ""


def reopened(request: RunRequest, *, is_in_rows: bool) -> PreparedRun:
    """Reopen a config that another process has prepared; its tests are neither checked nor counted again.

    `is_in_rows` is what the other process found.

    Raises:
        ConfigError: it can no longer be read.
    """
    opened = _opened(request)
    if any(problem.severity is Severity.ERROR for problem in opened.problems):
        raise ConfigError(opened.problems)
    suite = request.selection.apply(opened.suite)
    lock = _lock_of(request)
    return PreparedRun(
        request=request,
        suite=suite,
        plan=Plan(suite, request.repeats or _repeats_of(suite), is_in_rows=is_in_rows),
        defaults=_judge_defaults(request, suite),
        templates=templates_for(suite),
        tests=0,
        warnings=(),
        notes=(),
        total=0,
        lock_digest=None if lock is None else lock.digest,
        locked_steps={} if lock is None else lock.steps,
    )


def _all_problems(
    opened: OpenedSuite,
    refused: Iterable[Problem],
    plan: Plan,
    checked: Checked,
    request: RunRequest,
    asked: Mapping[Role, Sequence[ProviderSpec]],
    *,
    is_going_to_run: bool,
) -> list[Problem]:
    """Return all problems of what was opened, sorted; `plan` covers only what was selected."""
    suite = plan.suite
    each = _distinct([*asked[Role.GENERATION], *asked[Role.JUDGE]])
    batches = extra("batches").batch_problems(suite, checked, request, asked) if request.batched_roles else ()
    stopping: Iterable[Problem] = ()
    if _stops_when_decided(request, suite):
        gates, _ = gates_of(request, suite)
        stopping = extra("early stopping").stop_problems(request, plan, gates, is_serial=checked.is_serial)
    problems = [
        *opened.problems,
        *refused,
        *suite.warnings,
        *suite.test_warnings.values(),
        *(extra(_CODE_WHILE_READING).filter_problems(suite) if suite.filters else ()),
        *checked.problems,
        *_check_providers(suite, checked, request, asked, is_going_to_run=is_going_to_run),
        *_check_prices(suite, request, each),
        *batches,
        *_check_calls(checked, request),
        *_masked_keys(request, each),
        *baseline_problems(request, suite, plan.columns, is_going_to_run=is_going_to_run),
        *stopping,
    ]
    leaves_out = request.judged is not None and bool(request.judged.metrics.only)
    if checked.checks_nothing and not opened.problems and not leaves_out:
        problems.append(_NOTHING_CHECKED)
    is_broken = any(item.severity is Severity.ERROR for item in problems)
    if not checked.cases and not is_broken and not request.allows_empty:
        problems.append(_nothing_to_run(opened.suite, suite, request))
    return sort_problems(problems)


def _stops_when_decided(request: RunRequest, suite: LoadedSuite) -> bool:
    """Return whether the command line, or else the config, wants the run to stop once it is decided."""
    return (request.stop_when or suite.options.stop_when) == DECIDED


def _distinct(specs: Iterable[ProviderSpec]) -> tuple[ProviderSpec, ...]:
    return tuple({spec.fingerprint: spec for spec in specs}.values())


def _opened(request: RunRequest) -> OpenedSuite:
    return open_config(
        request,
        needs_keys=not request.is_offline and request.judged is None,
        scripts=cache(lambda: extra(_CODE_WHILE_READING).LoadScripts(request.environ, request.access)),
    )


def _with_needs(
    suite: LoadedSuite, checked: Checked, request: RunRequest
) -> tuple[LoadedSuite, frozenset[int] | None]:
    """Return the suite and its providers' ports; an untrusted suite keeps only the env values that its providers read.

    For a trusted suite, the ports are None.
    """
    if not suite.access.is_untrusted:
        return suite, None
    grader = [] if request.grader is None else [ProviderSpec(id=request.grader)]
    asked = (*suite.providers, *checked.answerers, *checked.users, *checked.judges, *grader)
    specs = [suite.resolved(spec) for spec in asked if spec.id != NO_PROVIDER.id]
    names, ports = needs_of(specs, env=suite.env, base_dir=suite.base_dir, access=suite.access)
    env = {name: value for name, value in suite.env.items() if name in names}
    return dataclasses.replace(suite, env=env), ports


def _nothing_to_run(whole: LoadedSuite, suite: LoadedSuite, request: RunRequest) -> Problem:
    """Return the problem that the selection leaves nothing of a `whole` suite to run."""
    for option, of_whole, left in (
        ("--filter-providers", whole.providers, suite.providers),
        ("--filter-prompts", whole.prompts, suite.prompts),
    ):
        if of_whole and not left:
            what = option.removeprefix("--filter-").removesuffix("s")
            message = f"no {what} of {suite.path} matches {option}, so there is nothing to run"
            names = [*dict.fromkeys(f"`{spec.label or spec.id}`" for spec in of_whole)][:10]
            return Problem(message, None, f"use a pattern that is found in one of these: {', '.join(names)}")
    if request.selection.selects_all and suite.providers and not Plan(suite).columns:
        message = f"no provider of {suite.path} gets any prompt, so there is nothing to run"
        known = ", ".join(f"`{prompt.label}`" for prompt in suite.prompts)
        return Problem(message, None, f"list prompts under `prompts:` of a provider: {known}")
    if request.selection.selects_all:
        return Problem(f"{suite.path} has no tests, so there is nothing to run", None, "add `tests:`")
    hint = "use a wider filter, or allow it with --allow-empty"
    tests = suite.tests.source if isinstance(suite.tests, SelectedTests) else suite.tests
    if request.filter_pattern is not None and not any(test.description for test in tests):
        hint = "--filter-pattern matches descriptions, and no test has a description"
    return Problem(f"no test of {suite.path} is selected, so there is nothing to run", None, hint)


def templates_for(suite: LoadedSuite) -> Templates:
    """Return templates that follow the rules of the suite's dialect.

    Those of an untrusted suite see no environment values, and run none of its filters.
    """
    env = suite.env if suite.access.reads_environment else {}
    filters = extra(_CODE_WHILE_READING).template_filters(suite) if suite.filters else {}
    return templates_of(suite.rules, env, filters)


def _repeats_of(suite: LoadedSuite) -> int:
    options = suite.options
    return (options.repeats if isinstance(options, PromptfooOptions) else None) or 1


def _judge_defaults(request: RunRequest, suite: LoadedSuite) -> JudgeDefaults:
    options = suite.options
    name = request.grader or (options.grader if isinstance(options, PromptfooOptions) else None)
    grader = None if name is None else suite.resolved(ProviderSpec(id=name))
    # The metrics whose mean is gated. A gate on the mean of whole cases (metric None) needs all metrics.
    means = {gate.metric for gate in suite.gates if gate.statistic is Statistic.MEAN}
    if suite.derived_metrics or None in means:
        exact_metrics = None
    else:
        exact_metrics = frozenset(name for name in means if name is not None)
    return JudgeDefaults(
        grader,
        request.scoring,
        samples_of(request.samples),
        suite.rules.geval_threshold,
        exact_metrics,
    )


def _check_providers(
    suite: LoadedSuite,
    checked: Checked,
    request: RunRequest,
    asked: Mapping[Role, Sequence[ProviderSpec]],
    *,
    is_going_to_run: bool,
) -> Iterator[Problem]:
    answering = asked[Role.GENERATION]
    judging = [suite.resolved(spec) for spec in checked.judges]
    for judge in judging:
        if judge.id == NO_PROVIDER.id:
            hint = "choose a model, for example with --grader openai:gpt-4.1"
            yield Problem("`none` cannot judge: it is not a provider", judge.place.value(), hint)
    for user in checked.users:
        if user.id == NO_PROVIDER.id:
            hint = "choose a model, for example `user: openai:gpt-4.1-mini`"
            yield Problem("`none` cannot play a user: it is not a provider", user.place.value(), hint)
    for spec in answering:
        yield from check_writer(spec, "answer a prompt")
    named = [] if request.grader is None else [suite.resolved(ProviderSpec(id=request.grader))]
    for spec in [spec for spec in named if spec not in judging and spec.id != NO_PROVIDER.id]:
        yield from check_writer(spec, "judge")
        yield from check_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)
    judged_at = {spec.fingerprint: place for spec, place in zip(judging, checked.judged_at, strict=True)}
    for spec in _distinct([*judging, *answering]):
        refused = _access_problem(spec, suite)
        if refused is not None:
            yield refused
            continue
        problems = check_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)
        yield from problems
        if not problems and not request.is_offline:
            for lack in check_ready(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access):
                problem = lack
                if isinstance(lack, MissingKey) and spec.fingerprint in judged_at:
                    problem = _judge_lacks_key(lack, spec, judged_at[spec.fingerprint])
                yield problem if is_going_to_run else dataclasses.replace(problem, severity=Severity.WARNING)


def _judge_lacks_key(problem: MissingKey, judge: ProviderSpec, place: Location | None) -> Problem:
    kind = kind_by_default(judge)
    if kind is not None:
        is_text = kind == TEXT
        needs = f"the default, {judge.public_id}, needs {problem.variable}"
        hint = "set `defaultTest.options.provider`" + (", for example local:smollm2" if is_text else "")
        return Problem(f"no {'judge' if is_text else f'{kind} provider'} is set, and {needs}", place, hint)
    written = "" if problem.location is None else problem.location.key_path
    if written.startswith("tests") or ".assert" in written:
        return problem  # `--grader` does not replace the judge of a test or an assertion
    return dataclasses.replace(problem, notes=("choose another judge with --grader PROVIDER", *problem.notes))


def _access_problem(spec: ProviderSpec, suite: LoadedSuite) -> Problem | None:
    """Return why a config may not use a provider; one that the command line names is the user's own choice."""
    if suite.access.runs_code or (runs_program(spec) and not suite.access.is_untrusted):
        return None  # a server refuses a config with code as a whole, and lets it be edited
    return provider_access_problem(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)


def asks_for_money(prepared: PreparedRun) -> bool:
    """Return whether anything that a run calls may cost money."""
    kinds = {spec.id.partition(":")[0] for spec in prepared.asked}
    return not prepared.request.is_offline and not kinds <= FREE_KINDS


def _masked_keys(request: RunRequest, asked: Iterable[ProviderSpec]) -> Iterator[Problem]:
    """Yield a problem for each judge of a stored config that has a mask in place of its key: keys are not stored."""
    if request.judged is None or request.draft is None or request.is_offline:
        return
    for spec in asked:
        if MASK in f"{spec.id} {spec.config}":
            message = f"the stored config lacks a key of {spec.public_id}: keys are not stored"
            yield Problem(
                message,
                spec.place.value("id"),
                f"pass the config: geval judge {request.judged.run.id} {request.config}",
            )


def _check_prices(
    suite: LoadedSuite, request: RunRequest, asked: Iterable[ProviderSpec]
) -> Iterator[Problem]:
    """Yield a problem for each provider whose price is unknown: a limit on the cost cannot be enforced for it."""
    if request.max_cost is None:
        return
    for spec in asked:
        if check_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access):
            continue
        built = build_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)
        if known_price(built) is None:
            yield Problem(
                f"the price of {spec.public_id} is unknown, so --max-cost cannot be enforced",
                spec.place.value("id"),
                "set `price: {input: USD, output: USD}`, per million tokens, in its `config`",
            )
        elif request.batched_roles and batch_api(built) and known_price(built, is_batched=True) is None:
            yield Problem(
                f"the price of {spec.public_id} in batches is unknown, so --max-cost cannot be enforced",
                spec.place.value("id"),
                "add `batch: {input: USD, output: USD}`, per million tokens, to `price` in its `config`",
            )


def _check_calls(checked: Checked, request: RunRequest) -> Iterator[Problem]:
    """Yield a problem for each given option that cannot be used when tools are called."""
    options = {"--batch": bool(request.batched_roles), "--workers": request.is_shared}
    for option, is_given in options.items():
        if is_given and checked.tools_at is not None and request.judged is None:
            why = (
                "each call waits for the answer before it"
                if option == "--batch"
                else "one process keeps the calls"
            )
            yield Problem(
                f"tools cannot be called with {option}: {why}", checked.tools_at, f"leave {option} out"
            )


def _judge_notes(suite: LoadedSuite, checked: Checked, defaults: JudgeDefaults) -> Iterator[str]:
    if defaults.grader is not None and checked.own_judges:
        count = checked.own_judges
        what = "1 assertion, which names its" if count == 1 else f"{count} assertions, which name their"
        yield f"--grader did not apply to {what} own judge"
    answering = {spec.public_id for spec in (*suite.providers, *checked.answerers)}
    for judge in sorted({suite.resolved(spec).public_id for spec in checked.judges} & answering):
        yield f"{judge} judges its own answers; models tend to favour themselves"
