import asyncio

import pytest
from support.fake_provider import FakeProvider, ask

from geval_cli.errors import ProviderAuthError, ProviderRequestError
from geval_cli.gateway.call import ModelCall, OpenCase, ServerKey
from geval_cli.gateway.retry import RETRY_AFTER_S, Circuit

REFUSED = ProviderAuthError("the key was refused", provider_id="fake", status=401, hint="set it")


class Key:
    """A server that refuses the key until it `is_good`."""

    def __init__(self):
        self.is_good = False
        self.provider = FakeProvider(lambda _: "fine" if self.is_good else REFUSED)

    @property
    def asked(self):
        return len(self.provider.requests)


async def ask_once(gateway, key, text):
    try:
        return (await gateway.complete(key.provider, ask(text))).text
    except ProviderAuthError as error:
        return error.message


def test_a_refused_key_is_left_alone_for_a_while_and_then_tried_once(world):
    async def body():
        gateway, key, asked = world.gateway(), Key(), []
        for seconds in (0, RETRY_AFTER_S - 1, 1, RETRY_AFTER_S - 1, 1):
            world.time.now += seconds
            for number in range(5):
                await ask_once(gateway, key, f"{world.time.now} {number}")
            asked.append(key.asked)
        return asked

    assert world.time.run(body()) == [1, 1, 2, 2, 3]


def test_a_key_that_is_good_by_then_serves_everybody_again(world):
    async def body():
        gateway, key = world.gateway(), Key()
        answers = [await ask_once(gateway, key, "first")]
        key.is_good = True
        answers.append(await ask_once(gateway, key, "too early"))
        world.time.now += RETRY_AFTER_S
        answers += [await ask_once(gateway, key, text) for text in ("later", "and later")]
        return answers

    assert world.time.run(body()) == ["the key was refused", "the key was refused", "fine", "fine"]


def test_while_one_call_finds_out_the_others_do_not_wait(world):
    async def body():
        gateway, gate, refuses = world.gateway(), asyncio.Event(), [True]

        async def server(_):
            if refuses.pop() if refuses else False:
                return REFUSED
            await gate.wait()
            return "fine"

        provider = FakeProvider(server)
        with pytest.raises(ProviderAuthError):
            await gateway.complete(provider, ask("first"))
        world.time.now += RETRY_AFTER_S
        probe = asyncio.create_task(gateway.complete(provider, ask("probe")))
        while len(provider.requests) < 2:  # noqa: ASYNC110 - nothing tells when a request is on the wire
            await asyncio.sleep(0)
        with pytest.raises(ProviderAuthError):
            await gateway.complete(provider, ask("meanwhile"))
        gate.set()
        return (await probe).text, (await gateway.complete(provider, ask("after"))).text

    assert asyncio.run(body()) == ("fine", "fine")


def test_another_failure_of_the_one_call_keeps_the_provider_closed(world):
    async def body():
        replies = [REFUSED, ProviderRequestError("no such model", provider_id="fake"), "fine"]
        provider = FakeProvider(lambda _: replies.pop(0))
        gateway = world.gateway()
        with pytest.raises(ProviderAuthError):
            await gateway.complete(provider, ask("first"))
        world.time.now += RETRY_AFTER_S
        with pytest.raises(ProviderRequestError):
            await gateway.complete(provider, ask("probe"))
        with pytest.raises(ProviderAuthError):
            await gateway.complete(provider, ask("at once"))
        world.time.now += RETRY_AFTER_S
        return (await gateway.complete(provider, ask("later"))).text

    assert world.time.run(body()) == "fine"


def call_to(provider):
    return ModelCall(provider, ask(), ServerKey("fake", "", "fake-1"))


async def refuse(_):
    raise REFUSED


async def never(_):
    raise AssertionError("it must not be sent")


@pytest.mark.parametrize(
    ("judges", "is_refused"),
    [
        ([], False),
        ([[]], False),
        ([["good"]], False),
        ([["bad"]], True),
        ([["worse", "bad"]], True),
        ([["bad", "good"]], False),
        ([["good", "bad"]], False),
        ([["good"], ["bad"]], True),
        ([["bad", "good"], ["good", "bad"]], False),
    ],
)
def test_no_answer_is_paid_for_when_one_of_its_assertions_has_no_judge_left(world, judges, is_refused):
    circuit = Circuit(world.time.clock)
    named = {name: FakeProvider() for name in ("good", "bad", "worse")}
    case = OpenCase(judges=lambda: [[named[name] for name in members] for members in judges])
    circuit.check_judges(case)  # nothing was refused yet
    for name in ("bad", "worse"):
        with pytest.raises(ProviderAuthError):
            asyncio.run(circuit(call_to(named[name]), refuse))
        with pytest.raises(ProviderAuthError):
            asyncio.run(circuit(call_to(named[name]), never))

    if is_refused:
        with pytest.raises(ProviderAuthError) as caught:
            circuit.check_judges(case)
        said = "no answer was requested, since it could not be judged: the key was refused"
        error = caught.value
        assert (error.message, error.hint, error.status, error.provider_id) == (said, "set it", 401, "fake")
    else:
        circuit.check_judges(case)
    world.time.now += RETRY_AFTER_S
    circuit.check_judges(case)
