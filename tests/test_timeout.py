"""A test that never ends must fail by itself, or `make test` waits for ever."""

import subprocess
import sys
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
HANGS = "import threading\ndef test_hang():\n    threading.Event().wait()\ndef test_next():\n    pass\n"


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300


def test_a_hanging_test_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGS, encoding="utf-8")
    words = ["-m", "pytest", "-q", "-c", str(PYPROJECT), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    finished = subprocess.run(
        [sys.executable, *words, "-o", "timeout=0.2", "test_hanging.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in finished.stdout, finished.stdout + finished.stderr
