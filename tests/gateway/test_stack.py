"""The order of the layers around every model call, and how a call goes through them."""

import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.gateway.budget import Budget, Ledger
from geval_cli.gateway.cache import CachedAnswers, SingleFlight
from geval_cli.gateway.call import Handler, ModelCall, Runtime, ServerKey, compose
from geval_cli.gateway.gateway import CallPolicy, StackParts, build_stack
from geval_cli.gateway.limits import OpenCases
from geval_cli.gateway.retry import Circuit
from geval_cli.records import ModelResponse

SENDING = ("Retry", "Ledger", "CapabilityLayer", "Limits", "BudgetLayer", "Circuit")


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (CallPolicy(), ("SingleFlight", "CacheRead", "FanOut", "CacheWrite", *SENDING)),
        (
            CallPolicy(is_offline=True),
            ("SingleFlight", "CacheRead", "Offline", "FanOut", "CacheWrite", *SENDING),
        ),
        (
            CallPolicy(budget=Budget(max_cost_usd=1.0), is_tracing=True),
            (
                *("SingleFlight", "CacheRead", "FanOut", "CacheWrite", "Retry", "Ledger"),
                *("CapabilityLayer", "CostReservation", "Limits", "BudgetLayer", "RequestTrace", "Circuit"),
            ),
        ),
    ],
    ids=["plain", "offline", "with a bound on money and a log"],
)
def test_the_layers_stand_in_one_list_outermost_first(policy, names):
    layers = build_stack(
        StackParts(
            SingleFlight(is_for_one_run=False),
            CachedAnswers(None, since=None, notice=lambda _: None),
            Circuit(Runtime().clock),
            OpenCases(Budget(), None),
            Ledger(),
        ),
        policy=policy,
        runtime=Runtime(),
        on_event=lambda _: None,
        max_concurrency=None,
    )
    assert tuple(type(layer).__name__ for layer in layers) == names


class Traced:
    """A layer that notes what passes it, and passes it on `times` times."""

    def __init__(self, name: str, seen: list[str], times: int = 1) -> None:
        self.name, self.seen, self.times = name, seen, times

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse | None:
        self.seen.append(f"{self.name} in")
        response = None
        for _ in range(self.times):
            response = await send_next(call)
        self.seen.append(f"{self.name} out")
        return response


@pytest.mark.parametrize(
    ("times", "seen"),
    [
        (0, ["outer in", "inner in", "inner out", "outer out"]),
        (1, ["outer in", "inner in", "sent", "inner out", "outer out"]),
        (2, ["outer in", "inner in", "sent", "sent", "inner out", "outer out"]),
    ],
    ids=["answered by a layer", "passed on", "sent twice"],
)
def test_a_call_enters_the_first_layer_and_leaves_behind_the_last(times, seen):
    found: list[str] = []

    async def send(call: ModelCall) -> None:
        found.append("sent")

    handler = compose([Traced("outer", found), Traced("inner", found, times)], send)
    asyncio.run(handler(ModelCall(FakeProvider(), ask(), ServerKey("fake", "", "fake-1"))))
    assert found == seen
