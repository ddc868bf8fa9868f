"""Tests that a program makes: a mapping for each of them."""

from collections.abc import Iterator


def load() -> Iterator[dict[str, object]]:
    """Yield three questions whose answers are known."""
    for number in (7, 12, 25):
        yield {
            "description": f"the square of {number}",
            "question": f"What is {number} times {number}?",
            "assert.contains": str(number * number),
            "metadata.area": "arithmetic",
        }
