"""Disks that are full, and databases that cannot be written: nothing is paid for that would not be stored.

The disks are real and small: file systems in memory, which only root can mount.
"""

import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer, chat_reply
from support.product import Finished, Product
from support.web_server import running_server

from geval_cli.store import database

TESTS = 30
PRICE = {"input": 10_000, "output": 10_000}  # an answer is 10 cents


def config(**provider: Any) -> dict[str, Any]:
    return {
        "prompts": ["Say {{ x }}"],
        "providers": [{"id": "openai:m", "config": {"price": PRICE, **provider}}],
        "defaultTest": {"assert": [{"type": "contains", "value": "fine"}]},
        "tests": [{"vars": {"x": number}} for number in range(TESTS)],
    }


class Disk:
    """A small disk, as a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, *, left_bytes: int = 0) -> None:
        """Leave so much room, as far as whole pages go."""
        with (self.folder / "filler").open("ab", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(b"\0" * 512)
            filler.truncate(max(0, filler.tell() - left_bytes))

    def free(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.name != "posix" or os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        yield Disk(folder)
    finally:
        subprocess.run([unmount, "-l", str(folder)], capture_output=True, check=False)


def fine(*_: Any) -> Any:
    return chat_reply("fine " * 200)


def run(product: Product, server: LoopbackServer, home: Path, *options: str) -> Finished:
    return product.run(config(), server, "--home", str(home), *options)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("left_bytes", [0, 100_000, 200_000])
def test_going_on_with_a_run_on_a_full_disk_asks_nothing_again_and_again(
    product: Product, disk: Disk, left_bytes: int
) -> None:
    """Also where there is room enough to open the databases, and to say that the run goes on."""
    home = disk.folder / "state"
    with LoopbackServer(respond=fine) as server:
        assert run(product, server, home, "--max-requests", "10", "-j", "2").code == 3
        disk.fill(left_bytes=left_bytes)
        for _ in range(3):
            finished = run(product, server, home, "--resume")
            assert len(server.requests) == 10
            if left_bytes:
                assert finished.code == 3
                assert "the disk is full; nothing was sent" in words(finished.stderr)
                assert "free some space" in words(finished.stderr)
            else:
                assert finished.code == 2
                assert "because its results cannot be stored" in words(finished.stderr)
        disk.free()
        finished = run(product, server, home, "--resume")
        assert (finished.code, len(server.requests)) == (0, TESTS)
    assert len(finished.cases) == TESTS


@pytest.mark.parametrize("is_there", [True, False])
def test_a_new_run_on_a_full_disk_asks_nothing(product: Product, disk: Disk, is_there: bool) -> None:
    home = disk.folder / "state"
    with LoopbackServer(respond=fine) as server:
        if is_there:
            run(product, server, home, "--max-requests", "1", "-j", "1")
        disk.fill()
        before = len(server.requests)
        finished = run(product, server, home)
        assert (finished.code, len(server.requests)) == (3, before)
    assert "nothing was sent, because the answers would be paid for but not stored" in words(finished.stderr)


def test_no_other_command_asks_anything_on_a_full_disk_either(product: Product, disk: Disk) -> None:
    home, judge = str(disk.folder / "state"), {"id": "openai:judge", "config": {"price": PRICE}}
    assertion = {"type": "g-eval", "criteria": "It is good.", "provider": judge, "scoring": "single"}
    (product.folder / "document.txt").write_text("The fox eats nine carrots.", encoding="utf-8")
    with LoopbackServer(respond=judge_sensibly) as server:

        def geval(*words: str) -> Finished:
            return product.command(server, *words, "--home", home, writes_results=False)

        whole = {**config(), "defaultTest": {"assert": [assertion]}, "tests": [{"vars": {"x": 1}}]}
        assert product.run(whole, server, "--home", home).code == 0
        assert geval("drift", "--save", "anchors.jsonl").code == 0
        disk.fill()
        before = len(server.requests)
        writing = ("generate", "tests", "--model", "openai:m", "--from", "document.txt", "--n", "1")
        for words in (
            ("lock", "config.yaml"),
            ("drift", "anchors.jsonl", "config.yaml"),
            ("probe", "config.yaml", "--items", "1"),
            (*writing, "-o", "tests.jsonl"),
        ):
            finished = geval(*words)
            told = " ".join(finished.stderr.split())
            assert (finished.code, len(server.requests)) == (3, before), told
            assert "nothing was sent, because the answers would be paid for but not stored" in told
        assert geval(*writing, "--plan").code == 0


def test_what_costs_nothing_is_asked_all_the_same_and_shown(product: Product, disk: Disk) -> None:
    disk.fill()
    with LoopbackServer(respond=fine) as server:
        whole = {**config(), "providers": ["echo"], "prompts": ["fine {{ x }}"]}
        finished = product.run(whole, server, "--home", str(disk.folder / "state"))
    assert finished.code == 0
    assert len(finished.cases) == TESTS


def test_a_disk_that_fills_up_stops_a_run_and_what_is_not_stored_is_told(
    product: Product, disk: Disk
) -> None:
    home = disk.folder / "state"

    def respond(*_: Any) -> Any:
        if len(server.requests) == 5:
            disk.fill()
        return chat_reply("fine " * 20_000)

    with LoopbackServer(respond=respond) as server:
        finished = run(product, server, home, "-j", "2")
        asked = len(server.requests)
    assert finished.code == 3
    assert 5 <= asked < 20
    assert finished.results["run"]["status"] == "aborted"
    assert len(finished.cases) == asked  # what was paid for is shown and written
    [told] = [text for text in finished.results["run"]["warnings"] if "not all of this run is stored" in text]
    assert "which cost $" in told
    assert re.search(
        rf"not all of this run is stored: \d+ of {asked} results are; the other \d+, which", told
    )
    assert "would be paid for but not stored" in words(finished.stderr)
    disk.free()
    with LoopbackServer(respond=fine) as server:
        finished = run(product, server, home, "--resume")
    assert finished.code == 0
    assert len(finished.cases) == TESTS


def test_a_cache_on_a_full_disk_stops_nothing_as_results_are_stored(product: Product, disk: Disk) -> None:
    folder = disk.folder / "cache"
    with LoopbackServer(respond=fine) as server:
        run(
            product,
            server,
            product.folder / "state",
            "--cache-dir",
            str(folder),
            "--max-requests",
            "3",
            "-j",
            "1",
        )
        disk.fill()
        finished = run(product, server, product.folder / "state", "--cache-dir", str(folder), "--resume")
        assert (finished.code, len(server.requests)) == (0, TESTS)
    assert "the answers of this run are kept in a temporary folder" in words(finished.stderr)


def test_results_files_and_logs_on_a_full_disk_lose_no_stored_result(product: Product, disk: Disk) -> None:
    disk.fill()
    home, log = product.folder / "state", disk.folder / "requests.jsonl"
    with LoopbackServer(respond=fine) as server:
        finished = run(product, server, home, "--log-file", str(log), "-o", str(disk.folder / "out.json"))
        assert (finished.code, len(server.requests)) == (3, TESTS)
        assert run(product, server, home, "--resume-from", "latest").code == 0
        assert len(server.requests) == TESTS
    assert "cannot write" in finished.stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_a_database_that_another_process_keeps_locked_lets_nothing_be_asked(
    product: Product, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.02)
    home = product.folder / "state"
    with LoopbackServer(respond=fine) as server:
        run(product, server, home, "--max-requests", "2", "-j", "1")
        with contextlib.closing(sqlite3.connect(home / "geval.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            finished = run(product, server, home, *(["--resume"] if is_there else []))
        assert (finished.code, len(server.requests)) == (3, 2)
    assert "another process has it locked; nothing was sent" in words(finished.stderr)


def test_the_web_page_leaves_no_half_of_a_suite_on_a_full_disk(disk: Disk, tmp_path: Path) -> None:
    suite = disk.folder / "suite.yaml"
    suite.write_text("prompts: [hi]\nproviders: [echo]\n", encoding="utf-8")
    before = suite.read_bytes()
    with running_server(disk.folder, home=tmp_path / "state") as server:
        disk.fill()
        digest = hashlib.sha256(before).hexdigest()
        longer = suite.read_text(encoding="utf-8") + "# more\n" * 2000
        for path, asked in (
            ("/suites/new", {"path": "second.yaml"}),
            ("/suites/save", {"path": "suite.yaml", "digest": digest, "text": longer}),
        ):
            answer = server.post(path, asked)
            assert (answer.status, "no space left" in answer.text) == (403, True)
            assert "fix it" in answer.json["hint"]
        assert suite.read_bytes() == before
        assert {path.name for path in disk.folder.iterdir()} == {"suite.yaml", "filler"}
        disk.free()
        assert server.post("/suites/new", {"path": "second.yaml"}).status == 201
