"""Which servers asked to be left alone, and until when. One server's pause does not touch another."""

from collections.abc import Callable

from geval_cli.gateway.call import Server


class Pauses:
    """The pauses of a run. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[Server, float] = {}

    def pause(self, server: Server, delay_s: float) -> None:
        """Send nothing to `server` for `delay_s` seconds from now; a longer pause under way stays."""
        self._until[server] = max(self._until.get(server, 0.0), self._clock() + delay_s)

    def remaining_s(self, server: Server) -> float:
        """How long `server` is still to be left alone, 0 when it is not."""
        until = self._until.get(server)
        return 0.0 if until is None else max(0.0, until - self._clock())
