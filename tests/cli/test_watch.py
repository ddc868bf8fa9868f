"""`--watch` in a real terminal: a change runs again, a broken config is survived, Ctrl-C ends it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from support.geval_command import clean_environment

from geval_cli.cli.watch import stamps_of

OWN = ["-o", "out.json", "--home", "state", "--cache-dir", "answers", "--log-file", "log.jsonl"]
SUITE = "prompts: [hello]\nproviders: [echo]\ntests:\n  - assert: [{type: contains, value: WORD}]\n"


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[pexpect.spawn]:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("WORD", "hell"))
    child = pexpect.spawn(
        sys.executable,
        ["-m", "geval_cli", "run", "suite.yaml", "--watch", *OWN],
        cwd=str(tmp_path),
        env=clean_environment(TERM="xterm", NO_COLOR="1"),
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 100),
    )
    yield child
    child.close(force=True)


def test_watch(watching: pexpect.spawn, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    watching.expect("1 passed")
    watching.expect("Ctrl-C ends it")
    suite.write_text(SUITE.replace("WORD", "bye"))
    watching.expect("suite.yaml changed")
    watching.expect("1 failed")
    watching.expect("Ctrl-C ends it")
    suite.write_text("prompts: [")
    watching.expect("suite.yaml changed")
    watching.expect("error: ")
    watching.expect("Ctrl-C ends it")
    suite.write_text(SUITE.replace("WORD", "hello"))
    watching.expect("1 passed")
    watching.expect("Ctrl-C ends it")
    watching.sendintr()
    watching.expect(pexpect.EOF)
    watching.wait()
    assert watching.exitstatus == 0
    log = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert log.count('"run_started"') == 3, "what a run writes is no reason for another"


def test_generated_folders_and_results_files_are_not_watched(tmp_path: Path) -> None:
    for name in (
        "suite.yaml",
        "data/rows.csv",
        ".geval/runs.db",
        ".git/HEAD",
        "out.json",
        "suite.yaml~",
        "geval.db",
        "cache.db-wal",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")

    found = stamps_of([tmp_path], {tmp_path / "out.json"}, 5_000)

    assert set(found) == {tmp_path / "suite.yaml", tmp_path / "data/rows.csv"}
    assert len(stamps_of([tmp_path], (), 1)) < 8
