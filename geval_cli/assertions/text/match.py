"""contains, icontains, starts-with, ends-with, regex: the output's text against one expected text."""

import asyncio
import re
from collections.abc import Callable

import regex
from msgspec import Struct
from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Subject, Tools
from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.assertions.patterns import is_found
from geval_cli.assertions.values import as_text
from geval_cli.errors import Problem, Severity
from geval_cli.specs.dialect import DialectRules

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
    """Return whether JavaScript knows every kind of group in a pattern: not `(?i)`, `(?P<name>...)` or `(?>...)`."""
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
    """Return the translated start of a class, the next position, and whether that is inside of the class."""
    if pattern.startswith("[^]", place):
        return r"[\s\S]", place + 3, False
    if pattern.startswith("[]", place):
        return "(?!)", place + 2, False
    start = "[^" if pattern.startswith("[^", place) else "["
    return start, place + len(start), True


def _escape(pattern: str, place: int, *, in_class: bool) -> tuple[str, int]:
    """Return the translation of the escape whose second character is at `place`, and the next position."""
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


class TextComparison(Struct, frozen=True):
    """How a type compares (output, expected), and how its reason says that it holds or not."""

    holds: Callable[[str, str], bool]
    does: str
    does_not: str


COMPARISONS: dict[str, TextComparison] = {
    "contains": TextComparison(lambda text, value: value in text, "contains", "does not contain"),
    "icontains": TextComparison(
        lambda text, value: value.casefold() in text.casefold(),
        "contains, in any case,",
        "does not contain, in any case,",
    ),
    "starts-with": TextComparison(str.startswith, "starts with", "does not start with"),
    "ends-with": TextComparison(str.endswith, "ends with", "does not end with"),
    "regex": TextComparison(lambda text, value: is_found(value, text), "matches", "does not match"),
}


class TextAssertion(Assertion):
    """contains, icontains, starts-with, ends-with, regex: the output against one text, itself a template."""

    value_form = "text"

    value: str | int | float | bool = Field(description="What to look for; a template.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of one text assertion in one test: broken templates, a pattern that does not compile."""
        location = self.place.value("value")
        problems: list[Problem] = []
        value = context.render(as_text(self.value), location, problems)
        if value is not None and self.base_type == "regex":
            if not _is_known(value, context.rules):
                hint = "JavaScript has no such group: write (?i:...) or [Aa] instead of (?i), (?<name>...) for a name"
                message = "this pattern is none in JavaScript, so that the assertion fails"
                problems.append(Problem(message, location, hint, severity=Severity.WARNING))
                return problems
            try:
                regex.compile(_pattern(value, context.rules))
            except regex.error as error:
                problems.append(
                    Problem(f"broken regular expression: {error}", location, "this does not compile")
                )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the output with the rendered `value`."""
        value = tools.templates.render(as_text(self.value), subject.test.variables)
        comparison = COMPARISONS[self.base_type]
        if self.base_type == "regex":  # in a thread: it may take long on an output that nobody foresaw
            if not _is_known(value, tools.rules):  # it fails under `not-` too
                return Outcome.of(self.is_negated, f'"{shortened(value)}" is no pattern in JavaScript')
            pattern = _pattern(value, tools.rules)
            passed = await asyncio.to_thread(comparison.holds, subject.text, pattern)
        else:
            passed = comparison.holds(subject.text, value)
        does = comparison.does if passed else comparison.does_not
        return Outcome.of(passed, f'the output {does} "{shortened(value)}"')


def _is_known(value: str, rules: DialectRules) -> bool:
    return rules.patterns == "python" or is_javascript_pattern(value)


def _pattern(value: str, rules: DialectRules) -> str:
    return value if rules.patterns == "python" else python_pattern(value)
