"""A run as the reports read it: its record, its counts, its columns and a way to go through its results."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from geval_cli.events import Column
from geval_cli.records import CaseResult, RunRecord, RunSummary


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that a report of a run, under way or stored, may draw on.

    Attributes:
        columns: in the order of their index; see `columns_of` when only results are at hand.
        results: yields every stored result in the order (test, repeat, column); may be called again and again, and
            must not hold all results at once.
        planned: how many cases the run was to have, where that is known; an interrupted run has fewer results.
    """

    run: RunRecord
    summary: RunSummary
    columns: tuple[Column, ...]
    results: Callable[[], Iterator[CaseResult]]
    planned: int | None = None


def columns_of(results: Iterable[CaseResult]) -> tuple[Column, ...]:
    """The columns that occur in `results`, ordered by their index; for stored runs, which keep no columns."""
    found: dict[int, Column] = {}
    for result in results:
        if result.column not in found:
            found[result.column] = Column(result.column, result.prompt.label, result.provider.label)
    return tuple(found[index] for index in sorted(found))
