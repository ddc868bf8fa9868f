"""Measures how realistic simulated users are: compares their conversations with real ones, by code and by a judge."""

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial
from random import Random
from string import punctuation

from msgspec import Struct

from geval_cli.errors import GevalError, NotDoneError, ProviderSettledError
from geval_cli.extras.conversations.transcripts import Transcript, Transcripts
from geval_cli.extras.conversations.two_samples import (
    ComparedPair,
    DistributionGap,
    MeanDifference,
    Sample,
    crossed_share,
    distribution_gap,
    mean_difference,
)
from geval_cli.extras.graded.verdicts import WinnerReply, parse_winner
from geval_cli.extras.trust.documents import Quote, ReportDocument, Section, Table
from geval_cli.extras.trust.statistics.plain import Estimate
from geval_cli.judge.calls import JudgeCalls, reply_schema
from geval_cli.judge.metric import CachingJudge, Judge
from geval_cli.judge.prompt import Block, question_text, user_message
from geval_cli.judge.source import transcript as as_transcript
from geval_cli.numbers import (
    fixed,
    format_cost,
    format_p,
    format_points,
    format_share,
    format_share_interval,
    plural,
)
from geval_cli.patterns import compile_later
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.records import SCHEMA_VERSION, JsonValue, ModelRequest, Purpose, Role, Turn, Usage, to_json
from geval_cli.report.sanitize import one_line
from geval_cli.runs.session import Session, counted
from geval_cli.statistics.paired import SIGNIFICANCE, holm

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


class TranscriptMeasure(Struct, frozen=True):
    """A figure computed for each conversation.

    Attributes:
        is_share: whether its values are from 0 to 1.
        is_english: whether it relies on English words.
    """

    name: str
    is_share: bool = True
    is_english: bool = False


TURNS = TranscriptMeasure("messages", is_share=False)
WORDS = TranscriptMeasure("words per message", is_share=False)
QUESTIONS = TranscriptMeasure("questions", is_english=True)
CORRECTIONS = TranscriptMeasure("corrections", is_english=True)
FIRST = TranscriptMeasure("revealed at once")
SLIPS = TranscriptMeasure("typing errors", is_english=True)
CARELESS = TranscriptMeasure("careless form")
POLITE = TranscriptMeasure("politeness", is_english=True)
MEASURES = (TURNS, WORDS, QUESTIONS, CORRECTIONS, FIRST, SLIPS, CARELESS, POLITE)


def measure_transcript(transcript: Transcript, misspelt: Set[str]) -> dict[str, float]:
    """Return the figures of a conversation by the names in `MEASURES`; most are shares of the user's messages.

    `misspelt` are the words that count as misspelt (see `misspelt_words`).
    """
    said = transcript.said

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
    """Return the words between white space, without punctuation around them; each CJK character is a word."""
    found = text.split() if text.isascii() else (match.group() for match in _WORD.finditer(text))
    return tuple(word for piece in found if (word := piece.strip(_EDGES)))


def is_question(text: str) -> bool:
    """Return whether a message has a question mark, or begins as a question in English."""
    return bool(_QUESTION_MARK.search(text) or _ASKS.match(_straight(text).lstrip()))


def is_careless(text: str) -> bool:
    """Return whether a message begins in lower case, or has three or more words and no punctuation at its end."""
    text = text.strip()
    return text[:1].islower() or (text[-1:].isalnum() and len(words_of(text)) >= _LEAST_OPEN)


def has_slip(text: str, misspelt: Set[str]) -> bool:
    """Return whether a message has a typing error."""
    straight = _straight(text)
    if _SLIPS.search(straight) or _MISSES_APOSTROPHE.search(straight):
        return True
    return bool(misspelt) and any(word.lower() in misspelt for word in words_of(text))


def revealed_by_turn(said: Sequence[str]) -> list[float]:
    """Return how much of everything the user reveals is known after the first message, after the second, and so on.

    The values are cumulative shares of distinct words that carry meaning, with four or more letters or a digit. For a
    user
    who reveals nothing, all are 1.
    """
    told: set[str] = set()
    counts = []
    for text in said:
        told.update(filter(_tells, (word.lower() for word in words_of(text))))
        counts.append(len(told))
    return [count / counts[-1] if counts[-1] else 1.0 for count in counts]


def mean_reveal(transcripts: Sequence[Transcript]) -> list[float]:
    """Return the means of `revealed_by_turn` after message 1, 2, 3 and 4; a conversation that has ended counts as 1."""
    rows = [revealed_by_turn(transcript.said) for transcript in transcripts]
    return [sum(row[min(turn, len(row) - 1)] for row in rows) / len(rows) for turn in range(_SHARES_OF_TURNS)]


def is_english(transcripts: Iterable[Transcript]) -> bool:
    """Return whether users mostly write English, by the share of its most common words; few words count as English."""
    words = [
        word.lower()
        for transcript in transcripts
        for text in transcript.said
        for word in words_of(_straight(text))
    ]
    return len(words) < _FEW_WORDS or sum(word in _FUNCTION_WORDS for word in words) >= _LEAST_ENGLISH * len(
        words
    )


def misspelt_words(transcripts: Sequence[Transcript]) -> frozenset[str]:
    """Return users' words that look like misspellings of another word, such as refnud where others write refund.

    There is no dictionary. A word counts if it has at least five letters, all in lower case, occurs in only one
    conversation and in no answer, and turns into a word that occurs in three or more if an inner letter is removed,
    added
    or replaced, or two are swapped. The last letters must be equal, since order and orders, or sent and send, are no
    misspellings. Pass the conversations of both sources, so that both are measured by the same words.
    """
    of_transcripts: Counter[str] = Counter()
    answered: set[str] = set()
    written: set[str] = set()
    for transcript in transcripts:
        own: set[str] = set()
        for turn in transcript.turns:
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
        of_transcripts.update(own)
    rare = [word for word in written if of_transcripts[word] == 1 and word not in answered]
    known = {word for word, count in of_transcripts.items() if count >= _KNOWN_FROM}
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
    """Return whether removing, adding, replacing or swapping one letter turns one word into the other."""
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


def measured(transcripts: Sequence[Transcript], misspelt: Set[str]) -> Mapping[str, list[float]]:
    """Return the values of each measure, in the order of the conversations."""
    rows = [measure_transcript(transcript, misspelt) for transcript in transcripts]
    return {measure.name: [row[measure.name] for row in rows] for measure in MEASURES}


_LONGEST_SHOWN = 12_000
"""How many characters of a conversation the judge is shown: two of them, in both orders, must fit any model."""
_CUT = "\n[the rest is left out]"
_AT_ONCE = 64
_CHARACTERS_PER_TOKEN = 4
_ASSUMED_ANSWER_TOKENS = 100
_REASONS = 2
_WAYS_TOLD = 4
_FEW = 20
_KINDS = ("simulated", "real")
_SCHEMA = reply_schema(
    {"reason": {"type": "string"}, "winner": {"type": "string", "enum": ["1", "2", "tie"]}}
)


class ComparedMeasure(Struct, frozen=True):
    """A measure of simulated conversations compared with real ones.

    Attributes:
        difference: simulated minus real.
        p: adjusted for the number of measures; None if it cannot be computed.
    """

    measure: TranscriptMeasure
    difference: MeanDifference
    gap: DistributionGap | None
    p: float | None

    @property
    def is_shown(self) -> bool:
        """Return whether the difference is statistically significant."""
        return self.p is not None and self.p <= SIGNIFICANCE

    @property
    def is_higher(self) -> bool:
        """Return whether the value is higher for simulated users."""
        return (self.difference.value or 0.0) > 0


class TranscriptPair(Struct, frozen=True):
    """A simulated and a real conversation, and the judge's replies about them.

    Attributes:
        shares: for each order, 1 if the judge found the real one, 0.5 if it named neither, 0 if it named the simulated
        one;
            empty if a reply is missing.
        named_first: how many of the two replies named the conversation shown first; ties are left out of `named`.
        is_asked: whether the judge was called; it is not for equal texts, which cannot be told apart.
    """

    simulated: Transcript
    real: Transcript
    shares: tuple[float, ...] = ()
    named_first: int = 0
    named: int = 0
    is_asked: bool = True
    reason: str = ""
    problem: str = ""

    @property
    def share(self) -> float | None:
        """Return the judge's share of right answers on the pair; None if a reply is missing."""
        return sum(self.shares) / len(self.shares) if self.shares else None


class DiscriminationResult(Struct, frozen=True):
    """How well a judge tells simulated conversations from real ones.

    Attributes:
        accuracy: the share of pairs it gets right; a pair counts half if the two orders disagree. 0.5 is chance.
        consistent: the number of pairs with the same answer in both orders.
        named_first: the share of replies, ties excluded, that name the conversation shown first; None without any.
        ties: replies that name neither.
        failed: pairs without an answer.
        equal: pairs of equal texts, which are not sent.
        cut: conversations that are too long to be shown whole.
        reasons: the judge's reasons on pairs that it got right.
        stopped: why it stopped early; "" if it did not.
    """

    judge: str
    accuracy: Estimate
    pairs: int
    consistent: int
    named_first: float | None
    ties: int
    failed: int
    equal: int
    cut: int
    reasons: tuple[str, ...]
    problem: str
    stopped: str
    usage: Usage
    shows_answers: bool

    @property
    def is_shown(self) -> bool:
        """Return whether the judge tells them apart significantly better than chance."""
        return self.accuracy.interval is not None and self.accuracy.interval[0] > 0.5  # noqa: PLR2004 - chance

    @property
    def is_complete(self) -> bool:
        return not self.failed and not self.stopped


class UserDifference(Struct, frozen=True):
    """A way in which simulated users differ from real ones, and a line for their profile that reduces it."""

    measure: str
    text: str
    is_easier: bool
    profile: str


class Realism(Struct, frozen=True):
    """The result. `reveal` has how much simulated, and real, users have revealed after message 1, 2, 3 and so on."""

    simulated: Transcripts
    real: Transcripts
    measures: tuple[ComparedMeasure, ...]
    reveal: tuple[list[float], list[float]]
    ways: tuple[UserDifference, ...]
    told_apart: DiscriminationResult | None
    notes: tuple[str, ...] = ()

    @property
    def is_unlike(self) -> bool:
        """Return whether simulated users differ significantly from real ones."""
        return bool(self.ways) or (self.told_apart is not None and self.told_apart.is_shown)


# -- what is counted ---------------------------------------------------------------------------------------------


def compare_transcripts(
    simulated: Transcripts, real: Transcripts, told_apart: DiscriminationResult | None = None
) -> Realism:
    """Return how simulated users differ from real ones; sends nothing, as the judge's results are passed in."""
    both = (simulated, real)
    misspelt = misspelt_words([*simulated.transcripts, *real.transcripts])
    values = [measured(source.transcripts, misspelt) for source in both]
    clusters = [[transcript.cluster for transcript in source.transcripts] for source in both]
    foreign = [kind for kind, source in zip(_KINDS, both, strict=True) if not is_english(source.transcripts)]
    found: list[tuple[TranscriptMeasure, MeanDifference, DistributionGap | None]] = []
    for measure in MEASURES:
        if foreign and measure.is_english:
            continue
        one, other = (Sample(own[measure.name], names) for own, names in zip(values, clusters, strict=True))
        difference = mean_difference(one, other, highest=1.0 if measure.is_share else None)
        found.append((measure, difference, distribution_gap(one, other)))
    known = [difference.p for _, difference, _ in found if difference.p is not None]
    adjusted = iter(holm(known))
    measures = tuple(
        ComparedMeasure(measure, difference, gap, None if difference.p is None else next(adjusted))
        for measure, difference, gap in found
    )
    shown = [item for item in measures if item.is_shown]
    return Realism(
        simulated=simulated,
        real=real,
        measures=measures,
        reveal=(mean_reveal(simulated.transcripts), mean_reveal(real.transcripts)),
        ways=tuple(map(_way, sorted(shown, key=lambda item: -item.gap.value if item.gap else 0.0))),
        told_apart=told_apart,
        notes=tuple(_notes(both, foreign)),
    )


def _notes(both: Sequence[Transcripts], foreign: Sequence[str]) -> Iterator[str]:
    if foreign:
        names = ", ".join(measure.name for measure in MEASURES if measure.is_english)
        who = " and ".join(foreign)
        yield f"not counted: {names}; they look for English words, and {who} users mostly write another language"
    else:
        yield "questions without a mark, corrections, typing errors and politeness are looked for in English"
    for kind, source in zip(_KINDS, both, strict=True):
        if source.silent:
            yield f"{plural(source.silent, f'{kind} conversation')} left out: no message of a user"
        if source.failed:
            yield f"{plural(source.failed, f'{kind} conversation')} left out: ended by an error"
        if source.earlier:
            yield (
                f"{plural(source.earlier, f'{kind} conversation')} left out: the beginning of another, as logs have it"
            )
        if source.clusters < _FEW:
            what = (
                f"{kind} conversation"
                if source.clusters == len(source.transcripts)
                else f"test with {kind} conversations"
            )
            many = None if what.endswith("conversation") else f"tests with {kind} conversations"
            verb = "is" if source.clusters == 1 else "are"
            yield f"there {verb} only {plural(source.clusters, what, many)}: 20 or more show smaller differences"


class _Wording(Struct, frozen=True):
    """How to describe users who have more or less of a measure than real ones, and how to correct them.

    Attributes:
        is_easier_with_more: whether users with more of it are easier for the assistant.
        fewer: the profile line for users with more of it; `more` is for those with less. `{n}` is the value of real
        users,
            `{often}` the beginning of a sentence that says how often.
    """

    too_much: str
    too_little: str
    is_easier_with_more: bool
    fewer: str
    more: str


_REST = "; not in the others."
_CORRECT = 'take back something that you said ("no, I meant ...") or say that the answer missed the point'
_POLITELY = "greet, say please or say thank you"
_CARELESSLY = "begin in lower case or leave out the full stop"
_WORDINGS: Mapping[str, _Wording] = {
    TURNS.name: _Wording(
        "conversation too long",
        "end too soon",
        False,
        "You expect to be done after about {n}; then you end the conversation.",
        "One answer is rarely enough for you: go on asking, for about {n} in all.",
    ),
    WORDS.name: _Wording(
        "write too much",
        "write too little",
        True,
        "Write short messages, of about {n} each.",
        "Write longer messages, of about {n} each.",
    ),
    QUESTIONS.name: _Wording(
        "ask too often",
        "ask too rarely",
        False,
        "{often}ask a question; otherwise just say what you want.",
        "{often}put what you want as a question.",
    ),
    CORRECTIONS.name: _Wording(
        "correct too often",
        "correct too rarely",
        False,
        f"{{often}}{_CORRECT}{_REST}",
        f"{{often}}{_CORRECT}.",
    ),
    FIRST.name: _Wording(
        "reveal too much in the first message",
        "reveal too little in the first message",
        True,
        "In the first message say only what you want; leave numbers, dates, names and other details for later ones.",
        "In the first message say all that matters: numbers, dates, names.",
    ),
    SLIPS.name: _Wording(
        "make too many typing errors",
        "make too few typing errors",
        False,
        f"{{often}}make a typing error{_REST}",
        "{often}make a typing error, as someone who types fast.",
    ),
    CARELESS.name: _Wording(
        "write too carelessly",
        "write too carefully",
        False,
        f"{{often}}{_CARELESSLY}{_REST}",
        f"{{often}}{_CARELESSLY}.",
    ),
    POLITE.name: _Wording(
        "are too polite", "are too impolite", True, f"{{often}}{_POLITELY}{_REST}", f"{{often}}{_POLITELY}."
    ),
}


def _way(found: ComparedMeasure) -> UserDifference:
    measure = found.measure
    words = _WORDINGS[found.measure.name]
    real = found.difference.second.value or 0.0
    text = words.too_much if found.is_higher else words.too_little
    line = words.fewer if found.is_higher else words.more
    if measure.is_share and "{often}" in line:
        tenths = round(10 * real)
        if tenths:
            often = "In nearly every message, " if tenths == 10 else f"In about {tenths} of 10 messages, "  # noqa: PLR2004
        else:
            often = "Hardly ever "
            line = line.replace(_REST, ".")
        line = line.replace("{often}", often)
    noun = "message" if measure is TURNS else "word"
    line = line.replace("{n}", plural(max(1, round(real)), noun))
    return UserDifference(measure.name, text, found.is_higher == words.is_easier_with_more, line)


# -- what a judge can tell ---------------------------------------------------------------------------------------


def draw_pairs(simulated: Transcripts, real: Transcripts, count: int, seed: int) -> list[TranscriptPair]:
    """Return random pairs of a simulated and a real conversation: no pair twice, and each conversation equally often.

    If there are more conversations than pairs, those of different tests come first.
    """
    random = Random(f"geval realism {seed}")
    ones, others = (_spread(source.transcripts, random) for source in (simulated, real))
    cycle = math.lcm(len(ones), len(others))
    return [
        TranscriptPair(ones[place % len(ones)], others[(place + place // cycle) % len(others)])
        for place in range(min(count, len(ones) * len(others)))
    ]


def _spread(transcripts: Sequence[Transcript], random: Random) -> list[Transcript]:
    """Return conversations in random order: one from each cluster, then a second one from each, and so on."""
    shuffled = random.sample(transcripts, len(transcripts))
    seen: dict[str, int] = {}
    rounds = []
    for transcript in shuffled:
        rounds.append(seen.get(transcript.cluster, 0))
        seen[transcript.cluster] = rounds[-1] + 1
    return [
        transcript for _, transcript in sorted(zip(rounds, shuffled, strict=True), key=lambda item: item[0])
    ]


def _shown(held: Transcript, *, shows_answers: bool) -> str:
    if shows_answers:
        turns = tuple(
            turn for turn in held.turns if turn.role in {"user", "assistant"} and turn.content.strip()
        )
    else:
        turns = tuple(Turn("user", text) for text in held.said)
    kept, room = [], _LONGEST_SHOWN
    for turn in turns:
        if len(turn.content) > room:
            kept.append(Turn(turn.role, turn.content[:room] + _CUT))
            break
        kept.append(turn)
        room -= len(turn.content)
    return as_transcript(kept)


def _requests(
    pair: TranscriptPair, calls: JudgeCalls, *, shows_answers: bool
) -> tuple[ModelRequest, ModelRequest]:
    """Return the question in both orders: with the simulated conversation first, and with the real one first."""
    texts = [_shown(transcript, shows_answers=shows_answers) for transcript in (pair.simulated, pair.real)]
    first, second = (
        ModelRequest(
            user_message(
                question_text(
                    "pairs/realism",
                    [Block(f"Conversation {n}", text) for n, text in enumerate(order, start=1)],
                )
            ),
            params=calls.params(temperature=0),
            response_schema=_SCHEMA,
            role=Role.JUDGE,
            purpose=Purpose.CHOICE,
        )
        for order in (texts, texts[::-1])
    )
    return first, second


def _is_equal(pair: TranscriptPair, *, shows_answers: bool) -> bool:
    return _shown(pair.simulated, shows_answers=shows_answers) == _shown(
        pair.real, shows_answers=shows_answers
    )


class PlannedPairs(Struct, frozen=True):
    """The number of judge calls, how many of them the cache answers, and their cost; None if the price is unknown."""

    pairs: int
    judge_calls: int
    cached: int
    cost_usd: float | None


async def plan_pairs(
    pairs: Sequence[TranscriptPair],
    session: Session,
    judge: Judge,
    price: Price | None,
    *,
    shows_answers: bool,
) -> PlannedPairs:
    """Return the judge calls that the pairs need; nothing is sent."""
    calls = JudgeCalls(judge, session.memory)
    asked = cached = 0
    cost: float | None = 0.0
    for pair in pairs:
        if _is_equal(pair, shows_answers=shows_answers):
            continue
        for request in _requests(pair, calls, shows_answers=shows_answers):
            asked += 1
            if isinstance(judge, CachingJudge) and await judge.has_kept(request):
                cached += 1
                continue
            tokens = TokenUsage(-(-request.characters // _CHARACTERS_PER_TOKEN), _ASSUMED_ANSWER_TOKENS)
            each = None if price is None else price.cost_usd(tokens)
            cost = None if cost is None or each is None else cost + each
    return PlannedPairs(len(pairs), asked, cached, cost)


async def tell_apart(
    pairs: Sequence[TranscriptPair],
    session: Session,
    judge: Judge,
    *,
    shows_answers: bool = False,
    tell: Callable[[int], None] = lambda done: None,
) -> DiscriminationResult:
    """Ask a judge about each pair, in both orders, which conversation is real; pairs without an answer are counted.

    `tell` receives the number of finished pairs.
    """
    calls = JudgeCalls(judge, session.memory)
    room = asyncio.Semaphore(_AT_ONCE)
    done, stopped = 0, ""

    async def one(request: ModelRequest) -> WinnerReply:
        return await calls.read(request, lambda choice: parse_winner(choice.text))

    async def ask(pair: TranscriptPair) -> TranscriptPair:
        nonlocal done, stopped
        if _is_equal(pair, shows_answers=shows_answers):
            return TranscriptPair(pair.simulated, pair.real, (0.5, 0.5), is_asked=False)
        async with room:
            if stopped:
                return TranscriptPair(pair.simulated, pair.real, is_asked=False)
            orders = _requests(pair, calls, shows_answers=shows_answers)
            replies = await asyncio.gather(*map(one, orders), return_exceptions=True)
        done += 1
        tell(done)
        problem = ""
        for reply in replies:
            if isinstance(reply, NotDoneError | ProviderSettledError):
                stopped = stopped or reply.message
            elif isinstance(reply, GevalError):
                problem = problem or reply.message
            elif isinstance(reply, BaseException):
                raise reply
        if problem or not all(isinstance(reply, WinnerReply) for reply in replies):
            return TranscriptPair(pair.simulated, pair.real, problem=problem)
        return _judged(pair, [reply for reply in replies if isinstance(reply, WinnerReply)])

    with counted() as spending:
        found = await asyncio.gather(*map(ask, pairs))
    judged = [pair for pair in found if pair.share is not None]
    asked = [pair for pair in judged if pair.is_asked]
    named = sum(pair.named for pair in asked)
    hide = session.secrets.hide
    reasons = (
        one_line(hide(pair.reason), 160) for pair in asked if pair.share == 1 and " " in pair.reason.strip()
    )
    return DiscriminationResult(
        judge=judge.label,
        accuracy=crossed_share(
            [ComparedPair(pair.simulated.cluster, pair.real.cluster, pair.share or 0.0) for pair in judged]
        ),
        pairs=len(pairs),
        consistent=sum(pair.shares[0] == pair.shares[1] for pair in asked),
        named_first=sum(pair.named_first for pair in asked) / named if named else None,
        ties=2 * len(asked) - named,
        failed=sum(bool(pair.problem) for pair in found),
        equal=len(judged) - len(asked),
        cut=len(
            {
                id(transcript)
                for pair in pairs
                for transcript in (pair.simulated, pair.real)
                if _CUT in _shown(transcript, shows_answers=shows_answers)
            }
        ),
        reasons=tuple(dict.fromkeys(reasons))[:_REASONS],
        problem=hide(next((pair.problem for pair in found if pair.problem), "")),
        stopped=hide(stopped),
        usage=spending.usage,
        shows_answers=shows_answers,
    )


def _judged(pair: TranscriptPair, replies: Sequence[WinnerReply]) -> TranscriptPair:
    """Return a pair with the replies to both orders; in the first one, the real conversation is number 2."""
    shares = [
        0.5 if reply.winner == "tie" else float(reply.winner == real)
        for reply, real in zip(replies, ("2", "1"), strict=True)
    ]
    return TranscriptPair(
        pair.simulated,
        pair.real,
        tuple(shares),
        named_first=sum(reply.winner == "1" for reply in replies),
        named=sum(reply.winner != "tie" for reply in replies),
        reason=next((reply.reason for reply in replies if reply.reason), ""),
    )


# -- the report --------------------------------------------------------------------------------------------------


def answer(found: Realism, quote: Quote = str) -> str:
    """Return the result as one sentence."""
    easier = sum(way.is_easier for way in found.ways)
    ways = ", ".join(way.text for way in found.ways[:_WAYS_TOLD])
    if len(found.ways) > _WAYS_TOLD:
        ways += f" and {len(found.ways) - _WAYS_TOLD} more"
    kind = "unlike real ones"
    if easier > len(found.ways) - easier:
        kind = "easier than real ones"
    elif easier < len(found.ways) - easier:
        kind = "harder than real ones"
    what = f"your simulated users are {kind}" + (f": they {ways}" if ways else "")
    told = found.told_apart
    nothing = "no measure shows a difference"
    if all(item.p is None for item in found.measures):
        nothing = "there are too few conversations for any measure to show a difference"
    if told is None:
        return what if ways else f"{nothing} between simulated and real users"
    if told.accuracy.value is None:
        why = told.stopped or told.problem
        judged = f"the judge gave no usable answer ({quote(one_line(why, 200))})"
        return f"{judged}; {what}" if ways else f"{judged}, and {nothing}"
    share = format_share(told.accuracy.value)
    if told.accuracy.interval is not None:
        share = f"{share} ({format_share_interval(told.accuracy.interval)})"
    if told.is_shown:
        return f"a judge tells them apart in {share} of pairs: {what}"
    if told.accuracy.interval is not None and told.accuracy.interval[1] < 0.5:  # noqa: PLR2004 - chance
        start = f"a judge takes your simulated users for the real ones: it is right in {share} of pairs"
    else:
        start = f"a judge does not tell them apart: it is right in {share} of pairs, and 50 % is chance"
    return f"{start}; but {what}" if ways else f"{start}; {nothing}"


def realism_document(found: Realism) -> ReportDocument:
    """Return the result as a report."""
    rows = [_row(item) for item in found.measures]
    header = ("measure", "simulated", "real", "difference", "95 % interval", "p (Holm)", "distance")
    sections = [
        Section(
            "measures",
            tables=[Table(header, rows)],
            brief=[
                Table(header, rows, 100),
                Table((*header[:4], header[5]), [(*row[:4], row[5]) for row in rows]),
            ],
            notes=found.notes,
            is_overview=True,
        )
    ]
    if found.ways:
        sections.append(Section("lines to add to a profile", texts=[way.profile for way in found.ways]))
    if found.told_apart is not None:
        sections.append(_judge_section(found.told_apart))
    rows = [
        (f"message {place}", *map(format_share, shares))
        for place, shares in enumerate(zip(*found.reveal, strict=True), start=1)
    ]
    texts = [
        "of all that a user tells in a conversation (words of four letters or more, numbers, ids), the part told so far"
    ]
    reveal_section = Section(
        "revealed by", tables=[Table(("by", "simulated", "real"), rows)], texts=texts, is_detail=True
    )
    sections += [reveal_section, _gap_section(found.measures)]
    return ReportDocument(
        "Realism of simulated users",
        partial(_about, found),
        sections,
        _data(found),
        answer=partial(answer, found),
    )


def _row(item: ComparedMeasure) -> tuple[str, ...]:
    found, gap = item.difference, item.gap
    shares = item.measure.is_share
    difference = "-" if found.value is None else _difference(found.value, shares=shares)
    bounds = "-"
    if found.interval is not None:
        low, high = (_difference(end, shares=shares) for end in found.interval)
        bounds = f"{low} to {high}"
    return (
        item.measure.name,
        *(_figure(mean.value, shares=shares) for mean in (found.first, found.second)),
        f"{difference} pts" if shares and found.value is not None else difference,
        bounds,
        "-" if item.p is None else format_p(item.p),
        "-" if gap is None else fixed(gap.value, 2),
    )


def _figure(value: float | None, *, shares: bool) -> str:
    if value is None:
        return "-"
    return format_share(value) if shares else fixed(value, 1)


def _difference(value: float, *, shares: bool) -> str:
    if shares:
        return format_points(value)
    text = fixed(value, 1)
    return text if text.startswith("-") or not float(text) else f"+{text}"


def _judge_section(told: DiscriminationResult) -> Section:
    """Return the section about the judge: its accuracy, and what lies behind it."""
    judged = told.accuracy.n - told.equal
    texts = []
    notes = []
    if judged:
        same = f"both orders agree in {told.consistent:,} of {plural(judged, 'pair')}"
        ties = f"; {plural(told.ties, 'reply', 'replies')} named neither" if told.ties else ""
        first = ""
        if told.named_first is not None:
            first = f", and {format_share(told.named_first)} of its replies name the first conversation (50 % is fair)"
        texts.append(f"{same}{first}{ties}")
        if told.consistent < judged / 2:
            notes.append("a judge that mostly follows the order can tell little: try a stronger one")
    if told.equal:
        notes.append(
            f"{plural(told.equal, 'pair')} of equal texts counted half; the judge was not asked about them"
        )
    if told.cut:
        shown = f"{_LONGEST_SHOWN:,}"
        notes.append(
            f"of {plural(told.cut, 'conversation')} only the first {shown} characters were shown to the judge"
        )
    return Section(f"judge {told.judge}", partial(_judged_text, told), texts=texts, notes=notes)


def _judged_text(told: DiscriminationResult, quote: Quote) -> str:
    """Return a text about what was judged; it quotes the judge and servers."""
    cost = "" if not told.usage.cost_usd else f" for {format_cost(told.usage.cost_usd)}"
    text = f"{plural(told.accuracy.n, 'pair')} in both orders{cost}"
    if told.failed:
        text += f"; {plural(told.failed, 'pair')} without an answer left out ({quote(told.problem)})"
    if told.stopped:
        text += f"; stopped before the other {told.pairs - told.accuracy.n - told.failed:,}: {quote(told.stopped)}"
    if told.reasons:
        text += f". For example: {' / '.join(map(quote, told.reasons))}"
    return text


def _gap_section(measures: Sequence[ComparedMeasure]) -> Section:
    rows = []
    for item in measures:
        if (gap := item.gap) is not None:
            at = _figure(gap.at, shares=item.measure.is_share).removesuffix(".0")
            rows.append(
                (
                    item.measure.name,
                    fixed(gap.value, 2),
                    " to ".join(fixed(end, 2) for end in gap.interval),
                    f"at most {at}: {format_share(gap.first)} of simulated, {format_share(gap.second)} of real ones",
                )
            )
    texts = [
        "distance (Kolmogorov and Smirnov): where the shares of simulated and of real talks with at most so much are"
        " furthest apart; 0 is the same distribution, 1 nothing in common"
    ]
    header = ("measure", "distance", "95 % interval", "where")
    return Section("distances", tables=[Table(header, rows)], texts=texts, is_detail=True)


def _about(found: Realism, quote: Quote) -> str:
    def source(transcripts: Transcripts) -> str:
        of_tests = (
            ""
            if transcripts.clusters == len(transcripts.transcripts)
            else f" of {plural(transcripts.clusters, 'test')}"
        )
        return (
            f"{plural(len(transcripts.transcripts), 'conversation')}{of_tests} in {quote(transcripts.name)}"
        )

    return f"simulated: {source(found.simulated)}; real: {source(found.real)}"


def _data(found: Realism) -> dict[str, JsonValue]:
    told = found.told_apart
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "realism",
        "answer": answer(found),
        "unlike": found.is_unlike,
        **{
            name: {
                "source": source.name,
                "conversations": len(source.transcripts),
                "clusters": source.clusters,
                "left_out": source.silent + source.failed + source.earlier,
                "revealed_by_message": list(reveal),
            }
            for name, source, reveal in zip(_KINDS, (found.simulated, found.real), found.reveal, strict=True)
        },
        "measures": [
            {
                "name": item.measure.name,
                "unit": "share" if item.measure.is_share else "count",
                "simulated": to_json(item.difference.first),
                "real": to_json(item.difference.second),
                "difference": {
                    "value": item.difference.value,
                    "interval": to_json(item.difference.interval),
                    "p": item.difference.p,
                    "p_adjusted": item.p,
                    "shown": item.is_shown,
                },
                "distance": to_json(item.gap),
            }
            for item in found.measures
        ],
        "ways": [
            {"measure": way.measure, "text": way.text, "easier": way.is_easier, "profile": way.profile}
            for way in found.ways
        ],
        "judge": None
        if told is None
        else {
            "provider": told.judge,
            "accuracy": to_json(told.accuracy),
            "pairs": told.pairs,
            "judged": told.accuracy.n,
            "consistent": told.consistent,
            "named_first": told.named_first,
            "ties": told.ties,
            "failed": told.failed,
            "equal": told.equal,
            "cut": told.cut,
            "shows_answers": told.shows_answers,
            "reasons": list(told.reasons),
            "stopped": told.stopped or None,
            "usage": to_json(told.usage),
        },
        "notes": list(found.notes),
    }
