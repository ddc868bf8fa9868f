"""The judges of a jury beside people, for the terminal: a row for each, then whether the jury is better."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from geval_cli.extras.trust.juries import JuryAgreement, jury_sentence
from geval_cli.numbers import fixed
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.sanitize import one_line
from geval_cli.statistics.calibration import JudgeWeight
from geval_cli.statistics.intervals import Estimate


def print_jury(found: JuryAgreement, console: Console, weights: Sequence[JudgeWeight] = ()) -> None:
    """Print how each judge follows people, its share of the weight where it has one, and the jury beside the best."""
    table = plain_table(console)
    table.add_column("judge", no_wrap=True)
    table.add_column("rho [95 %]", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    total = sum(one.weight for one in weights)
    if total:
        table.add_column("weight", justify="right", no_wrap=True)
    for place, one in enumerate(found.judges):
        share = [f"{100 * weights[place].weight / total:.0f} %"] if total else []
        table.add_row(one_line(one.judge, 40), _rho(one.spearman), f"{one.spearman.n:,}", *share)
    print_trimmed(indented(table), console)
    print_hanging(Text(" "), Text(one_line(jury_sentence(found), 300)), console, indent=0)


def _rho(estimate: Estimate) -> str:
    value = "-" if estimate.value is None else fixed(estimate.value, 2)
    if estimate.interval is None:
        return value
    low, high = estimate.interval
    return f"{value} [{fixed(low, 2)}, {fixed(high, 2)}]"
