"""Turn the score changes of probes into findings: figures with confidence intervals, compared with limits. Pure.

A finding holds if its whole interval is within the limit, fails if the whole interval is beyond it, and is unclear
otherwise. The limits are proposals.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from scipy import stats

from geval_cli.extras.trust.probes import Finding, Probe, ProbeKind, ProbeVerdict, ScoreChange
from geval_cli.extras.trust.statistics.agreement import (
    Mask,
    Numbers,
    dataset_level,
    jackknife,
    kendall,
    spearman,
)
from geval_cli.extras.trust.statistics.plain import MIN_CLUSTERS, SCORE_DIGITS, Estimate
from geval_cli.statistics.intervals import ClusteredMean, mean_interval, share_interval

LEAST_FALLEN, MOST_SHIFT, MOST_FLIPS, MOST_RISE = 0.5, 0.05, 0.10, 0.05
MOST_JOINT_FLIPS, MOST_LOSS = 0.05, 0.05
LEAST_TAU, LEAST_AGREEMENT = 0.8, 0.8
SAME = 1e-9
"""Scores that differ by less are equal."""
_TOST_LEVEL = 0.9
_MOST_NEEDED = 2000
_CERTAIN = 1 - 1e-12


def clustered(pairs: Sequence[ScoreChange], value_of: Callable[[ScoreChange], float]) -> ClusteredMean:
    """Return the clustered mean of a value over pairs."""
    mean = ClusteredMean()
    for pair in sorted(pairs, key=lambda pair: pair.cluster):
        mean.add(pair.cluster, value_of(pair))
    return mean


def _mean(pairs: Sequence[ScoreChange], level: float) -> Estimate:
    """Return the mean change with its two-sided interval; no interval with fewer than `MIN_CLUSTERS` tests."""
    mean = clustered(pairs, lambda pair: pair.after - pair.before)
    interval = mean.interval(level, lowest=-1) if mean.clusters >= MIN_CLUSTERS else None
    return Estimate(mean.mean, interval, mean.n, mean.clusters)


def _needed(estimate: Estimate, bar: float, *, is_upper: bool) -> str:
    """Return how many tests would show that the limit holds if the share stays the same; "" if none would."""
    share = estimate.value
    if share is None or (share >= bar if is_upper else share <= bar):
        return ""
    for count in range(max(2, estimate.clusters), _MOST_NEEDED):
        low, high = share_interval(share * count, count) or (0.0, 1.0)
        if high <= bar if is_upper else low >= bar:
            return f"needs {count:,} tests"
    return ""


class FigureLimit(Struct, frozen=True):
    """The limit of a figure: at least, at most, or within plus or minus a value.

    `fails` is the value beyond which it fails; None for the limit itself.
    """

    sign: str
    limit: float
    fails: float | None = None

    def __str__(self) -> str:
        return f"{self.sign}{self.limit:g}" if self.sign == "+-" else f"{self.sign} {self.limit:g}"

    def verdict(self, interval: tuple[float, float]) -> ProbeVerdict:
        """Return `holds` if the whole interval is within the limit, `fails` if all of it is beyond, else `unclear`."""
        low, high = interval
        fails = self.limit if self.fails is None else self.fails
        holds, broken = {
            ">=": (low >= self.limit, high < fails),
            "<=": (high <= self.limit + SAME, low > fails + SAME),
            "+-": (-self.limit <= low and high <= self.limit, low > fails or high < -fails),
        }[self.sign]
        return ProbeVerdict.HOLDS if holds else ProbeVerdict.FAILS if broken else ProbeVerdict.UNCLEAR


def _held(
    probe: Probe, metric: str, figure: str, estimate: Estimate, bar: FigureLimit, needs: str = "tests"
) -> Finding:
    """Return the finding of a figure; without an interval it is unclear, and its note says how many tests it needs."""
    verdict = ProbeVerdict.UNCLEAR
    note = f"needs {MIN_CLUSTERS} {needs}"
    if estimate.interval is not None:
        verdict = bar.verdict(estimate.interval)
        note = ""
    return Finding(probe.name, metric, probe.kind, figure, estimate, str(bar), verdict=verdict, note=note)


def _mean_finding(
    probe: Probe,
    metric: str,
    figure: str,
    pairs: Sequence[ScoreChange],
    bar: FigureLimit,
    level: float = 0.95,
) -> Finding:
    """Return the finding of a mean change; if it is unclear, the note says how many tests would show that it holds."""
    found = _held(probe, metric, figure, _mean(pairs, level), bar)
    if found.verdict is not ProbeVerdict.UNCLEAR:
        return found
    mean = clustered(pairs, lambda pair: pair.after - pair.before)
    value = mean.mean or 0.0
    variance = (mean.standard_error() or 0.0) ** 2
    for count in range(max(MIN_CLUSTERS, mean.clusters), _MOST_NEEDED):
        interval = mean_interval(value, variance * mean.clusters / count, count, level=level, lowest=-1)
        if interval is not None and bar.verdict(interval) is ProbeVerdict.HOLDS:
            return replace(found, note=f"needs {count:,} tests")
    return replace(found, note="")


def _share_finding(
    probe: Probe,
    metric: str,
    figure: str,
    pairs: Sequence[ScoreChange],
    value_of: Callable[[ScoreChange], bool],
    bar: FigureLimit,
) -> Finding:
    """Return the finding of a share of outputs; if it is unclear, the note says how many tests would settle it."""
    mean = clustered(pairs, lambda pair: float(value_of(pair)))
    estimate = Estimate(mean.mean, mean.interval(), mean.n, mean.clusters)
    if estimate.value is None:
        return _nothing(probe, metric, figure)
    found = _held(probe, metric, figure, estimate, bar)
    is_unclear = found.verdict is ProbeVerdict.UNCLEAR
    return (
        replace(found, note=_needed(estimate, bar.limit, is_upper=bar.sign == "<=")) if is_unclear else found
    )


def damage_finding(probe: Probe, metric: str, pairs: Sequence[ScoreChange], *, is_certain: bool) -> Finding:
    """Return the share of outputs whose score fell.

    Without `is_certain`, the metric may not cover this kind of damage, and a failure is reported as unclear.
    """
    found = _share_finding(
        probe,
        metric,
        "share fallen",
        pairs,
        lambda pair: pair.after < pair.before - SAME,
        FigureLimit(">=", LEAST_FALLEN),
    )
    if found.verdict is ProbeVerdict.SKIPPED:
        return found
    if probe.name == "empty":
        verdict = ProbeVerdict.HOLDS if found.estimate.value == 1 else ProbeVerdict.FAILS
        return replace(found, bar="= 1", verdict=verdict, note="")
    if found.verdict is ProbeVerdict.FAILS and not is_certain:
        note = "demand it with --only NAME if the metric covers this"
        return replace(found, verdict=ProbeVerdict.UNCLEAR, note=note)
    return found


def harmless_findings(probe: Probe, metric: str, pairs: Sequence[ScoreChange]) -> list[Finding]:
    """Return the shift of the mean score and the share of flipped verdicts."""
    if not pairs:
        return [_nothing(probe, metric, "shift")]
    shift = _mean_finding(probe, metric, "shift", pairs, FigureLimit("+-", MOST_SHIFT), _TOST_LEVEL)
    return [shift, flips_finding(probe, metric, pairs)]


def flips_finding(probe: Probe, metric: str, pairs: Sequence[ScoreChange]) -> Finding:
    """Return the share of flipped verdicts."""
    most = MOST_JOINT_FLIPS if probe.kind is ProbeKind.JOINT else MOST_FLIPS
    return _share_finding(
        probe,
        metric,
        "flips",
        pairs,
        lambda pair: pair.passed_before != pair.passed_after,
        FigureLimit("<=", most),
    )


def deception_finding(probe: Probe, metric: str, pairs: Sequence[ScoreChange]) -> Finding:
    """Return the share of failed outputs that now pass; `pairs` must be of outputs that failed."""
    return _share_finding(
        probe, metric, "flips", pairs, lambda pair: pair.passed_after, FigureLimit("<=", MOST_FLIPS)
    )


def padding_finding(probe: Probe, metric: str, pairs: Sequence[ScoreChange]) -> Finding:
    """Return the rise of the mean score."""
    if not pairs:
        return _nothing(probe, metric, "rise")
    return _mean_finding(probe, metric, "rise", pairs, FigureLimit("<=", MOST_RISE))


def repetition_findings(probe: Probe, form: str, metric: str, pairs: Sequence[ScoreChange]) -> list[Finding]:
    """Return the rank correlation (Kendall's tau) of repeated scores, and the share of flipped verdicts."""
    named = Probe(form if form in probe.name else f"{probe.name} {form}", probe.kind, (form,), probe.source)
    if not pairs:
        return [_nothing(named, metric, "tau")]
    before, after = (
        np.round([getattr(pair, side) for pair in pairs], SCORE_DIGITS) for side in ("before", "after")
    )
    tau = dataset_level(kendall, before, after, [str(pair.cluster) for pair in pairs])
    found = _held(named, metric, "tau", tau, FigureLimit(">=", LEAST_TAU))
    if tau.value is None:
        found = replace(found, note="all scores are equal, so they have no order")
    elif tau.interval is None and tau.clusters >= MIN_CLUSTERS:  # tau is 1 whatever is left out
        is_certain = tau.value > _CERTAIN
        found = replace(found, verdict=ProbeVerdict.HOLDS if is_certain else ProbeVerdict.UNCLEAR, note="")
    return [found, flips_finding(named, metric, pairs)]


def place_finding(probe: Probe, metric: str, agreed: Sequence[tuple[int, bool]]) -> Finding:
    """Return how often the same output wins when the order of outputs is reversed; `agreed` by test."""
    pairs = [ScoreChange(cluster, 0.0, 0.0, True, same) for cluster, same in agreed]
    return _share_finding(
        probe, metric, "agreement", pairs, lambda pair: pair.passed_after, FigureLimit(">=", LEAST_AGREEMENT)
    )


class JointScores(Struct, frozen=True):
    """The scores of one output by dimension, 0..1: rated separately, and jointly in one call."""

    cluster: int
    separate: Mapping[str, float]
    joint: Mapping[str, float]


def halo_finding(probe: Probe, outputs: Sequence[JointScores]) -> Finding:
    """Return how much more the dimensions correlate when they are rated in one call.

    The figure is the mean Spearman correlation between dimensions, joint minus separate, with a jackknife interval by
    test. A value above 0 is a halo effect: the judge's first rating influences the others.
    """
    names = sorted({name for item in outputs for name in item.joint})
    whole = [item for item in outputs if item.joint.keys() == item.separate.keys() == set(names)]
    if len(names) < 2 or not whole:  # noqa: PLR2004 - a correlation is between two
        return _nothing(probe, "", "halo", "needs outputs rated by two dimensions")
    sides = [
        np.round([[getattr(item, side)[name] for item in whole] for name in names], SCORE_DIGITS)
        for side in ("joint", "separate")
    ]

    def halo(kept: Mask) -> float | None:
        joint, separate = (_mean_correlation(side[:, kept]) for side in sides)
        return None if joint is None or separate is None else joint - separate

    found = jackknife(halo, [str(item.cluster) for item in whole], is_correlation=False)
    if found.value is None:
        return _nothing(probe, "", "halo", "all scores of a dimension are equal, so they have no order")
    if found.clusters < MIN_CLUSTERS:
        return replace(
            _held(probe, "", "halo", replace(found, interval=None), FigureLimit("<=", 0)), estimate=found
        )
    return _held(probe, "", "halo", found, FigureLimit("<=", 0))


class JointLabel(Struct, frozen=True):
    """The mean human label of one output on one dimension, with its separate and joint score, all 0..1."""

    cluster: str
    human: float
    separate: float
    joint: float


def loss_finding(probe: Probe, metric: str, scores: Sequence[JointLabel]) -> Finding:
    """Return the loss of agreement with human labels when dimensions are rated in one call.

    The figure is Spearman's rho with human labels, separate minus joint, with a jackknife interval by cluster.
    """
    human, separate, joint = (
        np.round([getattr(one, side) for one in scores], SCORE_DIGITS)
        for side in ("human", "separate", "joint")
    )

    def loss(kept: Mask) -> float | None:
        before, after = spearman(separate[kept], human[kept]), spearman(joint[kept], human[kept])
        return None if before is None or after is None else before - after

    found = jackknife(loss, [one.cluster for one in scores], is_correlation=False)
    if found.value is None:
        return _nothing(
            probe, metric, "loss", "all scores or labels of a dimension are equal, so they have no order"
        )
    if found.clusters < MIN_CLUSTERS:
        found = replace(found, interval=None)
    return _held(probe, metric, "loss", found, FigureLimit("<=", MOST_LOSS), "labelled tests")


def _mean_correlation(scores: Numbers) -> float | None:
    """Return the mean Spearman correlation between pairs of rows; None if one is undefined."""
    pairs = [(one, other) for one in range(len(scores)) for other in range(one)]
    found = [spearman(scores[one], scores[other]) for one, other in pairs]
    known = [item for item in found if item is not None]
    return math.fsum(known) / len(known) if len(known) == len(pairs) else None


class FamilyScore(Struct, frozen=True):
    """A judge's error on one output, `score - human`, and whether a model of the judge's own family wrote it."""

    cluster: str
    error: float
    is_own: bool


def family_finding(probe: Probe, metric: str, scores: Sequence[FamilyScore]) -> Finding:
    """Return the judge's self-preference: its mean error on outputs of its own family minus that on others.

    The difference of two means with cluster-robust standard errors: Liang and Zeger, "Longitudinal data analysis using
    generalized linear models", 1986. There is an interval only with at least `MIN_CLUSTERS` labelled tests in each
    group, since the mean error of a few tests is too uncertain.
    """
    own = np.array([score.is_own for score in scores], dtype=np.float64)
    clusters = {score.cluster for score in scores}
    if not scores or own.all() or not own.any() or len(clusters) < 2:  # noqa: PLR2004 - a spread needs two
        return _nothing(probe, metric, "difference", "needs labels of outputs from two model families")
    errors = np.array([score.error for score in scores])
    means = {side: errors[own == side].mean() for side in (0.0, 1.0)}
    value = float(means[1.0] - means[0.0])
    centred = own - own.mean()
    rest = errors - np.where(own > 0, means[1.0], means[0.0])
    sums = dict.fromkeys(clusters, 0.0)
    for score, part in zip(scores, centred * rest, strict=True):
        sums[score.cluster] += float(part)
    count = len(clusters)
    variance = (
        count / (count - 1) * math.fsum(part**2 for part in sums.values()) / float(centred @ centred) ** 2
    )
    spread = float(stats.t.ppf(0.975, count - 1)) * math.sqrt(variance)
    of_family = [{score.cluster for score in scores if score.is_own is side} for side in (True, False)]
    interval = (value - spread, value + spread) if min(map(len, of_family)) >= MIN_CLUSTERS else None
    estimate = Estimate(value, interval, len(scores), count)
    bar = FigureLimit("<=", MOST_RISE, fails=0)
    return _held(probe, metric, "difference", estimate, bar, "labelled tests of each family")


def _nothing(
    probe: Probe, metric: str, figure: str, note: str = "no output could be changed this way"
) -> Finding:
    return Finding(
        probe.name, metric, probe.kind, figure, Estimate(None), "", verdict=ProbeVerdict.SKIPPED, note=note
    )


def skipped(probe: Probe, metric: str, why: str) -> Finding:
    """Return the finding of a probe that was not run."""
    return _nothing(probe, metric, "", why)
