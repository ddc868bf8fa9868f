"""Generate tests in Python, one mapping per test."""

from collections.abc import Iterator


def load() -> Iterator[dict[str, object]]:
    """Yield three questions with known answers."""
    for number in (7, 12, 25):
        yield {
            "description": f"the square of {number}",
            "question": f"What is {number} times {number}?",
            "assert.contains": str(number * number),
            "metadata.area": "arithmetic",
        }
