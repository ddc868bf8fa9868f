"""`geval calibrate`: thresholds with their errors, what scores are worth, and the file for configs."""

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from geval_cli.cli.problems import print_warnings
from geval_cli.errors import ExitCode, UsageError
from geval_cli.extras.trust.calibration import calibrate
from geval_cli.extras.trust.calibration_files import candidate_row, write_calibration
from geval_cli.extras.trust.calibration_records import (
    Calibrated,
    CalibrateOptions,
    Candidate,
    MetricCalibration,
)
from geval_cli.extras.trust.commands.juries import print_jury
from geval_cli.extras.trust.commands.options import CalibrateOptions as GivenOptions
from geval_cli.extras.trust.documents import check_document_paths
from geval_cli.extras.trust.labels import read_labels
from geval_cli.numbers import fixed
from geval_cli.report.console import indented, make_console, plain_table, print_hanging, print_trimmed
from geval_cli.report.json_file import json_text
from geval_cli.report.numbers import plural
from geval_cli.report.sanitize import one_line
from geval_cli.runs.results_file import open_report
from geval_cli.statistics.calibration import Calibration

_HEADINGS = ("threshold", "bad pass", "good fail", "bal. acc.", "MCC", "")
_WIDE, _MOST_WANTED = 76, (0, 1, 2, 5)
_MOST_ROWS = 40
"""Thresholds of one metric that the terminal shows; scores that are means of samples make hundreds."""


def run_calibrate(labels: Path, given: GivenOptions) -> ExitCode:
    """Calibrate the judge of a run, or of the file's own scores, by its labels.

    Raises:
        ConfigError: labels are broken, unmatched or too few, or a file cannot be written.
        UsageError: there is no such run, cluster, metric or cost.
    """
    check_document_paths(given.outputs, "a calibration")
    options = CalibrateOptions(
        given.good, given.present, parse_costs(given.costs), given.prevalence, given.cluster, given.only
    )
    read = read_labels(labels)
    if given.run is None and read.has_scores:
        found = calibrate(read, options=options)
    else:
        with open_report(given.run or "latest", given.home, os.environ) as (report, warnings):
            print_warnings(warnings)
            found = calibrate(read, report, options=options, allow_unmatched=given.allow_unmatched)
    for path in given.outputs:
        write_calibration(path, found)
    if given.as_json:
        sys.stdout.write(json_text(found.to_json(), indent=2) + "\n")
    else:
        print_calibration(found, make_console(sys.stdout, environ=os.environ))
    return ExitCode.OK


def parse_costs(written: str | None) -> tuple[float, float] | None:
    """Return the costs of a false pass and a false fail, from `3:1`.

    Raises:
        UsageError: it is not written so.
    """
    if written is None:
        return None
    first, separator, second = written.partition(":")
    try:
        costs = float(first), float(second)
    except ValueError:
        costs = 0.0, 0.0
    if not separator or not all(0 < cost < float("inf") for cost in costs):
        hint = "for example --cost 3:1, where a bad output that passes is three times as bad"
        raise UsageError(f"--cost takes two positive numbers, not `{written}`", hint=hint)
    return costs


def print_calibration(found: Calibrated, console: Console) -> None:
    """Print for each metric a sentence, its thresholds, what its scores are worth, and what to know."""
    source = "scores of the file" if found.run is None else f"run {found.run}"
    unmatched = f", {found.unmatched:,} unmatched" if found.unmatched else ""
    console.print(Text(f"{source}   {plural(found.matched, 'label')}{unmatched}"))
    for item in found.metrics:
        console.print()
        _print_metric(item, console)


def _print_metric(item: MetricCalibration, console: Console) -> None:
    name = one_line(item.title, 80)
    print_hanging(Text(""), Text.assemble((name, "bold"), f": {item.summary}"), console, indent=0)
    console.print()
    shown, left_out = _shown(item)
    table = plain_table(console)
    places = range(len(_HEADINGS)) if console.width >= _WIDE else _MOST_WANTED
    for place in places:
        heading = _HEADINGS[place]
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for one in shown:
        row = candidate_row(item, one)
        table.add_row(*(row[place] for place in places), style="bold" if "chosen" in row[-1] else "")
    print_trimmed(indented(table), console)
    if item.jury is not None:
        console.print()
        print_jury(item.jury, console, item.calibration.judges)
    if left_out:
        console.print(Text(f" {left_out:,} more thresholds: --json, or -o FILE", style="dim"))
    console.print()
    for line in (_chances(item.calibration), _clear(item.calibration), *_held_back(item)):
        if line:
            print_hanging(Text(" "), Text(line), console, indent=0)
    for note in item.notes:
        print_hanging(Text(" "), Text(note, style="dim"), console, indent=0)


def _shown(item: MetricCalibration) -> tuple[list[Candidate], int]:
    """Return the thresholds to show, today's among them, and how many are left out."""
    everything = sorted(
        [*item.candidates, *([] if _is_candidate(item) else [item.at_present])], key=lambda one: one.threshold
    )
    if len(everything) <= _MOST_ROWS:
        return everything, 0
    kept = {item.calibration.threshold, item.present}
    step = -(-len(everything) // (_MOST_ROWS - len(kept)))
    shown = [one for place, one in enumerate(everything) if place % step == 0 or one.threshold in kept]
    return shown, len(everything) - len(shown)


def _is_candidate(item: MetricCalibration) -> bool:
    return any(one.threshold == item.present for one in item.candidates)


def _chances(found: Calibration) -> str:
    ends = [0.0, 0.25, 0.5, 0.75, 1.0]
    said = ", ".join(f"{fixed(found.p_pass(score), 2)} at {score:g}" for score in ends)
    return f"P(pass): {said}"


def _clear(found: Calibration) -> str:
    if found.alpha is None:
        return ""
    passes = "no score" if found.pass_from is None else f"from {found.pass_from:.4g}"
    fails = "no score" if found.fail_below is None else f"below {found.fail_below:.4g}"
    return f"clear pass: {passes}; clear fail: {fails}; the rest is borderline"


def _held_back(item: MetricCalibration) -> list[str]:
    checked = item.checked
    if checked is None or checked.accuracy.value is None or checked.present_accuracy.value is None:
        return ["not checked: all labels are of one group, so none could be held back"]
    lines = [
        f"on labels held back: {_percent(checked.accuracy.value)} of verdicts right"
        f" ({_percent(checked.present_accuracy.value)} at {item.present:.4g}),"
        f" Brier {_value(checked.brier.value)} ({_value(checked.base_brier.value)} without a judge)"
    ]
    if checked.clear is not None and checked.clear.value is not None:
        passed = (
            ""
            if checked.bad_passed is None
            else f", {_percent(checked.bad_passed.value)} of bad a clear pass"
        )
        failed = (
            ""
            if checked.good_failed is None
            else f", {_percent(checked.good_failed.value)} of good a clear fail"
        )
        lines.append(f"on labels held back: {_percent(checked.clear.value)} of scores clear{passed}{failed}")
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _value(number: float | None) -> str:
    return "-" if number is None else fixed(number, 3)
