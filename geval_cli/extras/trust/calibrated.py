"""A calibration file in use: read it, check that the config's judges rate the same way, and apply it to scores."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Assertion,
    Calibrations,
    CriterionKey,
    JudgeDefaults,
    ModelGradedAssertion,
    Subject,
    Tools,
)
from geval_cli.assertions.geval import GEvalAssertion, metric_of
from geval_cli.assertions.geval_metric import GEvalFields, metric_name
from geval_cli.assertions.judges import judge_provider, members_of
from geval_cli.assertions.registry import (
    BORDERLINE,
    CRITERION_KEY,
    CRITERION_PARTS,
    P_PASS,
    STEPS,
    criterion_key,
    judge_parts,
    member_key,
)
from geval_cli.engine.check import assertions_of_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.extras.juries import JudgeWeight, weights_of
from geval_cli.extras.trust.statistics.plain import Calibration, Logistic, ScoreBand
from geval_cli.judge.calls import LockedSteps
from geval_cli.judge.grading import missed_required, steps_needed
from geval_cli.records import AssertionResult, JsonValue
from geval_cli.runs.session import inspection_tools
from geval_cli.source.files import as_reference
from geval_cli.source.problems import did_you_mean, hint_among
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import CALIBRATED, ProviderSpec, Score, Spec, describe_value
from geval_cli.suite.validation import LoadContext, build_spec, read_fields, read_spec
from geval_cli.templating import Templates

_WORDS = {
    "type": "another type of assertion",
    "judge": "another judge",
    "params": "other judge parameters",
    "criteria": "other criteria",
    "evaluation_params": "other `evaluation_params`",
    "rubric": "another rubric",
    "guidelines": "other guidelines",
    "examples": "other examples",
    "score_range": "another range of ratings",
    "scoring": "another `scoring` or number of samples, or another `over`",
    "rubric_prompt": "another `rubric_prompt`",
    "evaluation_steps": "other evaluation steps",
    "prompt_version": "other prompts of geval",
}


@dataclass
class FileCalibrations(Calibrations):
    """The calibrations of a config, by metric; after the run, also which of them turned out not to fit.

    `juries` holds those of juries with `combine: calibrated`, whose scores use the weights in the file.
    """

    entries: Mapping[str, Calibration]
    juries: Mapping[str, Calibration] = field(default_factory=dict)
    path: str = ""
    place: SourcePath = field(default_factory=SourcePath.nowhere)
    is_broken: bool = False
    _unfit: dict[str, set[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:  # type: ignore[override]
        return not (self.entries or self.juries)

    def mark(self, result: AssertionResult) -> AssertionResult:
        """Return a result with P(pass) and whether it is borderline, if it was rated as the labelled outputs were.

        The score of a calibrated jury is marked only if all of its judges gave a score.
        """
        is_jury = (result.detail.get("jury") or {}).get("combine") == CALIBRATED
        found = (self.juries if is_jury else self.entries).get(result.metric or "")
        if found is None or result.score is None or CRITERION_KEY not in result.detail:
            return result
        if missed_required(result.detail):
            return result  # it fails whatever its score
        rated = [(found.key, found.parts, result.detail)]
        if is_jury:
            votes: Sequence[Mapping[str, JsonValue]] = result.detail["judges"]
            if any(vote["score"] is None for vote in votes):
                return result
            weights = weights_of([vote.get(CRITERION_PARTS) or {} for vote in votes], found.judges)
            rated = [(one.key, one.parts, vote) for one, vote in zip(weights, votes, strict=True) if one]
        differing = {
            name
            for _, parts, detail in rated
            for name in differing_parts(parts, detail.get(CRITERION_PARTS) or {})
        }
        if differing or any(key != detail.get(CRITERION_KEY) for key, _, detail in rated):
            self._unfit.setdefault(found.metric, set()).update(differing)
            return result
        marks = {P_PASS: found.p_pass(result.score), BORDERLINE: found.is_borderline(result.score)}
        known = {name: value for name, value in marks.items() if value is not None}
        return replace(result, detail={**result.detail, **known})

    def jury_weights(self, metric: str | None) -> tuple[JudgeWeight, ...]:
        found = self.juries.get(metric or "")
        return () if found is None else found.judges

    def notes(self) -> Iterator[str]:
        for metric, parts in self._unfit.items():
            yield f"{metric} was calibrated with {other_parts(parts)}, so results get no P(pass)"


_NONE_IF_LACKING = ("guidelines", "examples")


def differing_parts(calibrated: Mapping[str, str], parts: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that differ; one that a side lacks is unknown, but guidelines are then none."""
    are_known = bool(calibrated and parts)
    known = [name for name in calibrated if name in parts and name not in _NONE_IF_LACKING]
    names = [*known, *(_NONE_IF_LACKING if are_known else ())]
    return [name for name in names if calibrated.get(name) != parts.get(name)]


def other_parts(names: set[str] | list[str]) -> str:
    """Return the names of parts in words: `another judge and another rubric`."""
    words = [text for name, text in _WORDS.items() if name in names]
    return " and ".join(words) or "another criterion"


CALIBRATION_VERSION = 1
_WRITE = "write one with `geval calibrate LABELS --run RUN -o judge.cal.json`"
_BLOCK = 4
_LARGEST = 1e9
"""Upper limit of numbers in a calibration file; much larger integers would overflow a float."""
_DUST = 1e-6
"""Tolerance for probabilities, which the file rounds."""

AssertionT = TypeVar("AssertionT", bound=Assertion)
Count = Annotated[int, Field(ge=0)]


class JudgeEntry(Spec):
    """The weight of one judge of a jury."""

    judge: str = Field(description="Its name.")
    key: str | None = Field(None, description="The criterion_key that it would have if it judged alone.")
    parts: dict[str, str] = Field(default_factory=dict, description="A short hash of each part of the key.")
    n: Count = Field(description="How many labelled outputs it scored.")
    r: Annotated[float, Field(ge=-1, le=1)] | None = Field(None, description="Its correlation with people.")
    weight: Annotated[float, Field(ge=0, le=_LARGEST)] = Field(description="How much it counts.")
    mean: Score = Field(description="Of its scores.")
    sd: Score = Field(description="The standard deviation of its scores.")


class CalibrationEntry(Spec):
    """The calibration of one metric, as a calibration file states it."""

    metric: str = Field(description="Which metric.")
    key: str | None = Field(None, description="The criterion_key of the results that were labelled.")
    parts: dict[str, str] = Field(default_factory=dict, description="A short hash of each part of the key.")
    judge: str | None = Field(None, description="Which judge gave the scores.")
    n: Count = Field(description="How many labels.")
    good: Count = Field(description="How many of them are good.")
    clusters: Count = Field(description="How many independent groups they are in.")
    good_at: Score = Field(description="Mean labels from here on are good.")
    objective: str = Field("mcc", description="What the threshold was optimized for.")
    prevalence: Score | None = Field(None, description="The share of good outputs that was assumed.")
    threshold: Score = Field(description="Scores from here on pass.")
    p_pass: list[list[float]] = Field(
        default_factory=list,
        description="Blocks of scores: lowest, highest, probability of being good, labels.",
    )
    logistic: tuple[float, float] | None = Field(
        None, description="Slope and intercept of the chance, in place of p_pass."
    )
    alpha: Score | None = Field(None, description="The share of errors among clear scores.")
    pass_from: Score | None = Field(None, description="Scores from here on are a clear pass.")
    fail_below: Score | None = Field(None, description="Scores below are a clear fail.")
    judges: list[JsonValue] = Field(
        default_factory=list,
        description="The weights of a jury's judges, whose weighted score this is about.",
    )


_MAY_BE_NULL = ("key", "judge", "prevalence", "alpha", "pass_from", "fail_below", "logistic", "r")


def read_calibrations(value: JsonValue, place: SourcePath, reading: LoadContext) -> FileCalibrations:
    """Return the calibrations in the file that a config names.

    Problems in the file are reported with their place in it.
    """
    nothing = FileCalibrations({}, is_broken=True)
    if not isinstance(value, str):
        hint = "give the file, for example `calibration: judge.cal.json`"
        reading.report(f"`calibration` must be a path, found {describe_value(value)}", place.value(), hint)
        return nothing
    known = reading.errors
    try:
        document = reading.files.document(as_reference(value), place.value())
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return nothing
    entries = _entries(document.value, document.place, reading)
    if reading.errors > known:
        return nothing
    plain = {entry.metric: entry for entry in entries if not entry.judges}
    juries = {entry.metric: entry for entry in entries if entry.judges}
    return FileCalibrations(plain, juries, value, place)


def _entries(value: JsonValue, place: SourcePath, reading: LoadContext) -> list[Calibration]:
    if not isinstance(value, dict) or "calibration_version" not in value:
        reading.report(
            "this is not a calibration file: it has no `calibration_version`", place.value(), _WRITE
        )
        return []
    version = value["calibration_version"]
    if version != CALIBRATION_VERSION or isinstance(version, bool):
        is_newer = isinstance(version, int) and version > CALIBRATION_VERSION
        hint = "update geval: a newer version wrote it" if is_newer else f"calibrate again: {_WRITE}"
        message = f"this geval reads version {CALIBRATION_VERSION} of calibration files, not {version}"
        reading.report(message, place.value("calibration_version"), hint)
        return []
    for key in value:
        if key not in ("calibration_version", "entries"):
            near = did_you_mean(key, ("entries",))
            hint = f"did you mean `{near}`?" if near else _WRITE
            reading.report(f"unknown key `{key}` in a calibration file", place.key(key), hint)
    written = value.get("entries")
    if not isinstance(written, list) or not written:
        where = place.value("entries") if "entries" in value else place.value()
        reading.report("`entries` must be a list with one entry per metric", where, _WRITE)
        return []
    entries: dict[tuple[str, bool], Calibration] = {}
    for index, item in enumerate(written):
        entry = _entry(item, place.child("entries", index), reading)
        if entry is None:
            continue
        # A metric may have two: one for the score of the run, and one for the weighted score of its jury.
        key = (entry.metric, bool(entry.judges))
        if key in entries:
            place_of_it = place.child("entries", index).value("metric")
            reading.report(f"`{entry.metric}` occurs twice", place_of_it, "keep one of them")
        entries.setdefault(key, entry)
    return list(entries.values())


def _entry(item: JsonValue, place: SourcePath, reading: LoadContext) -> Calibration | None:
    fields = read_fields(CalibrationEntry, _without_nulls(item), place, "a calibration", reading)
    if fields is None:
        return None
    # In JSON, the ends of a scale may be the integers 0 and 1.
    blocks = fields.values.get("p_pass")
    if isinstance(blocks, list):
        fields.values["p_pass"] = [
            [float(item) if _is_number(item) else item for item in block]
            if isinstance(block, list)
            else block
            for block in blocks
        ]
    entry = build_spec(CalibrationEntry, fields, reading)
    if entry is None or not _is_curve(entry, reading):
        return None
    judges = _judges(entry, reading) if entry.judges else ()
    return None if judges is None else _of_entry(entry, judges)


def _without_nulls(item: JsonValue) -> JsonValue:
    if not isinstance(item, dict):
        return item
    return {name: value for name, value in item.items() if value is not None or name not in _MAY_BE_NULL}


def _judges(entry: CalibrationEntry, reading: LoadContext) -> tuple[JudgeWeight, ...] | None:
    """Return the weights of a jury's judges; None, with a problem reported, if they are not valid."""
    known, found = reading.errors, []
    for index, item in enumerate(entry.judges):
        place = entry.place.child("judges", index)
        one = read_spec(JudgeEntry, _without_nulls(item), place, "the weight of a judge", reading)
        if one is not None:
            values = {name: getattr(one, name) for name in JudgeWeight.__struct_fields__}
            found.append(JudgeWeight(**values))
            if one.weight and not one.sd:
                reading.report("a judge with a weight needs an `sd` above 0", place.value("sd"), _WRITE)
    if reading.errors == known and not any(one.weight for one in found):
        reading.report("no judge has a weight above 0", entry.place.value("judges"), _WRITE)
    return tuple(found) if reading.errors == known else None


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_curve(entry: CalibrationEntry, reading: LoadContext) -> bool:
    """Return whether the entry has exactly one valid curve of probabilities; if not, report a problem."""
    if entry.logistic is not None:
        if all(map(math.isfinite, entry.logistic)) and entry.logistic[0] >= 0 and not entry.p_pass:
            return True
        message = "`logistic` must be a slope of at least 0 and an intercept, without `p_pass`"
        reading.report(message, entry.place.value("logistic"), _WRITE)
        return False
    if not entry.p_pass:
        reading.report("a calibration needs `p_pass` or `logistic`", entry.place.value(), _WRITE)
        return False
    for index, block in enumerate(entry.p_pass):
        if not _is_block(block) or (index and not _follows(entry.p_pass[index - 1], block)):
            message = (
                "blocks must be [lowest, highest, chance, labels], with rising scores and chances "
                "between 0 and 1"
            )
            reading.report(message, entry.place.value("p_pass", index), _WRITE)
            return False
    return True


def _is_block(block: Sequence[float]) -> bool:
    if len(block) != _BLOCK or not all(map(math.isfinite, block)):
        return False
    low, high, chance, count = block
    return 0 <= low <= high <= 1 and 0 <= chance <= 1 and count >= 0 and count.is_integer()


def _follows(before: Sequence[float], block: Sequence[float]) -> bool:
    return before[1] < block[0] and before[2] <= block[2] + _DUST


def _of_entry(entry: CalibrationEntry, judges: tuple[JudgeWeight, ...]) -> Calibration:
    blocks = tuple(ScoreBand(low, high, chance, int(count)) for low, high, chance, count in entry.p_pass)
    return Calibration(
        metric=entry.metric,
        key=entry.key,
        parts=entry.parts,
        n=entry.n,
        good=entry.good,
        clusters=entry.clusters,
        good_at=entry.good_at,
        objective=entry.objective,
        threshold=entry.threshold,
        curve=blocks if entry.logistic is None else Logistic(*entry.logistic),
        alpha=entry.alpha,
        pass_from=entry.pass_from,
        fail_below=entry.fail_below,
        judge=entry.judge,
        judges=judges,
    )


def with_threshold(spec: AssertionT, place: SourcePath, reading: LoadContext) -> Assertion | None:
    """Return an assertion with its calibrated threshold filled in; None, with a problem reported, if there is none."""
    metric = spec.metric or getattr(spec, "dimension", None)
    where = place.value()
    if not isinstance(spec, ModelGradedAssertion) or spec.is_negated:
        hint = "write a number: only judged assertions without `not-` have a calibrated threshold"
        reading.report(f"`threshold: {CALIBRATED}` is not for {spec.type}", where, hint)
        return None
    found = _find(metric, f"`threshold: {CALIBRATED}`", where, reading, is_jury=is_calibrated_jury(spec))
    return None if found is None else spec.with_calibrated_threshold(found.threshold)


def is_calibrated_jury(spec: Assertion) -> bool:
    """Return whether an assertion's judges are weighted by the calibration file (`combine: calibrated`)."""
    return (
        isinstance(spec, GEvalFields)
        and spec.jury_rules is not None
        and spec.jury_rules.combine == CALIBRATED
    )


def check_weights(spec: GEvalFields, reading: LoadContext) -> None:
    """Report a jury with `combine: calibrated` that has no weights in the file.

    Whether the weights are those of its judges is checked later, by `calibration_problems`.
    """
    where = spec.place.child("jury").value("combine")
    if spec.is_negated:
        hint = "use `mean`, `median` or `majority`, or write the criteria the other way round"
        reading.report(f"`combine: {CALIBRATED}` is not for {spec.type}", where, hint)
        return
    rated = [item.dimension for item in spec.dimensions or ()]
    for metric in rated or (spec.metric or spec.dimension,):
        if not _find(metric, f"`combine: {CALIBRATED}`", where, reading, is_jury=True):
            return


def _find(
    metric: str | None, what: str, where: Location | None, reading: LoadContext, *, is_jury: bool
) -> Calibration | None:
    """Return the calibration of a metric; None, with a problem reported about `what` needs it, if there is none."""
    calibrations = reading.calibrations
    if not isinstance(calibrations, FileCalibrations):
        hint = "add `calibration: judge.cal.json` to the config; " + _WRITE
        reading.report(f"{what}, but the config has no calibration file", where, hint)
        return None
    if calibrations.is_broken:  # already reported
        return None
    if metric is None:
        reading.report(f"{what} needs a metric", where, "add `metric` with its name in the labels")
        return None
    known = calibrations.juries if is_jury else calibrations.entries
    found = known.get(metric)
    if found is None and is_jury and metric in calibrations.entries:
        hint = "calibrate a run judged by the whole jury, for example with `combine: mean`"
        reading.report(f"{calibrations.path} has no judge weights for `{metric}`", where, hint)
    elif found is None:
        hint = hint_among(metric, [*known, *calibrations.entries, *calibrations.juries], "it has")
        reading.report(f"{calibrations.path} has no calibration of `{metric}`", where, hint)
    return found


_AGAIN = "calibrate again: geval calibrate LABELS --run RUN -o {path}"
_NO_RUN = (
    "calibrate with labels from a run, which record how scores were computed: geval calibrate LABELS --run RUN "
    "-o {path}"
)


def calibration_problems(
    plan: Plan, locked_steps: LockedSteps, templates: Templates, defaults: JudgeDefaults
) -> Iterator[Problem]:
    """Yield a problem for each criterion that differs from the calibrated one, naming the parts that differ.

    It is a warning, or an error if the assertion depends on the calibrated threshold or weights. Goes through all
    tests.
    """
    calibrations = plan.suite.calibrations
    assert isinstance(calibrations, FileCalibrations)
    tools = inspection_tools(plan.suite, templates, defaults, locked_steps)
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
        return  # the check of the tests reports it
    yield from (problem for problem in seen.values() if problem is not None)
    if not any(kind for kind, _ in seen):
        metrics = [metric for _, metric in seen if metric]
        names = list(dict.fromkeys([*calibrations.entries, *calibrations.juries]))
        near = next((other for name in names if (other := did_you_mean(name, metrics))), None)
        hint = f"did you mean the metric `{near}`?" if near else "use the metric names of the labels"
        message = f"no assertion has a metric from {calibrations.path}: {', '.join(names)}"
        yield Problem(message, calibrations.place.value(), hint, severity=Severity.WARNING)


def _difference(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, found: Calibration, path: str
) -> Problem | None:
    if found.judges:
        return _difference_of_jury(spec, subject, tools, found, path)
    severity = Severity.ERROR if spec.is_calibrated else Severity.WARNING
    place = spec.place.value("threshold") if spec.is_calibrated else spec.place.key()
    effect = "`threshold: calibrated` cannot be used" if spec.is_calibrated else "results get no P(pass)"
    if found.key is None:
        message = f"the calibration of `{found.metric}` in {path} has no judge, so {effect}"
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
    """Return the names of the parts that differ; steps that a judge has yet to write are unknown and count as equal."""
    known = {name: part for name, part in key.parts.items() if name != STEPS or steps is not None}
    return differing_parts(calibrated, known)


def _difference_of_jury(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, found: Calibration, path: str
) -> Problem | None:
    """Return why a file's weights do not fit a jury: its judges are different ones, or they rate differently."""
    metric = found.metric
    place = spec.place.child("jury").value("combine")
    again = _AGAIN.format(path=path)
    if any(one.key is None for one in found.judges):
        message = (
            f"the weights of `{metric}` in {path} do not come from a run, so it is unknown which judges "
            "they belong to"
        )
        return Problem(message, place, _NO_RUN.format(path=path))
    judges = members_of(judge_provider(spec, subject.test, tools.defaults))
    weights = weights_of([judge_parts(tools.judge_for(judge)) for judge in judges], found.judges)
    others = [one for one in found.judges if not any(one is weight for weight in weights)]
    for judge, weight in zip(judges, weights, strict=True):
        if weight is None:
            again = _AGAIN.format(path=path)
            if any(one.judge == judge.title for one in others):
                message = f"the weight of `{judge.title}` in {path} was found with {other_parts(['params'])}"
                return Problem(message, place, again)
            message = f"{path} has no weight for the judge `{judge.title}` for `{found.metric}`"
            return Problem(
                message, place, again, (f"it has: {', '.join(one.judge for one in found.judges)}",)
            )
        steps = known_steps(spec, subject, tools, judge)
        key = member_key(spec, judge, subject, tools, {} if steps is None else {STEPS: steps})
        differing = _differing(weight.parts, key, steps)
        if differing:
            message = f"the weights of `{metric}` in {path} were found with {other_parts(differing)}"
            return Problem(message, place, again, (f"judge: {judge.title}",))
    if others:
        names = ", ".join(one.judge for one in others)
        message = f"the weights of `{metric}` in {path} are for a jury with more judges: {names}"
        return Problem(message, place, f"add what is missing, or {again}")
    return None


def known_steps(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, judge: ProviderSpec | None = None
) -> tuple[str, ...] | None:
    """Return the evaluation steps that are configured or locked, () if there are none; None if they are unknown.

    They are unknown if the judge has yet to write them, with several criteria, whose steps are written separately, and
    for a jury unless `judge` says which member is meant.
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
    return tools.judge_facts.locked_steps(*needed[0], tools.judge_for(judges[0])) if needed else None
