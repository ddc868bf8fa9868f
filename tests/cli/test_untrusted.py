"""`geval run --untrusted` as a command: where its state goes, what the kernel and the environment leave to it."""

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import Finished, clean_environment, run_geval
from support.loopback import LoopbackServer, chat_reply

from geval_cli.cli import untrusted
from geval_cli.cli.landlock import landlock_version
from geval_cli.cli.untrusted import KernelSandbox, drop_keys, is_harmless
from geval_cli.errors import UsageError
from geval_cli.runs.requests import RunRequest

needs_landlock = pytest.mark.skipif(
    landlock_version() < 4, reason="the kernel has no Landlock that knows ports"
)

JUDGED: dict[str, Any] = {
    "prompts": [{"raw": "Q"}],
    "providers": ["echo"],
    "tests": [{"assert": [{"type": "llm-rubric", "value": "is good", "provider": "openai:m"}]}],
}


def env_of(tmp_path: Path, **more: str) -> dict[str, str]:
    return clean_environment(XDG_STATE_HOME=str(tmp_path / "state"), **more)


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def verdict(passes: bool) -> Any:
    return chat_reply(json.dumps({"pass": passes, "score": float(passes), "reason": "because"}))


def judge(tmp_path: Path, server: LoopbackServer, *args: str, **env: str) -> Finished:
    known = env_of(tmp_path, OPENAI_API_KEY="sk-1", OPENAI_BASE_URL=server.base_url, **env)
    return run_geval("run", *args, cwd=tmp_path / "repo", env=known)


def test_answers_that_a_stranger_left_beside_the_config_are_not_used(tmp_path: Path) -> None:
    write(tmp_path / "repo" / "c.json", JUDGED)
    (tmp_path / "repo" / ".git").mkdir()
    is_good = [True]
    with LoopbackServer(respond=lambda body, headers: verdict(is_good[0])) as server:
        assert judge(tmp_path, server, "c.json").code == 0
        assert (tmp_path / "repo" / ".geval" / "cache.db").is_file()
        is_good[0] = False
        assert judge(tmp_path, server, "c.json").code == 0, "the planted answer is good"
        ended = judge(tmp_path, server, "--untrusted", "c.json")
        assert ended.code == 1, ended.stderr
        assert len(server.requests) == 2
        assert ended.stderr.count("next to the config may have come with it and is not used") == 1
        assert (tmp_path / "state" / "geval" / "untrusted" / "cache.db").is_file()
        assert judge(tmp_path, server, "--untrusted", "--home", ".geval", "c.json").code == 0
        assert judge(tmp_path, server, "--untrusted", "c.json", GEVAL_HOME=".geval").code == 0


@pytest.mark.parametrize(
    ("config", "state", "is_used"),
    [
        ("repo/c.json", "repo", False),
        ("repo/evals/c.json", "repo", False),
        ("repo/c.json", "repo/evals", False),
        ("archive/evals/c.json", "archive", False),
        ("other/c.json", "mine", True),
    ],
)
def test_where_the_state_of_a_strangers_run_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, state: str, is_used: bool
) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / state).mkdir(parents=True, exist_ok=True)
    path = write(tmp_path / config, JUDGED)
    monkeypatch.chdir(tmp_path / state)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sandbox = KernelSandbox()
    found = sandbox.state_folder(None, [path], {})
    assert (found is None) is is_used
    assert (sandbox.note == "") is is_used
    if found is not None:
        assert found == tmp_path / "state" / "geval" / "untrusted"
        assert found.stat().st_mode & 0o077 == 0
    assert sandbox.state_folder(Path("x"), [path], {}) == Path("x")
    assert sandbox.state_folder(None, [path], {"GEVAL_HOME": "x"}) is None


def test_a_users_state_folder_that_the_stranger_could_fill_is_not_used_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "c.json", JUDGED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = KernelSandbox().state_folder(None, [path], {})
    assert found is not None
    assert not found.is_relative_to(tmp_path)
    shutil.rmtree(found)


@needs_landlock
def test_a_walled_run_asks_its_judge_stores_and_writes_its_results(tmp_path: Path) -> None:
    write(tmp_path / "repo" / "evals" / "c.json", JUDGED)
    (tmp_path / "results").mkdir()
    with LoopbackServer(respond=lambda body, headers: verdict(True)) as server:
        options = ("--untrusted=strict", "-o", "../results/r.json", "-o", "../results/r.csv")
        log = ("--log-file", "../results/log.jsonl")
        ended = judge(tmp_path, server, *options, *log, "evals/c.json", EXTRA_SECRET="s3cret-of-nobody")
        assert ended.code == 0, ended.stderr
        again = judge(tmp_path, server, *options, "evals/c.json")
        assert again.code == 0, again.stderr
        assert len(server.requests) == 1
    assert json.loads((tmp_path / "results" / "r.json").read_text())["summary"]["passed"] == 1
    assert (tmp_path / "results" / "log.jsonl").is_file()
    assert not (tmp_path / "repo" / ".geval").exists()
    assert "does not confine" not in ended.stderr


@needs_landlock
@pytest.mark.parametrize("command", [("validate",), ("run", "--plan")])
def test_other_commands_are_walled_too(tmp_path: Path, command: tuple[str, ...]) -> None:
    write(tmp_path / "in" / "c.json", {**JUDGED, "tests": [{}]})
    ended = run_geval(*command, "--untrusted=strict", "c.json", cwd=tmp_path / "in", env=env_of(tmp_path))
    assert ended.code == 0, ended.stderr


@needs_landlock
@pytest.mark.parametrize("how", ["option", "variable"])
def test_strictness_refuses_what_the_kernel_cannot_confine(tmp_path: Path, how: str) -> None:
    (tmp_path / "judge.py").write_text(
        'def call_api(*a): return \'{"pass": true, "score": 1, "reason": "r"}\'\n', encoding="utf-8"
    )
    config = write(
        tmp_path / "in" / "c.json", {**JUDGED, "tests": [{"assert": [{"type": "llm-rubric", "value": "x"}]}]}
    )
    options = ("--grader", f"python:{tmp_path / 'judge.py'}", str(config))
    strict = ("--untrusted=strict",) if how == "option" else ()
    env = env_of(tmp_path, **({"GEVAL_UNTRUSTED": "strict"} if how == "variable" else {}))
    ended = run_geval("run", *strict, *options, cwd=tmp_path, env=env)
    assert ended.code == 2
    assert "may be a program" in ended.stderr
    ended = run_geval("run", "--untrusted", *options, cwd=tmp_path, env=env_of(tmp_path))
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("the kernel does not confine this untrusted run") == 1


def test_one_thread_of_several_is_not_confined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    request = RunRequest(tmp_path / "c.json", {}, untrusted=True)
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(UsageError, match="does not confine"):
            KernelSandbox(is_strict=True).confine([request])
        sandbox = KernelSandbox()
        sandbox.confine([request])
        assert not sandbox.is_active
        assert "geval's own checks still apply" in capsys.readouterr().err
    finally:
        end.set()
        thread.join()


def test_the_users_own_configs_are_not_confined(tmp_path: Path) -> None:
    sandbox = KernelSandbox(is_strict=True)
    sandbox.confine([RunRequest(tmp_path / "c.json", {})])
    assert not sandbox.is_active


@pytest.mark.parametrize("option", ["--untrusted=yes", "--untrusted=strictly"])
def test_other_values_of_the_option_are_refused(tmp_path: Path, option: str) -> None:
    config = write(tmp_path / "c.json", {**JUDGED, "tests": [{}]})
    assert run_geval("validate", option, str(config), cwd=tmp_path).code == 2


def test_watching_a_strangers_config_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "c.json", {**JUDGED, "tests": [{}]})
    ended = run_geval("run", "--watch", "--untrusted", str(config), cwd=tmp_path)
    assert ended.code == 2
    assert "--watch" in ended.stderr


def test_only_keys_that_are_needed_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    kept = {
        "OPENAI_API_KEY": "a",
        "PATH": "b",
        "LC_ALL": "c",
        "GEVAL_HOME": "d",
        "https_proxy": "e",
        "NO_COLOR": "1",
    }
    for name, value in {
        **kept,
        "ANTHROPIC_API_KEY": "x",
        "GEVAL_SERVER_TOKEN": "y",
        "DATABASE_URL": "z",
    }.items():
        monkeypatch.setenv(name, value)
    drop_keys(os.environ, {"OPENAI_API_KEY"})
    assert dict(os.environ) == kept
    assert not is_harmless("AWS_SECRET_ACCESS_KEY")


def test_a_server_that_allows_code_is_not_started_where_everything_is_untrusted(tmp_path: Path) -> None:
    env = clean_environment(GEVAL_UNTRUSTED="1")
    ended = run_geval("serve", "--allow-code", str(tmp_path), cwd=tmp_path, env=env)
    assert ended.code == 2
    assert "--allow-code cannot be combined with GEVAL_UNTRUSTED" in ended.stderr


def test_a_planted_database_is_no_traceback(tmp_path: Path) -> None:
    """Also where the user names the folder."""
    write(tmp_path / "repo" / "c.json", {**JUDGED, "tests": [{}]})
    (tmp_path / "repo" / ".geval").mkdir()
    with sqlite3.connect(tmp_path / "repo" / ".geval" / "cache.db") as connection:
        connection.execute("CREATE VIEW choices AS SELECT 1 AS key, 2 AS created_at, 3 AS answer")
        connection.execute("CREATE TABLE migrations (number)")
        connection.execute(f"PRAGMA application_id = {0x47455643}")
    connection.close()
    ended = run_geval(
        "run", "--untrusted", "--home", ".geval", "c.json", cwd=tmp_path / "repo", env=env_of(tmp_path)
    )
    assert ended.code == 0
    assert "contains views, triggers or virtual tables" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_suite_that_is_passed_on_takes_no_file_from_elsewhere_along(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret of the machine", encoding="utf-8")
    config = write(
        tmp_path / "in" / "c.json", {"prompts": ["file://../secret.txt"], "tests": [{"output": "x"}]}
    )
    for name in ("export", "import"):
        command = ("export", "suite", str(config)) if name == "export" else ("import", str(config))
        ended = run_geval(*command, cwd=tmp_path, env=env_of(tmp_path, GEVAL_UNTRUSTED="1"))
        assert ended.code == 2, ended.stdout
        assert "outside the config's folder" in ended.stderr
        assert "a secret of" not in ended.stdout + ended.stderr
        assert run_geval(*command, cwd=tmp_path).code == 0


def test_a_server_reads_no_env_file_that_a_stranger_left_in_its_folder(tmp_path: Path) -> None:
    from geval_cli.extras.web.app import judge_environment
    from geval_cli.extras.web.settings import ServerSettings

    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://x.example\n", encoding="utf-8")
    assert "OPENAI_BASE_URL" in judge_environment(ServerSettings(tmp_path, {}))
    assert "OPENAI_BASE_URL" not in judge_environment(ServerSettings(tmp_path, {"GEVAL_UNTRUSTED": "1"}))


def test_a_server_of_strangers_configs_keeps_its_state_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from geval_cli.cli.options import ServeOptions
    from geval_cli.extras.web.command import _home

    (tmp_path / "served").mkdir()
    monkeypatch.chdir(tmp_path / "served")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("GEVAL_HOME", raising=False)

    def home(named: Path | None) -> Path | None:
        return _home(ServeOptions(port=0, home=named))

    assert home(None) == tmp_path / "served" / ".geval"
    monkeypatch.setenv("GEVAL_UNTRUSTED", "1")
    assert home(None) == tmp_path / "state" / "geval" / "untrusted"
    assert home(Path("mine")) == Path("mine")


def test_libraries_of_every_site_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("user/site-packages", "system/dist-packages", "project"):
        monkeypatch.syspath_prepend(str(tmp_path / name))
    readable = {path for path in untrusted._own_files() if path.is_relative_to(tmp_path)}
    assert readable == {tmp_path / "user/site-packages", tmp_path / "system/dist-packages"}
