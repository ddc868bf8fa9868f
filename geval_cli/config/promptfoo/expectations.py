"""What a cell of a test table expects: `[not-]type[(threshold)][:value]`, or a bare text that must be equal."""

import csv
import re
from collections.abc import Collection

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue

_CELL = compile_later(
    r"(?P<type>(?:not-)?[a-z][a-z0-9-]*[a-z0-9])(?:\((?P<threshold>\d+(?:\.\d+)?)\))?(?::(?P<value>.*))?",
    re.DOTALL,
)
_SCRIPT_FILE = compile_later(r"file://\S+\.(?P<suffix>py|js|mjs|cjs|ts|mts|cts)(?::[\w.]+)?$")
_PREFIXES = {
    "javascript:": "javascript",
    "fn:": "javascript",
    "eval:": "javascript",
    "python:": "python",
    "grade:": "llm-rubric",
    "llm-rubric:": "llm-rubric",
}
_LISTS = frozenset({"contains-all", "contains-any", "icontains-all", "icontains-any"})
_THRESHOLDS = {
    **dict.fromkeys(
        (
            "answer-relevance",
            "classifier",
            "context-faithfulness",
            "context-recall",
            "context-relevance",
            "cost",
            "latency",
            "levenshtein",
            "perplexity",
            "perplexity-score",
            "rouge-n",
            "starts-with",
        ),
        0.75,
    ),
    "similar": 0.8,
}
"""What promptfoo takes for the threshold of these in a table, when the cell does not say."""
_TAKES_NO_THRESHOLD = frozenset({"starts-with"})


def assertion_of_cell(text: str, known_types: Collection[str]) -> dict[str, JsonValue]:
    """The assertion that a cell stands for, as a config would write it.

    Args:
        text: of the cell, not empty.
        known_types: all types, without `not-`; what looks like another one is a text that must be equal.
    """
    script = _SCRIPT_FILE.match(text)
    if script:
        return {"type": "python" if script["suffix"] == "py" else "javascript", "value": text}
    for prefix, kind in _PREFIXES.items():
        if text.startswith(prefix):
            value = text.removeprefix(prefix)
            return {"type": kind, "value": value if kind == "llm-rubric" else value.strip()}
    found = _CELL.fullmatch(text)
    if found is None or found["type"].removeprefix("not-") not in known_types:
        return {"type": "equals", "value": text}
    return _typed(found)


def _typed(found: re.Match[str]) -> dict[str, JsonValue]:
    base, written = found["type"].removeprefix("not-"), found["value"]
    assertion: dict[str, JsonValue] = {"type": found["type"]}
    if written is not None:
        assertion["value"] = _split(written) if base in _LISTS else written.strip()
    threshold = float(found["threshold"]) if found["threshold"] else _THRESHOLDS.get(base)
    if threshold is not None and base not in _TAKES_NO_THRESHOLD:
        assertion["threshold"] = threshold
    return assertion


def _split(text: str) -> list[JsonValue]:
    """The texts between the commas; quotes keep a comma inside a text."""
    return [
        item.strip() for row in csv.reader([text.replace("\n", " ")], skipinitialspace=True) for item in row
    ]
