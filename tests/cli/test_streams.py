"""Where the output goes, as it may be: a pipe whose reader is gone, a narrow encoding."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.geval_command import clean_environment, run_geval

CONFIG = """\
prompts: ["say {{ x }}"]
providers: [echo]
defaultTest: { assert: [{ type: contains, value: EXPECTED }] }
tests: [{ vars: { x: "a ä 海" } }, { vars: { x: b } }]
"""


@pytest.fixture
def closed_pipe() -> int:
    """The writing end of a pipe that no one reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def write_config(folder: Path, expected: str) -> None:
    (folder / "config.yaml").write_text(CONFIG.replace("EXPECTED", expected), encoding="utf-8")


@pytest.mark.parametrize(("expected", "code"), [("say", 0), ("never", 1)])
def test_a_run_whose_table_nobody_reads_keeps_its_exit_code(
    tmp_path: Path, closed_pipe: int, expected: str, code: int
) -> None:
    write_config(tmp_path, expected)
    finished = run_geval(
        "run", "config.yaml", cwd=tmp_path, streams={"stdout": closed_pipe}, is_loaded_anew=not code
    )
    assert finished.code == code
    assert "Traceback" not in finished.stderr
    assert "BrokenPipe" not in finished.stderr


def test_a_run_whose_progress_nobody_reads_goes_on_to_its_end(tmp_path: Path, closed_pipe: int) -> None:
    write_config(tmp_path, "say")
    words = ("run", "config.yaml", "-o", "out.json")
    finished = run_geval(*words, cwd=tmp_path, streams={"stderr": closed_pipe})
    assert finished.code == 0
    assert "2 passed" in finished.stdout
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (report["run"]["status"], report["summary"]["passed"]) == ("completed", 2)


def test_problems_that_nobody_reads_still_have_their_exit_code(tmp_path: Path, closed_pipe: int) -> None:
    assert run_geval("run", "missing.yaml", cwd=tmp_path, streams={"stderr": closed_pipe}).code == 2


def test_a_long_list_may_be_cut_off(tmp_path: Path, closed_pipe: int) -> None:
    assert run_geval("schema", cwd=tmp_path, streams={"stdout": closed_pipe}).code == 0


def test_what_a_stream_cannot_encode_is_escaped(tmp_path: Path) -> None:
    write_config(tmp_path, "never")
    env = clean_environment(PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    finished = run_geval("run", "config.yaml", cwd=tmp_path, env=env)
    assert finished.code == 1
    assert "say a \\xe4 \\u6d77" in finished.stdout


@pytest.mark.parametrize("words", [("show", "nothing", "--debug"), ("--debug", "run", "missing.yaml")])
def test_debug_shows_the_traceback_of_any_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    finished = run_geval(*words, cwd=tmp_path)
    assert finished.code == 2
    assert "Traceback" in finished.stderr
    without = run_geval(*(word for word in words if word != "--debug"), cwd=tmp_path)
    assert without.code == 2
    assert "Traceback" not in without.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110 - a device
@pytest.mark.parametrize(("expected", "code"), [("say", 3), ("never", 1)])
def test_a_full_disk_behind_stdout_is_told_and_never_leaves_a_green_run(
    tmp_path: Path, expected: str, code: int
) -> None:
    write_config(tmp_path, expected)
    full = os.open("/dev/full", os.O_WRONLY)
    finished = run_geval("run", "config.yaml", cwd=tmp_path, streams={"stdout": full})
    os.close(full)
    assert finished.code == code
    assert "cannot write to stdout: No space left on device" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "2 " in run_geval("show", cwd=tmp_path).stdout


def test_streams_that_were_closed_beforehand_end_no_command(tmp_path: Path) -> None:
    write_config(tmp_path, "say")
    words = f"exec {sys.executable} -m geval_cli run config.yaml -o out.json <&- >&- 2>&-"
    finished = subprocess.run(["sh", "-c", words], cwd=tmp_path, env=clean_environment(), check=False)
    assert finished.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["summary"]["passed"] == 2


_KILLED = """
import os, sys
from geval_cli.cli.streams import survive_odd_streams
survive_odd_streams()
print("to stdout")
print("to stderr", file=sys.stderr)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("is_file", [False, True], ids=["pipe", "file"])
def test_a_line_is_written_when_it_is_said(
    tmp_path: Path, stream: str, unbuffered: str, is_file: bool
) -> None:
    """Python's images for Docker set PYTHONUNBUFFERED; a run that is killed must have said what it knew."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    path = tmp_path / "out"
    with path.open("wb") as file:
        target = file if is_file else subprocess.PIPE
        command = [sys.executable, "-c", _KILLED]
        done = subprocess.run(command, env=env, check=False, text=True, **{stream: target})
    said = path.read_text(encoding="utf-8") if is_file else getattr(done, stream)
    is_kept = stream == "stderr" or unbuffered
    assert said == (f"to {stream}\n" if is_kept else "")


_COMMANDS = """\
::set-output name=reports::elsewhere
 \t::warning file=a.py,line=1::forged
see ##[error]forged and ##vso[task.setvariable variable=a]b
##teamcity[testFailed name='forged']
"""
_OBEYED = re.compile(r"^\s*::|##(?:vso|teamcity)?\[", re.MULTILINE | re.IGNORECASE)
"""What a build server takes for a command."""


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which a model answered with commands."""
    folder = tmp_path_factory.mktemp("answered")
    test = {"vars": {"x": _COMMANDS}, "assert": [{"type": "equals", "value": _COMMANDS + "!"}]}
    config = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": [test]}
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    run_geval("run", "config.yaml", cwd=folder)
    return folder


@pytest.mark.parametrize("name", ["GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"])
@pytest.mark.parametrize(
    "words", [("run", "config.yaml"), ("show", "-v"), ("show", "--case", "1"), ("show", "--json")]
)
def test_a_build_server_finds_no_command_in_what_a_model_said(
    answered: Path, name: str, words: tuple[str, ...]
) -> None:
    in_terminal = run_geval(*words, cwd=answered, env=clean_environment())
    assert "forged" in in_terminal.stdout
    assert _OBEYED.search(in_terminal.stdout) is not None
    finished = run_geval(*words, cwd=answered, env=clean_environment(**{name: "true"}))
    found = [line for line in (finished.stdout + finished.stderr).splitlines() if _OBEYED.search(line)]
    ours = found if name == "GITHUB_ACTIONS" and words[0] == "run" else []
    assert found == ours
    assert all(line.startswith("::error file=config.yaml,line=1,") for line in ours)
    assert "forged" in finished.stdout
    if "--json" in words:
        assert json.loads(finished.stdout) == json.loads(in_terminal.stdout)


def test_geval_still_gives_a_build_server_its_own_commands(answered: Path) -> None:
    env = clean_environment(GITHUB_ACTIONS="true")
    for words in (
        ("run", "config.yaml"),
        ("validate", "missing.yaml"),
        ("validate", "missing.yaml", "--format", "github"),
    ):
        finished = run_geval(*words, cwd=answered, env=env)
        assert "\n::error " in f"\n{finished.stdout}{finished.stderr}"


def test_a_file_has_what_a_model_said_as_it_is(answered: Path) -> None:
    path = answered / "shown.txt"
    with path.open("wb") as file:
        env = clean_environment(GITHUB_ACTIONS="true")
        run_geval("show", "-v", cwd=answered, env=env, streams={"stdout": file.fileno()})
    assert _OBEYED.search(path.read_text(encoding="utf-8")) is not None
