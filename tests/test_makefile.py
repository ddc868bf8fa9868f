"""What `make` does with the Python that it is given, and what each target installs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def commands(*words: str) -> str:
    made = ["make", "--dry-run", "--always-make", *words]
    return subprocess.run(made, cwd=HERE, capture_output=True, text=True, check=True).stdout


def test_another_python_gets_an_environment_of_its_own() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert ".venv/bin/python -m pytest" in commands("test", "PYTHON=python3")
    assert f".venv-{version}/bin/python -m pytest" in commands("test", f"PYTHON={sys.executable}")


def test_the_demo_installs_only_what_it_needs() -> None:
    shown = commands("demo")
    assert '--editable ".[local]"' in shown
    assert "--group dev" not in shown


@pytest.mark.parametrize("target", ["test", "check", "docs", "bench"])
def test_development_installs_everything_at_once(target: str) -> None:
    shown = commands(target)
    assert shown.count("--editable") == 1
    assert "--group dev" in shown


def test_a_full_environment_is_enough_for_the_demo() -> None:
    assert "touch .venv/.installed-runtime .venv/.installed" in commands("test", "PYTHON=python3")
