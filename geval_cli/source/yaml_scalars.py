"""Which value a YAML scalar stands for, by the core schema of YAML 1.2 (section 10.3 of the specification).

So `no`, `Yes` and `on` are text, `012` is 12, `0o14` is 12, `12:30` and `2024-01-01` are text.
"""

import math
import re

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBER_STARTS = frozenset("0123456789+-.")
# Python refuses to read whole numbers of more than 4,300 digits, since that takes quadratic time.
_MAX_DIGITS = 4000
_MAX_BITS = 13_287  # the most that 4,000 digits have

TAG_PREFIX = "tag:yaml.org,2002:"


class ScalarError(ValueError):
    """The scalar has no value that JSON could keep, or is not what its tag says. The message is a sentence."""


def resolve_plain(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar without a tag.

    Raises:
        ScalarError: infinite, not a number, or too long to be one.
    """
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    return _resolve_number(text) if text[0] in _NUMBER_STARTS else text


def resolve_tagged(text: str, tag: str) -> str | int | float | bool | None:
    """Return the value of a scalar with one of the core tags (`!!str`, `!!int`, `!!float`, `!!bool`, `!!null`).

    Raises:
        ScalarError: the text is not of that kind, or the tag is none of these.
    """
    kind = tag.removeprefix(TAG_PREFIX)
    if kind == "str":
        return text
    value = resolve_plain(text)
    if kind == "float" and type(value) is int:
        return float(value)
    expected = {"int": int, "float": float, "bool": bool, "null": type(None)}.get(kind)
    if expected is None:
        raise ScalarError(f"the tag `!!{kind}` is not supported")
    if type(value) is not expected:
        raise ScalarError(f"this value does not match its tag `!!{kind}`")
    return value


def _resolve_number(text: str) -> str | int | float:
    if len(text) > _MAX_DIGITS and _FLOAT.fullmatch(text):
        raise ScalarError(f"this number has more than {_MAX_DIGITS} digits")
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
        whole = int(text, 0)
        if whole.bit_length() > _MAX_BITS:  # it can be read, and not be written as digits again
            raise ScalarError(f"this number has more than {_MAX_DIGITS} digits")
        return whole
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError(f"`{text}` is not a finite number")
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if not math.isfinite(number):
        raise ScalarError("this number is too large")
    return number
