"""Reads a rating, a reason or evaluation steps from what a judge replied, however it is wrapped.

The last verdict of a reply counts. Nothing is clamped or guessed: a reply without a clear verdict is a JudgeParseError,
a rating outside the range a JudgeRangeError. Time is linear in the reply.
"""

import math
import re
from collections.abc import Iterator

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.lenient_json import JsonObject, Member, Value, find_objects, read_array
from geval_cli.judge.metric import ScoreRange, format_number
from geval_cli.patterns import compile_later

_SCORE_KEYS = ("score", "final_score", "overall_score", "final score", "overall score", "rating")
_REASON_KEYS = ("reason", "reasoning", "explanation", "rationale", "justification")
_STEP_KEYS = ("steps", "evaluation_steps", "evaluation steps")

_THINKING_START, _THINKING_END = "<think>", "</think>"

_WORD_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORD = rf"(?P<word>{'|'.join(_WORD_NUMBERS)})\b(?! of the\b)"
_NUMBER = (
    r"(?P<number>(?<![\w.,])[-+\u2212]?(?:[0-9]{1,15}(?:\.[0-9]{1,15}|,[0-9]{1,2})?|\.[0-9]{1,15})"
    r"(?!\w|[.,][0-9]))"
)
_OUT_OF = (
    r"(?:[ \t]{0,5}(?:/|(?:out )?of)[ \t]{0,5}(?P<out_of>[0-9]{1,9}(?:\.[0-9]{1,6})?)\b|(?P<percent>%))?"
)
_NOT_A_SPAN = r"(?![ \t]{0,3}(?:to|and|[-\u2013\u2014])[ \t]{0,3}[0-9])"
_MARKUP = r"""[\\"'*_`”“()\[\]<>$]{0,6}"""
_RATING = rf"{_MARKUP}(?:{_NUMBER}{_NOT_A_SPAN}|{_WORD}){_MARKUP}{_OUT_OF}"

_WHOLE = compile_later(rf"\s{{0,9}}{_RATING}[.!]?{_MARKUP}\s{{0,9}}\Z", re.IGNORECASE)
_LINE = compile_later(rf"[ \t]{{0,9}}(?:[-*#>][ \t])?{_RATING}[.!]?{_MARKUP}[ \t\r]{{0,9}}\Z", re.IGNORECASE)
_FRACTION = compile_later(
    rf"{_NUMBER}[*_`]{{0,3}}[ \t]{{0,5}}(?:/|out of)[ \t]{{0,5}}(?P<out_of>[0-9]{{1,9}})(?![\w/])"
)
_GIVEN = compile_later(
    r"\b(?:give|giving|rate|assign|score)\b[ \t]{1,5}(?:(?:it|this|that|the)(?: (?!an? )[a-z]{1,20}){0,2}[ \t]{1,5})?"
    rf"(?:(?:as|at|an?|the)[ \t]{{1,5}}){{0,2}}{_RATING}",
    re.IGNORECASE,
)
_EARNED = compile_later(
    rf"\b(?:gets|receives|deserves|earns|merits)[ \t]{{1,5}}an?[ \t]{{1,5}}{_RATING}", re.IGNORECASE
)
_CLOSING = compile_later(rf"(?<=[.!?)…])\s{{1,5}}{_RATING}[.!]?{_MARKUP}\s{{0,9}}\Z", re.IGNORECASE)
_LEADING = compile_later(rf"\s{{0,9}}{_RATING}(?=[ \t]{{0,5}}(?:[-\u2013\u2014:,;(#\n\r]|//))", re.IGNORECASE)

# What nearly all replies are: one flat object, with nothing in it that could be read in two ways.
_PLAIN_REASON = r'"reason" {0,5}:\s{0,9}"(?P<reason>[^"\\\x00-\x1f]*+)"'
_PLAIN_SCORE = r'"score" {0,5}:\s{0,9}(?P<score>-?[0-9]{1,15}(?:\.[0-9]{1,15})?)'
_PLAIN_REPLIES = tuple(
    compile_later(rf"\s*+\{{\s{{0,99}}{first}\s{{0,99}},\s{{0,99}}{second}\s{{0,99}}\}}\s*+\Z")
    for first, second in ((_PLAIN_REASON, _PLAIN_SCORE), (_PLAIN_SCORE, _PLAIN_REASON))
)

_LONGEST_LINE = 60
_LIST_LINE = compile_later(
    r"[ \t]{0,12}(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])[ \t]{1,8}(\S.*)", re.IGNORECASE
)
_LIST_NUMBER = compile_later(r"\A(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])\s{1,8}", re.IGNORECASE)


class ParsedReply(Struct, frozen=True):
    """A verdict. `score_start` and `score_end` are the character offsets of the rating in the reply."""

    rating: float
    reason: str | None
    score_start: int
    score_end: int


class _Found(Struct, frozen=True):
    value: float
    start: int
    end: int
    out_of: float | None = None


def parse_rating(text: str, *, score_range: ScoreRange) -> ParsedReply:
    """The verdict of a reply in criteria form: JSON with a score if there is any, else what the prose states.

    Raises:
        JudgeParseError: there is no score, or the reply breaks off in the middle of it.
        JudgeRangeError: the rating lies outside `score_range`, or was given on another scale.
    """
    return _parse(text, _KEYED_SCORE, score_range)


def parse_form_rating(text: str, *, score_range: ScoreRange, name: str) -> ParsedReply:
    """The verdict of a reply in dimension form, in which `name` (`Coherence`) may stand before the rating.

    Raises:
        JudgeParseError: there is no rating.
        JudgeRangeError: the rating lies outside `score_range`, or was given on another scale.
    """
    return _parse(text, _keyed_pattern(rf"(?:score|rating|grade|{re.escape(name)})"), score_range)


def parse_steps(text: str) -> tuple[str, ...]:
    """The evaluation steps of a reply: a JSON list under "steps", a bare JSON list, or a numbered list.

    Raises:
        JudgeParseError: there are none, or the list breaks off.
    """
    body_start = start_of_answer(text)
    steps: tuple[str, ...] = ()
    for found in find_objects(text, body_start):
        member = found.last(*_STEP_KEYS)
        if member is not None:
            steps = _texts_of(member.value) or steps
    if not steps and "{" not in text[body_start:]:
        steps = _steps_outside_objects(text, body_start)
    if not steps or all(map(_PLACEHOLDER.fullmatch, steps)):
        raise JudgeParseError(why_unreadable(text, "evaluation steps"), raw_text=text)
    return steps


_PLACEHOLDER = compile_later(r"<[^<>]*>")
"""What stands in the prompt in the place of an answer; a judge that repeats it has not answered."""


def _keyed_pattern(names: str) -> re.Pattern[str]:
    stated = r"[ \t]{0,5}(?:[:=\uff1a|]|->|→|(?:is|of|would be|should be)\b)"
    at_the_end = r"(?=[ \t]{1,5}[0-9]{1,3}[.*]{0,3}\s*+\Z)"
    connector = rf"(?:{stated}|{at_the_end})"
    return compile_later(
        rf"(?<![a-z]){names}{_MARKUP}[ \t]{{0,9}}(?:\([^()\n]{{0,40}}\){_MARKUP})?{connector}"
        rf"{_MARKUP}\s{{0,9}}(?:(?:an?|is|about)[ \t]{{1,5}}){{0,2}}{_RATING}",
        re.IGNORECASE,
    )


_KEYED_SCORE = _keyed_pattern("(?:score|rating|grade)")


def _parse(text: str, keyed: re.Pattern[str], score_range: ScoreRange) -> ParsedReply:
    body_start = start_of_answer(text)
    verdict = _verdict_from_json(text, body_start, score_range)
    if verdict is not None:
        found, reason = verdict
    else:
        stated = _verdict_from_prose(text, body_start, keyed, score_range)
        if stated is None:
            raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
        found, reason = stated, _prose_reason(text[body_start:])
    _check_scale(found, score_range, text)
    return ParsedReply(found.value, reason, found.start, found.end)


def start_of_answer(text: str) -> int:
    """Where the answer begins, behind the thoughts that some models write first; the end when thoughts never end."""
    end = text.rfind(_THINKING_END)
    if end != -1:
        return end + len(_THINKING_END)
    return len(text) if text.lstrip().startswith(_THINKING_START) else 0


def why_unreadable(text: str, what: str) -> str:
    """What is wrong with a reply from which no `what` can be read."""
    if not text.strip():
        return "the judge's reply is empty"
    if start_of_answer(text) == len(text):
        return "the judge's reply holds thoughts and no answer"
    return f"no {what} can be read from the judge's reply"


# -- JSON -------------------------------------------------------------------------------------------------------


def _verdict_from_json(text: str, start: int, score_range: ScoreRange) -> tuple[_Found, str | None] | None:
    for plain in _PLAIN_REPLIES:
        if match := plain.match(text, start):
            return _Found(float(match["score"]), *match.span("score")), _one_line(match["reason"])
    verdict: tuple[JsonObject, Member] | None = None
    for found in find_objects(text, start):
        member = found.last(*_SCORE_KEYS)
        if member is not None:
            verdict = found, member
    if verdict is None:
        return None
    holder, member = verdict
    rating = _rating_of(member, score_range)
    if rating is None:
        raise JudgeParseError("the judge's reply has a score that is no number", raw_text=text)
    if not holder.is_closed and _may_go_on(rating, text, score_range):
        raise JudgeParseError("the judge's reply breaks off in the middle of the score", raw_text=text)
    return rating, reason_of(holder)


def _rating_of(member: Member, score_range: ScoreRange) -> _Found | None:
    value = member.value
    if isinstance(value, bool):
        return _Found(float(value), member.start, member.end) if score_range == (0, 1) else None
    if isinstance(value, float):
        return _Found(value, member.start, member.end)
    if not isinstance(value, str):
        return None
    match = _WHOLE.match(value) or _LEADING.match(value) or _FRACTION.match(value)
    if match is None:
        return None
    return _found(match, offset=member.start)


def _may_go_on(rating: _Found, text: str, score_range: ScoreRange) -> bool:
    """Whether the text ends right after a number that further digits would leave inside the range."""
    return rating.end == len(text) and 0 < rating.value * 10 <= score_range[1]


def reason_of(holder: JsonObject) -> str | None:
    """The reason that an object gives, on one line; None without one."""
    member = holder.last(*_REASON_KEYS)
    return None if member is None else _one_line(member.value)


def _one_line(value: Value) -> str | None:
    return " ".join(" ".join(_texts_of(value)).split()) or None


def _texts_of(value: Value) -> tuple[str, ...]:
    """The non-empty texts of a string (its lines), of a list, or of the strings inside its objects."""
    if isinstance(value, str):
        lines = (_LIST_NUMBER.sub("", line.strip()) for line in value.splitlines())
        return tuple(line for line in lines if line)
    if isinstance(value, list):
        return tuple(item for item in (_one_text(entry) for entry in value) if item)
    return ()


def _one_text(value: Value) -> str:
    if isinstance(value, JsonObject):
        parts = (member.value for member in value.members)
        return ": ".join(part.strip() for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        return ""
    return _LIST_NUMBER.sub("", " ".join(value.split()))


def _steps_outside_objects(text: str, start: int) -> tuple[str, ...]:
    bracket = text.find("[", start)
    if bracket != -1 and (items := read_array(text, bracket)) is not None and (steps := _texts_of(items)):
        return steps
    matches = (_LIST_LINE.fullmatch(line) for line in text[start:].splitlines())
    return tuple(match[1].strip() for match in matches if match is not None)


# -- prose ------------------------------------------------------------------------------------------------------


def _verdict_from_prose(
    text: str, start: int, keyed: re.Pattern[str], score_range: ScoreRange
) -> _Found | None:
    """The verdict that prose states, by the clearest kind of statement that it has; of that kind the last one."""
    alone = _number_on_its_own_line(text, start)
    if alone is not None:
        return alone
    if match := _last(keyed.finditer(text, start)):
        return _found(match)
    fractions = (_found(match) for match in _FRACTION.finditer(text, start))
    on_our_scale = [found for found in fractions if found.out_of == score_range[1]]
    if on_our_scale:
        return on_our_scale[-1]
    given = (
        _CLOSING.search(text, max(start, len(text) - _LONGEST_LINE))
        or _last(_GIVEN.finditer(text, start))
        or _last(_EARNED.finditer(text, start))
        or _LEADING.match(text, start)
    )
    return None if given is None else _found(given)


def _number_on_its_own_line(text: str, start: int) -> _Found | None:
    """A number alone on the first or the last line that is not blank; the last line counts when both have one."""
    first_start = start + len(text[start:]) - len(text[start:].lstrip())
    last_end = len(text.rstrip())
    first_end = text.find("\n", first_start)
    last_start = max(text.rfind("\n", first_start, last_end) + 1, first_start)
    spans = ((last_start, last_end), (first_start, len(text) if first_end == -1 else first_end))
    for line_start, line_end in spans:
        if 0 < line_end - line_start <= _LONGEST_LINE:
            match = _LINE.match(text[line_start:line_end])
            if match is not None:
                return _found(match, offset=line_start)
    return None


def _last(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    last = None
    for last in matches:  # noqa: B007  # only the last one counts
        pass
    return last


def _found(match: re.Match[str], *, offset: int = 0) -> _Found:
    groups = match.groupdict()
    kind = "number" if groups.get("number") is not None else "word"
    if kind == "word":
        value = float(_WORD_NUMBERS.index(match["word"].lower()))
    else:
        value = float(match["number"].replace("\u2212", "-").replace(",", "."))
    out_of = 100.0 if groups.get("percent") else float(groups["out_of"]) if groups.get("out_of") else None
    return _Found(value, offset + match.start(kind), offset + match.end(kind), out_of)


def _prose_reason(answer: str) -> str | None:
    """The whole answer when it says more than the rating."""
    reason = " ".join(answer.split())
    return reason if sum(map(str.isalpha, reason)) > len("out of rating") * 2 else None


# -- the scale --------------------------------------------------------------------------------------------------


def _check_scale(found: _Found, score_range: ScoreRange, text: str) -> None:
    low, high = score_range
    asked = f"{format_number(low)} to {format_number(high)}"
    if found.out_of is not None and found.out_of != high:
        raise JudgeRangeError(
            f"the judge rated out of {format_number(found.out_of)}, but was asked for {asked}", raw_text=text
        )
    if not (math.isfinite(found.value) and low <= found.value <= high):
        shown = format_number(found.value) if math.isfinite(found.value) else "a number beyond all bounds"
        raise JudgeRangeError(f"the judge's rating is {shown}, but was asked for {asked}", raw_text=text)
