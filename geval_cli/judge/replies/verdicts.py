"""Read replies to questions that ask for other things than a rating: yes or no, a case, a list, a choice.

As with ratings, the last verdict of a reply counts, and nothing is guessed: a reply without a clear verdict is a
JudgeParseError.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct

from geval_cli.errors import JudgeParseError, JudgeRangeError
from geval_cli.judge.replies.lenient_json import JsonObject, Value, find_objects
from geval_cli.judge.replies.parse import why_unreadable, without_thoughts
from geval_cli.judge.replies.structure import reason_of

_YES = frozenset({"y", "yes", "true", "pass", "1"})
_NO = frozenset({"n", "no", "false", "fail", "0"})
_VERDICT_KEYS = ("verdict", "answer", "decision", "final verdict")
_LAST_WORD = re.compile(r"(?:\A|[\s:*\"'(.])(y|n|yes|no)[\s.*\"')!]*\Z", re.IGNORECASE)
_LETTER = re.compile(r"""\s*[("'*\[]{0,3}([A-E])(?:[)"'*\]:.]|\s*\Z|\s+[-\u2013\u2014])""", re.IGNORECASE)
_ATTRIBUTED = re.compile(r"\[(not )?attributed\]", re.IGNORECASE)
_STATED = re.compile(r"verdict\W{1,4}(yes|no)\b", re.IGNORECASE)
_IN_ORDER = re.compile(r"in order\s*:", re.IGNORECASE)
_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_NUMBER_ALONE = re.compile(r"\W{0,3}([0-9]{1,4})\W{0,3}")

Read = TypeVar("Read")


class Decision(Struct, frozen=True):
    """A yes or no with its reason; `score` is 0..1, None when the judge gave none."""

    passed: bool
    reason: str | None = None
    score: float | None = None


def parse_rubric_verdict(text: str) -> Decision:
    """Return whether the output meets a rubric, and how well; without a word on the former it is met.

    Raises:
        JudgeParseError: neither is said.
        JudgeRangeError: the score lies outside 0..1.
    """

    def read(found: JsonObject) -> Decision | None:
        verdict, rating = found.last("pass", "passed"), found.last("score")
        if verdict is None and rating is None:
            return None
        passed = True if verdict is None else as_claim(verdict.value) is True
        return Decision(passed, reason_of(found), None if rating is None else _share(rating.value, text))

    return _last_of(text, read, "verdict")


def parse_yes_or_no(text: str) -> Decision:
    """Return a yes or no, as JSON or as the last word of the reply.

    Raises:
        JudgeParseError: it is neither.
    """

    def read(found: JsonObject) -> Decision | None:
        member = found.last(*_VERDICT_KEYS)
        claim = None if member is None else as_claim(member.value)
        return None if claim is None else Decision(claim, reason_of(found))

    decision = _find_last(text, read)
    if decision is not None:
        return decision
    answer = without_thoughts(text)
    match = _LAST_WORD.search(answer)
    if match is None or _holds_object(text):
        raise JudgeParseError(why_unreadable(text, "yes or no"), raw_text=text)
    return Decision(match[1].lower() in _YES, " ".join(answer[: match.start()].split()) or None)


def parse_category(text: str) -> tuple[str, str | None]:
    """Return a letter from A to E with its reason, as JSON or at the beginning of the reply.

    Raises:
        JudgeParseError: there is none.
    """

    def read(found: JsonObject) -> tuple[str, str | None] | None:
        member = found.last("category", "choice", "case")
        match = _LETTER.match(member.value) if member is not None and isinstance(member.value, str) else None
        return None if match is None else (match[1].upper(), reason_of(found))

    decision = _find_last(text, read)
    if decision is not None:
        return decision
    answer = without_thoughts(text)
    match = _LETTER.match(answer)
    if match is None:
        raise JudgeParseError(why_unreadable(text, "category from A to E"), raw_text=text)
    return match[1].upper(), " ".join(answer[match.end() :].split()) or None


def parse_attributions(text: str) -> tuple[bool, ...]:
    """Return for each sentence whether it is attributed, as JSON or as lines with [Attributed] and [Not Attributed].

    Raises:
        JudgeParseError: nothing is said of any sentence.
    """

    def read(found: JsonObject) -> tuple[bool, ...] | None:
        return _claims_of(found, ("sentences", "statements"), ("attributed", "verdict"))

    claims = _find_last(text, read)
    if claims is None:
        lines = (_ATTRIBUTED.search(line) for line in without_thoughts(text).splitlines())
        claims = tuple(match[1] is None for match in lines if match is not None)
    if not claims:
        raise JudgeParseError(why_unreadable(text, "attribution of sentences"), raw_text=text)
    return claims


def parse_verdict_list(text: str, count: int) -> tuple[bool, ...]:
    """Return `count` verdicts, yes or no, as JSON, as `verdict: yes` lines, or in a sentence that ends with them all.

    Raises:
        JudgeParseError: there are fewer or more.
    """

    def read(found: JsonObject) -> tuple[bool, ...] | None:
        return _claims_of(found, ("verdicts", "statements"), ("verdict", "supported"))

    claims = _find_last(text, read)
    if claims is None:
        answer = without_thoughts(text)
        *_, final = _IN_ORDER.split(answer)
        words = _YES_OR_NO.findall(final) if final != answer else _STATED.findall(answer)
        claims = tuple(word.lower() == "yes" for word in words)
    if len(claims) != count:
        message = f"the judge gave {len(claims)} verdicts on {count} statements"
        raise JudgeParseError(
            message if claims else why_unreadable(text, "verdict on statements"), raw_text=text
        )
    return claims


def parse_texts(text: str, key: str) -> tuple[str, ...]:
    """Return the texts of a JSON list under `key`, which may be empty; else the lines of a reply without JSON.

    Raises:
        JudgeParseError: the reply is empty, or its JSON has no such list.
    """

    def read(found: JsonObject) -> tuple[str, ...] | None:
        member = found.last(key)
        if member is None or not isinstance(member.value, list):
            return None
        return tuple(item.strip() for item in member.value if isinstance(item, str) and item.strip())

    texts = _find_last(text, read)
    if texts is not None:
        return texts
    lines = [line.strip() for line in without_thoughts(text).splitlines()]
    found = tuple(line for line in lines if line)
    if not found or _holds_object(text):
        raise JudgeParseError(why_unreadable(text, f"list of {key}"), raw_text=text)
    return found


def parse_numbers(text: str, key: str, most: int) -> tuple[int, ...]:
    """Return the different whole numbers from 1 to `most` of a JSON list under `key`, which may be empty.

    Raises:
        JudgeParseError: there is no such list, or something else in it.
    """

    def read(found: JsonObject) -> tuple[int, ...] | None:
        member = found.last(key)
        if member is None or not isinstance(member.value, list):
            return None
        numbers = [_whole(item) for item in member.value]
        if any(number is None or not 1 <= number <= most for number in numbers):
            raise JudgeParseError(f"the judge names passages that are not among the {most}", raw_text=text)
        return tuple(sorted({number for number in numbers if number is not None}))

    return _last_of(text, read, f"list `{key}`")


def parse_choice(text: str, count: int, *, first: int = 1) -> tuple[int, str | None]:
    """Return the place, from 0, of the one of `count` things that the judge chose, and its reason.

    Args:
        text: JSON with the number under "best", or the number alone.
        count: how many things there are.
        first: the number of the first of them.

    Raises:
        JudgeParseError: there is no number, or none of theirs.
    """

    def read(found: JsonObject) -> tuple[int | None, str | None] | None:
        member = found.last("best", "choice", "index")
        return None if member is None else (_whole(member.value), reason_of(found))

    alone = _NUMBER_ALONE.fullmatch(without_thoughts(text).strip())
    number, reason = (int(alone[1]), None) if alone else _last_of(text, read, "choice")
    if number is None or not first <= number < first + count:
        span = f"{first} to {first + count - 1}"
        raise JudgeParseError(f"the judge did not choose one of the outputs {span}", raw_text=text)
    return number - first, reason


def parse_plain(text: str) -> str:
    """Return the reply without thoughts, on one line.

    Raises:
        JudgeParseError: it is empty.
    """
    answer = " ".join(without_thoughts(text).split())
    if not answer:
        raise JudgeParseError(why_unreadable(text, "answer"), raw_text=text)
    return answer


def _last_of(text: str, read: Callable[[JsonObject], Read | None], what: str) -> Read:
    found = _find_last(text, read)
    if found is None:
        raise JudgeParseError(why_unreadable(text, what), raw_text=text)
    return found


def _find_last(text: str, read: Callable[[JsonObject], Read | None]) -> Read | None:
    """Return the result of `read` for the last object that it can read; one that breaks off is not read."""
    last = None
    for found in find_objects(without_thoughts(text)):
        value = read(found) if found.is_closed else None
        last = last if value is None else value
    return last


def _holds_object(text: str) -> bool:
    """Return whether the answer holds JSON, also if that breaks off: then words in it are no verdict."""
    return "{" in without_thoughts(text)


def _claims_of(found: JsonObject, lists: tuple[str, ...], keys: tuple[str, ...]) -> tuple[bool, ...] | None:
    member = found.last(*lists)
    if member is None or not isinstance(member.value, list):
        return None
    claims = tuple(_claims(member.value, keys))
    return None if None in claims else tuple(claim is True for claim in claims)


def _claims(items: list[Value], keys: tuple[str, ...]) -> Iterator[bool | None]:
    for item in items:
        if not isinstance(item, JsonObject):
            yield as_claim(item)
            continue
        member = item.last(*keys)
        yield None if member is None else as_claim(member.value)


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


def _share(value: Value, text: str) -> float | None:
    """Return a score from 0 to 1; None for what is no number."""
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(value) if isinstance(value, float | str) else math.nan
    except ValueError:
        return None
    if math.isnan(number):
        return None
    if not 0 <= number <= 1:
        raise JudgeRangeError(f"the judge's score is {number:g}, but was asked for 0 to 1", raw_text=text)
    return number


def _whole(value: Value) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) <= 9:  # noqa: PLR2004
        return int(value)
    return None
