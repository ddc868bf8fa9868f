"""Limits of the machine: each is named, with what to do about it, and none is called a bug."""

import errno
import json
import sys
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, chat_reply

from geval_cli.engine.judge_output import internal_error
from geval_cli.errors import MachineLimitError

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
