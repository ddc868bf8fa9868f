"""The templates of the web page and the report, with filters that format numbers, times and untrusted text."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from geval_cli.numbers import (
    format_comparison,
    format_cost,
    format_count,
    format_duration,
    format_interval,
    format_percentage,
    format_score,
    format_share_interval,
    format_time,
    plural,
)
from geval_cli.records import JsonValue, Role, RunSummary, Status, Usage
from geval_cli.report.columns import mean_text, share_text
from geval_cli.report.report import worst_case
from geval_cli.report.sanitize import one_line, sanitized_lines, value_text
from geval_cli.version import __version__

STATIC_FOLDER = Path(__file__).with_name("static")
"""Styles and scripts of the page and the report."""
TEMPLATE_FOLDER = Path(__file__).with_name("templates")
SHOWN_CHARACTERS_MAX = 200_000
"""The maximum length of one text on a page; browsers draw longer ones only slowly."""

_STATUS_WORDS = {
    Status.PASSED: "Passed",
    Status.FAILED: "Failed",
    Status.ERROR: "Error",
    Status.NOT_EVALUATED: "Not evaluated",
}


def shown_text(value: JsonValue, limit: int = SHOWN_CHARACTERS_MAX) -> str:
    """Return a text that is safe to show: line breaks kept, control and hidden characters escaped, length bounded."""
    text = value_text(value)
    left_out = len(text) - limit
    shown = "\n".join(sanitized_lines(text[:limit]))
    return shown if left_out <= 0 else f"{shown}\n… {plural(left_out, 'more character')}"


def short_text(value: JsonValue, width: int = 120) -> str:
    """Return the beginning of a text on one line."""
    return one_line(value_text(value), width)


def clipped_text(value: JsonValue, limit: int) -> str:
    """Return the beginning of a text with its line breaks, safe to show."""
    text = value_text(value)
    shown = "\n".join(sanitized_lines(text[:limit].strip()))
    return shown if len(text) <= limit else f"{shown}…"


def make_environment(*folders: Path) -> Environment:
    """Return an environment with templates from `folders`, then the shared ones; every text in them is escaped."""
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATE_FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["version"] = __version__
    environment.filters |= {
        "sanitize": shown_text,
        "urlencode": lambda text: quote(text, errors="replace"),  # a name may contain a lone surrogate
        "short": short_text,
        "clip": clipped_text,
        "status_word": lambda status: _STATUS_WORDS[Status(status)],
        "score": lambda score: "–" if score is None else format_score(score),  # noqa: RUF001
        "comparison": format_comparison,
        "cost": format_cost,
        "amount": format_count,
        "duration": format_duration,
        "plural": plural,
        "rate": pass_rate,
        "worst_case": worst_case,
        "total_cost": total_cost,
        "when": format_time,
        "bar_pieces": bar_pieces,
        "share": share_text,
        "mean": mean_text,
        "interval": format_interval,
        "share_interval": format_share_interval,
    }
    return environment


def pass_rate(counts: RunSummary) -> str:
    """Return the share of judged cases that passed, in per cent; n/a if nothing was judged."""
    return format_percentage(counts.passed, counts.passed + counts.failed)


def total_cost(usage: Mapping[Role, Usage]) -> str:
    """Return the cost of all calls; a dash if no calls are recorded, `unknown` if a price is missing."""
    if not usage:
        return "–"  # noqa: RUF001
    total = sum(usage.values(), Usage())
    return format_cost(total.cost_usd)


def bar_pieces(counts: RunSummary, planned: int = 0) -> list[dict[str, str]]:
    """Return the pieces of a bar of width 100 for the four outcomes, failures last; missing cases leave a gap."""
    whole = max(planned, counts.total)
    pieces: list[dict[str, str]] = []
    start = 0.0
    for status, count in (
        (Status.PASSED, counts.passed),
        (Status.NOT_EVALUATED, counts.not_evaluated),
        (Status.ERROR, counts.errored),
        (Status.FAILED, counts.failed),
    ):
        width = 100 * count / whole if whole else 0
        if width:
            pieces.append({"status": status.value, "start": f"{start:.2f}", "width": f"{width:.2f}"})
        start += width
    return pieces


@cache
def asset(name: str) -> str:
    """Return the text of a style or script of the page and the report."""
    return (STATIC_FOLDER / name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
