"""A run as the reports read it: its record, its counts, a way to go through its results, and the names of these."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from geval_cli.judge.conversation import USER, said
from geval_cli.numbers import format_comparison, format_score
from geval_cli.records import AssertionResult, CaseResult, Column, RunRecord, RunSummary
from geval_cli.report.label_sheet import MetricLabels
from geval_cli.report.sanitize import one_line, sanitize, value_text

_TITLE_WIDTH = 200


class RunReport(Struct, frozen=True):
    """Everything that a report of a run, under way or stored, may draw on.

    Attributes:
        results: yields every stored result in the order (test, repeat, column); may be called again and again, and
            must not hold all results at once.
        planned: how many cases the run was to have, where that is known; an interrupted run has fewer results.
        bugs: how many results a bug in geval spoilt.
        is_stored: whether all of it can be shown again by its id.
        file: the results file that it was read from; empty for a run of the store.
        labels: returns what people said of its outputs, metric by metric.
    """

    run: RunRecord
    summary: RunSummary
    results: Callable[[], Iterator[CaseResult]]
    planned: int | None = None
    bugs: int = 0
    is_stored: bool = True
    file: str = ""
    labels: Callable[[], Sequence[MetricLabels]] = tuple

    @property
    def way_to_everything(self) -> str:
        """Return the hint that says how to get all of it in a file."""
        if not self.is_stored and not self.file:
            return "run it with -o results.json"
        return f"geval show {sanitize(self.file or self.run.id)} --all"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.run.columns


def run_title(run: RunRecord) -> str:
    """Return what a run is called on every page and in every report: its name, else the file of its config."""
    return one_line(run.title or Path(run.config_path).name or run.config_path or "results", _TITLE_WIDTH)


def case_number(result: CaseResult) -> str:
    """`#3`, counted from 1 as people do; `#3.2` for its second repeat."""
    repeat = f".{result.repeat_index + 1}" if result.repeat_index else ""
    return f"#{result.test_index + 1}{repeat}"


def assertion_name(item: AssertionResult) -> str:
    """Return an assertion's type, and its metric where it has one."""
    return f"{item.type} {item.metric}" if item.metric else item.type


def score_text(item: AssertionResult) -> str:
    """Return a score beside its threshold, as "0.5 < 0.7"; "" without a score.

    A `not-` assertion's threshold is that of its positive form, so it stands beside no score.
    """
    if item.score is None:
        return ""
    if item.threshold is None or item.type.startswith("not-"):
        return format_score(item.score)
    return format_comparison(item.score, item.threshold)


def output_text(result: CaseResult) -> str:
    """Return what a case brought, for files: the conversation turn by turn, or the output; empty for neither."""
    if result.turns:
        return "\n".join(f"{turn.role}: {said(turn)}" for turn in result.turns)
    return "" if result.output is None else value_text(result.output)


def case_title(result: CaseResult, width: int) -> str:
    """Return a test's title on one line: its description, its vars in short, what its user says, else its prompt."""
    if not result.description and not result.vars and result.turns:
        return one_line(" / ".join(turn.content for turn in result.turns if turn.role == USER), width)
    if result.description or not result.vars:
        return one_line(result.description or result.prompt.rendered, width)
    pairs = (f"{name}={one_line(value_text(value), 40)}" for name, value in result.vars.items())
    return one_line(", ".join(pairs), width)
