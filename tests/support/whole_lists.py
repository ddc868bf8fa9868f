"""Lists of all that geval knows, as messages show them: expected texts name the list, so that it can grow."""

import re

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.judge.dimensions import DIMENSIONS
from geval_cli.providers.registry import provider_kinds

_LISTS = {
    "<EVERY ASSERTION TYPE>": ASSERTION_TYPES,
    "<EVERY DIMENSION>": DIMENSIONS,
    "<EVERY PROVIDER KIND>": provider_kinds(),
}


def name_lists(text: str) -> str:
    """Put names in the place of lists that are complete and in order; one with a gap stays and shows."""
    for name, items in _LISTS.items():
        text = re.sub(r",\s+".join(map(re.escape, items)) + r"(?![\w-])", name, text)
    return text
