"""A jury: several judges rate one output, and one verdict is made of theirs."""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.outcome import Outcome
from geval_cli.errors import GevalError, JudgeError, UndoneError
from geval_cli.judge.metric import Grade
from geval_cli.judge.scoring import passes
from geval_cli.numbers import format_score
from geval_cli.records import JsonValue, Status, to_json
from geval_cli.specs.base import JuryRulesSpec

SPLIT = 0.5
"""Scores that lie so far apart are marked: the judges do not mean the same."""

_DIGITS = 9  # beyond them lies rounding: 0.7 and 0.2 are 0.5 apart, and not 0.49999999999999994

Combine = Callable[[Sequence[float]], float]

COMBINED_SCORES: Mapping[str, Combine] = {"mean": statistics.fmean, "median": statistics.median}
"""How one score is made of the judges' scores; `majority` counts verdicts instead. One that weighs judges by how well
they agree with people belongs here, with the weights bound to it."""


class Member(Struct, frozen=True):
    """One judge of a jury: its id and its name, without keys, and how it is asked."""

    id: str
    title: str
    ask: Callable[[], Awaitable[Grade]]


class Vote(Struct, frozen=True):
    """The grade of one judge, or the error that kept it from giving one."""

    judge: Member
    grade: Grade | None = None
    error: GevalError | None = None


async def ask_jury(members: Sequence[Member]) -> list[Vote]:
    """Return the votes of all judges, who are asked side by side, in the order of the jury.

    Raises:
        UndoneError: the run may spend no more, or an answer comes with a batch. All judges have ended by then.
    """
    came = await asyncio.gather(*(judge.ask() for judge in members), return_exceptions=True)
    votes = []
    for judge, found in zip(members, came, strict=True):
        if isinstance(found, Grade):
            votes.append(Vote(judge, found))
        elif isinstance(found, GevalError) and not isinstance(found, UndoneError):
            votes.append(Vote(judge, error=found))
        else:
            raise found
    return votes


def verdict_of_jury(votes: Sequence[Vote], rules: JuryRulesSpec) -> Outcome:
    """Return one verdict: of the combined score, or with `majority` of how many judges pass the output.

    Raises:
        JudgeError: fewer than `min_judges` gave a verdict.
    """
    grades = [vote.grade for vote in votes if vote.grade is not None]
    needed = rules.min_judges or len(votes) // 2 + 1
    if len(grades) < needed:
        raise _too_few(votes, len(grades), needed)
    scores = [grade.score for grade in grades]
    if rules.combine == "majority":
        majority = len(grades) // 2 + 1
        score = sum(grade.status is Status.PASSED for grade in grades) / len(grades)
        # On the scale of the score, the share of judges that pass: 2 of 3 must, 3 of 4, 3 of 5.
        threshold = majority / len(grades)
    else:
        score, threshold = COMBINED_SCORES[rules.combine](scores), grades[0].threshold
    spread = round(max(scores) - min(scores), _DIGITS)
    return Outcome(
        status=Status.PASSED if passes(score, threshold) else Status.FAILED,
        score=score,
        reason=_reason(votes, math.fsum(scores) / len(scores) if rules.combine == "majority" else score),
        threshold=threshold,
        detail=_detail(votes, rules, grades) | {"spread": spread, "split": spread >= SPLIT},
        latency_ms=max(grade.latency_ms for grade in grades),
    )


def majority_again(rated: Outcome, threshold: float) -> Outcome:
    """Return the verdict of a majority on scores that its judges gave before, with the threshold of today."""
    scores = [vote["score"] for vote in rated.detail["judges"] if vote["score"] is not None]
    score = sum(passes(found, threshold) for found in scores) / len(scores)
    least = (len(scores) // 2 + 1) / len(scores)
    status = Status.PASSED if passes(score, least) else Status.FAILED
    detail = {**rated.detail, "jury": {**rated.detail["jury"], "threshold": threshold}}
    return replace(rated, status=status, score=score, threshold=least, detail=detail)


def _too_few(votes: Sequence[Vote], judged: int, needed: int) -> JudgeError:
    first = next(vote for vote in votes if vote.error is not None)
    assert first.error is not None
    message = f"only {judged} of {len(votes)} judges gave a verdict, {needed} must"
    raw = first.error.raw_text if isinstance(first.error, JudgeError) else ""
    return JudgeError(
        f"{message}; {first.judge.title}: {first.error.message}", raw_text=raw, hint=first.error.hint
    )


def _reason(votes: Sequence[Vote], score: float) -> str:
    """Return the scores of all judges, and the reason of the one whose score is nearest to that of the jury."""
    judged = [(vote.judge, vote.grade) for vote in votes if vote.grade is not None]
    shown = ", ".join(
        f"{vote.judge.title} {'error' if vote.grade is None else format_score(vote.grade.score)}"
        for vote in votes
    )
    judge, nearest = min(judged, key=lambda pair: round(abs(pair[1].score - score), _DIGITS))
    return "\n".join(filter(None, (nearest.reason and f"{judge.title}: {nearest.reason}", shown)))


def _detail(votes: Sequence[Vote], rules: JuryRulesSpec, grades: Sequence[Grade]) -> dict[str, JsonValue]:
    names = ", ".join(vote.judge.title for vote in votes)
    usage = sum((grade.usage for grade in grades[1:]), grades[0].usage)
    shared = {name: grades[0].detail.get(name) for name in ("dimension", "criteria", "score_range")}
    jury: dict[str, JsonValue] = {"combine": rules.combine, "judged": len(grades), "asked": len(votes)}
    if rules.combine == "majority":
        jury["threshold"] = grades[0].threshold
    found: dict[str, JsonValue] = {name: value for name, value in shared.items() if value is not None}
    return {
        **found,
        "judge": names,
        "jury": jury,
        "judges": [_vote_shown(vote) for vote in votes],
        "usage": to_json(usage),
        "latency_ms": max(grade.latency_ms for grade in grades),
    }


def _vote_shown(vote: Vote) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"id": vote.judge.id, "label": vote.judge.title}
    if vote.grade is None:
        assert vote.error is not None
        error = {"type": type(vote.error).__name__, "message": vote.error.message, "hint": vote.error.hint}
        return {**shown, "status": Status.ERROR.value, "score": None, "reason": None, "error": error}
    grade = vote.grade
    verdict = {"status": grade.status.value, "score": grade.score, "reason": grade.reason, "error": None}
    return {**shown, **verdict, **{key: value for key, value in grade.detail.items() if key not in shown}}
