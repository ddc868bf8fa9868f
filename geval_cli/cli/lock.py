"""`geval lock`: write the evaluation steps of configs into the lock file beside them."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from geval_cli.cli.problems import print_warnings
from geval_cli.cli.run import prepare_all, run_stoppable, state_folders
from geval_cli.errors import ExitCode, UsageError
from geval_cli.extras.lock import lock_path, lock_suites, read_lock, write_lock
from geval_cli.gateway.call import Wire
from geval_cli.numbers import plural
from geval_cli.report.sanitize import one_line
from geval_cli.runs.requests import RunRequest
from geval_cli.store.state import CacheChoice, open_state

if TYPE_CHECKING:
    from geval_cli.cli.untrusted import KernelSandbox

_SHOWN = 60


def lock_configs(
    requests: Sequence[RunRequest],
    *,
    home: Path | None,
    cache: CacheChoice,
    updates: bool,
    sandbox: "KernelSandbox | None" = None,
) -> ExitCode:
    """Write the lock file of configs that are in one folder, and report what it pins.

    Raises:
        ConfigError: with every problem of the configs and of the lock file.
        UsageError: the configs are in several folders.
        JudgeError, ProviderError: a judge did not answer; the lock file is unchanged.
        OutputError: the lock file cannot be written.
    """
    path = lock_path(requests[0].config)
    if any(lock_path(request.config).resolve() != path.resolve() for request in requests):
        raise UsageError(
            "the configs are in different folders", hint="run `geval lock` separately for each folder"
        )
    if sandbox is not None:
        sandbox.confine(requests, state_folders(home, cache), [path])
    prepared = prepare_all(requests)
    if sandbox is not None:
        sandbox.narrow(prepared)
    with open_state(home, os.environ, cache) as state:
        print_warnings(state.warnings)
        state.cache.check_room()
        wire = Wire()
        before = read_lock(requests[0].config, requests[0].access)
        locking = lock_suites(prepared, before, state.cache, removes_unused=updates, wire=wire)
        locked = run_stoppable(locking, wire)
    if not before.is_there or before.entries != locked.entries:
        # Another `geval lock` in this folder may have pinned criteria while the judge wrote.
        known = {entry.key for entry in (*before.entries, *locked.entries)}
        now = read_lock(requests[0].config, requests[0].access).entries
        write_lock(requests[0].config, (*locked.entries, *(entry for entry in now if entry.key not in known)))
    pinned = plural(len(locked.entries), "criterion", "criteria")
    new = f" ({locked.asked:,} new)" if locked.asked else ""
    lines = [f"{path} pins the evaluation steps of {pinned}{new}"]
    if locked.unlocked:
        have = "criterion has" if locked.unlocked == 1 else "criteria have"
        lines.append(
            f"not pinned: {locked.unlocked:,} {have} variables, so the steps differ from test to test"
        )
    same_text = Counter(entry.criteria for entry in {*locked.entries, *locked.unused})
    for entry in locked.unused:
        shown = one_line(entry.criteria, _SHOWN)
        if same_text[entry.criteria] > 1:
            shown += f" (by {one_line(entry.judge, _SHOWN)} from {one_line(', '.join(entry.params), _SHOWN)})"
        lines.append(f"{'removed' if updates else 'unused'}: {shown}")
    if locked.unused and not updates:
        lines.append("remove what is unused with --update")
    elif locked.asked:
        lines.append(f"commit {path.name}: every run of a config in its folder uses it")
    sys.stdout.write("\n".join(lines) + "\n")
    return ExitCode.OK
