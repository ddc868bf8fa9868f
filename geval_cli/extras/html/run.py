"""One run for the templates: its sums, and its results as a matrix with tests down, prompts x providers across."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from geval_cli.engine.columns import column_name
from geval_cli.extras.html.environment import short_text
from geval_cli.metrics import with_members
from geval_cli.numbers import format_percentage, format_score
from geval_cli.records import (
    CaseResult,
    Column,
    ColumnSummary,
    JsonValue,
    MetricStat,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.case_view import (
    case_reason,
    case_title,
    failed_assertions,
    failure_figure,
    has_fallback,
)
from geval_cli.report.columns import column_table, cost_note, leader_text, metric_names, share_text
from geval_cli.report.report import RunReport, run_title, telling_metrics
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import (
    derived_rows,
    gate_value,
    ranking_note,
    ranking_rows,
    run_outcome,
    shown_gates,
    whole_titles,
)
from geval_cli.store.run_pages import (
    WORST_FIRST,
    Facet,
    Repeats,
    ResultFilter,
    ResultRow,
    SortOrder,
    metric_verdicts,
)

ROWS_PER_PAGE = 50
_CHIPS_MAX = 6
_VARIABLES_MAX = 4
_TITLE_WIDTH, _NAME_WIDTH = 160, 24


class Chip(Struct, frozen=True):
    """One metric of a case; its score is None where nothing was scored."""

    name: str
    status: Status
    score: float | None


class Cell(Struct, frozen=True):
    """The repeats of one test in one column, by their own verdicts or by those on the chosen metric.

    Attributes:
        result: the repeat that is shown: the worst of those that passed the filter.
        status: of that repeat, like the other figures.
        matches: a repeat passed the filter.
        tally: how many repeats passed, `1/2`; empty without repeats.
        is_flaky: some repeats passed and others failed.
        chips: its first metrics; `chips_hidden` more are left out.
        figure: what is beside the verdict: the score; of a failed case the name and score of the assertion that failed
            it by most, and how many others failed.
        reason: of that assertion, or the error; empty for a case without a problem. With a metric, the reason of that
            one.
    """

    result: CaseResult
    status: Status
    figure: str
    matches: bool
    has_fallback: bool
    chips: tuple[Chip, ...]
    chips_hidden: int
    reason: str
    tally: str = ""
    is_flaky: bool = False


class Head(Struct, frozen=True):
    """The head of a column; without figures while the run goes on.

    Attributes:
        counts: of its results by their status on the chosen metric; None without one.
        means: its metrics with their means, only the chosen one where there is one.
    """

    column: Column
    figures: ColumnSummary | None
    counts: Mapping[Status, int] | None = None
    means: tuple[tuple[str, MetricStat], ...] = ()

    @property
    def cases(self) -> int:
        """The number of cases that were judged."""
        if self.counts is not None:
            return self.counts.get(Status.PASSED, 0) + self.counts.get(Status.FAILED, 0)
        return 0 if self.figures is None else self.figures.passed + self.figures.failed

    @property
    def rate(self) -> str:
        """The share of judged cases that passed; with a chosen metric, on that."""
        if self.counts is not None:
            return format_percentage(self.counts.get(Status.PASSED, 0), self.cases)
        return "" if self.figures is None else share_text(self.figures.pass_rate)


class Row(Struct, frozen=True):
    """One test of the matrix: its title, its variables, and its cells by column.

    `is_named` tells whether the title is more than its variables.
    """

    test_index: int
    title: str
    is_named: bool
    variables: Mapping[str, JsonValue]
    cells: Mapping[int, Cell]


class Matrix(Struct, frozen=True):
    """The page of a matrix that is shown, with the choice that led to it.

    Attributes:
        rows: of the page; `rows_total` on all pages.
        page: counted from 1, of `pages_total`.
        variables: the names of those that have a column; the page of a case has all.
        counts: of all results by their status on the chosen metric; None without one.
    """

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    rows_total: int
    wanted: ResultFilter
    sort: SortOrder
    facets: tuple[Facet, ...]
    page: int
    pages_total: int
    variables: tuple[str, ...] = ()
    counts: Mapping[Status, int] | None = None

    @property
    def chosen(self) -> Mapping[str, str]:
        """The values that metadata was chosen by, by name."""
        return dict(self.wanted.metadata)

    @property
    def choice_words(self) -> list[str]:
        """The choice that a mark of a drawing made beside status and metric, in words."""
        return choice_words(self.wanted, [head.column for head in self.heads])


def choice_words(wanted: ResultFilter, columns: Sequence[Column]) -> list[str]:
    """Return in words what a drawing's mark chose beside status and metric."""
    words = [] if wanted.test is None else [f"of test {wanted.test + 1:,}"]
    if wanted.repeats is not None:
        words.append(_REPEATS_WORDS[wanted.repeats])
    if wanted.column is not None:
        named = [item for item in columns if item.index == wanted.column]
        words.append(f"in {column_name(named[0])}" if named else f"in column {wanted.column + 1:,}")
    words += _range_words("with a score", wanted.low, wanted.high)
    if wanted.metric is not None:
        joint = "and " if (wanted.low, wanted.high) != (None, None) else ""
        if (wanted.label_low, wanted.label_high) == (0.0, None):
            words.append("with human labels")
        else:
            words += _range_words(f"{joint}with a mean label", wanted.label_low, wanted.label_high)
    return words


_REPEATS_WORDS = {
    Repeats.PASSED: "whose repeats all passed",
    Repeats.MIXED: "whose repeats had different verdicts",
    Repeats.FAILED: "whose repeats all failed",
}


def _range_words(what: str, low: float | None, high: float | None) -> Iterator[str]:
    """Yield `with a score from 0.50` and `to below 0.55`, as far as there are ends."""
    if low is not None:
        yield f"{what} from {format_score(low)}"
    if high is not None:
        joint = "to" if low is not None else what
        yield f"{joint} {'' if high == 1 else 'below '}{format_score(high)}"


def heads_of(
    columns: Iterable[Column],
    summary: RunSummary,
    metric: str | None = None,
    counts: Mapping[tuple[int, Status], int] | None = None,
) -> tuple[Head, ...]:
    """Return the heads of the columns, with their figures where the summary has them.

    `counts` are those of `metric`.
    """
    figures = dict(enumerate(summary.columns))
    return tuple(_head(column, figures.get(column.index), metric, counts) for column in columns)


def _head(
    column: Column,
    figures: ColumnSummary | None,
    metric: str | None,
    counts: Mapping[tuple[int, Status], int] | None,
) -> Head:
    own = None if counts is None else {status: counts.get((column.index, status), 0) for status in Status}
    names = (figures.metrics if figures else {}) if metric is None else (metric,)
    means = tuple((name, figures.metrics[name]) for name in names if figures and name in figures.metrics)
    return Head(column, figures, own, means)


def status_sums(counts: Mapping[tuple[int, Status], int]) -> Mapping[Status, int]:
    """Return the counts of all columns together."""
    return {status: sum(n for (_, found), n in counts.items() if found is status) for status in Status}


def first_variables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the variables that get a column of their own; the page of a case has all."""
    return tuple(islice(dict.fromkeys(names), _VARIABLES_MAX))


def columns_of(columns: tuple[Column, ...], rows: Iterable[ResultRow]) -> list[Column]:
    """Return the columns of the run; where its record has none, those that its results have."""
    if columns:
        return list(columns)
    results = {index: found[0] for row in rows for index, found in row.cells.items()}
    return [Column(index, item.prompt.label, item.provider.label) for index, item in sorted(results.items())]


def row_title(result: CaseResult) -> str:
    """Return the title of a test on pages."""
    return case_title(result, _TITLE_WIDTH)


def shown_row(row: ResultRow, metric: str | None) -> Row:
    """Return a row with its cells by column."""
    first = next(iter(row.cells.values()))[0]
    cells = {
        column: cell_of(
            results, metric, [item for item in results if (item.repeat_index, column) in row.matching]
        )
        for column, results in row.cells.items()
    }
    return row_of(first, cells)


def row_of(first: CaseResult, cells: Mapping[int, Cell]) -> Row:
    """Return the row of a test, which `first` is a result of."""
    return Row(first.test_index, row_title(first), bool(first.description), first.vars, cells)


def cell_of(
    results: Sequence[CaseResult], metric: str | None = None, matching: Sequence[CaseResult] | None = None
) -> Cell:
    """Return the cell of a test's repeats in one column, by their scores of `metric` where they have that."""
    verdicts = [(_verdict(result, metric), result) for result in results]
    fitting = [item for item in verdicts if matching is None or item[1] in matching] or verdicts
    (status, figure), result = min(fitting, key=lambda item: WORST_FIRST.index(item[0][0]))
    found = Counter(status for (status, _), _ in verdicts)
    chips = chips_of(result)
    return Cell(
        result=result,
        status=status,
        figure=figure,
        matches=matching is None or bool(matching),
        has_fallback=has_fallback(result.assertions),
        chips=tuple(chips[:_CHIPS_MAX]),
        chips_hidden=max(len(chips) - _CHIPS_MAX, 0),
        reason=first_reason(result, metric),
        tally=f"{found[Status.PASSED]}/{len(results)}" if len(results) > 1 else "",
        is_flaky=bool(found[Status.PASSED] and found[Status.FAILED]),
    )


def _verdict(result: CaseResult, metric: str | None) -> tuple[Status, str]:
    chips = () if metric is None else chips_of(result)
    chosen = next((chip for chip in chips if chip.name == metric), None)
    if chosen is None and result.status is Status.FAILED and (failed := failed_assertions(result)):
        name = short_text(failed[0].metric or failed[0].type, _NAME_WIDTH)
        others = f"+{len(failed) - 1}" if len(failed) > 1 else ""
        return result.status, " ".join(filter(None, (name, failure_figure(failed[0]), others)))
    status, score = (result.status, result.score) if chosen is None else (chosen.status, chosen.score)
    return status, "" if score is None else format_score(score)


def chips_of(result: CaseResult) -> list[Chip]:
    """Return the metrics of a case in the order of its assertions, each with the worst status of these."""
    return [Chip(name, *verdict) for name, verdict in metric_verdicts(result).items()]


def first_reason(result: CaseResult, metric: str | None = None) -> str:
    """Return why a case has its verdict; with a metric, what was said of that, also where it passed."""
    own = [
        item
        for item, _ in with_members(result.assertions)
        if metric is not None and item.metric == metric and not item.assertions
    ]
    if result.error is not None or not own:
        return case_reason(result)
    first = min(own, key=lambda item: WORST_FIRST.index(item.status))
    return (first.reason or "") if first.error is None else first.error.message


_FLAKY_SHOWN = 20


def run_values(report: RunReport) -> dict[str, Any]:
    """Return the values of the templates `run_head.html` and `run_summary.html`."""
    run, summary = report.run, report.summary
    titles = whole_titles(run.columns)
    # Of a finished run they are called as in the table that sets them side by side.
    titles |= {column.index: item.label for column, item in zip(run.columns, summary.columns, strict=False)}
    names = metric_names(summary.columns)
    heading, rows = column_table(summary.columns, [column.label for column in summary.columns])
    return {
        "run": run,
        "summary": summary,
        "config_name": run_title(run),
        "description": _description(report),
        "is_live": run.status is RunStatus.RUNNING,
        "statuses": status_counts(summary),
        "gates": [(gate, gate_value(gate)) for gate in shown_gates(summary.gates)],
        "derived": list(derived_rows(report, titles)),
        "flaky": summary.flaky[:_FLAKY_SHOWN],
        "flaky_hidden": summary.flaky_count - len(summary.flaky[:_FLAKY_SHOWN]),
        "column_titles": titles,
        "table": (
            [name if name in names else name[:1].upper() + name[1:] for name in heading],
            rows,
        ),
        "leader": re.sub(
            "^no ", "No ", leader_text(summary.columns, [column.label for column in summary.columns])
        ),
        "outcome": run_outcome(report.run, report.summary),
        "cost_note": cost_note(summary.columns),
        "metrics": telling_metrics(summary),
        "rankings": [
            (
                name,
                [
                    (f"{place}. {one_line(label, 160)}".removeprefix(". "), *figures)
                    for place, label, *figures in ranking_rows(entries)
                ],
                ranking_note(summary, name),
            )
            for name, entries in summary.rankings.items()
        ],
    }


def status_counts(summary: RunSummary) -> list[tuple[Status, int]]:
    """Return the four outcomes with their counts, the worst first."""
    return [
        (Status.FAILED, summary.failed),
        (Status.ERROR, summary.errored),
        (Status.PASSED, summary.passed),
        (Status.NOT_EVALUATED, summary.not_evaluated),
    ]


def _description(report: RunReport) -> str | None:
    if report.run.description is not None:
        return report.run.description
    config = report.run.config
    found = config.get("description") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None
