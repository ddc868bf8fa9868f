"""Read, check, normalise to 0..1 and write human labels, as JSON Lines or CSV.

One row is one item and one metric, labelled by one annotator (`label`) or by several (`labels`). docs/trust.md
describes the keys. `matching` finds the output of a run that a label is about.
"""

import csv
import hashlib
import heapq
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.trust.statistics.plain import SCORE_DIGITS
from geval_cli.judge.estimate import passes
from geval_cli.numbers import plural
from geval_cli.patterns import compile_later
from geval_cli.providers.wire.chat import finite_number
from geval_cli.records import JsonValue
from geval_cli.report.csv_file import csv_line, formula_text
from geval_cli.report.json_file import json_text
from geval_cli.report.safe_file import SafeFile, output_error, why_unwritable
from geval_cli.report.sanitize import output_digest, value_text
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.files import read_text
from geval_cli.source.json_source import json_line_positions, read_json
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import MAX_DEPTH, KeyPath, Positions, SourcePath
from geval_cli.suite.tables import guess_delimiter

JSON_LINES = frozenset({".jsonl", ".ndjson"})
COMMA_SEPARATED = ".csv"
MAX_LABEL_BYTES = 64 * 1024 * 1024
VAR_COLUMN = "var "
"""The prefix of a variable's column, as in the results' CSV."""

_MOST_CELL_CHARACTERS = 16 * 1024 * 1024
_MOST_DIGITS = 4000
_SCALE_TEXT = compile_later(
    r"\s*(?:\[\s*)?(-?\d+(?:\.\d+)?)\s*(?:,|\.\.|-|to)\s*(-?\d+(?:\.\d+)?)\s*(?:\]\s*)?"
)
_DECIMAL_COMMA = compile_later(r"\s*-?\d+,\d+\s*")
_BYTE_ORDER_MARK = "\ufeff"  # without it, spreadsheets misread UTF-8
_EXAMPLE = '{"id": "0.0.0", "metric": "coherence", "label": 4, "scale": [1, 5]}'

Row = tuple[Mapping[str, JsonValue], SourcePath]


def kind_of(path: Path) -> str:
    """Return the extension of a label file, in lower case.

    Raises:
        ConfigError: it is not an extension of a label file.
    """
    ending = path.suffix.lower()
    if ending in JSON_LINES or ending == COMMA_SEPARATED:
        return ending
    hint = "use a file that ends in .jsonl (one JSON object per line) or .csv"
    raise ConfigError([Problem(f"`{path}` does not look like a label file", None, hint)])


def read_rows(path: Path, problems: list[Problem], access: Access = TRUSTED) -> Iterator[Row]:
    """Return an iterator over the rows of a file; invalid rows are added to `problems` instead.

    `access` is that of the config that names the file.

    Raises:
        ConfigError: the file cannot be read at all.
    """
    kind = kind_of(path)
    try:
        is_large = path.stat().st_size > MAX_LABEL_BYTES
    except OSError:
        is_large = False  # `read_text` reports the reason
    if is_large:
        limit = MAX_LABEL_BYTES // (1024 * 1024)
        hint = "split it, for example by metric, and leave out the text of outputs"
        raise ConfigError([Problem(f"`{path}` is larger than {limit} MB", None, hint)])
    text = read_text(path, access, max_bytes=MAX_LABEL_BYTES)
    if not text.strip():
        hint = f"write one row per item and metric: {_EXAMPLE}"
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
            hint = "write one object per line, without brackets around all of them"
            problems.append(Problem("a label row must be a JSON object", Location(file, number, 1), hint))


def _decoded(line: str, file: str, number: int) -> JsonValue:
    """Return the JSON value of a line.

    The parser that tracks positions is slow, so it is used only for lines that the fast one refuses or that may nest
    too deeply.
    """
    is_deep = line.count("[") + line.count("{") > MAX_DEPTH
    try:
        if not is_deep:
            return json.loads(
                line,
                object_pairs_hook=_unique,
                parse_constant=_refuse,
                parse_float=_finite_float,
                parse_int=_whole,
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
    raise ValueError(f"{word} is not JSON")


def _finite_float(digits: str) -> float:
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
    mark = guess_delimiter(next(filter(str.strip, lines)))
    reader = csv.reader(lines, delimiter=mark, strict=True)
    header: list[str] | None = None
    before = 0
    try:
        for cells in reader:
            first, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                found = [*_header_problems(header, Location(file, first, 1))]
                problems += found
                if found:  # every row would repeat them
                    return
            elif len(cells) != len(header):
                message = f"this row has {plural(len(cells), 'cell')}, but the header has {len(header)}"
                signs = "commas" if mark == "," else f"`{mark}`"
                hint = f"put text with {signs} or line breaks into double quotes"
                problems.append(Problem(message, Location(file, first, 1), hint))
            else:
                written = dict(zip(header, cells, strict=True))
                spans = _CellMap(Location(file, first, 1), "".join(lines[first - 1 : before]), written)
                yield _csv_row(written, mark), SourcePath(Positions(file, keys=spans, values=spans))
    except csv.Error as error:
        place = Location(file, before + 1, 1, length=0)
        problems.append(Problem(f"this line cannot be read: {error}", place, "check its double quotes"))


def _header_problems(header: list[str], place: Location) -> Iterator[Problem]:
    for name in sorted({name for name in header if header.count(name) > 1}):
        yield Problem(f"the column `{name}` occurs twice", place, "rename one of them")
    if "metric" not in header:
        near = did_you_mean("metric", header)
        hint = (
            f"did you mean `metric` by `{near}`?"
            if near
            else "put the column names into the first line: id,metric,label"
        )
        yield Problem("there is no column `metric`", place, hint)
        return
    for name in header:
        if not name.startswith(VAR_COLUMN) and (near := _meant_key(name, header)):
            yield Problem(f"unknown column `{name}`", place, f"did you mean `{near}`?")


def _meant_key(name: str, others: Collection[str]) -> str | None:
    """Return the known key that an unknown one probably misspells, unless the row has that key too."""
    near = None if name in KEYS or name == DRAW_COLUMN else did_you_mean(name, KEYS)
    return None if near in others else near


def _csv_row(cells: Mapping[str, str], mark: str) -> dict[str, JsonValue]:
    """Return a CSV row in its JSON form; empty cells are left out, except for `score`, which becomes None.

    If the delimiter is not a comma, `0,5` is read as 0.5.
    """
    row: dict[str, JsonValue] = {}
    for name, written in cells.items():
        cell = formula_text(written)
        if mark != "," and name in {"label", "score", "weight"} and _DECIMAL_COMMA.fullmatch(cell):
            cell = cell.replace(",", ".")
        if name == "score":
            row[name] = _number_or_text(cell) if cell.strip() else None
        elif not cell.strip():
            continue
        elif name.startswith(VAR_COLUMN):
            row.setdefault("vars", {})[name.removeprefix(VAR_COLUMN)] = cell
        elif name in {"label", "repeat", "weight"}:
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
    if not math.isfinite(number):
        return cell.strip()
    return int(number) if number.is_integer() else number


class _CellMap(Mapping[KeyPath, Location]):
    """The location of each cell of a row; `written` is the row as it is in the file."""

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
                before = self._written[:offset]
                line = self._start.line + before.count("\n")
                visible = len(self._written[offset : offset + length].split("\n")[0])
                return Location(self._start.file, line, offset - before.rfind("\n"), max(1, visible))
            offset += length + 1
        raise KeyError(path)

    def __iter__(self) -> Iterator[KeyPath]:
        return iter([(), *((name,) for name in self._cells)])

    def __len__(self) -> int:
        return len(self._cells) + 1


def write_rows(path: Path, rows: Iterable[Mapping[str, JsonValue]]) -> None:
    """Write rows as .jsonl or .csv; see `write_labels`."""
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


Scale = tuple[float, float]
"""The lowest and the highest label."""

UNIT_SCALE: Scale = (0.0, 1.0)
GOOD_AT = 0.75
"""A mean label, scaled to 0..1, is good from this value on."""

_TEXT_KEYS = (
    "metric",
    "annotator",
    "note",
    "run_id",
    "output_sha256",
    "test_key",
    "prompt",
    "provider",
    "description",
)
_NAME_KEYS = ("id", "doc", "system")
KEYS = (*_NAME_KEYS, *_TEXT_KEYS, "label", "labels", "scale", "repeat", "vars", "output", "score", "weight")
"""Keys of a row that geval reads. Others are kept: `--cluster` may name one."""

_MOST_SHOWN = 40
_DIGITS = 12
_WORDS = {"pass": 1.0, "fail": 0.0}
_DIGEST = compile_later(r"(?:sha256:)?[0-9a-fA-F]{64}")
_DIGEST_HINT = "it is the SHA-256 of the output's text in UTF-8, 64 hexadecimal digits"


class ItemRef(Struct, frozen=True):
    """The parts of a row that identify the labelled output; None where the row does not say.

    Attributes:
        id: id of the result (`0.0.1`), or the test's `metadata.id`.
        variables: the test's `vars` as texts, by name.
        repeat: counted from 1.
        output_sha256: SHA-256 of the output's text in UTF-8, hexadecimal.
        test_key: key of the test, as in its results; it is the same in other runs, where the test may have another
            index.
    """

    id: str | None = None
    description: str | None = None
    variables: tuple[tuple[str, str], ...] | None = None
    prompt: str | None = None
    provider: str | None = None
    repeat: int | None = None
    output_sha256: str | None = None
    run_id: str | None = None
    test_key: str | None = None

    @property
    def names_something(self) -> bool:
        """Return whether it says enough to find an output."""
        names = (self.id, self.description, self.variables, self.output_sha256, self.test_key)
        return any(name is not None for name in names)


class Label(Struct, frozen=True):
    """The human labels of one metric of one output, of all annotators together.

    Attributes:
        marks: labels on 0..1 by annotator; the name is "" where the file gives none. Never empty.
        scale: scale of the labels as written.
        score: the judge's score, 0..1, where the file has it; None if the judge failed or the file has no scores.
        words: number of words of the output, where the file contains its text.
        notes: by annotator, of those who wrote one.
        weight: number of outputs that it represents if `geval label --next` drew it: 1 / its chance; None otherwise.
        columns: keys of the row without a meaning of their own.
        place: location of the row in its file.
    """

    item: ItemRef
    metric: str
    marks: Mapping[str, float]
    scale: Scale
    place: SourcePath
    score: float | None = None
    doc: str | None = None
    system: str | None = None
    note: str | None = None
    words: int | None = None
    columns: Mapping[str, JsonValue] = {}
    notes: Mapping[str, str] = {}
    weight: float | None = None

    @property
    def human(self) -> float:
        """The mean label of all annotators, 0..1."""
        return mean_label([self])

    @property
    def location(self) -> Location | None:
        """The location of the start of the row."""
        return self.place.value()


def mean_label(labels: Iterable[Label]) -> float:
    """Return the mean label of all annotators of one output, 0..1, rounded so that rounding errors break no ties."""
    marks = [mark for label in labels for mark in label.marks.values()]
    return round(math.fsum(marks) / len(marks), _DIGITS)


class LabelledOutput(Struct, frozen=True):
    """An output with human labels and the judge's score.

    Attributes:
        label: the mean label of all annotators, 0..1.
        score: the judge's score, 0..1.
        id: id of the result.
        threshold: lowest score that passes.
        passed: the judge's verdict, which need not follow from the score alone; None where it gave none.
        words: number of words of the output, where its text is known.
    """

    label: float
    score: float
    id: str = ""
    threshold: float | None = None
    passed: bool | None = None
    words: int | None = None

    def differs(self, good_at: float) -> bool:
        """Return whether the judge's verdict differs from the human one."""
        return self.passed is not None and self.passed != passes(self.label, good_at)


class LabelFile(Struct, frozen=True):
    """The labels of a file.

    Attributes:
        labels: one for each item and metric, in the order of the file.
        scales: by metric, as written.
        unlabelled: number of rows without a label.
        has_scores: whether the file also has the judge's scores, so that no run is needed.
    """

    path: str
    labels: tuple[Label, ...]
    scales: Mapping[str, Scale]
    unlabelled: int = 0
    has_scores: bool = False

    @property
    def annotators(self) -> tuple[str, ...]:
        """All annotators, in the order of their first labels."""
        return tuple(dict.fromkeys(name for label in self.labels for name in label.marks))


def count_words(output: JsonValue) -> int:
    """Return the number of words of an output, separated by white space."""
    return len(value_text(output).split())


def vars_key(variables: Mapping[str, JsonValue]) -> tuple[tuple[str, str], ...]:
    """Return variables in a comparable form: values as texts, sorted by name."""
    return tuple(sorted((name, value_text(value)) for name, value in variables.items()))


def read_labels(path: Path, access: Access = TRUSTED) -> LabelFile:
    """Return the labels in a .jsonl or .csv file; `access` is that of the config that names it.

    Raises:
        ConfigError: with all problems of the file: it cannot be read, a row is invalid, identifies no output or is a
            duplicate, a label is off its scale, or nothing is labelled.
    """
    problems: list[Problem] = []
    return _collected(read_rows(path, problems, access), problems, path)


def labels_from_rows(rows: Iterable[Mapping[str, JsonValue]], name: str = "rows") -> LabelFile:
    """Return labels from rows with the keys of a .jsonl file; `name` stands for the file in messages.

    Raises:
        ConfigError: as for `read_labels`, without locations.
    """
    return _collected(((row, SourcePath.nowhere()) for row in rows), [], Path(name))


def _collected(rows: Iterable[Row], problems: list[Problem], path: Path) -> LabelFile:
    found = _Collector(problems)
    for row, place in rows:
        found.add(row, place)
    if not problems and not found.labels:
        waiting = f"none of the {found.unlabelled:,} rows has a label yet"
        message = waiting if found.unlabelled else "there are no label rows"
        hint = "write a number, `pass` or `fail` into `label`"
        problems.append(Problem(message, Location(str(path), 1, 1, length=0), hint))
    if problems:
        raise ConfigError(problems)
    labels = tuple(found.labels.values())
    return LabelFile(str(path), labels, found.scales, found.unlabelled, found.has_scores)


def write_labels(path: Path, rows: Iterable[Mapping[str, JsonValue]]) -> None:
    """Write rows of labels as .jsonl or .csv; the file appears only once it is completely on disk.

    In a CSV file, `labels` become one row per annotator, and each variable a column `var NAME`.

    Raises:
        ConfigError: the file has another extension.
        OutputError: the file cannot be written.
    """
    write_rows(path, rows)


_ItemKey = tuple[ItemRef, str]


class _Collector:
    """Converts rows into labels one by one, merging the rows of several annotators into one label."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._scale_places: dict[str, SourcePath] = {}
        self.labels: dict[_ItemKey, Label] = {}
        self.scales: dict[str, Scale] = {}
        self.unlabelled = 0
        self.has_scores = False

    def add(self, row: Mapping[str, JsonValue], place: SourcePath) -> None:
        """Add a row, or report all that is wrong with it."""
        known = len(self._problems)
        for key in row:
            if near := _meant_key(key, row):
                self._report(f"unknown key `{key}`", place.key(key), f"did you mean `{near}`?")
        if "metric" not in row:
            self._report("this row has no metric", place.value(), 'add "metric" with its name in the config')
        if "label" in row and "labels" in row:
            self._report("a row has `label` or `labels`, not both", place.key("labels"), "keep one of them")
        self._check_types(row, place)
        if len(self._problems) > known:
            return
        digest = row.get("output_sha256")
        if digest is not None:
            digest = digest.lower().removeprefix("sha256:")
        elif row.get("output") is not None:
            digest = output_digest(row["output"])
        variables = row.get("vars")
        item = ItemRef(
            id=_name(row.get("id")),
            description=row.get("description"),
            variables=None if variables is None else vars_key(variables),
            prompt=row.get("prompt"),
            provider=row.get("provider"),
            repeat=row.get("repeat"),
            output_sha256=digest,
            run_id=row.get("run_id"),
            test_key=row.get("test_key"),
        )
        scale = self._scale(row, place)
        self.has_scores = self.has_scores or "score" in row
        if not item.names_something:
            hint = "add `id`, or `description` and `vars`, from the run's results"
            self._report("this row does not identify an output", place.value(), hint)
        score = self._score(row, place)
        marks = self._marks(row, scale, place)
        if len(self._problems) > known:
            return
        if not marks:
            self.unlabelled += 1
            return
        words = None if row.get("output") is None else count_words(row["output"])
        label = Label(
            item=item,
            metric=str(row["metric"]),
            marks=marks,
            scale=scale,
            place=place,
            score=score,
            doc=_name(row.get("doc")),
            system=_name(row.get("system")),
            note=row.get("note"),
            words=words,
            columns={key: value for key, value in row.items() if key not in KEYS},
            notes={name: str(row["note"]) for name in marks if row.get("note")},
            weight=None if row.get("weight") is None else float(row["weight"]),
        )
        self._keep(label)

    def _report(self, message: str, place: Location | None, hint: str = "") -> None:
        self._problems.append(Problem(message, place, hint))

    def _check_types(self, row: Mapping[str, JsonValue], place: SourcePath) -> None:
        for key in _TEXT_KEYS:
            if row.get(key) is not None and not (isinstance(row[key], str) and row[key].strip()):
                self._report(f"`{key}` must be a string, found {_shown(row[key])}", place.value(key))
        for key in _NAME_KEYS:
            if row.get(key) is not None and (
                not isinstance(row[key], str | int) or isinstance(row[key], bool)
            ):
                self._report(
                    f"`{key}` must be a string or a whole number, found {_shown(row[key])}", place.value(key)
                )
        if not isinstance(row.get("vars"), dict | None):
            self._report(f"`vars` must be an object, found {_shown(row['vars'])}", place.value("vars"))
        repeat = row.get("repeat")
        if repeat is not None and (isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1):
            hint = "repeats count from 1"
            self._report(
                f"`repeat` must be a whole number of at least 1, found {_shown(repeat)}",
                place.value("repeat"),
                hint,
            )
        weight = row.get("weight")
        if weight is not None and ((number := finite_number(weight)) is None or number < 1):
            hint = "leave it as `geval label --next` wrote it"
            self._report(
                f"`weight` must be a number of at least 1, found {_shown(weight)}",
                place.value("weight"),
                hint,
            )
        drawn = row.get(DRAW_COLUMN)
        if weight is None and isinstance(drawn, str) and drawn.startswith("next "):
            hint = "copy it from the sheet that `geval label --next` wrote"
            self._report("`weight` is missing from a row of this draw", place.value(DRAW_COLUMN), hint)
        digest = row.get("output_sha256")
        if isinstance(digest, str) and digest.strip() and _DIGEST.fullmatch(digest) is None:
            self._report("`output_sha256` is not a SHA-256", place.value("output_sha256"), _DIGEST_HINT)

    def _scale(self, row: Mapping[str, JsonValue], place: SourcePath) -> Scale:
        written = row.get("scale")
        scale = UNIT_SCALE if written is None else _scale_of(written)
        if scale is None:
            message = f"`scale` must be the lowest and the highest label, found {_shown(written)}"
            self._report(message, place.value("scale"), "for example [1, 5]")
            return UNIT_SCALE
        metric = str(row.get("metric"))
        if self.scales.setdefault(metric, scale) != scale:
            first = self._scale_places[metric].value("scale")
            low, high = self.scales[metric]
            where = f" in line {first.line}" if first else ""
            message = (
                f"the scale of `{metric}` is {low:g} to {high:g}{where}, but {scale[0]:g} to {scale[1]:g} "
                "here"
            )
            self._report(
                message, place.value("scale"), "use one scale for a metric, and write it in every row"
            )
        self._scale_places.setdefault(metric, place)
        return scale

    def _score(self, row: Mapping[str, JsonValue], place: SourcePath) -> float | None:
        score = row.get("score")
        if score is None:
            return None
        number = finite_number(score)
        if number is None or not 0 <= number <= 1:
            hint = "for ratings from 1 to 5 write (rating - 1) / 4; leave it empty where the judge failed"
            self._report(
                f"`score` must be a number from 0 to 1, found {_shown(score)}", place.value("score"), hint
            )
            return None
        return round(number, SCORE_DIGITS)

    def _marks(self, row: Mapping[str, JsonValue], scale: Scale, place: SourcePath) -> dict[str, float]:
        if "labels" in row and not isinstance(row["labels"], dict | None):
            hint = 'write who gave which: {"anna": 4, "ben": 3}'
            self._report(
                f"`labels` must be an object, found {_shown(row['labels'])}", place.value("labels"), hint
            )
            return {}
        if row.get("labels"):
            given = {name: (value, place.child("labels", name)) for name, value in row["labels"].items()}
        else:
            given = {(row.get("annotator") or "").strip(): (row.get("label"), place.child("label"))}
        marks = {}
        for name, (value, where) in given.items():
            mark = None if value is None else self._mark(value, scale, where, has_scale="scale" in row)
            if mark is not None:
                marks[name] = mark
        return marks

    def _mark(self, value: JsonValue, scale: Scale, place: SourcePath, *, has_scale: bool) -> float | None:
        low, high = scale
        word = float(value) if isinstance(value, bool) else _word(value)
        if word is not None and scale != UNIT_SCALE:
            hint = "leave `scale` out, or write a number"
            self._report(f"{_shown(value)} is not a label from {low:g} to {high:g}", place.value(), hint)
            return None
        number = finite_number(value) if word is None else word
        if number is None:
            hint = "leave it empty if there is no label"
            self._report(
                f"a label must be a number, `pass` or `fail`, found {_shown(value)}", place.value(), hint
            )
            return None
        if not low <= number <= high:
            location = place.value()
            is_table = location is not None and location.file.lower().endswith(COMMA_SEPARATED)
            added = "a column `scale`, for example with 1-5" if is_table else 'its scale: "scale": [1, 5]'
            self._report(
                f"the label {number:g} is not on the scale from {low:g} to {high:g}",
                location,
                "write a label within it" if has_scale else f"add {added}",
            )
            return None
        return (number - low) / (high - low)

    def _keep(self, label: Label) -> None:
        # With an id, the test key adds nothing.
        named = label.item if label.item.id is None else replace(label.item, test_key=None)
        key = (named, label.metric)
        earlier = self.labels.get(key)
        if earlier is None:
            self.labels[key] = label
            return
        twice = [name for name in label.marks if name in earlier.marks]
        first = earlier.location
        where = f"in line {first.line}" if first else "above"
        if twice:
            who = f" by `{twice[0]}`" if twice[0] else ""
            hint = "keep one of them" if twice[0] else "keep one, or add `annotator` to tell who gave which"
            self._report(
                f"the label of `{label.metric}`{who} for this item is already {where}",
                label.location,
                hint,
            )
            return
        for name in ("score", "doc", "system", "weight"):
            one, other = getattr(earlier, name), getattr(label, name)
            if one is not None and other is not None and one != other:
                self._report(
                    f"this item has another `{name}` {where}: {_shown(one)}", label.place.value(name)
                )
        drawn = {}  # the weight belongs to its draw
        if earlier.weight is None and label.weight is not None and DRAW_COLUMN in label.columns:
            drawn = {DRAW_COLUMN: label.columns[DRAW_COLUMN]}
        self.labels[key] = replace(
            earlier,
            item=earlier.item if earlier.item.test_key else label.item,
            marks={**earlier.marks, **label.marks},
            score=label.score if earlier.score is None else earlier.score,
            doc=earlier.doc or label.doc,
            weight=label.weight if earlier.weight is None else earlier.weight,
            system=earlier.system or label.system,
            words=label.words if earlier.words is None else earlier.words,
            columns={**label.columns, **earlier.columns, **drawn},
            notes={**earlier.notes, **label.notes},
        )


def _name(value: JsonValue) -> str | None:
    return None if value is None else str(value)


def _word(value: JsonValue) -> float | None:
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def _scale_of(written: JsonValue) -> Scale | None:
    if not isinstance(written, list) or len(written) != len(UNIT_SCALE):
        return None
    low, high = (finite_number(end) for end in written)
    return None if low is None or high is None or low >= high else (low, high)


def _shown(value: JsonValue) -> str:
    text = json_text(value)
    return f"{text[:_MOST_SHOWN]}…" if len(text) > _MOST_SHOWN else text


T = TypeVar("T")

DRAW_COLUMN = "draw"
"""The key of a label that names the draw of its output: `seed 7`, or `next 1 after 0, seed 7`."""


def draw(
    items: Iterable[T], count: int | None = None, *, seed: int = 0, id_of: Callable[[T], str] = str
) -> list[T]:
    """Return `count` items drawn without replacement; None for all of them, in random order.

    Items are ordered by a hash of the seed and their id. So the draw does not depend on the order of the items, a
    larger draw contains a smaller one, and added items change few of those drawn. With a `count`, only that many items
    are held in memory.
    """

    def place(item: T) -> tuple[bytes, str]:
        name = id_of(item)
        return hashlib.sha256(f"{seed}:{name}".encode("utf-8", errors="surrogatepass")).digest(), name

    return sorted(items, key=place) if count is None else heapq.nsmallest(count, items, key=place)


def draw_name(seed: int) -> str:
    """Return the name of a draw, for the column `draw`."""
    return f"seed {seed}"


def draw_notes(labels: Iterable[Label], unlabelled: int, what: str) -> Iterator[str]:
    """Yield reasons why labels may not be a random sample; `what` completes "true only if the labelled ..."."""
    if not all(DRAW_COLUMN in label.columns for label in labels):
        yield f"true only if the labelled {what}, as geval estimate --draw does"
    elif unlabelled:
        yield (
            f"{unlabelled:,} drawn rows have no label yet: label all of them, or the draw is no longer random"
        )


def check_is_new(path: Path, option: str, more: str = "", *, holds: str = "labels") -> None:
    """Raise ConfigError if a file cannot be written or already exists, since it may hold the user's work."""
    if path.exists():
        hint = f"choose another file: this one may contain {holds}{more}"
        raise ConfigError([Problem(f"`{path}` already exists, and {option} does not overwrite", None, hint)])
    problem = unwritable(path)
    if problem is not None:
        raise ConfigError([problem])


def unwritable(path: Path) -> Problem | None:
    """Return why a file cannot be written; None if it can."""
    try:
        found = why_unwritable(path)
    except OSError as error:
        refused = output_error(path, error)
        return Problem(refused.message, hint=refused.hint)
    return None if found is None else Problem(f"cannot write {path}: {found[0]}", hint=found[1])
