"""Gather the notices of a run, besides its results, from its events."""

from msgspec import Struct, field

from geval_cli.events import ModelCalled, Noticed, RunEvent

_NOTICES_MAX = 100


class Notices(Struct):
    """Texts that the user should know, each once and at most 100."""

    _texts: dict[str, None] = field(default_factory=dict)
    _left_out: set[tuple[str, str]] = field(default_factory=set)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def add(self, event: RunEvent) -> None:
        """Take note of an event, if it says something."""
        if isinstance(event, Noticed):
            self.say(event.message)
        elif isinstance(event, ModelCalled) and event.dropped:
            self._add_dropped(event)

    def say(self, text: str) -> None:
        """Add a text of one's own."""
        if len(self._texts) < _NOTICES_MAX:
            self._texts[text] = None

    def _add_dropped(self, event: ModelCalled) -> None:
        """The gateway tells what a server does not take when the server says so; an answer from the cache is silent."""
        new = [name for name in event.dropped if (event.provider_id, name) not in self._left_out]
        self._left_out.update((event.provider_id, name) for name in new)
        if new and event.usage.cached_requests and event.usage.cached_requests == event.usage.requests:
            names = ", ".join(f"`{name}`" for name in new)
            self.say(
                f"{event.provider_id} does not take {names}; its answers in the cache were given without"
            )
