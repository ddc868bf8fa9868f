"""The look that all our tables share: a line below the heads and nothing else."""

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

from geval_cli.report.console import is_unicode

# In files and logs, and where the stream has no line characters, the line is made of dashes.
_DASHES = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def plain_table(console: Console, *, has_blank_lines: bool = False) -> Table:
    """An empty table; `has_blank_lines` puts one between rows, for cells of several lines."""
    look = box.SIMPLE_HEAD if console.is_terminal and is_unicode(console) else _DASHES
    return Table(
        box=look,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
        border_style="dim",
        show_lines=has_blank_lines,
    )


def indented(table: Table) -> RenderableType:
    """The table, one cell in from the left, where all our lines begin."""
    return Padding(table, (0, 0, 0, 1), expand=False)
