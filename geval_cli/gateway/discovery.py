"""Discovery: the first call that needs an unknown feature of a server goes ahead, the others wait for it."""

import asyncio
from collections.abc import Set as AbstractSet


class Discovery:
    """The known features of one server, and those that a call is finding out about. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def claim(self, features: AbstractSet[str], *, patience_s: float) -> frozenset[str]:
        """Wait until all of `features` are known, or until this call is the one to find out about those that are not.

        Nobody waits in vain twice: when the one that was to find out fails, all who wait for it go ahead at once.
        Whoever gets features must `settle` them, whatever happens.

        Args:
            features: what the call needs.
            patience_s: how long to wait for others at most; after that the call goes ahead without having a claim.

        Returns:
            What this call is to find out; empty when there is nothing to find out, or waiting did not help.
        """
        while unknown := self.unknown(features):
            awaited = unknown & self._under_way.keys()
            if not awaited:
                found = asyncio.get_running_loop().create_future()
                self._under_way.update(dict.fromkeys(unknown, found))
                return frozenset(unknown)
            await asyncio.wait({self._under_way[name] for name in awaited}, timeout=patience_s)
            if not awaited <= self._known:
                break
        return frozenset()

    def unknown(self, features: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of `features` that nobody has found out about."""
        return features - self._known

    def settle(self, claimed: AbstractSet[str], *, known: AbstractSet[str]) -> None:
        """End a claim. Of `claimed`, `known` need not be found out again; the rest is open to later calls."""
        self._known |= known
        for name in claimed:
            found = self._under_way.pop(name)
            if not found.done():
                found.set_result(None)
