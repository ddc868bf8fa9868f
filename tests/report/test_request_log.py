import json
import os
import stat
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from geval_cli.errors import OutputError
from geval_cli.events import ModelCalled, Noticed, RequestEnded, RunEvent
from geval_cli.extras.request_log import RequestLines, RequestLogFile
from geval_cli.records import ErrorInfo, Role, RunRecord, RunStatus, RunSummary, Usage
from geval_cli.report.report import RunReport

GOOD = RequestEnded(
    call=7,
    attempt=2,
    role=Role.JUDGE,
    provider_id="openai:judge",
    answers=1,
    started_at=1_790_000_000.5,
    latency_ms=812.3456789,
    request_id="req-1",
    usage=Usage(1, 512, 40),
    finish_reasons=("length",),
)
BAD = RequestEnded(
    call=8,
    attempt=1,
    role=Role.GENERATION,
    provider_id="openai:m",
    answers=1,
    started_at=1_790_000_000.0,
    latency_ms=20.0,
    status=503,
    error=ErrorInfo("ProviderUnavailableError", "two\nlines and \x1b[31mcolour"),
)


def report() -> RunReport:
    run = RunRecord("id", RunStatus.COMPLETED, "", None, None, "0", "c.yaml", "0", {})
    return RunReport(run, RunSummary(), lambda: iter(()))


def logged(path: Path, *events: RunEvent) -> list[dict[str, object]]:
    with RequestLogFile(path) as log:
        for event in events:
            log.listen(event)
        log.finish(report())
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_request_is_a_line_with_times_in_milliseconds(tmp_path: Path) -> None:
    [line] = logged(tmp_path / "log", GOOD)
    assert line["event"] == "request"
    assert line["started_at"] == "2026-09-21T14:13:20.500+00:00"
    assert (line["latency_ms"], line["call"], line["attempt"]) == (812.346, 7, 2)
    assert line["request_id"] == "req-1"


def test_a_call_says_whether_the_cache_answered(tmp_path: Path) -> None:
    cached = ModelCalled(Role.JUDGE, "p", Usage(2, cached_requests=2), dropped=("logprobs",), call=3)
    failed = ModelCalled(Role.JUDGE, "p", Usage(1), failed=True)
    lines = logged(tmp_path / "log", cached, failed, Noticed("a note"))
    assert [line.get("cached") for line in lines] == [True, False, None]
    assert lines[0]["dropped"] == ["logprobs"]
    assert lines[2] == {"event": "notice", "message": "a note"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    logged(tmp_path / "log", GOOD)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_a_second_run_adds_to_it(tmp_path: Path) -> None:
    logged(tmp_path / "log", GOOD)
    assert len(logged(tmp_path / "log", BAD)) == 2


def test_every_line_is_there_at_once(tmp_path: Path) -> None:
    with RequestLogFile(tmp_path / "log") as log:
        log.listen(GOOD)
        assert (tmp_path / "log").read_text(encoding="utf-8").endswith("}\n")


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"), RequestLogFile(tmp_path / "none" / "log"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_ends_the_log_and_not_the_run() -> None:
    with RequestLogFile(Path("/dev/full")) as log:
        log.listen(GOOD)
        log.listen(GOOD)
        with pytest.raises(OutputError, match="the log ends there"):
            log.finish(report())


def test_people_get_a_line_for_each_request() -> None:
    out = StringIO()
    lines = RequestLines(Console(file=out, width=200))
    for event in (GOOD, BAD, Noticed("not a request")):
        lines.listen(event)
    assert out.getvalue().splitlines() == [
        "request 7, attempt 2: judge openai:judge: 1 answer in 812 ms, 512 tokens in, 40 out, ended by length (req-1)",
        "request 8: generation openai:m: ProviderUnavailableError after 20 ms: two lines and \\x1b[31mcolour",
    ]


def test_half_a_character_in_an_error_does_not_end_the_log(tmp_path: Path) -> None:
    entries = logged(
        tmp_path / "log.jsonl", replace(BAD, error=ErrorInfo("ProviderError", "no \ud83d key")), BAD
    )
    assert "no \ufffd key" in json.dumps(entries[0], ensure_ascii=False)
    assert len(entries) == 2
