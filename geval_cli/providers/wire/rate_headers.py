"""Read the rate limits in a server's headers: what is left of them, and when they are renewed."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EPOCH_SECONDS_FROM = 1e9
_EPOCH_MILLISECONDS_FROM = 1e12


def used_up_for_s(headers: Mapping[str, str], *, now_s: float, tokens: int) -> float:
    """Return the seconds until the used-up limits are renewed; 0 when none is used up.

    Args:
        headers: of a successful answer, their names in lower case: x-ratelimit-remaining-requests, -reset-requests
            and their like as OpenAI and others write them, anthropic-ratelimit-requests-remaining, -reset and theirs.
        now_s: the Unix time, for those that name a moment.
        tokens: what the answer took; a limit with fewer left has no room for another like it.
    """
    if not any("ratelimit" in name for name in headers):
        return 0.0
    waits = (
        wait
        for name, wait, left in _limits(headers, now_s)
        if left is not None and (left <= 0 or ("token" in name and left < tokens))
    )
    return max(waits, default=0.0)


def longest_reset_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Of a refusal: the longest wait for a limit with nothing left; where no header says what is left, for any."""
    limits = list(_limits(headers, now_s))
    used_up = [wait for _, wait, left in limits if left is not None and not left > 0]
    unknown = [wait for _, wait, left in limits if left is None]
    return max(used_up or unknown, default=None)


def duration_s(text: str) -> float | None:
    """Return the seconds of "2.5", "2.5s", "350ms" or "1m30s"."""
    number = read_number(text)
    if number is not None:
        return number
    parts = _DURATION_PART.findall(text)
    if not parts or _DURATION_PART.sub("", text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)


def read_number(value: str | None) -> float | None:
    """Return the number that a header is, or None when it is none."""
    try:
        number = json.loads(value) if value else None
    except ValueError:
        return None
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def _limits(headers: Mapping[str, str], now_s: float) -> Iterator[tuple[str, float, float | None]]:
    """Yield each reported limit: its name, the seconds to its renewal, and what is left of it.

    None is left when no header says so, not a number when it cannot be read.
    """
    for name, value in headers.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        wait = _reset_wait(value, now_s)
        if wait is not None:
            remaining = headers.get(name.replace("reset", "remaining"))
            yield name, wait, None if remaining is None else _number_or_nan(remaining)


def _number_or_nan(text: str) -> float:
    number = read_number(text)
    return math.nan if number is None else number


def _reset_wait(value: str, now_s: float) -> float | None:
    number = read_number(value)
    if number is None:
        duration = duration_s(value)
        return _seconds_until_iso(value, now_s) if duration is None else duration
    if number >= _EPOCH_MILLISECONDS_FROM:
        return max(0.0, number / 1000 - now_s)
    if number >= _EPOCH_SECONDS_FROM:
        return max(0.0, number - now_s)
    return max(0.0, number)


def _seconds_until_iso(value: str, now_s: float) -> float | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now_s)
