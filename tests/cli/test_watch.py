"""`--watch` in a real terminal: a change runs again, a broken config is survived, stop with Ctrl-C."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from support.geval_command import clean_environment, geval_at_terminal

from geval_cli.cli.watch import stamps_of, watch
from geval_cli.errors import ExitCode

OWN = ["-o", "out.json", "--home", "state", "--cache-dir", "answers", "--log-file", "log.jsonl"]
SUITE = "prompts: [hello]\nproviders: [echo]\ntests:\n  - assert: [{type: contains, value: WORD}]\n"


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[pexpect.spawn]:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("WORD", "hell"))
    environ = clean_environment(TERM="xterm", NO_COLOR="1")
    words = ("run", "suite.yaml", "--watch", *OWN)
    child = geval_at_terminal(*words, cwd=tmp_path, env=environ, dimensions=(40, 100))
    yield child
    child.close(force=True)


def test_watch(watching: pexpect.spawn, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    watching.expect("1 passed")
    watching.expect("stop with Ctrl-C")
    suite.write_text(SUITE.replace("WORD", "bye"))
    watching.expect("suite.yaml changed")
    watching.expect("1 failed")
    watching.expect("stop with Ctrl-C")
    suite.write_text("prompts: [")
    watching.expect("suite.yaml changed")
    watching.expect("error: ")
    watching.expect("stop with Ctrl-C")
    suite.write_text(SUITE.replace("WORD", "hello"))
    watching.expect("1 passed")
    watching.expect("stop with Ctrl-C")
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
        "cache.claims",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")

    found = stamps_of([tmp_path], {tmp_path / "out.json"}, 5_000)

    assert set(found) == {tmp_path / "suite.yaml", tmp_path / "data/rows.csv"}
    assert len(stamps_of([tmp_path], (), 1)) < 8


class Watched:
    """Runs under `watch` in a folder; where it would wait for a change for long, it ends as by Ctrl-C.

    `writes` is what each run, or whoever stands behind it, changes; `waits` what happens in the first pause after it.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.runs = 0
        self.pauses = 0
        self.writes: Callable[[int], None] = lambda run: None
        self.waits: Callable[[int], None] = lambda run: None
        self.own: list[Path] = []
        monkeypatch.setattr(time, "sleep", self._pause)
        (folder / "suite.yaml").write_text(SUITE)

    def count(self) -> int:
        """How many runs there are, 9 standing for no end."""
        watch(self._run, [self.folder / "suite.yaml"], own=lambda: self.own)
        return self.runs

    def _run(self) -> ExitCode:
        self.runs += 1
        self.pauses = 0
        if self.runs == 9:
            raise KeyboardInterrupt
        self.writes(self.runs)
        return ExitCode.OK

    def _pause(self, seconds: float) -> None:
        self.pauses += 1
        if self.pauses == 1:
            self.waits(self.runs)
        if self.pauses == 6:
            raise KeyboardInterrupt


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def append(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("more\n")


def test_what_a_run_writes_to_its_own_files_is_no_reason_for_another(watched: Watched) -> None:
    watched.own = [watched.folder / "out.json"]
    watched.writes = lambda run: append(watched.own[0])
    assert watched.count() == 1


@pytest.mark.parametrize("number", [1, 2])
def test_the_file_behind_its_streams_is_no_reason_for_another(watched: Watched, number: int) -> None:
    kept = os.dup(number)
    with (watched.folder / "said.txt").open("w", encoding="utf-8") as said:
        try:
            os.dup2(said.fileno(), number)
            watched.writes = watched.waits = lambda run: print("said", file=said, flush=True)
            runs = watched.count()
        finally:
            os.dup2(kept, number)
            os.close(kept)
    assert runs == 1


def test_what_changes_with_each_run_is_given_up_after_the_second(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.writes = watched.waits = lambda run: append(watched.folder / "tee.txt")
    assert watched.count() == 2
    assert "tee.txt changes with each run and is not watched" in capsys.readouterr().err


def test_what_others_change_after_or_during_a_run_is_a_reason_for_one(watched: Watched) -> None:
    watched.writes = lambda run: append(watched.folder / "data.csv") if run == 1 else None
    watched.waits = lambda run: append(watched.folder / "data.csv") if run == 2 else None
    assert watched.count() == 3


def test_a_config_that_is_saved_during_each_run_is_still_watched(watched: Watched) -> None:
    watched.writes = lambda run: append(watched.folder / "suite.yaml") if run < 5 else None
    assert watched.count() == 5
