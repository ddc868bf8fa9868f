"""Files of `-o FILE` of the commands about judges: JSON, Markdown, or a page with plots that needs no network."""

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError, Problem
from geval_cli.extras.trust.gates import GateOutcome
from geval_cli.numbers import fixed
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.report.charts.drawing import Chart
from geval_cli.report.html.environment import STATIC_FOLDER
from geval_cli.report.json_file import json_text
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import code_span, markdown_table, sanitize
from geval_cli.statistics.intervals import Estimate

ENDINGS = (".html", ".json", ".md")

Quote = Callable[[str], str]
Said = Callable[[Quote], str]
"""A sentence of ours: it is given what makes a text of somebody else harmless in the document's format."""
_PLAIN = compile_later(r"[\w ,.'%():=-]*")


class Table(Struct, frozen=True):
    """A header and rows of texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Section(Struct, frozen=True):
    """A part of a document: heading, the sentence that matters, plots (on pages only), tables, texts of our own."""

    heading: str
    lead: Said | None = None
    plots: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[str] = ()


class Document(Struct, frozen=True):
    """A result to be written: `data` for JSON, the rest for people. Headings and cells are escaped here."""

    title: str
    about: Said
    sections: Sequence[Section]
    data: JsonValue


_GATE_HEADER = ("requirement", "metric", "status", "note")


def gate_sections(gates: tuple[GateOutcome, ...]) -> Iterator[Section]:
    """Yield the section of requirements, if there are any."""
    if gates:
        rows = [(gate.gate, gate.metric, gate.status.value, gate.note) for gate in gates]
        yield Section("Requirements", tables=[Table(_GATE_HEADER, rows)])


def estimate_cells(estimate: Estimate) -> tuple[str, ...]:
    """Return value, interval, outputs and groups as texts."""
    value = "-" if estimate.value is None else fixed(estimate.value, 3)
    bounds = "-" if estimate.interval is None else " to ".join(fixed(end, 3) for end in estimate.interval)
    return value, bounds, f"{estimate.n:,}", f"{estimate.clusters:,}"


def check_document_paths(paths: Iterable[Path], what: str) -> None:
    """Check that `what` can be written to each path; to be called before anything is computed.

    Raises:
        ConfigError: with a problem for each path that it cannot be written to.
    """
    problems = [problem for path in paths if (problem := _path_problem(path, what)) is not None]
    if problems:
        raise ConfigError(problems)


def _path_problem(path: Path, what: str) -> Problem | None:
    if path.suffix.lower() not in ENDINGS:
        hint = f"use a name that ends in one of: {', '.join(ENDINGS)}"
        return Problem(f"cannot write {what} to {path}: its ending says no format", hint=hint)
    if not path.parent.is_dir():
        return Problem(
            f"cannot write {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
        )
    if path.is_dir():
        return Problem(f"cannot write {path}: it is a folder", hint="choose another name")
    return None


def write_document(path: Path, document: Document) -> None:
    """Write a document in the format of the file's ending; call `check_document_paths` first.

    Raises:
        OutputError: the file cannot be written.
    """
    writers = {".json": _json, ".md": _markdown, ".html": _page}
    with SafeFile(path) as file:
        for part in writers[path.suffix.lower()](document):
            file.write(part)


def _json(document: Document) -> Iterator[str]:
    yield json_text(document.data, indent=2) + "\n"


def _markdown(document: Document) -> Iterator[str]:
    yield f"# {document.title}\n\n{document.about(_cell)}\n"
    for section in document.sections:
        yield f"\n## {_cell(section.heading)}\n\n"
        if section.lead is not None:
            yield f"{section.lead(_cell)}\n\n"
        yield "\n".join(
            markdown_table(tuple(table.header), [tuple(map(_cell, row)) for row in table.rows])
            for table in section.tables
        )
        for text in section.texts:
            yield f"\n{text}\n"


def _cell(text: str) -> str:
    """Return a text that Markdown leaves as it is: names of files and people stand in code spans where it would not."""
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


def _page(document: Document) -> Iterator[str]:
    """Yield a page without scripts; all that comes from files and models is escaped text."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{_text(document.title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
    yield f"<h1>{_text(document.title)}</h1>\n<p>{document.about(_text)}</p>\n"
    for section in document.sections:
        yield f"<h2>{_text(section.heading)}</h2>\n"
        if section.lead is not None:
            yield f"<p><strong>{section.lead(_text)}</strong></p>\n"
        if section.plots:
            yield f'<div class="charts">{"".join(map(_figure, section.plots))}</div>\n'
        for table in section.tables:
            yield from _html_table(table)
        for text in section.texts:
            yield f"<p>{_text(text)}</p>\n"
    yield "</body>\n</html>\n"


def _style() -> str:
    """Return the colours and drawings of the web page, and the little that a document has of its own."""
    return "".join((STATIC_FOLDER / name).read_text(encoding="utf-8") for name in _SHARED_STYLES) + _STYLE


def _figure(chart: Chart) -> str:
    said = f'<h3 class="chart-title">{_text(chart.title)}</h3><p class="chart-said">{_text(chart.description)}</p>'
    return f'<figure class="chart"><figcaption>{said}</figcaption>{chart.markup}</figure>\n'


def _html_table(table: Table) -> Iterator[str]:
    yield f"<table><tr>{''.join(f'<th>{_text(name)}</th>' for name in table.header)}</tr>\n"
    for row in table.rows:
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n"
    yield "</table>\n"


def _text(text: str) -> str:
    return html.escape(sanitize(text))
