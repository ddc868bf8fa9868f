"""Lists of all that geval knows, as messages show them: expected texts name the list, so that it can grow."""

import re

from geval_cli.judge.prompt import DIMENSIONS


def name_lists(text: str) -> str:
    """Put names in the place of the list of dimensions, and of how many types and kinds there are."""
    text = re.sub(r",\s+".join(map(re.escape, DIMENSIONS)) + r"(?![\w-])", "<EVERY DIMENSION>", text)
    return re.sub(r"\ball \d+ are in\b", "all <N> are in", text)
