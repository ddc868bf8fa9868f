import io
import re
from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from support.sample_run import RUN, TerminalStream, console_of, make_case

from geval_cli.events import CaseFinished, ModelCalled, Noticed, RunEvent, RunFinished, RunStarted
from geval_cli.records import Role, RunStatus, RunSummary, Status, Usage
from geval_cli.report.progress import make_progress

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
FINISHED = RunFinished(RUN, RunSummary())
INTERRUPTED = RunFinished(replace(RUN, status=RunStatus.INTERRUPTED), RunSummary())


class SteppedClock:
    """Counts seconds when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def plain_lines(events: Iterable[RunEvent], *, step_s: float = 0.0) -> list[str]:
    stream, clock = io.StringIO(), SteppedClock()
    with make_progress(console_of(stream, 80), clock=clock) as progress:
        for event in events:
            progress.listen(event)
            clock.now_s += step_s
    return stream.getvalue().splitlines()


def cases(count: int, status: Status = Status.PASSED) -> list[RunEvent]:
    return [CaseFinished(make_case(number, status=status)) for number in range(count)]


def test_a_short_run_in_a_pipe_is_two_lines() -> None:
    lines = plain_lines([RunStarted(RUN, 20), *cases(20), FINISHED], step_s=0.1)

    assert lines == [
        "running 20 cases of examples/configs/vacation.yaml",
        "finished: 20 of 20 cases; 20 passed; 2 s",
    ]


def test_an_interrupted_run_in_a_pipe_says_so() -> None:
    lines = plain_lines([RunStarted(RUN, 20), *cases(3), INTERRUPTED])

    assert lines[-1] == "interrupted: 3 of 20 cases; 3 passed; 0 s"


def test_a_long_run_in_a_pipe_says_every_tenth_how_far_it_is() -> None:
    lines = plain_lines([RunStarted(RUN, 100), *cases(100), FINISHED], step_s=2.0)

    assert len(lines) == 12
    assert lines[3] == "30/100 (30 %); 30 passed; calls 0; 1 min, ETA 2 min 20 s"


def test_a_very_slow_run_gives_a_sign_of_life() -> None:
    called = [ModelCalled(Role.JUDGE, "local:smollm2", Usage(1, 10, 5))] * 8
    lines = plain_lines([RunStarted(RUN, 100), *called], step_s=10.0)

    assert lines[1:] == [
        "0/100 (0 %); 0 passed; calls 0 + 3 judge; 30 s",
        "0/100 (0 %); 0 passed; calls 0 + 6 judge; 1 min",
    ]


def test_lines_in_a_pipe_hold_no_control_characters() -> None:
    text = "\n".join(
        plain_lines([RunStarted(RUN, 9), Noticed("odd\x1b[2J\r"), *cases(9), FINISHED], step_s=9)
    )

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "note: odd\\x1b[2J" in text


def test_counts_calls_cache_and_cost_are_added_up() -> None:
    events = [
        RunStarted(RUN, 10),
        ModelCalled(Role.GENERATION, "a", Usage(1, 10, 5, 1, 0.0)),
        ModelCalled(Role.JUDGE, "b", Usage(20, 10, 5, 10, 0.02)),
        ModelCalled(Role.JUDGE, "b", Usage(1), failed=True),
        ModelCalled(Role.JUDGE, "b", Usage()),  # answered by the request of another case
        *cases(2),
        *cases(1, Status.FAILED),
        *cases(1, Status.ERROR),
    ]
    last = plain_lines(events, step_s=5.0)[-1]

    assert "4/10 (40 %); 2 passed, 1 failed, 1 error; calls 1 + 21 judge, 50 % cached, $0.02" in last


def test_an_unknown_price_is_not_shown_as_a_cost() -> None:
    called = ModelCalled(Role.GENERATION, "a", Usage(1, 10, 5, 0, None))
    lines = plain_lines([RunStarted(RUN, 1), called, *cases(1)], step_s=30.0)

    assert "$" not in "".join(lines)


def test_the_same_notice_is_printed_once() -> None:
    notices = [Noticed("b gives no logprobs"), Noticed("b gives no logprobs"), Noticed("another")]

    assert plain_lines(notices) == ["note: b gives no logprobs", "note: another"]


def test_only_notices_are_printed_when_progress_is_not_wanted() -> None:
    stream = TerminalStream()
    with make_progress(console_of(stream, 80), is_shown=False) as progress:
        for event in (RunStarted(RUN, 1), Noticed("x"), *cases(1), FINISHED):
            progress.listen(event)

    assert without_codes(stream.getvalue()) == "note: x\n"


def live_text(width: int, events: Iterable[RunEvent], stopping: str = "") -> str:
    stream, clock = TerminalStream(), SteppedClock()
    with make_progress(console_of(stream, width), clock=clock, stopping=lambda: stopping) as progress:
        for event in events:
            progress.listen(event)
            clock.now_s += 1
    return stream.getvalue()


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_live_lines_fit_the_terminal(width: int) -> None:
    called = [ModelCalled(role, "x", Usage(900, 10, 5, 7, 12.3456)) for role in Role] * 9
    events = [
        RunStarted(RUN, 12_345),
        *called,
        *cases(150),
        *cases(30, Status.FAILED),
        *cases(9, Status.ERROR),
    ]
    lines = re.split(r"[\r\n]+", without_codes(live_text(width, events)))

    assert max(cell_len(line) for line in lines) < width


def test_live_display_shows_counts_times_and_calls() -> None:
    called = ModelCalled(Role.JUDGE, "x", Usage(20, 10, 5, 10, 0.5))
    text = without_codes(live_text(80, [RunStarted(RUN, 10), called, *cases(4), *cases(1, Status.FAILED)]))

    assert "━" * 15 + "─" * 15 + " 5/10  4 passed, 1 failed" in text
    assert "7 s · ETA 7 s · calls 0 + 20 judge, 50 % cached, $0.50" in text


def test_live_display_says_what_a_run_that_stops_waits_for_instead_of_an_eta() -> None:
    text = without_codes(live_text(80, [RunStarted(RUN, 10), *cases(5)], "stopping, 3 cases left"))

    assert " stopping, 3 cases left · 6 s · calls 0" in text
    assert "ETA" not in text


def test_live_display_gives_the_cursor_back() -> None:
    text = live_text(80, [RunStarted(RUN, 3), *cases(3), FINISHED])

    assert text.count(HIDE_CURSOR) == 1
    assert text.rindex(SHOW_CURSOR) > text.index(HIDE_CURSOR)


def test_ctrl_c_gives_the_cursor_back() -> None:
    stream = TerminalStream()

    def run_until_interrupted() -> None:
        with make_progress(console_of(stream, 80)) as progress:
            progress.listen(RunStarted(RUN, 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted()

    assert stream.getvalue().rindex(SHOW_CURSOR) > stream.getvalue().index(HIDE_CURSOR)


def test_a_notice_stands_above_the_live_display() -> None:
    text = without_codes(live_text(80, [RunStarted(RUN, 3), Noticed("no logprobs"), *cases(1)]))

    assert text.index("note: no logprobs") < text.rindex("1/3")
