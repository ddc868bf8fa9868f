import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, console_of

from geval_cli.records import RunRecord, RunStatus, RunSummary
from geval_cli.report.run_list import print_runs

NOW = datetime(2026, 11, 22, 0, 48, tzinfo=timezone(timedelta(hours=1)))
UNDER_WAY = replace(
    RUN,
    id="20261121-204544-0a1b",
    status=RunStatus.RUNNING,
    duration_ms=None,
    started_at="2026-11-21T20:45:44+00:00",
)
INTERRUPTED = replace(
    RUN,
    id="20261030-101010-77ff",
    status=RunStatus.INTERRUPTED,
    started_at="2026-10-30T10:10:10+00:00",
    config_path="evals/customer-support/very/deep/folder/promptsandmore.yaml",
    duration_ms=3_905_000.0,
)
RUNS: list[tuple[RunRecord, RunSummary | None]] = [
    (RUN, SUMMARY),
    (UNDER_WAY, None),
    (INTERRUPTED, RunSummary(2_000, passed=1_999, failed=1)),
]


def printed(runs: list[tuple[RunRecord, RunSummary | None]], width: int) -> str:
    stream = io.StringIO()
    print_runs(runs, console_of(stream, width), now=NOW)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_list_of_runs(width: int, check_expected: Callable[[str, str], None]) -> None:
    check_expected(f"runs.{width}.txt", printed(RUNS, width))


@pytest.mark.parametrize("width", [80, 100, 128, 160])
def test_ids_are_never_cut(width: int) -> None:
    text = printed(RUNS, width)

    assert all(run.id in text for run, _ in RUNS)
    assert max(len(line) for line in text.split("\n")) <= width


def test_no_runs_yet() -> None:
    assert "no runs yet" in printed([], 80)


def test_a_start_in_the_future_or_unreadable_does_not_matter() -> None:
    ahead = replace(RUN, started_at=(NOW + timedelta(minutes=5)).astimezone(UTC).isoformat())
    text = printed([(ahead, None), (replace(RUN, started_at="once\x1b upon"), None)], 200)

    assert "just now" in text
    assert "once\\x1b upon" in text
