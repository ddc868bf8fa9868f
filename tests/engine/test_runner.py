import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator

from support.specs import case, suite

from geval_cli.engine.plan import Job, Plan
from geval_cli.engine.runner import EventStream, StopSignal, run_plan
from geval_cli.events import CaseFinished
from geval_cli.records import CaseResult, ProviderRef, RenderedPrompt, Status

Execute = Callable[[Job], Awaitable[CaseResult]]


def jobs(count: int) -> Plan:
    return Plan(suite([case(index, vars={"x": index}) for index in range(count)]))


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
    plan: Iterable[Job], execute: Execute, *, parallel: int, stop: StopSignal, grace_s: float = 5.0
) -> list[str]:
    events = EventStream()
    await run_plan(plan, execute, parallel=parallel, events=events, stop=stop, grace_s=grace_s)
    events.end()
    return [event.result.id async for event in events if isinstance(event, CaseFinished)]


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
        return await run(jobs(50), execute, parallel=7, stop=StopSignal())

    finished = asyncio.run(main())
    assert sorted(finished) == sorted(job.id for job in jobs(50))
    assert most == 7


def test_jobs_are_taken_from_the_plan_only_when_there_is_room() -> None:
    taken = 0

    async def main() -> None:
        nonlocal taken
        stop, gate = StopSignal(), asyncio.Event()

        def plan() -> Iterator[Job]:
            nonlocal taken
            for job in jobs(1000):
                taken += 1
                yield job

        async def execute(job: Job) -> CaseResult:
            await gate.wait()
            return result_of(job)

        running = asyncio.ensure_future(run(plan(), execute, parallel=3, stop=stop))
        for _ in range(50):
            await asyncio.sleep(0)
        assert taken == 4
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
                stop.request("SIGINT")
            for _ in range(10):
                await asyncio.sleep(0)
            return result_of(job)

        finished = await run(jobs(100), execute, parallel=5, stop=stop)
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
            stop.request("SIGINT")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
            return result_of(job)

        return await run(jobs(10), execute, parallel=2, stop=stop, grace_s=0.01)

    assert asyncio.run(main()) == ["0.0.0"]
    assert cancelled >= 1


def test_the_first_reason_for_a_stop_stays() -> None:
    async def main() -> str:
        stop = StopSignal()
        stop.request("SIGINT")
        stop.request("SIGTERM")
        await stop.wait()
        return stop.reason

    assert asyncio.run(main()) == "SIGINT"
