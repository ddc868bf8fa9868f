from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from support.fake_time import FakeTime

from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.gateway.call import Runtime
from geval_cli.gateway.gateway import Gateway


@dataclass
class World:
    """A gateway's surroundings: fake time, and the events that came out of it."""

    time: FakeTime = field(default_factory=FakeTime)
    events: list[RunEvent] = field(default_factory=list)
    jitter: float = 1.0

    def gateway(self, **options) -> Gateway:
        runtime = Runtime(
            clock=self.time.clock, sleep=self.time.sleep, random=lambda: self.jitter, now=self.time.clock
        )
        return Gateway(**{"cache": None, "on_event": self.events.append, "runtime": runtime, **options})

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Noticed)]

    @property
    def calls(self) -> list[ModelCalled]:
        """Without their numbers and times, which differ from run to run."""
        return [
            replace(event, call=0, duration_ms=0.0) for event in self.events if isinstance(event, ModelCalled)
        ]


@pytest.fixture
def world() -> World:
    return World()
