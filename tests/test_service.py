"""A run from config to report, with a server and a store that do what real ones do."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply

from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.errors import ExitCode
from geval_cli.events import CaseFinished, RunEvent
from geval_cli.judge.prompt import prompt_version
from geval_cli.records import RunStatus
from geval_cli.report.report import RunReport
from geval_cli.runs.evaluate import exit_code, run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.store.state import State, open_state

Listen = Callable[[RunEvent], None]
CHECK = [{"type": "contains", "value": "hello"}]


def write(folder: Path, server: LoopbackServer | None, tests: Any, **keys: Any) -> Path:
    provider = "echo" if server is None else {"id": "openai:m", "config": {"base_url": server.base_url}}
    path = folder / "config.yaml"
    config = {"prompts": ["{{ x }}"], "providers": [provider], "tests": tests, **keys}
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def run(
    config: Path,
    *,
    listen: Listen = lambda _: None,
    stop: StopSignal | None = None,
    look: Callable[[State, RunReport], None] = lambda state, report: None,
    **options: Any,
) -> RunReport:
    """Run `config`; `look` may look at what is stored before the state is closed."""
    environ = {**os.environ, "OPENAI_API_KEY": "sk-x"}
    prepared = prepare(RunRequest(config, environ, **options))
    with open_state(config.parent / "state", {}) as state:
        report = asyncio.run(run_evaluation(prepared, state, listen=listen, stop=stop or StopSignal()))
        look(state, report)
    return report


def some_tests(count: int) -> list[Any]:
    return [{"vars": {"x": f"hello {number}"}, "assert": CHECK} for number in range(count)]


def test_two_failures_with_fail_fast_leave_the_others_their_grace(tmp_path: Path) -> None:
    answers = asyncio.Event()
    failed = 0

    async def respond(body: Any, headers: Mapping[str, str]) -> Any:
        if body["messages"][0]["content"] in {"hello 0", "hello 1"}:
            return chat_reply("bad")
        await answers.wait()
        return chat_reply("hello")

    def listen(event: RunEvent) -> None:
        nonlocal failed
        failed += isinstance(event, CaseFinished)
        if failed == 2:
            server._loop.call_soon_threadsafe(answers.set)

    stop = StopSignal()
    with LoopbackServer(respond=respond) as server:
        report = run(write(tmp_path, server, some_tests(8)), listen=listen, stop=stop, fail_fast=True)
    assert (report.summary.passed, report.summary.failed) == (6, 2)
    assert (stop.reason, stop.is_urgent) == (StopReason.FAIL_FAST, False)
    assert exit_code(report, stop.reason) is ExitCode.FAILED


def test_store_that_fails_in_the_middle_costs_no_result(tmp_path: Path) -> None:
    seen = 0

    def break_store(event: RunEvent) -> None:
        nonlocal seen
        seen += isinstance(event, CaseFinished)
        if seen == 1 and isinstance(event, CaseFinished):
            with sqlite3.connect(tmp_path / "state" / "geval.db") as other:
                other.execute(
                    "CREATE TRIGGER x BEFORE INSERT ON results BEGIN SELECT RAISE(ABORT, 'full'); END"
                )
            other.close()

    found: list[int] = []

    def look(state: State, report: RunReport) -> None:
        found.extend(result.test_index for result in report.results())

    report = run(write(tmp_path, None, some_tests(600)), listen=break_store, look=look)
    assert found == list(range(600))
    assert report.summary.passed == 600
    assert report.run.status is RunStatus.COMPLETED
    [warning] = report.run.warnings
    assert "not all of this run is stored" in warning
    assert exit_code(report) is ExitCode.OK


def test_tests_that_change_during_the_run_stop_it_and_what_was_paid_is_kept(tmp_path: Path) -> None:
    lines = [json.dumps({"vars": {"x": f"hello {number} " + "y" * 9_000}}) + "\n" for number in range(60)]
    (tmp_path / "tests.jsonl").write_text("".join(lines), encoding="utf-8")
    config = write(
        tmp_path, None, "file://tests.jsonl", defaultTest={"assert": CHECK}, options={"max_concurrency": 1}
    )
    stored: list[RunReport] = []

    def break_tests(event: RunEvent) -> None:
        if isinstance(event, CaseFinished) and event.result.test_index == 0:
            with (tmp_path / "tests.jsonl").open("a", encoding="utf-8") as file:
                file.write('{"vars": {"x"')

    report = run(
        config, listen=break_tests, look=lambda state, _: stored.append(load_report(state.runs, "latest"))
    )
    assert report.run.status is RunStatus.ABORTED
    assert report.summary.passed == 60
    [warning] = report.run.warnings
    assert warning.startswith("the run stopped early: the tests changed during the run: ")
    assert "tests.jsonl:61" in warning
    assert exit_code(report) is ExitCode.NOT_JUDGED
    assert stored[0].run == report.run


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("length", "word", "is_other"), [(9_000, "other", True), (9_000, "hello", False), (10, "other", False)]
)
def test_tests_that_are_overwritten_by_as_many_are_noticed_if_they_are_read_again(
    tmp_path: Path, ending: str, length: int, word: str, is_other: bool
) -> None:
    """Few tests are kept in memory, and a file may be saved again as it is."""
    path = tmp_path / f"tests.{ending}"

    def write_tests(word: str) -> None:
        rows = [{"x": f"{word} {number} " + "y" * length} for number in range(60)]
        lines = ["x", *(row["x"] for row in rows)] if ending == "csv" else map(json.dumps, rows)
        path.write_text("\n".join(lines), encoding="utf-8")

    def change(event: RunEvent) -> None:
        if isinstance(event, CaseFinished) and event.result.test_index == 0:
            write_tests(word)

    write_tests("hello")
    os.utime(path, (0, 0))
    config = write(
        tmp_path, None, f"file://{path.name}", defaultTest={"assert": CHECK}, options={"max_concurrency": 1}
    )
    report = run(config, listen=change)
    assert report.summary.total == 60
    assert (exit_code(report) is ExitCode.OK) == (not is_other)
    assert (report.run.status is RunStatus.ABORTED) == is_other
    assert any(f"{path.name} was written" in text for text in report.run.warnings) == is_other


@pytest.mark.parametrize("cases", [50, 70])
def test_tests_that_were_checked_and_never_run_have_no_verdict(tmp_path: Path, cases: int) -> None:
    lines = [json.dumps({"vars": {"x": f"hello {number} " + "y" * 9_000}}) + "\n" for number in range(60)]
    (tmp_path / "tests.jsonl").write_text("".join(lines), encoding="utf-8")
    config = write(
        tmp_path, None, "file://tests.jsonl", defaultTest={"assert": CHECK}, options={"max_concurrency": 1}
    )

    def change(event: RunEvent) -> None:
        if isinstance(event, CaseFinished) and event.result.test_index == 0:
            if cases < len(lines):
                os.truncate(tmp_path / "tests.jsonl", sum(map(len, lines[:cases])))
            else:
                with (tmp_path / "tests.jsonl").open("a", encoding="utf-8") as file:
                    file.writelines(lines[: cases - len(lines)])

    report = run(config, listen=change)
    what = f"the tests changed during the run: {cases} cases instead of 60"
    assert report.summary.passed == cases
    if cases < len(lines):
        assert report.run.status is RunStatus.ABORTED
        assert report.run.warnings == (f"the run stopped early: {what}",)
        assert exit_code(report) is ExitCode.NOT_JUDGED
    else:
        assert report.run.status is RunStatus.COMPLETED
        assert report.run.warnings == (what,)
        assert exit_code(report) is ExitCode.OK


def test_a_listener_that_breaks_leaves_a_run_that_is_marked(tmp_path: Path) -> None:
    def broken(event: RunEvent) -> None:
        if isinstance(event, CaseFinished):
            raise KeyError("bug")

    config = write(tmp_path, None, some_tests(3))
    with pytest.raises(KeyError):
        run(config, listen=broken)
    with open_state(tmp_path / "state", {}) as state:
        stored = load_report(state.runs, "latest")
        assert stored.run.status is RunStatus.ABORTED
        assert stored.summary.total == len(list(stored.results())) == 1


def refuse_temperature(body: Any, headers: Mapping[str, str]) -> Reply:
    if "temperature" in body:
        text = "Unsupported parameter: 'temperature' is not supported with this model."
        return error_reply(400, text, param="temperature", code="unsupported_parameter")
    return chat_reply('{"reason": "It is.", "pass": true, "score": 1}')


def test_what_a_server_does_not_take_is_in_the_record_also_when_the_cache_answers(tmp_path: Path) -> None:
    with LoopbackServer(respond=refuse_temperature) as server:
        judge = {"id": "openai:m", "config": {"base_url": server.base_url}}
        judged = {"type": "llm-rubric", "value": "Is it kind?", "provider": judge}
        config = write(tmp_path, None, [{"vars": {"x": x}, "assert": [judged]} for x in ("hello", "hi")])
        asked = run(config)
        count = len(server.requests)
        recalled = run(config)
        assert len(server.requests) == count
    consequence = (
        "openai:m does not accept `temperature` here: ratings and samples use the model's default instead "
        "of 0 and 1, so another run may rate differently"
    )
    told = "openai:m does not accept `temperature`, which is now left out"
    assert [item for item in asked.run.warnings if "temperature" in item] == [told, consequence]
    assert [item for item in recalled.run.warnings if "temperature" in item] == [consequence]


def test_a_stored_run_knows_its_columns_without_its_results(tmp_path: Path) -> None:
    stored: list[RunReport] = []
    report = run(
        write(tmp_path, None, some_tests(1)),
        look=lambda state, _: stored.append(load_report(state.runs, "latest")),
    )
    assert stored[0].columns == report.columns != ()
    assert report.columns[0].provider_label == "echo"


def test_the_record_names_the_judges_prompts_and_no_repr_shows_the_environment(tmp_path: Path) -> None:
    report = run(write(tmp_path, None, some_tests(1)))
    assert report.run.prompt_version == prompt_version()
    assert "sk-x" not in repr(RunRequest(tmp_path, {"OPENAI_API_KEY": "sk-x"}))
