"""`-o results.html`: the whole run as one page that opens from disk, needs no network and can be mailed.

The data that the page's script needs for each case is packed and compressed, so that ten thousand fit into a mail.

Markup is split at its tags, and every piece is stored once in a chunk and then referred to by its number: pages of
cases are alike, prompts and documents repeat in each column, and neither fits into the window of the compression.

A chunk is JSON: `strings`, and `cases`, each with

    at       test, repeat and column, counted from 0
    status   of the case
    score    of the case, or null
    metrics  by name, the worst status, the score, the number of the reason and that of the score as it is shown
    labels   the mean human label by metric; none if there are no labels
    meta     the metadata that cases are filtered by, as lists of texts
    head     the numbers of the pieces of its test's title and variables; only in the first case of a test
    cell     those of its cell in the matrix
    page     those of its page
    texts    those of the texts that are searched
    sha      the digest by which labels refer to its output; none if there is no output
    test     the key of its test, which labels refer to, too; none if nothing of it can be labelled
    id       of the result, if it is not made of `at`

Beside it is what the page exports of the same cases, in a chunk of its own because few readers need it; a page of
many cases has none.
It has two lines for each case: its line of a JSON Lines file, and a list of

    fixed    its cells in a CSV file, of the columns that every file has, joined
    named    its other cells by the headings of their columns: those of scores, of variables, and of metadata
    turns    the cell of its conversation; empty without one
    end      the cell of what ended its conversation; likewise
"""

import base64
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from jinja2 import Environment
from msgspec import Struct, field

from geval_cli.events import RunEvent
from geval_cli.extras.html.charts import RunFigures, run_charts
from geval_cli.extras.html.drawing import MarkFilter
from geval_cli.extras.html.environment import asset, make_environment, short_text, source_hash
from geval_cli.extras.html.run import (
    ROWS_PER_PAGE,
    Matrix,
    MetricChip,
    case_values,
    cell_of,
    chips_of,
    columns_of,
    first_reason,
    first_variables,
    heads_of,
    row_of,
    run_values,
    shown_row,
)
from geval_cli.extras.run_pages import (
    Facet,
    MetricCriteria,
    ResultFilter,
    ResultRow,
    SortOrder,
    facets_of,
    metadata_texts,
    searched_texts,
)
from geval_cli.json_codec import encode_json
from geval_cli.metrics import metric_verdicts
from geval_cli.numbers import format_score
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.case_view import PROBLEMS
from geval_cli.report.csv_file import (
    CONVERSATION_COLUMN,
    END_COLUMN,
    METADATA_COLUMN,
    SCORE_COLUMN,
    VARIABLE_COLUMN,
    csv_cells,
    csv_head,
    csv_start,
)
from geval_cli.report.json_file import json_text
from geval_cli.report.report import HumanLabels, RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import output_digest, whole_text

CASES_PER_CHUNK = 500
CHUNK_CHARACTERS = 8 << 20
"""A chunk of long texts has fewer cases: several copies of all its texts are in memory."""
REASON_WIDTH = 160
"""As in a cell of the matrix."""
_TAG = re.compile(r"(<[^>]*>)")
_INDENTATION = re.compile(r">\s+<(?!/pre)")
"""White space between tags, equivalent to one space; in a `pre`, it is part of what a model said."""


class PackedCase(Struct, frozen=True, omit_defaults=True):
    """One case as stored in a chunk; the module's docstring describes each field."""

    at: tuple[int, int, int]
    status: str
    score: float | None
    metrics: dict[str, tuple[str, float | None, int, int]]
    meta: dict[str, tuple[str, ...]]
    cell: list[int]
    page: list[int]
    texts: list[int]
    head: list[int] = field(default_factory=list)
    sha: str = ""
    test: str = ""
    id: str = ""
    labels: dict[str, float] = field(default_factory=dict)


class ExportedCells(Struct, frozen=True, array_like=True):
    """The cells of one case in a CSV file; the module's docstring describes each field."""

    fixed: str
    named: tuple[dict[str, str], ...]
    turns: str
    end: str


def exported_lines(result: CaseResult) -> str:
    """Return the two lines of a case, made by the writers of such files."""
    cells = csv_cells(result)
    scores, variables, metadata = (
        {csv_head(f"{kind} {name}"): text for name, text in found.items()}
        for kind, found in (
            (SCORE_COLUMN, cells.scores),
            (VARIABLE_COLUMN, cells.variables),
            (METADATA_COLUMN, cells.metadata),
        )
    )
    asked = {csv_head(name): text for name, text in cells.asked.items()}
    named, end = (asked, scores, variables, metadata), csv_head(result.ended_by or "")
    exported = ExportedCells(cells.fixed, named, cells.conversation, end)
    return f"{json_text(result)}\n{encode_json(exported).decode()}"


class Packer(Struct):
    """Collects the cases of one chunk and, if it `has_exports`, their exports; it holds only that chunk in memory."""

    has_exports: bool = True
    _numbers: dict[str, int] = field(default_factory=dict)
    _cases: list[PackedCase] = field(default_factory=list)
    _exported: list[str] = field(default_factory=list)
    _size: int = 0

    @property
    def is_full(self) -> bool:
        return len(self._cases) >= CASES_PER_CHUNK or self._size >= CHUNK_CHARACTERS

    def add(
        self,
        result: CaseResult,
        chips: Iterable[MetricChip],
        labels: Mapping[str, float],
        *,
        cell: str,
        page: str,
        head: str = "",
    ) -> None:
        """Add a case with its markup: its cell, its page and, for the first one of a row, the title of the test.

        `labels` are its mean human labels by metric.
        """
        meta = {name: metadata_texts(value) for name, value in result.metadata.items()}
        place = (result.test_index, result.repeat_index, result.column)
        metrics = {
            chip.name: (
                chip.status.value,
                _rounded(chip.score),
                self._number(short_text(first_reason(result, chip.name), REASON_WIDTH)),
                self._number("" if chip.score is None else format_score(chip.score)),
            )
            for chip in chips
        }
        packed = PackedCase(
            at=place,
            status=result.status.value,
            score=_rounded(result.score),
            metrics=metrics,
            meta={name: texts for name, texts in meta.items() if texts},
            head=self._pieces(head),
            cell=self._pieces(cell),
            page=self._pieces(page),
            sha="" if result.output is None else output_digest(result.output),
            test=result.test_key or "" if metrics else "",
            id="" if result.id == ".".join(map(str, place)) else result.id,
            labels={name: round(label, 9) for name, label in labels.items()},
            texts=[self._number(text) for text in dict.fromkeys(searched_texts(result)) if text],
        )
        self._cases.append(packed)
        if self.has_exports:
            self._exported.append(exported_lines(result))
            self._size += len(self._exported[-1])

    def packed(self) -> tuple[str, str]:
        """Return the chunk, and the exports of its cases, as texts in base64, and begin another chunk.

        The second text is empty if nothing is exported.
        """
        strings = json.dumps(
            [whole_text(text) for text in self._numbers], ensure_ascii=False, separators=(",", ":")
        )
        text = b'{"strings":%s,"cases":%s}' % (strings.encode(), encode_json(self._cases))
        exported = "\n".join(self._exported).encode()
        self._numbers, self._cases, self._exported, self._size = {}, [], [], 0
        return _packed(text), _packed(exported) if self.has_exports else ""

    def _pieces(self, markup: str) -> list[int]:
        """Return the numbers of the pieces of markup: its tags and what is between them."""
        parts: Sequence[str] = _TAG.split(_INDENTATION.sub("> <", markup.strip()))
        return [self._number(part) for part in parts if part]

    def _number(self, text: str) -> int:
        known = len(self._numbers)
        number = self._numbers.setdefault(text, known)
        self._size += len(text) if number == known else 0
        return number


def _packed(data: bytes) -> str:
    made = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = made.compress(data) + made.flush()
    return base64.b64encode(deflated).decode()


def _rounded(score: float | None) -> float | None:
    """Return a score as it is sorted by, without rounding errors."""
    return None if score is None else round(score, 9)


CASES_MAX = 20_000
"""With more cases, passed ones are left out and counted: browsers cannot hold a hundred thousand prompts."""

EXPORTED_MAX = 5_000
"""With more cases, the file has no exports: it would be nearly twice as large, and should fit into an email."""

_STYLES = ("colours.css", "style.css", "run.css", "charts.css", "label.css")
_SCRIPTS = (
    "page.js",
    "charts.js",
    "columns.js",
    "output.js",
    "matrix.js",
    "report.js",
    "label.js",
    "label-report.js",
)
"""The scripts in the order of their dependencies; they become one module."""
_IMPORT = re.compile(r"^import (\{.*?\}) from (\"./\w+\.js\");$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function (\w+))", re.MULTILINE)


class HtmlFile:
    """A results file that needs the whole report and ignores the events.

    The summary, the drawings and the first results are in the page as the server's page has them. All cases follow,
    packed, as the same templates render them; a script unpacks them. All text is escaped, and a content security policy
    allows only the page's own scripts to run, and nothing to be fetched.
    """

    def __init__(self, path: Path, cases_max: int = CASES_MAX) -> None:
        self._path = path
        self._cases_max = cases_max

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        counted = _Counted(report)
        room = max(self._cases_max - counted.problems, 0)
        left_out = max(counted.total - max(self._cases_max, counted.problems), 0)
        packer = Packer(has_exports=counted.total - left_out <= EXPORTED_MAX)
        labels = report.labels()
        first = list(islice(_rows(report, room), ROWS_PER_PAGE))
        with SafeFile(self._path) as file:
            file.write(whole_text(_page(report, counted, labels, first, left_out, packer.has_exports)))
            for chunk, exported in _chunks(report, labels, room, packer, counted.variables):
                file.write(f'<script type="text/plain" data-chunk>{chunk}</script>\n')
                if exported:
                    file.write(f'<script type="text/plain" data-exported>{exported}</script>\n')
            file.write(f'<script type="module">{_script()}</script>\n</body>\n</html>\n')


class _Counted:
    """Counts of a report's results, the metadata to filter by, and criteria of metrics; reads the results once.

    Attributes:
        verdicts: the number of results by metric, column and status, with those that are not in the file.
    """

    def __init__(self, report: RunReport) -> None:
        self.total = self.problems = self.rows = 0
        self.verdicts: dict[str, dict[int, Counter[str]]] = {}
        self._last: int | None = None
        self._variables: dict[str, None] = {}
        self._criteria = MetricCriteria()
        self.facets: tuple[Facet, ...] = facets_of(map(self._counted, report.results()))

    def _counted(self, result: CaseResult) -> Mapping[str, JsonValue]:
        self.total += 1
        self.problems += result.status in PROBLEMS
        for name, (status, _) in metric_verdicts(result).items():
            self.verdicts.setdefault(name, {}).setdefault(result.column, Counter())[status.value] += 1
        if result.test_index != self._last:
            self.rows += 1
            self._last = result.test_index
            self._variables |= dict.fromkeys(result.vars)
        if result.output is not None:
            self._criteria.add(result)
        return result.metadata

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables that get a column."""
        return first_variables(self._variables)

    def label_data(self, report: RunReport) -> dict[str, Any]:
        """Return what the script needs to let people rate the outputs: metrics with their criteria, and names."""
        return {
            "run_id": report.run.id,
            "metrics": [
                {
                    "name": name,
                    "criteria": criterion.text,
                    "steps": list(criterion.steps),
                    "is_judged": name in self._criteria.judged,
                }
                for name, criterion in self._criteria.criteria.items()
            ],
            "columns": {item.index: [item.prompt_label, item.provider_label] for item in report.run.columns},
        }


def _page(
    report: RunReport,
    counted: _Counted,
    labels: HumanLabels | None,
    rows: list[ResultRow],
    left_out: int,
    has_exports: bool,
) -> str:
    """Return the page up to its packed cases."""
    style = "".join(map(asset, _STYLES))
    theme = asset("theme.js")
    values: dict[str, Any] = {
        **run_values(report),
        "matrix": _matrix(report, counted, rows),
        "charts": [
            *run_charts(report.summary.columns, RunFigures.of(report.results()), _choice_link),
            *(labels.charts(_choice_link) if labels else ()),
        ],
        "style": style,
        "theme_script": theme,
        "policy": _policy(style, theme),
        "left_out": left_out,
        "label_data": counted.label_data(report),
        "verdicts": counted.verdicts,
        "form_action": "#",
        "clear_link": "#",
        "export_link": None,
        "has_own_export": has_exports,
        "export_command": f"geval show {report.run.id} -o results.csv",
        "export_data": {
            "name": report.run.id,
            "csv_start": csv_start(),
            "conversation": csv_head(CONVERSATION_COLUMN),
            "end": csv_head(END_COLUMN),
        },
        "has_case_pages": False,
        "tag_link": None,
        "page_link": lambda number: f"#page={number}",
        "case_link": _case_link,
        "place_link": _place_link,
        "filter_link": lambda **changes: "#",
    }
    return _environment().get_template("report.html").render(values)


def _matrix(report: RunReport, counted: _Counted, rows: list[ResultRow]) -> Matrix:
    """Return the matrix as shown before its cases are unpacked: its first page."""
    return Matrix(
        heads=heads_of(columns_of(report.run.columns, rows), report.summary),
        rows=tuple(shown_row(row, None) for row in rows),
        rows_total=counted.rows,
        wanted=ResultFilter(),
        sort=SortOrder.TEST,
        facets=counted.facets,
        page=1,
        pages_total=max(-(-counted.rows // ROWS_PER_PAGE), 1),
        variables=counted.variables,
    )


def _policy(style: str, theme: str) -> str:
    """Return the content security policy: the page may load and run only its own parts."""
    scripts = " ".join(f"'{source_hash(text)}'" for text in (theme, _script()))
    return (
        f"default-src 'none'; style-src '{source_hash(style)}'; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )


def _rows(report: RunReport, room: int) -> Iterator[ResultRow]:
    """Yield the results that the file contains, test by test; `room` is how many without a problem fit."""
    for test, results in groupby(_chosen(report, room), key=lambda result: result.test_index):
        cells: dict[int, list[CaseResult]] = {}
        for result in results:
            cells.setdefault(result.column, []).append(result)
        matching = frozenset((item.repeat_index, item.column) for found in cells.values() for item in found)
        yield ResultRow(test, {column: tuple(found) for column, found in cells.items()}, matching)


def _chosen(report: RunReport, room: int) -> Iterator[CaseResult]:
    """Yield every case that failed or could not be judged, and the first `room` others, in test order."""
    for result in report.results():
        if result.status in PROBLEMS:
            yield result
        elif room > 0:
            room -= 1
            yield result


def _chunks(
    report: RunReport, labels: HumanLabels | None, room: int, packer: Packer, variables: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the packed cases of the file and their exports, chunk by chunk."""
    labelled = labels.means() if labels else {}
    environment = _environment()
    parts = cast(Any, environment.get_template("cells.html").module)
    page = environment.get_template("case_detail.html")
    for row in _rows(report, room):
        repeats: dict[int, list[CaseResult]] = {}
        for found in row.cells.values():
            for item in found:
                repeats.setdefault(item.repeat_index, []).append(item)
        shown = row_of(next(iter(row.cells.values()))[0], {})
        head = parts.row_head(shown, variables)
        for results in repeats.values():
            for result in results:
                values = case_values(result, results, shown.title, row.cells[result.column])
                packer.add(
                    result,
                    chips_of(result),
                    {metric: means[result.id] for metric, means in labelled.items() if result.id in means},
                    cell=parts.cell_link(cell_of([result]), _case_link(result)),
                    page=page.render(**values, case_link=_case_link),
                    head=head,
                )
                head = ""
        if packer.is_full:
            yield packer.packed()
    yield packer.packed()


def _choice_link(choice: MarkFilter) -> str:
    values = {name: getattr(choice, name) for name in choice.__struct_fields__}
    return "#" + urlencode(
        {name: value for name, value in values.items() if value is not None}, errors="replace"
    )


def _case_link(result: CaseResult) -> str:
    return _place_link(result.test_index, result.repeat_index, result.column)


def _place_link(test: int, repeat: int, column: int) -> str:
    return f"#case={test}.{repeat}.{column}"


@cache
def _environment() -> Environment:
    return make_environment()


@cache
def _script() -> str:
    """Return all scripts as one, since a page from disk may load no others; each keeps its names private."""
    return "const modules = {};\n" + "".join(map(_module, _SCRIPTS))


def _module(name: str) -> str:
    """Return a script as a function that is called at once, with its exports stored in `modules`."""
    text = asset(name)
    exported = ", ".join(found[2] for found in _EXPORT.finditer(text))
    text = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = modules[\2];", text))
    return f'modules["./{name}"] = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n'
