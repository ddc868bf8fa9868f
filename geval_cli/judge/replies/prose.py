"""Read a verdict from a reply without the JSON asked for, from a line that states it; `sentences` reads the others.

A line that states it is `Final score: 7`, in any dress and many languages.
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
from geval_cli.judge.replies.context import quoted_spans
from geval_cli.judge.replies.spelling import (
    MARKUP,
    RATING,
    SPAN,
    THOUGHTS,
    Stated,
    is_introduced_as_foreign,
    number_of,
    stated,
)
from geval_cli.patterns import compile_later

MOST_STATEMENTS = 300
"""A reply that rates more often than this is not about one rating."""

LONGEST_PROSE = 50_000
"""Characters: no judge that was asked for a rating and a reason writes more, and reading it takes as long as it is."""

LONGEST_LINE = 60
"""Characters of a line that may be nothing but a rating with its dress."""

_FLAGS = re.IGNORECASE | re.MULTILINE

# -- the words of a verdict line ------------------------------------------------------------------------------------

FINAL_WORDS = (
    r"final|overall|total|revised|corrected|updated|definitive|concluding|finale?s?|globale?|insgesamt|"
    r"gesamt|endgültige|"
    r"abschließende|итоговая|общая|最终|最終|总|總|综合|総合|최종|종합"
)
_QUALIFIERS = (
    rf"{FINAL_WORDS}|the|my|your|our|assigned|given|evaluation|quality|numerical|numeric|actual|resulting|"
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
BRACKET = r"(?:(?P<bracket>\([^()\n]{0,40}\)|\[[^\[\]\n]{0,40}\]))?"
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
# These scripts put no space between a word and what follows it.
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_QUALIFIED = rf"(?:(?:{_QUALIFIERS})(?:[ \t_-]{{1,3}}|(?=[{_CJK}]))){{0,4}}"
_LABEL = (
    rf"(?:{_QUALIFIED}(?:{_NOUNS})(?:[ \t](?:{FINAL_WORDS}))?"
    r"|(?:the[ \t])?(?:final|overall|total|insgesamt|gesamt))"
)
FILLER = (
    r"(?:(?:an?|about|only|just|therefore|thus|hence|then|probably|likely|still|at|as|is|around|"
    r"approximately|roughly|"
    r"perhaps|solid|clear|easy|strong|weak|perfect|decent|firm|generous|ein|eine|un|une|una)[ \t]{1,3}|[~≈][ \t]?)"
)
_BREAK = r"[ \t]{0,9}\r?\n\s{0,9}(?:[-*>][ \t])?"


def _line(label: str, rating: str) -> re.Pattern[str]:
    """Return a line that begins with the label and states a rating, on it or alone below it."""
    head = rf"{_LINE_START}(?P<label>{label})(?!\w){_ABOUT}{MARKUP}[ \t]{{0,5}}{BRACKET}{MARKUP}[ \t]{{0,9}}"
    return compile_later(rf"{head}{rating}", _FLAGS)


_IN_WORDS = (
    r"(?:(?:very[ \t])?(?:poor|bad|weak|low|fair|average|medium|moderate|mediocre|acceptable|adequate|"
    r"satisfactory|good|high|"
    r"strong|excellent)[ \t]{0,2}[(:,-]?[ \t]{0,2})?"
)
_ON_THE_LINE = rf"{_STATES}{MARKUP}[ \t]{{0,9}}{FILLER}{{0,2}}{_IN_WORDS}{MARKUP}{RATING}{_THEN_A_REMARK}"
_BELOW_THE_LINE = rf"{_STATES}?{MARKUP}{_BREAK}{MARKUP}{RATING}{_THEN_THE_END_OF_LINE}"
_VAGUE = (
    rf"{_STATES}{MARKUP}[ \t]{{0,9}}{FILLER}{{0,2}}(?:between[ \t]|entre[ \t]|zwischen[ \t])?{MARKUP}{SPAN}"
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
    rf"[ \t]{{0,9}}(?:(?:[-*•>]|#{{1,6}})[ \t])?{MARKUP}{FILLER}{{0,2}}{RATING}[.!]?{MARKUP}[ \t\r]{{0,9}}"
)
_LONE_NUMBER = compile_later(rf"\s{{0,9}}{_LONE}\s{{0,9}}", re.IGNORECASE)
_LONE_NUMBERS = compile_later(rf"^{_LONE}$", _FLAGS)
_IS_FINAL = compile_later(
    rf"(?:^|\W|(?<=[{_CJK}]))(?:{FINAL_WORDS})|gesamt|\bend(?:note|ergebnis)", re.IGNORECASE
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

_OTHER_SCALE = compile_later(
    r"\b(?:scale|range)[ \t](?:of|from)[ \t]{1,3}-?[0-9]{1,9}(?:\.[0-9]{1,6})?[ \t]{0,3}(?:to|and|"
    r"[-\u2013\u2014])[ \t]{0,3}"
    r"(?P<most>[0-9]{1,9}(?:\.[0-9]{1,6})?)"
    r"|^\W{0,4}(?:out of|max(?:imum)?(?:[ \t](?:score|rating|points?|"
    r"possible))?)\W{0,5}(?P<top>[0-9]{1,9})\W{0,4}$",
    _FLAGS,
)


# What a judge crossed out, or thought in passing, is not what it says.
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
    alone = _LONE_NUMBER.fullmatch(reply.text.strip()) if len(reply.text) < LONGEST_LINE else None
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
    if not found or len(found) > MOST_STATEMENTS:
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
        if text[row_end : row_end + 40].strip(" \t\n")[:1] == "|" or row_end - head_start > MOST_STATEMENTS:
            continue
        heads = list(_CELL.finditer(text, head_start, rule.start()))
        cells = list(_CELL.finditer(text, rule.end() + 1, row_end))
        for head, cell in zip(heads, cells, strict=False):
            if _CELL_LABEL.fullmatch(head[0].strip()) and (
                match := _CELL_RATING.fullmatch(text, cell.start(), cell.end())
            ):
                yield stated(match)
