"""What `make` does with the Python that it is given."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_another_python_gets_an_environment_of_its_own() -> None:
    def commands(*words: str) -> str:
        made = ["make", "--dry-run", "--always-make", "test", *words]
        return subprocess.run(made, cwd=HERE, capture_output=True, text=True, check=True).stdout

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert ".venv/bin/python -m pytest" in commands("PYTHON=python3")
    assert f".venv-{version}/bin/python -m pytest" in commands(f"PYTHON={sys.executable}")
