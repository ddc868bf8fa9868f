"""The list of runs, with the pass rate of each config over time."""

from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from msgspec import Struct

from geval_cli.report.numbers import format_percentage
from geval_cli.store.run_pages import RunChoice, RunPoint
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import PageRoute, link_with, page_count, page_number, run_link, stored_runs

TREND_WIDTH, TREND_HEIGHT = 260, 56
_MARGIN = 6
_RUNS_MAX = 30
_CONFIGS_MAX = 6


class Dot(Struct, frozen=True):
    """One run of a trend."""

    x: float
    y: float
    point: RunPoint
    rate_text: str


class Trend(Struct, frozen=True):
    """The pass rates of one config's last runs, oldest first. `delta_points` is in percentage points."""

    config_path: str
    dots: tuple[Dot, ...]
    line: str
    area: str
    delta_points: float

    @property
    def description(self) -> str:
        """The chart in words."""
        first, last = self.dots[0].rate_text, self.dots[-1].rate_text
        return f"Pass rate of the last {len(self.dots)} runs, oldest first: from {first} to {last}"


def trends(history: Sequence[RunPoint]) -> list[Trend]:
    """Return one trend for each config of which several runs had a pass rate, the config that ran last first."""
    by_config: dict[str, list[RunPoint]] = {}
    for point in history:
        if point.pass_rate is not None:
            by_config.setdefault(point.config_path, []).append(point)
    several = [(config, points) for config, points in by_config.items() if len(points) > 1]
    return [_trend(config, points[:_RUNS_MAX][::-1]) for config, points in several[:_CONFIGS_MAX]]


def _trend(config_path: str, points: Sequence[RunPoint]) -> Trend:
    step = (TREND_WIDTH - 2 * _MARGIN) / (len(points) - 1)
    dots = tuple(
        Dot(round(_MARGIN + number * step, 1), _height(point), point, _rate_text(point))
        for number, point in enumerate(points)
    )
    line = " ".join(f"{dot.x},{dot.y}" for dot in dots)
    floor = TREND_HEIGHT - _MARGIN
    area = f"{dots[0].x},{floor} {line} {dots[-1].x},{floor}"
    return Trend(config_path, dots, line, area, _delta_points(points))


def _delta_points(points: Sequence[RunPoint]) -> float:
    before, last = (point.pass_rate or 0.0 for point in points[-2:])
    return 100 * (last - before)


def _height(point: RunPoint) -> float:
    room = TREND_HEIGHT - 2 * _MARGIN
    return round(_MARGIN + room * (1 - (point.pass_rate or 0.0)), 1)


def _rate_text(point: RunPoint) -> str:
    return format_percentage(point.passed, point.passed + point.failed)


RUNS_PER_PAGE = 50
_HISTORY_RUNS = 500

router = APIRouter(route_class=PageRoute)


@router.get("/", response_class=HTMLResponse)
def show_runs(request: Request) -> HTMLResponse:
    """Return all runs, newest first, or with `?config=` those of one config."""
    pages = stored_runs(request).pages()
    config = request.query_params.get("config") or None
    number = page_number(request)
    outlines, total = pages.outlines(
        RunChoice(config=config), offset=(number - 1) * RUNS_PER_PAGE, limit=RUNS_PER_PAGE
    )
    history = [] if number > 1 else pages.history(_HISTORY_RUNS)
    return render_page(
        "runs.html",
        section="runs",
        outlines=outlines,
        total=total,
        config=config,
        trends=trends([point for point in history if config in (None, point.config_path)]),
        trend_width=TREND_WIDTH,
        trend_height=TREND_HEIGHT,
        page=number,
        pages_total=page_count(total, RUNS_PER_PAGE),
        page_link=lambda page: link_with("/", {"config": config, "page": page}),
        config_link=lambda path: link_with("/", {"config": path}),
        run_link=run_link,
        file_name=lambda path: Path(path).name or path,
        folder=request.app.state.settings.folder,
    )
