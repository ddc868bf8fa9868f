"""Decide about a mean while observations come in: a look after every one of them costs no certainty. Plain, pure.

Two gamblers bet, each with half of the money: one that the mean is above a limit, one that it is below. However often
they are looked at, the chance that together they ever hold 1 / alpha times the stake while the mean is the limit is at
most alpha.

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
    """One who bets that the mean is above a limit (`sign` 1) or below it (-1)."""

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
        """Return the logarithm of the capital of who had bet against another limit."""
        return math.fsum(self._won(item, limit) for item in self.seen)

    def _won(self, item: _Observation, limit: float) -> float:
        room = limit if self.sign > 0 else 1 - limit
        if room <= 0:
            # A mean at the end of the scale is that of equal values: any other one settles the matter.
            return math.inf if item.value != limit else 0.0
        return math.log1p(self.sign * min(item.stake, _MOST_LOST / room) * item.weight * (item.value - limit))


class SequentialMean:
    """Observations of 0..1 in the order in which they were drawn, and what they show about their mean at any time.

    One that is not known is taken for the lowest that it can be where the mean may be shown to be above a limit, and
    for the highest where it may be shown to be below.

    Args:
        alpha: the chance of a wrong decision, whenever it is made.
        limit: what the mean is held against.
        lower_limit: what it has to be below of, where that is another limit.
    """

    def __init__(self, alpha: float, limit: float, lower_limit: float | None = None) -> None:
        log_term = math.log(2 / alpha)
        self.alpha = alpha
        self._above = _Gambler(1, limit, log_term)
        self._below = _Gambler(-1, limit if lower_limit is None else lower_limit, log_term)

    def add(self, lowest: float, highest: float | None = None, *, weight: float = 1.0) -> None:
        """Take in the next observation; one that is not known lies between `lowest` and `highest`.

        `weight` is its share in the mean, at most 1.
        """
        self._above.add(lowest, weight)
        self._below.add(lowest if highest is None else highest, weight)

    def add_all(self, values: Iterable[float]) -> None:
        """Take in observations, one after another."""
        for value in values:
            self.add(value)

    @property
    def n(self) -> int:
        return len(self._above.seen)

    @property
    def mean(self) -> float | None:
        """Return the mean; where something is not known, the middle of what it can be."""
        weight = math.fsum(item.weight for item in self._above.seen)
        total = math.fsum(item.weight * item.value for item in (*self._above.seen, *self._below.seen))
        return total / 2 / weight if weight else None

    @property
    def log_capitals(self) -> tuple[float, float]:
        """Return the logarithms of what is left of a stake of 1 bet on "above", and of one bet on "below"."""
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
        """Return the means that are not ruled out: the true one is among them with 1 - alpha, at every look at once."""
        if not self.n:
            return None
        return self._bound(self._above, 0.0, 1.0), self._bound(self._below, 1.0, 0.0)

    def _bound(self, gambler: _Gambler, outside: float, inside: float) -> float:
        """Return the limit up to which a gambler has won, by bisection: the further away, the more was won."""
        enough = -math.log(self.alpha) - _LOG_HALF
        if gambler.log_capital_at(outside) < enough:
            return outside
        for _ in range(_BISECTIONS):
            middle = (outside + inside) / 2
            outside, inside = (
                (middle, inside) if gambler.log_capital_at(middle) >= enough else (outside, middle)
            )
        return outside
