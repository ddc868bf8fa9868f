"""Compare the criteria of a config with those that its calibration file was made for, before anything is sent."""

from collections.abc import Iterator, Mapping, Sequence

from geval_cli.assertions.base import CriterionKey, JudgeDefaults, ModelGradedAssertion, Subject, Tools
from geval_cli.assertions.calibrated import Calibrations, differing_parts, other_parts, weights_of
from geval_cli.assertions.graded.geval import GEvalAssertion, metric_of
from geval_cli.assertions.graded.judges import judge_provider, members_of
from geval_cli.assertions.metric_names import metric_name
from geval_cli.assertions.rating_keys import STEPS, criterion_key, judge_parts, member_key
from geval_cli.engine.check import assertions_of_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.judge.grading import steps_needed
from geval_cli.records import JsonValue
from geval_cli.runs.lock_file import LockFile
from geval_cli.runs.session import unasked_tools
from geval_cli.source.problems import did_you_mean
from geval_cli.specs.base import ProviderSpec
from geval_cli.statistics.calibration import Calibration, JudgeWeight
from geval_cli.suite.calibration import is_calibrated_jury
from geval_cli.templating import Templates

_AGAIN = "calibrate again: geval calibrate LABELS --run RUN -o {path}"
_NO_RUN = "labels of a run say by what its scores were rated: geval calibrate LABELS --run RUN -o {path}"


def calibration_problems(
    plan: Plan, lock: LockFile | None, templates: Templates, defaults: JudgeDefaults
) -> Iterator[Problem]:
    """Yield a problem for each criterion that is not the calibrated one, with the parts that differ.

    It is a warning, and an error where the threshold is the calibrated one. Goes through all tests.
    """
    calibrations = plan.suite.calibrations
    tools = unasked_tools(plan.suite, templates, defaults, {} if lock is None else lock.steps)
    seen: dict[tuple[str, str], Problem | None] = {}
    try:
        for spec, subject in assertions_of_plan(plan, templates):
            if not isinstance(spec, ModelGradedAssertion) or not spec.applies_to(subject.test, templates):
                continue
            metric = metric_name(spec, subject.test, templates)
            is_jury = is_calibrated_jury(spec)
            found = (calibrations.juries if is_jury else calibrations.entries).get(metric or "")
            if metric is None or found is None:
                seen.setdefault(("", metric or ""), None)
                continue
            problem = _difference(spec, subject, tools, found, calibrations.path)
            if problem is not None:
                seen.setdefault((problem.message, str(problem.location)), problem)
            else:
                seen.setdefault((metric, ""), None)
    except ConfigError:
        return  # the check of the tests tells it
    yield from (problem for problem in seen.values() if problem is not None)
    if not any(kind for kind, _ in seen):
        yield _unused(calibrations, [metric for _, metric in seen if metric])


def _difference(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, found: Calibration, path: str
) -> Problem | None:
    if found.judges:
        return _difference_of_jury(spec, subject, tools, found, path)
    severity = Severity.ERROR if spec.is_calibrated else Severity.WARNING
    place = spec.place.value("threshold") if spec.is_calibrated else spec.place.key()
    effect = "`threshold: calibrated` cannot be used" if spec.is_calibrated else "results get no P(pass)"
    if found.key is None:
        message = f"the calibration of `{found.metric}` in {path} is of no judge, so {effect}"
        return Problem(message, place, _NO_RUN.format(path=path), severity=severity)
    steps = known_steps(spec, subject, tools)
    detail: dict[str, JsonValue] = {} if steps is None else {STEPS: steps}
    differing = _differing(found.parts, criterion_key(spec, subject, tools, detail), steps)
    if not differing:
        return None
    message = f"`{found.metric}` was calibrated with {other_parts(differing)}, so {effect}"
    notes = (f"calibrated: {found.judge}",) if found.judge and "judge" in differing else ()
    return Problem(message, place, _AGAIN.format(path=path), notes, severity)


def _differing(calibrated: Mapping[str, str], key: CriterionKey, steps: tuple[str, ...] | None) -> list[str]:
    """Return the names of the parts that differ; steps that a judge will write are not known, and count as equal."""
    known = {name: part for name, part in key.parts.items() if name != STEPS or steps is not None}
    return differing_parts(calibrated, known)


def _difference_of_jury(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, found: Calibration, path: str
) -> Problem | None:
    """Return why the weights of a file are not those of a jury's judges: another judge, or one that rates otherwise."""
    metric, place = found.metric, spec.place.child("jury").value("combine")
    again = _AGAIN.format(path=path)
    if any(one.key is None for one in found.judges):
        message = f"the weights of `{metric}` in {path} are of no run, so nothing says whose they are"
        return Problem(message, place, _NO_RUN.format(path=path))
    judges = members_of(judge_provider(spec, subject.test, tools.defaults))
    weights = weights_of([judge_parts(tools.judge_for(judge)) for judge in judges], found.judges)
    others = [one for one in found.judges if not any(one is weight for weight in weights)]
    for judge, weight in zip(judges, weights, strict=True):
        if weight is None:
            return _unknown_judge(judge, others, found, place, path)
        steps = known_steps(spec, subject, tools, judge)
        key = member_key(spec, judge, subject, tools, {} if steps is None else {STEPS: steps})
        differing = _differing(weight.parts, key, steps)
        if differing:
            message = f"the weights of `{metric}` in {path} were found with {other_parts(differing)}"
            return Problem(message, place, again, (f"judge: {judge.title}",))
    if others:
        names = ", ".join(one.judge for one in others)
        message = f"the weights of `{metric}` in {path} are of a jury with more judges: {names}"
        return Problem(message, place, f"add what is missing, or {again}")
    return None


def _unknown_judge(
    judge: ProviderSpec, others: Sequence[JudgeWeight], found: Calibration, place: Location | None, path: str
) -> Problem:
    again = _AGAIN.format(path=path)
    if any(one.judge == judge.title for one in others):
        message = f"the weight of `{judge.title}` in {path} was found with {other_parts(['params'])}"
        return Problem(message, place, again)
    message = f"{path} has no weight of the judge `{judge.title}` for `{found.metric}`"
    return Problem(message, place, again, (f"it has: {', '.join(one.judge for one in found.judges)}",))


def known_steps(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, judge: ProviderSpec | None = None
) -> tuple[str, ...] | None:
    """Return the evaluation steps that are written or locked, () where there are none; None where a judge writes them.

    Of several criteria, whose steps are written one by one, they count as not known; and so do those of a jury unless
    it is said of which `judge` they are to be.
    """
    if not isinstance(spec, GEvalAssertion):
        return ()
    metric = metric_of(spec, subject.test, tools)
    judges = members_of(judge or judge_provider(spec, subject.test, tools.defaults))
    if len(judges) > 1 or len(metric.criteria) > 1:
        return None
    if metric.evaluation_steps is not None:
        return metric.evaluation_steps
    needed = list(steps_needed(metric, spec.case(subject, tools)))
    return tools.judge_memory.locked_steps(*needed[0], tools.judge_for(judges[0])) if needed else None


def _unused(calibrations: Calibrations, metrics: list[str]) -> Problem:
    names = list(dict.fromkeys([*calibrations.entries, *calibrations.juries]))
    near = next((found for name in names if (found := did_you_mean(name, metrics))), None)
    hint = f"did you mean the metric `{near}`?" if near else "its names are those of the labels"
    message = f"no assertion has a metric of {calibrations.path}: {', '.join(names)}"
    return Problem(message, calibrations.place.value(), hint, severity=Severity.WARNING)
