"""Ask several judges and combine their verdicts, weighted by their agreement with human labels where those exist.

Plain Python (no NumPy), because runs use it.
"""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import Outcome
from geval_cli.errors import GevalError, JudgeError, NotDoneError, UnjudgeableError
from geval_cli.extras.graded.checklists import HALF
from geval_cli.judge.estimate import Grade, passes
from geval_cli.judge.grading import CHECKLIST, missed_required
from geval_cli.numbers import format_score
from geval_cli.records import JsonValue, Status, to_json
from geval_cli.specs.base import CALIBRATED, JuryRulesSpec

_WEIGHTED_DIGITS = 12
"""Digits kept of a weighted score: further ones are rounding errors, which would break ties."""


class JudgeWeight(Struct, frozen=True):
    """The weight of one judge of a jury, and how it uses the scale, estimated from human labels.

    Attributes:
        judge: its name.
        key: the key of the criterion it rated by, as if it judged alone; None if the run does not record it.
        parts: the parts of that key, each as a hash.
        n: the number of labelled outputs it scored.
        r: Pearson's correlation of its scores with the mean human labels; None if its scores are all equal.
        weight: 0 or more: r^2 / (1 - r^2), and 0 for a judge that does not agree with human labels.
        mean, sd: mean and standard deviation of its scores of the labelled outputs, 0..1.
    """

    judge: str
    key: str | None
    parts: Mapping[str, str]
    n: int
    r: float | None
    weight: float
    mean: float
    sd: float

    @property
    def counts(self) -> bool:
        """Return whether the judge's weight is above 0."""
        return self.weight > 0 and self.sd > 0


def weighted_score(judges: Sequence[JudgeWeight], scores: Sequence[float | None]) -> float | None:
    """Return the score, 0..1, of a jury whose judges are weighted by their agreement with human labels.

    It is the weighted mean of standardised scores, rescaled so that the jury scores 0 if all judges do, and 1 if all
    judges do. If a judge failed (None), the weights of the others grow in proportion. None if no judge with a weight
    gave a score.
    """
    heard = [
        (one, score) for one, score in zip(judges, scores, strict=True) if one.counts and score is not None
    ]
    total = math.fsum(one.weight for one, _ in heard)
    if not total:
        return None
    found = math.fsum(one.weight * (score - one.mean) / one.sd for one, score in heard) / total
    counted = [one for one in judges if one.counts]
    whole = math.fsum(one.weight for one in counted)
    lowest = math.fsum(-one.weight * one.mean / one.sd for one in counted) / whole
    width = math.fsum(one.weight / one.sd for one in counted) / whole
    return min(1.0, max(0.0, round((found - lowest) / width, _WEIGHTED_DIGITS)))


def heard_shares(judges: Sequence[JudgeWeight], scores: Sequence[float | None]) -> list[float]:
    """Return each judge's share of the weight, 0..1; the shares of the judges that gave a score add up to 1."""
    heard = [
        one.weight if one.counts and score is not None else 0.0
        for one, score in zip(judges, scores, strict=True)
    ]
    total = math.fsum(heard)
    return [weight / total if total else 0.0 for weight in heard]


SPLIT = 0.5
"""Scores this far apart are flagged: the judges disagree."""
_WHO = ("judge", "params")
_DIGITS = 9  # beyond them lies rounding: 0.7 and 0.2 are 0.5 apart, and not 0.49999999999999994
Combine = Callable[[Sequence[float]], float]
COMBINED_SCORES: Mapping[str, Combine] = {"mean": statistics.fmean, "median": statistics.median}
"""How the judges' scores become one score; `majority` counts verdicts instead, and `calibrated` weights the judges by
their agreement with human labels.
"""


class Member(Struct, frozen=True):
    """One judge of a jury: its id and name, without keys, and a function that asks it."""

    id: str
    title: str
    ask: Callable[[], Awaitable[Grade]]


class Vote(Struct, frozen=True):
    """The grade of one judge, or the error that prevented one."""

    judge: Member
    grade: Grade | None = None
    error: GevalError | None = None


async def ask_jury(members: Sequence[Member]) -> list[Vote]:
    """Ask all judges concurrently and return their votes, in the order of the jury.

    Raises:
        NotDoneError: the budget is used up, or an answer comes with a batch; all judges have finished by then.
    """
    came = await asyncio.gather(*(judge.ask() for judge in members), return_exceptions=True)
    votes = []
    for judge, found in zip(members, came, strict=True):
        if isinstance(found, Grade):
            votes.append(Vote(judge, found))
        elif isinstance(found, GevalError) and not isinstance(found, NotDoneError):
            votes.append(Vote(judge, error=found))
        else:
            raise found
    return votes


def verdict_of_jury(
    votes: Sequence[Vote], rules: JuryRulesSpec, weights: Sequence[JudgeWeight | None] = ()
) -> Outcome:
    """Return one verdict from the combined score or, with `majority`, from the number of judges that pass the output.

    Args:
        votes: the votes of all judges.
        rules: how to combine them.
        weights: the judges' weights in the same order, for `calibrated`.

    Raises:
        JudgeError: fewer than `min_judges` gave a verdict, or none of those has a weight.
    """
    grades = [vote.grade for vote in votes if vote.grade is not None]
    needed = rules.min_judges or len(votes) // 2 + 1
    if len(grades) < needed:
        judged = len(grades)
        first = next(vote for vote in votes if vote.error is not None)
        assert first.error is not None
        message = f"only {judged} of {len(votes)} judges gave a verdict; at least {needed} must"
        raw = first.error.raw_text if isinstance(first.error, JudgeError) else ""
        raise JudgeError(
            f"{message}; {first.judge.title}: {first.error.message}", raw_text=raw, hint=first.error.hint
        )
    scores = [grade.score for grade in grades]
    if rules.combine == "majority":
        majority = len(grades) // 2 + 1
        score = sum(grade.status is Status.PASSED for grade in grades) / len(grades)
        # On the scale of the score, the share of judges that pass: 2 of 3 must, 3 of 4, 3 of 5.
        threshold = majority / len(grades)
    elif rules.combine == CALIBRATED:
        score = _weighted(votes, weights)
        threshold = grades[0].threshold
    else:
        score = COMBINED_SCORES[rules.combine](scores)
        threshold = grades[0].threshold
    known = [weight for weight in weights if weight is not None]
    shares = heard_shares(known, _scores(votes)) if len(known) == len(votes) else []
    of_grades = [share for share, vote in zip(shares, votes, strict=False) if vote.grade is not None]
    items = _checklist_of_jury(grades, rules.combine, of_grades)
    status = Status.PASSED if passes(score, threshold) else Status.FAILED
    if rules.combine != "majority" and missed_required(items):
        status = Status.FAILED
    spread = round(max(scores) - min(scores), _DIGITS)
    return Outcome(
        status=status,
        score=score,
        reason=_reason(votes, math.fsum(scores) / len(scores) if rules.combine == "majority" else score),
        threshold=threshold,
        detail=_detail(votes, rules, grades, shares) | items | {"spread": spread, "split": spread >= SPLIT},
        latency_ms=max(grade.latency_ms for grade in grades),
    )


def _weighted(votes: Sequence[Vote], weights: Sequence[JudgeWeight | None]) -> float:
    """Return the score by the judges' weights; the check before the run ensures that every judge has one."""
    known = [weight for weight in weights if weight is not None]
    if len(known) < len(votes):
        hint = "set `calibration:` in the config to the file that `geval calibrate` wrote"
        raise UnjudgeableError("the judges of this jury have no weights", hint=hint)
    score = weighted_score(known, _scores(votes))
    if score is None:
        first = next(vote for vote in votes if vote.error is not None)
        assert first.error is not None
        message = "no judge whose weight is above 0 gave a verdict"
        raise JudgeError(f"{message}; {first.judge.title}: {first.error.message}", hint=first.error.hint)
    return score


def weights_of(
    members: Sequence[Mapping[str, str]], judges: Sequence[JudgeWeight]
) -> list[JudgeWeight | None]:
    """Return the weight of each judge of a jury, matched by the parts of its key that identify it; None without one."""
    left = list(judges)
    found = []
    for parts in members:
        one = next(
            (one for one in left if all(one.parts.get(name) == parts.get(name) for name in _WHO)), None
        )
        if one is not None:
            left.remove(one)
        found.append(one)
    return found


def _scores(votes: Sequence[Vote]) -> list[float | None]:
    return [None if vote.grade is None else vote.grade.score for vote in votes]


def _checklist_of_jury(
    grades: Sequence[Grade], combine: str, shares: Sequence[float]
) -> dict[str, JsonValue]:
    """Return the jury's items of a checklist, by their key in the detail; empty for other criteria.

    Item scores are combined like the scores of outputs. With `majority` an item's score is the share of judges that
    find it met; with `calibrated` each judge counts with its share of the weight (`shares`, one per grade). The jury
    finds an item met if its score is above one half.
    """
    lists = [grade.detail.get(CHECKLIST) for grade in grades]
    if not all(lists):
        return {}
    found = []
    for answers in zip(*lists, strict=True):
        if combine == "majority":
            score = statistics.fmean(float(answer["met"]) for answer in answers)
        elif combine == CALIBRATED:
            parts = zip(shares, answers, strict=True)
            score = round(math.fsum(share * answer["score"] for share, answer in parts), _DIGITS)
        else:
            score = COMBINED_SCORES[combine]([answer["score"] for answer in answers])
        known = {name: answers[0][name] for name in ("item", "weight", "required")}
        found.append({**known, "met": score > HALF, "score": score})
    return {CHECKLIST: found}


def majority_again(rated: Outcome, threshold: float) -> Outcome:
    """Return the majority verdict for scores that the judges gave earlier, with the current threshold."""
    votes = [vote for vote in rated.detail["judges"] if vote["score"] is not None]
    passed = [passes(vote["score"], threshold) and not missed_required(vote) for vote in votes]
    score = sum(passed) / len(passed)
    least = (len(passed) // 2 + 1) / len(passed)
    status = Status.PASSED if passes(score, least) else Status.FAILED
    detail = {**rated.detail, "jury": {**rated.detail["jury"], "threshold": threshold}}
    return replace(rated, status=status, score=score, threshold=least, detail=detail)


def _reason(votes: Sequence[Vote], score: float) -> str:
    """Return the scores of all judges, and the reason of the judge whose score is nearest to the jury's."""
    judged = [(vote.judge, vote.grade) for vote in votes if vote.grade is not None]
    shown = ", ".join(
        f"{vote.judge.title} {'error' if vote.grade is None else format_score(vote.grade.score)}"
        for vote in votes
    )
    judge, nearest = min(judged, key=lambda pair: round(abs(pair[1].score - score), _DIGITS))
    return f"{judge.title}: {nearest.reason}\n({shown})" if nearest.reason else shown


def _detail(
    votes: Sequence[Vote],
    rules: JuryRulesSpec,
    grades: Sequence[Grade],
    shares: Sequence[float],
) -> dict[str, JsonValue]:
    names = ", ".join(vote.judge.title for vote in votes)
    usage = sum((grade.usage for grade in grades[1:]), grades[0].usage)
    shared = {name: grades[0].detail.get(name) for name in ("dimension", "criteria", "score_range")}
    jury: dict[str, JsonValue] = {"combine": rules.combine, "judged": len(grades), "asked": len(votes)}
    if rules.combine == "majority":
        jury["threshold"] = grades[0].threshold
    shown = [_vote_shown(vote) for vote in votes]
    if rules.combine == CALIBRATED:
        jury["reweighted"] = len(grades) < len(votes)
        shown = [{**vote, "weight": round(share, _DIGITS)} for vote, share in zip(shown, shares, strict=True)]
    found: dict[str, JsonValue] = {name: value for name, value in shared.items() if value is not None}
    return {
        **found,
        "judge": names,
        "jury": jury,
        "judges": shown,
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
