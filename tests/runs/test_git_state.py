"""The commit that a run was made from, read from files of git and from files that no one should trust."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from geval_cli.records import GitState
from geval_cli.runs.record import is_dirty, read_git_state
from geval_cli.source.access import TRUSTED, untrusted_access

HASH = "97608d379aa11be2c3d4e5f60718293a4b5c6d7e"
HAS_GIT = shutil.which("git") is not None

needs_git = pytest.mark.skipif(not HAS_GIT, reason="there is no git")


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "config.yaml").write_text("a", encoding="utf-8")
    git(folder, "add", "config.yaml")
    git(folder, "commit", "-qm", "one")
    return folder


def written(folder: Path, **files: str) -> Path:
    """A folder with a `.git` that holds these files; `__` in a name stands for `/`, `_` for `-`."""
    for name, text in files.items():
        path = folder / ".git" / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@needs_git
def test_a_commit_and_a_branch_are_those_that_git_tells(repository: Path) -> None:
    below = repository / "a" / "b"
    below.mkdir(parents=True)
    for folder in (repository, below):
        assert read_git_state(folder, TRUSTED) == GitState(git(repository, "rev-parse", "HEAD"), "main")
    git(repository, "switch", "-qc", "topic/über-1")
    git(repository, "pack-refs", "--all")
    assert read_git_state(repository, TRUSTED) == GitState(
        git(repository, "rev-parse", "HEAD"), "topic/über-1"
    )
    git(repository, "checkout", "-q", "--detach")
    assert read_git_state(repository, TRUSTED) == GitState(git(repository, "rev-parse", "HEAD"))


@needs_git
def test_a_linked_worktree_has_its_own_commit(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    (tmp_path / "linked" / "new").write_text("b", encoding="utf-8")
    git(tmp_path / "linked", "add", "new")
    git(tmp_path / "linked", "commit", "-qm", "two")
    found = read_git_state(tmp_path / "linked", TRUSTED)
    assert found == GitState(git(tmp_path / "linked", "rev-parse", "HEAD"), "other")
    assert found != read_git_state(repository, TRUSTED)


@needs_git
def test_what_git_tracks_and_was_changed_is_dirty(repository: Path) -> None:
    def dirty() -> bool | None:
        return asyncio.run(is_dirty(repository, TRUSTED))

    assert dirty() is False
    (repository / "untracked").write_text("x", encoding="utf-8")
    assert dirty() is False
    (repository / "config.yaml").write_text("changed", encoding="utf-8")
    assert dirty() is True


@needs_git
def test_settings_of_a_repository_start_no_program(repository: Path) -> None:
    mark = repository / "started"
    program = repository / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n", encoding="utf-8")
    program.chmod(0o755)
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("fsmonitor-watchman", "post-index-change", "query-watchman"):
        shutil.copy(program, hooks / name)
    git(repository, "config", "core.fsmonitor", str(program))
    (repository / "config.yaml").touch()
    assert asyncio.run(is_dirty(repository, TRUSTED)) is False
    assert not mark.exists()


def test_git_is_not_asked_about_a_stranger_s_repository(tmp_path: Path) -> None:
    access = untrusted_access([tmp_path])
    written(tmp_path, HEAD=HASH)
    assert asyncio.run(is_dirty(tmp_path, access)) is None
    assert read_git_state(tmp_path, access) == GitState(HASH)


def test_a_stranger_s_config_looks_at_nothing_above_its_folder(tmp_path: Path) -> None:
    written(tmp_path, HEAD=HASH)
    (tmp_path / "below").mkdir()
    assert read_git_state(tmp_path / "below", untrusted_access([tmp_path / "below"])) is None


def test_without_git_nothing_is_known_of_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asyncio.run(is_dirty(tmp_path, TRUSTED)) is None


def test_a_folder_without_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert read_git_state(tmp_path, TRUSTED) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"HEAD": "ref: refs/heads/main\n"}, GitState(None, "main")),
        ({"HEAD": "ref: refs/heads/main", "refs__heads__main": f"{HASH}\n"}, GitState(HASH, "main")),
        ({"HEAD": "ref: refs/heads/main", "refs__heads__main": "root:x:0:0"}, GitState(None, "main")),
        (
            {
                "HEAD": "ref: refs/heads/main",
                "packed_refs": f"# pack-refs\n{HASH} refs/heads/main\n^{HASH}\n",
            },
            GitState(HASH, "main"),
        ),
        ({"HEAD": "ref: refs/remotes/origin/x\n", "refs__remotes__origin__x": HASH}, GitState(HASH)),
        ({"HEAD": "ref: ../../../etc/passwd"}, None),
        ({"HEAD": "ref: refs/../../secret", "secret": HASH}, None),
        ({"HEAD": "ref: refs/heads/a\x1b[31m"}, None),
        ({"HEAD": ""}, None),
        ({"HEAD": "x" * 100_000}, None),
        ({"HEAD": HASH[:-1]}, None),
        ({"config": ""}, None),
    ],
)
def test_whatever_stands_in_the_files_gives_a_commit_or_none(
    files: dict[str, str], expected: GitState | None, tmp_path: Path
) -> None:
    assert read_git_state(written(tmp_path, **files), TRUSTED) == expected


@pytest.mark.parametrize("kind", ["pipe", "folder", "link in a circle", "link to nothing", "foreign file"])
def test_a_git_that_is_no_repository_is_none_and_keeps_nobody_waiting(kind: str, tmp_path: Path) -> None:
    place = tmp_path / ".git"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
        os.mkfifo(place / "HEAD")
    elif kind == "link in a circle":
        place.symlink_to(place)
    elif kind == "link to nothing":
        place.symlink_to("nothing")
    else:
        place.write_text("gitdir: /nowhere/at/all\n", encoding="utf-8")
    assert read_git_state(tmp_path, TRUSTED) is None
