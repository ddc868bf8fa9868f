import contextlib
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.calls import answer, ask, provider, run

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.extras.programs.providers import exec as exec_provider
from geval_cli.providers.registry import check_provider
from geval_cli.specs.base import ProviderSpec

PYTHON = shlex.quote(sys.executable)


def call(
    command: str, folder: Path, text: str = "Say hi.", *, timeout_s: float = 30, **variables: Any
) -> str:
    model = provider(f"exec:{command}", {"timeout_s": timeout_s}, env=os.environ, base_dir=folder)
    [response] = run(answer(model, ask(text, variables=variables)))
    return response.text


def failure(command: str, folder: Path, text: str = "x", *, timeout_s: float = 30) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call(command, folder, text, timeout_s=timeout_s)
    return caught.value


def test_the_prompt_is_one_argument_and_no_shell_sees_it(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    prompt = "a b; echo $HOME `id` \"q\"\n'x'"
    assert call(f"{PYTHON} show.py --mode 'two words'", tmp_path, prompt) == str(
        ["--mode", "two words", prompt]
    )


def test_values_go_where_the_command_wants_them_and_stay_one_argument(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    command = f"{PYTHON} show.py --user {{{{ vars.user }}}} --top={{{{vars.top}}}} {{{{ prompt }}}} --end"
    shown = call(command, tmp_path, "a 'b' {{ vars.user }}", user="x y; `id`", top=[1])
    assert shown == str(["--user", "x y; `id`", "--top=[1]", "a 'b' {{ vars.user }}", "--end"])
    assert call(f"{PYTHON} show.py {{{{ vars.user }}}}", tmp_path, "p", user="u") == str(["u", "p"])


def test_a_variable_that_is_missing_is_refused(tmp_path: Path) -> None:
    error = failure(f"{PYTHON} -c pass {{{{ vars.user }}}}", tmp_path)
    assert isinstance(error, ProviderRequestError)
    assert "the test has no variable for `{{ vars.user }}`" in error.message


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("sh a.sh {{ q }}", "{{ q }}"),
        ("sh a.sh --user={{user.id}}", "{{user.id}}"),
        ("sh a.sh {{ vars.q }} {{ prompt }}", None),
        ("docker ps --format '{{.Names}} {{json .}}'", None),  # templates of its own
    ],
)
def test_a_name_that_is_not_filled_in_is_an_error_before_anything_runs(
    command: str, written: str | None, tmp_path: Path
) -> None:
    found = check_provider(ProviderSpec(id=f"exec:{command}"), env={}, base_dir=tmp_path)
    said = [problem.message for problem in found]
    assert said == ([] if written is None else [f"`{written}` would be passed as it is written"])


def test_only_the_last_line_break_is_cut(tmp_path: Path) -> None:
    assert call(f"{PYTHON} -c 'print(\"  a\\n\")'", tmp_path) == "  a\n"


def test_a_failing_program_is_an_error_with_its_complaint(tmp_path: Path) -> None:
    code = 'import sys; sys.exit("broken: sk-0123456789abcdef")'
    error = failure(f"{PYTHON} -c {shlex.quote(code)}", tmp_path)
    assert isinstance(error, ProviderRequestError)
    assert "status 1" in error.message
    assert "broken: ***" in error.message


def test_a_program_that_was_killed_is_tried_again(tmp_path: Path) -> None:
    error = failure(f"{PYTHON} -c 'import os; os.kill(os.getpid(), 9)'", tmp_path)
    assert isinstance(error, ProviderUnavailableError)
    assert error.is_retryable


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split(")")[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "slow.sh").write_text("sleep 600 &\necho $! > new\nmv new pid\nwait\n", encoding="utf-8")
    for timeout_s in (0.3, 3, 30):  # until even a slow machine comes as far as the child
        error = failure("sh slow.sh", tmp_path, timeout_s=timeout_s)
        assert isinstance(error, ProviderTimeoutError)
        if (tmp_path / "pid").exists():
            break
    pid = (tmp_path / "pid").read_text(encoding="utf-8").strip()
    deadline = time.monotonic() + 60
    while is_running(pid):  # killed, but the system may need a moment to end it
        assert time.monotonic() < deadline, "the child of the program is still running"


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert isinstance(failure("./no-such-program", tmp_path), ProviderRequestError)
    assert isinstance(failure(f"{PYTHON} -c pass", tmp_path, "nul \0 byte"), ProviderRequestError)


def test_what_a_program_leaves_behind_with_its_output_open_holds_nothing_up(tmp_path: Path) -> None:
    """In a session of its own, so that it is not killed together with the program."""
    code = "import subprocess; subprocess.Popen(['sleep', '40'], start_new_session=True)"
    assert isinstance(
        failure(f"{PYTHON} -c {shlex.quote(code)}", tmp_path, timeout_s=1), ProviderTimeoutError
    )


@pytest.mark.parametrize("streams", ["", ">/dev/null", ">/dev/null 2>&1"], ids=["both", "stderr", "neither"])
@pytest.mark.parametrize("session", ["", "setsid "], ids=["child", "session"])
def test_a_server_that_a_program_starts_does_not_hold_up_its_answer(
    tmp_path: Path, streams: str, session: str
) -> None:
    script = f"{session}sleep 40 {streams} &\necho $! > pid\necho the answer\n"
    (tmp_path / "serve.sh").write_text(script, encoding="utf-8")
    assert call("sh serve.sh", tmp_path, timeout_s=20) == "the answer"
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), 9)


def test_what_follows_the_end_of_a_program_belongs_to_its_answer(tmp_path: Path) -> None:
    """Its output may go through another process, which is slower than itself."""
    script = "(for n in 1 2 3; do sleep 1; echo $n; done) &\n"
    (tmp_path / "late.sh").write_text(script, encoding="utf-8")
    assert call("sh late.sh", tmp_path) == "1\n2\n3"


@pytest.mark.parametrize("stream", [1, 2])
def test_a_program_that_prints_without_end_is_stopped(
    tmp_path: Path, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_provider, "MAX_ANSWER_BYTES", 1_000_000)
    (tmp_path / "yes.sh").write_text(f"yes >&{stream}\n", encoding="utf-8")
    error = failure("sh yes.sh", tmp_path)
    assert isinstance(error, ProviderRequestError)
    assert "printed more than" in error.message
