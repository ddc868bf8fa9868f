"""Read a rating or evaluation steps from a judge's reply.

A rating is read from
1. the only JSON object with the requested key, with no words after it: `{"reason": "...", "score": 4}`;
2. the only labelled rating, if it opens or closes the reply or has a line of its own: `Final score: 4/5`;
3. a bare number that is the whole reply: `4`. A number that names its scale, or that answers the form of a dimension,
   may also open or close the reply: `4 out of 5`, `Four stars. ...`.

Nothing else in the reply may rate with a number or retract the verdict. Anything ambiguous is a JudgeError, after which
the judge is asked for the number alone: a wrong number would be believed, whereas an error costs one more request. Time
is linear in the length of the reply.

A reply that lacks the rating, or has it twice, is a JudgeParseError; a number outside the range is a JudgeRangeError.
Objects that the preceding words call an example are not read. `extras.graded` reads other verdicts by the same rules.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.lenient_json import (
    JsonMember,
    JsonObject,
    Value,
    find_begun_objects,
    find_objects,
    read_array,
)
from geval_cli.judge.metric import ScoreRange, format_number
from geval_cli.patterns import compile_later

ReadAs = Literal["json", "label", "number", "retry"]
"""What a rating was read from: JSON, a labelled rating, a bare number, or the reply to a request for it alone."""


class ParsedReply(Struct, frozen=True):
    """A verdict; `score_start` and `score_end` are the character offsets of the rating in the reply."""

    rating: float
    reason: str | None
    score_start: int
    score_end: int
    read_from: ReadAs = "json"


# -- words ------------------------------------------------------------------------------------------------------

_WORD_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = "|".join(_WORD_NUMBERS)
_ANY = rf"(?:(?<![\w.,/-])[-+\u2212]?[0-9]{{1,15}}(?:\.[0-9]{{1,15}})?|\b(?:{_WORDS})\b)"
_UNIT = r"(?:\s{0,2}\b(?:stars?|points?)\b)?"
_OUT_OF = (
    rf"(?:\s{{0,3}}(?:/|\bout\sof\b)\s{{0,3}}(?P<top>[0-9]{{1,9}}(?:\.[0-9]{{1,6}})?|(?:{_WORDS})\b){_UNIT})?"
)
# What must not follow a number, because it would change it or add a second one: "4.5", "4-5", "4 or 5", "4+", "4 %".
_WHOLE = (
    r"(?![\w+%\u00b1\u00bc\u00bd\u00be]|\s?[.,/:;\u2026]{1,4}\s?[0-9]|\s[0-9]|\s{0,3}(?:[/%\u00b1\u2192+=\u00d7]|[-=]>)"
    r"|[\s,;.(]{0,3}(?:per\s?cent|plus\b|minus\b|less\s(?:an?\b|one\b|[0-9])|and a half)"
    rf"|\s{{0,3}}(?:[-\u2013\u2014~]|\bto\b|\bor\b|\band\b)\s{{0,3}}(?:an?\s)?(?:[0-9]|(?:{_WORDS})\b))"
)
_BEHIND = r"(?:\s{0,3}[(\[](?P<span>[^()\[\]\n]{1,60})[)\]])?"
_RATING = rf"(?P<number>{_ANY}){_UNIT}{_OUT_OF}{_WHOLE}{_BEHIND}"
# Where a statement may end: at the end of the line, at punctuation, or at a dash that is not a minus sign.
_STOP = r"(?=\s*\Z|[ \t]*\n|[ \t]*[.!,;:)\]]|\s+[-\u2013\u2014]+\s)"
_CLOSE = r"[\s.!)\]]*\Z"
_OPEN = r"\A(?:[\s\-\u2022(\[]|#+\s)*"
_BARE = tuple(
    compile_later(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_OPEN}{_RATING}(?:{_CLOSE}|[ \t.]*\n)",
        rf"{_OPEN}(?={_ANY}\s{{0,3}}(?:/|out\sof\b|stars?\b|points?\b)){_RATING}{_STOP}",
        rf"(?:(?<=[^\W\d_]{{3}})(?<!approx)[.!?][)\"']?\s|\n)\s{{0,9}}{_RATING}{_CLOSE}",
        r"[.;,][)\"']?\s(?:so\s|(?:therefore|thus|hence|overall),?\s)?"
        r"(?:I\s(?:would\s|will\s)?give\s|\w+ing\s(?:in\s|to\s)?|it\sgets\s)"
        r"(?:(?:it|this\s\w+|the\s\w+)\s)?an?\s(?:(?:\w+\s)?(?:score|rating)\sof\s)?"
        rf"{_RATING}(?:\s(?:for|in)(?:\s\w+){{1,3}})?{_CLOSE}",
    )
)
_NUMBER = compile_later(_ANY, re.IGNORECASE)
_RATES_AGAIN = compile_later(
    r"\b(?:scores?|ratings?|grades?|marks?|verdict|my(?:\sfinal)?\sanswer)\b[\s\"']{0,4}"
    r"(?:[:=]|\b(?:of|is|was|as|to|at|would be|should be|becomes)\b)"
    rf"\s{{0,3}}(?:\b(?:an?|only|just|about|around)\s)?{_ANY}"
    r"|\b(?:rat(?:e|ed|es|ing)|scor(?:e|ed|es|ing)|giv(?:e|es|en|ing)|gave|deserv\w+|earn\w*|gets?|got|receiv\w+"
    r"|merit\w*|award\w*|assign\w*|worth|make (?:it|that)|be|is)\s(?:(?:it|this|that|the\s\w+)\s)?"
    r"(?:(?:as|only|at|with|more)\s){0,2}"
    rf"an?\s(?:\w+\s)?{_ANY}(?!\s?[-%\w])"
    rf"|\b(?:mak|giv|rat|scor|call)(?:e|es|ing)\s(?:it|this|that)\s(?:an?\s)?{_ANY}"
    rf"|\bgo\swith\s(?:an?\s)?{_ANY}|\b(?:closer|nearer)\sto\san?\s{_ANY}|{_ANY}\sit\sis\b"
    rf"|\ban?\s{_ANY}\sis\s(?:\w+\s)?(?:fair|appropriate|accurate|right|better|enough)"
    rf"|{_ANY}\s{{0,3}}(?:/|\bout\sof\b)\s{{0,3}}(?:[0-9]|(?:{_WORDS})\b)"
    rf"|(?:,|\b(?:so|thus|hence|then|now|rather|actually|maybe|perhaps|only))\s(?:an?\s)?{_ANY}\W*\Z",
    re.IGNORECASE,
)
_NAMES_SCALE = compile_later(r"\bscale\b|\bout\sof\b|\bmax(?:imum)?\b", re.IGNORECASE)
_DEDUCTS = compile_later(
    rf"\b(?:deduct|subtract|dock|penali|minus\b|less (?:one|an?)\b"
    rf"|(?:points?|{_WORDS})\s(?:points?\s)?(?:off|taken off|lost)\b)",
    re.IGNORECASE,
)
_TAKEN_BACK = compile_later(
    r"\bwait\b|\b(?:no|nein|non)[,.]\s|\b(?:second|further) thoughts?\b|\bon reflection\b|\breconsider"
    r"|\b(?:scratch|strike|half(?: of)?) that\b|\bhold on\b|\bedit:|\bre-?(?:comput|calculat)|\bmistyped\b"
    r"|\b(?:above|score|rating) (?:is|was) (?:wrong|a mistake)\b|\bthat was (?:wrong|a (?:mistake|typo))\b|\bkidding\b"
    r"|\bi (?:meant|mean|misread|withdraw)\b|\b(?:correction|revis(?:e|ed|ing|ion)|take (?:it|that) back)\b"
    r"|\btoo (?:high|low|generous|harsh)\b|\bactually\W{1,3}(?:an?\s|make it\s)?(?:lower|higher|less|more)\b"
    r"|\b(?:retract|disregard|(?:is|as) an? placeholder|prompt injection|korrektur|correcci)"
    r"|\bnever ?mind\b|\boops\b|\bignore (?:it|this|that|the above)\b|\b(?:is|was) not my\b"
    r"|\b(?:ask|tell|told|want|demand)\w* me\b|\b(?:is|was) (?:only |just )?(?:an?|the) (?:example|sample|template)\b"
    r"|\b(?:this|that|above|json|score|line)(?: \w+)? (?:is|was) (?:what|written by|in) the "
    r"(?:text|answer|output|sub|summary|inj)"
    r"|\b(?:chang|lower|rais|adjust|updat|reduc)\w* (?:it|this|that|my|the (?:score|rating))\b"
    r"|\u0438\u0441\u043f\u0440\u0430\u0432\u043b|\u66f4\u6b63|\u8a02\u6b63|\uc815\uc815",
    re.IGNORECASE,
)
# Words that show that a sentence quotes others, is an example, or speaks of another case.
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
_DENIES = compile_later(r"\b(?:no|wrong|incorrect|invalid|reject\w*|void|errors?)\b", re.IGNORECASE)
# The same as REFUSES in other languages. A word between "cannot" and "rate", such as "higher", makes it a rating.
_REFUSES_ELSEWHERE = (
    r"(?:(?:sorry|(?:es )?tut mir (?:sehr )?leid|entschuldigung|leider|het spijt me|helaas|(?:je suis )?désolée?"
    r"|malheureusement|lo siento|lamentablemente|desculpe|lamento|sinto muito|infelizmente|mi dispiace|purtroppo"
    r"|很?抱歉|对不起|對不起|申し訳(?:あり|ござい)ませんが?|すみませんが?|죄송합니다만?|죄송하지만)\W*"
    r"(?:(?:aber|maar|mais|pero|mas|ma)\b\W*)?)?(?:(?:"
    r"(?:ich kann|(?:das )?kann ich)\b[^.!?,\n]{0,40}\bnicht (?:bewerten|beurteilen|einschätzen|evaluieren|helfen)"
    r"|(?:ik kan|(?:dat |dit )?kan ik)\b[^.!?,\n]{0,40}\bniet (?:beoordelen|evalueren|helpen)"
    r"|(?:je (?:ne )?(?:peux|puis|suis)(?: pas| incapable)(?: en mesure)?|il m['\u2019]est impossible)"
    r"(?: de)?(?: d['\u2019]| )(?:évaluer|noter|juger|vous aider)"
    r"|no (?:puedo|es posible) (?:evaluar|calificar|puntuar|juzgar|ayudar)\w*"
    r"|não (?:posso|consigo) (?:avaliar|pontuar|julgar|classificar|ajudar)"
    r"|non (?:posso|riesco a) (?:valutare|giudicare|aiutar\w*)"
    r"|(?:\u044f )?\u043d\u0435 \u043c\u043e\u0433\u0443 \u043e\u0446\u0435\u043d\u0438\u0442\u044c)\b"
    r"(?![^.!?\n]{0,60}\b(?:höher|besser|hoger|beter|plus|mieux|más|mejor|mais|melhor|più|meglio)\b)"
    r"|我?(?:无法|無法|不能)(?:对[^\uff0c。\n]{0,20})?(?:进行)?(?:评估|评价|评分|打分|评判|評估|評價|評分)"
    r"|[^。、\n]{0,30}を(?:評価|採点)(?:する)?(?:こと[はが])?でき(?:ません|ない|かね)"
    r"|[^.\n]{0,30}[을를] (?:평가|채점)할 수 없)"
)
# Only where the judge speaks of itself: "the output says that it cannot help" does not match, nor does "I cannot rate
# it higher".
REFUSES = compile_later(
    r"\W*+(?:(?:reason(?:ing)?|rationale|explanation|note|however|but|unfortunately)\b\W*){0,2}(?:"
    r"(?:i['\u2019]?m sorry|sorry|i apologi[sz]e|as an ai)\b[^.!?]{0,80}\b(?:can\s?not|can['\u2019]?t|unable)\b"
    r"|(?:i (?:can\s?not|can['\u2019]?t|could not|couldn['\u2019]?t)"
    r"|(?:i am |i['\u2019]m |i was )?(?:unable to|not able to)|it is (?:impossible|not possible) to)"
    r" (?:assist|help|evaluate|rate|judge|assess|score|grade)\b"
    r"(?![^.!?\n]{0,60}\b(?:higher|lower|above|below|more|less|better|worse)\b)"
    r"|(?:the|this) (?:output|answer|text|response) (?:can\s?not|can['\u2019]?t|could not) be"
    r" (?:evaluated|rated|judged|assessed|scored|graded)\b(?!\s(?:as|to be|in)\b)"
    rf"|{_REFUSES_ELSEWHERE}"
    r"|(?P<nothing>no (?:output|answer|text|response) (?:was |is )?(?:provided|given|found)\b)|not rated\b|error:)",
    re.IGNORECASE,
)
_CONDITION = compile_later(
    r"\b(?:if|unless|otherwise|normally|usually)\b|^\W*(?:with|without|had|were)\b", re.IGNORECASE
)
_SPAN = compile_later(
    r"\s*(-?[0-9.]{1,9})\s{0,3}(?:to|[-\u2013\u2014])\s{0,3}(-?[0-9.]{1,9})(?:\s(?:scale|points?))?\s*"
)
_QUALIFIES = compile_later(rf"[\d?]|\brequest|\b(?:{_WORDS}|von|sur|aus)\b", re.IGNORECASE)
# A quoted line, a comment, or any tag except those that judges put around their own verdicts.
_QUOTED = compile_later(
    r"(?:^[ \t]*>[^\n]*|<!--\s*|<(?!/|(?:json|results?|evaluation|verdict|judge?ment|assessment"
    r"|response|answer|output|score|rating|final\w*|tool\w*)>)[a-z][^<>\n]{0,60}>[\s`{\[(\"']*)\Z",
    re.IGNORECASE | re.MULTILINE,
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
        name: in the dimension form, the label that the form asks for (`Coherence`), besides `Score` and `Rating`.
        is_cut_off: whether a token limit ended the reply, so that its last digits may be missing.

    Raises:
        JudgeParseError: there is no rating, more than one, or an ambiguous one.
        JudgeRangeError: the rating is outside `score_range`, or on another scale.
    """
    for plain in _PLAIN_REPLIES:
        if (match := plain.match(text)) and not (
            PLACEHOLDER.fullmatch(match["reason"]) or REFUSES.match(match["reason"])
        ):
            value = float(match["score"])
            _check_range(value, None, score_range, text)
            return ParsedReply(value, _one_line(match["reason"]), *match.span("score"))
    answer = without_thoughts(text)
    found, prose, start = _of_objects(answer, name, score_range, text)
    words = prose.translate(_MARKUP)
    if found is not None:
        if not words.isspace():
            if re.search(r"\w|[%/]", re.sub(r"</\w+>", "", words[start:])):
                raise JudgeParseError("the judge's reply continues after its JSON", raw_text=text)
            _check_rest(words[:start], "", found.rating, score_range, text, fewest=4)
        return found
    labels = list(_label_of(name).finditer(words))
    rating = labels[0] if len(labels) == 1 and _is_a_statement(words, labels[0]) else None
    if not labels:
        rating = next(filter(None, (pattern.search(words) for pattern in _BARE)), None)
        if rating is not None and (
            _CONDITION.search(_last_sentence(words[: rating.start()]))
            or (name is None and _is_ambiguous_number(rating, words))
        ):
            rating = None
    if rating is None:
        raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
    value = _number_of(rating["number"])
    (start, end) = rating.span("number")
    if is_cut_off and not words[rating.end() :].strip(" \t\r\n.!)]"):
        is_all = name is not None and len(words.strip()) == end - start
        if not is_all or score_range[1] - score_range[0] < 2 or 0 < value * 10 <= score_range[1]:  # noqa: PLR2004
            raise JudgeParseError("the judge's reply breaks off in the middle of the score", raw_text=text)
    _check_range(value, rating["top"], score_range, text)
    if "star" in rating[0].lower() and rating["top"] is None and score_range[1] != 5 >= value:  # noqa: PLR2004
        raise JudgeParseError("the judge's reply gives stars without saying out of how many", raw_text=text)
    # Refuse brackets next to a rating that name another scale or qualify the rating.
    contrary = {score_range[0]: r"\bpass|\bmet\b", score_range[1]: r"\bfail"}.get(value, r"(?!)")
    label_scale = rating.groupdict().get("scale")
    for aside in filter(None, (label_scale, rating["span"])):
        span = _SPAN.fullmatch(aside)
        if span is not None:
            low = float(span[1])
            high = float(span[2])
            if (low, high) != tuple(score_range):
                rated, asked = (" to ".join(map(format_number, ends)) for ends in ((low, high), score_range))
                raise JudgeRangeError(
                    f"the judge rated from {rated}, but should have been {asked}", raw_text=text
                )
        elif (
            aside is label_scale
            or _QUALIFIES.search(aside)
            or _SUPPOSED.search(aside)
            or _DENIES.search(aside)
            or re.search(contrary, aside)
        ):
            raise JudgeParseError("the judge's reply qualifies its score", raw_text=text)
    _check_rest(words[: rating.start()], words[rating.end() :], value, score_range, text)
    reason = " ".join(answer.split())
    says_more = sum(map(str.isalpha, reason)) > len("out of rating") * 2
    return ParsedReply(value, reason if says_more else None, start, end, "label" if labels else "number")


def parse_member_rating(text: str, *, score_range: ScoreRange, name: str) -> ParsedReply:
    """Return the rating under the key `name` (`Coherence`) in a reply that rates several dimensions in one object.

    Raises:
        JudgeParseError: the key is missing, is there twice or has no number, or the reply breaks off there.
        JudgeRangeError: the rating is outside `score_range`, or on another scale.
    """
    answer = without_thoughts(text)
    found = [
        pair for outer in find_begun_objects(answer) for pair in _members_called(outer, {plain_key(name)})
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
        rf"(?<![\w'\"\u201c\u2018-])(?:(?:final|overall|my|the)\s){{0,2}}(?:score|rating{own})\b\s{{0,3}}"
        rf"(?:[(\[](?P<scale>[^()\[\]\n]{{1,20}})[)\]]\s{{0,3}})?(?:[:=]|\bis\b)\s{{0,5}}{_RATING}",
        re.IGNORECASE,
    )


def _is_ambiguous_number(rating: re.Match[str], words: str) -> bool:
    """Return whether a bare number among other words may be something else: a count, a limit, a number in a sentence.

    This is not checked in the dimension form, where the number is the answer whatever surrounds it.
    """
    if rating["top"] or re.search("star|point", rating[0], re.IGNORECASE):
        return False
    beside = words[: rating.start()] + words[rating.end() :]
    return (
        re.fullmatch(r"[\W_]*(?:(?:final|overall)\s)?(?:score|rating)?[\W_]*", beside, re.IGNORECASE) is None
    )


def _is_a_statement(words: str, label: re.Match[str]) -> bool:
    """Return whether a labelled rating is the judge's own: a sentence or line by itself."""
    before = words[: label.start()]
    behind = words[label.end() :]
    line_before = before[before.rfind("\n") + 1 :].strip(_BULLETS)
    if line_before and not re.search(r"[.!?\u2026:][)\"'\u201d\]]?\s*\Z", line_before):
        return False
    # The number may belong to a list entry: "Score:", and on the next line "1. Facts".
    is_entry = re.match(r"\)[ \t]*\w", behind) or ("\n" in label[0] and re.match(r"\.[ \t]+\w", behind))
    if is_hypothetical(words, label.start()) or re.match(_STOP, behind) is None or is_entry:
        return False
    ending = _SENTENCE_END.search(behind)
    sentence = behind if ending is None else behind[: ending.start()]
    if _SUPPOSED.search(sentence) or _DENIES.search(sentence) or re.search(r"\d", sentence):
        return False
    opens_or_closes = not before.strip(_BULLETS) or not behind.strip(" \t\r\n.!)]")
    return opens_or_closes or (not line_before and re.match(r"[ \t.]*(?:\n|\Z)", behind) is not None)


def is_hypothetical(text: str, start: int) -> bool:
    """Return whether the words before `start` make what follows an example, a quotation or a hypothetical case."""
    before = text[max(0, start - 2 * _LONGEST_SENTENCE) : start]
    if (">" in before or "<!" in before) and _QUOTED.search(before) is not None:
        return True
    signs = "\t\r\n {[(-\u2022\"'\u201c`"
    lead = re.sub(r"\s*\bjson\Z", "", before.rstrip(signs), flags=re.IGNORECASE).rstrip(signs)
    has_ended = not lead or lead.endswith((".", "!", "?", "\u2026", ")"))
    return not has_ended and _SUPPOSED.search(_last_sentence(lead)) is not None


def check_not_taken_back(behind: str, text: str) -> None:
    """Raise JudgeParseError if the words after the verdict retract it."""
    if _TAKEN_BACK.search(behind):
        raise JudgeParseError("the judge's reply retracts its verdict", raw_text=text)


def check_no_error(holder: JsonObject, text: str) -> None:
    """Raise JudgeParseError if an object reports an error: what else it holds is then not a verdict."""
    if any(plain_key(member.key) == "error" and member.value for member in holder.members):
        raise JudgeParseError("the judge's reply reports an error", raw_text=text)


def _last_sentence(text: str) -> str:
    ends = [match.end() for match in _SENTENCE_END.finditer(text, max(0, len(text) - _LONGEST_SENTENCE))]
    return text[ends[-1] if ends else max(0, len(text) - _LONGEST_SENTENCE) :]


def _check_rest(
    before: str, behind: str, value: float, score_range: ScoreRange, text: str, *, fewest: int = 5
) -> None:
    """Raise JudgeParseError if the reply rates again, deducts, names another scale, retracts or refuses to rate."""
    check_not_taken_back(behind, text)
    for sentence in _SENTENCE_END.split(f"{before}\n{behind}"):
        if REFUSES.match(sentence):
            raise JudgeParseError("the judge's reply says that it gives no rating", raw_text=text)
        numbers = [_number_of(found[0]) for found in _NUMBER.finditer(sentence)]
        if not numbers:
            continue
        is_short = len(sentence.split()) < fewest
        is_other_scale = _NAMES_SCALE.search(sentence) and not {*numbers} <= {*score_range, value}
        is_less = value == score_range[1] and _DEDUCTS.search(sentence)
        if is_short or is_other_scale or is_less or _RATES_AGAIN.search(sentence):
            raise JudgeParseError("the judge's reply states a second score", raw_text=text)


def _check_range(value: float, top: str | None, score_range: ScoreRange, text: str) -> None:
    low, high = score_range
    asked = f"{format_number(low)} to {format_number(high)}"
    if top is not None and _number_of(top) != high:
        message = f"the judge rated out of {format_number(_number_of(top))}, but should have been {asked}"
        raise JudgeRangeError(message, raw_text=text)
    if not low <= value <= high:
        shown = format_number(value) if abs(value) < float("inf") else "far out of range"
        raise JudgeRangeError(f"the judge's rating is {shown}, but should have been {asked}", raw_text=text)


def _number_of(spelling: str) -> float:
    word = spelling.lower()
    return float(_WORD_NUMBERS.index(word) if word in _WORD_NUMBERS else spelling.replace("\u2212", "-"))


# -- JSON -------------------------------------------------------------------------------------------------------

# A shortcut for nearly all replies, which takes a tenth of the time: a single flat and unambiguous object.
_PLAIN_REASON = r'"reason" {0,5}:\s{0,9}"(?P<reason>[^"\\\x00-\x1f]*+)"'
_PLAIN_SCORE = r'"score" {0,5}:\s{0,9}(?P<score>-?[0-9]{1,15}(?:\.[0-9]{1,15})?)'
_PLAIN_REPLIES = tuple(
    compile_later(rf"\s*+\{{\s{{0,99}}{first}\s{{0,99}},\s{{0,99}}{second}\s{{0,99}}\}}\s*+\Z")
    for first, second in ((_PLAIN_REASON, _PLAIN_SCORE), (_PLAIN_SCORE, _PLAIN_REASON))
)
_NO_LETTER = compile_later(r"[\W_]+")
_RATING_KEYS = {
    "score",
    "rating",
    "grade",
    "mark",
    "finalscore",
    "overallscore",
    "finalrating",
    "overallrating",
}
_SCALE_KEY = compile_later(r"scale|range|outof|max")
_ANOTHER_SCORE_KEY = compile_later(
    r"adjust|revis|correct(?:ed|ion)|updat|actual|true|final|total|^overall$|deduct|penalt|^points?$|percent|normali[sz]ed"
    r"|retract"
)
_NO_RATING_KEY = compile_later(r"refus|abstain|unable|invalid")
_VALUE = compile_later(rf"\s*{_RATING}\s*", re.IGNORECASE)
_WRAPPERS = {"result", "evaluation", "verdict", "assessment", "judgment", "judgement", "response", "answer"}
_REASON_KEYS = ("reason", "reasoning", "explanation", "rationale", "justification")
NOT_THE_VERDICT = compile_later(
    r"step|example|sample|criteri|previous|prior|initial|expected|other|alternative|worst|best|ideal|hypothe"
    r"|claim|quote|output|reference|scale|max|min|draft|history|anchor|rubric",
)
"""Keys, as spelled by `plain_key`, whose objects do not hold the verdict."""
PLACEHOLDER = compile_later(r"\s*(?:<[^<>]*>|\.{3}|\u2026)\s*")
"""The placeholder for an answer in the prompt; a judge that repeats it has not answered."""


def _of_objects(
    answer: str, name: str | None, score_range: ScoreRange, text: str
) -> tuple[ParsedReply | None, str, int]:
    """Return the rating in a reply's objects, the reply with all objects blanked out, and where the object begins.

    Raises:
        JudgeParseError: an object breaks off before its score, there is no score, or there are several.
    """
    asked = {"score", "rating", *((plain_key(name),) if name else ())}
    holders = list(find_begun_objects(answer))
    if not holders:
        return None, answer, 0
    found = [(outer, *pair) for outer in holders for pair in _members_called(outer, asked | _RATING_KEYS)]
    words = _blanked(answer, [(outer.start, outer.end) for outer in holders])
    if len(found) != 1:
        why = f"the judge's reply has {len(found)} scores" if found else why_unreadable(text, "score")
        if not found and any(not holder.is_closed for holder in holders):
            why = "the judge's reply breaks off before the score"
        raise JudgeParseError(why, raw_text=text)
    outer, holder, member = found[0]
    # Some servers wrap the object once; deeper, or in a list, it may be an example or a part.
    is_wrapped = len(outer.members) == 1 and plain_key(outer.members[0].key) in _WRAPPERS
    is_own = holder is outer or (is_wrapped and outer.members[0].value is holder)
    is_quoted = answer[outer.start - 1 : outer.start] in ("'", '"', "\u201c", "\u2018")
    if not is_own or is_quoted or plain_key(member.key) not in asked or is_hypothetical(answer, outer.start):
        raise JudgeParseError(why_unreadable(text, "score"), raw_text=text)
    return _of_member(holder, member, answer, score_range, text), words, outer.start


def _members_called(holder: JsonObject, keys: set[str]) -> Iterator[tuple[JsonObject, JsonMember]]:
    for member in holder.members:
        if plain_key(member.key) in keys:
            yield holder, member
        for value in member.value if isinstance(member.value, list) else (member.value,):
            if isinstance(value, JsonObject):
                yield from _members_called(value, keys)


def _of_member(
    holder: JsonObject, member: JsonMember, answer: str, score_range: ScoreRange, text: str
) -> ParsedReply:
    match = None
    if isinstance(member.value, str | float) and not isinstance(member.value, bool):
        match = _VALUE.fullmatch(answer, member.start, member.end)
    if match is None:
        raise JudgeParseError(f"the judge's `{member.key}` is not a number", raw_text=text)
    if not holder.is_closed and not answer[match.end() :].lstrip("\"'\u201d").lstrip().startswith(","):
        raise JudgeParseError("the judge's reply breaks off in the middle of the score", raw_text=text)
    value = _number_of(match["number"])
    _check_range(value, match["top"], score_range, text)
    check_no_error(holder, text)
    reason = reason_of(holder)
    if reason is not None and PLACEHOLDER.fullmatch(reason):
        raise JudgeParseError("the judge's reply repeats the form instead of filling it in", raw_text=text)
    if reason is not None and REFUSES.match(reason):
        raise JudgeParseError("the judge's reply says that it gives no rating", raw_text=text)
    for other in holder.members:
        key, claim = plain_key(other.key), other.value
        is_another = _ANOTHER_SCORE_KEY.search(key) and _is_other_number(claim, value)
        # `is` tells False and True from 0 and 1, which are not claims to have passed or failed.
        is_contrary = key in ("pass", "passed", "verdict") and (
            (value == score_range[1] and (claim is False or claim in ("fail", "no")))
            or (value == score_range[0] and (claim is True or claim in ("pass", "yes")))
        )
        is_none = (_NO_RATING_KEY.search(key) and claim is True) or (
            key in ("valid", "rated") and claim is False
        )
        if is_another or is_contrary or is_none:
            raise JudgeParseError(f"the judge's `{other.key}` contradicts its score", raw_text=text)
        if _SCALE_KEY.search(key) and (
            numbers := re.findall(r"(?<!\d)-?\d+(?:\.\d+)?", answer[other.start : other.end])
        ):
            _check_range(value, numbers[-1], score_range, text)
    return ParsedReply(value, reason, *match.span("number"))


def _is_other_number(claim: Value, value: float) -> bool:
    """Return whether a value next to the score is a different number, or a text with a different number."""
    if isinstance(claim, str):
        return any(float(number) != value for number in re.findall(r"\d{1,9}(?:\.\d{1,9})?", claim))
    return isinstance(claim, float) and claim != value


def plain_key(key: str) -> str:
    """Return a key in lower case, letters and digits only: `finalscore` for `Final_Score`."""
    return _NO_LETTER.sub("", key).lower()


def reason_of(holder: JsonObject) -> str | None:
    """Return an object's reason on one line, or None if it has none."""
    member = holder.last(*_REASON_KEYS)
    return None if member is None else _one_line(member.value)


def _one_line(value: Value) -> str | None:
    return " ".join(" ".join(_texts_of(value)).split()) or None


# -- steps ------------------------------------------------------------------------------------------------------

_LIST_NUMBER = compile_later(
    r"\A[ \t]{0,12}(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])[ \t]{1,8}(?=\S)", re.IGNORECASE
)


def parse_steps(text: str) -> tuple[str, ...]:
    """Return the evaluation steps of a reply: a JSON list under "steps", a bare JSON list, or a numbered list.

    Raises:
        JudgeParseError: there are no steps, or the list breaks off.
    """
    answer = without_thoughts(text)
    steps: tuple[str, ...] = ()
    for found in find_objects(answer):
        member = found.last("steps", "evaluation_steps", "evaluation steps")
        steps = (() if member is None else _texts_of(member.value)) or steps
    if not steps and "{" not in answer:
        bracket = answer.find("[")
        numbered = (line for line in answer.splitlines() if _LIST_NUMBER.match(line))
        steps = _texts_of(None if bracket == -1 else read_array(answer, bracket)) or tuple(
            _LIST_NUMBER.sub("", line).strip() for line in numbered
        )
    if not steps or all(map(PLACEHOLDER.fullmatch, steps)):
        hint = "add `evaluation_steps` to the assertion"
        raise JudgeParseError(why_unreadable(text, "evaluation steps"), raw_text=text, hint=hint)
    return steps


def _texts_of(value: Value) -> tuple[str, ...]:
    """Return the non-empty texts of a string (its lines) or of a list (its strings, and the strings in its objects)."""
    texts: list[str] = []
    for entry in value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else ():
        if isinstance(entry, JsonObject):
            parts = (member.value for member in entry.members)
            texts.append(": ".join(part.strip() for part in parts if isinstance(part, str)))
        elif isinstance(entry, str):
            texts.append(_LIST_NUMBER.sub("", " ".join(entry.split())))
    return tuple(filter(None, texts))


# -- thoughts ---------------------------------------------------------------------------------------------------

_THOUGHTS = "think|thinking|thoughts?|reasoning|reflection|scratchpad|analysis"
_THOUGHTS_START = compile_later(
    rf"(?:^|(?<=>))[^\S\n]*+(?:<({_THOUGHTS})>|\[(?-i:(THINK))\])", re.IGNORECASE | re.MULTILINE
)
_THOUGHTS_END = compile_later(
    rf"(?:^[ \t]*</(?:{_THOUGHTS})>|</(?:{_THOUGHTS})>[ \t]*\r?$)", re.IGNORECASE | re.MULTILINE
)


def without_thoughts(text: str) -> str:
    """Return `text` with the thoughts that some models write first blanked out; everything else keeps its position.

    Thoughts without an end tag leave nothing. An end tag without a start tag counts only at the beginning or end of a
    line: some servers swallow the start tag, whereas a judged text may have an end tag in a sentence.
    """
    if "<" not in text and "[THINK]" not in text:
        return text
    spans: list[tuple[int, int]] = []
    position = 0
    while match := _THOUGHTS_START.search(text, position):
        end_tag = rf"</{match[1]}>" if match[1] else r"\[/THINK\]"
        end = re.compile(end_tag, re.IGNORECASE).search(text, match.end())
        position = len(text) if end is None else end.end()
        spans.append((match.start(), position))
    answer = _blanked(text, spans)
    ends = [match.end() for match in _THOUGHTS_END.finditer(answer)]
    return _blanked(answer, [(0, ends[-1])]) if ends else answer


def _blanked(text: str, spans: list[tuple[int, int]]) -> str:
    """Return `text` with `spans` replaced by spaces, except for line breaks; what follows a span begins a new line."""
    parts: list[str] = []
    position = 0
    for start, end in spans:
        parts += (text[position:start], re.sub(r"[^\n]", " ", text[start : end - 1]), "\n")
        position = end
    return "".join((*parts, text[position:]))


def why_unreadable(text: str, what: str) -> str:
    """Return a message that says why no `what` could be read from a reply."""
    if not text.strip():
        return "the judge's reply is empty"
    if not without_thoughts(text).strip():
        return "the judge's reply has only thoughts and no answer"
    return f"no {what} can be read from the judge's reply"
