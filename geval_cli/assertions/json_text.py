"""JSON in a model's output, all of it or what prose surrounds, and JSON Schemas as a config has them. Loads quickly."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from msgspec import Struct

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.specs.base import WrittenSchema

_FENCE = compile_later(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(?P<content>.*?)^[ \t]*\1", re.DOTALL | re.MULTILINE)
_OPENING = compile_later(r"""\{(?=\s*["}])|\[(?=\s*[]["{tfnNI0-9-])""")
_MOST_TRIES = (
    1000  # each takes time in proportion to the text; an answer with more broken brackets holds no JSON
)
Schema = dict[str, Any] | bool


class FoundJson(Struct, frozen=True):
    """A value and what it was in: "whole output", "code fence" or "larger text"."""

    value: JsonValue
    found_in: str


class _Candidate(Struct, frozen=True):
    value: JsonValue
    length: int


def parse_strict_json(text: str) -> JsonValue:
    """Return the value of a JSON text; NaN and Infinity are no JSON.

    Raises:
        ValueError: with line and column.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def find_json(text: str) -> FoundJson:
    """Return the JSON in a text: all of it, else the content of a code fence, else an object or a list within prose.

    Of several, the longest counts, and of equally long ones the last. The JSON itself must be without mistakes, and no
    part of a broken value is taken for the whole.

    Raises:
        ValueError: there is none.
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
    """Yield every JSON object in a text, and every list that is all of it or all of a code fence.

    A list in prose (`[1]`) is more often a footnote than JSON. The members of a list that are objects follow it.
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
            # What was read before the mistake belongs to the broken value and is no value of its own.
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
    """Return the schema that a config means; text is JSON.

    Raises:
        ValueError: the text is not JSON, or not an object or a boolean.
    """
    if isinstance(written, dict | bool):
        return written
    schema = parse_strict_json(written)
    if not isinstance(schema, dict | bool):
        raise ValueError("it must be an object or a boolean")  # noqa: TRY004 - one kind of error for one kind of problem
    return schema


def unless_empty(written: WrittenSchema | None) -> WrittenSchema | None:
    """Return the schema, or None when it asks nothing: blank text, an object without keys, nothing at all."""
    is_empty = "".join(written.split()) in {"", "{}"} if isinstance(written, str) else written == {}
    return None if is_empty else written
