"""Results as HTML tables for notebooks. All text may come from a model, so it is sanitized and escaped."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_cli.extras.compare.comparison import RunComparison
    from geval_cli.records import AssertionResult, CaseResult

ROWS_SHOWN = 100
_TEXT_SHOWN = 300
_COLOURS = {"passed": "#1a7f37", "failed": "#cf222e", "error": "#9a6700", "not_evaluated": "#6e7781"}
_VERDICT_STATUS = {"better": "passed", "worse": "failed"}
_CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"
_HEADS = ("#", "test", "provider", "output", "status", "score", "why")


def verdict_html(result: Any) -> str:
    """Return a verdict as a table with two columns: all its fields except the metadata, which may be long."""
    names = [name for name in result.__dataclass_fields__ if name != "metadata"]
    rows = [(name, getattr(result, name)) for name in names]
    lines = "".join(f"<tr><th>{_shown(name)}</th>{_cell(value)}</tr>" for name, value in rows)
    return f"<table>{lines}</table>"


def results_html(title: str, results: "Iterable[CaseResult]", total: int) -> str:
    """Return the first results of a run as a table, below its summary."""
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    rows = "".join(_row(number, result) for number, result in enumerate(results) if number < ROWS_SHOWN)
    more = f"<p>and {total - ROWS_SHOWN:,} more</p>" if total > ROWS_SHOWN else ""
    return f"<p>{_shown(title)}</p><table><tr>{head}</tr>{rows}</table>{more}"


def comparison_html(found: "RunComparison") -> str:
    """Return the decision about two runs, and a table with a row for each figure."""
    from geval_cli.extras.compare.comparison import RowWords

    heads = ("figure", "column", "A", "B", "change", "95 % interval", "verdict")
    lines = []
    for row in found.rows[:ROWS_SHOWN]:
        words = RowWords(row, found.detect)
        cells = (words.name, row.column, words.before, words.after, words.change, words.interval)
        colour = _COLOURS[_VERDICT_STATUS.get(row.verdict.value, "not_evaluated")]
        marked = f'<td style="{_CELL};color:{colour}">{_shown(row.verdict.value)}</td>'
        lines.append(f"<tr>{''.join(map(_cell, cells))}{marked}</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    warnings = "".join(f"<p>warning: {_shown(text)}</p>" for text in found.warnings)
    more = f"<p>and {len(found.rows) - ROWS_SHOWN:,} more</p>" if len(found.rows) > ROWS_SHOWN else ""
    return f"<p><b>{_shown(found.headline)}</b></p>{warnings}<table><tr>{head}</tr>{''.join(lines)}</table>{more}"


def _row(number: int, result: "CaseResult") -> str:
    name = (
        result.description
        or ", ".join(f"{name}={value}" for name, value in result.vars.items())
        or f"test {result.test_index}"
    )
    status = result.status.value
    marked = f'<td style="{_CELL};color:{_COLOURS[status]}">{_shown(status)}</td>'
    before = "".join(map(_cell, (number, name, result.provider.label, result.output)))
    return f"<tr>{before}{marked}{_cell(result.score)}{_cell(why(result))}</tr>"


def why(result: "CaseResult") -> str:
    """Return why a case did not pass, one line per assertion; empty if it passed."""
    if result.error is not None:
        return result.error.message
    return "\n".join(text for item in result.assertions if (text := _why_not(item)))


def _why_not(found: "AssertionResult") -> str:
    if found.status.value not in ("failed", "error"):
        return ""
    what = found.metric or found.type
    return f"{what}: {found.error.message if found.error is not None else found.reason or 'failed'}"


def _cell(value: Any) -> str:
    return f'<td style="{_CELL}">{_shown(value)}</td>'


def _shown(value: Any) -> str:
    from geval_cli.report.sanitize import html_text

    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    shown = text if len(text) <= _TEXT_SHOWN else f"{text[: _TEXT_SHOWN - 1]}…"
    return html_text(shown)
