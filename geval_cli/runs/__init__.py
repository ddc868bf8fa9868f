"""The use cases, and the only place where packages are wired together: check a suite, run it, read stored runs."""

import gc

_ALLOCATIONS_PER_COLLECTION = 1_000_000


def collect_garbage_rarely() -> None:
    """Make garbage collection rare: hardly any garbage is in cycles, and the search took a tenth of a large run."""
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 100)
