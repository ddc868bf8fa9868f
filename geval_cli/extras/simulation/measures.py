"""Count what the messages of a talk's user show, without a model: the same text always has the same figures.

Words that say thanks, correct or ask are looked for in English. What a measure counts is in docs/reference/realism.md.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from string import punctuation

from msgspec import Struct

from geval_cli.extras.simulation.talk_files import Talk
from geval_cli.patterns import compile_later

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_TELLS_IN_SHORT = compile_later(rf"[{_CJK}\d]")
_WORD = compile_later(rf"[{_CJK}]|[^\s{_CJK}]+")
_EDGES = punctuation + (
    "\u00a1\u00ab\u00b4\u00b7\u00bb\u00bf\u2010\u2011\u2012\u2013\u2014\u2018\u2019\u201c\u201d\u201e\u2026"
    "\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f\u060c\u061f"
)
_QUESTION_MARK = compile_later(r"[?\uff1f\u061f\u2e2e\u203d]")
_ASKS = compile_later(
    r"(?:so |and |but |ok |okay |hi |hello |hey |also )*"
    r"(?:what|whats|what's|how|hows|how's|why|when|where|wheres|where's|who|which|whose|"
    r"can|could|would|will|should|shall|may|is|are|was|were|am|do|does|did|has|have|isn't|isnt|aren't|arent|don't|dont|"
    r"doesn't|doesnt|didn't|didnt|can't|cant|won't|wont) (?:i|you|u|we|it|they|he|she|the|my|your|this|that|there|a|an|"
    r"any|much|many|long|to|is|are|do|does|did|can|about|if|of|time|was|were|will|would|should|up|wrong)\b",
    re.IGNORECASE,
)
_CORRECTS = compile_later(
    r"\bi (?:actually |really )?(?:meant|said|asked (?:for|about|you|if|how|what|when|why|where))\b"
    r"|\bi already (?:said|told|asked|gave)\b"
    r"|\bi did(?:n'?t| not) (?:mean|say|ask)\b"
    r"|\b(?:that'?s|that is|this is|it'?s|it is|thats|its) (?:not (?:it\b|right|correct|true)|wrong|incorrect)\b"
    r"|\bnot what i (?:asked|said|meant|mean|wanted|want)\b"
    r"|\byou (?:misunderstood|misread|got (?:that|it|me|this) wrong)\b"
    r"|\byou (?:didn'?t|did not|haven'?t|have not) (?:understand|understood|answer|read|get|got|listen)"
    r"|(?:\A|[.!?\n] *)no+[,.! ]+"
    r"(?:actually|wait|sorry|i meant|i mean|not|make that|it'?s|its|it is|that'?s|thats|the)\b"
    r"|\b(?:sorry|oops|whoops|wait)[,.! ]+(?:i meant|i mean|make that|wrong|typo|not|no\b|it'?s|its)"
    r"|\b(?:scratch that|my mistake|correction:|let me correct|i misspoke|i mistyped)|^\*\w+[.!]?$",
    re.IGNORECASE | re.MULTILINE,
)
_POLITE = compile_later(
    r"\b(?:please|pls|plz|kindly|thanks?|thank you|thx|ty|cheers|much appreciated|"
    r"i(?:'d| would)? (?:really )?appreciate|grateful|"
    r"would you mind|if you don'?t mind|hello|hi|hey|dear|good (?:morning|afternoon|evening)|"
    r"have a (?:nice|good|great|lovely))\b",
    re.IGNORECASE,
)
_MISSES_APOSTROPHE = compile_later(
    r"\b(?:dont|cant|wont|didnt|doesnt|isnt|arent|wasnt|werent|havent|hasnt|couldnt|shouldnt|wouldnt|im|ive|youre|"
    r"youve|theyre|thats|whats|theres|lets)\b",
    re.IGNORECASE,
)
_SLIPS = compile_later(
    r"(?<!\S)i(?:'(?:m|ve|d|ll))?(?![\w.'-])"  # a lone i
    r"|\b([^\W\d_]{2,}) \1\b(?<!\bthat that)(?<!\bhad had)(?<!\bbye bye)"  # the the
    r"|(?!www|III)([^\W\d_A-HJ-Z])\2\2"  # soooo
    r"|\w [,;](?=\s|$)|[^\W\d_],[^\W\d_]|\w [.!?](?=\s|$)"  # a space before a comma, none behind it
    r"|\b(?:teh|hte|adn|recieve\w*|adress\w*|definately|seperate\w*|occured|untill|wich|thier|alot|tommorow|tomorow|"
    r"becuase|beleive\w*|wierd|calender|neccessary|acount|reciept|cancle\w*|refudn|shiping|pasword|recieved)\b",
)
_COMMONEST = (
    "the a an to i is it and of in my you for on that this with have be not but are do me was can your at if so what"
    " how im i'm it's as or we"
)
_EMPTY = (
    "about after again also always been before being both could does doing down each even every from further get give"
    " going good hello here into just know like make many more most much need only other over please really same should"
    " some still such take than thank thanks their them then there these they thing things think those through time"
    " very want well were when where which while will would yours"
)
_FUNCTION_WORDS = frozenset(_COMMONEST.split())
_STOPWORDS = _FUNCTION_WORDS | frozenset(_EMPTY.split())
_LEAST_ENGLISH = 0.1
"""In English a third of all words are of these few, in other languages next to none."""
_FEW_WORDS = 50
_LEAST_OF_MISSPELT, _MOST_OF_MISSPELT = 5, 30
_KNOWN_FROM = 3
_LEAST_OPEN = 3
_SHARES_OF_TURNS = 4


class TalkMeasure(Struct, frozen=True):
    """A figure of each talk.

    Attributes:
        is_share: whether it lies within 0..1.
        is_english: whether it looks for English words.
    """

    name: str
    is_share: bool = True
    is_english: bool = False


TURNS = TalkMeasure("messages per talk", is_share=False)
WORDS = TalkMeasure("words per message", is_share=False)
QUESTIONS = TalkMeasure("questions", is_english=True)
CORRECTIONS = TalkMeasure("corrections", is_english=True)
FIRST = TalkMeasure("revealed at once")
SLIPS = TalkMeasure("typing errors", is_english=True)
CARELESS = TalkMeasure("careless form")
POLITE = TalkMeasure("politeness", is_english=True)
MEASURES = (TURNS, WORDS, QUESTIONS, CORRECTIONS, FIRST, SLIPS, CARELESS, POLITE)


def measure_talk(talk: Talk, misspelt: Set[str]) -> dict[str, float]:
    """Return the figures of a talk by the names of `MEASURES`; most are shares of its user's messages.

    `misspelt` are the words that count as such (`misspelt_words`).
    """
    said = talk.said

    def share(holds: Callable[[str], object]) -> float:
        return sum(bool(holds(text)) for text in said) / len(said)

    words = [words_of(text) for text in said]
    return {
        TURNS.name: float(len(said)),
        WORDS.name: sum(map(len, words)) / len(said),
        QUESTIONS.name: share(is_question),
        CORRECTIONS.name: share(lambda text: _CORRECTS.search(_straight(text))),
        FIRST.name: revealed_by_turn(said)[0],
        SLIPS.name: share(lambda text: has_slip(text, misspelt)),
        CARELESS.name: share(is_careless),
        POLITE.name: share(lambda text: _POLITE.search(_straight(text))),
    }


@lru_cache(maxsize=64)  # several measures ask for the words of one message
def words_of(text: str) -> tuple[str, ...]:
    """Return what stands between white space, without punctuation around it; each Chinese or Japanese character."""
    found = text.split() if text.isascii() else (match.group() for match in _WORD.finditer(text))
    return tuple(word for piece in found if (word := piece.strip(_EDGES)))


def is_question(text: str) -> bool:
    """Return whether a message has a question mark, or begins as a question in English."""
    return bool(_QUESTION_MARK.search(text) or _ASKS.match(_straight(text).lstrip()))


def is_careless(text: str) -> bool:
    """Return whether a message begins in lower case, or has three words or more and no mark at its end."""
    text = text.strip()
    return text[:1].islower() or (text[-1:].isalnum() and len(words_of(text)) >= _LEAST_OPEN)


def has_slip(text: str, misspelt: Set[str]) -> bool:
    """Return whether a message has a typing error."""
    straight = _straight(text)
    if _SLIPS.search(straight) or _MISSES_APOSTROPHE.search(straight):
        return True
    return bool(misspelt) and any(word.lower() in misspelt for word in words_of(text))


def revealed_by_turn(said: Sequence[str]) -> list[float]:
    """Return the share of all that a user tells which is told by the first message, by the second, ... : the sums.

    Told are distinct words of four letters or more that carry meaning, and all with a digit. Of a user who tells
    nothing, the first message tells all.
    """
    told: set[str] = set()
    counts = []
    for text in said:
        told.update(filter(_tells, (word.lower() for word in words_of(text))))
        counts.append(len(told))
    return [count / counts[-1] if counts[-1] else 1.0 for count in counts]


def mean_reveal(talks: Sequence[Talk]) -> list[float]:
    """Return the mean share of what is told that is told by message 1, 2, 3 and 4; a talk that is over has told all."""
    rows = [revealed_by_turn(talk.said) for talk in talks]
    return [sum(row[min(turn, len(row) - 1)] for row in rows) / len(rows) for turn in range(_SHARES_OF_TURNS)]


def is_english(talks: Iterable[Talk]) -> bool:
    """Return whether the users mostly write English, by how many of their words are its commonest; few may be any."""
    words = [word.lower() for talk in talks for text in talk.said for word in words_of(_straight(text))]
    return len(words) < _FEW_WORDS or sum(word in _FUNCTION_WORDS for word in words) >= _LEAST_ENGLISH * len(
        words
    )


def misspelt_words(talks: Sequence[Talk]) -> frozenset[str]:
    """Return words of users that look like a slip in writing another one: refnud, where others write refund.

    There is no dictionary. A word counts that has five letters or more, all in lower case, occurs in one talk only and
    in no answer, and becomes one that occurs in three talks or more when a letter within it is left out, added or
    replaced, or two are exchanged. The last letters must be equal: order and orders, sent and send are no slips.
    Give the talks of both sources, so that both are read by the same words.
    """
    of_talks: Counter[str] = Counter()
    answered: set[str] = set()
    written: set[str] = set()
    for talk in talks:
        own: set[str] = set()
        for turn in talk.turns:
            found = {
                word
                for word in words_of(turn.content)
                if _LEAST_OF_MISSPELT - 1 <= len(word) <= _MOST_OF_MISSPELT and word.isalpha()
            }
            own |= {word.lower() for word in found}
            if turn.role == "user":
                written |= {word for word in found if word.islower() and len(word) >= _LEAST_OF_MISSPELT}
            else:
                answered |= {word.lower() for word in found}
        of_talks.update(own)
    rare = [word for word in written if of_talks[word] == 1 and word not in answered]
    known = {word for word, count in of_talks.items() if count >= _KNOWN_FROM}
    near: dict[str, list[str]] = {}
    for word in known:
        for form in (word, *_shortened(word)):
            near.setdefault(form, []).append(word)
    return frozenset(
        word
        for word in rare
        if any(
            other[-1] == word[-1] and _is_one_slip(word, other)
            for form in (word, *_shortened(word))
            for other in near.get(form, ())
        )
    )


def _shortened(word: str) -> Iterator[str]:
    return (word[:place] + word[place + 1 :] for place in range(len(word)))


def _is_one_slip(word: str, other: str) -> bool:
    """Return whether one letter that is left out, added, replaced or exchanged with the next makes one of the other."""
    start = next(
        (i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other))
    )
    if start == 0:  # a first letter is rarely mistyped, and right and night are two words
        return False
    a, b = word[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def _tells(word: str) -> bool:
    if len(word) >= 4:  # noqa: PLR2004
        return word not in _STOPWORDS
    return _TELLS_IN_SHORT.search(word) is not None


def _straight(text: str) -> str:
    return text.replace("\u2019", "'")


def measured(talks: Sequence[Talk], misspelt: Set[str]) -> Mapping[str, list[float]]:
    """Return each measure of all talks, in their order."""
    rows = [measure_talk(talk, misspelt) for talk in talks]
    return {measure.name: [row[measure.name] for row in rows] for measure in MEASURES}
