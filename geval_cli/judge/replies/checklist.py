"""Read a reply that answers a checklist: yes or no on each item, with the words of the output that show it.

As elsewhere nothing is guessed: an item without a clear yes or no makes the whole reply unreadable.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from geval_cli.errors import JudgeParseError
from geval_cli.judge.replies.lenient_json import JsonObject, Member, Value, find_begun_objects
from geval_cli.judge.replies.parse import (
    check_not_taken_back,
    is_supposed,
    plain_key,
    reason_of,
    why_unreadable,
    without_thoughts,
)
from geval_cli.judge.replies.verdicts import as_claim
from geval_cli.patterns import compile_later

_ITEM_KEY = compile_later(r"(?:item|question|criterion)?0*([1-9][0-9]{0,3})")
_NO_ANSWER = compile_later(r"example|sample|previous|hypothe|template|schema")
_ITEM_KEYS = ("item", "number", "id", "index", "question", "criterion")
_ANSWER_KEYS = ("answer", "verdict", "met", "decision", "result", "passed")
_EVIDENCE_KEYS = ("evidence", "quotation", "quote")


class ItemReply(Struct, frozen=True):
    """A yes or no on one item of a checklist; `start` and `end` are the offsets of that word in the reply.

    `evidence` holds the words that are to show it, as the judge quotes them; empty when it quotes none.
    """

    is_yes: bool
    evidence: str
    reason: str | None
    start: int
    end: int


def parse_checklist(text: str, items: Sequence[str]) -> tuple[ItemReply, ...]:
    """Return the yes or no on each of `items`: by their numbers, by their texts, or in order where all have one.

    Raises:
        JudgeParseError: an item has none, or both.
    """
    answer = without_thoughts(text)
    found: dict[int, ItemReply] = {}
    unnumbered: list[ItemReply] = []
    end = len(answer)
    for holder in _own_objects(answer):
        end = holder.end
        for number, reply in _item_replies(holder, [plain_key(item) for item in items]):
            if number is None:
                unnumbered.append(reply)
            elif found.setdefault(number, reply).is_yes != reply.is_yes:
                message = f"the judge's reply says both yes and no to item {number} of the checklist"
                raise JudgeParseError(message, raw_text=text)
    check_not_taken_back(answer[end:], text)
    if not found and len(unnumbered) == len(items):
        found = dict(enumerate(unnumbered, 1))
    if not found:
        raise JudgeParseError(why_unreadable(text, "answer to the checklist"), raw_text=text)
    numbers = range(1, len(items) + 1)
    missing = [str(number) for number in numbers if number not in found]
    if missing:
        which = f"item {missing[0]}" if len(missing) == 1 else f"the items {', '.join(missing)}"
        raise JudgeParseError(
            f"the judge's reply has no yes or no to {which} of the checklist", raw_text=text
        )
    return tuple(found[number] for number in numbers)


def _own_objects(answer: str) -> Iterator[JsonObject]:
    """Yield the objects of a reply, without those that the words before them call an example or a supposition."""
    end, is_foreign = 0, False
    for holder in find_begun_objects(answer):
        between = answer[end : holder.start]
        if end == 0 or between.strip(" \t\r\n,"):  # else it goes on as the object before it
            is_foreign = is_supposed(between, len(between))
        if not is_foreign:
            yield holder
        end = holder.end


def _item_replies(holder: JsonObject, texts: Sequence[str]) -> Iterator[tuple[int | None, ItemReply]]:
    """Yield the answers in an object with the numbers of their items; None for one that says no number."""
    own = next((member for member in holder.members if plain_key(member.key) in _ANSWER_KEYS), None)
    if own is not None:
        reply = _item_reply(own, holder)
        named = next((member for member in holder.members if plain_key(member.key) in _ITEM_KEYS), None)
        number = None if named is None else _item_number(_spelled(named.value), texts)
        if reply is not None:
            yield number, reply
        return
    for member in holder.members:
        number = _item_number(member.key, texts)
        if number is not None:
            reply = _reply_of_member(member)
            if reply is not None:
                yield number, reply
            continue
        if _NO_ANSWER.search(plain_key(member.key)):
            continue
        inner = member.value if isinstance(member.value, list) else [member.value]
        for value in inner:
            if isinstance(value, JsonObject):
                yield from _item_replies(value, texts)


def _reply_of_member(member: Member) -> ItemReply | None:
    """Return the answer that stands under the number of an item: an object with it, or the word alone."""
    if not isinstance(member.value, JsonObject):
        return _item_reply(member, None)
    inner = member.value.members
    own = next((item for item in inner if plain_key(item.key) in _ANSWER_KEYS), None)
    return None if own is None else _item_reply(own, member.value)


def _item_reply(answer: Member, holder: JsonObject | None) -> ItemReply | None:
    claim = as_claim(answer.value)
    others = () if holder is None else holder.members
    if claim is None or any(
        plain_key(other.key) in _ANSWER_KEYS and as_claim(other.value) is not claim for other in others
    ):
        return None
    quoted = None if holder is None else holder.last(*_EVIDENCE_KEYS)
    evidence = "" if quoted is None or quoted.value is None else _quotation(quoted.value)
    return ItemReply(claim, evidence, None if holder is None else reason_of(holder), answer.start, answer.end)


def _quotation(value: Value) -> str:
    """Return quoted words as one text; several of them with dots between."""
    if isinstance(value, list):
        return " ... ".join(item.strip() for item in value if isinstance(item, str) and item.strip())
    return _spelled(value).strip()


def _item_number(key: str, texts: Sequence[str]) -> int | None:
    """Return the number of the item that a key names, as a number or by its text."""
    plain = plain_key(key)
    match = _ITEM_KEY.fullmatch(plain)
    if match is not None and int(match[1]) <= len(texts):
        return int(match[1])
    return texts.index(plain) + 1 if plain and plain in texts else None


def _spelled(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else ""
