"""Temporary folders: those of processes that live stay, and those of killed ones go."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from geval_cli.store.home import (
    abandoned_folders,
    hold_folder,
    make_temporary_folder,
    remove_folder,
    temporary_folder,
)

HOLDS = """
import sys, tempfile
from pathlib import Path
from geval_cli.store.home import hold_folder, make_temporary_folder
tempfile.tempdir = sys.argv[1]
folder = make_temporary_folder() if len(sys.argv) == 2 else Path(sys.argv[2])
hold_folder(folder)
(folder / "deep").mkdir(exist_ok=True)
(folder / "deep" / "file").write_text("answers")
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def holder(*words: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process that holds a temporary folder, and that folder."""
    command = [sys.executable, "-c", HOLDS, *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_goes_once_all_that_hold_it_are_killed(place: Path) -> None:
    first, folder = holder(place)
    second, same = holder(place, folder)
    assert same == folder
    first.kill()
    first.communicate()
    with temporary_folder():
        assert folder.exists()
    second.kill()
    second.communicate()
    assert list(abandoned_folders()) == [folder]
    with temporary_folder() as own:
        assert list(place.iterdir()) == [own]
    assert not own.exists()


@pytest.mark.filterwarnings("error")  # of a file that is left open
def test_a_folder_that_is_held_again_and_again_has_one_lock_until_it_goes(place: Path) -> None:
    folder = make_temporary_folder()
    marks = list(folder.iterdir())
    for _ in range(3):
        hold_folder(folder)
        gc.collect()
    assert list(folder.iterdir()) == marks
    assert list(abandoned_folders()) == []
    remove_folder(folder)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "mode", "content"),
    [
        ("pymp-theirsss", 0o700, "file"),
        ("geval-theirsss", 0o700, "file"),
        ("geval-pull-7", 0o700, ".held-by-1"),
        ("geval-security", 0o755, ".held-by-1"),
        ("geval-security", 0o700, ".git .held-by-1"),
        ("geval-security", 0o700, "pipe .held-by-1"),
    ],
)
def test_what_nobody_of_geval_held_stays(place: Path, name: str, mode: int, content: str) -> None:
    """A clone may well have such a name, and a file in it that looks like a mark."""
    (place / name).mkdir()
    (place / name).chmod(mode)
    for file in content.split():
        (place / name / file).touch()
    if "pipe" in content:
        (place / name / ".held-by-1").unlink()
        os.mkfifo(place / name / ".held-by-1")
    remove_folder(make_temporary_folder())
    assert [path.name for path in place.iterdir()] == [name]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_is_not_followed(place: Path) -> None:
    process, folder = holder(place)
    process.kill()
    process.communicate()
    elsewhere = place / "elsewhere"
    folder.rename(elsewhere)
    (place / "geval-link").symlink_to(elsewhere)
    (elsewhere / "link").symlink_to(place)
    remove_folder(make_temporary_folder())
    assert (elsewhere / "deep" / "file").exists()
    (place / "geval-link").unlink()
    elsewhere.rename(folder)
    remove_folder(make_temporary_folder())
    assert list(place.iterdir()) == []
