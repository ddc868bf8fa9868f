"""`geval probe`: what rewritten outputs do to a judge's scores, as a table, as JSON and as files."""

import os
import sys
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from geval_cli.cli.problems import print_problems, print_warnings
from geval_cli.errors import ExitCode, UsageError
from geval_cli.extras.trust.commands.options import ProbeOptions as Given
from geval_cli.extras.trust.documents import check_document_paths, write_document
from geval_cli.extras.trust.labelling import kept_labels
from geval_cli.extras.trust.labels import read_labels
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.trust.probe_files import (
    about,
    interval_text,
    note_of,
    probe_document,
    verdict_counts,
)
from geval_cli.extras.trust.probe_items import ProbeOptions
from geval_cli.extras.trust.probes import Finding, ProbeReport, Verdict, chosen_probes
from geval_cli.extras.trust.probing import ProbePlan, plan_probe, run_probe
from geval_cli.numbers import fixed, format_cost
from geval_cli.records import SCHEMA_VERSION, to_json
from geval_cli.report.console import indented, make_console, plain_table, print_hanging, print_trimmed
from geval_cli.report.json_file import json_text
from geval_cli.report.numbers import plural
from geval_cli.report.sanitize import one_line
from geval_cli.runs.event_loop import run_async
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.store.state import State, open_state

_WIDE = 140
_STYLES = {Verdict.FAILS: "bold red", Verdict.HOLDS: "green", Verdict.SKIPPED: "dim"}
_FAMILY = "family"
_LABELLED = frozenset({_FAMILY, "joint"})
"""Probes that labels say more about."""


def run_probes(config: Path, given: Given) -> ExitCode:
    """Probe the judges of a config: say what will be asked, ask, and show the findings.

    Raises:
        ConfigError: the config has problems, or a file cannot be written.
        UsageError: there is no such probe, or nothing is judged by a model.
    """
    check_document_paths(given.outputs, "probes")
    chosen_probes(given.only)
    request = RunRequest(
        config,
        os.environ,
        grader=given.grader,
        scoring=given.scoring,
        samples=given.samples,
        max_cost=given.max_cost,
        max_requests=given.max_requests,
        env_file=given.env_file,
        max_concurrency=given.max_concurrency,
    )
    prepared = prepare(request, is_going_to_run=not given.plan)
    print_problems(prepared.warnings)
    with open_state(given.home, os.environ) as state:
        print_warnings(state.warnings)
        options = _options(given, state)
        plan = run_async(plan_probe(prepared, state.cache, options))
        if given.plan:
            _print_plan(plan, prepared, as_json=given.as_json)
            return ExitCode.OK
        sys.stderr.write(f"note: {_plan_text(plan)}\n")
        sys.stderr.flush()
        report = run_async(run_probe(prepared, state.cache, options, _tell_progress))
        _tell_progress(0, 0)
    for path in given.outputs:
        write_document(path, probe_document(report))
    if given.as_json:
        sys.stdout.write(json_text(report.to_json(), indent=2) + "\n")
    else:
        print_probes(report, make_console(sys.stdout, environ=os.environ))
    return _exit_code(report)


def _tell_progress(asked: int, planned: int) -> None:
    """Show on a terminal how far it is, on one line that is written over and vanishes at the end."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{asked:,} of {planned:,} ratings" if planned else "\r\x1b[K")
        sys.stderr.flush()


def _options(given: Given, state: State) -> ProbeOptions:
    plain = ProbeOptions(items=given.items, seed=given.seed, only=given.only)
    if given.only and not _LABELLED.intersection(given.only):
        return plain
    labels = None if given.labels is None else read_labels(given.labels)
    if labels is not None and given.run is None and given.only and _FAMILY not in given.only:
        return replace(plain, labels=labels)  # of the probed outputs; no run has to be there
    try:
        report = load_report(state.runs, given.run or "latest")
        labels = labels or kept_labels(state.runs.labels(), report.run.id)
    except UsageError:
        if given.run is not None or given.labels is not None:
            raise
        return plain
    items = tuple(judged_items(report.results()))
    return ProbeOptions(plain.items, plain.seed, plain.only, labels, items)


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


def _exit_code(report: ProbeReport) -> ExitCode:
    if Verdict.FAILS in report.verdicts:
        return ExitCode.FAILED
    is_incomplete = report.stopped or report.errored or report.unanswered
    return ExitCode.NOT_JUDGED if is_incomplete else ExitCode.OK


def print_probes(report: ProbeReport, console: Console) -> None:
    """Print what was probed, a table for each metric, and the sum of the verdicts."""
    print_hanging(Text(""), Text(one_line(about(report), 600)), console, indent=1)
    metrics: dict[str, list[Finding]] = {}
    for item in report.findings:
        if item.figure:
            metrics.setdefault(item.metric, []).append(item)
    for metric, findings in metrics.items():
        console.print()
        _print_metric(metric, findings, console)
    console.print()
    for item in report.findings:
        if not item.figure:
            where = f" ({one_line(item.metric, 40)})" if item.metric else ""
            left_out = Text(f"{item.probe}{where} skipped: {one_line(item.note, 200)}", style="dim")
            print_hanging(Text(""), left_out, console, indent=1)
    console.print(Text(f" {verdict_counts(report)}", style="bold"))
    if Verdict.UNCLEAR in report.verdicts:
        why = "unclear: the interval reaches over the bar; more outputs (--items) make it narrower"
        print_hanging(Text(""), Text(why, style="dim"), console, indent=1)


def _print_metric(metric: str, findings: list[Finding], console: Console) -> None:
    is_wide = console.width >= _WIDE
    table = plain_table(console)
    table.add_column(one_line(metric, 30), no_wrap=True)
    if is_wide:
        table.add_column("must", no_wrap=True)
    table.add_column("figure", no_wrap=True)
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("", no_wrap=True)
    if is_wide:
        table.add_column("", overflow="fold")
    for item in findings:
        value = item.estimate.value
        cells = [
            one_line(item.probe, 24),
            *([item.must.value] if is_wide else []),
            item.figure,
            "-" if value is None else fixed(value, 2),
            interval_text(item),
            f"{item.estimate.n:,}",
            item.bar,
        ]
        verdict = Text(item.verdict.value, style=_STYLES.get(item.verdict, ""))
        notes = [Text(one_line(note_of(item), 200), style="dim")] if is_wide else []
        table.add_row(*map(Text, cells), verdict, *notes)
    print_trimmed(indented(table), console)
    if not is_wide:
        _print_notes(findings, console)


def _print_notes(findings: list[Finding], console: Console) -> None:
    """Print each note once, with the probes that it is about."""
    notes: dict[str, dict[str, None]] = {}
    for item in findings:
        for note in filter(None, note_of(item).split("; ")):
            notes.setdefault(note, {})[item.probe] = None
    for note, probes in notes.items():
        text = Text(f"{one_line(note, 120)} ({', '.join(probes)})", style="dim")
        print_hanging(Text(""), text, console, indent=1)
