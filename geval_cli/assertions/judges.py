"""Find who judges, alone or as a jury.

The provider is that of the nearest level that names one, else a default.
"""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import (
    CheckContext,
    JudgeDefaults,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
)
from geval_cli.errors import (
    GevalError,
    JudgeError,
    Problem,
    Severity,
    UndoneError,
    UnjudgeableError,
)
from geval_cli.judge.estimate import Grade, passes
from geval_cli.judge.grading import CHECKLIST, HALF, missed_required
from geval_cli.numbers import format_score
from geval_cli.providers.base import (
    CLASSIFICATION,
    EMBEDDING,
    MODERATION,
    SEARCH,
    TEXT,
    can_search,
    kind_of,
)
from geval_cli.records import JsonValue, Status, to_json
from geval_cli.specs.base import (
    CALIBRATED,
    JuryRulesSpec,
    JurySpec,
    ProviderSpec,
)
from geval_cli.specs.promptfoo import JudgesSpec
from geval_cli.statistics.calibration import JudgeWeight, heard_shares, weighted_score

DEFAULT_JUDGE = ProviderSpec(id="openai:gpt-4.1")
"""The judge when none is named."""

DEFAULT_EMBEDDING = ProviderSpec(id="openai:embedding:text-embedding-3-large")
"""The embedding provider when none is named."""

DEFAULT_MODERATION = ProviderSpec(id="openai:moderation")
"""The moderator when none is named."""

DEFAULT_SEARCH = ProviderSpec(id="openai:responses:gpt-4.1", config={"tools": [{"type": "web_search"}]})
"""The judge with web search when none is named."""

_DEFAULTS: Mapping[str, ProviderSpec] = {
    TEXT: DEFAULT_JUDGE,
    EMBEDDING: DEFAULT_EMBEDDING,
    MODERATION: DEFAULT_MODERATION,
    SEARCH: DEFAULT_SEARCH,
}


def kind_by_default(judge: ProviderSpec) -> str | None:
    """Return the kind of a default judge; None for a judge that the config names."""
    return next((kind for kind, default in _DEFAULTS.items() if judge is default), None)


def judge_provider(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec:
    """Return the judge of an assertion: of the nearest level that names one of this kind.

    `kind` is what it must answer with (`providers.base`).

    Raises:
        UnjudgeableError: none is named, and there is none by default.
    """
    found = find_judge(spec, test, defaults, kind)
    if found is None:
        raise UnjudgeableError(f"{spec.base_type} has no {kind} model to call", hint="name one in `provider`")
    return found


def find_judge(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults, kind: str = TEXT
) -> ProviderSpec | None:
    """Return the provider of `judge_provider`, or None where none is named."""
    own = None if spec.provider is None else _as_kind(spec.provider, kind)
    if own is not None:
        return own
    for level in (test.options.provider, defaults.grader, test.default_options.provider):
        found = None if level is None else _of_kind(level, kind)
        if found is not None:
            return found
    return _DEFAULTS.get(kind)


def members_of(judge: ProviderSpec) -> tuple[ProviderSpec, ...]:
    """Return the judges of a jury, or the one judge."""
    return judge.members if isinstance(judge, JurySpec) else (judge,)


def judges_of(
    spec: ModelGradedAssertion, test: MergedTest, defaults: JudgeDefaults
) -> Iterator[ProviderSpec]:
    """Yield every provider that judges for an assertion."""
    for kind in spec.judge_kinds:
        found = find_judge(spec, test, defaults, kind)
        if found is not None:
            yield from members_of(found)


_CALLED = {EMBEDDING: "an embedding model", CLASSIFICATION: "a classifier", MODERATION: "a moderation model"}


def check_judge(spec: ModelGradedAssertion, context: CheckContext) -> Iterator[Problem]:
    """Yield a problem for an assertion's own judge that answers with something else than the assertion needs.

    promptfoo takes the default judge then, and says so.
    """
    own = spec.provider
    if own is None or isinstance(own, JudgesSpec) or not {TEXT, MODERATION} & set(spec.judge_kinds):
        return
    for judge in members_of(own):
        if any(_as_kind(judge, kind) is not None for kind in spec.judge_kinds):
            continue
        wanted = spec.judge_kinds[0]
        what = _CALLED.get(kind_of(judge.id), "a model that writes text")
        message, severity = (
            f"`{judge.public_id}` is {what}, which cannot judge {spec.base_type}",
            Severity.ERROR,
        )
        if context.rules.judges_by_kind:
            message, severity = f"{message}; {_DEFAULTS[wanted].id} is used instead", Severity.WARNING
        hint = f"name {'a chat model' if wanted == TEXT else _CALLED[wanted]}, for example {_DEFAULTS[wanted].id}"
        place = judge.place.value("id") or judge.place.value() or spec.place.value("provider")
        yield Problem(message, place, hint, severity=severity)


def check_writer(provider: ProviderSpec, role: str) -> Iterator[Problem]:
    """Yield a problem for a model that must write text, in the given role, and returns vectors."""
    if kind_of(provider.id) == EMBEDDING:
        message = f"`{provider.public_id}` is an embedding model: it returns vectors and cannot {role}"
        hint = "name a chat model; embedding models are for the `provider` of `similar`"
        yield Problem(message, provider.place.value("id") or provider.place.value(), hint)


def _as_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    """Return an assertion's own provider, which need not say its kind where there can be no doubt."""
    if isinstance(provider, JurySpec):
        return provider if kind == TEXT else None
    if isinstance(provider, JudgesSpec):
        return _of_kind(provider, kind)
    if kind == CLASSIFICATION:
        return provider  # anything that answers with scores of labels
    vendor, _, model = provider.id.partition(":")
    if kind == EMBEDDING and vendor == "local" and kind_of(provider.id) == TEXT:
        return provider.model_copy(update={"id": f"{vendor}:embedding:{model}"})
    return _of_kind(provider, kind)


def _of_kind(provider: ProviderSpec, kind: str) -> ProviderSpec | None:
    if isinstance(provider, JudgesSpec):
        found = provider.by_kind.get(TEXT if kind == SEARCH else kind)
        return found if found is None or kind != SEARCH or can_search(found) else None
    if kind == SEARCH:
        return provider if can_search(provider) else None
    return provider if kind_of(provider.id) == kind else None


SPLIT = 0.5
"""Scores that lie so far apart are marked: the judges do not mean the same."""

_WHO = ("judge", "params")
_DIGITS = 9  # beyond them lies rounding: 0.7 and 0.2 are 0.5 apart, and not 0.49999999999999994

Combine = Callable[[Sequence[float]], float]

COMBINED_SCORES: Mapping[str, Combine] = {"mean": statistics.fmean, "median": statistics.median}
"""How one score is made of the judges' scores; `majority` counts verdicts instead, and `calibrated` weighs the judges
by how well they follow people."""


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


def verdict_of_jury(
    votes: Sequence[Vote], rules: JuryRulesSpec, weights: Sequence[JudgeWeight | None] = ()
) -> Outcome:
    """Return one verdict: of the combined score, or with `majority` of how many judges pass the output.

    Args:
        votes: of all judges.
        rules: how they are combined.
        weights: of the same judges, for `calibrated`.

    Raises:
        JudgeError: fewer than `min_judges` gave a verdict, or none that has a weight.
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
        score, threshold = _weighted(votes, weights), grades[0].threshold
    else:
        score, threshold = COMBINED_SCORES[rules.combine](scores), grades[0].threshold
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
    """Return the score by the judges' weights, which the check before the run has found to be there for all of them."""
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
    """Return the weight of each judge of a jury, known by the parts of its key that say who it is; None without one."""
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
    """Return the items of a checklist as the jury sees them, by the key of the detail; empty for other criteria.

    Scores of an item are combined as those of the output are; with `majority` the share of the judges counts that find
    it met, and with `calibrated` each judge counts for its share of the weight: `shares` has that of each grade. The
    jury finds it met where that is more than half.
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
    """Return the verdict of a majority on scores that its judges gave before, with the threshold of today."""
    votes = [vote for vote in rated.detail["judges"] if vote["score"] is not None]
    passed = [passes(vote["score"], threshold) and not missed_required(vote) for vote in votes]
    score = sum(passed) / len(passed)
    least = (len(passed) // 2 + 1) / len(passed)
    status = Status.PASSED if passes(score, least) else Status.FAILED
    detail = {**rated.detail, "jury": {**rated.detail["jury"], "threshold": threshold}}
    return replace(rated, status=status, score=score, threshold=least, detail=detail)


def _reason(votes: Sequence[Vote], score: float) -> str:
    """Return the scores of all judges, and the reason of the one whose score is nearest to that of the jury."""
    judged = [(vote.judge, vote.grade) for vote in votes if vote.grade is not None]
    shown = ", ".join(
        f"{vote.judge.title} {'error' if vote.grade is None else format_score(vote.grade.score)}"
        for vote in votes
    )
    judge, nearest = min(judged, key=lambda pair: round(abs(pair[1].score - score), _DIGITS))
    return "\n".join(filter(None, (nearest.reason and f"{judge.title}: {nearest.reason}", shown)))


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


DEFAULT_THRESHOLD = 0.5
"""The lowest score that passes where an assertion about retrieval names none."""


class ContextAssertion(ModelGradedAssertion):
    """Base of the assertions about retrieved context."""

    default_threshold = DEFAULT_THRESHOLD

    context_transform: str | None = Field(
        None,
        validation_alias=AliasChoices("contextTransform", "context_transform"),
        description="Code that extracts the context from the output.",
    )
