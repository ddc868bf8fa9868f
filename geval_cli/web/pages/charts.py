"""The drawings of a run, of two runs compared, and of a config's runs over time."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from msgspec.structs import replace

from geval_cli.labels.file import GOOD_AT
from geval_cli.records import MetricSummary, RunStatus
from geval_cli.report.charts.agreement_charts import LabelledScore, chance_of_good, score_against_label
from geval_cli.report.charts.column_charts import METRICS_MAX
from geval_cli.report.charts.drawing import Chart, Choice
from geval_cli.report.charts.figures import SCORE, RunFigures
from geval_cli.report.charts.pair_charts import (
    DifferenceRow,
    PairedScore,
    TrendPoint,
    difference_intervals,
    score_scatter,
    sorted_differences,
    trend,
)
from geval_cli.report.charts.run_charts import run_charts
from geval_cli.report.paired_cases import Comparison, Kind, compare_runs
from geval_cli.report.report import RunReport
from geval_cli.report.run_comparison import ComparedRow, ComparisonOptions, NamedRun, compare
from geval_cli.runs.stored import load_report
from geval_cli.statistics.calibration import chance_at, rising_blocks
from geval_cli.statistics.intervals import Interval
from geval_cli.store.labels import StoredLabel
from geval_cli.store.run_pages import RunPages, RunPoint
from geval_cli.trust.labelling import Reviewed, review
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import PageRoute, case_link, link_with, run_link, stored_runs

_CURVE_FROM = 20
"""Labelled outputs from which on a curve is drawn through them; through fewer it would follow chance."""

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
    runs = stored_runs(request)
    report = load_report(runs, run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(f"{run_link(run.id)}/charts")
    pages = runs.pages()
    figures = request.app.state.figures.of(report, pages)
    charts = list(run_charts(report.summary.columns, figures, lambda choice: choice_link(run.id, choice)))
    labels = runs.labels().of_run(run.id)
    return render_page(
        "run_charts.html",
        section="runs",
        run=run,
        charts=[*charts, *_label_charts(report, pages, labels)],
        run_link=run_link,
        config_name=Path(run.config_path).name or run.config_path,
    )


@router.get("/compare/charts", response_class=HTMLResponse)
def show_comparison_charts(request: Request) -> Response:
    """Return the drawings of two runs, `?before=RUN&after=RUN`."""
    runs = stored_runs(request)
    before, after = (
        load_report(runs, request.query_params.get(name) or "latest") for name in ("before", "after")
    )
    pages = runs.pages()
    found = compare_runs(
        pages.verdicts(before.run.id),
        pages.verdicts(after.run.id),
        before_columns=before.run.columns,
        after_columns=after.run.columns,
    )
    compared = compare(NamedRun(before.run.id, before), NamedRun(after.run.id, after), ComparisonOptions())
    charts = list(_comparison_charts(compared.rows, _paired_scores(found, after.run.id)))
    query = {"before": before.run.id, "after": after.run.id}
    return render_page(
        "compare_charts.html",
        section="runs",
        charts=charts,
        before=before,
        after=after,
        run_link=run_link,
        compare_link=link_with("/compare", query),
    )


def _comparison_charts(
    rows: Sequence[ComparedRow], scores: Mapping[str, Sequence[PairedScore]]
) -> Iterator[Chart]:
    """Yield the differences of each metric column by column, then its scores before and after."""
    metrics: dict[tuple[Kind, str], list[DifferenceRow]] = {}
    for row in rows:
        found = DifferenceRow(
            row.column, row.delta.value or 0.0, row.delta.interval, row.delta.n, row.verdict.value
        )
        metrics.setdefault((row.kind, row.metric), []).append(found)
    for number, ((kind, name), differences) in enumerate(list(metrics.items())[:METRICS_MAX], start=1):
        what = "pass rate" if kind is Kind.PASS_RATE else name
        yield difference_intervals(f"intervals-{number}", what, differences)
        if kind is not Kind.PASS_RATE and name in scores:
            yield score_scatter(f"pairs-{number}", what, scores[name])
            yield sorted_differences(f"differences-{number}", what, scores[name])


def _paired_scores(found: Comparison, after_id: str) -> dict[str, list[PairedScore]]:
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
        if point.pass_rate is not None and config in (None, point.config_path):
            by_config.setdefault(point.config_path, []).append(point)
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


def choice_link(run_id: str, choice: Choice) -> str:
    """Return the address of a run's page that shows a choice of its results."""
    values = {name: getattr(choice, name) for name in choice.__struct_fields__}
    return f"{link_with(run_link(run_id), values)}#results-title"


def _label_charts(report: RunReport, pages: RunPages, labels: Sequence[StoredLabel]) -> Iterator[Chart]:
    """Yield for each metric that people labelled how the judge's scores compare with their labels."""
    ids = dict.fromkeys(label.case_id for label in labels)
    labelled = replace(report, results=lambda: iter(pages.cases(report.run.id, ids).values()))
    by_metric: dict[str, dict[str, list[Reviewed]]] = {}
    for row in review(labelled, labels) if labels else []:
        if row.score is not None:
            by_metric.setdefault(row.metric, {}).setdefault(row.id, []).append(row)
    for number, (metric, outputs) in enumerate(list(by_metric.items())[:METRICS_MAX], start=1):
        yield from _metric_charts(number, metric, outputs)


def _metric_charts(number: int, metric: str, outputs: Mapping[str, Sequence[Reviewed]]) -> Iterator[Chart]:
    points = [
        LabelledScore(fmean(row.human for row in rows), rows[0].score)
        for rows in outputs.values()
        if rows[0].score is not None
    ]
    thresholds = {row.threshold for rows in outputs.values() for row in rows}
    threshold = thresholds.pop() if len(thresholds) == 1 else None
    yield score_against_label(f"people-{number}", metric, points, threshold=threshold, good_at=GOOD_AT)
    verdicts = [(point.score, point.label >= GOOD_AT) for point in points]
    shares = [(score, float(is_good), 1) for score, is_good in verdicts]
    curve = None
    if len(points) >= _CURVE_FROM:
        blocks = rising_blocks(verdicts)
        curve = partial(chance_at, blocks)
    yield chance_of_good(f"calibration-{number}", metric, shares, curve=curve, threshold=threshold)
