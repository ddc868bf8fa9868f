"""Random draws that anybody can make again: the same ids and seed give the same draw, on any machine."""

import hashlib
from collections.abc import Iterable


def draw(ids: Iterable[str], count: int | None = None, *, seed: int = 0) -> list[str]:
    """Return `count` of the ids, drawn without replacement; None for all of them, in a random order.

    Ids are ordered by the hash of seed and id. So the order of `ids` is nothing to the draw, a larger draw holds a
    smaller one, and ids that come later change little of it.
    """
    ordered = sorted(dict.fromkeys(ids), key=lambda name: _place(name, seed))
    return ordered if count is None else ordered[:count]


def _place(name: str, seed: int) -> tuple[bytes, str]:
    text = f"{seed}:{name}".encode("utf-8", errors="surrogatepass")
    return hashlib.sha256(text).digest(), name
