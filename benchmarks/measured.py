"""Run a command once and measure its wall time, CPU time and peak memory."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FINE = (0, 1)
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Measured:
    """The time and memory that one run of a command took.

    Attributes:
        wall_s: the wall time.
        cpu_s: user and system time of the process and all its descendants, even those that outlived it.
        peak_mb: the peak memory of the largest of these processes.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Measured:
    """Run `command` in `folder` and wait for it; exits the benchmark if it neither passed nor failed its tests."""
    with tempfile.TemporaryFile() as errors, tempfile.NamedTemporaryFile() as figures:
        watcher = [sys.executable, __file__, figures.name, *command]
        subprocess.run(watcher, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors, check=False)
        found = json.loads(figures.read())
        if found.pop("code") not in _FINE:
            errors.seek(0)
            said = errors.read()[-2000:].decode(errors="replace")
            sys.exit(f"{' '.join(command[:4])} failed:\n{said}")
    return Measured(**found)


def _watch(figures: str, command: Sequence[str]) -> None:
    """Run `command` as its only parent, wait for all its descendants, and write the measurements to `figures`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    started = time.perf_counter()
    first = os.posix_spawnp(command[0], command, os.environ)
    wall_s, cpu_s, peak_mb, code = 0.0, 0.0, 0.0, 0
    while True:
        try:
            ended, status, used = os.wait3(0)
        except ChildProcessError:
            break
        cpu_s += used.ru_utime + used.ru_stime
        peak_mb = max(peak_mb, used.ru_maxrss / 1024)
        if ended == first:
            wall_s, code = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
    found = {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb, "code": code}
    Path(figures).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _watch(sys.argv[1], sys.argv[2:])
