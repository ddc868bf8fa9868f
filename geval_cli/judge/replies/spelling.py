"""The spelling of ratings in a judge's prose: numbers, their dress, their scale; and what introduces one."""

import re

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.metric import ScoreRange, format_number
from geval_cli.patterns import compile_later

THOUGHTS = "think|thinking|thoughts?|reasoning|reflection|scratchpad|analysis"
"""The tags between which models think; what stands there is no verdict."""

_WORD_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = "|".join(_WORD_NUMBERS)

# Letters that may touch a number: Chinese, Japanese and Korean are written without spaces.
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_DIGITS = r"[0-9]{1,15}(?:\.[0-9]{1,15}|,[0-9]{1,2})?"
_NUMBER = (
    rf"(?P<number>(?<!{_LETTER})(?<![.,/])[-+\u2212]?(?:{_DIGITS}|\.[0-9]{{1,15}})(?!{_LETTER}|[.,][0-9]))"
)
_WORD = rf"(?P<word>(?<!\w)(?:{_WORDS})\b(?! of the\b))"

# Signs of emphasis and quotation; `<` and `$` only in pairs, since "<7" is less than 7.
MARKUP = r"""(?:[\\"'*_`”“()\[\]{}]|<(?=-?[0-9.]{1,5}>)|(?<=[0-9])>|\$(?=[^$\n]{1,12}\$)|(?<=[0-9}])\$|</?(?:b|"
    r"strong|em|i|u)>){0,8}"""
_UNIT = r"(?:points?|marks?|stars?|punkten?|puntos?|pontos?|punti|分|点|점)"
_OF = r"(?:/|out[ \t]of|of|von|sur|sobre|de|su|em|из|van|av)"
_MOST = rf"(?P<out_of>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?|{_WORDS})(?!{_LETTER}|[.,/][0-9])"
_SCALE = (
    r"(?:on|in|using|within)[ \t]{1,3}(?:an?|the|our)[ \t]{1,3}(?:"
    r"(?P<points>[0-9]{1,4}|" + _WORDS + r")[- ]points?[ \t]{1,3}scale"
    r"|scale[ \t]{1,3}(?:of[ \t]|from[ \t])?[ \t]{0,3}-?[0-9.]{1,9}[ \t]{0,3}(?:to|and|"
    r"[-\u2013\u2014])[ \t]{0,3}"
    r"(?P<scale>[0-9]{1,9}(?:\.[0-9]{1,6})?)(?![\w]))"
)
OUT_OF = (
    rf"(?:{MARKUP}[ \t]{{0,3}}(?:{_UNIT}[ \t]{{0,3}})?[(\[,]?{MARKUP}[ \t]{{0,3}}"
    rf"(?:{_OF}[ \t]{{0,3}}(?:a[ \t](?:possible|total|maximum)[ \t](?:of[ \t])?)?{MARKUP}{_MOST}"
    rf"|{_SCALE}|(?P<percent>%|per[ ]?cent\b))"
    rf"(?:[ \t]{{0,3}}{_UNIT}(?!{_LETTER}))?[)\]]?|[ \t]{{0,3}}{_UNIT}(?!{_LETTER}))?+"
)
# What makes of a number one of two: "7-8", "7 or 8", "7~8", "7 to 8", "7/10 or 8/10".
_AND_ANOTHER = (
    r"[ \t]{0,3}(?:(?:to|and|or|through|bis|oder|und|ou|o|y|et)\b|[-\u2013\u2014~\u301c\uff5e])[ \t]{0,3}"
    rf"(?:(?:an?|maybe|even|perhaps)[ \t])?{MARKUP}(?:[0-9]|(?:{_WORDS})\b)"
)
_IN_A_SUM = (
    r"[ \t]{0,3}(?:[-=]>|→|[+\u00d7\u00f7½¼¾]|[=*][ \t]?[0-9]|\b(?:plus|minus|times|and a half)\b)"
    r"|[ \t]{0,3}(?:\u00b1|\+/-)|[ \t]{1,3}[0-9]|,[ \t]{0,2}[0-9]{1,2}(?!\w)|[ \t]?/(?!/)"
)
RATING = rf"(?:{_NUMBER}|{_WORD})(?!{_AND_ANOTHER}|[+½¼¾]){OUT_OF}(?!{_AND_ANOTHER}|{_IN_A_SUM})"
"""A number or a number word, and the maximum behind it; the first of two numbers is no rating."""

SPAN = rf"(?:{_DIGITS}|(?:{_WORDS})\b)(?:[ \t]{{0,3}}/[ \t]{{0,3}}[0-9]{{1,4}})?{_AND_ANOTHER}"
_SPAN_BEFORE = compile_later(
    rf"(?:[0-9]|\b(?:{_WORDS}))[ \t]{{0,3}}(?:\b(?:to|and|or|through)\b|"
    rf"[-\u2013\u2014~\u301c\uff5e]|→|[-=]>)[ \t]{{0,3}}(?:(?:an?|maybe|even|perhaps)[ \t])?\Z",
    re.IGNORECASE,
)


class Stated(Struct, frozen=True):
    """A rating and its position in the reply.

    `is_final` when it is called the last or the overall one, `is_claim` when it is spelled true or false.
    """

    value: float
    start: int
    end: int
    out_of: float | None = None
    is_final: bool = False
    is_claim: bool = False


def stated(match: re.Match[str], *, is_final: bool = False) -> Stated:
    """Return the rating that a match of `RATING` spells."""
    groups = match.groupdict()
    kind = "number" if groups["number"] is not None else "word"
    most = groups.get("out_of") or groups.get("scale") or groups.get("points")
    out_of = 100.0 if groups.get("percent") else None if most is None else number_of(most)
    return Stated(number_of(match[kind]), match.start(kind), match.end(kind), out_of, is_final)


def number_of(spelling: str) -> float:
    """Return the value of a number in figures or of a number word."""
    word = spelling.lower()
    if word in _WORD_NUMBERS:
        return float(_WORD_NUMBERS.index(word))
    return float(spelling.replace("\u2212", "-").replace(",", "."))


def ends_a_span(text: str, start: int) -> bool:
    """Return whether the number at `start` is the second of two: the 8 of "7 or 8"."""
    return _SPAN_BEFORE.search(text[max(0, start - 30) : start]) is not None


def check_scale(rating: Stated, score_range: ScoreRange, text: str) -> None:
    """Refuse a rating outside the range, or out of another maximum.

    Raises:
        JudgeRangeError: it is one of these.
        JudgeParseError: it is a true or false that was not asked for.
    """
    low, high = score_range
    asked = f"{format_number(low)} to {format_number(high)}"
    if rating.is_claim and (low, high) != (0, 1):
        raise JudgeParseError("the judge's reply has a score that is no number", raw_text=text)
    if rating.out_of is not None and rating.out_of != high:
        raise JudgeRangeError(
            f"the judge rated out of {format_number(rating.out_of)}, but was asked for {asked}", raw_text=text
        )
    if not low <= rating.value <= high:
        is_shown = abs(rating.value) < float("inf")
        shown = format_number(rating.value) if is_shown else "a number beyond all bounds"
        raise JudgeRangeError(f"the judge's rating is {shown}, but was asked for {asked}", raw_text=text)


_LEAD_LENGTH = 240  # as far as a sentence before a rating is looked at

_FOREIGN = compile_later(
    r"\b(?:examples?|e\.g\.|for instance|would|could|might|if|looks? like|tr(?:y|ies|ied|ying)|attempt\w*|"
    r"claim\w*|"
    r"inject\w*|quot\w*|instruct(?:s|ed|ing)|demand\w*|tells?|asks|says?|said|stat(?:es|ed)|declar\w+|"
    r"assert\w*|insist\w*|writes|wrote|pretend\w*|embed\w*|"
    r"(?:output|response|text|answer|summary|it|which|that) (?:itself )?(?:contain|includ|insert|reads?|"
    r"ends?)\w*|"
    r"not|cannot|never|instead of|beispiel|ejemplo|exemple)\b|n['\u2019]t\b",
    re.IGNORECASE,
)

_OWN = compile_later(r"\b(?:my|final|i(?:['\u2019]d| would)? (?:rate|give|say|judge))\b", re.IGNORECASE)

_FINAL = compile_later(
    r"\b(?:final(?:ly)?|revis\w+|correct(?:ed|ion)|reflection|reconsider\w*|second (?:look|thought)s?|"
    r"updated|overall)\b",
    re.IGNORECASE,
)


def is_introduced_as_foreign(text: str, start: int) -> bool:
    """Return whether the text at `start` is introduced as an example, a quotation or a supposition."""
    lead = _lead(text, start)
    foreign, own = (
        max((match.end() for match in cue.finditer(lead)), default=-1) for cue in (_FOREIGN, _OWN)
    )
    return foreign > own


def is_introduced_as_final(text: str, start: int) -> bool:
    """Return whether the text at `start` is introduced as the final verdict."""
    return _FINAL.search(_lead(text, start)) is not None


def _lead(text: str, start: int) -> str:
    """Return the sentence on the same line before `start`; without one, the line before, if it ends with a colon."""
    before = text[max(0, start - _LEAD_LENGTH) : start]
    line = before[before.rfind("\n") + 1 :]
    if line.strip(" \t`*>([\"'-"):
        return _SENTENCE_END.split(line)[-1]
    above = before.rstrip("`*>([\"'- \t\r\n").removesuffix("```json").rstrip("`*>([\"'- \t\r\n")
    above = _FENCE.sub("", above).rstrip("*_ \t\r\n")
    last = above[above.rfind("\n") + 1 :]
    return _SENTENCE_END.split(last)[-1] if last.endswith((":", "\uff1a")) else ""


_SENTENCE_END = compile_later(r"[.!?]\s")

_FENCE = compile_later(r"\s*`{3,}\s*[a-zA-Z]{0,10}\s*\Z")
