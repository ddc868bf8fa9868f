"""What untrusted configs try, and do not get: files elsewhere, programs, environment values, servers."""

from pathlib import Path

import pytest
from support.payloads import (
    ENV,
    FORMS,
    PLACES,
    Payload,
    World,
    attempt,
    build_world,
    escapes,
    payloads,
    sample,
    write,
)
from support.unchecked import ONE_IN
from support.unchecked_runs import Listener, listening, run_unchecked

from geval_cli.cli.landlock import landlock_version


def table(world: World) -> list[tuple[int, Payload]]:
    return list(enumerate(payloads(world)))


def found_escapes(world: World, listener: Listener, *, untrusted: bool) -> dict[str, list[str]]:
    found = {}
    for number, payload in table(world):
        before = listener.visits
        write(world, number, payload)
        out = escapes(world, attempt(world, number, payload, untrusted=untrusted, env=ENV))
        if listener.visits > before:
            out.append("a server was asked")
        if out:
            found[payload.name] = out
    return found


def test_no_payload_escapes(tmp_path: Path) -> None:
    with listening() as listener:
        world = build_world(tmp_path, listener.port)
        assert len(table(world)) >= 150
        assert found_escapes(world, listener, untrusted=True) == {}


@pytest.mark.skipif(landlock_version() < 4, reason="the kernel has no Landlock that knows ports")
def test_the_kernel_alone_lets_nothing_out(tmp_path: Path) -> None:
    with listening() as listener:
        world = build_world(tmp_path, listener.port)
        assert run_unchecked(world, "confined") == {}
        assert not world.marker.exists()
        assert listener.visits == 0


def test_each_place_and_each_form_stands_before_the_kernel(tmp_path: Path) -> None:
    """`make soak PARTS=payloads` takes all of their pairs, and so does the test above of geval's own checks."""
    everything = table(build_world(tmp_path, 9))
    taken = [payload.name for _, payload in sample(everything, ONE_IN)]
    assert {name for name in taken if name.partition(": ")[0] in PLACES} == {
        f"{place}: {form}"
        for number, place in enumerate(PLACES)
        for form in list(FORMS)[number % ONE_IN :: ONE_IN]
    }
    left_out = {payload.name for _, payload in everything} - set(taken)
    assert {name.partition(": ")[0] for name in left_out} == set(PLACES)


def test_payloads_escape_where_nothing_holds_them(tmp_path: Path) -> None:
    """Else the other tests would show nothing."""
    with listening() as listener:
        world = build_world(tmp_path, listener.port)
        found = run_unchecked(world, "open")
    places = {name.partition(":")[0] for name in found}
    assert len(places) >= 25
