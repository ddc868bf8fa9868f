"""Reads the tests of a promptfoo config: lists, files of every kind, wildcards, and lists of these.

Rows of a CSV file or a sheet become tests as a config would write them.
"""

import re
from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path

from msgspec import Struct, field

from geval_cli.assertions.base import split_at_commas
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.promptfoo.env import TRUE_WORDS, existing_files, warn_of_gone
from geval_cli.extras.promptfoo.prompts import ConfigPart, delimiter_hint
from geval_cli.extras.xlsx import sheet_rows
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.files import (
    CODE_SUFFIXES,
    JAVASCRIPT_SUFFIXES,
    PYTHON_SUFFIXES,
    RUNNABLE_SUFFIXES,
    NamedFile,
)
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import Positions, SourcePath
from geval_cli.specs.base import describe_value
from geval_cli.suite.tables import csv_rows, guess_delimiter, uneven_problem
from geval_cli.suite.test_files import JsonLinesRows
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_string

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
"""promptfoo's thresholds for these types if a table cell has none."""
_TAKES_NO_THRESHOLD = frozenset({"starts-with"})


def assertion_of_cell(text: str, known_types: Collection[str]) -> dict[str, JsonValue]:
    """Return the assertion in a cell, as a config would write it.

    Args:
        text: the text of the cell, not empty.
        known_types: all assertion types, without `not-`. Text with an unknown type becomes an `equals` assertion.
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
    base = found["type"].removeprefix("not-")
    written = found["value"]
    assertion: dict[str, JsonValue] = {"type": found["type"]}
    if written is not None:
        if base in _LISTS:
            assertion["value"] = split_at_commas(written, in_lines=False)
        else:
            assertion["value"] = written.strip()
    threshold = float(found["threshold"]) if found["threshold"] else _THRESHOLDS.get(base)
    if threshold is not None and base not in _TAKES_NO_THRESHOLD:
        assertion["threshold"] = threshold
    return assertion


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
# Lists are split at commas; `\,` is a literal comma.
_ESCAPED_COMMA = compile_later(r"(?<!\\),")


class TableColumns(Struct):
    """The columns of a table. Rows are read one by one; problems with the header are reported once."""

    header: list[str]
    place: Location | None
    reading: LoadContext
    known_types: Collection[str]
    _expected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.header) == 1 and guess_delimiter(self.header[0]) != ",":
            message = f"the only column is called `{self.header[0]}`"
            self.reading.warn(message, self.place, delimiter_hint(self.header[0]))
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
        """Return the test in a row. Empty cells of special columns are ignored; an empty variable is an empty text."""
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
            if threshold == 0:  # no threshold in promptfoo, so every assertion must pass
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
    """Return the index of the row's assertion that `__config:__expected<number>` configures."""
    return int(number or 1) - 1


def _put(test: dict[str, JsonValue], path: tuple[str, ...], value: JsonValue) -> None:
    *parents, last = path
    for key in parents:
        test = test.setdefault(key, {})
    test[last] = value


def not_empty(rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Return the rows that contain text."""
    return ((number, cells) for number, cells in rows if any(cell.strip() for cell in cells))


Rows = Iterator[tuple[int, list[str]]]
"""Rows as text, each with the number of its last line, from 1."""


def _csv_texts(path: Path, asked_at: Location | None, reading: LoadContext) -> Rows:
    env, width = reading.env.values, None
    rows = csv_rows(
        path,
        reading.files.access,
        asked_at,
        delimiter=env.get("PROMPTFOO_CSV_DELIMITER") or ",",
        is_strict=env.get("PROMPTFOO_CSV_STRICT", "").lower() in TRUE_WORDS,
    )
    for row in rows:
        if width is not None and len(row.cells) != width:
            raise ConfigError([uneven_problem(row, width, path)])
        width = len(row.cells)
        yield row.last_line, row.cells


def _sheet_texts(path: Path, sheet: str, access: Access, asked_at: Location | None) -> Rows:
    for row in sheet_rows(path, sheet, access, asked_at):
        yield row.last_line, [_cell_text(cell) for cell in row.cells]


def _cell_text(value: object) -> str:
    return js_string(value).strip() if isinstance(value, str | int | float | bool | None) else str(value)


PROMPTFOO_TYPES = frozenset(
    {
        "agent-rubric", "answer-relevance", "assert-set", "bleu", "classifier", "contains", "contains-all",
        "contains-any", "contains-html", "contains-json", "contains-sql", "contains-xml", "context-faithfulness",
        "context-recall", "context-relevance", "conversation-relevance", "cost", "ends-with", "equals", "factuality",
        "finish-reason", "g-eval", "gleu", "guardrails", "human", "icontains", "icontains-all", "icontains-any",
        "is-html", "is-json", "is-refusal", "is-sql", "is-valid-function-call", "is-valid-openai-function-call",
        "is-valid-openai-tools-call", "is-xml", "javascript", "latency", "levenshtein", "llm-rubric", "max-score",
        "meteor", "model-graded-closedqa", "model-graded-factuality", "moderation", "perplexity", "perplexity-score",
        "pi", "python", "regex", "rouge-n", "ruby", "search-rubric", "select-best", "similar", "similar:cosine",
        "similar:dot", "similar:euclidean", "starts-with", "tool-call-f1", "trace-error-spans", "trace-span-count",
        "trace-span-duration", "webhook", "word-count",
    }
)  # fmt: skip


_LINES = frozenset({".jsonl", ".ndjson"})
_DOCUMENTS = frozenset({".yaml", ".yml", ".json"})
_SHEETS = frozenset({".xlsx", ".xls"})
_REMOTE = {
    "huggingface://": "Hugging Face datasets are not fetched",
    "https://docs.google.com/": "Google Sheets are not fetched",
    "http://": "tests are not fetched over the network",
    "https://": "tests are not fetched over the network",
    "az://": "tests are not fetched over the network",
    "sharepoint:": "tests are not fetched over the network",
}
_DEFAULT_GENERATOR = "generate_tests"
_SAVE = "save the tests in a .csv or .jsonl file next to the config and use that"


class TestRow(Struct, frozen=True):
    """A test as written. `folder` is what a path in its `vars:` is relative to.

    `number` is the row in the file, from 1, for a description if the test has none; 0 if it is not in such a file.
    """

    __test__ = False

    value: JsonValue
    place: SourcePath
    folder: Path
    number: int = 0


def iterate_rows(parts: tuple[ConfigPart, ...], reading: LoadContext) -> Iterator[TestRow]:
    """Yield every test of all `parts`, reading files anew; what cannot be read is reported to `reading`."""
    for part in parts:
        try:
            value = part.value
            if isinstance(value, str):
                yield from _of_reference(value, part, reading)
            elif (
                isinstance(value, dict)
                and isinstance(value.get("path"), str)
                and value.keys() <= {"path", "config"}
            ):
                yield from _of_reference(value["path"], part, reading)
            elif isinstance(value, dict):
                yield TestRow(value, part.place, part.folder)
            else:
                message = f"a test must be a mapping or name a file, found {describe_value(value)}"
                reading.report(message, part.place.value())
        except ConfigError as error:
            reading.problems.extend(error.problems)


def _of_reference(reference: str, part: ConfigPart, reading: LoadContext) -> Iterator[TestRow]:
    location = part.place.value()
    refusal = next((why for start, why in _REMOTE.items() if reference.startswith(start)), None)
    if refusal:
        reading.report(refusal, location, _SAVE)
        return
    files = existing_files(reference, part.folder, reading.files.access, location)
    warn_of_gone(reference, part.folder, reading, location)
    for file in files:
        yield from _of_file(file, location, part, reading)


def _of_file(
    file: NamedFile, asked_at: Location | None, part: ConfigPart, reading: LoadContext
) -> Iterator[TestRow]:
    folder = file.path.parent
    if file.suffix in _DOCUMENTS:
        path = file.path
        document = reading.files.document_at(path, asked_at)
        is_json = path.suffix.lower() == ".json"
        items = document.value if isinstance(document.value, list) else [document.value]
        for index, item in enumerate(items):
            place = document.place.child(index) if isinstance(document.value, list) else document.place
            if isinstance(item, dict):
                yield TestRow(item, place, path.parent, index + 1 if is_json else 0)
            else:
                message = f"a test must be a mapping, found {describe_value(item)}"
                reading.report(message, place.value())
    elif file.suffix in _LINES:
        numbers = count(1)
        for value, place in JsonLinesRows(file.path, asked_at).rows(reading):
            yield TestRow(value, place, folder, next(numbers))
    elif file.suffix == ".csv":
        yield from _of_table(file.path, _csv_texts(file.path, asked_at, reading), asked_at, reading)
    elif file.suffix in _SHEETS:
        yield from _of_table(
            file.path, _sheet_texts(file.path, file.part, reading.files.access, asked_at), asked_at, reading
        )
    elif file.suffix in RUNNABLE_SUFFIXES and reading.scripts is not None:
        yield from _of_function(file, asked_at, part, reading)
    elif file.suffix in JAVASCRIPT_SUFFIXES - RUNNABLE_SUFFIXES:
        hint = "compile it to JavaScript and use the .js file, or have it write its tests to a .jsonl file"
        reading.report(f"TypeScript is not supported: `{file.path.name}`", asked_at, hint)
    elif file.suffix in CODE_SUFFIXES:
        message = f"tests that a program makes are not supported: `{file.path.name}`"
        reading.report(message, asked_at, "have it write its tests to a .jsonl file and use that")
    else:
        hint = "known: .yaml, .yml, .json, .jsonl, .csv, .xlsx"
        reading.problems.append(Problem(f"`{file.path.name}` is not a tests file", asked_at, hint))


def _of_function(
    file: NamedFile, asked_at: Location | None, part: ConfigPart, reading: LoadContext
) -> Iterator[TestRow]:
    """Yield the tests that a function returns, given `config` of the entry, if any, as its argument.

    Without a name it is `generate_tests` in Python and the default export in JavaScript.
    """
    assert reading.scripts is not None
    function = file.part or (_DEFAULT_GENERATOR if file.suffix in PYTHON_SUFFIXES else "")
    settings = part.value.get("config") if isinstance(part.value, dict) else None
    made = reading.scripts()(file.path, function, [] if settings is None else [settings], asked_at)
    if not isinstance(made, list):
        what = f"`{function}` of {file.path.name}" if function else file.path.name
        message = f"{what} must return a list of tests, not {describe_value(made)}"
        reading.report(message, asked_at)
        return
    for item in made:
        yield TestRow(item, part.place, file.path.parent)


def _of_table(path: Path, rows: Rows, asked_at: Location | None, reading: LoadContext) -> Iterator[TestRow]:
    filled = not_empty(rows)
    first = next(filled, None)
    if first is None:
        reading.report(f"`{path}` contains no tests", asked_at, "write a header and one row per test")
        return
    header = [name.strip() for name in first[1]]
    columns = TableColumns(header, _line(path, first[0]), reading, PROMPTFOO_TYPES | ASSERTION_TYPES.keys())
    for number, (line, cells) in enumerate(filled, start=1):
        where = _line(path, line)
        place = SourcePath(Positions(str(path), values={(): where}))
        yield TestRow(columns.test_of(cells, where), place, path.parent, number)


def _line(path: Path, number: int) -> Location:
    return Location(str(path), number, 1, length=0)
