"""Report findings about judges, in one way for all commands: on the terminal, as JSON, Markdown or a page.

A page has plots and needs no network. Each section begins with a sentence; its tables are the evidence.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from geval_cli.errors import ConfigError, ExitCode, OutputError, Problem
from geval_cli.extras.html.drawing import Chart
from geval_cli.extras.html.environment import asset
from geval_cli.extras.trust.labels import unwritable
from geval_cli.extras.trust.options import GateOutcome, ReportOptions
from geval_cli.extras.trust.statistics.estimate import CarryOver
from geval_cli.extras.trust.statistics.plain import Estimate
from geval_cli.numbers import fixed, format_difference, format_share, format_share_interval
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue, Status
from geval_cli.report.console import make_console, print_hanging, print_rows
from geval_cli.report.json_file import json_text
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import (
    code_span,
    figures_in_markdown,
    html_text,
    markdown_table,
    one_line,
    sanitize,
)

ENDINGS = (".html", ".json", ".md")

Quote = Callable[[str], str]
Said = Callable[[Quote], str]
"""A sentence in trusted words; it receives the function that escapes other texts for the document's format."""
_PLAIN = compile_later(r"[\w ,.'%():=-]*")


class Table(Struct, frozen=True):
    """A header and rows of texts; `least` is the terminal width, in columns, that it needs."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    least: int = 0


class Section(Struct, frozen=True):
    """A section of a document.

    Attributes:
        lead: the sentence that matters.
        plots: shown on pages only.
        brief: tables for the terminal in place of `tables`, widest first; the first that fits is shown.
        texts: explanations of the tables, in trusted words; `notes`: what to know before using the figures.
        is_detail: whether a terminal leaves the section out.
        is_overview: whether a terminal shows it without a heading.
    """

    heading: str = ""
    lead: Said | None = None
    plots: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    brief: Sequence[Table] = ()
    texts: Sequence[str] = ()
    notes: Sequence[str] = ()
    is_detail: bool = False
    is_overview: bool = False


class ReportDocument(Struct, frozen=True):
    """A result to report: `data` for JSON, the rest for people. Headings and cells are escaped here.

    `answer` is the sentence at the top, if it is not the lead of the first section; `about` says what was examined.
    """

    title: str
    about: Said | None
    sections: Sequence[Section]
    data: JsonValue
    gates: Sequence[GateOutcome] = ()
    answer: Said | None = None


ESTIMATE = ("value", "95 % interval", "outputs", "groups")
"""The columns of `estimate_cells`."""


def deliver(document: ReportDocument, given: ReportOptions) -> ExitCode:
    """Write a document to the `-o` files, print it or its JSON, and return the exit code that its gates give.

    A file that cannot be written keeps nothing else back: what was found may have been paid for.

    Raises:
        OutputError: a file cannot be written; the first of them.
    """
    failed: list[OutputError] = []
    for path in given.outputs:
        try:
            write_document(path, document)
        except OutputError as error:
            failed.append(error)
    if given.as_json:
        sys.stdout.write(json_text(document.data, indent=2) + "\n")
    else:
        print_document(document, make_console(sys.stdout, environ=os.environ))
    if failed:
        raise failed[0]
    statuses = {gate.status for gate in document.gates}
    if Status.FAILED in statuses:
        return ExitCode.FAILED
    return ExitCode.NOT_JUDGED if Status.ERROR in statuses else ExitCode.OK


_WORD_STYLES = {"fails": "bold red", "holds": "green", "skipped": "dim", "chosen": "bold"}
_GATE_WORDS = {Status.PASSED: "holds", Status.FAILED: "FAILED", Status.ERROR: "not decided"}
_FIGURE = compile_later(r"[-+<>]?[\d.,]+( %|±.*)?( of [\d,]+)?|-")


def print_document(document: ReportDocument, console: Console) -> None:
    """Print each section, its sentence first, then what was examined and whether the gates hold."""
    if document.answer is not None:
        print_hanging(Text(""), Text(_plain(document.answer), style="bold"), console, indent=0)
    is_first = document.answer is None
    for section in document.sections:
        if section.is_detail:
            continue
        lead = "" if section.lead is None else _plain(section.lead)
        title = "" if section.is_overview else one_line(section.heading, 80)
        heading = Text.assemble((title, "bold"), ": " if title and lead else "", lead)
        briefs = [table for table in section.brief if table.least <= console.width][:1]
        if not is_first and (heading or not (briefs or section.tables)):  # a table brings its own blank line
            console.print()
        is_first = False
        if heading:
            print_hanging(Text(""), heading, console, indent=0)
        for table in briefs or section.tables:
            console.print()
            are_figures = [all(map(_FIGURE.fullmatch, column)) for column in zip(*table.rows, strict=True)]
            sides = "".join(
                "R" if is_figure else "L" if place else "l" for place, is_figure in enumerate(are_figures)
            )
            rows = (
                [Text(one_line(cell, 80), _WORD_STYLES.get(cell, "")) for cell in row] for row in table.rows
            )
            print_rows(
                console, sides or "l" * len(table.header), [one_line(name, 30) for name in table.header], rows
            )
        if (section.texts or section.notes) and (heading or briefs or section.tables):
            console.print()
        for style, texts in (("", section.texts), ("dim", section.notes)):
            for text in texts:
                print_hanging(Text(" "), Text(one_line(text, 400), style=style), console, indent=0)
    if document.about is not None:
        console.print()
        print_hanging(Text(" "), Text(_plain(document.about), style="dim"), console, indent=0)
    if document.gates:
        console.print()
    for gate in document.gates:
        said = (
            f"{_GATE_WORDS[gate.status]}  {one_line(gate.gate, 60)}  {one_line(gate.metric, 40)}: {gate.note}"
        )
        print_hanging(
            Text(" "), Text(said, "" if gate.status is Status.PASSED else "bold"), console, indent=0
        )


def _plain(said: Said) -> str:
    return one_line(said(lambda text: one_line(text, 160)), 2_000)


def of_run(run: str | None, quote: Quote) -> str:
    """Return " of run ..." for the end of a phrase; "" without a run."""
    return "" if run is None else f" of run {quote(run)}"


def figure_text(value: float | None, digits: int = 2) -> str:
    """Return a figure as text; "-" for None."""
    return "-" if value is None else fixed(value, digits)


def with_interval(estimate: Estimate) -> str:
    """Return a figure and its interval as text: `0.70 [0.49, 0.84]`."""
    value = figure_text(estimate.value)
    if estimate.interval is None:
        return value
    low, high = estimate.interval
    return f"{value} [{fixed(low, 2)}, {fixed(high, 2)}]"


def share_cells(estimate: Estimate) -> tuple[str, ...]:
    """Return value, interval, outputs and groups of a share as texts, in percent."""
    value = "-" if estimate.value is None else format_share(estimate.value)
    bounds = "-" if estimate.interval is None else format_share_interval(estimate.interval)
    return value, bounds, f"{estimate.n:,}", f"{estimate.clusters:,}"


def estimate_cells(estimate: Estimate) -> tuple[str, ...]:
    """Return value, interval, outputs and groups of an estimate as texts."""
    value = "-" if estimate.value is None else fixed(estimate.value, 3)
    bounds = "-" if estimate.interval is None else " to ".join(fixed(end, 3) for end in estimate.interval)
    return value, bounds, f"{estimate.n:,}", f"{estimate.clusters:,}"


def carry_over_text(what: str, labels: str, audit: CarryOver) -> str:
    """Return whether `what` carries over to a run, and by how much the `labels` differ from what it predicts."""
    within = ""
    if audit.residual.interval is not None:
        low, high = map(format_difference, audit.residual.interval)
        within = f" (90 % CI {low} to {high}, margin {audit.margin:g})"
    off = format_difference(audit.residual.value or 0.0)
    return f"does {what} carry over? {audit.verdict.value}: {labels} differ by {off} from what it predicts{within}"


def check_document_paths(paths: Iterable[Path], what: str, *, others: Sequence[str] = ()) -> None:
    """Check that reports can be written to all paths; call this before anything is computed.

    Args:
        paths: of reports.
        what: the kind of report, for messages.
        others: further endings that the command can write, for the hint.

    Raises:
        ConfigError: with a problem for each path that cannot be written.
    """
    problems = [problem for path in paths if (problem := _path_problem(path, what, others)) is not None]
    if problems:
        raise ConfigError(problems)


def _path_problem(path: Path, what: str, others: Sequence[str]) -> Problem | None:
    if path.suffix.lower() not in ENDINGS:
        hint = f"use a name that ends in one of: {', '.join((*ENDINGS, *others))}"
        return Problem(f"cannot write {what} to {path}: unknown file type", hint=hint)
    return unwritable(path)


def write_document(path: Path, document: ReportDocument) -> None:
    """Write a document in the format given by the file's ending; call `check_document_paths` first.

    Raises:
        OutputError: the file cannot be written.
    """
    writers = {".json": _json, ".md": _markdown, ".html": _page}
    with SafeFile(path) as file:
        for part in writers[path.suffix.lower()](document):
            file.write(part)


def _in_files(document: ReportDocument) -> Iterator[Section]:
    yield from document.sections
    if document.gates:
        rows = [(gate.gate, gate.metric, gate.status.value, gate.note) for gate in document.gates]
        yield Section("Requirements", tables=[Table(("requirement", "metric", "status", "note"), rows)])


def _json(document: ReportDocument) -> Iterator[str]:
    yield json_text(document.data, indent=2) + "\n"


def markdown_of(document: ReportDocument) -> str:
    """Return a document as Markdown."""
    return "".join(_markdown(document))


def _markdown(document: ReportDocument) -> Iterator[str]:
    yield f"# {document.title}\n"
    if document.answer is not None:
        yield f"\n{document.answer(_cell)}\n"
    if document.about is not None:
        yield f"\n{document.about(_cell)}\n"
    for section in _in_files(document):
        yield f"\n## {_cell(section.heading)}\n\n"
        if section.lead is not None:
            yield f"{section.lead(_cell)}\n\n"
        yield "\n".join(
            markdown_table(tuple(table.header), [tuple(map(_cell, row)) for row in table.rows])
            for table in section.tables
        )
        for text in (*section.texts, *section.notes):
            # Some quote a model's words, which must not become a picture, a link or a tag.
            quoted = figures_in_markdown(one_line(text, 2_000)).replace("](", "]\\(")
            yield f"\n{quoted}\n"


def _cell(text: str) -> str:
    """Return a text that Markdown renders literally: in a code span if it contains special characters."""
    return text if _PLAIN.fullmatch(text) else code_span(sanitize(text))


_STYLE = """
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; background: var(--canvas); color: var(--text); }
body { font: 15px/1.5 var(--sans); } a { color: var(--accent); }
table { display: block; overflow-x: auto; border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0; text-align: left; }
td + td { font-variant-numeric: tabular-nums; }
.chart { border: 1px solid var(--line); border-radius: var(--radius); background: var(--surface); }
"""
_SHARED_STYLES = ("colours.css", "charts.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _page(document: ReportDocument) -> Iterator[str]:
    """Yield an HTML page without scripts; everything from files and models is escaped.

    It shares colours and chart styles with the web page, and adds a few styles of its own.
    """
    style = "".join(map(asset, _SHARED_STYLES)) + _STYLE
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{html_text(document.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    yield f"<h1>{html_text(document.title)}</h1>\n"
    if document.answer is not None:
        yield f"<p><strong>{document.answer(html_text)}</strong></p>\n"
    if document.about is not None:
        yield f"<p>{document.about(html_text)}</p>\n"
    for section in _in_files(document):
        yield f"<h2>{html_text(section.heading)}</h2>\n"
        if section.lead is not None:
            yield f"<p><strong>{section.lead(html_text)}</strong></p>\n"
        if section.plots:
            yield f'<div class="charts">{"".join(map(_figure, section.plots))}</div>\n'
        for table in section.tables:
            yield f"<table><tr>{''.join(f'<th>{html_text(name)}</th>' for name in table.header)}</tr>\n"
            for row in table.rows:
                yield f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in row)}</tr>\n"
            yield "</table>\n"
        for text in (*section.texts, *section.notes):
            yield f"<p>{html_text(text)}</p>\n"
    yield "</body>\n</html>\n"


def _figure(chart: Chart) -> str:
    title, said = html_text(chart.title), html_text(chart.description)
    caption = f'<h3 class="chart-title">{title}</h3><p class="chart-said">{said}</p>'
    return f'<figure class="chart"><figcaption>{caption}</figcaption>{chart.markup}</figure>\n'
