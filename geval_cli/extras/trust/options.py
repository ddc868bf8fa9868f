"""Options of label, agree, calibrate, drift, estimate, improve and probe, each declared once.

Programs pass the classes named ...Options; the ...Command classes add what only the command line needs. A requirement
on a statistic (`--require "spearman >= 0.4"`) holds if its whole confidence interval satisfies it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from geval_cli.errors import UsageError
from geval_cli.extras.trust.labels import GOOD_AT, LabelFile
from geval_cli.extras.trust.matching import JudgedItem, hint_of
from geval_cli.extras.trust.statistics.estimate import MARGIN
from geval_cli.extras.trust.statistics.plain import MIN_CLUSTERS, Estimate
from geval_cli.numbers import digits_beside, fixed, format_share
from geval_cli.records import Status
from geval_cli.runs.options import (
    ConcurrencyOption,
    EnvFileOption,
    GraderOption,
    HomeOption,
    JsonOption,
    MaxCostOption,
    MaxRequestsOption,
    OfflineOption,
    Option,
    OptionGroup,
    SamplesOption,
    ScoringOption,
)
from geval_cli.statistics.intervals import Interval
from geval_cli.statistics.paired import NO_MARGINS, Margins
from geval_cli.suite.gates import GATE, Comparison, Condition

_LEVELS = ("dataset", "summary", "system")
_WITH_LEVELS = frozenset({"pearson", "spearman", "kendall"})
_EXAMPLE = "write it as `spearman >= 0.4` or `coherence.kappa >= 0.6`"


class GateOutcome(Struct, frozen=True):
    """The result of a gate on one metric: `failed` if it is not shown to hold, `error` if it cannot be decided.

    Attributes:
        bound: the end of the interval that was compared with the limit.
        note: the value with its interval, or why there is none.
    """

    gate: str
    metric: str
    status: Status
    bound: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Requirement(Condition):
    """A requirement on a statistic, of one metric or of all metrics."""

    text: str
    metric: str | None
    level: str
    statistic: str
    comparison: Comparison
    limit: float

    @classmethod
    def parse(cls, text: str, statistics: Sequence[str]) -> "Requirement":
        """Parse a requirement of the form `[METRIC.][LEVEL.]STATISTIC >= NUMBER`.

        Raises:
            UsageError: the text is not a requirement, or its statistic or limit is invalid.
        """
        found = GATE.match(text)
        if found is None or found["tags"] is not None or found["against"] is not None:
            name = statistics[-1]
            hint = (
                _EXAMPLE
                if "spearman" in statistics
                else f"write it as `{name} >= 80%` or `coherence.{name} >= 0.8`"
            )
            raise UsageError(f"`{text}` is not a requirement", hint=hint)
        rest, _, statistic = found["subject"].rpartition(".")
        if statistic not in statistics:
            message = f"`{text}` requires an unknown statistic, `{statistic}`"
            raise UsageError(message, hint=hint_of(statistic, statistics))
        metric, _, level = rest.rpartition(".")
        if level not in _LEVELS or statistic not in _WITH_LEVELS:
            metric, level = rest, "dataset"
        comparison: Comparison = found["comparison"]  # type: ignore[assignment]  # one of the four, by the pattern
        limit = float(found["limit"]) / (100 if found["percent"] else 1)
        # All lie in -1..1, except a share of the ceiling: a judge may be better than human annotators.
        if abs(limit) > 1 and not (statistic == "ceiling" and found["percent"]):
            sign = "-" if limit < 0 else ""
            number = abs(float(found["limit"]))
            hint = f"write {sign}{number / 100:g} or {sign}{number:g}%" if number <= 100 else _EXAMPLE  # noqa: PLR2004
            raise UsageError(f"a limit beyond {sign}1 (or {sign}100%) in the requirement `{text}`", hint=hint)
        if found["percent"] and 0 < limit < 0.01 and comparison in {">=", ">"}:  # noqa: PLR2004
            hint = f"write {100 * limit:g} or {10_000 * limit:g}%"
            raise UsageError(f"a limit below 1 % in the requirement `{text}`", hint=hint)
        metric = metric.strip().strip("\"'")
        return cls(text.strip(), metric or None, level, statistic, comparison, limit)

    def decide(self, estimates: Mapping[str, Estimate | None]) -> Iterator[GateOutcome]:
        """Yield the outcome for each metric that the requirement is about, given the estimates by metric.

        Raises:
            UsageError: the metric does not exist.
        """
        if self.metric is not None and self.metric not in estimates:
            message = f"`{self.text}` is about `{self.metric}`, which has no labels"
            raise UsageError(message, hint=hint_of(self.metric, estimates, "labelled"))
        for metric, estimate in estimates.items():
            if self.metric in (None, metric):
                yield self._outcome(metric, estimate)

    def _outcome(self, metric: str, estimate: Estimate | None) -> GateOutcome:
        if estimate is None or estimate.value is None:
            return GateOutcome(self.text, metric, Status.ERROR, None, "it is not defined for these labels")
        is_share = self.statistic == "true_pass_rate"
        value = format_share(estimate.value) if is_share else f"{estimate.value:.2f}"
        if estimate.interval is None:
            why = (
                "too few independent outputs are labelled for an interval"
                if estimate.clusters < MIN_CLUSTERS
                else "a figure that no test changes, of 1 or -1, or from a single test, has no interval"
            )
            return GateOutcome(self.text, metric, Status.ERROR, None, f"it is {value}, but {why}")
        low, high = estimate.interval
        bound, _ = self.worst_and_best(low, high)
        note = f"it is {value}, 95 % interval {interval_beside(estimate.interval, self.limit, is_share=is_share)}"
        return GateOutcome(
            self.text, metric, Status.PASSED if self.holds(bound) else Status.FAILED, bound, note
        )


def interval_beside(interval: Interval, limit: float, *, is_share: bool) -> str:
    """Return the bounds of an interval, with enough decimals to see on which side of a limit each of them is."""
    scale, digits, unit = (100, 0, " %") if is_share else (1, 2, "")
    # Rounding may widen an interval, but not reduce it to its end.
    low, high = (
        fixed(scale * bound, digits_beside(scale * bound, scale * limit, digits, frozenset({float(end)})))
        for bound, end in zip(interval, (scale, 0), strict=True)
    )
    return f"{low} to {high}{unit}"


AllowUnmatchedOption = Annotated[
    bool, Option("--allow-unmatched", "Skip labels whose output is not in the run.", OptionGroup.CONFIG)
]
SeedOption = Annotated[int, Option("--seed", "Random seed.", OptionGroup.SELECTION)]


@dataclass(frozen=True, kw_only=True)
class VerdictOptions:
    """Options that say which labels count as good, and which scores as passed.

    Attributes:
        good: lowest mean label of a good output, 0..1.
        threshold: lowest score that passes; None for the verdicts of the run, or for `good` where there are none.
    """

    good: Annotated[
        float,
        Option(
            "--good",
            "Lowest mean label (scaled to 0..1) of a good output.",
            OptionGroup.JUDGING,
            minimum=0,
            maximum=1,
        ),
    ] = GOOD_AT
    threshold: Annotated[
        float | None,
        Option(
            "--threshold",
            "Lowest score that passes. [default: the run's own, else as --good]",
            OptionGroup.JUDGING,
            minimum=0,
            maximum=1,
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError if a value is out of range."""
        for name, value in (("good", self.good), ("threshold", self.threshold)):
            if value is not None and not 0 <= value <= 1:
                hint = "use a share: labels and scores are scaled to 0..1"
                raise UsageError(f"`{name}` must be between 0 and 1, found {value:g}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Option for the clusters that intervals are based on: a column or metadata key; None for doc or test."""

    cluster: Annotated[
        str | None,
        Option(
            "--cluster",
            "Group outputs by this column or metadata. [default: doc, else the test]",
            OptionGroup.JUDGING,
            syntax="KEY",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """Option for the metrics to use; empty for all."""

    only: Annotated[
        tuple[str, ...],
        Option("--only", "Only this metric; repeatable.", OptionGroup.JUDGING, syntax="METRIC"),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options for where a command writes its results."""

    outputs: Annotated[
        tuple[Path, ...],
        Option(
            "-o --output",
            "Output file: .json, .md or .html; repeatable.",
            OptionGroup.RESULTS,
            syntax="FILE",
        ),
    ] = ()
    as_json: JsonOption = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class LabelledRunOptions:
    """Options for the run that was labelled."""

    run: Annotated[
        str | None,
        Option(
            "--run",
            "The labelled run. [default: the scores in LABELS, else the latest run]",
            OptionGroup.CONFIG,
            syntax="RUN",
        ),
    ] = None
    allow_unmatched: AllowUnmatchedOption = False


@dataclass(frozen=True, kw_only=True)
class AgreeOptions(ClusterOptions, VerdictOptions):
    """How agreement is computed. `annotators` is the kind of annotators, a key of `EPSILONS`."""

    annotators: Annotated[
        str,
        Option(
            "--annotators", "Kind of annotators: expert, skilled or crowd.", OptionGroup.JUDGING, syntax="WHO"
        ),
    ] = "expert"


@dataclass(frozen=True, kw_only=True)
class AgreeCommand(ReportOptions, AgreeOptions, LabelledRunOptions):
    """Options of `geval agree`."""

    require: Annotated[
        tuple[str, ...],
        Option(
            "--require",
            'Fail unless this holds: "spearman >= 0.4"; repeatable.',
            OptionGroup.GATES,
            syntax="GATE",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(MetricOptions, ClusterOptions, VerdictOptions):
    """How a calibration is made.

    Attributes:
        costs: costs of a false pass and of a false fail; None to maximise the Matthews correlation coefficient (MCC).
        prevalence: share of good outputs where the judge will be used; None for that of the labels.
    """

    costs: Annotated[
        tuple[float, float] | None,
        Option(
            "--cost",
            "Cost of a false pass : a false fail, such as 3:1. [default: highest MCC]",
            OptionGroup.JUDGING,
            syntax="A:B",
            is_text=True,
        ),
    ] = None
    prevalence: Annotated[
        float | None,
        Option(
            "--prevalence",
            "Share of good outputs in real use. [default: as labelled]",
            OptionGroup.JUDGING,
            minimum=0,
            maximum=1,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CalibrateCommand(ReportOptions, CalibrateOptions, LabelledRunOptions):
    """Options of `geval calibrate`."""

    outputs: Annotated[
        tuple[Path, ...],
        Option(
            "-o --output",
            "Output file: NAME.cal.json for configs; report .json, .md or .html; repeatable.",
            OptionGroup.RESULTS,
            syntax="FILE",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(MetricOptions, VerdictOptions):
    """How true figures are estimated.

    Attributes:
        method: `ppi` if the labels are a random sample of the run's outputs; `rogan-gladen` if they are of other
            outputs and only tell the judge's error rates.
        margin: the run's calibration carries over if it is shown to be off by less than this.
    """

    method: Annotated[
        str,
        Option(
            "--method",
            "Method: ppi, or rogan-gladen for labels with scores of other outputs.",
            OptionGroup.JUDGING,
            syntax="NAME",
        ),
    ] = "ppi"
    margin: Annotated[
        float,
        Option(
            "--margin",
            "Check that the run's calibration is off by less than this.",
            OptionGroup.JUDGING,
            minimum=0,
            maximum=1,
        ),
    ] = MARGIN


@dataclass(frozen=True, kw_only=True)
class EstimateCommand(ReportOptions, EstimateOptions):
    """Options of `geval estimate`."""

    run: Annotated[
        str, Option("--run", "The run to estimate true figures for.", OptionGroup.CONFIG, syntax="RUN")
    ] = "latest"
    allow_unmatched: AllowUnmatchedOption = False
    draw: Annotated[
        int | None,
        Option(
            "--draw",
            "Write LABELS: this many random outputs for people to label.",
            OptionGroup.CONFIG,
            minimum=1,
            syntax="N",
        ),
    ] = None
    seed: Annotated[int, Option("--seed", "Random seed of --draw.", OptionGroup.CONFIG)] = 0
    of: Annotated[
        str | None,
        Option("--of", "Draw tests of two runs, with both outputs.", OptionGroup.CONFIG, syntax="A,B"),
    ] = None
    require: Annotated[
        tuple[str, ...],
        Option(
            "--require",
            'Fail unless this holds: "coherence.true_pass_rate >= 80%"; repeatable.',
            OptionGroup.GATES,
            syntax="GATE",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class CorrectOptions:
    """How two runs are compared with the help of labels.

    Attributes:
        columns: pairs of columns, each as `OLD=NEW`; the others are paired by their labels.
        cluster: a metadata key of the tests: tests with equal values form a cluster; None to make each test its own
            cluster.
        margins: differences that do not matter; a metric without one uses `MARGIN` to decide whether a correction
            carries over.
    """

    columns: tuple[str, ...] = ()
    cluster: str | None = None
    margins: Margins = NO_MARGINS


@dataclass(frozen=True, kw_only=True)
class LabelCommand:
    """Options of `geval label`."""

    draw: Annotated[
        int | None,
        Option("--draw", "Label this many random outputs.", OptionGroup.SELECTION, minimum=1),
    ] = None
    next: Annotated[
        int | None,
        Option(
            "--next",
            "Label the N most informative outputs; estimates stay unbiased.",
            OptionGroup.SELECTION,
            minimum=1,
        ),
    ] = None
    seed: SeedOption = 0
    metrics: Annotated[
        tuple[str, ...],
        Option(
            "-M --metric",
            "Label this metric; repeatable. [default: all judged metrics]",
            OptionGroup.SELECTION,
            syntax="METRIC",
        ),
    ] = ()
    annotator: Annotated[
        str | None, Option("--annotator", "Name of the annotator. [default: your login]", syntax="NAME")
    ] = None
    scale: Annotated[
        tuple[float, float] | None,
        Option(
            "--scale",
            "Lowest and highest label. [default: pass and fail]",
            syntax="LOW,HIGH",
            is_text=True,
        ),
    ] = None
    shows_verdict: Annotated[
        bool, Option("--show-verdict", "Show the judge's verdicts; they may influence you.")
    ] = False
    review: Annotated[
        bool, Option("--review", "Compare judge and human labels, disagreements first.", OptionGroup.RESULTS)
    ] = False
    export: Annotated[
        Path | None,
        Option(
            "--export",
            "Export labels or a sheet to fill in: .jsonl or .csv.",
            OptionGroup.RESULTS,
            syntax="FILE",
        ),
    ] = None
    read: Annotated[
        Path | None, Option("--import", "Import labels from a file.", OptionGroup.RESULTS, syntax="FILE")
    ] = None
    allow_unmatched: Annotated[
        bool,
        Option("--allow-unmatched", "Skip labels whose output is not in the run.", OptionGroup.RESULTS),
    ] = False
    as_json: Annotated[bool, Option("--json", "Print the review as JSON.", OptionGroup.RESULTS)] = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """How a judge is probed.

    Attributes:
        items: number of outputs, drawn at random with `seed`.
        only: names of probes; empty for all. A damage named here is expected to lower the score of any metric.
        labels: human labels: of `labelled` outputs for the probe `family`, and of the probed outputs for `joint`.
    """

    items: Annotated[
        int, Option("--items", "Probe this many random outputs.", OptionGroup.SELECTION, minimum=1)
    ] = 20
    seed: SeedOption = 0
    only: Annotated[
        tuple[str, ...],
        Option(
            "--only", "Only this probe; repeatable. [default: all]", OptionGroup.SELECTION, syntax="PROBE"
        ),
    ] = ()
    labels: LabelFile | None = None
    labelled: tuple[JudgedItem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Options of a command that calls a judge: its budget, and how calls are sent."""

    plan: Annotated[
        bool, Option("--plan", "Show the number of judge calls needed; send nothing.", OptionGroup.BUDGET)
    ] = False
    max_cost: MaxCostOption = None
    max_requests: MaxRequestsOption = None
    max_concurrency: ConcurrencyOption = None
    env_file: EnvFileOption = None


@dataclass(frozen=True, kw_only=True)
class RatingOptions(BudgetOptions):
    """Options of a command that has a judge rate outputs: the judge, its scoring and the budget."""

    grader: GraderOption = None
    scoring: ScoringOption = None
    samples: SamplesOption = None

    def of_request(self) -> dict[str, Any]:
        """Return the options that are fields of a `RunRequest` as well."""
        return {item.name: getattr(self, item.name) for item in fields(RatingOptions) if item.name != "plan"}


@dataclass(frozen=True, kw_only=True)
class ProbeCommand(ReportOptions, RatingOptions, ProbeOptions):
    """Options of `geval probe`; `labels_file` is read into `labels`."""

    labels_file: Annotated[
        Path | None,
        Option("--labels", "Human labels, for the probe `family`.", OptionGroup.SELECTION, syntax="FILE"),
    ] = None
    run: Annotated[
        str | None,
        Option("--run", "The labelled run. [default: the latest]", OptionGroup.SELECTION, syntax="RUN"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DriftCommand(ReportOptions, RatingOptions):
    """Options of `geval drift`. With `save`, anchors are drawn from a run and nothing is judged."""

    save: Annotated[
        Path | None,
        Option(
            "--save",
            "Write anchors: outputs of a run with their scores.",
            OptionGroup.SELECTION,
            syntax="FILE",
        ),
    ] = None
    run: Annotated[
        str,
        Option("--run", "With --save: the run to take outputs from.", OptionGroup.SELECTION, syntax="RUN"),
    ] = "latest"
    items: Annotated[
        int,
        Option("--items", "With --save: the number of random outputs.", OptionGroup.SELECTION, minimum=1),
    ] = 100
    seed: SeedOption = 0
    margin: Annotated[
        float,
        Option("--margin", "Ignore a mean shift of up to this.", OptionGroup.JUDGING, minimum=0, maximum=1),
    ] = 0.05


@dataclass(frozen=True, kw_only=True)
class ImproveOptions:
    """How a better judge is searched for. With `gepa`, the GEPA library rewrites the criteria, too."""

    seed: SeedOption = 0
    gepa: Annotated[bool, Option("--gepa", "Also let GEPA rewrite the criteria.", OptionGroup.JUDGING)] = (
        False
    )
    allow_unmatched: AllowUnmatchedOption = False


@dataclass(frozen=True, kw_only=True)
class ImproveCommand(ReportOptions, RatingOptions, ImproveOptions):
    """Options of `geval improve`. Without `labels_file`, the labels stored by `geval label` for the run are used."""

    outputs: Annotated[
        tuple[Path, ...],
        Option(
            "-o --output",
            "The improved assertion as .yaml; a report as .json, .md or .html; repeatable.",
            OptionGroup.RESULTS,
            syntax="FILE",
        ),
    ] = ()
    labels_file: Annotated[
        Path | None,
        Option(
            "--labels",
            "Human labels: .jsonl or .csv. [default: those that `geval label` keeps for the run]",
            OptionGroup.CONFIG,
            syntax="FILE",
        ),
    ] = None
    run: Annotated[
        str | None,
        Option(
            "--run",
            "The run that was labelled. [default: the latest of the config]",
            OptionGroup.CONFIG,
            syntax="RUN",
        ),
    ] = None
    metric: Annotated[
        str | None,
        Option(
            "-M --metric",
            "Improve this metric. [default: the only labelled one]",
            OptionGroup.CONFIG,
            syntax="METRIC",
        ),
    ] = None
    teacher: Annotated[
        str | None,
        Option(
            "--teacher",
            "Model that writes guidelines and criteria. [default: the judge]",
            OptionGroup.JUDGING,
            syntax="PROVIDER",
        ),
    ] = None
    is_offline: OfflineOption = False

    def of_request(self) -> dict[str, Any]:
        """Return the options that are fields of a `RunRequest` as well."""
        return {**super().of_request(), "is_offline": self.is_offline}
