"""Pauses: keep track of the servers that asked to be left alone, each by itself."""

from collections.abc import Callable

from msgspec import Struct

from geval_cli.gateway.call import ServerKey

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""As long as the minute that most servers count their requests in."""

# After a pause the calls that waited go out one by one, about so many in another pause of that length.
_CALLS_PER_PAUSE = 20
_LONGEST_GAP_S = 1.0
_GAP_SHRINKS_TO = 0.9  # with each answer
_SHORTEST_GAP_S = 0.01


class _Pace(Struct):
    """The pause of one server, and the gap between calls after it. Moments are those of the clock."""

    until: float = 0.0
    next_call_at: float = 0.0
    gap_s: float = 0.0
    own_pause_s: float = 0.0
    limited_since: float | None = None


class Pauses:
    """The pauses of a run. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paces: dict[ServerKey, _Pace] = {}

    def pause(self, server: ServerKey, delay_s: float) -> None:
        """Send nothing to `server` for `delay_s` seconds from now, then one call after another.

        A longer pause under way stays.
        """
        pace = self._paces.setdefault(server, _Pace())
        pace.until = max(pace.until, self._clock() + delay_s)
        pace.gap_s = min(_LONGEST_GAP_S, max(pace.gap_s, delay_s / _CALLS_PER_PAUSE))

    def hold(self, server: ServerKey, delay_s: float) -> None:
        """Send nothing to `server` for `delay_s` seconds from now: it said that it has nothing left until then.

        Of a longer wait, the server is left to speak for itself: a call would be refused, and its caller told so.
        """
        if delay_s <= LONGEST_PAUSE_S:
            pace = self._paces.setdefault(server, _Pace())
            pace.until = max(pace.until, self._clock() + delay_s)

    def limited(self, server: ServerKey) -> float:
        """Note a rate limit of `server`, and return the seconds to leave it alone for if it does not say.

        That doubles whenever the last pause was not enough. Calls that are refused together count as one.
        """
        pace, now = self._paces.setdefault(server, _Pace()), self._clock()
        if pace.limited_since is None:
            pace.limited_since = now
        if now >= pace.until:
            pace.own_pause_s = min(LONGEST_PAUSE_S, 2 * pace.own_pause_s or FIRST_PAUSE_S)
        return pace.own_pause_s

    def limited_since(self, server: ServerKey) -> float | None:
        """Return the moment since which `server` has answered nothing but that it is asked too often."""
        pace = self._paces.get(server)
        return None if pace is None else pace.limited_since

    def limited_for_s(self, server: ServerKey) -> float:
        """Return the seconds for which `server` has answered nothing but that it is asked too often."""
        pace = self._paces.get(server)
        return 0.0 if pace is None or pace.limited_since is None else self._clock() - pace.limited_since

    def sent(self, server: ServerKey) -> None:
        """Note that a call goes out: the next one keeps its distance, while the server recovers."""
        pace = self._paces.get(server)
        if pace is not None and pace.gap_s:
            pace.next_call_at = self._clock() + pace.gap_s

    def answered(self, server: ServerKey) -> None:
        """Note an answer: the server takes what it is asked, and more of it with each answer."""
        pace = self._paces.get(server)
        if pace is not None:
            pace.own_pause_s, pace.limited_since = 0.0, None
            pace.gap_s *= _GAP_SHRINKS_TO
            if pace.gap_s < _SHORTEST_GAP_S:
                pace.gap_s = 0.0

    def give_up(self, server: ServerKey) -> None:
        """Stop spacing calls to `server`: nobody waits for it any more, so the remaining calls may fail at once."""
        self._paces[server].gap_s = 0.0

    def remaining_s(self, server: ServerKey) -> float:
        """Return the seconds that the next call to `server` has to wait; 0 when it may leave at once."""
        pace = self._paces.get(server)
        return 0.0 if pace is None else max(0.0, max(pace.until, pace.next_call_at) - self._clock())
