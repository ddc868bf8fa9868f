"""`geval agree`, `calibrate`, `estimate`, `drift`, `improve` and `probe`: run, printed, and written to files."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.text import Text

from geval_cli.cli.problems import print_note, print_problems, print_progress, print_warnings
from geval_cli.errors import ConfigError, ExitCode, Problem, UsageError
from geval_cli.events import Noticed, RunEvent
from geval_cli.extras.plan import plan_run
from geval_cli.extras.trust.anchors import (
    AnchorSet,
    drawn_anchors,
    keep_look,
    looks_before,
    read_anchors,
    write_anchors,
)
from geval_cli.extras.trust.documents import check_document_paths, deliver
from geval_cli.extras.trust.drift import drift_document, look, planned_look, uncached, with_looks
from geval_cli.extras.trust.estimation import estimate, estimate_document
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
from geval_cli.extras.trust.labelling import draw_pairs, draw_sheet, kept_labels, labels_kept_for
from geval_cli.extras.trust.labels import LabelFile, check_is_new, read_labels, write_labels
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.trust.options import (
    AgreeCommand,
    CalibrateCommand,
    DriftCommand,
    EstimateCommand,
    ImproveCommand,
    ProbeCommand,
    ProbeOptions,
)
from geval_cli.extras.trust.probes import ProbeVerdict, chosen_probes
from geval_cli.extras.trust.probing import ProbePlan, plan_probe, probe_document, run_probe
from geval_cli.extras.trust.statistics.drift import DriftVerdict, least_for_steady
from geval_cli.extras.trust.weighted_draw import is_weighted
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Wire
from geval_cli.numbers import format_cost, plural
from geval_cli.records import SCHEMA_VERSION, JsonValue, to_json
from geval_cli.report.console import make_console, print_hanging
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import one_line
from geval_cli.runs.event_loop import run_async, run_stoppable
from geval_cli.runs.options import check_idle
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.session import call_policy
from geval_cli.runs.stored import is_results_file, load_report, open_report, open_reports
from geval_cli.source.yaml_source import write_yaml
from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import LATEST
from geval_cli.store.state import State, open_state


def run_drift(anchors: Path | None, config: Path | None, given: DriftCommand) -> ExitCode:
    """Save anchors, or judge them again and show whether the judge has moved.

    Raises:
        ConfigError: a file or the config has problems, or a file cannot be written.
        UsageError: it is not said which anchors, or there is no such run.
    """
    if given.save is not None:
        if anchors is not None:
            raise UsageError(
                "--save cannot be combined with an anchors file to judge", hint="remove one of them"
            )
        judging = {"outputs", "as_json", "plan", *given.of_request()}
        check_idle(given, judging, beside="--save")
        return _save(given.save, given)
    check_idle(given, {"run", "items", "seed"}, without="--save")
    if anchors is None:
        hint = (
            "make one with `geval drift --save anchors.jsonl --run RUN`, then run `geval drift anchors.jsonl`"
        )
        raise UsageError("no anchors file given", hint=hint)
    check_document_paths(given.outputs, "drift")
    read = read_anchors(anchors)
    request = RunRequest(config or _config_of(read), os.environ, **given.of_request(), asks_judges_only=True)
    prepared = prepare(request, is_going_to_run=not given.plan)
    print_problems(prepared.warnings)
    with open_state(given.home, os.environ) as state:
        print_warnings(state.warnings)
        cache = state.cache
        ratings, cost = planned_look(read, prepared, run_async(plan_run(uncached(prepared), cache)))
        told = (
            f"{plural(ratings, 'rating')} of {plural(len(read.anchors), 'anchor')}, none from the cache"
            f"{cost.text(ratings)}"
        )
        if not given.plan:
            print_note(told)
        elif given.as_json:
            plan = {"ratings": ratings, "anchors": len(read.anchors), **cost.facts(ratings)}
            document = {"schema_version": SCHEMA_VERSION, "kind": "drift_plan", **plan}
            sys.stdout.write(json_text(document, indent=2) + "\n")
        else:
            console = make_console(sys.stdout, environ=os.environ)
            print_hanging(
                Text(f" {read.path}: nothing is sent  ", style="bold"), Text(told), console, indent=0
            )
        if given.plan:
            return ExitCode.OK
        wire = Wire()
        policy = call_policy(prepared, Budget(given.max_cost, given.max_requests), None, wire=wire)
        looking = look(prepared, read, state.cache, policy, _tell, margin=given.margin)
        found = run_stoppable(looking, wire, print_note)
        home = state.runs.home
        if home is not None:
            found = with_looks(found, looks_before(home, read.digest))
            keep_look(home, found)
    deliver(drift_document(found), given)
    if found.verdict is DriftVerdict.MOVED:
        return ExitCode.FAILED
    is_incomplete = found.stopped or found.errored or not found.metrics
    return ExitCode.NOT_JUDGED if is_incomplete else ExitCode.OK


def _save(path: Path, given: DriftCommand) -> ExitCode:
    with open_report(given.run, given.home, os.environ) as (report, warnings):
        print_warnings(warnings)
        found = drawn_anchors(report.results(), given.items, given.seed)
        write_anchors(path, found, run=report.run.id, config=report.run.config_path)
    tests = len({anchor.cluster for anchor in found})
    sys.stdout.write(
        f"{path}: {plural(len(found), 'output')} of {plural(tests, 'test')} of run {report.run.id}, drawn at random\n"
        f"Judge them again whenever you want to know whether the judge has moved:\n"
        f"geval drift {path}\n"
    )
    least = least_for_steady(given.margin)
    if tests < least:
        print_note(
            f"{plural(tests, 'test')} can never show that a judge is steady within {given.margin:g};"
            f" at least {least:,} tests are needed"
        )
    return ExitCode.OK


def _config_of(anchors: AnchorSet) -> Path:
    config = anchors.path.parent / anchors.config
    if anchors.config and config.is_file():
        return config
    hint = f"pass one: geval drift {anchors.path} CONFIG"
    what = f"the config of these anchors is not at {config}" if anchors.config else "they have no config"
    raise ConfigError([Problem(what, None, hint)])


def _tell(event: RunEvent) -> None:
    if isinstance(event, Noticed):
        print_note(event.message)


_YAML = frozenset({".yaml", ".yml"})


def run_improve(config: Path, given: ImproveCommand) -> ExitCode:
    """Look for a better judge of a config, and show what held-out labels say about it.

    Raises:
        ConfigError: the config or the labels have problems, or a file cannot be written.
        UsageError: there is no such run or metric, or too few labels.
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
            print_note,
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
    """Say what it takes at most: as the answer with --plan, else before anything is sent."""
    found = planned_search(report, labels, metric, given, run_async(plan_run(uncached(prepared), cache)))
    if not given.plan:
        print_note(found.text)
    elif given.as_json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "improve_plan", **found.facts}
        sys.stdout.write(json_text(document, indent=2) + "\n")
    else:
        sys.stdout.write(f" nothing is sent: {found.text}\n")


_FAMILY = "family"
_LABELLED = frozenset({_FAMILY, "joint"})
"""Probes that labels say more about."""


def run_probes(config: Path, given: ProbeCommand) -> ExitCode:
    """Probe the judges of a config: say what will be asked, ask, and show the findings.

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
        wire = Wire()
        probing = run_probe(prepared, state.cache, options, _tell_progress, wire)
        try:
            report = run_stoppable(probing, wire, print_note)
        finally:
            _tell_progress(0, 0)
    deliver(probe_document(report), given)
    if ProbeVerdict.FAILS in report.verdicts:
        return ExitCode.FAILED
    is_incomplete = report.stopped or report.errored or report.unanswered
    return ExitCode.NOT_JUDGED if is_incomplete else ExitCode.OK


def _tell_progress(asked: int, planned: int) -> None:
    print_progress(f"{asked:,} of {planned:,} ratings" if planned else "")


def _options(given: ProbeCommand, state: State) -> ProbeOptions:
    plain = ProbeOptions(items=given.items, seed=given.seed, only=given.only)
    if given.only and not _LABELLED.intersection(given.only):
        return plain
    labels = None if given.labels_file is None else read_labels(given.labels_file)
    if labels is not None and given.run is None and given.only and _FAMILY not in given.only:
        return replace(plain, labels=labels)  # of the probed outputs; no run has to be there
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


Found = TypeVar("Found")


def run_agree(labels: Path | None, given: AgreeCommand) -> ExitCode:
    """Hold the judge of a run, or of the file's own scores, against its labels; None for those kept for the run.

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
    """Calibrate the judge of a run, or of the file's own scores, by its labels.

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
    """Return what is found of labels: by their own scores where they have some and no run is named."""
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
        UsageError: there is no such run, metric, method or gate.
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
    # Labels from elsewhere are matched with nothing, and correct no calibration.
    if given.method == "rogan-gladen":
        check_idle(given, {"margin", "allow_unmatched"}, beside="--method rogan-gladen")
    check_document_paths(given.outputs, "an estimate")
    if given.of is not None:
        # Write both outputs of tests of two runs, to be labelled for `geval compare --labels`.
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
