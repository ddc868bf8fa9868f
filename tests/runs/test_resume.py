"""What of an earlier run stays: each case has a place of its own."""

import asyncio
import json
from dataclasses import replace as replace_request
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.sample_run import make_case

from geval_cli.engine.plan import DoneCases
from geval_cli.engine.runner import StopSignal
from geval_cli.errors import UsageError
from geval_cli.records import CaseResult, RunStatus, Status
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import find_run
from geval_cli.store.state import open_state


def case(test: int, repeat: int, column: int) -> CaseResult:
    return replace(make_case(test), repeat_index=repeat, column=column)


def test_every_case_has_a_place_and_cases_beyond_the_plan_have_none() -> None:
    done = DoneCases(repeats=2, columns=3)
    places = [(test, repeat, column) for test in range(2) for repeat in range(2) for column in range(3)]
    for count, place in enumerate(places):
        assert len(done) == count
        assert done.add(case(*place))
    assert not done.add(case(0, 2, 0))
    assert not done.add(case(0, 0, 3))
    assert len(done) == len(places)


def test_selected_tests_are_found_done_by_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    tests = [{"description": word, "vars": {"x": word}} for word in ("one", "two", "three", "four")]
    path.write_text(json.dumps({"prompts": ["{{ x }}"], "providers": ["echo"], "tests": tests}))
    with open_state(tmp_path / ".geval", {}) as state:
        chosen = RunRequest(path, {}, filter_pattern="three|four")
        whole = run_evaluation(prepare(chosen), state, listen=lambda event: None, stop=StopSignal())
        run_id = asyncio.run(whole).run.id
        found = find_run(prepare(replace_request(chosen, resume_from=run_id)), state.runs)
    assert len(found.done) == 2


@pytest.mark.parametrize(
    ("changed", "named", "end"), [(12, 12, 'w11: "a" -> "b"'), (13, 12, "and 1 more"), (15, 12, "and 3 more")]
)
def test_twelve_changes_are_named_and_the_others_counted(
    tmp_path: Path, changed: int, named: int, end: str
) -> None:
    path = tmp_path / "suite.json"
    suite = {"prompts": ["{{ x }}"], "providers": ["echo"], "tests": [{"vars": {"x": "one"}}]}
    path.write_text(json.dumps(suite), encoding="utf-8")
    names = [f"w{number:02}" for number in range(changed)]
    before = prepare(RunRequest(path, {}, variables=dict.fromkeys(names, "a")))
    with open_state(tmp_path / ".geval", {}) as state:
        stop = StopSignal()
        report = asyncio.run(run_evaluation(before, state, listen=lambda event: None, stop=stop))
        now = prepare(RunRequest(path, {}, variables=dict.fromkeys(names, "b"), resume_from=report.run.id))
        with pytest.raises(UsageError) as caught:
            find_run(now, state.runs)

    lines = caught.value.message.splitlines()[1:]
    assert sum(line.startswith("  - --var w") for line in lines) == named
    assert lines[-1].endswith(end)
    assert len(lines) == named + (changed > named)


@pytest.mark.parametrize(("retries_errors", "done"), [(False, 2), (True, 1)])
def test_cases_with_errors_are_done_again_only_when_that_is_asked_for(
    tmp_path: Path, retries_errors: bool, done: int
) -> None:
    path = tmp_path / "suite.json"
    tests = [{"vars": {"x": word}} for word in ("one", "two")]
    path.write_text(json.dumps({"prompts": ["{{ x }}"], "providers": ["echo"], "tests": tests}))
    with open_state(tmp_path / ".geval", {}) as state:
        stop = StopSignal()
        whole = run_evaluation(prepare(RunRequest(path, {})), state, listen=lambda event: None, stop=stop)
        run_id = asyncio.run(whole).run.id
        first, _ = state.runs.results(run_id)
        state.runs.add(run_id, replace(first, status=Status.ERROR))
        again = prepare(RunRequest(path, {}, resume_from=run_id, retry_errors=retries_errors))
        found = find_run(again, state.runs)

    assert len(found.done) == done
    assert found.kept.counts[Status.ERROR] == (not retries_errors)


@pytest.mark.parametrize(
    ("broken", "lost", "retries_errors", "done_again"),
    [
        (None, None, False, set()),
        ((1, 0), None, False, set()),
        ((1, 0), None, True, {1}),
        ((2, 1), (0, 1), True, {0, 2}),
        (None, (1, 0), False, {1}),
        (None, (2, 1), False, {2}),
    ],
)
def test_what_is_compared_is_kept_or_done_again_together(
    tmp_path: Path,
    broken: tuple[int, int] | None,
    lost: tuple[int, int] | None,
    retries_errors: bool,
    done_again: set[int],
) -> None:
    path = tmp_path / "suite.json"
    checks = [{"type": "contains", "value": "say"}, {"type": "max-score"}]
    tests = [{"vars": {"x": word}, "assert": checks} for word in ("one", "two", "three")]
    suite = {"prompts": ["say {{ x }}", "shout {{ x }}"], "providers": ["echo"], "tests": tests}
    path.write_text(json.dumps(suite), encoding="utf-8")
    with open_state(tmp_path / ".geval", {}) as state:
        stop = StopSignal()
        whole = run_evaluation(prepare(RunRequest(path, {})), state, listen=lambda event: None, stop=stop)
        run = asyncio.run(whole).run
        results = {(result.test_index, result.column): result for result in state.runs.results(run.id)}
        ended_early = replace(run, id=f"{run.id}-2", status=RunStatus.INTERRUPTED)
        state.runs.begin(ended_early)
        for place, result in results.items():
            if place != lost:
                state.runs.add(
                    ended_early.id, replace(result, status=Status.ERROR) if place == broken else result
                ).result()
        state.runs.release(ended_early.id)
        again = prepare(RunRequest(path, {}, resume_from=ended_early.id, retry_errors=retries_errors))
        found = find_run(again, state.runs)

    done = {place for place, result in results.items() if found.done.has(result)}
    assert done == {place for place in results if place[0] not in done_again}
    assert sum(found.kept.counts.values()) == len(done)


@pytest.mark.parametrize(
    ("statuses", "latest", "unfinished"),
    [
        (["completed"], 0, None),
        (["interrupted"], 0, 0),
        (["aborted", "completed"], 1, 0),
        (["interrupted", "aborted", "completed", "completed"], 3, 1),
        (["interrupted", "judged"], 0, 0),
        (["completed", "judged"], 0, None),
    ],
)
def test_the_latest_run_of_a_config_is_resumed_or_the_latest_that_did_not_finish(
    tmp_path: Path, statuses: list[str], latest: int, unfinished: int | None
) -> None:
    path = tmp_path / "suite.json"
    path.write_text(json.dumps({"prompts": ["x"], "providers": ["echo"], "tests": [{}]}), encoding="utf-8")
    with open_state(tmp_path / ".geval", {}) as state:
        stop = StopSignal()
        whole = run_evaluation(prepare(RunRequest(path, {})), state, listen=lambda event: None, stop=stop)
        run = asyncio.run(whole).run
        origin = state.runs.origin(run.id)
        for number, status in enumerate(statuses):
            is_judged = status == "judged"
            one = replace(
                run,
                id=f"{run.id}-{number}",
                status=RunStatus.INTERRUPTED if is_judged else RunStatus(status),
                judged_from=run.id if is_judged else None,
            )
            state.runs.begin(one, origin)
            state.runs.release(one.id)
        state.runs.remove(run.id)

        found = find_run(prepare(RunRequest(path, {})), state.runs)
        assert found.run.id == f"{run.id}-{latest}"
        wish = prepare(RunRequest(path, {}, resume_latest=True))
        if unfinished is None:
            with pytest.raises(UsageError, match="no unfinished run"):
                find_run(wish, state.runs)
        else:
            assert find_run(wish, state.runs).run.id == f"{run.id}-{unfinished}"
