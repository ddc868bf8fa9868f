"""The files of `geval calibrate -o FILE`: the one for configs, or a report."""

from collections.abc import Iterator
from pathlib import Path

from geval_cli.extras.trust.agreement_files import jury_section
from geval_cli.extras.trust.calibration_records import Calibrated, Candidate, MetricCalibration
from geval_cli.extras.trust.charts import calibration_chart
from geval_cli.extras.trust.documents import (
    Document,
    Section,
    Table,
    estimate_cells,
    write_document,
)
from geval_cli.numbers import fixed
from geval_cli.report.json_file import json_text
from geval_cli.report.safe_file import SafeFile
from geval_cli.statistics.calibration import Logistic
from geval_cli.statistics.intervals import Estimate

CALIBRATION_ENDING = ".cal.json"
_FIGURES = ("figure", "value", "95 % interval", "outputs", "groups")
_CANDIDATES = ("threshold", "bad, passes", "good, fails", "balanced accuracy", "MCC", "")


def write_calibration(path: Path, found: Calibrated) -> None:
    """Write the file for configs where the name ends in `.cal.json`, else a report in the format of the ending.

    Raises:
        OutputError: the file cannot be written.
    """
    if not path.name.lower().endswith(CALIBRATION_ENDING):
        write_document(path, calibration_document(found))
        return
    with SafeFile(path) as file:
        file.write(_file_text(found))


def _file_text(found: Calibrated) -> str:
    """Return the JSON for configs with a line for each key of an entry, so that differences are easy to read."""
    content = found.to_file()
    entries = (
        ",\n".join(f"      {json_text(name)}: {json_text(value)}" for name, value in entry.items())
        for entry in content["entries"]
    )
    listed = ",\n".join(f"    {{\n{lines}\n    }}" for lines in entries)
    version = json_text(content["calibration_version"])
    return f'{{\n  "calibration_version": {version},\n  "entries": [\n{listed}\n  ]\n}}\n'


def calibration_document(found: Calibrated) -> Document:
    """Return the record as a document."""
    run = "" if found.run is None else f" of run {found.run}"
    count = f"{found.matched:,} labels, {found.unmatched:,} unmatched"
    return Document(
        "Calibration of a judge",
        lambda quote: (
            f"Labels: {quote(found.labels)}{quote(run)}; {count}. Outputs are grouped by"
            f" {quote(found.clustered_by)}."
        ),
        [section for item in found.metrics for section in _sections(item)],
        found.to_json(),
    )


def _sections(item: MetricCalibration) -> Iterator[Section]:
    yield _section(item)
    if item.jury is not None:
        yield jury_section(item.metric, item.jury, item.calibration.judges)


def _section(item: MetricCalibration) -> Section:
    found = item.calibration
    tables = [Table(_CANDIDATES, [candidate_row(item, one) for one in item.candidates])]
    if isinstance(found.curve, tuple):
        rows = [(f"{one.low:g}", f"{one.high:g}", fixed(one.p, 3), f"{one.n:,}") for one in found.curve]
        tables.append(Table(("from score", "to score", "P(pass)", "labels"), rows))
    if item.checked is not None:
        tables.append(Table(_FIGURES, list(figure_rows(item))))
    return Section(
        item.title,
        lambda quote: f"On {quote(item.metric)} {item.summary}",
        plots=[calibration_chart(found.metric, item.points, found.p_pass, found.threshold)],
        tables=tables,
        texts=[*_curve_texts(item), *item.notes],
    )


def candidate_row(item: MetricCalibration, one: Candidate) -> tuple[str, ...]:
    """Return a threshold with its errors as texts; the last cell says which one it is."""
    counts, marks = one.counts, []
    if one.threshold == item.calibration.threshold:
        marks.append("chosen")
    if one.threshold == item.present:
        marks.append("today")
    return (
        f"{one.threshold:.4g}",
        f"{counts.false_pass:,} of {counts.bad:,}",
        f"{counts.false_fail:,} of {counts.good:,}",
        "-" if one.balanced_accuracy is None else fixed(one.balanced_accuracy, 3),
        "-" if one.mcc is None else fixed(one.mcc, 3),
        ", ".join(marks),
    )


def _curve_texts(item: MetricCalibration) -> Iterator[str]:
    found = item.calibration
    if isinstance(found.curve, Logistic):
        slope, intercept = found.curve.slope, found.curve.intercept
        yield f"P(pass) is 1 / (1 + exp(-({slope:.4g} * score {intercept:+.4g})))."
    if found.alpha is not None:
        passes = "no score" if found.pass_from is None else f"scores from {found.pass_from:.4g}"
        fails = "no score" if found.fail_below is None else f"scores below {found.fail_below:.4g}"
        yield f"A clear pass: {passes}. A clear fail: {fails}. The rest is borderline."


def figure_rows(item: MetricCalibration) -> Iterator[tuple[str, ...]]:
    """Yield the figures on labels that were held back, with the words that people know."""
    checked = item.checked
    if checked is None:
        return
    named: dict[str, Estimate | None] = {
        "right verdicts": checked.accuracy,
        "right verdicts at the threshold of today": checked.present_accuracy,
        "error of P(pass) (Brier)": checked.brier,
        "the same, if all got the share of good outputs": checked.base_brier,
        "the same, if the score were the chance": checked.score_brier,
        "clear scores": checked.clear,
        "bad outputs that were a clear pass": checked.bad_passed,
        "good outputs that were a clear fail": checked.good_failed,
    }
    for name, estimate in named.items():
        if estimate is not None:
            yield (name, *estimate_cells(estimate))
