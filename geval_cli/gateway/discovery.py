"""Finding out once: the first call that needs something unknown of a server goes ahead, the others wait for it."""

import asyncio
from collections.abc import Set as AbstractSet


class Discovery:
    """What is known about one server's features. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def claim(self, features: AbstractSet[str], *, patience_s: float | None = None) -> frozenset[str]:
        """Wait until all of `features` are known, or until this call is the one to find out about those that are not.

        Whoever gets features must `settle` them, whatever happens.

        Args:
            features: what the call needs.
            patience_s: how long to wait for others at most; after that the call goes ahead without having a claim.

        Returns:
            What this call is to find out; empty when there is nothing to find out, or patience has run out.
        """
        while unknown := features - self._known:
            others = {self._under_way[name] for name in unknown if name in self._under_way}
            if not others:
                found = asyncio.get_running_loop().create_future()
                self._under_way.update(dict.fromkeys(unknown, found))
                return frozenset(unknown)
            done, _ = await asyncio.wait(others, timeout=patience_s)
            if not done:
                break
        return frozenset()

    def settle(self, claimed: AbstractSet[str], *, known: AbstractSet[str]) -> None:
        """End a claim. Of `claimed`, `known` need not be found out again; for the rest the next call in line tries."""
        self._known |= known
        for name in claimed:
            found = self._under_way.pop(name)
            if not found.done():
                found.set_result(None)
