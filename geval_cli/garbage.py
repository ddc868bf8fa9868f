"""How often Python looks for garbage in the processes of a run."""

import gc

_ALLOCATIONS_PER_COLLECTION = 200_000


def collect_garbage_rarely() -> None:
    """Collect garbage rarely: almost none of ours is in cycles, and the search took a tenth of a large run."""
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, 20, 100)
