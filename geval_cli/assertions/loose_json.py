"""JSON objects in a text as promptfoo finds them: between balanced braces, written as JSON or in YAML's freer ways."""

import json
from collections.abc import Iterator

from geval_cli.config.yaml_source import read_yaml
from geval_cli.errors import ConfigError
from geval_cli.records import JsonValue

_LONGEST = 100_000  # characters of one object
_MOST_READ = (
    300_000  # characters in all: each opening brace that nothing closes is read to the end of the text
)


def loose_objects(text: str) -> Iterator[JsonValue]:
    """The objects in a text, outermost ones; at the end of the text missing braces are taken as written.

    Keys without quotes, single quotes and commas too many are no mistakes here. A list is no object; those in it are.
    """
    start = text.find("{")
    effort = _MOST_READ
    while start >= 0 and effort > 0:
        end, missing = _end_of(text, start)
        effort -= end - start
        found = _read(text[start:end] + "}" * missing)
        if found is None:
            start = text.find("{", start + 1)
        else:
            yield found
            start = text.find("{", end)


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Where what opens at `start` is closed, or the text or the limit ends, and how many braces are missing there."""
    depth = 0
    last = min(start + _LONGEST, len(text))
    for place in range(start, last):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place + 1, 0
    return last, depth


def _read(written: str) -> JsonValue:
    """The value that is written, None when there is none."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        pass
    try:
        found = read_yaml(written, "output").value
    except (ConfigError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None
