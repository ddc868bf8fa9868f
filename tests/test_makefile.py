"""What `make` does with the Python that it is given, and what each target installs."""

import os
import re
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


@pytest.mark.parametrize("target", ["test", "check", "docs", "bench", "release"])
def test_development_installs_everything_at_once(target: str) -> None:
    shown = commands(target)
    assert shown.count("--editable") == 1
    assert "--group dev" in shown


def test_a_full_environment_is_enough_for_the_demo() -> None:
    assert "touch .venv/.installed-runtime .venv/.installed" in commands("test", "PYTHON=python3")


AT_FIRST = """
from pathlib import Path
import os, pytest

def test_at_first():
    tried = Path(__file__).with_name("tried")
    if not tried.exists():
        tried.touch()
        {what}

def test_always():
    assert {outcome}
"""


@pytest.mark.parametrize(
    ("what", "outcome", "code", "is_tried_again"),
    [
        ("assert False", True, 0, True),
        ("assert False", False, 2, True),
        ("os._exit(0)", True, 2, False),
        ("pytest.exit('enough')", True, 2, False),
        ("assert True\nassert False", True, 2, False),
    ],
    ids=["unsteady", "broken", "crashed", "interrupted", "cannot be loaded"],
)
def test_what_fails_only_beside_others_is_named_and_no_failure(
    tmp_path: Path, what: str, outcome: bool, code: int, is_tried_again: bool
) -> None:
    for name in ("Makefile", "pyproject.toml", "tests/conftest.py", "tests/support/forked_tests.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(HERE / name, tmp_path / name)
    os.utime(tmp_path / "pyproject.toml", (0, 0))  # what it asks for is installed
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "tests" / "test_it.py").write_text(AT_FIRST.format(what=what, outcome=outcome))
    words = [
        "make",
        "--silent",
        "JOBS=1",
        "TYPES=true",
        *(f"--assume-old={done}" for done in ("lint", "browser", "model")),
    ]
    # `make test PYTHON=...` tells each make below it that Python, too.
    given = ("PYTEST_", "MAKE", "PYTHON")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(given)}
    # No other plugins: each of six processes would load them.
    clean |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin -p pytest_timeout"}
    ended = subprocess.run(
        [*words, "test"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stdout
    again = ended.stdout.partition("unsteady and must be fixed:\n")[2]
    assert bool(again) is is_tried_again, ended.stdout
    assert ("tests/test_it.py::test_at_first\n" in again) is is_tried_again
    assert ("1 passed" in again) is is_tried_again


def test_the_dockerfile_follows_the_rules_of_hadolint_that_apply() -> None:
    text = (HERE / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    images = [words for name, words in lines if name == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+( AS \w+)?", words) for words in images)  # DL3006, DL3007
    runs = [words for name, words in lines if name == "RUN"]
    assert all("--no-cache-dir" in words for words in runs if "pip install" in words)  # DL3042
    assert all("--constraint" in words for words in runs if "pip install" in words)  # DL3013
    assert not any(re.search(r"\bsudo\b|\bapt\b|\bcd\b", words) for words in runs)  # DL3004, DL3027, DL3003
    users = [words for name, words in lines if name == "USER"]
    assert users
    assert users[-1] != "0"  # DL3002
    assert users[-1].isdigit()  # DL3066
    assert f"--uid {users[-1]} " in text
    assert all(words.startswith("[") for name, words in lines if name in {"CMD", "ENTRYPOINT"})  # DL3025
    assert all(words.startswith("/") for name, words in lines if name == "WORKDIR")  # DL3000
    assert {name for name, _ in lines} <= {
        "FROM",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "WORKDIR",
        "ENTRYPOINT",
        "CMD",
    }


def test_no_path_of_the_machine_that_builds_a_release_is_in_its_bill_of_materials() -> None:
    """pip notes where a wheel was installed from, and the bill of materials would name that."""
    recipe = (HERE / "Makefile").read_text("utf-8").partition("\nrelease:")[2].partition("\nclean:")[0]
    assert recipe.index("/direct_url.json") < recipe.index("cyclonedx-py environment")


def test_the_image_has_the_extras_whose_versions_a_release_pins() -> None:
    [extras] = re.findall(r"^RELEASED := (\S+)$", (HERE / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert f"[{extras}]" in (HERE / "Dockerfile").read_text("utf-8")
    kept = (HERE / ".dockerignore").read_text("utf-8").split()
    assert kept == ["*", "!dist/*.whl", "!dist/constraints.txt"]
