"""The terminal display of a run. It opens once the first requests have left: rich takes a while to import."""

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from geval_cli.events import RunEvent

if TYPE_CHECKING:
    from geval_cli.report.progress import Progress
    from geval_cli.report.request_log import RequestLines

_OPENS_AFTER_S = 0.05


class Screen:
    """Progress on stderr and, if wanted, a line for each request; events that come before it opens are kept for it.

    It is used within an event loop. A terminal that is gone ends no run that is paid for.
    """

    def __init__(self, *, shows_progress: bool, lists_requests: bool) -> None:
        self._shows_progress = shows_progress
        self._lists_requests = lists_requests
        self._early: list[RunEvent] | None = []
        self._progress: Progress | None = None
        self._lines: RequestLines | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(_OPENS_AFTER_S, self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, event: RunEvent) -> None:
        """Show an event, or keep it until the screen opens."""
        if self._early is not None:
            self._early.append(event)
            return
        with suppress(OSError, ValueError):
            if self._progress is not None:
                self._progress.listen(event)
            if self._lines is not None:
                self._lines.listen(event)

    def close(self) -> None:
        """Show what was not shown yet, and give the terminal back."""
        self._open()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def _open(self) -> None:
        if self._early is None:
            return
        self._timer.cancel()
        early, self._early = self._early, None
        with suppress(OSError, ValueError):
            self._make_display()
        for event in early:
            self.listen(event)

    def _make_display(self) -> None:
        from geval_cli.report.console import make_console
        from geval_cli.report.progress import make_progress
        from geval_cli.report.request_log import RequestLines

        console = make_console(sys.stderr, environ=os.environ)
        if self._lists_requests:
            self._lines = RequestLines(console)
        self._progress = make_progress(console, is_shown=self._shows_progress)
        self._progress.__enter__()
