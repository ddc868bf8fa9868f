"""Verdicts in words, as pytest shows them: what was asked against what came."""

import io
from collections.abc import Sequence
from typing import Any

from geval_cli.errors import GevalError
from geval_cli.numbers import fixed, format_score_beside
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Status,
)
from geval_cli.report.case_view import AssertionView
from geval_cli.report.console import make_console
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, value_text
from geval_cli.report.verdict import signs_of

_LABEL_WIDTH = 10
_REASON_LINES, _REASON_CHARACTERS = 20, 4_000
_OUTPUT_LINES, _OUTPUT_CHARACTERS = 6, 1_200
_SIGNS = signs_of(make_console(io.StringIO(), environ={}))


class FellShortError(AssertionError):
    """An output was judged and does not pass. Its text is the report that pytest shows."""


class NotJudgedError(GevalError):
    """A test of a suite has no verdict; the text says why."""


def assertion_lines(found: AssertionResult) -> list[str]:
    """Return a verdict that fell short as lines, what was asked against what came: `- at least 0.70`, `+ 0.42`."""
    view = AssertionView(found, _SIGNS)
    name = f"{sanitize(found.type)} {sanitize(found.metric)}" if found.metric else sanitize(found.type)
    where = f"  {sanitize(found.location)}" if found.location else ""
    lines = [f"{name} fell short{where}"]
    is_compared = (
        found.threshold is not None and found.score is not None and not found.type.startswith("not-")
    )
    if is_compared and found.score is not None and found.threshold is not None:
        short = fixed(found.threshold - found.score, 2)
        lines += [f"- at least {format_score_beside(found.threshold, found.score)}"]
        lines += [f"+ {format_score_beside(found.score, found.threshold)}  ({short} short)"]
    elif found.score is not None and view.score_text():
        lines.append(f"+ {view.score_text()}")
    for verdict in view.verdicts():
        if verdict.title():
            lines += _labelled("criteria", [verdict.title()])
        for label, text in verdict.facts():
            lines += _labelled(label, [text])
    clip = clipped_lines(found.reason or "", line_count=_REASON_LINES, character_count=_REASON_CHARACTERS)
    lines += _labelled("reason", clip)
    for member in found.assertions:
        if member.status in (Status.FAILED, Status.ERROR):
            inner = assertion_lines(member) if member.status is Status.FAILED else _error_lines(member)
            lines += [f"  {line}" for line in inner]
    return lines


def _error_lines(found: AssertionResult) -> list[str]:
    name = sanitize(found.metric or found.type)
    if found.error is None:
        return [f"{name} could not be judged"]
    hint = f" ({one_line(found.error.hint, 300)})" if found.error.hint else ""
    return [f"{name} could not be judged: {one_line(found.error.message, 1000)}{hint}"]


def output_lines(output: Any) -> list[str]:
    """Return the beginning of an output as lines."""
    text = value_text(output)
    return _labelled(
        "output", clipped_lines(text, line_count=_OUTPUT_LINES, character_count=_OUTPUT_CHARACTERS)
    )


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    heads = [label, *[""] * (len(lines) - 1)]
    return (
        [f"  {head:<{_LABEL_WIDTH}}{line}" for head, line in zip(heads, lines, strict=True)] if lines else []
    )


def _column_of(result: CaseResult) -> str:
    parts = [item for item in (result.provider.label, result.prompt.label) if item and item != "none"]
    return one_line(" · ".join(parts), 120)


def failed_lines(result: CaseResult) -> list[str]:
    """Return what fell short in a case, and what could not be judged beside it."""
    lines = [
        line for item in result.assertions if item.status is Status.FAILED for line in assertion_lines(item)
    ]
    if not lines:
        lines = [f"the score of all assertions, {result.score}, fell short"]
    for item in result.assertions:
        if item.status is Status.ERROR:
            lines += _error_lines(item)
    column = _column_of(result)
    return [*lines, *(_labelled("answer by", [column]) if column else []), *output_lines(result.output)]


def broken_lines(result: CaseResult) -> list[str]:
    """Return why a case has no verdict."""
    column = _column_of(result)
    lines = [column] if column else []
    if result.error is not None:
        hint = f" ({one_line(result.error.hint, 300)})" if result.error.hint else ""
        lines.append(f"{one_line(result.error.message, 1000)}{hint}")
    for item in result.assertions:
        if item.status is Status.ERROR:
            lines += _error_lines(item)
    return lines
