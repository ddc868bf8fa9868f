"""Figures as people read them, in every message, report and page; files for programs keep full precision.

What is printed compares as what was measured: rounding never lies. A leaf module, so that all rooms may use it.

    shares       81 %           never 0 or 100 for what is not that
    scores       0.87           thresholds 0.70, or 0.855 where someone wrote that
    money        $12.30  $0.014 two significant digits below a dollar
    durations    340 ms  1.4 s  2 min 5 s
    times        2026-11-23 19:50, local
    counts       12,345; of tokens 12.3k
"""

import math
from datetime import UTC, datetime

from geval_cli.patterns import compile_later

_DIGITS, _DIGITS_MAX = 2, 9
"""Scores are shown with two decimals and compared after rounding to nine, so that no rounding error decides."""
_LIMIT_DIGITS = 4
"""Thresholds are written by people: shown in full up to here, with at least two decimals."""
_LEAST_P, _LEAST_PERCENTS = 0.001, 0.1
_MOST_TESTS = 1_000
"""Estimated numbers of tests have at most three digits: beyond, all that is known is that it takes very many."""
_THOUSAND, _MINUTE_S = 1_000, 60
_CENTS_PLACES = 2
_ALL_OR_NONE = frozenset({0.0, 100.0})
_LEAST_USD = 1e-6
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""The seconds of each unit of time, by the letter that stands for it."""
_AGE = compile_later(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_MOST_ON_SCALES, _HUNDRED = 10, 100


def seconds_of_age(text: str) -> float | None:
    """Return the seconds of an age such as `30d`; None for what is no age."""
    found = _AGE.fullmatch(text.strip().lower())
    return None if found is None else float(found[1]) * UNIT_S[found[2]]


def format_score(score: float | None) -> str:
    """Return a score with two decimals, or with more where two would make it look like a full 1 or a plain 0.

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
    """`if all 20 errors failed`: under what assumption a pass rate beside errors is the least that it can be."""
    which = {1: "the error", 2: "both errors"}.get(errors, f"all {errors:,} errors")
    return f"if {which} failed"


def format_comparison(score: float, threshold: float) -> str:
    """`0.40 < 0.50` or `0.87 ≥ 0.50`, with as many decimals as it takes for the line to be true as printed."""
    left, right = _compared(score, threshold)
    is_below = round(score, _DIGITS_MAX) < round(threshold, _DIGITS_MAX)
    return f"{left} {'<' if is_below else '≥'} {right}"


def format_score_beside(score: float, other: float) -> str:
    """Return a score with as many decimals as it takes to see on which side of `other` it is."""
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
    """Return the share, from 0 to 1, that a text such as `70%` or `70 %` says; None when it is no percentage."""
    number, sign, rest = text.strip().partition("%")
    try:
        share = round(float(number) / 100, _DIGITS_MAX)
    except ValueError:
        return None
    return share if sign and not rest and 0 <= share <= 1 else None


def percent_hint(value: float) -> str:
    """Return the share to write in place of a number up to 100 that was meant in per cent, or "".

    Up to 10 it was rather meant on a scale of ratings.
    """
    return f"write {value / 100:g}" if _MOST_ON_SCALES < value <= _HUNDRED else ""


def format_cost(cost_usd: float | None) -> str:
    """US dollars: `$1,234.50`, below a dollar with two significant digits (`$0.30`, `$0.0041`); `unknown` for None."""
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
    """`0.70`: what someone wrote as a limit of scores, in full up to four decimals."""
    return trimmed(fixed(threshold, _LIMIT_DIGITS), keep=_DIGITS)


def format_rating(rating: float) -> str:
    """`4.25`: a judge's rating on its own scale, with the decimals that keep a broken number from looking whole."""
    digits = next((digits for digits in range(_DIGITS, 6) if not round(rating, digits).is_integer()), 6)
    return trimmed(fixed(rating, digits))


def format_share(share: float) -> str:
    """`81 %`: a share from 0 to 1 in whole per cents, and `0.4 %` or `<0.1 %` where those would be all or none."""
    return f"{_percents(share)} %"


def format_share_beside(share: float, other: float) -> str:
    """Return a share with as many decimals as it takes to see on which side of `other` it is."""
    left, right = round(100 * share, _DIGITS_MAX), round(100 * other, _DIGITS_MAX)
    for digits in range(_DIGITS_MAX + 1):
        shown = float(fixed(left, digits))
        if (
            (shown > right) is (left > right)
            and (shown < right) is (left < right)
            and (shown in _ALL_OR_NONE) is (left in _ALL_OR_NONE)
        ):
            break
    return f"{fixed(left, digits)} %"


def format_percentage(part: float, whole: float) -> str:
    """`81 %`: `part` of `whole`; `n/a` of nothing."""
    return format_share(part / whole) if whole > 0 else "n/a"


def format_share_interval(bounds: tuple[float, float]) -> str:
    """`68 to 96 %`: the bounds of a share. They are estimates, and more digits would claim too much."""
    low, high = _bounds(bounds)
    return f"{low} to {high} %"


def share_bounds(bounds: tuple[float, float]) -> str:
    """`[68–96]`: the bounds of a share behind it, in a table."""  # noqa: RUF002
    low, high = _bounds(bounds)
    return f"[{low}–{high}]"  # noqa: RUF001


def _bounds(bounds: tuple[float, float]) -> tuple[str, str]:
    """Round both; that may widen an interval, but must not leave only 0 or 100 of it."""
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
    """`+20`: a difference of shares in percentage points, with decimals only where whole points would be 0."""
    points = round(100 * difference, _DIGITS_MAX)
    whole = _whole(points)
    if whole == "0":
        return format_difference(points) if points else "0"
    return whole if whole.startswith("-") else f"+{whole}"


def _whole(number: float) -> str:
    """Return a number without decimals, halves away from 0: 97.5 - 45 is 52.5, and 98 - 45 is 53."""
    return fixed(math.copysign(math.floor(abs(round(number, _DIGITS_MAX)) + 0.5), number), 0)


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
    """`340 ms`, `1.4 s`, `2 min 5 s`, `2 h 3 min`, `3 d 4 h`; "" for None."""
    if duration_ms is None:
        return ""
    if round(duration_ms) < _THOUSAND:
        return f"{duration_ms:.0f} ms"
    seconds = duration_ms / _THOUSAND
    return f"{seconds:.1f} s" if float(f"{seconds:.1f}") < _MINUTE_S else format_clock(seconds)


def format_clock(seconds: float) -> str:
    """`7 s`, `1 min 5 s`: a duration in whole seconds, without a second part where that is 0."""
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if parts or count:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(parts[:2]).rstrip() or "0 s"


def format_time(when: str | float) -> str:
    """`2026-11-23 19:50`: a time, in ISO's form or in seconds since 1970, where geval runs; other texts unchanged."""
    try:
        moment = datetime.fromisoformat(when) if isinstance(when, str) else datetime.fromtimestamp(when, UTC)
    except ValueError:
        return str(when)
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


def format_bytes(size: int) -> str:
    """`98.3 MB`: the size of a file."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB"):
        if amount < _THOUSAND:
            break
        amount, unit = amount / _THOUSAND, larger
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 test`, `3 tests`; `nouns` for words that do more than add an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def estimated(count: int) -> str:
    """Return an estimated count with two leading digits, never less than it is: `about 790`, `more than 1,000`."""
    unit = 10 ** max(0, len(str(count)) - 2)
    rounded = -(-count // unit) * unit
    return f"about {rounded:,}" if count <= _MOST_TESTS else f"more than {_MOST_TESTS:,}"


def fixed(value: float, digits: int) -> str:
    """Return a number with so many decimals, and no minus before a plain 0."""
    text = f"{value:.{digits}f}"
    return text[1:] if float(text) == 0 and text.startswith("-") else text


def trimmed(text: str, *, keep: int = 0) -> str:
    """Decimals without zeros at their end, of which `keep` decimals stay."""
    whole, _, decimals = text.partition(".")
    decimals = decimals.rstrip("0").ljust(keep, "0")
    return f"{whole}.{decimals}" if decimals else whole
