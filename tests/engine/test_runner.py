import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

import pytest
from support.specs import case, suite

from geval_cli.engine.plan import Job, Plan
from geval_cli.engine.runner import EventStream, StopReason, StopSignal, run_plan
from geval_cli.errors import ConfigError, Problem
from geval_cli.events import CaseFinished
from geval_cli.records import CaseResult, ProviderRef, RenderedPrompt, Status
from geval_cli.specs.base import ProviderSpec

Execute = Callable[[Job], Awaitable[CaseResult]]


def jobs(count: int) -> list[Job]:
    [queue] = Plan(suite([case(index, vars={"x": index}) for index in range(count)])).queues
    return list(queue)


def result_of(job: Job) -> CaseResult:
    return CaseResult(
        id=job.id,
        test_index=job.test.index,
        repeat_index=job.repeat_index,
        column=job.column,
        description=None,
        prompt=RenderedPrompt("p", "p", ""),
        provider=ProviderRef("echo", "echo"),
        vars={},
        output="",
        status=Status.PASSED,
        score=1.0,
    )


async def run(
    *queues: Iterable[Job],
    execute: Execute,
    parallel: int,
    stop: StopSignal | None = None,
    grace_s: float = 5.0,
    finished: list[str] | None = None,
) -> list[str]:
    """The ids of what finished; also in `finished`, for runs that raise."""
    events, stop = EventStream(), stop or StopSignal()
    found = [] if finished is None else finished

    async def read() -> None:
        async for event in events:
            assert isinstance(event, CaseFinished)
            found.append(event.result.id)

    reading = asyncio.ensure_future(read())
    try:
        await run_plan(queues, execute, parallel=parallel, events=events, stop=stop, grace_s=grace_s)
    finally:
        events.end()
        await reading
    return found


def test_every_job_is_executed_once_and_at_most_so_many_at_a_time() -> None:
    under_way, most = 0, 0

    async def execute(job: Job) -> CaseResult:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20 + job.test.index % 5):
            await asyncio.sleep(0)
        under_way -= 1
        return result_of(job)

    async def main() -> list[str]:
        return await run(jobs(50), execute=execute, parallel=7)

    finished = asyncio.run(main())
    assert sorted(finished) == sorted(job.id for job in jobs(50))
    assert most == 7


def test_jobs_are_taken_from_the_plan_only_when_there_is_room() -> None:
    taken = 0

    async def main() -> None:
        nonlocal taken
        gate = asyncio.Event()

        def plan() -> Iterator[Job]:
            nonlocal taken
            for job in jobs(1000):
                taken += 1
                yield job

        async def execute(job: Job) -> CaseResult:
            await gate.wait()
            return result_of(job)

        running = asyncio.ensure_future(run(plan(), execute=execute, parallel=3))
        for _ in range(50):
            await asyncio.sleep(0)
        assert taken == 3
        gate.set()
        assert len(await running) == 1000

    asyncio.run(main())


def test_after_a_stop_no_job_is_started_and_what_is_under_way_may_finish() -> None:
    async def main() -> list[str]:
        stop, started = StopSignal(), 0

        async def execute(job: Job) -> CaseResult:
            nonlocal started
            started += 1
            if started == 3:
                stop.request(StopReason.SIGINT)
            for _ in range(10):
                await asyncio.sleep(0)
            return result_of(job)

        finished = await run(jobs(100), execute=execute, parallel=5, stop=stop)
        assert len(finished) == started
        return finished

    assert 3 <= len(asyncio.run(main())) <= 6


def test_what_outlasts_the_grace_is_cancelled_and_gives_no_result() -> None:
    cancelled = 0

    async def main() -> list[str]:
        stop = StopSignal()

        async def execute(job: Job) -> CaseResult:
            nonlocal cancelled
            if job.test.index == 0:
                return result_of(job)
            stop.request(StopReason.SIGINT)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
            return result_of(job)

        return await run(jobs(10), execute=execute, parallel=2, stop=stop, grace_s=0.01)

    assert asyncio.run(main()) == ["0.0.0"]
    assert cancelled >= 1


def reason_after(*reasons: StopReason) -> StopSignal:
    stop = StopSignal()
    for reason in reasons:
        stop.request(reason)
    return stop


def test_the_first_reason_for_a_stop_stays_unless_a_signal_comes() -> None:
    fail_fast, ctrl_c, terminate = StopReason.FAIL_FAST, StopReason.SIGINT, StopReason.SIGTERM
    assert reason_after(ctrl_c, terminate).reason is ctrl_c
    assert reason_after(ctrl_c, fail_fast).reason is ctrl_c
    assert reason_after(fail_fast, ctrl_c).reason is ctrl_c


def test_asking_for_a_stop_twice_leaves_the_grace_and_only_hurrying_ends_it() -> None:
    async def main(is_hurried: bool) -> list[str]:
        slow, started = asyncio.Event(), asyncio.Event()

        async def execute(job: Job) -> CaseResult:
            started.set()
            asyncio.get_running_loop().call_soon(stop.hurry if is_hurried else slow.set)
            await slow.wait()
            return result_of(job)

        stop = StopSignal()
        running = asyncio.ensure_future(run(jobs(1), execute=execute, parallel=1, stop=stop))
        await started.wait()
        for _ in range(2):
            stop.request(StopReason.FAIL_FAST)
        return await running

    assert asyncio.run(main(is_hurried=False)) == ["0.0.0"]
    assert asyncio.run(main(is_hurried=True)) == []


def test_a_lane_whose_jobs_wait_holds_up_no_other() -> None:
    async def main() -> list[str]:
        providers = (ProviderSpec(id="echo", label="a"), ProviderSpec(id="echo", label="b"))
        plan = Plan(suite([case(index, vars={"x": index}) for index in range(30)], providers=providers))
        gate, done = asyncio.Event(), 0

        async def execute(job: Job) -> CaseResult:
            nonlocal done
            if job.column == 0:
                await gate.wait()
            else:
                done += 1
                if done == 30:
                    gate.set()
            return result_of(job)

        return await run(*plan.queues, execute=execute, parallel=4)

    finished = asyncio.run(main())
    assert finished[:30] == [f"{index}.0.1" for index in range(30)]
    assert len(finished) == 60


def test_tests_that_can_no_longer_be_read_stop_the_run_and_what_is_under_way_may_finish() -> None:
    async def main() -> list[str]:
        slow, finished = asyncio.Event(), list[str]()

        def broken() -> Iterator[Job]:
            yield from jobs(3)
            asyncio.get_running_loop().call_soon(slow.set)
            raise ConfigError([Problem("the file changed")])

        async def execute(job: Job) -> CaseResult:
            await slow.wait()
            return result_of(job)

        with pytest.raises(ConfigError):
            await run(broken(), execute=execute, parallel=5, finished=finished)
        return finished

    assert asyncio.run(main()) == ["0.0.0", "1.0.0", "2.0.0"]


def test_a_reader_that_is_slow_slows_the_jobs_down() -> None:
    async def main() -> tuple[int, int]:
        started, events = 0, EventStream()

        async def execute(job: Job) -> CaseResult:
            nonlocal started
            started += 1
            return result_of(job)

        running = asyncio.ensure_future(
            run_plan([jobs(2_000)], execute, parallel=10, events=events, stop=StopSignal())
        )
        before = -1
        while before != started:
            before = started
            for _ in range(20):
                await asyncio.sleep(0)
        running.add_done_callback(lambda _: events.end())
        return started, len([event async for event in events])

    started, read = asyncio.run(main())
    assert started < 300
    assert read == 2_000
