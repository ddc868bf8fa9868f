"""A run as a matrix for the templates: tests down, prompts x providers across."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from geval_cli.engine.columns import column_name
from geval_cli.metrics import with_members
from geval_cli.numbers import format_score
from geval_cli.records import AssertionResult, CaseResult, Column, ColumnSummary, RunSummary, Status
from geval_cli.report.html.environment import short_text
from geval_cli.report.verdict import has_fallback
from geval_cli.store.result_filter import Facet, Repeats, ResultFilter
from geval_cli.store.run_pages import ResultRow, SortOrder

ROWS_PER_PAGE = 50
WORST_FIRST = (Status.FAILED, Status.ERROR, Status.PASSED, Status.NOT_EVALUATED)
_CHIPS_MAX = 6
_TITLE_WIDTH = 160


class Chip(Struct, frozen=True):
    """One metric of a case; its score is None where nothing was scored."""

    name: str
    status: Status
    score: float | None


class Cell(Struct, frozen=True):
    """One case in the matrix, by its own score or by that of the chosen metric.

    Attributes:
        matches: it passed the filter.
        chips: its first metrics; `chips_hidden` more are left out.
        reason: of the first assertion that failed, or the error; empty for a case without a problem.
    """

    result: CaseResult
    status: Status
    score: float | None
    matches: bool
    has_fallback: bool
    chips: tuple[Chip, ...]
    chips_hidden: int
    reason: str


class Head(Struct, frozen=True):
    """The head of a column; without figures while the run goes on."""

    column: Column
    figures: ColumnSummary | None

    @property
    def cases(self) -> int:
        """The number of cases that were judged."""
        return 0 if self.figures is None else self.figures.passed + self.figures.failed


class Matrix(Struct, frozen=True):
    """The page of a matrix that is shown, with the choice that led to it.

    Attributes:
        rows: of the page, with the title of their test; `rows_total` on all pages.
        page: counted from 1, of `pages_total`.
    """

    heads: tuple[Head, ...]
    rows: tuple[tuple[ResultRow, str, Mapping[int, Cell]], ...]
    rows_total: int
    wanted: ResultFilter
    sort: SortOrder
    facets: tuple[Facet, ...]
    page: int
    pages_total: int

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
            words.append("that people labelled")
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


def heads_of(columns: Iterable[Column], summary: RunSummary) -> tuple[Head, ...]:
    """Return the heads of the columns, with their figures where the summary has them."""
    figures = dict(enumerate(summary.columns))
    return tuple(Head(column, figures.get(column.index)) for column in columns)


def columns_of(columns: tuple[Column, ...], rows: Iterable[ResultRow]) -> list[Column]:
    """Return the columns of the run; where its record has none, those that its results have."""
    if columns:
        return list(columns)
    results = {index: result for row in rows for index, result in row.cells.items()}
    return [Column(index, item.prompt.label, item.provider.label) for index, item in sorted(results.items())]


def row_title(result: CaseResult) -> str:
    """Return the title of a test: its description, else its variables in short, else its prompt."""
    if result.description:
        return short_text(result.description, _TITLE_WIDTH)
    return variables_line(result) or short_text(result.prompt.rendered, _TITLE_WIDTH)


def variables_line(result: CaseResult) -> str:
    """Return the variables of a test on one line."""
    pairs = [f"{short_text(name, 40)}: {short_text(value, 60)}" for name, value in result.vars.items()]
    return short_text(" · ".join(pairs), _TITLE_WIDTH)


def shown_row(row: ResultRow, metric: str | None) -> tuple[ResultRow, str, Mapping[int, Cell]]:
    """Return a row with the title of its test and its cells by column."""
    title = row_title(next(iter(row.cells.values())))
    cells = {column: cell_of(result, metric, column in row.matching) for column, result in row.cells.items()}
    return row, title, cells


def cell_of(result: CaseResult, metric: str | None = None, matches: bool = True) -> Cell:
    """Return the cell of a case, by the score of `metric` where it has that."""
    chips = chips_of(result)
    chosen = next((chip for chip in chips if metric is not None and chip.name == metric), None)
    return Cell(
        result=result,
        status=result.status if chosen is None else chosen.status,
        score=result.score if chosen is None else chosen.score,
        matches=matches,
        has_fallback=has_fallback(result.assertions),
        chips=tuple(chips[:_CHIPS_MAX]),
        chips_hidden=max(len(chips) - _CHIPS_MAX, 0),
        reason=first_reason(result),
    )


def chips_of(result: CaseResult) -> list[Chip]:
    """Return the metrics of a case in the order of its assertions, each with the worst status of these."""
    statuses: dict[str, set[Status]] = {}
    for item, _ in with_members(result.assertions):
        if item.metric is not None:
            statuses.setdefault(item.metric, set()).add(item.status)
    return [
        Chip(name, next(status for status in WORST_FIRST if status in found), result.named_scores.get(name))
        for name, found in statuses.items()
    ]


def first_reason(result: CaseResult) -> str:
    """Return why a case failed, or could not or need not be judged: its error, or its first assertion's reason."""
    if result.error is not None:
        return result.error.message
    told = {*WORST_FIRST[:2], result.status} - {Status.PASSED}
    problems = [item for item in _leaves(result.assertions) if item.status in told]
    if not problems:
        return ""
    first = min(problems, key=lambda item: WORST_FIRST.index(item.status))
    return (first.reason or "") if first.error is None else first.error.message


def _leaves(assertions: Sequence[AssertionResult]) -> list[AssertionResult]:
    """Return the assertions that have no members: a set says only what its members say."""
    return [item for item, _ in with_members(assertions) if not item.assertions]
