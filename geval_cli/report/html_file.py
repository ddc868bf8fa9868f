"""`-o results.html`: the whole run as one page that opens from disk, needs no network and can be mailed."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

from jinja2 import Environment

from geval_cli.events import RunEvent
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.case_view import PROBLEMS, MetricCriteria
from geval_cli.report.charts.drawing import MarkFilter
from geval_cli.report.charts.figures import RunFigures
from geval_cli.report.charts.run_charts import run_charts
from geval_cli.report.csv_file import CONVERSATION_COLUMN, csv_head, csv_start
from geval_cli.report.html.case_parts import case_values
from geval_cli.report.html.environment import asset, make_environment, source_hash
from geval_cli.report.html.matrix import (
    ROWS_PER_PAGE,
    Matrix,
    cell_of,
    chips_of,
    columns_of,
    first_variables,
    heads_of,
    row_of,
    shown_row,
)
from geval_cli.report.html.packing import Packer
from geval_cli.report.html.run_view import run_values
from geval_cli.report.report import HumanLabels, RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import whole_text
from geval_cli.store.result_filter import Facet, ResultFilter, facets_of
from geval_cli.store.run_pages import ResultRow, SortOrder

CASES_MAX = 20_000
"""Above it, passed cases are left out and counted: browsers cannot hold a hundred thousand prompts."""

EXPORTED_MAX = 5_000
"""Above it, the file leaves out what an export needs: it would be nearly twice as large, and is to fit into a mail."""

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
"""In the order in which they need each other: they become one module."""
_IMPORT = re.compile(r"^import (\{.*?\}) from (\"./\w+\.js\");$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function (\w+))", re.MULTILINE)


class HtmlFile:
    """A results file that needs the whole report; it lets the events pass.

    Summary, drawings and the first results stand in the page as the server's page has them. All cases follow, packed,
    as the same templates made them; a script unpacks them. All text is escaped, and a content security policy lets
    nothing run but that script, and nothing be fetched.
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
        labels, first = report.labels(), list(islice(_rows(report, room), ROWS_PER_PAGE))
        with SafeFile(self._path) as file:
            file.write(whole_text(_page(report, counted, labels, first, left_out, packer.has_exports)))
            for chunk, exported in _chunks(report, labels, room, packer, counted.variables):
                file.write(f'<script type="text/plain" data-chunk>{chunk}</script>\n')
                if exported:
                    file.write(f'<script type="text/plain" data-exported>{exported}</script>\n')
            file.write(f'<script type="module">{_script()}</script>\n</body>\n</html>\n')


class _Counted:
    """Counts of a report's results, metadata they can be chosen by, criteria of metrics; goes through them once."""

    def __init__(self, report: RunReport) -> None:
        self.total = self.problems = self.rows = 0
        self._last: int | None = None
        self._variables: dict[str, None] = {}
        self._criteria = MetricCriteria()
        self.facets: tuple[Facet, ...] = facets_of(map(self._counted, report.results()))

    def _counted(self, result: CaseResult) -> Mapping[str, JsonValue]:
        self.total += 1
        self.problems += result.status in PROBLEMS
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
    style, theme = "".join(map(asset, _STYLES)), asset("theme.js")
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
        "form_action": "#",
        "clear_link": "#",
        "export_link": None,
        "has_own_export": has_exports,
        "export_command": f"geval show {report.run.id} -o results.csv",
        "export_data": {
            "name": report.run.id,
            "csv_start": csv_start(),
            "conversation": csv_head(CONVERSATION_COLUMN),
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
    """Return the matrix as it is shown before its cases are unpacked: the first page of all."""
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
    """Return what the page may load and run: nothing but its own parts."""
    scripts = " ".join(f"'{source_hash(text)}'" for text in (theme, _script()))
    return (
        f"default-src 'none'; style-src '{source_hash(style)}'; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )


def _rows(report: RunReport, room: int) -> Iterator[ResultRow]:
    """Yield the results that the file holds, test by test; `room` is for so many without a problem."""
    for test, results in groupby(_chosen(report, room), key=lambda result: result.test_index):
        cells: dict[int, list[CaseResult]] = {}
        for result in results:
            cells.setdefault(result.column, []).append(result)
        matching = frozenset((item.repeat_index, item.column) for found in cells.values() for item in found)
        yield ResultRow(test, {column: tuple(found) for column, found in cells.items()}, matching)


def _chosen(report: RunReport, room: int) -> Iterator[CaseResult]:
    """Yield every case that did not pass, and the first `room` others, in the order of the tests."""
    for result in report.results():
        if result.status in PROBLEMS:
            yield result
        elif room > 0:
            room -= 1
            yield result


def _chunks(
    report: RunReport, labels: HumanLabels | None, room: int, packer: Packer, variables: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the packed cases of the file, chunk by chunk, and what is exported of them."""
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
    return "#" + urlencode({name: value for name, value in values.items() if value is not None})


def _case_link(result: CaseResult) -> str:
    return _place_link(result.test_index, result.repeat_index, result.column)


def _place_link(test: int, repeat: int, column: int) -> str:
    return f"#case={test}.{repeat}.{column}"


@cache
def _environment() -> Environment:
    return make_environment()


@cache
def _script() -> str:
    """Return all scripts as one, since a page from disk may load no others; each keeps its names to itself."""
    return "const modules = {};\n" + "".join(map(_module, _SCRIPTS))


def _module(name: str) -> str:
    """Return a script as a function that is called at once, with its exports as properties of `modules`."""
    text = asset(name)
    exported = ", ".join(found[2] for found in _EXPORT.finditer(text))
    text = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = modules[\2];", text))
    return f'modules["./{name}"] = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n'
