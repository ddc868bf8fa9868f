"""What the README says is true: its commands run, its config works, its tables agree with the code."""

import re
import shlex
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer
from test_examples import respond

from geval_cli.errors import ExitCode

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for language, text in BLOCKS
    if language == "sh"
    for line in text.splitlines()
    if line.strip()
]


def test_every_geval_command_of_the_readme_runs(tmp_path: Path) -> None:
    config = next(text for language, text in BLOCKS if language == "yaml")
    commands = [words[1:] for words in COMMANDS if words[0] == "geval"]
    assert commands[:2] == [["demo"], ["init"]]
    commands.remove(["demo"])  # with the real model: tests/cli/test_first_hour.py
    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-of-the-readme")
        for words in commands:
            finished = run_geval(*words, cwd=tmp_path, env=env)
            assert finished.code in {0, 1}, (words, finished.stderr)
            assert "Traceback" not in finished.stderr
            (tmp_path / "gevalconfig.yaml").write_text(config, encoding="utf-8")
    assert (tmp_path / "results.json").exists()


def test_the_mistakes_of_the_readme_are_what_is_printed_for_their_config(tmp_path: Path) -> None:
    (shown,) = [text for language, text in BLOCKS if language == "text" and text.startswith("error:")]
    (prompts,) = re.findall(r"^  1 \| (.+)$", shown, re.MULTILINE)
    (assertion,) = re.findall(r"^  6 \| (.+)$", shown, re.MULTILINE)
    lines = [prompts, "providers: [echo]", "tests:", "  - vars: { name: Ada }", "    assert:", assertion]
    (tmp_path / "config.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    finished = run_geval(
        "validate", "config.yaml", cwd=tmp_path, env=clean_environment(OPENAI_API_KEY="sk-1")
    )
    assert finished.code == 2
    assert finished.stderr.strip() == shown.strip()


def test_the_files_of_geval_in_shown_output_exist() -> None:
    named = re.findall(r"\.\.\./(geval_cli/\S+)", README)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_make_target_of_the_readme_exists() -> None:
    targets = {words[1] for words in COMMANDS if words[0] == "make"}
    targets |= set(re.findall(r"`make (\w+)`", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == {"demo", "test", "check", "bench", "soak", "release"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_is_in_the_readme_and_in_the_help(code: ExitCode) -> None:
    table = README[README.index("## Exit codes") :]
    assert re.search(rf"^\| [\d, ]*\b{code.value}\b[\d, ]* \|", table, re.MULTILINE)
    shown = run_geval("--help", cwd=ROOT).stdout
    assert re.search(rf"\b{code.value}\s", shown[shown.index("Exit codes:") :])
