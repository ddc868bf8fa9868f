"""`geval agree -o FILE`: the record as JSON, as Markdown, or as a page with plots that needs no network."""

import html
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from geval_cli.errors import Problem
from geval_cli.numbers import fixed
from geval_cli.patterns import compile_later
from geval_cli.report.json_file import json_text
from geval_cli.report.numbers import plural
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import code_span, markdown_table, sanitize
from geval_cli.statistics.correlation import Estimate
from geval_cli.trust.agreement import Agreement
from geval_cli.trust.agreement_records import Level, MetricAgreement
from geval_cli.trust.plots import confusion_plot, length_plot, score_plot

_PLAIN = compile_later(r"[\w ,.'%():=-]*")
_HEADER = ("statistic", "value", "95 % interval", "outputs", "groups")


def check_agreement_path(path: Path) -> Problem | None:
    """Return the problem of writing to `path`, if any; to be called before anything is computed."""
    if path.suffix.lower() not in _WRITERS:
        hint = f"use a name that ends in one of: {', '.join(sorted(_WRITERS))}"
        return Problem(f"cannot write agreement to {path}: its ending says no format", hint=hint)
    if not path.parent.is_dir():
        return Problem(
            f"cannot write {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
        )
    if path.is_dir():
        return Problem(f"cannot write {path}: it is a folder", hint="choose another name")
    return None


def write_agreement(path: Path, found: Agreement) -> None:
    """Write the record in the format of the file's ending; call `check_agreement_path` first.

    Raises:
        OutputError: the file cannot be written.
    """
    with SafeFile(path) as file:
        for part in _WRITERS[path.suffix.lower()](found):
            file.write(part)


def _json(found: Agreement) -> Iterator[str]:
    yield json_text(found.to_json(), indent=2) + "\n"


def statistics_of(item: MetricAgreement) -> Iterator[tuple[str, Estimate]]:
    """Yield every statistic of a metric with its name, in the order in which people read them."""
    levels: dict[str, Level | None] = {
        "all outputs": item.dataset,
        "within documents": item.document_level,
        "systems": item.system,
    }
    for name, level in levels.items():
        if level is not None:
            yield f"Spearman's rho, {name}", level.spearman
            yield f"Kendall's tau-b, {name}", level.kendall
            yield f"Pearson's r, {name}", level.pearson
    if item.people is not None:
        yield "ceiling: one person with the others", item.people.ceiling
        yield "judge with the same others", item.people.judge
        yield "judge's part of the ceiling", item.people.share
        yield "Krippendorff's alpha of people", item.people.alpha
        yield "Krippendorff's alpha with the judge", item.people.alpha_with_judge
        for name, estimate in item.people.kappas.items():
            yield f"quadratic kappa with {name}", estimate
    yield "Cohen's kappa of verdicts", item.verdicts.kappa
    yield "shift of scores (0 to 1)", item.bias.shift
    yield "shift in ratings", item.bias.shift_ratings
    yield "rho with length, labels held fixed", item.bias.length


def _rows(item: MetricAgreement) -> Iterator[tuple[str, ...]]:
    for name, estimate in statistics_of(item):
        value = "-" if estimate.value is None else fixed(estimate.value, 3)
        bounds = "-" if estimate.interval is None else " to ".join(fixed(end, 3) for end in estimate.interval)
        yield name, value, bounds, f"{estimate.n:,}", f"{estimate.clusters:,}"


def _verdict_rows(item: MetricAgreement) -> Iterator[tuple[str, ...]]:
    verdicts = item.verdicts
    found = [(verdicts.threshold, verdicts.counts)]
    if verdicts.better_threshold is not None and verdicts.better_counts is not None:
        found.append((verdicts.better_threshold, verdicts.better_counts))
    for threshold, counts in found:
        numbers = (counts.true_pass, counts.false_pass, counts.false_fail, counts.true_fail)
        mcc = "-" if counts.mcc is None else fixed(counts.mcc, 3)
        yield (f"{threshold:g}", *(f"{number:,}" for number in numbers), mcc)


_VERDICT_HEADER = ("threshold", "good, passes", "bad, passes", "good, fails", "bad, fails", "MCC")


def _gate_rows(found: Agreement) -> Iterator[tuple[str, ...]]:
    return ((gate.gate, gate.metric, gate.status.value, gate.note) for gate in found.gates)


_GATE_HEADER = ("requirement", "metric", "status", "note")


def _alt_test_text(item: MetricAgreement) -> str:
    test = item.alt_test
    if test is None:
        return ""
    said = "passes" if test.passed else "does not pass"
    won = f"it may stand in for {sum(test.winners)} of {len(test.winners)} annotators (epsilon {test.epsilon:g})"
    control = f"always giving {item.scale[0] + test.constant * (item.scale[1] - item.scale[0]):g}"
    shown = (
        "is shown to be better than that" if test.beats_constant else "is not shown to be better than that"
    )
    return (
        f"Alternative annotator test: the judge {said}; {won}. It is as near to the others as an annotator for"
        f" {100 * test.rho:.1f} % of the labels, {control} for {100 * test.constant_rho:.1f} %; the judge {shown}."
    )


def _about(found: Agreement, quote: Callable[[str], str]) -> str:
    judges = ", ".join(map(quote, found.judges)) or "scores of the file"
    run = "" if found.run is None else f" Run {quote(found.run)}."
    people = plural(len(found.annotators), "annotator")
    return (
        f"Judge: {judges}.{run} {plural(found.matched, 'label')} of {people}, {found.unmatched:,} unmatched."
        f" Intervals group outputs by {quote(found.clustered_by)}."
    )


def _markdown(found: Agreement) -> Iterator[str]:
    yield f"# Agreement with people\n\n{_about(found, _cell)}\n"
    for item in found.metrics:
        said = item.summary.removeprefix(f"On {item.metric} ")
        yield f"\n## {_cell(item.metric)}\n\nOn {_cell(item.metric)} {said}\n\n"
        yield markdown_table(_HEADER, [tuple(map(_cell, row)) for row in _rows(item)])
        yield "\n"
        yield markdown_table(_VERDICT_HEADER, list(_verdict_rows(item)))
        for text in filter(None, (_alt_test_text(item), *item.notes)):
            yield f"\n{text}\n"
    if found.gates:
        yield "\n## Requirements\n\n"
        yield markdown_table(_GATE_HEADER, [tuple(map(_cell, row)) for row in _gate_rows(found)])


def _cell(text: str) -> str:
    """Return a text that Markdown leaves as it is: names of files and people stand in code spans where it would not."""
    return text if _PLAIN.fullmatch(text) else code_span(sanitize(text))


_STYLE = """
:root { color-scheme: light dark; --line: #8888; --judge: #2a6fdb; --bad: #c0392b; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0; text-align: left; }
td + td { font-variant-numeric: tabular-nums; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; }
svg { width: 18rem; height: auto; } svg text { fill: currentColor; font-size: 11px; }
svg .axis { stroke: var(--line); } svg .dot { fill: var(--judge); } svg .bad { fill: var(--bad); }
svg .cut { stroke: var(--bad); stroke-dasharray: 4 3; } svg .cell { fill: var(--judge); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _page(found: Agreement) -> Iterator[str]:
    """Yield a page without scripts; all that comes from files and models is escaped text."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>Agreement with people</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    yield f"<h1>Agreement with people</h1>\n<p>{_about(found, _text)}</p>\n"
    for item in found.metrics:
        yield f"<h2>{_text(item.metric)}</h2>\n<p><strong>{_text(item.summary)}</strong></p>\n"
        yield f'<div class="plots">{score_plot(item)}{confusion_plot(item)}{length_plot(item)}</div>\n'
        yield from _html_table(_HEADER, _rows(item))
        yield from _html_table(_VERDICT_HEADER, _verdict_rows(item))
        for text in filter(None, (_alt_test_text(item), *item.notes)):
            yield f"<p>{_text(text)}</p>\n"
    if found.gates:
        yield "<h2>Requirements</h2>\n"
        yield from _html_table(_GATE_HEADER, _gate_rows(found))
    yield "</body>\n</html>\n"


def _html_table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"<table><tr>{''.join(f'<th>{_text(name)}</th>' for name in header)}</tr>\n"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n"
    yield "</table>\n"


def _text(text: str) -> str:
    return html.escape(sanitize(text))


_WRITERS: Mapping[str, Callable[[Agreement], Iterator[str]]] = {
    ".json": _json,
    ".md": _markdown,
    ".html": _page,
}
