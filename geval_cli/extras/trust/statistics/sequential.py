"""Test and estimate a mean while observations arrive, valid at any stopping time. Plain Python, pure.

Two betting processes each start with half of the capital: one bets that the mean is above a limit, one that it is
below. If the mean is at the limit, the probability that their joint capital ever reaches 1 / alpha times the stake is
at most alpha.

Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024.
"""

import math
from collections.abc import Iterable

from msgspec import Struct, field

from geval_cli.statistics.intervals import Interval

_BISECTIONS = 40
_MOST_LOST = 0.5
"""The largest share of the money that one observation can take."""
_LOG_HALF = math.log(0.5)


class _Observation(Struct, frozen=True):
    """A value, the stake that was set before it was seen, and its weight."""

    value: float
    stake: float
    weight: float


class _Gambler(Struct):
    """A betting process that bets that the mean is above a limit (`sign` 1) or below it (-1)."""

    sign: int
    limit: float
    log_term: float
    log_capital: float = 0.0
    seen: list[_Observation] = field(default_factory=list)
    _sum: float = 0.5
    _squares: float = 0.25

    def add(self, value: float, weight: float) -> None:
        t = len(self.seen) + 1
        stake = math.sqrt(2 * self.log_term / (self._squares * math.log1p(t)))
        self.seen.append(_Observation(value, stake, weight))
        self.log_capital += self._won(self.seen[-1], self.limit)
        self._sum += value
        self._squares += (value - self._sum / (t + 1)) ** 2

    def log_capital_at(self, limit: float) -> float:
        """Return the logarithm of the capital if the bets had been against another limit."""
        return math.fsum(self._won(item, limit) for item in self.seen)

    def _won(self, item: _Observation, limit: float) -> float:
        room = limit if self.sign > 0 else 1 - limit
        if room <= 0:
            # A mean at the end of the scale implies that all values are equal: any other value rules it out.
            return math.inf if item.value != limit else 0.0
        return math.log1p(self.sign * min(item.stake, _MOST_LOST / room) * item.weight * (item.value - limit))


class SequentialMean:
    """A sequential test and confidence sequence for the mean of observations within 0..1, in the order drawn.

    An observation known only as a range counts with its lowest value for showing that the mean is above the limit, and
    with its highest for showing that it is below.

    Args:
        alpha: largest probability of a wrong decision at any time.
        limit: value that the mean is compared with.
        lower_limit: value that the mean must be below, if it differs from `limit`.
    """

    def __init__(self, alpha: float, limit: float, lower_limit: float | None = None) -> None:
        log_term = math.log(2 / alpha)
        self.alpha = alpha
        self._above = _Gambler(1, limit, log_term)
        self._below = _Gambler(-1, limit if lower_limit is None else lower_limit, log_term)

    def add(self, lowest: float, highest: float | None = None, *, weight: float = 1.0) -> None:
        """Add the next observation; an unknown one lies between `lowest` and `highest`.

        `weight` is its share in the mean, at most 1.
        """
        self._above.add(lowest, weight)
        self._below.add(lowest if highest is None else highest, weight)

    def add_all(self, values: Iterable[float]) -> None:
        """Add observations in order."""
        for value in values:
            self.add(value)

    @property
    def n(self) -> int:
        return len(self._above.seen)

    @property
    def mean(self) -> float | None:
        """Return the weighted mean, with the midpoint of the range for unknown observations; None without any."""
        weight = math.fsum(item.weight for item in self._above.seen)
        total = math.fsum(item.weight * item.value for item in (*self._above.seen, *self._below.seen))
        return total / 2 / weight if weight else None

    @property
    def log_capitals(self) -> tuple[float, float]:
        """Return the logarithms of the capital, out of a total stake of 1, of the bets on "above" and on "below"."""
        return _LOG_HALF + self._above.log_capital, _LOG_HALF + self._below.log_capital

    @property
    def is_above(self) -> bool:
        """Return whether the mean is shown to be above the limit."""
        return self.log_capitals[0] >= -math.log(self.alpha)

    @property
    def is_below(self) -> bool:
        """Return whether the mean is shown to be below the limit."""
        return self.log_capitals[1] >= -math.log(self.alpha)

    def interval(self) -> Interval | None:
        """Return the confidence sequence: it covers the true mean at all times with probability 1 - alpha."""
        if not self.n:
            return None
        return self._bound(self._above, 0.0, 1.0), self._bound(self._below, 1.0, 0.0)

    def _bound(self, gambler: _Gambler, outside: float, inside: float) -> float:
        """Return the innermost limit that a betting process rejects, by bisection.

        The further out a limit is, the more capital is gained by betting against it.
        """
        enough = -math.log(self.alpha) - _LOG_HALF
        if gambler.log_capital_at(outside) < enough:
            return outside
        for _ in range(_BISECTIONS):
            middle = (outside + inside) / 2
            outside, inside = (
                (middle, inside) if gambler.log_capital_at(middle) >= enough else (outside, middle)
            )
        return outside
