"""The records of how a judge agrees with people on one metric, which `trust.agreement` fills."""

from collections.abc import Mapping

from msgspec import Struct

from geval_cli.extras.trust.juries import JuryAgreement
from geval_cli.extras.trust.labels import LabelledOutput, Scale
from geval_cli.statistics.agreement import AltTest, Confusion
from geval_cli.statistics.intervals import Estimate


class Level(Struct, frozen=True):
    """Three correlations of scores with labels.

    Attributes:
        documents: over which a mean was taken, and `skipped`, where a side was constant; of the summary level only.
        systems: whose means were compared; of the system level only.
    """

    pearson: Estimate
    spearman: Estimate
    kendall: Estimate
    documents: int | None = None
    skipped: int | None = None
    systems: int | None = None


class People(Struct, frozen=True):
    """Agreement of the annotators among themselves.

    Attributes:
        alpha: Krippendorff's, ordinal.
        alpha_with_judge: the same with the judge as a further annotator.
        kappas: of the judge with each annotator, quadratic weights, the judge's rating rounded (half to even).
        ceiling: mean rho of each annotator with the mean of the others.
        judge: mean rho of the judge with the same means; `share` is the judge's part of the ceiling.
    """

    alpha: Estimate
    alpha_with_judge: Estimate
    kappas: Mapping[str, Estimate]
    ceiling: Estimate
    judge: Estimate
    share: Estimate


class Verdicts(Struct, frozen=True):
    """Pass and fail against good and bad: at the present threshold, and at the one with the highest MCC.

    Attributes:
        good_at: mean labels from here on are good, 0..1.
        threshold: scores from here on pass.
        kappa: Cohen's, of the judge's verdicts with people's.
        better_threshold: where Matthews' correlation is highest; None when no threshold tells good from bad.
    """

    good_at: float
    threshold: float
    counts: Confusion
    kappa: Estimate
    mcc: float | None
    better_threshold: float | None
    better_counts: Confusion | None
    better_mcc: float | None


class Bias(Struct, frozen=True):
    """How the judge errs: `shift` is its mean score minus the mean label, 0..1; `shift_ratings` on the labels' scale.

    `length`: Spearman's rho of scores with the number of words, labels held fixed; None without the outputs' texts.
    """

    shift: Estimate
    shift_ratings: Estimate
    length: Estimate


class MetricAgreement(Struct, frozen=True):
    """A judge and people on one metric.

    Attributes:
        judge: which model, where the run says so.
        n: outputs with a label and a score; `errored`: with a label, where the judge broke.
        people: None with one annotator; `alt_test` likewise, and with too few items.
        notes: what is missing, and why.
        summary: one sentence for readers who take no interest in statistics.
        jury: beside its best judge; None where one judge gave the scores.
        points: the outputs, for plots; not in the JSON.
    """

    metric: str
    judge: str | None
    n: int
    errored: int
    annotators: int
    documents: int
    clusters: int
    scale: Scale
    dataset: Level
    document_level: Level | None
    system: Level | None
    people: People | None
    verdicts: Verdicts
    bias: Bias
    alt_test: AltTest | None
    notes: tuple[str, ...]
    summary: str
    jury: JuryAgreement | None = None
    points: tuple[LabelledOutput, ...] = ()
