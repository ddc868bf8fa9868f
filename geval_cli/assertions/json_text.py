"""JSON in a model's output, JSON Schemas in configs, and the tool calls in an output. Imports quickly."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

from msgspec import Struct

from geval_cli.errors import UnjudgeableError
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.source_map import split_lines
from geval_cli.specs.base import WrittenSchema

_FENCE = compile_later(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(?P<content>.*?)^[ \t]*\1", re.DOTALL | re.MULTILINE)
_OPENING = compile_later(r"""\{(?=\s*["}])|\[(?=\s*[]["{tfnNI0-9-])""")
# Each attempt takes time proportional to the text; an answer with more broken brackets is not JSON.
_MOST_TRIES = 1000
Schema = dict[str, Any] | bool


class FoundJson(Struct, frozen=True):
    """A value and where it was found: "whole output", "code fence" or "larger text"."""

    value: JsonValue
    found_in: str


class _Candidate(Struct, frozen=True):
    value: JsonValue
    length: int


def parse_strict_json(text: str) -> JsonValue:
    """Return the value of a JSON text; NaN and Infinity are refused.

    Raises:
        ValueError: the text is not JSON; the message has line and column.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def find_json(text: str) -> FoundJson:
    """Return the JSON in a text: the whole text, else the content of a code fence, else an object or list in the prose.

    Of several, the longest is used, and of equally long ones the last. The JSON must be valid, and a part of a broken
    value is never taken for the whole.

    Raises:
        ValueError: there is no JSON in the text.
    """
    try:
        return FoundJson(parse_strict_json(text), "whole output")
    except ValueError:
        pass
    for found_in, candidates in (("code fence", _fenced(text)), ("larger text", _in_prose(text))):
        longest = max(reversed([*candidates]), key=lambda item: item.length, default=None)
        if longest is not None:
            return FoundJson(longest.value, found_in)
    raise ValueError("there is no JSON object or list in it, not even in a code fence or within prose")


def every_json(text: str) -> Iterator[JsonValue]:
    """Yield every JSON object in a text, and every list that is the whole text or a whole code fence.

    A list in prose (`[1]`) is more often a footnote than JSON. A list is followed by its members that are objects.
    """
    try:
        whole = parse_strict_json(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict | list):
        yield whole
        if isinstance(whole, list):
            yield from (item for item in whole if isinstance(item, dict))
        return
    for candidate in _fenced(text):
        if isinstance(candidate.value, list):
            yield candidate.value
    for candidate in _in_prose(text):
        if isinstance(candidate.value, dict):
            yield candidate.value
        elif isinstance(candidate.value, list):
            yield from (item for item in candidate.value if isinstance(item, dict))


def _fenced(text: str) -> Iterator[_Candidate]:
    for match in islice(_FENCE.finditer(text), _MOST_TRIES):
        content = match["content"].strip()
        try:
            yield _Candidate(parse_strict_json(content), len(content))
        except ValueError:
            continue


def _in_prose(text: str) -> Iterator[_Candidate]:
    constants: list[str] = []
    decoder = json.JSONDecoder(parse_constant=constants.append)
    end = 0
    for _ in range(_MOST_TRIES):
        match = _OPENING.search(text, end)
        if match is None:
            return
        start = match.start()
        try:
            value, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            # Skip what was read before the error: it is part of the broken value and not a value by itself.
            end = max(error.pos, start + 1)
        except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
            return
        else:
            if not constants:
                yield _Candidate(value, end - start)
        constants.clear()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def parse_schema(written: WrittenSchema) -> Schema:
    """Return the schema from a config; text is parsed as JSON.

    Raises:
        ValueError: the text is not JSON, or not an object or a boolean.
    """
    if isinstance(written, dict | bool):
        return written
    schema = parse_strict_json(written)
    if not isinstance(schema, dict | bool):
        raise ValueError("it must be an object or a boolean")  # noqa: TRY004 - one kind of error for one kind of problem
    return schema


def none_if_empty(written: WrittenSchema | None) -> WrittenSchema | None:
    """Return the schema, or None if it is empty: blank text, an object without keys, or None."""
    is_empty = "".join(written.split()) in {"", "{}"} if isinstance(written, str) else written == {}
    return None if is_empty else written


_FENCES = ("```", "~~~")
_FLAT_CALLS = frozenset({"tool_use", "function_call"})
_ARGUMENTS = ("arguments", "input", "args")
_MOST_FAILURES = 1000  # each takes time proportional to the text


def called_tools(output: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Yield name and arguments of each tool that an output calls; None for unknown arguments.

    A value with a name and no other sign of a call is data.

    Raises:
        UnjudgeableError: the output has too much broken JSON to be searched for calls.
    """
    for call in calls_in(output):
        if call.is_sure:
            yield call.name, call.arguments


class ToolCall(Struct, frozen=True):
    """A tool call; `is_sure` if more than a name shows that it is one."""

    name: str
    arguments: JsonValue
    is_sure: bool


def calls_in(output: JsonValue) -> Iterator[ToolCall]:
    """Yield everything in an output that may be a tool call.

    Raises:
        UnjudgeableError: as for `called_tools`.
    """
    if not isinstance(output, str):
        yield from _calls_of(output)
        return
    try:
        found = [parse_strict_json(output)]
    except ValueError:
        found = list(_blocks(output))
    for value in found:
        yield from _calls_of(value)


def calls_beside(
    output: JsonValue, calls: Sequence[Mapping[str, JsonValue]]
) -> tuple[Mapping[str, JsonValue], ...]:
    """Return an answer's tool calls, or nothing if its output consists of calls and already shows them."""
    if not calls:
        return ()
    values = [output]
    if isinstance(output, str):
        try:
            values = [parse_strict_json(output)]
        except ValueError:
            try:  # the Responses API's calls, one per line
                values = [parse_strict_json(line) for line in split_lines(output.rstrip())]
            except ValueError:
                return tuple(calls)
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    is_told = bool(items) and all(any(call.is_sure for call in _calls_of([item])) for item in items)
    return () if is_told else tuple(calls)


def _calls_of(value: JsonValue) -> Iterator[ToolCall]:
    """Yield the calls in a value, in the forms of OpenAI, Anthropic and Google, or in a list."""
    if isinstance(value, list):
        for item in value:
            yield from _calls_of_item(item)
    elif isinstance(value, dict):
        live = value.get("toolCall")
        for calls in (value.get("tool_calls"), live.get("functionCalls") if isinstance(live, dict) else None):
            for item in calls if isinstance(calls, list) else ():
                yield from _calls_of_item(item)
        if value.get("type") in _FLAT_CALLS or "arguments" in value or "args" in value:
            yield from _call_in(value)
        yield from _call_in(value.get("functionCall"), is_sure=True)
        yield from _call_in(value.get("function_call"), is_sure=True)


def _calls_of_item(item: JsonValue) -> Iterator[ToolCall]:
    if not isinstance(item, dict):
        return
    inner = next((item[key] for key in ("functionCall", "function") if isinstance(item.get(key), dict)), None)
    if inner is None or item.get("type") in _FLAT_CALLS:
        yield from _call_in(item)
    else:
        yield from _call_in(inner, is_sure=True)


def _call_in(value: JsonValue, *, is_sure: bool = False) -> Iterator[ToolCall]:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return
    written = next((value[key] for key in _ARGUMENTS if value.get(key) is not None), None)
    is_sure = is_sure or written is not None or value.get("type") in _FLAT_CALLS
    yield ToolCall(name, _arguments(written), is_sure)


def _arguments(written: JsonValue) -> JsonValue:
    """Return a call's arguments as data; APIs write them as JSON text."""
    if not isinstance(written, str):
        return written
    try:
        return parse_strict_json(written)
    except ValueError:
        return written


def _blocks(text: str) -> Iterator[JsonValue]:
    """Yield the JSON values in a text that start and end with a line, outside code fences.

    Raises:
        UnjudgeableError: the text has too much broken JSON.
    """
    decoder = json.JSONDecoder()
    place = 0
    failures = 0
    fence = ""
    while place < len(text):
        end = _end_of_line(text, place)
        line = text[place:end].strip()
        mark = line[:3]
        if fence or mark in _FENCES:
            fence = "" if mark == fence else fence or mark
        elif line.startswith(("{", "[")):
            try:
                # Each attempt may read to the end of the text; limiting the failures keeps the time linear.
                value, stop = decoder.raw_decode(text, text.index(line[0], place))
            except (ValueError, RecursionError):
                failures += 1
                if failures > _MOST_FAILURES:
                    raise UnjudgeableError(
                        "the output has too much broken JSON to look for calls in it"
                    ) from None
            else:
                end = _end_of_line(text, stop)
                if not text[stop:end].strip():
                    yield value
        place = end + 1


def _end_of_line(text: str, place: int) -> int:
    found = text.find("\n", place)
    return len(text) if found < 0 else found
