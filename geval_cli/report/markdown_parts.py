"""Markdown in which no text from a model, a config or a server is markup."""

import re
from collections.abc import Sequence


def markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table whose first column is aligned left; a cell may hold anything but markup of its own."""
    lines = [header, tuple("---" if index == 0 else "---:" for index, _ in enumerate(header)), *rows]
    # A bar ends a cell even inside a code span.
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines)


def code_span(text: str) -> str:
    """Return a code span that holds `text` whatever it contains."""
    text = " ".join(text.split())
    if not text:
        return ""
    fence = "`" * (longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def longest_run(text: str) -> int:
    """Return how many backticks stand in a row at most."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
