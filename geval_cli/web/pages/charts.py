"""The drawings of a run, of two runs compared, and of a config's runs over time."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from msgspec.structs import replace

from geval_cli.labels.file import GOOD_AT
from geval_cli.report.charts.agreement_charts import LabelledScore, chance_of_good, score_against_label
from geval_cli.report.charts.column_charts import METRICS_MAX
from geval_cli.report.charts.drawing import Chart, Choice
from geval_cli.report.charts.figures import RunFigures
from geval_cli.report.charts.run_charts import run_charts
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import load_report
from geval_cli.statistics.calibration import chance_at, rising_blocks
from geval_cli.store.labels import StoredLabel
from geval_cli.store.run_pages import RunPages
from geval_cli.trust.labelling import Reviewed, review
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import PageRoute, link_with, run_link, stored_runs

_CURVE_FROM = 20
"""Labelled outputs from which on a curve is drawn through them; through fewer it would follow chance."""

router = APIRouter(route_class=PageRoute)


@router.get("/runs/{run_id}/charts", response_class=HTMLResponse)
def show_charts(request: Request, run_id: str) -> Response:
    """Return the drawings of a run by its id, the beginning of it, or `latest`."""
    runs = stored_runs(request)
    report = load_report(runs, run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(f"{run_link(run.id)}/charts")
    pages = runs.pages()
    figures = RunFigures.of(pages.scored(run.id))
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
