"""`geval estimate`: the true pass rate and mean of a run, and the sheet of outputs to label."""

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from geval_cli.cli.problems import print_warnings
from geval_cli.errors import ExitCode
from geval_cli.extras.trust.commands.agree import print_requirements
from geval_cli.extras.trust.commands.options import EstimateOptions as GivenOptions
from geval_cli.extras.trust.documents import check_document_paths, write_document
from geval_cli.extras.trust.estimation import (
    Estimated,
    EstimateOptions,
    Method,
    MetricEstimate,
    check_sheet_path,
    draw_sheet,
    estimate,
    estimate_document,
)
from geval_cli.extras.trust.gates import gates_exit_code
from geval_cli.extras.trust.labels import read_labels, write_labels
from geval_cli.numbers import fixed
from geval_cli.report.console import make_console, print_hanging
from geval_cli.report.json_file import json_text
from geval_cli.report.numbers import plural
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line
from geval_cli.runs.results_file import open_report
from geval_cli.statistics.intervals import Estimate


def run_estimate(labels: Path, given: GivenOptions) -> ExitCode:
    """Estimate the true figures of a run, or write the sheet to label.

    Raises:
        ConfigError: labels are broken or unmatched, or a file cannot be written.
        UsageError: there is no such run, metric, method or gate.
    """
    check_document_paths(given.outputs, "an estimate")
    with open_report(given.run, given.home, os.environ) as (report, warnings):
        print_warnings(warnings)
        if given.draw is not None:
            check_sheet_path(labels)
            return _draw(labels, report, given.draw, given)
        read = read_labels(labels)
        method: Method = given.method  # type: ignore[assignment]  # checked by `estimate`
        found = estimate(
            read,
            report,
            options=EstimateOptions(given.good, given.threshold, method, given.only),
            require=given.require,
            allow_unmatched=given.allow_unmatched,
        )
    for path in given.outputs:
        write_document(path, estimate_document(found))
    if given.as_json:
        sys.stdout.write(json_text(found.to_json(), indent=2) + "\n")
    else:
        print_estimate(found, make_console(sys.stdout, environ=os.environ))
    return gates_exit_code(found.gates)


def _draw(path: Path, report: RunReport, count: int, given: GivenOptions) -> ExitCode:
    rows = draw_sheet(report.results(), count, given.seed, run_id=report.run.id, only=given.only)
    write_labels(path, rows)
    outputs = len({row["id"] for row in rows})
    sys.stdout.write(
        f"{path}: {plural(len(rows), 'row')} to label, of {plural(outputs, 'output')} of run {report.run.id}\n"
        f"Write a number of the scale, or pass or fail, into `label`; then:\n"
        f"geval estimate {path} --run {report.run.id}\n"
    )
    return ExitCode.OK


def print_estimate(found: Estimated, console: Console) -> None:
    """Print the figures of each metric in a line each, with the judge's own beside them, and what to know."""
    run = "the given results" if found.run is None else f"run {found.run}"
    console.print(Text(f"{run}   {plural(found.matched, 'label')}   method {found.method}"))
    for item in found.metrics:
        console.print()
        name = one_line(item.metric, 60)
        counts = f"{plural(item.labelled, 'label')}, {plural(item.outputs, 'output')}"
        console.print(Text.assemble((name, "bold"), f"   {counts}"))
        for line in _lines(item):
            print_hanging(Text(" "), Text(line), console, indent=0)
        for note in item.notes:
            print_hanging(Text(" "), Text(note, style="dim"), console, indent=0)
    print_requirements(found.gates, console)


def _lines(item: MetricEstimate) -> list[str]:
    alone = "" if item.labels_pass_rate is None else f"; labels alone {_figure(item.labels_pass_rate)}"
    lines = [f"pass rate {_figure(item.pass_rate)} (judge alone {fixed(item.judge_pass_rate, 2)}{alone})"]
    if item.mean is not None and item.judge_mean is not None:
        alone = "" if item.labels_mean is None else f"; labels alone {_figure(item.labels_mean)}"
        lines.append(f"mean      {_figure(item.mean)} (judge alone {fixed(item.judge_mean, 2)}{alone})")
    return lines


def _figure(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return "unknown"
    if estimate.interval is None:
        return fixed(estimate.value, 2)
    low, high = estimate.interval
    return f"{fixed(estimate.value, 2)} [{fixed(low, 2)}, {fixed(high, 2)}]"
