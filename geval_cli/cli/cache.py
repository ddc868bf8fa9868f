"""`geval cache stats`, `clear` and `prune`."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geval_cli.cli.problems import print_warnings
from geval_cli.numbers import format_bytes, format_time, plural
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import open_cache


def print_stats(home: Path | None, folder: Path | None) -> None:
    """Print the number of cached answers, their age and their size.

    Raises:
        UsageError: there is no cache.
        StoreError: it cannot be read.
    """
    with _opened(home, folder) as cache:
        stats = asyncio.run(cache.stats())
    answers = plural(stats.entries, "answer is cached", "answers are cached")
    since = "" if stats.oldest is None else f", the oldest from {format_time(stats.oldest)}"
    _say(f"{answers}, {format_bytes(stats.file_bytes)} in {stats.path}{since}")
    if stats.newest is not None:
        _say(f"  newest   {format_time(stats.newest)}")
    if stats.expired:
        _say(f"  expired  {stats.expired:,}, older than 14 days; `geval cache prune` removes them")


def clear(home: Path | None, folder: Path | None) -> None:
    """Remove all answers; raises as `print_stats`."""
    with _opened(home, folder) as cache:
        _say(f"removed {plural(asyncio.run(cache.clear()), 'answer')}")


def prune(home: Path | None, folder: Path | None, *, older_than_s: float) -> None:
    """Remove answers older than so many seconds; raises as `print_stats`."""
    with _opened(home, folder) as cache:
        _say(f"removed {plural(asyncio.run(cache.prune(older_than_s=older_than_s)), 'answer')}")


@contextmanager
def _opened(home: Path | None, folder: Path | None) -> Iterator[ResponseCache]:
    with open_cache(home, os.environ, folder) as cache:
        print_warnings(cache.warnings)
        yield cache


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
