"""`geval probe`: how rewritten outputs change a judge's scores, as a table, JSON or report files."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from geval_cli.cli.options import check_idle
from geval_cli.cli.problems import print_note, print_problems, print_progress, print_warnings
from geval_cli.cli.run import run_stoppable
from geval_cli.errors import ExitCode, UsageError
from geval_cli.extras.trust.documents import check_document_paths, deliver
from geval_cli.extras.trust.labelling import kept_labels
from geval_cli.extras.trust.labels import read_labels
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.trust.options import ProbeCommand, ProbeOptions
from geval_cli.extras.trust.probes import ProbeVerdict, chosen_probes
from geval_cli.extras.trust.probing import ProbePlan, plan_probe, probe_document, run_probe
from geval_cli.extras.trust.weighted_draw import is_weighted
from geval_cli.gateway.call import Wire
from geval_cli.numbers import format_cost, plural
from geval_cli.records import SCHEMA_VERSION, to_json
from geval_cli.report.console import make_console, print_hanging
from geval_cli.report.json_file import json_text
from geval_cli.report.sanitize import one_line
from geval_cli.runs.event_loop import run_async
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.store.state import State, open_state

_FAMILY = "family"
_LABELLED = frozenset({_FAMILY, "joint"})
"""Probes that use human labels."""


def run_probes(config: Path, given: ProbeCommand) -> ExitCode:
    """Probe the judges of a config: print what will be sent, send it, and show the findings.

    Raises:
        ConfigError: the config has problems, or a file cannot be written.
        UsageError: there is no such probe, or nothing is judged by a model.
    """
    chosen_probes(given.only)
    if given.only and not _LABELLED.intersection(given.only):
        check_idle(given, {"labels_file", "run"}, without="--only family")
    check_document_paths(given.outputs, "probes")
    request = RunRequest(config, os.environ, **given.of_request())
    prepared = prepare(request, is_going_to_run=not given.plan)
    print_problems(prepared.warnings)
    with open_state(given.home, os.environ) as state:
        print_warnings(state.warnings)
        options = _options(given, state)
        plan = run_async(plan_probe(prepared, state.cache, options))
        if given.plan:
            _print_plan(plan, prepared, as_json=given.as_json)
            return ExitCode.OK
        print_note(_plan_text(plan))
        state.cache.check_room()
        wire = Wire()
        probing = run_probe(prepared, state.cache, options, _tell_progress, wire)
        try:
            report = run_stoppable(probing, wire)
        finally:
            _tell_progress(0, 0)
    deliver(probe_document(report), given)
    if ProbeVerdict.FAILS in report.verdicts:
        return ExitCode.FAILED
    is_incomplete = report.stopped or report.errored or report.unanswered
    has_probed = not report.verdicts <= {ProbeVerdict.SKIPPED}
    return ExitCode.OK if has_probed and not is_incomplete else ExitCode.NOT_JUDGED


def _tell_progress(asked: int, planned: int) -> None:
    print_progress(f"{asked:,} of {planned:,} ratings" if planned else "")


def _options(given: ProbeCommand, state: State) -> ProbeOptions:
    plain = ProbeOptions(items=given.items, seed=given.seed, only=given.only)
    if given.only and not _LABELLED.intersection(given.only):
        return plain
    labels = None if given.labels_file is None else read_labels(given.labels_file)
    if labels is not None and given.run is None and given.only and _FAMILY not in given.only:
        return replace(plain, labels=labels)  # labels of the probed outputs need no run
    try:
        report = load_report(state.runs, given.run or "latest")
        labels = labels or kept_labels(state.runs.labels(), report.run.id)
    except UsageError:
        if given.run is not None or given.labels_file is not None:
            raise
        return plain
    if is_weighted(labels.labels):
        hint = "pass labels of a plain draw with --labels: geval label RUN --draw 100"
        raise UsageError("labels that `geval label --next` drew cannot be used by a probe", hint=hint)
    items = tuple(judged_items(report.results()))
    return replace(plain, labels=labels, labelled=items)


def _plan_text(plan: ProbePlan) -> str:
    cost = f", about {format_cost(plan.cost_usd)} at most" if plan.cost_usd else ""
    return (
        f"{plural(plan.items, 'output')}, {plural(plan.metrics, 'metric')}, up to {plural(plan.variants, 'variant')}"
        f" of each: {plural(plan.ratings, 'rating')} at most{cost}; those in the cache cost nothing"
    )


def _print_plan(plan: ProbePlan, prepared: PreparedRun, *, as_json: bool) -> None:
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "probe_plan", **to_json(plan)}
        sys.stdout.write(json_text(document, indent=2) + "\n")
        return
    console = make_console(sys.stdout, environ=os.environ)
    head = f" {one_line(str(prepared.suite.path), 60)}: nothing is sent  "
    print_hanging(Text(head, style="bold"), Text(_plan_text(plan)), console, indent=0)
