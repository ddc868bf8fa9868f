"""The files of `geval agree -o FILE`: every statistic, the verdicts, and plots."""

from collections.abc import Iterator, Sequence

from geval_cli.extras.trust.agreement import Agreement
from geval_cli.extras.trust.agreement_records import Level, MetricAgreement
from geval_cli.extras.trust.charts import agreement_charts
from geval_cli.extras.trust.documents import Document, Quote, Section, Table, estimate_cells, gate_sections
from geval_cli.extras.trust.juries import JuryAgreement, jury_sentence
from geval_cli.numbers import fixed
from geval_cli.report.numbers import plural
from geval_cli.statistics.calibration import JudgeWeight
from geval_cli.statistics.intervals import Estimate

_HEADER = ("statistic", "value", "95 % interval", "outputs", "groups")


def agreement_document(found: Agreement) -> Document:
    """Return the record as a document."""
    metrics = [section for item in found.metrics for section in _sections(item)]
    sections = [*metrics, *gate_sections(found.gates)]
    return Document("Agreement with people", lambda quote: _about(found, quote), sections, found.to_json())


def _sections(item: MetricAgreement) -> Iterator[Section]:
    yield _section(item)
    if item.jury is not None:
        yield jury_section(item.metric, item.jury)


def _section(item: MetricAgreement) -> Section:
    said = item.summary.removeprefix(f"On {item.metric} ")
    return Section(
        item.metric,
        lambda quote: f"On {quote(item.metric)} {said}",
        plots=agreement_charts(item),
        tables=[Table(_HEADER, list(_rows(item))), Table(_VERDICT_HEADER, list(_verdict_rows(item)))],
        texts=[text for text in (_alt_test_text(item), *item.notes) if text],
    )


def statistics_of(item: MetricAgreement) -> Iterator[tuple[str, Estimate]]:
    """Yield every statistic of a metric with its name, in the order in which people read them."""
    levels: dict[str, Level | None] = {
        "all outputs": item.dataset,
        "within documents": item.document_level,
        "systems": item.system,
    }
    for name, level in levels.items():
        if level is not None:
            yield f"Spearman's rho, {name}", level.spearman
            yield f"Kendall's tau-b, {name}", level.kendall
            yield f"Pearson's r, {name}", level.pearson
    if item.people is not None:
        yield "ceiling: one person with the others", item.people.ceiling
        yield "judge with the same others", item.people.judge
        yield "judge's part of the ceiling", item.people.share
        yield "Krippendorff's alpha of people", item.people.alpha
        yield "Krippendorff's alpha with the judge", item.people.alpha_with_judge
        for name, estimate in item.people.kappas.items():
            yield f"quadratic kappa with {name}", estimate
    yield "Cohen's kappa of verdicts", item.verdicts.kappa
    yield "shift of scores (0 to 1)", item.bias.shift
    yield "shift in ratings", item.bias.shift_ratings
    yield "rho with length, labels held fixed", item.bias.length


def _rows(item: MetricAgreement) -> Iterator[tuple[str, ...]]:
    for name, estimate in statistics_of(item):
        yield name, *estimate_cells(estimate)


def _verdict_rows(item: MetricAgreement) -> Iterator[tuple[str, ...]]:
    verdicts = item.verdicts
    found = [(verdicts.threshold, verdicts.counts)]
    if verdicts.better_threshold is not None and verdicts.better_counts is not None:
        found.append((verdicts.better_threshold, verdicts.better_counts))
    for threshold, counts in found:
        numbers = (counts.true_pass, counts.false_pass, counts.false_fail, counts.true_fail)
        mcc = "-" if counts.mcc is None else fixed(counts.mcc, 3)
        yield (f"{threshold:g}", *(f"{number:,}" for number in numbers), mcc)


_VERDICT_HEADER = ("threshold", "good, passes", "bad, passes", "good, fails", "bad, fails", "MCC")


def _alt_test_text(item: MetricAgreement) -> str:
    test = item.alt_test
    if test is None:
        return ""
    said = "passes" if test.passed else "does not pass"
    won = f"it may stand in for {sum(test.winners)} of {len(test.winners)} annotators (epsilon {test.epsilon:g})"
    control = f"always giving {item.scale[0] + test.constant * (item.scale[1] - item.scale[0]):g}"
    shown = (
        "is shown to be better than that" if test.beats_constant else "is not shown to be better than that"
    )
    return (
        f"Alternative annotator test: the judge {said}; {won}. It is as near to the others as an annotator for"
        f" {100 * test.rho:.1f} % of the labels, {control} for {100 * test.constant_rho:.1f} %; the judge {shown}."
    )


def _about(found: Agreement, quote: Quote) -> str:
    judges = ", ".join(map(quote, found.judges)) or "scores of the file"
    run = "" if found.run is None else f" Run {quote(found.run)}."
    people = plural(len(found.annotators), "annotator")
    return (
        f"Judge: {judges}.{run} {plural(found.matched, 'label')} of {people}, {found.unmatched:,} unmatched."
        f" Intervals group outputs by {quote(found.clustered_by)}."
    )


def jury_table(found: JuryAgreement, weights: Sequence[JudgeWeight] = ()) -> Table:
    """Return the judges as a table, with their shares of the weight where they have some, and the jury last."""
    header = ("judge", "rho", "95 % interval", "outputs", "groups")
    total = sum(one.weight for one in weights)
    shares = [f"{100 * one.weight / total:.0f} %" for one in weights] if total else []
    names = [one.judge for one in found.judges]
    rows = [(name, *estimate_cells(one.spearman)) for name, one in zip(names, found.judges, strict=True)]
    rows.append((f"jury ({found.combine})", *estimate_cells(found.jury)))
    rows.append(("jury minus best judge", *estimate_cells(found.gain)))
    if not shares:
        return Table(header, rows)
    more = [*shares, "", ""]
    return Table((*header, "weight"), [(*row, share) for row, share in zip(rows, more, strict=True)])


def jury_section(metric: str, found: JuryAgreement, weights: Sequence[JudgeWeight] = ()) -> Section:
    """Return the jury of a metric, judge by judge, as a part of a document."""
    return Section(
        f"{metric}: the judges of the jury",
        lambda quote: jury_sentence(found, quote),
        tables=[jury_table(found, weights)],
    )
