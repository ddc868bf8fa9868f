"""Scores and money as people read them, in every message and report; JSON keeps full precision.

What is printed compares as what was measured: rounding never lies. A leaf module, so that all rooms may use it.
"""

from geval_cli.patterns import compile_later

_DIGITS, _DIGITS_MAX = 2, 9
"""Scores are compared after rounding to nine decimals (GEVAL.md, section 2); more would be dust."""
_LIMIT_DIGITS = 4
"""Thresholds are written by people: shown in full up to here, with at least two decimals."""
_CENT = 0.01
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""The seconds of each unit of time, by the letter that stands for it."""
_AGE = compile_later(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
_MOST_ON_SCALES, _HUNDRED = 10, 100


def seconds_of_age(text: str) -> float | None:
    """Return the seconds of an age such as `30d`; None for what is no age."""
    found = _AGE.fullmatch(text.strip().lower())
    return None if found is None else float(found[1]) * UNIT_S[found[2]]


def format_score(score: float) -> str:
    """Return a score with two decimals, or with more where two would make it look like a full 1 or a plain 0."""
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


def format_cost(cost_usd: float) -> str:
    """US dollars with two decimals from a cent on; below, with as many as show the digits of a small amount."""
    if cost_usd == 0 or cost_usd >= _CENT:
        return f"${cost_usd:.2f}"
    text = trimmed(f"{cost_usd:.6f}", keep=2)
    return "<$0.000001" if float(text) == 0 else f"${text}"


def fixed(value: float, digits: int) -> str:
    """Return a number with so many decimals, and no minus before a plain 0."""
    text = f"{value:.{digits}f}"
    return text[1:] if float(text) == 0 and text.startswith("-") else text


def trimmed(text: str, *, keep: int = 0) -> str:
    """Decimals without zeros at their end, of which `keep` decimals stay."""
    whole, _, decimals = text.partition(".")
    decimals = decimals.rstrip("0").ljust(keep, "0")
    return f"{whole}.{decimals}" if decimals else whole
