"""Every command in a folder that was removed while somebody stood in it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.geval_command import start_geval

from geval_cli.cli.app import app
from geval_cli.errors import UsageError
from geval_cli.store.home import current_folder

EACH = """\
import os, sys
from geval_cli.cli.app import app
from geval_cli.cli.main import main

os.rmdir(os.getcwd())
for line in sys.stdin.read().splitlines():
    child = os.fork()
    if not child:
        sys.argv[1:] = line.split()
        try:
            main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"{line} => {code}", file=sys.stderr, flush=True)
"""


def commands(group: Any, *before: str) -> Iterator[str]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield " ".join((*before, name))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps folders that are in use")
def test_is_said_by_every_command(tmp_path: Path) -> None:
    names = [*commands(typer.main.get_command(app)), "models", "run x.yaml", "serve --port 0", "show latest"]
    (tmp_path / "gone").mkdir()
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start_geval(cwd=tmp_path / "gone", code=EACH, text=True, **pipes) as process:
        said = process.communicate("\n".join([*names, "run --help"]))[1]
    assert {line for line in said.splitlines() if " => " in line} == {
        *(f"{name} => 2" for name in names),
        "run --help => 0",
    }
    assert said.count("the current folder is gone") == len(names)
    assert said.count("change into a folder that exists") == len(names)
    assert "Traceback" not in said


def test_a_folder_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert current_folder() == tmp_path
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="is gone"):
        current_folder()
    monkeypatch.chdir(tmp_path)
