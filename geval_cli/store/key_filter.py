"""Which keys may have been kept: an answer without asking the database, in a fixed room."""

from struct import Struct

_BITS = 1 << 23  # a mebibyte; pages that are never written to take none
_MASK = _BITS - 1
_DIGITS = 32
_FOUR_NUMBERS = Struct("<4I")


class KeyFilter:
    """A set of keys (hexadecimal digits of a hash) that never forgets one and, rarely, takes a strange one for its own.

    While it holds 100,000 keys, it takes one strange key in 100,000 for its own; with two million, one in seven.
    """

    def __init__(self) -> None:
        self._bits = bytearray(_BITS >> 3)

    def add(self, key: str) -> None:
        """Hold `key` from now on."""
        for number in _numbers(key):
            position = number & _MASK
            self._bits[position >> 3] |= 1 << (position & 7)

    def may_hold(self, key: str) -> bool:
        """Return False only if `key` was never added."""
        bits = self._bits
        a, b, c, d = _numbers(key)
        found = bits[(a & _MASK) >> 3] >> (a & 7) & bits[(b & _MASK) >> 3] >> (b & 7)
        return bool(found & bits[(c & _MASK) >> 3] >> (c & 7) & bits[(d & _MASK) >> 3] >> (d & 7) & 1)


def _numbers(key: str) -> tuple[int, ...]:
    return _FOUR_NUMBERS.unpack(bytes.fromhex(key[:_DIGITS]))
