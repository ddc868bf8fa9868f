"""Spans of traces, as OTLP and exporters write them: calls of models and tools, with what was asked and answered."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from geval_cli.extras.traces.messages import (
    Fields,
    ModelAnswer,
    TracedTurn,
    answer_of,
    dicts,
    first,
    flat_names,
    mapping,
    messages,
    response_turns,
)
from geval_cli.json_codec import data_in

FLAT_ATTRIBUTE = "attributes."
"""Begins the names of attributes where a span is a row of a table."""

_CALL_KINDS = frozenset({"chat", "text_completion", "generate_content"})
_MESSAGE_EVENTS = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_TOOL_OPERATION = "execute_tool"
_STEP_KINDS = frozenset({"RETRIEVER", "RERANKER", "EMBEDDING", "GUARDRAIL", "EVALUATOR", "TASK"})
_MODEL_NAMES = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
_TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "tool_call.function.name", "traceloop.entity.name")
_TOOL_ARGUMENTS = (
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.arguments",
    "tool_call.function.arguments",
    "tool.parameters",
    "input.value",
    "traceloop.entity.input",
)
_TOOL_RESULTS = ("gen_ai.tool.call.result", "gen_ai.tool.result", "output.value", "traceloop.entity.output")
_FAILED = frozenset({"2", "ERROR", "STATUS_CODE_ERROR"})


class TraceSpan(Struct, frozen=True):
    """A span of a trace: a call of a model or of a tool, or another step.

    Attributes:
        trace_id: of the trace; empty where it has none.
        start: when it began, in nanoseconds; 0 where that is not known.
        step: as the `trace` of a test has it.
        is_call: whether a model was called; `answer` is what came back, None where that was not recorded.
    """

    trace_id: str
    start: int
    step: Fields
    is_call: bool = False
    answer: ModelAnswer | None = None


def otlp_spans(value: Fields) -> Iterator[TraceSpan]:
    """Yield the spans of a line of OTLP JSON that are steps of an agent."""
    for resource in dicts(value, "resourceSpans", "resource_spans"):
        about = _attributes(mapping(resource.get("resource")).get("attributes"))
        for scope in dicts(resource, "scopeSpans", "scope_spans"):
            for span in dicts(scope, "spans"):
                yield from spans_of(span, about)


def spans_of(span: Fields, about: Fields) -> list[TraceSpan]:
    """Return a span as a list: of one, or of none where it is of a kind that is no step of an agent."""
    written = span.get("attributes")
    if written is None:
        written = {
            name.removeprefix(FLAT_ATTRIBUTE): item
            for name, item in span.items()
            if name.startswith(FLAT_ATTRIBUTE)
        }
    known = {**about, **_attributes(written)}
    kind = _kind_of(known)
    if kind is None:
        return []
    trace_id = _id(span, "traceId", "trace_id")
    start = _nanoseconds(first(span, "startTimeUnixNano", "start_time_unix_nano", "start_time"))
    step = _step(kind, span, known, start)
    if kind != "llm":
        return [TraceSpan(trace_id, start, step)]
    events = [(str(item.get("name")), _attributes(item.get("attributes"))) for item in dicts(span, "events")]
    asked, given = _asked(known, events), _given(known, events)
    metadata = {
        "trace_id": trace_id,
        "span_id": _id(span, "spanId", "span_id"),
        "response_id": known.get("gen_ai.response.id"),
        "model": first(known, *_MODEL_NAMES),
    }
    answer = answer_of(asked, given, metadata, {**known, "name": span.get("name")})
    return [TraceSpan(trace_id, start, step, is_call=True, answer=answer)]


def _kind_of(known: Fields) -> str | None:
    """Return what a span is as a step of an agent; None for what only surrounds steps, and for anything else."""
    operation = known.get("gen_ai.operation.name")
    kind = str(first(known, "openinference.span.kind", "traceloop.span.kind") or "").upper()
    if operation in _CALL_KINDS or kind == "LLM":
        return "llm"
    if operation == _TOOL_OPERATION or kind == "TOOL" or (operation is None and "gen_ai.tool.name" in known):
        return "tool"
    if kind in _STEP_KINDS:
        return "step"
    is_call = any(name.startswith(("gen_ai.", "llm.")) for name in known)
    return "llm" if is_call and operation is None and not kind else None


def _step(kind: str, span: Fields, known: Fields, start: int) -> Fields:
    """Return a span as the `trace` of a test has it, with what is known of it."""
    end = _nanoseconds(first(span, "endTimeUnixNano", "end_time_unix_nano", "end_time"))
    names = _MODEL_NAMES if kind == "llm" else _TOOL_NAMES
    name = next(
        (known[key] for key in names if isinstance(known.get(key), str) and known[key]), span.get("name")
    )
    # Why a span failed, as far as it says so; None for one that did not.
    status = mapping(span.get("status"))
    code = first(status, "code", "status_code") or first(span, "status_code", "status.code")
    if str(code) in _FAILED or "error.type" in known:
        message = first(status, "message", "description") or first(span, "status_message", "status.message")
        error = str(message or known.get("error.type") or "failed")
    else:
        error = None
    found = {
        "type": kind,
        "name": name if isinstance(name, str) and name else kind,
        "args": None if kind == "llm" else data_in(first(known, *_TOOL_ARGUMENTS)),
        "output": None if kind == "llm" else first(known, *_TOOL_RESULTS),
        "error": error,
        "ms": (end - start) / 1_000_000 if end >= start > 0 else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _nanoseconds(value: Any) -> int:
    """Return a time in nanoseconds since 1970, written as a number or as ISO 8601; 0 for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value):
        return int(value)
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1_000_000_000)
    except (TypeError, ValueError, OverflowError):
        return 0


def _asked(known: Fields, events: Sequence[tuple[str, Fields]]) -> list[TracedTurn]:
    system = messages(known.get("gen_ai.system_instructions"), "system")
    further = [item for _, item in events if "gen_ai.input.messages" in item]
    for source in (known, *further):
        if found := messages(source.get("gen_ai.input.messages")):
            return [*system, *found]
    said = [
        turn
        for name, item in events
        if (match := _MESSAGE_EVENTS.fullmatch(name))
        for turn in messages([{"role": match[1], **_nested(item)}])
    ]
    for found in (
        said,
        messages(_below(known, "llm.input_messages")),
        messages(_below(known, "gen_ai.prompt")),
    ):
        if found:
            return found
    return messages(first(known, "input.value", "gen_ai.prompt"), "user")


def _given(known: Fields, events: Sequence[tuple[str, Fields]]) -> list[TracedTurn]:
    further = [item for _, item in events if "gen_ai.output.messages" in item]
    for source in (known, *further):
        if found := messages(source.get("gen_ai.output.messages"), "assistant"):
            return found
    choices = [_nested(item) for name, item in events if name == "gen_ai.choice"]
    said = messages([mapping(data_in(item.get("message"))) or item for item in choices], "assistant")
    below = (_below(known, "llm.output_messages"), _below(known, "gen_ai.completion"))
    for found in (said, *(messages(item, "assistant") for item in below)):
        if found:
            return found
    said_at_last = first(known, "output.value", "gen_ai.completion")
    response = mapping(data_in(said_at_last))  # of the API, as it came
    return (response_turns(response) if "choices" in response else []) or messages(said_at_last, "assistant")


def _attributes(written: Any) -> dict[str, Any]:
    """Return attributes by their dotted names: those of OTLP's list, or of a mapping, nested or not."""
    if isinstance(written, list):
        pairs = (item for item in written if isinstance(item, dict) and isinstance(item.get("key"), str))
        return {item["key"]: _otlp_value(item.get("value")) for item in pairs}
    return dict(flat_names(mapping(written), ""))


def _otlp_value(value: Any) -> Any:
    kind, item = next(iter(mapping(value).items()), ("", None))
    if kind in {"arrayValue", "array_value"}:
        return [_otlp_value(part) for part in dicts(mapping(item), "values")]
    if kind in {"kvlistValue", "kvlist_value"}:
        return _attributes(mapping(item).get("values"))
    if kind in {"intValue", "int_value"} and isinstance(item, str) and re.fullmatch(r"-?\d{1,19}", item):
        return int(item)
    return item


def _below(known: Fields, name: str) -> Any:
    """Return the list of an attribute, or of its parts `name.0.role`, `name.1.role`, ..."""
    if isinstance(known.get(name), list):
        return known[name]
    parts: dict[int, dict[str, Any]] = {}
    for key, item in known.items():
        number, _, rest = key.removeprefix(f"{name}.").partition(".")
        if key.startswith(f"{name}.") and rest and re.fullmatch(r"\d{1,9}", number):
            parts.setdefault(int(number), {})[rest] = item
    return [_nested(parts[number]) for number in sorted(parts)]


def _nested(flat: Fields) -> dict[str, Any]:
    """Return dotted names as mappings within mappings; numbers as keys make a list, in their order."""
    tree: dict[str, Any] = {}
    for name, item in flat.items():
        below, steps = tree, name.split(".")
        for step in steps[:-1]:
            following = below.setdefault(step, {})
            if not isinstance(following, dict):
                break
            below = following
        else:
            below[steps[-1]] = item
    return {name: _listed(item) for name, item in tree.items()}


def _listed(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    items = {name: _listed(item) for name, item in tree.items()}
    if items and all(re.fullmatch(r"\d{1,9}", name) for name in items):
        return [items[name] for name in sorted(items, key=int)]
    return items


def _id(span: Fields, key: str, name: str) -> str:
    """Return an id of a span, which some exporters put into its context; empty where there is none."""
    found = first(span, key, name, f"context.{name}") or mapping(span.get("context")).get(name)
    return found.removeprefix("0x") if isinstance(found, str) else ""
