"""Two runs side by side: the result of `geval compare` first, then the cases, those with a changed verdict on top.

This module also has the charts of a run, of two compared runs, and of a config's runs over time.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.engine.columns import margins_of
from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.compare.comparison import (
    CasePairs,
    Change,
    ComparedRow,
    EarlierRun,
    NamedRun,
    Pair,
    RowKind,
    RowWords,
    RunComparison,
    ScoredCase,
    compare_with_cases,
    is_rate,
    turned_reason,
)
from geval_cli.extras.compare.matching import match_columns
from geval_cli.extras.compare.text import changes_text, flips_text, overall_text
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
from geval_cli.extras.html.environment import shown_text
from geval_cli.extras.html.run import row_title
from geval_cli.extras.run_pages import RunPages, RunPoint
from geval_cli.extras.web.html import error_page, render_page
from geval_cli.extras.web.live_runs import runs_of
from geval_cli.extras.web.pages.routing import (
    PageRoute,
    RecentResults,
    case_link,
    link_with,
    number_in_query,
    page_count,
    page_number,
    page_shown,
    run_link,
    whole_number_in_query,
    word_in_query,
)
from geval_cli.numbers import format_score
from geval_cli.plugins import extra
from geval_cli.records import CaseResult, MetricSummary, RunStatus
from geval_cli.report.report import RunReport, run_title
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import run_outcome
from geval_cli.runs.stored import load_report
from geval_cli.statistics.intervals import Interval

PAIRS_PER_PAGE = 50
_RUNS_COMPARED = 2
_UNPROCESSABLE = 422
_DIFFERENCE_MAX = 100_000
"""Maximum length of both outputs together, in characters, for which a difference is shown."""
_MATCHES_MAX = 30_000
_METRIC_WIDTH = 60

router = APIRouter(route_class=PageRoute)


class DiffPart(Struct, frozen=True):
    """A part of a text difference; `kind` is `same`, `removed` or `added`."""

    kind: str
    text: str


class ShownPair(Struct, frozen=True):
    """A case in both runs, with both outputs.

    Attributes:
        cause: the assertion that changed the verdict, and its reason; None if the verdict is the same or that is
        unknown.
        difference: from the earlier output to the later one; empty if they are equal or too long.
        is_same_output: whether both runs had the same output, so that only the judging differs; False if the verdict is
            the same.
    """

    pair: Pair
    before: CaseResult
    after: CaseResult
    cause: tuple[str, str] | None = None
    difference: tuple[DiffPart, ...] = ()
    is_same_output: bool = False


class DecidedColumn(Struct, frozen=True):
    """The comparison of one pair of columns; `index` is that of the later run."""

    index: int
    label: str
    rows: tuple[RowWords, ...]
    flips: str


class PairChoice(Struct, frozen=True):
    """A choice of pairs, as in the query of an address; None means no restriction.

    Attributes:
        change: change of the verdict.
        column: index of the later run's column.
        metric: whose scores the two ranges apply to; None for the score of the case.
        before: range of scores in the earlier run.
        after: range of scores in the later run.
    """

    change: Change | None = None
    column: int | None = None
    metric: str | None = None
    before: ScoreRange = ScoreRange()
    after: ScoreRange = ScoreRange()

    @property
    def has_ranges(self) -> bool:
        """Return whether pairs are chosen by their scores."""
        return self.before != ScoreRange() or self.after != ScoreRange()

    @property
    def query(self) -> dict[str, object]:
        """Return the query parameters for this choice."""
        return {"change": self.change, "column": self.column, **self.ranges}

    @property
    def ranges(self) -> dict[str, object]:
        """Return the query parameters that a dot in a chart links to."""
        return {
            "metric": self.metric,
            "before_low": self.before.low,
            "before_high": self.before.high,
            "after_low": self.after.low,
            "after_high": self.after.high,
        }

    def fits(self, pair: Pair) -> bool:
        """Return whether a pair is in the chosen column and score ranges; its change is not considered."""
        if self.column not in (None, pair.after.column):
            return False
        return not self.has_ranges or (
            self.before.holds(self._score(pair.before)) and self.after.holds(self._score(pair.after))
        )

    def _score(self, case: ScoredCase) -> float | None:
        return case.score if self.metric is None else case.named_scores.get(self.metric)

    @property
    def words(self) -> str:
        """Return the ranges in words, such as `tone from 0.50 to below 0.54 before, below 0.02 after`."""
        what = "score" if self.metric is None else one_line(self.metric, _METRIC_WIDTH)
        sides = ((self.before, "before"), (self.after, "after"))
        said = [f"{_range_words(side)} {when}" for side, when in sides if side != ScoreRange()]
        return f"{what} {', '.join(said)}"


def _range_words(scores: ScoreRange) -> str:
    low = "" if scores.low is None else f"from {format_score(scores.low)}"
    high = "" if scores.high is None else f"below {format_score(scores.high)}"
    return " to ".join(part for part in (low, high) if part)


def pair_choice(request: Request) -> PairChoice:
    """Return the choice in the query of an address; invalid values are ignored."""
    before, after = (
        ScoreRange(number_in_query(request, f"{side}_low"), number_in_query(request, f"{side}_high"))
        for side in ("before", "after")
    )
    return PairChoice(
        change=word_in_query(request, "change", Change),
        column=whole_number_in_query(request, "column"),
        metric=request.query_params.get("metric") or None,
        before=before,
        after=after,
    )


@router.get("/compare", response_class=HTMLResponse)
def show_comparison(request: Request) -> Response:
    """Return the comparison of `?before=RUN&after=RUN`; `?run=RUN&run=RUN` redirects there, in order of start time."""
    runs = runs_of(request)
    chosen = request.query_params.getlist("run")
    if chosen:
        return _by_age([load_report(runs, name) for name in chosen[: _RUNS_COMPARED + 1]])
    names = [request.query_params.get(name, "") for name in ("before", "after")]
    if not all(names):
        hint = "choose two runs in the list, then Compare"
        raise UsageError("choose two runs to compare", hint=hint)
    before, after = (load_report(runs, name) for name in names)
    try:
        decided, cases = compared(request, before, after)
    except UsageError as error:
        return refusal(error)
    return _page(request, RunPages(runs), (before, after), decided, cases)


def refusal(error: UsageError) -> HTMLResponse:
    """Return the page that says why two runs cannot be compared."""
    return error_page(_UNPROCESSABLE, "These two runs cannot be compared", error.message, error.hint)


def compared(request: Request, before: RunReport, after: RunReport) -> tuple[RunComparison, CasePairs]:
    """Return the comparison of two runs and their cases in pairs. Recent comparisons of finished runs are cached.

    Raises:
        UsageError: the suites are unrelated.
    """
    runs = [NamedRun(side.run.id, side) for side in (before, after)]
    if RunStatus.RUNNING in (before.run.status, after.run.status):
        return compare_with_cases(*runs)
    recent: RecentResults[tuple[str, ...], tuple[RunComparison, CasePairs]] = request.app.state.comparisons
    made_of = tuple(f"{side.run.id} {side.run.finished_at}" for side in (before, after))
    return recent.get(made_of, lambda: compare_with_cases(*runs))


def corrected(request: Request, before: RunReport, after: RunReport) -> Any:
    """Return the comparison corrected by human labels of both runs' outputs; None if it cannot be computed from them.

    Also None while one of the runs is in progress.
    """
    labels = runs_of(request).labels()
    kept = [item.row for side in (before, after) for item in labels.of_run(side.run.id)]
    if not kept or RunStatus.RUNNING in (before.run.status, after.run.status):
        return None
    by_labels = extra("true differences")

    def correct() -> Any:
        options = by_labels.CorrectOptions(margins=margins_of(after.run))
        try:
            return by_labels.correct(kept, EarlierRun(before), after, options, allow_unmatched=True)
        except (UsageError, ConfigError):
            return None

    made_of = (before.run.id, after.run.id, before.run.finished_at, after.run.finished_at, repr(kept))
    return request.app.state.comparisons.get(made_of, correct)


def _page(
    request: Request,
    pages: RunPages,
    sides: tuple[RunReport, RunReport],
    decided: RunComparison,
    cases: CasePairs,
) -> HTMLResponse:
    before, after = sides
    chosen = pair_choice(request)
    fitting = [pair for pair in cases.pairs if chosen.fits(pair)]
    pairs = [pair for pair in fitting if chosen.change in (None, pair.change)]
    number = page_shown(page_number(request), len(pairs), PAIRS_PER_PAGE)
    shown = pairs[(number - 1) * PAIRS_PER_PAGE : number * PAIRS_PER_PAGE]
    runs = {"before": before.run.id, "after": after.run.id}
    query = {**runs, **chosen.query}
    columns = decided_columns(decided, sides)
    return render_page(
        "compare.html",
        section="runs",
        before=before,
        after=after,
        decided=decided,
        corrected=corrected(request, before, after),
        outcome=lambda report: run_outcome(report.run, report.summary),
        columns=columns,
        changes=changes_text(decided),
        overall="" if decided.overall is None else overall_text(decided.overall, "→"),
        counts={change: sum(pair.change is change for pair in fitting) for change in Change},
        cases_total=len(fitting),
        columns_by=cases.columns_by,
        only_before=cases.only_before,
        only_after=cases.only_after,
        change=chosen.change,
        column=chosen.column,
        score_words=chosen.words if chosen.has_ranges else "",
        pairs=[shown_pair(pages, (before.run.id, after.run.id), pair) for pair in shown],
        pairs_total=len(pairs),
        page=number,
        pages_total=page_count(len(pairs), PAIRS_PER_PAGE),
        page_link=lambda page: link_with("/compare", {**query, "page": page}),
        change_link=lambda word: link_with("/compare", {**query, "change": word}),
        column_link=lambda index: (
            link_with("/compare", {**query, "change": None, "column": index}) + "#cases"
        ),
        all_link=link_with("/compare", runs) + "#cases",
        charts_link=link_with("/compare/charts", runs),
        label_link=link_with(f"{run_link(after.run.id)}/label", {"against": before.run.id, "draw": 30}),
        swap_link=link_with("/compare", {"before": after.run.id, "after": before.run.id}),
        run_link=run_link,
        case_link=case_link,
        config_name=run_title,
        has_columns=max(len(before.run.columns), len(after.run.columns)) > 1,
        title_of=row_title,
    )


def decided_columns(decided: RunComparison, sides: tuple[RunReport, RunReport]) -> list[DecidedColumn]:
    """Return the rows of a comparison grouped by pair of columns."""
    indexes = column_indexes(sides)
    found = []
    for label in dict.fromkeys(row.column for row in decided.rows):
        rows = [row for row in decided.rows if row.column == label]
        flips = next((flips_text(row) for row in rows if row.kind is RowKind.PASS_RATE and row.flipped), "")
        shown = tuple(RowWords(row, decided.detect) for row in rows)
        found.append(DecidedColumn(indexes.get(label, 0), label, shown, flips))
    return found


def column_indexes(sides: tuple[RunReport, RunReport]) -> dict[str, int]:
    """Return the later run's column indexes, by the label of the pair of columns."""
    matched = match_columns(sides[0].run.columns, sides[1].run.columns).pairs
    return {pair.label: pair.after.index for pair in reversed(matched)}


def shown_pair(pages: RunPages, run_ids: tuple[str, str], pair: Pair) -> ShownPair:
    """Return a pair with its outputs and, if the verdict changed, the cause and the difference of the outputs."""
    before, after = _result(pages, run_ids[0], pair.before), _result(pages, run_ids[1], pair.after)
    if pair.change is Change.SAME:
        return ShownPair(pair, before, after)
    old, new = shown_text(before.output), shown_text(after.output)
    has_both = before.output is not None and after.output is not None
    return ShownPair(
        pair,
        before,
        after,
        cause=turned_reason(before, after),
        difference=text_difference(old, new) if has_both else (),
        is_same_output=has_both and before.output == after.output,
    )


def text_difference(before: str, after: str) -> tuple[DiffPart, ...]:
    """Return the difference by words; by lines, or as a whole, if that would take too long.

    Empty if the texts are equal, or too long together to compare.
    """
    if before == after or len(before) + len(after) > _DIFFERENCE_MAX:
        return ()
    for parts in (r"\s+|\w+|[^\w\s]", r"[^\n]*\n|[^\n]+"):
        old, new = re.findall(parts, before), re.findall(parts, after)
        start = _same_at_the_start(old, new)
        end = _same_at_the_start(old[start:][::-1], new[start:][::-1])
        middles = old[start : len(old) - end], new[start : len(new) - end]
        if _matches(*middles) <= _MATCHES_MAX:
            pieces = [DiffPart("same", "".join(old[:start])), *_changes(*middles)]
            pieces.append(DiffPart("same", "".join(old[len(old) - end :])))
            return tuple(piece for piece in pieces if piece.text)
    return DiffPart("removed", before), DiffPart("added", after)


def _same_at_the_start(old: Sequence[str], new: Sequence[str]) -> int:
    places = zip(old, new, strict=False)
    return next((place for place, (a, b) in enumerate(places) if a != b), min(len(old), len(new)))


def _matches(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of pairs of equal parts, which determines how long a comparison takes."""
    counts = Counter(new)
    return sum(counts[part] for part in old if not part.isspace())


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[DiffPart]:
    for kind, low, high, start, end in SequenceMatcher(str.isspace, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield DiffPart("same", "".join(new[start:end]))
        else:
            yield DiffPart("removed", "".join(old[low:high]))
            yield DiffPart("added", "".join(new[start:end]))


def _by_age(chosen: list[RunReport]) -> RedirectResponse:
    if len({report.run.id for report in chosen}) != _RUNS_COMPARED:
        hint = "choose exactly two different runs in the list, then Compare"
        raise UsageError(f"only two runs can be compared, but {len(chosen)} were chosen", hint=hint)
    before, after = sorted(chosen, key=lambda report: report.run.started_at)
    return RedirectResponse(link_with("/compare", {"before": before.run.id, "after": after.run.id}))


def _result(pages: RunPages, run_id: str, case: ScoredCase) -> CaseResult:
    row = pages.row(run_id, case.test_index, case.repeat_index)
    return next(item for item in row if item.column == case.column)


_PAIRED_METRICS_MAX = 8
"""Maximum number of metrics whose paired scores are drawn."""

_FIGURES_KEPT = 8
_TREND_RUNS = 30
_TREND_CONFIGS = 6


class KeptFigures:
    """A cache of the figures of the runs drawn last, since a page requests its charts after each change of a filter.

    A run in progress is not cached, and a resumed run is counted again.
    """

    def __init__(self) -> None:
        self._kept: dict[str, RunFigures] = {}

    def of(self, report: RunReport, pages: RunPages) -> RunFigures:
        """Return the figures of a run. Thread-safe, though two threads may both count the same run."""
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
    """Return the charts of a run; its id may be shortened, or `latest`."""
    runs = runs_of(request)
    report = load_report(runs, run_id)
    run = report.run
    if run.id != run_id:
        return RedirectResponse(f"{run_link(run.id)}/charts")
    pages = RunPages(runs)
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
    """Return the charts of two compared runs, `?before=RUN&after=RUN`."""
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
    # The case scores and the metric scores of all cases that both runs have, over all columns.
    scores: dict[str, list[PairedScore]] = {SCORE: []}
    for pair in cases.pairs:
        old, new = pair.before, pair.after
        title = new.description or f"test {new.test_index + 1:,}"
        href = case_link(after.run.id, new)
        if old.score is not None and new.score is not None:
            scores[SCORE].append(PairedScore(old.score, new.score, title, href))
        for name, score in new.named_scores.items():
            if name in old.named_scores and (name in scores or len(scores) <= _PAIRED_METRICS_MAX):
                scores.setdefault(name, []).append(PairedScore(old.named_scores[name], score, title, href))
    charts = list(_comparison_charts(decided.rows, scores, links))
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
    """Links to the cases of a comparison.

    Attributes:
        query: query parameters that name the two runs.
        columns: column indexes of the later run, by label.
    """

    query: Mapping[str, str]
    columns: Mapping[str, int]

    def column(self, row: ComparedRow) -> str:
        """Return the link to the cases of a row's column."""
        return link_with("/compare", {**self.query, "column": self.columns.get(row.column)}) + "#cases"

    def scores(self, metric: str | None, before: ScoreRange, after: ScoreRange) -> str:
        """Return the link to the cases with scores in both ranges: of `metric`, or of the case if it is None."""
        chosen = PairChoice(metric=metric, before=before, after=after)
        return link_with("/compare", {**self.query, **chosen.ranges}) + "#cases"


def _comparison_charts(
    rows: Sequence[ComparedRow], scores: Mapping[str, Sequence[PairedScore]], links: _ComparisonLinks
) -> Iterator[Chart]:
    """Yield, for each metric, the differences by column and then the paired scores."""
    metrics: dict[str, list[ComparedRow]] = {}
    scored: dict[str, str] = {}
    for row in rows:
        what = RowWords(row).name
        metrics.setdefault(what, []).append(row)
        # Scores are drawn as pairs; a pass rate only if a score has the same figures.
        names = row.same if is_rate(row) else (row.metric,)
        scored.setdefault(what, next((name for name in names if name in scores), ""))
    for number, (what, found) in enumerate(list(metrics.items())[:METRICS_MAX], start=1):
        yield difference_intervals(f"intervals-{number}", what, found, links.column)
        if name := scored[what]:
            to_scores = partial(links.scores, None if name == SCORE else name)
            yield score_scatter(f"pairs-{number}", what, scores[name], to_scores)
            yield sorted_differences(f"differences-{number}", what, scores[name])


def trends(history: Sequence[RunPoint], config: str | None = None) -> list[Chart]:
    """Return the pass rates of each config's last runs; with `config`, its pass rates and mean scores by metric.

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
    """Return the link to a run's page with the results filtered by `choice`."""
    values = {name: getattr(choice, name) for name in choice.__struct_fields__}
    return f"{link_with(run_link(run_id), values)}#results-title"
