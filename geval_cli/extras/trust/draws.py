"""Random draws that anybody can make again: the same ids and seed give the same draw, on any machine."""

import hashlib
import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

DRAW_COLUMN = "draw"
"""The key of a label that says which draw its output came from: `seed 7`."""


def draw(
    items: Iterable[T], count: int | None = None, *, seed: int = 0, id_of: Callable[[T], str] = str
) -> list[T]:
    """Return `count` of the items, drawn without replacement; None for all of them, in a random order.

    Items are ordered by the hash of the seed and their id. So the order in which they come is nothing to the draw, a
    larger draw holds a smaller one, and items that come later change little of it. Only those that are drawn are held.
    """

    def place(item: T) -> tuple[bytes, str]:
        name = id_of(item)
        return hashlib.sha256(f"{seed}:{name}".encode("utf-8", errors="surrogatepass")).digest(), name

    return sorted(items, key=place) if count is None else heapq.nsmallest(count, items, key=place)


def draw_name(seed: int) -> str:
    """Return what the column `draw` says of a draw."""
    return f"seed {seed}"
