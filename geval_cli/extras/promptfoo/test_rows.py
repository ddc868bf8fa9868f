"""Where a promptfoo config's tests come from: lists, files of every kind, wildcards, and lists of these."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.promptfoo.env import TRUE_WORDS
from geval_cli.extras.promptfoo.prompts import ConfigPart
from geval_cli.extras.promptfoo.table_rows import TableColumns, not_empty
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.source_map import Positions, SourcePath
from geval_cli.specs.base import describe_value
from geval_cli.suite.named_files import (
    CODE_SUFFIXES,
    JAVASCRIPT_SUFFIXES,
    PYTHON_SUFFIXES,
    RUNNABLE_SUFFIXES,
    NamedFile,
    existing_files,
)
from geval_cli.suite.tables import csv_rows, sheet_rows, uneven_problem
from geval_cli.suite.test_files import JsonLinesRows
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_string

Rows = Iterator[tuple[int, list[str]]]
"""Rows as texts, each with the number of the line that it ends on, from 1."""


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
    """A test as it is written. `folder` is what a path in its `vars:` is relative to.

    `number` counts the rows of a file whose tests have no description of their own; 0 elsewhere.
    """

    __test__ = False

    value: JsonValue
    place: SourcePath
    folder: Path
    number: int = 0


def iterate_rows(parts: tuple[ConfigPart, ...], reading: LoadContext) -> Iterator[TestRow]:
    """Yield every test of all `parts`, files read anew; what cannot be read becomes a problem of `reading`."""
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
    for file in existing_files(reference, part.folder, reading.files.access, location):
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
    """The tests that a function returns; `config` of the entry is its argument. JavaScript may export it unnamed."""
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
