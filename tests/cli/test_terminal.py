"""geval in a real (pseudo) terminal: live progress, colours, widths, Ctrl-C from the keyboard."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.cells import cell_len
from support.geval_command import clean_environment, geval_at_terminal
from support.loopback import LoopbackServer, chat_reply

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"

CONFIG = """\
prompts: ["Tell me about {{ x }}"]
providers: ["scripted:replies.yaml"]
tests:
  - { vars: { x: the 海 and the sky }, assert: [{ type: contains, value: fine }] }
  - { vars: { x: hostile output }, assert: [{ type: contains, value: fine }] }
  - { vars: { x: something slow }, assert: [{ type: contains, value: fine }] }
"""
REPLIES = """\
- { match: sky, reply: "fine, the 海 is deep and a long answer about it goes on until it has to be cut" }
- { match: hostile, reply: "\\e[2J\\e[31mboo\\e]0;title\\a \\u202e reversed [bold]markup[/bold]" }
- { match: slow, reply: fine, latency_ms: LATENCY }
"""


def spawn(folder: Path, columns: int, latency_ms: int, **env: str) -> "pexpect.spawn[str]":
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "replies.yaml").write_text(REPLIES.replace("LATENCY", str(latency_ms)), encoding="utf-8")
    environ = clean_environment(TERM="xterm-256color", **env)
    return geval_at_terminal("run", "config.yaml", cwd=folder, env=environ, dimensions=(40, columns))


def finish(child: "pexpect.spawn[str]") -> tuple[str, int]:
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus is not None
    return child.before or "", child.exitstatus


@pytest.mark.parametrize("columns", [80, 200])
def test_nothing_is_wider_than_the_terminal_and_the_cursor_comes_back(tmp_path: Path, columns: int) -> None:
    shown, code = finish(spawn(tmp_path, columns, 0))
    assert code == 1
    assert shown.rfind(SHOW_CURSOR) >= shown.rfind(HIDE_CURSOR)
    lines = [ESCAPE.sub("", line) for line in re.split(r"[\r\n]+", shown)]
    assert max(map(cell_len, lines)) <= columns
    assert any("2 passed, 1 failed" in line for line in lines)


def test_model_output_cannot_steer_the_terminal(tmp_path: Path) -> None:
    shown, _ = finish(spawn(tmp_path, 100, 0))
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    assert "\u202e" not in shown
    assert "[bold]markup" in ESCAPE.sub("", shown)


def test_colours_are_used_unless_the_user_does_not_want_them(tmp_path: Path) -> None:
    coloured, _ = finish(spawn(tmp_path, 80, 0))
    assert "\x1b[32m" in coloured or "\x1b[1;32m" in coloured
    plain, _ = finish(spawn(tmp_path, 80, 0, NO_COLOR="1"))
    assert re.search(r"\x1b\[[\d;]*m", plain) is None


def test_ctrl_c_on_the_keyboard_stops_the_run_and_shows_what_is_finished(tmp_path: Path) -> None:
    child = spawn(tmp_path, 80, 600_000)
    child.expect("2/3")
    child.sendintr()
    shown, code = finish(child)
    assert code == 130
    assert "Ctrl-C: stopping; finished cases are kept" in ESCAPE.sub("", shown)
    assert "INTERRUPTED" in shown
    assert shown.rfind(SHOW_CURSOR) >= shown.rfind(HIDE_CURSOR)


def test_while_it_stops_the_progress_says_how_much_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        CONFIG.replace('"scripted:replies.yaml"', '"openai:m"'), encoding="utf-8"
    )
    with LoopbackServer(respond=lambda *_: chat_reply("fine")) as server:
        server.hold()
        environ = clean_environment(
            TERM="xterm-256color", OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-test"
        )
        child = geval_at_terminal("run", "config.yaml", cwd=tmp_path, env=environ, dimensions=(40, 80))
        server.wait_for_requests(3)
        child.sendintr()
        child.expect("stopping, 3 requests left")
        server.release()
        _, code = finish(child)
    assert code == 130


def test_notes_and_the_last_line_take_the_place_of_the_progress(tmp_path: Path) -> None:
    check = {"type": "g-eval", "criteria": "It helps.", "evaluation_steps": ["Look."], "explain": "never"}
    config = {
        "defaultTest": {
            "options": {"provider": "openai:judge"},
            "assert": [{**check, "scoring": "single"}],
        },
        "tests": [{"output": f"{'x' * number} {number}"} for number in range(8)],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    asked, go_on = [], threading.Event()

    def respond(body: Any, headers: Any) -> Any:
        asked.append(body)
        if len(asked) > 2:
            go_on.wait(60)
        return chat_reply('{"score": 7}')

    with LoopbackServer(respond=respond) as server:
        env = clean_environment(OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
        process = geval_at_terminal("probe", "config.yaml", "-j", "1", cwd=tmp_path, env=env)
        process.expect("2 of")
        server.wait_for_requests(3)
        process.sendintr()
        process.expect_exact("\r\x1b[Knote: Ctrl-C: waiting for 1 request under way")
        go_on.set()
        process.expect_exact("\r\x1b[Kinterrupted by Ctrl-C")
        process.expect(pexpect.EOF)
