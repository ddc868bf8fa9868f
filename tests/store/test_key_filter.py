"""The set of keys in a fixed room: it forgets none, and seldom takes a strange one for its own."""

import hashlib

from geval_cli.store.cache import KeyFilter


def keys(name: str, count: int) -> list[str]:
    return [hashlib.sha256(f"{name} {number}".encode()).hexdigest() for number in range(count)]


def test_nothing_is_held_at_first() -> None:
    held = KeyFilter()
    assert not any(held.may_hold(key) for key in keys("strange", 100))


def test_what_was_added_is_always_held() -> None:
    held, own = KeyFilter(), keys("own", 2_000)
    for key in own:
        held.add(key)
    assert all(held.may_hold(key) for key in own)


def test_strange_keys_are_seldom_taken_for_its_own() -> None:
    held = KeyFilter()
    for key in keys("own", 20_000):
        held.add(key)
    assert sum(held.may_hold(key) for key in keys("strange", 20_000)) < 5
