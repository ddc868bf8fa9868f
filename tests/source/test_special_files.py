"""Pipes where a config names a file: a problem at once, never a wait for somebody who writes."""

import os
from pathlib import Path

import pytest
from support.geval_command import run_geval

from geval_cli.source.access import regular_only


@pytest.mark.parametrize(
    "config",
    [
        "prompts: ['file://pipe']\nproviders: [echo]\n",
        "prompts: [x]\nproviders: [echo]\ntests: file://pipe\n",
        "prompts: [x]\nproviders: [echo]\ntests: file://pipe.jsonl\n",
        "prompts: ['{{ a }}']\nproviders: [echo]\ntests: [{vars: {a: 'file://pipe'}}]\n",
        "prompts: ['{{ a }}']\nproviders: [echo]\ntests: [{vars: {a: 'file:///dev/zero'}}]\n",
        "prompts: [x]\nproviders: ['scripted:pipe']\ntests: [{}]\n",
        "prompts: [x]\nproviders: ['file://pipe.js']\ntests: [{}]\n",
        "prompts: [x]\nproviders: [echo]\ntests: [{assert: [{type: is-json, value: 'file://pipe'}]}]\n",
        "dialect: promptfoo\nprompts: ['file://pipe']\nproviders: [echo]\n",
        "dialect: promptfoo\nprompts: [x]\nproviders: [echo]\ntests: pipe.csv\n",
        "dialect: promptfoo\nprompts: [x]\nproviders: [echo]\ntests: [{vars: {a: 'file://pipe'}}]\n",
        "dialect: promptfoo\nprompts: [x]\nproviders: [echo]\ndefaultTest: file://pipe.yaml\n",
    ],
)
def test_a_pipe_in_a_config_is_a_problem(tmp_path: Path, config: str) -> None:
    for name in ("pipe", "pipe.jsonl", "pipe.csv", "pipe.yaml", "pipe.js"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "gevalconfig.yaml").write_text(config, encoding="utf-8")
    done = run_geval("run", "gevalconfig.yaml", cwd=tmp_path)
    assert done.code == 2, done.stdout + done.stderr
    assert "pipe" in done.stderr or "/dev/zero" in done.stderr


def test_a_config_that_is_a_pipe_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    done = run_geval("run", "pipe.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "`pipe.yaml` is a pipe or a device, not a file" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
def test_what_is_no_file_is_closed_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="is a "):
            regular_only(str(path), os.O_RDONLY)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
