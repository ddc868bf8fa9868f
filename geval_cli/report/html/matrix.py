"""A run as a matrix for the templates: tests down, prompts x providers across."""

from msgspec import Struct

from geval_cli.records import CaseResult, Column, Status
from geval_cli.report.html.environment import short_text
from geval_cli.report.verdict import has_fallback
from geval_cli.store.run_pages import ResultRow


class Cell(Struct, frozen=True):
    """One case in the matrix, by its own score or by that of the chosen metric. `matches`: it passed the filter."""

    result: CaseResult
    status: Status
    score: float | None
    matches: bool
    has_fallback: bool


def columns_of(columns: tuple[Column, ...], rows: tuple[ResultRow, ...]) -> list[Column]:
    """Return the columns of the run; where its record has none, those that its results have."""
    if columns:
        return list(columns)
    results = {index: result for row in rows for index, result in row.cells.items()}
    return [Column(index, item.prompt.label, item.provider.label) for index, item in sorted(results.items())]


def row_title(result: CaseResult) -> str:
    """Return the title of a test: its description, else its variables in short, else its prompt."""
    if result.description:
        return short_text(result.description, 160)
    return variables_line(result) or short_text(result.prompt.rendered, 160)


def variables_line(result: CaseResult) -> str:
    """Return the variables of a test on one line."""
    pairs = [f"{short_text(name, 40)}: {short_text(value, 60)}" for name, value in result.vars.items()]
    return short_text(" · ".join(pairs), 160)


def cells_of(row: ResultRow, metric: str | None) -> dict[int, Cell]:
    """Return the cells of a row by column, by the scores of `metric` where one is chosen."""
    return {column: _cell(result, metric, column in row.matching) for column, result in row.cells.items()}


def _cell(result: CaseResult, metric: str | None, matches: bool) -> Cell:
    status, score = result.status, result.score
    of_metric = [item.status for item in result.assertions if metric and item.metric == metric]
    if metric is not None and of_metric:
        order = (Status.FAILED, Status.ERROR, Status.PASSED, Status.NOT_EVALUATED)
        status = next(item for item in order if item in of_metric)
        score = result.named_scores.get(metric)
    return Cell(result, status, score, matches, has_fallback(result.assertions))
