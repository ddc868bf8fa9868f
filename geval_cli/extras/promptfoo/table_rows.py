"""Tables of tests: the columns of a CSV file or a sheet become tests as a config would write them."""

import csv
import re
from collections.abc import Collection, Iterator

from msgspec import Struct, field

from geval_cli.errors import Location
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.problems import did_you_mean
from geval_cli.suite.validation import LoadContext

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
"""promptfoo's threshold for these types in a table whose cell has none."""
_TAKES_NO_THRESHOLD = frozenset({"starts-with"})


def assertion_of_cell(text: str, known_types: Collection[str]) -> dict[str, JsonValue]:
    """Return the assertion of a cell, as a config would write it.

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
    base, written = found["type"].removeprefix("not-"), found["value"]
    assertion: dict[str, JsonValue] = {"type": found["type"]}
    if written is not None:
        assertion["value"] = _split(written) if base in _LISTS else written.strip()
    threshold = float(found["threshold"]) if found["threshold"] else _THRESHOLDS.get(base)
    if threshold is not None and base not in _TAKES_NO_THRESHOLD:
        assertion["threshold"] = threshold
    return assertion


def _split(text: str) -> list[JsonValue]:
    """Return the texts between the commas; quotes keep a comma inside a text."""
    return [
        item.strip() for row in csv.reader([text.replace("\n", " ")], skipinitialspace=True) for item in row
    ]


_EXPECTED = "__expected"
_CONFIGURED = compile_later(r"__config:__expected(?P<number>\d*):(?P<key>\w+)$")
_PLAIN = {
    "__prefix": ("options", "prefix"),
    "__suffix": ("options", "suffix"),
    "__description": ("description",),
    "__providerOutput": ("providerOutput",),
}
_RESERVED = (_EXPECTED, "__metric", "__threshold", "__metadata:", "__config:", *_PLAIN)
_SINGLE = frozenset({"__metric", "__threshold", "__metadata", *_PLAIN})
_FAMILIES = (_EXPECTED, "__metadata:", "__config:")
_CONFIG_KEYS = ("threshold",)
# Lists are split at commas; `\,` is a comma of the text.
_ESCAPED_COMMA = compile_later(r"(?<!\\),")


class TableColumns(Struct):
    """The meaning of one table's columns. Rows are read one by one; problems of the header are reported once."""

    header: list[str]
    place: Location | None
    reading: LoadContext
    known_types: Collection[str]
    _expected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = dict.fromkeys(self.header)
        self._expected = [name for name in names if name.startswith(_EXPECTED)]
        for name in names:
            self._check_name(name)
            if name and self.header.count(name) > 1:
                hint = (
                    "number them: `__expected1`, `__expected2`" if name == _EXPECTED else "rename the others"
                )
                self.reading.warn(
                    f"several columns are called `{name}`, of which the last one is used", self.place, hint
                )

    def test_of(self, cells: list[str], location: Location | None) -> dict[str, JsonValue]:
        """Return the test that a row describes; empty columns of ours say nothing, empty variables are empty texts."""
        row = dict(zip(self.header, cells, strict=True))
        test: dict[str, JsonValue] = {"vars": {}}
        for name, cell in row.items():
            if name in _PLAIN:
                if cell:
                    _put(test, _PLAIN[name], cell)
            elif name.startswith("__metadata:"):
                key = name.removeprefix("__metadata:")
                if key.endswith("[]") and cell.strip():
                    values = [part.replace("\\,", ",").strip() for part in _ESCAPED_COMMA.split(cell)]
                    _put(test, ("metadata", key.removesuffix("[]")), values)
                elif cell.strip():
                    _put(test, ("metadata", key), cell)
            elif name and name not in _SINGLE and not name.startswith(_FAMILIES):
                test["vars"][name] = cell
        written = (row[name].strip() for name in self._expected)
        found = [assertion_of_cell(text, self.known_types) for text in written if text]
        for name, cell in row.items():
            configured = _CONFIGURED.match(name)
            if configured and cell.strip():
                number = self._number(cell, name, location)
                position = _position(configured["number"])
                if number is not None and position < len(found):
                    found[position][configured["key"]] = number
                elif number is not None:
                    message = (
                        f"`{name}` of this row is not used: it has {len(found)} filled `{_EXPECTED}` cells"
                    )
                    self.reading.warn(message, location, "the number counts the filled cells of the row")
        if row.get("__metric"):
            for assertion in found:
                assertion["metric"] = row["__metric"]
        test["assert"] = [*found]
        if row.get("__threshold", "").strip():
            threshold = self._number(row["__threshold"], "__threshold", location)
            if threshold == 0:  # to promptfoo no threshold, so that each assertion decides
                message = "`__threshold` of 0 is not used, so every assertion of this row must pass"
                self.reading.warn(message, location, "leave the cell empty")
            test |= {"threshold": threshold} if threshold else {}
        return test

    def _number(self, cell: str, name: str, location: Location | None) -> float | None:
        try:
            return float(cell)
        except ValueError:
            self.reading.report(f"`{name}` must be a number, found `{cell.strip()}`", location)
            return None

    def _check_name(self, name: str) -> None:
        configured = _CONFIGURED.match(name)
        if configured:
            number = configured["number"]
            key = configured["key"]
            column = f"__expected{number}"
            if not 0 <= _position(number) < len(self._expected):
                self.reading.report(
                    f"`{name}` does not belong to a column: there is no `{column}`", self.place
                )
            if key not in _CONFIG_KEYS:
                self.reading.report(f"`{key}` of `{name}` is unknown", self.place, "known: threshold")
        elif name.startswith("__config:"):
            hint = "write `__config:__expected1:threshold`"
            self.reading.warn(f"the column `{name}` is not used", self.place, hint)
        elif name == "__metadata":
            self.reading.warn("`__metadata` is not used", self.place, "add the key: `__metadata:area`")
        elif name.startswith("__"):
            if name not in _SINGLE and not name.startswith(_FAMILIES):
                near = did_you_mean(name, _RESERVED)
                hint = f"did you mean `{near}`?" if near else "remove `__` unless a prompt uses it"
                self.reading.warn(f"`{name}` is treated as an ordinary variable", self.place, hint)
        elif name.startswith("_") and f"_{name}" in _RESERVED:
            self.reading.warn(
                f"`{name}` is treated as an ordinary variable", self.place, f"did you mean `_{name}`?"
            )


def _position(number: str) -> int:
    """Return the index of the row's assertion that `__config:__expected<number>` is about."""
    return int(number or 1) - 1


def _put(test: dict[str, JsonValue], path: tuple[str, ...], value: JsonValue) -> None:
    *parents, last = path
    for key in parents:
        test = test.setdefault(key, {})
    test[last] = value


def not_empty(rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Return the rows that have text in them."""
    return ((number, cells) for number, cells in rows if any(cell.strip() for cell in cells))
