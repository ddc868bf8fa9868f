"""The commands that compare judges with human labels. Their bodies import what they need when they run."""

from pathlib import Path
from typing import Annotated

import typer

from geval_cli.cli.options import (
    EXIT_CODES,
    CommandTable,
    Config,
    GivenLabels,
    LabelsFile,
    RatedRuns,
    declared,
    exit_with,
)
from geval_cli.extras.trust.options import (
    AgreeCommand,
    CalibrateCommand,
    DriftCommand,
    EstimateCommand,
    ImproveCommand,
    LabelCommand,
    ProbeCommand,
)

AnchorsFile = Annotated[
    Path | None,
    typer.Argument(metavar="ANCHORS", help="Anchors of `geval drift --save`.", show_default=False),
]
DriftConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG",
        help="Judge by the assertions of this config. [default: that of the anchors' run]",
        show_default=False,
    ),
]

commands = CommandTable()


@commands.command(epilog=EXIT_CODES)
@declared(AgreeCommand)
def agree(given: AgreeCommand, labels: LabelsFile = None) -> None:
    """Measure how well a judge agrees with human labels.

    Counts the bad outputs that it passes and the good ones that it fails.
    """
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval agree")
    from geval_cli.extras.trust.commands.reports import run_agree

    exit_with(run_agree(labels, given))


@commands.command(epilog=EXIT_CODES)
@declared(CalibrateCommand)
def calibrate(given: CalibrateCommand, labels: GivenLabels) -> None:
    """Calibrate a judge on human labels.

    Finds its best threshold, what its scores mean, and which are borderline.
    """
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval calibrate")
    from geval_cli.extras.trust.commands.reports import run_calibrate

    exit_with(run_calibrate(labels, given))


@commands.command(epilog=EXIT_CODES)
@declared(EstimateCommand)
def estimate(given: EstimateCommand, labels: GivenLabels) -> None:
    """Estimate the true pass rate from a few human labels.

    --draw writes the sheet to label.
    """
    from geval_cli.extras.trust.commands.reports import run_estimate

    exit_with(run_estimate(labels, given))


@commands.command()
@declared(LabelCommand)
def label(given: LabelCommand, run: RatedRuns = "latest") -> None:
    """Rate outputs with single keystrokes; verdicts hidden.

    Your ratings are saved as you go, for `geval agree`.
    """
    from geval_cli.extras.trust.commands.label import run_label

    run_label(run, given)


@commands.command(epilog=EXIT_CODES)
@declared(ProbeCommand)
def probe(given: ProbeCommand, config: Config) -> None:
    """Test a judge: rewrite outputs and see if it is fooled.

    Rewrites outputs by fixed rules: is the judge fooled, biased or blind?
    """
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval probe")
    from geval_cli.extras.trust.commands.probe import run_probes

    exit_with(run_probes(config, given))


@commands.command(epilog=EXIT_CODES)
@declared(DriftCommand)
def drift(given: DriftCommand, anchors: AnchorsFile = None, config: DriftConfig = None) -> None:
    """Check whether a judge has drifted since an earlier run.

    Judges saved outputs again without the cache; save them with --save.
    """
    from geval_cli.extras.trust.commands.drift import run_drift

    exit_with(run_drift(anchors, config, given))


@commands.command(epilog=EXIT_CODES)
@declared(ImproveCommand)
def improve(given: ImproveCommand, config: Config) -> None:
    """Improve a judge with labels; accept only proven gains.

    It tries examples, guidelines and rewritten criteria, and looks once at held-out labels.
    """
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval improve")
    from geval_cli.extras.trust.commands.improve import run_improve

    exit_with(run_improve(config, given))
