"""The tests' own way to run `geval`: a command that is forked off is like one that is loaded from nothing.

This is also what would notice that a command forgets to import something that the fork server has loaded.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked_geval import ForkedProcess, ForkServer
from support.geval_command import clean_environment, run_geval

CASES = Path(__file__).parent / "cases"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked on this system")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("fails", ("run", "config.yaml")),
        ("unknown_key", ("validate", "config.yaml")),
        ("export_suite", ("export", "suite", "config.yaml")),
        ("list_empty", ("list",)),
    ],
)
def test_a_forked_command_is_like_any_other(case: str, words: tuple[str, ...], tmp_path: Path) -> None:
    # The first run in a folder says that it makes a state folder there.
    one, other = (shutil.copytree(CASES / case, tmp_path / name) for name in ("one", "other"))
    forked = run_geval(*words, cwd=one)
    anew = run_geval(*words, cwd=other, is_loaded_anew=True)
    assert forked == anew


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    config = "prompts: [x]\nproviders: ['scripted:replies.yaml']\ntests: [{}]\n"
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "replies.yaml").write_text("- { reply: late, latency_ms: 600000 }\n", encoding="utf-8")
    with pytest.raises(subprocess.TimeoutExpired):
        run_geval("run", "config.yaml", cwd=tmp_path, timeout_s=0.1)
    assert run_geval("--version", cwd=tmp_path).code == 0


def test_a_fork_server_that_cannot_load_geval_says_why(tmp_path: Path) -> None:
    (tmp_path / "geval_cli.py").write_text("raise ImportError('this is not geval')", encoding="utf-8")
    server = ForkServer(clean_environment(PYTHONPATH=str(tmp_path)))
    with pytest.raises(RuntimeError, match="this is not geval"):
        ForkedProcess((), server, cwd=tmp_path, env={})


def test_each_command_has_its_own_folder_and_environment(tmp_path: Path) -> None:
    script = "import os, sys; sys.stdout.write(os.environ['WORD'] + os.getcwd())"
    (tmp_path / "say.py").write_text(script, encoding="utf-8")
    config = f"prompts: [x]\nproviders: ['exec:{sys.executable} say.py']\ntests: [{{}}]\n"
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    for word in ("one", "two"):
        run_geval("run", "config.yaml", "-o", "out.jsonl", cwd=tmp_path, env=clean_environment(WORD=word))
        assert f'"{word}{tmp_path}"' in (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert "WORD" not in os.environ
