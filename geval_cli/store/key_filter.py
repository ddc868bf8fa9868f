"""A Bloom filter of cache keys: tell in fixed memory which ones were never added."""

from struct import Struct

_BITS = 1 << 23  # a mebibyte; pages that are never written to take none
_MASK = _BITS - 1
_DIGITS = 32
_FOUR_NUMBERS = Struct("<4I")


class KeyFilter:
    """A Bloom filter of keys (hexadecimal digits of a hash): no false negatives, and rarely a false positive.

    With 100,000 keys in it, one other key in 100,000 is a false positive; with two million, one in seven.
    """

    def __init__(self) -> None:
        self._bits = bytearray(_BITS >> 3)

    def add(self, key: str) -> None:
        """Add `key` to the filter."""
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
