"""Read a rating or evaluation steps from a judge's reply: where it can mean only one thing, else not at all.

A rating is read from
1. the one JSON object that has the key asked for: `{"reason": "...", "score": 4}`;
2. the one labelled rating, where it opens or closes the reply or has a line of its own: `Final score: 4/5`;
3. a bare rating that is the reply, opens it or closes it: `4`, `4 out of 5`, `Four stars. ...`.

Two ratings, another scale, a span, a decimal comma, a rating that is supposed, quoted or taken back are a JudgeError,
after which the judge is asked for the number alone: a wrong number would be believed, an error costs one more request.
Time is linear in the length of the reply.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.metric import ScoreRange, format_number
from geval_cli.judge.replies.lenient_json import (
    JsonObject,
    Member,
    Value,
    find_begun_objects,
    find_objects,
    read_array,
)
from geval_cli.patterns import compile_later

ReadAs = Literal["json", "label", "number", "retry"]
"""What a rating was read from: JSON, a labelled rating, a bare one, or the reply to the request for it alone."""


class ParsedReply(Struct, frozen=True):
    """A verdict. `score_start` and `score_end` are the character offsets of the rating in the reply."""

    rating: float
    reason: str | None
    score_start: int
    score_end: int
    read_from: ReadAs = "json"


# -- ratings ----------------------------------------------------------------------------------------------------

# What nearly all replies are: one flat object, with nothing in it that could be read in two ways.
_PLAIN_REASON = r'"reason" {0,5}:\s{0,9}"(?P<reason>[^"\\\x00-\x1f]*+)"'
_PLAIN_SCORE = r'"score" {0,5}:\s{0,9}(?P<score>-?[0-9]{1,15}(?:\.[0-9]{1,15})?)'
_PLAIN_REPLIES = tuple(
    compile_later(rf"\s*+\{{\s{{0,99}}{first}\s{{0,99}},\s{{0,99}}{second}\s{{0,99}}\}}\s*+\Z")
    for first, second in ((_PLAIN_REASON, _PLAIN_SCORE), (_PLAIN_SCORE, _PLAIN_REASON))
)

_WORD_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = "|".join(_WORD_NUMBERS)
_ANY = rf"(?:(?<![\w.,/-])[-+\u2212]?[0-9]{{1,15}}(?:\.[0-9]{{1,15}})?|\b(?:{_WORDS})\b)"
_OUT_OF = rf"\s{{0,3}}(?:/|\bout\sof\b)\s{{0,3}}(?P<top>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?|(?:{_WORDS})\b)"
_UNIT = r"\s{0,2}\b(?:stars?|points?)\b"
# What would make another number of it, or one of two: "4.5", "4,5", "4-5", "4 or 5", "4+", "4 %", "4 x 2".
_WHOLE = (
    r"(?![\w+%\u00b1\u00bc\u00bd\u00be]|\s?[.,/:;\u2026]{1,4}\s?[0-9]|\s[0-9]|\s{0,3}(?:[/%\u00b1\u2192+=\u00d7]|[-=]>)"
    r"|[\s,;.(]{0,3}(?:per\s?cent|plus\b|minus\b|less\s(?:an?\b|one\b|[0-9])|and a half)"
    rf"|\s{{0,3}}(?:[-\u2013\u2014~]|\bto\b|\bor\b|\band\b)\s{{0,3}}(?:an?\s)?(?:[0-9]|(?:{_WORDS})\b))"
)
_RATING = rf"(?P<number>{_ANY})(?:{_UNIT})?(?:{_OUT_OF}(?:{_UNIT})?)?{_WHOLE}"
_SCALE_BEHIND = r"(?:\s{0,3}[(\[](?P<span>[^()\[\]\n]{1,60})[)\]])?"
# Where a statement may end: with the line, with a sign, or with a dash that is no minus.
_STOP = r"(?=\s*\Z|[ \t]*\n|[ \t]*[.!,;:)\]]|\s+[-\u2013\u2014]+\s)"
_CLOSE = r"[\s.!)\]]*\Z"

_BARE = tuple(
    compile_later(pattern, re.IGNORECASE)
    for pattern in (
        rf"\A(?:[\s\-\u2022(\[]|#+\s)*{_RATING}{_SCALE_BEHIND}{_CLOSE}",
        rf"\A(?:[\s\-\u2022]|#+\s)*(?={_ANY}\s{{0,3}}(?:/|out\sof\b|stars?\b|points?\b)){_RATING}{_SCALE_BEHIND}{_STOP}",
        rf"\A(?:[\s\-\u2022]|#+\s)*{_RATING}{_SCALE_BEHIND}[ \t.]*\n",
        rf"(?:(?<=[^\W\d_]{{3}})(?<!approx)[.!?][)\"']?\s|\n)\s{{0,9}}{_RATING}{_SCALE_BEHIND}{_CLOSE}",
        r"[.;,][)\"']?\s(?:so\s|(?:therefore|thus|hence|overall),?\s)?"
        r"(?:I\s(?:would\s|will\s)?give\s|(?:earn|giv|mak)ing\s|it\sgets\s|resulting\sin\s)"
        r"(?:(?:it|this\s\w+|the\s\w+)\s)?an?\s(?:(?:\w+\s)?(?:score|rating)\sof\s)?"
        rf"{_RATING}(?:\s(?:for|in)(?:\s\w+){{1,3}})?{_SCALE_BEHIND}{_CLOSE}",
    )
)

_STATED = (
    r"\b(?:scores?|ratings?|grades?|marks?|verdict)\b[\s\"']{0,4}"
    r"(?:[:=]|\b(?:of|is|was|as|to|at|would be|should be|becomes)\b)"
    rf"\s{{0,3}}(?:\b(?:an?|only|just|about|around)\s)?{_ANY}",
    r"\b(?:rat(?:e|ed|es|ing)|scor(?:e|ed|es|ing)|giv(?:e|es|en|ing)|gave|deserv\w+|earn\w*|gets?|got|receiv\w+"
    r"|merit\w*|award\w*|assign\w*|worth|make (?:it|that)|be|is)\s(?:(?:it|this|that|the\s\w+)\s)?"
    rf"(?:(?:as|only|at|with|more)\s){{0,2}}an?\s(?:\w+\s)?{_ANY}(?!\s?[-%\w])",
    rf"\b(?:mak|giv|rat|scor|call)(?:e|es|ing)\s(?:it|this|that)\s(?:an?\s)?{_ANY}",
    rf"{_ANY}\s{{0,3}}(?:/|\bout\sof\b)\s{{0,3}}(?:[0-9]|(?:{_WORDS})\b)",
    rf"(?:^|[.!?\n])[ \t\-\u2022]{{0,9}}[^\W\d][\w ]{{0,30}}[:=]\s{{0,3}}{_ANY}\s{{0,2}}(?=[.!]?\s|\Z)",
    rf"\b(?:actually|maybe|perhaps|possibly|really|rather|more like|then|now|sorry|is it"
    r"|(?:lower|reduc|rais|drop|downgrad)\w*\sto"
    r"|eher|plut\u00f4t|mejor|\u0441\u043a\u043e\u0440\u0435\u0435),?\s"
    rf"(?:it is |it's |an? )?{_ANY}(?!\w|\s(?!after\b|if\b)[^\W\d])",
    rf"(?m:^[ \t\-\u2022]{{0,9}}{_ANY}[ \t.]{{0,9}}$)",
)
_ANOTHER_RATING = compile_later("|".join(_STATED), re.IGNORECASE)
_TAKEN_BACK = compile_later(
    r"\bwait\b|\b(?:no|nein|non)[,.]\s|\b(?:second|further) thoughts?\b|\bon reflection\b|\breconsider|\bscratch that\b"
    r"|\bi (?:meant|mean|misread)\b"
    r"|\b(?:correction|revis(?:e|ed|ing|ion)|take (?:it|that) back|too (?:high|low|generous|harsh))\b"
    r"|\b(?:retract|disregard|(?:is|as) an? placeholder|prompt injection|korrektur|correcci)|\bi withdraw\b"
    r"|\bnever ?mind\b|\bstrike that\b|\boops\b|\bignore (?:it|this|that|the above)\b|\b(?:is|was) not my\b"
    r"|\b(?:ask|tell|told|want|demand)\w* me\b|\b(?:is|was) (?:only |just )?(?:an?|the) (?:example|sample|template)\b"
    r"|\b(?:this|that|above|json|score|line)(?: \w+)? (?:is|was) (?:what|written by|in) the "
    r"(?:text|answer|output|sub|summary|inj)"
    r"|\u0438\u0441\u043f\u0440\u0430\u0432\u043b|\u66f4\u6b63|\u8a02\u6b63|\uc815\uc815"
    r"|\b(?:chang|lower|rais|adjust|updat|reduc)\w* (?:it|this|that|my|the (?:score|rating))\b",
    re.IGNORECASE,
)
# What makes of a sentence somebody else's words, an example, or a case that is not this one.
_SUPPOSED = compile_later(
    r"\b(?:examples?|e\.g|for instance|would|could|might|should|if|unless|were|had|perfect|ideal|better|claim\w*"
    r"|quot\w+|inject\w*|instruct(?:s|ed)|demand\w*|tells?|told|asks?|asked|says?|said|stat(?:es|ed|ing)|writes?|wrote"
    r"|written|contain\w*|includ\w*|reads?|ends? with|previous\w*|earlier|before|other|sample|itself"
    r"|concludes|reference|without|submission|last line|ends(?=\W*\Z)|tr(?:y|ies|ied)|attempt\w*"
    r"|not|never|cannot|pretend\w*|draft|initial(?:ly)?|template|placeholder"
    r"|withdrawn|struck|\w*confirm\w*|guess\w*|tentative\w*|correction|docked|deducted|taken off)\b"
    r"|n['\u2019]t\b|\A\W*(?:(?:the|output|reply)\s)?format\b|\b(?:look|reply|answer)\w*\slike\b",
    re.IGNORECASE,
)
_SCALE = compile_later(
    r"\bscale\b[^\n.!?0-9]{0,20}(?P<low>-?[0-9]{1,9}(?:\.[0-9]{1,6})?)\s{0,3}(?:to|and|through|[-\u2013\u2014])\s{0,3}"
    r"(?P<high>-?[0-9]{1,9}(?:\.[0-9]{1,6})?)"
    r"|(?<![\w.])(?P<low2>-?[0-9]{1,9})\s{0,3}(?:to|[-\u2013\u2014])\s{0,3}(?P<high2>[0-9]{1,9})[\s-]{1,3}(?:point\s)?scale\b"
    rf"|(?P<points>[0-9]{{1,4}}|\b(?:{_WORDS}))[\s-]points?\s(?:\w+\s)?scale\b"
    r"|\b(?:out\sof|max|maximum)\b\W{0,4}(?P<most>[0-9]{1,9}(?:\.[0-9]{1,6})?)",
    re.IGNORECASE,
)
_SPAN = compile_later(
    r"\s*(-?[0-9.]{1,9})\s{0,3}(?:to|[-\u2013\u2014])\s{0,3}(-?[0-9.]{1,9})(?:\s(?:scale|points?))?\s*"
)
_QUALIFIES = compile_later(rf"[\d?]|\brequest|\b(?:{_WORDS}|von|sur|aus)\b", re.IGNORECASE)
_CONDITION = compile_later(
    r"\b(?:if|unless|otherwise|normally|usually)\b|^\W*(?:with|without|had|were)\b", re.IGNORECASE
)
# A line of a quotation, a comment, and a tag that is none of those that judges put around their own verdicts.
_QUOTED = compile_later(
    r"(?:^[ \t]*>[^\n]*|<!--\s*|<(?!/|(?:json|results?|evaluation|verdict|judge?ment|assessment"
    r"|response|answer|output|score|rating|final\w*|tool\w*)>)[a-z][^<>\n]{0,60}>[\s`{\[(\"']*)\Z",
    re.IGNORECASE | re.MULTILINE,
)
_DEDUCTION = compile_later(
    r"(?P<none>\b(?:no|not|nothing|without|never|nor)\b[^.\n]{0,60}|n['\u2019]t\b[^.\n]{0,60})?"
    r"\b(?:deduct|subtract|dock|penali|minus\b|less (?:one|an?)\b"
    rf"|(?:points?|{_WORDS})\s(?:points?\s)?(?:off|taken off|lost)\b)",
    re.IGNORECASE,
)
_LONGEST_SENTENCE = 600
_MARKUP = str.maketrans({**dict.fromkeys("*_`|\r", " "), "\uff1a": ":"})
_BULLETS = " \t\r\n-\u2022#>"
_SENTENCE_END = compile_later(r"[.!?\u2026][)\"'\u201d\]]?\s|\n")


def parse_rating(
    text: str, *, score_range: ScoreRange, name: str | None = None, is_cut_off: bool = False
) -> ParsedReply:
    """Return the verdict of a reply.

    Args:
        text: the reply.
        score_range: the ends of the scale.
        name: what the form asks for in dimension form (`Coherence`); `Score` and `Rating` are labels too.
        is_cut_off: a token limit ended the reply, so that its last digits may be missing.

    Raises:
        JudgeParseError: there is no rating, more than one, or one that can be understood in another way.
        JudgeRangeError: the rating lies outside `score_range`, or is on another scale.
    """
    for plain in _PLAIN_REPLIES:
        if (match := plain.match(text)) and not PLACEHOLDER.fullmatch(match["reason"]):
            value = float(match["score"])
            _check_range(value, None, score_range, text)
            return ParsedReply(value, one_line(match["reason"]), *match.span("score"))
    answer = without_thoughts(text)
    found, prose, object_start = _of_objects(answer, name, score_range, text)
    words = prose.translate(_MARKUP)
    if found is not None:
        _check_alone(words, object_start, object_start, score_range, name, text)
        return found
    labels = list(_label_of(name).finditer(words))
    if len(labels) > 1:
        raise JudgeParseError(f"the judge's reply states {len(labels)} ratings", raw_text=text)
    read_from: ReadAs = "label"
    rating = labels[0] if labels and _is_a_statement(words, labels[0]) else None
    if rating is None and not labels:
        read_from = "number"
        rating = next(filter(None, (pattern.search(words) for pattern in _BARE)), None)
    if rating is None or (
        read_from == "number" and _CONDITION.search(_last_sentence(words[: rating.start()]))
    ):
        raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
    value, top = _number_of(rating["number"]), rating["top"]
    start, end = rating.span("number")
    if is_cut_off and not words[rating.end() :].strip(" \t\r\n.!)]"):
        is_all = name is not None and len(words.strip()) == end - start
        if not is_all or _may_go_on(value, score_range):
            raise JudgeParseError("the judge's reply breaks off in the middle of the score", raw_text=text)
    _check_range(value, None if top is None else _number_of(top), score_range, text)
    if "star" in rating[0].lower() and top is None and score_range[1] != 5 >= value:  # noqa: PLR2004
        raise JudgeParseError("the judge's reply gives stars, not saying out of how many", raw_text=text)
    deductions = _DEDUCTION.finditer(words, rating.end()) if value == score_range[1] else ()
    if any(deduction["none"] is None for deduction in deductions):
        raise JudgeParseError("the judge's reply takes points off the highest score", raw_text=text)
    contrary = {score_range[0]: r"\bpass|\bmet\b", score_range[1]: r"\bfail"}.get(value, r"(?!)")
    label_scale = rating.groupdict().get("scale")
    for aside in filter(None, (label_scale, rating["span"])):
        span = _SPAN.fullmatch(aside)
        if span is not None:
            _check_scale(float(span[1]), float(span[2]), score_range, text)
        # What a label has in brackets is a scale or makes another label of it, such as "Coherence (local)".
        elif (
            aside is label_scale
            or _QUALIFIES.search(aside)
            or _SUPPOSED.search(aside)
            or re.search(contrary, aside)
        ):
            raise JudgeParseError("the judge's reply qualifies its score", raw_text=text)
    _check_alone(words, rating.start(), rating.end(), score_range, name, text)
    reason = " ".join(answer.split())
    says_more = sum(map(str.isalpha, reason)) > len("out of rating") * 2
    return ParsedReply(value, reason if says_more else None, start, end, read_from)


def parse_member_rating(text: str, *, score_range: ScoreRange, name: str) -> ParsedReply:
    """Return the rating under the key `name` (`Coherence`) in the one object of a reply that rates several things.

    Raises:
        JudgeParseError: the key is missing, stands there twice, or has no number, or the reply breaks off there.
        JudgeRangeError: the rating lies outside `score_range`, or is on another scale.
    """
    answer = without_thoughts(text)
    found = [
        (holder, member)
        for outer in find_begun_objects(answer)
        for holder, member in _members_called(outer, {plain_key(name)})
    ]
    if len(found) != 1:
        why = f"the judge's reply rates {name} {len(found)} times"
        raise JudgeParseError(why if found else why_unreadable(text, f"rating of {name}"), raw_text=text)
    holder, member = found[0]
    if isinstance(member.value, JsonObject):
        inside = list(_members_called(member.value, {"score", "rating"}))
        holder, member = inside[0] if len(inside) == 1 else (holder, member)
    return _of_member(holder, member, answer, score_range, text)


@lru_cache(maxsize=64)
def _label_of(name: str | None) -> re.Pattern[str]:
    own = rf"|{re.escape(name)}(?:\s(?:score|rating))?" if name else ""
    return re.compile(
        rf"(?<![\w'\"\u201c\u2018-])(?:(?:final|overall|my|the)\s){{0,2}}(?:score|rating{own})\b\s{{0,3}}(?:[(\[](?P<scale>[^()\[\]\n]{{1,20}})[)\]]\s{{0,3}})?"
        rf"(?:[:=]|\bis\b)\s{{0,5}}{_RATING}{_SCALE_BEHIND}",
        re.IGNORECASE,
    )


def _is_a_statement(words: str, label: re.Match[str]) -> bool:
    """Return whether a labelled rating is the judge's own: a sentence or a line that stands by itself."""
    before, behind = words[: label.start()], words[label.end() :]
    line_before = before[before.rfind("\n") + 1 :].strip(_BULLETS)
    if line_before and not re.search(r"[.!?\u2026:][)\"'\u201d\]]?\s*\Z", line_before):
        return False
    if is_supposed(words, label.start()) or re.match(_STOP, behind) is None:
        return False
    # The number of an entry of a list: "Score:", and on another line "1. Facts".
    if re.match(r"\)[ \t]*\w", behind) or ("\n" in label[0] and re.match(r"\.[ \t]+\w", behind)):
        return False
    ending = _SENTENCE_END.search(behind)
    sentence = behind if ending is None else behind[: ending.start()]
    if _SUPPOSED.search(sentence) or re.search(r"\d", sentence):
        return False
    opens, closes = not before.strip(_BULLETS), not behind.strip(" \t\r\n.!)]")
    has_line = not line_before and re.match(r"[ \t.]*(?:\n|\Z)", behind) is not None
    return opens or closes or has_line


def is_supposed(text: str, start: int) -> bool:
    """Return whether the words before `start` make of it an example, a quotation, or another case."""
    before = text[max(0, start - 2 * _LONGEST_SENTENCE) : start]
    is_quoted = (">" in before or "<!" in before) and _QUOTED.search(before) is not None
    return is_quoted or _SUPPOSED.search(_lead(before)) is not None


def check_not_taken_back(behind: str, text: str) -> None:
    """Refuse a reply whose words behind its verdict take that back."""
    if _TAKEN_BACK.search(behind):
        raise JudgeParseError("the judge's reply takes its verdict back", raw_text=text)


def check_no_error(holder: JsonObject, text: str) -> None:
    """Refuse an object in which the judge reports an error: what else it holds is no verdict."""
    if any(plain_key(member.key) == "error" and member.value for member in holder.members):
        raise JudgeParseError("the judge's reply reports an error", raw_text=text)


def _lead(before: str) -> str:
    """Return the words that introduce what follows `before`: its last sentence, unless that has ended."""
    signs = "\t\r\n {[(-\u2022\"'\u201c`"
    before = re.sub(r"\s*\bjson\Z", "", before.rstrip(signs), flags=re.IGNORECASE).rstrip(signs)
    if not before or before.endswith((".", "!", "?", "\u2026", ")")):
        return ""
    return _last_sentence(before)


def _last_sentence(text: str) -> str:
    start = max(0, len(text) - _LONGEST_SENTENCE)
    ends = [match.end() for match in _SENTENCE_END.finditer(text, start)]
    return text[ends[-1] if ends else start :]


def _check_alone(
    words: str, start: int, end: int, score_range: ScoreRange, name: str | None, text: str
) -> None:
    """Refuse a reply that rates again beside `start` to `end`, takes its rating back, or names another scale."""
    behind = words[end:]
    rest = f"{words[:start]}\n\n{behind}"
    check_not_taken_back(behind, text)
    if _ANOTHER_RATING.search(rest) or _label_of(name).search(rest):
        raise JudgeParseError("the judge's reply states a second score", raw_text=text)
    for scale in _SCALE.finditer(words):
        if (most := scale["most"]) is not None:
            _check_range(score_range[0], float(most), score_range, text)
        elif (points := scale["points"]) is not None:
            top = _number_of(points)
            if top not in (score_range[1], score_range[1] - score_range[0] + 1):
                _check_scale(1, top, score_range, text)
        else:
            _check_scale(
                float(scale["low"] or scale["low2"]),
                float(scale["high"] or scale["high2"]),
                score_range,
                text,
            )


def _check_scale(low: float, high: float, score_range: ScoreRange, text: str) -> None:
    if (low, high) != tuple(score_range):
        asked = f"{format_number(score_range[0])} to {format_number(score_range[1])}"
        raise JudgeRangeError(
            f"the judge rated from {format_number(low)} to {format_number(high)}, but was asked for {asked}",
            raw_text=text,
        )


def _check_range(value: float, top: float | None, score_range: ScoreRange, text: str) -> None:
    low, high = score_range
    asked = f"{format_number(low)} to {format_number(high)}"
    if top is not None and top != high:
        message = f"the judge rated out of {format_number(top)}, but was asked for {asked}"
        raise JudgeRangeError(message, raw_text=text)
    if not low <= value <= high:
        shown = format_number(value) if abs(value) < float("inf") else "a number beyond all bounds"
        raise JudgeRangeError(f"the judge's rating is {shown}, but was asked for {asked}", raw_text=text)


def _may_go_on(value: float, score_range: ScoreRange) -> bool:
    """Return whether more digits behind a number could give another rating in the range."""
    low, high = score_range
    return high - low < 2 or 0 < value * 10 <= high  # noqa: PLR2004


def _number_of(spelling: str) -> float:
    word = spelling.lower()
    return (
        float(_WORD_NUMBERS.index(word)) if word in _WORD_NUMBERS else float(spelling.replace("\u2212", "-"))
    )


# -- JSON -------------------------------------------------------------------------------------------------------

_NO_LETTER = compile_later(r"[\W_]+")
_RATING_KEYS = frozenset(
    {"score", "rating", "grade", "mark", "finalscore", "overallscore", "finalrating", "overallrating"}
)
_SCALE_KEY = compile_later(r"scale|range|outof|max")
_ANOTHER_SCORE_KEY = compile_later(r"adjust|revis|correctedscore|total|^overall$|deduct|penalt")
_VALUE = compile_later(rf"\s*{_RATING}\s*", re.IGNORECASE)
_WRAPPERS = frozenset(
    {"result", "evaluation", "verdict", "assessment", "judgment", "judgement", "response", "answer"}
)
NOT_THE_VERDICT = compile_later(
    r"step|example|sample|criteri|previous|prior|initial|expected|other|alternative|worst|best|ideal|hypothe"
    r"|claim|quote|output|reference|scale|max|min|draft|history|anchor|rubric",
)
"""Keys, spelled by `plain_key`, whose objects hold no verdict."""

_REASON_KEYS = ("reason", "reasoning", "explanation", "rationale", "justification")


def _of_objects(
    answer: str, name: str | None, score_range: ScoreRange, text: str
) -> tuple[ParsedReply | None, str, int]:
    """Return the rating of the objects of a reply, the reply with them blanked out, and where the object begins.

    Raises:
        JudgeParseError: an object breaks off before its score, has none, or there is more than one.
    """
    asked = {"score", "rating", *((plain_key(name),) if name else ())}
    found: list[tuple[JsonObject, JsonObject, Member]] = []
    rest: list[str] = []
    position = 0
    holders = list(find_begun_objects(answer))
    for outer in holders:
        rest += (answer[position : outer.start], " " * (outer.end - outer.start))
        position = outer.end
        found += ((outer, holder, member) for holder, member in _members_called(outer, asked | _RATING_KEYS))
    words = "".join((*rest, answer[position:]))
    if not found:
        if any(not holder.is_closed for holder in holders):
            raise JudgeParseError("the judge's reply breaks off before the score", raw_text=text)
        if holders:
            raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
        return None, words, 0
    outer, holder, member = found[0]
    if len(found) > 1:
        raise JudgeParseError(f"the judge's reply has {len(found)} scores", raw_text=text)
    # One level around it is what some servers add; deeper, or in a list, it may be an example or a part.
    is_quoted = answer[outer.start - 1 : outer.start] in ("'", '"', "\u201c", "\u2018")
    is_own = holder is outer or (
        len(outer.members) == 1
        and outer.members[0].value is holder
        and plain_key(outer.members[0].key) in _WRAPPERS
    )
    if not is_own or is_quoted or plain_key(member.key) not in asked or is_supposed(answer, outer.start):
        raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
    return _of_member(holder, member, answer, score_range, text), words, outer.start


def _members_called(holder: JsonObject, keys: set[str]) -> Iterator[tuple[JsonObject, Member]]:
    for member in holder.members:
        if plain_key(member.key) in keys:
            yield holder, member
        for value in member.value if isinstance(member.value, list) else (member.value,):
            if isinstance(value, JsonObject):
                yield from _members_called(value, keys)


def _of_member(
    holder: JsonObject, member: Member, answer: str, score_range: ScoreRange, text: str
) -> ParsedReply:
    match = None
    if isinstance(member.value, str | float) and not isinstance(member.value, bool):
        match = _VALUE.fullmatch(answer, member.start, member.end)
    if match is None:
        raise JudgeParseError(f"the judge's `{member.key}` is not a number", raw_text=text)
    if not holder.is_closed and not answer[match.end() :].lstrip("\"'\u201d").lstrip().startswith(","):
        raise JudgeParseError("the judge's reply breaks off in the middle of the score", raw_text=text)
    value, top = _number_of(match["number"]), match["top"]
    _check_range(value, None if top is None else _number_of(top), score_range, text)
    check_no_error(holder, text)
    reason = reason_of(holder)
    if reason is not None and PLACEHOLDER.fullmatch(reason):
        raise JudgeParseError("the judge's reply repeats the form that it was given", raw_text=text)
    for other in holder.members:
        key, claim = plain_key(other.key), other.value
        is_another = _ANOTHER_SCORE_KEY.search(key) and isinstance(claim, float) and claim != value
        # A number is no bool here, so that 0 and 1 are not mistaken for a claim.
        is_contrary = key in ("pass", "passed", "verdict") and (
            (value == score_range[1] and (claim is False or claim in ("fail", "no")))
            or (value == score_range[0] and (claim is True or claim in ("pass", "yes")))
        )
        if is_another or is_contrary:
            raise JudgeParseError(f"the judge's `{other.key}` contradicts its score", raw_text=text)
        if _SCALE_KEY.search(plain_key(other.key)):
            numbers = re.findall(r"-?\d+(?:\.\d+)?", answer[other.start : other.end])
            if numbers and float(numbers[-1]) != score_range[1]:
                _check_range(value, float(numbers[-1]), score_range, text)
    return ParsedReply(value, reason, *match.span("number"))


def plain_key(key: str) -> str:
    """Return a key in lower case without spaces and signs: `finalscore` for `Final_Score`."""
    return _NO_LETTER.sub("", key).lower()


def reason_of(holder: JsonObject) -> str | None:
    """Return the reason that an object gives, on one line; None without one."""
    member = holder.last(*_REASON_KEYS)
    return None if member is None else one_line(member.value)


def one_line(value: Value) -> str | None:
    """Return the texts of a value on one line."""
    return " ".join(" ".join(_texts_of(value)).split()) or None


_LIST_NUMBER = compile_later(r"\A(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])\s{1,8}", re.IGNORECASE)


def _texts_of(value: Value) -> tuple[str, ...]:
    """Return the non-empty texts of a string (its lines), of a list, or of the strings inside its objects."""
    if isinstance(value, str):
        lines = (_LIST_NUMBER.sub("", line.strip()) for line in value.splitlines())
        return tuple(line for line in lines if line)
    texts = []
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, JsonObject):
            parts = (member.value for member in entry.members)
            texts.append(": ".join(part.strip() for part in parts if isinstance(part, str)))
        elif isinstance(entry, str):
            texts.append(_LIST_NUMBER.sub("", " ".join(entry.split())))
    return tuple(filter(None, texts))


# -- steps ------------------------------------------------------------------------------------------------------

_STEP_KEYS = ("steps", "evaluation_steps", "evaluation steps")
_LIST_LINE = compile_later(
    r"[ \t]{0,12}(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])[ \t]{1,8}(\S.*)", re.IGNORECASE
)
PLACEHOLDER = compile_later(r"\s*(?:<[^<>]*>|\.{3}|\u2026)\s*")
"""The placeholder for an answer in the prompt; a judge that repeats it has not answered."""


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
            steps = _texts_of(member.value) or steps
    if not steps and "{" not in answer:
        bracket = answer.find("[")
        items = None if bracket == -1 else read_array(answer, bracket)
        matches = (_LIST_LINE.fullmatch(line) for line in answer.splitlines())
        steps = _texts_of(items) or tuple(match[1].strip() for match in matches if match is not None)
    if not steps or all(map(PLACEHOLDER.fullmatch, steps)):
        raise JudgeParseError(why_unreadable(text, "evaluation steps"), raw_text=text)
    return steps


# -- thoughts ---------------------------------------------------------------------------------------------------

_THOUGHTS = "think|thinking|thoughts?|reasoning|reflection|scratchpad|analysis"
_THOUGHTS_START = compile_later(rf"(?:\A|^|(?<=>))\s*+<({_THOUGHTS})>", re.IGNORECASE | re.MULTILINE)
_THOUGHTS_END = compile_later(
    rf"(?:^[ \t]*</(?:{_THOUGHTS})>|</(?:{_THOUGHTS})>[ \t]*\r?$)", re.IGNORECASE | re.MULTILINE
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
        end = re.compile(rf"</{match[1]}>", re.IGNORECASE).search(text, match.end())
        position = len(text) if end is None else end.end()
        spans.append((match.start(), position))
    answer = _blanked(text, spans)
    ends = [match.end() for match in _THOUGHTS_END.finditer(answer)]
    return _blanked(answer, [(0, ends[-1])]) if ends else answer


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
