"""Ctrl-C and SIGTERM in the middle of a run, sent to the real process."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval, start_geval
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.cli.main import main
from geval_cli.store.runs import RunStore

SLOW_AFTER = 3
TESTS = 9
NO_GRACE_S = 0.05
ENDLESS_S = 3600.0
WITH_GRACE = """\
import sys
from geval_cli.cli.main import main
from geval_cli.engine.runner import run_plan

run_plan.__kwdefaults__["grace_s"] = float(sys.argv.pop(1))
main()
"""
CONFIG = """\
prompts: ["{{ x }}"]
providers:
  - { id: "scripted:replies.yaml", config: { max_concurrency: 1 } }
tests:
""" + "".join(
    f"  - {{ vars: {{ x: 'word{number}' }}, assert: [{{ type: contains, value: fine }}] }}\n"
    for number in range(TESTS)
)
REPLIES = "".join(f"- {{ match: word{number}, reply: fine }}\n" for number in range(SLOW_AFTER)) + (
    "- { match: word, reply: late, latency_ms: 600000 }\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "replies.yaml").write_text(REPLIES, encoding="utf-8")
    return tmp_path


@dataclass
class Runs:
    """Runs in `project`, each a process of its own; none outlives its test."""

    project: Path
    processes: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def launch(self, *options: str, grace_s: float, **env: str) -> "subprocess.Popen[str]":
        """A run that grants `grace_s` to what is under way when it is to stop, however slow this machine is."""
        words = ["run", "config.yaml", "-o", "out.jsonl", "-o", "out.json", *options]
        process = start_geval(
            str(grace_s),
            *words,
            code=WITH_GRACE,
            cwd=self.project,
            env=clean_environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.processes.append(process)
        return process

    def start(self, *, grace_s: float) -> "subprocess.Popen[str]":
        """A run that has finished three tests and waits for the fourth."""
        process = self.launch(grace_s=grace_s)
        wait_for_results(self.project, process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def runs(project: Path) -> Iterator[Runs]:
    runs = Runs(project)
    yield runs
    runs.end()


def wait_for_results(project: Path, process: "subprocess.Popen[str]") -> None:
    """Until three results are in the file that is written line by line."""
    lines = project / "out.jsonl"
    while not lines.exists() or lines.read_text(encoding="utf-8").count("\n") < SLOW_AFTER:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            pytest.fail("the run ended early")


def told(sent: signal.Signals) -> str:
    """What geval calls the signal."""
    return "Ctrl-C" if sent is signal.SIGINT else sent.name


def wait_until_it_stops(process: "subprocess.Popen[str]") -> None:
    """Until it has said that it has the signal."""
    assert process.stderr is not None
    for line in process.stderr:
        if "Ctrl-C: stopping" in line:
            return
    pytest.fail("the run ended without a word about the signal")


def wait_until_stored(home: Path) -> None:
    """Results are committed in groups, a few milliseconds after they are known."""
    store = RunStore.open(home)
    run_id = store.find("latest").run.id
    while len(list(store.results(run_id))) < SLOW_AFTER:
        pass
    store.close()


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_stops_the_run_and_keeps_what_is_finished(
    project: Path, runs: Runs, sent: signal.Signals, code: int
) -> None:
    process = runs.start(grace_s=NO_GRACE_S)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "3 passed" in out
    assert f"{told(sent)}: stopping; finished cases are kept" in err
    assert "Traceback" not in err
    report = json.loads((project / "out.json").read_text(encoding="utf-8"))
    assert report["run"]["status"] == "interrupted"
    assert report["summary"]["total"] == SLOW_AFTER
    assert [item["status"] for item in report["results"]] == ["passed"] * SLOW_AFTER
    shown = run_geval("show", cwd=project)
    assert "3 passed" in shown.stdout
    assert "interrupted" in run_geval("list", cwd=project).stdout


def test_a_second_signal_ends_the_process_at_once(project: Path, runs: Runs) -> None:
    process = runs.start(grace_s=ENDLESS_S)
    process.send_signal(signal.SIGINT)
    wait_until_it_stops(process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "3 passed" in out
    assert "3 passed" in run_geval("show", cwd=project).stdout


class Waiting:
    """A model that answers once all tests have asked: the first three, and the others after `release`."""

    def __init__(self) -> None:
        self.server = LoopbackServer(respond=self._answer)
        self._has_all, self._may_end = asyncio.Event(), asyncio.Event()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._may_end.set)

    async def _answer(self, body: Any, headers: object) -> Reply:
        self._loop = asyncio.get_running_loop()
        if len(self.server.requests) == TESTS:
            self._has_all.set()
        await self._has_all.wait()
        if all(f"word{number}" not in str(body) for number in range(SLOW_AFTER)):
            await self._may_end.wait()
        return chat_reply("fine")


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    model = Waiting()
    with model.server:
        yield model


@pytest.mark.parametrize(
    ("is_hurried", "kept"), [(False, "7 passed, 2 failed"), (True, "1 passed, 2 failed")]
)
def test_ctrl_c_after_fail_fast_ends_with_its_own_exit_code_and_keeps_what_is_finished(
    project: Path, runs: Runs, waiting: Waiting, is_hurried: bool, kept: str
) -> None:
    config = CONFIG.replace('{ id: "scripted:replies.yaml", config: { max_concurrency: 1 } }', '"openai:m"')
    for failing in ("word1", "word2"):
        wanted = f"x: '{failing}' }}, assert: [{{ type: contains, value: "
        config = config.replace(f"{wanted}fine", f"{wanted}no")
    (project / "config.yaml").write_text(config, encoding="utf-8")
    keys = {"OPENAI_BASE_URL": waiting.server.base_url, "OPENAI_API_KEY": "sk-test"}
    words = ("--fail-fast", "--no-progress", "-j", str(TESTS))
    process = runs.launch(*words, grace_s=ENDLESS_S, **keys)
    wait_for_results(project, process)
    process.send_signal(signal.SIGINT)
    wait_until_it_stops(process)
    if is_hurried:
        process.send_signal(signal.SIGINT)
    else:
        waiting.release()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert kept in out
    assert kept in run_geval("show", cwd=project).stdout


class Judged:
    """A model and a judge that answer the first requests at once, and then none until `release`."""

    def __init__(self, answered: int) -> None:
        self.server = LoopbackServer(respond=self._answer)
        self._left, self._may_end = answered, asyncio.Event()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._may_end.set)

    async def _answer(self, body: Any, headers: object) -> Reply:
        self._loop = asyncio.get_running_loop()
        self._left -= 1
        if self._left < 0:
            await self._may_end.wait()
        return chat_reply('{"reason": "It is.", "score": 10}' if body["model"] == "judge" else "fine")

    def asked_twice(self) -> int:
        return len(self.server.requests) - len({request.body for request in self.server.requests})


JUDGED_TESTS = 60
UNDER_WAY = 20


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (signal.SIGINT, ()),
        (signal.SIGINT, ("--workers", "2")),
        (signal.SIGTERM, ("--workers", "2")),
        (signal.SIGHUP, ("--fail-fast",)),
    ],
)
def test_after_a_signal_nothing_more_is_sent_and_what_was_sent_is_kept(
    project: Path, runs: Runs, sent: signal.Signals, words: tuple[str, ...]
) -> None:
    assertion = {"type": "g-eval", "criteria": "It is fine.", "evaluation_steps": ["Read it."]}
    assertion["scoring"] = "single"
    config = {
        "prompts": ["{{ x }}"],
        "providers": ["openai:model"],
        "defaultTest": {"options": {"provider": "openai:judge"}, "assert": [assertion]},
        "tests": [{"vars": {"x": f"word{number}"}} for number in range(JUDGED_TESTS)],
    }
    (project / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    model = Judged(answered=2 * UNDER_WAY)
    with model.server:
        keys = {"OPENAI_BASE_URL": model.server.base_url, "OPENAI_API_KEY": "sk-test"}
        options = ("--no-progress", "-j", str(UNDER_WAY), *words)
        process = runs.launch(*options, grace_s=NO_GRACE_S, COLUMNS="200", **keys)
        # Workers may have less under way: those at the ends of their shards.
        # On a busy machine a worker may also start seconds after the others.
        unanswered, quiet_s = (1, 5.0) if "--workers" in words else (UNDER_WAY, 1.0)
        before = model.server.wait_until_quiet(2 * UNDER_WAY + unanswered, quiet_s=quiet_s)
        process.send_signal(sent)
        assert process.stderr is not None
        said = next(line for line in process.stderr if f"{told(sent)}: stopping" in line)
        model.release()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (130 if sent is signal.SIGINT else 143), errors
        assert len(model.server.requests) == before
        assert "waiting" in said
        assert ("charged" if "--workers" in words else "paid for") in said
        resumed = run_geval(
            "run", "config.yaml", *options, "--resume", cwd=project, env=clean_environment(**keys)
        )
        assert resumed.code == 0, resumed.stderr
        assert (len(model.server.requests), model.asked_twice()) == (2 * JUDGED_TESTS, 0)


def test_a_run_in_which_something_computes_without_end_ends_after_a_signal(project: Path, runs: Runs) -> None:
    busy = "from geval_cli.cli import run\nrun._STUCK_S = 0.5\n"
    (project / "busy.py").write_text(
        "import os\ndef listen(*_):\n    os.kill(os.getpid(), 15)\n    while True: pass\n", encoding="utf-8"
    )
    code = f"{busy}import busy\nrun.Screen.listen = busy.listen\nfrom geval_cli.cli.main import main\nmain()"
    finished = run_geval("run", "config.yaml", cwd=project, code=code)
    assert finished.code == 143
    assert "without end; finished cases are kept" in finished.stderr


def test_a_killed_process_leaves_every_finished_result(project: Path, runs: Runs) -> None:
    process = runs.start(grace_s=ENDLESS_S)
    wait_until_stored(project / ".geval")
    process.kill()
    process.communicate(timeout=60)
    shown = run_geval("show", cwd=project)
    assert "3 passed" in shown.stdout
    listed = run_geval("list", cwd=project).stdout
    assert "interrupted" in listed
    assert "running" not in listed


def test_a_thread_that_hears_no_signals_does_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": [{"vars": {"x": "a"}}]}
    suite["defaultTest"] = {"assert": [{"type": "contains", "value": "a"}]}
    (tmp_path / "c.json").write_text(json.dumps(suite), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["geval", "run", "c.json", "--home", "home"])
    codes = []

    def run() -> None:
        try:
            main()
        except SystemExit as end:
            codes.append(end.code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [0]


def rated(body: Any, headers: Any) -> Reply:
    del headers
    text = body["messages"][-1]["content"]
    return chat_reply(
        json.dumps(
            {"reason": "as it is", "score": len(text) % 11, "steps": ["Read."], "guidelines": ["Be strict."]}
        )
    )


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (["improve", "judged.yaml", "--labels", "labels.jsonl"], "SIGINT", 130),
        (["probe", "judged.yaml", "--items", "4"], "SIGINT", 130),
        (["probe", "judged.yaml", "--items", "4"], "SIGTERM", 143),
        (["probe", "judged.yaml", "--items", "4"], "SIGHUP", 143),
        (["drift", "anchors.jsonl"], "SIGINT", 130),
        (["lock", "steps.yaml"], "SIGINT", 130),
    ],
)
def test_commands_about_judges_wait_for_what_they_have_paid_for(
    tmp_path: Path, words: list[str], name: str, code: int
) -> None:
    """After Ctrl-C nothing more is sent, and the same command sends nothing again that was sent; drift does."""
    check = {"type": "g-eval", "metric": "m", "criteria": "It helps.", "evaluation_steps": ["Look."]}
    tests = [{"vars": {"n": number}, "output": f"{'x' * number} {number}"} for number in range(40)]
    config = {
        "defaultTest": {
            "options": {"provider": "openai:judge"},
            "assert": [{**check, "scoring": "single", "explain": "never"}],
        },
        "tests": tests,
    }
    (tmp_path / "judged.yaml").write_text(json.dumps(config), encoding="utf-8")
    checks = [{"type": "g-eval", "criteria": f"It is {word}."} for word in ("short", "kind", "true")]
    steps = {"defaultTest": {"options": {"provider": "openai:judge"}, "assert": checks}, "tests": tests[:1]}
    (tmp_path / "steps.yaml").write_text(json.dumps(steps), encoding="utf-8")
    labels = [{"id": f"{number}.0.0", "metric": "m", "label": number % 2} for number in range(40)]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)), encoding="utf-8")
    with LoopbackServer(respond=rated) as server:
        env = clean_environment(OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url)
        run_geval("run", "judged.yaml", cwd=tmp_path, env=env)
        run_geval("drift", "--save", "anchors.jsonl", cwd=tmp_path, env=env)
        before = len(server.requests)
        server.hold()
        at_once = [] if words[0] == "lock" else ["-j", "2"]
        process = start_geval(*words, *at_once, cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE)
        assert process.stderr is not None
        server.wait_for_requests(before + 1)
        process.send_signal(getattr(signal, name))
        again = "press Ctrl-C again" if name == "SIGINT" else "send a second signal"
        assert any(f"under way; {again} to drop" in line for line in process.stderr)
        server.release()
        process.communicate(timeout=60)
        assert process.returncode == code
        sent = [request.body for request in server.requests[before:]]
        assert 1 <= len(sent) <= 3
        run_geval(*words, cwd=tmp_path, env=env)
        later = [request.body for request in server.requests[before + len(sent) :]]
        assert later or len(sent) == len(checks)
        assert words[0] == "drift" or not set(sent) & set(later)
