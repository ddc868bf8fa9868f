"""Runs geval with read-only folders, even if the tests run as root, who may write anywhere."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

_WITHOUT_PRIVILEGE = ["--bounding-set", "-dac_override,-dac_read_search"]


def read_only_command(
    cwd: Path, words: Sequence[str], *, read_only: Sequence[Path], environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run `geval WORDS` in `cwd`, while nothing in the folders `read_only` can be written."""
    command = [sys.executable, "-m", "geval_cli", *words]
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root can write anywhere, and there is no setpriv to change that")
        command = [setpriv, *_WITHOUT_PRIVILEGE, *command]
    paths = [path for folder in read_only for path in (folder, *folder.rglob("*"))]
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        return subprocess.run(
            command, cwd=cwd, env=dict(environ), capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        for path, mode in modes.items():
            if path.exists():
                path.chmod(mode)
