"""Input from a person at a terminal: single keys and typed lines."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ESCAPE = "\x1b"
_SEQUENCE_S = 0.05
_LINE_BYTES = 64 * 1024


def is_terminal() -> bool:
    """Return whether a person can be asked: stdin and stdout are a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


class Keyboard:
    """Reads from a terminal within the block of `keyboard()`. Ctrl-C raises KeyboardInterrupt, as everywhere."""

    def __init__(self, terminal: int, usual: list[Any]) -> None:
        self._terminal = terminal
        self._usual = usual

    def key(self) -> str:
        """Return the next key in lower case; "" for one that types nothing, such as an arrow.

        Raises:
            EOFError: the terminal is gone, or its user typed Ctrl-D.
        """
        import termios
        import tty

        tty.setcbreak(
            self._terminal, termios.TCSADRAIN
        )  # each time, as a process that was suspended resumes in another mode
        read = os.read(self._terminal, 1)
        if read in (b"", b"\x04"):
            raise EOFError
        while True:
            try:
                text = read.decode("utf-8")
                break
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data":
                    return ""
                more = os.read(self._terminal, 1)
                if not more:
                    raise EOFError from error
                read += more
        if text == _ESCAPE:
            self._skip_sequence()
            return ""
        return text.lower() if text.isprintable() or text in "\r\n" else ""

    def _skip_sequence(self) -> None:
        """Skip the rest of what an arrow or a function key sends, which would be read as letters."""
        while select.select([self._terminal], [], [], _SEQUENCE_S)[0]:
            read = os.read(self._terminal, 1)
            if not read or (read.isalpha() and read != b"O") or read == b"~":
                return

    def line(self) -> str:
        """Return a typed line without its end; it can be edited as in any program.

        Raises:
            EOFError: the terminal is gone, or its user typed Ctrl-D.
        """
        import termios

        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._usual)
        read = os.read(self._terminal, _LINE_BYTES)
        if not read:
            raise EOFError
        return read.decode("utf-8", errors="replace").rstrip("\r\n")


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Yield a keyboard, and restore the terminal at the end of the block."""
    import termios

    terminal = sys.stdin.fileno()
    usual = termios.tcgetattr(terminal)
    try:
        yield Keyboard(terminal, usual)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, usual)


def go_through(count: int, is_decided: Callable[[int], bool], ask: Callable[[int], str]) -> None:
    """Ask about each of `count` things that is not decided yet; back leads to those already shown.

    `ask` returns how a thing was left: `next`, `back` or `quit`. `is_decided` is called just before asking, as the same
    person may be working at another terminal too.
    """
    seen: list[int] = []
    place, comes_back = 0, False
    while place < count:
        if not comes_back and is_decided(place):
            place += 1
            continue
        comes_back = False
        said = ask(place)
        if said == "quit":
            return
        if said == "back":
            comes_back = bool(seen)
            place = seen.pop() if seen else place
            continue
        seen.append(place)
        place += 1
