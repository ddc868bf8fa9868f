"""`geval probe -o FILE`: the findings as JSON, as Markdown, or as a page that needs no network."""

import html
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from geval_cli.errors import Problem
from geval_cli.numbers import fixed
from geval_cli.report.json_file import json_text
from geval_cli.report.numbers import plural
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import code_span, markdown_table, sanitize
from geval_cli.trust.probes import Finding, ProbeReport, Verdict

_HEADER = (
    "probe",
    "metric",
    "must",
    "figure",
    "value",
    "interval",
    "outputs",
    "tests",
    "bar",
    "verdict",
    "note",
)
_STYLE = """
:root { color-scheme: light dark; --line: #8888; --bad: #c0392b; --good: #1e8449; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0; text-align: left; }
td { font-variant-numeric: tabular-nums; }
.fails td { color: var(--bad); font-weight: 600; } .holds td:nth-child(10) { color: var(--good); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def check_probe_path(path: Path) -> Problem | None:
    """Return the problem of writing to `path`, if any; to be called before anything is asked."""
    if path.suffix.lower() not in _WRITERS:
        hint = f"use a name that ends in one of: {', '.join(sorted(_WRITERS))}"
        return Problem(f"cannot write probes to {path}: its ending says no format", hint=hint)
    if not path.parent.is_dir():
        return Problem(
            f"cannot write {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
        )
    if path.is_dir():
        return Problem(f"cannot write {path}: it is a folder", hint="choose another name")
    return None


def write_probes(path: Path, report: ProbeReport) -> None:
    """Write the report in the format of the file's ending; call `check_probe_path` first.

    Raises:
        OutputError: the file cannot be written.
    """
    with SafeFile(path) as file:
        for part in _WRITERS[path.suffix.lower()](report):
            file.write(part)


def about(report: ProbeReport) -> str:
    """Return in a sentence what was probed, and what was asked."""
    judges = ", ".join(report.judges) or "none"
    parts = [
        f"Judge {judges}: {plural(report.items, 'output')} of {plural(report.tests, 'test')}",
        f"{plural(report.asked, 'rating')} of {report.planned:,} planned",
    ]
    if report.errored:
        parts.append(f"{report.errored:,} of them failed ({report.first_error})")
    if report.unanswered:
        parts.append(f"{plural(report.unanswered, 'output')} could not be had")
    if report.stopped:
        parts.append(f"stopped early: {report.stopped}")
    return ", ".join(parts) + "."


def verdict_counts(report: ProbeReport) -> str:
    """Return how many findings there are of each verdict, the worst first."""
    order = (Verdict.FAILS, Verdict.UNCLEAR, Verdict.HOLDS, Verdict.SKIPPED)
    counts = {verdict: sum(item.verdict is verdict for item in report.findings) for verdict in order}
    words = {Verdict.FAILS: ("fails", "fail"), Verdict.HOLDS: ("holds", "hold")}
    return ", ".join(
        f"{count:,} {words.get(verdict, (verdict.value, verdict.value))[count != 1]}"
        for verdict, count in counts.items()
        if count
    )


def interval_text(finding: Finding) -> str:
    """Return the interval of a figure; "-" for none."""
    interval = finding.estimate.interval
    return "-" if interval is None else f"[{fixed(interval[0], 2)}, {fixed(interval[1], 2)}]"


def note_of(finding: Finding) -> str:
    """Return the note of a finding, and what was left out of it."""
    left_out = [f"{why}: {count:,}" for why, count in finding.skipped.items()]
    note = "" if finding.note in finding.skipped else finding.note
    return "; ".join(filter(None, (note, *left_out)))


def _row(finding: Finding) -> tuple[str, ...]:
    estimate = finding.estimate
    value = "-" if estimate.value is None else fixed(estimate.value, 2)
    return (
        finding.probe,
        finding.metric,
        finding.must.value,
        finding.figure,
        value,
        interval_text(finding),
        f"{estimate.n:,}",
        f"{estimate.clusters:,}",
        finding.bar,
        finding.verdict.value,
        note_of(finding),
    )


def _json(report: ProbeReport) -> Iterator[str]:
    yield json_text(report.to_json(), indent=2) + "\n"


def _markdown(report: ProbeReport) -> Iterator[str]:
    yield f"# Probes of the judge\n\n{code_span(sanitize(about(report)))}\n\n{verdict_counts(report)}\n\n"
    yield markdown_table(
        _HEADER,
        [tuple(code_span(sanitize(cell)) if cell else "" for cell in _row(item)) for item in report.findings],
    )


def _page(report: ProbeReport) -> Iterator[str]:
    """Yield a page without scripts; whatever comes from configs and judges is escaped text."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>Probes of the judge</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    yield f"<h1>Probes of the judge</h1>\n<p>{_text(about(report))}</p>\n"
    yield f"<p><strong>{_text(verdict_counts(report))}</strong></p>\n"
    yield f"<table><tr>{''.join(f'<th>{_text(name)}</th>' for name in _HEADER)}</tr>\n"
    for item in report.findings:
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in _row(item))
        yield f'<tr class="{item.verdict.value}">{cells}</tr>\n'
    yield "</table>\n</body>\n</html>\n"


def _text(text: str) -> str:
    return html.escape(sanitize(text))


_WRITERS: Mapping[str, Callable[[ProbeReport], Iterator[str]]] = {
    ".json": _json,
    ".md": _markdown,
    ".html": _page,
}
