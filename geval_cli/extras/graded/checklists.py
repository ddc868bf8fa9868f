"""Checklists of `g-eval`: the judge answers yes or no for each item, and quotes the evidence in the output.

The score is the weighted share of yes. If the judge gives token probabilities, an item counts P(yes) / (P(yes) + P(no))
at the position of its answer instead of 1 or 0, just as ratings are weighted elsewhere. A yes whose evidence is not in
the output counts 0, since the judge made it up.
"""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import JudgeError, JudgeParseError
from geval_cli.extras.graded.verdicts import as_claim, check_no_refusal, refuses, spelled, weigh_words
from geval_cli.judge.calls import JudgeCalls, reply_schema
from geval_cli.judge.estimate import (
    LOGPROBS_HINT,
    MIN_COVERAGE,
    NO_LOGPROBS,
    Distribution,
    Grade,
    RatingEstimate,
    SampledReplies,
    graded,
)
from geval_cli.judge.grading import CHECKLIST
from geval_cli.judge.lenient_json import JsonMember, JsonObject, find_begun_objects
from geval_cli.judge.metric import ChecklistItem, Estimator, JudgedCase, Metric, ReadFrom
from geval_cli.judge.prompt import Block, checklist_prompt_version, checklist_text, user_message
from geval_cli.judge.replies import (
    check_not_taken_back,
    is_hypothetical,
    plain_key,
    reason_of,
    why_unreadable,
    without_thoughts,
)
from geval_cli.judge.source import PARAM_LABELS, as_text, chosen_texts
from geval_cli.numbers import format_share
from geval_cli.patterns import compile_later
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, Purpose, Role

HALF = 0.5
"""The score that an item must exceed to be met."""

_ITEM_SHOWN = 80
_WORDS = dict.fromkeys(("yes", "y", "true", "pass"), "yes") | dict.fromkeys(
    ("no", "n", "false", "fail"), "no"
)
_ANSWER_SCHEMA = reply_schema(
    {
        "reason": {"type": "string"},
        "evidence": {"type": "string"},
        "answer": {"type": "string", "enum": ["yes", "no"]},
    }
)


# -- reading ----------------------------------------------------------------------------------------------------

_ITEM_KEY = compile_later(r"(?:item|question|criterion)?0*([1-9][0-9]{0,3})")
_NO_ANSWER = compile_later(r"example|sample|previous|hypothe|template|schema")
_ITEM_KEYS = ("item", "number", "id", "index", "question", "criterion")
_ANSWER_KEYS = ("answer", "verdict", "met", "decision", "result", "passed")
_EVIDENCE_KEYS = ("evidence", "quotation", "quote")


class ItemReply(Struct, frozen=True):
    """The yes or no for one item of a checklist; `start` and `end` are the offsets of that word in the reply.

    `evidence` is the judge's quotation from the output; empty if it quotes nothing.
    """

    is_yes: bool
    evidence: str
    reason: str | None
    start: int
    end: int


def parse_checklist(text: str, items: Sequence[str]) -> tuple[ItemReply, ...]:
    """Return the yes or no for each of `items`: by number, by text, or in order if every item has one."""
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
            f"the judge's reply does not answer {which} of the checklist with yes or no", raw_text=text
        )
    if all(refuses(found[number].reason) for number in numbers):
        check_no_refusal(found[1].reason, text)
    return tuple(found[number] for number in numbers)


def _own_objects(answer: str) -> Iterator[JsonObject]:
    """Yield the objects in a reply, except those introduced as an example or a supposition."""
    end, is_foreign = 0, False
    for holder in find_begun_objects(answer):
        between = answer[end : holder.start]
        if end == 0 or between.strip(" \t\r\n,"):  # else it goes on as the object before it
            is_foreign = is_hypothetical(between, len(between))
        if not is_foreign:
            yield holder
        end = holder.end


def _item_replies(holder: JsonObject, texts: Sequence[str]) -> Iterator[tuple[int | None, ItemReply]]:
    """Yield the answers in an object with the numbers of their items; None for an answer without a number."""
    own = next((member for member in holder.members if plain_key(member.key) in _ANSWER_KEYS), None)
    if own is not None:
        reply = _item_reply(own, holder)
        named = next((member for member in holder.members if plain_key(member.key) in _ITEM_KEYS), None)
        number = None if named is None else _item_number(spelled(named.value), texts)
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


def _reply_of_member(member: JsonMember) -> ItemReply | None:
    """Return the answer under the number of an item: an object that contains it, or the word alone."""
    if not isinstance(member.value, JsonObject):
        return _item_reply(member, None)
    inner = member.value.members
    own = next((item for item in inner if plain_key(item.key) in _ANSWER_KEYS), None)
    return None if own is None else _item_reply(own, member.value)


def _item_reply(answer: JsonMember, holder: JsonObject | None) -> ItemReply | None:
    claim = as_claim(answer.value)
    others = () if holder is None else holder.members
    if claim is None or any(
        plain_key(other.key) in _ANSWER_KEYS and as_claim(other.value) is not claim for other in others
    ):
        return None
    quoted = None if holder is None else holder.last(*_EVIDENCE_KEYS)
    if holder is not None and not holder.is_closed and quoted is None:
        return None  # it broke off, perhaps in the words that are quoted
    # Quoted words as one text; several of them with dots between.
    if quoted is None or quoted.value is None:
        evidence = ""
    else:
        value = quoted.value
        if isinstance(value, list):
            evidence = " ... ".join(item.strip() for item in value if isinstance(item, str) and item.strip())
        else:
            evidence = spelled(value).strip()
    return ItemReply(claim, evidence, None if holder is None else reason_of(holder), answer.start, answer.end)


def _item_number(key: str, texts: Sequence[str]) -> int | None:
    """Return the number of the item that a key names, as a number or by its text."""
    plain = plain_key(key)
    match = _ITEM_KEY.fullmatch(plain)
    if match is not None and int(match[1]) <= len(texts):
        return int(match[1])
    return texts.index(plain) + 1 if plain and plain in texts else None


# -- grading ----------------------------------------------------------------------------------------------------


class CheckedItem(Struct, frozen=True):
    """One item with its answer and its score.

    Attributes:
        score: 0..1: the probability of yes, or the share of samples that say yes with evidence.
        p_yes: the probability of yes, or the share of samples that say it, with or without evidence; None if the judge
            gave one answer without probabilities.
        met: whether the answer is yes, with the evidence that it needs.
        evidence_found: whether the quotation is in the output; None if a yes quotes nothing, or needs no evidence.
    """

    item: ChecklistItem
    met: bool
    score: float
    p_yes: float | None
    reply: ItemReply
    evidence_found: bool | None

    @property
    def shown(self) -> dict[str, JsonValue]:
        """Return the item as it appears in a result's detail."""
        return {
            "item": self.item.text,
            "weight": self.item.weight,
            "required": self.item.required,
            "met": self.met,
            "score": self.score,
            "answer": "yes" if self.reply.is_yes else "no",
            "p_yes": self.p_yes,
            "evidence": self.reply.evidence or None,
            "evidence_found": self.evidence_found,
            "reason": self.reply.reason,
        }


class _Answers(NamedTuple):
    """The answers to all items in one judgement, and how they were obtained; the rating is computed from them later."""

    items: tuple[CheckedItem, ...]
    estimate: RatingEstimate


class _Question(Struct, frozen=True):
    """A request for the answers to a checklist, with the parser of its reply."""

    messages: tuple[Message, ...]
    items: tuple[ChecklistItem, ...]
    repeat_index: int

    def request(self, calls: JudgeCalls, *, want_logprobs: bool = False) -> ModelRequest:
        """Return the request for one reply at temperature 0."""
        numbers = [str(number) for number in range(1, len(self.items) + 1)]
        return ModelRequest(
            messages=self.messages,
            params=calls.params(temperature=0),
            repeat_index=self.repeat_index,
            want_logprobs=want_logprobs,
            response_schema=reply_schema(dict.fromkeys(numbers, _ANSWER_SCHEMA)),
            role=Role.JUDGE,
            purpose=Purpose.RATING,
        )

    def samples_request(self, calls: JudgeCalls, indexes: tuple[int, ...], purpose: Purpose) -> ModelRequest:
        """Return the request for the replies of these `indexes` at temperature 1."""
        params = calls.params(temperature=1)
        return replace(self.request(calls), params=params, sample_indexes=indexes, purpose=purpose)

    def read(self, choice: Choice) -> tuple[ItemReply, ...]:
        """Return the answers in a reply, one for each item.

        Raises:
            JudgeParseError: an answer is missing.
        """
        return parse_checklist(choice.text, [item.text for item in self.items])


async def grade_checklist(metric: Metric, case: JudgedCase, calls: JudgeCalls) -> Grade:
    """Return the grade of the output of `case` by the checklist of `metric`.

    Raises:
        MissingParamsError: the case lacks a parameter that the metric names; nothing was sent.
        JudgeError: an answer is missing, or too few samples can be parsed.
        ProviderError: the judge could not answer.
    """
    texts = chosen_texts(metric.evaluation_params, case)
    blocks = tuple(Block(PARAM_LABELS[name], text) for name, text in texts.items())
    question = _Question(
        user_message(checklist_text(metric.checklist, blocks)), metric.checklist, case.repeat_index
    )
    answers = await _answers(question, metric, as_text(case.actual_output), calls)
    items = answers.items
    score = checklist_score(metric.checklist, [item.score for item in items])
    if metric.strict_mode:
        score = float(all(item.met for item in items))
    about = {
        CHECKLIST: [item.shown for item in items],
        "evaluation_params": tuple(texts),
        "judge": calls.judge.label,
        "strict_mode": metric.strict_mode or None,
        "prompt_version": checklist_prompt_version(),
    }
    # `2 of 3 items met; not met: Names the price (required)`.
    missing = [item for item in items if not item.met]
    head = f"{len(items) - len(missing)} of {len(items)} items met"
    return graded(
        metric,
        score,
        replace(
            answers.estimate,
            rating=score,
            reason=f"{head}; not met: {'; '.join(map(_missing_in_words, missing))}" if missing else head,
        ),
        about,
        usage=calls.usage,
        latency_ms=calls.latency_ms,
        may_pass=not any(item.item.required and not item.met for item in items),
    )


def checklist_score(items: Sequence[ChecklistItem], scores: Sequence[float]) -> float:
    """Return sum(weight * score) / sum(weight), 0..1; if all weights are 0, all items count the same."""
    weights = [item.weight for item in items]
    if not any(weights):
        weights = [1.0] * len(items)
    highest = max(weights)  # so that a sum of huge weights stays finite
    shares = [weight / highest for weight in weights]
    total = math.fsum(share * score for share, score in zip(shares, scores, strict=True))
    return min(total / math.fsum(shares), 1.0)


async def _answers(question: _Question, metric: Metric, output: str, calls: JudgeCalls) -> _Answers:
    """Return the answers by the method in `metric.scoring`; `auto` uses token probabilities if there are any."""
    if metric.scoring == "samples":
        samples = SampledReplies[tuple[ItemReply, ...]]()
        request = question.samples_request(calls, tuple(range(metric.samples)), Purpose.SAMPLES)
        await samples.add(request, question, metric, calls)
        await samples.check(metric, calls)
        return _of_samples(samples, question.items, output)
    if metric.scoring == "single":
        replies = await calls.read(question.request(calls), question.read)
        return _Answers(_checked(question.items, replies, output), _found_by("single"))
    request = question.request(calls, want_logprobs=True)
    replies, chances = await calls.read(
        request, lambda choice: (found := question.read(choice), _chances(found, choice))
    )
    items = question.items
    must = metric.scoring == "logprobs"
    settled = [number for number, (_, known) in enumerate(chances or (), 1) if known >= MIN_COVERAGE]
    if chances is not None and len(settled) == len(replies):
        checked = _checked(items, replies, output, [chance for chance, _ in chances])
        covered = Distribution(coverage=min(known for _, known in chances))
        return _Answers(checked, _found_by("logprobs", distribution=covered))
    shortcoming, taken = NO_LOGPROBS, "each yes or no was taken at face value"
    if chances is not None:
        open_ones = [str(number) for number in range(1, len(replies) + 1) if number not in settled]
        numbers = f"item{'s' * (len(open_ones) > 1)} {', '.join(open_ones)}"
        shortcoming = (
            f"the judge's token probabilities settle less than"
            f" {format_share(MIN_COVERAGE)} of the answer to {numbers}"
        )
        taken = "there yes or no was taken at face value"
    if must:
        message = f"{shortcoming}, but `scoring: logprobs` needs them"
        raise JudgeError(message, hint=LOGPROBS_HINT)
    known_chances = [chance if known >= MIN_COVERAGE else None for chance, known in chances or ()]
    checked = _checked(items, replies, output, known_chances or None)
    estimator: Estimator = "mixed" if settled else "single"
    return _Answers(checked, _found_by(estimator, fallback=f"{shortcoming}: {taken}"))


def _found_by(estimator: Estimator, *, read_from: ReadFrom = "json", **how: Any) -> RatingEstimate:
    return RatingEstimate(0.0, None, estimator, read_from, **how)


def _chances(replies: Sequence[ItemReply], choice: Choice) -> list[tuple[float, float]] | None:
    """Return for each answer P(yes) / (P(yes) + P(no)), and P(yes) + P(no); None without token probabilities."""
    if choice.token_logprobs is None:
        return None
    found = []
    for reply in replies:
        masses = weigh_words(choice.token_logprobs, (reply.start, reply.end), text=choice.text, words=_WORDS)
        known = math.fsum(masses.values())
        found.append((masses.get("yes", 0.0) / known if known else 0.0, min(known, 1.0)))
    return found


def _checked(
    items: Sequence[ChecklistItem],
    replies: Sequence[ItemReply],
    output: str,
    chances: Sequence[float | None] | None = None,
) -> tuple[CheckedItem, ...]:
    """Return the items with their scores: P(yes) if it is known, else 1 or 0; 0 if required evidence is missing."""
    whole = _comparable(output)
    return tuple(
        _checked_item(item, reply, whole, chance)
        for item, reply, chance in zip(items, replies, chances or [None] * len(items), strict=True)
    )


def _checked_item(item: ChecklistItem, reply: ItemReply, whole: str, chance: float | None) -> CheckedItem:
    found = _is_shown(reply.evidence, whole) if reply.is_yes and (item.evidence or reply.evidence) else None
    lacks = reply.is_yes and item.evidence and not found
    score = 0.0 if lacks else float(reply.is_yes) if chance is None else chance
    met = reply.is_yes and score > HALF
    return CheckedItem(item, met, score, chance, reply, found)


def _of_samples(
    taken: SampledReplies[tuple[ItemReply, ...]], items: tuple[ChecklistItem, ...], output: str
) -> _Answers:
    """Return the share of samples that meet each item; reason and evidence are from the first sample that agrees."""
    samples = [_checked(items, replies, output) for replies in taken.replies]
    found = []
    for number in range(len(items)):
        answers = [sample[number] for sample in samples]
        score = sum(answer.score for answer in answers) / len(answers)
        p_yes = sum(answer.reply.is_yes for answer in answers) / len(answers)
        met = score > HALF
        shown = next((answer for answer in answers if answer.met == met), answers[0])
        found.append(replace(shown, met=met, score=score, p_yes=p_yes))
    valid = len(samples)
    return _Answers(
        tuple(found),
        _found_by("samples", read_from={"json": valid}, valid=valid, requested=taken.requested),
    )


def _missing_in_words(checked: CheckedItem) -> str:
    text = " ".join(checked.item.text.split())
    text = text if len(text) <= _ITEM_SHOWN else f"{text[: _ITEM_SHOWN - 1]}…"
    notes = ["required"] if checked.item.required else []
    if checked.reply.is_yes and checked.evidence_found is False:
        notes.append(
            "the quoted words are not in the output" if checked.reply.evidence else "nothing is quoted"
        )
    return f"{text} ({', '.join(notes)})" if notes else text


# -- evidence ---------------------------------------------------------------------------------------------------

_LEFT_OUT = compile_later(r"(?<!\s)\s*(?:\[(?:\.\.\.|…)\]|\.\.\.|…)\s*")
_MARKS = str.maketrans(
    {"*": None, "`": None}
    | dict.fromkeys("\u2018\u2019", "'")
    | dict.fromkeys("\u201c\u201d", '"')
    | dict.fromkeys("\u2013\u2014", "-")
)
_AROUND = " \"'.,;:"


def is_quoted(evidence: str, output: str) -> bool:
    """Return whether an output contains a quotation.

    White space, case, the style of quotation marks and dashes, and emphasis make no difference, since judges change
    them
    unintentionally. Words may be left out where the quotation has `...`; the rest must be in order.
    """
    return _is_shown(evidence, _comparable(output))


def _is_shown(evidence: str, whole: str) -> bool:
    for pieces in ([evidence], _LEFT_OUT.split(evidence)):
        wanted = [piece for piece in (_comparable(item).strip(_AROUND) for item in pieces) if piece]
        if wanted and _are_in_order(wanted, whole):
            return True
    plain = _comparable(evidence)
    return bool(plain.strip()) and not plain.strip(_AROUND) and plain in whole


def _are_in_order(pieces: Sequence[str], whole: str) -> bool:
    position = 0
    for piece in pieces:
        found = whole.find(piece, position)
        if found == -1:
            return False
        position = found + len(piece)
    return True


def _comparable(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).translate(_MARKS).casefold().split())
