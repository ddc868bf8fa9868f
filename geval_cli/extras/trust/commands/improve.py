"""`geval improve`: look for a judge that agrees better with people, confirmed by held-out labels."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from geval_cli.cli.problems import print_note, print_problems, print_warnings
from geval_cli.cli.run import run_stoppable
from geval_cli.errors import ExitCode
from geval_cli.extras.plan import plan_run
from geval_cli.extras.trust.documents import check_document_paths, deliver
from geval_cli.extras.trust.drift import uncached
from geval_cli.extras.trust.gepa_search import check_installed
from geval_cli.extras.trust.improving import (
    find_teacher,
    fragment,
    improve_prepared,
    improvement_document,
    latest_run_of,
    only_metric,
    planned_search,
)
from geval_cli.extras.trust.labelling import labels_kept_for
from geval_cli.extras.trust.labels import LabelFile, check_is_new, read_labels
from geval_cli.extras.trust.options import ImproveCommand
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Wire
from geval_cli.records import SCHEMA_VERSION
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.runs.event_loop import run_async
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.source.yaml_source import write_yaml
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import open_state

_YAML = frozenset({".yaml", ".yml"})


def run_improve(config: Path, given: ImproveCommand) -> ExitCode:
    """Look for a better judge for a config, and show what the held-out labels say about it.

    Raises:
        ConfigError: the config or the labels have problems, or a file cannot be written.
        UsageError: there is no such run or metric, or there are too few labels.
    """
    fragments = [path for path in given.outputs if path.suffix.lower() in _YAML]
    reports = tuple(path for path in given.outputs if path not in fragments)
    check_document_paths(reports, "an improvement", others=sorted(_YAML))
    for path in fragments:
        check_is_new(path, "--output", holds="your config")
    if given.gepa:
        check_installed()
    teacher = None if given.teacher is None else find_teacher(given.teacher)
    request = RunRequest(config, os.environ, **given.of_request(), asks_judges_only=True)
    prepared = prepare(request, is_going_to_run=not given.plan)
    print_problems(prepared.warnings)
    with open_state(given.home, os.environ) as state:
        print_warnings(state.warnings)
        report = load_report(state.runs, given.run or latest_run_of(config, state.runs))
        if given.labels_file is None:
            labels = labels_kept_for(report.run.id, home=given.home)
        else:
            labels = read_labels(given.labels_file)
        metric = given.metric or only_metric(labels)
        _tell_plan(prepared, report, labels, state.cache, metric, given)
        if given.plan:
            return ExitCode.OK
        state.cache.check_room()
        wire = Wire()
        found = run_stoppable(
            improve_prepared(
                prepared,
                report,
                labels,
                state.cache,
                metric=metric,
                options=given,
                teacher=teacher,
                budget=Budget(given.max_cost, given.max_requests),
                home=state.runs.home,
                tell=print_note,
                wire=wire,
            ),
            wire,
        )
    if found.is_accepted:
        for path in fragments:
            with SafeFile(path) as file:
                file.write(write_yaml(fragment(found)))
            print_note(f"wrote {path}: put it in place of the assertion of `{metric}`")
    else:
        for path in fragments:
            print_note(f"did not write {path}: no change was accepted")
    deliver(improvement_document(found), replace(given, outputs=reports))
    if found.stopped:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK if found.is_accepted else ExitCode.FAILED


def _tell_plan(
    prepared: PreparedRun,
    report: RunReport,
    labels: LabelFile,
    cache: ResponseCache,
    metric: str,
    given: ImproveCommand,
) -> None:
    """Print the most that a search takes: as the result with --plan, otherwise as a note before anything is sent."""
    found = planned_search(report, labels, metric, given, run_async(plan_run(uncached(prepared), cache)))
    if not given.plan:
        print_note(found.text)
    elif given.as_json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "improve_plan", **found.facts}
        sys.stdout.write(json_text(document, indent=2) + "\n")
    else:
        sys.stdout.write(f" nothing is sent: {found.text}\n")
