"""What a killed writer left beside a report is removed by the next one, and nothing else is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from geval_cli.report.safe_file import SafeFile

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")

WRITER = """
import sys, time
from pathlib import Path
from geval_cli.report.safe_file import SafeFile
with SafeFile(Path(sys.argv[1])) as file:
    file.write("x" * 1_000_000)  # more than Python keeps in a buffer
    print("written", flush=True)
    time.sleep(100)
"""


def write(path: Path) -> None:
    with SafeFile(path) as file:
        file.write("new")


def test_only_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"written\n"
    (unfinished,) = tmp_path.iterdir()
    write(path)
    assert unfinished.exists()
    writer.kill()
    writer.communicate()
    write(path)
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_links_and_what_was_just_begun_stay(tmp_path: Path) -> None:
    digits, precious = "0123456789abcdef", tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    (tmp_path / f".out.json.{digits}.tmp").symlink_to(precious)
    begun = tmp_path / f".out.json.{digits[::-1]}.tmp"
    begun.touch()
    others = [f".other.json.{digits}.tmp", ".out.json.tmp", f".out.json.{digits}.tmp.bak"]
    for name in others:
        (tmp_path / name).write_text("other", encoding="utf-8")
    write(tmp_path / "out.json")
    kept = {"precious", "out.json", begun.name, f".out.json.{digits}.tmp", *others}
    assert {path.name for path in tmp_path.iterdir()} == kept
    long_ago = time.time() - 3600
    os.utime(begun, (long_ago, long_ago))
    write(tmp_path / "out.json")
    assert {path.name for path in tmp_path.iterdir()} == kept - {begun.name}
    assert precious.read_text(encoding="utf-8") == "mine"
