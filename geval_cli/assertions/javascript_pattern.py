"""Regular expressions as JavaScript reads them, written so that Python's `regex` finds the same."""

import re

_WORD = "A-Za-z0-9_"
_IN_CLASS = {"d": "0-9", "w": _WORD}
_ALONE = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": f"[{_WORD}]",
    "W": f"[^{_WORD}]",
    "b": f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))",
    "B": f"(?:(?<=[{_WORD}])(?=[{_WORD}])|(?<![{_WORD}])(?![{_WORD}]))",
}
_SAME = frozenset("DWsSfnrtvb0123456789")
_HEXADECIMAL = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")
_CONTROL = re.compile(r"c[A-Za-z]")
_NAMED = re.compile(r"k<([A-Za-z_]\w*)>")
_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_FOREIGN_GROUP = re.compile(r"\(\?(?![:=!]|<[=!A-Za-z_$]|[ims]+(?:-[ims]*)?:|-[ims]+:)")
_PLAIN = {".": r"[^\n\r\u2028\u2029]", "$": r"\Z"}


def is_javascript_pattern(pattern: str) -> bool:
    """Whether JavaScript knows every kind of group in a pattern: not `(?i)`, `(?P<name>...)` or `(?>...)`."""
    return _FOREIGN_GROUP.search(_ESCAPED.sub("", pattern)) is None


def python_pattern(pattern: str) -> str:
    r"""The pattern for the module `regex` that matches what `new RegExp(pattern)` matches in JavaScript.

    Digits and words are ASCII, `$` is the very end, `.` stops at every line break, and escapes that JavaScript does not
    know are the characters themselves. What is broken stays so.
    """
    parts: list[str] = []
    place, in_class = 0, False
    while place < len(pattern):
        sign = pattern[place]
        if sign == "\\":
            written, place = _escape(pattern, place + 1, in_class=in_class)
        elif in_class:
            in_class = sign != "]"
            is_sign = sign == "-" and parts[-1] in _IN_CLASS.values()  # no range begins with many characters
            written, place = (rf"\{sign}" if sign == "[" or is_sign else sign), place + 1
        elif sign == "[":
            written, place, in_class = _class_start(pattern, place)
        elif sign == "{" and not _COUNT.match(pattern, place):
            written, place = r"\{", place + 1
        else:
            written, place = _PLAIN.get(sign, sign), place + 1
        parts.append(written)
    return "".join(parts)


def _class_start(pattern: str, place: int) -> tuple[str, int, bool]:
    """How a class begins, where what follows it begins, and whether that is inside of the class."""
    if pattern.startswith("[^]", place):
        return r"[\s\S]", place + 3, False
    if pattern.startswith("[]", place):
        return "(?!)", place + 2, False
    start = "[^" if pattern.startswith("[^", place) else "["
    return start, place + len(start), True


def _escape(pattern: str, place: int, *, in_class: bool) -> tuple[str, int]:
    """What stands for the escape whose second character is at `place`, and where the next part begins."""
    letter = pattern[place : place + 1]
    known = _IN_CLASS if in_class else _ALONE
    if letter in known:
        return known[letter], place + 1
    if found := _HEXADECIMAL.match(pattern, place):
        return f"\\{found[0]}", found.end()
    if found := _CONTROL.match(pattern, place):
        return f"\\x{ord(found[0][1]) % 32:02x}", found.end()
    if found := None if in_class else _NAMED.match(pattern, place):
        return f"(?P={found[1]})", found.end()
    is_letter = letter.isascii() and letter.isalpha()
    return (letter if is_letter and letter not in _SAME else f"\\{letter}"), place + 1
