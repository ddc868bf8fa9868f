"""The drawings of a run, of two runs compared, and of a config's runs over time."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import UsageError
from geval_cli.extras.compare.comparison import CasePairs, ComparedRow, RowWords, is_rate
from geval_cli.extras.html.charts import (
    SCORE,
    PairedScore,
    RunFigures,
    ScoreRange,
    TrendPoint,
    difference_intervals,
    run_charts,
    score_scatter,
    sorted_differences,
    trend,
)
from geval_cli.extras.html.drawing import METRICS_MAX, Chart, MarkFilter
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.live_runs import runs_of
from geval_cli.extras.web.pages.compare import PairChoice, column_indexes, compared, refusal
from geval_cli.extras.web.pages.routing import PageRoute, case_link, link_with, run_link
from geval_cli.records import MetricSummary, RunStatus
from geval_cli.report.report import RunReport, run_title
from geval_cli.runs.stored import load_report
from geval_cli.statistics.intervals import Interval
from geval_cli.store.run_pages import RunPages, RunPoint

_PAIRED_METRICS_MAX = 8
"""Metrics of which pairs of scores are drawn."""

_FIGURES_KEPT = 8
_TREND_RUNS = 30
_TREND_CONFIGS = 6

router = APIRouter(route_class=PageRoute)


class KeptFigures:
    """The figures of the runs that were drawn last: a page asks for its drawings each time that a filter changes.

    A run that goes on is counted each time, and one that was resumed once more.
    """

    def __init__(self) -> None:
        self._kept: dict[str, RunFigures] = {}

    def of(self, report: RunReport, pages: RunPages) -> RunFigures:
        """Return the figures of a run; safe for several threads, of which two may count the same run."""
        run, summary = report.run, report.summary
        if run.status is RunStatus.RUNNING:
            return RunFigures.of(pages.scored(run.id))
        counts = (summary.total, summary.passed, summary.failed, summary.errored)
        key = repr((run.id, run.status, run.finished_at, counts))
        found = self._kept.pop(key, None) or RunFigures.of(pages.scored(run.id))
        self._kept[key] = found
        for old in list(self._kept)[:-_FIGURES_KEPT]:
            self._kept.pop(old, None)
        return found


@router.get("/runs/{run_id}/charts", response_class=HTMLResponse)
def show_charts(request: Request, run_id: str) -> Response:
    """Return the drawings of a run by its id, the beginning of it, or `latest`."""
    runs = runs_of(request)
    report = load_report(runs, run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(f"{run_link(run.id)}/charts")
    pages = runs.pages()
    figures = request.app.state.figures.of(report, pages)
    links = partial(choice_link, run.id)
    labels = report.labels()
    charts = [
        *run_charts(report.summary.columns, figures, links),
        *(labels.charts(links) if labels else ()),
    ]
    return render_page(
        "run_charts.html",
        section="runs",
        run=run,
        charts=charts,
        run_link=run_link,
        config_name=run_title(run),
    )


@router.get("/compare/charts", response_class=HTMLResponse)
def show_comparison_charts(request: Request) -> Response:
    """Return the drawings of two runs, `?before=RUN&after=RUN`."""
    runs = runs_of(request)
    before, after = (
        load_report(runs, request.query_params.get(name) or "latest") for name in ("before", "after")
    )
    try:
        decided, cases = compared(request, before, after)
    except UsageError as error:
        return refusal(error)
    query = {"before": before.run.id, "after": after.run.id}
    indexes = column_indexes((before, after))
    links = _ComparisonLinks(query, indexes)
    charts = list(_comparison_charts(decided.rows, _paired_scores(cases, after.run.id), links))
    return render_page(
        "compare_charts.html",
        section="runs",
        charts=charts,
        before=before,
        after=after,
        run_link=run_link,
        compare_link=link_with("/compare", query),
    )


class _ComparisonLinks(Struct, frozen=True):
    """Addresses of cases of the comparison that `query` names; `columns` are indexes by label."""

    query: Mapping[str, str]
    columns: Mapping[str, int]

    def column(self, row: ComparedRow) -> str:
        """Return the address of the cases of a row's column."""
        return link_with("/compare", {**self.query, "column": self.columns.get(row.column)}) + "#cases"

    def scores(self, metric: str | None, before: ScoreRange, after: ScoreRange) -> str:
        """Return the address of the cases with scores in both ranges; without a `metric`, scores of the case."""
        chosen = PairChoice(metric=metric, before=before, after=after)
        return link_with("/compare", {**self.query, **chosen.ranges}) + "#cases"


def _comparison_charts(
    rows: Sequence[ComparedRow], scores: Mapping[str, Sequence[PairedScore]], links: _ComparisonLinks
) -> Iterator[Chart]:
    """Yield the differences of each metric column by column, then its scores before and after."""
    metrics: dict[str, list[ComparedRow]] = {}
    scored: dict[str, str] = {}
    for row in rows:
        what = RowWords(row).name
        metrics.setdefault(what, []).append(row)
        # Scores are drawn pair by pair; a pass rate is, where a score has the same figures.
        names = row.same if is_rate(row) else (row.metric,)
        scored.setdefault(what, next((name for name in names if name in scores), ""))
    for number, (what, found) in enumerate(list(metrics.items())[:METRICS_MAX], start=1):
        yield difference_intervals(f"intervals-{number}", what, found, links.column)
        if name := scored[what]:
            to_scores = partial(links.scores, None if name == SCORE else name)
            yield score_scatter(f"pairs-{number}", what, scores[name], to_scores)
            yield sorted_differences(f"differences-{number}", what, scores[name])


def _paired_scores(found: CasePairs, after_id: str) -> dict[str, list[PairedScore]]:
    """Return the scores of all cases that both runs have, and those of each metric, columns together."""
    scores: dict[str, list[PairedScore]] = {SCORE: []}
    for pair in found.pairs:
        old, new = pair.before, pair.after
        title = new.description or f"test {new.test_index + 1:,}"
        href = case_link(after_id, new)
        if old.score is not None and new.score is not None:
            scores[SCORE].append(PairedScore(old.score, new.score, title, href))
        for name, score in new.named_scores.items():
            if name in old.named_scores and (name in scores or len(scores) <= _PAIRED_METRICS_MAX):
                scores.setdefault(name, []).append(PairedScore(old.named_scores[name], score, title, href))
    return scores


def trends(history: Sequence[RunPoint], config: str | None = None) -> list[Chart]:
    """Return the pass rates of each config's last runs; with `config`, its pass rates and the means of its metrics.

    Args:
        history: newest first.
        config: the path of a config.
    """
    by_config: dict[str, list[RunPoint]] = {}
    for point in history:
        if point.pass_rate is not None and config in (None, point.config, point.config_path):
            by_config.setdefault(point.config, []).append(point)
    several = [(path, points[:_TREND_RUNS][::-1]) for path, points in by_config.items() if len(points) > 1]
    rates = []
    for number, (path, points) in enumerate(several[:_TREND_CONFIGS], start=1):
        title = "Pass rate" if config else f"Pass rate: {Path(path).name or path}"
        drawn = trend(f"trend-{number}", title, list(map(_rate_point, points)), is_share=True)
        rates.append(drawn if config else replace(drawn, href=link_with("/", {"config": path})))
    return [*rates, *(_metric_trends(several[0][1]) if config and several else ())]


def _metric_trends(points: Sequence[RunPoint]) -> Iterator[Chart]:
    names = dict.fromkeys(name for point in points for name in point.metrics)
    for number, name in enumerate(list(names)[:METRICS_MAX], start=1):
        yield trend(f"metric-trend-{number}", name, [_metric_point(point, name) for point in points])


def _rate_point(point: RunPoint) -> TrendPoint:
    return _trend_point(point, point.pass_rate, point.pass_interval, point.passed + point.failed)


def _metric_point(point: RunPoint, name: str) -> TrendPoint:
    found = point.metrics.get(name, MetricSummary(None, 0, 0))
    return _trend_point(point, found.mean, found.interval, found.n)


def _trend_point(run: RunPoint, value: float | None, interval: Interval | None, n: int) -> TrendPoint:
    return TrendPoint(
        when=run.started_at,
        value=value,
        interval=interval,
        n=n,
        is_partial=run.is_partial,
        run_id=run.run_id,
        href=run_link(run.run_id),
    )


def choice_link(run_id: str, choice: MarkFilter) -> str:
    """Return the address of a run's page that shows a choice of its results."""
    values = {name: getattr(choice, name) for name in choice.__struct_fields__}
    return f"{link_with(run_link(run_id), values)}#results-title"
