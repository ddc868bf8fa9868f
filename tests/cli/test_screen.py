"""The screen of a run: what happened before it opened is shown too, and a terminal that is gone ends nothing."""

import asyncio
import io
import sys

import pytest

from geval_cli.cli.run import Screen
from geval_cli.events import Noticed


def notices(screen: Screen, *texts: str) -> None:
    for text in texts:
        screen.listen(Noticed(text))


def test_what_came_before_it_opened_is_shown_at_the_end_of_a_short_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run() -> None:
        with Screen(shows_progress=False, lists_requests=False) as screen:
            notices(screen, "one", "two")
            assert capsys.readouterr().err == ""

    asyncio.run(run())
    assert capsys.readouterr().err == "note: one\nnote: two\n"


def test_it_opens_by_itself_while_a_run_waits(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> str:
        with Screen(shows_progress=False, lists_requests=False) as screen:
            notices(screen, "one")
            shown = ""
            while not shown:
                await asyncio.sleep(0)
                shown += capsys.readouterr().err
            notices(screen, "two")
            return shown + capsys.readouterr().err

    assert asyncio.run(asyncio.wait_for(run(), 60)) == "note: one\nnote: two\n"


def test_closing_it_twice_shows_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        with Screen(shows_progress=False, lists_requests=False) as screen:
            notices(screen, "one")
            screen.close()

    asyncio.run(run())
    assert capsys.readouterr().err == "note: one\n"


def test_a_terminal_that_is_gone_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)

    async def run() -> str:
        with Screen(shows_progress=True, lists_requests=True) as screen:
            notices(screen, "one")
            screen.close()
            notices(screen, "two")
        return "finished"

    assert asyncio.run(run()) == "finished"
