"""What a run leaves behind in memory: nothing that only a search for cycles finds, however many tests there are."""

import gc
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
from support.judge_server import judge_sensibly, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply, error_reply
from support.product import Product

EARLY, LATE, TESTS = 10, 30, 36

JUDGED = [{"type": "g-eval", "criteria": "It is good."}]
SETS = [{"type": "assert-set", "assert": [*JUDGED, {"type": "contains", "value": "fine"}]}]


class GarbageWatch:
    """A server that looks for what is left in cycles while the run goes on: `found` at the late request.

    What is made once is found at the early one, and not counted.
    """

    def __init__(self, reply: Reply) -> None:
        self.found = 0
        self._reply = reply
        self._asked = 0

    def respond(self, body: Any, headers: Any) -> Any:
        if prompt_text(body)[:3] != "Say":
            return judge_sensibly(body, headers)
        self._asked += 1
        if self._asked in (EARLY, LATE):
            gc.collect()
            self.found = sum(of_geval(item) for item in gc.garbage)
            gc.garbage.clear()
        return self._reply


def of_geval(found: Any) -> bool:
    """Whether an object is geval's, and not the server's, which is in this process too."""
    owner = found if isinstance(found, FunctionType) else type(found)
    return str(owner.__module__).startswith("geval_cli")


@pytest.fixture
def saved_garbage() -> Iterator[None]:
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.usefixtures("saved_garbage")
@pytest.mark.parametrize(
    ("checks", "reply"),
    [
        (JUDGED, chat_reply("fine")),
        (SETS, chat_reply("fine")),
        (JUDGED, error_reply(400, "no")),
        (JUDGED, chat_reply(None)),
    ],
    ids=["judged", "in a set", "refused", "absent"],
)
def test_memory_in_cycles_does_not_grow_with_the_number_of_tests(
    product: Product, checks: list[Any], reply: Reply
) -> None:
    config = {
        "prompts": ["Say {{ x }}"],
        "providers": [{"id": "openai:m", "config": {"max_retries": 0}}],
        "defaultTest": {"assert": checks, "options": {"provider": "openai:judge"}},
        "tests": [{"vars": {"x": number}} for number in range(TESTS)],
    }
    watch = GarbageWatch(reply)
    with LoopbackServer(respond=watch.respond) as server:
        product.run(config, server, "-j", "4")
    assert watch.found < (LATE - EARLY) / 2
