"""The use cases, and the only place where rooms are wired together: check a suite, run it, read stored runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS_PER_COLLECTION = 200_000


def collect_garbage_rarely() -> None:
    """Collect garbage rarely: almost none of ours is in cycles, and the search took a tenth of a large run."""
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 100)


@contextmanager
def lasting() -> Iterator[None]:
    """Leave out of all searches for garbage what is made meanwhile and before: a config in use until the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
