"""The findings of `geval probe` in words, and as a document for `-o FILE`."""

from collections.abc import Sequence

from geval_cli.extras.trust.charts import probe_chart
from geval_cli.extras.trust.documents import Document, Section, Table
from geval_cli.extras.trust.probes import Finding, ProbeReport, Verdict
from geval_cli.numbers import fixed
from geval_cli.report.charts.drawing import Chart
from geval_cli.report.numbers import plural

_HEADER = (
    "probe",
    "metric",
    "must",
    "figure",
    "value",
    "interval",
    "outputs",
    "tests",
    "bar",
    "verdict",
    "note",
)


def probe_document(report: ProbeReport) -> Document:
    """Return the findings as a document to be written."""
    return Document(
        title="Probes of the judge",
        about=lambda quote: f"{quote(about(report))} {verdict_counts(report)}",
        sections=[
            Section(
                "Findings",
                plots=_plots(report.findings),
                tables=[Table(_HEADER, [_row(item) for item in report.findings])],
            )
        ],
        data=report.to_json(),
    )


def _plots(findings: Sequence[Finding]) -> list[Chart]:
    metrics: dict[str, list[Finding]] = {}
    for item in findings:
        metrics.setdefault(item.metric, []).append(item)
    return [plot for metric, members in metrics.items() if (plot := probe_chart(metric, members))]


def about(report: ProbeReport) -> str:
    """Return in a sentence what was probed, and what was asked."""
    judges = ", ".join(report.judges) or "none"
    parts = [
        f"Judge {judges}: {plural(report.items, 'output')} of {plural(report.tests, 'test')}",
        f"{plural(report.asked, 'rating')} of {report.planned:,} planned",
    ]
    if report.errored:
        parts.append(f"{report.errored:,} of them failed ({report.first_error})")
    if report.unanswered:
        parts.append(f"{plural(report.unanswered, 'output')} could not be had")
    if report.stopped:
        parts.append(f"stopped early: {report.stopped}")
    return ", ".join(parts) + "."


def verdict_counts(report: ProbeReport) -> str:
    """Return how many findings there are of each verdict, the worst first."""
    order = (Verdict.FAILS, Verdict.UNCLEAR, Verdict.HOLDS, Verdict.SKIPPED)
    counts = {verdict: sum(item.verdict is verdict for item in report.findings) for verdict in order}
    words = {Verdict.FAILS: ("fails", "fail"), Verdict.HOLDS: ("holds", "hold")}
    return ", ".join(
        f"{count:,} {words.get(verdict, (verdict.value, verdict.value))[count != 1]}"
        for verdict, count in counts.items()
        if count
    )


def interval_text(finding: Finding) -> str:
    """Return the interval of a figure; "-" for none."""
    interval = finding.estimate.interval
    return "-" if interval is None else f"[{fixed(interval[0], 2)}, {fixed(interval[1], 2)}]"


def note_of(finding: Finding) -> str:
    """Return the note of a finding, and what was left out of it."""
    left_out = [f"{why}: {count:,}" for why, count in finding.skipped.items()]
    note = "" if finding.note in finding.skipped else finding.note
    return "; ".join(filter(None, (note, *left_out)))


def _row(finding: Finding) -> tuple[str, ...]:
    estimate = finding.estimate
    value = "-" if estimate.value is None else fixed(estimate.value, 2)
    return (
        finding.probe,
        finding.metric,
        finding.must.value,
        finding.figure,
        value,
        interval_text(finding),
        f"{estimate.n:,}",
        f"{estimate.clusters:,}",
        finding.bar,
        finding.verdict.value,
        note_of(finding),
    )
