"""`compare`: two runs from a program, as `geval compare` compares them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_cli.library.run import RunResult

if TYPE_CHECKING:
    from contextlib import ExitStack

    from geval_cli.report.comparison import ComparedRow, RunComparison
    from geval_cli.report.report import RunReport


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two runs, decided with the statistics of `geval compare`.

    Attributes:
        verdict: better, worse, mixed, equivalent, identical or undecided.
        headline: the decision in a sentence.
        rows: a figure each: the pass rate, the score and the metrics of each pair of columns, with the difference, its
            95 % interval and its verdict.
        warnings: why the runs may not be comparable.
    """

    verdict: str
    headline: str
    rows: "tuple[ComparedRow, ...]" = field(repr=False)
    warnings: tuple[str, ...]
    _found: "RunComparison" = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return what `geval compare --json` prints."""
        from geval_cli.report.comparison import comparison_to_json

        return comparison_to_json(self._found)

    def __str__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        from geval_cli.library.table import comparison_html

        return comparison_html(self._found)


def compare(
    a: "RunResult | str | Path",
    b: "RunResult | str | Path",
    *,
    columns: Sequence[str] = (),
    cluster: str | None = None,
    margins: Sequence[str] = (),
    home: "str | Path | None" = None,
) -> Comparison:
    """Compare the run `a` with the later run `b`; a notebook shows the decision and its figures.

    Args:
        a: what `run` returned, the id of a stored run, `latest~1`, or a results file.
        b: the same.
        columns: the pairs of columns to compare, "OLD=NEW"; by default those of equal name.
        cluster: a key of the tests' metadata; tests with equal values count as one.
        margins: differences that do not matter, "0.02" or "tone=0.05"; smaller ones are equivalent.
        home: the state folder; GEVAL_HOME, or `.geval` in the current folder, when left out.

    Raises:
        UsageError: there is no such run, or the two have too few tests in common.
    """
    from contextlib import ExitStack

    from geval_cli.report.comparison import ComparisonOptions, NamedRun
    from geval_cli.report.comparison import compare as compare_runs

    options = ComparisonOptions(columns=tuple(columns), cluster=cluster, given_margins=tuple(margins))
    with ExitStack() as stack:
        before, after = (
            NamedRun(name, _report_of(name, side, home, stack)) for name, side in (("A", a), ("B", b))
        )
        found = compare_runs(before, after, options)
    return Comparison(found.verdict, found.headline, found.rows, found.warnings, found)


def _report_of(name: str, side: Any, home: "str | Path | None", stack: "ExitStack") -> "RunReport":
    from geval_cli.errors import UsageError
    from geval_cli.report.report import RunReport
    from geval_cli.runs.stored import open_report

    if isinstance(side, RunResult):
        return RunReport(side.run, side.summary, lambda: iter(side.results))
    if not isinstance(side, str | Path):
        hint = "pass what `run` returned, a run's id, or a results file"
        found = "None" if side is None else f"an object of the class {type(side).__name__}"
        raise UsageError(f"`{name.lower()}` must be a run, found {found}", hint=hint)
    folder = None if home is None else Path(home)
    report, _ = stack.enter_context(open_report(str(side), folder, os.environ))
    return report
