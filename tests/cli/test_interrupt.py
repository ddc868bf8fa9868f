"""Ctrl-C and SIGTERM in the middle of a run, sent to the real process."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval, with_ctrl_c

from geval_cli.store.runs import RunStore

SLOW_AFTER = 3
CONFIG = """\
prompts: ["{{ x }}"]
providers:
  - { id: "scripted:replies.yaml", config: { max_concurrency: 1 } }
tests:
""" + "".join(
    f"  - {{ vars: {{ x: 'word{number}' }}, assert: [{{ type: contains, value: fine }}] }}\n"
    for number in range(9)
)
REPLIES = "".join(f"- {{ match: word{number}, reply: fine }}\n" for number in range(SLOW_AFTER)) + (
    "- { match: word, reply: late, latency_ms: 600000 }\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "replies.yaml").write_text(REPLIES, encoding="utf-8")
    return tmp_path


def start(project: Path, *options: str) -> "subprocess.Popen[str]":
    """A run that has finished three tests and waits for the fourth."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "geval_cli",
            "run",
            "config.yaml",
            "-o",
            "out.jsonl",
            "-o",
            "out.json",
            *options,
        ],
        cwd=project,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        preexec_fn=with_ctrl_c,  # noqa: PLW1509 - the tests have no threads of their own here
    )
    lines = project / "out.jsonl"
    while not lines.exists() or lines.read_text(encoding="utf-8").count("\n") < SLOW_AFTER:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            pytest.fail("the run ended early")
    return process


def wait_until_stored(home: Path) -> None:
    """Results are committed in groups, a few milliseconds after they are known."""
    store = RunStore.open(home)
    run_id = store.find("latest").run.id
    while len(list(store.results(run_id))) < SLOW_AFTER:
        pass
    store.close()


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_stops_the_run_and_keeps_what_is_finished(
    project: Path, sent: signal.Signals, code: int
) -> None:
    process = start(project)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "3 passed" in out
    assert f"{sent.name}: stopping; what is finished is kept" in err
    assert "Traceback" not in err
    report = json.loads((project / "out.json").read_text(encoding="utf-8"))
    assert report["run"]["status"] == "interrupted"
    assert report["summary"]["total"] == SLOW_AFTER
    assert [item["status"] for item in report["results"]] == ["passed"] * SLOW_AFTER
    shown = run_geval("show", cwd=project)
    assert "3 passed" in shown.stdout
    assert "interrupted" in run_geval("list", cwd=project).stdout


def test_a_second_signal_ends_the_process_at_once(project: Path) -> None:
    process = start(project)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "3 passed" in out
    assert "3 passed" in run_geval("show", cwd=project).stdout


def test_ctrl_c_after_fail_fast_ends_with_its_own_exit_code_and_keeps_what_is_finished(project: Path) -> None:
    config = (project / "config.yaml").read_text(encoding="utf-8")
    config = config.replace(
        "x: 'word2' }, assert: [{ type: contains, value: fine }",
        "x: 'word2' }, assert: [{ type: contains, value: no }",
    )
    config = config.replace(
        "x: 'word1' }, assert: [{ type: contains, value: fine }",
        "x: 'word1' }, assert: [{ type: contains, value: no }",
    )
    (project / "config.yaml").write_text(config, encoding="utf-8")
    process = start(project, "--fail-fast", "--no-progress")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "SIGINT: stopping" in err
    assert "1 passed, 2 failed" in out
    assert "1 passed, 2 failed" in run_geval("show", cwd=project).stdout


def test_a_killed_process_leaves_every_finished_result(project: Path) -> None:
    process = start(project)
    wait_until_stored(project / ".geval")
    process.kill()
    process.communicate(timeout=60)
    shown = run_geval("show", cwd=project)
    assert "3 passed" in shown.stdout
    listed = run_geval("list", cwd=project).stdout
    assert "interrupted" in listed
    assert "running" not in listed
