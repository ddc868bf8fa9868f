"""Read a rating, a reason or evaluation steps from a judge's reply, however it is wrapped.

A verdict is looked for in three ranks: the structure that was asked for, a line that states it, a sentence. Different
ratings of one rank are no verdict. Nothing is clamped or guessed: a reply without a clear verdict is a JudgeParseError,
a rating outside the range a JudgeRangeError. Time is linear in the reply.
"""

import re
from typing import Literal

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.metric import ScoreRange, format_number
from geval_cli.judge.replies.lenient_json import find_objects, read_array
from geval_cli.judge.replies.prose import (
    LONGEST_PROSE,
    Reply,
    other_scale,
    read_form_line,
    read_verdict_lines,
)
from geval_cli.judge.replies.sentences import read_sentences, takes_back
from geval_cli.judge.replies.spelling import THOUGHTS, Stated, check_scale
from geval_cli.judge.replies.structure import (
    differing,
    one_line,
    ratings_of_members,
    texts_of,
    unescaped,
    verdict_of_objects,
)
from geval_cli.patterns import compile_later

Rank = Literal["structure", "verdict_line", "prose"]
"""The part of a reply that gave the rating: the JSON or form line asked for, a verdict line, or a sentence."""

_STEP_KEYS = ("steps", "evaluation_steps", "evaluation steps")

# What nearly all replies are: one flat object, with nothing in it that could be read in two ways.
_PLAIN_REASON = r'"reason" {0,5}:\s{0,9}"(?P<reason>[^"\\\x00-\x1f]*+)"'
_PLAIN_SCORE = r'"score" {0,5}:\s{0,9}(?P<score>-?[0-9]{1,15}(?:\.[0-9]{1,15})?)'
_PLAIN_REPLIES = tuple(
    compile_later(rf"\s*+\{{\s{{0,99}}{first}\s{{0,99}},\s{{0,99}}{second}\s{{0,99}}\}}\s*+\Z")
    for first, second in ((_PLAIN_REASON, _PLAIN_SCORE), (_PLAIN_SCORE, _PLAIN_REASON))
)

_LIST_LINE = compile_later(
    r"[ \t]{0,12}(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])[ \t]{1,8}(\S.*)", re.IGNORECASE
)


class ParsedReply(Struct, frozen=True):
    """A verdict. `score_start` and `score_end` are the character offsets of the rating in the reply."""

    rating: float
    reason: str | None
    score_start: int
    score_end: int
    read_from: Rank = "structure"


def parse_rating(text: str, *, score_range: ScoreRange, is_cut_off: bool = False) -> ParsedReply:
    """Return the verdict of a reply in criteria form: JSON with a score if there is any, else what the prose states.

    Args:
        text: the reply.
        score_range: the ends of the scale.
        is_cut_off: a token limit ended the reply, so that its last sentence may mean something else.

    Raises:
        JudgeParseError: there is no score, there are different ones, or the reply breaks off before it.
        JudgeRangeError: the rating lies outside `score_range`, or was given on another scale.
    """
    return _parse(text, score_range, None, is_cut_off=is_cut_off)


def parse_form_rating(
    text: str, *, score_range: ScoreRange, name: str, is_cut_off: bool = False
) -> ParsedReply:
    """Return the verdict of a reply in dimension form, in which `name` (`Coherence`) may stand before the rating.

    Raises:
        JudgeParseError: there is no rating, there are different ones, or the reply breaks off before it.
        JudgeRangeError: the rating lies outside `score_range`, or was given on another scale.
    """
    return _parse(text, score_range, name, is_cut_off=is_cut_off)


def parse_member_rating(text: str, *, score_range: ScoreRange, name: str) -> ParsedReply:
    """Return the rating under the key `name` (`Coherence`) in the object of a reply that rates several things.

    Only the object is read: a sentence about one dimension is too easily one about another.

    Raises:
        JudgeParseError: the key is missing, or has no number, or different ones, or the reply breaks off there.
        JudgeRangeError: the rating lies outside `score_range`, or was given on another scale.
    """
    answer = unescaped(without_thoughts(text))
    ratings = list(ratings_of_members(answer, name))
    values = sorted({rating.value for rating in ratings})
    if len(values) > 1:
        raise JudgeParseError(f"{differing(values)} for {name}", raw_text=text)
    if not ratings:
        raise JudgeParseError(why_unreadable(text, f"rating of {name}"), raw_text=text)
    check_scale(ratings[-1], score_range, text)
    return ParsedReply(ratings[-1].value, None, ratings[-1].start, ratings[-1].end)


def parse_steps(text: str) -> tuple[str, ...]:
    """Return the evaluation steps of a reply: a JSON list under "steps", a bare JSON list, or a numbered list.

    Raises:
        JudgeParseError: there are none, or the list breaks off.
    """
    answer = without_thoughts(text)
    steps: tuple[str, ...] = ()
    for found in find_objects(answer):
        member = found.last(*_STEP_KEYS)
        if member is not None:
            steps = texts_of(member.value) or steps
    if not steps and "{" not in answer:
        steps = _steps_outside_objects(answer)
    if not steps or all(map(_PLACEHOLDER.fullmatch, steps)):
        raise JudgeParseError(why_unreadable(text, "evaluation steps"), raw_text=text)
    return steps


_PLACEHOLDER = compile_later(r"<[^<>]*>")
"""The placeholder for an answer in the prompt; a judge that repeats it has not answered."""


def _steps_outside_objects(answer: str) -> tuple[str, ...]:
    bracket = answer.find("[")
    if bracket != -1 and (items := read_array(answer, bracket)) is not None and (steps := texts_of(items)):
        return steps
    matches = (_LIST_LINE.fullmatch(line) for line in answer.splitlines())
    return tuple(match[1].strip() for match in matches if match is not None)


# -- thoughts ---------------------------------------------------------------------------------------------------

_THOUGHTS_START = compile_later(rf"(?:\A|^|(?<=>))\s*+<({THOUGHTS})>", re.IGNORECASE | re.MULTILINE)
_THOUGHTS_END = compile_later(
    rf"(?:^[ \t]*</(?:{THOUGHTS})>|</(?:{THOUGHTS})>[ \t]*\r?$)", re.IGNORECASE | re.MULTILINE
)
_NOT_A_BREAK = compile_later(r"[^\n]")


def without_thoughts(text: str) -> str:
    """Return `text` with the thoughts that some models write first blanked out; all else keeps its position.

    Thoughts that never end leave nothing. An end without a start counts where it ends or begins a line: some servers
    swallow the start, and a judged text may hold one in a sentence.
    """
    if "</" not in text and "<" not in text:
        return text
    spans: list[tuple[int, int]] = []
    position = 0
    while match := _THOUGHTS_START.search(text, position):
        end = _end_of_thoughts(match[1].lower()).search(text, match.end())
        position = len(text) if end is None else end.end()
        spans.append((match.start(), position))
    answer = _blanked(text, spans)
    ends = [match.end() for match in _THOUGHTS_END.finditer(answer)]
    return _blanked(answer, [(0, ends[-1])]) if ends else answer


def _end_of_thoughts(tag: str) -> re.Pattern[str]:
    return re.compile(rf"</{tag}>", re.IGNORECASE)


def _blanked(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    position = 0
    for start, end in spans:
        blank = _NOT_A_BREAK.sub(" ", text[start:end])
        # What follows begins a line.
        parts += (text[position:start], f"{blank[:-1]}\n")
        position = end
    return "".join((*parts, text[position:]))


def why_unreadable(text: str, what: str) -> str:
    """Return the problem, in words, of a reply from which no `what` can be read."""
    if not text.strip():
        return "the judge's reply is empty"
    if not without_thoughts(text).strip():
        return "the judge's reply holds thoughts and no answer"
    return f"no {what} can be read from the judge's reply"


# -- the ranks --------------------------------------------------------------------------------------------------


class _Verdict(Struct, frozen=True):
    rating: Stated
    reason: str | None
    rank: Rank
    from_object: bool = False


def _parse(text: str, score_range: ScoreRange, name: str | None, *, is_cut_off: bool) -> ParsedReply:
    for plain in _PLAIN_REPLIES:
        if match := plain.match(text):
            rating = Stated(float(match["score"]), *match.span("score"))
            check_scale(rating, score_range, text)
            return ParsedReply(rating.value, one_line(match["reason"]), rating.start, rating.end)
    try:
        verdict = _read(text, score_range, name, is_cut_off=is_cut_off)
    except JudgeParseError as error:
        raise JudgeParseError(error.message, raw_text=text) from None
    check_scale(verdict.rating, score_range, text)
    rating = verdict.rating
    return ParsedReply(rating.value, verdict.reason, rating.start, rating.end, verdict.rank)


def _read(text: str, score_range: ScoreRange, name: str | None, *, is_cut_off: bool) -> _Verdict:
    """Return the verdict of the first rank that has one; every text on the way has the reply's own offsets."""
    answer = unescaped(without_thoughts(text))
    from_object, prose = verdict_of_objects(answer, name=name, score_range=score_range, is_cut_off=is_cut_off)
    if from_object is None and len(prose.strip()) > LONGEST_PROSE:
        raise JudgeParseError(
            f"the judge's reply holds no object, and is too long to be read as prose ({len(prose):,} characters)",
            raw_text=text,
        )
    reply = Reply.of(prose, score_range, name)
    reason = _prose_reason(answer)
    if from_object is not None:
        verdict = _Verdict(from_object.rating, from_object.reason, "structure", from_object=True)
    elif form_line := _agreed(read_form_line(reply), score_range):
        verdict = _Verdict(form_line, reason, "structure")
    elif verdict_line := _agreed(read_verdict_lines(reply), score_range):
        verdict = _Verdict(verdict_line, reason, "verdict_line")
    elif sentence := None if is_cut_off else _agreed(read_sentences(reply), score_range):
        verdict = _Verdict(sentence, reason, "prose")
    else:
        raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
    if takes_back(reply, verdict.rating):
        raise JudgeParseError("the judge's reply takes its score back", raw_text=text)
    if is_cut_off:
        _check_end(verdict, text, score_range, is_form=name is not None)
    if verdict.rating.out_of is None and (most := other_scale(reply.text, score_range)) is not None:
        asked = f"{format_number(score_range[0])} to {format_number(score_range[1])}"
        raise JudgeRangeError(
            f"the judge rated out of {format_number(most)}, but was asked for {asked}", raw_text=text
        )
    return verdict


def _agreed(ratings: list[Stated], score_range: ScoreRange) -> Stated | None:
    """Return the one rating of all, or of those that are called final; of equal ones the one that names its scale.

    Raises:
        JudgeParseError: they differ.
    """
    counted = [rating for rating in ratings if rating.is_final] or ratings
    values = sorted({rating.value for rating in counted})
    if len(values) > 1:
        raise JudgeParseError(differing(values))
    return max(counted, key=lambda rating: rating.out_of is not None, default=None)


_OPEN_END = compile_later(r"[^\n]{0,16}\Z")
_CLOSED = compile_later(r"\s*[)\]*_\"}>]*(?:[.!]\s+\S|\n|[,;]\s\w)")


def _check_end(verdict: _Verdict, text: str, score_range: ScoreRange, *, is_form: bool) -> None:
    """Refuse a number at which a token limit ended the reply.

    It may stand when the form asks for it alone, it is all of the reply, and no digit could follow.
    """
    rating = verdict.rating
    behind = text[rating.end :]
    if verdict.from_object or _OPEN_END.match(behind) is None or _CLOSED.match(behind):
        return
    is_open = 0 < rating.value * 10 <= score_range[1] or score_range[1] - score_range[0] < 2  # noqa: PLR2004
    if is_open or not is_form or len(text.strip()) > rating.end - rating.start:
        raise JudgeParseError("the judge's reply breaks off in the middle of the score", raw_text=text)


def _prose_reason(answer: str) -> str | None:
    """Return the whole answer when it says more than the rating."""
    reason = " ".join(answer.split())
    return reason if sum(map(str.isalpha, reason)) > len("out of rating") * 2 else None
