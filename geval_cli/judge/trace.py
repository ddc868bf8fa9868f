"""The trace of an agent as a judge sees it: one step a line, as JSON, so that no text can pretend to be a step."""

import json
from collections.abc import Sequence

from geval_cli.records import JsonValue, TraceStep

NO_STEPS = "(no steps)"
TOOL = "tool"


def trace_text(steps: Sequence[TraceStep]) -> str:
    """Return the steps with all that is known of each, one a line."""
    return _lines([_known(step) for step in steps])


def tools_text(steps: Sequence[TraceStep]) -> str:
    """Return the calls of tools with their arguments, one a line."""
    called = [step for step in steps if step.type == TOOL]
    return _lines(
        [{"name": step.name, **({} if step.args is None else {"args": step.args})} for step in called]
    )


def _known(step: TraceStep) -> dict[str, JsonValue]:
    about = {"args": step.args, "output": step.output, "error": step.error, "ms": step.ms}
    return {
        "type": step.type,
        "name": step.name,
        **{name: value for name, value in about.items() if value is not None},
    }


def _lines(entries: Sequence[JsonValue]) -> str:
    shown = [json.dumps(entry, ensure_ascii=False, default=str) for entry in entries]
    return "\n".join(f"{number}. {text}" for number, text in enumerate(shown, 1)) or NO_STEPS
