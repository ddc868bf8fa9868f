"""Parsers of judges' verdicts other than ratings: yes or no, a rubric, a letter, a choice, lists, a winner.

No verdict is guessed: all of these raise JudgeParseError if a reply has no verdict or different ones, and
JudgeRangeError for a number outside its range. Objects introduced as an example are ignored.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.estimate import beginning_of, place_tokens, token_probabilities
from geval_cli.judge.lenient_json import JsonMember, JsonObject, Value, find_begun_objects, read_array
from geval_cli.judge.replies import (
    NOT_THE_VERDICT,
    PLACEHOLDER,
    REFUSES,
    check_no_error,
    check_not_taken_back,
    is_hypothetical,
    plain_key,
    reason_of,
    why_unreadable,
    without_thoughts,
)
from geval_cli.numbers import plural
from geval_cli.patterns import compile_later
from geval_cli.records import TokenLogprob

_YES = frozenset({"y", "yes", "true", "pass", "1"})
_NO = frozenset({"n", "no", "false", "fail", "0"})
_TRUE_TO_PROMPTFOO = frozenset({"true", "yes", "pass", "y"})


_NUMBER_KEYS = ("number", "index", "statement", "claim", "passage", "id")


_VERDICT_KEYS = ("verdict", "answer", "decision", "final verdict")


# A word that stands by itself: it has its line or its sentence, or follows a label or "the answer is".
_BY_ITSELF = (
    r"(?:\A|\n|[.!?:;]\s|[:\u2014]|\b(?:answer|verdict|decision|conclusion|output)\sis:?\s)"
    r"[\s*\"'(.#`\[_-]{0,9}(y|n|yes|no)"
)


_LAST_WORD = re.compile(rf"{_BY_ITSELF}[\s.*\"')!`\]_]*\Z", re.IGNORECASE)


_EACH_WORD = re.compile(rf"{_BY_ITSELF}(?=[.,;:!*)]|\s*\n)", re.IGNORECASE)


_LETTER = re.compile(
    r"""\s*[("'*\[]{0,3}([A-E])(?:[)"'*\]:.](?!\w)|\s*\Z|\s+[-\u2013\u2014])""", re.IGNORECASE
)


_ATTRIBUTED = re.compile(r"\[((?:not|non|un)[\s_-]{0,3})?attributed\]", re.IGNORECASE)


# What judges write in place of these tags: [Partially Attributed], (attributed), [nicht belegt] at the end of a line.
_OTHER_TAG = re.compile(
    r"[\[(](?:\w{1,20}[\s_-]){0,2}\w{0,20}attribut\w{0,9}[\])]|\[[^\W\d][^\[\]()\n]{0,60}\][\s*_.|]*$",
    re.IGNORECASE | re.MULTILINE,
)


_NUMBERED = re.compile(r"^\s{0,9}[*_]{0,2}\d{1,3}[.)]", re.MULTILINE)


_BETWEEN_SENTENCES = re.compile(r"[.!?]\s|[\u3002\uff01\uff1f]\s*\w|\n")


_OTHER_LETTER = re.compile(r"\(([A-E])\)|\b([B-E])(?![\w'\u2019])")


_STATED = re.compile(r"verdict\W{1,4}(yes|no)\b(?!\s*(?:[/?]|or\b))", re.IGNORECASE)


_STATED_OTHERWISE = re.compile(r"verdict\W{0,3}:\W{0,3}(?!(?:yes|no)\b)\w", re.IGNORECASE)


_IN_ORDER = re.compile(r"in order\s*:", re.IGNORECASE)


_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


_REFUSAL = re.compile(
    r"(?:(?:i['\u2019]?m|i am) (?:very )?sorry|sorry\b|i apologi[sz]e\b|as an ai\b"
    r"|i (?:can\s?not|can['\u2019]?t|won['\u2019]?t|am (?:unable|not able) to)"
    r" (?:assist|comply|extract|help|identify|provide)\b"
    r"|(?:es )?tut mir (?:sehr )?leid\b|entschuldigung\b|het spijt me\b|(?:je suis )?désolée?\b|lo siento\b|desculpe\b"
    r"|mi dispiace\b|很?抱歉|对不起|對不起|申し訳|すみません|죄송)",
    re.IGNORECASE,
)


_NO_TEXTS = re.compile(
    r"\W*(?:none|n/?a|(?:(?:there are|i (?:find|found|see)|(?:the|this) (?:answer|output|response|text)"
    r" (?:contains|has|makes)) )?no (?:\w+ )?(?:claims|facts|statements)(?: found| (?:are )?made)?"
    r"(?: in (?:the|this) (?:answer|output|response|text))?)\W*",
    re.IGNORECASE,
)


_BARE_LIST = re.compile(r"""\[\s*(?:["'\]]|null\b)""")


_MARKS = "\"'`*."  # around the name of a choice
_MOST_MARKS = 12


_NUMBER_ALONE = re.compile(r"[\s*_\"'`(\[#]{0,3}([0-9]{1,4})[\s*_\"'`)\].!]{0,3}")


Read = TypeVar("Read")


class JudgeDecision(Struct, frozen=True):
    """A yes or no with its reason; `score` is 0..1, None if the judge gave none."""

    passed: bool
    reason: str | None = None
    score: float | None = None


def as_claim(value: Value) -> bool | None:
    """Return a yes or no in any of its spellings; None for anything else."""
    if isinstance(value, bool):
        return value
    word = (
        f"{value:g}"
        if isinstance(value, float)
        else value.strip(" .\"'*").lower()
        if isinstance(value, str)
        else ""
    )
    return True if word in _YES else False if word in _NO else None


def spelled(value: Value) -> str:
    """Return a text or a number as a text; "" for anything else."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else ""


def parse_rubric_verdict(text: str, *, needs_score: bool = True, assumes_pass: bool = False) -> JudgeDecision:
    """Return whether the output meets a rubric, and how well.

    Args:
        text: the reply.
        needs_score: whether a reply without a score is an error; otherwise its yes or no is enough.
        assumes_pass: whether to follow promptfoo: a reply with only a score passes, and an invalid score counts as
        none.
    """

    def read(found: JsonObject) -> tuple[tuple[bool, float | None], str | None] | None:
        verdicts = _members(found, ("pass", "passed"))
        ratings = _members(found, ("score",))
        if not verdicts and not ratings:
            return None
        if assumes_pass:
            said = verdicts[-1].value if verdicts else None
            passed = (
                said is None or said is True or (isinstance(said, str) and said.lower() in _TRUE_TO_PROMPTFOO)
            )
            return (passed, _assumed_share(ratings[-1].value, text) if ratings else None), reason_of(found)
        check_no_refusal(reason_of(found), text)
        claims = {as_claim(member.value) for member in verdicts}
        claims |= {as_claim(member.value) for member in _members(found, _VERDICT_KEYS)} & {True, False}
        if claims not in ({True}, {False}):
            problem = "both true and false as" if claims == {True, False} else "no clear true or false as"
            raise JudgeParseError(f"the judge's reply has {problem} `pass`", raw_text=text)
        shares = {_share(member.value, text) for member in ratings}
        if None in shares or len(shares) > 1 or (needs_score and not shares):
            problem = "different scores" if len(shares) > 1 else "no numeric score"
            raise JudgeParseError(f"the judge's reply has {problem}", raw_text=text)
        passed = claims == {True}
        share = next(iter(shares), None)
        if share is not None and share == (not passed):
            which = "`pass` is true but the score is 0" if passed else "`pass` is false but the score is 1"
            raise JudgeParseError(f"the judge's reply contradicts itself: {which}", raw_text=text)
        return (passed, share), reason_of(found)

    (passed, share), reason = _one_of(text, read, "verdict")
    return JudgeDecision(passed, reason, share)


def refuses(reason: str | None) -> bool:
    """Return whether a judge says in its reason that it gives no verdict; an output that is empty can fail for that."""
    refused = REFUSES.match(reason or "")
    return refused is not None and refused["nothing"] is None


def check_no_refusal(reason: str | None, text: str) -> None:
    """Raise JudgeParseError if the reason beside a verdict says that the judge gives none."""
    if refuses(reason):
        raise JudgeParseError("the judge's reply says that it gives no verdict", raw_text=text)


def parse_yes_or_no(text: str) -> JudgeDecision:
    """Return a yes or no, as JSON or as the last word of the reply."""

    def read(found: JsonObject) -> tuple[bool, str | None] | None:
        claims = {as_claim(member.value) for member in _members(found, (*_VERDICT_KEYS, "pass", "passed"))}
        return (claims == {True}, reason_of(found)) if claims in ({True}, {False}) else None

    decision = _find_one(text, read)
    if decision is not None:
        check_no_refusal(decision[1], text)
        return JudgeDecision(*decision)
    answer = without_thoughts(text)
    match = _LAST_WORD.search(answer)
    if match is None or _holds_object(text) or is_hypothetical(answer, match.start(1)):
        raise JudgeParseError(why_unreadable(text, "yes or no"), raw_text=text)
    # A word on a line of its own stands above those in the reasoning.
    of_line = [each for each in _EACH_WORD.finditer(answer) if _has_line(each, answer)]
    others = of_line if _has_line(match, answer) else _EACH_WORD.finditer(answer)
    if any(each[1][0].lower() != match[1][0].lower() for each in others):
        raise JudgeParseError("the judge's reply says both yes and no", raw_text=text)
    reason = " ".join(answer[: match.start()].split()) or None
    check_no_refusal(reason, text)
    return JudgeDecision(match[1].lower() in _YES, reason)


def _has_line(word: re.Match[str], answer: str) -> bool:
    start = answer.rfind("\n", 0, word.start(1)) + 1
    end = answer.find("\n", word.end(1))
    line = answer[start : word.start(1)] + answer[word.end(1) : end if end != -1 else None]
    return re.search(r"\w", line) is None


def parse_category(text: str) -> tuple[str, str | None]:
    """Return a letter from A to E with its reason, as JSON or at the beginning of the reply."""

    def read(found: JsonObject) -> tuple[str, str | None] | None:
        members = _members(found, ("category", "choice", "case"))
        found_letters = [
            _LETTER.match(item.value) if isinstance(item.value, str) else None for item in members
        ]
        letters = {None if match is None else match[1].upper() for match in found_letters}
        letters |= {
            (other[1] or other[2])
            for match in found_letters
            if match is not None
            for other in _OTHER_LETTER.finditer(match.string, match.end())
        }
        letter = letters.pop() if len(letters) == 1 else None
        return None if letter is None else (letter, reason_of(found))

    decision = _find_one(text, read)
    if decision is not None:
        check_no_refusal(decision[1], text)
        return decision
    answer = without_thoughts(text)
    match = _LETTER.match(answer)
    if match is None or _holds_object(text):
        raise JudgeParseError(why_unreadable(text, "category from A to E"), raw_text=text)
    if any(
        (other[1] or other[2]) != match[1].upper() for other in _OTHER_LETTER.finditer(answer, match.end())
    ):
        raise JudgeParseError("the judge's reply names more than one category", raw_text=text)
    reason = " ".join(answer[match.end() :].split()) or None
    check_no_refusal(reason, text)
    return match[1].upper(), reason


def parse_attributions(text: str, truth: str = "") -> tuple[bool, ...]:
    """Return for each sentence whether it is attributed, as JSON or as lines with [Attributed] and [Not Attributed].

    Equal sentences count once. A reply that leaves out more than half of `truth`, if that is given, is an error.
    """

    def read(found: JsonObject) -> tuple[Mapping[str, bool], None] | None:
        claims = _claims_of(found, ("sentences", "statements"), ("attributed", "verdict"))
        [items, *_] = [member.value for member in _members(found, ("sentences", "statements"))] or [[]]
        if claims is None or not isinstance(items, list):
            return None
        said: dict[str, bool] = {}
        for number, (item, claim) in enumerate(zip(items, claims[0], strict=True)):
            named = _members(item, ("sentence", "statement")) if isinstance(item, JsonObject) else []
            sentence = spelled(named[0].value).strip() if named else f"{number}"
            if not sentence or PLACEHOLDER.fullmatch(sentence) or said.setdefault(sentence, claim) != claim:
                message = "the judge's reply names no sentence, or contradicts itself about one"
                raise JudgeParseError(message, raw_text=text)
        return said, None

    said, _ = _find_one(text, read) or ({}, None)
    if not said and not _holds_object(text):
        answer = without_thoughts(text)
        lines = [tuple(_ATTRIBUTED.finditer(line)) for line in answer.splitlines()]
        if any(
            len(tags) > 1 or (tags and is_hypothetical(tags[0].string, tags[0].start())) for tags in lines
        ):
            raise JudgeParseError("the judge's reply contradicts itself about one sentence", raw_text=text)
        starts = [found.start() for found in _NUMBERED.finditer(answer)]
        items = [answer[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)]
        if _OTHER_TAG.search(_ATTRIBUTED.sub("\ue000", answer)) or not all(map(_ATTRIBUTED.search, items)):
            raise JudgeParseError("the judge's reply does not say of each sentence what it is", raw_text=text)
        said = {f"{tags[0].string}{place}": tags[0][1] is None for place, tags in enumerate(lines) if tags}
    if not said:
        raise JudgeParseError(why_unreadable(text, "attribution of sentences"), raw_text=text)
    is_short = sum(map(len, said)) * 2 < len(truth)
    if is_short and len(said) * 2 < len(_BETWEEN_SENTENCES.findall(truth.strip())) + 1:
        raise JudgeParseError("the judge's reply leaves out most of the ground truth", raw_text=text)
    return tuple(said.values())


def parse_verdict_list(text: str, count: int) -> tuple[bool, ...]:
    """Return `count` verdicts, yes or no: from JSON, `verdict: yes` lines, or a final sentence that lists them all."""

    def read(found: JsonObject) -> tuple[tuple[bool, ...], None] | None:
        return _claims_of(found, ("verdicts", "statements"), ("verdict", "supported", "passed"))

    claims, _ = _find_one(text, read) or ((), None)
    if not claims and not _holds_object(text):
        answer = without_thoughts(text)
        *_, final = _IN_ORDER.split(answer)
        words = _YES_OR_NO.findall(final) if final != answer else _STATED.findall(answer)
        is_read = final != answer or not _STATED_OTHERWISE.search(answer)
        claims = tuple(word.lower() == "yes" for word in words if is_read)
    if len(claims) != count:
        asked = "1 was" if count == 1 else f"{count} were"
        message = f"the judge gave {plural(len(claims), 'verdict')} where {asked} asked for"
        raise JudgeParseError(message if claims else why_unreadable(text, "list of verdicts"), raw_text=text)
    return claims


def parse_texts(text: str, key: str) -> tuple[str, ...]:
    """Return the texts in a JSON list, which may be empty, under `key` or alone; or else the lines of the reply."""

    def read(found: JsonObject) -> tuple[tuple[str, ...], None] | None:
        values = _lists(found, key, text)
        return (items_of(values[0]), None) if len(values) == 1 else None

    def items_of(values: list[Value]) -> tuple[str, ...]:
        items = [item.strip() for item in values if isinstance(item, str)]
        if len(items) < len(values) or any(not item or PLACEHOLDER.fullmatch(item) for item in items):
            raise JudgeParseError(
                f"the judge's list of {key} contains something other than text", raw_text=text
            )
        return tuple(items)

    texts = _find_one(text, read)
    if texts is not None:
        return texts[0]
    lines = [line.strip() for line in without_thoughts(text).splitlines()]
    found = tuple(line for line in lines if line and not line.startswith(("```", "~~~")))
    if len(found) > 1 and found[0].endswith(":"):  # "Here are the claims:"
        found = found[1:]
    whole = "\n".join(found)
    bare = read_array(whole, 0) if _BARE_LIST.match(whole) else None
    if bare is not None:
        return items_of(bare)
    if _NO_TEXTS.fullmatch(whole):
        return ()
    is_nothing = not found or whole == "null" or _BARE_LIST.match(whole) or _holds_object(text)
    if is_nothing or _REFUSAL.match(found[0]):
        raise JudgeParseError(why_unreadable(text, f"list of {key}"), raw_text=text)
    return found


def parse_numbers(text: str, key: str, most: int) -> tuple[int, ...]:
    """Return the distinct whole numbers from 1 to `most` in a JSON list under `key`, which may be empty."""

    def read(found: JsonObject) -> tuple[tuple[int, ...], None] | None:
        values = _lists(found, key, text)
        if len(values) != 1:
            return None
        numbers = [_whole(item) for item in values[0]]
        if any(number is None or not 1 <= number <= most for number in numbers):
            raise JudgeParseError(
                f"the judge names passages that are not among the {most} given", raw_text=text
            )
        return tuple(sorted({number for number in numbers if number is not None})), None

    return _one_of(text, read, f"list `{key}`")[0]


def parse_choice(text: str, count: int, *, first: int = 1) -> tuple[int, str | None]:
    """Return the index, from 0, of the judge's choice among `count` things, and the reason.

    Args:
        text: JSON with the number under "best", or the number alone.
        count: how many things there are.
        first: the number of the first one.
    """

    def read(found: JsonObject) -> tuple[int | None, str | None] | None:
        members = _members(found, ("best", "choice", "index"))
        numbers = {_whole(member.value) for member in members}
        return (numbers.pop() if len(numbers) == 1 else None, reason_of(found)) if members else None

    alone = _NUMBER_ALONE.fullmatch(without_thoughts(text).strip())
    number, reason = (int(alone[1]), None) if alone else _one_of(text, read, "choice")
    if number is None or not first <= number < first + count:
        span = f"{first} to {first + count - 1}"
        raise JudgeParseError(f"the judge did not choose one of the outputs {span}", raw_text=text)
    check_no_refusal(reason, text)
    return number - first, reason


def parse_named_choice(text: str, names: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the choice that a reply names, in JSON or as the whole reply, and the reason.

    `names` maps plain forms, in lower case and with single spaces, to the choices.
    """

    def named(value: str) -> str | None:
        # Marks are taken off one by one, as they may belong to the name: `A*` beside `A`, or `U.S.`.
        said = " ".join(value.split()).casefold()
        for _ in range(_MOST_MARKS):
            if said in names or not said:
                break
            is_last = said[-1] in _MARKS
            is_first = said[0] in _MARKS and (said[0] == said[-1] or not is_last)
            said = said[is_first : len(said) - is_last].strip()
        return names.get(said)

    def read(found: JsonObject) -> tuple[str | None, str | None] | None:
        members = _members(found, ("choice", "answer"))
        said = {named(spelled(member.value)) for member in members}
        return (said.pop() if len(said) == 1 else None, reason_of(found)) if members else None

    alone = named(without_thoughts(text))
    chosen, reason = (alone, None) if alone is not None else _one_of(text, read, "choice")
    if chosen is None:
        raise JudgeParseError("the judge did not name one of the choices", raw_text=text)
    check_no_refusal(reason, text)
    return chosen, reason


def parse_plain(text: str) -> str:
    """Return the reply without thoughts, on one line."""
    answer = " ".join(without_thoughts(text).split())
    if not answer:
        raise JudgeParseError(why_unreadable(text, "answer"), raw_text=text)
    return answer


def _one_of(
    text: str, read: Callable[[JsonObject], tuple[Read, str | None] | None], what: str
) -> tuple[Read, str | None]:
    found = _find_one(text, read)
    if found is None:
        raise JudgeParseError(why_unreadable(text, what), raw_text=text)
    return found


def _find_one(
    text: str, read: Callable[[JsonObject], tuple[Read, str | None] | None]
) -> tuple[Read, str | None] | None:
    """Return the result of `read` for the objects in a reply, with the reason; None if no object has one."""
    answer = without_thoughts(text)
    found: list[tuple[Read, str | None]] = []
    end = len(answer)
    for holder in find_begun_objects(answer):
        if not is_hypothetical(answer, holder.start):
            check_no_error(holder, text)
            if not holder.is_closed:
                raise JudgeParseError("the judge's reply breaks off inside its JSON object", raw_text=text)
            value = read(holder)
            if value is not None:
                found.append(value)
                end = holder.end
    check_not_taken_back(answer[end:], text)
    if any(said != found[0][0] for said, _ in found):
        raise JudgeParseError(
            "the judge's reply gives different verdicts in different JSON objects", raw_text=text
        )
    return found[-1] if found else None


def _members(found: JsonObject, keys: tuple[str, ...]) -> list[JsonMember]:
    """Return the object's members with one of these keys, or else those of the objects inside it."""
    own = [member for member in found.members if member.key.strip().lower() in keys]
    return own or [
        inner
        for member in found.members
        if isinstance(member.value, JsonObject) and not NOT_THE_VERDICT.search(plain_key(member.key))
        for inner in _members(member.value, keys)
    ]


def _holds_object(text: str) -> bool:
    """Return whether the reply contains JSON, even if it breaks off; words in it are then not verdicts."""
    return "{" in without_thoughts(text)


def _lists(found: JsonObject, key: str, text: str) -> list[list[Value]]:
    lists = [member.value for member in _members(found, (key,)) if isinstance(member.value, list)]
    if [] in lists and REFUSES.match(reason_of(found) or ""):
        raise JudgeParseError(f"the judge's reply says that it gives no {key}", raw_text=text)
    return lists


def _claims_of(
    found: JsonObject, lists: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[tuple[bool, ...], None] | None:
    said = {
        tuple(_claims(member.value, keys))
        for member in _members(found, lists)
        if isinstance(member.value, list)
    }
    claims = said.pop() if len(said) == 1 else (None,)
    return None if None in claims else (tuple(claim is True for claim in claims), None)


def _claims(items: list[Value], keys: tuple[str, ...]) -> Iterator[bool | None]:
    numbers = [
        number
        for item in items
        if isinstance(item, JsonObject)
        for member in _members(item, _NUMBER_KEYS)
        if (number := _whole(member.value)) is not None
    ]
    # Verdicts belong to statements by their order, so their numbers, if they have any, are in order.
    if any(number != numbers[0] + place for place, number in enumerate(numbers)):
        yield None
    for item in items:
        if not isinstance(item, JsonObject):
            yield as_claim(item)
            continue
        claims = {as_claim(member.value) for member in _members(item, keys)}
        yield claims.pop() if len(claims) == 1 else None


def _share(value: Value, text: str) -> float | None:
    """Return a score from 0 to 1; None if the value is not a number."""
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(value) if isinstance(value, float | str) else math.nan
    except ValueError:
        return None
    if math.isnan(number):
        return None
    if not 0 <= number <= 1:
        raise JudgeRangeError(f"the judge's score is {number:g}, but should have been 0 to 1", raw_text=text)
    return number


def _assumed_share(value: Value, text: str) -> float | None:
    """Return a score, converted to a number as in JavaScript: null and an empty text are 0."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return 0.0
    return _share(value, text)


def _whole(value: Value) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) <= 9:  # noqa: PLR2004
        return int(value)
    return None


Winner = Literal["1", "2", "tie"]


SPELLINGS: dict[str, Winner] = {
    "1": "1",
    "2": "2",
    "first": "1",
    "second": "2",
    "tie": "tie",
    "tied": "tie",
    "draw": "tie",
    "equal": "tie",
    "neither": "tie",
}
"""How judges spell a winner, in lower case."""


_WINNER_KEY = "winner"


_WINNER_NAME = (
    r"(?:the[ \t])?(?:(?:output|answer|response|text|option)[ \t_#]{0,3})?"
    rf"(?P<winner>{'|'.join(sorted(SPELLINGS, key=len, reverse=True))})(?:\.0{{1,3}})?"
    r"(?:[ \t](?:output|answer|response|text|one))?"
)


_WINNER_VALUE = compile_later(rf"[\s*'\"`(\[]{{0,5}}{_WINNER_NAME}[\s*'\"`)\].!]{{0,5}}", re.IGNORECASE)


_WINNER_LINE = compile_later(
    r"^[ \t*#_-]{0,9}(?:final[ \t]|the[ \t])?winner[*_]{0,3}[ \t]{0,3}(?::|=|is)[*_]{0,3}[ \t]{0,3}"
    rf"[*'\"`(\[]{{0,5}}{_WINNER_NAME}[*'\"`)\].! \t_]{{0,9}}$",
    re.IGNORECASE | re.MULTILINE,
)


class WinnerReply(Struct, frozen=True):
    """A judge's preference. `start` and `end` are the character offsets of the word in the reply."""

    winner: Winner
    reason: str | None
    start: int
    end: int


def parse_winner(text: str) -> WinnerReply:
    """Return the winner: under the key "winner" in JSON, on a line of its own, or as the whole reply."""
    answer = without_thoughts(text)
    alone = _WINNER_VALUE.fullmatch(answer)
    found = [_winner_reply(alone, None)] if alone else list(_stated(answer, text))
    winners = sorted({item.winner for item in found})
    if len(winners) > 1:
        message = f"the judge's reply names different winners ({' and '.join(winners)})"
        raise JudgeParseError(message, raw_text=text)
    if not found:
        raise JudgeParseError(why_unreadable(text, "winner"), raw_text=text)
    check_no_refusal(found[0].reason, text)
    return found[0]


def _stated(answer: str, text: str) -> Iterator[WinnerReply]:
    """Yield the winners stated in the objects of a reply, and in the lines outside them."""
    rest: list[str] = []
    position, end = 0, len(answer)
    for holder in find_begun_objects(answer):
        rest += (answer[position : holder.start], "\ue000" * (holder.end - holder.start))
        position = holder.end
        if not is_hypothetical(answer, holder.start):
            check_no_error(holder, text)
            for member, reason in _winner_members(holder):
                end = holder.end
                match = None
                if isinstance(member.value, str | float) and not isinstance(member.value, bool):
                    match = _WINNER_VALUE.fullmatch(answer, member.start, member.end)
                if match is None:
                    raise JudgeParseError(
                        'the judge\'s winner is not one of "1", "2" and "tie"', raw_text=text
                    )
                yield _winner_reply(match, reason)
    check_not_taken_back(answer[end:], text)
    outside = "".join((*rest, answer[position:]))
    for line in _WINNER_LINE.finditer(outside):
        if not is_hypothetical(outside, line.start()):
            yield _winner_reply(line, " ".join(outside[: line.start()].split()).strip("\ue000 ") or None)


def _winner_members(holder: JsonObject) -> Iterator[tuple[JsonMember, str | None]]:
    for member in holder.members:
        if plain_key(member.key) == _WINNER_KEY:
            yield member, reason_of(holder)
        elif isinstance(member.value, JsonObject) and not NOT_THE_VERDICT.search(plain_key(member.key)):
            yield from _winner_members(member.value)


def _winner_reply(match: re.Match[str], reason: str | None) -> WinnerReply:
    return WinnerReply(SPELLINGS[match["winner"].lower()], reason, *match.span("winner"))


def weigh_words(
    tokens: Sequence[TokenLogprob], span: tuple[int, int], *, text: str, words: Mapping[str, str]
) -> dict[str, float]:
    """Return the probabilities of the possible answers at `span`, as far as their first tokens distinguish them.

    Args:
        tokens: of the reply, with their alternatives.
        span: the characters of the reply that spell the answer.
        text: the reply.
        words: the answer for each spelling; spellings are in lower case.

    Returns:
        Probabilities given everything before the answer; tokens that could begin several answers, or none, are left
        out.
    """
    start, _ = span
    path = [item for item in place_tokens(tokens, text) if item.end > start]
    if not path or path[0].start > start:
        return {}
    lead = text[path[0].start : start]
    masses = dict[str, list[float]]()
    for token, probability in token_probabilities(path[0].token).items():
        beginning = beginning_of(token, lead, is_first=True)
        answer = None if beginning is None else _only_answer(beginning.lower(), words)
        if answer is not None:
            masses.setdefault(answer, []).append(probability)
    return {answer: math.fsum(parts) for answer, parts in masses.items()}


def _only_answer(start: str, words: Mapping[str, str]) -> str | None:
    """Return the only answer whose spelling can begin with `start`, or None."""
    if not start:
        return None
    whole = _LEADING_WORD.match(start)
    spelled = whole[0] if whole is not None and whole.end() < len(start) else None
    if spelled is not None:  # the word has ended
        return words.get(spelled)
    answers = {answer for word, answer in words.items() if word.startswith(start)}
    return answers.pop() if len(answers) == 1 else None


_LEADING_WORD = compile_later(r"\w+")
