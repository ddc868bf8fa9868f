"""How far a run has come, in a line of a notebook's cell that is drawn anew while it runs."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from geval_cli.events import RunEvent

_REDRAWN_EVERY_S = 0.25


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program."""
    found = sys.modules.get("IPython")
    shell = None if found is None else found.get_ipython()
    return hasattr(shell, "kernel")


class NotebookProgress:
    """Listens to a run's events between entering and leaving; the last line stays above the result."""

    def __init__(self) -> None:
        from geval_cli.report.progress import RunState

        self._state = RunState(time.monotonic())
        self._drawn_s = 0.0
        self._notes: dict[str, None] = {}
        self._handle: Any = None

    def __enter__(self) -> Self:
        from IPython import display

        show: Any = display.display
        self._handle = show(self._content(), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()

    def listen(self, event: "RunEvent") -> None:
        """Take note of an event, and draw the line anew if it is older than a quarter of a second."""
        from geval_cli.events import Noticed

        self._state.add(event)
        if isinstance(event, Noticed):
            self._notes[event.message] = None
        if time.monotonic() - self._drawn_s >= _REDRAWN_EVERY_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        from geval_cli.report.sanitize import html_text, sanitize

        state, now_s = self._state, time.monotonic()
        parts = [f"{state.done:,}/{state.total:,}", state.counts_text(), state.elapsed_text(now_s)]
        parts += [text for text in (state.eta_text(now_s), state.calls_text()) if text]
        lines = [" · ".join(parts), *(f"note: {sanitize(text)}" for text in self._notes)]
        bar = f'<progress max="{max(state.total, 1)}" value="{state.done}"></progress> '
        return {"text/plain": "\n".join(lines), "text/html": bar + "<br>".join(map(html_text, lines))}
