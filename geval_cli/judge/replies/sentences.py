"""Read a verdict from sentences that speak of a rating: of those that are meant, only one may be left."""

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from geval_cli.errors import JudgeParseError
from geval_cli.judge.replies.context import is_end_of_scale, is_meant, is_of_another_thing, is_reported
from geval_cli.judge.replies.prose import BRACKET, FILLER, FINAL_WORDS, LONGEST_LINE, MOST_STATEMENTS, Reply
from geval_cli.judge.replies.spelling import (
    MARKUP,
    RATING,
    Stated,
    ends_a_span,
    is_introduced_as_foreign,
    stated,
)
from geval_cli.patterns import compile_later

_VERB = (
    r"(?:g[ia]ves?|giving|given|rates?|rated|rating|assign(?:s|ed|ing)?|award(?:s|ed|ing)?|scor(?:e|es|ed|"
    r"ing)|grad(?:e|es|ed|ing)|"
    r"gets?|getting|got|receiv(?:e|es|ed|ing)|deserv(?:e|es|ed|ing)|earn(?:s|ed|ing)?|merit(?:s|ed|ing)?|"
    r"warrant(?:s|ed|ing)?|"
    r"makes?|making|put|mark|marks|say|go(?:ing)? (?:with|for)|lean(?:ing)? towards?|enough for|"
    r"end(?:ing)? up (?:with|at)|manages|call|choose|pick|select|settl(?:e|ing) (?:on|for)|rank|"
    r"land(?:s|ing)? (?:on|at)|"
    r"judge|evaluat(?:e|es|ed)|assess(?:es|ed)?|lead(?:s|ing)? to|result(?:s|ing)? in|worth|bring(?:s|ing)?|"
    r"justif(?:y|ies|ying))"
)
_LEADS_IN = (
    r"(?:an?|as|at|it|this|that|only|just|around|about|roughly|approximately|low|high|solid|strong|perfect|"
    r"mere|full|weak|"
    r"lowest|highest|possible|summary|response|output|answer|text|reply|(?:overall |final )?(?:score|rating|"
    r"grade|mark)s?(?: of)?)"
)
_WORD = r"[ \t]{1,3}[a-z'\u2019-]{1,20}"
_NOT_A_NOUN = (
    r"(?![\w-]*[a-z])(?![*_\"'”)]{0,4}[ \t]{1,3}(?!(?:because|since|as|due|for|in|on|overall|with|given|"
    r"based|and|but|which|that|"
    r"when|while|at|to|from|out|is|was|would|could|should|can|cannot|may|might|means?|meant|indicat\w+|"
    r"represent\w*|"
    r"correspond\w*|reflect\w*|suggest\w*|if|unless|though|although|however|stars?|points?|marks?|rating|"
    r"score|here|"
    r"instead|rather|than|therefore|thus|so|by|being|meaning|or|not|according|considering|along|regarding|"
    r"mainly|mostly|"
    r"primarily|only|it|this|the|i|also|too|within|where|were|until|requires?|needs?|seems?|feels?|isn|wasn|"
    r"will|"
    r"imh?o|tbh|honestly|"
    r"out|of(?=[ \t]{1,3}[0-9])|per|claim\w*|stands?|denotes?|describes?|implies|overall)\b)[a-z])"
)
_LINK = (
    r"(?:[:=\uff1a]|"
    r"\b(?:is:?|of|was|as|at|would be|should be|will be|to be|stands at|comes (?:out )?(?:to|at|as)|becomes)(?![a-z]))"
)
_BEFORE_A_RATING = rf"[ \t]{{0,3}}{FILLER}{{0,3}}{MARKUP}"
_VERBAL = compile_later(
    rf"\b(?P<label>{_VERB})(?:(?:{_WORD}){{0,9}}?[ \t]{{1,3}}{_LEADS_IN})?[ \t]{{1,3}}{MARKUP}{RATING}{_NOT_A_NOUN}",
    re.IGNORECASE,
)
_EQUATED = compile_later(
    r"\b(?P<label>it|this|that|(?<=this )one|summary|output|response|answer|text|reply|dialogue|(?<=so )|me)"
    rf"(?:['\u2019]s|(?<=it)s(?=[ \t]an?[ \t])|(?<=this)[ \t]would[ \t]be|[ \t](?:is|was)|"
    rf":)[ \t]{{1,3}}{FILLER}{{0,3}}{MARKUP}{RATING}{_NOT_A_NOUN}",
    re.IGNORECASE,
)
_FRACTION = compile_later(
    rf"(?=[-+\u22120-9.,a-z]{{1,20}}[*_`)\]]{{0,3}}[ \t]{{0,5}}(?:/|out[ \t]of\b|(?:points?|stars?|"
    rf"marks?)[ \t]out)){RATING}{_NOT_A_NOUN}",
    re.IGNORECASE,
)
_ANOTHER = compile_later(
    rf"(?:^|[,;.:!?]|\b(?:and|but|or|so|hence|thus|think|believe|that))[ \t]{{0,3}}(?:(?:only|rather|just|"
    rf"maybe|perhaps|possibly|even)[ \t])?\ban?[ \t]{MARKUP}{RATING}{_NOT_A_NOUN}",
    re.IGNORECASE,
)
_CLOSING = compile_later(
    rf"(?<=[.!?)…\ue001]):?\s{{1,5}}{MARKUP}{RATING}[.!]?{MARKUP}\s{{0,9}}\Z", re.IGNORECASE
)
_LEADING = compile_later(
    rf"\s{{0,99}}{MARKUP}{RATING}{MARKUP}(?=[ \t]{{0,5}}(?:[-\u2013\u2014:;(#\n\r]|,(?![ \t]?[0-9])|//))",
    re.IGNORECASE,
)
_AFTER_THE_SCALE = compile_later(
    rf"\ue001[)\]]?[ \t]{{0,3}}[:=,]{_BEFORE_A_RATING}{RATING}{_NOT_A_NOUN}", re.IGNORECASE
)


@lru_cache(maxsize=64)
def _keyed(name: str | None) -> re.Pattern[str]:
    own = f"|{re.escape(name)}" if name else ""
    return re.compile(
        rf"(?<![a-z])(?P<final>(?:{FINAL_WORDS})[ \t_]{{1,2}})?(?P<label>score|rating|grade|mark|verdict|"
        rf"assessment|evaluation{own})s?"
        rf"(?P<about>[ \t][^.\n:=,;0-9!?|]{{1,60}}?)?{MARKUP}[ \t]{{0,5}}{BRACKET}{MARKUP}[ \t]{{0,3}}"
        rf"{_LINK}{_BEFORE_A_RATING}{RATING}{_NOT_A_NOUN}",
        re.IGNORECASE,
    )


def read_sentences(reply: Reply) -> list[Stated]:
    """Return the ratings that are meant where sentences speak of ratings; on another scale only if there are no others.

    Raises:
        JudgeParseError: they are about more than one thing.
    """
    meant: dict[int, Stated] = {}
    dropped: set[int] = set()
    for count, (match, is_noun) in enumerate(_statements(reply)):
        if count > MOST_STATEMENTS:
            raise JudgeParseError("the judge's reply speaks of too many scores", raw_text=reply.text)
        rating = stated(match)
        if _is_meant(reply, match, rating, is_noun=is_noun):
            if reply.name is None and any(more.match(reply.text, match.end()) for more in _RATES_SEVERAL):
                raise JudgeParseError("the judge's reply rates more than one thing", raw_text=reply.text)
            is_final = match.groupdict().get("final") is not None
            known = meant.get(rating.start)
            meant[rating.start] = replace(rating, is_final=is_final or (known is not None and known.is_final))
        else:
            dropped.add(rating.start)
    ratings = [rating for start, rating in sorted(meant.items()) if start not in dropped]
    ours = [rating for rating in ratings if rating.out_of in (None, reply.score_range[1])]
    return ours or ratings


def _statements(reply: Reply) -> Iterator[tuple[re.Match[str], bool]]:
    """Yield where a rating may be stated, and whether by a noun, so that what follows can explain it."""
    text = reply.text
    for pattern, is_noun in (
        (_keyed(reply.name), True),
        (_VERBAL, False),
        (_EQUATED, False),
        (_FRACTION, True),
        (_ANOTHER, True),
        (_AFTER_THE_SCALE, False),
    ):
        yield from ((match, is_noun) for match in pattern.finditer(text))
    closing = _CLOSING.search(text, max(0, len(text) - LONGEST_LINE))
    leading = _LEADING.match(text)
    yield from ((match, False) for match in (closing, leading) if match is not None)


def _is_meant(reply: Reply, match: re.Match[str], rating: Stated, *, is_noun: bool) -> bool:
    text = reply.text
    about = match.groupdict().get("about")
    behind = text[match.end() : match.end() + 40]
    return not (
        reply.is_quoted(rating.start)
        or ends_a_span(text, rating.start)
        or (is_noun and not _IS.search(match[0]) and is_end_of_scale(text, rating.start, rating.end))
        or reply.is_about_another(_word_before(text, match))
        or reply.is_about_another(about or (_FOR.match(behind) or [None])[0])
        or (_stands_first(text, match.start()) and is_introduced_as_foreign(text, match.start()))
        or (about is not None and is_reported(about))
        or is_of_another_thing(
            text, rating.start, has_maximum=rating.out_of is not None or behind.startswith(" out of")
        )
        or (reply.name is not None and reply.is_about_another(_subject_before(text, rating.start)))
        or not is_meant(text, match, is_noun=is_noun, number_end=match.end())
    )


_RATES_SEVERAL = tuple(
    compile_later(rf"{between}[ \t]{{1,3}}{FILLER}{{0,2}}{RATING}{_NOT_A_NOUN}", re.IGNORECASE)
    for between in (
        rf"[ \t]{{1,3}}(?:for|in|on)(?:{_WORD}){{1,3}}(?:,|[ \t](?:and|but|yet))",
        rf",?[ \t]?(?:[ \t](?:and|but|yet|while))?[ \t](?:for|in|on|the|its)(?:{_WORD}){{1,3}}:?",
    )
)

"""`5 for fluency but 2 for consistency`, `the first a 4 and the second a 2`:
neither of the two is the one rating that was asked for."""
_TAKEN_BACK = compile_later(
    r"\b(?:sorry|wait|hold on|correction|scratch that|oops|apologies|I meant|make (?:that|it)|"
    r"on (?:second thoughts?|(?:further |closer )?reflection)|let me (?:correct|revise|reconsider|change)|"
    r"actually,? (?:it|I|this|an?|the (?:score|rating))\b|"
    r"I(?: would|['\u2019]d)? (?:lower|raise|revise|correct|change))\b"
    rf"[^.\n]{{0,60}}?(?<![\w.,]){RATING}{_NOT_A_NOUN}",
    re.IGNORECASE,
)


def takes_back(reply: Reply, rating: Stated) -> bool:
    """Return whether another rating is led in, behind this one, as what the judge means instead."""
    corrections = (stated(match) for match in _TAKEN_BACK.finditer(reply.text, rating.end))
    return any(
        other.value != rating.value and other.out_of in (None, reply.score_range[1]) for other in corrections
    )


def _stands_first(text: str, start: int) -> bool:
    """Return whether a line, or what a colon leads in, begins at `start`."""
    return text[max(0, start - 30) : start].rstrip(" \t*_`\"'")[-1:] in ("", "\n", ":", "\uff1a")


def _word_before(text: str, match: re.Match[str]) -> str | None:
    """Return the word before the noun that a rating is said of: `fluency` of `the fluency score is 4`."""
    if "about" not in match.groupdict():
        return None
    word = _WORD_BEFORE.search(text, max(0, match.start() - 20), match.start())
    return None if word is None else word[0]


def _subject_before(text: str, start: int) -> str | None:
    """Return what a rating is said of by a verb before it: `its relevance is` before `4 out of 5`."""
    match = _SUBJECT.search(text, max(0, start - 60), start)
    return None if match is None else match["subject"]


_SUBJECT = compile_later(
    r"\b(?P<subject>[a-z]{4,20})[ \t]{1,3}(?:is|was|gets?|scores?|earns?|deserves?|receives?)[ \t]"
    rf"{FILLER}{{0,2}}{MARKUP}\Z",
    re.IGNORECASE,
)
_WORD_BEFORE = compile_later(r"[a-z]{4,20}[ \t]{1,2}\Z", re.IGNORECASE)
_IS = compile_later(r"[:=]|\bis\b")
_FOR = compile_later(
    r"[*_\"]{0,3}[ \t]{1,3}(?:for|in|on|in terms of|regarding)[ \t](?:the[ \t]|its[ \t])?[a-z]{4,20}",
    re.IGNORECASE,
)
