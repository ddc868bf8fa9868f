"""`geval run --batch` and `geval batches` as commands: exit codes, tables, JSON, and what they refuse."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.batch_server import BatchServer
from support.batch_trial import BatchSuite
from support.geval_command import Finished, clean_environment, run_geval, start_geval

from geval_cli.store.runs import RunStore


@pytest.fixture
def server() -> Any:
    with BatchServer() as server:
        yield server


def geval(suite: BatchSuite, *words: str, timeout_s: float = 120) -> Finished:
    env = clean_environment(**suite.environ, COLUMNS="80")
    return run_geval(*words, "--home", "home", cwd=suite.folder, env=env, timeout_s=timeout_s)


def test_batches_are_listed_cancelled_and_gone_on_with(tmp_path, server):
    server.is_held = True
    suite = BatchSuite(tmp_path, server, wire="anthropic")
    handed_in = geval(suite, "run", "config.json", "--batch", "--no-wait")
    assert handed_in.code == 75
    said = " ".join(handed_in.stderr.split())
    assert "1 batch with 29 requests continues at the provider" in said
    assert "config.json --resume --home home` with the same options fetches the answers" in said
    document = json.loads(geval(suite, "batches", "--json").stdout)
    assert document["kind"] == "batches"
    (batch,) = document["batches"]
    assert (batch["state"], batch["requests"], batch["role"]) == ("submitted", 29, "generation")
    assert f"`geval batches cancel {batch['id']} --home home` ends it" in said
    table = geval(suite, "batches").stdout
    assert batch["id"] in table
    assert "0 of 29" in table
    cancelled = geval(suite, "batches", "cancel", batch["id"])
    assert (cancelled.code, server.log.count("cancel")) == (0, 1)
    stopped = geval(suite, "run", "config.json", "--resume")
    assert stopped.code != 0
    assert "a batch was cancelled" in stopped.stderr
    server.is_held = False
    resumed = geval(suite, "run", "config.json", "--resume", "-o", "results.json")
    assert resumed.code == 1
    assert len(json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["results"]) == 30
    assert set(server.paid.values()) == {1}


def started(suite: BatchSuite, name: str) -> "subprocess.Popen[bytes]":
    """`geval run` in batches of a process of its own, which writes its results into a file of that name."""
    words = ("run", "config.json", "--batch", "--home", "home", "--no-progress", "-o", name)
    env = clean_environment(**suite.environ)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return start_geval(*words, cwd=suite.folder, env=env, **streams)


def runs_begun(suite: BatchSuite) -> int:
    with RunStore.open_read_only(suite.folder / "home") as store:
        return len(store.runs())


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("is_first_killed", [False, True], ids=["both live", "the first is killed"])
def test_two_processes_that_ask_the_same_share_their_batches(tmp_path, server, is_first_killed):
    server.is_held = True
    suite = BatchSuite(tmp_path, server, options={"poll_s": 0.05})  # they are held for seconds
    first = started(suite, "first.json")
    wait_until(lambda: bool(server.batches))
    second = started(suite, "second.json")
    wait_until(lambda: runs_begun(suite) == 2)
    if is_first_killed:  # who submitted the batch is gone: the other takes it up
        first.kill()
    server.is_held = False
    waited = [process.communicate(timeout=120) for process in (first, second)]
    assert second.returncode == 1, waited[1][1].decode()
    assert first.returncode == (-signal.SIGKILL if is_first_killed else 1), waited[0][1].decode()
    assert set(server.paid.values()) == {1}
    assert len(server.asked) == 61  # 30 outputs, 30 ratings, steps
    # What was on the wire of a process that is killed may be sent again by the other.
    assert sum(server.asked.values()) <= 61 + (2 if is_first_killed else 0)
    found = [json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in files(is_first_killed)]
    assert all(len(document["results"]) == 30 for document in found)
    assert [outputs(document) for document in found] == [outputs(found[0])] * len(found)


def files(is_first_killed: bool) -> list[str]:
    return ["second.json"] if is_first_killed else ["first.json", "second.json"]


def outputs(document: Any) -> list[Any]:
    return [(case["output"], case["status"], case["score"]) for case in document["results"]]


class SlowServer(BatchServer):
    """Its batches end when they have been looked at `held_looks` times."""

    held_looks = 5

    def _look_at(self, batch: Any) -> None:
        self.held_looks -= 1
        self.is_held = self.held_looks > 0
        super()._look_at(batch)


def test_waiting_looks_as_often_as_the_config_says(tmp_path):
    with SlowServer() as server:
        server.is_held = True
        suite = BatchSuite(tmp_path, server)
        suite.run(waits=False)
        assert server.is_held
        # By default there would be more than half a minute between these looks.
        waited = geval(suite, "batches", "wait", "latest", timeout_s=30)
    assert waited.code == 0, waited.stderr
    assert "completed, 29 of 29 answered" in waited.stdout
    assert "use them with `geval run <DIR>/config.json --resume --home home`" in waited.stdout


def test_batches_of_a_judge_that_only_the_command_line_named_are_waited_for_and_cancelled(tmp_path):
    with SlowServer() as server:
        server.is_held = True
        suite = BatchSuite(tmp_path, server)
        suite.run(waits=False, grader="openai:other", batch=False, batch_judge=True)
        (batch,) = json.loads(geval(suite, "batches", "--json").stdout)["batches"]
        assert (batch["provider_id"], batch["state"]) == ("openai:other", "submitted")
        cancelled = geval(suite, "batches", "cancel", batch["id"])
        assert cancelled.code == 0, cancelled.stderr
        waited = geval(suite, "batches", "wait")
    assert waited.code == 0, waited.stderr
    assert "cancelled" in waited.stdout


def test_results_of_another_machine_are_adopted(tmp_path, server):
    BatchSuite(tmp_path / "there", server, wire="anthropic").run()
    here = BatchSuite(tmp_path / "here", server, wire="anthropic")
    assert "there is no response cache" in geval(here, "batches").stderr
    here.run(filter_first=1)
    adopted = geval(here, "batches", "adopt", "batch_0", "--provider", "anthropic:m")
    assert (adopted.code, adopted.stdout.partition(" ")[0]) == (0, "29")
    ended = here.run()
    assert {server.paid[item["custom_id"]] for item in server.batches["batch_0"].requests} == {1}
    assert {item["role"] for item in ended.run["batches"]} == {"judge"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "config.json", "--batch", "--offline"), "batches cannot be combined with --offline"),
        (("run", "config.json", "--no-wait"), "--no-wait needs --batch or --batch-judge"),
        (("run", "config.json", "--batch", "--batch-judge"), "cannot be combined"),
        (("run", "config.json", "--batch", "--watch"), "--watch cannot be combined with batches"),
        (("run", "config.json", "--batch", "--workers", "2"), "--workers cannot be combined with batches"),
        (("batches", "cancel", "x"), "there is no response cache"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, server: BatchServer, words: tuple[str, ...], message: str
):
    finished = geval(BatchSuite(tmp_path, server), *words)
    assert finished.code == 2
    assert message in finished.stderr
    assert not server.log


def test_a_plan_counts_what_was_submitted_as_little_as_what_is_cached(tmp_path, server):
    """Whether the batch has ended or not; a run that is resumed goes on with batches at their price."""
    suite = BatchSuite(tmp_path, server, config={"max_tokens": 100})
    server.is_held = True
    assert geval(suite, "run", "config.json", "--batch", "--no-wait").code == 75
    rows = []
    for _ in range(2):
        for options in (("--batch",), ("--resume",), ("--resume", "--batch")):
            assert geval(suite, "run", "config.json", "--plan", "-o", "plan.json", *options).code == 0
            plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
            rows.append({row["purpose"]: row for row in plan["rows"]})
        server.is_held = False
        assert geval(suite, "batches", "wait").code == 0
    for found in rows:
        assert found["answers"]["most"] == 0
        ratings = found["ratings"]
        assert (ratings["most"], ratings["wave"]) == (suite.tests - 1, 1)
        assert ratings["cost_most_usd"] == pytest.approx(rows[0]["ratings"]["cost_most_usd"])


def test_a_plan_shows_waves_and_half_the_price(tmp_path, server):
    suite = BatchSuite(tmp_path, server, config={"max_tokens": 100})
    plans = []
    for options in ((), ("--batch",)):
        assert geval(suite, "run", "config.json", "--plan", "-o", "plan.json", *options).code == 0
        plans.append(json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")))
    direct, batched = plans
    assert "waves" not in direct
    assert batched["waves"] == 2
    assert [(row["purpose"], row["wave"]) for row in batched["rows"]] == [
        ("answers", 1),
        ("steps", None),
        ("ratings", 2),
    ]
    halves = {"answers": 0.5, "steps": 1, "ratings": 0.5}
    for before, after in zip(direct["rows"], batched["rows"], strict=True):
        assert after["cost_most_usd"] == pytest.approx(before["cost_most_usd"] * halves[before["purpose"]])
    assert not server.log
