"""Compare the criteria of a config with those that its calibration file was made for, before anything is sent."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from geval_cli.assertions.base import JudgeDefaults, ModelGradedAssertion, Subject, Tools
from geval_cli.assertions.calibrated import Calibrations, differing_parts, other_parts
from geval_cli.assertions.graded.geval import GEvalAssertion, metric_of
from geval_cli.assertions.graded.judges import judge_provider
from geval_cli.assertions.metric_names import metric_name
from geval_cli.assertions.rating_keys import STEPS, criterion_key
from geval_cli.engine.check import assertions_of_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.judge.grading import steps_needed
from geval_cli.judge.memory import JudgeMemory
from geval_cli.judge.metric import Judge
from geval_cli.providers.base import ProviderIdentity
from geval_cli.providers.registry import build_provider
from geval_cli.records import JsonValue, ModelRequest, ModelResponse
from geval_cli.runs.lock_file import LockFile, Resolve
from geval_cli.source.problems import did_you_mean
from geval_cli.source.secrets import mask_text
from geval_cli.specs.base import ProviderSpec
from geval_cli.templating import Templates

_AGAIN = "calibrate again: geval calibrate LABELS --run RUN -o {path}"
_NO_RUN = "labels of a run say by what its scores were rated: geval calibrate LABELS --run RUN -o {path}"


def calibration_problems(
    plan: Plan, lock: LockFile | None, templates: Templates, defaults: JudgeDefaults, resolve: Resolve
) -> Iterator[Problem]:
    """Yield a problem for each criterion that is not the calibrated one, with the parts that differ.

    It is a warning, and an error where the threshold is the calibrated one. Goes through all tests.
    """
    judges: dict[bytes, Judge] = {}

    def judge_for(spec: ProviderSpec) -> Judge:
        found = resolve(spec)
        if found.fingerprint not in judges:
            suite = plan.suite
            provider = build_provider(found, env=suite.env, base_dir=suite.base_dir, access=suite.access)
            judges[found.fingerprint] = _UnaskedJudge(provider.id, provider.identity)
        return judges[found.fingerprint]

    memory = JudgeMemory({} if lock is None else lock.steps)
    tools = Tools(templates, judge_for, memory, defaults, access=plan.suite.access)
    seen: dict[tuple[str, str], Problem | None] = {}
    calibrations = plan.suite.calibrations
    try:
        for spec, subject in assertions_of_plan(plan, templates):
            if not isinstance(spec, ModelGradedAssertion) or not spec.applies_to(subject.test, templates):
                continue
            metric = metric_name(spec, subject.test, templates)
            if metric is None or metric not in calibrations.entries:
                seen.setdefault(("", metric or ""), None)
                continue
            problem = _difference(spec, subject, tools, metric, calibrations)
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
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, metric: str, calibrations: Calibrations
) -> Problem | None:
    found = calibrations.entries[metric]
    path = calibrations.path
    severity = Severity.ERROR if spec.is_calibrated else Severity.WARNING
    place = spec.place.value("threshold") if spec.is_calibrated else spec.place.key()
    effect = "`threshold: calibrated` cannot be used" if spec.is_calibrated else "results get no P(pass)"
    if found.key is None:
        message = f"the calibration of `{metric}` in {path} is of no judge, so {effect}"
        return Problem(message, place, _NO_RUN.format(path=path), severity=severity)
    steps = known_steps(spec, subject, tools)
    detail: dict[str, JsonValue] = {} if steps is None else {STEPS: steps}
    parts = dict(criterion_key(spec, subject, tools, detail).parts)
    if steps is None:
        parts.pop(STEPS)
    differing = differing_parts(found, parts)
    if not differing:
        return None
    message = f"`{metric}` was calibrated with {other_parts(differing)}, so {effect}"
    notes = (f"calibrated: {found.judge}",) if found.judge and "judge" in differing else ()
    return Problem(message, place, _AGAIN.format(path=path), notes, severity)


def known_steps(spec: ModelGradedAssertion, subject: Subject, tools: Tools) -> tuple[str, ...] | None:
    """Return the evaluation steps that are written or locked, () where there are none; None where a judge writes them.

    Of several criteria, whose steps are written one by one, they count as not known.
    """
    if not isinstance(spec, GEvalAssertion):
        return ()
    metric = metric_of(spec, subject.test, tools)
    if metric.evaluation_steps is not None:
        return metric.evaluation_steps
    judge = tools.judge_for(judge_provider(spec, subject.test, tools.defaults))
    needed = list(steps_needed(metric, spec.case(subject, tools)))
    if len(needed) != 1:
        return None
    return tools.judge_memory.locked_steps(*needed[0], judge)


def _unused(calibrations: Calibrations, metrics: list[str]) -> Problem:
    names = list(calibrations.entries)
    near = next((found for name in names if (found := did_you_mean(name, metrics))), None)
    hint = f"did you mean the metric `{near}`?" if near else "its names are those of the labels"
    message = f"no assertion has a metric of {calibrations.path}: {', '.join(names)}"
    return Problem(message, calibrations.place.value(), hint, severity=Severity.WARNING)


class _UnaskedJudge(Struct, frozen=True):
    """A judge of which only its identity is wanted."""

    label: str
    identity: ProviderIdentity

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.identity.params

    @property
    def public_id(self) -> str:
        return mask_text(self.label)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        raise NotImplementedError("nobody is asked before everything is checked")
