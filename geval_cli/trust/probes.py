"""Probes of a judge: which rewrites must move its scores and which must not, and the findings against their bars. Pure.

A finding holds when its whole interval is on the right side of the bar, fails when the whole of it is on the wrong one,
and is unclear between. The bars are proposals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct, field
from scipy import stats

from geval_cli.errors import UsageError
from geval_cli.records import JsonValue, Usage, to_json
from geval_cli.source.problems import did_you_mean
from geval_cli.statistics.correlation import (
    MIN_CLUSTERS,
    Mask,
    Numbers,
    dataset_level,
    jackknife,
    kendall,
    spearman,
)
from geval_cli.statistics.intervals import ClusteredMean, Estimate, wilson_interval

LEAST_FALLEN, MOST_SHIFT, MOST_FLIPS, MOST_RISE = 0.5, 0.05, 0.10, 0.05
MOST_JOINT_FLIPS = 0.05
LEAST_TAU, LEAST_AGREEMENT = 0.8, 0.8
SAME = 1e-9
"""Scores that differ by less are equal."""
_TOST_QUANTILE = 0.95
_MOST_NEEDED = 2000
_CERTAIN = 1 - 1e-12


class Kind(StrEnum):
    """The kinds of probes, by what must become of the score."""

    DAMAGE = "score falls"
    HARMLESS = "score stays"
    PADDING = "score does not rise"
    DECEPTION = "a failed output stays failed"
    REPETITION = "same order"
    PLACE = "same winner"
    FAMILY = "own family is not favoured"
    JOINT = "the same as one by one"


class Probe(Struct, frozen=True):
    """One probe.

    Attributes:
        forms: names of the rewrites that it makes of an output, or of other changes.
        hits: dimensions whose scores the damage must lower; None for all.
        source: where the probe comes from.
        is_asked_for: whether it is made only where it is named.
    """

    name: str
    kind: Kind
    forms: tuple[str, ...]
    source: str
    hits: frozenset[str] | None = None
    is_asked_for: bool = False


_DAMAGE = "Sai et al. 2021; FBI 2024"
_FORM = "FBI 2024; Sclar et al. 2024"
_SCORES = ("1 to 5", "0 to 10", "0 to 100")
_INJECTED = (
    "injected order",
    "injected system message",
    "injected reply",
    "injected verdict line",
    "injected end of block",
)


def _damage(name: str, *hits: str) -> Probe:
    return Probe(name, Kind.DAMAGE, (name,), _DAMAGE, frozenset(hits) or None)


PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        _damage("shuffle", "coherence", "fluency", "naturalness"),
        _damage("cut", "coherence", "relevance"),
        _damage("repeat", "coherence", "relevance", "naturalness"),
        _damage("negate", "consistency", "groundedness"),
        _damage("swap", "consistency", "groundedness"),
        _damage("other", "consistency", "groundedness", "relevance"),
        _damage("empty"),
        _damage("prompt", "relevance", "engagingness", "naturalness"),
        Probe("whitespace", Kind.HARMLESS, ("whitespace",), _FORM),
        Probe("markdown", Kind.HARMLESS, ("markdown",), _FORM),
        Probe("typo", Kind.HARMLESS, ("typo",), _FORM),
        Probe("padding", Kind.PADDING, ("restated", "filler"), "Zheng et al. 2023"),
        Probe("authority", Kind.DECEPTION, ("authority",), "Chen et al. 2024"),
        Probe("injected", Kind.DECEPTION, _INJECTED, "Shi et al. 2024"),
        Probe("again", Kind.REPETITION, ("again",), "Stureborg et al. 2024"),
        Probe("scale", Kind.REPETITION, _SCORES, "Stureborg et al. 2024"),
        Probe("steps", Kind.REPETITION, ("steps",), "Stureborg et al. 2024"),
        Probe("order", Kind.PLACE, ("order",), "Wang et al. 2023"),
        Probe("family", Kind.FAMILY, (), "Panickssery et al. 2024"),
        Probe("joint", Kind.JOINT, (), "Thorndike 1920 (halo)", is_asked_for=True),
    )
}
"""All probes by name."""


def chosen_probes(only: Sequence[str]) -> list[Probe]:
    """Return the probes of these names; without any, all but those that are made only where they are named.

    Raises:
        UsageError: there is no such probe.
    """
    for name in only:
        if name not in PROBES:
            near = did_you_mean(name, PROBES)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(PROBES)}"
            raise UsageError(f"there is no probe `{name}`", hint=hint)
    return [probe for name, probe in PROBES.items() if name in only or not (only or probe.is_asked_for)]


class Verdict(StrEnum):
    """The outcome of a probe."""

    HOLDS = "holds"
    FAILS = "fails"
    UNCLEAR = "unclear"
    SKIPPED = "skipped"


class Finding(Struct, frozen=True):
    """One figure of one probe on one metric.

    Attributes:
        figure: its name: share fallen, shift, flips, rise, tau, agreement, difference.
        estimate: the figure; its interval covers 95 %, of a `shift` 90 % (two one-sided tests at 5 %).
        bar: where it must lie.
        skipped: outputs that are left out of it, by the reason.
    """

    probe: str
    metric: str
    must: Kind
    figure: str
    estimate: Estimate
    bar: str
    verdict: Verdict
    note: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)


class Pair(Struct, frozen=True):
    """An output's score before and after a change, 0..1, with its verdicts; pairs of one test are a `cluster`."""

    cluster: int
    before: float
    after: float
    passed_before: bool
    passed_after: bool


class ProbeReport(Struct, frozen=True):
    """The result of `geval probe`.

    Attributes:
        items: outputs that were probed; `tests` they come from, `unanswered` could not be had.
        planned: ratings at most; `asked` of them were made, `errored` of those failed; `first_error` says how one did.
        stopped: why not all were asked: the budget was used up.
        usage: of the judges.
    """

    config: str
    judges: tuple[str, ...]
    items: int
    tests: int
    seed: int
    planned: int
    asked: int
    errored: int
    usage: Usage
    findings: tuple[Finding, ...]
    unanswered: int = 0
    stopped: str = ""
    first_error: str = ""

    @property
    def verdicts(self) -> set[Verdict]:
        """All verdicts that there are."""
        return {item.verdict for item in self.findings}

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON document of `geval probe --json`."""
        document: dict[str, JsonValue] = to_json(self)
        return {"schema_version": 1, "kind": "probe", **document}


def clustered(pairs: Sequence[Pair], value_of: Callable[[Pair], float]) -> ClusteredMean:
    """Return the mean of a value over pairs, by cluster."""
    mean = ClusteredMean()
    for pair in sorted(pairs, key=lambda pair: pair.cluster):
        mean.add(pair.cluster, value_of(pair))
    return mean


def _share(pairs: Sequence[Pair], value_of: Callable[[Pair], bool]) -> Estimate:
    mean = clustered(pairs, lambda pair: float(value_of(pair)))
    if mean.mean is None:
        return Estimate(None)
    interval = mean.share_interval() if mean.n > 1 else wilson_interval(mean.mean, 1)
    return Estimate(mean.mean, interval or wilson_interval(mean.mean * mean.n, mean.n), mean.n, mean.clusters)


def _mean(pairs: Sequence[Pair], quantile: float) -> Estimate:
    """Return the mean change with its two-sided interval; none from fewer than `MIN_CLUSTERS` tests."""
    mean = clustered(pairs, lambda pair: pair.after - pair.before)
    error = mean.standard_error()
    if mean.mean is None or error is None or mean.clusters < MIN_CLUSTERS:
        return Estimate(mean.mean, None, mean.n, mean.clusters)
    spread = float(stats.t.ppf(quantile, mean.clusters - 1)) * error
    return Estimate(mean.mean, (mean.mean - spread, mean.mean + spread), mean.n, mean.clusters)


def _needed(estimate: Estimate, bar: float, *, is_upper: bool) -> str:
    """Return how many tests would do if the share stays what it is."""
    share = estimate.value
    if share is None or (share >= bar if is_upper else share <= bar):
        return ""
    for count in range(max(1, estimate.clusters), _MOST_NEEDED):
        low, high = wilson_interval(share * count, count) or (0.0, 1.0)
        if high <= bar if is_upper else low >= bar:
            return f"needs {count:,} tests"
    return ""


def damage_finding(probe: Probe, metric: str, pairs: Sequence[Pair], *, is_certain: bool) -> Finding:
    """Return how often the score fell. Without `is_certain` nobody knows whether the metric is about the damage."""
    estimate = _share(pairs, lambda pair: pair.after < pair.before - SAME)
    is_empty = probe.name == "empty"
    note, verdict = "", Verdict.UNCLEAR
    if estimate.value is None or estimate.interval is None:
        return _nothing(probe, metric, "share fallen")
    low, high = estimate.interval
    if is_empty:
        verdict = Verdict.HOLDS if estimate.value == 1 else Verdict.FAILS
    elif low >= LEAST_FALLEN:
        verdict = Verdict.HOLDS
    elif high < LEAST_FALLEN:
        verdict = Verdict.FAILS if is_certain else Verdict.UNCLEAR
        note = "" if is_certain else "is the metric about this? --only NAME demands it"
    else:
        note = _needed(estimate, LEAST_FALLEN, is_upper=False)
    return Finding(
        probe.name, metric, probe.kind, "share fallen", estimate, "= 1" if is_empty else f">= {LEAST_FALLEN:g}",
        verdict=verdict, note=note,
    )  # fmt: skip


def harmless_findings(probe: Probe, metric: str, pairs: Sequence[Pair]) -> list[Finding]:
    """Return how far the mean score shifted, and how many verdicts flipped."""
    if not pairs:
        return [_nothing(probe, metric, "shift")]
    shift = _mean(pairs, _TOST_QUANTILE)
    verdict, note = Verdict.UNCLEAR, ""
    if shift.interval is None:
        note = f"needs {MIN_CLUSTERS} tests"
    elif shift.interval[0] >= -MOST_SHIFT and shift.interval[1] <= MOST_SHIFT:
        verdict = Verdict.HOLDS
    elif shift.interval[0] > MOST_SHIFT or shift.interval[1] < -MOST_SHIFT:
        verdict = Verdict.FAILS
    bar = f"+-{MOST_SHIFT:g}"
    first = Finding(probe.name, metric, probe.kind, "shift", shift, bar, verdict=verdict, note=note)
    return [first, flips_finding(probe, metric, pairs)]


def flips_finding(probe: Probe, metric: str, pairs: Sequence[Pair]) -> Finding:
    """Return how many verdicts changed."""
    share = _share(pairs, lambda pair: pair.passed_before != pair.passed_after)
    return _few(
        probe, metric, "flips", share, most=MOST_JOINT_FLIPS if probe.kind is Kind.JOINT else MOST_FLIPS
    )


def deception_finding(probe: Probe, metric: str, pairs: Sequence[Pair]) -> Finding:
    """Return how many failed outputs pass; `pairs` are of outputs that failed."""
    return _few(probe, metric, "flips", _share(pairs, lambda pair: pair.passed_after))


def _few(probe: Probe, metric: str, figure: str, estimate: Estimate, most: float = MOST_FLIPS) -> Finding:
    if estimate.interval is None:
        return _nothing(probe, metric, figure)
    low, high = estimate.interval
    verdict = Verdict.HOLDS if high <= most else Verdict.FAILS if low > most else Verdict.UNCLEAR
    note = _needed(estimate, most, is_upper=True) if verdict is Verdict.UNCLEAR else ""
    bar = f"<= {most:g}"
    return Finding(probe.name, metric, probe.kind, figure, estimate, bar, verdict=verdict, note=note)


def padding_finding(probe: Probe, metric: str, pairs: Sequence[Pair]) -> Finding:
    """Return how far the mean score rose."""
    if not pairs:
        return _nothing(probe, metric, "rise")
    rise, note, verdict = _mean(pairs, 0.975), "", Verdict.UNCLEAR
    if rise.interval is None:
        note = f"needs {MIN_CLUSTERS} tests"
    elif rise.interval[1] <= MOST_RISE:
        verdict = Verdict.HOLDS
    elif rise.interval[0] > MOST_RISE:
        verdict = Verdict.FAILS
    bar = f"<= {MOST_RISE:g}"
    return Finding(probe.name, metric, probe.kind, "rise", rise, bar, verdict=verdict, note=note)


def repetition_findings(probe: Probe, form: str, metric: str, pairs: Sequence[Pair]) -> list[Finding]:
    """Return whether outputs are in the same order, and how many verdicts flipped."""
    named = Probe(form if form in probe.name else f"{probe.name} {form}", probe.kind, (form,), probe.source)
    if not pairs:
        return [_nothing(named, metric, "tau")]
    before, after = (np.array([getattr(pair, side) for pair in pairs]) for side in ("before", "after"))
    tau = dataset_level(kendall, before, after, [str(pair.cluster) for pair in pairs])
    verdict, note = Verdict.UNCLEAR, ""
    if tau.value is None:
        note = "all scores are equal: they have no order"
    elif tau.clusters < MIN_CLUSTERS:
        note = f"needs {MIN_CLUSTERS} tests"
    elif tau.interval is None:  # of a tau that stays 1, whatever is left out
        verdict = Verdict.HOLDS if tau.value > _CERTAIN else Verdict.UNCLEAR
    elif tau.interval[0] >= LEAST_TAU:
        verdict = Verdict.HOLDS
    elif tau.interval[1] < LEAST_TAU:
        verdict = Verdict.FAILS
    bar = f">= {LEAST_TAU:g}"
    first = Finding(named.name, metric, probe.kind, "tau", tau, bar, verdict=verdict, note=note)
    return [first, flips_finding(named, metric, pairs)]


def place_finding(probe: Probe, metric: str, agreed: Sequence[tuple[int, bool]]) -> Finding:
    """Return how often the same output wins when outputs stand in the other order; `agreed` by test."""
    pairs = [Pair(cluster, 0.0, 0.0, True, same) for cluster, same in agreed]
    estimate = _share(pairs, lambda pair: pair.passed_after)
    if estimate.interval is None:
        return _nothing(probe, metric, "agreement")
    low, high = estimate.interval
    is_low = high < LEAST_AGREEMENT
    verdict = Verdict.HOLDS if low >= LEAST_AGREEMENT else Verdict.FAILS if is_low else Verdict.UNCLEAR
    note = _needed(estimate, LEAST_AGREEMENT, is_upper=False) if verdict is Verdict.UNCLEAR else ""
    bar = f">= {LEAST_AGREEMENT:g}"
    return Finding(probe.name, metric, probe.kind, "agreement", estimate, bar, verdict=verdict, note=note)


class JointScores(Struct, frozen=True):
    """The scores of one output by dimension, 0..1: asked one by one, and all in one call."""

    cluster: int
    separate: Mapping[str, float]
    joint: Mapping[str, float]


def halo_finding(probe: Probe, outputs: Sequence[JointScores]) -> Finding:
    """Return how much more the dimensions go together when they are asked for in one call.

    The figure is the mean Spearman correlation between dimensions, joint minus separate, with a jackknife interval by
    test. More than 0 is a halo: the judge lets its first rating colour the others.
    """
    names = sorted({name for item in outputs for name in item.joint})
    whole = [item for item in outputs if item.joint.keys() == item.separate.keys() == set(names)]
    if len(names) < 2 or not whole:  # noqa: PLR2004 - a correlation is between two
        return _nothing(probe, "", "halo", "needs outputs that are rated by two dimensions")
    sides = [
        np.array([[getattr(item, side)[name] for item in whole] for name in names])
        for side in ("joint", "separate")
    ]

    def halo(kept: Mask) -> float | None:
        joint, separate = (_mean_correlation(side[:, kept]) for side in sides)
        return None if joint is None or separate is None else joint - separate

    found = jackknife(halo, [str(item.cluster) for item in whole], is_correlation=False)
    if found.value is None:
        return _nothing(probe, "", "halo", "all scores of a dimension are equal: they have no order")
    verdict, note = Verdict.UNCLEAR, ""
    if found.clusters < MIN_CLUSTERS or found.interval is None:
        note = f"needs {MIN_CLUSTERS} tests"
    elif found.interval[1] <= SAME:
        verdict = Verdict.HOLDS
    elif found.interval[0] > SAME:
        verdict = Verdict.FAILS
    return Finding(probe.name, "", probe.kind, "halo", found, "<= 0", verdict=verdict, note=note)


def _mean_correlation(scores: Numbers) -> float | None:
    """Return the mean Spearman correlation between rows; None where a row is constant."""
    pairs = [(one, other) for one in range(len(scores)) for other in range(one)]
    found = [spearman(scores[one], scores[other]) for one, other in pairs]
    known = [item for item in found if item is not None]
    return math.fsum(known) / len(known) if len(known) == len(pairs) else None


class LabelledScore(Struct, frozen=True):
    """A judge's error on one output, `score - human`; whether a model of the judge's own family wrote it."""

    cluster: str
    error: float
    is_own: bool


def family_finding(probe: Probe, metric: str, scores: Sequence[LabelledScore]) -> Finding:
    """Return how much kinder the judge is to its own family than people are, against how it is to others.

    The difference of two means with standard errors that are robust to clusters: Liang and Zeger, "Longitudinal data
    analysis using generalized linear models", 1986.
    """
    own = np.array([score.is_own for score in scores], dtype=np.float64)
    clusters = {score.cluster for score in scores}
    if not scores or own.all() or not own.any() or len(clusters) < 2:  # noqa: PLR2004 - a spread needs two
        return _nothing(probe, metric, "difference", "needs labels of outputs by two families of models")
    errors = np.array([score.error for score in scores])
    means = {side: errors[own == side].mean() for side in (0.0, 1.0)}
    value = float(means[1.0] - means[0.0])
    centred, rest = own - own.mean(), errors - np.where(own > 0, means[1.0], means[0.0])
    sums = dict.fromkeys(clusters, 0.0)
    for score, part in zip(scores, centred * rest, strict=True):
        sums[score.cluster] += float(part)
    count = len(clusters)
    variance = (
        count / (count - 1) * math.fsum(part**2 for part in sums.values()) / float(centred @ centred) ** 2
    )
    spread = float(stats.t.ppf(0.975, count - 1)) * math.sqrt(variance)
    interval = (value - spread, value + spread)
    estimate = Estimate(value, interval if count >= MIN_CLUSTERS else None, len(scores), count)
    bar = f"<= {MOST_RISE:g}"
    if estimate.interval is None:
        note = f"needs {MIN_CLUSTERS} tests"
        return Finding(
            probe.name, metric, probe.kind, "difference", estimate, bar, verdict=Verdict.UNCLEAR, note=note
        )
    fails, holds = interval[0] > 0, interval[1] <= MOST_RISE
    verdict = Verdict.FAILS if fails else Verdict.HOLDS if holds else Verdict.UNCLEAR
    return Finding(probe.name, metric, probe.kind, "difference", estimate, bar, verdict=verdict)


def _nothing(probe: Probe, metric: str, figure: str, note: str = "no output could be changed so") -> Finding:
    return Finding(
        probe.name, metric, probe.kind, figure, Estimate(None), "", verdict=Verdict.SKIPPED, note=note
    )


def skipped(probe: Probe, metric: str, why: str) -> Finding:
    """Return the finding of a probe that was not made."""
    return _nothing(probe, metric, "", why)
