"""Turns an application's traces and logs into tests: one for each trace, or for each model call outside a trace.

Spans are read as OTLP and as exporters write them, messages in any of their known formats.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import Location, Problem
from geval_cli.json_codec import data_in, decode_json
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED, open_regular
from geval_cli.source.files import FILE_PREFIX, open_problem
from geval_cli.source.source_map import ENV_MARK

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_RAN_AT_VENDOR = frozenset({"server_tool_use", "mcp_tool_use"})
_MESSAGE_KEYS = frozenset({"role", "content", "parts", "message"})
_USUAL_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

Fields = Mapping[str, Any]


class TracedTurn(Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: str
    content: str
    tool_calls: tuple[Fields, ...] = ()
    tool_call_id: str = ""


class ModelAnswer(Struct, frozen=True):
    """A model call found in a trace.

    Attributes:
        turns: the messages sent; empty if they were not recorded.
        answer: the model's answer.
        facts: attributes by name, for `--where`.
        steps: the steps of the whole trace; if empty, the tool calls in the messages are used.
    """

    turns: tuple[TracedTurn, ...]
    answer: TracedTurn
    metadata: Mapping[str, JsonValue]
    facts: Fields
    steps: tuple[Fields, ...] = ()

    def row(self) -> dict[str, JsonValue]:
        """Return the test: input, output, the turns of a conversation, trace and metadata."""
        asked = [turn.content for turn in self.turns if turn.role == "user" and turn.content]
        metadata = {name: value for name, value in self.metadata.items() if value not in (None, "")}
        row: dict[str, JsonValue] = {"input": no_file(asked[-1])} if asked else {}
        roles = [turn.role for turn in self.turns]
        has_answers = "assistant" in roles or "tool" in roles
        is_conversation = has_answers and roles[-1] in {"user", "tool"} and set(roles) <= _ROLES
        if is_conversation:
            row["turns"] = [_written(turn) for turn in self.turns]
        elif len(self.turns) > 1:
            metadata["turns"] = [_written(turn) for turn in self.turns]
        trace = list(self.steps) or list(_tool_steps((*self.turns, self.answer)))
        calls = []
        for call in self.answer.tool_calls:
            function = {"name": call.get("name"), "arguments": as_text(call.get("args", {}))}
            calls.append({"id": call.get("id"), "type": "function", "function": function})
        output = self.answer.content or json.dumps(calls, ensure_ascii=False)
        return {
            **row,
            "output": no_file(output),
            **({"trace": trace} if trace else {}),
            "metadata": metadata,
        }

    def fits(self, wanted: Sequence[tuple[str, str]]) -> bool:
        """Return whether all these names have these values, in `facts` or in the metadata."""
        known = {**self.facts, **self.metadata}
        return all(name in known and as_text(known[name]) == value for name, value in wanted)


def answer_of(
    asked: Sequence[TracedTurn], given: Sequence[TracedTurn], metadata: Mapping[str, Any], facts: Fields
) -> ModelAnswer | None:
    """Return the model call that these messages record; None if they have no answer."""
    if not given or not (given[0].content or given[0].tool_calls):
        return None
    kept = {name: item if isinstance(item, str) else None for name, item in metadata.items()}
    return ModelAnswer(tuple(asked), given[0], kept, facts)


def messages(value: Any, role: str = "user") -> list[TracedTurn]:
    """Return messages in any of the known formats; plain text is a message of `role`."""
    # Text may be JSON with messages; any other text is the message itself.
    found = data_in(value)
    if isinstance(found, dict):
        found = found.get("messages", [found])
    is_said = isinstance(found, list) and any(
        isinstance(item, dict) and not _MESSAGE_KEYS.isdisjoint(item) for item in found
    )
    value = found if is_said or not isinstance(value, str) else value
    if isinstance(value, str):
        return [TracedTurn(role, value)] if value else []
    if not isinstance(value, list):
        return []
    if value and all(isinstance(item, dict) and "role" not in item and "type" in item for item in value):
        value = [{"role": role, "content": value}]  # parts of one message
    return [_turn(item, role) for item in value if isinstance(item, dict | str)]


def _turn(item: Fields | str, role: str) -> TracedTurn:
    if isinstance(item, str):
        return TracedTurn(role, item)
    inner = mapping(item.get("message")) or item
    parts = inner.get("parts", first(inner, "content", "contents"))
    calls = [*dicts(inner, "tool_calls"), *_parts_of(parts, {"tool_call", "tool_use", *_RAN_AT_VENDOR})]
    responses = _parts_of(parts, {"tool_call_response", "tool_result"})
    if isinstance(parts, str):
        text = parts
    elif isinstance(parts, list):
        texts = (
            part if isinstance(part, str) else first(_inner(part), "text", "content", "refusal")
            for part in parts
            if isinstance(part, str) or str(_inner(part).get("type", "text")) in _TEXT_PARTS
        )
        text = "".join(text for text in texts if isinstance(text, str))
    else:
        text = "" if parts is None else as_text(parts)
    if not text and isinstance(inner.get("refusal"), str):
        text = inner["refusal"]
    if responses and not text:
        text = "\n".join(as_text(first(part, "response", "result", "content")) for part in responses)
    answered = first(inner, "tool_call_id", "call_id") or next(
        (first(part, "id", "tool_use_id") for part in responses), ""
    )
    said_by = str(inner.get("role") or role)
    return TracedTurn(
        role=_USUAL_ROLES.get(said_by, said_by),
        content=text,
        tool_calls=tuple(_call(call) for call in calls),
        tool_call_id=str(answered or ""),
    )


def _inner(part: Any) -> Fields:
    found = mapping(part)
    return mapping(found.get("message_content")) or found


def _parts_of(parts: Any, kinds: set[str]) -> list[Fields]:
    return (
        [part for part in parts if isinstance(part, dict) and str(part.get("type")) in kinds]
        if isinstance(parts, list)
        else []
    )


def _call(call: Fields) -> Fields:
    inner = mapping(call.get("tool_call")) or call
    function = mapping(inner.get("function")) or inner
    arguments = data_in(first(function, "arguments", "input"))
    found = {"id": first(inner, "id", "call_id"), "name": function.get("name"), "args": arguments}
    return {name: item for name, item in found.items() if item is not None}


def response_turns(source: Fields) -> list[TracedTurn]:
    """Return the first answer in a response of the chat, completions, responses or messages API."""
    if isinstance(source.get("choices"), list):
        choice = mapping(next(iter(source["choices"]), None))
        return messages([choice.get("message") or {"content": choice.get("text")}], "assistant")
    if isinstance(source.get("output"), list):
        items = dicts(source, "output")
        # Those of tools that the vendor runs have no name: web_search_call.
        calls = [
            {"name": kind.removesuffix("_call"), "arguments": item.get("action"), **item}
            for item in items
            if (kind := str(item.get("type"))).endswith("_call")
        ]
        texts = [
            turn.content for item in items if "content" in item for turn in messages([item], "assistant")
        ]
        return messages([{"role": "assistant", "content": "".join(texts), "tool_calls": calls}], "assistant")
    if source.get("role") == "assistant" and "content" in source:
        return messages([source], "assistant")
    return messages(source.get("output"), "assistant") if isinstance(source.get("output"), str) else []


def no_file(text: str) -> str:
    """Return text that a test does not read as a file: a space is put before a leading `file://`."""
    return f" {text}" if text.startswith(FILE_PREFIX) else text


def _tool_steps(turns: Sequence[TracedTurn]) -> Iterator[dict[str, JsonValue]]:
    """Yield the tools that were called, with their results if a later message has them."""
    given = {turn.tool_call_id: turn.content for turn in turns if turn.tool_call_id}
    for call in (call for turn in turns for call in turn.tool_calls):
        step = {"type": "tool", "name": str(call.get("name") or "tool"), "args": call.get("args")}
        yield {**step, "output": given[str(call["id"])]} if str(call.get("id")) in given else step


def _written(turn: TracedTurn) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {"role": turn.role, "content": turn.content}
    if turn.tool_calls:
        found["tool_calls"] = [dict(call) for call in turn.tool_calls]
    if turn.tool_call_id:
        found["tool_call_id"] = turn.tool_call_id
    return found


def as_text(value: Any) -> str:
    """Return text unchanged, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def flat_names(nested: Fields, before: str) -> Iterator[tuple[str, Any]]:
    """Yield nested values under dotted names, each with the prefix `before`."""
    for name, item in nested.items():
        if isinstance(item, dict):
            yield from flat_names(item, f"{before}{name}.")
        else:
            yield f"{before}{name}", item


def mapping(value: Any) -> Fields:
    """Return a value if it is a mapping, otherwise an empty mapping."""
    return value if isinstance(value, dict) else {}


def first(fields: Fields, *names: str) -> Any:
    """Return the first of these fields that is present and not null; None if there is none."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def dicts(fields: Fields, *names: str) -> list[Fields]:
    """Return the mappings in the list that the first of these fields holds."""
    found = first(fields, *names)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


FLAT_ATTRIBUTE = "attributes."
"""The prefix of attribute names in spans that are rows of a table."""

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
_TOO_LATE = 10**19  # in nanoseconds: the year 2286
_FAILED = frozenset({"2", "ERROR", "STATUS_CODE_ERROR"})


class TraceSpan(Struct, frozen=True):
    """A span of a trace: a call of a model or a tool, or another step.

    Attributes:
        trace_id, span_id: the ids of the trace and the span; empty if there is none.
        start: the start time in nanoseconds since 1970; 0 if unknown.
        step: the span as a step in the `trace` of a test.
        is_call: whether it is a model call; `answer` is its answer, None if that was not recorded.
    """

    trace_id: str
    start: int
    step: Fields
    is_call: bool = False
    answer: ModelAnswer | None = None
    span_id: str = ""


def otlp_spans(value: Fields) -> Iterator[TraceSpan]:
    """Yield the spans in a line of OTLP JSON that are steps of an agent."""
    for resource in dicts(value, "resourceSpans", "resource_spans"):
        about = _attributes(mapping(resource.get("resource")).get("attributes"))
        for scope in dicts(resource, "scopeSpans", "scope_spans"):
            for span in dicts(scope, "spans"):
                yield from spans_of(span, about)


def spans_of(span: Fields, about: Fields) -> list[TraceSpan]:
    """Return a list with the span, empty if it is not a step of an agent."""
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
    trace_id, span_id = _id(span, "traceId", "trace_id"), _id(span, "spanId", "span_id")
    start = _time_of(span, "start")
    # The span as a step in the `trace` of a test.
    end = _time_of(span, "end")
    names = _MODEL_NAMES if kind == "llm" else _TOOL_NAMES
    name = next(
        (known[key] for key in names if isinstance(known.get(key), str) and known[key]), span.get("name")
    )
    # Why a span failed, as far as it says; None if it did not fail.
    status = mapping(span.get("status"))
    code = first(status, "code", "status_code") or first(span, "status_code", "status.code", "status")
    if str(code).upper().rpartition(".")[2] in _FAILED or "error.type" in known:
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
    step = {key: value for key, value in found.items() if value is not None}
    if kind != "llm":
        return [TraceSpan(trace_id, start, step, span_id=span_id)]
    events = [(str(item.get("name")), _attributes(item.get("attributes"))) for item in dicts(span, "events")]
    asked = _asked(known, events)
    given = _given(known, events)
    metadata = {
        "trace_id": trace_id,
        "span_id": span_id,
        "response_id": known.get("gen_ai.response.id"),
        "model": first(known, *_MODEL_NAMES),
    }
    answer = answer_of(asked, given, metadata, {**known, "name": span.get("name")})
    return [TraceSpan(trace_id, start, step, is_call=True, answer=answer, span_id=span_id)]


def _kind_of(known: Fields) -> str | None:
    """Return the type of step that a span is; None if it only encloses steps, or is something else."""
    operation = first(known, "gen_ai.operation.name")
    operation = operation if operation is None else str(operation)
    kind = str(first(known, "openinference.span.kind", "traceloop.span.kind") or "").upper()
    if operation in _CALL_KINDS or kind == "LLM":
        return "llm"
    if operation == _TOOL_OPERATION or kind == "TOOL" or (operation is None and "gen_ai.tool.name" in known):
        return "tool"
    if kind in _STEP_KINDS:
        return "step"
    is_call = any(name.startswith(("gen_ai.", "llm.")) for name in known)
    return "llm" if is_call and operation is None and not kind else None


def _time_of(span: Fields, which: str) -> int:
    """Return when a span started or ended, in nanoseconds since 1970, in whatever unit it says so; 0 if unknown."""
    exact = first(span, f"{which}TimeUnixNano", f"{which}_time_unix_nano")
    if exact is not None:
        return _nanoseconds(exact)
    written = span.get(f"{which}_time")
    is_number = isinstance(written, str) and re.fullmatch(r"\d{10,17}(?:\.\d{1,9})?", written)
    time = float(str(written)) if is_number else written
    if isinstance(time, int | float) and not isinstance(time, bool):
        # Of the years from 2001 on, times in seconds, milli- and microseconds differ in their number of digits.
        for unit in (1_000_000_000, 1_000_000, 1_000, 1):
            if 10**18 // unit <= time < 10**20 // unit:
                return int(time * unit)
    return _nanoseconds(written)


def _nanoseconds(value: Any) -> int:
    """Return a time, given as a number or in ISO 8601, in nanoseconds since 1970; 0 for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < _TOO_LATE else 0
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
    response = mapping(data_in(said_at_last))  # an unchanged response of the API
    return (response_turns(response) if "choices" in response else []) or messages(said_at_last, "assistant")


def _attributes(written: Any) -> dict[str, Any]:
    """Return attributes, from OTLP's list or from a mapping, nested or not, by their dotted names."""
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
    """Return the list in an attribute, or the list that `name.0.role`, `name.1.role`, ... make up."""
    if isinstance(known.get(name), list):
        return known[name]
    parts: dict[int, dict[str, Any]] = {}
    for key, item in known.items():
        number, _, rest = key.removeprefix(f"{name}.").partition(".")
        if key.startswith(f"{name}.") and rest and re.fullmatch(r"\d{1,9}", number):
            parts.setdefault(int(number), {})[rest] = item
    return [_nested(parts[number]) for number in sorted(parts)]


def _nested(flat: Fields) -> dict[str, Any]:
    """Return dotted names as nested mappings; numeric keys become lists, in numeric order."""
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
    """Return an id of a span, which some exporters put into its context; empty if there is none."""
    found = first(span, key, name, f"context.{name}") or mapping(span.get("context")).get(name)
    return found.removeprefix("0x") if isinstance(found, str) else ""


MOST_PROBLEMS = 100
"""How many unreadable lines are reported in full."""

_LONGEST_LINE = 64 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_KNOWN = "supported: OTLP JSON lines, spans with `attributes`, request with response, and batch output"


class TraceReading(Struct):
    """Counts for a file: answers, calls without a recorded answer, and unreadable lines."""

    answers: int = 0
    silent: int = 0
    chosen: int = 0
    bad: int = 0
    problems: list[Problem] = field(default_factory=list)


class _UnknownLineError(Exception):
    """A line is in no known format; the message says why."""


def read_traces(path: Path, reading: TraceReading, *, joins: bool = True) -> Iterator[ModelAnswer]:
    """Yield the model answers in a file; `reading` collects the counts and the problems.

    With `joins`, the spans of a trace are joined to its last answer. They may be far apart, so the file is read twice,
    first to count them. Only traces with spans still to come are kept in memory.
    """
    if joins:
        unread = TraceReading()
        unjoined = (item for item in _items_of(path, unread) if isinstance(item, TraceSpan))
        counts = Counter(span.trace_id for span in unjoined)
    else:
        counts = Counter[str]()
    begun: dict[str, list[TraceSpan]] = {}
    given: set[tuple[str, str]] = set()  # calls whose answers were yielded, if none are joined
    for item in _items_of(path, reading):
        if not isinstance(item, TraceSpan):
            yield from _noted([item], reading)
        elif counts[item.trace_id] > 1 and item.trace_id:
            spans = begun.setdefault(item.trace_id, [])
            spans.append(item)
            if len(spans) == counts[item.trace_id]:
                yield from _joined(begun.pop(item.trace_id), reading)
        elif item.is_call and (call := (item.trace_id, item.span_id)) not in given:
            if not joins and item.span_id and item.answer is not None:
                given.add(call)
            yield from _noted([item.answer], reading)
    for spans in begun.values():  # only if the file has changed meanwhile
        yield from _joined(spans, reading)


def _noted(answers: Sequence[ModelAnswer | None], reading: TraceReading) -> Iterator[ModelAnswer]:
    for answer in answers:
        if answer is None:
            reading.silent += 1
        else:
            reading.answers += 1
            yield answer


def _joined(spans: Sequence[TraceSpan], reading: TraceReading) -> Iterator[ModelAnswer]:
    """Yield the last answer of a trace, with the steps of all its spans in order of their start."""
    # An exporter that got no reply sends a span again, and some send one at both its start and its end.
    once: dict[str, TraceSpan] = {}
    for number, span in enumerate(spans):
        name = span.span_id or f"without id {number}"
        if name not in once or once[name].answer is None or span.answer is not None:
            once[name] = span
    ordered = sorted(once.values(), key=lambda span: span.start)
    answers = list(_noted([span.answer for span in ordered if span.is_call], reading))
    if not answers:
        return
    steps = [span.step for span in ordered]
    if all(span.is_call for span in ordered):  # no tool spans, but the messages may have tool calls
        steps = []
    else:
        last = next(place for place, span in enumerate(ordered) if span.answer is answers[-1])
        if not any(step["type"] == "tool" for step in steps[last:]):  # nothing ran the tools that it calls
            steps += _tool_steps([answers[-1].answer])
    yield replace(answers[-1], steps=tuple(steps))


def _items_of(path: Path, reading: TraceReading) -> Iterator[TraceSpan | ModelAnswer | None]:
    number = 0
    try:
        with open_regular(path, TRUSTED) as stream:
            while line := stream.readline(_LONGEST_LINE + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                if line.strip():
                    yield from _items_in(line, Location(str(path), number, 1, length=0), reading)
                while len(line) > _LONGEST_LINE and not line.endswith(b"\n"):
                    line = stream.readline(_LONGEST_LINE + 1)
                    if not line:
                        break
    except OSError as error:
        reading.problems.append(open_problem(path, error, None))
        reading.bad += 1


def _items_in(
    line: bytes, place: Location, reading: TraceReading
) -> Iterator[TraceSpan | ModelAnswer | None]:
    try:
        yield from list(_parse(line))
    except (_UnknownLineError, RecursionError) as error:
        reading.bad += 1
        if len(reading.problems) < MOST_PROBLEMS:
            why = str(error) if isinstance(error, _UnknownLineError) else "it is nested too deeply"
            reading.problems.append(Problem(f"this line cannot be used: {why}", place, _KNOWN))


def chosen_answers(
    answers: Iterable[ModelAnswer], where: Sequence[tuple[str, str]], sample: int | None, seed: int
) -> Iterator[ModelAnswer]:
    """Yield the answers that match `where`; with `sample`, a random sample of that size, in file order.

    Only the sample is held in memory. The same seed draws the same answers from the same file.
    """
    fitting = (answer for answer in answers if answer.fits(where))
    if sample is None:
        yield from fitting
        return
    draw = random.Random(seed)
    drawn = list[tuple[int, ModelAnswer]]()
    for index, answer in enumerate(fitting):
        if index < sample:
            drawn.append((index, answer))
        elif (place := draw.randrange(index + 1)) < sample:
            drawn[place] = (index, answer)
    yield from (answer for _, answer in sorted(drawn, key=lambda item: item[0]))


def line_of(row: Mapping[str, JsonValue]) -> str:
    r"""Return a test as a line of JSON, with a line break.

    In a file of tests, `{{ env.KEY }}` stands for an environment value. Logged text must remain text, so the dot after
    `env` is written as a JSON escape, which the reader of tests does not recognize as such an expression. A lone
    surrogate becomes U+FFFD, as in results: names and tags of tests must be valid text.
    """
    text = json.dumps(row, ensure_ascii=False)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace(ENV_MARK, ENV_MARK.replace(".", r"\u002e")) + "\n"


def _parse(line: bytes) -> Iterator[TraceSpan | ModelAnswer | None]:
    """Return the spans or the model calls in one line, with None for a call without an answer.

    Raises:
        _UnknownLineError: the line is in no known format.
    """
    if len(line) > _LONGEST_LINE:
        raise _UnknownLineError(f"it is longer than {_LONGEST_LINE >> 20} MiB")
    try:
        value = decode_json(line)
    except ValueError as error:
        raise _UnknownLineError("it is not JSON") from error
    if not isinstance(value, dict):
        raise _UnknownLineError("it is not a JSON object")
    if "resourceSpans" in value or "resource_spans" in value:
        return otlp_spans(value)
    if isinstance(value.get("attributes"), dict | list) or any(
        key.startswith(FLAT_ATTRIBUTE) for key in value
    ):
        return iter(spans_of(value, {}))
    if isinstance(value.get("result"), dict) and "custom_id" in value:  # Anthropic's batches
        response = mapping(value["result"].get("message"))
        is_batch = True
    else:
        response = _body(value.get("response"))
        is_batch = "custom_id" in value and "response" in value
    request = _body(value.get("request")) or _body(value.get("body"))
    source = response or value
    given = response_turns(source)
    turns = messages(first(request or value, "messages", "input", "prompt"), "user")
    if not given and turns and turns[-1].role == "assistant":  # just a conversation
        given = [turns.pop()]
    if not given and not is_batch and not (request and response):
        raise _UnknownLineError("it has none of the expected keys")
    system = messages(first(request or value, "system", "instructions"), "system")
    metadata = {
        "trace_id": first(value, "trace_id", "traceId"),
        "response_id": source.get("id"),
        "custom_id": value.get("custom_id"),
        "model": source.get("model") or request.get("model"),
    }
    return iter([answer_of([*system, *turns], given, metadata, dict(flat_names(value, "")))])


def _body(value: Any) -> Fields:
    found = mapping(data_in(value))
    return mapping(data_in(found["body"])) if "body" in found else found
