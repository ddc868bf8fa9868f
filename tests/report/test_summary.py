import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.sample_columns import RANKED
from support.sample_run import COLUMNS, RUN, console_of, make_case, make_report

from geval_cli.extras.evidence import print_details
from geval_cli.gateway.budget import RESUME_HINT
from geval_cli.records import (
    NO_ERRORS_NOTE,
    STOPPED,
    GateResult,
    MetricSummary,
    Role,
    RunStatus,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.report.terminal import print_answer, print_report


def printed(summary: RunSummary, *, status: RunStatus = RunStatus.COMPLETED, **changes: object) -> str:
    stream = io.StringIO()
    written = changes.pop("written", ())
    report = make_report(summary=summary, **{"run": replace(RUN, status=status), **changes})
    print_details(report, console_of(stream, 100))
    print_answer(report, console_of(stream, 100), written=written)  # type: ignore[arg-type]
    return stream.getvalue()


def last_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n\n")[-1].split("\n")]


def test_all_passed() -> None:
    text = printed(RunSummary(3, passed=3))

    assert "pass rate 100 %" in text
    verdict, after = last_lines(text)
    assert verdict == "PASSED  3 passed, 0 failed · 16.2 s"
    assert after == "next: geval show -v · geval view"


def test_one_failure_among_many_is_not_rounded_away() -> None:
    text = printed(RunSummary(100_000, passed=99_999, failed=1))

    assert "pass rate >99.9 %" in text
    assert "FAILED  99,999 passed, 1 failed" in text


def test_errors_without_failures_are_no_failure() -> None:
    text = printed(RunSummary(3, passed=2, errored=1))

    assert last_lines(text)[0].startswith("NOT ALL JUDGED  2 passed, 0 failed, 1 error ")


def test_no_tests() -> None:
    text = printed(RunSummary())

    assert "pass rate" not in text
    assert last_lines(text)[1] == "no test was run"


def test_outputs_that_are_only_ranked_need_no_assertion() -> None:
    text = printed(RunSummary(2, not_evaluated=2, rankings={"kinder": RANKED}))

    assert last_lines(text)[0].startswith("RANKED  0 passed, 0 failed, 2 not evaluated")
    assert last_lines(text)[1] == "outputs were only compared with each other, so nothing passes or fails"


@pytest.mark.parametrize(
    ("options", "commands"),
    [
        ({}, "geval show -v · geval view"),
        ({"before": "latest~1"}, "geval compare latest~1 latest · geval view"),
        ({"name": "latest~1"}, "geval show latest~1 -v · geval view"),
        (
            {"name": "a b", "home": Path("/tmp/my runs")},
            "geval show 'a b' --home '/tmp/my runs' -v · geval view --home '/tmp/my runs'",
        ),
    ],
)
def test_what_to_do_next_finds_the_run_and_its_home(options: dict[str, object], commands: str) -> None:
    stream = io.StringIO()
    print_answer(make_report(summary=RunSummary(3, passed=3)), console_of(stream, 100), **options)  # type: ignore[arg-type]

    assert stream.getvalue().rstrip().endswith(f"next: {commands}")


def test_nothing_evaluated() -> None:
    text = printed(RunSummary(2, not_evaluated=2))

    assert last_lines(text)[0].startswith("NOTHING EVALUATED  0 passed, 0 failed, 2 not evaluated")
    assert "give the tests an `assert`" in last_lines(text)[1]


@pytest.mark.parametrize(
    ("path", "written"), [("c.yaml", "c.yaml"), ("my suite/c.yaml", "'my suite/c.yaml'")]
)
def test_interrupted(path: str, written: str) -> None:
    run = replace(RUN, status=RunStatus.INTERRUPTED, config_path=path)
    text = printed(RunSummary(7, passed=7), run=run, planned=18)

    assert last_lines(text)[0].startswith("INTERRUPTED  7 passed")
    said = " ".join(last_lines(text)[1:])
    assert "the run was stopped early: 7 of 18 cases finished; " in said
    assert f"`geval run {written} --resume` and the same options" in said


def test_a_run_that_judged_another_is_not_to_be_resumed() -> None:
    run = replace(RUN, status=RunStatus.INTERRUPTED, judged_from="20260101-000000-abcd")
    text = printed(RunSummary(7, passed=7), run=run, planned=18)

    said = " ".join(last_lines(text)[1:])
    assert "; judge run 20260101-000000-abcd again for the rest" in said
    assert "--resume" not in said


def test_interrupted_without_knowing_how_much_was_planned() -> None:
    text = printed(RunSummary(7, passed=7), status=RunStatus.INTERRUPTED)

    assert last_lines(text)[1] == "the run was stopped early: finished cases are kept"


def test_aborted() -> None:
    text = printed(RunSummary(1, failed=1), status=RunStatus.ABORTED, planned=5)

    assert last_lines(text)[0].startswith("ABORTED  0 passed, 1 failed")


def test_a_run_that_is_not_stored_names_no_command_that_would_need_it() -> None:
    text = printed(RunSummary(2, passed=2), status=RunStatus.INTERRUPTED, planned=5, is_stored=False)

    assert "not stored" in text
    assert "geval show" not in text
    assert "--resume" not in text


def test_a_run_that_is_partly_stored_says_so() -> None:
    text = printed(RunSummary(2, passed=2), is_stored=False, is_partly_stored=True)

    assert f"(partly stored: geval show {RUN.id} shows the stored part)" in " ".join(text.split())
    assert "not stored" not in text


def test_a_run_whose_process_died() -> None:
    text = printed(
        RunSummary(1, passed=1),
        status=RunStatus.RUNNING,
        run=replace(RUN, status=RunStatus.RUNNING, duration_ms=None),
    )

    assert last_lines(text) == [
        "UNFINISHED  1 passed, 0 failed",
        "the run is still in progress, or its process died",
    ]


def test_an_unknown_price_is_said_and_never_zero() -> None:
    text = printed(RunSummary(1, passed=1, usage={Role.JUDGE: Usage(2, 100, 20, 0, None)}))

    assert "judge    2 answers, 100 tokens in, 20 out, cost unknown" in text
    assert "$" not in text


def test_a_price_of_nothing_is_not_shown() -> None:
    text = printed(RunSummary(1, passed=1, usage={Role.GENERATION: Usage(2, 100, 20, 0, 0.0)}))

    assert "model    2 answers, 100 tokens in, 20 out\n" in text


def test_what_the_cache_gave_is_said() -> None:
    usage = {Role.GENERATION: Usage(5, 0, 0, 5, 0.0), Role.JUDGE: Usage(5, 1_200, 30, 2, 0.01)}
    text = printed(RunSummary(1, passed=1, usage=usage))

    assert "model    5 answers, all from the cache\n" in text
    assert "judge    5 answers (2 cached), 1.2k tokens in, 30 out, $0.010\n" in text


def test_a_role_without_requests_is_left_out() -> None:
    assert "answers" not in printed(RunSummary(1, passed=1, usage={Role.JUDGE: Usage()}))


def test_a_metric_that_nothing_scored_has_no_mean() -> None:
    text = printed(RunSummary(1, errored=1, metrics={"tone": MetricSummary(None, 0, 1)}))

    table, line = (line.split() for line in text.split("\n") if "tone" in line)
    assert table == ["tone", "none", "0", "1"]
    assert line == ["tone", "none"]


@pytest.mark.parametrize(
    ("errored", "of_metric", "said"), [(0, 3, ", 3 errors"), (2, 2, ""), (2, 3, ", 3 errors")]
)
def test_errors_of_a_metric_in_failed_cases_stand_beside_its_mean(
    errored: int, of_metric: int, said: str
) -> None:
    metrics = {"tone": MetricSummary(0.9, 5, of_metric)}
    text = printed(RunSummary(10, passed=5, failed=5 - errored, errored=errored, metrics=metrics))
    assert next(line for line in text.split("\n") if "tone 0.90" in line).endswith(f"tone 0.90{said}")


def test_many_metrics_are_bounded() -> None:
    metrics = {f"m{number}": MetricSummary(0.5, 1, 0) for number in range(100)}

    assert "and 40 more metrics" in printed(RunSummary(1, passed=1, metrics=metrics))


def test_warnings_files_and_the_run_are_named() -> None:
    run = replace(RUN, warnings=("--grader did not apply to 2 assertions",))
    text = printed(RunSummary(1, passed=1), run=run, written=(Path("out/results.json"),))

    assert "warning  --grader did not apply to 2 assertions" in text
    assert "wrote    out/results.json" in text
    assert f"run      {RUN.id}  {RUN.config_path}" in text


@pytest.mark.parametrize(
    ("passed", "planned", "columns", "shape"),
    [
        (4, 24, 2, "2 of 12 tests × 2 prompts"),  # noqa: RUF001
        (5, 24, 2, "3 of 12 tests × 2 prompts"),  # noqa: RUF001
        (24, 24, 2, "12 tests × 2 prompts"),  # noqa: RUF001
        (0, 24, 2, "0 of 24 cases × 2 prompts"),  # noqa: RUF001
        (3, 7, 2, "3 of 7 cases × 2 prompts"),  # noqa: RUF001
        (3, 9, 1, "3 of 9 tests · "),
    ],
)
def test_the_first_line_of_a_stopped_run_says_how_large_it_was_to_be(
    passed: int, planned: int, columns: int, shape: str
) -> None:
    cases = [make_case(place // columns, COLUMNS[place % columns]) for place in range(passed)]
    run = replace(RUN, status=RunStatus.ABORTED, columns=COLUMNS[:columns])
    stream = io.StringIO()
    report = make_report(
        COLUMNS[:columns],
        run=run,
        summary=RunSummary(passed, passed=passed),
        planned=planned,
        results=lambda: iter(cases),
    )
    print_report(report, console_of(stream, 120))
    assert f" · {shape}" in stream.getvalue().split("\n")[1]


def test_a_used_up_budget_is_told_once_with_the_command_that_continues() -> None:
    why = "the budget of 10 requests is used up"
    warnings = (f"{STOPPED}{why} ({RESUME_HINT})", "something else")
    run = replace(RUN, status=RunStatus.ABORTED, warnings=warnings, config_path="gevalconfig.yaml")
    text = " ".join(printed(RunSummary(5, passed=5), run=run, planned=24).split())

    assert text.count("used up") == 1
    assert (
        f"stopped: {why}; 5 of 24 cases finished; finish it with `geval run gevalconfig.yaml --resume`"
        in text
    )
    assert "something else" in text


@pytest.mark.parametrize("status", [RunStatus.ABORTED, RunStatus.INTERRUPTED])
def test_the_command_that_continues_a_run_names_the_folder_that_holds_it(status: RunStatus) -> None:
    warnings = (f"{STOPPED}the budget is used up ({RESUME_HINT})",)
    run = replace(RUN, status=status, warnings=warnings, config_path="gevalconfig.yaml")
    stream = io.StringIO()
    report = make_report(COLUMNS, run=run, summary=RunSummary(5, passed=5), planned=24)
    print_report(report, console_of(stream, 200), home=Path("my runs"))
    print_report(report, console_of(stream, 200), home=Path("my runs"), repeated=" --max-cost 0.5")

    command = "geval run gevalconfig.yaml --resume"
    # `geval show` does not know the options of the run, such as its budget.
    assert f"; finish it with `{command} --home 'my runs'` and the same options" in stream.getvalue()
    assert f"; continue: {command} --max-cost 0.5 --home 'my runs'" in stream.getvalue()


def test_a_gate_on_errors_that_nobody_wrote_is_shown_only_with_errors() -> None:
    def gates(errors: int, note: str) -> str:
        status = Status.ERROR if errors else Status.PASSED
        found = GateResult("errors <= 0", status, float(errors), note)
        rate = GateResult("passed >= 90%", Status.PASSED, 0.95, "n=20")
        return printed(RunSummary(20, passed=19, failed=1, gates=(rate, found)))

    assert "passed >= 90%: 95 %" in gates(0, NO_ERRORS_NOTE)
    assert "1 of 1 gate met" in gates(0, NO_ERRORS_NOTE)
    assert "errors <= 0" not in gates(0, NO_ERRORS_NOTE)
    assert "errors <= 0: 2" in gates(2, NO_ERRORS_NOTE)
    assert "errors <= 0: 0" in gates(0, "of 20")
