"""Assertions on the text of an output: contains, equals, regex and the like, and word-count."""

import asyncio
import re
import unicodedata
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import regex
from msgspec import Struct
from pydantic import Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    MergedTest,
    Outcome,
    Subject,
    Tools,
    ValueRules,
    VariableText,
    as_text,
    check_texts,
    compact_json,
    filled,
    listed,
    render_deep,
    rendered_texts,
    shortened,
    variable_data,
)
from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.assertions.patterns import compiled, is_found
from geval_cli.errors import Location, Problem, Severity
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import DialectRules
from geval_cli.templating import Templates, is_template

Item = str | int | float | bool
_WORD = "A-Za-z0-9_"
_SPACE = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    r"\u3001-\ufefe\uff00-\U0010ffff"
)
_IN_CLASS = {
    "d": "0-9", "D": r"\x00-/:-\U0010ffff", "w": _WORD, "W": r"\x00-/:-@\[-\^`{-\U0010ffff",
    "s": _SPACE, "S": _NO_SPACE,
}  # fmt: skip
_ALONE = {
    **{letter: f"[{signs}]" for letter, signs in _IN_CLASS.items()},
    "b": f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))",
    "B": f"(?:(?<=[{_WORD}])(?=[{_WORD}])|(?<![{_WORD}])(?![{_WORD}]))",
}
_SAME = frozenset("fnrtvb0123456789")
_HEXADECIMAL = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")
_CONTROL = re.compile(r"c[A-Za-z]")
_UNICODE = re.compile(r"\\(?:[pP]\{[^{}]+\}|u\{(0*(?:10)?[0-9a-fA-F]{1,5})\})")
_NAMED = re.compile(r"k<([A-Za-z_]\w*)>")
_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?", re.DOTALL)
_FOREIGN_GROUP = re.compile(r"\(\?(?![:=!]|<[=!A-Za-z_$]|[ims]+(?:-[ims]*)?:|-[ims]+:)")
_PLAIN = {".": r"[^\n\r\u2028\u2029]", "$": r"\Z"}


class TextListAssertion(Assertion):
    """contains-all, contains-any and their case-insensitive forms: the output contains all or any of the texts."""

    value_form = "texts"

    value: Item | tuple[Item, ...] = Field(
        description="The texts to find: a list of templates, or comma-separated text."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the expected texts: none is given, a template is broken, or a text is empty."""
        problems: list[Problem] = []
        if not check_texts(self.value, self.place.child("value"), context, problems):
            return problems
        expected, place = _expected_texts(self, context.test, context.templates), self.place.value("value")
        if not expected:
            message = f"{self.base_type} has nothing to look for ({context.where})"
            problems.append(Problem(message, place, "list at least one text in `value`"))
        elif "" in expected and (self.base_type.endswith("-any") or not any(expected)):
            problems.append(_always(self, place, context))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Look for every text; the reason names those that are missing, or those that were found."""
        expected = _expected_texts(self, subject.test, tools.templates)
        ignores_case = self.base_type.startswith("i")
        folded = _folding(tools.rules, ignores_case=ignores_case)
        output = folded(subject.text)
        missing = [text for text in expected if folded(text) not in output]
        case = _ANY_CASE if ignores_case else ""
        if self.base_type.endswith("-all"):
            if missing:
                return Outcome.of(False, f"the output does not contain {listed(missing)}{case}")
            return Outcome.of(True, f"the output contains all of {listed(expected)}{case}")
        found = [text for text in expected if text not in missing]
        if found:
            return Outcome.of(True, f"the output contains {listed(found)}{case}")
        return Outcome.of(False, f"the output contains none of {listed(expected)}{case}")


def _always(
    spec: Assertion, place: Location | None, context: CheckContext, *, is_pattern: bool = False
) -> Problem:
    """Return a warning that an assertion finds the empty text, so that its verdict is the same for every output."""
    found = "its pattern matches the empty text too"
    hint = "make a part of it required, as in `a+` for `a*`, or anchor it with ^ and $"
    if not is_pattern:
        found, hint = "every output has the empty text that it looks for", "give it a text, or leave it out"
    message = f"{spec.type} always {'fails' if spec.is_negated else 'passes'} ({context.where}): {found}"
    return Problem(message, place, hint, severity=Severity.WARNING)


def _expected_texts(spec: TextListAssertion, test: MergedTest, templates: Templates) -> list[str]:
    return rendered_texts(spec.value, test, templates, split=True)


class EqualsAssertion(Assertion):
    """equals: the output is exactly this text or, for a list, a mapping or 1.5, this JSON value."""

    value_form = "data"
    value_may_be_null = True

    value: Any = Field(description="The expected output; texts are templates. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the templates in `value`, in one test."""
        problems: list[Problem] = []
        where = self.place.value("value")
        expected_data(self.value, lambda text: context.render(text, where, problems) or "", context.rules)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare with the rendered `value`: texts character by character, lists, mappings and 1.50 as JSON."""
        held = (
            variable_data(self.value, subject.test, tools.templates) if isinstance(self.value, str) else None
        )
        if held is None and not isinstance(self.value, dict | list | float) and self.value is not None:
            expected = tools.templates.render(as_text(self.value), subject.test.variables)
            nearly = _nearly(str.__eq__, subject.text, expected, "is")
            return _outcome(subject.text == expected, expected, nearly)
        render = partial(filled, test=subject.test, templates=tools.templates)
        value = expected_data(self.value, render, tools.rules) if held is None else held
        try:
            found = parse_strict_json(subject.text)
        except ValueError:
            return _outcome(False, compact_json(value))
        return _outcome(is_same_json(found, value), compact_json(value))


def expected_data(value: JsonValue, render: Callable[[str], str], rules: DialectRules) -> JsonValue:
    """Return `value` rendered: every text in it, or only the items of a list, depending on the dialect."""
    if rules.renders_mappings:
        return render_deep(value, render)
    if isinstance(value, list):
        return [render(item) if isinstance(item, str) else item for item in value]
    return render(value) if isinstance(value, str) else value


def is_same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether a value equals the expected one as JSON: 1 equals 1.0, true is not 1, key order is ignored."""
    if isinstance(other, VariableText) and is_same_json(one, other.held):
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    return bool(one == other)


def _outcome(passed: bool, expected: str, nearly: str = "") -> Outcome:
    does = "equals" if passed else "is not equal to"
    return Outcome.of(passed, f'the output {does} "{shortened(expected)}"{"" if passed else nearly}')


def _nearly(holds: Callable[[str, str], bool], output: str, value: str, does: str) -> str:
    """Return a note for a comparison that fails only by what a reader cannot see: white space or accent encoding."""
    seen = (" ".join(unicodedata.normalize("NFC", text).split()) for text in (output, value))
    return f"; apart from white space and the encoding of accents, it {does}" if holds(*seen) else ""


def is_javascript_pattern(pattern: str) -> bool:
    """Return whether JavaScript supports every group in a pattern: not `(?i)`, `(?P<name>...)` or `(?>...)`."""
    return _FOREIGN_GROUP.search(_ESCAPED.sub("", pattern)) is None


def python_pattern(pattern: str, *, is_unicode: bool = False) -> str:
    r"""Return the pattern for the module `regex` that matches what `new RegExp(pattern)` matches in JavaScript.

    Digits and word characters are ASCII, `$` is the very end, `.` stops at every line break, and escapes unknown to
    JavaScript stand for the characters themselves. A broken pattern stays broken. `is_unicode` is JavaScript's flag
    `u`, under which `\p{L}` and `\u{e9}` stand for characters.
    """
    parts: list[str] = []
    place, in_class = 0, False
    while place < len(pattern):
        sign = pattern[place]
        if sign == "\\":
            found = _UNICODE.match(pattern, place) if is_unicode else None
            if found is None:
                written, place = _escape(pattern, place + 1, in_class=in_class)
            else:
                written, place = re.escape(chr(int(found[1], 16))) if found[1] else found[0], found.end()
        elif in_class:
            in_class = sign != "]"
            # \d or \w cannot begin or end a range, so the dash is literal.
            is_before = any(pattern.startswith(f"\\{letter}", place + 1) for letter in _IN_CLASS)
            is_sign = sign == "-" and (is_before or parts[-1] in _IN_CLASS.values())
            written, place = (rf"\{sign}" if sign == "[" or is_sign else sign), place + 1
        elif sign == "[":
            # `[^]` matches everything in JavaScript, and `[]` nothing.
            if pattern.startswith("[^]", place):
                written, place, in_class = r"[\s\S]", place + 3, False
            elif pattern.startswith("[]", place):
                written, place, in_class = "(?!)", place + 2, False
            else:
                start = "[^" if pattern.startswith("[^", place) else "["
                written, place, in_class = start, place + len(start), True
        elif sign == "{" and not _COUNT.match(pattern, place):
            written, place = r"\{", place + 1
        else:
            written, place = _PLAIN.get(sign, sign), place + 1
        parts.append(written)
    return "".join(parts)


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


_ZERO_WIDTH = re.compile(r"[\^$]|\\[bBmMAZzG]|\(\?<?[=!]|\(\?\(")
"""Anchors, boundaries, lookarounds and conditions: a pattern without any that matches "" matches every output."""
_ANY_CASE = " (case-insensitive)"


class TextComparison(Struct, frozen=True):
    """How a type compares (output, expected), and how its reason says whether it holds."""

    holds: Callable[[str, str], bool]
    does: str
    does_not: str
    remark: str = ""


COMPARISONS: dict[str, TextComparison] = {
    "contains": TextComparison(lambda text, value: value in text, "contains", "does not contain"),
    "icontains": TextComparison(lambda text, value: value in text, "contains", "does not contain", _ANY_CASE),
    "starts-with": TextComparison(str.startswith, "starts with", "does not start with"),
    "ends-with": TextComparison(str.endswith, "ends with", "does not end with"),
    "regex": TextComparison(lambda text, value: is_found(value, text), "matches", "does not match"),
}


class TextAssertion(Assertion):
    """contains, icontains, starts-with, ends-with, regex: the output matches the text or pattern."""

    value_form = "text"

    value: str | int | float | bool = Field(description="The text or pattern to find; a template.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of one text assertion in one test: broken templates, a pattern that does not compile."""
        text = as_text(self.value)
        if text and self.base_type != "regex" and not is_template(text):
            return []
        location = self.place.value("value")
        problems: list[Problem] = []
        value = context.render(text, location, problems)
        if value == "":
            return [_always(self, location, context)]
        held = variable_data(text, context.test, context.templates)
        if held is not None:
            what = "list" if isinstance(held, list) else "mapping"
            message = f"{self.type} looks for a {what}, written as JSON ({context.where})"
            hint = "name one of its texts"
            if self.base_type.endswith("contains"):
                hint = f"use `{self.type}-any` or `{self.type}-all`, or {hint}"
            problems.append(Problem(message, location, hint, severity=Severity.WARNING))
        if value is not None and self.base_type == "regex":
            if not _is_known(value, context.rules):
                hint = "write (?i:...) or [Aa] instead of (?i), and (?<name>...) for a named group"
                message = "JavaScript cannot compile this pattern, so the assertion fails"
                problems.append(Problem(message, location, hint, severity=Severity.WARNING))
                return problems
            try:
                matches_empty = compiled(_pattern(value, context.rules)).match("") is not None
            except regex.error as error:
                problems.append(
                    Problem(f"broken regular expression: {error}", location, "this does not compile")
                )
                return problems
            if matches_empty and not _ZERO_WIDTH.search(value):
                problems.append(_always(self, location, context, is_pattern=True))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the output with the rendered `value`."""
        value = tools.templates.render(as_text(self.value), subject.test.variables)
        comparison = COMPARISONS[self.base_type]
        if self.base_type == "regex":  # in a thread: it may take long on an unforeseen output
            if not _is_known(value, tools.rules):  # it fails under `not-` too
                return Outcome.of(self.is_negated, f'"{shortened(value)}" is not a valid JavaScript pattern')
            pattern = _pattern(value, tools.rules)
            passed = await asyncio.to_thread(comparison.holds, subject.text, pattern)
        else:
            folded = _folding(tools.rules, ignores_case=self.base_type == "icontains")
            passed = comparison.holds(folded(subject.text), folded(value))
        does, remark = comparison.does if passed else comparison.does_not, comparison.remark
        if not passed and self.base_type != "regex":
            remark += _nearly(comparison.holds, folded(subject.text), folded(value), "does")
        return Outcome.of(passed, f'the output {does} "{shortened(value)}"{remark}')


def _folding(rules: DialectRules, *, ignores_case: bool) -> Callable[[str], str]:
    if not rules.folds_case:
        return str.lower if ignores_case else str
    return _without_case if ignores_case else partial(unicodedata.normalize, "NFC")


def _without_case(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold()).replace("i\u0307", "i")  # the Turkish İ is an i


def _is_known(value: str, rules: DialectRules) -> bool:
    return rules.patterns == "python" or is_javascript_pattern(value)


def _pattern(value: str, rules: DialectRules) -> str:
    return value if rules.patterns == "python" else python_pattern(value)


class WordRange(ValueRules):
    """The minimum and maximum number of words."""

    min: Annotated[int, Field(ge=0)] | None = Field(None, description="The smallest passing number of words.")
    max: Annotated[int, Field(ge=0)] | None = Field(None, description="The largest passing number of words.")

    def problems(self) -> list[Problem]:
        if self.min is None and self.max is None:
            message = "a range of words needs `min`, `max` or both"
            return [Problem(message, self.place.value(), "add one of them")]
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"`min` ({self.min}) must not be above `max` ({self.max})"
            return [Problem(message, self.place.value("min"), "exchange them")]
        return []


class WordCountAssertion(Assertion):
    """word-count: the number of words is exactly this, or within a range."""

    value_form = (WordRange, "a range of words")

    value: Annotated[int, Field(ge=0)] | str | WordRange = Field(
        description="The number of words, or {min, max}."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of a number written as text: a broken template, or not a whole number."""
        problems: list[Problem] = []
        if isinstance(self.value, str):
            place = self.place.value("value")
            text = context.render(self.value, place, problems)
            if text is not None and not text.strip().isdecimal():
                hint = "write a whole number, or a mapping with `min` and `max`"
                problems.append(
                    Problem(f'the `value` of word-count must be a whole number, found "{text}"', place, hint)
                )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the number of words, split at white space, with the bounds."""
        count = len(subject.text.split())
        if isinstance(self.value, WordRange):
            low, high = self.value.min, self.value.max
        else:
            low = high = int(tools.templates.render(str(self.value), subject.test.variables))
        passed = (low is None or count >= low) and (high is None or count <= high)
        words = "1 word" if count == 1 else f"{count} words"
        if low == high:
            range_text = f"exactly {low}"
        elif low is None:
            range_text = f"at most {high}"
        else:
            range_text = f"at least {low}" if high is None else f"from {low} to {high}"
        return Outcome.of(passed, f"the output has {words}; expected {range_text}", words=count)
