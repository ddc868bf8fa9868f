"""Read a verdict from a reply without the JSON asked for: from a line that states it, else from a sentence.

A line that states it is `Final score: 7`, in any dress and many languages. Of sentences only one rating may be meant.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import JudgeParseError
from geval_cli.judge.dimensions import DIMENSIONS
from geval_cli.judge.metric import ScoreRange, format_number
from geval_cli.judge.replies.context import (
    is_end_of_scale,
    is_introduced_as_foreign,
    is_meant,
    is_of_another_thing,
    is_reported,
    quoted_spans,
)
from geval_cli.judge.replies.spelling import (
    MARKUP,
    RATING,
    SPAN,
    THOUGHTS,
    Stated,
    ends_a_span,
    number_of,
    stated,
)
from geval_cli.patterns import compile_later

_MOST_STATEMENTS = 300
"""A reply that rates more often than this is not about one rating."""

LONGEST_PROSE = 50_000
"""Characters: no judge that was asked for a rating and a reason writes more, and reading it takes as long as it is."""

_LONGEST_LINE = 60
_FLAGS = re.IGNORECASE | re.MULTILINE

# -- the words of a verdict line ------------------------------------------------------------------------------------

_FINAL_WORDS = (
    r"final|overall|total|revised|corrected|updated|definitive|concluding|finale?s?|globale?|insgesamt|"
    r"gesamt|endgültige|"
    r"abschließende|итоговая|общая|最终|最終|总|總|综合|総合|최종|종합"
)
_QUALIFIERS = (
    rf"{_FINAL_WORDS}|the|my|your|our|assigned|given|evaluation|quality|numerical|numeric|actual|resulting|"
    rf"suggested|"
    r"single|meine|die|la|le|el|il|mi|ma|mon"
)
_NOUNS = (
    r"scores?|ratings?|grade|marks?|verdict|answer|result|evaluation|assessment|quality|judge?ment|decision|"
    r"conclusion|"
    r"punktzahl|punkte|bewertung|wertung|note|gesamtnote|gesamtbewertung|gesamtpunktzahl|endnote|"
    r"endergebnis|ergebnis|"
    r"puntuaci[oó]n|puntaje|calificaci[oó]n|nota|valoraci[oó]n|évaluation|punteggio|voto|valutazione|"
    r"pontuaç[aã]o|"
    r"pontuacao|avaliação|classificação|оценка|балл|баллы|рейтинг|评分|評分|分数|分數|得分|评级|评价|スコア|評価|点数|得点|評点|採点|"
    r"점수|평점|등급|wynik|ocena|punktacja|beoordeling|cijfer|poäng|betyg|karakter|vurdering|puan|điểm|skor|nilai|"
    r"hodnocení|skóre|arvosana|pontszám|értékelés|scor|punctaj|βαθμολογία|ציון|الدرجة|التقييم|स्कोर|अंक|คะแนน"
)
_STATES = (
    r"(?:[:=\uff1a|]|->|=>|→|⇒|[-\u2013\u2014](?=[ \t])|"
    r"\b(?:is|ist|est|es|è|é)\b:?|为|是|は|(?<=[\u3040-\u9fff])[ \t](?=[0-9]))"
)
_ABOUT = (
    r"(?:[ \t](?:for|of|on|in|der|de|des|du|del|für|pour|para)[ \t](?P<about>[^:=\uff1a|\n0-9.!?]{1,60}?))?"
)
_BRACKET = r"(?:(?P<bracket>\([^()\n]{0,40}\)|\[[^\[\]\n]{0,40}\]))?"
_CLOSING_MARKS = r"[*_\"'`”)\]}|$]"
_REMARK = (
    r"(?:\Z|[\r\n<\ue001]|[.!](?!\w)|[,;。\uff0c\uff1b、)\]](?![0-9])|[-\u2013\u2014(#~|]|//|\b(?:because|"
    r"since|as|due|but|given|based|"
    r"weil|da|denn|porque|parce|car|perché|потому)\b)"
)
_THEN_A_REMARK = rf"(?={_CLOSING_MARKS}{{0,6}}[.!]?{_CLOSING_MARKS}{{0,4}}[ \t]{{0,5}}{_REMARK})"
_THEN_THE_END_OF_LINE = rf"(?={_CLOSING_MARKS}{{0,6}}[.!]?{_CLOSING_MARKS}{{0,4}}[ \t]{{0,5}}(?:\r?\n|\Z))"
_LINE_START = (
    r"(?:^|(?<=[.!?;:)]) {1,4}|(?<=[。\uff01\uff1f]))"
    r"[ \t]{0,12}(?:(?:[-*•+|\u2013]|"
    r"#{1,6})[ \t]{0,4}){0,2}(?:[0-9]{1,2}[.)][ \t]{1,4})?[*_`'\"“]{0,4}[ \t]{0,2}"
)
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_QUALIFIED = rf"(?:(?:{_QUALIFIERS})(?:[ \t_-]{{1,3}}|(?=[{_CJK}]))){{0,4}}"
_LABEL = (
    rf"(?:{_QUALIFIED}(?:{_NOUNS})(?:[ \t](?:{_FINAL_WORDS}))?"
    r"|(?:the[ \t])?(?:final|overall|total|insgesamt|gesamt))"
)
_FILLER = (
    r"(?:(?:an?|about|only|just|therefore|thus|hence|then|probably|likely|still|at|as|is|around|"
    r"approximately|roughly|"
    r"perhaps|solid|clear|easy|strong|weak|perfect|decent|firm|generous|ein|eine|un|une|una)[ \t]{1,3}|[~≈][ \t]?)"
)
_BREAK = r"[ \t]{0,9}\r?\n\s{0,9}(?:[-*>][ \t])?"


def _line(label: str, rating: str) -> re.Pattern[str]:
    """Return a line that begins with the label and states a rating, on it or alone below it."""
    head = rf"{_LINE_START}(?P<label>{label})(?!\w){_ABOUT}{MARKUP}[ \t]{{0,5}}{_BRACKET}{MARKUP}[ \t]{{0,9}}"
    return compile_later(rf"{head}{rating}", _FLAGS)


_IN_WORDS = (
    r"(?:(?:very[ \t])?(?:poor|bad|weak|low|fair|average|medium|moderate|mediocre|acceptable|adequate|"
    r"satisfactory|good|high|"
    r"strong|excellent)[ \t]{0,2}[(:,-]?[ \t]{0,2})?"
)
_ON_THE_LINE = rf"{_STATES}{MARKUP}[ \t]{{0,9}}{_FILLER}{{0,2}}{_IN_WORDS}{MARKUP}{RATING}{_THEN_A_REMARK}"
_BELOW_THE_LINE = rf"{_STATES}?{MARKUP}{_BREAK}{MARKUP}{RATING}{_THEN_THE_END_OF_LINE}"
_VAGUE = (
    rf"{_STATES}{MARKUP}[ \t]{{0,9}}{_FILLER}{{0,2}}(?:between[ \t]|entre[ \t]|zwischen[ \t])?{MARKUP}{SPAN}"
)

_VERDICT_LINES = (_line(_LABEL, _ON_THE_LINE), _line(_LABEL, _BELOW_THE_LINE))
_VAGUE_LINE = _line(_LABEL, _VAGUE)
_TAGGED = compile_later(
    r"<(?P<label>(?:final|overall)?[_-]?(?:score|rating|grade|mark|verdict|answer|result))(?:[ \t][^<>\n]{1,60})?>"
    rf"\s{{0,9}}{MARKUP}{RATING}\s{{0,9}}</",
    re.IGNORECASE,
)
_BOXED = compile_later(
    rf"\\boxed\s?\{{\s{{0,3}}(?:\\text\{{)?(?:score[:=]\s?)?{RATING}\s{{0,3}}\}}", re.IGNORECASE
)
_DOUBLE_BRACKETS = compile_later(rf"\[\[\s?{RATING}\s?\]\]", re.IGNORECASE)
_RESULT_MARK = compile_later(
    rf"\[(?P<label>result)\][:\s]{{0,5}}{MARKUP}{RATING}{_THEN_A_REMARK}", re.IGNORECASE
)
"""`[RESULT] 4`, with which judges of the Prometheus family end."""
_LONE = (
    rf"[ \t]{{0,9}}(?:(?:[-*•>]|#{{1,6}})[ \t])?{MARKUP}{_FILLER}{{0,2}}{RATING}[.!]?{MARKUP}[ \t\r]{{0,9}}"
)
_LONE_NUMBER = compile_later(rf"\s{{0,9}}{_LONE}\s{{0,9}}", re.IGNORECASE)
_LONE_NUMBERS = compile_later(rf"^{_LONE}$", _FLAGS)
_IS_FINAL = compile_later(
    rf"(?:^|\W|(?<=[{_CJK}]))(?:{_FINAL_WORDS})|gesamt|\bend(?:note|ergebnis)", re.IGNORECASE
)
_BRACKET_MAXIMUM = compile_later(
    r"(?:out of|/|of|von|sur|max(?:imum)?:?|[-\u2013\u2014]|"
    r"to)\s{0,3}(?P<most>[0-9]{1,9}(?:\.[0-9]{1,6})?)\W{0,3}\Z",
    re.IGNORECASE,
)
_OTHER_THINGS = compile_later(
    r"\b(?:examples?|sample|reference|other|threshold|passing|target|human|expected|previous|average|minimum)\b",
    re.IGNORECASE,
)
_ASPECT = compile_later(
    rf"\b(?:{'|'.join(DIMENSIONS)}|accuracy|grammar|style|clarity|tone|"
    r"conciseness|completeness|correctness|informativeness|readability|factuality|faithfulness|"
    r"understandability)\b",
    re.IGNORECASE,
)

# -- the words of a verdict in a sentence ---------------------------------------------------------------------------

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
_BEFORE_A_RATING = rf"[ \t]{{0,3}}{_FILLER}{{0,3}}{MARKUP}"
_VERBAL = compile_later(
    rf"\b(?P<label>{_VERB})(?:(?:{_WORD}){{0,9}}?[ \t]{{1,3}}{_LEADS_IN})?[ \t]{{1,3}}{MARKUP}{RATING}{_NOT_A_NOUN}",
    re.IGNORECASE,
)
_EQUATED = compile_later(
    r"\b(?P<label>it|this|that|(?<=this )one|summary|output|response|answer|text|reply|dialogue|(?<=so )|me)"
    rf"(?:['\u2019]s|(?<=it)s(?=[ \t]an?[ \t])|(?<=this)[ \t]would[ \t]be|[ \t](?:is|was)|"
    rf":)[ \t]{{1,3}}{_FILLER}{{0,3}}{MARKUP}{RATING}{_NOT_A_NOUN}",
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
_OTHER_SCALE = compile_later(
    r"\b(?:scale|range)[ \t](?:of|from)[ \t]{1,3}-?[0-9]{1,9}(?:\.[0-9]{1,6})?[ \t]{0,3}(?:to|and|"
    r"[-\u2013\u2014])[ \t]{0,3}"
    r"(?P<most>[0-9]{1,9}(?:\.[0-9]{1,6})?)"
    r"|^\W{0,4}(?:out of|max(?:imum)?(?:[ \t](?:score|rating|points?|"
    r"possible))?)\W{0,5}(?P<top>[0-9]{1,9})\W{0,4}$",
    _FLAGS,
)


_STRUCK_OUT = compile_later(r"~~[^~\n]{1,300}~~")
_INNER_THOUGHTS = compile_later(rf"<({THOUGHTS})>[^<]{{0,5000}}</\1>", re.IGNORECASE)


class Reply(Struct):
    """A reply in prose with the scale to read it by. `name` is the label before a form's rating."""

    text: str
    score_range: ScoreRange
    name: str | None
    quotes: list[tuple[int, int]]

    @classmethod
    def of(cls, text: str, score_range: ScoreRange, name: str | None) -> "Reply":
        """Return a reply in which the scale that was asked for, where it is repeated, cannot be taken for a rating."""
        spoken = _INNER_THOUGHTS.sub(lambda match: " " * len(match[0]), text)
        spoken = _STRUCK_OUT.sub(lambda match: " " * len(match[0]), spoken)
        masked = _own_scale(score_range).sub(lambda match: "\ue001" * len(match[0]), spoken)
        return cls(masked, score_range, name, quoted_spans(masked))

    def is_quoted(self, position: int) -> bool:
        """Return whether what stands at `position` is quoted."""
        index = bisect_right(self.quotes, (position, len(self.text))) - 1
        return index >= 0 and position < self.quotes[index][1]

    def is_about_another(self, words: str | None) -> bool:
        """Return whether a rating is said to be of another dimension than the one that the form asks for."""
        aspect = None if words is None or self.name is None else _ASPECT.search(words)
        return aspect is not None and self.name is not None and self.name.lower() not in (words or "").lower()


@lru_cache(maxsize=64)
def _own_scale(score_range: ScoreRange) -> re.Pattern[str]:
    low, high = (rf"{re.escape(format_number(end))}(?:\.0)?" for end in score_range)
    explained = r"(?:[ \t]?\([^()\n0-9]{1,60}\)|[ \t]?[=:][ \t]?[a-z]{1,20}(?: [a-z]{1,20})?)?"
    return re.compile(
        rf"(?<![\w.,/+-]){low}{explained},?[ \t]{{0,3}}(?:to|and|through|bis|a|à|[-\u2013\u2014~]|\.{{2,3}}|"
        rf"…)[ \t]{{0,3}}"
        rf"(?:an?[ \t])?{high}(?!\w|[.,/][0-9]|[ \t]?%){explained}",
        re.IGNORECASE,
    )


def other_scale(text: str, score_range: ScoreRange) -> float | None:
    """Return the maximum of a scale that a reply names, if it is not the one asked for and is the only one named."""
    tops = {number_of(match["most"] or match["top"]) for match in _OTHER_SCALE.finditer(text)}
    return None if len(tops) != 1 or score_range[1] in tops else tops.pop()


# -- a line of the form, a line with a verdict ----------------------------------------------------------------------


@lru_cache(maxsize=64)
def _form_lines(name: str) -> tuple[re.Pattern[str], ...]:
    label = rf"(?:{_QUALIFIED})?{re.escape(name)}(?:[ \t](?:score|rating|grade))?"
    return _line(label, _ON_THE_LINE), _line(label, _BELOW_THE_LINE)


def read_form_line(reply: Reply) -> list[Stated]:
    """Return the ratings in lines such as `- Coherence: 4`, or the number that is the whole reply."""
    if reply.name is None:
        return []
    alone = _LONE_NUMBER.fullmatch(reply.text.strip()) if len(reply.text) < _LONGEST_LINE else None
    if alone is not None:
        return list(_lone_numbers(reply.text))
    return list(_stated_in_lines(reply, _form_lines(reply.name)))


def read_verdict_lines(reply: Reply) -> list[Stated]:
    """Return the ratings in lines such as `Final score: 7`, in tags, boxes, tables and numbers alone on a line.

    Raises:
        JudgeParseError: a line states a span of ratings.
    """
    for match in _VAGUE_LINE.finditer(reply.text):
        if not _is_another_s(reply, match):
            raise JudgeParseError("the judge's reply states more than one score", raw_text=reply.text)
    marked = (
        replace(stated(match), is_final=pattern is _BOXED)
        for pattern in (_TAGGED, _BOXED, _DOUBLE_BRACKETS, _RESULT_MARK)
        for match in pattern.finditer(reply.text)
        if not _is_another_s(reply, match)
    )
    return [
        *_lone_numbers(reply.text),
        *_stated_in_lines(reply, _VERDICT_LINES),
        *marked,
        *_in_tables(reply.text),
    ]


def _stated_in_lines(reply: Reply, patterns: tuple[re.Pattern[str], ...]) -> Iterator[Stated]:
    for pattern in patterns:
        for match in pattern.finditer(reply.text):
            about = f"{match['about'] or ''} {match['bracket'] or ''}"
            is_ours = not (_OTHER_THINGS.search(about) or reply.is_about_another(about))
            if is_ours and not _is_another_s(reply, match):
                rating = stated(match, is_final=_IS_FINAL.search(match["label"]) is not None)
                most = None if match["bracket"] is None else _BRACKET_MAXIMUM.search(match["bracket"][:-1])
                if most is not None and rating.out_of is None:
                    rating = replace(rating, out_of=number_of(most["most"]))
                yield rating


def _is_another_s(reply: Reply, match: re.Match[str]) -> bool:
    """Return whether a line is quoted, or led in as somebody else's or as an example."""
    label = match.start("label") if "label" in match.groupdict() else match.start()
    return reply.is_quoted(label) or is_introduced_as_foreign(reply.text, label)


def _lone_numbers(text: str) -> Iterator[Stated]:
    """Yield the numbers alone on a line, if the first or the last line that is not blank is one of them."""
    found = list(_LONE_NUMBERS.finditer(text))
    if not found or len(found) > _MOST_STATEMENTS:
        return
    is_first, is_last = not text[: found[0].start()].strip(), not text[found[-1].end() :].strip()
    if is_first or is_last:
        yield from (stated(match) for match in found if not is_introduced_as_foreign(text, match.start()))


_TABLE_RULE = compile_later(r"^[ \t]{0,9}\|?[ \t]{0,9}:?-{2,}+[-:| \t]{0,200}+$", re.MULTILINE)
_CELL = compile_later(r"[^|\n]+")
_CELL_RATING = compile_later(rf"\s{{0,9}}{MARKUP}{RATING}{MARKUP}\s{{0,9}}", re.IGNORECASE)
_CELL_LABEL = compile_later(rf"\W{{0,4}}{_LABEL}\W{{0,4}}(?:\([^()]*\)\W{{0,4}})?", re.IGNORECASE)


def _in_tables(text: str) -> Iterator[Stated]:
    """Yield the rating under a heading such as `Score`, in tables of one row."""
    for rule in _TABLE_RULE.finditer(text):
        head_start = text.rfind("\n", 0, max(rule.start() - 1, 0)) + 1
        row_end = text.find("\n", rule.end() + 1)
        row_end = len(text) if row_end == -1 else row_end
        if text[row_end : row_end + 40].strip(" \t\n")[:1] == "|" or row_end - head_start > _MOST_STATEMENTS:
            continue
        heads = list(_CELL.finditer(text, head_start, rule.start()))
        cells = list(_CELL.finditer(text, rule.end() + 1, row_end))
        for head, cell in zip(heads, cells, strict=False):
            if _CELL_LABEL.fullmatch(head[0].strip()) and (
                match := _CELL_RATING.fullmatch(text, cell.start(), cell.end())
            ):
                yield stated(match)


# -- sentences ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _keyed(name: str | None) -> re.Pattern[str]:
    own = f"|{re.escape(name)}" if name else ""
    return re.compile(
        rf"(?<![a-z])(?P<final>(?:{_FINAL_WORDS})[ \t_]{{1,2}})?(?P<label>score|rating|grade|mark|verdict|"
        rf"assessment|evaluation{own})s?"
        rf"(?P<about>[ \t][^.\n:=,;0-9!?|]{{1,60}}?)?{MARKUP}[ \t]{{0,5}}{_BRACKET}{MARKUP}[ \t]{{0,3}}"
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
        if count > _MOST_STATEMENTS:
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
    closing = _CLOSING.search(text, max(0, len(text) - _LONGEST_LINE))
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
    compile_later(rf"{between}[ \t]{{1,3}}{_FILLER}{{0,2}}{RATING}{_NOT_A_NOUN}", re.IGNORECASE)
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
    rf"{_FILLER}{{0,2}}{MARKUP}\Z",
    re.IGNORECASE,
)
_WORD_BEFORE = compile_later(r"[a-z]{4,20}[ \t]{1,2}\Z", re.IGNORECASE)
_IS = compile_later(r"[:=]|\bis\b")
_FOR = compile_later(
    r"[*_\"]{0,3}[ \t]{1,3}(?:for|in|on|in terms of|regarding)[ \t](?:the[ \t]|its[ \t])?[a-z]{4,20}",
    re.IGNORECASE,
)
