"""Numbers as people read them, rounded without lying: what is printed compares as what was measured."""

_DIGITS, _DIGITS_MAX = 2, 9
"""Scores are compared after rounding to nine decimals (GEVAL.md, section 2); more would be dust."""
_LIMIT_DIGITS = 4
"""Thresholds are written by people: shown in full up to here, with at least two decimals."""
_THOUSAND = 1_000
_MINUTE_S = 60


def format_score(score: float) -> str:
    """A score with two decimals, or with more where two would make it look like a full 1 or a plain 0."""
    value = round(score, _DIGITS_MAX)
    for digits in range(_DIGITS, _DIGITS_MAX + 1):
        rounded = round(value, digits)
        if rounded == value or rounded not in {0.0, 1.0}:
            return _fixed(value, digits)
    return _fixed(value, _DIGITS_MAX)


def format_comparison(score: float, threshold: float) -> str:
    """`0.40 < 0.50` or `0.87 ≥ 0.50`, with as many decimals as it takes for the line to be true as printed."""
    value, limit = round(score, _DIGITS_MAX), round(threshold, _DIGITS_MAX)
    is_below = value < limit
    for digits in range(_DIGITS, _DIGITS_MAX + 1):
        left = format_score(value) if digits == _DIGITS else _fixed(value, digits)
        right = _trimmed(_fixed(limit, max(digits, _LIMIT_DIGITS)), keep=_DIGITS)
        if (float(left) < float(right)) is is_below:
            break
    return f"{left} {'<' if is_below else '≥'} {right}"


def format_interval(bounds: tuple[float, float]) -> str:
    """`0.41 to 0.68`: both bounds with two decimals. They are estimates, and more digits would claim too much."""
    low, high = bounds
    return f"{_fixed(low, _DIGITS)} to {_fixed(high, _DIGITS)}"


def format_percentage(part: float, whole: float) -> str:
    """`part` of `whole` in per cent; "100%" only when nothing is missing and "0%" only when nothing is there."""
    if whole <= 0:
        return "n/a"
    share = 100 * part / whole
    for digits in range(1, _DIGITS_MAX + 1):
        text = _trimmed(f"{share:.{digits}f}")
        if (text == "100") == (part == whole) and (text == "0") == (part == 0):
            return f"{text}%"
    return "<100%" if part > whole / 2 else ">0%"


def format_count(count: int) -> str:
    """A count of tokens or calls: 999, 12.3k, 1.2M."""
    if count < _THOUSAND:
        return str(count)
    value = count / _THOUSAND
    for unit in ("k", "M"):
        text = f"{value:.1f}"
        if float(text) < _THOUSAND:
            return f"{_trimmed(text)}{unit}"
        value /= _THOUSAND
    return f"{_trimmed(f'{value:.1f}')}G"


def format_duration(duration_ms: float) -> str:
    """A duration: 350 ms, 4.2 s, 1m 05s, 2h 03m."""
    if round(duration_ms) < _THOUSAND:
        return f"{duration_ms:.0f} ms"
    seconds = duration_ms / _THOUSAND
    if float(f"{seconds:.1f}") < _MINUTE_S:
        return f"{seconds:.1f} s"
    return format_clock(seconds)


def format_clock(seconds: float) -> str:
    """A duration in whole seconds: 7s, 1m 05s, 2h 03m, 3d 04h."""
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m {rest:02}s"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02}h" if days else f"{hours}h {minutes:02}m"


def format_cost(cost_usd: float) -> str:
    """US dollars with two decimals, or with as many as show the first two digits of a small amount."""
    if cost_usd == 0 or cost_usd >= 1:
        return f"${cost_usd:.2f}"
    text = _trimmed(f"{cost_usd:.6f}", keep=2)
    return "<$0.000001" if float(text) == 0 else f"${text}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 test`, `3 tests`; `nouns` for words that do more than add an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text[1:] if float(text) == 0 and text.startswith("-") else text


def _trimmed(text: str, *, keep: int = 0) -> str:
    whole, _, decimals = text.partition(".")
    decimals = decimals.rstrip("0").ljust(keep, "0")
    return f"{whole}.{decimals}" if decimals else whole
