"""`geval judge`: judge the outputs of a stored run again."""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from geval_cli.cli.problems import keep_runs, print_problems
from geval_cli.cli.run import RunDisplay, run_configs
from geval_cli.errors import ExitCode, Problem, Severity, UsageError
from geval_cli.extras.judge_again import held_options, judging_request, open_source
from geval_cli.report.sanitize import one_line
from geval_cli.runs.options import RunOptions
from geval_cli.runs.requests import JudgedMetrics
from geval_cli.runs.resume import UNFINISHED
from geval_cli.store.state import CacheChoice

if TYPE_CHECKING:
    from geval_cli.cli.untrusted import KernelSandbox


def judge_again(
    source: str,
    config: Path | None,
    given: RunOptions,
    *,
    changes: JudgedMetrics,
    cache: CacheChoice,
    sandbox: "KernelSandbox | None" = None,
) -> ExitCode:
    """Judge the outputs of the run that `source` names, and show the results.

    Raises:
        UsageError: there is no such run, or none of its outputs is to be judged.
        ConfigError: with every problem of the config, or of the results file.
    """
    keep_runs(given.outputs, [source])
    with open_source(source, given, os.environ, changes) as judged:
        request = judging_request(judged, config, given, os.environ)
        sys.stderr.write(f"judging the outputs of run {judged.run.id} by {request.config}\n")
        if held := held_options(judged, request, given):
            sys.stderr.write(f"as that run was: {one_line(', '.join(held), 1000)}\n")
        if given.plan:
            from geval_cli.cli.plan import show_plans

            return show_plans([request], given.outputs, home=given.home, cache=cache, sandbox=sandbox)
        # Ratings that are reused need no cache, not even offline.
        cache = replace(cache, may_be_absent=True)
        display = RunDisplay(
            given.outputs,
            shows_progress=given.shows_progress,
            is_verbose=given.is_verbose,
            log_file=given.log_file,
        )
        code = run_configs([request], display, home=given.home, cache=cache, sandbox=sandbox)
        if code is not ExitCode.OK or judged.run.status not in UNFINISHED:
            return code
        what = f"run {judged.run.id} did not finish, so its other cases are not judged"
        hint = "finish it with `geval run --resume`, then judge it again"
        print_problems([Problem(what, hint=hint, severity=Severity.ERROR)])
        return ExitCode.NOT_JUDGED


def parse_threshold(written: str) -> tuple[str, float]:
    """Return the metric and the threshold in `METRIC=0.8`.

    Raises:
        UsageError: the text is not of that form.
    """
    metric, separator, text = written.rpartition("=")
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not separator or not metric or not math.isfinite(threshold) or threshold < 0:
        hint = "for example --threshold accuracy=0.8"
        raise UsageError(f"--threshold takes METRIC=SCORE, not `{written}`", hint=hint)
    return metric, threshold
