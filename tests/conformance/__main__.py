"""How many of geval's requests and readings agree with the official SDKs: `PYTHONPATH=tests python -m conformance`."""

import sys
import time
from collections import Counter
from collections.abc import Iterable

from conformance.replies import check_replies
from conformance.requests import Checked, check_bodies


def count(what: str, found: Iterable[Checked]) -> bool:
    """Print how many are good, by vendor, and what is wrong with the others."""
    items = list(found)
    total, good = Counter(item.vendor for item in items), Counter(i.vendor for i in items if not i.problems)
    for vendor in total:
        print(f"{vendor:24} {what}: {good[vendor]} of {total[vendor]}")
    odd: dict[tuple[str, str], list[str]] = {}
    for item in items:
        for problem in item.problems:
            odd.setdefault((item.vendor, problem), []).append(item.name)
    for (vendor, problem), names in odd.items():
        print(f"  {vendor}: {problem} ({len(names)}: {'; '.join(names[:3])})")
    return not odd


if __name__ == "__main__":
    began = time.perf_counter()
    outcomes = [count("bodies valid", check_bodies()), count("replies read", check_replies())]
    print(f"{time.perf_counter() - began:.1f} s")
    sys.exit(not all(outcomes))
