"""Draw outputs with unequal probabilities and estimate figures from their labels: `geval label --next`.

An output whose label is hard to predict is drawn more often, and its label then has less weight, so that estimates for
the whole run stay unbiased. Each draw is made among the outputs without a label, so it can use the existing labels.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from msgspec import Struct

from geval_cli.errors import ConfigError, Problem
from geval_cli.extras.trust.labels import DRAW_COLUMN, GOOD_AT, Label
from geval_cli.extras.trust.statistics.estimate import Inference, Item, labels_per_cluster
from geval_cli.extras.trust.statistics.plain import Estimate
from geval_cli.judge.estimate import passes
from geval_cli.numbers import plural
from geval_cli.records import AssertionResult
from geval_cli.statistics.intervals import mean_interval, t_quantile

_DRAW = re.compile(r"next (\d+) after (\d+), seed -?\d+")
_LEAST_SHARE = 0.25
"""The smallest inclusion probability relative to the largest: no label weighs over four times another of its draw."""
_PRIOR_LABELS = 10
_WINDOW = 0.25
"""Labels of outputs with scores closer than this tell what to expect of an output."""
_PSEUDO_LABELS = (1.0, 1.0, 0.0, 0.0)
_DUST = 1e-12


class UnlabelledOutput(Struct, frozen=True):
    """An output that may be drawn, for one metric.

    Attributes:
        score: the judge's score, 0..1.
        threshold: lowest score that passes, where it is known.
        chance: probability of being good according to the run's calibration; None without one.
        spread: standard deviation of the judge's ratings, or of the judges of a jury.
    """

    score: float
    threshold: float | None = None
    chance: float | None = None
    spread: float = 0.0


class Stratum(Struct, frozen=True):
    """The document, column and score of an output; a draw is spread evenly over these."""

    document: str
    column: int
    score: float


def spread_of(result: AssertionResult) -> float:
    """Return the spread of a judge's ratings or of a jury's scores, on 0..1; 0 if unknown.

    It is the standard deviation of the ratings, or half of the recorded spread of the jury.
    """
    found = result.detail.get("distribution")
    low, high = result.detail.get("score_range") or (0.0, 1.0)
    if isinstance(found, Mapping) and found and high > low:
        shares = [(float(rating), float(share)) for rating, share in found.items()]
        total = math.fsum(share for _, share in shares) or 1.0
        mean = math.fsum(rating * share for rating, share in shares) / total
        variance = math.fsum(share * (rating - mean) ** 2 for rating, share in shares) / total
        return math.sqrt(variance) / (high - low)
    of_jury = result.detail.get("spread")
    return float(of_jury) / 2 if isinstance(of_jury, int | float) else 0.0


# -- the draw ----------------------------------------------------------------------------------------------------


def sizes(candidates: Sequence[UnlabelledOutput], labelled: Sequence[tuple[float, float]]) -> list[float]:
    """Return how hard each candidate's label is to predict: the standard deviation of the judge's error.

    Without enough labels, scores near the threshold and widely spread ratings count as hard; labels then show where the
    judge errs.

    Args:
        candidates: outputs that may be drawn, of one metric.
        labelled: score and mean label of each output that has both.
    """
    squares = [_expected_square(item) for item in candidates]
    if len(labelled) >= _PRIOR_LABELS:
        # Each score with the squared residual of its label from the regression line through all of them.
        scores = [score for score, _ in labelled]
        marks = [(human + passes(human, GOOD_AT)) / 2 for _, human in labelled]
        centre, level = math.fsum(scores) / len(scores), math.fsum(marks) / len(marks)
        square = math.fsum((score - centre) ** 2 for score in scores)
        both = math.fsum((score - centre) * (mark - level) for score, mark in zip(scores, marks, strict=True))
        slope = min(1.0, max(0.0, both / square)) if square > _DUST else 0.0
        errors = [
            (score, (mark - level - slope * (score - centre)) ** 2)
            for score, mark in zip(scores, marks, strict=True)
        ]
        sums: dict[float, tuple[float, float]] = {}
        for score in {item.score for item in candidates}:
            near = [
                (1 - abs(at - score) / _WINDOW, error) for at, error in errors if abs(at - score) < _WINDOW
            ]
            sums[score] = (
                math.fsum(share for share, _ in near),
                math.fsum(share * error for share, error in near),
            )
        squares = [
            (_PRIOR_LABELS * square + sums[item.score][1]) / (_PRIOR_LABELS + sums[item.score][0])
            for item, square in zip(candidates, squares, strict=True)
        ]
    found = [math.sqrt(square) for square in squares]
    least = _LEAST_SHARE * max(found, default=0.0)
    return [max(size, least) for size in found]


def _expected_square(item: UnlabelledOutput) -> float:
    """Return the expected squared error of predicting an output's label, before any labels are used."""
    chance = item.chance
    if chance is None:
        limit = item.threshold if item.threshold is not None and 0 < item.threshold < 1 else 0.5
        below = item.score < limit
        chance = 0.5 * item.score / limit if below else 0.5 + 0.5 * (item.score - limit) / (1 - limit)
    chance = 0.1 + 0.8 * min(1.0, max(0.0, chance))  # no judge is that certain
    return chance * (1 - chance) + item.spread**2


def chances(found: Sequence[float], count: int) -> list[float]:
    """Return inclusion probabilities in proportion to sizes above 0, none above 1, with the sum `count`."""
    certain: set[int] = set()
    while True:
        total = math.fsum(size for place, size in enumerate(found) if place not in certain)
        factor = (count - len(certain)) / total if total else 0.0
        more = {
            place for place, size in enumerate(found) if place not in certain and factor * size >= 1 - _DUST
        }
        if not more:
            return [1.0 if place in certain else factor * size for place, size in enumerate(found)]
        certain |= more


def draw_spread(wanted: Sequence[float], places: Sequence[Stratum], random: Random) -> list[int]:
    """Return the indices of the drawn outputs, each drawn with exactly its probability, spread over the strata.

    Outputs of a document compete first, so that few documents are drawn twice; then neighbours by score and column.

    Source: Deville and Tillé, "Unequal probability sampling without replacement through a splitting method", 1998 (the
    pivotal method).
    """
    share = list(wanted)
    tie = [random.random() for _ in wanted]
    by_document: dict[str, list[int]] = {}
    for number, place in enumerate(places):
        by_document.setdefault(place.document, []).append(number)

    def order(number: int) -> tuple[float, int, float]:
        return places[number].score, places[number].column, tie[number]

    left = [
        last
        for numbers in by_document.values()
        if (last := _compete(sorted(numbers, key=order), share, random)) is not None
    ]
    last = _compete(sorted(left, key=order), share, random)
    if last is not None:  # the chances add up to a whole number, except for rounding
        share[last] = float(random.random() < share[last])
    return [number for number, found in enumerate(share) if found > 0.5]  # noqa: PLR2004


def _compete(numbers: Iterable[int], share: list[float], random: Random) -> int | None:
    """Settle all outputs but at most one, which is returned, by letting neighbours compete for their chances."""
    waiting: int | None = None
    for number in numbers:
        if share[number] > 1 - _DUST or share[number] < _DUST:
            share[number] = round(share[number])
            continue
        if waiting is None:
            waiting = number
            continue
        both = share[waiting] + share[number]
        if both < 1:
            loser = waiting if random.random() * both < share[number] else number
            winner = number if loser == waiting else waiting
            share[loser], share[winner] = 0.0, both
            waiting = winner
        else:
            drawn = waiting if random.random() * (2 - both) < 1 - share[number] else number
            other = number if drawn == waiting else waiting
            share[drawn], share[other] = 1.0, both - 1
            waiting = other if share[other] > _DUST else None
    return waiting


def draw_name(number: int, known: int, seed: int) -> str:
    """Return the name of a draw, for the column `draw`: its number, and how many outputs had a label before it."""
    return f"next {number} after {known}, seed {seed}"


def number_of_next(draws: Iterable[object]) -> int:
    """Return the number of the next draw, given the draws that existing labels are from."""
    return 1 + max((number for draw in draws if (number := _parsed(draw)[0])), default=0)


def _parsed(draw: object) -> tuple[int, int]:
    """Return the number of a draw and of the labels before it; (0, 0) unless it had unequal chances."""
    found = _DRAW.fullmatch(draw) if isinstance(draw, str) else None
    return (int(found[1]), int(found[2])) if found else (0, 0)


# -- figures from the labels -------------------------------------------------------------------------------------


def is_weighted(labels: Iterable[Label]) -> bool:
    """Return whether any label was drawn with unequal chances."""
    return any(label.weight is not None for label in labels)


def shares_of_labels(labels: Mapping[str, Label], outputs: int) -> dict[str, float] | None:
    """Return the weight of each label in a mean over all outputs, by output; None if all have the same weight.

    Each draw by itself gives an estimate of the mean: earlier labels are known, and its own labels represent the other
    outputs. The estimates are combined in proportion to their numbers of labels. Labels that are of no draw represent
    only their own outputs.

    Args:
        labels: one label of each labelled output, of one metric.
        outputs: number of outputs of the run with a score on the metric.

    Raises:
        ConfigError: labels that a draw was made after are missing.
    """
    if not is_weighted(labels.values()):
        return None
    batches: dict[tuple[int, int], list[str]] = {}
    loose: list[str] = []
    for name, label in labels.items():
        drawn = label.columns.get(DRAW_COLUMN)
        number, known = _parsed(drawn)
        if label.weight is None and drawn is None:
            loose.append(name)
        else:
            batches.setdefault((max(number, 1) if label.weight is not None else 0, known), []).append(name)
    counted = sum(map(len, batches.values()))
    shares = dict.fromkeys(labels, 0.0)
    for (number, known), names in batches.items():
        share = len(names) / counted
        before = [other for (one, _), found in batches.items() if one < number for other in found]
        if known == 0:
            before = []
        elif known == len(before) + len(loose):
            before += loose
        elif known != len(before):
            raise ConfigError([_lacking(labels[names[0]], known, len(before))])
        rest = max(0.0, 1 - len(before) / max(outputs, 1))
        total = math.fsum(labels[name].weight or 1.0 for name in names)
        for name in before:
            shares[name] += share * (1 - rest) / len(before)
        for name in names:
            shares[name] += share * rest * (labels[name].weight or 1.0) / total
    return shares


def _lacking(label: Label, known: int, found: int) -> Problem:
    return Problem(
        f"this label was drawn by `geval label --next` after {plural(known, 'label')} of `{label.metric}`, but here are"
        f" {found:,} of these",
        label.location,
        "import this file, then use all labels of the run: `geval label RUN --export FILE`",
    )


def equally_likely(shares: Mapping[str, float]) -> set[str]:
    """Return outputs whose labels form a simple random sample, by keeping each in proportion to its weight."""
    most = max(shares.values(), default=0.0)
    return {
        name
        for name, share in shares.items()
        if int.from_bytes(hashlib.sha256(f"keep {name}".encode("utf-8", "surrogatepass")).digest()[:6])
        / 2**48
        < share / most
    }


def infer_by_shares(items: Sequence[Item], shares: Sequence[float], *, is_rate: bool) -> Inference | None:
    """Return an estimate for all outputs from labels with unequal weights; None without any label.

    It corresponds to `infer_mean` or `infer_rate`, with the judge's mean over all outputs, and each label's difference
    from the judge weighted by its share (Horvitz-Thompson weights, normalised to sum to 1: the Hájek estimator).
    Clusters are handled in the same way.

    Args:
        items: all outputs with a score.
        shares: weight of each item's label; 0 for items without a label.
        is_rate: whether all values are 1 (good, passes) or 0; then four pseudo-clusters are added, as in `infer_rate`.

    Sources: Angelopoulos, Duchi and Zrnic, "PPI++", 2023; Zrnic and Candès, "Active statistical inference", 2024;
    Hájek, "Comment on a paper by D. Basu", 1971.
    """
    labelled = [
        (item, item.human, share)
        for item, share in zip(items, shares, strict=True)
        if item.human is not None and share > 0
    ]
    if not labelled:
        return None
    mean = math.fsum(item.judged for item in items) / len(items)
    variance = math.fsum((item.judged - mean) ** 2 for item in items) / max(1, len(items) - 1)
    total = math.fsum(share for *_, share in labelled)
    labelled = [(item, human, share / total) for item, human, share in labelled]
    added = len(_PSEUDO_LABELS) if is_rate else 0
    clusters = [item.cluster for item, *_ in labelled]
    each = labels_per_cluster([human for _, human, _ in labelled], clusters)
    counted = len(labelled) + each * added
    whole = [(item.judged, human, share * len(labelled) / counted) for item, human, share in labelled]
    whole += [(mean, mark, each / counted) for mark in _PSEUDO_LABELS[:added]]
    clusters += [f"\0{number}" for number in range(added)]

    centre = math.fsum(share * judged for judged, _, share in whole)
    level = math.fsum(share * human for _, human, share in whole)
    squares = math.fsum(share**2 for *_, share in whole)
    weight = 0.0
    if variance > _DUST and squares < 1 - _DUST and len(labelled) < len(items):
        both = math.fsum(share * (judged - centre) * (human - level) for judged, human, share in whole)
        weight = min(1.0, max(0.0, both / (1 - squares) / variance))

    def estimated(weight: float) -> Estimate:
        value = level + weight * (mean - centre)
        influence: dict[str, float] = {}
        if weight:
            for item in items:
                influence[item.cluster] = influence.get(item.cluster, 0.0) + weight * (
                    item.judged - mean
                ) / len(items)
        rest = level - weight * centre
        of_cluster: dict[str, float] = {}
        for (judged, human, share), cluster in zip(whole, clusters, strict=True):
            influence[cluster] = influence.get(cluster, 0.0) + share * (human - weight * judged - rest)
            of_cluster[cluster] = of_cluster.get(cluster, 0.0) + share
        worth = 1 / math.fsum(share**2 for share in of_cluster.values())
        interval = None
        if len(of_cluster) - added > (0 if added else 1) and worth > 1 + _DUST:
            square = math.fsum(found**2 for found in influence.values()) * worth / (worth - 1)
            if is_rate:
                spread = t_quantile(0.975, len(of_cluster) - 1) * math.sqrt(square)
                interval = (max(0.0, value - spread), min(1.0, value + spread))
            else:
                interval = mean_interval(value, square, max(1, math.floor(worth)))
        return Estimate(min(1.0, max(0.0, value)), interval, len(labelled), len(of_cluster) - added)

    return Inference(estimated(weight), mean, estimated(0.0), weight, len(items))
