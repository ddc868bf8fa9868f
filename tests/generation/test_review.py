"""`geval review` at a real terminal: keys, edits, leaving and coming back, and what is written."""

import json
import re
from pathlib import Path
from typing import Any

import pexpect
import pytest
from support.geval_command import clean_environment, geval_at_terminal, run_geval

from geval_cli.extras.generation.reviewing import Sources

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PROMPT = "q quit"
DOCUMENT = (
    "All ferries of the line are painted red. The ferry to Elmsund leaves at 7:45 from the old pier. It takes"
    " forty minutes in calm weather."
)
HOSTILE = "\x1b[2J\x1b]0;owned\x07 rude"


def row_of(number: int, **further: Any) -> dict[str, Any]:
    quotation = {"source": "ferry.md", "line": 1, "text": "The ferry to Elmsund leaves at 7:45"}
    metadata = {
        "id": str(number),
        "kind": "plain",
        "source": "ferry.md",
        "line": 1,
        "quotations": [quotation],
    }
    return {
        "input": f"When does ferry {number} leave?",
        "expected_output": "At 7:45.",
        "context": [quotation["text"]],
        "metadata": {**metadata, **further},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ferry.md").write_text(DOCUMENT, encoding="utf-8")
    write(tmp_path, *(row_of(number) for number in range(4)))
    return tmp_path


def write(folder: Path, *rows: dict[str, Any]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "tests.jsonl").write_text(text, encoding="utf-8")


def accepted(folder: Path) -> list[dict[str, Any]]:
    path = folder / "tests.accepted.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def review(folder: Path, *words: str, columns: int = 80) -> "pexpect.spawn[str]":
    env = clean_environment(TERM="xterm-256color")
    return geval_at_terminal("review", "tests.jsonl", *words, cwd=folder, env=env, dimensions=(40, columns))


def press(child: "pexpect.spawn[str]", *keys: str) -> str:
    """Press keys, each when the terminal asks for one; what was shown before the last."""
    for key in keys:
        child.expect_exact(PROMPT)
        child.send(key)
    return ESCAPE.sub("", child.before or "")


def finish(child: "pexpect.spawn[str]") -> tuple[str, int | None]:
    child.expect(pexpect.EOF)
    child.close()
    return ESCAPE.sub("", child.before or ""), child.exitstatus


def test_only_accepted_tests_are_written_and_edits_replace_what_was_there(folder: Path) -> None:
    child = review(folder)
    shown = press(child, "a")
    assert "1 of 4   plain   ferry.md:1" in shown
    assert "»The ferry to Elmsund leaves at 7:45«" in " ".join(shown.split())
    assert "All ferries of the line are painted red." in " ".join(shown.split())
    press(child, "d", "e")
    child.expect_exact("question (Enter keeps it): ")
    child.sendline("When does the ferry to Elmsund leave, bitte schön?")
    child.expect_exact("expected output (Enter keeps it): ")
    child.sendline("")
    assert "bitte schön?" in press(child, "a")
    press(child, "b")
    assert "you accepted it before" in press(child, "s")
    press(child, "d")
    said, code = finish(child)
    assert code == 0
    assert "2 accepted, 2 dropped" in said
    assert "add `tests: file://tests.accepted.jsonl` to a config" in said
    first, second = accepted(folder)
    assert first == row_of(0)
    assert second == {**row_of(2), "input": "When does the ferry to Elmsund leave, bitte schön?"}


@pytest.mark.parametrize(
    ("key", "code"), [("q", 0), ("\x03", 130), ("\x04", 0)], ids=["q", "Ctrl-C", "Ctrl-D"]
)
def test_a_review_can_be_left_and_resumed_and_keeps_what_was_decided(
    folder: Path, key: str, code: int
) -> None:
    child = review(folder)
    press(child, "a", "s", key)
    said, left = finish(child)
    assert (left, "1 accepted, 0 dropped, 3 not decided" in said) == (code, True)
    assert "geval review tests.jsonl  continues where you stopped" in said
    assert accepted(folder) == [row_of(0)]
    child = review(folder)
    assert "2 of 4" in press(child, "d")
    press(child, "a", "a")
    said, left = finish(child)
    assert (left, "3 accepted, 1 dropped" in said) == (0, True)
    assert accepted(folder) == [row_of(0), row_of(2), row_of(3)]


def test_a_killed_review_keeps_what_was_decided(folder: Path) -> None:
    child = review(folder)
    press(child, "a", "d")
    child.expect_exact(PROMPT)
    child.kill(9)
    child.close()
    child = review(folder)
    assert "3 of 4" in press(child, "q")
    assert "1 accepted, 1 dropped, 2 not decided" in finish(child)[0]


def test_a_changed_test_is_undecided_again(folder: Path) -> None:
    child = review(folder)
    press(child, "a", "a", "a", "a")
    finish(child)
    write(folder, row_of(0), {**row_of(1), "expected_output": "At noon."}, row_of(2))
    child = review(folder)
    assert "2 of 3" in press(child, "d")
    finish(child)
    assert accepted(folder) == [row_of(0), row_of(2)]


def test_a_file_that_someone_else_wrote_is_not_replaced(folder: Path) -> None:
    (folder / "tests.accepted.jsonl").write_text("mine\n")
    done = finish(review(folder))
    assert (done[1], "already exists" in done[0]) == (2, True)
    child = review(folder, "--force")
    press(child, "a", "q")
    finish(child)
    assert accepted(folder) == [row_of(0)]
    with (folder / "tests.accepted.jsonl").open("a") as file:
        file.write("{}\n")
    assert finish(review(folder))[1] == 2
    assert finish(review(folder, "-o", "tests.jsonl"))[1] == 2


def test_hostile_texts_are_shown_as_text_and_frozen_tests_say_what_happened(tmp_path: Path) -> None:
    output = {"column": "brief / echo", "status": "failed", "reason": "tone 0.20 < 0.50", "output": HOSTILE}
    failed = {
        "vars": {"q": HOSTILE},
        "metadata": {"kind": "failed", "run": "r1", "case": "#7", "outputs": [output]},
    }
    trace = {
        "input": "hi",
        "metadata": {"kind": "trace", "group": 2, "group_size": 41, "group_words": "late refund"},
    }
    write(tmp_path, failed, trace, {"odd": [1, None]}, {"input": 5, "metadata": "none"})
    for columns in (40, 120):
        child = review(tmp_path, columns=columns)
        child.expect_exact(PROMPT)
        assert "\x1b[2J" not in (child.before or "")
        shown = ESCAPE.sub("", child.before or "")
        assert "\\x1b[2J" in shown
        assert "tone 0.20 < 0.50" in " ".join(shown.split())
        child.send("m")
        child.send("s")
        assert "group 2 of 41 traces: late refund" in " ".join(press(child, "s").split())
        press(child, "s", "s")
        assert "4 not decided" in finish(child)[0]


def test_odd_places_of_quotations_are_documents_that_are_not_here(tmp_path: Path) -> None:
    quotation = "The ferry to Elmsund leaves at 7:45"
    (tmp_path / "ferry.md").write_text(quotation, encoding="utf-8")
    (tmp_path / "broken.jsonl").write_text("{]", encoding="utf-8")
    places: list[tuple[Any, Any]] = [("ferry.md", "²"), ("ferry.md", "9" * 5_000), ("ferry.md", None)]
    places += [(name, 1) for name in ("/dev/zero", "/", "a\0b", "x" * 5_000, "broken.jsonl", "", None, 7)]
    rows = [{"source": source, "line": line, "text": quotation} for source, line in places]
    write(tmp_path, *(row_of(number, quotations=[row]) for number, row in enumerate(rows)))
    child = review(tmp_path)
    gone = ["the document is not here" in " ".join(press(child, "s").split()) for _ in places]
    assert gone == [False] * 3 + [True] * 8
    assert finish(child)[1] == 0


def test_the_file_of_decisions_is_no_output_file(folder: Path) -> None:
    done = run_geval("review", "tests.jsonl", "-o", "tests.review.jsonl", "--force", cwd=folder)
    assert (done.code, "is the file of this review's decisions" in done.stderr) == (2, True)


def test_a_test_that_was_not_edited_is_written_as_it_stood_in_the_file(folder: Path) -> None:
    lines = '{"input": "{{ env.HOME }}"}\n{"input":   "of {{ env\\u002eHOME }}"}\n'
    (folder / "tests.jsonl").write_text(lines, encoding="utf-8")
    child = review(folder)
    press(child, "a", "a")
    finish(child)
    assert (folder / "tests.accepted.jsonl").read_text(encoding="utf-8") == lines


def test_edited_variables_are_written(tmp_path: Path) -> None:
    write(tmp_path, {"vars": {"city": "Elmsund", "n": 3}})
    child = review(tmp_path)
    press(child, "e")
    child.expect_exact("expected output (Enter keeps it): ")
    child.sendline("a port")
    child.expect_exact("variable city (Enter keeps it): ")
    child.sendline("Wik")
    press(child, "a")
    finish(child)
    assert accepted(tmp_path) == [{"vars": {"city": "Wik", "n": 3}, "expected_output": "a port"}]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tests.jsonl", json.dumps(row_of(0)), "geval review needs a terminal"),
        ("missing.jsonl", None, "there is no file"),
        ("tests.yaml", "a: 1", "cannot be reviewed"),
        ("tests.jsonl", "\n", "there is no test in"),
        ("tests.jsonl", "{\n[1]\n", "tests.jsonl:2:1"),
    ],
)
def test_what_cannot_be_reviewed_is_said(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = run_geval("review", name, cwd=tmp_path)
    assert (done.code, says in done.stderr) == (2, True), done.stderr


def test_a_quotation_that_is_there_twice_is_shown_on_its_line(tmp_path: Path) -> None:
    (tmp_path / "d.md").write_text("1. Dogs are welcome.\n2. Dogs are welcome.\n", encoding="utf-8")
    shown = [
        Sources().around(str(tmp_path / "d.md"), line, "Dogs are welcome", 3).before for line in (1, 2, 7)
    ]
    assert shown == ["1. ", "2. ", "1. "]
