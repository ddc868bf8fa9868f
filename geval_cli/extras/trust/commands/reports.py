"""`geval agree`, `geval calibrate` and `geval estimate`: reports that compare labels with a run's scores."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from geval_cli.cli.options import check_idle
from geval_cli.cli.problems import print_warnings
from geval_cli.errors import ExitCode, UsageError
from geval_cli.extras.trust.documents import check_document_paths, deliver
from geval_cli.extras.trust.estimation import estimate, estimate_document
from geval_cli.extras.trust.labelling import draw_pairs, draw_sheet, labels_kept_for
from geval_cli.extras.trust.labels import LabelFile, check_is_new, read_labels, write_labels
from geval_cli.extras.trust.options import AgreeCommand, CalibrateCommand, EstimateCommand
from geval_cli.numbers import plural
from geval_cli.records import JsonValue
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import is_results_file, open_report, open_reports
from geval_cli.store.runs import LATEST

Found = TypeVar("Found")


def run_agree(labels: Path | None, given: AgreeCommand) -> ExitCode:
    """Measure how well a judge agrees with labels: the judge of a run, or the scores in the labels file.

    Without a file, the labels stored with the run are used.

    Raises:
        ConfigError: labels are broken or unmatched, or a file cannot be written.
        UsageError: there is no such run, cluster, gate or file format.
    """
    from geval_cli.extras.trust.agreement import agree, agreement_document

    check_document_paths(given.outputs, "agreement")
    found = _of_labels(
        labels,
        given,
        lambda read, run: agree(
            read, run, options=given, require=given.require, allow_unmatched=given.allow_unmatched
        ),
    )
    return deliver(agreement_document(found), given)


def run_calibrate(labels: Path, given: CalibrateCommand) -> ExitCode:
    """Calibrate the judge of a run, or the scores in the labels file, on its labels.

    Raises:
        ConfigError: labels are broken, unmatched or too few, or a file cannot be written.
        UsageError: there is no such run, cluster, metric or cost.
    """
    from geval_cli.extras.trust.calibration import (
        calibrate,
        calibration_document,
        is_for_configs,
        write_calibration,
    )

    check_document_paths(given.outputs, "a calibration")
    found = _of_labels(
        labels,
        given,
        lambda read, run: calibrate(read, run, options=given, allow_unmatched=given.allow_unmatched),
    )
    for path in filter(is_for_configs, given.outputs):
        write_calibration(path, found)
    return deliver(
        calibration_document(found),
        replace(given, outputs=tuple(path for path in given.outputs if not is_for_configs(path))),
    )


def _of_labels(
    labels: Path | None,
    given: AgreeCommand | CalibrateCommand,
    find: Callable[[LabelFile, RunReport | None], Found],
) -> Found:
    """Return what `find` returns for the labels and the run.

    There is no run if none is named and the labels have scores of their own.
    """
    read = None if labels is None else read_labels(labels)
    if given.run is None and read is not None and read.has_scores:
        return find(read, None)
    with open_report(given.run or LATEST, given.home, os.environ) as (report, warnings):
        print_warnings(warnings)
        return find(labels_kept_for(report.run.id, home=given.home) if read is None else read, report)


def run_estimate(labels: Path, given: EstimateCommand) -> ExitCode:
    """Estimate the true figures of a run, or write the sheet to label.

    Raises:
        ConfigError: labels are broken or unmatched, or a file cannot be written.
        UsageError: there is no such run, metric, method or gate, or the options contradict each other.
    """
    if given.draw is None:
        check_idle(given, {"seed"}, without="--draw")
    else:
        ignored = {
            "outputs",
            "as_json",
            "require",
            "method",
            "good",
            "threshold",
            "margin",
            "allow_unmatched",
        }
        check_idle(given, ignored, beside="--draw")
    if given.of is not None:
        check_idle(given, {"run"}, beside="--of")
    # Labels of other outputs are not matched with the run, and no carry-over is tested.
    if given.method == "rogan-gladen":
        check_idle(given, {"margin", "allow_unmatched"}, beside="--method rogan-gladen")
    check_document_paths(given.outputs, "an estimate")
    if given.of is not None:
        # The sheet has the outputs of two runs for the same tests, to be labelled for `geval compare --labels`.
        named = given.of
        two = [name.strip() for name in named.split(",")]
        if len(two) != 2 or not all(two):  # noqa: PLR2004
            raise UsageError(f"--of must be two runs, not {named}", hint="for example --of latest~1,latest")
        if given.draw is None:
            raise UsageError("--of needs --draw", hint="for example --draw 30")
        check_is_new(labels, "--draw")
        with open_reports(two, given.home, os.environ) as ((a, b), warnings):
            print_warnings(warnings)
            rows = draw_pairs(a, b, given.draw, given.seed, only=given.only)
            names = [
                name if is_results_file(name) else report.run.id
                for name, report in zip(two, (a, b), strict=True)
            ]
        tests = len({row["test_key"] if "test_key" in row else row["id"] for row in rows})
        what = f"of both runs on {plural(tests, 'test')}, in an order that hides which run is which"
        return _write_sheet(labels, rows, what, f"compare {' '.join(names)} --labels {labels}")
    with open_report(given.run, given.home, os.environ) as (report, warnings):
        print_warnings(warnings)
        if given.draw is not None:
            check_is_new(labels, "--draw")
            rows = draw_sheet(report, given.draw, given.seed, only=given.only)
            return _write_sheet(
                labels, rows, f"of run {report.run.id}", f"estimate {labels} --run {report.run.id}"
            )
        found = estimate(
            read_labels(labels),
            report,
            options=given,
            require=given.require,
            allow_unmatched=given.allow_unmatched,
        )
    return deliver(estimate_document(found), given)


def _write_sheet(path: Path, rows: Sequence[Mapping[str, JsonValue]], of_what: str, then: str) -> ExitCode:
    write_labels(path, rows)
    outputs = len({(row["id"], row["output_sha256"]) for row in rows})
    sys.stdout.write(
        f"{path}: {plural(len(rows), 'row')} to label, {plural(outputs, 'output')} {of_what}\n"
        f"Write a number of the scale, or pass or fail, into `label`; then:\n"
        f"geval {then}\n"
    )
    return ExitCode.OK
