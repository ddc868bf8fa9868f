"""Loops, threads and processes: from wherever a metric is used, it is one metric, and it leaves nothing behind."""

import asyncio
import copy
import gc
import os
import pickle
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.geval_command import clean_environment, start_geval
from support.judge_server import is_steps_request
from support.loopback import LoopbackServer, chat_reply

from geval_cli import GEval, Result, TestCase, aevaluate_batch, evaluate_batch


def helpfulness() -> GEval:
    return GEval("Helpfulness", "Does the response help?")


def cases(count: int) -> list[TestCase]:
    return [TestCase("q", f"answer {number}") for number in range(count)]


def steps_requests(server: LoopbackServer) -> int:
    return sum(is_steps_request(request.json) for request in server.requests)


def test_evaluate_works_inside_a_running_event_loop(server: LoopbackServer) -> None:
    async def notebook_cell() -> float:
        return helpfulness().evaluate(TestCase("q", "a")).score

    assert asyncio.run(notebook_cell()) == 0.9


def test_other_tasks_go_on_during_aevaluate(server: LoopbackServer) -> None:
    async def body() -> float:
        server.hold()
        evaluation = asyncio.create_task(helpfulness().aevaluate(TestCase("q", "a")))
        await asyncio.to_thread(server.wait_for_requests, 1)
        assert not evaluation.done()
        server.release()
        return (await evaluation).score

    assert asyncio.run(body()) == 0.9


def test_steps_are_shared_by_loops_threads_and_calls(server: LoopbackServer) -> None:
    metric = helpfulness()
    first, second, third, *rest = cases(12)
    metric.evaluate(first)
    asyncio.run(metric.aevaluate(second))
    asyncio.run(metric.aevaluate(third))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(metric.evaluate, rest))
    assert {result.score for result in results} == {0.9}
    assert steps_requests(server) == 1
    assert len(server.requests) == 13


def test_steps_are_asked_for_once_by_first_calls_at_the_same_time(server: LoopbackServer) -> None:
    metric = helpfulness()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(metric.evaluate, cases(8)))
    assert steps_requests(server) == 1


def test_each_judge_writes_its_own_steps(server: LoopbackServer) -> None:
    metric = helpfulness()
    metric.evaluate(TestCase("q", "a"))
    metric.evaluate(TestCase("q", "a"), model="gpt-4o-mini")
    assert steps_requests(server) == 2


def test_an_equal_evaluation_is_not_paid_twice(server: LoopbackServer) -> None:
    metric = helpfulness()
    first, second = metric.evaluate(TestCase("q", "a")), metric.evaluate(TestCase("q", "a"))
    assert second.reason == first.reason
    assert second.metadata["usage"]["cached_requests"] == 2
    assert len(server.requests) == 2


def test_abatch_keeps_the_order(server: LoopbackServer) -> None:
    results = asyncio.run(aevaluate_batch(helpfulness(), cases(5), concurrency=2))
    assert all(isinstance(result, Result) for result in results)
    assert len(results) == 5


def test_cancelling_aevaluate_cancels_the_work(server: LoopbackServer) -> None:
    metric = helpfulness()

    async def body() -> None:
        server.hold()
        evaluation = asyncio.create_task(metric.aevaluate(TestCase("q", "a")))
        await asyncio.to_thread(server.wait_for_requests, 1)
        evaluation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await evaluation
        server.release()

    asyncio.run(body())
    assert metric.evaluate(TestCase("q", "b")).score == 0.9


def test_the_thread_ends_with_the_metric(server: LoopbackServer) -> None:
    before = set(threading.enumerate())
    metric = helpfulness()
    assert set(threading.enumerate()) <= before
    metric.evaluate(TestCase("q", "a"))
    [thread] = set(threading.enumerate()) - before
    assert thread.name == "geval-judges"
    del metric
    gc.collect()
    assert not thread.is_alive()


def test_a_forgotten_metric_under_way_is_cancelled(server: LoopbackServer) -> None:
    before = set(threading.enumerate())

    async def body() -> None:
        server.hold()
        evaluation = asyncio.create_task(helpfulness().aevaluate(TestCase("q", "a")))
        await asyncio.to_thread(server.wait_for_requests, 1)
        evaluation.cancel()

    asyncio.run(body())
    server.release()
    gc.collect()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "geval-judges"]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))]
)
def test_a_copy_is_a_metric_of_its_own(server: LoopbackServer, copied: object) -> None:
    metric = GEval("Tone", "Be kind.", rubric={10: "Kind.", 0: "Rude."}, threshold=0.8, model="gpt-4o")
    metric.evaluate(TestCase("q", "a"))
    twin = copied(metric)  # type: ignore[operator]
    assert repr(twin) == repr(metric)
    assert twin.evaluate(TestCase("q", "a")).metadata["judge"] == "openai:gpt-4o"
    assert steps_requests(server) == 2


PROGRAM = """
import warnings
warnings.simplefilter("error")
from geval_cli import GEval, TestCase
metric = GEval("Helpfulness", "Does the response help?")
case = TestCase("q", "a")
"""


def start_python(
    program: str, server: LoopbackServer, *, is_loaded_anew: bool = False
) -> "subprocess.Popen[str]":
    env = clean_environment(OPENAI_API_KEY="sk-of-a-program", OPENAI_BASE_URL=server.base_url)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    code = PROGRAM + program
    return start_geval(cwd=Path.cwd(), env=env, code=code, is_loaded_anew=is_loaded_anew, text=True, **pipes)


QUIET = "import logging; logging.disable()\n"


def test_a_program_ends_without_a_word(server: LoopbackServer) -> None:
    """Neither in a process that has loaded nothing yet."""
    program = start_python(f"{QUIET}print(metric.evaluate(case).score)", server, is_loaded_anew=True)
    assert program.communicate(timeout=60) == ("0.9\n", "")
    assert program.returncode == 0


def test_what_a_judge_lacks_is_logged_once(server: LoopbackServer) -> None:
    program = start_python("metric.evaluate(case); metric.evaluate(TestCase('q', 'b'))", server)
    assert program.communicate(timeout=60) == ("", "openai:gpt-4.1 gives no token log-probabilities\n")


def test_ctrl_c_interrupts_an_evaluation(server: LoopbackServer) -> None:
    server.hold()
    program = start_python("metric.evaluate(case)", server)
    server.wait_for_requests(1, timeout_s=60)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    server.release()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode == -signal.SIGINT


RUNS = """
import asyncio
from geval_cli import Suite, run
suite = Suite(tests=[{"input": f"q{n}"} for n in range(4)], providers=["openai:m"],
              assertions=[{"type": "word-count", "value": {"min": 0}}], name="answered")
def work():
    return run(suite, max_concurrency=2, progress=False, resume=RESUMES)
async def cell():
    return work()
"""
LOOPS = {
    "no event loop": "work()",
    "a notebook's event loop": "asyncio.new_event_loop().run_until_complete(cell())",
}


@pytest.mark.parametrize("call", LOOPS.values(), ids=LOOPS)
def test_ctrl_c_keeps_the_answers_of_a_run_that_are_under_way(
    server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """They were paid for again by the run that resumed it."""
    monkeypatch.chdir(tmp_path)
    server.hold()
    program = start_python(f"{RUNS.replace('RESUMES', 'False')}{call}", server)
    server.wait_for_requests(2, timeout_s=60)
    program.send_signal(signal.SIGINT)
    assert program.stderr is not None
    assert program.stderr.readline().startswith("stopping: waiting for requests in flight")
    server.release()
    _, errors = program.communicate(timeout=60)
    assert "\nKeyboardInterrupt" in errors
    assert len(server.requests) == 2
    again = start_python(f"{RUNS.replace('RESUMES', 'True')}print(len({call}))", server)
    assert again.communicate(timeout=60)[0] == "4\n"
    assert len(server.requests) == 4


@pytest.mark.parametrize("call", LOOPS.values(), ids=LOOPS)
def test_a_second_ctrl_c_waits_for_nothing(
    server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.chdir(tmp_path)
    server.hold()
    program = start_python(f"{RUNS.replace('RESUMES', 'False')}{call}", server)
    server.wait_for_requests(2, timeout_s=60)
    program.send_signal(signal.SIGINT)
    assert program.stderr is not None
    program.stderr.readline()
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    server.release()
    assert "\nKeyboardInterrupt" in errors


@pytest.mark.local_model
def test_a_program_with_a_local_model_ends_without_a_word(server: LoopbackServer) -> None:
    """It compares meanings, for which it reads a few words where a rating takes hundreds."""
    check = {"type": "similar", "value": "Yes.", "provider": "local:embedding:smollm2"}
    program = start_python(
        f"{QUIET}from geval_cli import check; print(check('Yes.', {check}).success)", server
    )
    assert program.communicate(timeout=300) == ("True\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_can_go_on_with_a_metric(server: LoopbackServer) -> None:
    forked = """
import os, warnings
metric.evaluate(case)
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    print(metric.evaluate(case).score, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(metric.evaluate(TestCase("q", "b")).score)
"""
    program = start_python(QUIET + forked, server)
    assert program.communicate(timeout=60) == ("0.9\n0.9\n", "")


def test_batches_of_two_metrics_do_not_wait_for_each_other(server: LoopbackServer) -> None:
    server.add(chat_reply('{"steps": ["Read."]}'))
    with ThreadPoolExecutor(2) as pool:
        batches = pool.map(lambda metric: evaluate_batch(metric, cases(3)), [helpfulness(), helpfulness()])
    assert [len(batch) for batch in batches] == [3, 3]
