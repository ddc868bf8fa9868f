"""One run for the templates that the page and the report share: its sums, and how its figures are written."""

import re
from typing import Any

from geval_cli.records import RunStatus, RunSummary, Status
from geval_cli.report.columns import column_table, cost_note, leader_text, metric_names
from geval_cli.report.report import RunReport, run_title, telling_metrics
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import (
    derived_rows,
    gate_value,
    ranking_note,
    ranking_rows,
    run_outcome,
    shown_gates,
    whole_titles,
)

_FLAKY_SHOWN = 20


def run_values(report: RunReport) -> dict[str, Any]:
    """Return the values of the templates `run_head.html` and `run_summary.html`."""
    run, summary = report.run, report.summary
    titles = whole_titles(run.columns)
    # Of a finished run they are called as in the table that sets them side by side.
    titles |= {column.index: item.label for column, item in zip(run.columns, summary.columns, strict=False)}
    names = metric_names(summary.columns)
    heading, rows = column_table(summary.columns, [column.label for column in summary.columns])
    return {
        "run": run,
        "summary": summary,
        "config_name": run_title(run),
        "description": _description(report),
        "is_live": run.status is RunStatus.RUNNING,
        "statuses": status_counts(summary),
        "gates": [(gate, gate_value(gate)) for gate in shown_gates(summary.gates)],
        "derived": list(derived_rows(report, titles)),
        "flaky": summary.flaky[:_FLAKY_SHOWN],
        "flaky_hidden": summary.flaky_count - len(summary.flaky[:_FLAKY_SHOWN]),
        "column_titles": titles,
        "table": (
            [name if name in names else name[:1].upper() + name[1:] for name in heading],
            rows,
        ),
        "leader": re.sub(
            "^no ", "No ", leader_text(summary.columns, [column.label for column in summary.columns])
        ),
        "outcome": run_outcome(report.run, report.summary),
        "cost_note": cost_note(summary.columns),
        "metrics": telling_metrics(summary),
        "rankings": [
            (
                name,
                [
                    (f"{place}. {one_line(label, 160)}".removeprefix(". "), *figures)
                    for place, label, *figures in ranking_rows(entries)
                ],
                ranking_note(summary, name),
            )
            for name, entries in summary.rankings.items()
        ],
    }


def status_counts(summary: RunSummary) -> list[tuple[Status, int]]:
    """Return the four outcomes with their counts, the worst first."""
    return [
        (Status.FAILED, summary.failed),
        (Status.ERROR, summary.errored),
        (Status.PASSED, summary.passed),
        (Status.NOT_EVALUATED, summary.not_evaluated),
    ]


def _description(report: RunReport) -> str | None:
    if report.run.description is not None:
        return report.run.description
    config = report.run.config
    found = config.get("description") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None
