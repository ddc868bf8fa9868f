"""Terminals as they really are: the colour, width, encoding and tables of a stream are decided here alone."""

import codecs
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from geval_cli.patterns import compile_later

PIPED_WIDTH = 100
_WIDTH_MIN = 20
_IN_ASCII = "geval-ascii"
_STAND_INS = {"…": "~", "–": "-", "≥": ">=", "×": "x", "·": "|"}  # noqa: RUF001
_BEFORE_UNIT = compile_later(r"(?<=\d) (?=(?:%|ms|s|min|h|d|pts|points|[kMG]B)(?!\w))|(?<=\d %) (?=CI\b)")
_GLUE = "\ue0ff"
"""Stands for the space before a unit while lines are wrapped; printed texts contain no private-use characters."""
# In files and logs, and where the stream has no line characters, the line is made of dashes.
_DASHES = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def make_console(stream: TextIO, *, environ: Mapping[str, str], width: int | None = None) -> Console:
    """Return a rich console for `stream` that interprets nothing: no markup, no emoji codes, no highlighting.

    Colour: never with NO_COLOR, always with FORCE_COLOR, else on a terminal outside CI (TERM=dumb is no terminal).
    Width: `width`, else COLUMNS, else the terminal's own (followed when it is resized), else 100 characters. Characters
    that the stream's encoding lacks are written as escapes instead of raising.
    """
    if isinstance(stream, io.TextIOWrapper) and not _is_unicode(stream.encoding):
        stream.reconfigure(errors=_IN_ASCII)
    is_terminal = stream.isatty() and environ.get("TERM") != "dumb"
    width = width or _columns(environ) or (None if is_terminal else PIPED_WIDTH)
    return Console(
        file=stream,
        force_terminal=is_terminal or _forces_colour(environ),
        force_interactive=is_terminal and not is_ci(environ),
        force_jupyter=False,
        color_system=_colour_system(environ, is_terminal),
        no_color=False,
        width=width,
        height=25 if width else None,  # rich falls back to 80 columns when only one of the two is known
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=None,
        _environ=dict(environ),
    )


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a character that the stream lacks: common signs (an ellipsis) by ASCII, all others by an escape."""
    assert isinstance(error, UnicodeEncodeError)
    if error.object[error.start] in _STAND_INS:
        return _STAND_INS[error.object[error.start]], error.start + 1
    return codecs.backslashreplace_errors(
        UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    )


codecs.register_error(_IN_ASCII, _in_ascii)


def is_ci(environ: Mapping[str, str]) -> bool:
    """Return whether geval runs on a build server, where all output goes to a log that is not watched live."""
    return environ.get("CI", "").lower() not in {"", "0", "false", "no"}


def is_unicode(console: Console) -> bool:
    """Return whether the console's stream can show non-ASCII characters."""
    return _is_unicode(console.encoding)


def print_trimmed(renderable: RenderableType, console: Console) -> None:
    """Print without the trailing blanks that rich leaves on lines, to keep files and clipboards clean."""
    for line in console.render_lines(renderable, pad=False):
        text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ignore", crop=False)


def print_hanging(head: Text, body: Text, console: Console, *, indent: int) -> None:
    """Print `head` indented by `indent` cells and `body` after it; wrapped lines of `body` align with its first."""
    body = body.copy()
    body.plain = _BEFORE_UNIT.sub(_GLUE, body.plain)
    margin = indent + head.cell_len
    if console.width - margin <= _WIDTH_MIN:
        margin = indent + 2
    for position, line in enumerate(
        body.wrap(console, max(console.width - indent - head.cell_len - 1, _WIDTH_MIN))
    ):
        shown = Text(" " * indent).append_text(head) if position == 0 else Text(" " * margin)
        line.plain = line.plain.replace(_GLUE, " ")
        shown.append_text(line)
        shown.rstrip()
        console.print(shown, no_wrap=True, overflow="ignore", crop=False)


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "utf-8").lower().replace("_", "-").startswith("utf")


def _forces_colour(environ: Mapping[str, str]) -> bool:
    return environ.get("FORCE_COLOR", "") not in {"", "0"} and not environ.get("NO_COLOR")


def _colour_system(
    environ: Mapping[str, str], is_terminal: bool
) -> Literal["auto", "standard", "256", "truecolor", "windows"] | None:
    if environ.get("NO_COLOR"):
        return None
    if _forces_colour(environ):
        return "standard"
    return "standard" if is_terminal and not is_ci(environ) else None


def _columns(environ: Mapping[str, str]) -> int | None:
    text = environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def plain_table(console: Console, *, has_blank_lines: bool = False) -> Table:
    """Return an empty table; `has_blank_lines` puts a blank line between rows, for cells of several lines."""
    look = box.SIMPLE_HEAD if console.is_terminal and is_unicode(console) else _DASHES
    return Table(
        box=look,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
        border_style="dim",
        show_lines=has_blank_lines,
    )


Cells = Sequence[str | Text]


def print_rows(console: Console, sides: str, header: Sequence[str], rows: Iterable[Cells]) -> None:
    """Print a table.

    `sides` has one letter per column: `l` for left, `r` for right, upper case if its cells must not be broken.
    """
    table = plain_table(console)
    for side, name in zip(sides, header, strict=True):
        justify: Literal["left", "right"] = "left" if side in "lL" else "right"
        table.add_column(name, justify=justify, no_wrap=side.isupper(), overflow="fold")
    for row in rows:
        table.add_row(*row)
    print_trimmed(indented(table), console)


def indented(table: Table) -> RenderableType:
    """Return the table indented by one cell, as all our lines are."""
    return Padding(table, (0, 0, 0, 1), expand=False)
