"""Every folder in `cases/` is one use of the command: what is typed, and all that is printed.

A folder holds `command` (the words after `geval`, default: `run config.yaml`), the files that it needs, and what is
expected: `expected.out`, `expected.err` (absent: empty) and `expected.exit`. After a change that is meant,
`pytest tests/cli --update-expected` writes them anew; read the difference as a user would.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.geval_command import Finished, clean_environment, run_geval
from support.whole_lists import name_lists

CASES = sorted(path for path in (Path(__file__).parent / "cases").iterdir() if path.is_dir())
PROGRESS = re.compile(r"^[\d,]+/[\d,]+ \(\d+%\); .*\n", re.MULTILINE)
"""A line about how far a run is: printed every few seconds, so whether there is one says how busy the machine is."""
EXPECTED = ("expected.out", "expected.err", "expected.exit")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_command_prints_what_is_expected(case: Path, tmp_path: Path, update_expected: bool) -> None:
    finished = run_case(case, tmp_path / "project")
    told = PROGRESS.sub("", name_lists(finished.stderr))
    found = dict(zip(EXPECTED, (finished.stdout, told, f"{finished.code}\n"), strict=True))
    if update_expected:
        write_expected(case, found)
    assert found == {name: read_expected(case, name) for name in EXPECTED}


def run_case(case: Path, folder: Path) -> Finished:
    shutil.copytree(case, folder, ignore=shutil.ignore_patterns(*EXPECTED, "command", "columns"))
    command = case / "command"
    words = shlex.split(command.read_text(encoding="utf-8")) if command.exists() else ["run", "config.yaml"]
    columns = case / "columns"
    width = columns.read_text(encoding="utf-8").strip() if columns.exists() else "100"
    return run_geval(*words, cwd=folder, env=clean_environment(COLUMNS=width))


def read_expected(case: Path, name: str) -> str:
    path = case / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_expected(case: Path, found: dict[str, str]) -> None:
    for name, text in found.items():
        if text:
            (case / name).write_text(text, encoding="utf-8")
        else:
            (case / name).unlink(missing_ok=True)
