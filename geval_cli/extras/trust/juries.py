"""Compare the judges of a jury with human labels: each judge's agreement and weight, and the jury's gain."""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.extras.juries import JudgeWeight, weighted_score
from geval_cli.extras.trust.documents import (
    ESTIMATE,
    Section,
    Table,
    estimate_cells,
    figure_text,
    with_interval,
)
from geval_cli.extras.trust.matching import JudgedLabel, JudgeVote
from geval_cli.extras.trust.statistics.agreement import (
    Mask,
    Numbers,
    effective_votes,
    jackknife,
    pearson,
    spearman,
)
from geval_cli.extras.trust.statistics.calibration_fit import folds_of
from geval_cli.extras.trust.statistics.plain import SCORE_DIGITS, Estimate
from geval_cli.numbers import fixed, format_percentage

_MOST_R = 0.99
"""The correlation assumed of a judge that agrees perfectly with people, so that its weight stays finite."""


class JudgeAgreement(Struct, frozen=True):
    """The agreement of one judge of a jury with human labels.

    Attributes:
        spearman: Spearman's rho between its scores and the mean labels.
        error_correlations: correlation of its errors (score minus label) with those of each judge; None where they are
            constant.
        votes_without: how many independent votes the other judges are worth.
    """

    judge: str
    spearman: Estimate
    error_correlations: tuple[float | None, ...] = ()
    votes_without: float | None = None


class JuryAgreement(Struct, frozen=True):
    """The agreement of a jury with human labels, compared with that of its best judge.

    Attributes:
        combine: how the scores of the judges are combined into one.
        judges: the agreement of each judge.
        best: the judge with the highest rho; None where no judge has one. It is selected on the same labels, so its rho
            is slightly optimistic.
        jury: rho of the jury on the outputs that both it and the best judge scored.
        best_alone: rho of the best judge on the same outputs.
        gain: the jury's rho minus that of its best judge.
        votes: how many judges with independent errors the jury is worth, from outputs that all judges scored.
    """

    combine: str
    judges: tuple[JudgeAgreement, ...]
    best: str | None
    jury: Estimate
    best_alone: Estimate
    gain: Estimate
    votes: Estimate = Estimate(None)


class JuryScores(Struct, frozen=True):
    """The scores of a jury's judges on labelled outputs.

    Attributes:
        judges: their names; `scores` has a row for each judge, NaN where it failed.
        human: the mean human labels.
        clusters: the cluster of each output.
        votes: one vote per judge, with the criterion key that the judge rated by.
        noise: the sampling variance of each mean label: the variance of its annotators divided by their number; 0 for a
            single annotator.
    """

    judges: tuple[str, ...]
    scores: Numbers
    human: Numbers
    clusters: Sequence[str]
    votes: tuple[JudgeVote, ...]
    noise: Numbers

    def weights(self, kept: Mask) -> tuple[JudgeWeight, ...]:
        """Return the weight of each judge, estimated from the outputs that the mask keeps."""
        return tuple(
            _weight(vote, row[kept], self.human[kept])
            for vote, row in zip(self.votes, self.scores, strict=True)
        )

    def weighted(self, kept: Mask) -> Numbers:
        """Return the jury's score of every output, with weights from the kept outputs; NaN where there is none."""
        weights = self.weights(kept)
        found = [weighted_score(weights, _known(column)) for column in self.scores.T.tolist()]
        scores = [np.nan if score is None else round(score, SCORE_DIGITS) for score in found]
        return np.array(scores, dtype=np.float64)

    def held_back(self) -> Numbers:
        """Return the cross-fitted jury score of each output, with weights from the other folds.

        All scores are NaN if there is only one cluster.
        """
        folds = folds_of(self.clusters)
        found = np.full(len(self.human), np.nan)
        if folds is None:
            return found
        for fold in range(int(folds.max()) + 1):
            held = folds == fold
            found[held] = self.weighted(~held)[held]
        return found

    def take(self, rows: Mask) -> "JuryScores":
        """Return the outputs that the mask selects."""
        return replace(
            self,
            scores=self.scores[:, rows],
            human=self.human[rows],
            clusters=_named(self, rows),
            noise=self.noise[rows],
        )

    def independent_votes(self) -> tuple[Estimate, list[float | None]]:
        """Return how many independent votes the judges are worth, and how many without each of them."""
        rows: Mask = np.isnan(self.scores).sum(axis=0) == 0
        errors = (self.scores - self.human)[:, rows]
        noise = self.noise[rows]

        def worth(kept: Mask, judges: Numbers = errors) -> float | None:
            return effective_votes(judges[:, kept], float(noise[kept].mean())) if kept.any() else None

        everything = np.ones(errors.shape[1], dtype=bool)
        without = [worth(everything, np.delete(errors, place, axis=0)) for place in range(len(errors))]
        return jackknife(worth, _named(self, rows), is_correlation=False), without


def _known(scores: Sequence[float]) -> list[float | None]:
    return [None if np.isnan(score) else score for score in scores]


def _weight(vote: JudgeVote, scores: Numbers, human: Numbers) -> JudgeWeight:
    """Return the weight of a judge: r^2 / (1 - r^2), the weight of an independent predictor in a regression."""
    there = ~np.isnan(scores)
    own, people = scores[there], human[there]
    r = pearson(own, people)
    share = min(_MOST_R, max(0.0, r or 0.0)) ** 2
    return JudgeWeight(
        judge=vote.judge,
        key=None if vote.key is None else vote.key.key,
        parts={} if vote.key is None else vote.key.parts,
        n=len(own),
        r=r,
        weight=share / (1 - share),
        mean=float(own.mean()) if len(own) else 0.0,
        sd=float(own.std()) if len(own) else 0.0,
    )


def jury_scores(metric: str, pairs: Sequence[JudgedLabel]) -> JuryScores | None:
    """Return the scores of the jury that scored these outputs; None unless the same jury scored all of them.

    Only the names of the judges are compared; a judge whose criterion key varies gets a vote without a key.
    """
    voted = [pair for pair in pairs if pair.match is not None and pair.match.item.votes.get(metric)]
    if not voted or len(voted) < len(pairs):
        return None
    all_votes = [pair.match.item.votes[metric] for pair in voted if pair.match is not None]
    names = tuple(vote.judge for vote in all_votes[0])
    if any(tuple(vote.judge for vote in votes) != names for votes in all_votes):
        return None
    scores = [[np.nan if vote.score is None else vote.score for vote in votes] for votes in all_votes]
    return JuryScores(
        judges=names,
        scores=np.array(scores, dtype=np.float64).T,
        human=np.array([pair.label.human for pair in voted], dtype=np.float64),
        clusters=[pair.cluster for pair in voted],
        votes=tuple(_first_with_key([votes[place] for votes in all_votes]) for place in range(len(names))),
        noise=np.array([_noise(list(pair.label.marks.values())) for pair in voted], dtype=np.float64),
    )


def _noise(marks: Sequence[float]) -> float:
    return float(np.var(marks, ddof=1)) / len(marks) if len(marks) > 1 else 0.0


def _first_with_key(votes: Sequence[JudgeVote]) -> JudgeVote:
    """Return a judge's first vote with a key; without the key if its votes do not all share one."""
    keys = {vote.key.key for vote in votes if vote.key is not None}
    is_known = len(keys) == 1 and all(vote.key is not None for vote in votes if vote.score is not None)
    found = next((vote for vote in votes if vote.key is not None), votes[0])
    return found if is_known else replace(found, key=None)


def jury_agreement(found: JuryScores, combined: Numbers, combine: str) -> JuryAgreement:
    """Return the agreement of a jury and of each of its judges with human labels.

    Args:
        found: the scores of the judges.
        combined: the jury's score of each output; NaN where it has none.
        combine: how the scores were combined.
    """
    there = ~np.isnan(combined)
    votes, without = found.independent_votes()
    errors = found.scores - found.human
    judges = tuple(
        JudgeAgreement(
            name,
            _rho(row, found, ~np.isnan(row)),
            tuple(_correlation(error, other) for other in errors),
            left,
        )
        for name, row, error, left in zip(found.judges, found.scores, errors, without, strict=True)
    )
    known = [
        (one.spearman.value, place) for place, one in enumerate(judges) if one.spearman.value is not None
    ]
    if not known:
        nothing = Estimate(None)
        return JuryAgreement(
            combine, judges, None, _rho(combined, found, there), nothing, nothing, votes=votes
        )
    _, place = max(known, key=lambda pair: (round(pair[0], 12), -pair[1]))
    alone = found.scores[place]
    both = there & ~np.isnan(alone)
    return JuryAgreement(
        combine=combine,
        judges=judges,
        best=judges[place].judge,
        jury=_rho(combined, found, both),
        best_alone=_rho(alone, found, both),
        gain=_gain(combined, alone, found, both),
        votes=votes,
    )


def _correlation(one: Numbers, other: Numbers) -> float | None:
    there = ~np.isnan(one + other)
    return pearson(one[there], other[there])


def _named(found: JuryScores, rows: Mask) -> list[str]:
    places: list[int] = np.flatnonzero(rows).tolist()
    return [found.clusters[place] for place in places]


def _rho(scores: Numbers, found: JuryScores, rows: Mask) -> Estimate:
    mine, human = scores[rows], found.human[rows]
    return jackknife(lambda kept: spearman(mine[kept], human[kept]), _named(found, rows))


def _gain(jury: Numbers, alone: Numbers, found: JuryScores, rows: Mask) -> Estimate:
    ours = jury[rows]
    best = alone[rows]
    human = found.human[rows]

    def difference(kept: Mask) -> float | None:
        pair = spearman(ours[kept], human[kept]), spearman(best[kept], human[kept])
        return None if pair[0] is None or pair[1] is None else pair[0] - pair[1]

    return jackknife(difference, _named(found, rows), is_correlation=False)


def jury_sentence(found: JuryAgreement, quote: Callable[[str], str] = str) -> str:
    """Return a sentence on whether the jury agrees better with human labels than its best judge.

    Names go through `quote`.
    """
    if found.best is None or found.jury.value is None or found.best_alone.value is None:
        return "No judge of the jury can be compared with human labels: their scores, or the labels, are all equal."
    said = (
        f"The jury ({found.combine}) has rho {fixed(found.jury.value, 2)}, its best judge {quote(found.best)} alone"
        f" {fixed(found.best_alone.value, 2)}"
    )
    if found.gain.value is None or found.gain.interval is None:
        return f"{said}; whether that is chance is unknown."
    low, high = found.gain.interval
    if low == high == 0:
        return f"{said}: there is no difference."
    verdict = (
        "the jury is better"
        if low > 0
        else "the jury is worse"
        if high < 0
        else "which one is better is undecided"
    )
    return f"{said}: {verdict} ({fixed(found.gain.value, 2)} [{fixed(low, 2)}, {fixed(high, 2)}])."


def jury_section(metric: str, found: JuryAgreement, weights: Sequence[JudgeWeight] = ()) -> Section:
    """Return the section of a report on a metric's jury: each judge with its agreement and share of the weight."""
    total = sum(one.weight for one in weights)
    shares = [format_percentage(one.weight, total) for one in weights] if total else [""] * len(found.judges)
    judges = [
        (one, figure_text(one.votes_without), share) for one, share in zip(found.judges, shares, strict=True)
    ]
    rows = [(one.judge, *estimate_cells(one.spearman), *more) for one, *more in judges]
    matrix = [(one.judge, *(figure_text(r) for r in one.error_correlations)) for one in found.judges]
    rows.append((f"jury ({found.combine})", *estimate_cells(found.jury), figure_text(found.votes.value), ""))
    rows.append(("jury minus best judge", *estimate_cells(found.gain), "", ""))
    brief = [(one.judge, with_interval(one.spearman), f"{one.spearman.n:,}", *more) for one, *more in judges]
    full = ("judge", "rho", *ESTIMATE[1:], "votes without it", "weight")
    short = ("judge", "rho [95 %]", "n", "without", "weight")
    kept = None if total else -1
    return Section(
        f"{metric}: the judges of the jury",
        lambda quote: jury_sentence(found, quote),
        tables=[
            Table(full[:kept], [row[:kept] for row in rows]),
            Table(("errors go together", *(one.judge for one in found.judges)), matrix),
        ],
        texts=[]
        if found.votes.value is None
        else [
            f"{len(found.judges)} judges are worth {with_interval(found.votes)} votes with independent errors"
        ],
        brief=[Table(short[:kept], [row[:kept] for row in brief])],
    )
