"""`geval run --workers`: the same results from several processes, whichever of them dies, within one budget."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from soak.processes import copied_processes, processes_with, worker_processes
from support.counting_server import CountingServer
from support.geval_command import clean_environment, run_geval
from support.kill_trial import KillableRun, comparable, disturbed

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")

TESTS = 60
REQUESTS = 2 * TESTS + 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process makes of the suite."""
    with CountingServer() as server:
        return KillableRun(tmp_path_factory.mktemp("alone"), server, TESTS).finish()


def results_of(document: Any) -> list[Any]:
    return [comparable(item) for item in document["results"]]


def test_results_and_requests_are_those_of_one_process(tmp_path: Path, alone: Any) -> None:
    workers = 3
    with CountingServer() as server:
        document = KillableRun(tmp_path, server, TESTS, options=("--workers", str(workers))).finish()
        names = [request.name for request in server.requests]
    assert results_of(document) == results_of(alone)
    assert len(names) == len(set(names)) == REQUESTS  # no question twice, the one for steps among them
    assert document["summary"]["usage"] == alone["summary"]["usage"]
    found = document["run"]["workers"]
    assert [worker["name"] for worker in found] == [f"worker {number + 1}" for number in range(workers)]
    assert sum(worker["cases"] for worker in found) == TESTS
    assert sum(worker["requests"] for worker in found) == REQUESTS - 1  # the steps were asked for before
    assert alone["run"]["workers"] == []


def test_a_killed_coordinator_loses_nothing_and_takes_its_workers_along(tmp_path: Path, alone: Any) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        trial = disturbed(run, kills=1, chance=random.Random(8), requests=(30, 50))
    assert trial.results == results_of(alone)
    assert len(trial.run_ids) == 1
    assert sum(kill.paid_twice for kill in trial.kills) == 0
    assert trial.requests <= REQUESTS + sum(kill.in_flight for kill in trial.kills)


@pytest.mark.parametrize("options", [("--workers", "2"), ("--ray", "local")], ids=["workers", "ray"])
def test_what_was_sent_when_the_coordinator_is_killed_is_answered_and_kept(
    tmp_path: Path, alone: Any, options: tuple[str, str]
) -> None:
    if options[0] == "--ray":
        pytest.importorskip("ray", reason="Ray is not installed: no cluster was killed")
    # Sockets have short paths.
    with CountingServer(latency_s=0.3) as server, tempfile.TemporaryDirectory(prefix="k") as name:
        temporary = Path(name)
        environment = {"TMPDIR": name, "GEVAL_KILLED": str(tmp_path)}
        run = KillableRun(tmp_path, server, TESTS, options=options, environment=environment)
        process = run.start()
        assert server.wait_for_requests(40, timeout_s=120)
        os.kill(process.pid, signal.SIGKILL)
        while process.poll() is None or processes_with("GEVAL_KILLED", str(tmp_path)):
            time.sleep(0.05)
        process.communicate()
        assert len(server.requests) < REQUESTS
        left = set(temporary.glob("geval-*")) | set(temporary.glob("pymp-*"))
        document = run.finish("--resume")
        names = [request.name for request in server.requests]
        assert left
        assert not any(folder.exists() for folder in left)
    assert results_of(document) == results_of(alone)
    assert len(names) == len(set(names)) == REQUESTS


def test_a_killed_worker_loses_nothing(tmp_path: Path, alone: Any) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        process = run.start()
        for count in (20, 70):
            assert server.wait_for_requests(count, timeout_s=60)
            os.kill(random.Random(count).choice(worker_processes(process.pid)), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        asked = len(server.requests)
    assert process.returncode in {0, 1}, errors.decode()
    document = run.document
    assert results_of(document) == results_of(alone)
    lost = sum(worker["lost"] for worker in document["run"]["workers"])
    assert lost == 2
    assert asked <= REQUESTS + lost * 2 * 4  # four requests at once for each worker, and their answers
    assert any("was lost" in warning for warning in document["run"]["warnings"])


def test_workers_outlive_the_process_that_they_are_copies_of(tmp_path: Path, alone: Any) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        process = run.start()
        assert server.wait_for_requests(20, timeout_s=60)
        (copied,) = copied_processes(process.pid)
        os.kill(copied, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        asked = len(server.requests)
    assert process.returncode in {0, 1}, errors.decode()
    assert results_of(run.document) == results_of(alone)
    assert asked <= REQUESTS + 2 * 2 * 4
    assert b"Traceback" not in errors


FAILS_TO_END_PROCESSES = """
import psutil, threading
children = psutil.Process.children
def failing(process, recursive=False):
    if threading.current_thread().name.startswith("ExecutorManagerThread"):
        raise IndexError("the line that /proc has of a process that is ending is empty")
    return children(process, recursive)
psutil.Process.children = failing
"""


def test_workers_end_where_loky_cannot_end_them(tmp_path: Path, alone: Any) -> None:
    pytest.importorskip("psutil")
    startup = tmp_path / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(FAILS_TO_END_PROCESSES, encoding="utf-8")
    with CountingServer() as server:
        path = {"PYTHONPATH": str(startup)}
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"), environment=path)
        process = run.start()
        assert server.wait_for_requests(20, timeout_s=60)
        workers = worker_processes(process.pid)
        os.kill(workers[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in {0, 1}, errors.decode()
    assert results_of(run.document) == results_of(alone)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert b"Traceback" not in errors


ENDS_COPIED_PROCESSES = """
import os, pathlib, sys
made = pathlib.Path(__file__).with_name("made")
if "multiprocessing.forkserver" in " ".join(sys.orig_argv) and ({always} or not made.exists()):
    made.touch()
    os._exit(1)
"""


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_a_worker_that_cannot_be_started_is_a_lost_one(tmp_path: Path, always: bool) -> None:
    suite = {"prompts": ["{{ x }}"], "providers": ["exec:sh -c true"], "tests": [{"vars": {"x": "a"}}]}
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    startup = tmp_path / "startup"
    startup.mkdir()
    text = ENDS_COPIED_PROCESSES.format(always=always)
    (startup / "sitecustomize.py").write_text(text, encoding="utf-8")
    env = clean_environment(PYTHONPATH=str(startup))
    words = (
        "run",
        "c.json",
        "--workers",
        "1",
        "--max-requests",
        "1",
        "-o",
        "o.json",
    )  # and it spends nothing
    finished = run_geval(*words, cwd=tmp_path, env=env)
    assert (startup / "made").exists()
    document = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    errors = {case["error"]["type"] for case in document["results"] if case["status"] == "error"}
    assert errors == ({"WorkerLostError"} if always else set()), finished.stderr
    assert finished.code == (3 if always else 0), finished.stderr
    assert "worker 1 was lost" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_workers_make_files_with_the_umask_of_the_run_they_belong_to(tmp_path: Path) -> None:
    """Also in a program that changes its own from one run to the next, and has no guard around what it does."""
    suite = {"prompts": ["{{ x }}"], "providers": ["exec:sh show.sh"], "tests": [{"vars": {"x": "a"}}]}
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    program = """
import os, sys
from geval_cli.cli.main import main
for umask in (0o022, 0o077):
    os.umask(umask)
    sys.argv = ["geval", "run", "c.json", "--workers", "1", "--no-cache", "-o", f"{umask}.json"]
    try:
        main()
    except SystemExit:
        pass
"""
    (tmp_path / "show.sh").write_text("umask", encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "program.py"]
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), check=True, timeout=60)
    for umask in (0o022, 0o077):
        (case,) = json.loads((tmp_path / f"{umask}.json").read_text(encoding="utf-8"))["results"]
        assert int(case["output"], 8) == umask


@pytest.mark.parametrize(
    ("bound", "said"),
    [(("--max-requests", "50"), "50 requests"), (("--max-cost", "0.1"), "$0.10")],  # a request costs $0.002
    ids=["requests", "money"],
)
def test_together_they_keep_to_one_budget(tmp_path: Path, bound: tuple[str, str], said: str) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "4", *bound))
        config = tmp_path / "config.yaml"
        price = "config: {price: {input: 10, output: 100}}"
        text = config.read_text(encoding="utf-8").replace('["openai:m"]', f'[{{id: "openai:m", {price}}}]')
        text = text.replace('provider: "openai:judge"', f'provider: {{id: "openai:judge", {price}}}')
        config.write_text(text, encoding="utf-8")
        document = run.finish()
        assert len(server.requests) == 50
    assert document["run"]["status"] == "aborted"
    assert f"the budget of {said} is used up" in document["run"]["warnings"][0]


def test_ctrl_c_ends_all_processes_and_loses_nothing(tmp_path: Path, alone: Any) -> None:
    with CountingServer() as server:
        server.answer_at_most(30)
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        process = run.start(group=0)
        assert server.wait_for_requests(31, timeout_s=60)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        workers = worker_processes(process.pid)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors.decode()
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        stopped = run.document["run"]
        server.answer_at_most(None)
        resumed = run.finish("--resume")
    assert stopped["status"] == "interrupted"
    assert [worker["lost"] for worker in stopped["workers"]] == [0, 0]
    assert "Traceback" not in errors.decode()
    assert results_of(resumed) == results_of(alone)


def test_a_worker_that_does_not_listen_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with CountingServer() as server:
        server.answer_at_most(30)
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        process = run.start()
        assert server.wait_for_requests(31, timeout_s=60)
        workers = worker_processes(process.pid)
        os.kill(workers[0], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any(b"stopping" in line for line in process.stderr)  # two at once would be one
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    document = run.document
    assert document["run"]["status"] == "interrupted"
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert b"Traceback" not in errors
    assert b"done again" not in errors


class EditingServer(CountingServer):
    """Changes the config at the first question, the one for steps, which is asked before workers start."""

    config = Path()

    async def _answer(self, asked: web.Request) -> web.Response:
        if not self.requests:
            self.config.write_text(self.config.read_text().replace("threshold: 0.5", "threshold: 0.6"))
        return await super()._answer(asked)


def test_a_config_that_is_changed_before_workers_read_it_ends_the_run_in_words(tmp_path: Path) -> None:
    with EditingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        server.config = tmp_path / "config.yaml"
        process = run.start()
        _, errors = process.communicate(timeout=60)
        asked = len(server.requests)
    assert (process.returncode, asked) == (3, 1)
    assert "Traceback" not in errors.decode()
    warning = run.document["run"]["warnings"][0]
    said = (
        "during the run: config.yaml, or a file that it uses, has changed since the run started; a function"
    )
    assert said in warning


class DeadlyServer(CountingServer):
    """Kills the workers of `pid` whenever a question about topic 3 comes."""

    pid = 0

    async def _answer(self, asked: web.Request) -> web.Response:
        if "topic 3." in await asked.text():
            for worker in worker_processes(self.pid):
                os.kill(worker, signal.SIGKILL)
        return await super()._answer(asked)


def test_a_case_that_ends_its_process_again_and_again_is_an_error(tmp_path: Path) -> None:
    with DeadlyServer() as server:
        run = KillableRun(tmp_path, server, 8, options=("--workers", "1"))
        process = run.start()
        server.pid = process.pid
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors.decode()  # some verdicts of this judge are bad ones
    document = run.document
    assert document["summary"]["total"] == 8
    broken = [case for case in document["results"] if case["status"] == "error"]
    assert (
        3 in {case["test_index"] for case in broken} <= {2, 3}
    )  # what was in its shard may suffer, no other does
    assert {case["error"]["type"] for case in broken} == {"WorkerLostError"}
    assert document["run"]["workers"][0]["lost"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", "0"), "--workers must be a number up to 64 or auto, not `0`"),
        (("--workers", "many"), "--workers must be a number up to 64 or auto, not `many`"),
        (("--workers", "2"), "--workers cannot run tests that depend on the one before them"),
        (("--workers", "2", "--plan"), "--workers cannot run tests that depend on the one before them"),
        (("--workers", "2", "--untrusted"), "--workers cannot be combined with --untrusted"),
        (("--workers", "2", "--ray", "local"), "--workers cannot be combined with --ray"),
        (
            ("--ray", "ray://head:10001"),
            "--ray cannot use `ray://head:10001`: it connects from inside a cluster",
        ),
        (("--ray", "127.0.0.1:1"), "--ray cannot reach a cluster at `127.0.0.1:1`: nothing listens there"),
        (("--ray", "nowhere"), "--ray cannot reach a cluster at `nowhere`: nothing listens there"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    test = {"vars": {"x": "a"}, "options": {"storeOutputAs": "before"}}
    suite = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": [test, {"vars": {"x": "{{ before }}"}}]}
    (tmp_path / "promptfooconfig.json").write_text(json.dumps(suite), encoding="utf-8")
    finished = run_geval("run", "promptfooconfig.json", *words, cwd=tmp_path)
    assert finished.code == 2
    assert said in finished.stderr


def test_workers_import_no_file_of_the_users_folder_by_a_name_of_the_standard_library(tmp_path: Path) -> None:
    suite = {
        "prompts": ["{{ x }}"],
        "providers": ["exec:sh own.sh"],
        "tests": [{"vars": {"x": name}, "assert": [{"type": "contains", "value": name}]} for name in "abcd"],
    }
    (tmp_path / "own.sh").write_text('echo "$1 safe path: $PYTHONSAFEPATH"', encoding="utf-8")
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    for name in sys.stdlib_module_names:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('SHADOW')\n", encoding="utf-8")
    # The installed command: with `python -m`, Python itself looks for modules in the current folder.
    command = [
        str(Path(sys.executable).with_name("geval")),
        "run",
        "c.json",
        "--workers",
        "2",
        "-o",
        "r.json",
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "SHADOW" not in ended.stdout + ended.stderr
    results = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"]
    # The environment of the config's programs is the user's own.
    assert [result["output"].strip()[2:] for result in results] == ["safe path:"] * 4


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python chooses a shorter folder itself")
def test_a_folder_for_sockets_whose_path_is_too_long_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    suite = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": [{"vars": {"x": "a"}}]}
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    long = tmp_path / ("long" * 25)
    long.mkdir()
    env = clean_environment(TMPDIR=str(long))
    finished = run_geval("run", "c.json", "--workers", "2", cwd=tmp_path, env=env)
    assert finished.code == 2, finished.stderr
    assert "--workers cannot create a socket in" in finished.stderr
    assert "running 1 case" not in finished.stderr


def test_configs_of_two_folders_are_not_sent_to_a_cluster(tmp_path: Path) -> None:
    suite = {
        "dialect": "promptfoo",
        "prompts": ["{{ x }}"],
        "providers": ["echo"],
        "tests": [{"vars": {"x": "a"}}],
    }
    (tmp_path / "sub").mkdir()
    for name in ("sub/a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(suite), encoding="utf-8")
    finished = run_geval("run", "sub/a.json", "b.json", "--merge", "--ray", "127.0.0.1:1", cwd=tmp_path)
    assert finished.code == 2
    assert "--ray sends the folder <DIR>/sub, but b.json is not in it" in " ".join(finished.stderr.split())


def test_a_plan_says_how_the_work_is_shared(tmp_path: Path) -> None:
    suite = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": [{"vars": {"x": n}} for n in range(30)]}
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    finished = run_geval("run", "c.json", "--plan", "--workers", "3", "-o", "plan.json", cwd=tmp_path)
    assert "workers 3 processes with 6 requests at once each, 10 shards of at most 3 tests" in finished.stdout
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["workers"] == {"workers": 3, "shards": 10, "shard_tests": 3, "requests_at_once": 6}
