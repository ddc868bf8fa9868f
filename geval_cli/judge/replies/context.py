"""Judge a rating by the words around it: denied, supposed, quoted, an end of the scale, about another aspect.

Only a bounded stretch around each rating is looked at, so that the work grows with the reply and not with its square.
"""

import re

from geval_cli.judge.replies.spelling import RATING
from geval_cli.patterns import compile_later

_BEFORE, _AFTER = 240, 160

_STOP = compile_later(r"[.!?;](?=[\s\"'”)*]|\Z)|[\n\u2026。\uff01\uff1f]|[.]{3}")
_TURN = compile_later(
    r",?\s(?:so|but|therefore|thus|hence|however|yet|nevertheless|consequently|overall)\b(?! far)|"
    r"[\u2014:(]|\s[-\u2013]\s",
    re.IGNORECASE,
)
_CLAUSE = compile_later(
    r",|\band\b|\bwhile\b|\bI\b(?! (?:do|did|could|would|can|will)(?: not|n't))"
    r"|\b(?:it|this|which|that|he|(?:the|this) \w{1,20})(?= (?:gets?|scores?|earns?|deserves?|receives?|"
    r"merits?|would|is|was|has|"
    r"should|will|only|just|therefore|thus|rates?)?\s?\Z)"
)
_DENIED = compile_later(
    r"\b(?:not|never|cannot|without|neither|nor|hardly|barely|instead of|rather than|far from|short of|"
    r"miss(?:es|ed|ing)?(?= (?:out on )?an?\b)|"
    r"less than|"
    r"lower than|below|under|above|beyond|more than|at (?:least|most)|up to|prevent\w*|keep\w*|kept|stop\w*|"
    r"hold\w*|"
    r"refus\w*|unable|fail\w*|avoid\w*|declin\w*|impossible|difficult|hard to|unlikely|no|nothing|"
    r"too \w+ (?:to|for)|"
    r"miss\w* out|lacks?|depriv\w*|disqualif\w*|rul\w* out|unworthy|doubt\w*|almost|nearly|close to|needs?|"
    r"needed|"
    r"unfair|unjust\w*|dishonest|"
    r"requir\w*|reserv\w*|expect\w*|away from|typical\w*|usually|normally|ought|wrong\w*|mistaken\w*)\b|"
    r"n['\u2019]t\b",
    re.IGNORECASE,
)
_DENIED_OPINION = compile_later(
    r"(?:\b(?:not|never|cannot|hardly)|n['\u2019]t)\s+(?:\w+\s+)?(?:think|believe|feel|say|see|find|agree|"
    r"claim|mean|convinced|"
    r"consider|justify|suggest|recommend|imply|call|deserve|warrant|merit|earn|give|award|rate|assign|score|"
    r",)\b"
    r"|(?:\b(?:not|never|cannot)|n['\u2019]t)\s?,",
    re.IGNORECASE,
)
_DENIED_NEXT = compile_later(
    r"(?:\b(?:not|never|without|from|instead of|rather than|short of|before|avoid|of|against|by)|"
    r"n['\u2019]t)\s+(?:\w+\s+)?\Z",
    re.IGNORECASE,
)
_SUPPOSED = compile_later(
    r"\b(?:could|might|may|(?:would|could|should) have(?! to\b)|wish\w*|hop(?:e|ing)|"
    r"tempted|inclined|love to|considered|thought about|was going to|almost|"
    r"(?:was|am|were) about to|(?:wanted|meant|planned|intended|hesitate\w*) to)\b"
    r"|\bto (?:be|get|earn|reach|receive|achieve|merit|deserve|become|warrant|obtain|attain|make it|score)"
    r"(?: \w+){0,3}\s*\Z",
    re.IGNORECASE,
)
_MODAL = compile_later(r"\b(?:would|should|will|can|were|['\u2019]d)\b|['\u2019](?:d|ll)\b", re.IGNORECASE)
_CONDITION = compile_later(
    r"(?<!unclear )(?<!clear )(?<!sure )(?<!know )(?<!see )(?<!tell )(?<!wonder )(?<!even )(?<!as )"
    r"\b(?:if|unless|provided that|assuming|only when|had it|had the|were it|were the|in case)\b"
    r"(?! I (?:had to|have to|were to|was to|must|am asked)\b)(?! asked\b)(?! any\b)(?! not\b)",
    re.IGNORECASE,
)
_LATE_CONDITION = compile_later(
    r"\b(?:when|once|until|with (?:more|better|an?|some)|except)\b", re.IGNORECASE
)
_REPORTED = compile_later(
    r"(?<!I )(?<!I'd )(?<!I\u2019d )(?<!would )(?<!can )(?<!'d )(?<!\u2019d )\b(?:claim(?:s|ed|ing)?|says?|"
    r"said|saying|stat(?:es|ed|ing)|assert\w*|insist\w*|"
    r"demand\w*|instruct\w*|asks?|asked|asking|tells?|told|request\w*|wants?|wanted|pretend\w*|tr(?:y|ies|"
    r"ied|ying)|"
    r"attempt\w*|order(?:s|ed)|command\w*|inject\w*|declar\w*|announc\w*|boast\w*|proclaim\w*|self-\w+|"
    r"example|e\.g\.|for instance|such as|quot\w+|"
    r"according to(?! (?:the|your|these|this) (?:\w+ ){0,2}"
    r"(?:rubric|criteri|scale|instruction|guideline|standard|definition|form\b|steps))|where|as if|as though)\b",
    re.IGNORECASE,
)
_OTHERS = compile_later(
    r"\b(?:critics?|reviewers?|articles?|authors?|users?|customers?|they|he|she|who|people|readers?|"
    r"experts?|humans?|"
    r"annotators?|some|nobody|no one|none|many|most|anyone|everyone|average|mean|own|sample|example|"
    r"target|threshold|passing|old|former|required|human|reference|desired|self-|(?:reference|other|"
    r"second|previous) (?:output|answer|response|summary|text)|magazine|newspaper|fans|players?|teams?|"
    r"team|voters|students?|you|someone|others?|"
    r"colleagues?|"
    r"(?:average|last|earlier|other|typical|most|many|such|next|second)[ \t](?:answers?|outputs?|responses?|versions?|"
    r"drafts?|summar(?:y|ies)|texts?)(?:[ \t]like[ \t]\w{1,10})?|"
    r"(?:baseline|competitor|rival)(?:['\u2019]s)?(?:[ \t](?:answer|output|response|summary|text|model))?|"
    r"(?:model|response|answer|assistant|option|candidate|output|system)[ \t][A-D12]|"
    r"films?|movies?|games?|books?|novels?|hotels?|restaurants?|albums?|songs?|match(?:es)?|"
    r"judges?|graders?|evaluators?|models?|initial(?:ly)?|first|previous(?:ly)?|earlier|prior|"
    r"original(?:ly)?|formerly|draft|provisional|tentative)"
    r"(?:[ \t](?:has|have|had|would|usually|often|normally|typically|generally|also|only|might|"
    r"could|should|must|can|itself|then|I|was|"
    r"is))?[ \t]{0,3}\Z",
    re.IGNORECASE,
)
_ORDER = compile_later(r"(?:give|rate|assign|award|mark|grade|choose|pick|select)\b", re.IGNORECASE)
_NOBODY = compile_later(r"\W*(?:(?:please|just|now|so|always|then|and)\W*)*", re.IGNORECASE)
_OTHERS_RATED = compile_later(
    r"\b(?:critics?|reviewers?|articles?|authors?|users?|customers?|they|he|she|people|readers?|experts?|"
    r"humans?|annotators?|"
    r"magazine|newspaper|some|nobody|no one|none|many|most|anyone|everyone|others?|fans|viewers|guests|"
    r"voters|students?)[ \t](?:\w{1,12}[ \t])?"
    r"(?:gave|gives?|rate[sd]?|scored?|award(?:s|ed)?|grade[sd]?|give)\b",
    re.IGNORECASE,
)
_END_OF_SCALE = compile_later(
    r"\b(?:perfect|maximum|maximal|max|full|top|highest|lowest|minimum|minimal|best|worst|ideal|possible|"
    r"where|"
    r"hypothetical|hoped[- ]for)(?:[ \t](?:possible|overall|total))?[ \t]{0,3}\Z",
    re.IGNORECASE,
)
_MEANS = compile_later(
    r"[*_\"'”)]{0,3}[ \t]{0,3}(?:=(?!=)|(?:would|could|might|should|may|cannot|can|will|means?|meant|"
    r"represents?|stands? for|"
    r"corresponds?|denotes?|describes?|implies|indicates?|signif\w+|requires?|needs?|demands?|calls for|"
    r"being|is for|"
    r"claim\w*|(?:is|was|were|are|seems?|feels?|isn['\u2019]t|wasn['\u2019]t)(?![ \t](?:(?:the )?(?:most|"
    r"more|quite|only|still|therefore|"
    r"thus|then|also|hereby)[ \t])?(?:appropriate|fair|fitting|given|assigned|justified|warranted|suitable|"
    r"reasonable|"
    r"right|deserved|awarded|apt|correct|my)\b))\b)",
    re.IGNORECASE,
)
_DENIED_AFTER = compile_later(
    r"[*_\"'”)]{0,3}[ \t]{1,3}(?:is[ \t])?(?:out of (?:the )?(?:question|reach)|(?:is|was|be|would be|seems?|"
    r"feels?) (?:not|too|un\w+|excessive|wrong|generous|harsh)"
    r"|(?:is|was|would)n['\u2019]t"
    r"|at (?:(?:the )?(?:very )?(?:best|most|least)|the (?:maximum|minimum))"
    r"|or (?:more|less|above|below|higher|lower|better|worse))\b",
    re.IGNORECASE,
)
_EXTREME = compile_later(
    r"[*_]{0,3}[ \t]{1,3}(?:being|as the|meaning the)\b|[*_]{0,3}[ \t]{0,3}[(=:\u2013-][ \t]{0,3}(?:(?:the|"
    r"very|is|being)[ \t])?(?:worst|best|lowest|highest|minimum|maximum)\b",
    re.IGNORECASE,
)
_QUOTED = compile_later(
    r"^[ \t]{0,3}>[^\n]{1,300}$|<(?:(?:actual_?)?output|example|input|quote|blockquote)>[^<]{1,300}</|"
    r"\"[^\"\n]{1,300}\"|“[^”\n]{1,300}”|„[^“”\n]{1,300}[“”]|«[^»\n]{1,300}»|「[^」\n]{1,300}」"
    r"|(?<![\w'])'[^'\n]{1,200}'(?!\w)|(?<![\w\u2018])\u2018[^\u2019\n]{1,200}\u2019(?!\w)|"
    r"(?<!`)`[^`\n]{1,200}`(?!`)",
    re.IGNORECASE | re.MULTILINE,
)
_ALONE_IN_QUOTES = compile_later(rf"[\"“„«「'\u2018`]\s?{RATING}[.!]?\s?[\"”“»」'\u2019`]", re.IGNORECASE)


def quoted_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of quotations; a number alone between quotes is emphasised rather than quoted."""
    whole = text.strip()
    return [
        match.span()
        for match in _QUOTED.finditer(text)
        if match[0] != whole and not _ALONE_IN_QUOTES.fullmatch(match[0])
    ]


def is_end_of_scale(text: str, start: int, end: int) -> bool:
    """Return whether the number at `start` to `end` is explained as the best or the worst, as in `5 (best)`."""
    return (
        _EXTREME.match(text, end) is not None or _WHERE.search(text[max(0, start - 20) : start]) is not None
    )


_WHERE = compile_later(r"\bwhere[ \t](?:an?[ \t])?\Z", re.IGNORECASE)


def is_of_another_thing(text: str, number_start: int, *, has_maximum: bool) -> bool:
    """Return whether a number counts or measures something else than how good the output is.

    Args:
        text: the reply.
        number_start: where the number stands.
        has_maximum: it is `3/5` or `3 out of 5`, which is a count behind many more words than a number alone is.
    """
    before = _sentence_before(text, number_start)
    if (
        _ELSEWHERE.match(before)
        or _RATED_THING.search(before)
        or _MEASURED.search(before)
        or _SCHOOL_GRADE.search(before)
    ):
        return True
    counts = (_COUNTED, _PLACE_IN_A_ROW, *(() if _WEIGHED.search(before) else (_COUNTED_LABEL,)))
    return has_maximum and (
        any(count.search(before) for count in counts)
        or _ARE.match(text, _behind_fraction(text, number_start)) is not None
    )


def _behind_fraction(text: str, number_start: int) -> int:
    match = _FRACTION.match(text, number_start)
    return number_start if match is None else match.end()


_FRACTION = compile_later(r"[\w.,]{1,9}[ \t]{0,3}(?:/|out of)[ \t]{0,3}(?:the )?[\w.]{1,9}")
_ARE = compile_later(r"[ \t]{1,3}(?:are|were|have|had|pass|fail)\b")
_WEIGHED = compile_later(
    r"\b(?:scor\w+|rat(?:e|ed|ing)|based|considering|weighing|after|given|despite|for|with)\b", re.IGNORECASE
)
_PLACE_IN_A_ROW = compile_later(
    r"\b(?:pages?|items?|samples?|chapters?|parts?|rounds?|slides?|questions?|cases?|examples?|tests?|steps?|"
    r"sections?|evaluating|processing|number|date|deadline|due|progress|on|published)(?: is| on)?[ \t:#(]{0,3}\Z",
    re.IGNORECASE,
)
_ELSEWHERE = compile_later(
    r"\W*(?:normally|usually|typically|yesterday|last (?:time|week|month|year)|in the past|previously|"
    r"formerly|"
    r"according to (?:the|its|an?) (?!(?:\w+ ){0,2}"
    r"(?:rubric|criteri|scale|instruction|guideline|standard|definition|form\b|steps)))\b",
    re.IGNORECASE,
)
_RATED_THING = compile_later(
    r"\b(?:films?|movies?|games?|books?|novels?|hotels?|restaurants?|albums?|songs?|match|IMDb)(?:['\u2019]s)?"
    r"(?:[ \t](?:rating|score|has|had|is|was|gets?|got|earns?|received?|given|rated|scored?|holds?|of|at|"
    r"an?)){1,4}[ \t:]{1,3}\W{0,3}\Z",
    re.IGNORECASE,
)

_MEASURED = compile_later(
    r"\b(?:toxicity|readability (?:grade|index|level)|flesch|confidence|certainty|uncertainty|"
    r"difficulty|complexity|severity|risk|"
    r"sentiment|priority|"
    r"(?:reading|school|grade|language|difficulty|skill|trust) level)\b(?:[ \t][a-z]{1,12}){0,4}?"
    r"[ \t]{0,3}(?:[:=]|\b(?:is|was|of|at)\b)[^,;:]{0,20}\Z",
    re.IGNORECASE,
)
_SCHOOL_GRADE = compile_later(
    r"\b(?:is|was|at|in|for|of|level)(?: an?)? grades?[ \t]\W{0,4}\Z", re.IGNORECASE
)
_COUNTED = compile_later(
    r"\b(?:mention|cover|pass|answer|list|name|includ|contain|meet|satisf|address|fulfil|cite|solve|find|"
    r"identif|captur|describ|explain|complet|follow|miss|fail|match|support|verif|correct|check|quot|omit|"
    r"skip|provid|present|discuss|solv)(?:s|es|ed|ies|ied|ing|led|ls|d)?[ \t]"
    r"(?:(?:only|just|about|around|roughly|correctly|all|at|least|most|the|exactly)[ \t]){0,3}\W{0,4}\Z",
    re.IGNORECASE,
)
_COUNTED_LABEL = compile_later(
    r"\b(?:facts?|errors?|mistakes?|typos?|points?(?= (?:cov|men|mad|add))|steps?|items?|claims?|questions?|"
    r"checks?|tests?|criteria|requirements?|sentences?|paragraphs?|sources?|citations?|statements?|issues?|"
    r"problems?|flaws?|details?|events?|constraints?|hallucinations?|keywords?|names?|dates?)"
    r"(?: [a-z]{1,15}){0,3}\W{0,4}[:=]\W{0,4}\Z",
    re.IGNORECASE,
)


def is_reported(words: str) -> bool:
    """Return whether words say that somebody else wants or states something, as in `the score the user demanded`."""
    return _REPORTED.search(words) is not None


_BY_OTHERS = compile_later(
    r"[ \t]{1,3}by[ \t](?!me\b|my\b|myself\b|[a-z]{1,15}ing\b|virtue|default|far\b|any\b|this\b|these\b|"
    r"(?:the |a |an )?(?:\w{1,12} )?(?:rubric|criteri|standard|definition|measure|margin|scale|guideline|form\b))[a-z]",
    re.IGNORECASE,
)
_PASSIVE_BEFORE = compile_later(
    r"\b(?:rated|given|awarded|scored|graded|assigned|judged)(?: \w{1,12}){0,3}[ \t]{0,3}\Z", re.IGNORECASE
)
_PASSIVE = compile_later(
    r"(?:rated|given|awarded|scored|graded|assigned|judged|evaluated|assessed)\b", re.IGNORECASE
)


_FROM_OTHERS = compile_later(
    r"[ \t]{1,3}from[ \t](?:(?:the|an?|most|many|some|its|their)[ \t])?(?:critics?|reviewers?|users?|customers?|"
    r"readers?|viewers?|fans|experts?|buyers?|guests?|voters?|people|(?-i:[A-Z])[a-z]{2,20})",
    re.IGNORECASE,
)


def is_meant(text: str, match: re.Match[str], *, is_noun: bool, number_end: int) -> bool:
    """Return whether the statement that `match` found is the judge's own word on what it rates.

    Args:
        text: the reply.
        match: of the verb or noun that leads to the rating, and of the rating.
        is_noun: it is `a score of 8` and not `gives it an 8`, so that a verb may follow and explain it.
        number_end: where the rating ends with its maximum.
    """
    before = _sentence_before(text, match.start())
    after = _sentence_after(text, number_end)
    if text.startswith("?", number_end + len(after)):
        return False
    turns = [turn.end() for turn in _TURN.finditer(before)]
    segment = before[turns[-1] :] if turns else before
    lead = text[match.start() : match.end()]
    if is_noun and (
        _MEANS.match(after) or (_END_OF_SCALE.search(segment) and not _VERDICT_VERB.search(segment))
    ):
        return False
    return not (
        _DENIED_AFTER.match(after)
        or _FROM_OTHERS.match(after)
        or (_BY_OTHERS.match(after) and (_PASSIVE.match(lead) or _PASSIVE_BEFORE.search(segment)))
        or _OTHERS.search(segment)
        or _OTHERS_RATED.search(segment)
        or (_ORDER.match(lead) and _NOBODY.fullmatch(before))
        or _REPORTED.search(_clause(segment, is_reported=True))
        or _is_denied(segment, lead)
        or _is_supposed(segment, lead, after)
    )


_VERDICT_VERB = compile_later(
    r"\b(?:gives?|giving|gave|earn\w*|award\w*|get(?:s|ting)?|receiv\w*|deserv\w*|merit\w*|assign\w*|"
    r"scor(?:es|ing))\b",
    re.IGNORECASE,
)
_PARTICIPLE = compile_later(r"[a-z]{2,12}ing\b", re.IGNORECASE)


def _is_denied(segment: str, lead: str) -> bool:
    if _DENIED.search(lead) or _DENIED_OPINION.search(segment):
        return True
    if _PARTICIPLE.match(lead):
        return _DENIED_NEXT.search(segment) is not None or _DENIED_VERB.search(segment) is not None
    return _DENIED.search(_clause(segment)) is not None


_DENIED_VERB = compile_later(r"\b(?:prevent|keep|kept|stop|hold|refus|avoid)\w*\b[^,]{0,40}\Z", re.IGNORECASE)


def _is_supposed(segment: str, lead: str, after: str) -> bool:
    clause = _clause(segment)
    if _SUPPOSED.search(clause) or _SUPPOSED.search(lead) or _PURPOSE.search(clause + lead):
        return True
    turn = _TURN.search(after)
    rest = after[: turn.start()] if turn else after
    if _CONDITION.search(segment) or _CONDITION.search(lead):
        return _FORCED.search(segment) is None
    has_modal = _MODAL.search(clause + lead) is not None
    if has_modal and _UNREAL.match(segment):
        return True
    return _CONDITION.search(rest) is not None or (
        has_modal and _LATE_CONDITION.match(rest.lstrip()) is not None
    )


_PURPOSE = compile_later(
    r"(?<!have )(?<!had )(?<!need )(?<!going )(?<!like )(?<!choose )\bto (?:be|get|earn|reach|receive|"
    r"achieve|deserve|merit|score|make)\b",
    re.IGNORECASE,
)
_UNREAL = compile_later(r"\s*(?:with|without|had|were|given (?:more|better))\b", re.IGNORECASE)
_FORCED = compile_later(
    r"\bif (?:I (?:had to|have to|were to|was to|must|am)|asked|forced|one (?:had|has) to)\b", re.IGNORECASE
)


def _clause(segment: str, *, is_reported: bool = False) -> str:
    """Return the end of a segment that belongs to the statement behind it."""
    last = None
    for last in _CLAUSE.finditer(segment):  # noqa: B007  # only the last one counts
        pass
    if last is None or (is_reported and last[0] not in (",", "and", "while", "I")):
        return segment
    return segment[last.end() :]


def _sentence_before(text: str, start: int) -> str:
    window = text[max(0, start - _BEFORE) : start]
    stops = [stop.end() for stop in _STOP.finditer(window)]
    return window[stops[-1] :] if stops else window


def _sentence_after(text: str, end: int) -> str:
    window = text[end : end + _AFTER]
    stop = _STOP.search(window)
    return window[: stop.start()] if stop else window
