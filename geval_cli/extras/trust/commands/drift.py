"""`geval drift`: save anchors, or judge them again."""

import os
import sys
from pathlib import Path

from rich.text import Text

from geval_cli.cli.options import check_idle
from geval_cli.cli.problems import print_note, print_problems, print_warnings
from geval_cli.cli.run import run_stoppable
from geval_cli.errors import ConfigError, ExitCode, Problem, UsageError
from geval_cli.events import Noticed, RunEvent
from geval_cli.extras.plan import plan_run
from geval_cli.extras.trust.anchors import (
    AnchorSet,
    drawn_anchors,
    read_anchors,
    unfinished_since,
    write_anchors,
)
from geval_cli.extras.trust.documents import check_document_paths, deliver
from geval_cli.extras.trust.drift import drift_document, judges_digest, look, planned_look, uncached
from geval_cli.extras.trust.options import DriftCommand
from geval_cli.extras.trust.statistics.drift import DriftVerdict, least_for_steady
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Wire
from geval_cli.numbers import plural
from geval_cli.records import SCHEMA_VERSION
from geval_cli.report.console import make_console, print_hanging
from geval_cli.report.json_file import json_text
from geval_cli.runs.event_loop import run_async
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.session import call_policy
from geval_cli.runs.stored import open_report
from geval_cli.store.state import open_state


def run_drift(anchors: Path | None, config: Path | None, given: DriftCommand) -> ExitCode:
    """Save anchors, or judge them again and show whether the judge has moved.

    Raises:
        ConfigError: a file or the config has problems, or a file cannot be written.
        UsageError: no anchors file is given, the options contradict each other, or there is no such run.
    """
    if not 0 < given.margin < 1:
        raise UsageError("--margin must be more than 0 and less than 1", hint="for example 0.05")
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
        judges = judges_digest(prepared)
        is_resumed = unfinished_since(state.runs.home, read.digest, judges, cache.now()) is not None
        source = "resuming the check that did not finish" if is_resumed else "none from the cache"
        told = (
            f"{plural(ratings, 'rating')} of {plural(len(read.anchors), 'anchor')}, {source}"
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
        state.cache.check_room()
        wire = Wire()
        policy = call_policy(prepared, Budget(given.max_cost, given.max_requests), None, wire=wire)
        looking = look(prepared, read, cache, policy, _tell, home=state.runs.home, margin=given.margin)
        found = run_stoppable(looking, wire)
    deliver(drift_document(found), given)
    if found.verdict is DriftVerdict.MOVED:
        return ExitCode.FAILED
    is_incomplete = found.stopped or found.errored or found.lost_metrics or not found.metrics
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
