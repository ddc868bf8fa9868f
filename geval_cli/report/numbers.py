"""Counts, shares and durations as people read them. Scores and money are in `geval_cli.numbers`, for all rooms."""

from geval_cli.numbers import fixed, trimmed

_DIGITS, _DIGITS_MAX = 2, 9
_LEAST_P = 0.001
_MOST_TESTS = 1_000
"""Estimated numbers of tests have at most three digits: beyond, all that is known is that it takes very many."""
_THOUSAND = 1_000
_MINUTE_S = 60


def format_interval(bounds: tuple[float, float]) -> str:
    """`0.41 to 0.68`: both bounds with two decimals. They are estimates, and more digits would claim too much."""
    low, high = bounds
    return f"{fixed(low, _DIGITS)} to {fixed(high, _DIGITS)}"


def format_difference(value: float) -> str:
    """`+0.07`: a difference with two decimals, or with as many as show its sign; below a billionth it is `0.00`."""
    value = round(value, _DIGITS_MAX)
    for digits in range(_DIGITS, _DIGITS_MAX + 1):
        if round(value, digits):
            return f"{value:+.{digits}f}"
    return "0.00"


def format_p(p: float) -> str:
    """`0.048`: a p-value with three decimals, and `<0.001` below them, in every table and on every page."""
    return f"<{_LEAST_P}" if p < _LEAST_P else f"{p:.3f}"


def format_percentage(part: float, whole: float) -> str:
    """`part` of `whole` in per cent; "100%" only when nothing is missing and "0%" only when nothing is there."""
    if whole <= 0:
        return "n/a"
    share = 100 * part / whole
    for digits in range(1, _DIGITS_MAX + 1):
        text = trimmed(f"{share:.{digits}f}")
        if (text == "100") == (part == whole) and (text == "0") == (part == 0):
            return f"{text}%"
    return "<100%" if part > whole / 2 else ">0%"


def format_share(share: float) -> str:
    """`81%`: a share from 0 to 1 in per cent, as `format_percentage` writes it."""
    return format_percentage(share, 1)


def format_count(count: int) -> str:
    """Return a count of tokens or calls: 999, 12.3k, 1.2M."""
    if count < _THOUSAND:
        return str(count)
    value = count / _THOUSAND
    for unit in ("k", "M"):
        text = f"{value:.1f}"
        if float(text) < _THOUSAND:
            return f"{trimmed(text)}{unit}"
        value /= _THOUSAND
    return f"{trimmed(f'{value:.1f}')}G"


def format_duration(duration_ms: float) -> str:
    """Return a duration: 350 ms, 4.2 s, 1m 05s, 2h 03m."""
    if round(duration_ms) < _THOUSAND:
        return f"{duration_ms:.0f} ms"
    seconds = duration_ms / _THOUSAND
    if float(f"{seconds:.1f}") < _MINUTE_S:
        return f"{seconds:.1f} s"
    return format_clock(seconds)


def format_clock(seconds: float) -> str:
    """Return a duration in whole seconds: 7s, 1m 05s, 2h 03m, 3d 04h."""
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m {rest:02}s"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02}h" if days else f"{hours}h {minutes:02}m"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 test`, `3 tests`; `nouns` for words that do more than add an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def estimated(count: int) -> str:
    """Return an estimated count with two leading digits, never less than it is: `about 790`, `more than 1,000`."""
    unit = 10 ** max(0, len(str(count)) - 2)
    rounded = -(-count // unit) * unit
    return f"about {rounded:,}" if count <= _MOST_TESTS else f"more than {_MOST_TESTS:,}"
