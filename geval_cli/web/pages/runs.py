"""The list of runs, with the pass rate of each config over time."""

from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from msgspec import Struct

from geval_cli.records import Status
from geval_cli.report.numbers import format_percentage
from geval_cli.report.run_list import change_text
from geval_cli.runs.history import read_history
from geval_cli.store.run_pages import RunChoice, RunPoint
from geval_cli.web.html import render_page
from geval_cli.web.pages.routing import PageRoute, link_with, page_count, page_number, run_link, stored_runs
from geval_cli.web.pages.run_actions import display_name

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
    """Return all runs, newest first; with `?config=` those of one config, with `?tag=NAME=VALUE` those with a tag."""
    runs = stored_runs(request)
    config = request.query_params.get("config") or None
    tags = [text for text in request.query_params.getlist("tag") if text.partition("=")[1]]
    pairs = tuple((name, value) for name, _, value in (text.partition("=") for text in tags))
    number = page_number(request)
    chosen = RunChoice(config=config, tags=pairs)
    history = read_history(runs, chosen, offset=(number - 1) * RUNS_PER_PAGE, limit=RUNS_PER_PAGE)
    points = [] if number > 1 or tags else runs.pages().history(_HISTORY_RUNS)
    query = {"config": config, "tag": tags}
    return render_page(
        "runs.html",
        section="runs",
        outlines=history.runs,
        total=history.total,
        config=config,
        tags=tags,
        trends=trends([point for point in points if config in (None, point.config_path)]),
        trend_width=TREND_WIDTH,
        trend_height=TREND_HEIGHT,
        page=number,
        pages_total=page_count(history.total, RUNS_PER_PAGE),
        page_link=lambda page: link_with("/", {**query, "page": page}),
        config_link=lambda path: link_with("/", {"config": path}),
        tag_link=lambda name, value: link_with("/", {"config": config, "tag": [*tags, f"{name}={value}"]}),
        without_tag=lambda tag: link_with("/", {**query, "tag": [item for item in tags if item != tag]}),
        run_link=run_link,
        display_name=display_name,
        change_text=change_text,
        models=lambda run: ", ".join(
            dict.fromkeys(item.provider_label for item in run.columns if item.provider_label)
        ),
        gates=lambda counts: sum(gate.status is Status.PASSED for gate in counts.gates),
        file_name=lambda path: Path(path).name or path,
        folder=request.app.state.settings.folder,
    )
