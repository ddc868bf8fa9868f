"""The plan of a run: counts by kind of request with tokens and price, as JSON and as a table for people."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import estimated, format_cost, format_count, format_score, plural
from geval_cli.records import SCHEMA_VERSION, JsonValue, Purpose, Role, to_json
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.sanitize import one_line

_NAME_WIDTH = 60
_DIGITS = 2  # of a price: the tokens are estimated, too
_PROVIDER_WIDTH = 28
_PURPOSES = list(Purpose)
_TOKENS = ("input_least", "input_most", "output_most")
_DIRECTLY = (
    "the first request of each kind, and a wave of fewer than 20 (Bedrock: 100), are sent directly at the usual price,"
    " which is not counted here"
)
_WIDTH_FOR_TOKENS_OUT = 90
_REMARKS = (
    "Equal requests are sent once; retries are not counted. Tokens are estimated: one for every four characters, and"
    " 200 for an answer without `max_tokens` that a judge reads.",
)


class RequestCounts(Struct, frozen=True):
    """Answers that would be asked for, with their tokens and price. A sum with something unknown is unknown.

    Attributes:
        least, most: how many; repetitions after a failure are not counted.
        cached: how many more the cache has, which cost nothing.
        output_most: tokens; None when nothing bounds what is written.
        cost_least_usd: for reading alone; None when the price is unknown.
        cost_most_usd: None when the price is unknown, or when nothing bounds what is written.
    """

    least: int = 0
    most: int = 0
    cached: int = 0
    input_least: int = 0
    input_most: int = 0
    output_most: int | None = 0
    cost_least_usd: float | None = 0.0
    cost_most_usd: float | None = 0.0

    def __add__(self, other: "RequestCounts") -> "RequestCounts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return RequestCounts(*sums)


class RequestKind(Struct, frozen=True):
    """Requests of one role to one provider for one purpose; `assumption` says on what it hangs that they are asked."""

    role: Role
    provider: str
    purpose: Purpose
    assumption: str = ""

    @property
    def name(self) -> str:
        return f"judge's {self.purpose}" if self.role is Role.JUDGE else self.purpose


class WorkersPlan(Struct, frozen=True):
    """How many processes would do a run, in how many shards of `shard_tests` tests at most, with so many requests."""

    workers: int
    shards: int
    shard_tests: int
    requests_at_once: int


class PowerPlan(Struct, frozen=True):
    """The number of tests that show a drop, by the spread of an earlier run.

    Attributes:
        metric: whose mean drops; None for the pass rate.
        drop: below what it was.
        needed: so many tests show it with a chance of 80 %, at a level of 5 %.
        tests: of the suite.
        shown: the drop that they show with that chance; None above 1, and for fewer than two tests.
        run: the earlier run.
    """

    metric: str | None
    drop: float
    needed: int
    tests: int
    shown: float | None
    run: str


_STAGES: Mapping[Purpose, int] = {
    Purpose.ANSWER: 0,
    Purpose.FALLBACK_SAMPLES: 2,
    Purpose.FURTHER_SAMPLES: 2,
    Purpose.EMBEDDING: 2,
    Purpose.EXPLANATION: 3,
}
"""Counts the answers that must be there before something can be asked; 1 for all other purposes."""


class AnchorsPlan(Struct, frozen=True):
    """The ratings of anchors before a run, none of which comes from the cache; `cost_usd` is None when unknown."""

    ratings: int
    cost_usd: float | None


class RunPlan(Struct, frozen=True):
    """The plan of a run of so many cases.

    Attributes:
        workers: None where one process does it.
        batched: the kinds of requests that go into batches.
        anchors: what is judged before it; no part of the counts. None without anchors.
        power: what it can show; empty where there is no earlier run to tell the spread.
    """

    cases: int
    counts: Mapping[RequestKind, RequestCounts]
    workers: WorkersPlan | None = None
    batched: frozenset[RequestKind] = frozenset()
    power: tuple[PowerPlan, ...] = ()
    anchors: AnchorsPlan | None = None

    @property
    def waves(self) -> dict[RequestKind, int]:
        """The number, from 1, of the wave of batches of each kind; kinds that are asked directly have none."""
        asked = [kind for kind in self.batched if self.counts[kind].most]
        stages = sorted({_STAGES.get(kind.purpose, 1) for kind in asked})
        return {kind: stages.index(_STAGES.get(kind.purpose, 1)) + 1 for kind in asked}

    @property
    def rows(self) -> list[tuple[RequestKind, RequestCounts]]:
        """The kinds that are asked for: generation first, then judges, each in the order of its purposes."""
        rows = [(kind, counts) for kind, counts in self.counts.items() if counts.most or counts.cached]
        return sorted(
            rows,
            key=lambda row: (row[0].role is Role.JUDGE, row[0].provider, _PURPOSES.index(row[0].purpose)),
        )

    @property
    def total(self) -> RequestCounts:
        return sum((counts for _, counts in self.rows), RequestCounts())


def plan_document(plan: RunPlan) -> JsonValue:
    """Return the JSON of a plan."""
    waves = plan.waves
    rows = [
        {**to_json(kind), **({"wave": waves.get(kind)} if plan.batched else {}), **_counts_document(counts)}
        for kind, counts in plan.rows
    ]
    total = _counts_document(plan.total)
    head = {"schema_version": SCHEMA_VERSION, "kind": "plan"}
    workers = {} if plan.workers is None else {"workers": to_json(plan.workers)}
    batches = {"waves": max(waves.values(), default=0)} if plan.batched else {}
    power = {"power": to_json(plan.power)} if plan.power else {}
    anchors = {} if plan.anchors is None else {"anchors": to_json(plan.anchors)}
    return {
        **head,
        "total": total,
        "cases": plan.cases,
        **workers,
        **batches,
        **anchors,
        **power,
        "rows": rows,
    }


def _counts_document(counts: RequestCounts) -> dict[str, JsonValue]:
    document: dict[str, JsonValue] = to_json(counts)
    return {"tokens": {name: document.pop(name) for name in _TOKENS}, **document}


def print_plan(plan: RunPlan, config: str, console: Console) -> None:
    """Print the table, the totals, and what was assumed."""
    cases = plural(plan.cases, "case")
    calls, cached, _, _, price = _cells(plan.total)
    noun = "call" if plan.total.least == plan.total.most == 1 else "calls"
    name = one_line(config, 200)
    if plan.total.most or not plan.total.cached:
        more = f", plus {cached} cached answers" if plan.total.cached else ""
        whole = f"{name} would make {calls} {noun} for {cases}{more}; price {price}; nothing was sent"
    else:
        whole = f"{name} would make 0 calls: the cache has all {cached} answers for {cases}; nothing was sent"
    print_hanging(Text(), Text(whole, style="bold"), console, indent=1)
    console.print()
    table = plain_table(console)
    table.add_column("provider", overflow="fold", max_width=_PROVIDER_WIDTH)
    table.add_column("what")
    waves = plan.waves
    figures = ["calls", "cached", "tokens in", "tokens out", "price"]
    hidden = figures.index("tokens out") if console.width < _WIDTH_FOR_TOKENS_OUT else len(figures)
    for heading in [*(["wave"] if plan.batched else []), *figures[:hidden], *figures[hidden + 1 :]]:
        table.add_column(heading, justify="right", no_wrap=heading == "price")
    for kind, counts in plan.rows:
        wave = [str(waves.get(kind, "direct"))] if plan.batched else []
        cells = _cells(counts)
        table.add_row(
            Text(one_line(kind.provider, _NAME_WIDTH)),
            kind.name,
            *wave,
            *cells[:hidden],
            *cells[hidden + 1 :],
        )
    if plan.rows:
        print_trimmed(indented(table), console)
        console.print()
    notes = [(f" {kind.name}: ", kind.assumption) for kind, _ in plan.rows if kind.assumption]
    for head, note in dict.fromkeys(notes):
        print_hanging(Text(head), Text(note, style="dim"), console, indent=0)
    if plan.workers is not None:
        print_hanging(
            Text(" workers ", style="bold"), Text(_describe_workers(plan.workers)), console, indent=0
        )
    if plan.batched:
        count = max(waves.values(), default=0)
        text = f"{plural(count, 'wave')} of batches, each answered within a day; {_DIRECTLY}"
        print_hanging(Text(" batches ", style="bold"), Text(text), console, indent=0)
    if plan.anchors is not None:
        cost = plan.anchors.cost_usd
        price = "price unknown" if cost is None else f"about {_dollars(cost)}"
        text = f"{plural(plan.anchors.ratings, 'more rating')} before the run, none from the cache; {price}"
        print_hanging(Text(" anchors ", style="bold"), Text(text), console, indent=0)
    for item in plan.power:
        print_hanging(
            Text(" power   ", style="bold"), Text(_describe_power(item, plan.total)), console, indent=0
        )
    for remark in _REMARKS:
        print_hanging(Text(" "), Text(remark, style="dim"), console, indent=0)


def _describe_workers(plan: WorkersPlan) -> str:
    shards = f"{plural(plan.shards, 'shard')} of at most {plural(plan.shard_tests, 'test')}"
    requests = plural(plan.requests_at_once, "request")
    return f"{plural(plan.workers, 'process', 'processes')} with {requests} at once each, {shards}"


def _describe_power(item: PowerPlan, total: RequestCounts) -> str:
    what = "the pass rate" if item.metric is None else f"the mean of {one_line(item.metric, _NAME_WIDTH)}"
    told = f"{estimated(item.needed)} tests detect a drop of {format_score(item.drop)} in {what} (80 % power)"
    if total.most and total.cost_least_usd is not None:
        # More tests would be answered by no cache.
        scale = (total.most + total.cached) / total.most * item.needed / item.tests
        low, high = (
            None if usd is None else usd * scale for usd in (total.cost_least_usd, total.cost_most_usd)
        )
        told += f", price {_price(low, high)}"
    here = f"; the {item.tests:,} here detect {format_score(item.shown)} or more" if item.shown else ""
    return f"{told}{here} (spread as in run {item.run})"


def _cells(counts: RequestCounts) -> list[str]:
    return [
        _span(f"{counts.least:,}", f"{counts.most:,}"),
        f"{counts.cached:,}",
        _span(format_count(counts.input_least), format_count(counts.input_most)),
        "no bound" if counts.output_most is None else f"<= {format_count(counts.output_most)}",
        _price(counts.cost_least_usd, counts.cost_most_usd),
    ]


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def _price(least_usd: float | None, most_usd: float | None) -> str:
    low, high = (None if usd is None else _dollars(usd) for usd in (least_usd, most_usd))
    return "unknown" if low is None else f"from {low}" if high is None else _span(low, high)


def _dollars(amount_usd: float) -> str:
    return format_cost(float(f"{amount_usd:.{_DIGITS}g}")) if amount_usd else "$0"
