"""A run as the reports read it: its record, its counts, a way to go through its results, and the names of these."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from rich.cells import cell_len

from geval_cli.assertions.structured.called_tools import calls_beside
from geval_cli.judge.checklist import missed_required
from geval_cli.judge.conversation import ASSISTANT, USER, said
from geval_cli.judge.scoring import passes
from geval_cli.numbers import errors_failed, format_comparison, format_score, format_share
from geval_cli.records import (
    AskedTest,
    AssertionResult,
    CaseResult,
    Column,
    JsonValue,
    MetricSummary,
    RunRecord,
    RunSummary,
    Status,
    Turn,
)
from geval_cli.report.charts.drawing import Chart, Links
from geval_cli.report.sanitize import one_line, sanitize, value_text

_TITLE_WIDTH = 200


class HumanLabels(Protocol):
    """Human labels of a run's outputs, beside what its judges said of them."""

    def means(self) -> Mapping[str, Mapping[str, float]]:
        """Return the mean label of each output, 0..1, by metric and the output's id."""

    def charts(self, links: Links) -> Iterator[Chart]:
        """Yield the drawings of labels beside scores; `links` are addresses of the outputs of a dot."""


class RunReport(Struct, frozen=True):
    """Everything that a report of a run, under way or stored, may draw on.

    Attributes:
        tests: yields what the tests bring beside their variables, in their order; None finds it in the results.
        results: yields every stored result in the order (test, repeat, column); may be called again and again, and
            must not hold all results at once.
        planned: how many cases the run was to have, where that is known; an interrupted run has fewer results.
        bugs: how many results a bug in geval spoilt.
        is_stored: whether all of it can be shown again by its id.
        is_partly_stored: whether its id shows some of it, as after a disk that filled up.
        file: the results file that it was read from; empty for a run of the store.
        labels: returns what people said of its outputs; None where nobody did.
    """

    run: RunRecord
    summary: RunSummary
    results: Callable[[], Iterator[CaseResult]]
    planned: int | None = None
    bugs: int = 0
    is_stored: bool = True
    is_partly_stored: bool = False
    file: str = ""
    labels: Callable[[], HumanLabels | None] = lambda: None
    tests: Callable[[], Iterator[AskedTest]] | None = None

    def asked(self) -> Iterator[AskedTest]:
        """Yield what the tests bring beside their variables, each once and none kept."""
        if self.tests is not None:
            yield from self.tests()
            return
        last = -1
        for result in self.results():
            if result.asked is not None and result.test_index != last:
                last = result.test_index
                yield result.asked

    @property
    def way_to_everything(self) -> str:
        """Return the hint that says how to get all of it in a file."""
        if not self.is_stored and not self.file:
            return "run with -o results.json"
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

    A `not-` assertion's threshold is that of its positive form, so it stands beside no score. Where something else than
    the score decided, that is said in the place of the threshold.
    """
    if item.score is None:
        return ""
    if item.threshold is None or item.type.startswith("not-"):
        return format_score(item.score)
    if is_decided_by_score(item):
        return format_comparison(item.score, item.threshold)
    why = why_otherwise(item)
    return f"{format_score(item.score)}, {why}" if why else format_score(item.score)


def margin_below(item: AssertionResult) -> float:
    """Return how far a failed assertion is below its threshold; 1 where no score says so."""
    if item.score is None or item.threshold is None or item.type.startswith("not-"):
        return 1.0
    return max(item.threshold - item.score, 0.0)


def worst_first(assertions: Iterable[AssertionResult]) -> list[AssertionResult]:
    """Return assertions with those that failed first, the furthest below its threshold at the head.

    An assertion of weight 0 only measures, so it failed no case.
    """
    return sorted(assertions, key=lambda item: -margin_below(item) if _has_failed(item) else 1.0)


def failed_assertions(result: CaseResult) -> list[AssertionResult]:
    """Return what failed of a case, the worst first: the one to name where one has room."""
    return [item for item in worst_first(result.assertions) if _has_failed(item)]


def _has_failed(item: AssertionResult) -> bool:
    return item.status is Status.FAILED and bool(item.weight)


def failure_text(item: AssertionResult) -> str:
    """`0.40 < 0.50`: the score that failed an assertion; "" where it has none but its verdict, as `contains`."""
    return "" if item.threshold is None or item.status is Status.ERROR else score_text(item)


def failure_figure(item: AssertionResult) -> str:
    """`0.40`: that score without its threshold."""
    return failure_text(item).split(" ")[0].rstrip(",")


def case_reason(result: CaseResult) -> str:
    """Return why a case has its verdict: its error, or the reason of the assertion to name; "" where it passed."""
    if result.error is not None:
        return result.error.message
    if result.status is Status.PASSED:
        return ""
    deciding = failed_assertions(result) if result.status is Status.FAILED else result.assertions
    return next(filter(None, (_reason_of(item, result.status) for item in deciding)), "")


def _reason_of(item: AssertionResult, status: Status) -> str:
    """Return what an assertion with that status says; a set says only what its members say, so they speak for it."""
    if item.status is not status:
        return ""
    own = (item.reason or "") if item.error is None else item.error.message
    return next(filter(None, (_reason_of(member, status) for member in worst_first(item.assertions))), own)


def is_decided_by_score(item: AssertionResult) -> bool:
    """Return whether the verdict is that of the score beside its threshold."""
    if item.score is None or item.threshold is None:
        return False
    judged = 1 - item.score if item.type.startswith("not-") else item.score
    reached = passes(judged, item.threshold) is not item.type.startswith("not-")
    return item.status is (Status.PASSED if reached else Status.FAILED)


def why_otherwise(item: AssertionResult) -> str:
    """Return why an assertion failed although its score reaches the threshold; empty for any other."""
    if item.status is not Status.FAILED or item.threshold is None or is_decided_by_score(item):
        return ""
    missing = len(missed_required(item.detail))
    if missing:
        return "a required item is missing" if missing == 1 else f"{missing} required items are missing"
    return "the judge says it fails" if item.detail.get("judge_passed") is False else ""


def output_text(result: CaseResult) -> str:
    """Return what a case brought, for files: the conversation turn by turn, or the output and its tool calls."""
    if result.turns:
        return "\n".join(f"{turn.role}: {said(turn)}" for turn in result.turns)
    output = "" if result.output is None else value_text(result.output)
    return said(Turn(ASSISTANT, output, calls_beside(result.output, result.tool_calls)))


def worst_case(summary: RunSummary) -> str:
    """Return what follows a pass rate: `, at least 50 % if all 20 errors failed`; nothing without errors or passes."""
    if not summary.passed or not summary.errored:
        return ""
    least = summary.passed / (summary.passed + summary.failed + summary.errored)
    return f", at least {format_share(least)} {errors_failed(summary.errored)}"


def telling_metrics(summary: RunSummary) -> dict[str, MetricSummary]:
    """Return the metrics of a run but for comparisons of all columns with each other, whose mean is always a half."""
    return {
        name: metric
        for name, metric in summary.metrics.items()
        if name not in summary.rankings or not metric.is_half
    }


def case_title(result: CaseResult, width: int) -> str:
    """Return a test's title on one line: its description, its vars in short, what its user says, else its prompt."""
    if not result.description and not result.vars and result.turns:
        return one_line(" / ".join(turn.content for turn in result.turns if turn.role == USER), width)
    if result.description or not result.vars:
        return one_line(result.description or result.prompt.rendered, width)
    return one_line(", ".join(_variable_texts(result.vars)), width)


_A_WORD = 20
"""A wider value speaks for itself, also in a script that has no spaces."""


def _variable_texts(variables: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield `refund after 30 days` or `tier=gold`: a word alone and texts of several words need no name."""
    for name, value in variables.items():
        text = one_line(value_text(value), 40)
        speaks = isinstance(value, str) and (" " in value.strip() or cell_len(value) > _A_WORD)
        is_word = (
            len(variables) == 1 and not isinstance(value, bool | int | float) and any(map(str.isalpha, text))
        )
        yield text if speaks or is_word else f"{name}={text}"
