"""Figures as people read them, in every message, report and page; files for programs have full precision.

Printed figures compare as the measured ones do: rounding must not mislead. A leaf module, so any folder may use it.

    shares       81 %           never 0 or 100 unless exact
    scores       0.87           thresholds 0.70, or 0.855 if written that way
    money        $12.30  $0.014 two significant digits below a dollar
    durations    340 ms  1.4 s  2 min 5 s
    times        2026-11-23 19:50, local
    counts       12,345; for tokens 12.3k
"""

import math
from datetime import UTC, datetime

from geval_cli.patterns import compile_later

_DIGITS, _DIGITS_MAX = 2, 9
"""Scores are shown with two decimals, and compared after rounding to nine, so that no rounding error decides."""
_LIMIT_DIGITS = 4
"""Thresholds are written by people, so they are shown in full up to this many decimals, with at least two."""
_LEAST_P, _SIGNIFICANT_P, _P_DIGITS, _LEAST_PERCENTS = 0.001, 0.05, 3, 0.1
_MOST_TESTS = 1_000
"""Estimated numbers of tests are shown only up to this: all that is certain beyond is that it takes very many."""
_THOUSAND, _MINUTE_S = 1_000, 60
_CENTS_PLACES = 2
_ALL_OR_NONE = frozenset({0.0, 100.0})
SCORE_ENDS = frozenset({0.0, 1.0})
_LEAST_USD = 1e-6
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""The seconds in each unit of time, by the letter for the unit."""
_AGE = compile_later(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_MOST_ON_SCALES, _HUNDRED = 10, 100


def seconds_of_age(text: str) -> float | None:
    """Return an age such as `30d` in seconds, or None for anything else."""
    found = _AGE.fullmatch(text.strip().lower())
    return None if found is None else float(found[1]) * UNIT_S[found[2]]


def format_score(score: float | None) -> str:
    """Return a score with two decimals, or with more if it would otherwise look like exactly 0 or 1.

    None is `none`.
    """
    if score is None:
        return "none"
    value = round(score, _DIGITS_MAX)
    for digits in range(_DIGITS, _DIGITS_MAX + 1):
        rounded = round(value, digits)
        if rounded == value or rounded not in {0.0, 1.0}:
            return fixed(value, digits)
    return fixed(value, _DIGITS_MAX)


def errors_failed(errors: int) -> str:
    """Return the assumption under which a pass rate with errors is the lowest possible: `if all 20 errors failed`."""
    which = {1: "the error", 2: "both errors"}.get(errors, f"all {errors:,} errors")
    return f"if {which} failed"


def format_comparison(score: float, threshold: float) -> str:
    """Return `0.40 < 0.50` or `0.87 ≥ 0.50`, with as many decimals as needed for the printed comparison to be true."""
    left, right = _compared(score, threshold)
    is_below = round(score, _DIGITS_MAX) < round(threshold, _DIGITS_MAX)
    return f"{left} {'<' if is_below else '≥'} {right}"


def format_score_beside(score: float, other: float) -> str:
    """Return a score with as many decimals as needed to see on which side of `other` it is."""
    return _compared(score, other)[0]


def _compared(score: float, threshold: float) -> tuple[str, str]:
    value, limit = round(score, _DIGITS_MAX), round(threshold, _DIGITS_MAX)
    is_below = value < limit
    left = right = ""
    for digits in range(_DIGITS, _DIGITS_MAX + 1):
        left = format_score(value) if digits == _DIGITS else fixed(value, digits)
        right = trimmed(fixed(limit, max(digits, _LIMIT_DIGITS)), keep=_DIGITS)
        if (float(left) < float(right)) is is_below:
            break
    return left, right


def share_of_percentage(text: str) -> float | None:
    """Return a percentage such as `70%` or `70 %` as a share from 0 to 1; None for any other text."""
    number, sign, rest = text.strip().partition("%")
    try:
        share = round(float(number) / 100, _DIGITS_MAX)
    except ValueError:
        return None
    return share if sign and not rest and 0 <= share <= 1 else None


def percent_hint(value: float) -> str:
    """Return a hint with the share to write instead of a number up to 100 that was meant as a percentage, or "".

    A number up to 10 is more likely meant on a rating scale.
    """
    return f"write {value / 100:g}" if _MOST_ON_SCALES < value <= _HUNDRED else ""


def format_cost(cost_usd: float | None) -> str:
    """Return US dollars: `$1,234.50`, below a dollar with two significant digits (`$0.0041`); `unknown` for None."""
    if cost_usd is None:
        return "unknown"
    if cost_usd < 0:
        return f"-{format_cost(-cost_usd)}"
    if 0 < cost_usd < _LEAST_USD:
        return f"<${_LEAST_USD:.6f}"
    places = _CENTS_PLACES
    if 0 < cost_usd < 1:
        places = max(places, 1 - math.floor(math.log10(cost_usd)))
        places = max(_CENTS_PLACES, 1 - math.floor(math.log10(round(cost_usd, places))))
    return f"${cost_usd:,.{places}f}"


def format_threshold(threshold: float) -> str:
    """Return a limit on scores that a person wrote, in full up to four decimals: `0.70`."""
    return trimmed(fixed(threshold, _LIMIT_DIGITS), keep=_DIGITS)


def format_rating(rating: float) -> str:
    """Return a rating on the judge's scale, with enough decimals for a fraction not to look whole: `4.25`."""
    digits = next((digits for digits in range(_DIGITS, 6) if not round(rating, digits).is_integer()), 6)
    return trimmed(fixed(rating, digits))


def format_share(share: float) -> str:
    """Return a share from 0 to 1 in whole per cent, `81 %`, or as `0.4 %` or `<0.1 %` to avoid a false 0 or 100."""
    return f"{_percents(share)} %"


def format_share_beside(share: float, other: float) -> str:
    """Return a share with as many decimals as needed to see on which side of `other` it is."""
    percents = 100 * share
    return f"{fixed(percents, digits_beside(percents, 100 * other, 0, _ALL_OR_NONE))} %"


def digits_beside(value: float, other: float, least: int, ends: frozenset[float] = frozenset()) -> int:
    """Return with how many decimals, at least `least`, a value looks as far above, below or at `other` as it is.

    It looks like one of the `ends` only if it is.
    """
    left, right = round(value, _DIGITS_MAX), round(other, _DIGITS_MAX)
    for digits in range(least, _DIGITS_MAX):
        shown = float(fixed(left, digits))
        if (shown > right, shown < right, shown in ends) == (left > right, left < right, left in ends):
            return digits
    return _DIGITS_MAX


def format_percentage(part: float, whole: float) -> str:
    """Return `part` of `whole` as a percentage, `81 %`; `n/a` if `whole` is 0."""
    return format_share(part / whole) if whole > 0 else "n/a"


def format_share_interval(bounds: tuple[float, float]) -> str:
    """Return the bounds of a share, `68 to 96 %`. They are estimates, and more digits would claim too much."""
    low, high = _bounds(bounds)
    return f"{low} to {high} %"


def share_bounds(bounds: tuple[float, float]) -> str:
    """Return the bounds of a share, for a table cell after the share itself: `[68–96]`."""  # noqa: RUF002
    low, high = _bounds(bounds)
    return f"[{low}–{high}]"  # noqa: RUF001


def _bounds(bounds: tuple[float, float]) -> tuple[str, str]:
    """Round both bounds; that may widen an interval, but must not reduce it to just 0 or 100."""
    low, high = (_whole(100 * bound) for bound in bounds)
    return _percents(bounds[0]) if low == "100" else low, _percents(bounds[1]) if high == "0" else high


def _percents(share: float) -> str:
    percents = round(100 * share, _DIGITS_MAX)
    text = _whole(percents)
    if percents in _ALL_OR_NONE or text not in {"0", "100"}:
        return text
    if _LEAST_PERCENTS <= percents <= 100 - _LEAST_PERCENTS:
        return fixed(percents, 1)
    return f"<{_LEAST_PERCENTS}" if text == "0" else f">{100 - _LEAST_PERCENTS}"


def format_points(difference: float) -> str:
    """Return a difference of shares in percentage points (`+20`), with decimals only if it would round to 0."""
    points = round(100 * difference, _DIGITS_MAX)
    whole = _whole(points)
    if whole == "0":
        return format_difference(points) if points else "0"
    return whole if whole.startswith("-") else f"+{whole}"


def _whole(number: float) -> str:
    """Return a number rounded to a whole one, halves away from 0: 97.5 - 45 = 52.5 then shows as 98 - 45 = 53."""
    return fixed(math.copysign(math.floor(abs(round(number, _DIGITS_MAX)) + 0.5), number), 0)


def format_interval(bounds: tuple[float, float]) -> str:
    """Return two bounds with two decimals, `0.41 to 0.68`. They are estimates, and more digits would claim too much."""
    low, high = bounds
    return f"{fixed(low, _DIGITS)} to {fixed(high, _DIGITS)}"


def format_difference(value: float) -> str:
    """Return a difference with two decimals (`+0.07`), or as many as show its sign; `0.00` below a billionth."""
    value = round(value, _DIGITS_MAX)
    for digits in range(_DIGITS, _DIGITS_MAX + 1):
        if round(value, digits):
            return f"{value:+.{digits}f}"
    return "0.00"


def format_p(p: float) -> str:
    """Return a p-value with three decimals (`0.048`), or as many as show its side of 0.05; `<0.001` below that."""
    return f"<{_LEAST_P}" if p < _LEAST_P else fixed(p, digits_beside(p, _SIGNIFICANT_P, _P_DIGITS))


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


def format_duration(duration_ms: float | None) -> str:
    """Return a duration: `340 ms`, `1.4 s`, `2 min 5 s`, `2 h 3 min`, `3 d 4 h`; "" for None."""
    if duration_ms is None:
        return ""
    if round(duration_ms) < _THOUSAND:
        return f"{duration_ms:.0f} ms"
    seconds = duration_ms / _THOUSAND
    return f"{seconds:.1f} s" if float(f"{seconds:.1f}") < _MINUTE_S else format_clock(seconds)


def format_clock(seconds: float) -> str:
    """Return a duration in whole seconds, without a second unit if that is 0: `7 s`, `1 min 5 s`."""
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if parts or count:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(parts[:2]).rstrip() or "0 s"


def format_time(when: str | float) -> str:
    """Return an ISO time or seconds since 1970 as local time, `2026-11-23 19:50`; other texts are unchanged."""
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else datetime.fromtimestamp(when, UTC)
    except ValueError:
        return str(when)
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


def format_bytes(size: int) -> str:
    """Return the size of a file: `98.3 MB`."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB"):
        if amount < _THOUSAND:
            break
        amount, unit = amount / _THOUSAND, larger
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun, `1 test`, `3 tests`; `nouns` is for irregular plurals."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def estimated(count: int) -> str:
    """Return an estimated count, rounded up to two leading digits: `about 790`, `more than 1,000`."""
    unit = 10 ** max(0, len(str(count)) - 2)
    rounded = -(-count // unit) * unit
    return f"about {rounded:,}" if count <= _MOST_TESTS else f"more than {_MOST_TESTS:,}"


def fixed(value: float, digits: int) -> str:
    """Return a number with exactly `digits` decimals, and never `-0`."""
    text = f"{value:.{digits}f}"
    return text[1:] if float(text) == 0 and text.startswith("-") else text


def trimmed(text: str, *, keep: int = 0) -> str:
    """Return a number without trailing zeros in its decimals, but with at least `keep` decimals."""
    whole, _, decimals = text.partition(".")
    decimals = decimals.rstrip("0").ljust(keep, "0")
    return f"{whole}.{decimals}" if decimals else whole
