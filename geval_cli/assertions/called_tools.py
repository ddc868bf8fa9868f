"""Find the tools that an output calls, in any of the forms in which models write calls."""

import json
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.errors import UnjudgeableError
from geval_cli.records import JsonValue
from geval_cli.source.source_map import split_lines

_FENCES = ("```", "~~~")
_FLAT_CALLS = frozenset({"tool_use", "function_call"})
_ARGUMENTS = ("arguments", "input", "args")
_MOST_FAILURES = 1000  # each takes time in proportion to the text


def called_tools(output: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Yield name and arguments of each tool that an output calls; None for arguments that are not known.

    What has a name and nothing else of a call is data, and no call.

    Raises:
        UnjudgeableError: the output has too much broken JSON to be searched for calls.
    """
    for call in calls_in(output):
        if call.is_sure:
            yield call.name, call.arguments


class ToolCall(Struct, frozen=True):
    """A call of a tool. `is_sure`: more than a name says that it is one."""

    name: str
    arguments: JsonValue
    is_sure: bool


def calls_in(output: JsonValue) -> Iterator[ToolCall]:
    """Yield what may be a call in an output.

    Raises:
        UnjudgeableError: as `called_tools`.
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
    """Return the tool calls of an answer that its output does not tell already: none where it is nothing but calls."""
    if not calls:
        return ()
    values = [output]
    if isinstance(output, str):
        try:
            values = [parse_strict_json(output)]
        except ValueError:
            try:  # the Responses API's calls, one a line
                values = [parse_strict_json(line) for line in split_lines(output.rstrip())]
            except ValueError:
                return tuple(calls)
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    is_told = bool(items) and all(any(call.is_sure for call in _calls_of([item])) for item in items)
    return () if is_told else tuple(calls)


def _calls_of(value: JsonValue) -> Iterator[ToolCall]:
    """The calls in a value, as OpenAI, Anthropic and Google write them, or as a list of names of calls."""
    if isinstance(value, list):
        for item in value:
            yield from _calls_of_item(item)
    elif isinstance(value, dict):
        live = value.get("toolCall")
        for calls in (value.get("tool_calls"), live.get("functionCalls") if isinstance(live, dict) else None):
            for item in calls if isinstance(calls, list) else ():
                yield from _calls_of_item(item)
        if value.get("type") in _FLAT_CALLS or "arguments" in value:
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
    """Return arguments as data, which APIs write as text."""
    if not isinstance(written, str):
        return written
    try:
        return parse_strict_json(written)
    except ValueError:
        return written


def _blocks(text: str) -> Iterator[JsonValue]:
    """Yield the JSON values in a text that begin and end with a line, outside of code fences.

    Raises:
        UnjudgeableError: too much of it is broken.
    """
    decoder, place, failures, fence = json.JSONDecoder(), 0, 0, ""
    while place < len(text):
        end = _end_of_line(text, place)
        line = text[place:end].strip()
        mark = line[:3]
        if fence or mark in _FENCES:
            fence = "" if mark == fence else fence or mark
        elif line.startswith(("{", "[")):
            try:
                # Each attempt may read to the end of the text: a limit on broken ones keeps the time linear.
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
