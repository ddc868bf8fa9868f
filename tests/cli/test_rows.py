"""Runs whose outputs are compared, by the real command: what is stored, and what a resumed run does again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, chat_reply, error_reply
from support.product import Finished, Product

CONFIG = {
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
