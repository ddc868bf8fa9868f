"""Read a verdict from JSON objects: in the form asked for, or as the arguments of a tool call.

An object in an example, in a quotation or in a list of steps is no verdict.
"""

import re
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import JudgeParseError
from geval_cli.judge.metric import ScoreRange
from geval_cli.judge.replies.lenient_json import JsonObject, Member, Value, find_begun_objects
from geval_cli.judge.replies.spelling import (
    RATING,
    Stated,
    is_introduced_as_final,
    is_introduced_as_foreign,
    number_of,
    stated,
)
from geval_cli.patterns import compile_later

_FINAL_KEYS = frozenset({"finalscore", "overallscore", "finalrating", "overallrating", "final", "overall"})
_SCORE_KEY = frozenset({"score"})
_OTHER_KEYS = frozenset(
    {"rating", "grade", "mark", "totalscore", "scorevalue", "verdict", "answer"}
    | {"punktzahl", "bewertung", "nota", "puntuación", "puntuacion", "calificación", "calificacion"}
    | {
        "punteggio",
        "pontuação",
        "pontuacao",
        "оценка",
        "评分",
        "分数",
        "得分",
        "スコア",
        "評価",
        "点数",
        "점수",
    }
)
_VALUE_KEYS = _FINAL_KEYS | _SCORE_KEY | _OTHER_KEYS | {"value", "number", "points"}
_MOST_KEYS = frozenset(
    {
        "max",
        "maximum",
        "maxscore",
        "maximumscore",
        "scoremax",
        "maxrating",
        "maximumrating",
        "maxpoints",
        "outof",
    }
    | {"scale", "scorescale", "ratingscale", "range", "scorerange", "ratingrange", "maxvalue", "bestrating"}
)
_REASON_KEYS = ("reason", "reasoning", "explanation", "rationale", "justification")
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "input", "args"})
_NOT_THE_VERDICT = compile_later(
    r"step|example|sample|criteri|previous|prior|initial|expected|other|alternative|worst|best|ideal|hypothe"
    r"|claim|quote|output|reference|scale|max|min|draft|history|anchor|rubric",
)
_NO_LETTER = compile_later(r"[\W_]+")
_TEXT_VALUE = compile_later(
    rf"[\s\"'*`]{{0,9}}(?:(?:score|rating)[ \t]{{0,3}}[:=][ \t]{{0,3}})?{RATING}"
    r"""(?=[*"'`.!\s]{0,9}(?:\Z|[ \t]{0,5}(?:[-\u2013\u2014:,;(#\n]|//|(?:because|since|as|due)\b)))""",
    re.IGNORECASE,
)
_IN_A_LIST = compile_later(rf"\[\s{{0,9}}[\"']?{RATING}[\"']?\s{{0,9}},?\s{{0,9}}\]", re.IGNORECASE)
_LAST_NUMBER = compile_later(r"(?P<most>[0-9]{1,9}(?:\.[0-9]{1,6})?)\D{0,20}\Z")
_STRAY_SCORE = compile_later(r"""["'](?:final[_ ]|overall[_ ])?score["']\s{0,5}:""", re.IGNORECASE)
_ESCAPED_OBJECT = compile_later(r"""\{(?:\s|\\[nrt]){0,20}\\{1,3}"\w""")
_ESCAPE = compile_later(r"\\\\\\\"|\\.", re.DOTALL)


class Structured(Struct, frozen=True):
    """A rating in an object, with the reason beside it."""

    rating: Stated
    reason: str | None


def unescaped(text: str) -> str:
    """Return `text` without one layer of backslashes when its only JSON is escaped; no character is moved."""
    if _ESCAPED_OBJECT.search(text) is None or any(True for _ in find_begun_objects(text)):
        return text
    return _peeled(text)


def _peeled(text: str) -> str:
    return _ESCAPE.sub(lambda match: _peel(match[0]), text)


def _peel(escape: str) -> str:
    if len(escape) > 2:  # noqa: PLR2004  # a quote escaped twice
        return '  \\"'
    return f" {escape[1]}" if escape[1] in "\"'/" else "  "


def verdict_of_objects(
    text: str, *, name: str | None, score_range: ScoreRange, is_cut_off: bool
) -> tuple[Structured | None, str]:
    """Return the verdict in the objects of a reply, and the reply with them blanked out.

    Raises:
        JudgeParseError: an object breaks off before its score, has none that is a number, or they differ.
    """
    found: list[tuple[Structured, bool]] = []
    rest: list[str] = []
    position = last_end = 0
    breaks_off = False
    for holder in find_begun_objects(text):
        rest += (text[position : holder.start], "\ue000" * (holder.end - holder.start))
        position = holder.end
        if is_introduced_as_foreign(text, holder.start):
            continue
        is_final = is_introduced_as_final(text, holder.start)
        read = list(_read_object(text, holder, name))
        if not read and not holder.is_closed:
            breaks_off, last_end = True, holder.end
        for one in read:
            if not holder.is_closed and _may_go_on(one.rating, text, score_range, is_cut_off):
                raise JudgeParseError(
                    "the judge's reply breaks off in the middle of the score", raw_text=text
                )
            found.append((one, is_final))
    masked = "".join((*rest, text[position:]))
    # What an object holds that was given up on is never read as prose.
    chosen = _agreed(found, text)
    if breaks_off and (chosen is None or last_end == len(text)):
        raise JudgeParseError("the judge's reply breaks off before the score", raw_text=text)
    if chosen is not None and _STRAY_SCORE.search(masked):
        raise JudgeParseError("the judge's reply has a second score outside its object", raw_text=text)
    return chosen, masked


def ratings_of_members(text: str, name: str) -> Iterator[Stated]:
    """Yield the ratings under the key `name` in the objects of a reply, be they in an object inside another.

    Raises:
        JudgeParseError: one is no number, or may have been cut off.
    """
    for holder in find_begun_objects(text):
        if not is_introduced_as_foreign(text, holder.start):
            yield from _ratings_below(text, holder, name)


def _ratings_below(text: str, holder: JsonObject, name: str) -> Iterator[Stated]:
    for member in holder.members:
        if plain_key(member.key) == plain_key(name):
            rating = _rating_of(text, member)
            if rating is None or rating.is_claim:
                raise JudgeParseError(
                    f"the judge's reply has a rating of {name} that is no number", raw_text=text
                )
            if not holder.is_closed and not text[member.end :].strip().strip('"'):
                raise JudgeParseError(f"the judge's reply breaks off in the rating of {name}", raw_text=text)
            yield rating
        elif isinstance(member.value, JsonObject) and not _NOT_THE_VERDICT.search(plain_key(member.key)):
            yield from _ratings_below(text, member.value, name)


def _agreed(found: list[tuple[Structured, bool]], text: str) -> Structured | None:
    """Return the one rating of all, or of those that are called final."""
    finals = [one for one, is_final in found if is_final]
    counted = finals or [one for one, _ in found]
    ratings = sorted({one.rating.value for one in counted})
    if len(ratings) > 1:
        raise JudgeParseError(differing(ratings), raw_text=text)
    return counted[-1] if counted else None


def differing(ratings: list[float]) -> str:
    """Return the problem, in words, of a reply that states all of `ratings`."""
    return (
        f"the judge's reply states different scores ({' and '.join(f'{rating:g}' for rating in ratings[:3])})"
    )


def plain_key(key: str) -> str:
    """Return a key in lower case without spaces and signs: `finalscore` for `Final_Score`."""
    return _NO_LETTER.sub("", key).lower()


def _read_object(text: str, holder: JsonObject, name: str | None) -> Iterator[Structured]:
    """Yield the ratings of the object itself, under the clearest key; when it has none, those of the objects inside."""
    own = (frozenset({plain_key(name)}),) if name else ()
    for keys in (*own, _FINAL_KEYS, _SCORE_KEY, _OTHER_KEYS):
        members = [member for member in holder.members if plain_key(member.key) in keys]
        read = [(member, _rating_of(text, member)) for member in members]
        ratings = [(member, rating) for member, rating in read if rating is not None]
        for member, rating in ratings:
            yield Structured(_with_maximum(rating, holder), reason_of(holder) or _reason_inside(member))
        if ratings:
            return
        if keys is _SCORE_KEY and any(not _is_placeholder(member.value) for member in members):
            raise JudgeParseError("the judge's reply has a score that is no number", raw_text=text)
    for member in holder.members:
        if not _NOT_THE_VERDICT.search(plain_key(member.key)):
            yield from _read_inside(text, member, name)


def _read_inside(text: str, member: Member, name: str | None) -> Iterator[Structured]:
    """Yield the ratings of the object that a value is, or of the JSON that the arguments of a tool are spelled in."""
    value = member.value
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, JsonObject):
        yield from _read_object(text, value, name)
    elif isinstance(value, str) and plain_key(member.key) in _ARGUMENT_KEYS:
        arguments = _peeled(text[member.start : member.end])
        for found in find_begun_objects(arguments):
            for one in _read_object(arguments, found, name):
                start, end = one.rating.start + member.start, one.rating.end + member.start
                yield replace(one, rating=replace(one.rating, start=start, end=end))


def _is_placeholder(value: Value) -> bool:
    """Return whether a judge repeats what stands in its prompt in the place of an answer."""
    return isinstance(value, str) and value.lstrip().startswith("<")


def _reason_inside(member: Member) -> str | None:
    return reason_of(member.value) if isinstance(member.value, JsonObject) else None


def _rating_of(text: str, member: Member) -> Stated | None:
    value = member.value
    if isinstance(value, bool):
        return Stated(float(value), member.start, member.end, is_claim=True)
    if isinstance(value, float):
        return Stated(value, member.start, member.end)
    if isinstance(value, JsonObject):
        return _rating_inside(text, value)
    pattern = _IN_A_LIST if isinstance(value, list) else _TEXT_VALUE if isinstance(value, str) else None
    match = None if pattern is None else pattern.match(text, member.start, member.end)
    return None if match is None else stated(match)


def _rating_inside(text: str, holder: JsonObject) -> Stated | None:
    """Return the rating of `{"value": 8, "max": 10}`, if there is exactly one."""
    members = [member for member in holder.members if plain_key(member.key) in _VALUE_KEYS]
    if len(members) != 1 or isinstance(members[0].value, JsonObject):
        return None
    rating = _rating_of(text, members[0])
    return None if rating is None else _with_maximum(rating, holder)


def _with_maximum(rating: Stated, holder: JsonObject) -> Stated:
    """Return `rating` with the maximum that stands beside it in the object."""
    if rating.out_of is not None:
        return rating
    for member in holder.members:
        if plain_key(member.key) in _MOST_KEYS and (most := _maximum_of(member.value)) is not None:
            return replace(rating, out_of=most)
    return rating


def _maximum_of(value: Value) -> float | None:
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, JsonObject):
        member = value.last("max", "maximum", "high", "to", "upper")
        value = None if member is None else member.value
    if isinstance(value, str) and (match := _LAST_NUMBER.search(value[-40:])):
        return number_of(match["most"])
    return value if isinstance(value, float) else None


def _may_go_on(rating: Stated, text: str, score_range: ScoreRange, is_cut_off: bool) -> bool:
    """Return whether the text ends right after a number that more digits would leave inside the range."""
    return rating.end == len(text.rstrip('"')) and (
        is_cut_off or score_range[1] - score_range[0] < 2 or 0 < rating.value * 10 <= score_range[1]  # noqa: PLR2004
    )


def reason_of(holder: JsonObject) -> str | None:
    """Return the reason that an object gives, on one line; None without one."""
    member = holder.last(*_REASON_KEYS)
    return None if member is None else one_line(member.value)


def one_line(value: Value) -> str | None:
    """Return the texts of a value on one line."""
    return " ".join(" ".join(texts_of(value)).split()) or None


_LIST_NUMBER = compile_later(r"\A(?:[0-9]{1,2}[.)]|Step [0-9]{1,2}[.:)])\s{1,8}", re.IGNORECASE)


def texts_of(value: Value) -> tuple[str, ...]:
    """Return the non-empty texts of a string (its lines), of a list, or of the strings inside its objects."""
    if isinstance(value, str):
        lines = (_LIST_NUMBER.sub("", line.strip()) for line in value.splitlines())
        return tuple(line for line in lines if line)
    if isinstance(value, list):
        return tuple(item for item in (_one_text(entry) for entry in value) if item)
    return ()


def _one_text(value: Value) -> str:
    if isinstance(value, JsonObject):
        parts = (member.value for member in value.members)
        return ": ".join(part.strip() for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        return ""
    return _LIST_NUMBER.sub("", " ".join(value.split()))
