"""The outcomes of `--require` on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from geval_cli.extras.trust.gates import GateOutcome
from geval_cli.records import Status
from geval_cli.report.console import print_hanging
from geval_cli.report.sanitize import one_line

_WORDS = {Status.PASSED: "holds", Status.FAILED: "FAILED", Status.ERROR: "not decided"}


def print_requirements(gates: Sequence[GateOutcome], console: Console) -> None:
    """Print a line for each requirement and metric: whether it holds, and why; nothing where there are none."""
    if gates:
        console.print()
    for gate in gates:
        line = f"{_WORDS[gate.status]}  {one_line(gate.gate, 60)}  {one_line(gate.metric, 40)}: {gate.note}"
        style = "" if gate.status is Status.PASSED else "bold"
        print_hanging(Text(" "), Text(line, style=style), console, indent=0)
