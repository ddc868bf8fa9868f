"""A command run once, with what it took: wall time, processor time, the most memory."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FINE = (0, 1)


@dataclass(frozen=True)
class Measured:
    """What one run of a command took. `cpu_s` is user and system time of the process itself."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Measured:
    """Run `command` in `folder` and wait for it; ends the benchmark if it neither passed nor failed its tests."""
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in _FINE:
            errors.seek(0)
            said = errors.read()[-2000:].decode(errors="replace")
            sys.exit(f"{' '.join(command[:4])} ended with {process.returncode}:\n{said}")
    return Measured(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
