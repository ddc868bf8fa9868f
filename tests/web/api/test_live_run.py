import asyncio

from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, make_case

from geval_cli.engine.runner import StopSignal
from geval_cli.events import CaseFinished, Noticed, RunFinished
from geval_cli.extras.web.live_runs import UNREAD_MAX, LiveRun
from geval_cli.records import AssertionResult, Status


def live_run(total: int = 10) -> LiveRun:
    return LiveRun(RUN, total, StopSignal())


def test_a_late_watcher_gets_what_the_others_saw() -> None:
    async def body() -> list[dict[str, object]]:
        live = live_run()
        live.listen(CaseFinished(make_case(0)))
        live.listen(CaseFinished(make_case(1, status=Status.FAILED)))
        live.listen(Noticed("a parameter was left out"))
        return [await anext(live.events())]

    (state,) = asyncio.run(body())
    assert state["type"] == "state"
    assert state["counts"] == {
        "done": 2,
        "total": 10,
        "passed": 1,
        "failed": 1,
        "errored": 0,
        "not_evaluated": 0,
    }
    assert state["notices"] == ["a parameter was left out"]
    assert [case["test_index"] for case in state["problems"]] == [1]  # type: ignore[attr-defined]
    assert "config" not in state["run"]  # type: ignore[operator]


def test_a_slow_watcher_gets_the_state_instead_of_what_it_missed() -> None:
    async def body() -> list[dict[str, object]]:
        live = live_run(UNREAD_MAX + 5)
        events = live.events()
        first = await anext(events)
        for number in range(UNREAD_MAX + 5):
            live.listen(CaseFinished(make_case(number)))
        live.listen(RunFinished(RUN, SUMMARY))
        return [first, *[event async for event in events]]

    events = asyncio.run(body())
    assert len(events) < 10
    assert [event["type"] for event in events[:2]] == ["state", "state"]
    assert events[1]["counts"]["done"] == UNREAD_MAX + 5  # type: ignore[index]
    assert events[-1]["type"] == "finished"


def test_who_comes_when_it_is_over_is_told_so() -> None:
    async def body() -> list[str]:
        live = live_run()
        live.listen(RunFinished(RUN, SUMMARY))
        return [event["type"] async for event in live.events()]

    assert asyncio.run(body()) == ["state", "finished"]


def test_a_run_that_breaks_off_ends_its_watchers() -> None:
    async def body() -> list[str]:
        live = live_run()
        events = live.events()
        types = [(await anext(events))["type"]]
        live.end_broken("the disk is gone")
        live.end_broken("and once more")
        return types + [event["type"] async for event in events]

    assert asyncio.run(body()) == ["state", "broken"]


def test_a_watcher_that_went_is_forgotten() -> None:
    async def body() -> int:
        live = live_run()
        events = live.events()
        await anext(events)
        await events.aclose()
        live.listen(Noticed("nobody hears this"))
        return len(live._watchers)

    assert asyncio.run(body()) == 0


def test_the_reason_of_a_long_failure_is_shortened() -> None:
    async def body() -> str:
        live = live_run()
        events = live.events()
        await anext(events)
        case = make_case(0, status=Status.FAILED)
        assertion = AssertionResult("g-eval", "tone", Status.FAILED, 0.1, reason="x" * 5000)
        live.listen(CaseFinished(replace(case, error=None, assertions=(assertion,))))
        return str((await anext(events))["case"]["reason"])

    reason = asyncio.run(body())
    assert len(reason) <= 300
    assert reason.endswith("…")
