"""Runs whose outputs are compared, by the real command: what is stored, and what a resumed run does again."""

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, chat_reply, error_reply
from support.product import Finished, Product

CONFIG: dict[str, Any] = {
    "prompts": ["say {{ x }}", "shout {{ x }}"],
    "providers": [{"id": "openai:m", "config": {"max_retries": 0}}],
    "defaultTest": {"options": {"provider": {"id": "openai:judge", "config": {"max_retries": 0}}}},
    "tests": [
        {"vars": {"x": word}, "assert": [{"type": "select-best", "value": "the louder one"}]}
        for word in ("one", "two")
    ],
}


class Model:
    """Repeats what it is told, and as a judge always chooses the second output; refuses what it is to refuse."""

    def __init__(self) -> None:
        self.refused = ""
        self.asked: list[str] = []

    def respond(self, body: Any, headers: Mapping[str, str]) -> Any:
        del headers
        text = body["messages"][0]["content"]
        kind = "judge" if body["model"] == "judge" else text
        self.asked.append(kind)
        if kind == self.refused:
            return error_reply(400, "this I refuse")
        return chat_reply('{"reason": "louder", "best": 2}' if kind == "judge" else text)


def rows_of(finished: Finished) -> list[tuple[str, str]]:
    return [(item["prompt"]["rendered"], item["status"]) for item in finished.cases]


def test_a_row_with_an_error_is_done_again_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, product = Model(), Product(tmp_path, monkeypatch, capsys)
    with LoopbackServer(respond=model.respond) as server:
        model.refused = "say two"
        first = product.run(CONFIG, server)
        assert rows_of(first) == [
            ("say one", "failed"),
            ("shout one", "passed"),
            ("say two", "error"),
            ("shout two", "error"),
        ]
        model.refused, model.asked = "", []
        second = product.run(CONFIG, server, "--retry-errors")
        assert second.code == 1, second.stderr
        assert rows_of(second)[2:] == [("say two", "failed"), ("shout two", "passed")]
        assert sorted(model.asked) == ["judge", "say two"]


def test_a_row_of_which_one_output_has_an_error_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, product = Model(), Product(tmp_path, monkeypatch, capsys)
    is_broken = True

    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        if body["model"] != "rubric":
            return model.respond(body, headers)
        if is_broken and "shout two" in json.dumps(body["messages"]):
            return error_reply(400, "this I refuse")
        return chat_reply('{"reason": "good", "pass": true, "score": 1}')

    rubric = {
        "type": "llm-rubric",
        "value": "It is a word.",
        "provider": {"id": "openai:rubric", "config": {"max_retries": 0}},
    }
    tests = [{**test, "assert": [*test["assert"], rubric]} for test in CONFIG["tests"]]
    with LoopbackServer(respond=respond) as server:
        first = product.run({**CONFIG, "tests": tests}, server)
        assert [status for _, status in rows_of(first)] == ["failed", "passed", "failed", "error"]
        is_broken = False
        second = product.run({**CONFIG, "tests": tests}, server, "--retry-errors")
    assert [status for _, status in rows_of(second)] == ["failed", "passed", "failed", "passed"]


@pytest.mark.parametrize(("row", "lost"), [(1, 0), (1, 1), (0, 1)])
def test_a_row_that_is_stored_by_half_is_done_again_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], row: int, lost: int
) -> None:
    model, product = Model(), Product(tmp_path, monkeypatch, capsys)
    with LoopbackServer(respond=model.respond) as server:
        first = product.run(CONFIG, server)
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "geval.db")) as connection, connection:
            connection.execute("DELETE FROM results WHERE test_index = ? AND column_index = ?", (row, lost))
            connection.execute(
                "UPDATE runs SET status = 'interrupted', summary = NULL,"
                " record = json_set(record, '$.status', 'interrupted')"
            )
        model.asked = []
        empty = ("--cache-dir", str(tmp_path / "empty"))
        second = product.run(CONFIG, server, "--resume", *empty)
    assert rows_of(second) == rows_of(first)
    word = ("one", "two")[row]
    assert sorted(model.asked) == ["judge", f"say {word}", f"shout {word}"]
    assert "2 of 4 cases are done" in second.stderr
