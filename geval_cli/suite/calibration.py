"""The calibration file of a config: what `geval calibrate` wrote, read back and checked; and thresholds out of it."""

import math
from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from geval_cli.assertions.base import Assertion, ModelGradedAssertion
from geval_cli.assertions.calibrated import CALIBRATED, Calibrations
from geval_cli.errors import ConfigError
from geval_cli.records import JsonValue
from geval_cli.source.files import FILE_PREFIX, is_file_reference
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import Score, Spec
from geval_cli.specs.type_messages import describe_value
from geval_cli.statistics.calibration import Block, Calibration, Logistic
from geval_cli.suite.validation import Fields, LoadContext, build_spec, read_fields

CALIBRATION_VERSION = 1
_WRITE = "`geval calibrate LABELS --run RUN -o judge.cal.json` writes it"
_BLOCK = 4
_LARGEST = 1e9
"""Of the numbers in a block; larger whole numbers are no floats."""
_DUST = 1e-6
"""The chances in the file are rounded."""

AssertionT = TypeVar("AssertionT", bound=Assertion)
Count = Annotated[int, Field(ge=0)]


class CalibrationEntry(Spec):
    """The meaning of one metric's scores, as a calibration file has it."""

    metric: str = Field(description="Which metric.")
    key: str | None = Field(None, description="The criterion_key of the results that were labelled.")
    parts: dict[str, str] = Field(default_factory=dict, description="A short hash of each part of the key.")
    judge: str | None = Field(None, description="Which judge gave the scores.")
    n: Count = Field(description="How many labels.")
    good: Count = Field(description="How many of them are good.")
    clusters: Count = Field(description="How many independent groups they are in.")
    good_at: Score = Field(description="Mean labels from here on are good.")
    objective: str = Field("mcc", description="What the threshold is best for.")
    prevalence: Score | None = Field(None, description="The share of good outputs that was assumed.")
    threshold: Score = Field(description="Scores from here on pass.")
    p_pass: list[list[float]] = Field(
        default_factory=list, description="Blocks of scores: lowest, highest, chance to be good, labels."
    )
    logistic: tuple[float, float] | None = Field(
        None, description="Slope and intercept of the chance, in place of p_pass."
    )
    alpha: Score | None = Field(None, description="The share of errors among clear scores.")
    pass_from: Score | None = Field(None, description="Scores from here on are a clear pass.")
    fail_below: Score | None = Field(None, description="Scores below are a clear fail.")


_MAY_BE_NULL = ("key", "judge", "prevalence", "alpha", "pass_from", "fail_below", "logistic")


def as_reference(path: str) -> str:
    """Return the path of a file as a reference, which it may be already."""
    return path if is_file_reference(path) else f"{FILE_PREFIX}{path}"


def read_calibrations(value: JsonValue, place: SourcePath, reading: LoadContext) -> Calibrations:
    """Return the calibrations of the file that a config names; none without a file.

    What is wrong with the file is a problem with its place there.
    """
    nothing = Calibrations({}, is_broken=value is not None)
    if value is None:
        return nothing
    if not isinstance(value, str):
        hint = "name the file, for example `calibration: judge.cal.json`"
        reading.report(f"`calibration` must be a path, found {describe_value(value)}", place.value(), hint)
        return nothing
    known = len(reading.problems)
    try:
        document = reading.files.document(as_reference(value), place.value())
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return nothing
    entries = _entries(document.value, document.place, reading)
    if len(reading.problems) > known:
        return nothing
    return Calibrations({entry.metric: _of_entry(entry) for entry in entries}, value, place)


def _entries(value: JsonValue, place: SourcePath, reading: LoadContext) -> list[CalibrationEntry]:
    if not isinstance(value, dict) or "calibration_version" not in value:
        reading.report("this is no calibration file: it has no `calibration_version`", place.value(), _WRITE)
        return []
    version = value["calibration_version"]
    if version != CALIBRATION_VERSION or isinstance(version, bool):
        is_newer = isinstance(version, int) and version > CALIBRATION_VERSION
        hint = "a newer geval wrote it: update this one" if is_newer else f"calibrate again: {_WRITE}"
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
        reading.report("`entries` must be a list with an entry for each metric", where, _WRITE)
        return []
    entries: dict[str, CalibrationEntry] = {}
    for index, item in enumerate(written):
        entry = _entry(item, place.child("entries", index), reading)
        if entry is not None and entry.metric in entries:
            reading.report(
                f"`{entry.metric}` is there twice", entry.place.value("metric"), "keep one of them"
            )
        elif entry is not None:
            entries[entry.metric] = entry
    return list(entries.values())


def _entry(item: JsonValue, place: SourcePath, reading: LoadContext) -> CalibrationEntry | None:
    what = "a calibration"
    given = (
        {name: entry for name, entry in item.items() if entry is not None or name not in _MAY_BE_NULL}
        if (isinstance(item, dict))
        else item
    )
    fields = read_fields(CalibrationEntry, given, place, what, reading)
    if fields is None:
        return None
    _as_numbers(fields)
    entry = build_spec(CalibrationEntry, fields, reading)
    return entry if entry is not None and _is_curve(entry, reading) else None


def _as_numbers(fields: Fields) -> None:
    """Take whole numbers for numbers in blocks: 0 and 1 are how JSON writes the ends of a scale."""
    blocks = fields.values.get("p_pass")
    if isinstance(blocks, list):
        fields.values["p_pass"] = [
            [float(item) if _is_number(item) else item for item in block]
            if isinstance(block, list)
            else block
            for block in blocks
        ]


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_curve(entry: CalibrationEntry, reading: LoadContext) -> bool:
    """Return whether the entry says what a chance is, in one way; a problem is reported if not."""
    if entry.logistic is not None:
        if all(map(math.isfinite, entry.logistic)) and entry.logistic[0] >= 0 and not entry.p_pass:
            return True
        message = "`logistic` must be a slope from 0 and an intercept, without `p_pass`"
        reading.report(message, entry.place.value("logistic"), _WRITE)
        return False
    if not entry.p_pass:
        reading.report("a calibration needs `p_pass` or `logistic`", entry.place.value(), _WRITE)
        return False
    for index, block in enumerate(entry.p_pass):
        if not _is_block(block) or (index and not _follows(entry.p_pass[index - 1], block)):
            message = (
                "blocks must be [lowest, highest, chance, labels], of rising scores and chances from 0 to 1"
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


def _of_entry(entry: CalibrationEntry) -> Calibration:
    blocks = tuple(Block(low, high, chance, int(count)) for low, high, chance, count in entry.p_pass)
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
    )


def with_threshold(spec: AssertionT, place: SourcePath, reading: LoadContext) -> Assertion | None:
    """Return an assertion of `threshold: calibrated` with its number; None with a problem where there is none."""
    calibrations, metric = reading.calibrations, spec.metric or getattr(spec, "dimension", None)
    where = place.value()
    if not isinstance(spec, ModelGradedAssertion) or spec.is_negated:
        hint = "write a number; only what a judge scores, and without `not-`, has a calibrated threshold"
        reading.report(f"`threshold: {CALIBRATED}` is not for {spec.type}", where, hint)
        return None
    if calibrations is None or (not calibrations.entries and not calibrations.is_broken):
        hint = "add `calibration: judge.cal.json` to the config; " + _WRITE
        reading.report(f"`threshold: {CALIBRATED}`, and the config names no calibration file", where, hint)
        return None
    if calibrations.is_broken:  # which is reported
        return None
    if metric is None:
        hint = "add `metric`, as the labels name it"
        reading.report(f"`threshold: {CALIBRATED}` needs a metric", where, hint)
        return None
    found = calibrations.entries.get(metric)
    if found is None:
        near = did_you_mean(metric, calibrations.entries)
        hint = f"did you mean `{near}`?" if near else f"it has: {', '.join(calibrations.entries)}"
        reading.report(f"{calibrations.path} has no calibration of `{metric}`", where, hint)
        return None
    return spec.with_calibrated_threshold(found.threshold)
