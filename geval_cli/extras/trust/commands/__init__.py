"""The commands that hold judges against people. Their bodies import what they need when they run."""

import typer

from geval_cli.cli.options import (
    EXIT_CODES,
    Config,
    GivenLabels,
    GroupedCommand,
    LabelsFile,
    RunName,
    declared,
    exit_with,
)
from geval_cli.extras.trust.options import (
    AgreeCommand,
    CalibrateCommand,
    EstimateCommand,
    LabelCommand,
    ProbeCommand,
)

commands = typer.Typer(rich_markup_mode=None)


@commands.command(epilog=EXIT_CODES, cls=GroupedCommand)
@declared(AgreeCommand)
def agree(given: AgreeCommand, labels: LabelsFile = None) -> None:
    """Hold a judge against people's labels: how far it agrees, and which bad outputs it lets pass."""
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval agree")
    from geval_cli.extras.trust.commands.reports import run_agree

    exit_with(run_agree(labels, given))


@commands.command(epilog=EXIT_CODES, cls=GroupedCommand)
@declared(CalibrateCommand)
def calibrate(given: CalibrateCommand, labels: GivenLabels) -> None:
    """Find by people's labels the threshold of a judge, what its scores are worth, and which of them are borderline."""
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval calibrate")
    from geval_cli.extras.trust.commands.reports import run_calibrate

    exit_with(run_calibrate(labels, given))


@commands.command(epilog=EXIT_CODES, cls=GroupedCommand)
@declared(EstimateCommand)
def estimate(given: EstimateCommand, labels: GivenLabels) -> None:
    """Estimate the true pass rate of a run from labels of a few of its outputs; --draw writes the sheet to label."""
    from geval_cli.extras.trust.commands.reports import run_estimate

    exit_with(run_estimate(labels, given))


@commands.command(cls=GroupedCommand)
@declared(LabelCommand)
def label(given: LabelCommand, run: RunName = "latest") -> None:
    """Rate outputs of a run key by key, blind to the judge; what you say is kept for `geval agree`."""
    from geval_cli.extras.trust.commands.label import run_label

    run_label(run, given)


@commands.command(epilog=EXIT_CODES, cls=GroupedCommand)
@declared(ProbeCommand)
def probe(given: ProbeCommand, config: Config) -> None:
    """Rewrite the outputs of a config's tests by rule, and see whether its judge is fooled, swayed or blind."""
    from geval_cli.extras.trust import require_statistics

    require_statistics("geval probe")
    from geval_cli.extras.trust.commands.probe import run_probes

    exit_with(run_probes(config, given))
