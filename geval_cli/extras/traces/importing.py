"""Traces and logs of an application as tests: each trace, or each model call outside of one, becomes a row to judge.

Four kinds of lines are known, each a JSON object: OTLP (`resourceSpans`), spans on their own (`attributes`), both with
the attributes of OpenTelemetry's conventions for generative AI, of OpenInference or of OpenLLMetry; and request with
response, or a line of a batch's output, of OpenAI's APIs or Anthropic's.

The texts come from strangers, and a file of tests has a meaning of its own for some: see `line_of`.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import Location, Problem
from geval_cli.extras.traces.messages import (
    Fields,
    ModelAnswer,
    answer_of,
    first,
    flat_names,
    mapping,
    messages,
    response_turns,
)
from geval_cli.extras.traces.spans import FLAT_ATTRIBUTE, TraceSpan, otlp_spans, spans_of
from geval_cli.json_codec import data_in, decode_json
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED, open_regular
from geval_cli.source.files import open_problem
from geval_cli.source.source_map import ENV_MARK

MOST_PROBLEMS = 100
"""So many unknown lines are told; nobody reads more."""

_LONGEST_LINE = 64 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_KNOWN = "supported: OTLP JSON lines, spans with `attributes`, request with response, and batch output"


class TraceReading(Struct):
    """Counts of a file: answers, calls without a text, and lines that are not understood."""

    answers: int = 0
    silent: int = 0
    chosen: int = 0
    bad: int = 0
    problems: list[Problem] = field(default_factory=list)


class _UnknownLineError(Exception):
    """A line is none that is known; the text says why."""


def read_traces(path: Path, reading: TraceReading, *, joins: bool = True) -> Iterator[ModelAnswer]:
    """Yield the answers in a file that the user named; `reading` takes what is wrong with the others.

    The spans of a trace are joined to its last answer, if it `joins`: they may be far apart, so the file is read twice,
    first to count them. Only traces that have begun and not ended are in memory.
    """
    if joins:
        unread = TraceReading()
        unjoined = (item for item in _items_of(path, unread) if isinstance(item, TraceSpan))
        counts = Counter(span.trace_id for span in unjoined)
    else:
        counts = Counter[str]()
    begun: dict[str, list[TraceSpan]] = {}
    for item in _items_of(path, reading):
        if not isinstance(item, TraceSpan):
            yield from _noted([item], reading)
        elif counts[item.trace_id] > 1 and item.trace_id:
            spans = begun.setdefault(item.trace_id, [])
            spans.append(item)
            if len(spans) == counts[item.trace_id]:
                yield from _joined(begun.pop(item.trace_id), reading)
        elif item.is_call:
            yield from _noted([item.answer], reading)
    for spans in begun.values():  # of a file that has changed meanwhile
        yield from _joined(spans, reading)


def _noted(answers: Sequence[ModelAnswer | None], reading: TraceReading) -> Iterator[ModelAnswer]:
    for answer in answers:
        if answer is None:
            reading.silent += 1
        else:
            reading.answers += 1
            yield answer


def _joined(spans: Sequence[TraceSpan], reading: TraceReading) -> Iterator[ModelAnswer]:
    """Yield the last answer of a trace with the steps of all its spans, in the order in which they began."""
    ordered = sorted(spans, key=lambda span: span.start)
    answers = list(_noted([span.answer for span in ordered if span.is_call], reading))
    if not answers:
        return
    steps = tuple(span.step for span in ordered)
    if all(span.is_call for span in ordered):  # no span of a tool: the messages may tell of tools
        steps = ()
    yield replace(answers[-1], steps=steps)


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
    """Yield the answers that `where` fits; with `sample`, so many of them drawn at random, in their order.

    Only the sample is held in memory. The same seed draws the same answers from the same file.
    """
    fitting = (answer for answer in answers if answer.fits(where))
    if sample is None:
        yield from fitting
        return
    draw, drawn = random.Random(seed), list[tuple[int, ModelAnswer]]()
    for index, answer in enumerate(fitting):
        if index < sample:
            drawn.append((index, answer))
        elif (place := draw.randrange(index + 1)) < sample:
            drawn[place] = (index, answer)
    yield from (answer for _, answer in sorted(drawn, key=lambda item: item[0]))


def line_of(row: Mapping[str, JsonValue]) -> str:
    r"""Return the line of a test, with a line break.

    In a file of tests, `{{ env.KEY }}` stands for a value of the environment. Whatever was logged must stay a text, so
    the dot behind `env` is written as JSON's escape of it, by which the reader of tests does not know the expression.
    """
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        text = json.dumps(row)
    return text.replace(ENV_MARK, ENV_MARK.replace(".", r"\u002e")) + "\n"


def _parse(line: bytes) -> Iterator[TraceSpan | ModelAnswer | None]:
    """Return the spans or the model calls of one line, None for a call without an answer.

    Raises:
        _UnknownLineError: it is none of the known kinds.
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
    return iter([_logged(value)])


def _logged(value: Fields) -> ModelAnswer | None:
    if isinstance(value.get("result"), dict) and "custom_id" in value:  # Anthropic's batches
        response, is_batch = mapping(value["result"].get("message")), True
    else:
        response = _body(value.get("response"))
        is_batch = "custom_id" in value and "response" in value
    request = _body(value.get("request")) or _body(value.get("body"))
    source = response or value
    given = response_turns(source)
    turns = messages(first(request or value, "messages", "input", "prompt"), "user")
    if not given and turns and turns[-1].role == "assistant":  # a conversation on its own
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
    return answer_of([*system, *turns], given, metadata, dict(flat_names(value, "")))


def _body(value: Any) -> Fields:
    found = mapping(data_in(value))
    return mapping(data_in(found["body"])) if "body" in found else found
