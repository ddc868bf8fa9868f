"""docs/ci.md and action.yml: the YAML is valid, every geval option in it exists, and the action's script runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/ci.md").read_text("utf-8")
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def script_of(name: str) -> str:
    step = next(step for step in ACTION["runs"]["steps"] if step.get("name") == name)
    script: str = step["run"]
    return script


def environment(folder: Path, **inputs: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = folder / "step-summary.md"
    return {
        "PATH": path,
        "HOME": str(folder),
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        **inputs,
    }


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_are_yaml(block: str) -> None:
    assert yaml.safe_load(block)


def test_the_example_uses_inputs_that_the_action_has() -> None:
    steps = yaml.safe_load(BLOCKS[0])["jobs"]["evals"]["steps"]

    assert set(steps[-1]["with"]) <= set(ACTION["inputs"])


def test_every_option_on_the_page_exists() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "geval_cli", "run", "--help"], capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))

    assert named
    assert {option for option in named if option not in help_text} == set()


@pytest.mark.parametrize(("expected", "code"), [("hello", 0), ("bye", 1)])
def test_the_actions_script_runs(tmp_path: Path, expected: str, code: int) -> None:
    config = tmp_path / "my evals.yaml"
    config.write_text(
        f"prompts: [hello]\nproviders: [echo]\ntests:\n  - assert:\n      - type: equals\n        value: {expected}\n"
    )
    (tmp_path / "evals.yaml").write_text(config.read_text())
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Run geval")],
        cwd=tmp_path,
        env=environment(tmp_path, CONFIG="evals.yaml", ARGS="--no-progress -j 2", REPORTS="out"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stderr
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"results.json", "results.html", "results.junit.xml", "summary.md"}
    assert (tmp_path / "step-summary.md").read_text("utf-8").startswith("# geval: ")
    assert ("::error file=evals.yaml,line=5,col=9" in done.stdout) is (code == 1)


def test_a_broken_config_keeps_its_exit_code_and_writes_no_summary(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text("promts: []\n")
    done = subprocess.run(
        ["bash", "-e", "-c", script_of("Run geval")],
        cwd=tmp_path,
        env=environment(tmp_path, CONFIG="evals.yaml", ARGS="", REPORTS="out"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "did you mean `prompts`" in done.stderr
    assert not (tmp_path / "step-summary.md").exists()


def test_inputs_reach_the_script_only_as_environment_values() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
