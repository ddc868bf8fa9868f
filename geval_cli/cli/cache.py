"""`geval cache stats`, `clear` and `prune`."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from geval_cli.cli.problems import print_warnings
from geval_cli.report.numbers import plural
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import open_cache

_KILOBYTE = 1024


def print_stats(home: Path | None, folder: Path | None) -> None:
    """Print the number of cached answers, their age and their size.

    Raises:
        UsageError: there is no cache.
        StoreError: it cannot be read.
    """
    with _opened(home, folder) as cache:
        stats = asyncio.run(cache.stats())
    expired = f", {stats.expired:,} of them older than 14 days" if stats.expired else ""
    _say(f"{stats.path}")
    _say(f"  answers  {stats.entries:,}{expired}")
    _say(f"  size     {_size(stats.file_bytes)}")
    if stats.oldest is not None and stats.newest is not None:
        _say(f"  oldest   {_day(stats.oldest)}")
        _say(f"  newest   {_day(stats.newest)}")


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


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB"]
    while size >= _KILOBYTE and len(units) > 1:
        size, units = size / _KILOBYTE, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
