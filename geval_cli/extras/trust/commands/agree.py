"""`geval agree`: a judge held against people, as a table, as JSON and as files."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from geval_cli.cli.problems import print_warnings
from geval_cli.errors import ExitCode
from geval_cli.extras.trust.agreement import Agreement, Options, agree
from geval_cli.extras.trust.agreement_files import agreement_document
from geval_cli.extras.trust.agreement_records import MetricAgreement
from geval_cli.extras.trust.commands.juries import print_jury
from geval_cli.extras.trust.commands.options import AgreeOptions
from geval_cli.extras.trust.documents import check_document_paths, write_document
from geval_cli.extras.trust.gates import GateOutcome, gates_exit_code
from geval_cli.extras.trust.labelling import labels_kept_for
from geval_cli.extras.trust.labels import LabelFile, read_labels
from geval_cli.numbers import fixed
from geval_cli.records import Status
from geval_cli.report.console import indented, make_console, plain_table, print_hanging, print_trimmed
from geval_cli.report.json_file import json_text
from geval_cli.report.numbers import plural
from geval_cli.report.sanitize import one_line
from geval_cli.runs.results_file import open_report
from geval_cli.statistics.agreement import AltTest
from geval_cli.statistics.intervals import Estimate
from geval_cli.store.runs import LATEST

_WIDE = 140
_NO_VALUE = "-"


def run_agree(labels: Path | None, given: AgreeOptions) -> ExitCode:
    """Hold the judge of a run, or of the file's own scores, against its labels; None for those kept for the run.

    Raises:
        ConfigError: labels are broken or unmatched, or a file cannot be written.
        UsageError: there is no such run, cluster, gate or file format.
    """
    check_document_paths(given.outputs, "agreement")
    options = Options(given.good, given.threshold, given.cluster, given.annotators)
    read = None if labels is None else read_labels(labels)
    if given.run is None and read is not None and read.has_scores:
        found = agree(read, options=options, require=given.require)
    else:
        found = _of_run(read, given, options)
    for path in given.outputs:
        write_document(path, agreement_document(found))
    if given.as_json:
        sys.stdout.write(json_text(found.to_json(), indent=2) + "\n")
    else:
        print_agreement(found, make_console(sys.stdout, environ=os.environ))
    return gates_exit_code(found.gates)


def _of_run(labels: LabelFile | None, given: AgreeOptions, options: Options) -> Agreement:
    with open_report(given.run or LATEST, given.home, os.environ) as (report, warnings):
        print_warnings(warnings)
        read = labels_kept_for(report.run.id, given.home) if labels is None else labels
        return agree(
            read, report, options=options, require=given.require, allow_unmatched=given.allow_unmatched
        )


def print_agreement(found: Agreement, console: Console) -> None:
    """Print a row for each metric, a sentence about each, what is missing, and the gates."""
    console.print(Text(_heading(found)), soft_wrap=False)
    console.print()
    _print_table(found.metrics, console)
    console.print()
    for item in found.metrics:
        print_hanging(Text(""), Text(one_line(item.summary, 400)), console, indent=0)
    for item in found.metrics:
        if item.jury is not None:
            console.print()
            if len(found.metrics) > 1:
                console.print(Text(f" {one_line(item.metric, 60)}", style="bold"))
            print_jury(item.jury, console)
    notes: dict[str, list[str]] = {}
    for item in found.metrics:
        for note in item.notes:
            notes.setdefault(note, []).append(item.metric)
    for note, metrics in notes.items():
        where = "" if len(metrics) == len(found.metrics) else f" ({one_line(', '.join(metrics), 60)})"
        console.print(Text(f" {note}{where}", style="dim"))
    print_requirements(found.gates, console)


def _heading(found: Agreement) -> str:
    judge = ", ".join(found.judges) or "scores of the file"
    total = found.matched + found.unmatched
    documents = max(item.documents for item in found.metrics)
    groups = plural(documents, "document" if found.clustered_by == "doc" else "test")
    people = plural(len(found.annotators), "annotator")
    parts = [f"judge {one_line(judge, 60)}", f"{plural(total, 'label')}, {people}, {groups}"]
    if found.run is not None:
        parts.append(f"matched {found.matched:,} of {total:,}")
    if found.unlabelled:
        parts.append(f"{plural(found.unlabelled, 'row')} without a label")
    return "   ".join(parts)


def _print_table(metrics: Sequence[MetricAgreement], console: Console) -> None:
    table = plain_table(console)
    table.add_column("", overflow="fold")
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("rho [95 %]", no_wrap=True)
    is_wide = console.width >= _WIDE
    if is_wide:
        table.add_column("tau", justify="right", no_wrap=True)
        table.add_column("r", justify="right", no_wrap=True)
    table.add_column("of ceiling" if is_wide else "ceil.", justify="right", no_wrap=True)
    table.add_column("kappa", justify="right", no_wrap=True)
    table.add_column("shift", justify="right", no_wrap=True)
    table.add_column("alt-test", no_wrap=True)
    for item in metrics:
        level = item.dataset
        more = [_value(level.kendall), _value(level.pearson)] if is_wide else []
        share = None if item.people is None else item.people.share.value
        table.add_row(
            one_line(item.metric, 40),
            f"{item.n:,}",
            _with_interval(level.spearman),
            *more,
            _NO_VALUE if share is None else f"{100 * share:.0f} %",
            _value(item.verdicts.kappa),
            _value(item.bias.shift, sign="+"),
            _alt_test(item.alt_test, is_wide=is_wide),
        )
    print_trimmed(indented(table), console)


def _value(estimate: Estimate, *, sign: str = "") -> str:
    if estimate.value is None:
        return _NO_VALUE
    text = fixed(estimate.value, 2)
    return text if text.startswith("-") or not sign else f"{sign}{text}"


def _with_interval(estimate: Estimate) -> str:
    if estimate.interval is None:
        return _value(estimate)
    low, high = estimate.interval
    return f"{_value(estimate)} [{fixed(low, 2)}, {fixed(high, 2)}]"


def _alt_test(test: AltTest | None, *, is_wide: bool) -> str:
    if test is None:
        return _NO_VALUE
    won = f"{sum(test.winners)} of {len(test.winners)}"
    said = "passes" if test.passed else "no"
    if not is_wide:
        return f"{said} {sum(test.winners)}/{len(test.winners)}"
    sign = "<" if test.beats_constant else ">=" if test.constant_rho >= test.rho else "~"
    return f"{said} ({won}; one constant rating {fixed(test.constant_rho, 2)} {sign} {fixed(test.rho, 2)})"


_WORDS = {Status.PASSED: "holds", Status.FAILED: "FAILED", Status.ERROR: "not decided"}


def print_requirements(gates: Sequence[GateOutcome], console: Console) -> None:
    """Print a line for each requirement and metric: whether it holds, and why; nothing where there are none."""
    if gates:
        console.print()
    for gate in gates:
        line = f"{_WORDS[gate.status]}  {one_line(gate.gate, 60)}  {one_line(gate.metric, 40)}: {gate.note}"
        style = "" if gate.status is Status.PASSED else "bold"
        print_hanging(Text(" "), Text(line, style=style), console, indent=0)
