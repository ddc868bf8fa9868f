"""Runs the real `geval` command in a process of its own, as a user does."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_VOLATILE = (
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b"), "<ID>"),
    (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|min)\b(?!\w)"), "<TIME>"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}T[\d:.]+(\+00:00|Z)"), "<WHEN>"),
)


@dataclass(frozen=True)
class Finished:
    """How a command ended; `stdout` and `stderr` with what differs from run to run replaced."""

    code: int
    stdout: str
    stderr: str


def with_ctrl_c() -> None:
    """Undo, in a new process, that a shell's background jobs ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of a user without keys, in a plain 100-column pipe."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "GEVAL_MODELS_DIR") if name in os.environ
    }
    return {**kept, "PYTHONUTF8": "1", **extra}


def run_geval(
    *args: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> Finished:
    """Run `geval ARGS` in `cwd` and wait for it."""
    finished = subprocess.run(
        [sys.executable, "-m", "geval_cli", *args],
        cwd=cwd,
        env=clean_environment() if env is None else dict(env),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )
    return Finished(finished.returncode, settled(finished.stdout, cwd), settled(finished.stderr, cwd))


def settled(text: str, folder: Path) -> str:
    """`text` with ids, times and the folder's path replaced."""
    text = text.replace(str(folder), "<DIR>")
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text
