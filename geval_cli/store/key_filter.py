"""Which keys may have been kept: an answer without asking the database, in a fixed room."""

_BITS = 1 << 23  # a mebibyte; pages that are never written to take none
_MASK = _BITS - 1
_SHIFTS = (0, 24, 48, 72)
_DIGITS = 24


class KeyFilter:
    """A set of keys (hexadecimal digits of a hash) that never forgets one and, rarely, takes a strange one for its own.

    While it holds 100,000 keys, it takes one strange key in 100,000 for its own; with two million, one in seven.
    """

    def __init__(self) -> None:
        self._bits = bytearray(_BITS >> 3)

    def add(self, key: str) -> None:
        """Hold `key` from now on."""
        for position in _probes(key):
            self._bits[position >> 3] |= 1 << (position & 7)

    def may_hold(self, key: str) -> bool:
        """False only if `key` was never added."""
        return all(self._bits[position >> 3] >> (position & 7) & 1 for position in _probes(key))


def _probes(key: str) -> list[int]:
    number = int(key[:_DIGITS], 16)
    return [number >> shift & _MASK for shift in _SHIFTS]
