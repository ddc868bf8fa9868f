"""`geval run --plan`: count the requests of a run without sending any."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from geval_cli.cli.problems import print_warnings
from geval_cli.cli.run import check_one_config, describe_progress, prepare_all, state_folders
from geval_cli.errors import ConfigError, ExitCode, Problem, UsageError
from geval_cli.extras.plan import AnchorsPlan, RunPlan, plan_document, plan_run, planned_power, print_plan
from geval_cli.extras.workers.coordinator import planned_workers
from geval_cli.plugins import extra
from geval_cli.report.console import make_console
from geval_cli.report.safe_file import SafeFile
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.resume import find_run
from geval_cli.store.state import CacheChoice, open_cache, open_runs

if TYPE_CHECKING:
    from geval_cli.cli.untrusted import KernelSandbox


def show_plans(
    requests: Sequence[RunRequest],
    outputs: Sequence[Path],
    *,
    home: Path | None,
    cache: CacheChoice,
    sandbox: "KernelSandbox | None" = None,
) -> ExitCode:
    """Print the requests and the cost of running each config, and write them to `outputs` as JSON. Needs no keys.

    Raises:
        ConfigError: with every problem of every config.
        UsageError: the options are invalid, or there is no run to resume.
        StoreError: stored runs or answers cannot be read.
        OutputError: a file cannot be written.
    """
    check_one_config(requests, outputs, "plan")
    if cache.is_offline:
        hint = "remove one of the two; `--plan --cache-ttl never` counts the answers that the cache lacks"
        raise UsageError(
            "--plan and --offline cannot be combined: --plan counts requests, --offline sends none", hint=hint
        )
    for path in outputs:
        if path.suffix.lower() != ".json":
            hint = "use a name that ends in .json"
            raise ConfigError([Problem(f"cannot write a plan to {path}: it is written as JSON", hint=hint)])
    console = make_console(sys.stdout, environ=os.environ)
    if sandbox is not None:
        sandbox.confine(requests, state_folders(home, cache), outputs)
    runs = prepare_all(requests, is_going_to_run=False)
    if sandbox is not None:
        sandbox.tell()
    for prepared in runs:
        plan = _plan(prepared, home, cache)
        print_plan(plan, str(prepared.suite.path), console)
        for path in outputs:
            with SafeFile(path) as file:
                file.write(json.dumps(plan_document(plan), ensure_ascii=False, indent=2) + "\n")
    return ExitCode.OK


def _plan(prepared: PreparedRun, home: Path | None, choice: CacheChoice) -> RunPlan:
    resumed = cache = None
    with ExitStack() as stack:
        if prepared.request.resumes:
            runs = stack.enter_context(open_runs(home, os.environ))
            print_warnings(runs.warnings)
            resumed = find_run(prepared, runs)
            sys.stderr.write(f"plan for resuming {describe_progress(resumed, prepared)}\n")
        with suppress(UsageError):  # there is no cache, and a plan is no reason to create one
            cache = stack.enter_context(open_cache(home, os.environ, choice.folder))
            print_warnings(cache.warnings)
            cache.ttl_s = choice.ttl_s
        plan = asyncio.run(plan_run(prepared, cache, resumed))
        with suppress(UsageError):  # no run was ever stored here
            plan = replace(
                plan, power=planned_power(prepared, stack.enter_context(open_runs(home, os.environ)))
            )
    if prepared.anchors is not None:
        ratings, cost = extra("drift").planned_look(prepared.anchors, prepared, plan)
        plan = replace(plan, anchors=AnchorsPlan(ratings, cost.most_of(ratings)))
    if not prepared.request.is_shared:
        return plan
    return replace(plan, workers=planned_workers(prepared))
