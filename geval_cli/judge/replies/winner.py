"""Read which of two outputs a judge prefers: "1", "2" or a tie, with the place where the reply says so."""

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from geval_cli.errors import JudgeParseError
from geval_cli.judge.replies.lenient_json import JsonObject, Member, find_begun_objects
from geval_cli.judge.replies.parse import (
    NOT_THE_VERDICT,
    check_no_error,
    check_not_taken_back,
    is_supposed,
    plain_key,
    reason_of,
    why_unreadable,
    without_thoughts,
)
from geval_cli.patterns import compile_later

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

_KEY = "winner"
_NAME = (
    r"(?:the[ \t])?(?:(?:output|answer|response|text|option)[ \t_#]{0,3})?"
    rf"(?P<winner>{'|'.join(sorted(SPELLINGS, key=len, reverse=True))})(?:\.0{{1,3}})?"
    r"(?:[ \t](?:output|answer|response|text|one))?"
)
_VALUE = compile_later(rf"[\s*'\"`(\[]{{0,5}}{_NAME}[\s*'\"`)\].!]{{0,5}}", re.IGNORECASE)
_LINE = compile_later(
    r"^[ \t*#_-]{0,9}(?:final[ \t]|the[ \t])?winner[*_]{0,3}[ \t]{0,3}(?::|=|is)[*_]{0,3}[ \t]{0,3}"
    rf"[*'\"`(\[]{{0,5}}{_NAME}[*'\"`)\].! \t_]{{0,9}}$",
    re.IGNORECASE | re.MULTILINE,
)


class WinnerReply(Struct, frozen=True):
    """A judge's preference. `start` and `end` are the character offsets of the word in the reply."""

    winner: Winner
    reason: str | None
    start: int
    end: int


def parse_winner(text: str) -> WinnerReply:
    """Return the winner under the key "winner" of the reply's JSON, on a line of its own, or as all of the reply.

    Raises:
        JudgeParseError: there is none, or one that is none of the outputs, or the reply names different ones.
    """
    answer = without_thoughts(text)
    alone = _VALUE.fullmatch(answer)
    found = [_reply(alone, None)] if alone else list(_stated(answer, text))
    winners = sorted({item.winner for item in found})
    if len(winners) > 1:
        message = f"the judge's reply names different winners ({' and '.join(winners)})"
        raise JudgeParseError(message, raw_text=text)
    if not found:
        raise JudgeParseError(why_unreadable(text, "winner"), raw_text=text)
    return found[0]


def _stated(answer: str, text: str) -> Iterator[WinnerReply]:
    """Yield what the objects of a reply say, and what lines outside of them do."""
    rest: list[str] = []
    position, end = 0, len(answer)
    for holder in find_begun_objects(answer):
        rest += (answer[position : holder.start], "\ue000" * (holder.end - holder.start))
        position = holder.end
        if not is_supposed(answer, holder.start):
            check_no_error(holder, text)
            for member, reason in _members(holder):
                end = holder.end
                yield _of_member(answer, member, reason, text)
    check_not_taken_back(answer[end:], text)
    outside = "".join((*rest, answer[position:]))
    for line in _LINE.finditer(outside):
        if not is_supposed(outside, line.start()):
            yield _reply(line, " ".join(outside[: line.start()].split()).strip("\ue000 ") or None)


def _members(holder: JsonObject) -> Iterator[tuple[Member, str | None]]:
    for member in holder.members:
        if plain_key(member.key) == _KEY:
            yield member, reason_of(holder)
        elif isinstance(member.value, JsonObject) and not NOT_THE_VERDICT.search(plain_key(member.key)):
            yield from _members(member.value)


def _of_member(answer: str, member: Member, reason: str | None, text: str) -> WinnerReply:
    match = None
    if isinstance(member.value, str | float) and not isinstance(member.value, bool):
        match = _VALUE.fullmatch(answer, member.start, member.end)
    if match is None:
        raise JudgeParseError('the judge\'s winner is none of "1", "2" and "tie"', raw_text=text)
    return _reply(match, reason)


def _reply(match: re.Match[str], reason: str | None) -> WinnerReply:
    return WinnerReply(SPELLINGS[match["winner"].lower()], reason, *match.span("winner"))
