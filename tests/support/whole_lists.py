"""Replaces lists of everything that geval knows in messages, so that expected texts stay valid as the lists grow."""

import re

from geval_cli.judge.prompt import DIMENSIONS


def name_lists(text: str) -> str:
    """Replace the list of dimensions, and the numbers of types and kinds, with placeholders."""
    text = re.sub(r",\s+".join(map(re.escape, DIMENSIONS)) + r"(?![\w-])", "<EVERY DIMENSION>", text)
    return re.sub(r"\ball \d+ are in\b", "all <N> are in", text)
