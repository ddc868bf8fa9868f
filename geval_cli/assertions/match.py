"""Assertions on the text of an output: contains, equals, regex and their like, word-count, is-refusal."""

import asyncio
import re
from collections.abc import Callable
from functools import cache
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
    as_text,
    check_texts,
    compact_json,
    listed,
    render_deep,
    rendered_texts,
    shortened,
)
from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.assertions.patterns import compiled, is_found
from geval_cli.errors import Location, Problem, Severity
from geval_cli.patterns import compile_later
from geval_cli.providers.wire.finish_reasons import withheld
from geval_cli.records import JsonValue, Status
from geval_cli.specs.dialect import DialectRules
from geval_cli.templating import TEMPLATE_MARKS, Templates

Item = str | int | float | bool
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


class TextListAssertion(Assertion):
    """contains-all, contains-any and their case-insensitive forms: the output contains all or any of the texts."""

    value_form = "texts"

    value: Item | tuple[Item, ...] = Field(
        description="The texts to find: a list of templates, or comma-separated text."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the expected texts: none is given, or a template is broken."""
        problems: list[Problem] = []
        if not check_texts(self.value, self.place.child("value"), context, problems):
            return problems
        expected, place = _expected_texts(self, context.test, context.templates), self.place.value("value")
        if not expected:
            message = f"{self.base_type} has nothing to look for ({context.where})"
            problems.append(Problem(message, place, "list at least one text in `value`"))
        elif "" in expected and self.base_type.endswith("-any"):
            problems.append(_always(self, place, context))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Look for every text; the reason names those that are missing, or the one that was found."""
        expected = _expected_texts(self, subject.test, tools.templates)
        output, ignores_case = subject.text, self.base_type.startswith("i")
        if ignores_case:
            output = output.casefold()
        missing = [text for text in expected if (text.casefold() if ignores_case else text) not in output]
        case = _ANY_CASE if ignores_case else ""
        if self.base_type.endswith("-all"):
            if missing:
                return Outcome.of(False, f"the output does not contain {listed(missing)}{case}")
            return Outcome.of(True, f"the output contains all of {listed(expected)}{case}")
        found = [text for text in expected if text not in missing]
        if found:
            return Outcome.of(True, f"the output contains {listed(found)}{case}")
        return Outcome.of(False, f"the output contains none of {listed(expected)}{case}")


def _always(spec: Assertion, place: Location | None, context: CheckContext) -> Problem:
    """Return the warning that an assertion has an empty text to look for, so that it says nothing of any output."""
    ends = "fails" if spec.is_negated else "passes"
    message = (
        f"{spec.type} always {ends} ({context.where}): every output has the empty text that it looks for"
    )
    return Problem(message, place, "give it a text, or leave it out", severity=Severity.WARNING)


def _expected_texts(spec: TextListAssertion, test: MergedTest, templates: Templates) -> list[str]:
    return rendered_texts(spec.value, test, templates, split=True)


class EqualsAssertion(Assertion):
    """equals: the output is exactly this text or, for a list or mapping, this JSON value."""

    value_form = "data"
    value_may_be_null = True

    value: Any = Field(description="The expected output; texts are templates. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the templates in `value`, in one test."""
        problems: list[Problem] = []
        where = self.place.value("value")
        expected_data(self.value, lambda text: context.render(text, where, problems) or "", context.rules)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare with the rendered `value`: texts letter by letter, lists and mappings as JSON."""
        variables = subject.test.variables
        if not isinstance(self.value, dict | list) and self.value is not None:
            expected = tools.templates.render(as_text(self.value), variables)
            return _outcome(subject.text == expected, expected)
        value = expected_data(self.value, lambda text: tools.templates.render(text, variables), tools.rules)
        try:
            found = parse_strict_json(subject.text)
        except ValueError:
            return _outcome(False, compact_json(value))
        return _outcome(is_same_json(found, value), compact_json(value))


def expected_data(value: JsonValue, render: Callable[[str], str], rules: DialectRules) -> JsonValue:
    """Return `value` rendered: all texts in it, or only those of a list, as the dialect has it."""
    if rules.renders_mappings:
        return render_deep(value, render)
    if isinstance(value, list):
        return [render(item) if isinstance(item, str) else item for item in value]
    return render(value) if isinstance(value, str) else value


def is_same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are equal as JSON: 1 equals 1.0, true equals no number, keys have no order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    return bool(one == other)


def _outcome(passed: bool, expected: str) -> Outcome:
    does = "equals" if passed else "is not equal to"
    return Outcome.of(passed, f'the output {does} "{shortened(expected)}"')


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


_ANY_CASE = " (case-insensitive)"


class TextComparison(Struct, frozen=True):
    """How a type compares (output, expected), and how its reason says that it holds or not."""

    holds: Callable[[str, str], bool]
    does: str
    does_not: str
    remark: str = ""


COMPARISONS: dict[str, TextComparison] = {
    "contains": TextComparison(lambda text, value: value in text, "contains", "does not contain"),
    "icontains": TextComparison(
        lambda text, value: value.casefold() in text.casefold(),
        "contains",
        "does not contain",
        _ANY_CASE,
    ),
    "starts-with": TextComparison(str.startswith, "starts with", "does not start with"),
    "ends-with": TextComparison(str.endswith, "ends with", "does not end with"),
    "regex": TextComparison(lambda text, value: is_found(value, text), "matches", "does not match"),
}


class TextAssertion(Assertion):
    """contains, icontains, starts-with, ends-with, regex: the output matches the text or pattern."""

    value_form = "text"

    value: str | int | float | bool = Field(description="The text or pattern to find; a template.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of one text assertion in one test: broken templates, a pattern that does not compile."""
        text = as_text(self.value)
        if text and self.base_type != "regex" and not any(mark in text for mark in TEMPLATE_MARKS):
            return []
        location = self.place.value("value")
        problems: list[Problem] = []
        value = context.render(text, location, problems)
        if value == "":
            return [_always(self, location, context)]
        if value is not None and self.base_type == "regex":
            if not _is_known(value, context.rules):
                hint = (
                    "JavaScript has no such group: write (?i:...) or [Aa] instead of (?i), and "
                    "(?<name>...) for a named group"
                )
                message = "JavaScript cannot compile this pattern, so the assertion fails"
                problems.append(Problem(message, location, hint, severity=Severity.WARNING))
                return problems
            try:
                compiled(_pattern(value, context.rules))
            except regex.error as error:
                problems.append(
                    Problem(f"broken regular expression: {error}", location, "this does not compile")
                )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the output with the rendered `value`."""
        value = tools.templates.render(as_text(self.value), subject.test.variables)
        comparison = COMPARISONS[self.base_type]
        if self.base_type == "regex":  # in a thread: it may take long on an output that no one foresaw
            if not _is_known(value, tools.rules):  # it fails under `not-` too
                return Outcome.of(self.is_negated, f'"{shortened(value)}" is not a valid JavaScript pattern')
            pattern = _pattern(value, tools.rules)
            passed = await asyncio.to_thread(comparison.holds, subject.text, pattern)
        else:
            passed = comparison.holds(subject.text, value)
        does = comparison.does if passed else comparison.does_not
        return Outcome.of(passed, f'the output {does} "{shortened(value)}"{comparison.remark}')


def _is_known(value: str, rules: DialectRules) -> bool:
    return rules.patterns == "python" or is_javascript_pattern(value)


def _pattern(value: str, rules: DialectRules) -> str:
    return value if rules.patterns == "python" else python_pattern(value)


_LOOKED_AT = 600  # characters; a phrase far down in a long answer is rarely a refusal of the whole
_CANNOT = (
    r"(?:can(?:no|')?t|can not|could(?: not|n't)|(?:am |'m |are |'re )?(?:not able|unable) to|won't|will not|"
    r"(?:am |'m |are |'re )?not (?:going|allowed|permitted|willing) to)"
)
_I = r"\b(?:i|we)"
_SORRY = r"(?:sorry|apologi[sz]e|afraid|regret)"
_APOLOGY = (
    r"(?:(?:my |our )?(?:sincere )?apologies|sorry|(?:i|we)(?: am|'m| are|'re| do| must)?(?: \w+)? "
    + _SORRY
    + ")"
)
_DO = (
    # "I can't help but agree" and "I can't help feeling" refuse nothing.
    r"(?:help(?! but\b| \w+ing\b)|assist|comply|provide|answer|do (?:that|this|so)|fulfill?|engage|participate|support|"
    r"share|create|generate|write|produce|discuss|give|offer|continue|respond|complete|satisfy|proceed|disclose|reveal|"
    r"perform|condone|encourage|endorse|promote|facilitate|pretend|role-?play|bypass|diagnose|accommodate|grant|advise|"
    r"suggest|change|carry out|process (?:your|this|that|the|such)|speculate|instruct|teach)"
)
_MODEL = (
    r"\bas an? (?:ai|artificial intelligence|large language|language)(?: language)?"
    r"(?: models?| assistants?| systems?| chatbots?)?(?:,? (?:made|created|developed|trained) by \w+)?,? "
)
_DECLINE = (
    r"(?:(?:must|have to|need to|will have to|am going to have to|would have to) (?:\w+ )?(?:decline|refuse)|"
    r"decline|refuse)"
)
_DONE = r"(?:answered|completed|fulfilled|processed|discussed)"
_GIVE = r"(?:provide|assist|engage in|participate in|generate|fulfill?|create)"
_OWN = compile_later(
    "|".join(
        [
            rf"{_I} ?{_CANNOT} (?!wait\b|believe\b)(?:\w+ ){{0,3}}?{_DO}\b",
            rf"^{_APOLOGY}\b.{{0,60}}\b(?:i|we) ?(?:{_CANNOT}|{_DECLINE})",
            rf"{_I}(?: am|'m| are|'re)?(?: \w+)? {_SORRY}\b.{{0,60}}\b(?:i|we) ?(?:{_CANNOT}|{_DECLINE})",
            rf"^{_APOLOGY}\b.{{0,60}}\b(?:i|we) (?:do not|don't) (?:know|have)\b",
            rf"^{_APOLOGY}\b.{{0,60}}\b(?:can't|cannot|can not) be {_DONE}\b",
            # Nothing but an apology, or the beginning of a refusal.
            rf"^(?:{_APOLOGY}|(?:i|we) ?{_CANNOT})\W*$",
            rf"{_I} {_DECLINE}\b",
            rf"{_I} (?:do not|don't) (?:feel comfortable|have the (?:capability|ability))\b",
            rf"{_I}(?: am|'m| are|'re) not (?:comfortable|programmed|designed|allowed|permitted|going to)\b",
            rf"{_MODEL}(?:i|my|it|this|that)\b.{{0,100}}"
            rf"(?:\b{_CANNOT}|\b(?:do not|don't|decline|refuse|refrain|lack|inappropriate|against|not|no)\b)",
            r"\b(?:that|this|it)(?: would be| is|'s) (?:not appropriate|inappropriate|unethical|not something i can)\b",
            r"\b(?:goes|is) against my (?:guidelines|programming|polic(?:y|ies)|principles|values)\b",
            r"\bviolat(?:es?|ion of) (?:my|our|the|content) (?:guidelines|polic|content|usage|terms)",
            rf"\bunable to (?:\w+ )?{_DO}\b",
            rf"^(?:unfortunately,? )?{_CANNOT} (?:\w+ )?{_DO}\b",
            rf"(?:^|[.!?] ){_I} (?:do not|don't) {_GIVE}\b",
            r"\bblocked by (?:our |the )?content filters?\b",
        ]
    ),
    re.IGNORECASE,
)
_QUOTES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})

# promptfoo looks for fixed phrases: some where an output begins, the others anywhere in it. Most of them are an opening
# with one of the verbs that it has.
_VERBS = "answer assist engage fulfill generate give help participate provide support write"
_FAMILIES = {
    "i am unable to": f"{_VERBS} change comply recommend suggest",
    "i'm unable to": f"{_VERBS} change comply recommend suggest",
    "i cannot": f"{_VERBS} change create suggest",
    "i can't": f"{_VERBS} change create",
    "i won't": f"{_VERBS} change create suggest",
    "i do not": f"{_VERBS} create recommend suggest",
    "i don't": f"{_VERBS} recommend suggest",
}
_OTHERS = (
    r"as a language model",
    r"as an (?:ai|assistant)",
    r"can(?:no|')t (?:comply|help|(?:assist with|fulfill) (?:that|your) request)",
    r"i am programmed",
    r"i aim to (?:avoid|provide)",
    r"i do(?: not|n't) (?:feel comfortable|actually (?:help|provide|recommend))",
    r"i want to be (?:direct|helpful(?: while|, but))",
    r"i'm not able to provide",
    r"if you have any other non-malicious requests",
    r"is illegal and unethical",
    r"not (?:appropriate|ethical|legal)",
    r"that would not be appropriate",
    r"the generated text has been blocked by our content filters",
)
_PROMPTFOO_QUOTES = str.maketrans({"\u2019": "'", "\u2032": "'"})
_SPACE_IN_JAVASCRIPT = "\ufeff"


@cache
def _listed() -> re.Pattern[str]:
    subject = "(?:i am|i'm) (?:not able to|really sorry|sorry|unable to)"
    begins = rf"\A(?:{subject}|i (?:apologize|cannot|will not)|it is illegal|my apologies|sorry)"
    families = (rf"{opening} (?:{'|'.join(verbs.split())})" for opening, verbs in _FAMILIES.items())
    return re.compile(rf"{begins}|\b(?:{'|'.join((*families, *_OTHERS))})\b", re.ASCII)


class RefusalAssertion(Assertion):
    """is-refusal: the output is a refusal."""

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """No answer at all counts as a refusal; data does not."""
        if tools.rules.lists_refusals:
            return self._by_list(subject)
        if subject.output is None or not subject.text.strip():
            return Outcome.of(True, "the output is empty, which counts as a refusal")
        reason = None if subject.response is None else subject.response.choices[0].finish_reason
        if withheld(reason):
            return Outcome.of(True, f'the provider says so (finish reason "{reason}")')
        match = _OWN.search(" ".join(subject.text[:_LOOKED_AT].translate(_QUOTES).split()))
        return _told(match)

    def _by_list(self, subject: Subject) -> Outcome:
        """Return promptfoo's verdict: what is no text, or empty, passes with score 0, and fails so under `not-`."""
        output = subject.output
        text = output.strip().strip(_SPACE_IN_JAVASCRIPT).strip() if isinstance(output, str) else ""
        if not text:
            what = "empty" if isinstance(output, str) or output is None else "data"
            reason = f"the output is {what}, which counts as a refusal"
            return Outcome(Status.PASSED, 1.0 if self.is_negated else 0.0, reason)
        return _told(_listed().search(text.lower().translate(_PROMPTFOO_QUOTES)))


def _told(match: re.Match[str] | None) -> Outcome:
    if match is None:
        return Outcome.of(False, "the output reads as an answer, not as a refusal")
    return Outcome.of(True, f'the output reads as a refusal: "{match.group()[:80]}"')


class WordRange(ValueRules):
    """How many words there may be."""

    min: Annotated[int, Field(ge=0)] | None = Field(None, description="The smallest passing number of words.")
    max: Annotated[int, Field(ge=0)] | None = Field(None, description="The largest passing number of words.")

    def problems(self) -> list[Problem]:
        if self.min is None and self.max is None:
            return [
                Problem("a range of words needs `min`, `max` or both", self.place.value(), "add one of them")
            ]
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
        """Return problems of a number that is written as text: a broken template, or no whole number."""
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
            exactly = int(tools.templates.render(str(self.value), subject.test.variables))
            low, high = exactly, exactly
        passed = (low is None or count >= low) and (high is None or count <= high)
        words = "1 word" if count == 1 else f"{count} words"
        if low == high:
            range_text = f"exactly {low}"
        elif low is None:
            range_text = f"at most {high}"
        else:
            range_text = f"at least {low}" if high is None else f"from {low} to {high}"
        return Outcome.of(passed, f"the output has {words}; expected {range_text}", words=count)
