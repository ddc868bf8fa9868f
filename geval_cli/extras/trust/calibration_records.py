"""The records of what a judge's scores mean, which `trust.calibration` fills, and the JSON that is made of them."""

from msgspec import Struct, to_builtins

from geval_cli.extras.trust.calibrated import CALIBRATION_VERSION
from geval_cli.extras.trust.juries import JuryAgreement
from geval_cli.records import JsonValue
from geval_cli.statistics.agreement import Confusion
from geval_cli.statistics.calibration import Calibration, Logistic
from geval_cli.statistics.calibration_fit import Checked

_DIGITS = 6


class CalibrateOptions(Struct, frozen=True):
    """How a calibration is made.

    Attributes:
        good: mean labels from here on are good, 0..1.
        present: the threshold of today; None for the run's own, or `good` where it has none or several.
        costs: of a false pass and of a false fail; None to maximise Matthews' correlation.
        prevalence: the share of good outputs where the judge will be used; None for that of the labels.
        cluster: a column of the labels or a key of the tests' metadata; None for `doc`, else the test.
        only: metrics; empty for all.
    """

    good: float = 0.75
    present: float | None = None
    costs: tuple[float, float] | None = None
    prevalence: float | None = None
    cluster: str | None = None
    only: tuple[str, ...] = ()


class Candidate(Struct, frozen=True):
    """A threshold with its verdicts on the labels; `value` is what the objective says, higher is better."""

    threshold: float
    counts: Confusion
    balanced_accuracy: float | None
    mcc: float | None
    value: float | None


class MetricCalibration(Struct, frozen=True):
    """The calibration of one metric, and how good it is.

    Attributes:
        calibration: what a run uses.
        present: the threshold of today.
        candidates: all thresholds, lowest first; `at_present` is that of today.
        checked: on labels that were held back; None where they are all of one group.
        errored: labels whose output the judge could not score; they are left out.
        notes: what to know before it is used.
        summary: one sentence, after the metric's name.
        jury: of the weighted score of a jury's judges, which `calibration` is about then: whether it follows people
            better than the best of them, on labels that were held back.
        points: (score, good, labels) for plots; not in the JSON.
    """

    metric: str
    calibration: Calibration
    present: float
    at_present: Candidate
    candidates: tuple[Candidate, ...]
    checked: Checked | None
    errored: int
    notes: tuple[str, ...]
    summary: str
    jury: JuryAgreement | None = None
    points: tuple[tuple[float, float, int], ...] = ()

    @property
    def title(self) -> str:
        """Return the metric, and whether it is about the weighted score of its jury."""
        return self.metric if self.jury is None else f"{self.metric}, judges weighted"


class Calibrated(Struct, frozen=True):
    """The result of `geval calibrate`.

    Attributes:
        labels: the file; `run`: the run's id, None where the scores stood beside the labels.
        matched: labels with an output; `unmatched` have none.
        clustered_by: what outputs are grouped by.
    """

    labels: str
    run: str | None
    matched: int
    unmatched: int
    clustered_by: str
    prevalence: float | None
    metrics: tuple[MetricCalibration, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON document of `geval calibrate --json`."""
        found: dict[str, JsonValue] = to_builtins(self)
        for item, written in zip(self.metrics, found["metrics"], strict=True):
            written.pop("points")
            written["calibration"] = _entry(item.calibration, self.prevalence)
        return {"schema_version": 1, "kind": "calibrate", **found}

    def to_file(self) -> dict[str, JsonValue]:
        """Return the content of the calibration file that a config names."""
        entries = [_entry(item.calibration, self.prevalence) for item in self.metrics]
        return {"calibration_version": CALIBRATION_VERSION, "entries": entries}


def _entry(found: Calibration, prevalence: float | None) -> dict[str, JsonValue]:
    """Return a calibration as its file has it; chances have six digits."""
    curve = found.curve
    given: dict[str, JsonValue] = {
        name: getattr(found, name) for name in found.__struct_fields__ if name not in ("curve", "judges")
    }
    if isinstance(curve, Logistic):
        given["logistic"] = [curve.slope, curve.intercept]
    else:
        given["p_pass"] = [[block.low, block.high, round(block.p, _DIGITS), block.n] for block in curve]
    if prevalence is not None:
        given["prevalence"] = prevalence
    if found.judge is None:
        del given["judge"]
    if found.judges:
        given["judges"] = to_builtins(found.judges)
    return given
