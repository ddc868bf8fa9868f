"""Made-up figures of three prompts with two models, for tests of displayed output."""

from msgspec.structs import replace
from support.sample_run import SUMMARY, make_report

from geval_cli.records import (
    Column,
    ColumnComparison,
    ColumnSummary,
    Delta,
    Difference,
    Latency,
    MetricStat,
    RankedColumn,
    Stat,
    Usage,
)
from geval_cli.report.report import RunReport

PAIRS = [
    (prompt, model) for model in ("gpt-4o-mini", "claude-haiku") for prompt in ("brief", "polite", "thorough")
]
COLUMNS = tuple(Column(index, prompt, model) for index, (prompt, model) in enumerate(PAIRS))


def difference(value: float, verdict: str, p: float, needed: int | None = None) -> Difference:
    interval = None if verdict == "identical" else (value - 0.11, value + 0.11)
    return Difference(Delta(value, interval, 40, 40, 0.055, p / 4, p, 0.154, needed), verdict)


def figures(index: int, *, compared: ColumnComparison | None) -> ColumnSummary:
    rate = 0.5 + index * 0.08
    return ColumnSummary(
        prompt=PAIRS[index][0],
        provider=PAIRS[index][1],
        label=" × ".join(PAIRS[index]),  # noqa: RUF001
        passed=round(40 * rate),
        failed=40 - round(40 * rate),
        errored=index % 3,
        pass_rate=Stat(rate, (rate - 0.152, rate + 0.0999), 40, 40),
        metrics={
            "clarity": MetricStat(0.61 + index / 20, (0.52 + index / 20, 0.7 + index / 20), 40, 40),
            "tone of voice": MetricStat(None) if index == 5 else MetricStat(0.9, (0.85, 0.95), 38, 38, 2),
        },
        cost_usd=None if index == 4 else 0.0042 * (index + 1),
        cost_usd_generated=None if index == 4 else 0.0042 * (index + 1),
        latency_ms=Latency(820.0 + 300 * index, 2_100.0 + 900 * index),
        usage={"generation": Usage(40, 12_300, 2_310 * (index + 1))},
        vs_first=compared,
    )


def comparison(rate: Difference, clarity: Difference) -> ColumnComparison:
    return ColumnComparison("brief × gpt-4o-mini", rate, {"clarity": clarity})  # noqa: RUF001


FIGURES = (
    figures(0, compared=None),
    figures(
        1, compared=comparison(difference(0.08, "undecided", 0.61, 152), difference(0.0, "identical", 1))
    ),
    figures(2, compared=comparison(difference(0.16, "better", 0.041), difference(-0.2, "worse", 0.0121))),
    figures(3, compared=comparison(difference(0.24, "better", 0.0004), difference(0.004, "undecided", 1))),
    figures(
        4, compared=comparison(difference(-0.32, "worse", 0.0002), difference(0.1, "undecided", 0.2, 41))
    ),
    figures(5, compared=ColumnComparison("brief × gpt-4o-mini")),  # noqa: RUF001
)


def report_of(columns: tuple[ColumnSummary, ...] = FIGURES) -> RunReport:
    return make_report(columns=COLUMNS[: len(columns)], summary=replace(SUMMARY, columns=columns))


def ranked(label: str, rating: float | None, span: tuple[float, float] | None, *counts: int) -> RankedColumn:
    low, high = span or (None, None)
    wins, ties, losses = counts
    return RankedColumn(label=label, rating=rating, low=low, high=high, wins=wins, ties=ties, losses=losses)


RANKED = (
    ranked("large | thorough", 1644.4, (1471.6, 1783.9), 6, 1, 1),
    ranked("\x1b[31msmall<b>\u202e", 1355.6, None, 1, 1, 1_006),
)
APART = (ranked("a", None, None, 1, 0, 0), ranked("b", None, None, 0, 0, 1))


def ranked_report() -> RunReport:
    summary = replace(
        SUMMARY,
        rankings={"more-helpful": RANKED, "kinder": APART},
        order_consistency={"more-helpful": 0.9167, "kinder": None},
    )
    return make_report(summary=summary)
