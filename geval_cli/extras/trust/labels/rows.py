"""Rows of a file of labels, JSON Lines or CSV, each with the place of everything in it. Meaning is given elsewhere."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.report.csv_file import csv_line, formula_text
from geval_cli.report.json_file import json_text
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import value_text
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.files import read_text
from geval_cli.source.json_source import json_line_positions, read_json
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import MAX_DEPTH, KeyPath, Positions, SourcePath

JSON_LINES, COMMA_SEPARATED = frozenset({".jsonl", ".ndjson"}), ".csv"
MAX_LABEL_BYTES = 64 * 1024 * 1024
VAR_COLUMN = "var "
"""The beginning of the name of a variable's column, as in the results' CSV."""

_MOST_CELL_CHARACTERS = 16 * 1024 * 1024
_MOST_DIGITS = 4000
_SCALE_TEXT = compile_later(r"\s*\[?\s*(-?\d+(?:\.\d+)?)\s*(?:,|\.\.|-|to)\s*(-?\d+(?:\.\d+)?)\s*\]?\s*")
_BYTE_ORDER_MARK = "\ufeff"  # without it, spreadsheets take UTF-8 for an encoding of their own
_EXAMPLE = '{"id": "0.0.0", "metric": "coherence", "label": 4, "scale": [1, 5]}'

Row = tuple[Mapping[str, JsonValue], SourcePath]


def kind_of(path: Path) -> str:
    """Return the ending of a file of labels, in lower case.

    Raises:
        ConfigError: labels are not written into such a file.
    """
    ending = path.suffix.lower()
    if ending in JSON_LINES or ending == COMMA_SEPARATED:
        return ending
    hint = "name a file that ends in .jsonl (one JSON object a line) or .csv"
    raise ConfigError([Problem(f"`{path}` is no file of labels by its ending", None, hint)])


def read_rows(path: Path, problems: list[Problem], access: Access = TRUSTED) -> Iterator[Row]:
    """Return the rows of a file, read one by one; what is wrong with one is added to `problems`.

    `access` is that of the config that names the file.

    Raises:
        ConfigError: the file cannot be read at all.
    """
    kind = kind_of(path)
    try:
        is_large = path.stat().st_size > MAX_LABEL_BYTES
    except OSError:
        is_large = False  # `read_text` says why
    if is_large:
        limit = MAX_LABEL_BYTES // (1024 * 1024)
        hint = "split it, for example by metric; texts of outputs are not needed in it"
        raise ConfigError([Problem(f"`{path}` is larger than {limit} MB", None, hint)])
    text = read_text(path, access, max_bytes=MAX_LABEL_BYTES)
    if not text.strip():
        hint = f"write a row for each item and metric: {_EXAMPLE}"
        raise ConfigError([Problem("the file is empty", Location(str(path), 1, 1, length=0), hint)])
    read = _csv_rows if kind == COMMA_SEPARATED else _json_rows
    return read(text, str(path), problems)


def _json_rows(text: str, file: str, problems: list[Problem]) -> Iterator[Row]:
    for number, written in enumerate(text.split("\n"), start=1):
        line = written.removesuffix("\r")
        if not line.strip():
            continue
        try:
            value = _decoded(line, file, number)
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        if isinstance(value, dict):
            yield value, SourcePath(json_line_positions(line, file, line=number, prefix=""))
        else:
            hint = "one object a line, in braces, without brackets around all of them"
            problems.append(Problem("a row of labels is a JSON object", Location(file, number, 1), hint))


def _decoded(line: str, file: str, number: int) -> JsonValue:
    """Return the value of a line. The reader that knows places is slow, so it looks only where something is odd."""
    is_deep = line.count("[") + line.count("{") > MAX_DEPTH
    try:
        if not is_deep:
            return json.loads(
                line, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
            )
    except ValueError:
        pass
    return read_json(line, file, first_line=number).value


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("too large")
    return number


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


def _csv_rows(text: str, file: str, problems: list[Problem]) -> Iterator[Row]:
    csv.field_size_limit(_MOST_CELL_CHARACTERS)
    lines = list(io.StringIO(text, newline=""))
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    before = 0
    try:
        for cells in reader:
            first, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                problems.extend(_header_problems(header, Location(file, first, 1)))
            elif len(cells) != len(header):
                message = f"this row has {len(cells)} cells, the header has {len(header)}"
                hint = "put a text with commas or line breaks into double quotes"
                problems.append(Problem(message, Location(file, first, 1), hint))
            else:
                written = dict(zip(header, cells, strict=True))
                spans = _CellMap(Location(file, first, 1), "".join(lines[first - 1 : before]), written)
                yield _csv_row(written), SourcePath(Positions(file, keys=spans, values=spans))
    except csv.Error as error:
        place = Location(file, before + 1, 1, length=0)
        problems.append(Problem(f"this line cannot be read: {error}", place, "check its double quotes"))


def _header_problems(header: list[str], place: Location) -> Iterator[Problem]:
    for name in sorted({name for name in header if header.count(name) > 1}):
        yield Problem(f"the column `{name}` is there twice", place, "rename one of them")
    if "metric" not in header:
        near = did_you_mean("metric", header)
        hint = (
            f"did you mean `metric` by `{near}`?"
            if near
            else "the first line names the columns: id,metric,label"
        )
        yield Problem("there is no column `metric`", place, hint)


def _csv_row(cells: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return a row as JSON would write it; an empty cell says nothing."""
    row: dict[str, JsonValue] = {}
    for name, written in cells.items():
        cell = formula_text(written)
        if name == "score":
            row[name] = _number_or_text(cell) if cell.strip() else None
        elif not cell.strip():
            continue
        elif name.startswith(VAR_COLUMN):
            row.setdefault("vars", {})[name.removeprefix(VAR_COLUMN)] = cell
        elif name in {"label", "repeat"}:
            row[name] = _number_or_text(cell)
        elif name == "scale":
            found = _SCALE_TEXT.fullmatch(cell)
            row[name] = cell if found is None else [float(found[1]), float(found[2])]
        else:
            row[name] = cell if name in {"output", "note"} else cell.strip()
    return row


def _number_or_text(cell: str) -> JsonValue:
    try:
        number = float(cell)
    except ValueError:
        return cell.strip()
    return int(number) if number.is_integer() else number


class _CellMap(Mapping[KeyPath, Location]):
    """Where the cells of a row begin; `written` is the row as it is in the file."""

    def __init__(self, start: Location, written: str, cells: Mapping[str, str]) -> None:
        self._start, self._written, self._cells = start, written, cells

    def __getitem__(self, path: KeyPath) -> Location:
        if not path:
            return self._start
        offset = 0
        for name, cell in self._cells.items():
            is_quoted = self._written.startswith('"', offset)
            length = len(cell) + (2 + cell.count('"') if is_quoted else 0)
            if (name,) == path:
                return self._locate(offset, length)
            offset += length + 1
        raise KeyError(path)

    def _locate(self, offset: int, length: int) -> Location:
        before = self._written[:offset]
        line = self._start.line + before.count("\n")
        visible = len(self._written[offset : offset + length].split("\n")[0])
        return Location(self._start.file, line, offset - before.rfind("\n"), max(1, visible))

    def __iter__(self) -> Iterator[KeyPath]:
        return iter([(), *((name,) for name in self._cells)])

    def __len__(self) -> int:
        return len(self._cells) + 1


def write_rows(path: Path, rows: Iterable[Mapping[str, JsonValue]]) -> None:
    """Write rows as .jsonl or .csv; see `labels.write_labels`."""
    kind = kind_of(path)
    with SafeFile(path) as file:
        if kind != COMMA_SEPARATED:
            for row in rows:
                file.write(json_text(row) + "\n")
            return
        cells = [flat for row in rows for flat in _flat_rows(row)]
        header = list(dict.fromkeys(name for row in cells for name in row))
        file.write(_BYTE_ORDER_MARK + csv_line(header))
        for row in cells:
            file.write(csv_line([row.get(name, "") for name in header]))


def _flat_rows(row: Mapping[str, JsonValue]) -> Iterator[dict[str, str]]:
    given = {name: value for name, value in row.items() if name not in {"labels", "vars"}}
    given |= {f"{VAR_COLUMN}{name}": value for name, value in (row.get("vars") or {}).items()}
    marks = row.get("labels")
    people = [{"annotator": name, "label": mark} for name, mark in marks.items()] if marks else [{}]
    for person in people:
        joined = {**given, **person}
        yield {name: "" if value is None else value_text(value) for name, value in joined.items()}
