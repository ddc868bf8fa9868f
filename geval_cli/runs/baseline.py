"""The choice of the earlier run to compare with, and of the gates that decide. The comparison itself is an extra."""

import dataclasses
from collections.abc import Iterator, Sequence

from geval_cli.engine.columns import check_baseline, columns_named
from geval_cli.engine.gates import ALL_PASS, errors_are_gated, passed_gate
from geval_cli.errors import Problem, Severity
from geval_cli.patterns import compile_later
from geval_cli.records import Column
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import is_results_file
from geval_cli.suite.gates import Gate
from geval_cli.suite.suite import LoadedSuite

THIS_RUN = "this run"
_RUN_NAME = compile_later(r"latest(~\d+)?|\d[\da-f-]*")
NO_BASELINE = "none"
"""The value of `--baseline` that skips the comparison and its gates, for a first run that has no earlier one."""
_HINT = "set one with --baseline RUN or `baseline:` in the config: a run's id, `latest` or a results file"


def baseline_name(request: RunRequest, suite: LoadedSuite, columns: Sequence[Column]) -> str | None:
    """Return the run or file to compare with; None if there is none.

    The command line takes precedence. The config's `baseline:` names a column of the run itself if one has this label,
    otherwise an earlier run or, relative to the config's folder, a file.
    """
    if request.baseline is not None:
        return None if request.baseline == NO_BASELINE else request.baseline
    named = suite.baseline
    if named is None:
        return None
    if columns_named(columns, named.name) or not _may_be_a_run(named.name):
        return None
    return str(suite.base_dir / named.name) if is_results_file(named.name) else named.name


def baseline_problems(
    request: RunRequest, suite: LoadedSuite, columns: Sequence[Column], *, is_going_to_run: bool
) -> Iterator[Problem]:
    """Yield the problems of the config's `baseline`, and of gates that need a baseline if none is named.

    The latter are warnings if nothing is run, the former if a filter may have left the column out.
    """
    named = suite.baseline
    if named is not None and (columns_named(columns, named.name) or not _may_be_a_run(named.name)):
        of_filter = Severity.ERROR if request.selection.selects_all else Severity.WARNING
        for problem in check_baseline(named, columns):
            yield dataclasses.replace(problem, severity=of_filter)
    if baseline_name(request, suite, columns) is not None:
        return
    severity = Severity.ERROR if is_going_to_run else Severity.WARNING
    for gate in suite.gates:
        if not gate.needs_baseline:
            continue
        if request.baseline == NO_BASELINE:
            message = f"the gate `{gate.text}` is skipped: there is no baseline"
            yield Problem(message, gate.place.value(), severity=Severity.WARNING)
        else:
            lack = "there is none"
            if named is not None and columns_named(columns, named.name):
                lack = f"`baseline: {named.name}` is a column, not an earlier run"
            message = f"the gate `{gate.text}` needs a baseline, but {lack}"
            yield Problem(message, gate.place.value(), _HINT, severity=severity)


def _may_be_a_run(name: str) -> bool:
    """Return whether a name looks like that of a results file or of a run: an id, the beginning of one, `latest`."""
    return is_results_file(name) or _RUN_NAME.fullmatch(name) is not None


def gates_of(request: RunRequest, suite: LoadedSuite) -> tuple[tuple[Gate, ...], int | None]:
    """Return the gates of config and command line, and how many errors are allowed besides; None for any number.

    If gates decide, errors that no gate counts must not go unnoticed: none is allowed unless a number is given. If only
    a number of errors is given, everything that was judged must still pass.
    """
    gates = suite.gates
    if request.baseline == NO_BASELINE:
        gates = tuple(gate for gate in gates if not gate.needs_baseline)
    if request.fail_under is not None:
        gates = (*gates, passed_gate(request.fail_under))
    if request.max_errors is not None:
        return gates or (ALL_PASS,), request.max_errors
    return gates, 0 if gates and not errors_are_gated(gates) else None
