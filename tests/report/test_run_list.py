import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, console_of

from geval_cli.extras.history import RunChange, RunListEntry, change_text, print_runs, runs_json
from geval_cli.records import GateResult, GitState, RunStatus, RunSummary, Status
from geval_cli.statistics.paired import DifferenceVerdict, PairedSample

NOW = datetime(2026, 11, 22, 0, 48, tzinfo=timezone(timedelta(hours=1)))
FOLDER = Path("/work/evals")
WORSE = RunChange("20261120-101010-aaaa", -0.12, (-0.2, -0.04), 200, 100, DifferenceVerdict.WORSE)
UNDECIDED = RunChange(
    "20261020-101010-aaaa", 0.005, (-0.0411, 0.0511), 2_000, 1_000, DifferenceVerdict.UNDECIDED
)
FULL = RunListEntry(
    replace(
        RUN,
        description="Answers of the HR assistant about vacation",
        judges=("openai:gpt-4.1", "openai:o4-mini"),
        tags={"model": "candidate", "ticket": "HR-1204"},
        git=GitState("97608d379aa11be2c3d4e5f60718293a4b5c6d7e", "main", dirty=True),
    ),
    replace(SUMMARY, gates=(GateResult("passed >= 90%", Status.FAILED, 0.86),)),
    "/work/evals/examples/configs/vacation.yaml",
    WORSE,
)
UNDER_WAY = RunListEntry(
    replace(
        RUN,
        id="20261121-204544-0a1b",
        status=RunStatus.RUNNING,
        duration_ms=None,
        started_at="2026-11-21T20:45:44+00:00",
    ),
    RunSummary(4, passed=4),
)
INTERRUPTED = RunListEntry(
    replace(
        RUN,
        id="20261030-101010-77ff",
        status=RunStatus.INTERRUPTED,
        started_at="2026-10-30T10:10:10+00:00",
        config_path="evals/customer-support/very/deep/folder/promptsandmore.yaml",
        duration_ms=3_905_000.0,
    ),
    RunSummary(2_000, passed=1_999, failed=1),
)
BEFORE = RunListEntry(
    replace(RUN, id="20261029-101010-77fe", description="x\x1b[31m\u202e" + "long " * 40),
    RunSummary(2_000, passed=1_980, failed=20),
    "/elsewhere/other/config.yaml",
    UNDECIDED,
)
RUNS = [FULL, UNDER_WAY, INTERRUPTED, BEFORE]


def printed(runs: list[RunListEntry], width: int, total: int | None = None) -> str:
    stream = io.StringIO()
    print_runs(runs, console_of(stream, width), now=NOW, folder=FOLDER, total=total)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_list_of_runs(width: int, check_expected: Callable[[str, str], None]) -> None:
    check_expected(f"runs.{width}.txt", printed(RUNS, width, total=57))


def test_a_run_that_passes_as_much_as_the_one_before_is_called_the_same() -> None:
    same = RunChange("20261120-101010-aaaa", 0.0, (-0.1, 0.1), 200, 100, DifferenceVerdict.UNDECIDED)
    text = printed([replace(FULL, change=same)], 200)
    assert text.split("\n")[0].endswith("passed 86 %, the same as the run before (undecided); 2 errors")


@pytest.mark.parametrize("width", [80, 100, 128, 160, 200])
def test_ids_are_never_cut(width: int) -> None:
    text = printed(RUNS, width)

    assert all(item.run.id in text for item in RUNS)
    assert max(len(line) for line in text.split("\n")) <= width


def test_a_wide_list_loses_nothing() -> None:
    line = printed([FULL], 300).split("\n")[4]
    for part in (
        "model=candidate ticket=HR-1204",
        "97608d379 dirty",
        "openai:gpt-4.1, openai:o4-mini",
        "0 of 1",
    ):
        assert part in line
    assert "…" not in printed([FULL], 200)


def test_a_change_is_shown_at_80_columns_beside_a_run_that_was_interrupted() -> None:
    assert "-12.0 ±8.0" in printed(RUNS, 80)


@pytest.mark.parametrize("changes", [[-1] * 3 + [0], [1] * 9 + [-1], [1, 0, 0, 0, 0, 0], [-1, 1] * 6])
@pytest.mark.parametrize("side", [1, -1])
def test_a_change_seems_clear_only_if_its_interval_excludes_no_change(changes: list[int], side: int) -> None:
    """Also where the interval is cut at 100 points."""
    sample = PairedSample()
    for test, change in enumerate(changes):
        sample.add(test, (float(side * change < 0), float(side * change > 0)), same=False)
    found = sample.test()
    assert found is not None
    assert found.interval is not None
    shown = change_text(
        RunChange("a", found.delta, found.interval, found.n, found.clusters, DifferenceVerdict.UNDECIDED)
    )
    value, half = map(float, shown.split(" ±"))

    assert (abs(value) > half) is not (found.interval[0] <= 0 <= found.interval[1])


def test_what_no_run_has_takes_no_room() -> None:
    heading = printed([UNDER_WAY], 200).split("\n")[2]
    assert not {"tags", "gates", "commit", "judge", "change", "description"} & set(heading.split())


def test_no_runs_yet() -> None:
    assert "no runs yet" in printed([], 80)


def test_a_start_in_the_future_or_unreadable_does_not_matter() -> None:
    ahead = replace(RUN, started_at=(NOW + timedelta(minutes=5)).astimezone(UTC).isoformat())
    unreadable = replace(RUN, started_at="once\x1b upon")
    text = printed([RunListEntry(ahead, RunSummary()), RunListEntry(unreadable, RunSummary())], 200)

    assert "just now" in text
    assert "once\\x1b upon" in text


def test_json_has_everything_but_the_configs() -> None:
    document = json.loads(json.dumps(runs_json(RUNS, 57)))

    assert document["total"] == 57
    first = document["runs"][0]
    assert "config" not in first["run"]
    assert first["run"]["git"] == {
        "commit": "97608d379aa11be2c3d4e5f60718293a4b5c6d7e",
        "branch": "main",
        "dirty": True,
    }
    assert first["change"]["interval"] == [-0.2, -0.04]
    assert (first["change"]["n"], first["change"]["clusters"]) == (200, 100)
    assert document["runs"][1]["change"] is None
