import os
import socket
from pathlib import Path

import pytest

from geval_cli.errors import ConfigError, Location
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import SourceFiles, open_problem, read_text


def message_of(path: Path, max_bytes: int = 100) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(path, TRUSTED, max_bytes=max_bytes)
    (problem,) = caught.value.problems
    return f"{problem.message} ({problem.hint})"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfhi")
    assert read_text(path, TRUSTED) == "hi"


def test_a_file_that_is_too_large_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "is larger than" in message_of(path)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/tty", "socket"])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)
    elif name == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    said = message_of(path)
    assert "is a pipe or a device, not a file" in said or "cannot be read" in said
    if name in {"pipe", "/dev/zero"}:
        assert "is a pipe or a device, not a file (save its content in a file and use that)" in said


def test_what_the_shell_hands_over_is_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"A=b")
        os.close(writing)
        assert read_text(Path(f"/dev/fd/{reading}"), TRUSTED) == "A=b"
    finally:
        os.close(reading)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    assert "byte 0xE9 at offset 3" in message_of(path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), "may not be read"),
        (IsADirectoryError(21, "Is a directory"), "is a folder"),
        (OSError(36, "File name too long"), "cannot be read: file name too long"),
    ],
)
def test_what_the_system_says_becomes_a_sentence(error: OSError, words: str) -> None:
    assert words in open_problem(Path("a.txt"), error, None).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x", encoding="utf-8")
    path.chmod(0)
    assert "may not be read" in message_of(path)


def test_texts_come_without_their_last_line_break_and_follow_the_config(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (tmp_path / "b.txt").write_bytes(b"three\n\n")
    files = SourceFiles(tmp_path, TRUSTED)
    assert files.text("file://a.txt", None) == "one\r\ntwo"
    assert files.text(f"file://{tmp_path}/b.txt", None) == "three\n"


def test_problems_stand_where_the_file_was_asked_for(tmp_path: Path) -> None:
    place = Location("suite.yaml", 3, 5)
    with pytest.raises(ConfigError) as caught:
        SourceFiles(tmp_path, TRUSTED).text("file://none.txt", place)
    assert caught.value.problems[0].location == place
