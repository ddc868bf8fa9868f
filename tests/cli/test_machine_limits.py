"""Limits of the machine: each is named, with what to do about it, and none is called a bug."""

import errno
import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.engine.judge_output import internal_error
from geval_cli.errors import MachineLimitError
from geval_cli.runs.session import DEFAULT_CONCURRENCY

FEW_FILES = """\
import resource
from geval_cli.cli.main import main

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
@pytest.mark.parametrize("words", [(), ("--workers", "2")], ids=" ".join)
def test_with_few_open_files_fewer_requests_are_sent_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    suite = {
        "prompts": ["{{ x }}"],
        "providers": ["openai:m"],
        "defaultTest": {"assert": [{"type": "contains", "value": "fine"}]},
        "tests": [{"vars": {"x": f"word{number}"}} for number in range(150)],
    }
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    with LoopbackServer(respond=lambda *_: chat_reply("fine", delay_s=0.1)) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-test")
        options = ("--home", "home", "-j", "150", *words)
        # The limit is read once in a process; workers are processes of their own.
        ended = run_geval(
            "run", "c.json", *options, cwd=tmp_path, env=env, code=FEW_FILES, is_loaded_anew=not words
        )
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "150 passed" in ended.stdout
    assert "only 20 of 150 requests are sent at once" in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "the memory is used up"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "the memory is used up"),
        (RuntimeError("can't start new thread"), "no more threads"),
        (OSError(errno.EMFILE, "Too many open files"), "too many files are open"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "no space left for /tmp/x"),
        (RuntimeError("a bug"), None),
        (OSError(errno.ENOENT, "No such file"), None),
    ],
    ids=str,
)
def test_what_the_machine_has_run_out_of_is_no_bug(error: Exception, words: str | None) -> None:
    outer = ValueError("while something else was done")
    outer.__cause__ = error
    found, told = MachineLimitError.of(outer), internal_error(outer)
    assert (found is None) is (words is None)
    assert told.is_bug is (words is None)
    assert words is None or (words in told.message and told.hint)


def manners(body: Any, headers: Mapping[str, str]) -> Reply:
    """Answer any request of a command after a while, so that all it sends at once is under way together."""
    del headers
    text = str(body["messages"][-1]["content"])
    name = zlib.crc32(text.encode())
    if '"profiles"' in text:
        answer = {"profiles": [f"A user {name} of {number} years." for number in range(10)]}
    elif '"tests"' in text:
        words = text.partition("<<<BEGIN Passage")[2].splitlines()[1].split()
        quoted = " ".join(words[2:10])
        answer = {
            "tests": [{"question": f"What is {name}?", "answer": f"It is {name}.", "quotation": quoted}]
        }
    elif '"winner"' in text:
        answer = {"reason": "so", "winner": "1"}
    elif '"steps"' in text:
        answer = {"steps": ["Read it.", "Rate it."]}
    else:
        answer = {"reason": "so", "score": 1 + name % 9}
    return chat_reply(json.dumps(answer), delay_s=0.1)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "config.yaml"],
        ["judge", "latest", "--grader", "openai:other"],
        ["probe", "config.yaml", "--items", "10"],
        ["generate", "tests", "--from", "docs", "--n", "80", "--model", "openai:m", "-o", "tests.jsonl"],
        [
            "generate",
            "personas",
            "--n",
            "200",
            "--about",
            "ferries",
            "--model",
            "openai:m",
            "-o",
            "users.jsonl",
        ],
        ["realism", "talks.jsonl", "--against", "real.jsonl", "--grader", "openai:judge", "--pairs", "60"],
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else words,
)
def test_no_command_has_more_requests_under_way_than_a_run(tmp_path: Path, words: list[str]) -> None:
    """What is under way when a process is killed is paid for and lost, and a vendor refuses hundreds at once."""
    config = {
        "prompts": ["Write about {{ number }}."],
        "providers": ["openai:m"],
        "tests": [{"vars": {"number": number}} for number in range(50)],
        "defaultTest": {
            "options": {"provider": "openai:judge", "scoring": "single"},
            "assert": [{"type": "g-eval", "criteria": "It is good."}],
        },
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "docs").mkdir()
    for number in range(60):
        sentences = (f"The ferry {number} leaves pier {pier} at noon each day." for pier in range(20))
        (tmp_path / "docs" / f"{number}.md").write_text(" ".join(sentences), encoding="utf-8")
    for name in ("talks", "real"):
        lines = (
            json.dumps({"turns": [{"role": "user", "content": f"{name} {number}, please"}]}) + "\n"
            for number in range(30)
        )
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    with LoopbackServer(respond=manners) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-many")
        if words[0] == "judge":
            run_geval("run", "config.yaml", cwd=tmp_path, env=env)
        server.peak_in_flight, before = 0, len(server.requests)
        done = run_geval(*words, cwd=tmp_path, env=env)
        assert len(server.requests) - before >= DEFAULT_CONCURRENCY, done.stderr
        assert server.peak_in_flight <= DEFAULT_CONCURRENCY
