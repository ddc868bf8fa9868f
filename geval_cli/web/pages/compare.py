"""Two runs side by side, with what changed its verdict on top."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from msgspec import Struct

from geval_cli.errors import UsageError
from geval_cli.records import CaseResult, MetricSummary
from geval_cli.report.html.matrix import row_title
from geval_cli.report.paired_cases import Change, Comparison, Pair, compare_runs
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import load_report
from geval_cli.store.run_pages import RunPages, StoredVerdict
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import (
    PageRoute,
    case_link,
    link_with,
    page_count,
    page_number,
    run_link,
    stored_runs,
    word_in_query,
)

PAIRS_PER_PAGE = 50
_RUNS_COMPARED = 2

router = APIRouter(route_class=PageRoute)


class ShownPair(Struct, frozen=True):
    """One case in both runs with both outputs."""

    pair: Pair
    before: CaseResult
    after: CaseResult


class MetricPair(Struct, frozen=True):
    """A metric in both runs."""

    name: str
    before: MetricSummary | None
    after: MetricSummary | None

    @property
    def delta(self) -> float | None:
        """The later mean minus the earlier one."""
        if self.before is None or self.after is None:
            return None
        if self.before.mean is None or self.after.mean is None:
            return None
        return self.after.mean - self.before.mean


@router.get("/compare", response_class=HTMLResponse)
def show_comparison(request: Request) -> Response:
    """Compare `?before=RUN&after=RUN`; of `?run=RUN&run=RUN` the one that began first is the earlier one."""
    runs = stored_runs(request)
    chosen = request.query_params.getlist("run")
    if chosen:
        return _by_age([load_report(runs, name) for name in chosen[: _RUNS_COMPARED + 1]])
    names = [request.query_params.get(name, "") for name in ("before", "after")]
    if not all(names):
        hint = "choose two runs in the list, then Compare"
        raise UsageError("it takes two runs to compare", hint=hint)
    before, after = (load_report(runs, name) for name in names)
    pages = runs.pages()
    comparison = compare_runs(
        pages.verdicts(before.run.id),
        pages.verdicts(after.run.id),
        before_columns=before.run.columns,
        after_columns=after.run.columns,
    )
    return _page(request, pages, before, after, comparison)


def _page(
    request: Request, pages: RunPages, before: RunReport, after: RunReport, comparison: Comparison
) -> HTMLResponse:
    change = word_in_query(request, "change", Change)
    pairs = [pair for pair in comparison.pairs if change in (None, pair.change)]
    number = page_number(request)
    shown = pairs[(number - 1) * PAIRS_PER_PAGE : number * PAIRS_PER_PAGE]
    query = {"before": before.run.id, "after": after.run.id, "change": change}
    return render_page(
        "compare.html",
        section="runs",
        before=before,
        after=after,
        comparison=comparison,
        counts=comparison.counts(),
        change=change,
        pairs=[_with_outputs(pages, before.run.id, after.run.id, pair) for pair in shown],
        pairs_total=len(pairs),
        metrics=_metric_pairs(before, after),
        page=number,
        pages_total=page_count(len(pairs), PAIRS_PER_PAGE),
        page_link=lambda page: link_with("/compare", {**query, "page": page}),
        change_link=lambda word: link_with("/compare", {**query, "change": word}),
        charts_link=link_with("/compare/charts", {"before": before.run.id, "after": after.run.id}),
        swap_link=link_with("/compare", {"before": after.run.id, "after": before.run.id}),
        run_link=run_link,
        case_link=case_link,
        config_name=lambda run: Path(run.config_path).name or run.config_path,
        has_columns=max(len(before.run.columns), len(after.run.columns)) > 1,
        title_of=row_title,
    )


def _by_age(chosen: list[RunReport]) -> RedirectResponse:
    if len({report.run.id for report in chosen}) != _RUNS_COMPARED:
        hint = "choose exactly two different runs in the list, then Compare"
        raise UsageError(f"two runs can be compared, and {len(chosen)} were chosen", hint=hint)
    before, after = sorted(chosen, key=lambda report: report.run.started_at)
    return RedirectResponse(link_with("/compare", {"before": before.run.id, "after": after.run.id}))


def _with_outputs(pages: RunPages, before_id: str, after_id: str, pair: Pair) -> ShownPair:
    return ShownPair(pair, _result(pages, before_id, pair.before), _result(pages, after_id, pair.after))


def _result(pages: RunPages, run_id: str, verdict: StoredVerdict) -> CaseResult:
    row = pages.row(run_id, verdict.test_index, verdict.repeat_index)
    return next(item for item in row if item.column == verdict.column)


def _metric_pairs(before: RunReport, after: RunReport) -> list[MetricPair]:
    old, new = before.summary.metrics, after.summary.metrics
    return [MetricPair(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]
