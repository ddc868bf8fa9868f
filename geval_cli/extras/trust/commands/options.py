"""Options of the commands that ask how far a judge is to be trusted: label, agree, calibrate, estimate and probe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from geval_cli.cli.options import JsonOption
from geval_cli.runs.options import (
    EnvFileOption,
    GraderOption,
    Group,
    HomeOption,
    Option,
    SamplesOption,
    ScoringOption,
)

LabelledRunOption = Annotated[
    str | None,
    Option(
        "--run",
        "The run that was labelled. [default: the scores in LABELS, else the latest run]",
        Group.CONFIG,
        syntax="RUN",
    ),
]
AllowUnmatchedOption = Annotated[
    bool, Option("--allow-unmatched", "Leave out labels whose output is not in the run.", Group.CONFIG)
]
GoodOption = Annotated[
    float,
    Option(
        "--good",
        "Mean labels from here on, brought to 0..1, are good.",
        Group.JUDGING,
        minimum=0,
        maximum=1,
    ),
]
ThresholdOption = Annotated[
    float | None,
    Option(
        "--threshold",
        "Scores from here on pass. [default: the run's own, else as --good]",
        Group.JUDGING,
        minimum=0,
        maximum=1,
    ),
]
ClusterOption = Annotated[
    str | None,
    Option(
        "--cluster",
        "Group outputs by this column or metadata. [default: doc, else the test]",
        Group.JUDGING,
        syntax="KEY",
    ),
]
LabelledMetricsOption = Annotated[
    tuple[str, ...],
    Option("--only", "Take this metric only; repeatable.", Group.JUDGING, syntax="METRIC"),
]
ReportFilesOption = Annotated[
    tuple[Path, ...],
    Option(
        "-o --output", "Write it to a file: .json, .md or .html; repeatable.", Group.RESULTS, syntax="FILE"
    ),
]


@dataclass(frozen=True, kw_only=True)
class AgreeOptions:
    """Options of `geval agree`."""

    run: LabelledRunOption = None
    allow_unmatched: AllowUnmatchedOption = False
    good: GoodOption = 0.75
    threshold: ThresholdOption = None
    cluster: ClusterOption = None
    annotators: Annotated[
        str, Option("--annotators", "Who labelled: expert, skilled or crowd.", Group.JUDGING, syntax="WHO")
    ] = "expert"
    require: Annotated[
        tuple[str, ...],
        Option(
            "--require", 'Fail unless it holds, as "spearman >= 0.4"; repeatable.', Group.GATES, syntax="GATE"
        ),
    ] = ()
    outputs: ReportFilesOption = ()
    as_json: JsonOption = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Options of `geval label`."""

    draw: Annotated[
        int | None, Option("--draw", "Label so many outputs, drawn at random.", Group.SELECTION, minimum=1)
    ] = None
    seed: Annotated[int, Option("--seed", "Another draw for another number.", Group.SELECTION)] = 0
    metrics: Annotated[
        tuple[str, ...],
        Option(
            "-M --metric",
            "Label this metric; repeatable. [default: all that a model judged]",
            Group.SELECTION,
            syntax="METRIC",
        ),
    ] = ()
    annotator: Annotated[
        str | None, Option("--annotator", "Who labels. [default: your login]", syntax="NAME")
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
        bool, Option("--show-verdict", "Show what the judge said: you may follow it.")
    ] = False
    review: Annotated[
        bool, Option("--review", "Judge and person side by side, disagreements first.", Group.RESULTS)
    ] = False
    export: Annotated[
        Path | None,
        Option(
            "--export", "Write labels, or a sheet to fill in: .jsonl or .csv.", Group.RESULTS, syntax="FILE"
        ),
    ] = None
    read: Annotated[
        Path | None, Option("--import", "Keep the labels of a file.", Group.RESULTS, syntax="FILE")
    ] = None
    allow_unmatched: Annotated[
        bool,
        Option("--allow-unmatched", "Leave out labels whose output is not in the run.", Group.RESULTS),
    ] = False
    as_json: Annotated[bool, Option("--json", "Print the review as JSON.", Group.RESULTS)] = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Options of `geval probe`."""

    items: Annotated[
        int, Option("--items", "Probe so many outputs, drawn at random.", Group.SELECTION, minimum=1)
    ] = 20
    seed: Annotated[int, Option("--seed", "Another draw for another number.", Group.SELECTION)] = 0
    only: Annotated[
        tuple[str, ...],
        Option("--only", "Only this probe; repeatable. [default: all]", Group.SELECTION, syntax="PROBE"),
    ] = ()
    labels: Annotated[
        Path | None,
        Option("--labels", "People's labels, for the probe `family`.", Group.SELECTION, syntax="FILE"),
    ] = None
    run: Annotated[
        str | None,
        Option("--run", "The run that was labelled. [default: the latest]", Group.SELECTION, syntax="RUN"),
    ] = None
    grader: GraderOption = None
    scoring: ScoringOption = None
    samples: SamplesOption = None
    plan: Annotated[bool, Option("--plan", "Say how many ratings it takes; send nothing.", Group.BUDGET)] = (
        False
    )
    max_cost: Annotated[
        float | None, Option("--max-cost", "Stop at this cost.", Group.BUDGET, "USD", "5.00")
    ] = None
    max_requests: Annotated[
        int | None, Option("--max-requests", "Stop after so many requests.", Group.BUDGET, minimum=0)
    ] = None
    max_concurrency: Annotated[
        int | None, Option("-j --max-concurrency", "Requests at once.", Group.RUNNING, minimum=1)
    ] = None
    env_file: EnvFileOption = None
    outputs: ReportFilesOption = ()
    as_json: JsonOption = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Options of `geval calibrate`."""

    run: LabelledRunOption = None
    allow_unmatched: AllowUnmatchedOption = False
    good: GoodOption = 0.75
    present: ThresholdOption = None
    costs: Annotated[
        str | None,
        Option(
            "--cost",
            "Cost of a false pass : of a false fail, as 3:1. [default: highest MCC]",
            Group.JUDGING,
            syntax="A:B",
        ),
    ] = None
    prevalence: Annotated[
        float | None,
        Option(
            "--prevalence",
            "Share of good outputs where the judge will be used. [default: as labelled]",
            Group.JUDGING,
            minimum=0,
            maximum=1,
        ),
    ] = None
    cluster: ClusterOption = None
    only: LabelledMetricsOption = ()
    outputs: Annotated[
        tuple[Path, ...],
        Option(
            "-o --output",
            "NAME.cal.json for configs; a report as .json, .md or .html; repeatable.",
            Group.RESULTS,
            syntax="FILE",
        ),
    ] = ()
    as_json: JsonOption = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """Options of `geval estimate`."""

    run: Annotated[
        str, Option("--run", "The run whose true figures are wanted.", Group.CONFIG, syntax="RUN")
    ] = "latest"
    allow_unmatched: AllowUnmatchedOption = False
    draw: Annotated[
        int | None,
        Option(
            "--draw",
            "Write LABELS: this many outputs, drawn at random, for people to label.",
            Group.CONFIG,
            minimum=1,
            syntax="N",
        ),
    ] = None
    seed: Annotated[int, Option("--seed", "Of the draw: the same seed draws the same.", Group.CONFIG)] = 0
    method: Annotated[
        str,
        Option(
            "--method",
            "ppi, or rogan-gladen for labels with scores of other outputs.",
            Group.JUDGING,
            syntax="NAME",
        ),
    ] = "ppi"
    good: GoodOption = 0.75
    threshold: ThresholdOption = None
    only: LabelledMetricsOption = ()
    require: Annotated[
        tuple[str, ...],
        Option(
            "--require",
            'Fail unless it holds, as "coherence.true_pass_rate >= 80%"; repeatable.',
            Group.GATES,
            syntax="GATE",
        ),
    ] = ()
    outputs: ReportFilesOption = ()
    as_json: JsonOption = False
    home: HomeOption = None
